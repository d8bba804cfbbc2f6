//! Which cluster a node belongs to.
//!
//! ```text
//!   a directory for a node alone ──▶ its id, at once
//!   a directory for a list: no id ─┬─ the founder asks all others; none has one ─▶ the id is born
//!                                  └─ another node has one ─▶ taken over, once
//!   durable here ─▶ told to others
//! ```
//!
//! The founder is the node of the view whose name comes first. The id is a hash of the names and of
//! the founder's incarnation, so that two clusters with the same names have different ones. A node
//! that stores an id answers no question about it until that is durable: the founder is told *none*
//! only by nodes that take no other id afterwards. Nodes with different ids refuse each other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::membership::directory::Incarnation;
use crate::node_id::NodeId;

/// The id of a cluster. On the wire and on disk 0 stands for none, here `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

impl ClusterId {
    /// That of a number on the wire or on disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// The number of an id, or 0 for none.
    pub fn number(id: Option<Self>) -> u64 {
        id.map_or(0, |id| id.0)
    }

    /// The id that a founder with this disk gives the cluster of these nodes. `names` are sorted.
    pub fn born(names: &[&str], founder: Incarnation) -> Self {
        let names = names.join("\n");
        Self(xxh3_64(&[names.as_bytes(), &founder.0.to_le_bytes()].concat()).max(1))
    }
}

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The cluster that this node belongs to, for all its threads.
#[derive(Debug)]
pub struct OwnCluster {
    /// The id that is durable; 0 = none.
    id: AtomicU64,
    /// The id that is being stored.
    storing: Mutex<Option<ClusterId>>,
    /// This node has no id, holds data, and knows other nodes.
    has_company: AtomicBool,
    /// Nodes that a link leads to and that belong to another cluster.
    foreign: Mutex<BTreeSet<NodeId>>,
}

impl OwnCluster {
    /// The cluster that the directory says.
    pub fn new(id: Option<ClusterId>) -> Self {
        Self {
            id: AtomicU64::new(ClusterId::number(id)),
            storing: Mutex::default(),
            has_company: AtomicBool::new(false),
            foreign: Mutex::default(),
        }
    }

    /// The id, once it is durable.
    pub fn id(&self) -> Option<ClusterId> {
        ClusterId::of_number(self.id.load(Ordering::Acquire))
    }

    /// The answer to another node; `None` = an id is being stored, so no answer can be given yet.
    pub(crate) fn answer(&self) -> Option<Option<ClusterId>> {
        let storing = self.storing.lock();
        storing.is_none().then(|| self.id())
    }

    /// An id is to be stored; `false` = there is one, or one is being stored.
    pub(crate) fn begins_to_store(&self, id: ClusterId) -> bool {
        let mut storing = self.storing.lock();
        let is_free = storing.is_none() && self.id().is_none();
        if is_free {
            *storing = Some(id);
        }
        is_free
    }

    /// The id is durable.
    pub fn stored(&self, id: ClusterId) {
        let mut storing = self.storing.lock();
        assert!(self.id().is_none_or(|own| own == id), "a node takes one id, once");
        self.id.store(id.0, Ordering::Release);
        *storing = None;
    }

    /// This node holds data that it took together with others, and has no id.
    pub(crate) fn notes_company(&self) {
        self.has_company.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_company(&self) -> bool {
        self.has_company.load(Ordering::Relaxed)
    }

    /// A node to which a link leads belongs to another cluster, or does not any more.
    pub(crate) fn notes_foreign(&self, node: NodeId, is_foreign: bool) {
        let mut foreign = self.foreign.lock();
        if is_foreign {
            foreign.insert(node);
        } else {
            foreign.remove(&node);
        }
    }

    /// Whether the links to a node are to be closed: it belongs to another cluster, which was not
    /// known when they were made.
    pub fn is_foreign(&self, node: NodeId) -> bool {
        self.foreign.lock().contains(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_founders_disk_tells_clusters_of_the_same_names_apart() {
        let names = ["a", "b", "c"];
        let born = |disk| ClusterId::born(&names, Incarnation(disk));
        assert_ne!(born(1), born(2));
        assert_eq!(born(1), born(1));
        assert_ne!(born(1), ClusterId::born(&["a", "b"], Incarnation(1)));
    }

    #[test]
    fn nothing_is_told_while_an_id_is_stored_and_no_second_one_is_taken() {
        let own = OwnCluster::new(None);
        assert_eq!((own.id(), own.answer()), (None, Some(None)));
        assert!(own.begins_to_store(ClusterId(5)));
        assert_eq!((own.id(), own.answer()), (None, None));
        assert!(!own.begins_to_store(ClusterId(6)));
        own.stored(ClusterId(5));
        assert_eq!((own.id(), own.answer()), (Some(ClusterId(5)), Some(Some(ClusterId(5)))));
        assert!(!own.begins_to_store(ClusterId(6)));
    }
}
