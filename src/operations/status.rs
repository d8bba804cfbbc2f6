//! What a node says of itself and of the others: the JSON of `GET /v0/status`; and of all nodes
//! together: that of `GET /v0/cluster`, which `kvorum status` shows. A field that a node does not
//! know is left out.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::words::words;
use crate::operations::rounds::Repair;

/// All nodes, as one of them finds them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cluster {
    /// The node that asked the others.
    pub(crate) asked: String,
    /// One row for each node, by name.
    pub(crate) nodes: Vec<Row>,
}

/// One node of the cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The node's name, which is its identity.
    pub(crate) name: String,
    /// Where the nodes reach it.
    pub(crate) url: String,
    /// Whether it answered the node that asked.
    pub(crate) up: bool,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Whether it was not asked, because the node that is asked was removed from the cluster: it
    /// connects to no other node.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub(crate) not_asked: bool,
    /// The id of another cluster, to which the node that answered belongs: what is at the URL is no
    /// node of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) other_cluster_id: Option<String>,
    /// How many of the nodes that answered have a connection to it.
    pub(crate) reached_by: usize,
    /// A node that answered and has no connection to it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unreached_by: Option<Unreached>,
    /// Writes that it missed and that the others keep for it.
    pub(crate) hints: u64,
    /// Microseconds that its clock is ahead, as the node nearest to it saw last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clock_skew_us: Option<i64>,
    /// What it says of itself, without `peers`: what it says of those is summed up in their rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Status>,
}

/// A node that has no connection to another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Unreached {
    /// The node that has none.
    pub(crate) node: String,
    /// Where it looks for the other one.
    pub(crate) url: String,
}

/// What a node reports about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The node's name, which is its identity.
    pub(crate) name: String,
    /// Where clients and other nodes reach it.
    pub(crate) url: String,
    /// Of the program.
    pub(crate) version: String,
    /// Which change of the members it goes by, from 1 on.
    pub(crate) epoch: u64,
    /// The id of its cluster, in hexadecimal digits; missing = all nodes of a new cluster have not
    /// met yet.
    pub(crate) cluster_id: Option<String>,
    /// Since when it has its disk: chosen by chance when the data directory was made.
    pub(crate) incarnation: String,
    /// Its membership state.
    pub(crate) membership: Membership,
    /// Seconds since it began to recover.
    pub(crate) uptime_s: u64,
    /// Keys that have a value: exact until the first flush or stop, then an estimate.
    pub(crate) keys: u64,
    /// Bytes of files in its data directory.
    pub(crate) disk_bytes: u64,
    /// Resident memory in bytes.
    pub(crate) memory_bytes: u64,
    /// What it was started with, as far as it changes how it performs: numbers, sizes in bytes,
    /// words for times and modes.
    pub(crate) settings: BTreeMap<String, Value>,
    /// Partitions, of 65,536, of which it may lack writes that no hint brings it: they are being
    /// streamed from the other nodes.
    pub(crate) partitions_to_repair: u32,
    /// Since a loss of its disk, or a move of keys to it, it may have forgotten writes with an
    /// idempotency key; missing = it has forgotten none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forgotten_idempotency_keys: Option<ForgottenKeys>,
    /// Whether it is in the council and has no vote: its disk was replaced since it was seated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lacks_vote: bool,
    /// About how many bytes of its store compaction may drop for good: tombstones, and values that
    /// expired.
    pub(crate) purgeable_bytes: u64,
    /// Tables in which a compaction met damage since its start.
    pub(crate) damaged_tables: u64,
    /// The rounds of repair that it drives; missing in a cluster of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repair: Option<Repair>,
    /// Whether its disk is full: it refuses writes, or will soon, until there is room.
    pub(crate) disk_full: bool,
    /// Why it accepts no writes; missing = it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    /// The other nodes of the cluster; missing in a [`Row`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<Vec<Peer>>,
}

/// A node can't say of a new idempotency key that no write was done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForgottenKeys {
    /// Until then, in milliseconds since 1970.
    pub(crate) until_ms: u64,
    /// Why it can't.
    pub(crate) reason: ForgottenReason,
}

words! {
    /// Why a node may have forgotten writes with an idempotency key.
    pub(crate) enum ForgottenReason {
        /// Its disk was lost, and the other nodes have not told all that they remember.
        LostDisk = "lost-disk",
        /// Keys moved to it, and the nodes of before did not tell all that they remember.
        Moved = "moved",
    }
}

words! {
    /// Whether a node is authoritative, also for keys that it does not hold, and why it is not.
    pub(crate) enum Membership {
        /// It is authoritative.
        Member = "member",
        /// Not yet: it asks the other nodes what they know of it.
        Starting = "starting",
        /// Not yet: it is a new node.
        Joining = "joining",
        /// Not yet: its disk was wiped, rolled back or has lost the end of its log; data is
        /// streamed to it.
        Rebuilding = "rebuilding",
        /// Not yet: its directory may be an older copy.
        Verifying = "verifying",
        /// It serves no requests, because another process runs in its place.
        Fenced = "fenced",
        /// It serves no requests, because a change of the members removed it.
        Removed = "removed",
    }
}

/// Another node, as this one sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// The node's name, which is its identity.
    pub(crate) name: String,
    /// Where it is reached.
    pub(crate) url: String,
    /// Since when it has its disk, as this node met it last; empty = never since it started.
    pub(crate) incarnation: String,
    /// Whether a connection from this node to it stands: one is kept, whether it is used or not.
    pub(crate) up: bool,
    /// Microseconds that it took to answer last; 0 = not yet.
    pub(crate) rtt_us: u64,
    /// Microseconds that its clock is ahead of this node's, give or take half of `rtt_us`.
    pub(crate) clock_skew_us: i64,
    /// Writes that it missed and that this node keeps for it.
    pub(crate) hints: u64,
    /// Bytes of those writes.
    pub(crate) hint_bytes: u64,
    /// Those of them whose timestamps are too far ahead of the clock to be delivered yet.
    pub(crate) hints_ahead_of_clock: u64,
    /// Writes that it missed and of which no hint was kept, since this node's start.
    pub(crate) hints_dropped: u64,
    /// Partitions, of 65,536, in which it may lack such writes and was not informed yet.
    pub(crate) partitions_to_repair: u32,
}
