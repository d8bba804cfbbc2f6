//! Metadata of a table: the part that the manifest stores, and the state that exists only in
//! memory.

use bytes::Bytes;

use super::Table;
use crate::batch::Space;
use record::{Kind, RecordRef, Version};

/// The manifest's entry for a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TableMeta {
    /// Id of the table, never used before in its store.
    pub(crate) id: u64,
    /// Length of the file in bytes.
    pub(crate) bytes: u64,
    /// Number of keys, tombstones included.
    pub(crate) entries: u64,
    /// Number of user keys that have a value.
    pub(crate) values: u64,
    /// First internal key.
    pub(crate) smallest: Bytes,
    /// Last internal key.
    pub(crate) largest: Bytes,
    /// Highest version of any record.
    pub(crate) max_version: Version,
    /// Earliest write time ([`RecordRef::write_time`]) of any record.
    pub(crate) min_write_time: u64,
    /// Latest write time of any record.
    pub(crate) max_write_time: u64,
    /// User tombstones and superseded records.
    pub(crate) deleted: PurgeableSummary,
    /// User values with an expiry.
    pub(crate) expiring: PurgeableSummary,
    /// The checksum in the footer, unique to this table.
    pub(crate) check: u64,
}

/// Summary of the records that may become purgeable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PurgeableSummary {
    /// Number of the records.
    pub(crate) records: u64,
    /// Bytes of their keys and records, uncompressed.
    pub(crate) bytes: u64,
    /// The greatest [`RecordRef::latest`] of the records and, for expiring values, the greatest
    /// expiry.
    pub(crate) latest: u64,
}

impl PurgeableSummary {
    fn add(&mut self, bytes: usize, latest: u64) {
        self.records += 1;
        self.bytes += bytes as u64;
        self.latest = self.latest.max(latest);
    }
}

impl TableMeta {
    /// Adds the record that was appended last to the statistics.
    pub(super) fn add_record(&mut self, ikey: &[u8], record: RecordRef<'_>) {
        let write_time = record.write_time();
        if self.smallest.is_empty() {
            self.smallest = Bytes::copy_from_slice(ikey);
        }
        if self.entries == 0 {
            self.min_write_time = write_time;
        }
        self.min_write_time = self.min_write_time.min(write_time);
        self.max_write_time = self.max_write_time.max(write_time);
        self.entries += 1;
        self.max_version = self.max_version.max(record.version());
        if ikey[0] != Space::Data as u8 {
            return;
        }
        let bytes = ikey.len() + record.raw().len();
        self.values += u64::from(record.kind() == Kind::Value);
        if record.kind() != Kind::Value {
            self.deleted.add(bytes, record.latest());
        } else if record.expiry_ms() != 0 {
            self.expiring.add(bytes, record.latest().max(record.expiry_time()));
        }
    }

    /// Widens the time and version bounds by those of `other`, for unreadable records of the table
    /// `other`.
    pub(super) fn widen_by(&mut self, other: &Self) {
        let is_first = self.entries == 0;
        self.min_write_time = if is_first {
            other.min_write_time
        } else {
            self.min_write_time.min(other.min_write_time)
        };
        self.max_write_time = self.max_write_time.max(other.max_write_time);
        self.max_version = self.max_version.max(other.max_version);
    }

    /// Upper bound of all version times and write times in the table.
    pub(crate) fn latest(&self) -> u64 {
        self.max_write_time.max(self.max_version.time)
    }
}

/// Estimates of purgeable records. A table has only a summary of each kind of such records, so
/// either all records of a kind count, or none.
impl Table {
    /// Stores the purge limit that a compaction applied to every record of this table, while no
    /// table below overlapped this table. Another purge of the table is useless until the limit
    /// rises.
    pub(crate) fn set_purge_checked_up_to(&self, purge_limit: Option<u64>) {
        // A table is checked once, while it is written.
        let _ = self.purge_checked_up_to.set(purge_limit);
    }

    /// Estimates the records that may be purged now but could not be when the table was written:
    /// number of records, and their bytes.
    pub(crate) fn purgeable(&self, purge_limit: Option<u64>) -> (u64, u64) {
        let checked = self.purge_checked_up_to.get().copied().flatten();
        let is_reached = |limit: Option<u64>, kind: &PurgeableSummary| {
            limit.is_some_and(|limit| kind.latest <= limit)
        };
        let kinds = [self.meta.deleted, self.meta.expiring].into_iter();
        let purgeable_now =
            kinds.filter(|kind| is_reached(purge_limit, kind) && !is_reached(checked, kind));
        purgeable_now
            .fold((0, 0), |(records, bytes), kind| (records + kind.records, bytes + kind.bytes))
    }

    /// Upper bound of the number of records that may be purged now.
    pub(crate) fn purgeable_at_most(&self, purge_limit: Option<u64>) -> u64 {
        let meta = &self.meta;
        let is_reached = purge_limit.is_some_and(|limit| meta.min_write_time <= limit);
        if is_reached { meta.deleted.records + meta.expiring.records } else { 0 }
    }

    /// Marks all records of this table as checked by a compaction in the cleanup `number`.
    pub(crate) fn set_orphans_checked_in(&self, number: u64) {
        // A table is checked once, while it is written.
        let _ = self.orphans_checked_in.set(number);
    }

    /// Upper bound of the number of orphaned records that the cleanup `number` has not checked: all
    /// records of the table, or 0 if the table holds no user keys.
    pub(crate) fn orphans_at_most(&self, number: Option<u64>) -> u64 {
        let is_checked = number.is_none() || self.orphans_checked_in.get().copied() == number;
        let has_data = self.meta.smallest.first() == Some(&(Space::Data as u8));
        if is_checked || !has_data { 0 } else { self.meta.entries }
    }
}
