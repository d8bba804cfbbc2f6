//! The state of a node's peer connections that all its event loops share: which links are up, the
//! URLs of the other nodes, the error of the last connection attempt to each node, and the memory
//! budget for long requests of other nodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::handshake::{HandshakeRefused, Reason};
use protocol::layout::VoterId;
use protocol::{Incarnation, NodeId};
use server::link::{PeerTable, Seen};

use super::complaints::Complaints;
use super::dial::DialError;
use crate::counters::clocks;
use crate::counters::memory_budget::Budget;
use crate::settings::members::authority_of;

/// State of a node's peer connections that all event loops share.
pub(crate) struct PeerFacts {
    pub(super) table: Arc<PeerTable>,
    /// Memory budget for long requests of other nodes, called *received* in
    /// [`memory`](crate::settings::memory).
    pub(super) received: Arc<Budget>,
    pub(super) complaints: Complaints,
    /// URLs from the settings, by node name, which precede the URLs of the layout, because all
    /// nodes may have moved to other addresses at once.
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

/// Nodes with a URL in the settings for which the layout's URL is used instead. A layout change may
/// have moved a node to an address that the settings do not list yet.
#[derive(Default)]
struct LayoutUrls {
    /// Nodes to dial next at the layout's URL, because the URL from the settings failed last.
    next: HashSet<NodeId>,
    /// Nodes that were last reached at the layout's URL.
    reached: HashSet<NodeId>,
}

impl PeerFacts {
    /// Creates the facts. `listed` are URLs by node name. `received` is the memory budget for long
    /// requests of other nodes.
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

    /// Returns this node's observations of another node.
    pub(crate) fn observations(&self, node: NodeId) -> Arc<Seen> {
        self.table.observations(node)
    }

    /// Returns true if the node is this node, or if a loop's link to the node is up.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.table.is_up(node)
    }

    /// Returns the voter id of another node; `None` if the node is not up. See
    /// [`PeerTable::voter_of`].
    pub(crate) fn voter_of(&self, node: NodeId) -> Option<VoterId> {
        self.table.voter_of(node)
    }

    /// Returns the incarnation of a node's data directory; `None` if it is unknown.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.table.incarnation(node)
    }

    /// Calls `say` to log a complaint about a peer, unless the same complaint was logged recently.
    pub(crate) fn log_complaint(&self, peer: NodeId, what: &'static str, say: impl FnOnce()) {
        self.complaints.log_unless_recent(peer, what, say);
    }

    /// Returns the bytes reserved for long requests of other nodes.
    pub(crate) fn reserved_for_requests(&self) -> u64 {
        self.received.reserved_bytes() as u64
    }

    pub(super) fn own(&self) -> NodeId {
        self.table.own()
    }

    pub(super) fn name(&self, node: NodeId) -> String {
        self.table.name(node)
    }

    /// Returns a node's URL, `http://HOST:PORT` or `https://…`. The result is the layout's URL if
    /// the node was last reached there; otherwise the URL from the settings, or else from the
    /// layout. Empty if the node has left.
    pub(crate) fn url(&self, node: NodeId) -> String {
        let is_reached = self.layout_urls.lock().reached.contains(&node);
        self.url_of(node, is_reached)
    }

    /// Returns the URL at which the next dial of a node is attempted.
    pub(super) fn next_url(&self, node: NodeId) -> String {
        let is_next = self.layout_urls.lock().next.contains(&node);
        self.url_of(node, is_next)
    }

    /// Returns a node's URL from the settings; from the layout if `prefers_layout` is set, or if
    /// the settings do not list the node.
    fn url_of(&self, node: NodeId, prefers_layout: bool) -> String {
        let layout = self.table.shared.membership.layouts.active_layout();
        let decided = layout.node(node).map_or("", |node| &node.url);
        match self.listed.get(&self.name(node)) {
            Some(listed) if decided.is_empty() || !prefers_layout => listed.clone(),
            _ => decided.to_owned(),
        }
    }

    /// Returns the error of the last attempt to connect to a node; `None` if the attempt succeeded.
    pub(crate) fn dial_error(&self, node: NodeId) -> Option<String> {
        self.dial_failures.lock().get(&node).map(|failure| failure.text.clone())
    }

    /// Returns the reason for which the last attempt to connect to a node was refused by one of the
    /// two nodes; `None` if it was not refused.
    pub(crate) fn refusal(&self, node: NodeId) -> Option<Reason> {
        self.dial_failures.lock().get(&node)?.refusal
    }

    /// Records whether a dial of a node at `url` succeeded. A URL that reached the node is used
    /// again. After a failure the node's other URL is next: from the layout or from the settings.
    pub(super) fn record_dial(&self, node: NodeId, url: &str, failure: Option<&DialError>) {
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

    /// Processes a refused handshake. Returns true if it is the first refusal which shows that
    /// another process has taken over this node's identity.
    pub(super) fn is_fenced_by(&self, peer: Option<NodeId>, refused: &HandshakeRefused) -> bool {
        let fenced = self.table.is_fenced_by(peer, refused);
        if fenced {
            tracing::error!("this node is fenced: {}", refused.text);
        }
        fenced
    }

    /// Returns the time by which a node's wall clock is ahead of this node's, in microseconds: see
    /// [`PeerTable::skew_micros`].
    pub(crate) fn skew_micros(&self, node: NodeId) -> i64 {
        self.table.skew_micros(node, clocks::now())
    }
}

/// Inserts a node into a set, or removes it from the set.
fn set_member(nodes: &mut HashSet<NodeId>, node: NodeId, is_member: bool) {
    if is_member {
        nodes.insert(node);
    } else {
        nodes.remove(&node);
    }
}
