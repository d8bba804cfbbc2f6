//! A record's rank: all that decides which of two records of one key holds.

use crate::version::Version;

/// The rank of a record. Of two records of one key the one of the greater rank holds, compared in
/// the order of the fields. Equal ranks mean the same record, wherever it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// When and where the record was written; of a conditional write, the version of the plain
    /// write that it continues: its *family*.
    pub version: Version,
    /// The ballot under which a conditional write made the record; 0 = a plain write made it. The
    /// ballot comes before everything else within a family: a record that was never chosen must
    /// not hide a later one that was.
    pub ballot: u64,
    /// A tombstone beats a value of the same version.
    pub kind: Kind,
    /// The checksum over key and content, computed where the value entered the cluster.
    pub check: u64,
}

/// What a record says about its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key has a value.
    Value = 0,
    /// The key was deleted.
    Tombstone = 1,
    /// Reserved for keys written with different numbers of copies; stored, never produced yet.
    Superseded = 2,
}

/// A record without its content: all that decides between it and others, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// The record's rank.
    pub rank: Rank,
    /// How many nodes were asked to hold the record; 0 = the cluster's default.
    pub copies: u8,
    /// The record's length in bytes.
    pub bytes: u32,
}

/// Whether a value that expires at `expiry_ms` (milliseconds since 1970; 0 = never) counts as
/// deleted, for somebody whose clock shows `micros` since 1970. The coordinator of a request
/// decides it, and nobody else: replicas keep, send and compare an expired value as any other.
pub fn has_expired(expiry_ms: u64, micros: u64) -> bool {
    expiry_ms != 0 && expiry_ms <= micros / 1000
}

impl Kind {
    /// Whether a record of this kind that expires at `expiry_ms` is a value that has not expired.
    /// The wall clock, in microseconds since 1970, is read only if the record can expire.
    pub fn is_live(self, expiry_ms: u64, wall_micros: impl FnOnce() -> u64) -> bool {
        self == Self::Value && (expiry_ms == 0 || !has_expired(expiry_ms, wall_micros()))
    }
}

impl Rank {
    /// When the record was written, as a time of a version: the ballot of what a conditional write
    /// made, which may be much younger, or older, than the version that it continues.
    pub fn when(&self) -> u64 {
        if self.ballot > 0 { self.ballot } else { self.version.time }
    }

    /// Whether a replica that holds a record of this rank counts as one that stored the other
    /// record. For a plain write any newer record will do. For a conditional one none will: the
    /// newer record may have been made without it, and may be why its coordinator finds out that
    /// it was not done.
    pub fn covers(&self, other: &Self) -> bool {
        self == other || self > other && other.ballot == 0
    }
}
