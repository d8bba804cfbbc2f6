//! Effects that a node's background work asks of the embedder, and the settings of that work.

use bytes::Bytes;

use crate::event::CallId;
use crate::membership::cluster_id::ClusterId;
use crate::membership::logs::Claim;
use crate::membership::state::MembershipState;
use crate::message::{Class, NodeId, Request, Waits};
use crate::repair::status::{RoundConfig, RoundReport};
use crate::transfer::idempotency_memory::Remembered;
use record::Record;

/// The period of `BackgroundEvent::Tick`, in microseconds. Once a node can be reached again, its
/// hints are sent within one period.
pub const NODE_TICK_MICROS: u64 = 250_000;

/// An output of a node's background work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackgroundEffect {
    /// Read hints for a node from the store, in the order of their keys; ends in
    /// `BackgroundEvent::CallReturned` with a page of them, which is empty if there are none.
    ReadHints {
        /// The id of the call.
        call: CallId,
        /// The node whose hints to read.
        peer: NodeId,
        /// The key after which to begin; `None` = begin with the first.
        after: Option<Bytes>,
        /// The size of keys and records, in bytes, after which to stop; one hint is always read.
        max_bytes: usize,
    },
    /// Remove hints that were delivered or are no longer needed, unless the store has a newer hint
    /// of the same key by now. If the store refuses, ends in `BackgroundEvent::HintRemovalFailed`.
    DropHints {
        /// The node that the hints are for.
        peer: NodeId,
        /// The keys and their records.
        items: Vec<(Bytes, Record)>,
    },
    /// Call a node, through the coordinator of any event loop; ends in
    /// `BackgroundEvent::CallReturned`.
    Call {
        /// The id of the call.
        call: CallId,
        /// The node to ask.
        node: NodeId,
        /// The reason for the request.
        class: Class,
        /// The request to the node.
        request: Request,
    },
    /// Store durably which disk a node has, and the node's report of its log; then call
    /// [`Logs::know`](crate::Logs::know) and
    /// [`Logs::mark_claim_stored`](crate::Logs::mark_claim_stored).
    StoreClaim {
        /// The node that has the disk.
        peer: NodeId,
        /// The knowledge of the disk and its log.
        claim: Claim,
    },
    /// Store durably this node's membership state and, in the same batch, the marks of its missed
    /// writes; ends in `BackgroundEvent::StateStored`. A loss of authority is in force already;
    /// regained authority takes effect only once the state is stored.
    StoreState(MembershipState),
    /// Store durably which cluster this node belongs to; then call
    /// [`OwnCluster::mark_durable`](crate::OwnCluster::mark_durable). Ends in
    /// `BackgroundEvent::ClusterIdStored`.
    StoreClusterId(ClusterId),
    /// Store durably the marks of a node's missed writes
    /// ([`Missed::encode`](crate::Missed::encode)); ends in `BackgroundEvent::MissedStored`.
    StoreMissed {
        /// The node whose marks to store.
        node: NodeId,
    },
    /// Store durably this node's knowledge of layouts and its vote
    /// ([`Layouts::encode`](crate::Layouts::encode)); then call
    /// [`Shared::install_layout`](crate::Shared::install_layout). Ends in
    /// `BackgroundEvent::LayoutsStored`.
    StoreLayouts,
    /// Drop from the store every record that this node does not hold
    /// ([`Shared::holds`](crate::Shared::holds)). Records stored after this effect may stay. Ends
    /// in `BackgroundEvent::OrphansDropped`.
    DropOrphans,
    /// Store durably the memory of writes with an idempotency key; ends in
    /// `BackgroundEvent::CallReturned`.
    StoreRemembered {
        /// The id of the call.
        call: CallId,
        /// The remembered writes, one entry for each.
        remembered: Vec<Remembered>,
    },
    /// Tell the operator that this node waits in a membership change, until the given time.
    Waits(Waits),
    /// Report that a repair round driven by this node is over.
    RoundEnded(RoundReport),
    /// Stop this node, whose directory is an older copy: since the copy was made, the other nodes
    /// have completed a proof without this node. The copy may hold records that were deleted, and
    /// purged by that proof, so the node must not continue with it.
    Outdated {
        /// The watermark of the proof: the greatest time of a version that it covers.
        proven: u64,
    },
}

/// A node's settings.
#[derive(Debug, Clone, Copy)]
pub struct BackgroundConfig {
    /// A request's deadline, in microseconds. For this long after this node's start, a coordinator
    /// may still count the node's acknowledgement of a write that the node has lost since.
    pub deadline_micros: u64,
    /// True if nothing is acknowledged before it is durable.
    pub syncs_always: bool,
    /// The largest lead of a version over the wall clock, in microseconds.
    pub max_skew_micros: u64,
    /// The settings of repair rounds.
    pub rounds: RoundConfig,
    /// The rate at which the node pulls partitions that move to it, in bytes per second; `None` =
    /// unlimited.
    pub stream_rate: Option<u64>,
    /// Decodes an entry, given its name and its record, of a page of [`Filter::Remembered`]; `None`
    /// = the entry is malformed or damaged.
    ///
    /// [`Filter::Remembered`]: crate::Filter::Remembered
    pub remembered: fn(&[u8], &Record) -> Option<Remembered>,
}

#[cfg(test)]
impl BackgroundConfig {
    /// Settings of a node that starts nothing itself: no deadline, no rounds, no known names.
    pub(crate) const IDLE: Self = Self {
        deadline_micros: 0,
        syncs_always: true,
        max_skew_micros: 0,
        rounds: RoundConfig::NONE,
        stream_rate: None,
        remembered: |_, _| None,
    };
}
