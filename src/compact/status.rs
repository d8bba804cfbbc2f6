//! Status of compactions of the whole store, the JSON of `GET /admin/compact`. A field with an
//! unknown value is omitted.

use serde::{Deserialize, Serialize};

use crate::node::Node;

/// The compactions of the whole store that were requested since the node's start.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Compactions {
    /// The running compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Compaction>,
    /// The last compaction that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Compaction>,
}

/// One compaction of the whole store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Compaction {
    /// Number of the compaction, from 1 at the node's start.
    pub(crate) number: u64,
    /// Time of the request, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// Duration in milliseconds; missing while the compaction runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) took_ms: Option<u64>,
    /// Number of records compacted so far.
    pub(crate) records: u64,
    /// Estimated number of records to compact. A record counts once for each level that it moves
    /// down.
    pub(crate) of_records: u64,
    /// Size of the store's tables at the start, in bytes.
    pub(crate) bytes_before: u64,
    /// Size of the store's tables now, or at the end, in bytes.
    pub(crate) bytes: u64,
    /// The error that ended the compaction; missing = no error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

impl Compactions {
    /// Returns the current status.
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
