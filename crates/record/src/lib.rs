//! A record: what is stored under a key, the same on every disk and on the wire. This crate defines
//! the record's bytes and which of two records of one key holds; engine and protocol both use it.
//!
//! ```text
//!  0      1      2      3       4        12       16                                     len-8
//!  ├──────┼──────┼──────┼───────┼────────┼────────┼────────┬─────────┬──────────────┬─────┼─────┤
//!  │ node-local  │shape │copies │time u64│orig u32│[steps] │[expiry] │[ext len, ext]│value│check│
//!  └──────┴──────┴──────┴───────┴────────┴────────┴────────┴─────────┴──────────────┴─────┴─────┘
//!                 └─────────────────────── covered by check, seeded by the key ────────────┘
//! ```
//!
//! A record that a conditional write made has steps, and is of format 2; one without them is of
//! format 1, byte for byte. Steps:
//!
//! ```text
//!  ballot u64 │ step u32 │ count u8 │ results u8 │ id u64 × count │ result i64 × ones in results
//! ```
//!
//! Bit *k* of `results`: operation *k* has a result. The oldest operation is the first. Digests of
//! the operations' requests stand in the extension: 1 u8 │ bit *k*: the digest of operation *k* is
//! known u8 │ each known digest u64. A reader passes over an extension of another form.
//!
//! All integers are little-endian. `check` is xxh3-64 of bytes `2..len-8` with xxh3-64 of the key
//! as its seed, so a record that strayed under another key is as visible as a flipped bit. The
//! check is computed once, where the value enters the cluster, and verified wherever the record
//! leaves the engine. The two node-local bytes belong to the store that holds the record, and the
//! check leaves them out.

#![forbid(unsafe_code)]

mod encode;
mod layout;
mod owned;
mod rank;
mod steps;
#[cfg(test)]
mod tests;
mod version;
mod view;

pub use encode::{Fields, encode, encoded_len};
pub use layout::{BadRecord, LOCAL_LEN, MAX_RECORD_LEN, MIN_RECORD_LEN};
pub use owned::Record;
pub use rank::{Kind, Outline, Rank, has_expired};
pub use steps::{MAX_OPERATIONS, Operation, Steps, comes_before};
pub use version::{COUNTER_BITS, Version};
pub use view::RecordRef;

/// Longest extension of a record, in bytes.
pub const MAX_EXTENSION_LEN: usize = u16::MAX as usize;
