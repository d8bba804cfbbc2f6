//! Borrowed records: parsing, verification and access to the parts.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::layout::{
    BadRecord, CHECK_LEN, COPIES_AT, HEAD_LEN, LOCAL_LEN, MAX_RECORD_LEN, MIN_RECORD_LEN,
    ORIGIN_AT, SHAPE_AT, SHAPE_EXPIRY, SHAPE_EXTENSION, SHAPE_KIND, SHAPE_STEPS, TIME_AT,
    checksum_of,
};
use crate::op_history::{OpHistory, OpHistoryRef};
use crate::owned::Record;
use crate::rank::{Kind, Rank, RecordOutline};
use crate::version::{COUNTER_BITS, Version};

/// A borrowed, well-formed record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a>(&'a [u8]);

impl<'a> RecordRef<'a> {
    /// Parses `raw` as a record. Checks the structure, but not the content (see [`Self::verify`]).
    /// A length outside [`MIN_RECORD_LEN`]..=[`MAX_RECORD_LEN`], an unknown shape or a part beyond
    /// the end is an error.
    pub fn parse(raw: &'a [u8]) -> Result<Self, BadRecord> {
        if raw.len() < MIN_RECORD_LEN || raw.len() > MAX_RECORD_LEN {
            return Err(BadRecord("length out of range"));
        }
        let shape = raw[SHAPE_AT];
        let known = SHAPE_KIND | SHAPE_EXPIRY | SHAPE_EXTENSION | SHAPE_STEPS;
        if shape & !known != 0 || shape & SHAPE_KIND == 3 {
            return Err(BadRecord("unknown kind or shape"));
        }
        if shape & SHAPE_STEPS != 0 {
            OpHistoryRef::parse(&raw[HEAD_LEN..raw.len() - CHECK_LEN])?;
        }
        let record = Self(raw);
        if record.value_at() > raw.len() - CHECK_LEN {
            return Err(BadRecord("shorter than its own parts"));
        }
        Ok(record)
    }

    /// Wraps bytes that [`Self::parse`] has accepted, and that have not changed since.
    #[inline]
    pub fn from_trusted(raw: &'a [u8]) -> Self {
        debug_assert!(Self::parse(raw).is_ok());
        Self(raw)
    }

    /// Verifies that the checksum matches the content and `key`; a mismatch is an error.
    pub fn verify(&self, key: &[u8]) -> Result<(), BadRecord> {
        if self.check() == checksum_of(key, self.0) {
            Ok(())
        } else {
            Err(BadRecord("checksum of key and content does not match"))
        }
    }

    /// The record's bytes as stored and sent.
    pub fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// The node-local bytes, which belong to the store that holds the record.
    #[inline]
    pub fn local(&self) -> [u8; LOCAL_LEN] {
        [self.0[0], self.0[1]]
    }

    /// Kind of the record.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.0[SHAPE_AT] & SHAPE_KIND {
            0 => Kind::Value,
            1 => Kind::Tombstone,
            _ => Kind::Superseded,
        }
    }

    /// Version of the record; see [`Rank::version`].
    #[inline]
    pub fn version(&self) -> Version {
        Version { time: self.u64_at(TIME_AT), origin: self.u32_at(ORIGIN_AT) }
    }

    /// Ballot of the conditional write that made the record; 0 = a plain write made it.
    #[inline]
    pub fn ballot(&self) -> u64 {
        if self.0[SHAPE_AT] & SHAPE_STEPS != 0 { self.u64_at(HEAD_LEN) } else { 0 }
    }

    /// The operation history of the record; empty for a plain write.
    pub fn op_history(&self) -> OpHistory {
        self.op_history_ref()
            .map_or_else(OpHistory::default, |history| history.to_op_history(self.extension()))
    }

    /// Step and id of the last conditional write; `None` = the record's history is empty.
    pub fn last_step(&self) -> Option<(u32, u64)> {
        let history = self.op_history_ref()?;
        history.last().map(|last| (history.step(), last))
    }

    fn op_history_ref(&self) -> Option<OpHistoryRef<'a>> {
        (self.0[SHAPE_AT] & SHAPE_STEPS != 0)
            .then(|| OpHistoryRef::from_trusted(&self.0[HEAD_LEN..]))
    }

    /// Write time of the record; see [`Rank::write_time`].
    #[inline]
    pub fn write_time(&self) -> u64 {
        match self.ballot() {
            0 => self.u64_at(TIME_AT),
            ballot => ballot,
        }
    }

    /// The later of the ballot and the version's time. A ballot is earlier than its base version if
    /// the version came from a clock that was ahead.
    #[inline]
    pub fn latest(&self) -> u64 {
        self.u64_at(TIME_AT).max(self.ballot())
    }

    /// Number of nodes that should hold the record; 0 = the cluster's default.
    #[inline]
    pub fn copies(&self) -> u8 {
        self.0[COPIES_AT]
    }

    /// Milliseconds since 1970 after which the record counts as deleted; 0 = never.
    pub fn expiry_ms(&self) -> u64 {
        if self.0[SHAPE_AT] & SHAPE_EXPIRY != 0 { self.u64_at(self.expiry_at()) } else { 0 }
    }

    /// The expiry as a version time, capped at the greatest one; 0 = never.
    pub fn expiry_time(&self) -> u64 {
        let micros = self.expiry_ms().saturating_mul(1000);
        micros.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS
    }

    /// Returns true if the record is an unexpired value. Calls `wall_micros` (microseconds since
    /// 1970) only if the record is a value that can expire.
    pub fn is_live(&self, wall_micros: impl FnOnce() -> u64) -> bool {
        self.kind().is_live(self.expiry_ms(), wall_micros)
    }

    /// Bytes that the writer attached to the value, or digests of conditional writes. Engine and
    /// protocol read only the digests.
    pub fn extension(&self) -> &'a [u8] {
        if self.0[SHAPE_AT] & SHAPE_EXTENSION == 0 {
            return &[];
        }
        let expiry = if self.0[SHAPE_AT] & SHAPE_EXPIRY != 0 { 8 } else { 0 };
        &self.0[self.expiry_at() + expiry + 2..self.value_at()]
    }

    /// The value's bytes; empty for a tombstone.
    pub fn value(&self) -> &'a [u8] {
        &self.0[self.value_range()]
    }

    /// Range of the value in the record's bytes.
    pub(crate) fn value_range(&self) -> Range<usize> {
        self.value_at()..self.0.len() - CHECK_LEN
    }

    /// The checksum (xxh3-64) of key and content, computed where the value entered the cluster.
    #[inline]
    pub fn check(&self) -> u64 {
        self.u64_at(self.0.len() - CHECK_LEN)
    }

    /// The rank, which decides between this record and others of its key.
    #[inline]
    pub fn rank(&self) -> Rank {
        let (version, ballot) = (self.version(), self.ballot());
        Rank { version, ballot, kind: self.kind(), check: self.check() }
    }

    /// The record without its content.
    pub fn outline(&self) -> RecordOutline {
        let bytes = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        RecordOutline { rank: self.rank(), copies: self.copies(), bytes }
    }

    /// Compares the ranks of two records of a key: the greater record wins. `Equal` = the same
    /// record.
    #[inline]
    pub fn order(&self, other: &RecordRef<'_>) -> Ordering {
        self.rank().cmp(&other.rank())
    }

    /// A copy that owns its bytes.
    pub fn to_record(&self) -> Record {
        Record::from_trusted(Bytes::copy_from_slice(self.0))
    }

    /// Offset of the expiry, or of the next part if the record has no expiry.
    #[inline]
    fn expiry_at(&self) -> usize {
        self.op_history_ref().map_or(HEAD_LEN, |history| HEAD_LEN + history.len())
    }

    #[inline]
    fn value_at(&self) -> usize {
        let shape = self.0[SHAPE_AT];
        let mut at = self.expiry_at();
        if shape & SHAPE_EXPIRY != 0 {
            at += 8;
        }
        if shape & SHAPE_EXTENSION != 0 {
            let Some(len) = self.0.get(at..at + 2) else { return usize::MAX };
            at += 2 + usize::from(u16::from_le_bytes([len[0], len[1]]));
        }
        at
    }

    #[inline]
    fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(bytes)
    }

    #[inline]
    fn u32_at(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_le_bytes(bytes)
    }
}

impl fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind(), self.version())?;
        if let Some(history) = self.op_history_ref() {
            write!(f, " step {} by ballot {:016x}", history.step(), self.ballot())?;
        }
        write!(f, " {} B", self.value().len())
    }
}
