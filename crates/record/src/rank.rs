//! The rank of a record, which decides between two records of a key.

use crate::version::Version;

/// The rank of a record. Of two records of a key, the one with the greater rank wins; the fields
/// are compared in order. Equal ranks mean the same record, whatever its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Version of the write. A conditional write keeps the version of the plain write that it
    /// continues: its *base version*.
    pub version: Version,
    /// Ballot of the conditional write that made the record; 0 = a plain write made it. Within a
    /// base version the ballot precedes all other fields: a record that was never chosen must not
    /// hide a later one that was.
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
    /// Reserved for keys written with different numbers of copies; accepted, but not produced yet.
    Superseded = 2,
}

/// The rank, copies and length of a record, without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSummary {
    /// The record's rank.
    pub rank: Rank,
    /// Number of nodes that should hold the record; 0 = the cluster's default.
    pub copies: u8,
    /// The record's length in bytes.
    pub bytes: u32,
}

/// Returns true if a value that expires at `expiry_ms` (milliseconds since 1970; 0 = never) counts
/// as deleted at the time `micros` (microseconds since 1970). Only the coordinator of a request
/// decides this: replicas store, send and compare expired values like any others.
pub fn has_expired(expiry_ms: u64, micros: u64) -> bool {
    expiry_ms != 0 && expiry_ms <= micros / 1000
}

impl Kind {
    /// Returns true if a record of this kind that expires at `expiry_ms` is an unexpired value.
    /// Reads the wall clock, in microseconds since 1970, only if the record can expire.
    pub fn is_live(self, expiry_ms: u64, wall_micros: impl FnOnce() -> u64) -> bool {
        self == Self::Value && (expiry_ms == 0 || !has_expired(expiry_ms, wall_micros()))
    }
}

impl Rank {
    /// Write time of the record, as a version time: the ballot of a conditional write, which may be
    /// much later, or earlier, than its base version; otherwise the version's time.
    pub fn write_time(&self) -> u64 {
        if self.ballot > 0 { self.ballot } else { self.version.time }
    }

    /// Returns true if a replica that holds a record of this rank counts as having stored `other`.
    /// For a plain write any greater rank counts. For a conditional write only the same rank
    /// counts: a greater one may have been made without it, and may be the reason why its
    /// coordinator finds that it was not done.
    pub fn covers(&self, other: &Self) -> bool {
        self == other || self > other && other.ballot == 0
    }
}
