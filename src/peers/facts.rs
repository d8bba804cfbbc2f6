//! What all loops of a node know about the others, and have seen of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use cluster::handshake::{Identity, Reason, Refused};
use cluster::wire::Sender;
use cluster::{Clock, Codec, NodeId, Shared};

use super::complaints::Complaints;
use crate::node::budget::Budget;
use crate::node::clock::wall_micros;

/// Memory for messages: see [`memory`](crate::settings::memory).
#[derive(Debug)]
pub(crate) struct Room {
    /// Bytes of encoded messages that wait on a lane before others wait as they are.
    pub(crate) lane_bytes: usize,
    /// Bytes of all messages that may wait on a lane. One is always taken when none waits.
    pub(crate) queue_bytes: usize,
    /// Long requests of other nodes.
    pub(crate) received: Arc<Budget>,
}

/// What a node's connections need to know: one for all loops.
pub(crate) struct Facts {
    pub(super) shared: Arc<Shared>,
    pub(super) identity: Arc<Identity>,
    pub(super) codec: Codec,
    pub(super) max_skew_micros: u64,
    pub(super) room: Room,
    pub(super) complaints: Complaints,
    /// `HOST:PORT`, by node.
    names: Vec<String>,
    authorities: Vec<String>,
    seen: Vec<Seen>,
    began: Instant,
}

impl Facts {
    /// `urls` are the nodes' addresses, by node.
    pub(crate) fn new(
        shared: Arc<Shared>,
        identity: Arc<Identity>,
        codec: Codec,
        max_skew_micros: u64,
        room: Room,
        urls: &[String],
    ) -> Self {
        assert_eq!(urls.len(), shared.nodes(), "each node has an address");
        let authority = |url: &String| url.strip_prefix("http://").unwrap_or(url).to_owned();
        Self {
            authorities: urls.iter().map(authority).collect(),
            names: shared.view().topology.ids().map(|node| shared.name_of(node)).collect(),
            seen: urls.iter().map(|_| Seen::default()).collect(),
            began: Instant::now(),
            complaints: Complaints::default(),
            shared,
            identity,
            codec,
            max_skew_micros,
            room,
        }
    }

    /// What was seen of a node.
    pub(crate) fn seen(&self, node: NodeId) -> &Seen {
        &self.seen[usize::from(node.0)]
    }

    /// Has `say` log something about a peer, unless the same was said a moment ago.
    pub(crate) fn complain(&self, peer: NodeId, what: &'static str, say: impl FnOnce()) {
        self.complaints.about(peer, what, say);
    }

    /// Bytes of long requests of other nodes.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.room.received.held() as u64
    }

    pub(super) fn nodes(&self) -> usize {
        self.seen.len()
    }

    pub(super) fn own(&self) -> NodeId {
        self.identity.own()
    }

    pub(super) fn name(&self, node: NodeId) -> &str {
        &self.names[usize::from(node.0)]
    }

    /// Where it is, as `HOST:PORT`.
    pub(crate) fn authority(&self, node: NodeId) -> &str {
        &self.authorities[usize::from(node.0)]
    }

    /// What an envelope that is sealed now for a peer says about this node.
    pub(super) fn sender(&self, peer: NodeId) -> Sender {
        let of_view = |view: &cluster::View| (view.epoch, view.topology.digest());
        let (epoch, layout) = self.shared.views.with(of_view);
        Sender {
            epoch,
            layout,
            clock: self.shared.clock.now(wall_micros()),
            position: self.shared.logs.position_for(peer),
        }
    }

    /// A handshake was refused; whether because this node has no place any more, and that is new.
    pub(super) fn is_fenced_by(&self, refused: &Refused) -> bool {
        let fenced = refused.reason == Reason::Fenced && self.shared.vouching.fence();
        if fenced {
            tracing::error!("this node is fenced: {}", refused.text);
        }
        fenced
    }

    /// Whether most of the nodes that can be compared with would refuse a write stamped with this
    /// time as too far ahead of them. It must not even be stored here: it would hide what comes
    /// later until its time comes.
    pub(crate) fn is_ahead_of_most(&self, time: u64) -> bool {
        let mono = self.mono();
        let (mut compared, mut ahead) = (0, 0);
        for theirs in self.seen.iter().filter_map(|seen| seen.latest_wall(mono)) {
            compared += 1;
            ahead += usize::from(Clock::is_ahead(time, theirs, self.max_skew_micros));
        }
        ahead * 2 > compared
    }

    /// How far a node's wall clock is ahead of this node's, in microseconds, give or take half of
    /// the time that its last beat took; 0 if it can't be told.
    pub(crate) fn skew_micros(&self, node: NodeId) -> i64 {
        let seen = self.seen(node);
        let middle = |latest: u64| latest.saturating_sub(seen.rtt_micros() / 2);
        let theirs = seen.latest_wall(self.mono()).map(middle);
        theirs.map_or(0, |theirs| theirs.wrapping_sub(wall_micros()) as i64)
    }

    /// A node answered a beat after `rtt` microseconds, with `wall` on its clock.
    pub(super) fn note_echo(&self, node: NodeId, rtt: u64, wall: u64) {
        self.seen(node).note_echo(rtt, wall, self.mono());
    }

    /// Microseconds by the clock that only counts.
    fn mono(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Takes in another node's clock, unless it is too far ahead.
    pub(super) fn merge_clock(&self, time: u64) {
        self.shared.clock.merge(time, wall_micros(), self.max_skew_micros);
    }
}

/// What was seen of another node, over all loops. For people; and a node whose clock is ahead of
/// all others' sees that by it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    lines: AtomicU32,
    incarnation: AtomicU64,
    rtt_micros: AtomicU64,
    /// What its wall clock showed at the latest when this process began, if both machines' clocks
    /// that only count go on alike: this node's own wall clock may jump.
    latest_at_zero: AtomicI64,
    /// Whether it has dialed this node since that was looked at.
    knocked: AtomicBool,
}

impl Seen {
    /// How many loops have a line to it that stands.
    pub(crate) fn lines(&self) -> u32 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Since when it has its disk; `None` = it was never met.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        Some(self.incarnation.load(Ordering::Relaxed)).filter(|incarnation| *incarnation != 0)
    }

    /// How long it took to answer the last beat, in microseconds; 0 = it never did.
    pub(crate) fn rtt_micros(&self) -> u64 {
        self.rtt_micros.load(Ordering::Relaxed)
    }

    /// What its wall clock shows at the latest, if that can be told: a line to it stands, and it
    /// answered a beat.
    fn latest_wall(&self, mono: u64) -> Option<u64> {
        let wall = mono.wrapping_add_signed(self.latest_at_zero.load(Ordering::Relaxed));
        (self.lines() > 0 && self.rtt_micros() > 0).then_some(wall)
    }

    /// It has dialed this node: it is up, and may be dialed.
    pub(super) fn knock(&self) {
        self.knocked.store(true, Ordering::Relaxed);
    }

    /// Whether it has, since this was asked last.
    pub(super) fn take_knock(&self) -> bool {
        self.knocked.swap(false, Ordering::Relaxed)
    }

    /// Returns whether there was none before.
    pub(super) fn line_up(&self) -> bool {
        self.lines.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Returns whether there is none left.
    pub(super) fn line_down(&self) -> bool {
        self.lines.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(super) fn note_incarnation(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Relaxed);
    }

    fn note_echo(&self, rtt: u64, wall: u64, mono: u64) {
        // It looked at its clock after the beat went out, maybe at once.
        let sent = mono.saturating_sub(rtt);
        self.latest_at_zero.store(wall.wrapping_sub(sent) as i64, Ordering::Relaxed);
        self.rtt_micros.store(rtt.max(1), Ordering::Relaxed);
    }
}
