//! What all links of a node know of the other nodes, and have seen of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use cluster::handshake::{HandshakeIdentity, HandshakeRefused, PeerSeen, Reason};
use cluster::layout::VoterId;
use cluster::wire::Sender;
use cluster::{ByNode, Incarnation, LifeId, MembershipState, NodeId, Now, Shared, View, ViewId};
use parking_lot::Mutex;

/// Memory for messages that wait on a connection.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of encoded messages that wait on all connections before others wait as they are: each
    /// connection has its share.
    pub encoded_bytes: usize,
    /// Event loops of this node: each has `CONNECTIONS` with each other node.
    pub loops: usize,
    /// Bytes of all messages that may wait on a connection. One is always taken when none waits.
    pub queue_bytes: usize,
}

/// Connections of a loop with a peer: a small and a bulk one that it dials, and as many that come
/// from there.
const CONNECTIONS: usize = 4;

/// What a node's links need to know: one for all loops.
pub struct PeerTable {
    /// What the node's coordinators share.
    pub shared: Arc<Shared>,
    /// Who it is in handshakes.
    pub identity: Arc<HandshakeIdentity>,
    /// How far another node's clock may be ahead, in microseconds.
    pub max_skew_micros: u64,
    /// What may wait.
    pub bounds: Bounds,
    /// What of [`Bounds::encoded_bytes`] is a connection's.
    encoded_bytes: AtomicUsize,
    /// What was seen of each node.
    seen: ByNode<Seen>,
    /// Held while clocks are compared.
    comparing: Mutex<()>,
}

impl PeerTable {
    /// Nothing was seen yet.
    pub fn new(
        shared: Arc<Shared>,
        identity: Arc<HandshakeIdentity>,
        max_skew_micros: u64,
        bounds: Bounds,
    ) -> Self {
        let (encoded_bytes, seen) = (AtomicUsize::new(0), ByNode::default());
        let comparing = Mutex::default();
        let new =
            Self { shared, identity, max_skew_micros, bounds, encoded_bytes, seen, comparing };
        new.share_bytes();
        new
    }

    /// Shares the memory among as many connections as there may be by now. Called now and then.
    pub fn share_bytes(&self) {
        let others = (self.nodes() - 1).max(1);
        let connections = CONNECTIONS * others * self.bounds.loops;
        self.encoded_bytes.store(self.bounds.encoded_bytes / connections, Ordering::Relaxed);
    }

    /// Bytes of encoded messages that may wait on a connection.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.encoded_bytes.load(Ordering::Relaxed)
    }

    /// What was seen of a node.
    pub fn seen(&self, node: NodeId) -> Arc<Seen> {
        self.seen.get(node)
    }

    /// How many nodes there are, this one included.
    pub fn nodes(&self) -> usize {
        self.shared.nodes()
    }

    /// The nodes that this one speaks with: all others of the cluster, as long as it belongs to
    /// that itself.
    pub fn others(&self) -> Vec<NodeId> {
        let own = self.own();
        self.shared.membership.views.with(|view| {
            let others = view.ids().filter(|node| *node != own && view.has(own));
            others.collect()
        })
    }

    /// Whether a node is one of those.
    pub fn has(&self, node: NodeId) -> bool {
        let own = self.own();
        self.shared.membership.views.with(|view| node != own && view.has(node) && view.has(own))
    }

    /// The id of this node.
    pub fn own(&self) -> NodeId {
        self.identity.own()
    }

    /// A node's name.
    pub fn name(&self, node: NodeId) -> String {
        self.shared.name_of(node)
    }

    /// Whether a node is this one, or a loop has a link to it that is up.
    pub fn is_up(&self, node: NodeId) -> bool {
        node == self.own() || self.seen(node).links() > 0
    }

    /// Which voter another node is, if it is up: with the disk that it comes back with it may be
    /// another one.
    pub fn voter_of(&self, node: NodeId) -> Option<VoterId> {
        self.seen(node).voter().filter(|_| self.is_up(node))
    }

    /// The incarnation of a node's disk, as far as this node knows one.
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        if node == self.own() {
            return Some(self.shared.membership.logs.own_incarnation());
        }
        self.seen(node).incarnation().or_else(|| self.shared.membership.logs.incarnation(node))
    }

    /// What an envelope that is sealed now for a peer says about this node.
    pub fn sender(&self, peer: NodeId, now: Now) -> Sender {
        Sender {
            view: self.shared.membership.views.with(View::id),
            clock: self.shared.clock.now(now),
            position: self.shared.membership.logs.position_for(peer),
        }
    }

    /// Whether a link leads to a node of another cluster, which was not known when it was made.
    pub fn is_foreign(&self, node: NodeId) -> bool {
        self.shared.membership.cluster.is_foreign(node)
    }

    /// Whether whoever goes by that view is of this cluster: one of the same epoch is the same.
    pub(super) fn may_serve(&self, theirs: ViewId) -> bool {
        self.shared
            .membership
            .views
            .with(|view| view.epoch != theirs.epoch || view.agrees_with(theirs))
    }

    /// Takes in what an envelope says about the process that sealed it, one with that disk and
    /// life; `false` = a later one was seen meanwhile, and nothing that this one says counts.
    pub(super) fn received(
        &self,
        peer: NodeId,
        (incarnation, life): (Incarnation, LifeId),
        sender: Sender,
        now: Now,
    ) -> bool {
        self.shared.clock.merge(sender.clock, now, self.max_skew_micros);
        self.shared.membership.logs.received(peer, incarnation, life, sender.position)
    }

    /// Whether it is news that a node goes by a layout of this epoch, and this node goes by an
    /// earlier one.
    pub(super) fn learns_of_later(&self, peer: NodeId, epoch: u64) -> bool {
        epoch > self.shared.membership.views.epoch()
            && self.shared.membership.layouts.received_epoch(peer, epoch)
    }

    /// A handshake came to its end: at once, for what is asked next must not be answered by what
    /// this node only believes to hold.
    pub fn saw(&self, peer: &PeerSeen) {
        let PeerSeen { node, incarnation, life, knows_us, proven, voter, .. } = peer;
        self.seen.with(*node, |seen| {
            seen.voter.store(voter.map_or(0, |voter| voter.0), Ordering::Relaxed);
            seen.incarnation.store(incarnation.0, Ordering::Relaxed);
        });
        self.shared.membership.logs.saw(*node, *incarnation, *life);
        self.shared.membership.known_disk.connected(*node);
        if self.shared.membership.logs.lost(knows_us.as_ref()).is_some() {
            self.shared.membership.state.doubt();
            self.shared.membership.logs.doubt(*node);
            self.shared.membership.known_disk.set_waiting(true);
        }
        self.shared.seen_with_proof(*node, *proven);
    }

    /// A handshake was refused, which this node began with a peer or was asked for by anyone.
    /// Returns whether this node is fenced by that, and was not before.
    pub fn is_fenced_by(&self, peer: Option<NodeId>, refused: &HandshakeRefused) -> bool {
        let membership = &self.shared.membership.state;
        if let (Some(peer), Reason::Replaced) = (peer, refused.reason) {
            self.shared.membership.known_disk.refused(peer);
        }
        let is_fenced = match refused.reason {
            Reason::Fenced => true,
            // A disk that waits to take the place of one that was lost goes on waiting.
            Reason::Replaced => membership.state() == MembershipState::Member,
            _ => false,
        };
        is_fenced && membership.fence()
    }

    /// A loop has a link to a node; returns whether none had one before.
    pub fn link_up(&self, node: NodeId) -> bool {
        let first = self.seen(node).link_up();
        if first {
            self.compare();
        }
        first
    }

    /// A loop has lost its link to a node; returns whether none is left.
    pub fn link_down(&self, node: NodeId) -> bool {
        let last = self.seen(node).link_down();
        if last {
            self.compare();
        }
        last
    }

    /// A node answered a ping after `rtt` microseconds, with `wall` on its clock.
    pub(super) fn note_pong(&self, node: NodeId, rtt: u64, wall: u64, mono: u64) {
        if self.seen(node).note_pong(rtt, wall, mono, self.max_skew_micros / COMPARED_TO) {
            self.compare();
        }
    }

    /// Compares this node's clock with those of the nodes that it can be compared with: more than
    /// half of them refuse what comes after this limit.
    fn compare(&self) {
        // Of two loops the later one has seen what both have.
        let _alone = self.comparing.lock();
        let own = self.own();
        let mut limits: Vec<i64> = self.shared.membership.views.with(|view| {
            let others = view.ids().filter(|node| *node != own);
            let latest = others.filter_map(|node| self.seen.with(node, Seen::compared_at_zero));
            latest.map(|latest| latest.saturating_add_unsigned(self.max_skew_micros)).collect()
        });
        limits.sort_unstable();
        let limit = limits.get(limits.len() / 2).copied();
        self.shared.clock.compared(limit, limits.len());
    }

    /// How far a node's wall clock is ahead of this node's, in microseconds, give or take half of
    /// the time that its last ping took; 0 if it is not known.
    pub fn skew_micros(&self, node: NodeId, now: Now) -> i64 {
        let seen = self.seen(node);
        let middle = |latest: u64| latest.saturating_sub(seen.rtt_micros() / 2);
        let latest = |at_zero| now.mono.wrapping_add_signed(at_zero);
        let theirs = seen.latest_at_zero().map(latest).map(middle);
        theirs.map_or(0, |theirs| theirs.wrapping_sub(now.wall) as i64)
    }
}

/// Clocks are compared anew when one has moved by more than this part of the skew allowed: with
/// each pong it would take the square of the nodes' number.
const COMPARED_TO: u64 = 64;

/// What was seen of another node, over all loops. For people; and a node whose clock is ahead of
/// all others' sees that by it.
#[derive(Debug, Default)]
pub struct Seen {
    links: AtomicU32,
    /// Of an [`Incarnation`]; 0 = none was seen.
    incarnation: AtomicU64,
    /// Of a [`VoterId`]; 0 = it was not seen, or did not say.
    voter: AtomicU64,
    rtt_micros: AtomicU64,
    /// What its wall clock showed at the latest when the counting clock was at zero, if both
    /// machines' clocks that only count go on alike: this node's own wall clock may jump.
    latest_at_zero: AtomicI64,
    /// What of that this node's clock was compared with.
    compared_at_zero: AtomicI64,
    /// Whether it has dialed this node since that was looked at.
    knocked: AtomicBool,
}

impl Seen {
    /// How many loops have a link to it that is up.
    pub fn links(&self) -> u32 {
        self.links.load(Ordering::Relaxed)
    }

    /// Its incarnation; `None` = it was never seen.
    pub fn incarnation(&self) -> Option<Incarnation> {
        Incarnation::of_number(self.incarnation.load(Ordering::Relaxed))
    }

    /// Which voter it is, if it was seen.
    pub fn voter(&self) -> Option<VoterId> {
        VoterId::of_number(self.voter.load(Ordering::Relaxed))
    }

    /// How long it took to answer the last ping, in microseconds; 0 = it never did.
    pub fn rtt_micros(&self) -> u64 {
        self.rtt_micros.load(Ordering::Relaxed)
    }

    /// What its wall clock showed at the latest when the counting clock was at zero, if that can be
    /// told: a link to it is up, and it answered a ping.
    fn latest_at_zero(&self) -> Option<i64> {
        let latest = self.latest_at_zero.load(Ordering::Relaxed);
        (self.links() > 0 && self.rtt_micros() > 0).then_some(latest)
    }

    /// The same, give or take what is not compared anew for.
    fn compared_at_zero(&self) -> Option<i64> {
        self.latest_at_zero().map(|_| self.compared_at_zero.load(Ordering::Relaxed))
    }

    /// It has dialed this node: it is up, and may be dialed.
    pub fn knock(&self) {
        self.knocked.store(true, Ordering::Relaxed);
    }

    /// Whether it has, since this was asked last.
    pub(super) fn take_knock(&self) -> bool {
        self.knocked.swap(false, Ordering::Relaxed)
    }

    /// A loop has a link to it; returns whether none had one before.
    fn link_up(&self) -> bool {
        self.links.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// A loop has lost its link to it; returns whether none is left.
    fn link_down(&self) -> bool {
        let before = self.links.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a link is lost that was there");
        before == 1
    }

    /// It answered a ping after `rtt` microseconds, with `wall` on its clock; whether that has
    /// moved by more than so much since it was compared.
    fn note_pong(&self, rtt: u64, wall: u64, mono: u64, tolerance: u64) -> bool {
        // It looked at its clock after the ping went out, maybe at once.
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
