//! The rank of a record, which decides between two records of a key.

use crate::version::Version;

/// The rank of a record. Of two records of a key, the record with the greater rank wins; the fields
/// are compared in their order here. Two records of a key with equal ranks are the same record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Version of the write. A conditional write keeps its *base version*: the version of the plain
    /// write that it continues.
    pub version: Version,
    /// Ballot of the conditional write that made the record; 0 = a plain write made it. It comes
    /// before `kind`, because a record that no majority stored must not hide a later record that a
    /// majority stored.
    pub ballot: u64,
    /// Kind of the record: a tombstone beats a value of the same version.
    pub kind: Kind,
    /// The checksum of key and content, computed where the value entered the cluster.
    pub check: u64,
}

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key has a value.
    Value = 0,
    /// The key was deleted.
    Tombstone = 1,
    /// Reserved for keys that were written with different numbers of copies. Readers accept it;
    /// nothing produces it yet.
    Superseded = 2,
}

/// The rank, copies and length of a record, without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordOutline {
    /// The record's rank.
    pub rank: Rank,
    /// Number of nodes that should hold the record; 0 = the cluster's default.
    pub copies: u8,
    /// The record's length in bytes.
    pub bytes: u32,
}

/// Returns true if a value that expires at `expiry_ms` (milliseconds since 1970; 0 = never) counts
/// as deleted at the time `micros` (microseconds since 1970). Only the coordinator of a request
/// decides expiry; replicas treat expired values like other values.
pub fn has_expired(expiry_ms: u64, micros: u64) -> bool {
    expiry_ms != 0 && expiry_ms <= micros / 1000
}

impl Kind {
    /// Returns true if a record of this kind with this expiry (milliseconds since 1970; 0 = never)
    /// is an unexpired value. Calls `wall_micros` (microseconds since 1970) only if the record is a
    /// value that can expire.
    pub fn is_live(self, expiry_ms: u64, wall_micros: impl FnOnce() -> u64) -> bool {
        self == Self::Value && (expiry_ms == 0 || !has_expired(expiry_ms, wall_micros()))
    }
}

impl Rank {
    /// Write time of the record, as a version time: for a plain write, the version's time; for a
    /// conditional write, its ballot, which may be much later than the base version, or earlier.
    pub fn write_time(&self) -> u64 {
        if self.ballot > 0 { self.ballot } else { self.version.time }
    }

    /// Returns true if a replica that holds a record of this rank counts as having stored `other`.
    /// For a plain write `other`, any greater rank counts too. For a conditional write, only the
    /// same rank counts: a record of greater rank may not continue `other`, and may be the reason
    /// why the coordinator of `other` reports a failure.
    pub fn covers(&self, other: &Self) -> bool {
        self == other || self > other && other.ballot == 0
    }
}
