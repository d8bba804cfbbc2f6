//! The state of a node's peer connections that all its event loops share: which links are up, the
//! URLs of the other nodes, why the last connection to each failed, and the memory budget for long
//! requests of other nodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::handshake::{HandshakeRefused, Reason};
use protocol::layout::VoterId;
use protocol::{Incarnation, NodeId};
use server::link::{PeerTable, Seen};

use super::complaints::Complaints;
use super::dial::DialError;
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
    /// URLs that the settings list, by node name. They are tried before those of the layout,
    /// because all nodes may have moved to other addresses at once.
    listed: HashMap<String, String>,
    layout_urls: Mutex<LayoutUrls>,
    /// The last attempts to connect to nodes, where they failed.
    dial_failures: Mutex<HashMap<NodeId, DialFailure>>,
}

/// A failed attempt to connect to a node.
struct DialFailure {
    /// The reason, as the log has it.
    text: String,
    /// The reason for which one of the two nodes refused the other; `None` = the attempt failed
    /// before that.
    refusal: Option<Reason>,
}

/// Listed nodes for which the layout's URL is in use: a plan may have told of an address that the
/// settings do not list yet.
#[derive(Default)]
struct LayoutUrls {
    /// Nodes that are dialed there next, because the listed URL failed last.
    next: HashSet<NodeId>,
    /// Nodes that were last reached there.
    reached: HashSet<NodeId>,
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
            layout_urls: Mutex::default(),
            dial_failures: Mutex::default(),
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

    /// Returns the URL at which a node was last reached, or else is listed, or else has in the
    /// layout, `http://HOST:PORT` or `https://…`; empty if the node has left.
    pub(crate) fn url(&self, node: NodeId) -> String {
        let is_reached = self.layout_urls.lock().reached.contains(&node);
        self.url_of(node, is_reached)
    }

    /// Returns the URL at which to dial a node next.
    pub(super) fn next_url(&self, node: NodeId) -> String {
        let is_next = self.layout_urls.lock().next.contains(&node);
        self.url_of(node, is_next)
    }

    /// Returns a node's URL from the settings, or from the layout if `prefers_layout` is set or the
    /// settings lack the node.
    fn url_of(&self, node: NodeId, prefers_layout: bool) -> String {
        let layout = self.table.shared.membership.layouts.active_layout();
        let decided = layout.node(node).map_or("", |node| &node.url);
        match self.listed.get(&self.name(node)) {
            Some(listed) if decided.is_empty() || !prefers_layout => listed.clone(),
            _ => decided.to_owned(),
        }
    }

    /// Returns the reason why the last attempt to connect to a node failed, if it did.
    pub(crate) fn dial_error(&self, node: NodeId) -> Option<String> {
        self.dial_failures.lock().get(&node).map(|failure| failure.text.clone())
    }

    /// Returns the reason for which the last attempt to connect to a node was refused by one of the
    /// two nodes; `None` if it was not refused.
    pub(crate) fn refusal(&self, node: NodeId) -> Option<Reason> {
        self.dial_failures.lock().get(&node)?.refusal
    }

    /// Notes whether dialing a node at `url` succeeded. A URL that led to the node is kept. After a
    /// failure the other one is next: that of the layout, or the listed one.
    pub(super) fn note_dialed(&self, node: NodeId, url: &str, failure: Option<&DialError>) {
        let mut dial_failures = self.dial_failures.lock();
        match failure {
            Some(error) => dial_failures
                .insert(node, DialFailure { text: error.to_string(), refusal: error.refusal() }),
            None => dial_failures.remove(&node),
        };
        drop(dial_failures);
        let is_connected = failure.is_none();
        let Some(listed) = self.listed.get(&self.name(node)) else { return };
        let is_listed = listed == url;
        let mut layout_urls = self.layout_urls.lock();
        set_member(&mut layout_urls.next, node, is_listed != is_connected);
        if is_connected {
            set_member(&mut layout_urls.reached, node, !is_listed);
        }
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

/// Inserts a node into a set, or removes it.
fn set_member(nodes: &mut HashSet<NodeId>, node: NodeId, is_member: bool) {
    if is_member {
        nodes.insert(node);
    } else {
        nodes.remove(&node);
    }
}
