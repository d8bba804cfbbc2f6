//! Messages in which replicas report their records to the driver of a repair round, so that the
//! driver can locate differences. The reports contain sums of records by bucket of keys
//! (`sums.rs`), outlines of the records in differing buckets, and ranges that a node could not
//! read.

use bytes::Bytes;

use crate::repair::watermark::RoundId;
use record::RecordOutline;

/// Maximum number of damaged ranges in one report; beyond it, the last range is extended to cover
/// the rest.
pub const MAX_DAMAGED: usize = 64;

/// Maximum number of damaged ranges that one round heals, as many as a message about ranges can
/// hold. A disk with more damage is better replaced.
pub(crate) const MAX_RANGES: usize = 4096;

/// Encoded length of one sum in bytes: bucket, place, copies, sum.
pub(crate) const SUM_LEN: usize = 2 + 1 + 1 + 16;

/// A request for the part of a node's records that is to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompareRequest {
    /// The first key of the range.
    pub start: Bytes,
    /// The first key beyond the range; `None` = unbounded.
    pub end: Option<Bytes>,
    /// Lower bound, exclusive, of the compared records' time
    /// ([`Rank::write_time`](crate::Rank::write_time)).
    pub since: u64,
    /// Upper bound, inclusive, of the compared records' time.
    pub until: u64,
    /// The round that must have raised the node's repair fence.
    pub round: RoundId,
    /// The watermark that the node must have: records that may be purged up to there are left out.
    pub watermark: u64,
    /// The form of the report.
    pub detail: Detail,
}

/// The form in which records are reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// Sums of the records, by bucket.
    Sums,
    /// An outline of each record.
    Outlines {
        /// The buckets to report, ascending; empty = all.
        buckets: Vec<u16>,
        /// Limit on the bytes of keys and outlines, after which the list ends; the list has at
        /// least one entry.
        max_bytes: u32,
    },
}

/// A node's report of the records in a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// For each bucket of which the node is a replica: the sum over its records with the default
    /// number of copies, and a sum for each other number of copies among its records.
    pub sums: Vec<Sum>,
    /// Keys in order, each with the outline of its newest record.
    pub outlines: Vec<(Bytes, RecordOutline)>,
    /// Key ranges that the node cannot read: it may hold any records there.
    pub damaged: Vec<Damage>,
    /// Number of records that were read.
    pub records: u64,
    /// Number of bytes read from the disk.
    pub bytes_read: u64,
    /// The first key that was not read; `None` = the range was read to its end.
    pub next: Option<Bytes>,
}

/// A range of keys that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// The least key that may be affected.
    pub first: Bytes,
    /// The greatest key that may be affected; `None` = unbounded.
    pub last: Option<Bytes>,
}

/// The sum over a bucket's records with one number of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// The bucket whose records are summed.
    pub bucket: u16,
    /// The node's place among the bucket's replicas, counted from 0.
    pub place: u8,
    /// The number of copies; 0 = `sum` counts records that are not summed.
    pub copies: u8,
    /// The sum modulo 2¹²⁸. If `copies` is 0: the number of records not summed because their base
    /// version was written within the compared time and continued after it.
    pub sum: u128,
}

impl Sum {
    /// True if this is a count of records that are not summed.
    pub(crate) fn is_count_of_unsummed(&self) -> bool {
        self.copies == 0
    }
}
