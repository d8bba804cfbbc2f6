//! Byte layout of records: offsets, length limits and the checksum.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Greatest length of a record in bytes: a record must fit into one batch of the WAL.
pub const MAX_RECORD_LEN: usize = 16 * 1024 * 1024;

/// Number of leading bytes of a record that belong to the store that holds it.
pub const LOCAL_LEN: usize = 2;

pub(crate) const SHAPE_AT: usize = LOCAL_LEN;
pub(crate) const COPIES_AT: usize = 3;
pub(crate) const TIME_AT: usize = 4;
pub(crate) const ORIGIN_AT: usize = 12;
pub(crate) const HEAD_LEN: usize = 16;
pub(crate) const CHECK_LEN: usize = 8;

/// Least length of a record in bytes: head and checksum.
pub const MIN_RECORD_LEN: usize = HEAD_LEN + CHECK_LEN;

pub(crate) const SHAPE_KIND: u8 = 0b0011;
pub(crate) const SHAPE_EXPIRY: u8 = 0b0100;
pub(crate) const SHAPE_EXTENSION: u8 = 0b1000;
pub(crate) const SHAPE_STEPS: u8 = 0b1_0000;

/// The error for bytes that are no record, or no intact record of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadRecord(
    /// Description of the mismatch.
    pub &'static str,
);

/// The checksum of a record under `key`.
pub(crate) fn checksum_of(key: &[u8], raw: &[u8]) -> u64 {
    xxh3_64_with_seed(&raw[SHAPE_AT..raw.len() - CHECK_LEN], xxh3_64(key))
}
