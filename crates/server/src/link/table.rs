//! State of the other nodes, shared by all links of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use protocol::handshake::{HandshakeIdentity, HandshakeRefused, PeerSeen, Reason};
use protocol::layout::VoterId;
use protocol::wire::Sender;
use protocol::{BootId, ByNode, Incarnation, MembershipState, NodeId, Now, Shared, View, ViewId};

/// Limits on messages that wait on connections.
#[derive(Debug, Clone, Copy)]
pub struct LinkBounds {
    /// Bytes of encoded messages that may wait on all connections together, before further messages
    /// wait unencoded; each connection has an equal share.
    pub encoded_bytes: usize,
    /// Event loops of this node: each has `CONNECTIONS` connections with each other node.
    pub loops: usize,
    /// Bytes of all messages that may wait on a connection. An empty queue takes any message.
    pub queue_bytes: usize,
}

/// Number of connections between a loop and a peer: a small and a bulk one that the loop dials, and
/// a small and a bulk one that the peer dials.
const CONNECTIONS: usize = 4;

/// The state of the other nodes as the links of all loops need it.
pub struct PeerTable {
    /// State shared by the node's coordinators.
    pub shared: Arc<Shared>,
    /// This node's identity in handshakes.
    pub identity: Arc<HandshakeIdentity>,
    /// Tolerated lead of another node's clock, in microseconds.
    pub max_skew_micros: u64,
    /// Limits on waiting messages.
    pub bounds: LinkBounds,
    /// A connection's share of [`LinkBounds::encoded_bytes`].
    encoded_bytes: AtomicUsize,
    /// Observations of each node.
    seen: ByNode<Seen>,
    /// Serializes the comparisons of clocks.
    comparing: Mutex<()>,
}

impl PeerTable {
    /// Creates the table without observations.
    pub fn new(
        shared: Arc<Shared>,
        identity: Arc<HandshakeIdentity>,
        max_skew_micros: u64,
        bounds: LinkBounds,
    ) -> Self {
        let (encoded_bytes, seen) = (AtomicUsize::new(0), ByNode::default());
        let comparing = Mutex::default();
        let new =
            Self { shared, identity, max_skew_micros, bounds, encoded_bytes, seen, comparing };
        new.share_bytes();
        new
    }

    /// Divides [`LinkBounds::encoded_bytes`] by the current number of connections. Call it
    /// periodically, because the number changes with the members.
    pub fn share_bytes(&self) {
        let others = (self.nodes() - 1).max(1);
        let connections = CONNECTIONS * others * self.bounds.loops;
        self.encoded_bytes.store(self.bounds.encoded_bytes / connections, Ordering::Relaxed);
    }

    /// Returns the bytes of encoded messages that may wait on one connection.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.encoded_bytes.load(Ordering::Relaxed)
    }

    /// Returns the observations of a node.
    pub fn observations(&self, node: NodeId) -> Arc<Seen> {
        self.seen.get(node)
    }

    /// Returns the number of nodes, this one included.
    pub fn nodes(&self) -> usize {
        self.shared.nodes()
    }

    /// Returns the nodes that this one communicates with: all other members, as long as this node
    /// is a member.
    pub fn others(&self) -> Vec<NodeId> {
        let own = self.own();
        self.shared.membership.views.with(|view| {
            let others = view.ids().filter(|node| *node != own && view.has(own));
            others.collect()
        })
    }

    /// True if a node is one of `PeerTable::others`.
    pub fn has(&self, node: NodeId) -> bool {
        let own = self.own();
        self.shared.membership.views.with(|view| node != own && view.has(node) && view.has(own))
    }

    /// Returns the id of this node.
    pub fn own(&self) -> NodeId {
        self.identity.own()
    }

    /// Returns the name of a node.
    pub fn name(&self, node: NodeId) -> String {
        self.shared.name_of(node)
    }

    /// True if a node is this one, or any loop's link to it is up.
    pub fn is_up(&self, node: NodeId) -> bool {
        node == self.own() || self.observations(node).links() > 0
    }

    /// Returns the voter id of another node, if it is up; a node that is down may come back with
    /// another disk, and so another voter id.
    pub fn voter_of(&self, node: NodeId) -> Option<VoterId> {
        self.observations(node).voter().filter(|_| self.is_up(node))
    }

    /// Returns the incarnation of a node, if this node knows one.
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        if node == self.own() {
            return Some(self.shared.membership.logs.own_incarnation());
        }
        self.observations(node)
            .incarnation()
            .or_else(|| self.shared.membership.logs.incarnation(node))
    }

    /// Returns the header of an envelope that is now sealed for a peer.
    pub fn sender(&self, peer: NodeId, now: Now) -> Sender {
        Sender {
            view: self.shared.membership.views.with(View::id),
            clock: self.shared.clock.now(now),
            position: self.shared.membership.logs.position_for(peer),
        }
    }

    /// True if a link leads to a node of another cluster, which was found only after the link was
    /// opened.
    pub fn is_foreign(&self, node: NodeId) -> bool {
        self.shared.membership.cluster.is_foreign(node)
    }

    /// Returns true if a node with the view `theirs` may belong to this cluster: views of one epoch
    /// must be equal.
    pub(super) fn may_serve(&self, theirs: ViewId) -> bool {
        self.shared
            .membership
            .views
            .with(|view| view.epoch != theirs.epoch || view.agrees_with(theirs))
    }

    /// Processes the header of an envelope from a process with this incarnation and start id.
    /// Returns false if a later process of the node is known: the envelope must be ignored.
    pub(super) fn process_header(
        &self,
        peer: NodeId,
        (incarnation, life): (Incarnation, BootId),
        sender: Sender,
        now: Now,
    ) -> bool {
        self.shared.clock.merge_received(sender.clock, now, self.max_skew_micros);
        self.shared.membership.logs.note_envelope(peer, incarnation, life, sender.position)
    }

    /// Returns true if a node's layout epoch is later than this node's, and was not known before.
    pub(super) fn notices_later_epoch(&self, peer: NodeId, epoch: u64) -> bool {
        epoch > self.shared.membership.views.epoch()
            && self.shared.membership.layouts.note_epoch(peer, epoch)
    }

    /// Records a completed handshake. Must be called at once, because the next request must not be
    /// answered from records that this node may have lost.
    pub fn record_handshake(&self, peer: &PeerSeen) {
        let PeerSeen { node, incarnation, life, knows_us, proven, voter, .. } = peer;
        self.seen.with(*node, |seen| {
            seen.voter.store(voter.map_or(0, |voter| voter.0), Ordering::Relaxed);
            seen.incarnation.store(incarnation.0, Ordering::Relaxed);
        });
        self.shared.membership.logs.note_boot(*node, *incarnation, *life);
        self.shared.membership.known_disk.on_connect(*node);
        if self.shared.membership.logs.find_loss(knows_us.as_ref()).is_some() {
            self.shared.membership.state.mark_doubted();
            self.shared.membership.logs.mark_doubted(*node);
            self.shared.membership.known_disk.set_waiting(true);
        }
        self.shared.note_proof_seen(*node, *proven);
    }

    /// Records a handshake that was refused, either begun by this node with `peer` or requested by
    /// any node. Returns true if the refusal newly fences this node.
    pub fn is_fenced_by(&self, peer: Option<NodeId>, refused: &HandshakeRefused) -> bool {
        let membership = &self.shared.membership.state;
        // A node that refuses this node is up: it may have writes that this node lacks, and accepts
        // no writes of this node.
        if let (Some(peer), Reason::Replaced | Reason::Removed) = (peer, refused.reason) {
            self.shared.membership.known_disk.on_refusal(peer);
        }
        let is_fenced = match refused.reason {
            Reason::Fenced => true,
            // A node that waits to replace a node with a lost disk continues to wait.
            Reason::Replaced => membership.state() == MembershipState::Member,
            _ => false,
        };
        is_fenced && membership.fence()
    }

    /// Counts a loop's link to a node as up; returns true if it is the first.
    pub fn link_up(&self, node: NodeId) -> bool {
        let first = self.observations(node).link_up();
        if first {
            self.compare();
        }
        first
    }

    /// Counts a loop's link to a node as down; returns true if it was the last.
    pub fn link_down(&self, node: NodeId) -> bool {
        let last = self.observations(node).link_down();
        if last {
            self.compare();
        }
        last
    }

    /// Records a pong that came after `rtt` microseconds, with `wall` on the peer's clock.
    pub(super) fn note_pong(&self, node: NodeId, rtt: u64, wall: u64, mono: u64) {
        if self.observations(node).note_pong(rtt, wall, mono, self.max_skew_micros / COMPARED_TO) {
            self.compare();
        }
    }

    /// Compares this node's clock with those of the nodes with known clocks, to find the limit
    /// above which more than half of them refuse versions, and the time that more than half of them
    /// have reached.
    fn compare(&self) {
        // Of two loops that compare one after the other, the second uses the observations of both.
        let _alone = self.comparing.lock();
        let own = self.own();
        let (mut limits, mut earliest): (Vec<i64>, Vec<i64>) =
            self.shared.membership.views.with(|view| {
                let others = view.ids().filter(|node| *node != own);
                let seen = others.filter_map(|node| self.seen.with(node, Seen::last_comparison));
                let tolerance = self.max_skew_micros / COMPARED_TO;
                let bounds = |(latest, rtt): (i64, u64)| {
                    let earliest = latest.saturating_sub_unsigned(rtt + tolerance);
                    (latest.saturating_add_unsigned(self.max_skew_micros), earliest)
                };
                seen.map(bounds).unzip()
            });
        limits.sort_unstable();
        earliest.sort_unstable();
        let limit = limits.get(limits.len() / 2).copied();
        let reached = earliest.get(earliest.len().saturating_sub(1) / 2).copied();
        self.shared.clock.note_comparison(limit, limits.len());
        self.shared.clock.note_reached(reached);
    }

    /// Returns the lead of a node's wall clock over this node's, in microseconds, within half of
    /// its last ping's round trip; 0 = unknown.
    pub fn skew_micros(&self, node: NodeId, now: Now) -> i64 {
        let seen = self.observations(node);
        let middle = |latest: u64| latest.saturating_sub(seen.rtt_micros() / 2);
        let latest = |at_zero| now.mono.wrapping_add_signed(at_zero);
        let theirs = seen.latest_at_zero().map(latest).map(middle);
        theirs.map_or(0, |theirs| theirs.wrapping_sub(now.wall) as i64)
    }
}

/// All clocks are compared again when a clock has moved by more than 1/`COMPARED_TO` of the
/// tolerated skew. The cost of a comparison at each pong would be quadratic in the number of nodes.
const COMPARED_TO: u64 = 64;

/// Observations of another node, over all loops. They are shown to operators, and a node compares
/// its clock with the observed clocks.
#[derive(Debug, Default)]
pub struct Seen {
    links: AtomicU32,
    /// Number of an [`Incarnation`]; 0 = none was seen.
    incarnation: AtomicU64,
    /// Number of a [`VoterId`]; 0 = the node was not seen, or did not state its voter id.
    voter: AtomicU64,
    rtt_micros: AtomicU64,
    /// Upper bound of the peer's wall clock when this node's monotonic clock was at zero, provided
    /// that both nodes' clocks advance at the same rate. The bound does not depend on this node's
    /// wall clock, which may jump.
    latest_at_zero: AtomicI64,
    /// The value of `latest_at_zero` at the last comparison with this node's clock.
    compared_at_zero: AtomicI64,
    /// True if the peer has dialed this node since the last call of `take_dialed`.
    has_dialed: AtomicBool,
}

impl Seen {
    /// Returns the number of loops whose link to the node is up.
    pub fn links(&self) -> u32 {
        self.links.load(Ordering::Relaxed)
    }

    /// Returns the node's incarnation; `None` = the node was never seen.
    pub fn incarnation(&self) -> Option<Incarnation> {
        Incarnation::of_number(self.incarnation.load(Ordering::Relaxed))
    }

    /// Returns the node's voter id; `None` = the node was not seen, or did not state it.
    pub fn voter(&self) -> Option<VoterId> {
        VoterId::of_number(self.voter.load(Ordering::Relaxed))
    }

    /// Returns the round trip of the last ping, in microseconds; 0 = no ping was answered.
    pub fn rtt_micros(&self) -> u64 {
        self.rtt_micros.load(Ordering::Relaxed)
    }

    /// Returns an upper bound of the peer's wall clock when the monotonic clock was at zero; `None`
    /// = unknown, because no link is up or no ping was answered.
    fn latest_at_zero(&self) -> Option<i64> {
        let latest = self.latest_at_zero.load(Ordering::Relaxed);
        (self.links() > 0 && self.rtt_micros() > 0).then_some(latest)
    }

    /// Returns the value of `latest_at_zero` at the last comparison, and the round trip of the last
    /// ping; `None` if `latest_at_zero` is unknown.
    fn last_comparison(&self) -> Option<(i64, u64)> {
        self.latest_at_zero()
            .map(|_| (self.compared_at_zero.load(Ordering::Relaxed), self.rtt_micros()))
    }

    /// Records that the peer has dialed this node: the peer is up, and may be dialed.
    pub fn note_dialed(&self) {
        self.has_dialed.store(true, Ordering::Relaxed);
    }

    /// Returns true if the peer has dialed this node since the last call.
    pub(super) fn take_dialed(&self) -> bool {
        self.has_dialed.swap(false, Ordering::Relaxed)
    }

    /// Counts a loop's link as up; returns true if it is the first.
    fn link_up(&self) -> bool {
        self.links.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Counts a loop's link as down; returns true if it was the last.
    fn link_down(&self) -> bool {
        let before = self.links.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a link is lost that was there");
        before == 1
    }

    /// Records a pong; returns true if the peer's clock has moved by more than `tolerance`
    /// microseconds since the last comparison.
    fn note_pong(&self, rtt: u64, wall: u64, mono: u64, tolerance: u64) -> bool {
        // The peer read its clock after the ping was sent, so `latest` is an upper bound.
        let sent = mono.saturating_sub(rtt);
        let latest = wall.wrapping_sub(sent) as i64;
        self.latest_at_zero.store(latest, Ordering::Relaxed);
        let first = self.rtt_micros.swap(rtt.max(1), Ordering::Relaxed) == 0;
        let moved = latest.abs_diff(self.compared_at_zero.load(Ordering::Relaxed)) > tolerance;
        if first || moved {
            self.compared_at_zero.store(latest, Ordering::Relaxed);
        }
        first || moved
    }
}
