//! A round, as the node sees it that began it: it asks until all replicas hold the same, then
//! commits.
//!
//! ```text
//!  Begin ─▶ sums of all ─┬─ a watermark is lower ─▶ TakeOver ─┐
//!              ▲         ├─ one is damaged       ─▶ Exchange ─┤
//!              │         ├─ they differ          ─▶ Exchange ─┤
//!              └─────────│────────────────────────────────────┘
//!                        └─ all are equal ─▶ Commit
//! ```

use std::collections::BTreeMap;

use crate::client::MAJORITY;
use crate::replica::{Proof, Record, Sum};
use crate::rules::Rules;
use crate::world::{Message, REPLICAS, THIRD};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Round {
    /// What it is to prove something about: all that was written up to here. 0 = it has not begun.
    pub(crate) time: u8,
    sums: BTreeMap<u8, Sum>,
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

    /// A replica told what it holds. What is sent, to whom.
    pub(crate) fn receive(&mut self, from: u8, sum: Sum, rules: &Rules) -> Vec<(u8, Message)> {
        self.sums.insert(from, sum);
        if self.sums.len() < MAJORITY || self.is_committed {
            return Vec::new();
        }
        // Those that are there are made equal, whether the others are there or not.
        let sent = self.lagging(rules);
        let sent = if sent.is_empty() { self.differing(rules) } else { sent };
        let needed = if rules.all_agree { REPLICAS } else { MAJORITY };
        if sent.is_empty() && self.sums.len() >= needed && self.is_equal(rules) {
            return self.commit();
        }
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

    /// Those that hold something else than the others.
    fn differing(&self, rules: &Rules) -> Vec<(u8, Message)> {
        if self.is_equal(rules) {
            return Vec::new();
        }
        let records = self.sums.values().filter_map(|sum| sum.record.as_ref());
        let is_meant =
            |record: &&Record| rules.exchange_brings_newest || record.when() <= self.time;
        let newest = records.filter(is_meant).max_by_key(|record| record.rank()).cloned();
        let holders = self.sums.values().filter(|sum| sum.record == newest).count();
        let is_chosen = holders >= MAJORITY;
        // What is damaged may have been the newest but for one that is not there.
        let heals = self.sums.len() == REPLICAS || !rules.healing_waits;
        let lacks = |sum: &Sum| if sum.is_damaged { heals } else { sum.record != newest };
        let lacking = self.sums.iter().filter(|(_, sum)| lacks(sum));
        let exchange = Message::Exchange { record: newest.clone(), is_chosen };
        lacking.map(|(to, _)| (*to, exchange.clone())).collect()
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
