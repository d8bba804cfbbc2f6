//! Records that own their bytes.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::encode::{Fields, encode, encoded_len, write_checksum};
use crate::layout::{BadRecord, HEAD_LEN, ORIGIN_AT, TIME_AT};
use crate::op_history::OpHistory;
use crate::rank::{Kind, Rank, RecordOutline};
use crate::version::Version;
use crate::view::RecordRef;

/// A well-formed record that owns its bytes. A clone shares them.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    raw: Bytes,
}

impl Record {
    /// Creates a record of `key` and computes its checksum.
    pub fn new(key: &[u8], fields: &Fields<'_>, value: &[u8]) -> Self {
        let mut raw = Vec::with_capacity(encoded_len(fields, value.len()));
        encode(&mut raw, key, fields, value);
        Self { raw: raw.into() }
    }

    /// Creates a tombstone of `key` for a plain write.
    pub fn tombstone(key: &[u8], version: Version) -> Self {
        Self::new(key, &Fields::new(Kind::Tombstone, version), &[])
    }

    /// Parses bytes from a disk or a peer; see [`RecordRef::parse`].
    pub fn parse(raw: Bytes) -> Result<Self, BadRecord> {
        RecordRef::parse(&raw)?;
        Ok(Self { raw })
    }

    /// Wraps the bytes of an existing record.
    pub(crate) fn from_trusted(raw: Bytes) -> Self {
        debug_assert!(RecordRef::parse(&raw).is_ok());
        Self { raw }
    }

    /// Returns the borrowed form, which has all accessors.
    #[inline]
    pub fn view(&self) -> RecordRef<'_> {
        RecordRef::from_trusted(&self.raw)
    }

    /// The record's bytes as stored and sent; shared, not copied.
    pub fn bytes(&self) -> Bytes {
        self.raw.clone()
    }

    /// The record's bytes, borrowed.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The record's length in bytes.
    pub fn byte_len(&self) -> usize {
        self.raw.len()
    }

    /// Replaces the record's bytes with `keep(bytes)`, which must return equal bytes in other
    /// memory.
    #[must_use]
    pub fn relocate(self, keep: impl FnOnce(Bytes) -> Bytes) -> Self {
        Self::from_trusted(keep(self.raw))
    }

    /// The rank, which decides between this record and others of its key.
    #[inline]
    pub fn rank(&self) -> Rank {
        self.view().rank()
    }

    /// The record without its content.
    pub fn outline(&self) -> RecordOutline {
        self.view().outline()
    }

    /// Version of the record; see [`Rank::version`].
    #[inline]
    pub fn version(&self) -> Version {
        self.view().version()
    }

    /// Ballot of the conditional write that made the record; 0 = a plain write made it.
    #[inline]
    pub fn ballot(&self) -> u64 {
        self.view().ballot()
    }

    /// Write time of the record; see [`Rank::write_time`].
    #[inline]
    pub fn write_time(&self) -> u64 {
        self.view().write_time()
    }

    /// Kind of the record.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.view().kind()
    }

    /// Number of nodes that should hold the record; 0 = the cluster's default.
    #[inline]
    pub fn copies(&self) -> u8 {
        self.view().copies()
    }

    /// Milliseconds since 1970 after which the record counts as deleted; 0 = never.
    pub fn expiry_ms(&self) -> u64 {
        self.view().expiry_ms()
    }

    /// The operation history of the record; empty for a plain write.
    pub fn op_history(&self) -> OpHistory {
        self.view().op_history()
    }

    /// Returns true if the checksum matches the content and `key`.
    pub fn is_intact(&self, key: &[u8]) -> bool {
        self.view().verify(key).is_ok()
    }

    /// The value, which shares the record's memory.
    pub fn value(&self) -> Bytes {
        self.raw.slice(self.view().value_range())
    }

    /// Returns the record's bytes, and the range of the value in them. Unlike [`Self::value`], this
    /// needs no second reference to the bytes.
    pub fn into_bytes(self) -> (Bytes, Range<usize>) {
        let value = self.view().value_range();
        (self.raw, value)
    }

    /// The extension, which shares the record's memory.
    pub fn extension(&self) -> Bytes {
        self.raw.slice_ref(self.view().extension())
    }

    /// Returns a copy with another version, for a plain write of `key`. Panics for the record of a
    /// conditional write, which keeps its base version.
    #[must_use]
    pub fn with_version(&self, key: &[u8], version: Version) -> Self {
        assert_eq!(self.ballot(), 0, "a conditional write keeps its base version");
        self.with_version_and_ballot(key, version, 0)
    }

    /// Returns a copy for `key` with a base version and a ballot. A copy of a plain record has no
    /// operations yet, and the default number of copies.
    #[must_use]
    pub fn with_ballot(&self, key: &[u8], base_version: Version, ballot: u64) -> Self {
        assert_ne!(ballot, 0, "a conditional write has a ballot");
        let view = self.view();
        if view.ballot() != 0 {
            return self.with_version_and_ballot(key, base_version, ballot);
        }
        let (expiry_ms, extension) = (view.expiry_ms(), view.extension());
        let fields =
            Fields { ballot, expiry_ms, extension, ..Fields::new(view.kind(), base_version) };
        Self::new(key, &fields, view.value())
    }

    /// Returns a copy with this version, and with this ballot unless `ballot` is 0.
    fn with_version_and_ballot(&self, key: &[u8], version: Version, ballot: u64) -> Self {
        let mut raw = self.raw.to_vec();
        raw[TIME_AT..TIME_AT + 8].copy_from_slice(&version.time.to_le_bytes());
        raw[ORIGIN_AT..ORIGIN_AT + 4].copy_from_slice(&version.origin.to_le_bytes());
        if ballot != 0 {
            raw[HEAD_LEN..HEAD_LEN + 8].copy_from_slice(&ballot.to_le_bytes());
        }
        write_checksum(key, &mut raw);
        Self { raw: raw.into() }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}
