//! One replica of one key: a record, what of an earlier family it displaced, and a promise.

use std::collections::BTreeSet;

use crate::client::Ask;
use crate::rules::Rules;

/// A record: a plain write (ballot 0) begins a family, a conditional one continues it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) family: u8,
    pub(crate) ballot: u8,
    /// What was put, then what was appended: the whole history since the put.
    pub(crate) value: Vec<u8>,
    /// Ids of the conditional operations in it.
    pub(crate) ids: Vec<u8>,
}

impl Record {
    /// Nothing was ever written.
    pub(crate) fn absent() -> Self {
        Self { family: 0, ballot: 0, value: Vec::new(), ids: Vec::new() }
    }

    /// What decides which record holds.
    pub(crate) fn rank(&self) -> (u8, u8) {
        (self.family, self.ballot)
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) record: Record,
    /// The last conditional record of an earlier family that was displaced here.
    pub(crate) below: Option<Record>,
    pub(crate) promise: u8,
    /// What an earlier life may have promised, as long as this one does not know of it.
    pub(crate) floor: Option<u8>,
    /// Whether it holds all that it ever acknowledged.
    pub(crate) authoritative: bool,
    /// Who has sent it what it lacks, as far as it lacks something.
    pub(crate) sent_by: BTreeSet<u8>,
}

/// What a replica answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It takes nothing of a lower ballot any more; this is what it holds, and what it displaced.
    Promise {
        record: Record,
        below: Option<Record>,
    },
    /// It has promised more.
    Outbid,
    Stored,
    /// It holds a newer family, and displaced this.
    Newer {
        below: Option<Record>,
    },
    /// What it holds, and whether it is authoritative.
    Holds(Record, bool),
    /// It is not authoritative.
    Unknown,
}

impl Replica {
    pub(crate) fn new() -> Self {
        Self {
            record: Record::absent(),
            below: None,
            promise: 0,
            floor: None,
            authoritative: true,
            sent_by: BTreeSet::new(),
        }
    }

    /// A coordinator asks for a promise.
    pub(crate) fn prepare(&mut self, ballot: u8, rules: &Rules) -> Reply {
        if !self.authoritative && rules.rebuilt_first {
            return Reply::Unknown;
        }
        if ballot <= self.promise {
            return Reply::Outbid;
        }
        self.promise = ballot;
        Reply::Promise { record: self.record.clone(), below: self.below.clone() }
    }

    /// A conditional record.
    pub(crate) fn accept(&mut self, record: &Record, ask: Ask, rules: &Rules) -> Reply {
        if ask == Ask::GoesOn && !self.authoritative && rules.rebuilt_before_going_on {
            return Reply::Unknown;
        }
        if self.floor.is_some() && rules.loss_known_first {
            return Reply::Unknown;
        }
        if record.ballot < self.promise && (rules.repair_obeys_promise || ask != Ask::Repair) {
            return Reply::Outbid;
        }
        if self.record.rank() > record.rank() {
            return self.newer();
        }
        self.promise = self.promise.max(record.ballot);
        self.store(record, rules);
        Reply::Stored
    }

    /// A plain record.
    pub(crate) fn put(&mut self, record: &Record, rules: &Rules) -> Reply {
        let descends = self.record.family == record.family && self.record.ballot > 0;
        if descends && rules.descendant_is_stored {
            return Reply::Stored;
        }
        if self.record.rank() > record.rank() {
            return self.newer();
        }
        self.store(record, rules);
        Reply::Stored
    }

    fn newer(&self) -> Reply {
        Reply::Newer { below: self.below.clone() }
    }

    /// Holds a record from now on.
    pub(crate) fn store(&mut self, record: &Record, rules: &Rules) {
        if rules.keep_displaced && self.record.family < record.family && self.record.ballot > 0 {
            self.below = Some(self.record.clone());
        }
        self.record = record.clone();
    }
}
