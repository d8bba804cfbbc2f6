//! Whether this node's store may hold *leftovers*, records of keys that are placed on other nodes
//! by now, that are to go.
//!
//! ```text
//!  want ─▶ wanted() ─▶ DropLeftovers ─▶ the store has dropped them ─▶ no
//! ```
//!
//! Whoever wants it does so once the view is in force by which they are leftovers, and what was let
//! pass under an earlier one is in the store: what comes later may stay.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// How often they were wanted to go …
    wanted: AtomicU64,
    /// … and up to which of these times they are gone.
    dropped: AtomicU64,
}

impl Leftovers {
    /// From now on those are wanted to go that are in the store, by the view that is in force.
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether some may not be gone that were wanted to go. Until then the node stores nothing of a
    /// key that it does not hold ([`Shared::holds`](crate::Shared::holds)), and no such key becomes
    /// one that it holds.
    pub fn wanted(&self) -> bool {
        self.dropped.load(Ordering::Acquire) < self.times()
    }

    /// How often they were wanted to go.
    pub(crate) fn times(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// Those are gone that were there when they were wanted to go for so many times.
    pub(crate) fn dropped(&self, times: u64) {
        self.dropped.fetch_max(times, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::clock::Clock;
    use crate::membership::directory::Incarnation;
    use crate::membership::logs::Logs;
    use crate::membership::state::{Membership, MembershipState};
    use crate::message::NodeId;
    use crate::placement::topology::{Member, Topology};
    use crate::placement::view::View;
    use crate::shared::Shared;

    const KEY: &[u8] = b"k";

    /// The nodes from the one of this id on; the first has no key if it is not there.
    fn nodes(from: u16) -> Topology {
        let member = |id: u16| Member { name: format!("n{id}"), zone: String::new(), weight: 1 };
        Topology::of((from..3).map(|id| (NodeId(id), member(id))).collect(), 3).unwrap()
    }

    #[test]
    fn what_leaves_is_held_until_it_has_left_and_what_comes_once_the_node_is_empty() {
        let membership = Membership::new(MembershipState::Member, 0, true);
        let (clock, logs) =
            (Arc::new(Clock::start(1, 0, 0)), Arc::new(Logs::first(Incarnation(1))));
        let shared = Shared::new(nodes(0), NodeId(0), clock, membership, 0, logs);
        let under = |view: View, empties: bool| {
            shared.membership.views.install(view);
            shared.replica.before_writes.set_empty(empties);
            shared.holds(KEY, 0)
        };
        assert!(shared.holds(KEY, 0));
        assert!(under(View::moving(2, 2, nodes(0), nodes(1)), false), "it is read here");
        assert!(under(View::moving(3, 2, nodes(1), nodes(0)), false), "it is written here still");
        assert!(!under(View::settled(4, 4, nodes(1)), false));
        assert!(!under(View::moving(5, 5, nodes(1), nodes(0)), true), "it is of another time");
        assert!(under(View::moving(6, 5, nodes(1), nodes(0)), false), "it is written here by now");
        assert!(under(View::settled(7, 7, nodes(0)), false));
    }
}
