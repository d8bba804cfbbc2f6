//! Facts about the other nodes, shared by all loops of a node.

use std::collections::HashMap;
use std::sync::Arc;

use protocol::handshake::HandshakeRefused;
use protocol::layout::VoterId;
use protocol::{Incarnation, NodeId};
use server::link::{PeerTable, Seen};

use super::complaints::Complaints;
use crate::counters::budget::Budget;
use crate::counters::clocks;
use crate::settings::members::authority_of;

/// State of a node's peer connections that all event loops share.
pub(crate) struct PeerFacts {
    pub(super) table: Arc<PeerTable>,
    /// Memory budget for long requests of other nodes: *received* in
    /// [`memory`](crate::settings::memory).
    pub(super) received: Arc<Budget>,
    pub(super) complaints: Complaints,
    /// URLs that the settings list, by node name. They override those of the layout, because a
    /// node's address may change.
    listed: HashMap<String, String>,
}

impl PeerFacts {
    /// Creates the facts; `listed` are URLs by node name, and `received` is the memory budget for
    /// other nodes' long requests.
    pub(crate) fn new(table: PeerTable, received: Budget, listed: HashMap<String, String>) -> Self {
        Self {
            table: Arc::new(table),
            received: Arc::new(received),
            complaints: Complaints::default(),
            listed,
        }
    }

    /// Returns what this node has observed of another node.
    pub(crate) fn seen(&self, node: NodeId) -> Arc<Seen> {
        self.table.seen(node)
    }

    /// Returns true if the node is this one, or a loop has a link to it that is up.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.table.is_up(node)
    }

    /// Returns the voter id of another node that is up: see [`PeerTable::voter_of`].
    pub(crate) fn voter_of(&self, node: NodeId) -> Option<VoterId> {
        self.table.voter_of(node)
    }

    /// Returns the incarnation of a node's disk, if it is known.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.table.incarnation(node)
    }

    /// Calls `say` to log a complaint about a peer, unless the same complaint was logged recently.
    pub(crate) fn complain(&self, peer: NodeId, what: &'static str, say: impl FnOnce()) {
        self.complaints.log_unless_recent(peer, what, say);
    }

    /// Returns the bytes reserved for long requests of other nodes.
    pub(crate) fn reserved_for_requests(&self) -> u64 {
        self.received.held() as u64
    }

    pub(super) fn own(&self) -> NodeId {
        self.table.own()
    }

    pub(super) fn name(&self, node: NodeId) -> String {
        self.table.name(node)
    }

    /// Returns a node's URL, `http://HOST:PORT` or `https://…`: from the settings, or else from the
    /// layout; empty if neither has the node, because it has left.
    pub(crate) fn url(&self, node: NodeId) -> String {
        if let Some(listed) = self.listed.get(&self.name(node)) {
            return listed.clone();
        }
        let layout = self.table.shared.membership.layouts.active_layout();
        layout.node(node).map_or(String::new(), |node| node.url.clone())
    }

    /// Returns a node's address as `HOST:PORT`.
    pub(crate) fn authority(&self, node: NodeId) -> String {
        authority_of(&self.url(node)).to_owned()
    }

    /// Handles a refused handshake. Returns true if the refusal is the first that fences this node,
    /// because another process has taken over its identity.
    pub(super) fn is_fenced_by(&self, peer: Option<NodeId>, refused: &HandshakeRefused) -> bool {
        let fenced = self.table.is_fenced_by(peer, refused);
        if fenced {
            tracing::error!("this node is fenced: {}", refused.text);
        }
        fenced
    }

    /// Returns how far a node's wall clock is ahead of this node's, in microseconds: see
    /// [`PeerTable::skew_micros`].
    pub(crate) fn skew_micros(&self, node: NodeId) -> i64 {
        self.table.skew_micros(node, clocks::now())
    }
}
