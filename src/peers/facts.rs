//! What all loops of a node know about the others, and have seen of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use cluster::handshake::{Identity, Reason, Refused};
use cluster::wire::Sender;
use cluster::{Clock, Codec, NodeId, Shared};

use super::complaints::Complaints;
use crate::clock::wall_micros;

/// Bytes of long messages that a lane takes at least. They are the values that came in with the
/// requests, not copies of them, and those are counted where they came in. Less would refuse what
/// a few clients with values of 1 MiB write at once.
const LONG_LEAST: usize = 8 << 20;

/// What a node's connections need to know: one for all loops.
pub(crate) struct Facts {
    pub(super) shared: Arc<Shared>,
    pub(super) identity: Arc<Identity>,
    pub(super) codec: Codec,
    pub(super) max_skew_micros: u64,
    /// Bytes of short messages that may wait on a lane, or for a small one. One message is always
    /// taken when none waits, here and below.
    pub(super) lane_bytes: usize,
    /// Bytes of long messages that may wait on a lane, and of all for a bulk one.
    pub(super) long_bytes: usize,
    pub(super) complaints: Complaints,
    /// `HOST:PORT`, by node.
    authorities: Vec<String>,
    seen: Vec<Seen>,
}

impl Facts {
    /// `lane_bytes` may wait on a lane. `urls` are the nodes' addresses, by node.
    pub(crate) fn new(
        shared: Arc<Shared>,
        identity: Arc<Identity>,
        codec: Codec,
        max_skew_micros: u64,
        lane_bytes: usize,
        urls: &[String],
    ) -> Self {
        assert_eq!(urls.len(), shared.topology.nodes(), "each node has an address");
        let authority = |url: &String| url.strip_prefix("http://").unwrap_or(url).to_owned();
        Self {
            authorities: urls.iter().map(authority).collect(),
            seen: urls.iter().map(|_| Seen::default()).collect(),
            complaints: Complaints::default(),
            shared,
            identity,
            codec,
            max_skew_micros,
            lane_bytes,
            long_bytes: lane_bytes.max(LONG_LEAST),
        }
    }

    /// What was seen of a node.
    pub(crate) fn seen(&self, node: NodeId) -> &Seen {
        &self.seen[usize::from(node.0)]
    }

    pub(super) fn nodes(&self) -> usize {
        self.seen.len()
    }

    pub(super) fn own(&self) -> NodeId {
        self.identity.own()
    }

    pub(super) fn name(&self, node: NodeId) -> &str {
        self.identity.name(node)
    }

    /// Where it is, as `HOST:PORT`.
    pub(crate) fn authority(&self, node: NodeId) -> &str {
        &self.authorities[usize::from(node.0)]
    }

    /// What an envelope that is sealed now for a peer says about this node.
    pub(super) fn sender(&self, peer: NodeId) -> Sender {
        Sender {
            epoch: self.shared.topology.digest(),
            clock: self.shared.clock.now(wall_micros()),
            position: self.shared.logs.position_for(peer),
        }
    }

    /// A handshake was refused: perhaps because this node has no place any more.
    pub(super) fn refused(&self, refused: &Refused) {
        if refused.reason == Reason::Fenced && self.shared.vouching.fence() {
            tracing::error!("this node is fenced: {}", refused.text);
        }
    }

    /// Whether most nodes would refuse a write stamped with this time as too far ahead of them. It
    /// must not even be stored here: whoever found it later would take it for the newest, and bring
    /// it to the others.
    pub(crate) fn is_ahead_of_most(&self, time: u64) -> bool {
        let wall = wall_micros();
        let ahead = |seen: &&Seen| {
            let theirs = wall.saturating_add_signed(seen.skew_micros());
            seen.lines() > 0
                && seen.rtt_micros() > 0
                && Clock::is_ahead(time, theirs, self.max_skew_micros)
        };
        self.seen.iter().filter(ahead).count() * 2 > self.nodes()
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
    skew_micros: AtomicI64,
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

    /// How far its wall clock was ahead of this node's at the last beat, in microseconds, give or
    /// take half of the time that the beat took.
    pub(crate) fn skew_micros(&self) -> i64 {
        self.skew_micros.load(Ordering::Relaxed)
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

    /// It answered a beat after `rtt` microseconds, with `wall` on its clock.
    pub(super) fn note_echo(&self, rtt: u64, wall: u64) {
        self.rtt_micros.store(rtt.max(1), Ordering::Relaxed);
        let then = wall_micros().saturating_sub(rtt / 2);
        self.skew_micros.store(wall.wrapping_sub(then) as i64, Ordering::Relaxed);
    }
}
