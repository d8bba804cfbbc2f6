//! Where the parts of a record's bytes lie, how long they may be, and their check.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Longest record, in bytes: a WAL batch holds it whole.
pub const MAX_RECORD_LEN: usize = 16 * 1024 * 1024;

/// How many of a record's first bytes belong to the store that holds it.
pub const LOCAL_LEN: usize = 2;

pub(crate) const SHAPE_AT: usize = LOCAL_LEN;
pub(crate) const COPIES_AT: usize = 3;
pub(crate) const TIME_AT: usize = 4;
pub(crate) const ORIGIN_AT: usize = 12;
pub(crate) const HEAD_LEN: usize = 16;
pub(crate) const CHECK_LEN: usize = 8;

/// The shortest record: a head and a check, no value.
pub const MIN_RECORD_LEN: usize = HEAD_LEN + CHECK_LEN;

pub(crate) const SHAPE_KIND: u8 = 0b0011;
pub(crate) const SHAPE_EXPIRY: u8 = 0b0100;
pub(crate) const SHAPE_EXTENSION: u8 = 0b1000;
pub(crate) const SHAPE_STEPS: u8 = 0b1_0000;

/// Bytes that are no record of this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadRecord(
    /// What is wrong with them.
    pub &'static str,
);

/// The check of a record's bytes under `key`.
pub(crate) fn check_of(key: &[u8], raw: &[u8]) -> u64 {
    xxh3_64_with_seed(&raw[SHAPE_AT..raw.len() - CHECK_LEN], xxh3_64(key))
}
