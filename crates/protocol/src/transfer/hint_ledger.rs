//! The hint ledger: counts the hints waiting for each node, so that all event loops together stay
//! within one limit.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::by_node::ByNode;
use crate::message::NodeId;
use record::Record;

/// Limit on the bytes of hints that a node keeps for all other nodes together. Beyond the limit,
/// missed writes are counted and their partitions marked (`missed.rs`): a replica that misses more
/// is better repaired as a whole.
pub(crate) const MAX_HINT_BYTES: u64 = 1 << 30;

/// Bytes that a hint counts for besides key and record: its target's name and its header.
const HINT_OVERHEAD: u64 = 64;

/// Returns the bytes that a hint counts for in the limit.
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

/// Counts of waiting hints, by target node. A key missed twice counts twice until its hint is
/// delivered, although the store keeps only the newer hint.
#[derive(Debug, Default)]
pub struct HintLedger {
    total: AtomicU64,
    peers: ByNode<WaitingHints>,
}

impl HintLedger {
    /// Reserves space for a hint of this many bytes, until the hint is kept or lost. Returns
    /// `false`, and counts the hint as dropped, if the limit does not allow it.
    pub fn admit(&self, peer: NodeId, bytes: u64) -> bool {
        let room = |total: u64| Some(total + bytes).filter(|sum| *sum <= MAX_HINT_BYTES);
        let admitted = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if !admitted {
            self.peers.with(peer, |peer| peer.dropped.fetch_add(1, Ordering::Relaxed));
        }
        admitted
    }

    /// Notes that an admitted hint is in the store.
    pub(crate) fn note_stored(&self, peer: NodeId, bytes: u64) {
        self.add(peer, 1, bytes);
    }

    fn add(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.peers.with(peer, |peer| {
            peer.bytes.fetch_add(bytes, Ordering::Relaxed);
            peer.hints.fetch_add(hints, Ordering::Relaxed);
        });
    }

    /// Counts hints found in the store at the start.
    pub fn count_found(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.add(peer, hints, bytes);
    }

    /// Releases the reservation of an admitted hint that could not be stored.
    pub(crate) fn release(&self, peer: NodeId, bytes: u64) {
        self.peers.with(peer, |peer| peer.dropped.fetch_add(1, Ordering::Relaxed));
        subtract(&self.total, bytes);
    }

    /// Notes that hints were delivered, and are gone from the store.
    pub fn note_delivered(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.peers.with(peer, |peer| peer.delivered.fetch_add(hints, Ordering::Relaxed));
        self.subtract_hints(peer, hints, bytes);
    }

    /// Notes that hints are no longer needed, and are gone from the store.
    pub(crate) fn count_needless(&self, peer: NodeId, hints: u64, bytes: u64) {
        self.subtract_hints(peer, hints, bytes);
    }

    fn subtract_hints(&self, peer: NodeId, hints: u64, bytes: u64) {
        let bytes = self.peers.with(peer, |peer| {
            subtract(&peer.hints, hints);
            subtract(&peer.bytes, bytes)
        });
        subtract(&self.total, bytes);
    }

    /// Removes hints from a peer's count that are not in the store, because a key missed twice was
    /// counted twice. `counted` is their number and bytes, based on [`HintLedger::waiting_hints`]
    /// before the store was read.
    pub fn clear(&self, peer: NodeId, counted: (u64, u64)) {
        self.subtract_hints(peer, counted.0, counted.1);
    }

    /// Sets the number of a node's hints whose timestamps are too far ahead for delivery.
    pub(crate) fn stay(&self, peer: NodeId, hints: u64) {
        self.peers.with(peer, |peer| peer.future.store(hints, Ordering::Relaxed));
    }

    /// Returns the number and bytes of the hints waiting for a node.
    pub fn waiting_hints(&self, peer: NodeId) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.peers.with(peer, |peer| (load(&peer.hints), load(&peer.bytes)))
    }

    /// Returns the last known number of a node's hints whose timestamps are too far ahead for
    /// delivery.
    pub fn future_hints(&self, peer: NodeId) -> u64 {
        self.peers.with(peer, |peer| peer.future.load(Ordering::Relaxed))
    }

    /// Returns the number of writes, since the start, that a node missed and for which no hint was
    /// kept.
    pub fn dropped_count(&self, peer: NodeId) -> u64 {
        self.peers.with(peer, |peer| peer.dropped.load(Ordering::Relaxed))
    }

    /// Returns the number of hints delivered to a node, since the start.
    pub fn delivered_count(&self, peer: NodeId) -> u64 {
        self.peers.with(peer, |peer| peer.delivered.load(Ordering::Relaxed))
    }
}

/// Subtracts, but not below 0; returns the amount subtracted.
fn subtract(count: &AtomicU64, by: u64) -> u64 {
    let less = |held: u64| Some(held.saturating_sub(by));
    let held = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    held.unwrap_or(0).min(by)
}
