//! Page requests and pages: parts of a range of keys.

use bytes::Bytes;

use crate::node_id::NodeId;
use record::Record;

/// A request for a page: a part of a range of keys that is small enough for one read. The answering
/// node keeps no state between two pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// The least key that may be in the page.
    pub start: Bytes,
    /// The first key beyond the range; `None` = the range has no end.
    pub end: Option<Bytes>,
    /// The selection of keys in the range.
    pub filter: Filter,
    /// The size of keys and records, in bytes, at which the page ends; a page has at least one
    /// item.
    pub max_bytes: u32,
}

/// A selection of a node's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Keys for which the answering node is one of the first `ack` of the `from` replicas, in the
    /// order of `preference`. Nodes outside `preference` are not asked.
    Chosen {
        /// The number of replicas that are asked for each partition.
        ack: u8,
        /// The number of replicas from which these are chosen.
        from: u8,
        /// The nodes that are asked, best first.
        preference: Vec<NodeId>,
    },
    /// Keys whose record is placed on a node by the record's number of copies.
    HeldBy {
        /// The node that the records are placed on.
        node: NodeId,
        /// The least version time to include.
        since: u64,
        /// The ballot that the asker has promised for all keys, and that the answering node must
        /// promise too. Otherwise a conditional write that runs while records are copied could
        /// count twice.
        promise: u64,
        /// The partitions to include, at most [`MAX_LISTED`](crate::MAX_LISTED); empty = all.
        partitions: Vec<u16>,
    },
    /// Keys whose record moves to a node, and keys that lose other replicas while the node stays
    /// one.
    Moved {
        /// The node that the keys move to, or that stays one of their replicas.
        node: NodeId,
        /// True to include only keys whose first replica is the answering node, and only records
        /// written before that node adopted its present placement.
        first: bool,
        /// The seed of the digests.
        seed: u64,
        /// Digests of the records of these keys that `node` already holds, at most
        /// [`MAX_KNOWN`](crate::MAX_KNOWN). The page omits these records.
        known: Vec<u64>,
    },
    /// Remembered writes with an idempotency key; the page lists their names instead of keys.
    /// Without `lost`: the writes of partitions that move to the node, or that lose other replicas
    /// while the node stays one. With `lost`: the writes of all partitions that the node holds. The
    /// page is authoritative if the answering node has forgotten no such write of the last day.
    Remembered {
        /// The node that the partitions move to, or that stays one of their replicas.
        node: NodeId,
        /// True if the node has lost its remembered writes.
        lost: bool,
    },
}

impl Filter {
    /// Returns the least version time to include.
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
    /// The key at which the range continues; `None` = the range ends with this page.
    pub next: Option<Bytes>,
    /// True if the node is authoritative for absent keys, so that their absence counts.
    pub authoritative: bool,
}
