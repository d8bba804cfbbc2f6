//! Clients and their coordinators. Each client has one operation. If the layout changes, the
//! coordinator retries the operation under the later layout.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::{Acks, Layout, suffice};
use crate::register::{Op, up_to};
use crate::replica::{Record, Reply};
use crate::rules::Rules;
use crate::world::Message;

/// The effect of a reply on quorums, apart from its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ReplyWeight {
    /// A promise, or a reply that also counts if it reports no record.
    Counts,
    /// A promise of a node that has not pulled all records.
    Bound,
    Nothing,
}

/// The replicas' reports: the record, the worth of the reply, and the watermark.
type Reports = BTreeMap<u8, (Option<Record>, ReplyWeight, u8)>;

/// The phase of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Ready,
    Writing { record: Record, stored: BTreeSet<u8> },
    Preparing { ballot: u8, got: Reports },
    Reading { got: Reports },
    Repairing { record: Record, holders: BTreeSet<u8> },
    Done,
}

/// A client with one operation, and the coordinator of the operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) op: Op,
    pub(crate) phase: Phase,
    /// Number of tries begun.
    pub(crate) tries: u8,
    /// True if a request was refused, so that the client may retry.
    pub(crate) refused: bool,
    /// A wrong time that the coordinator's clock shows at first; `None` = the clock is right.
    pub(crate) skewed: Option<u8>,
    /// The epoch of the client's layout.
    pub(crate) epoch: u8,
    /// The lowest epoch under which the client may try again.
    pub(crate) least: u8,
    /// The thread of the last try in the history.
    pub(crate) thread: u8,
    /// True if the next try of a plain write needs another version.
    reissues: bool,
    /// The record of an earlier try that a replica may hold.
    tried: Option<Record>,
    /// Replicas that refused a conditional write because they hold a newer record.
    newer_at: BTreeSet<u8>,
}

/// The effect of a reply on its client.
pub(crate) enum Step {
    Wait,
    Send(Message),
    /// The client is answered: the value (`None` = a write is done), and the record on which the
    /// answer is based.
    Answer(Option<Vec<u8>>, Option<Record>),
}

/// The layout, acknowledgement counts and rules by which a client handles a reply.
pub(crate) struct By<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) acks: Acks,
    pub(crate) rules: &'a Rules,
}

impl Client {
    pub(crate) fn new(op: Op) -> Self {
        Self {
            op,
            phase: Phase::Ready,
            tries: 0,
            refused: false,
            skewed: None,
            epoch: 0,
            least: 0,
            thread: 0,
            reissues: false,
            tried: None,
            newer_at: BTreeSet::new(),
        }
    }

    /// Begins or retries the operation under a layout. Returns the message for all replicas. `now`
    /// is the shared clock of all nodes.
    pub(crate) fn begin(&mut self, epoch: u8, now: &mut u8) -> Message {
        let skewed = self.skewed.take();
        (self.tries, self.refused) = (self.tries + 1, false);
        (self.epoch, self.least) = (epoch, epoch);
        if self.op == Op::Get {
            self.phase = Phase::Reading { got: BTreeMap::new() };
            return Message::Read;
        }
        if let Op::Append(_) = self.op {
            *now += u8::from(skewed.is_none());
            let ballot = skewed.unwrap_or(*now);
            self.phase = Phase::Preparing { ballot, got: BTreeMap::new() };
            return Message::Prepare(ballot);
        }
        if let Some(record) = self.tried.clone().filter(|_| !self.reissues) {
            return self.send(record);
        }
        (*now, self.reissues) = (*now + 1, false);
        let value = if let Op::Put(value) = self.op { vec![value] } else { Vec::new() };
        self.send(Record::plain(*now, &value))
    }

    /// True if the next try counts as another write in the history.
    pub(crate) fn is_another(&self) -> bool {
        self.tries == 0 || self.reissues && !matches!(self.op, Op::Append(_) | Op::Get)
    }

    fn send(&mut self, record: Record) -> Message {
        self.phase = Phase::Writing { record: record.clone(), stored: BTreeSet::new() };
        self.tried = Some(record.clone());
        if record.ballot == 0 { Message::Write(record) } else { Message::Accept(record) }
    }

    /// Handles a replica's reply.
    pub(crate) fn receive(&mut self, from: u8, asked: &Message, reply: Reply, by: &By<'_>) -> Step {
        if let Reply::Entered(epoch) = reply {
            self.least = self.least.max(epoch);
            return if self.phase == Phase::Done { Step::Wait } else { self.mark_refused() };
        }
        match asked {
            Message::Write(record) | Message::Accept(record) => {
                self.on_write_reply(from, record, &reply, by)
            }
            Message::Prepare(ballot) => self.on_prepare_reply(from, *ballot, reply, by),
            Message::Read => self.read(from, reply, by),
            Message::Repair(record) => self.on_repair_reply(from, record, &reply, by),
            Message::Hint(_) | Message::Commit(_) => Step::Wait,
        }
    }

    /// Returns the message to repeat under the last layout; `None` = nothing is repeated, because a
    /// round keeps its layout or needs no repetition.
    pub(crate) fn sends_again(
        &self,
        asked: &Message,
        reply: &Reply,
        rules: &Rules,
    ) -> Option<Message> {
        let is_late = matches!(reply, Reply::Entered(_)) && !rules.rounds_keep_their_layout;
        let is_under_way = matches!(self.phase, Phase::Writing { .. });
        let is_accept = matches!(asked, Message::Accept(_)) && is_under_way;
        (is_late && is_accept).then(|| asked.clone())
    }

    /// Drops the replies of a replica whose disk was lost.
    pub(crate) fn drop_reply(&mut self, replica: u8) {
        match &mut self.phase {
            Phase::Writing { stored, .. } => stored.remove(&replica),
            Phase::Repairing { holders, .. } => holders.remove(&replica),
            Phase::Preparing { got, .. } | Phase::Reading { got } => got.remove(&replica).is_some(),
            Phase::Ready | Phase::Done => false,
        };
    }

    fn mark_refused(&mut self) -> Step {
        self.refused = true;
        Step::Wait
    }

    fn answer(&mut self, value: Option<Vec<u8>>, by: Option<Record>) -> Step {
        (self.phase, self.refused) = (Phase::Done, false);
        Step::Answer(value, by)
    }

    fn on_write_reply(&mut self, from: u8, sent: &Record, reply: &Reply, by: &By<'_>) -> Step {
        let Phase::Writing { record, stored } = &mut self.phase else { return Step::Wait };
        if sent != record {
            return Step::Wait;
        }
        match reply {
            Reply::Stored => {
                stored.insert(from);
                let ack = by.acks.write.filter(|_| record.ballot == 0);
                if !by.layout.is_stored(stored, ack, by.rules) {
                    return Step::Wait;
                }
                let value = match self.op {
                    Op::Append(id) => Some(up_to(&record.value, id)),
                    _ => None,
                };
                let record = record.clone();
                self.answer(value, Some(record))
            }
            Reply::Newer(_) => {
                self.reissues = true;
                self.newer_at.insert(from);
                self.mark_refused()
            }
            Reply::Outbid => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    fn on_prepare_reply(&mut self, from: u8, asked: u8, reply: Reply, by: &By<'_>) -> Step {
        let Phase::Preparing { ballot, got } = &mut self.phase else { return Step::Wait };
        if *ballot != asked {
            return Step::Wait;
        }
        match reply {
            Reply::Promised(record) => got.insert(from, (record, ReplyWeight::Counts, 0)),
            Reply::Bound(record) => got.insert(from, (record, ReplyWeight::Bound, 0)),
            Reply::Holds(record, _, _) => got.insert(from, (record, ReplyWeight::Nothing, 0)),
            Reply::Outbid => return self.mark_refused(),
            _ => return Step::Wait,
        };
        let promised = from_whom(got, |worth| worth == ReplyWeight::Counts);
        let bound = from_whom(got, |worth| worth != ReplyWeight::Nothing);
        let has_told = |node: &u8| got.contains_key(node) || !by.layout.holds(*node);
        let is_told = self.newer_at.iter().all(has_told) || !by.rules.refused_write_continues;
        if !by.layout.is_promised(&promised, &bound, by.rules) || !is_told {
            return Step::Wait;
        }
        let counts = |(_, worth, _): &&(Option<Record>, ReplyWeight, u8)| {
            *worth == ReplyWeight::Counts || by.rules.refused_write_continues
        };
        let reported = got.values().filter(counts).filter_map(|(record, ..)| record.as_ref());
        let newest = reported.max_by_key(|record| record.rank()).cloned();
        self.on_promises(asked, newest)
    }

    /// Sends the accept after enough promises. `newest` is the newest reported record.
    fn on_promises(&mut self, ballot: u8, newest: Option<Record>) -> Step {
        let Op::Append(id) = self.op else { unreachable!("only that asks for promises") };
        let mut record = newest.unwrap_or(Record::plain(0, &[]));
        record.ballot = ballot;
        if !record.value.contains(&id) {
            if self.tried.as_ref().is_some_and(|tried| tried.time != record.time) {
                // The outcome of the earlier try can no longer be found, so the client is never
                // answered.
                (self.phase, self.refused) = (Phase::Done, false);
                return Step::Wait;
            }
            record.value.push(id);
        }
        Step::Send(self.send(record))
    }

    fn read(&mut self, from: u8, reply: Reply, by: &By<'_>) -> Step {
        let Phase::Reading { got } = &mut self.phase else { return Step::Wait };
        let Reply::Holds(record, counts, watermark) = reply else { return Step::Wait };
        let worth = if counts { ReplyWeight::Counts } else { ReplyWeight::Nothing };
        got.insert(from, (record, worth, watermark));
        let counts = from_whom(got, |worth| worth == ReplyWeight::Counts);
        if !suffice(&counts, by.layout.read_set(), by.acks.read) {
            return Step::Wait;
        }
        // A record counts as absent if another replica's watermark proves that it was purged.
        let proven = got.values().map(|report| report.2).max().unwrap_or(0);
        let is_there = |(record, _, watermark): &(Option<Record>, ReplyWeight, u8)| {
            record.clone().filter(|record| *watermark == proven || record.when() > proven)
        };
        let records = got.values().filter_map(is_there);
        let Some(newest) = records.max_by_key(|record| record.rank()) else {
            return self.answer(Some(Vec::new()), None);
        };
        let holds = |(_, report): &(&u8, &(Option<Record>, ReplyWeight, u8))| {
            report.0.as_ref() == Some(&newest)
        };
        let holders: BTreeSet<u8> = got.iter().filter(holds).map(|(from, _)| *from).collect();
        if by.layout.is_held(&holders, by.acks.read, by.rules) {
            return self.answer(Some(newest.value.clone()), Some(newest));
        }
        self.phase = Phase::Repairing { record: newest.clone(), holders };
        Step::Send(Message::Repair(newest))
    }

    fn on_repair_reply(&mut self, from: u8, sent: &Record, reply: &Reply, by: &By<'_>) -> Step {
        let Phase::Repairing { record, holders } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                holders.insert(from);
                if !by.layout.is_held(holders, by.acks.read, by.rules) {
                    return Step::Wait;
                }
                let record = record.clone();
                self.answer(Some(record.value.clone()), Some(record))
            }
            Reply::Newer(_) | Reply::Outbid if sent == record => self.mark_refused(),
            _ => Step::Wait,
        }
    }
}

/// Returns the replicas whose replies have a wanted worth.
fn from_whom(reports: &Reports, wanted: impl Fn(ReplyWeight) -> bool) -> BTreeSet<u8> {
    let wanted = reports.iter().filter(|(_, (_, worth, _))| wanted(*worth));
    wanted.map(|(from, _)| *from).collect()
}
