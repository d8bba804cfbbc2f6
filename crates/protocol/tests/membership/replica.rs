//! The model's replica of the key: its record, the layout that it has entered, and the progress of
//! its pulls.

use std::collections::BTreeSet;

use crate::layout::{Layout, Stage, suffice};
use crate::rules::Rules;

/// A record. A plain write (ballot 0) begins a base version; conditional writes continue it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) time: u8,
    pub(crate) ballot: u8,
    /// The put value, then the appended ids; empty = a tombstone.
    pub(crate) value: Vec<u8>,
}

impl Record {
    pub(crate) fn plain(time: u8, value: &[u8]) -> Self {
        Self { time, ballot: 0, value: value.to_vec() }
    }

    /// Returns the rank by which records are ordered.
    pub(crate) fn rank(&self) -> (u8, u8) {
        (self.time, self.ballot)
    }

    /// Returns the time of the write.
    pub(crate) fn when(&self) -> u8 {
        if self.ballot > 0 { self.ballot } else { self.time }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.value.is_empty()
    }
}

/// The state of one replica of the key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) record: Option<Record>,
    /// The record that the replica has after a restart.
    pub(crate) durable: Option<Record>,
    /// The layout that the replica has entered.
    pub(crate) epoch: u8,
    /// The epoch that the replica has after a restart.
    pub(crate) durable_epoch: u8,
    /// The highest promised ballot. A promise survives a restart, because the clock's bound does.
    pub(crate) promise: u8,
    /// The repair fence: up to this time, records are accepted only from the replica's sources.
    pub(crate) seal: u8,
    /// The time up to which all replicas were proven to hold the same records.
    pub(crate) watermark: u8,
    /// True if the replica holds all records that it should, so that its "not found" counts.
    pub(crate) is_full: bool,
    /// Number of disks replaced so far.
    pub(crate) life: u8,
    /// The transition in which the replica receives the partition, and the nodes from which it has
    /// pulled.
    pub(crate) joined: Option<u8>,
    pub(crate) taken: BTreeSet<u8>,
    /// The nodes that have streamed to the replica since its disk was lost; `None` = no rebuild.
    pub(crate) rebuilt_by: Option<BTreeSet<u8>>,
}

/// The reply of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Stored,
    /// The replica holds a newer record, or its repair fence refuses the record's time.
    Newer(u8),
    Outbid,
    /// A promise, and the replica's record.
    Promised(Option<Record>),
    /// A promise of a node that has not pulled all records, and the replica's record.
    Bound(Option<Record>),
    /// The replica's record, whether its "not found" counts, and its watermark.
    Holds(Option<Record>, bool, u8),
    /// The replica has entered this later layout, and refuses the request.
    Entered(u8),
    Nothing,
}

impl Replica {
    /// Enters a later layout, durably.
    pub(crate) fn enter(&mut self, own: u8, layout: &Layout, epoch: u8, now: u8, rules: &Rules) {
        self.epoch = epoch;
        if rules.entering_is_durable {
            self.durable_epoch = epoch;
        }
        if !layout.holds(own) {
            self.is_full = false;
            return;
        }
        let is_moving = layout.stage != Stage::Settled && self.joined != Some(layout.began);
        if is_moving && layout.takers(rules).any(|node| node == own) {
            self.join(own, layout, now, rules);
        }
        if layout.stage == Stage::ReadOld || self.is_full || self.rebuilt_by.is_some() {
            return;
        }
        // The replica is in the read set but lacks records: its disk was lost after it reported the
        // end of its pulls.
        if rules.progress_is_on_receiver {
            self.rebuilt_by = Some(BTreeSet::new());
        } else {
            self.is_full = true;
        }
    }

    /// Begins to pull the partition.
    fn join(&mut self, own: u8, layout: &Layout, now: u8, rules: &Rules) {
        let again = self.joined.is_some() && !rules.progress_names_transition;
        self.joined = Some(layout.began);
        if again {
            return;
        }
        self.taken.clear();
        // A receiver begins without records of the partition; a node that stays has its own
        // records.
        if !layout.is_receiver(own) {
            self.taken.insert(own);
            return;
        }
        self.is_full = false;
        if rules.receiver_begins_empty {
            (self.record, self.durable) = (None, None);
        }
        if rules.receiver_is_sealed {
            self.seal = now;
        }
    }

    fn store(&mut self, record: &Record) {
        self.record = Some(record.clone());
        self.durable = self.record.clone();
    }

    /// True if the held record is the same or newer.
    pub(crate) fn has<'a>(&self, record: impl Into<Option<&'a Record>>) -> bool {
        let rank = |record: &Record| record.rank();
        self.record.as_ref().map(rank) >= record.into().map(rank)
    }

    /// Handles a client's plain write.
    pub(crate) fn write(&mut self, record: &Record) -> Reply {
        if let Some(held) = self.record.as_ref().filter(|held| held.rank() >= record.rank()) {
            let is_stored = held.time == record.time;
            return if is_stored { Reply::Stored } else { Reply::Newer(held.when()) };
        }
        if record.time <= self.seal {
            return Reply::Newer(self.seal);
        }
        self.store(record);
        Reply::Stored
    }

    /// Stores a record that this replica missed. A conditional write's record in a hint is chosen.
    pub(crate) fn store_hint(&mut self, record: &Record) {
        if record.when() > self.seal && !self.has(record) {
            self.store(record);
        }
    }

    /// Handles a coordinator's request for a promise.
    pub(crate) fn prepare(&mut self, ballot: u8, rules: &Rules) -> Reply {
        let may_promise = self.rebuilt_by.is_none() && rules.promises_are_of_both_sets;
        if !self.is_full && rules.promises_are_of_read_set && !may_promise {
            return Reply::Holds(self.record.clone(), false, self.watermark);
        }
        if ballot <= self.promise {
            return Reply::Outbid;
        }
        self.promise = ballot;
        let counts = self.is_full || !rules.promises_are_of_read_set;
        let reply = if counts { Reply::Promised } else { Reply::Bound };
        reply(self.record.clone())
    }

    /// Handles a conditional write's record, from its coordinator or from a reader that found it
    /// elsewhere.
    pub(crate) fn accept(&mut self, record: &Record) -> Reply {
        if record.ballot < self.promise || record.ballot <= self.seal {
            return Reply::Outbid;
        }
        if let Some(held) = self.record.as_ref().filter(|held| held.rank() > record.rank()) {
            return Reply::Newer(held.when());
        }
        self.promise = self.promise.max(record.ballot);
        self.store(record);
        Reply::Stored
    }

    /// Handles a record that a reader found on another replica.
    pub(crate) fn repair(&mut self, record: &Record) -> Reply {
        if self.has(record) && record.ballot == 0 || self.record.as_ref() == Some(record) {
            return Reply::Stored;
        }
        if record.when() <= self.seal {
            return Reply::Newer(self.seal);
        }
        if record.ballot > 0 {
            return self.accept(record);
        }
        self.store(record);
        Reply::Stored
    }

    pub(crate) fn read(&self) -> Reply {
        Reply::Holds(self.record.clone(), self.is_full, self.watermark)
    }

    /// Pulls the record of a replica in the old set. Returns true if the replica now has all
    /// records.
    pub(crate) fn take(&mut self, from: u8, source: &Self, layout: &Layout, rules: &Rules) -> bool {
        if let Some(record) = source.record.as_ref().filter(|record| !self.has(*record)) {
            self.record = Some(record.clone());
            if rules.data_before_cursor {
                self.durable = self.record.clone();
            }
        }
        self.watermark = self.watermark.max(source.watermark);
        self.taken.insert(from);
        let has_all = self.has_taken_all(layout, rules);
        self.is_full |= has_all;
        has_all
    }

    /// True if the replica has pulled from all necessary sources.
    pub(crate) fn has_taken_all(&self, layout: &Layout, rules: &Rules) -> bool {
        let is_majority = suffice(&self.taken, layout.old, None);
        let leaves = |node: &&u8| !layout.new.contains(node) && layout.lost != Some(**node);
        let has_leavers = layout.old.iter().filter(leaves).all(|node| self.taken.contains(node));
        let has_majority = is_majority || !rules.majority_is_pulled;
        has_majority && (has_leavers || !rules.leavers_are_pulled) && !self.taken.is_empty()
    }

    /// Handles the proof that all replicas hold a tombstone, by purging the tombstone.
    pub(crate) fn commit(&mut self, watermark: u8) {
        self.watermark = self.watermark.max(watermark);
        let is_purged = |record: &Record| record.is_tombstone() && record.when() <= watermark;
        if self.record.as_ref().is_some_and(is_purged) {
            (self.record, self.durable) = (None, None);
        }
    }

    pub(crate) fn restart(&mut self) {
        self.epoch = self.durable_epoch;
        self.record = self.durable.clone();
    }

    /// Replaces the disk by an empty one. The new repair fence and promise cover all that the
    /// replica may have acknowledged and promised before.
    pub(crate) fn wipe(&mut self, own: u8, layout: &Layout, epoch: u8, now: u8, rules: &Rules) {
        let is_receiver = layout.is_receiver(own) && layout.stage == Stage::ReadOld;
        let rebuilt_by = (layout.holds(own) && !is_receiver).then(BTreeSet::new);
        let (promise, life) = (self.promise.max(now), self.life + 1);
        *self = Self { promise, seal: now, life, rebuilt_by, ..Self::default() };
        self.enter(own, layout, epoch, now, rules);
    }

    /// Receives another node's record, after this replica's disk was lost.
    pub(crate) fn stream(&mut self, from: u8, source: &Self, others: &BTreeSet<u8>) {
        if let Some(record) = source.record.as_ref().filter(|record| !self.has(*record)) {
            self.store(record);
        }
        self.watermark = self.watermark.max(source.watermark);
        let by = self.rebuilt_by.as_mut().expect("it is rebuilt");
        by.insert(from);
        if by.is_superset(others) {
            (self.rebuilt_by, self.is_full) = (None, true);
        }
    }
}
