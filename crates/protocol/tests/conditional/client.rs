//! Clients with one operation each, and the coordinators of the operations.

use std::collections::{BTreeMap, BTreeSet};

use crate::replica::{Record, Reply};
use crate::rules::Rules;

/// The number of replicas of the key.
pub(crate) const REPLICAS: usize = 3;

/// The number of replicas in a majority.
pub(crate) const MAJORITY: usize = 2;

/// A request of a coordinator to a replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Prepare(u8),
    Accept { record: Record, ask: Ask },
    Put(Record),
    Read,
}

/// The sender of a conditional write's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ask {
    /// The record's coordinator, after promises of a majority.
    Promised,
    /// The record's coordinator, which continues from its last record without new promises.
    GoesOn,
    /// A reader that found the record elsewhere.
    Repair,
}

/// A client's operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// Appends this id to the value atomically, and returns the value.
    Append(u8),
    /// Like `Append`, if there is an unexpired value; otherwise reports that there is none.
    Extend {
        id: u8,
        /// True if the coordinator's clock is after every expiry.
        is_past: bool,
    },
    Put(u8),
    Get,
}

/// The phase of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Ready,
    Preparing {
        got: BTreeMap<u8, (Record, Option<Record>)>,
        /// The replicas that have noted this operation.
        noted_by: BTreeSet<u8>,
    },
    /// A majority must store the newest record before the operation is appended to it.
    StoringFirst {
        record: Record,
        stored: BTreeSet<u8>,
    },
    /// `fate`: true if the accept is sent to learn whether the client's earlier try was chosen,
    /// after a newer plain write. `record` is then the last known record of the try's base version.
    Accepting {
        record: Record,
        stored: BTreeSet<u8>,
        closed: BTreeMap<u8, bool>,
        fate: bool,
    },
    Putting {
        record: Record,
        stored: BTreeSet<u8>,
    },
    /// The replicas' records, and whether each replica is authoritative.
    Reading {
        got: BTreeMap<u8, (Record, bool)>,
    },
    Repairing {
        record: Record,
        holders: BTreeSet<u8>,
    },
    Done,
}

/// A client with one operation, and the coordinator of the operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    number: u8,
    pub(crate) op: Op,
    pub(crate) phase: Phase,
    /// The number of times that the operation was started.
    pub(crate) tries: u8,
    /// True if a replica refused, so that the operation may be started again.
    pub(crate) refused: bool,
    /// The record of an earlier try that a replica may hold.
    tried: Option<Record>,
    /// True if the client's coordinator caches the record for another client's append.
    pub(crate) keeps_record: bool,
    /// The cached record, stored by a majority, from which the next append continues.
    pub(crate) kept: Option<Record>,
}

/// The effect of a reply on its client.
pub(crate) enum Step {
    Wait,
    Send(Message),
    /// The client is answered: the value (`None` = a put is done, or an append whose value is
    /// unknown).
    Answer(Option<Vec<u8>>),
}

impl Client {
    pub(crate) fn new(number: u8, op: Op) -> Self {
        let (phase, tried, kept) = (Phase::Ready, None, None);
        Self { number, op, phase, tries: 0, refused: false, tried, keeps_record: false, kept }
    }

    /// Returns the ballot of the present try. Two clients may use the same ballot; each replica
    /// promises it to only one of them.
    pub(crate) fn ballot(&self, rules: &Rules) -> u8 {
        (self.number + 2 * self.tries) * if rules.room_to_go_on { 2 } else { 1 }
    }

    /// Starts or restarts the operation. Returns the message for all replicas.
    pub(crate) fn begin(&mut self, family: u8, rules: &Rules) -> Message {
        self.tries += 1;
        self.refused = false;
        match self.op {
            Op::Append(_) | Op::Extend { .. } => {
                if let Some(record) = self.kept.take() {
                    let ballot = record.ballot + 1;
                    return self.append_to(record, ballot, Ask::GoesOn, rules);
                }
                self.phase = Phase::Preparing { got: BTreeMap::new(), noted_by: BTreeSet::new() };
                Message::Prepare(self.ballot(rules))
            }
            Op::Put(value) => {
                let record = Record { family, ballot: 0, value: vec![value], ids: Vec::new() };
                self.phase = Phase::Putting { record: record.clone(), stored: BTreeSet::new() };
                Message::Put(record)
            }
            Op::Get => {
                self.phase = Phase::Reading { got: BTreeMap::new() };
                Message::Read
            }
        }
    }

    /// Handles a replica's reply.
    pub(crate) fn receive(
        &mut self,
        from: u8,
        asked: &Message,
        reply: Reply,
        rules: &Rules,
    ) -> Step {
        match asked {
            Message::Prepare(ballot) if *ballot == self.ballot(rules) => {
                self.on_prepare_reply(from, reply, rules)
            }
            Message::Accept { record, ask: Ask::Promised | Ask::GoesOn } => {
                self.on_accept_reply(from, record, reply)
            }
            Message::Put(record) if matches!(self.op, Op::Put(_)) => self.put(from, record, reply),
            Message::Put(record) | Message::Accept { record, ask: Ask::Repair } => {
                self.on_repair_reply(from, record, reply)
            }
            Message::Read => self.read(from, reply, rules),
            Message::Prepare(_) => Step::Wait,
        }
    }

    fn mark_refused(&mut self) -> Step {
        self.refused = true;
        Step::Wait
    }

    fn answer(&mut self, value: Option<Vec<u8>>) -> Step {
        self.phase = Phase::Done;
        Step::Answer(value)
    }

    fn on_prepare_reply(&mut self, from: u8, reply: Reply, rules: &Rules) -> Step {
        let Phase::Preparing { got, noted_by } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Promise { record, below, noted } => {
                got.insert(from, (record, below));
                if noted.contains(&id_of(&self.op)) {
                    noted_by.insert(from);
                }
                if got.len() < MAJORITY { Step::Wait } else { self.on_promises(rules) }
            }
            Reply::Outbid => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    fn on_accept_reply(&mut self, from: u8, sent: &Record, reply: Reply) -> Step {
        let op = self.op.clone();
        if let Phase::StoringFirst { record, stored } = &mut self.phase {
            return match reply {
                Reply::Stored if sent == record => {
                    stored.insert(from);
                    if stored.len() < MAJORITY { Step::Wait } else { self.mark_refused() }
                }
                Reply::Outbid | Reply::Newer { .. } if sent == record => self.mark_refused(),
                _ => Step::Wait,
            };
        }
        let Phase::Accepting { record, stored, closed, fate } = &mut self.phase else {
            return Step::Wait;
        };
        if sent != record {
            return Step::Wait;
        }
        match reply {
            Reply::Stored => {
                stored.insert(from);
                if stored.len() < MAJORITY {
                    return Step::Wait;
                }
                let value = answer_of(record, &op);
                self.kept = self.keeps_record.then(|| record.clone());
                self.answer(value)
            }
            Reply::Newer { below } if *fate => {
                let is_ours = |below: &Record| {
                    below.family == record.family && below.ids.contains(&id_of(&op))
                };
                closed.insert(from, below.as_ref().is_some_and(is_ours));
                // No replica accepts further records of the base version. A record of it that a
                // majority held was chosen.
                let held = closed.values().filter(|held| **held).count() + stored.len();
                let all_said = closed.len() + stored.len() == REPLICAS;
                if closed.len() >= MAJORITY && held >= MAJORITY {
                    self.answer(None)
                } else if closed.len() >= MAJORITY && all_said {
                    self.tried = None;
                    self.mark_refused()
                } else {
                    Step::Wait
                }
            }
            Reply::Outbid | Reply::Newer { .. } => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    fn put(&mut self, from: u8, sent: &Record, reply: Reply) -> Step {
        let Phase::Putting { record, stored } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                stored.insert(from);
                if stored.len() < MAJORITY { Step::Wait } else { self.answer(None) }
            }
            Reply::Newer { .. } if sent == record => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    fn read(&mut self, from: u8, reply: Reply, rules: &Rules) -> Step {
        let Reply::Holds(record, authoritative) = reply else { return Step::Wait };
        let got = match &mut self.phase {
            Phase::Reading { got } => got,
            Phase::Repairing { record: newest, holders } if !rules.newer_is_not_held => {
                // This is a late reply to the read.
                if record.family <= newest.family {
                    return Step::Wait;
                }
                holders.insert(from);
                let value = newest.value.clone();
                return if holders.len() < MAJORITY {
                    Step::Wait
                } else {
                    self.answer(Some(value))
                };
            }
            _ => return Step::Wait,
        };
        got.insert(from, (record, authoritative));
        if got.values().filter(|(_, authoritative)| *authoritative).count() < MAJORITY {
            return Step::Wait;
        }
        let records = got.values().map(|(record, _)| record);
        let newest = records.max_by_key(|record| record.rank()).expect("a majority").clone();
        let counts =
            |authoritative| authoritative || newest.ballot == 0 || !rules.streamed_is_not_held;
        let holds = |(_, (record, authoritative)): &(&u8, &(Record, bool))| {
            record.rank() == newest.rank() && counts(*authoritative)
        };
        let holders: BTreeSet<u8> = got.iter().filter(holds).map(|(from, _)| *from).collect();
        if holders.len() >= MAJORITY {
            return self.answer(Some(newest.value));
        }
        self.phase = Phase::Repairing { record: newest.clone(), holders };
        Step::Send(if newest.ballot == 0 {
            Message::Put(newest)
        } else {
            Message::Accept { record: newest, ask: Ask::Repair }
        })
    }

    fn on_repair_reply(&mut self, from: u8, sent: &Record, reply: Reply) -> Step {
        let Phase::Repairing { record, holders } = &mut self.phase else { return Step::Wait };
        match reply {
            Reply::Stored if sent == record => {
                holders.insert(from);
                let value = record.value.clone();
                if holders.len() < MAJORITY { Step::Wait } else { self.answer(Some(value)) }
            }
            Reply::Outbid | Reply::Newer { .. } if sent == record => self.mark_refused(),
            _ => Step::Wait,
        }
    }

    /// Handles the promises of a majority.
    fn on_promises(&mut self, rules: &Rules) -> Step {
        let Phase::Preparing { got, noted_by } = &self.phase else { unreachable!() };
        let id = id_of(&self.op);
        let records = got.values().map(|(record, _)| record);
        let newest = records.max_by_key(|record| record.rank()).expect("a majority").clone();
        if newest.ids.contains(&id) {
            // The record is chosen only if a majority holds it, so it is stored again under this
            // ballot.
            let record = Record { ballot: self.ballot(rules), ..newest };
            return self.accept(record, false);
        }
        if rules.short_history && self.tried.is_some() && !noted_by.is_empty() {
            // A replica may have stored the earlier try. Only a majority proves that it was chosen,
            // and only a majority without it proves that it was not. The client is never answered.
            self.phase = Phase::Done;
            return Step::Wait;
        }
        let tried = self.tried.clone();
        if let Some(tried) = tried.as_ref().filter(|tried| tried.family > newest.family)
            && rules.no_way_back
        {
            let record = Record { ballot: self.ballot(rules), ..tried.clone() };
            return self.accept(record, false);
        }
        let ended = tried.map(|tried| tried.family).filter(|tried| *tried < newest.family);
        if ended.is_some() && rules.ended_is_unknown {
            // The client is never answered.
            self.phase = Phase::Done;
            return Step::Wait;
        }
        if let Some(tried) = ended.filter(|_| rules.keep_displaced) {
            // Of the records with one base version, the one with the greatest ballot contains all
            // operations that were chosen under smaller ballots.
            let both = got.values().flat_map(|(record, below)| [Some(record), below.as_ref()]);
            let last = both.flatten().filter(|record| record.family == tried);
            let last = last.max_by_key(|record| record.rank()).cloned();
            if let Some(last) = last.filter(|last| last.ids.contains(&id)) {
                let record = Record { ballot: self.ballot(rules), ..last };
                return self.accept(record, true);
            }
        }
        if let Op::Extend { is_past, .. } = self.op
            && (is_past || newest.value.is_empty())
        {
            let mut record = Record { ballot: self.ballot(rules), ..newest };
            if rules.end_is_stored {
                record.value.clear();
            }
            return self.accept(record, false);
        }
        let holders = got.values().filter(|(record, _)| record.rank() == newest.rank()).count();
        let is_full = rules.short_history && !newest.ids.is_empty();
        if is_full && holders < MAJORITY && rules.noted_before_forgotten {
            let record = Record { ballot: self.ballot(rules), ..newest };
            self.phase = Phase::StoringFirst { record: record.clone(), stored: BTreeSet::new() };
            return Step::Send(Message::Accept { record, ask: Ask::Promised });
        }
        Step::Send(self.append_to(newest, self.ballot(rules), Ask::Promised, rules))
    }

    /// Makes the next record, with the operation appended.
    fn append_to(&mut self, mut record: Record, ballot: u8, ask: Ask, rules: &Rules) -> Message {
        let id = id_of(&self.op);
        record.ballot = ballot;
        record.value.push(id);
        if rules.short_history {
            record.ids.clear();
        }
        record.ids.push(id);
        self.tried = Some(record.clone());
        self.start_accept(record, false, ask)
    }

    fn accept(&mut self, record: Record, fate: bool) -> Step {
        Step::Send(self.start_accept(record, fate, Ask::Promised))
    }

    fn start_accept(&mut self, record: Record, fate: bool, ask: Ask) -> Message {
        let (stored, closed) = (BTreeSet::new(), BTreeMap::new());
        self.phase = Phase::Accepting { record: record.clone(), stored, closed, fate };
        Message::Accept { record, ask }
    }
}

fn id_of(op: &Op) -> u8 {
    match op {
        Op::Append(id) | Op::Extend { id, .. } => *id,
        _ => unreachable!("it has none"),
    }
}

/// Returns an operation's answer once a majority holds a record: the value just after the
/// operation. `None` = the operation is done, but the record no longer has that value. An empty
/// value = the operation is not done.
fn answer_of(record: &Record, op: &Op) -> Option<Vec<u8>> {
    let id = id_of(op);
    if !record.ids.contains(&id) {
        return Some(Vec::new());
    }
    let at = record.value.iter().position(|value| *value == id)?;
    Some(record.value[..=at].to_vec())
}
