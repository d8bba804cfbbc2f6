//! Compactions of the whole store as a node tells of them: the JSON of `GET /admin/compact`. A
//! field that is not known is left out.

use serde::{Deserialize, Serialize};

use crate::node::Node;

/// Those that somebody asked for since the node's start.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Compactions {
    /// The one under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Compaction>,
    /// The last one that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Compaction>,
}

/// One of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Compaction {
    /// Counted from 1 since the node's start.
    pub(crate) number: u64,
    /// When it was asked for, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// How long it took; missing while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) took_ms: Option<u64>,
    /// Records that were compacted …
    pub(crate) records: u64,
    /// … of about so many; a record counts once for each level that it goes down.
    pub(crate) of_records: u64,
    /// Bytes of the store's tables when it began …
    pub(crate) bytes_before: u64,
    /// … and now, or when it ended.
    pub(crate) bytes: u64,
    /// Why it ended before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

impl Compactions {
    /// As it is now.
    pub(crate) fn of(node: &Node) -> Self {
        let (current, last) = node.db.compactions();
        Self { current: current.map(Compaction::of), last: last.map(Compaction::of) }
    }
}

impl Compaction {
    fn of(compaction: lsm::Compaction) -> Self {
        let lsm::Compaction { number, began, took, records, of_records, bytes_before, .. } =
            compaction;
        Self {
            number,
            began_ms: began.as_millis() as u64,
            took_ms: took.map(|took| took.as_millis() as u64),
            records,
            of_records,
            bytes_before,
            bytes: compaction.bytes,
            failed: compaction.failed,
        }
    }
}
