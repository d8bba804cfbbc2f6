//! Who belongs to the cluster from one change of its members to the next.
//!
//! ```text
//!   Views ──▶ view 7 ◀── a slot, a range, a walk that began with it
//!     │ ▲
//!     │ └─ install(view 8): whatever begins from here on has that one; what is under way stays
//!     ▼    with the one it began with
//!   view 8
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::topology::Topology;

/// The epoch of the members that a cluster begins with.
pub const FIRST_EPOCH: u64 = 1;

/// The cluster's members and who of them holds what, as of one epoch. It never changes. Clones
/// share the tables.
#[derive(Debug, Clone)]
pub struct View {
    /// Which change of the members this is, counted from [`FIRST_EPOCH`].
    pub epoch: u64,
    /// Who belongs to the cluster, and who holds what.
    pub topology: Topology,
}

impl View {
    /// The members that a cluster begins with.
    pub fn first(topology: Topology) -> Self {
        Self { epoch: FIRST_EPOCH, topology }
    }

    /// Whether whoever works by the layout with this digest places every key as this view does:
    /// whatever the epochs are called, they mean the same.
    pub fn agrees_with(&self, layout: u64) -> bool {
        self.topology.digest() == layout
    }
}

/// The view that is in force, for all threads of a node.
#[derive(Debug)]
pub struct Views {
    current: ArcSwap<View>,
    /// Its epoch, for those who keep a view and want to know whether it still is.
    epoch: AtomicU64,
}

impl Views {
    /// With this view in force.
    pub fn new(view: View) -> Self {
        let epoch = AtomicU64::new(view.epoch);
        Self { current: ArcSwap::from_pointee(view), epoch }
    }

    /// With the members of a fixed list in force.
    pub fn fixed(topology: Topology) -> Arc<Self> {
        Arc::new(Self::new(View::first(topology)))
    }

    /// The view in force. Whoever does more than one thing by it keeps it.
    pub fn current(&self) -> Arc<View> {
        self.current.load_full()
    }

    /// Does one thing by the view in force, without a count of who keeps it.
    pub fn with<T>(&self, what: impl FnOnce(&View) -> T) -> T {
        what(&self.current.load())
    }

    /// The epoch of the view in force, or that of the one before for a moment.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// From now on a later view is in force.
    pub fn install(&self, view: View) {
        let epoch = view.epoch;
        assert!(epoch > self.epoch(), "epochs grow, and {epoch} does not");
        self.current.store(Arc::new(view));
        self.epoch.store(epoch, Ordering::Release);
    }
}
