//! What replicas report to each other of what they hold, so that a round of repair finds out where
//! they differ: sums of records by buckets of keys (`sums.rs`), or the records of buckets that
//! differ, in outline; and what a node could not read.

use bytes::Bytes;

use crate::repair::watermark::RoundId;
use record::Outline;

/// Damaged ranges that are reported at once; of more, the last one reaches as far as the last of
/// them.
pub const MAX_DAMAGED: usize = 64;

/// Damaged ranges that one round heals at most: what a message about them holds. A disk with more
/// is better replaced.
pub(crate) const MAX_RANGES: usize = 4096;

/// Bytes of one sum on its way: bucket, place, copies, sum.
pub(crate) const SUM_LEN: usize = 2 + 1 + 1 + 16;

/// A part of a node's records that is compared with those of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompareRequest {
    /// The least key that is meant.
    pub start: Bytes,
    /// The least key that is beyond; `None` = there is no such key.
    pub end: Option<Bytes>,
    /// Records are meant that were written after this time ([`Rank::when`](crate::Rank::when)) …
    pub since: u64,
    /// … and not after this one.
    pub until: u64,
    /// The round that the node must be sealed by.
    pub round: RoundId,
    /// The watermark that it must have: what may be purged up to there is left out.
    pub watermark: u64,
    /// What of them is to be reported.
    pub detail: Detail,
}

/// What is to be reported of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// The sums of the records, by bucket.
    Sums,
    /// Each of them in outline.
    Outlines {
        /// The buckets that are meant, ascending; none = all.
        buckets: Vec<u16>,
        /// Bytes of keys and outlines after which the list ends; one is always sent.
        max_bytes: u32,
    },
}

/// What a node holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// The sums: of the default number of copies for each bucket that the node is a replica of, and
    /// of other numbers of copies where there are records.
    pub sums: Vec<Sum>,
    /// Keys in order, each with its newest record.
    pub outlines: Vec<(Bytes, Outline)>,
    /// Keys that can't be read: nothing certain is said of them.
    pub damaged: Vec<Damage>,
    /// Records that were looked at.
    pub records: u64,
    /// Bytes that were read from the disk.
    pub bytes_read: u64,
    /// The first key that was not looked at; `None` = all were.
    pub next: Option<Bytes>,
}

/// Keys that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// The least that may be among them.
    pub first: Bytes,
    /// The greatest; `None` = the last there is.
    pub last: Option<Bytes>,
}

/// The sum of a bucket's records with one number of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// The bucket whose records are summed.
    pub bucket: u16,
    /// The node's place among the bucket's replicas, the first being 0.
    pub place: u8,
    /// The number of copies; 0 = of records that are not summed.
    pub copies: u8,
    /// The sum, or how many are not summed: those of a family that was written up to the end of
    /// what is compared, and continued after it.
    pub sum: u128,
}

impl Sum {
    /// Whether it says how many are not summed.
    pub(crate) fn is_of_continued(&self) -> bool {
        self.copies == 0
    }
}
