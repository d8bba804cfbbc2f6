//! What the manifest knows about a table, and the table about itself.

use bytes::Bytes;

use crate::batch::Space;
use crate::record::{Kind, RecordRef, Version};

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
    /// How many.
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
        if self.entries == 0 {
            self.smallest = Bytes::copy_from_slice(ikey);
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

    /// No record has a version of a later time, nor was any written later.
    pub(crate) fn latest(&self) -> u64 {
        self.max_when.max(self.max_version.time)
    }

    /// What is taken for purgeable in a table of a format that does not say it: its tombstones.
    pub(crate) fn assumed_purgeable(&self) -> (Purgeable, Purgeable) {
        let mean = self.bytes / self.entries.max(1);
        let bytes = mean.saturating_mul(self.tombstones);
        let latest = if self.tombstones == 0 { 0 } else { self.latest() };
        let deleted = Purgeable { records: self.tombstones, bytes, latest };
        (deleted, Purgeable::default())
    }
}
