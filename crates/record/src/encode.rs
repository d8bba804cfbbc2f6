//! Encodes a new record from its fields, key and value.

use crate::MAX_EXTENSION_LEN;
use crate::layout::{CHECK_LEN, HEAD_LEN, SHAPE_EXPIRY, SHAPE_EXTENSION, SHAPE_STEPS, checksum_of};
use crate::op_history::{self, Operation};
use crate::rank::Kind;
use crate::version::Version;

/// Properties of a new record, without its key and value.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    /// Kind of the record.
    pub kind: Kind,
    /// Version of the record. For a conditional write, this is the *base version*: the version of
    /// the plain write that it continues.
    pub version: Version,
    /// Ballot of the conditional write that makes the record, as a version time; 0 = a plain write.
    /// Of two records with one version, the ballot decides.
    pub ballot: u64,
    /// Number of conditional writes since the plain write of the base version; ignored for a plain
    /// write.
    pub step: u32,
    /// The key's last conditional writes, at most [`MAX_OPERATIONS`](crate::MAX_OPERATIONS), oldest
    /// first. Empty for a plain write.
    pub operations: &'a [Operation],
    /// Number of nodes that should hold the record; 0 = the cluster's default.
    pub copies: u8,
    /// Milliseconds since 1970 after which the record counts as deleted; 0 = never.
    pub expiry_ms: u64,
    /// Bytes that the writer attaches to the value, at most [`MAX_EXTENSION_LEN`]. Must be empty if
    /// an operation has a digest, because digests are encoded as the extension.
    pub extension: &'a [u8],
}

impl Fields<'_> {
    /// Fields of a plain write with the default number of copies and no expiry.
    pub fn new(kind: Kind, version: Version) -> Self {
        let (ballot, step, operations) = (0, 0, &[]);
        Self { kind, version, ballot, step, operations, copies: 0, expiry_ms: 0, extension: &[] }
    }

    fn shape(&self, has_extension: bool) -> u8 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        self.kind as u8
            | flag(self.ballot != 0, SHAPE_STEPS)
            | flag(self.expiry_ms != 0, SHAPE_EXPIRY)
            | flag(has_extension, SHAPE_EXTENSION)
    }

    fn extension_len(&self) -> usize {
        self.extension.len() + op_history::digests_len(self.operations)
    }
}

/// Length in bytes of the record that [`encode`] appends.
pub fn encoded_len(fields: &Fields<'_>, value_len: usize) -> usize {
    let steps = if fields.ballot != 0 { op_history::encoded_len(fields.operations) } else { 0 };
    let expiry = if fields.expiry_ms != 0 { 8 } else { 0 };
    let extension = match fields.extension_len() {
        0 => 0,
        len => 2 + len,
    };
    HEAD_LEN + steps + expiry + extension + value_len + CHECK_LEN
}

/// Appends a record of `key` to `out` and computes its checksum.
pub fn encode(out: &mut Vec<u8>, key: &[u8], fields: &Fields<'_>, value: &[u8]) {
    let (start, extension_len) = (out.len(), fields.extension_len());
    assert!(extension_len <= MAX_EXTENSION_LEN, "extension over its bound");
    assert!(
        fields.ballot != 0 || fields.operations.is_empty(),
        "conditional writes without a ballot"
    );
    out.extend_from_slice(&[0, 0, fields.shape(extension_len > 0), fields.copies]);
    out.extend_from_slice(&fields.version.time.to_le_bytes());
    out.extend_from_slice(&fields.version.origin.to_le_bytes());
    if fields.ballot != 0 {
        op_history::encode(out, fields.ballot, fields.step, fields.operations);
    }
    if fields.expiry_ms != 0 {
        out.extend_from_slice(&fields.expiry_ms.to_le_bytes());
    }
    if extension_len > 0 {
        assert!(
            fields.extension.is_empty() || fields.extension.len() == extension_len,
            "an extension beside digests"
        );
        out.extend_from_slice(&(extension_len as u16).to_le_bytes());
        out.extend_from_slice(fields.extension);
        op_history::encode_digests(out, fields.operations);
    }
    out.extend_from_slice(value);
    out.extend_from_slice(&[0; CHECK_LEN]);
    write_checksum(key, &mut out[start..]);
}

/// Computes the checksum of a record and stores it at the record's end.
pub(crate) fn write_checksum(key: &[u8], raw: &mut [u8]) {
    let check = checksum_of(key, raw);
    let at = raw.len() - CHECK_LEN;
    raw[at..].copy_from_slice(&check.to_le_bytes());
}
