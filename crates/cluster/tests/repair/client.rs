//! Clients and their coordinators: one operation each.

use std::collections::{BTreeMap, BTreeSet};

use crate::replica::{Record, Reply};
use crate::rules::Rules;
use crate::world::{Message, REPLICAS};

/// A majority of the three that hold the key.
pub(crate) const MAJORITY: usize = 2;

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Put(u8),
    Delete,
    /// Append this id to the value, in one step, and tell the value.
    Append(u8),
    Get,
}

/// What makes a client's first try a special one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct First {
    /// Its coordinator's clock is behind: the time that it says.
    pub(crate) time: Option<u8>,
    /// Its coordinator has kept the record of its last conditional write of the key, and a promise
    /// of all replicas for this ballot.
    pub(crate) kept: Option<(Record, u8)>,
}

/// What a replica told a reader or the coordinator of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Told {
    record: Option<Record>,
    watermark: u8,
    is_authoritative: bool,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Ready,
    Writing { record: Record, stored: BTreeSet<u8> },
    Preparing { ballot: u8, got: BTreeMap<u8, Told> },
    Reading { got: BTreeMap<u8, Told> },
    Repairing { record: Record, holders: BTreeSet<u8> },
    Done,
}

/// A client with its one operation, and the coordinator that does it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) op: Op,
    first: First,
    pub(crate) phase: Phase,
    /// How often it began.
    pub(crate) tries: u8,
    /// Whether it may begin anew: something was refused.
    pub(crate) refused: bool,
    /// How many must promise.
    promises: usize,
    /// The record of an earlier try of a conditional write that a replica may hold.
    tried: Option<Record>,
}

/// What comes of an event.
pub(crate) enum Step {
    Wait,
    Send(Message),
    /// What the client is told; `None` = it is done.
    Answer(Option<Vec<u8>>),
}

impl Client {
    pub(crate) fn new(op: Op, first: First) -> Self {
        let (tries, refused, promises) = (0, false, MAJORITY);
        Self { op, first, phase: Phase::Ready, tries, refused, promises, tried: None }
    }

    /// A read that brings what it finds on one of so many replicas to a majority.
    pub(crate) fn completing(promises: usize) -> Self {
        Self { tries: 1, promises, ..Self::new(Op::Get, First::default()) }
    }

    /// Begins, or begins anew: what is sent to all replicas. `now`: the clocks of all nodes.
    pub(crate) fn begin(&mut self, now: &mut u8) -> Message {
        (self.tries, self.refused) = (self.tries + 1, false);
        let first = std::mem::take(&mut self.first);
        if let (Op::Append(id), Some((mut record, ballot))) = (&self.op, first.kept) {
            record.ballot = ballot;
            record.value.push(*id);
            *now = ballot.max(*now);
            return self.send(record);
        }
        if self.op == Op::Get && self.tries == 1 {
            self.phase = Phase::Reading { got: BTreeMap::new() };
            return Message::Read;
        }
        let time = first.time.unwrap_or(*now + 1);
        *now = time.max(*now);
        match self.op {
            Op::Put(value) => self.send(Record::plain(time, &[value])),
            Op::Delete => self.send(Record::plain(time, &[])),
            // A read that can't bring what it found to a majority, as a seal is between, does so as
            // a conditional write that changes nothing.
            _ => {
                self.phase = Phase::Preparing { ballot: time, got: BTreeMap::new() };
                Message::Prepare(time)
            }
        }
    }

    fn send(&mut self, record: Record) -> Message {
        self.phase = Phase::Writing { record: record.clone(), stored: BTreeSet::new() };
        if record.ballot == 0 {
            return Message::Write(record);
        }
        self.tried = Some(record.clone());
        Message::Accept(record)
    }

    /// A replica answered.
    pub(crate) fn receive(
        &mut self,
        from: u8,
        asked: &Message,
        reply: Reply,
        rules: &Rules,
    ) -> Step {
        match asked {
            Message::Write(record) | Message::Accept(record) => self.wrote(from, record, &reply),
            Message::Prepare(ballot) => self.prepared(from, *ballot, reply, rules),
            Message::Read => self.read(from, reply, rules),
            Message::Repair(record) => self.repaired(from, record, &reply),
            _ => Step::Wait,
        }
    }

    /// A replica's disk was lost: what it stored of a write that is under way counts no more.
    pub(crate) fn lost(&mut self, replica: u8) {
        match &mut self.phase {
            Phase::Writing { stored, .. } => stored.remove(&replica),
            Phase::Repairing { holders, .. } => holders.remove(&replica),
            Phase::Preparing { got, .. } | Phase::Reading { got } => got.remove(&replica).is_some(),
            Phase::Ready | Phase::Done => false,
        };
    }

    fn refused(&mut self) -> Step {
        self.refused = true;
        Step::Wait
    }

    fn answer(&mut self, value: Option<Vec<u8>>) -> Step {
        self.phase = Phase::Done;
        Step::Answer(value)
    }

    fn wrote(&mut self, from: u8, sent: &Record, reply: &Reply) -> Step {
        let Phase::Writing { record, stored } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                stored.insert(from);
                let value = match self.op {
                    Op::Append(id) => Some(up_to(&record.value, id)),
                    Op::Get => Some(record.value.clone()),
                    _ => None,
                };
                if stored.len() < MAJORITY { Step::Wait } else { self.answer(value) }
            }
            Reply::Newer(_) | Reply::Outbid if sent == record => self.refused(),
            _ => Step::Wait,
        }
    }

    fn prepared(&mut self, from: u8, asked: u8, reply: Reply, rules: &Rules) -> Step {
        let Phase::Preparing { ballot, got } = &mut self.phase else { return Step::Wait };
        if *ballot != asked {
            return Step::Wait;
        }
        match reply {
            Reply::Holds(record, watermark, is_authoritative) => {
                got.insert(from, Told { record, watermark, is_authoritative });
                let is_all = got.len() == REPLICAS;
                match base(got, self.promises, rules) {
                    Some((newest, proven)) => self.promised(asked, newest, proven, rules),
                    None if is_all => self.refused(),
                    None => Step::Wait,
                }
            }
            Reply::Outbid => self.refused(),
            _ => Step::Wait,
        }
    }

    /// A majority has promised; `newest` is what it holds, `proven` its greatest watermark.
    fn promised(&mut self, ballot: u8, newest: Option<Record>, proven: u8, rules: &Rules) -> Step {
        let Op::Append(id) = self.op else {
            let Some(newest) = newest else { return self.answer(Some(Vec::new())) };
            return Step::Send(self.send(Record { ballot, ..newest }));
        };
        if let Some(record) = newest.as_ref().filter(|newest| newest.value.contains(&id)) {
            // Chosen only when a majority holds it: completed under this ballot.
            return Step::Send(self.send(Record { ballot, ..record.clone() }));
        }
        let absent = Record {
            time: if rules.absent_is_watermark { proven } else { 0 },
            on_absent: true,
            ballot: 0,
            value: Vec::new(),
        };
        let mut record = newest.unwrap_or(absent);
        let family = |record: &Record| (record.time, record.on_absent);
        if self.tried.as_ref().is_some_and(|tried| family(tried) != family(&record)) {
            // Its earlier try can't be found any more: the client is never told.
            self.phase = Phase::Done;
            return Step::Wait;
        }
        record.ballot = ballot;
        record.value.push(id);
        Step::Send(self.send(record))
    }

    fn read(&mut self, from: u8, reply: Reply, rules: &Rules) -> Step {
        let Phase::Reading { got } = &mut self.phase else { return Step::Wait };
        let Reply::Holds(record, watermark, is_authoritative) = reply else { return Step::Wait };
        got.insert(from, Told { record, watermark, is_authoritative });
        if got.values().filter(|told| told.is_authoritative).count() < MAJORITY {
            return Step::Wait;
        }
        let (newest, holders, _) = newest(got, rules);
        let Some(newest) = newest else { return self.answer(Some(Vec::new())) };
        if holders.len() >= MAJORITY {
            return self.answer(Some(newest.value));
        }
        self.phase = Phase::Repairing { record: newest.clone(), holders };
        Step::Send(Message::Repair(newest))
    }

    fn repaired(&mut self, from: u8, sent: &Record, reply: &Reply) -> Step {
        let Phase::Repairing { record, holders } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                holders.insert(from);
                let value = record.value.clone();
                if holders.len() < MAJORITY { Step::Wait } else { self.answer(Some(value)) }
            }
            Reply::Stored | Reply::Nothing => Step::Wait,
            _ => self.refused(),
        }
    }
}

/// The newest record of those that were told, who holds it, and the greatest watermark. What a
/// watermark says is gone is none.
fn newest(got: &BTreeMap<u8, Told>, rules: &Rules) -> (Option<Record>, BTreeSet<u8>, u8) {
    let proven = got.values().map(|told| told.watermark).max().unwrap_or(0);
    let counts = |told: &&Told| {
        let Some(record) = &told.record else { return false };
        let is_gone = record.when() <= proven && (told.watermark < proven || record.is_tombstone());
        !rules.reads_heed_watermark || !is_gone
    };
    let records = got.values().filter(counts).filter_map(|told| told.record.as_ref());
    let newest = records.max_by_key(|record| record.rank()).cloned();
    let holds = |told: &Told| told.is_authoritative && told.record == newest;
    let holders = got.iter().filter(|(_, told)| holds(told)).map(|(from, _)| *from).collect();
    (newest, holders, proven)
}

/// What a conditional write is based on, if as many have promised, and the watermark that it
/// goes by.
///
/// Later ballots must make later families, or what one replica stored of an earlier one outranks
/// what a majority stored of a later one. So all of them have one watermark, and a family that one
/// of them does not hold, though it is not above that, has ended: its record goes on in another.
fn base(got: &BTreeMap<u8, Told>, promises: usize, rules: &Rules) -> Option<(Option<Record>, u8)> {
    let greatest = got.values().map(|told| told.watermark).max()?;
    let of = |watermark: u8| -> BTreeMap<u8, Told> {
        let is_meant =
            |told: &Told| told.watermark == watermark || !rules.promises_of_one_watermark;
        let told = got.iter().filter(|(_, told)| is_meant(told));
        told.map(|(from, told)| (*from, told.clone())).collect()
    };
    let told = (0..=greatest).rev().map(of).find(|told| told.len() >= promises)?;
    let (newest, _, proven) = newest(&told, rules);
    let lacks = |told: &Told, record: &Record| {
        let held = told.record.as_ref();
        held.is_none_or(|held| (held.time, held.on_absent) < (record.time, record.on_absent))
    };
    let newest = newest.map(|record| {
        let has_ended = record.time <= proven && told.values().any(|told| lacks(told, &record));
        if !has_ended || !rules.what_ended_goes_on_in_another {
            return record;
        }
        Record { time: proven, on_absent: true, ..record }
    });
    Some((newest, proven))
}

/// The value as of this operation.
fn up_to(value: &[u8], id: u8) -> Vec<u8> {
    let end = value.iter().position(|v| *v == id).map_or(value.len(), |at| at + 1);
    value[..end].to_vec()
}
