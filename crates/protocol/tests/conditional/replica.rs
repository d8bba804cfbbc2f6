//! The model's replica of the key: its record, the displaced record of an earlier base version, and
//! its promise.

use std::collections::BTreeSet;

use crate::client::Ask;
use crate::rules::Rules;

/// A record. A plain write (ballot 0) begins a base version; conditional writes continue it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) family: u8,
    pub(crate) ballot: u8,
    /// The put value, then the appended ids: the whole history since the put.
    pub(crate) value: Vec<u8>,
    /// The ids of conditional operations that the record names.
    pub(crate) ids: Vec<u8>,
}

impl Record {
    /// Returns the state of a key without any write.
    pub(crate) fn absent() -> Self {
        Self { family: 0, ballot: 0, value: Vec::new(), ids: Vec::new() }
    }

    /// Returns the rank. The record with the greater rank wins.
    pub(crate) fn rank(&self) -> (u8, u8) {
        (self.family, self.ballot)
    }
}

/// A replica of the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) record: Record,
    /// The last conditional write's record of an earlier base version that this replica has
    /// displaced.
    pub(crate) below: Option<Record>,
    pub(crate) promise: u8,
    /// A ballot that a previous incarnation may have promised; `None` = `promise` covers all of
    /// them.
    pub(crate) floor: Option<u8>,
    /// True if the replica holds all records that it has acknowledged.
    pub(crate) authoritative: bool,
    /// The replicas that have streamed their records to this replica.
    pub(crate) sent_by: BTreeSet<u8>,
    /// The operations that the replica has noted; used if histories are short.
    pub(crate) noted: BTreeSet<u8>,
}

/// A replica's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The replica promises to accept no record of a lower ballot. The reply has the replica's
    /// record, the displaced record, and the noted operations.
    Promise {
        record: Record,
        below: Option<Record>,
        noted: BTreeSet<u8>,
    },
    /// The replica has promised a higher ballot.
    Outbid,
    Stored,
    /// The replica holds a newer record; `below` is the record that it displaced.
    Newer {
        below: Option<Record>,
    },
    /// The replica's record, and whether the replica is authoritative.
    Holds(Record, bool),
    /// The replica is not authoritative.
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
            noted: BTreeSet::new(),
        }
    }

    /// Handles a coordinator's request for a promise.
    pub(crate) fn prepare(&mut self, ballot: u8, rules: &Rules) -> Reply {
        if !self.authoritative && rules.rebuilt_before_promising {
            return Reply::Unknown;
        }
        if ballot <= self.promise {
            return Reply::Outbid;
        }
        self.promise = ballot;
        let noted = self.noted.clone();
        Reply::Promise { record: self.record.clone(), below: self.below.clone(), noted }
    }

    /// Handles a conditional write's record.
    pub(crate) fn accept(&mut self, record: &Record, ask: Ask, rules: &Rules) -> Reply {
        if ask == Ask::GoesOn && !self.authoritative && rules.rebuilt_before_going_on {
            return Reply::Unknown;
        }
        if self.floor.is_some() && rules.loss_known_before_storing {
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

    /// Handles a plain write's record.
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

    /// Replaces the replica's record.
    pub(crate) fn store(&mut self, record: &Record, rules: &Rules) {
        if rules.keep_displaced && self.record.family < record.family && self.record.ballot > 0 {
            self.below = Some(self.record.clone());
        }
        if rules.short_history {
            self.noted.extend(&record.ids);
        }
        self.record = record.clone();
    }
}
