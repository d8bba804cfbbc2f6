//! Records as the protocol sees them: opaque bytes, and what decides between two of them.

use bytes::Bytes;

use crate::clock::Version;

/// What decides which of two records of one key holds, compared in this order. Equal ranks mean
/// the same record, wherever it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// When and where it was written; of a conditional write, the version of the plain write that
    /// it continues: its *family*.
    pub version: Version,
    /// 0, or the ballot under which a conditional write made it. It comes before everything else
    /// within a family: a record that was never chosen must not hide a later one that was.
    pub ballot: u64,
    /// A tombstone beats a value of the same version.
    pub kind: Kind,
    /// Checksum over key and content, computed where the value entered the cluster.
    pub check: u64,
}

/// What a record says about its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The key has a value.
    Value,
    /// The key was deleted.
    Tombstone,
    /// Reserved for keys written with different numbers of copies.
    Superseded,
}

impl Rank {
    /// When it was written, as a time of a version: a record of an old family may be new.
    pub fn when(&self) -> u64 {
        if self.ballot > 0 { self.ballot } else { self.version.time }
    }

    /// Whether who holds a record of this rank counts as one who stored the other one. For a plain
    /// write any newer record will do. For a conditional one none will: the newer one may have been
    /// made without it, and may be why its coordinator finds out that it was not done.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self == other || self > other && other.ballot == 0
    }
}

/// A record, in the bytes that the store keeps and that travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Version and ballot, which decide which record holds.
    pub rank: Rank,
    /// How many nodes were asked to hold it; 0 = the cluster's default.
    pub copies: u8,
    /// The whole record, as the store encodes it.
    pub bytes: Bytes,
}

/// A record without its content: all that decides between it and others, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// Version and ballot, which decide which record holds.
    pub rank: Rank,
    /// The number of copies, as in [`Record::copies`].
    pub copies: u8,
    /// The length of [`Record::bytes`].
    pub bytes: u32,
}

impl Record {
    /// What is left of it without its content.
    pub fn outline(&self) -> Outline {
        let bytes = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        Outline { rank: self.rank, copies: self.copies, bytes }
    }
}

/// Whether a value that expires at `expiry_ms` (milliseconds since 1970; 0 = never) counts as
/// deleted, for somebody whose clock shows `micros` since 1970. It is decided by who coordinates a
/// request, and by nobody else: replicas keep, send and compare an expired value as any other.
pub fn has_expired(expiry_ms: u64, micros: u64) -> bool {
    expiry_ms != 0 && expiry_ms <= micros / 1000
}

/// How many conditional writes a record remembers.
pub const MAX_OPERATIONS: usize = 8;

/// The conditional writes that are in a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// How many there were since the plain write that began the family.
    pub step: u32,
    /// The last of them, at most [`MAX_OPERATIONS`], the newest last.
    pub operations: Vec<Operation>,
}

impl Steps {
    /// The operations, each with its step, the newest first.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &Operation)> {
        let newest_first = self.operations.iter().rev().enumerate();
        newest_first.map(|(later, operation)| (self.step.wrapping_sub(later as u32), operation))
    }
}

/// A conditional write that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Which one it was.
    pub id: u64,
    /// What an addition came to.
    pub result: Option<i64>,
}

/// What a conditional write makes of a key.
#[derive(Debug, Clone, Copy)]
pub struct Next<'a> {
    /// The family that it continues.
    pub family: Version,
    /// The ballot that the record is made under.
    pub ballot: u64,
    /// Value or tombstone.
    pub kind: Kind,
    /// The number of copies, as in [`Record::copies`].
    pub copies: u8,
    /// When the value expires, in milliseconds since 1970; 0 = never.
    pub expiry_ms: u64,
    /// It and those before it.
    pub steps: &'a Steps,
    /// The value; empty for a tombstone.
    pub value: &'a [u8],
}

/// What the protocol must have done to records whose layout is the store's. Functions of their
/// arguments only.
#[derive(Debug, Clone, Copy)]
pub struct Codec {
    /// Takes bytes from a peer for a record; `None` if they are none. The content is not verified.
    pub parse: fn(Bytes) -> Option<Record>,
    /// Whether the content is what was written under the key.
    pub verify: fn(&[u8], &Record) -> bool,
    /// The same content under the key, with another version.
    pub reissue: fn(&[u8], &Record, Version) -> Record,
}

/// The same for conditional writes.
#[derive(Debug, Clone, Copy)]
pub struct StepsCodec {
    /// The same content under the key, in a family and under a ballot.
    pub reballot: fn(&[u8], &Record, Version, u64) -> Record,
    /// The conditional writes that are in a record.
    pub steps: fn(&Record) -> Steps,
    /// Its value; empty for a tombstone.
    pub value: fn(&Record) -> Bytes,
    /// When that expires, as [`Next::expiry_ms`].
    pub expiry_ms: fn(&Record) -> u64,
    /// A record that a conditional write makes.
    pub build: fn(&[u8], &Next<'_>) -> Record,
}
