//! A record: the unit that is stored under a key, with the same bytes on every disk and on the
//! wire. This crate, shared by engine and protocol, defines the bytes and the order of a key's
//! records.
//!
//! ```text
//!  0      1      2      3       4        12       16                                     len-8
//!  ├──────┼──────┼──────┼───────┼────────┼────────┼────────┬─────────┬──────────────┬─────┼─────┤
//!  │ node-local  │shape │copies │time u64│orig u32│[steps] │[expiry] │[ext len, ext]│value│check│
//!  └──────┴──────┴──────┴───────┴────────┴────────┴────────┴─────────┴──────────────┴─────┴─────┘
//!                 └─────────────────────── covered by check, seeded by the key ────────────┘
//! ```
//!
//! The first row shows offsets in bytes. Fields in brackets are optional; the bits of `shape` tell
//! which of them are present. `copies` is the number of nodes that should hold the record. A record
//! made by a conditional write has `steps`, the operation history of the key:
//!
//! ```text
//!  ballot u64 │ step u32 │ count u8 │ results u8 │ id u64 × count │ result i64 × ones in results
//! ```
//!
//! Bit *k* of `results` is set if operation *k* has a result; the oldest operation is the first.
//! The extension (`ext`) holds the digests of the operations' requests: a byte of value 1; a byte
//! whose bit *k* is set if the digest of operation *k* is known; each known digest as a u64.
//! Readers ignore an extension whose first byte is not 1.
//!
//! All integers are little-endian. `check` is the xxh3-64 of bytes `2..len-8`, seeded by the
//! xxh3-64 of the key, so it detects a record under a wrong key as it detects a flipped bit. It is
//! computed once, where the value enters the cluster, and verified whenever a record leaves the
//! engine. It does not cover the two node-local bytes, which each store sets for itself.

#![forbid(unsafe_code)]

mod encode;
mod layout;
mod op_history;
mod owned;
mod rank;
#[cfg(test)]
mod tests;
mod version;
mod view;

pub use encode::{Fields, encode, encoded_len};
pub use layout::{BadRecord, LOCAL_LEN, MAX_RECORD_LEN, MIN_RECORD_LEN};
pub use op_history::{MAX_OPERATIONS, OpHistory, Operation, is_earlier_step};
pub use owned::Record;
pub use rank::{Kind, Rank, RecordOutline, has_expired};
pub use version::{COUNTER_BITS, Version};
pub use view::RecordRef;

/// Longest extension of a record, in bytes.
pub const MAX_EXTENSION_LEN: usize = u16::MAX as usize;
