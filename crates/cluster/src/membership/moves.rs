//! How far nodes are in a transition, for all threads of a node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::membership::layout::{Layout, Stage};
use crate::message::{MovesState, NodeId, Waits};

/// See the module.
#[derive(Debug, Default)]
pub struct Moves {
    /// Records that this node has taken in the transition under way, and their bytes.
    records: AtomicU64,
    bytes: AtomicU64,
    /// Nodes from which it has taken all, and how many there are to take from.
    sources: AtomicU64,
    of_sources: AtomicU64,
    /// What it waits for.
    waits: Mutex<Option<Waits>>,
    /// What the nodes have reported, if this one drives the transition.
    reported: Mutex<BTreeMap<NodeId, MovesState>>,
}

impl Moves {
    /// What this node reports of itself, which goes by that layout.
    pub(crate) fn state(&self, layout: &Layout, has_all: bool) -> MovesState {
        let epoch = layout.epoch;
        if layout.stage == Stage::Prepare {
            // What it has taken was in the change before.
            return MovesState { epoch, has_all, ..MovesState::default() };
        }
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let sources = (of(&self.sources) as u16, of(&self.of_sources) as u16);
        let (records, bytes) = (of(&self.records), of(&self.bytes));
        let waits = self.waits.lock().filter(|_| layout.stage == Stage::ReadOld);
        MovesState { epoch, has_all, sources, records, bytes, waits }
    }

    /// A transition begins in which it is to take something.
    pub(crate) fn begin(&self) {
        for number in [&self.records, &self.bytes, &self.sources, &self.of_sources] {
            number.store(0, Ordering::Relaxed);
        }
        *self.waits.lock() = None;
    }

    /// It has taken more.
    pub(crate) fn took(&self, records: usize, bytes: usize) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// From so many nodes it has taken all, of so many.
    pub(crate) fn has_taken_from(&self, done: usize, of: usize) {
        self.sources.store(done as u64, Ordering::Relaxed);
        self.of_sources.store(of as u64, Ordering::Relaxed);
    }

    /// It waits for that, or for nothing. Returns whether that is news.
    pub(crate) fn waits(&self, waits: Option<Waits>) -> bool {
        std::mem::replace(&mut *self.waits.lock(), waits) != waits
    }

    /// What nodes have reported, by their ids; empty = this one does not drive a transition.
    pub fn reported(&self) -> BTreeMap<NodeId, MovesState> {
        self.reported.lock().clone()
    }

    pub(crate) fn publish(&self, reported: BTreeMap<NodeId, MovesState>) {
        *self.reported.lock() = reported;
    }
}
