//! Requests to drop *orphaned records* from this node's store: records of keys that the placement
//! in force puts only on other nodes.
//!
//! ```text
//!  request() ─▶ is_pending() ─▶ DropOrphans ─▶ the store has dropped them ─▶ mark_completed()
//! ```
//!
//! Before a caller requests the drop, the view that orphans the records must be in force, and the
//! store must hold all writes admitted under earlier views: records that arrive later may remain.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of requested and of completed drops of orphaned records.
#[derive(Debug, Default)]
pub struct OrphanDrops {
    /// The number of requests so far.
    wanted: AtomicU64,
    /// The number of requests that are completed.
    dropped: AtomicU64,
}

impl OrphanDrops {
    /// Requests that the store drop all its records that the view in force orphans.
    pub fn request(&self) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
    }

    /// True if orphaned records may remain after a request. Until they are dropped, the node stores
    /// no record of a key that it does not hold ([`Shared::holds`](crate::Shared::holds)), and no
    /// layout assigns such a key to it.
    pub fn is_pending(&self) -> bool {
        self.dropped.load(Ordering::Acquire) < self.request_count()
    }

    /// Returns the number of requests so far.
    pub(crate) fn request_count(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// Notes that the first `times` requests are completed.
    pub(crate) fn mark_completed(&self, times: u64) {
        self.dropped.fetch_max(times, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::clock::Clock;
    use crate::membership::disk_ids::Incarnation;
    use crate::membership::logs::Logs;
    use crate::membership::state::{Membership, MembershipState};
    use crate::message::NodeId;
    use crate::placement::topology::{Member, Topology};
    use crate::placement::view::View;
    use crate::shared::Shared;

    const KEY: &[u8] = b"k";

    /// The nodes from this id to 2. Node 0 holds the key only if it is one of them.
    fn nodes(from: u16) -> Topology {
        let member = |id: u16| Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
        Topology::of((from..3).map(|id| (NodeId(id), member(id))).collect(), 3).unwrap()
    }

    #[test]
    fn a_leaving_key_is_placed_here_until_it_has_left_and_an_arriving_one_after_the_orphan_drop() {
        let membership = Membership::new(MembershipState::Member, 0, true);
        let (clock, logs) =
            (Arc::new(Clock::start(1, 0, 0)), Arc::new(Logs::first(Incarnation(1))));
        let shared = Shared::new(nodes(0), NodeId(0), clock, membership, 0, logs);
        let under = |view: View, empties: bool| {
            shared.membership.views.install(view);
            shared.replica.write_checks.set_refuses_moving(empties);
            shared.holds(KEY, 0)
        };
        assert!(shared.holds(KEY, 0));
        assert!(under(View::new_moving(2, 2, nodes(0), nodes(1)), false), "it is read here");
        assert!(
            under(View::new_moving(3, 2, nodes(1), nodes(0)), false),
            "it is written here still"
        );
        assert!(!under(View::new_settled(4, 4, nodes(1)), false));
        assert!(!under(View::new_moving(5, 5, nodes(1), nodes(0)), true), "it is of another time");
        assert!(
            under(View::new_moving(6, 5, nodes(1), nodes(0)), false),
            "it is written here by now"
        );
        assert!(under(View::new_settled(7, 7, nodes(0)), false));
    }
}
