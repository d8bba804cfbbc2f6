//! The other nodes that know this node's disk. While a node is no member, another process may run
//! as the same node with the disk of before. A new disk therefore acknowledges no write until all
//! other nodes have stored that they know it: from then on they refuse the other process.
//!
//! ```text
//!   no member ─▶ KnowsDisk ─▶ each other node ─┬─ Pong: known, as long as it is connected
//!                                              ├─ no connection: away, until there is one
//!                                              └─ refused, for another disk: waited for
//!   known by all that are not away ─▶ what is stored is acknowledged
//! ```
//!
//! Modelled in `tests/membership/disks.rs`. A node that is away is passed over, or one that is down
//! would hold up all writes that need a new disk; if the node of before is connected with that one
//! alone, the two are told apart only when the network is whole again (docs/membership-model.md).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::node_id::NodeId;

/// What another node is known to know of this node's disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Knows {
    /// Nothing is known of that, or the node is connected with another disk.
    #[default]
    Unknown,
    /// The node knows it durably, and was connected ever since it said so.
    Known,
    /// The node could not be reached.
    Away,
}

#[derive(Debug, Default)]
struct Other {
    knows: Knows,
    /// Whether it refused the last connection, for it has one with another disk.
    refuses: bool,
    /// How often the last connection with it was lost.
    losses: u64,
}

impl Other {
    /// Nothing is known of it any more. Its losses go on being counted: an answer from before
    /// would count for a later connection otherwise.
    fn forgotten(&self) -> Self {
        Self { losses: self.losses, ..Self::default() }
    }
}

/// What other nodes know of this node's disk. Shared by the loops of a node.
#[derive(Debug, Default)]
pub struct KnownDisk {
    others: Mutex<BTreeMap<NodeId, Other>>,
    /// Whether what this node stores is not to be acknowledged yet.
    waits: AtomicBool,
}

impl KnownDisk {
    /// Whether what this node stores is to be acknowledged.
    pub(crate) fn acknowledges(&self) -> bool {
        !self.waits.load(Ordering::Acquire)
    }

    /// Whether this node waits until its disk is known: it is no member, or may prove to be none.
    pub fn set_waiting(&self, waits: bool) {
        self.waits.store(waits, Ordering::Release);
    }

    /// A connection with a node is made.
    pub fn connected(&self, node: NodeId) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        other.refuses = false;
        if other.knows == Knows::Away {
            other.knows = Knows::Unknown;
            self.set_waiting(true);
        }
    }

    /// The last connection with a node is lost: it may listen to another disk by now.
    pub fn disconnected(&self, node: NodeId) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        other.losses += 1;
        if other.knows == Knows::Known {
            other.knows = Knows::Unknown;
            self.set_waiting(true);
        }
    }

    /// A node refuses a connection, for it has one with another disk of this node.
    pub fn refused(&self, node: NodeId) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        *other = Other { refuses: true, ..other.forgotten() };
        self.set_waiting(true);
    }

    /// How often the last connection with a node was lost.
    pub(crate) fn losses(&self, node: NodeId) -> u64 {
        self.others.lock().get(&node).map_or(0, |other| other.losses)
    }

    /// A node that was asked after so many losses of a connection says that it knows the disk.
    pub fn answered(&self, node: NodeId, losses: u64) {
        self.note(node, losses, Knows::Known);
    }

    /// A node that was asked after so many losses of a connection was not reached.
    pub(crate) fn unreached(&self, node: NodeId, losses: u64) {
        self.note(node, losses, Knows::Away);
    }

    /// What comes of asking a node after so many losses of a connection.
    fn note(&self, node: NodeId, losses: u64, knows: Knows) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        if other.losses == losses && !other.refuses {
            other.knows = knows;
        }
    }

    /// Whether a node is known to know the disk.
    pub(crate) fn is_known_by(&self, node: NodeId) -> bool {
        self.others.lock().get(&node).is_some_and(|other| other.knows == Knows::Known)
    }

    /// Acknowledges from now on if this node is a member or all others know the disk or are away.
    pub(crate) fn look(&self, is_member: bool, nodes: &[NodeId]) {
        let mut others = self.others.lock();
        if is_member {
            others.values_mut().for_each(|other| *other = other.forgotten());
        }
        let is_settled =
            |node: &NodeId| others.get(node).is_some_and(|other| other.knows != Knows::Unknown);
        // Whoever changes what is known holds the lock.
        self.waits.store(!is_member && !nodes.iter().all(is_settled), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: NodeId = NodeId(1);
    const Q: NodeId = NodeId(2);

    #[test]
    fn nothing_is_acknowledged_before_all_know_the_disk_or_are_away() {
        let disk = KnownDisk::default();
        disk.look(false, &[P, Q]);
        assert!(!disk.acknowledges());
        disk.note(P, 0, Knows::Known);
        disk.look(false, &[P, Q]);
        assert!(!disk.acknowledges());
        disk.note(Q, 0, Knows::Away);
        disk.look(false, &[P, Q]);
        assert!(disk.acknowledges());
        disk.connected(Q);
        assert!(!disk.acknowledges(), "it has to be asked now");
        disk.look(true, &[P, Q]);
        assert!(disk.acknowledges(), "a member is known");
    }

    #[test]
    fn a_node_whose_last_connection_is_lost_may_know_another_disk() {
        let disk = KnownDisk::default();
        disk.note(P, 0, Knows::Known);
        disk.look(false, &[P]);
        assert!(disk.acknowledges());
        disk.disconnected(P);
        assert!(!disk.acknowledges());
        disk.note(P, 0, Knows::Known);
        disk.look(false, &[P]);
        assert!(!disk.acknowledges(), "it was asked before that");
        disk.note(P, 1, Knows::Known);
        disk.look(false, &[P]);
        assert!(disk.acknowledges());
    }

    #[test]
    fn a_node_that_refuses_the_disk_is_not_away() {
        let disk = KnownDisk::default();
        disk.refused(P);
        disk.note(P, 0, Knows::Away);
        disk.look(false, &[P]);
        assert!(!disk.acknowledges());
        disk.connected(P);
        disk.note(P, 0, Knows::Known);
        disk.look(false, &[P]);
        assert!(disk.acknowledges());
    }
    /// It says so of a connection that is lost, and was refused one, or was a member's, since.
    #[test]
    fn an_answer_from_before_does_not_count_for_a_later_connection() {
        let refused = |disk: &KnownDisk| {
            disk.refused(P);
            disk.connected(P);
        };
        let was_member = |disk: &KnownDisk| disk.look(true, &[P]);
        for between in [refused, was_member] {
            let disk = KnownDisk::default();
            let asked = disk.losses(P);
            disk.disconnected(P);
            between(&disk);
            disk.note(P, asked, Knows::Known);
            disk.look(false, &[P]);
            assert!(!disk.acknowledges());
            disk.note(P, disk.losses(P), Knows::Known);
            disk.look(false, &[P]);
            assert!(disk.acknowledges());
        }
    }
}
