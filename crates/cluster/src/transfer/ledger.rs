//! The hint ledger: how many hints wait for each node, so that all loops together keep no more than
//! their bound.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::by_node::ByNode;
use crate::message::NodeId;
use record::Record;

/// Bytes of hints that a node keeps for all others together. What is beyond is counted and marked
/// (`missed.rs`): a replica that misses more is better repaired as a whole.
pub(crate) const MAX_HINT_BYTES: u64 = 1 << 30;

/// Bytes that a hint counts for besides key and record: the name it is addressed to, its own head.
const HINT_OVERHEAD: u64 = 64;

/// Bytes that a hint counts for in the bound.
pub fn hint_bytes(key: &[u8], record: &Record) -> u64 {
    key.len() as u64 + record.byte_len() as u64 + HINT_OVERHEAD
}

#[derive(Debug, Default)]
struct WaitingHints {
    bytes: AtomicU64,
    hints: AtomicU64,
    dropped: AtomicU64,
    delivered: AtomicU64,
    future: AtomicU64,
}

/// Hints that wait, by the node that they are for. A key that is missed twice counts twice until
/// its hint is delivered, though the store keeps the newer one only.
#[derive(Debug, Default)]
pub struct HintLedger {
    total: AtomicU64,
    peers: ByNode<WaitingHints>,
}

impl HintLedger {
    /// Whether another hint of so many bytes may be kept. If so, its bytes are set aside, until it
    /// is kept or lost; if not, it counts as dropped.
    pub fn admit(&self, peer: NodeId, bytes: u64) -> bool {
        let room = |total: u64| Some(total + bytes).filter(|sum| *sum <= MAX_HINT_BYTES);
        let admitted = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if !admitted {
            self.peers.with(peer, |peer| peer.dropped.fetch_add(1, Ordering::Relaxed));
        }
        admitted
    }

    /// A hint that was admitted is in the store.
    pub(crate) fn kept(&self, peer: NodeId, bytes: u64) {
        self.add(peer, 1, bytes);
    }

    fn add(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.peers.with(peer, |peer| {
            peer.bytes.fetch_add(bytes, Ordering::Relaxed);
            peer.hints.fetch_add(hints, Ordering::Relaxed);
        });
    }

    /// Hints that were found in the store at the start.
    pub fn found(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.add(peer, hints, bytes);
    }

    /// A hint that was admitted could not be stored.
    pub(crate) fn lost(&self, peer: NodeId, bytes: u64) {
        self.peers.with(peer, |peer| peer.dropped.fetch_add(1, Ordering::Relaxed));
        subtract(&self.total, bytes);
    }

    /// Hints were delivered, and are gone from the store.
    pub fn delivered(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.peers.with(peer, |peer| peer.delivered.fetch_add(hints, Ordering::Relaxed));
        self.take(peer, hints, bytes);
    }

    /// Hints are of no use any more, and are gone from the store.
    pub(crate) fn needless(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.take(peer, hints, bytes);
    }

    fn take(&self, peer: NodeId, hints: u64, bytes: u64) {
        let bytes = self.peers.with(peer, |peer| {
            subtract(&peer.hints, hints);
            subtract(&peer.bytes, bytes)
        });
        subtract(&self.total, bytes);
    }

    /// The store has no hint for a peer: whatever is still counted was a key that was missed
    /// twice. `counted` is what [`HintLedger::waiting`] said before the store was looked at.
    pub fn none_left(&self, peer: NodeId, counted: (u64, u64)) {
        self.take(peer, counted.0, counted.1);
    }

    /// So many of the hints for a node have timestamps too far ahead to be delivered yet.
    pub(crate) fn stay(&self, peer: NodeId, hints: u64) {
        self.peers.with(peer, |peer| peer.future.store(hints, Ordering::Relaxed));
    }

    /// Hints and bytes of them that wait for a node.
    pub fn waiting(&self, peer: NodeId) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.peers.with(peer, |peer| (load(&peer.hints), load(&peer.bytes)))
    }

    /// Those of them that have timestamps too far ahead to be delivered yet, as far as is known.
    pub fn of_the_future(&self, peer: NodeId) -> u64 {
        self.peers.with(peer, |peer| peer.future.load(Ordering::Relaxed))
    }

    /// Writes that a node missed and of which no hint was kept, since the start.
    pub fn dropped(&self, peer: NodeId) -> u64 {
        self.peers.with(peer, |peer| peer.dropped.load(Ordering::Relaxed))
    }

    /// Hints that a node took, since the start.
    pub fn taken(&self, peer: NodeId) -> u64 {
        self.peers.with(peer, |peer| peer.delivered.load(Ordering::Relaxed))
    }
}

/// Subtracts, but not below 0; what was subtracted.
fn subtract(count: &AtomicU64, by: u64) -> u64 {
    let less = |held: u64| Some(held.saturating_sub(by));
    let held = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    held.unwrap_or(0).min(by)
}
