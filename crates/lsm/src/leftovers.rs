//! Users' records whose keys are placed on other nodes by now, and how they go: while their owner
//! has *leftovers* dropped, compactions drop them as they drop what may be purged, and one of the
//! whole store that begins meanwhile leaves none of those that were there.
//!
//! ```text
//!  drop_leftovers ─▶ dropping: each step of a compaction asks, of each record, whether its key
//!        │           is placed here
//!  stop_dropping ──▶ the step under way ends ─▶ is_dropping() = false
//! ```
//!
//! What is dropped is whatever was not placed here when the step looked: a value, a tombstone, what
//! is superseded, made by plain or conditional writes. A plain record counts as placed here if one
//! is that it has hidden (`record/reach.rs`); what a conditional write made may stay where
//! something older that is placed here came meanwhile. It is gone when the step ends, which is
//! later. So the owner keeps a contract, from [`PurgeRule::drop_leftovers`] until
//! [`PurgeRule::is_dropping`] says no:
//!
//! * It stores nothing of a key that is not placed here, and holds nobody's write for stored
//!   because of what is still there of such a key: that may go a moment later.
//! * No key that was not placed here becomes placed here.
//!
//! A step asserts the second, of some of the keys that it dropped, just before their tables are
//! replaced: the process ends then, with all of them still there.
//!
//! [`PurgeRule::drop_leftovers`]: crate::PurgeRule::drop_leftovers
//! [`PurgeRule::is_dropping`]: crate::PurgeRule::is_dropping

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// Whether a record of this key, with so many copies, is placed here.
pub(crate) type IsPlaced = Box<dyn Fn(&[u8], u8) -> bool + Send + Sync>;

/// What an engine and its owner share of it. A step of a compaction locks it twice.
#[derive(Default)]
pub(crate) struct Leftovers(Mutex<State>);

#[derive(Default)]
struct State {
    is_placed: Option<Arc<IsPlaced>>,
    /// Counts how often their dropping began: what it says of a table holds for one time.
    number: u64,
    /// Steps under way that drop.
    steps: usize,
}

impl Leftovers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(crate) fn begin(&self, is_placed: IsPlaced) {
        let mut state = self.state();
        state.is_placed = Some(Arc::new(is_placed));
        state.number += 1;
    }

    pub(crate) fn end(&self) {
        self.state().is_placed = None;
    }

    pub(crate) fn is_dropping(&self) -> bool {
        let state = self.state();
        state.is_placed.is_some() || state.steps > 0
    }

    /// Which time it is that they are dropped; `None` = they are not.
    pub(crate) fn number(&self) -> Option<u64> {
        let state = self.state();
        state.is_placed.as_ref().map(|_| state.number)
    }

    /// A step begins; `None` = it drops none.
    pub(crate) fn step(&self) -> Option<Dropping<'_>> {
        let mut state = self.state();
        let is_placed = Arc::clone(state.is_placed.as_ref()?);
        state.steps += 1;
        Some(Dropping { number: state.number, is_placed, leftovers: self })
    }
}

/// A step of a compaction that drops leftovers, until it is dropped itself.
pub(crate) struct Dropping<'a> {
    pub(crate) number: u64,
    is_placed: Arc<IsPlaced>,
    leftovers: &'a Leftovers,
}

impl Dropping<'_> {
    pub(crate) fn is_placed(&self, key: &[u8], copies: u8) -> bool {
        (self.is_placed)(key, copies)
    }
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        self.leftovers.state().steps -= 1;
    }
}
