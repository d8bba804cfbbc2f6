//! Pages: part of a range of keys, as it is asked for and as it comes.

use bytes::Bytes;

use crate::node_id::NodeId;
use record::Record;

/// A part of a range of keys, small enough to be read at once. Nothing of it is remembered between
/// two pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// The least key that may be in it.
    pub start: Bytes,
    /// The least key that is beyond it; `None` = there is no such key.
    pub end: Option<Bytes>,
    /// Which keys are meant.
    pub filter: Filter,
    /// Bytes of keys and records after which the page ends; one item is always taken.
    pub max_bytes: u32,
}

/// Which of a node's keys are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Keys of which the answering node is among the first `ack` of the first `from` replicas, when
    /// those are put into the order of `preference`. Nodes that are not in it are not asked.
    Chosen {
        /// How many replicas of each partition are asked.
        ack: u8,
        /// Out of how many.
        from: u8,
        /// The nodes that are asked, best first.
        preference: Vec<NodeId>,
    },
    /// Keys whose record belongs onto a node, by the record's own number of copies.
    HeldBy {
        /// The node that the records belong onto.
        node: NodeId,
        /// The least time of a version that is meant.
        since: u64,
        /// The node that is asked promises this ballot for all keys, as the one that asks has: a
        /// conditional write that is under way while records go over must not be counted twice.
        promise: u64,
        /// The partitions that are meant, at most [`MAX_LISTED`](crate::MAX_LISTED); none = all.
        partitions: Vec<u16>,
    },
    /// Keys whose record moves to a node, or whose replicas become fewer, that one among them.
    Moved {
        /// The node that the keys move to, or that stays one of their replicas.
        node: NodeId,
        /// Whether only those are meant that the answering node is the first replica of, and that
        /// were written before it placed keys so.
        first: bool,
        /// What the digests begin with.
        seed: u64,
        /// Digests of records that the node holds among these keys, at most
        /// [`MAX_KNOWN`](crate::MAX_KNOWN): they are not meant.
        known: Vec<u64>,
    },
    /// No keys, but what is remembered of writes with an idempotency key, by its names, of
    /// partitions that move to a node or whose replicas become fewer, that one among them; or of
    /// partitions that it holds, if it has lost what it remembered. The page is authoritative if
    /// the node has forgotten none of them within a day.
    Remembered {
        /// The node that the partitions move to, or that stays one of their replicas.
        node: NodeId,
        /// Whether it has lost what it remembered.
        lost: bool,
    },
}

impl Filter {
    /// The least time of a version that is meant.
    pub fn since(&self) -> u64 {
        match self {
            Self::Chosen { .. } | Self::Moved { .. } | Self::Remembered { .. } => 0,
            Self::HeldBy { since, .. } => *since,
        }
    }
}

/// Part of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Keys and records, tombstones too, in the order of the keys.
    pub items: Vec<(Bytes, Record)>,
    /// Where the range goes on; `None` = it is at its end.
    pub next: Option<Bytes>,
    /// Whether the node is authoritative for what is absent.
    pub authoritative: bool,
}
