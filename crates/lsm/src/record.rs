//! Records and versions: what the engine stores under a key, and what decides between two of them.
//!
//! ```text
//!  0      1      2      3       4        12       16                                     len-8
//!  ├──────┼──────┼──────┼───────┼────────┼────────┼────────┬─────────┬──────────────┬─────┼─────┤
//!  │flags │reach │shape │copies │time u64│orig u32│[steps] │[expiry] │[ext len, ext]│value│check│
//!  └──────┴──────┴──────┴───────┴────────┴────────┴────────┴─────────┴──────────────┴─────┴─────┘
//!   └ node-local ┘└─────────────────────── covered by check, seeded by the key ────────────┘
//! ```
//!
//! A record that a conditional write made has *steps* ([`Steps`]), and is of format 2; one without
//! them is of format 1, byte for byte.
//!
//! All integers are little-endian. `check` is xxh3-64 of bytes `2..len-8` with xxh3-64 of the key
//! as its seed, so a record that strayed under another key is as visible as a flipped bit. It is
//! computed once, where the value enters the cluster, and verified wherever the record leaves the
//! engine: the engine never recomputes it. `flags` and `reach` belong to the node that holds the
//! record and are left out of it. `reach` is what the record has hidden there: [`Reach`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

mod reach;
mod steps;
#[cfg(test)]
mod tests;

pub(crate) use reach::Reach;
pub use steps::{MAX_OPERATIONS, Operation, Steps, StepsRef};

/// Longest key the engine takes, in bytes. HTTP keys are at most 1 KiB; a hint's key is a node's
/// name, an incarnation and such a key.
pub const MAX_KEY_LEN: usize = 4 * 1024;

/// Longest record the engine takes, in bytes: a WAL batch holds it whole.
pub const MAX_RECORD_LEN: usize = 16 * 1024 * 1024;

/// Longest extension of a record, in bytes.
pub const MAX_EXTENSION_LEN: usize = u16::MAX as usize;

/// The record's version is not greater than everything that was in older memtables or tables when
/// it arrived: a reader that meets it must look further.
pub(crate) const FLAG_LATE: u8 = 1;

const FLAGS_AT: usize = 0;
const REACH_AT: usize = 1;
const SHAPE_AT: usize = 2;
const COPIES_AT: usize = 3;
const TIME_AT: usize = 4;
const ORIGIN_AT: usize = 12;
const HEAD_LEN: usize = 16;
const CHECK_LEN: usize = 8;
/// The shortest record: a head and a check, no value.
pub(crate) const MIN_RECORD_LEN: usize = HEAD_LEN + CHECK_LEN;

const SHAPE_KIND: u8 = 0b0011;
const SHAPE_EXPIRY: u8 = 0b0100;
const SHAPE_EXTENSION: u8 = 0b1000;
const SHAPE_STEPS: u8 = 0b1_0000;

/// Bits of a version's time below the microseconds.
pub(crate) const COUNTER_BITS: u32 = 12;

/// When and where a record was written: a hybrid logical clock, then the node that issued it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// 52 bits of microseconds since 1970, then a 12-bit counter.
    pub time: u64,
    /// Hash of the issuing node's name.
    pub origin: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.time, self.origin)
    }
}

/// What a record says about its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key has a value.
    Value = 0,
    /// The key was deleted.
    Tombstone = 1,
    /// Reserved for keys written with different numbers of copies; stored, never produced yet.
    Superseded = 2,
}

/// Everything a new record needs besides its key and value.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    /// Value, tombstone or superseded.
    pub kind: Kind,
    /// The version that decides; of a conditional write, that of the plain write that it
    /// continues.
    pub version: Version,
    /// What a conditional write adds.
    pub steps: Option<Steps<'a>>,
    /// How many nodes were asked to hold the record; 0 = the cluster's default.
    pub copies: u8,
    /// Milliseconds since 1970 after which the record counts as deleted; 0 = never.
    pub expiry_ms: u64,
    /// Reserved for later formats; empty today, at most [`MAX_EXTENSION_LEN`] bytes.
    pub extension: &'a [u8],
}

impl Fields<'_> {
    /// A value or tombstone of a plain write, with the default number of copies and no expiry.
    pub fn new(kind: Kind, version: Version) -> Self {
        Self { kind, version, steps: None, copies: 0, expiry_ms: 0, extension: &[] }
    }
}

/// Bytes that are no record of this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadRecord(
    /// What is wrong with them.
    pub &'static str,
);

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
    pub(crate) fn trusted(raw: &'a [u8]) -> Self {
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

    /// Value, tombstone or superseded.
    pub fn kind(&self) -> Kind {
        match self.0[SHAPE_AT] & SHAPE_KIND {
            0 => Kind::Value,
            1 => Kind::Tombstone,
            _ => Kind::Superseded,
        }
    }

    /// The version that decides.
    pub fn version(&self) -> Version {
        Version { time: self.u64_at(TIME_AT), origin: self.u32_at(ORIGIN_AT) }
    }

    /// What a conditional write added; `None` if a plain one made it.
    pub fn steps(&self) -> Option<StepsRef<'a>> {
        (self.0[SHAPE_AT] & SHAPE_STEPS != 0).then(|| StepsRef::trusted(&self.0[HEAD_LEN..]))
    }

    /// Under which ballot a conditional write made it; 0 = a plain one did.
    #[inline]
    pub fn ballot(&self) -> u64 {
        if self.0[SHAPE_AT] & SHAPE_STEPS != 0 { self.u64_at(HEAD_LEN) } else { 0 }
    }

    /// When it was written, as a time of a version: the ballot of what a conditional write made,
    /// which may be much younger, or older, than the version that it continues.
    #[inline]
    pub fn when(&self) -> u64 {
        match self.ballot() {
            0 => self.u64_at(TIME_AT),
            ballot => ballot,
        }
    }

    /// The later of when it was written and of its version's time: a ballot can be older than the
    /// version that it continues, if that came from a clock that was ahead.
    #[inline]
    pub fn latest(&self) -> u64 {
        self.u64_at(TIME_AT).max(self.ballot())
    }

    /// How many nodes were asked to hold it; 0 = the cluster's default.
    pub fn copies(&self) -> u8 {
        self.0[COPIES_AT]
    }

    /// Milliseconds since 1970 after which it counts as deleted; 0 = never.
    pub fn expiry_ms(&self) -> u64 {
        if self.0[SHAPE_AT] & SHAPE_EXPIRY != 0 { self.u64_at(self.expiry_at()) } else { 0 }
    }

    /// The same as a time of a version, as far as there is one; 0 = never.
    pub(crate) fn expiry_time(&self) -> u64 {
        let micros = self.expiry_ms().saturating_mul(1000);
        micros.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS
    }

    /// What its writer put beside the value; neither the engine nor the protocol looks at it.
    pub fn extension(&self) -> &'a [u8] {
        if self.0[SHAPE_AT] & SHAPE_EXTENSION == 0 {
            return &[];
        }
        let expiry = if self.0[SHAPE_AT] & SHAPE_EXPIRY != 0 { 8 } else { 0 };
        &self.0[self.expiry_at() + expiry + 2..self.value_at()]
    }

    /// The value's bytes; empty for a tombstone.
    pub fn value(&self) -> &'a [u8] {
        &self.0[self.value_at()..self.0.len() - CHECK_LEN]
    }

    /// xxh3-64 over key and content, as computed where the value entered the cluster.
    pub fn check(&self) -> u64 {
        self.u64_at(self.0.len() - CHECK_LEN)
    }

    pub(crate) fn is_late(&self) -> bool {
        self.0[FLAGS_AT] & FLAG_LATE != 0
    }

    /// What it has hidden in this store, as far as that was merged with it.
    pub(crate) fn reach(&self) -> Reach {
        Reach::from_u8(self.0[REACH_AT])
    }

    /// Its bytes with this noted as what it has hidden.
    pub(crate) fn raw_with(&self, reach: Reach) -> Cow<'a, [u8]> {
        if reach == self.reach() {
            return Cow::Borrowed(self.0);
        }
        let mut raw = self.0.to_vec();
        set_reach(&mut raw, reach);
        Cow::Owned(raw)
    }

    /// Which of two records of one key holds: clock, origin, ballot, tombstone over value,
    /// checksum. `Equal` means the same record, wherever it came from.
    pub fn order(&self, other: &RecordRef<'_>) -> Ordering {
        self.version()
            .cmp(&other.version())
            .then_with(|| self.ballot().cmp(&other.ballot()))
            .then_with(|| (self.kind() as u8).cmp(&(other.kind() as u8)))
            .then_with(|| self.check().cmp(&other.check()))
    }

    /// A copy that owns its bytes.
    pub fn to_record(&self) -> Record {
        Record { raw: Bytes::copy_from_slice(self.0) }
    }

    /// Where the expiry is, or what follows without one.
    #[inline]
    fn expiry_at(&self) -> usize {
        self.steps().map_or(HEAD_LEN, |steps| HEAD_LEN + steps.len())
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

    fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(bytes)
    }

    fn u32_at(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_le_bytes(bytes)
    }
}

impl fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind(), self.version())?;
        if let Some(steps) = self.steps() {
            write!(f, " step {} by ballot {:016x}", steps.step(), steps.ballot())?;
        }
        write!(f, " {} B", self.value().len())
    }
}

/// A record that owns its bytes; cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    raw: Bytes,
}

impl Record {
    /// Builds a record of `key` and computes its check.
    pub fn new(key: &[u8], fields: &Fields<'_>, value: &[u8]) -> Self {
        let mut raw = BytesMut::with_capacity(encoded_len(fields, value.len()));
        encode(&mut raw, key, fields, value);
        Self { raw: raw.freeze() }
    }

    /// Takes over bytes read from a disk or a peer; see [`RecordRef::parse`].
    pub fn parse(raw: Bytes) -> Result<Self, BadRecord> {
        RecordRef::parse(&raw)?;
        Ok(Self { raw })
    }

    /// The borrowed form, with all accessors.
    pub fn view(&self) -> RecordRef<'_> {
        RecordRef(&self.raw)
    }

    /// The record's bytes, as they lie on disk and travel; shared, not copied.
    pub fn bytes(&self) -> Bytes {
        self.raw.clone()
    }

    /// The same content of `key` under another version.
    pub fn with_version(&self, key: &[u8], version: Version) -> Self {
        let mut raw = BytesMut::from(&self.raw[..]);
        raw[TIME_AT..TIME_AT + 8].copy_from_slice(&version.time.to_le_bytes());
        raw[ORIGIN_AT..ORIGIN_AT + 4].copy_from_slice(&version.origin.to_le_bytes());
        seal(key, &mut raw);
        Self { raw: raw.freeze() }
    }

    /// The same content of `key` under another ballot. Only what a conditional write made has one.
    pub fn with_ballot(&self, key: &[u8], ballot: u64) -> Self {
        assert!(self.view().steps().is_some() && ballot != 0, "a plain record has no ballot");
        let mut raw = BytesMut::from(&self.raw[..]);
        raw[HEAD_LEN..HEAD_LEN + 8].copy_from_slice(&ballot.to_le_bytes());
        seal(key, &mut raw);
        Self { raw: raw.freeze() }
    }

    /// The value, sharing the record's memory.
    pub fn value(&self) -> Bytes {
        self.raw.slice(self.view().value_at()..self.raw.len() - CHECK_LEN)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// Length in bytes of the record that [`encode`] appends.
pub(crate) fn encoded_len(fields: &Fields<'_>, value_len: usize) -> usize {
    let steps = fields.steps.map_or(0, |steps| steps.encoded_len());
    let expiry = if fields.expiry_ms != 0 { 8 } else { 0 };
    let extension = if fields.extension.is_empty() { 0 } else { 2 + fields.extension.len() };
    HEAD_LEN + steps + expiry + extension + value_len + CHECK_LEN
}

/// Appends a record to `out`.
pub(crate) fn encode(out: &mut impl BufMutSlice, key: &[u8], fields: &Fields<'_>, value: &[u8]) {
    assert!(fields.extension.len() <= MAX_EXTENSION_LEN, "extension over its bound");
    let start = out.written();
    let mut shape = fields.kind as u8;
    if fields.steps.is_some() {
        shape |= SHAPE_STEPS;
    }
    if fields.expiry_ms != 0 {
        shape |= SHAPE_EXPIRY;
    }
    if !fields.extension.is_empty() {
        shape |= SHAPE_EXTENSION;
    }
    out.put_slice(&[0, 0, shape, fields.copies]);
    out.put_u64_le(fields.version.time);
    out.put_u32_le(fields.version.origin);
    if let Some(steps) = &fields.steps {
        steps.encode(out);
    }
    if fields.expiry_ms != 0 {
        out.put_u64_le(fields.expiry_ms);
    }
    if !fields.extension.is_empty() {
        out.put_u16_le(fields.extension.len() as u16);
        out.put_slice(fields.extension);
    }
    out.put_slice(value);
    out.put_u64_le(0);
    seal(key, out.since(start));
}

/// Computes the check of a record and puts it at its end.
fn seal(key: &[u8], raw: &mut [u8]) {
    let check = check_of(key, raw);
    let at = raw.len() - CHECK_LEN;
    raw[at..].copy_from_slice(&check.to_le_bytes());
}

/// A growing buffer whose written part can be revised.
pub(crate) trait BufMutSlice: BufMut {
    fn written(&self) -> usize;
    fn since(&mut self, start: usize) -> &mut [u8];
}

impl BufMutSlice for BytesMut {
    fn written(&self) -> usize {
        self.len()
    }
    fn since(&mut self, start: usize) -> &mut [u8] {
        &mut self[start..]
    }
}

impl BufMutSlice for Vec<u8> {
    fn written(&self) -> usize {
        self.len()
    }
    fn since(&mut self, start: usize) -> &mut [u8] {
        &mut self[start..]
    }
}

/// Marks an encoded record as late (or not) in place. Flags are outside the check.
pub(crate) fn set_late(raw: &mut [u8], late: bool) {
    raw[FLAGS_AT] = (raw[FLAGS_AT] & !FLAG_LATE) | if late { FLAG_LATE } else { 0 };
}

/// Notes in place what an encoded record has hidden. It is outside the check.
pub(crate) fn set_reach(raw: &mut [u8], reach: Reach) {
    raw[REACH_AT] = reach.to_u8();
}

fn check_of(key: &[u8], raw: &[u8]) -> u64 {
    xxh3_64_with_seed(&raw[SHAPE_AT..raw.len() - CHECK_LEN], xxh3_64(key))
}
