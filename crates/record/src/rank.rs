//! The rank of a record, which decides between two records of a key.

use crate::version::Version;

/// The rank of a record. Of two records of a key, the one with the greater rank wins; the fields
/// are compared in order. Records of a key with equal ranks are the same record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Version of the write. A conditional write keeps the version of the plain write that it
    /// continues: its *base version*.
    pub version: Version,
    /// Ballot of the conditional write that made the record; 0 = a plain write made it. Among
    /// records of one base version, the ballot is compared first: a record that no majority stored
    /// must not hide a later record that a majority stored.
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
    /// If `other` is a plain write, any greater rank counts. If `other` is a conditional write,
    /// only the same rank counts: a record of a greater rank may not continue `other`, and may be
    /// the very record from which the coordinator of `other` concludes that the write failed.
    pub fn covers(&self, other: &Self) -> bool {
        self == other || self > other && other.ballot == 0
    }
}
