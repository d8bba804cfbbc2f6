//! Clients with one operation each, and their coordinators, in the model of repair rounds.

use std::collections::{BTreeMap, BTreeSet};

use crate::register::{Op, up_to};
use crate::replica::{Record, Reply};
use crate::rules::Rules;
use crate::state::Message;

/// The number of replicas in a majority of the three replicas.
pub(crate) const MAJORITY: usize = 2;

/// Conditions of a client's first try.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct First {
    /// The time that the coordinator's clock shows; `None` = the clock is right.
    pub(crate) time: Option<u8>,
    /// The coordinator's cache from its last conditional write of the key: the record, and the next
    /// ballot, which all replicas have promised.
    pub(crate) kept: Option<(Record, u8)>,
}

/// A replica's report to a reader or to the coordinator of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Report {
    record: Option<Record>,
    is_authoritative: bool,
}

/// The phase of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Ready,
    Writing { record: Record, stored: BTreeSet<u8> },
    Preparing { ballot: u8, watermark: u8, got: BTreeMap<u8, Report> },
    Reading { got: BTreeMap<u8, Report> },
    Repairing { record: Record, holders: BTreeSet<u8> },
    Done,
}

/// A client with one operation, and the coordinator of the operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) op: Op,
    /// The node that coordinates the operation.
    pub(crate) at: u8,
    first: First,
    pub(crate) phase: Phase,
    /// The number of times that the operation was started.
    pub(crate) tries: u8,
    /// True if a request was refused, so that the operation may be started again.
    pub(crate) refused: bool,
    /// The record of an earlier try that a replica may hold; used by conditional writes.
    tried: Option<Record>,
}

/// The effect of a reply on its client.
pub(crate) enum Step {
    Wait,
    Send(Message),
    /// The client is answered: the value (`None` = a write is done), and the record on which the
    /// answer is based.
    Answer(Option<Vec<u8>>, Option<Record>),
}

impl Client {
    pub(crate) fn new(op: Op, at: u8, first: First) -> Self {
        let (tries, refused) = (0, false);
        Self { op, at, first, phase: Phase::Ready, tries, refused, tried: None }
    }

    /// Starts or restarts the operation. Returns the message for all replicas. `now` is the shared
    /// clock of all nodes, `watermark` the coordinator's watermark.
    pub(crate) fn begin(&mut self, now: &mut u8, watermark: u8, rules: &Rules) -> Message {
        (self.tries, self.refused) = (self.tries + 1, false);
        let first = std::mem::take(&mut self.first);
        if let (Op::Append(id), Some((mut record, ballot))) = (&self.op, first.kept) {
            record.ballot = ballot;
            record.value.push(*id);
            *now = ballot.max(*now);
            return self.send(record);
        }
        // If a fence refuses the repair of a read, the read stores its record like a conditional
        // write that changes nothing.
        if self.op == Op::Get && (self.tries == 1 || !rules.refused_read_takes_ballot) {
            self.phase = Phase::Reading { got: BTreeMap::new() };
            return Message::Read;
        }
        let time = first.time.unwrap_or(*now + 1);
        *now = time.max(*now);
        match self.op {
            Op::Put(value) => self.send(Record::plain(time, &[value])),
            Op::Delete => self.send(Record::plain(time, &[])),
            _ => {
                self.phase = Phase::Preparing { ballot: time, watermark, got: BTreeMap::new() };
                Message::Prepare { ballot: time, watermark }
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

    /// Handles a replica's reply; `watermark` is the coordinator's watermark.
    pub(crate) fn receive(
        &mut self,
        (from, asked): (u8, &Message),
        reply: Reply,
        watermark: u8,
        rules: &Rules,
    ) -> Step {
        match asked {
            Message::Write(record) | Message::Accept(record) => {
                self.on_write_reply(from, record, &reply)
            }
            Message::Prepare { ballot, .. } => {
                self.on_prepare_reply((from, *ballot), reply, watermark, rules)
            }
            Message::Read => self.read(from, reply, watermark, rules),
            Message::Repair(record) => self.on_repair_reply(from, record, &reply),
            _ => Step::Wait,
        }
    }

    /// Drops the reply of a replica that has lost its disk since.
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

    fn answer(&mut self, record: Option<Record>) -> Step {
        self.phase = Phase::Done;
        let value = record.as_ref().map_or(Vec::new(), |record| record.value.clone());
        let value = match self.op {
            Op::Append(id) => Some(up_to(&value, id)),
            Op::Get => Some(value),
            Op::Put(_) | Op::Delete => None,
        };
        Step::Answer(value, record)
    }

    fn on_write_reply(&mut self, from: u8, sent: &Record, reply: &Reply) -> Step {
        let Phase::Writing { record, stored } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                stored.insert(from);
                if stored.len() < MAJORITY { Step::Wait } else { self.answer(Some(sent.clone())) }
            }
            Reply::Newer(_) | Reply::Outbid if sent == record => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    fn on_prepare_reply(
        &mut self,
        (from, asked): (u8, u8),
        reply: Reply,
        now: u8,
        rules: &Rules,
    ) -> Step {
        let Phase::Preparing { ballot, watermark, got } = &mut self.phase else {
            return Step::Wait;
        };
        if *ballot != asked {
            return Step::Wait;
        }
        let watermark = *watermark;
        match reply {
            Reply::Holds(record, is_authoritative) => {
                let record = record.filter(|record| !record.is_gone(now));
                got.insert(from, Report { record, is_authoritative });
                if got.len() < MAJORITY {
                    Step::Wait
                } else if now != watermark && rules.promises_of_one_watermark {
                    self.mark_refused()
                } else {
                    let got = got.clone();
                    self.on_promises(asked, &got, now, rules)
                }
            }
            Reply::Outbid => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    /// Handles the promises of a majority.
    ///
    /// Later ballots must belong to later base versions. Otherwise a record of an earlier base
    /// version, stored by one replica, could outrank a record of a later one, stored by a majority.
    /// So all promises must be given under one watermark. A base version at or below the watermark
    /// has ended if a promising replica lacks it; its record then continues under another base
    /// version.
    fn on_promises(
        &mut self,
        ballot: u8,
        got: &BTreeMap<u8, Report>,
        watermark: u8,
        rules: &Rules,
    ) -> Step {
        let records = got.values().filter_map(|report| report.record.as_ref());
        let found = records.max_by_key(|record| record.rank()).cloned();
        let is_held = got.values().all(|report| report.record == found);
        let family = |record: &Record| (record.time, record.on_absent);
        let of_absent = |record| Record { time: watermark, on_absent: true, ..record };
        let newest = found.clone().map(|record| {
            let lacks = |report: &Report| {
                report.record.as_ref().is_none_or(|r| family(r) < family(&record))
            };
            let has_ended = record.time <= watermark
                && family(&record) != (watermark, true)
                && got.values().any(lacks);
            let goes_on = !has_ended || !rules.ended_record_changes_base;
            if goes_on { record } else { of_absent(record) }
        });
        let Op::Append(id) = self.op else {
            let Some(newest) = newest.filter(|_| !is_held) else { return self.answer(found) };
            return Step::Send(self.send(Record { ballot, ..newest }));
        };
        if let Some(record) = newest.as_ref().filter(|newest| newest.value.contains(&id)) {
            if is_held {
                return self.answer(found);
            }
            // The record is chosen only if a majority holds it, so it is stored again under this
            // ballot.
            return Step::Send(self.send(Record { ballot, ..record.clone() }));
        }
        let absent = Record::plain(0, &[]);
        let absent = Record { on_absent: true, ..absent };
        let absent = if rules.absent_is_watermark { of_absent(absent) } else { absent };
        let mut record = newest.unwrap_or(absent);
        if self.tried.as_ref().is_some_and(|tried| family(tried) != family(&record)) {
            // The outcome of the earlier try can no longer be found, so the client is never
            // answered.
            self.phase = Phase::Done;
            return Step::Wait;
        }
        record.ballot = ballot;
        record.value.push(id);
        Step::Send(self.send(record))
    }

    /// Handles a reply to a read. A record that a proof has made obsolete counts as absent.
    fn read(&mut self, from: u8, reply: Reply, watermark: u8, rules: &Rules) -> Step {
        let Phase::Reading { got } = &mut self.phase else { return Step::Wait };
        let Reply::Holds(record, is_authoritative) = reply else { return Step::Wait };
        let is_gone = |record: &Record| {
            let is_older = !is_authoritative && record.when() <= watermark;
            record.is_gone(watermark) || is_older && rules.reads_heed_watermark
        };
        let record = record.filter(|record| !is_gone(record));
        got.insert(from, Report { record, is_authoritative });
        if got.values().filter(|report| report.is_authoritative).count() < MAJORITY {
            return Step::Wait;
        }
        let records = got.values().filter_map(|report| report.record.as_ref());
        let newest = records.max_by_key(|record| record.rank()).cloned();
        let Some(newest) = newest else { return self.answer(None) };
        let counts = |report: &Report| newest.ballot == 0 || report.is_authoritative;
        let holds = |report: &Report| counts(report) && report.record.as_ref() == Some(&newest);
        let holders = got.iter().filter(|(_, report)| holds(report));
        let holders: BTreeSet<u8> = holders.map(|(from, _)| *from).collect();
        if holders.len() >= MAJORITY {
            return self.answer(Some(newest));
        }
        self.phase = Phase::Repairing { record: newest.clone(), holders };
        Step::Send(Message::Repair(newest))
    }

    fn on_repair_reply(&mut self, from: u8, sent: &Record, reply: &Reply) -> Step {
        let Phase::Repairing { record, holders } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                holders.insert(from);
                if holders.len() < MAJORITY { Step::Wait } else { self.answer(Some(sent.clone())) }
            }
            Reply::Stored | Reply::Nothing => Step::Wait,
            _ => self.mark_refused(),
        }
    }
}
