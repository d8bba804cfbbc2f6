//! The cluster id. Nodes with different cluster ids refuse each other.
//!
//! ```text
//!   new directory of a single-node cluster ─▶ gets an id at once
//!   new directory of a node in a list ─▶ no id ─┬─ founder: no other node has an id ─▶ a new id
//!                                               └─ another node has an id ─▶ the same id, for good
//!   id durable on this node ─▶ reported to the other nodes
//! ```
//!
//! The founder is the node of the view whose name comes first. The id is a hash of the names and of
//! the founder's incarnation, so that two clusters with the same names have different ids. While a
//! node is storing an id, it does not answer requests for its id. So once every node has answered
//! "no id" to the founder, no node has or adopts an id other than the founder's.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::membership::disk_ids::Incarnation;
use crate::node_id::NodeId;

/// A cluster id. 0 on the wire and on disk stands for none; in memory `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

impl ClusterId {
    /// Converts a number from the wire or disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// Converts an id for the wire or disk; 0 = none.
    pub fn number(id: Option<Self>) -> u64 {
        id.map_or(0, |id| id.0)
    }

    /// Returns the cluster id for the sorted node names `names` and the founder's incarnation
    /// `founder`.
    pub fn derive(names: &[&str], founder: Incarnation) -> Self {
        let names = names.join("\n");
        Self(xxh3_64(&[names.as_bytes(), &founder.0.to_le_bytes()].concat()).max(1))
    }
}

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The cluster id of this node, shared by all its threads.
#[derive(Debug)]
pub struct OwnCluster {
    /// The durable id; 0 = none.
    id: AtomicU64,
    /// The id that is being stored.
    storing: Mutex<Option<ClusterId>>,
    /// True if this node has no id, holds data, and knows other nodes.
    is_data_shared: AtomicBool,
    /// Linked nodes that belong to another cluster.
    foreign: Mutex<BTreeSet<NodeId>>,
}

impl OwnCluster {
    /// Creates the state from the id in the directory.
    pub fn new(id: Option<ClusterId>) -> Self {
        Self {
            id: AtomicU64::new(ClusterId::number(id)),
            storing: Mutex::default(),
            is_data_shared: AtomicBool::new(false),
            foreign: Mutex::default(),
        }
    }

    /// Returns the durable id; `None` if no id is durable.
    pub fn id(&self) -> Option<ClusterId> {
        ClusterId::of_number(self.id.load(Ordering::Acquire))
    }

    /// Returns the reply to a node that asks for the id: the durable id, or `Some(None)` if there
    /// is none; `None` (no reply) while an id is being stored.
    pub(crate) fn answer(&self) -> Option<Option<ClusterId>> {
        let storing = self.storing.lock();
        storing.is_none().then(|| self.id())
    }

    /// Begins to store an id. Returns false if this node already has an id or is storing one.
    pub(crate) fn begin_storing(&self, id: ClusterId) -> bool {
        let mut storing = self.storing.lock();
        let is_free = storing.is_none() && self.id().is_none();
        if is_free {
            *storing = Some(id);
        }
        is_free
    }

    /// Notes that the id is durable.
    pub fn mark_durable(&self, id: ClusterId) {
        let mut storing = self.storing.lock();
        assert!(self.id().is_none_or(|own| own == id), "a node takes one id, once");
        self.id.store(id.0, Ordering::Release);
        *storing = None;
    }

    /// Notes that this node holds data written together with other nodes, and has no id.
    pub(crate) fn mark_data_shared(&self) {
        self.is_data_shared.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_data_shared(&self) -> bool {
        self.is_data_shared.load(Ordering::Relaxed)
    }

    /// Notes whether a linked node belongs to another cluster.
    pub(crate) fn set_foreign(&self, node: NodeId, is_foreign: bool) {
        let mut foreign = self.foreign.lock();
        if is_foreign {
            foreign.insert(node);
        } else {
            foreign.remove(&node);
        }
    }

    /// True if the links to a node must be closed: after they were made, the node turned out to
    /// belong to another cluster.
    pub fn is_foreign(&self, node: NodeId) -> bool {
        self.foreign.lock().contains(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_ids_differ_by_the_founders_disk() {
        let names = ["a", "b", "c"];
        let born = |disk| ClusterId::derive(&names, Incarnation(disk));
        assert_ne!(born(1), born(2));
        assert_eq!(born(1), born(1));
        assert_ne!(born(1), ClusterId::derive(&["a", "b"], Incarnation(1)));
    }

    #[test]
    fn no_id_is_reported_while_one_is_being_stored_and_no_second_one_is_accepted() {
        let own = OwnCluster::new(None);
        assert_eq!((own.id(), own.answer()), (None, Some(None)));
        assert!(own.begin_storing(ClusterId(5)));
        assert_eq!((own.id(), own.answer()), (None, None));
        assert!(!own.begin_storing(ClusterId(6)));
        own.mark_durable(ClusterId(5));
        assert_eq!((own.id(), own.answer()), (Some(ClusterId(5)), Some(Some(ClusterId(5)))));
        assert!(!own.begin_storing(ClusterId(6)));
    }
}
