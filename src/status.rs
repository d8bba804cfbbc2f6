//! What a node says of itself and of the others: the JSON of `GET /v0/status`, which
//! `kvorum status` reads. A field that a node does not know is left out.

use serde::{Deserialize, Serialize};

/// A node, as it tells itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Its identity.
    pub(crate) name: String,
    /// Where clients and other nodes reach it.
    pub(crate) url: String,
    /// Of the program.
    pub(crate) version: String,
    /// Seconds since it began to recover.
    pub(crate) uptime_s: u64,
    /// Keys that have a value: exact until the first flush, then an estimate.
    pub(crate) keys: u64,
    /// Bytes of files in its data directory.
    pub(crate) disk_bytes: u64,
    /// Resident memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Why it takes no writes; missing = it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    /// The other nodes of the cluster.
    #[serde(default)]
    pub(crate) peers: Vec<Peer>,
}

/// Another node, as this one sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// Its identity.
    pub(crate) name: String,
    /// Where it is reached.
    pub(crate) url: String,
}
