//! Rebalance progress of the nodes in a transition, shared by all threads of a node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::membership::layout::{Layout, Stage};
use crate::message::{MovesState, NodeId, Waits};

/// This node's rebalance progress and that reported by the other nodes.
#[derive(Debug, Default)]
pub struct TransitionProgress {
    /// Records, and their bytes, that this node has pulled in the current transition.
    records: AtomicU64,
    bytes: AtomicU64,
    /// Number of sources that are pulled completely, and of all sources.
    sources: AtomicU64,
    of_sources: AtomicU64,
    /// The source for whose future records this node waits, and the end of the wait.
    waits: Mutex<Option<Waits>>,
    /// Progress reported by the nodes, if this node drives the transition.
    reported: Mutex<BTreeMap<NodeId, MovesState>>,
}

impl TransitionProgress {
    /// Returns this node's progress report under `layout`.
    pub(crate) fn state(&self, layout: &Layout, has_all: bool) -> MovesState {
        let epoch = layout.epoch;
        if layout.stage == Stage::Prepare {
            // The counters still belong to the previous transition.
            return MovesState { epoch, has_all, ..MovesState::default() };
        }
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let sources = (of(&self.sources) as u16, of(&self.of_sources) as u16);
        let (records, bytes) = (of(&self.records), of(&self.bytes));
        let waits = self.waits.lock().filter(|_| layout.stage == Stage::ReadOld);
        MovesState { epoch, has_all, sources, records, bytes, waits }
    }

    /// Resets the counters at the beginning of a transition.
    pub(crate) fn begin(&self) {
        for number in [&self.records, &self.bytes, &self.sources, &self.of_sources] {
            number.store(0, Ordering::Relaxed);
        }
        *self.waits.lock() = None;
    }

    /// Counts pulled records and bytes.
    pub(crate) fn count_pulled(&self, records: usize, bytes: usize) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets the number of completely pulled sources (`done`) and of all sources (`of`).
    pub(crate) fn set_sources_pulled(&self, done: usize, of: usize) {
        self.sources.store(done as u64, Ordering::Relaxed);
        self.of_sources.store(of as u64, Ordering::Relaxed);
    }

    /// Sets the source for whose future records this node waits, if any. Returns true if the value
    /// changed.
    pub(crate) fn waits(&self, waits: Option<Waits>) -> bool {
        std::mem::replace(&mut *self.waits.lock(), waits) != waits
    }

    /// Returns the reported progress by node; empty if this node drives no transition.
    pub fn reported_progress(&self) -> BTreeMap<NodeId, MovesState> {
        self.reported.lock().clone()
    }

    pub(crate) fn publish(&self, reported: BTreeMap<NodeId, MovesState>) {
        *self.reported.lock() = reported;
    }
}
