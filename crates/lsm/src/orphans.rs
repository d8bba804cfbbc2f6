//! Orphaned records ("orphans"): user records whose keys are no longer placed on this node. While
//! the store's owner has dropping enabled, compactions drop orphaned records like purgeable ones. A
//! compaction of the whole store that starts while dropping is enabled removes all orphaned records
//! that existed at its start.
//!
//! ```text
//!  drop_orphans ───▶ dropping: each compaction step checks for each record whether its key is
//!        │           placed here
//!  stop_dropping ──▶ the step in progress ends ─▶ is_dropping() = false
//! ```
//!
//! A step drops every record that is not placed here when the step checks the record: values,
//! tombstones and superseded records, of plain and conditional writes. Records of one key can have
//! different numbers of copies. A record can hide an older record of its key that has more copies
//! and is placed here. The store then holds no other record of the key. So the plain write's record
//! that hid it also stays (`local_bytes/hidden_copies.rs`). A conditional write's record may stay
//! if an older record of its key that is placed here arrives during the dropping.
//!
//! A dropped record disappears when the step ends, which is later than the check of the record. The
//! owner therefore keeps a contract from [`PurgeRule::drop_orphans`] until
//! [`PurgeRule::is_dropping`] returns false:
//!
//! * The owner stores no record of a key that is not placed here. If the store still has a record
//!   of such a key, the owner must not count the record's write as stored: the record may disappear
//!   a moment later.
//! * A key that is placed elsewhere does not become placed here.
//!
//! Each step asserts the second rule for a sample of the keys that it dropped, just before their
//! tables are replaced. If the assertion fails, the process ends while all records still exist.
//!
//! [`PurgeRule::drop_orphans`]: crate::PurgeRule::drop_orphans
//! [`PurgeRule::is_dropping`]: crate::PurgeRule::is_dropping

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// A function that returns true if a record of this key with this number of copies is placed on
/// this node.
pub(crate) type PlacementCheck = Box<dyn Fn(&[u8], u8) -> bool + Send + Sync>;

/// The state of dropping, which an engine shares with its owner. A compaction step locks the state
/// twice.
#[derive(Default)]
pub(crate) struct OrphanDropping(Mutex<State>);

#[derive(Default)]
struct State {
    is_placed: Option<Arc<PlacementCheck>>,
    /// Number of times that dropping was enabled: the number of the current or last cleanup. The
    /// check of a table is valid for one cleanup only.
    number: u64,
    /// Number of steps in progress that drop records.
    steps: usize,
}

impl OrphanDropping {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(crate) fn begin(&self, is_placed: PlacementCheck) {
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

    /// Number of the current cleanup; `None` = dropping is disabled.
    pub(crate) fn number(&self) -> Option<u64> {
        let state = self.state();
        state.is_placed.as_ref().map(|_| state.number)
    }

    /// Starts a step; `None` = the step drops no orphaned records.
    pub(crate) fn step(&self) -> Option<DropStep<'_>> {
        let mut state = self.state();
        let is_placed = Arc::clone(state.is_placed.as_ref()?);
        state.steps += 1;
        Some(DropStep { number: state.number, is_placed, orphans: self })
    }
}

/// A compaction step that drops orphaned records. The step ends when this value is dropped.
pub(crate) struct DropStep<'a> {
    pub(crate) number: u64,
    is_placed: Arc<PlacementCheck>,
    orphans: &'a OrphanDropping,
}

impl DropStep<'_> {
    pub(crate) fn is_placed(&self, key: &[u8], copies: u8) -> bool {
        (self.is_placed)(key, copies)
    }
}

impl Drop for DropStep<'_> {
    fn drop(&mut self) {
        self.orphans.state().steps -= 1;
    }
}
