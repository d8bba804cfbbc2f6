//! What a node's background work asks of whoever embeds it, and by which settings it goes.

use bytes::Bytes;

use crate::event::CallId;
use crate::membership::cluster_id::ClusterId;
use crate::membership::logs::Claim;
use crate::membership::state::MembershipState;
use crate::message::{Class, NodeId, Request, Waits};
use crate::repair::status::{RoundConfig, RoundReport};
use crate::transfer::remembered::Remembered;
use record::Record;

/// How often `NodeEvent::Tick` is due, in microseconds. Hints go out at most this long after the
/// retry that finds their node back.
pub const NODE_TICK_MICROS: u64 = 250_000;

/// What a node wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEffect {
    /// Read hints for a node from the store, in the order of their keys; ends in
    /// `NodeEvent::Returned` with a page of them, which is empty if there are none.
    ReadHints {
        /// The call's number.
        call: CallId,
        /// The node whose hints to read.
        peer: NodeId,
        /// The key after which to begin; `None` = with the first.
        after: Option<Bytes>,
        /// Bytes of keys and records after which to stop; one is always read.
        max_bytes: usize,
    },
    /// Hints were delivered, or need not be: remove them, unless the store has a newer one of the
    /// same key by now. If the store refuses, it ends in `NodeEvent::HintsStay`.
    DropHints {
        /// The node that they were for.
        peer: NodeId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
    },
    /// Ask a node, through the coordinator of some loop; ends in `NodeEvent::Returned`.
    Call {
        /// The call's number.
        call: CallId,
        /// The node to ask.
        node: NodeId,
        /// Why it is asked.
        class: Class,
        /// What to ask.
        request: Request,
    },
    /// Store durably which disk a node has, and what it reported of its log; then call
    /// [`Logs::know`](crate::Logs::know) and [`Logs::kept`](crate::Logs::kept).
    Remember {
        /// The node whose disk it is.
        peer: NodeId,
        /// What is known of it.
        claim: Claim,
    },
    /// Store durably this node's membership state and, in the same batch, what it is marked to
    /// lack; ends in `NodeEvent::Stood`. If the node is no longer authoritative, that is in force
    /// already; that it is authoritative again takes effect only once it is stored.
    Stand(MembershipState),
    /// Store durably which cluster this node belongs to; then call
    /// [`OwnCluster::stored`](crate::OwnCluster::stored). Ends in `NodeEvent::ClusterIdKept`.
    KeepClusterId(ClusterId),
    /// Store durably what a node is marked to lack ([`Missed::encode`](crate::Missed::encode));
    /// ends in `NodeEvent::MissedKept`.
    KeepMissed {
        /// The node whose marks to store.
        node: NodeId,
    },
    /// Store durably what this node knows of layouts, and its vote; then call
    /// [`Shared::enters`](crate::Shared::enters). Ends in `NodeEvent::LayoutsKept`. See
    /// [`Layouts::encode`](crate::Layouts::encode).
    KeepLayouts,
    /// Have the store drop every record that was in it by now and that this node does not hold
    /// ([`Shared::holds`](crate::Shared::holds)). Ends in `NodeEvent::LeftoversDropped`.
    DropLeftovers,
    /// Store durably what is remembered of writes with an idempotency key; ends in
    /// `NodeEvent::Returned`.
    KeepRemembered {
        /// The call's number.
        call: CallId,
        /// What is remembered, one entry per write.
        remembered: Vec<Remembered>,
    },
    /// This node waits in a change of the members, until then: somebody is to be told.
    Waits(Waits),
    /// A round of repair that this node drove is over.
    RoundEnded(RoundReport),
    /// This node's directory is an older copy: others have proven something since that it took no
    /// part in, and it may hold what was deleted and purged by that. It must not go on with it.
    Outdated {
        /// Up to which time of a version that is proven.
        proven: u64,
    },
}

/// A node's settings.
#[derive(Debug, Clone, Copy)]
pub struct NodeConfig {
    /// Microseconds for which a coordinator may count what this node stored: a request's deadline.
    pub deadline_micros: u64,
    /// Whether nothing is acknowledged before it is durable.
    pub syncs_always: bool,
    /// Microseconds that a version may be ahead of the wall clock.
    pub max_skew_micros: u64,
    /// Rounds of repair.
    pub rounds: RoundConfig,
    /// Bytes a second at which it takes partitions that move to it; `None` = as fast as it goes.
    pub stream_rate: Option<u64>,
    /// What the store has under a name, as a page of [`Filter::Remembered`] brings it; `None` = it
    /// is malformed or damaged.
    ///
    /// [`Filter::Remembered`]: crate::Filter::Remembered
    pub remembered: fn(&[u8], &Record) -> Option<Remembered>,
}

#[cfg(test)]
impl NodeConfig {
    /// A node that does nothing by itself: no deadline, no rounds, no names that it understands.
    pub(crate) const IDLE: Self = Self {
        deadline_micros: 0,
        syncs_always: true,
        max_skew_micros: 0,
        rounds: RoundConfig::NONE,
        stream_rate: None,
        remembered: |_, _| None,
    };
}
