//! A round, as the node sees it that began it: it asks until all replicas hold the same, then
//! commits.
//!
//! ```text
//!  Begin ─▶ sums of all ─┬─ a watermark is lower ─▶ TakeOver ─┐
//!              ▲         ├─ the newest record is a conditional write's,
//!              │         │  and one holds it: Prepare, Accept ┤
//!              │         ├─ one is damaged       ─▶ Exchange ─┤
//!              │         ├─ they differ          ─▶ Exchange ─┤
//!              └─────────│────────────────────────────────────┘
//!                        └─ all are equal ─▶ Commit
//! ```

use std::collections::BTreeMap;

use crate::client::{Client, MAJORITY, Step};
use crate::replica::{Proof, Record, Reply, Sum};
use crate::rules::Rules;
use crate::world::{Message, REPLICAS, THIRD};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Round {
    /// What it is to prove something about: all that was written up to here. 0 = it has not begun.
    pub(crate) time: u8,
    sums: BTreeMap<u8, Sum>,
    /// The read that brings a conditional record to a majority.
    completes: Option<Client>,
    /// What each replica was brought last.
    asked: BTreeMap<u8, Message>,
    pub(crate) is_committed: bool,
    /// A disk was lost since: the next round is to say what it proved.
    pub(crate) is_void: bool,
}

impl Round {
    pub(crate) fn begin(&mut self, time: u8) -> Message {
        self.time = time;
        Message::Begin(time)
    }

    /// A replica answered. What is sent, to whom.
    pub(crate) fn receive(
        &mut self,
        from: u8,
        asked: &Message,
        reply: Reply,
        clock: &mut u8,
        rules: &Rules,
    ) -> Vec<(u8, Message)> {
        if let Reply::Summed(sum) = reply {
            self.sums.insert(from, sum);
            let latest = self.sums.values().map(|sum| sum.life).max().unwrap_or(0);
            let third = THIRD as u8;
            let is_older = self.sums.get(&third).is_some_and(|sum| sum.life < latest);
            if is_older && rules.later_life_ends_sum {
                self.sums.remove(&third);
                return vec![(third, Message::Begin(self.time))];
            }
            return self.look(clock, rules);
        }
        let Some(read) = &mut self.completes else { return Vec::new() };
        match read.receive(from, asked, reply, rules) {
            Step::Send(message) => to_all(&message),
            Step::Answer(_) => {
                self.completes = None;
                self.sums.clear();
                to_all(&Message::Begin(self.time))
            }
            Step::Wait if read.refused => to_all(&read.begin(clock)),
            Step::Wait => Vec::new(),
        }
    }

    /// Looks what is to be done about what replicas hold.
    fn look(&mut self, clock: &mut u8, rules: &Rules) -> Vec<(u8, Message)> {
        if self.sums.len() < MAJORITY || self.is_committed || self.completes.is_some() {
            return Vec::new();
        }
        // Those that are there are made equal, whether the others are there or not.
        let sent = self.lagging(rules);
        if sent.is_empty() && self.is_equal(rules) {
            let needed = if rules.all_agree { REPLICAS } else { MAJORITY };
            return if self.sums.len() < needed { Vec::new() } else { self.commit() };
        }
        let newest = self.newest(rules);
        let holders = self.sums.values().filter(|sum| sum.record == newest).count();
        let is_chosen = holders >= MAJORITY || newest.as_ref().is_none_or(|r| r.ballot == 0);
        if sent.is_empty() && !is_chosen && rules.minority_is_completed {
            if self.sums.len() < REPLICAS {
                return Vec::new();
            }
            let readable = self.sums.values().filter(|sum| !sum.is_damaged).count();
            let read = self.completes.insert(Client::completing(readable));
            return to_all(&read.begin(clock));
        }
        let sent = if sent.is_empty() { self.differing(newest, rules) } else { sent };
        // What did not help is not tried again.
        let sent = sent.into_iter().filter(|(to, message)| {
            self.sums.remove(to).expect("it was just looked at").is_damaged
                || self.asked.insert(*to, message.clone()).as_ref() != Some(message)
        });
        sent.collect()
    }

    /// Those that missed a commit.
    fn lagging(&self, rules: &Rules) -> Vec<(u8, Message)> {
        let readable = self.sums.values().filter(|sum| !sum.is_damaged);
        let source = readable.max_by_key(|sum| sum.watermark);
        let Some(source) = source.filter(|_| rules.lagging_takes_over) else { return Vec::new() };
        let take_over = Message::TakeOver {
            watermark: source.watermark,
            floor: source.floor,
            record: source.record.clone(),
        };
        let lags = |sum: &Sum| sum.watermark < source.watermark;
        let lagging = self.sums.iter().filter(|(_, sum)| lags(sum));
        lagging.map(|(to, _)| (*to, take_over.clone())).collect()
    }

    fn is_equal(&self, rules: &Rules) -> bool {
        let mut sums = self.sums.values().map(|sum| (sum.is_damaged, self.sum(sum, rules)));
        let first = sums.next().expect("there are some");
        !first.0 && sums.all(|sum| sum == first)
    }

    /// The newest record of those that were told.
    fn newest(&self, rules: &Rules) -> Option<Record> {
        let is_meant =
            |record: &&Record| rules.exchange_brings_newest || record.when() <= self.time;
        let records = self.sums.values().filter_map(|sum| sum.record.as_ref());
        records.filter(is_meant).max_by_key(|record| record.rank()).cloned()
    }

    /// Those that hold something else than the newest record.
    fn differing(&self, newest: Option<Record>, rules: &Rules) -> Vec<(u8, Message)> {
        // What is damaged may have been the newest but for one that is not there.
        let heals = self.sums.len() == REPLICAS || !rules.healing_waits;
        let lacks = |sum: &Sum| if sum.is_damaged { heals } else { sum.record != newest };
        let lacking = self.sums.iter().filter(|(_, sum)| lacks(sum)).map(|(to, _)| *to);
        lacking.map(|to| (to, Message::Exchange(newest.clone()))).collect()
    }

    /// What of a replica's record is summed.
    fn sum(&self, sum: &Sum, rules: &Rules) -> Option<Record> {
        let is_purgeable =
            |record: &Record| record.is_tombstone() && record.when() <= sum.watermark;
        let record = sum.record.clone().filter(|record| record.when() <= self.time);
        record.filter(|record| !rules.sums_skip_purgeable || !is_purgeable(record))
    }

    fn commit(&mut self) -> Vec<(u8, Message)> {
        self.is_committed = true;
        let floor = self.sums.values().map(|sum| sum.promise).max().unwrap_or(0);
        let life = self.sums.get(&(THIRD as u8)).map_or(0, |sum| sum.life);
        let commit = Message::Commit(Proof { watermark: self.time, floor, life });
        self.sums.keys().map(|to| (*to, commit.clone())).collect()
    }
}

fn to_all(message: &Message) -> Vec<(u8, Message)> {
    (0..REPLICAS as u8).map(|to| (to, message.clone())).collect()
}
