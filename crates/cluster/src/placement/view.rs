//! Views: who belongs to the cluster, and who holds what, from one change of the members to the
//! next.
//!
//! ```text
//!   Views ──▶ view 7 ◀── a request, a range, a repair that began with it
//!     │ ▲
//!     │ └─ install(view 8): whatever begins from here on has that one
//!     ▼
//!   view 8
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use xxhash_rust::xxh3::xxh3_64;

use crate::by_node::ByNode;
use crate::node_id::NodeId;
use crate::placement::topology::{Topology, partition_of};

/// The epoch of the members that a cluster begins with.
pub const FIRST_EPOCH: u64 = 1;

/// What tells a view from others: what a node says of the one that it goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId {
    /// Its epoch: who has a lower one is behind.
    pub epoch: u64,
    /// Digest of all that decides where keys are written and read. Two views of one digest mean the
    /// same, whatever their epochs: their layouts differ in the council alone.
    pub placement: u64,
}

/// The cluster's members and who of them holds what, as of one epoch. It never changes. Clones
/// share the tables.
#[derive(Debug, Clone)]
pub struct View {
    /// Which change of the members this is, counted from [`FIRST_EPOCH`].
    pub epoch: u64,
    /// Who holds what. While partitions move: as reads and promises go by it.
    pub topology: Topology,
    /// While partitions move: who holds what afterwards, or did before. Its replicas are written
    /// too, and hold what is told.
    pub other: Option<Topology>,
    /// Before partitions move: who is to hold what. Nobody goes by that yet; its nodes are known.
    pub next: Option<Topology>,
    placement: u64,
}

impl View {
    /// The members that a cluster begins with.
    pub fn first(topology: Topology) -> Self {
        Self::settled(FIRST_EPOCH, FIRST_EPOCH, topology)
    }

    /// No partition moves since the epoch `began`.
    pub fn settled(epoch: u64, began: u64, topology: Topology) -> Self {
        let placement = placement(began, &topology, None);
        Self { epoch, topology, other: None, next: None, placement }
    }

    /// The same, and partitions are about to move.
    pub fn prepared(epoch: u64, began: u64, topology: Topology, next: Topology) -> Self {
        Self { next: Some(next), ..Self::settled(epoch, began, topology) }
    }

    /// Partitions move since the epoch `began`: `read` answers, and `other` is written too.
    pub fn moving(epoch: u64, began: u64, read: Topology, other: Topology) -> Self {
        let placement = placement(began, &read, Some(&other));
        Self { epoch, topology: read, other: Some(other), next: None, placement }
    }

    /// The view of a cluster that goes by this decree ([`crate::layout::Decree`]): a node that does
    /// not is of another placement, wherever it writes and reads.
    pub(crate) fn decreed(mut self, number: u64) -> Self {
        self.placement = xxh3_64([self.placement, number].map(u64::to_le_bytes).as_flattened());
        self
    }

    /// Whether it has one node, and none is about to come or to go.
    pub fn is_alone(&self) -> bool {
        self.topology.nodes() == 1 && self.nodes() == 1
    }

    /// How many nodes belong to it.
    pub fn nodes(&self) -> usize {
        self.topology.nodes() + self.only_other().count()
    }

    /// The nodes that belong to it, now or while partitions move: those that are read, then the
    /// rest, each in the order of their names.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.topology.ids().chain(self.only_other())
    }

    /// Those of the other set that are not in the one that is read.
    fn only_other(&self) -> impl Iterator<Item = NodeId> {
        let ids = self.other.iter().chain(&self.next).flat_map(Topology::ids);
        ids.filter(|node| !self.topology.contains(*node))
    }

    /// Whether a node is to come, and partitions do not move yet: it holds nothing.
    pub fn awaits(&self, node: NodeId) -> bool {
        let comes = self.next.as_ref().is_some_and(|next| next.contains(node));
        comes && !self.topology.contains(node)
    }

    /// Whether there is such a node.
    pub fn awaits_nodes(&self) -> bool {
        self.next.iter().flat_map(Topology::ids).any(|node| self.awaits(node))
    }

    /// Whether a node belongs to it now, and is to stay: while partitions move, it is in both sets.
    pub fn keeps(&self, node: NodeId) -> bool {
        self.sets().all(|topology| topology.contains(node))
    }

    /// The node of this name.
    pub fn named(&self, name: &str) -> Option<NodeId> {
        self.sets().find_map(|topology| topology.own(name))
    }

    /// Whether a node belongs to it and has this name.
    pub fn has_named(&self, node: NodeId, name: &str) -> bool {
        self.sets().any(|topology| topology.contains(node) && topology.member(node).name == name)
    }

    fn sets(&self) -> impl Iterator<Item = &Topology> {
        [&self.topology].into_iter().chain(&self.other).chain(&self.next)
    }

    /// Whether a node is to remember what a partition's replicas of before did: the partition moves
    /// to it, or has fewer replicas from then on, and it is one of them.
    pub(crate) fn hands_over(&self, partition: u16, node: NodeId) -> bool {
        let (before, Some(after)) = (&self.topology, &self.other) else { return false };
        after.holds(node, partition, 0)
            && (!before.holds(node, partition, 0) || before.copies_of(0) > after.copies_of(0))
    }

    /// Whether a partition moves: its replicas of before and of after, by the default number, are
    /// not the same.
    pub(crate) fn moves(&self, partition: u16) -> bool {
        let (read, Some(other)) = (&self.topology, &self.other) else { return false };
        let mut replicas = Vec::new();
        read.replicas(partition, read.copies_of(0), &mut replicas);
        read.copies_of(0) != other.copies_of(0)
            || !replicas.iter().all(|node| other.holds(*node, partition, 0))
    }

    /// Whether a node is among the first `copies` replicas of a key, 0 being the default number;
    /// while partitions move, among those before or after.
    pub fn places(&self, node: NodeId, key: &[u8], copies: u8) -> bool {
        let partition = partition_of(key);
        let holds = |topology: &Topology| topology.holds(node, partition, copies);
        holds(&self.topology) || self.other.as_ref().is_some_and(holds)
    }

    /// What tells it from others.
    pub fn id(&self) -> ViewId {
        ViewId { epoch: self.epoch, placement: self.placement }
    }

    /// Whether a node belongs to it, now or while partitions move.
    pub fn has(&self, node: NodeId) -> bool {
        self.sets().any(|topology| topology.contains(node))
    }

    /// Whether a node that goes by that view writes and reads every key as this view does.
    pub fn agrees_with(&self, theirs: ViewId) -> bool {
        self.placement == theirs.placement
    }
}

/// Of members that were there from the first epoch on it is their digest. Later ones have their
/// beginning in it: a node that left and came back meanwhile begins with nothing.
fn placement(began: u64, read: &Topology, other: Option<&Topology>) -> u64 {
    if began == FIRST_EPOCH && other.is_none() {
        return read.digest();
    }
    let numbers = [began, read.digest(), other.map_or(0, Topology::digest)];
    xxh3_64(numbers.map(u64::to_le_bytes).as_flattened())
}

/// The view that is in force, for all threads of a node.
#[derive(Debug)]
pub struct Views {
    current: ArcSwap<View>,
    /// Its epoch, for those who keep a view and want to know whether it is still in force.
    epoch: AtomicU64,
    /// The names of all nodes that were a member of any view: a request that keeps an earlier view
    /// may end in a hint for a node that has left.
    names: ByNode<OnceLock<String>>,
}

impl Views {
    /// With this view in force.
    pub fn new(view: View) -> Self {
        let epoch = AtomicU64::new(view.epoch);
        let names = ByNode::default();
        note_names(&names, &view);
        Self { current: ArcSwap::from_pointee(view), epoch, names }
    }

    /// With the members of a fixed list in force.
    pub fn fixed(topology: Topology) -> Arc<Self> {
        Arc::new(Self::new(View::first(topology)))
    }

    /// The view in force. To make several decisions by the same view, keep what this returns.
    pub fn current(&self) -> Arc<View> {
        self.current.load_full()
    }

    /// Calls `what` with the view in force, without touching its reference count.
    pub fn with<T>(&self, what: impl FnOnce(&View) -> T) -> T {
        what(&self.current.load())
    }

    /// The epoch of the view in force, or that of the next one for a moment: whoever sees a view in
    /// force sees its epoch too, so that a loop which is handed what came of it knows of it.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A node that may belong to no view any more: this one, which was removed.
    pub fn note(&self, node: NodeId, name: &str) {
        note_name(&self.names, node, name);
    }

    /// The name of a node that is a member of the view in force, or was one of an earlier one.
    pub fn name_of(&self, node: NodeId) -> String {
        let name = self.names.with(node, |name| name.get().cloned());
        name.expect("only what is or was a member is asked about")
    }

    /// From now on a later view is in force.
    pub fn install(&self, view: View) {
        let epoch = view.epoch;
        assert!(epoch > self.epoch(), "epochs grow, and {epoch} does not");
        note_names(&self.names, &view);
        self.epoch.store(epoch, Ordering::Release);
        self.current.store(Arc::new(view));
    }
}

/// An id is never given to another node, so a name that is noted stays right.
fn note_names(names: &ByNode<OnceLock<String>>, view: &View) {
    for topology in view.sets() {
        for node in topology.ids() {
            note_name(names, node, &topology.member(node).name);
        }
    }
}

fn note_name(names: &ByNode<OnceLock<String>>, node: NodeId, name: &str) {
    names.with(node, |known| {
        known.get_or_init(|| name.to_owned());
    });
}
