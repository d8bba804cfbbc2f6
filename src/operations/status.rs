//! Status of one node, the JSON of `GET /v0/status`, and of all nodes together, the JSON of `GET
//! /v0/cluster`, which `kvorum status` shows. A node omits fields with unknown values.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::words::words;
use crate::finalize::status::StoreFormats;
use crate::repair::status::Repair;

/// The status of all nodes, collected by one of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cluster {
    /// Name of the node that collected the status.
    pub(crate) asked: String,
    /// The nodes of the metadata quorum (the council), as the asking node knows them.
    #[serde(default)]
    pub(crate) council: Vec<String>,
    /// One row for each node, by name.
    pub(crate) nodes: Vec<Row>,
}

/// The status of one node of the cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The node's name, which is its identity.
    pub(crate) name: String,
    /// The node's URL.
    pub(crate) url: String,
    /// True if the node answered the collecting node.
    pub(crate) up: bool,
    /// The reason why the node did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// True if the node was not asked, because the collecting node was removed from the cluster. A
    /// removed node connects to no other node.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) not_asked: bool,
    /// True if the node answered, but refused the proof of the collecting node, because their
    /// clocks or secrets differ. The status of the refusing node is unknown.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) refuses_proof: bool,
    /// Id of the cluster of the node that answered at the URL, if it is not this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) other_cluster_id: Option<String>,
    /// Number of answering nodes that have a connection to this node.
    pub(crate) reached_by: usize,
    /// A node that answered, but has no connection to this node; missing = no such node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unreached_by: Option<Unreached>,
    /// Number of hints that other nodes keep for this node.
    pub(crate) hints: u64,
    /// Clock skew in microseconds, positive if ahead, measured by the nearest node whose clock
    /// agrees with most others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clock_skew_us: Option<i64>,
    /// The clocks from which the node's clock differs by more than the collecting node's
    /// `--max-clock-skew`; missing = the clock agrees with most others, or was not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clock_differs: Option<ClockDiffers>,
    /// The node's status without `peers`, which is summed up in the other rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Status>,
}

/// A node that has no connection to another node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Unreached {
    /// Name of the node without the connection.
    pub(crate) node: String,
    /// URL at which the node tries to reach the other node.
    pub(crate) url: String,
    /// The reason why the node's last attempt to connect failed; missing = no attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The status of a node, as the node itself reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The node's name, which is its identity.
    pub(crate) name: String,
    /// The URL at which clients and other nodes reach the node.
    pub(crate) url: String,
    /// Version of the program.
    pub(crate) version: String,
    /// The store's format, and the formats that the program writes.
    #[serde(flatten)]
    pub(crate) formats: StoreFormats,
    /// Epoch of the layout in force, from 1 on. Each decided change of the layout increments it.
    pub(crate) epoch: u64,
    /// Id of the node's cluster, in hexadecimal digits; missing = the nodes of a new cluster have
    /// not all connected yet.
    pub(crate) cluster_id: Option<String>,
    /// Incarnation of the data directory: a random number chosen at its creation, in hexadecimal
    /// digits.
    pub(crate) incarnation: String,
    /// The node's membership state.
    pub(crate) membership: Membership,
    /// Seconds since recovery began.
    pub(crate) uptime_s: u64,
    /// Keys that have a value: exact until the first flush or stop, then an estimate.
    pub(crate) keys: u64,
    /// Size of the files in the data directory, in bytes.
    pub(crate) disk_bytes: u64,
    /// Resident memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Settings that affect performance: numbers, sizes in bytes, words for times and modes.
    pub(crate) settings: BTreeMap<String, Value>,
    /// Number of partitions, out of 65,536, in which the node may lack writes for which no hint is
    /// kept. The other nodes stream their records to the node.
    pub(crate) partitions_to_repair: u32,
    /// Period, after the loss of the node's disk or a move of keys to it, in which clients may
    /// repeat writes whose idempotency keys the node has forgotten; missing = the node has
    /// forgotten none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forgotten_idempotency_keys: Option<ForgottenKeys>,
    /// True if the node is in the metadata quorum without a vote. Since the node got its seat, its
    /// disk was replaced, or its directory was copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lacks_vote: bool,
    /// Time when the first of the TLS certificates in use expires, in milliseconds since 1970;
    /// missing = the node serves without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate_expires_ms: Option<u64>,
    /// Estimated number of bytes of tombstones and expired values that compaction may drop.
    pub(crate) purgeable_bytes: u64,
    /// Number of tables in which a read or a compaction found damage since the node's start.
    pub(crate) damaged_tables: u64,
    /// The repair rounds that the node drives; missing in a cluster of one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repair: Option<Repair>,
    /// Milliseconds for which the node issues no timestamps; missing = it issues timestamps. The
    /// cause is that its last timestamps are ahead of most other nodes' clocks, but its own clock
    /// is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timestamps_ahead_ms: Option<u64>,
    /// True if the disk is full. Writes are refused, or will be soon, until space is freed.
    pub(crate) disk_full: bool,
    /// The reason why the node accepts no writes; missing = it accepts writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    /// The other nodes of the cluster; missing in a [`Row`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<Vec<Peer>>,
}

/// A period in which the node can't exclude that an idempotency key was used before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForgottenKeys {
    /// End of the period, in milliseconds since 1970.
    pub(crate) until_ms: u64,
    /// The cause of the loss.
    pub(crate) reason: ForgottenReason,
}

words! {
    /// The clocks from which a node's clock differs by more than `--max-clock-skew`.
    pub(crate) enum ClockDiffers {
        /// Most other clocks, which agree with each other.
        FromMost = "from-most",
        /// Some other clocks. The clocks have no majority that agrees, so any clock may be wrong.
        FromSome = "from-some",
    }
}

words! {
    /// The reason why a node may have forgotten writes with an idempotency key.
    pub(crate) enum ForgottenReason {
        /// The disk was lost, and the other nodes have not reported all idempotency keys that they
        /// remember.
        LostDisk = "lost-disk",
        /// Keys moved to the node, and their previous replicas have not reported all idempotency
        /// keys that they remember.
        Moved = "moved",
    }
}

words! {
    /// Membership state: whether a node is authoritative for missing keys, and the reason if it is
    /// not.
    pub(crate) enum Membership {
        /// The node is authoritative.
        Member = "member",
        /// Not authoritative yet: the node is asking the other nodes for their knowledge of its
        /// data directory.
        Starting = "starting",
        /// Not authoritative yet: the node is new.
        Joining = "joining",
        /// Not authoritative yet: the disk was wiped or rolled back, or has lost the end of its
        /// log. The other nodes stream data to the node.
        Rebuilding = "rebuilding",
        /// Not authoritative yet: the data directory may be an older copy.
        Verifying = "verifying",
        /// The node serves no requests, because another process runs in its place.
        Fenced = "fenced",
        /// The node serves no requests, because a change of the members removed it.
        Removed = "removed",
    }
}

/// Another node, according to this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// The peer's name, which is its identity.
    pub(crate) name: String,
    /// The peer's URL.
    pub(crate) url: String,
    /// Incarnation of the peer's data directory at the last handshake; empty = no handshake since
    /// this node's start.
    pub(crate) incarnation: String,
    /// True if this node has a connection to the peer. The connection is kept even when it is idle.
    pub(crate) up: bool,
    /// The reason why the last attempt to connect to the peer failed; missing = a connection
    /// exists, or no attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Round-trip time of the last answer, in microseconds; 0 = no answer yet.
    pub(crate) rtt_us: u64,
    /// Microseconds by which the peer's clock is ahead of this node's, within half of `rtt_us`.
    pub(crate) clock_skew_us: i64,
    /// Number of hints that this node keeps for the peer.
    pub(crate) hints: u64,
    /// Size of the kept hints, in bytes.
    pub(crate) hint_bytes: u64,
    /// Number of hints that can't be delivered yet, because their timestamps are too far ahead of
    /// the clock.
    pub(crate) hints_ahead_of_clock: u64,
    /// Number of writes since this node's start that the peer missed, and for which no hint was
    /// kept.
    pub(crate) hints_dropped: u64,
    /// Number of partitions, out of 65,536, in which the peer may lack writes without a hint, and
    /// does not know it yet.
    pub(crate) partitions_to_repair: u32,
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the status of a member in a normal state. The fields in `more` replace its fields.
    pub(crate) fn status(more: Value) -> Status {
        let mut status = json!({
            "name": "a", "url": "http://h:1", "version": "0.1.0 (0123456789)", "store_format": 1,
            "oldest_store_format": 1, "newest_store_format": 1, "epoch": 1, "cluster_id": "1",
            "incarnation": "1", "membership": "member", "uptime_s": 61,
            "keys": 12_345, "disk_bytes": 1_048_576, "memory_bytes": 0, "settings": {},
            "partitions_to_repair": 0, "purgeable_bytes": 0, "damaged_tables": 0,
            "disk_full": false, "of_a_later_release": true,
        });
        let more = more.as_object().cloned().unwrap_or_default();
        status.as_object_mut().unwrap().extend(more);
        serde_json::from_value(status).unwrap()
    }
}
