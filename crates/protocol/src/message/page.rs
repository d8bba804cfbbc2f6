//! Page requests and pages: parts of a range of keys.

use bytes::Bytes;

use crate::node_id::NodeId;
use record::Record;

/// A request for a page: a part of a range of keys that is small enough to be read at once. The
/// answering node keeps no state between two pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// The least key that may be in the page.
    pub start: Bytes,
    /// The first key beyond the range; `None` = the range has no end.
    pub end: Option<Bytes>,
    /// The choice among the keys of the range.
    pub filter: Filter,
    /// The size of keys and records, in bytes, at which the page ends; the page takes at least one
    /// item.
    pub max_bytes: u32,
}

/// A choice among a node's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Keys for which the answering node is among the first `ack` of the first `from` replicas, in
    /// the order of `preference`. Nodes not in `preference` are not asked.
    Chosen {
        /// The number of replicas of each partition that are asked.
        ack: u8,
        /// The number of replicas of each partition to choose them from.
        from: u8,
        /// The nodes that are asked, best first.
        preference: Vec<NodeId>,
    },
    /// Keys whose record is placed on a node, by the record's own number of copies.
    HeldBy {
        /// The node that the records are placed on.
        node: NodeId,
        /// The least time of a version to include.
        since: u64,
        /// The ballot that the answering node promises for all keys, as the asker has done, so that
        /// a conditional write under way while records are copied does not count twice.
        promise: u64,
        /// The partitions to include, at most [`MAX_LISTED`](crate::MAX_LISTED); empty = all.
        partitions: Vec<u16>,
    },
    /// Keys whose record moves to a node, and keys that lose replicas and keep the node as one.
    Moved {
        /// The node that the keys move to, or that stays one of their replicas.
        node: NodeId,
        /// True to include only keys of which the answering node is the first replica, and whose
        /// records were written before the answering node adopted its present placement.
        first: bool,
        /// The seed of the digests.
        seed: u64,
        /// Digests of the records that `node` already holds among these keys, at most
        /// [`MAX_KNOWN`](crate::MAX_KNOWN). The page leaves these records out.
        known: Vec<u64>,
    },
    /// The remembered writes with an idempotency key, listed by name instead of keys. Without
    /// `lost`, these are the writes of partitions that move to the node, or that lose other
    /// replicas while the node stays a replica; with `lost`, those of all partitions that the node
    /// holds. The page is authoritative if the answering node has forgotten no such write within a
    /// day.
    Remembered {
        /// The node that the partitions move to, or that stays one of their replicas.
        node: NodeId,
        /// True if the node has lost its memory of such writes.
        lost: bool,
    },
}

impl Filter {
    /// Returns the least time of a version to include.
    pub fn since(&self) -> u64 {
        match self {
            Self::Chosen { .. } | Self::Moved { .. } | Self::Remembered { .. } => 0,
            Self::HeldBy { since, .. } => *since,
        }
    }
}

/// The reply to a page request: a part of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Keys and records, tombstones too, in the order of the keys.
    pub items: Vec<(Bytes, Record)>,
    /// The key at which the range continues; `None` = the page ends the range.
    pub next: Option<Bytes>,
    /// True if the node is authoritative for absent keys.
    pub authoritative: bool,
}
