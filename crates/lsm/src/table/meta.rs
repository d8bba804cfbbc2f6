//! What the manifest knows about a table, and the table about itself.

use bytes::Bytes;

use super::Table;
use crate::batch::Space;
use record::{Kind, RecordRef, Version};

/// What the manifest knows about a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TableMeta {
    /// Never used before in its store.
    pub(crate) id: u64,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Keys, tombstones included.
    pub(crate) entries: u64,
    /// Tombstones among them.
    pub(crate) tombstones: u64,
    /// The first internal key.
    pub(crate) smallest: Bytes,
    /// The last internal key.
    pub(crate) largest: Bytes,
    /// The greatest version of any record.
    pub(crate) max_version: Version,
    /// No record was written before ([`RecordRef::when`]). Of a table of format 1 nothing is known
    /// but 0.
    pub(crate) min_when: u64,
    /// When the youngest record was written.
    pub(crate) max_when: u64,
    /// Users' tombstones, and what is superseded.
    pub(crate) deleted: Purgeable,
    /// Users' values with an expiry.
    pub(crate) expiring: Purgeable,
    /// The check in the footer, which no other table has.
    pub(crate) check: u64,
}

/// Records that may be purged one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Purgeable {
    /// The number of such records.
    pub(crate) records: u64,
    /// Bytes of their keys and records, uncompressed.
    pub(crate) bytes: u64,
    /// The greatest [`RecordRef::latest`] of them, and the greatest expiry of those that expire.
    pub(crate) latest: u64,
}

impl Purgeable {
    fn add(&mut self, bytes: usize, latest: u64) {
        self.records += 1;
        self.bytes += bytes as u64;
        self.latest = self.latest.max(latest);
    }
}

impl TableMeta {
    /// Counts one more record, the table's last so far.
    pub(super) fn note(&mut self, ikey: &[u8], record: RecordRef<'_>) {
        let when = record.when();
        if self.smallest.is_empty() {
            self.smallest = Bytes::copy_from_slice(ikey);
        }
        if self.entries == 0 {
            self.min_when = when;
        }
        self.min_when = self.min_when.min(when);
        self.max_when = self.max_when.max(when);
        self.entries += 1;
        self.tombstones += u64::from(record.kind() == Kind::Tombstone);
        self.max_version = self.max_version.max(record.version());
        if ikey[0] != Space::Data as u8 {
            return;
        }
        let bytes = ikey.len() + record.raw().len();
        if record.kind() != Kind::Value {
            self.deleted.add(bytes, record.latest());
        } else if record.expiry_ms() != 0 {
            self.expiring.add(bytes, record.latest().max(record.expiry_time()));
        }
    }

    /// There may be records besides, of which no more is known than of those of `other`.
    pub(super) fn may_hold_of(&mut self, other: &Self) {
        let is_first = self.entries == 0;
        self.min_when = if is_first { other.min_when } else { self.min_when.min(other.min_when) };
        self.max_when = self.max_when.max(other.max_when);
        self.max_version = self.max_version.max(other.max_version);
    }

    /// No record has a version of a later time, nor was any written later.
    pub(crate) fn latest(&self) -> u64 {
        self.max_when.max(self.max_version.time)
    }
}

/// What may be purged now is not known record by record: all of a table's purgeable records of a
/// kind may, or none.
impl Table {
    /// Notes that a compaction asked for each of its records whether it may go, when those up to
    /// `reached` might, and nothing that it hides lies below. Lest it be written anew again and
    /// again for what may not.
    pub(crate) fn was_asked(&self, reached: Option<u64>) {
        // It is asked once: as it is written.
        let _ = self.asked.set(reached);
    }

    /// About what may be purged now of those that it had not been asked for, or were to stay then:
    /// number of records, and their bytes.
    pub(crate) fn purgeable(&self, reached: Option<u64>) -> (u64, u64) {
        let asked = self.asked.get().copied().flatten();
        let has_come = |reached: Option<u64>, kind: &Purgeable| {
            reached.is_some_and(|reached| kind.latest <= reached)
        };
        let kinds = [self.meta.deleted, self.meta.expiring].into_iter();
        let goes = kinds.filter(|kind| has_come(reached, kind) && !has_come(asked, kind));
        goes.fold((0, 0), |(records, bytes), kind| (records + kind.records, bytes + kind.bytes))
    }

    /// How many records may be purged at most, be it less probable.
    pub(crate) fn purgeable_at_most(&self, reached: Option<u64>) -> u64 {
        let meta = &self.meta;
        let is_reached = reached.is_some_and(|reached| meta.min_when <= reached);
        if is_reached { meta.deleted.records + meta.expiring.records } else { 0 }
    }

    /// Notes that a compaction asked of each of its records whether it is a leftover, the time of
    /// this number that they are dropped.
    pub(crate) fn was_asked_for_leftovers(&self, number: u64) {
        // It is asked once: as it is written.
        let _ = self.asked_for_leftovers.set(number);
    }

    /// How many leftovers it may hold of which it was not asked, the time of this number that they
    /// are dropped: all that it has, unless it holds nothing of users.
    pub(crate) fn leftovers_at_most(&self, number: Option<u64>) -> u64 {
        let is_asked = number.is_none() || self.asked_for_leftovers.get().copied() == number;
        let has_data = self.meta.smallest.first() == Some(&(Space::Data as u8));
        if is_asked || !has_data { 0 } else { self.meta.entries }
    }
}
