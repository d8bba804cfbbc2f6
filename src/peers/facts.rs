//! What all loops of a node know about the others, and have seen of them.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::handshake::HandshakeRefused;
use cluster::layout::VoterId;
use cluster::{Incarnation, NodeId};
use node::link::{PeerTable, Seen};

use super::complaints::Complaints;
use crate::counters::budget::Budget;
use crate::counters::clocks;
use crate::settings::members::authority_of;

/// What a node's connections need to know: one for all loops.
pub(crate) struct Facts {
    pub(super) table: Arc<PeerTable>,
    /// Memory for long requests of other nodes: see [`memory`](crate::settings::memory).
    pub(super) received: Arc<Budget>,
    pub(super) complaints: Complaints,
    /// Where nodes are as the settings list them, by name: an address may change.
    listed: HashMap<String, String>,
}

impl Facts {
    /// `listed` are URLs by the nodes' names; long requests of theirs go into `received`.
    pub(crate) fn new(table: PeerTable, received: Budget, listed: HashMap<String, String>) -> Self {
        Self {
            table: Arc::new(table),
            received: Arc::new(received),
            complaints: Complaints::default(),
            listed,
        }
    }

    /// What was seen of a node.
    pub(crate) fn seen(&self, node: NodeId) -> Arc<Seen> {
        self.table.seen(node)
    }

    /// Whether this node is meant, or one to which a loop has a link that is up.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.table.is_up(node)
    }

    /// Which voter another node is, if it is up: see [`PeerTable::voter_of`].
    pub(crate) fn voter_of(&self, node: NodeId) -> Option<VoterId> {
        self.table.voter_of(node)
    }

    /// The incarnation of a node's disk, as far as it is known here.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.table.incarnation(node)
    }

    /// Calls `say` to log something about a peer, unless the same was logged a moment ago.
    pub(crate) fn complain(&self, peer: NodeId, what: &'static str, say: impl FnOnce()) {
        self.complaints.about(peer, what, say);
    }

    /// Bytes of long requests of other nodes.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received.held() as u64
    }

    pub(super) fn own(&self) -> NodeId {
        self.table.own()
    }

    pub(super) fn name(&self, node: NodeId) -> String {
        self.table.name(node)
    }

    /// Where it is, `http://HOST:PORT` or `https://…`, as the settings list it, or else the layout
    /// does; empty = neither does, for it has left.
    pub(crate) fn url(&self, node: NodeId) -> String {
        if let Some(listed) = self.listed.get(&self.name(node)) {
            return listed.clone();
        }
        let layout = self.table.shared.membership.layouts.entered();
        layout.node(node).map_or(String::new(), |node| node.url.clone())
    }

    /// Where it is, as `HOST:PORT`.
    pub(crate) fn authority(&self, node: NodeId) -> String {
        authority_of(&self.url(node)).to_owned()
    }

    /// A handshake was refused; whether because this node has no place any more, and that is new.
    pub(super) fn is_fenced_by(&self, peer: Option<NodeId>, refused: &HandshakeRefused) -> bool {
        let fenced = self.table.is_fenced_by(peer, refused);
        if fenced {
            tracing::error!("this node is fenced: {}", refused.text);
        }
        fenced
    }

    /// How far a node's wall clock is ahead of this node's: see [`PeerTable::skew_micros`].
    pub(crate) fn skew_micros(&self, node: NodeId) -> i64 {
        self.table.skew_micros(node, clocks::now())
    }
}
