//! The other nodes' knowledge of this node's disk. While a node is not a member, another process
//! may run as the same node with the previous disk. A new disk therefore acknowledges no write
//! until all other nodes have stored its id: from then on they refuse the other process.
//!
//! ```text
//!   this node is not a member ─▶ sends KnowsDisk to each other node, which
//!     ├─ replies Pong: *known*, as long as that node stays connected
//!     ├─ is not reachable: *away*, until that node connects
//!     └─ refuses, because it is connected with another disk of this node, or because this
//!        node was removed from its cluster: *unknown*
//!   no other node is *unknown* ─▶ this node acknowledges the writes that it has stored
//! ```
//!
//! `tests/membership/disks.rs` models this protocol. Nodes that are away are skipped, because a
//! node that is down would otherwise block all writes that need this node's acknowledgment. If the
//! process with the previous disk is connected only to a skipped node, the nodes cannot tell the
//! two processes apart until the network is whole again (docs/design/membership.md).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::node_id::NodeId;

/// Another node's knowledge of this node's disk, as far as this node knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum DiskKnowledge {
    /// The peer's knowledge is unknown, or the peer refuses connections of this node.
    #[default]
    Unknown,
    /// The peer has stored the disk's id, and has stayed connected since its confirmation.
    Known,
    /// The peer could not be reached.
    Away,
}

#[derive(Debug, Default)]
struct PeerEntry {
    knows: DiskKnowledge,
    /// True if the node refused the last connection.
    refuses: bool,
    /// Number of times that the last open connection with the node was lost.
    losses: u64,
}

impl PeerEntry {
    /// Returns the entry with its knowledge and refusal reset. `losses` stays: after a reset to 0,
    /// the reply to an old request would count for a later connection.
    fn without_knowledge(&self) -> Self {
        Self { losses: self.losses, ..Self::default() }
    }
}

/// The other nodes' knowledge of this node's disk, shared by all event loops of this node.
#[derive(Debug, Default)]
pub struct KnownDisk {
    others: Mutex<BTreeMap<NodeId, PeerEntry>>,
    /// True while this node must not acknowledge the writes that it stores.
    waits: AtomicBool,
}

impl KnownDisk {
    /// True if this node may acknowledge the writes that it has stored.
    pub fn acknowledges(&self) -> bool {
        !self.waits.load(Ordering::Acquire)
    }

    /// Sets whether acknowledgments wait until the other nodes know this node's disk.
    pub fn set_waiting(&self, waits: bool) {
        self.waits.store(waits, Ordering::Release);
    }

    /// Notes a new connection with a node. A node that was away must be asked again.
    pub fn on_connect(&self, node: NodeId) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        other.refuses = false;
        if other.knows == DiskKnowledge::Away {
            other.knows = DiskKnowledge::Unknown;
            self.set_waiting(true);
        }
    }

    /// Notes the loss of the last connection with a node. From now on that node may accept another
    /// disk of this node.
    pub fn on_disconnect(&self, node: NodeId) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        other.losses += 1;
        if other.knows == DiskKnowledge::Known {
            other.knows = DiskKnowledge::Unknown;
            self.set_waiting(true);
        }
    }

    /// Notes that a node refused a connection because it is connected with another disk of this
    /// node, or because this node was removed from its cluster.
    pub fn on_refusal(&self, node: NodeId) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        *other = PeerEntry { refuses: true, ..other.without_knowledge() };
        self.set_waiting(true);
    }

    /// Returns the number of times that the last connection with a node was lost.
    pub(crate) fn losses(&self, node: NodeId) -> u64 {
        self.others.lock().get(&node).map_or(0, |other| other.losses)
    }

    /// Notes that a node confirmed the disk. `losses` is the count before the request was sent.
    pub fn mark_known(&self, node: NodeId, losses: u64) {
        self.set_knowledge(node, losses, DiskKnowledge::Known);
    }

    /// Notes that a node was not reached. `losses` is the count before the request was sent.
    pub fn mark_away(&self, node: NodeId, losses: u64) {
        self.set_knowledge(node, losses, DiskKnowledge::Away);
    }

    /// Notes the outcome of a request, unless the last connection was lost after the request was
    /// sent, or the node refuses connections.
    fn set_knowledge(&self, node: NodeId, losses: u64, knows: DiskKnowledge) {
        let mut others = self.others.lock();
        let other = others.entry(node).or_default();
        if other.losses == losses && !other.refuses {
            other.knows = knows;
        }
    }

    /// True if the node has confirmed the disk.
    pub(crate) fn is_known_by(&self, node: NodeId) -> bool {
        self.others.lock().get(&node).is_some_and(|other| other.knows == DiskKnowledge::Known)
    }

    /// Lets acknowledgments proceed if this node is a member, or if each of `nodes` knows this
    /// node's disk or is away. Otherwise acknowledgments wait.
    pub fn update_waiting(&self, is_member: bool, nodes: &[NodeId]) {
        let mut others = self.others.lock();
        if is_member {
            others.values_mut().for_each(|other| *other = other.without_knowledge());
        }
        let is_settled = |node: &NodeId| {
            others.get(node).is_some_and(|other| other.knows != DiskKnowledge::Unknown)
        };
        // Every change of an entry holds the lock, so the flag matches the entries.
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
        disk.update_waiting(false, &[P, Q]);
        assert!(!disk.acknowledges());
        disk.set_knowledge(P, 0, DiskKnowledge::Known);
        disk.update_waiting(false, &[P, Q]);
        assert!(!disk.acknowledges());
        disk.set_knowledge(Q, 0, DiskKnowledge::Away);
        disk.update_waiting(false, &[P, Q]);
        assert!(disk.acknowledges());
        disk.on_connect(Q);
        assert!(!disk.acknowledges(), "it has to be asked now");
        disk.update_waiting(true, &[P, Q]);
        assert!(disk.acknowledges(), "a member is known");
    }

    #[test]
    fn a_node_whose_last_connection_is_lost_may_know_another_disk() {
        let disk = KnownDisk::default();
        disk.set_knowledge(P, 0, DiskKnowledge::Known);
        disk.update_waiting(false, &[P]);
        assert!(disk.acknowledges());
        disk.on_disconnect(P);
        assert!(!disk.acknowledges());
        disk.set_knowledge(P, 0, DiskKnowledge::Known);
        disk.update_waiting(false, &[P]);
        assert!(!disk.acknowledges(), "it was asked before that");
        disk.set_knowledge(P, 1, DiskKnowledge::Known);
        disk.update_waiting(false, &[P]);
        assert!(disk.acknowledges());
    }

    #[test]
    fn a_node_that_refuses_the_disk_is_not_away() {
        let disk = KnownDisk::default();
        disk.on_refusal(P);
        disk.set_knowledge(P, 0, DiskKnowledge::Away);
        disk.update_waiting(false, &[P]);
        assert!(!disk.acknowledges());
        disk.on_connect(P);
        disk.set_knowledge(P, 0, DiskKnowledge::Known);
        disk.update_waiting(false, &[P]);
        assert!(disk.acknowledges());
    }
    /// The reply belongs to a lost connection. Between the loss and the reply, the node refused a
    /// connection, or this node was a member.
    #[test]
    fn an_answer_to_an_earlier_connection_is_ignored() {
        let refused = |disk: &KnownDisk| {
            disk.on_refusal(P);
            disk.on_connect(P);
        };
        let was_member = |disk: &KnownDisk| disk.update_waiting(true, &[P]);
        for between in [refused, was_member] {
            let disk = KnownDisk::default();
            let asked = disk.losses(P);
            disk.on_disconnect(P);
            between(&disk);
            disk.set_knowledge(P, asked, DiskKnowledge::Known);
            disk.update_waiting(false, &[P]);
            assert!(!disk.acknowledges());
            disk.set_knowledge(P, disk.losses(P), DiskKnowledge::Known);
            disk.update_waiting(false, &[P]);
            assert!(disk.acknowledges());
        }
    }
}
