//! A borrowed record: its bytes parsed, verified and taken apart.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::layout::{
    BadRecord, CHECK_LEN, COPIES_AT, HEAD_LEN, LOCAL_LEN, MAX_RECORD_LEN, MIN_RECORD_LEN,
    ORIGIN_AT, SHAPE_AT, SHAPE_EXPIRY, SHAPE_EXTENSION, SHAPE_KIND, SHAPE_STEPS, TIME_AT, check_of,
};
use crate::owned::Record;
use crate::rank::{Kind, Outline, Rank};
use crate::steps::{Steps, StepsRef};
use crate::version::{COUNTER_BITS, Version};

/// A borrowed, well-formed record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a>(&'a [u8]);

impl<'a> RecordRef<'a> {
    /// Looks at `raw` as a record: its shape is checked, its content is not (see [`Self::verify`]).
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
            StepsRef::parse(&raw[HEAD_LEN..raw.len() - CHECK_LEN])?;
        }
        let record = Self(raw);
        if record.value_at() > raw.len() - CHECK_LEN {
            return Err(BadRecord("shorter than its own parts"));
        }
        Ok(record)
    }

    /// Looks at bytes that were parsed before and can't have changed since.
    #[inline]
    pub fn trusted(raw: &'a [u8]) -> Self {
        debug_assert!(Self::parse(raw).is_ok());
        Self(raw)
    }

    /// Whether the content is what was written under `key`.
    pub fn verify(&self, key: &[u8]) -> Result<(), BadRecord> {
        if self.check() == check_of(key, self.0) {
            Ok(())
        } else {
            Err(BadRecord("checksum of key and content does not match"))
        }
    }

    /// The record's bytes, as they lie on disk and travel.
    pub fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// The bytes that belong to the store that holds the record.
    #[inline]
    pub fn local(&self) -> [u8; LOCAL_LEN] {
        [self.0[0], self.0[1]]
    }

    /// Value, tombstone or superseded.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.0[SHAPE_AT] & SHAPE_KIND {
            0 => Kind::Value,
            1 => Kind::Tombstone,
            _ => Kind::Superseded,
        }
    }

    /// The version that decides; see [`Rank::version`].
    #[inline]
    pub fn version(&self) -> Version {
        Version { time: self.u64_at(TIME_AT), origin: self.u32_at(ORIGIN_AT) }
    }

    /// The ballot under which a conditional write made the record; 0 = a plain one did.
    #[inline]
    pub fn ballot(&self) -> u64 {
        if self.0[SHAPE_AT] & SHAPE_STEPS != 0 { self.u64_at(HEAD_LEN) } else { 0 }
    }

    /// The conditional writes that are in the record; none in a plain one.
    pub fn steps(&self) -> Steps {
        self.steps_ref().map_or_else(Steps::default, |steps| steps.to_steps(self.extension()))
    }

    /// How many conditional writes there were, and the id of the last one; `None` = there was none.
    pub fn last_step(&self) -> Option<(u32, u64)> {
        let steps = self.steps_ref()?;
        steps.last().map(|last| (steps.step(), last))
    }

    fn steps_ref(&self) -> Option<StepsRef<'a>> {
        (self.0[SHAPE_AT] & SHAPE_STEPS != 0).then(|| StepsRef::trusted(&self.0[HEAD_LEN..]))
    }

    /// When the record was written; see [`Rank::when`].
    #[inline]
    pub fn when(&self) -> u64 {
        match self.ballot() {
            0 => self.u64_at(TIME_AT),
            ballot => ballot,
        }
    }

    /// The later of when the record was written and of its version's time: a ballot can be older
    /// than the version that it continues, if that came from a clock that was ahead.
    #[inline]
    pub fn latest(&self) -> u64 {
        self.u64_at(TIME_AT).max(self.ballot())
    }

    /// How many nodes were asked to hold the record; 0 = the cluster's default.
    #[inline]
    pub fn copies(&self) -> u8 {
        self.0[COPIES_AT]
    }

    /// Milliseconds since 1970 after which the record counts as deleted; 0 = never.
    pub fn expiry_ms(&self) -> u64 {
        if self.0[SHAPE_AT] & SHAPE_EXPIRY != 0 { self.u64_at(self.expiry_at()) } else { 0 }
    }

    /// The expiry as a time of a version, as far as there is one; 0 = never.
    pub fn expiry_time(&self) -> u64 {
        let micros = self.expiry_ms().saturating_mul(1000);
        micros.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS
    }

    /// Whether the record is a value that has not expired. The wall clock, in microseconds since
    /// 1970, is read only if the value can expire.
    pub fn is_live(&self, wall_micros: impl FnOnce() -> u64) -> bool {
        self.kind().is_live(self.expiry_ms(), wall_micros)
    }

    /// What the writer put beside the value; neither the engine nor the protocol looks at it,
    /// except for digests of conditional writes.
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

    /// Where the value lies in the record's bytes.
    pub(crate) fn value_range(&self) -> Range<usize> {
        self.value_at()..self.0.len() - CHECK_LEN
    }

    /// xxh3-64 over key and content, as computed where the value entered the cluster.
    #[inline]
    pub fn check(&self) -> u64 {
        self.u64_at(self.0.len() - CHECK_LEN)
    }

    /// What decides between this record and others of its key.
    #[inline]
    pub fn rank(&self) -> Rank {
        let (version, ballot) = (self.version(), self.ballot());
        Rank { version, ballot, kind: self.kind(), check: self.check() }
    }

    /// The record without its content.
    pub fn outline(&self) -> Outline {
        let bytes = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        Outline { rank: self.rank(), copies: self.copies(), bytes }
    }

    /// Which of two records of one key holds: the one of the greater rank. `Equal` means the same
    /// record, wherever it came from.
    #[inline]
    pub fn order(&self, other: &RecordRef<'_>) -> Ordering {
        self.rank().cmp(&other.rank())
    }

    /// A copy that owns its bytes.
    pub fn to_record(&self) -> Record {
        Record::trusted(Bytes::copy_from_slice(self.0))
    }

    /// Where the expiry is, or what follows without one.
    #[inline]
    fn expiry_at(&self) -> usize {
        self.steps_ref().map_or(HEAD_LEN, |steps| HEAD_LEN + steps.len())
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
        if let Some(steps) = self.steps_ref() {
            write!(f, " step {} by ballot {:016x}", steps.step(), self.ballot())?;
        }
        write!(f, " {} B", self.value().len())
    }
}
