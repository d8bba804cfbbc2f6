//! Views: the cluster's members and the placement of keys on them, as of one epoch.
//!
//! ```text
//!   Views, before install(view 8) ──▶ view 7 ◀── requests and rounds begun before
//!   Views, after install(view 8) ───▶ view 8 ◀── requests begun since, and requests that restart
//!                                                (dispatch/view_change.rs)
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use xxhash_rust::xxh3::xxh3_64;

use crate::by_node::ByNode;
use crate::node_id::NodeId;
use crate::placement::topology::{Topology, partition_of};

/// The epoch of a cluster's first layout.
pub const FIRST_EPOCH: u64 = 1;

/// The identity of a view, which nodes exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId {
    /// The view's epoch: a node with a lower epoch is behind.
    pub epoch: u64,
    /// Digest of everything that decides where keys are written and read. Views with equal digests
    /// are equivalent, whatever their epochs: their layouts may differ in the metadata quorum, in
    /// tokens and quotas, and in a transition that is only prepared.
    pub placement: u64,
}

/// The cluster's members and the placement of keys on them, as of one epoch. Immutable; clones
/// share the tables.
#[derive(Debug, Clone)]
pub struct View {
    /// The view's epoch, counted from [`FIRST_EPOCH`].
    pub epoch: u64,
    /// The placement. While partitions move: the placement by which reads and promises choose their
    /// nodes.
    pub topology: Topology,
    /// While partitions move: the other of the two placements. Writes go to the replicas of both,
    /// and the replicas of this placement too hold every value that a read returns.
    pub other: Option<Topology>,
    /// Before partitions move: the coming placement. No request uses this placement yet, but its
    /// nodes are known.
    pub prepared: Option<Topology>,
    placement: u64,
}

impl View {
    /// Returns the view of a cluster's first members.
    pub fn first(topology: Topology) -> Self {
        Self::new_settled(FIRST_EPOCH, FIRST_EPOCH, topology)
    }

    /// Returns a view in which no partition moves since the epoch `began`.
    pub fn new_settled(epoch: u64, began: u64, topology: Topology) -> Self {
        let placement = placement(began, &topology, None);
        Self { epoch, topology, other: None, prepared: None, placement }
    }

    /// Returns a settled view in which partitions are about to move to `next`.
    pub fn new_prepared(epoch: u64, began: u64, topology: Topology, next: Topology) -> Self {
        Self { prepared: Some(next), ..Self::new_settled(epoch, began, topology) }
    }

    /// Returns a view in which partitions move since the epoch `began`: the replicas of `read`
    /// answer reads, and those of `other` are written too.
    pub fn new_moving(epoch: u64, began: u64, read: Topology, other: Topology) -> Self {
        let placement = placement(began, &read, Some(&other));
        Self { epoch, topology: read, other: Some(other), prepared: None, placement }
    }

    /// Returns the view after a forced layout ([`crate::layout::Decree`]): a node without that
    /// layout has a different placement, for all its reads and writes.
    pub(crate) fn with_forced_layout(mut self, number: u64) -> Self {
        self.placement = xxh3_64([self.placement, number].map(u64::to_le_bytes).as_flattened());
        self
    }

    /// True if the view has one node, and no node joins or leaves.
    pub fn is_alone(&self) -> bool {
        self.topology.nodes() == 1 && self.nodes() == 1
    }

    /// Returns the number of nodes, including joining and leaving nodes.
    pub fn nodes(&self) -> usize {
        self.topology.nodes() + self.only_other().count()
    }

    /// Returns the nodes, including joining and leaving nodes: first the nodes of the placement
    /// that is read, then the rest, each part sorted by name.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.topology.ids().chain(self.only_other())
    }

    /// Returns the nodes of the other placements that are not in the placement that is read.
    fn only_other(&self) -> impl Iterator<Item = NodeId> {
        let ids = self.other.iter().chain(&self.prepared).flat_map(Topology::ids);
        ids.filter(|node| !self.topology.contains(*node))
    }

    /// True if the node is joining and partitions do not move yet: the node holds no records.
    pub fn is_about_to_join(&self, node: NodeId) -> bool {
        let comes = self.prepared.as_ref().is_some_and(|next| next.contains(node));
        comes && !self.topology.contains(node)
    }

    /// True if some node is joining and partitions do not move yet.
    pub fn has_joining_nodes(&self) -> bool {
        self.prepared.iter().flat_map(Topology::ids).any(|node| self.is_about_to_join(node))
    }

    /// True if the node is in the old and in the new placement: it is a member and stays a member.
    pub fn is_staying_member(&self, node: NodeId) -> bool {
        self.topologies().all(|topology| topology.contains(node))
    }

    /// Finds a node by name.
    pub fn find_node(&self, name: &str) -> Option<NodeId> {
        self.topologies().find_map(|topology| topology.find(name))
    }

    /// True if the view has this node under this name.
    pub fn has_node_named(&self, node: NodeId, name: &str) -> bool {
        self.topologies()
            .any(|topology| topology.contains(node) && topology.member(node).name == name)
    }

    fn topologies(&self) -> impl Iterator<Item = &Topology> {
        [&self.topology].into_iter().chain(&self.other).chain(&self.prepared)
    }

    /// True if the node must take over the idempotency records of a partition's previous replicas:
    /// the partition moves to it, or the node is a replica of a partition whose number of replicas
    /// falls. Only for the view of a stage *read old*, whose read set is the set before the move.
    pub(crate) fn must_take_over(&self, partition: u16, node: NodeId) -> bool {
        let (before, Some(after)) = (&self.topology, &self.other) else { return false };
        after.holds(node, partition, 0)
            && (!before.holds(node, partition, 0) || before.copies_of(0) > after.copies_of(0))
    }

    /// True if a partition moves: with the default number of copies, its old and new replicas
    /// differ.
    pub(crate) fn is_moving(&self, partition: u16) -> bool {
        let (read, Some(other)) = (&self.topology, &self.other) else { return false };
        let mut replicas = Vec::new();
        read.replicas(partition, read.copies_of(0), &mut replicas);
        read.copies_of(0) != other.copies_of(0)
            || !replicas.iter().all(|node| other.holds(*node, partition, 0))
    }

    /// True if the node is among the first `copies` replicas of a key; 0 = the default number.
    /// While partitions move, the old and the new replicas count.
    pub fn is_replica(&self, node: NodeId, key: &[u8], copies: u8) -> bool {
        let partition = partition_of(key);
        let holds = |topology: &Topology| topology.holds(node, partition, copies);
        holds(&self.topology) || self.other.as_ref().is_some_and(holds)
    }

    /// Returns the view's id.
    pub fn id(&self) -> ViewId {
        ViewId { epoch: self.epoch, placement: self.placement }
    }

    /// True if the view has this node, also if the node is joining or leaving.
    pub fn has(&self, node: NodeId) -> bool {
        self.topologies().any(|topology| topology.contains(node))
    }

    /// True if a node with the view `theirs` reads and writes every key as this view does.
    pub fn agrees_with(&self, theirs: ViewId) -> bool {
        self.placement == theirs.placement
    }
}

/// Returns the digest of a placement. The digest of a settled placement since the first epoch is
/// that of its topology. A later digest includes `began`, because a node that left and came back in
/// between starts empty.
fn placement(began: u64, read: &Topology, other: Option<&Topology>) -> u64 {
    if began == FIRST_EPOCH && other.is_none() {
        return read.digest();
    }
    let numbers = [began, read.digest(), other.map_or(0, Topology::digest)];
    xxh3_64(numbers.map(u64::to_le_bytes).as_flattened())
}

/// The active view, shared by all threads of a node.
#[derive(Debug)]
pub struct Views {
    current: ArcSwap<View>,
    /// The active view's epoch. The holder of a view checks by this epoch that the view is still
    /// active.
    epoch: AtomicU64,
    /// The names of all nodes of any view so far. A request that keeps an earlier view may leave a
    /// hint for a node that has left since.
    names: ByNode<OnceLock<String>>,
}

impl Views {
    /// Creates the state with this view active.
    pub fn new(view: View) -> Self {
        let epoch = AtomicU64::new(view.epoch);
        let names = ByNode::default();
        note_names(&names, &view);
        Self { current: ArcSwap::from_pointee(view), epoch, names }
    }

    /// Creates the state with the members of a fixed list.
    pub fn new_fixed(topology: Topology) -> Arc<Self> {
        Arc::new(Self::new(View::first(topology)))
    }

    /// Returns the active view. To make several decisions by the same view, keep the returned view.
    pub fn current(&self) -> Arc<View> {
        self.current.load_full()
    }

    /// Calls `what` with the active view, without touching its reference count.
    pub fn with<T>(&self, what: impl FnOnce(&View) -> T) -> T {
        what(&self.current.load())
    }

    /// Returns the active view's epoch or, for a moment during a view change, the next epoch. A
    /// thread that sees a view also sees the view's epoch, so an event loop that receives results
    /// of a view knows that the view is active.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notes the name of a node that may belong to no view any more, such as this node once
    /// removed.
    pub fn note_name(&self, node: NodeId, name: &str) {
        note_name(&self.names, node, name);
    }

    /// Returns the name of a node of the active or an earlier view.
    pub fn name_of(&self, node: NodeId) -> String {
        let name = self.names.with(node, |name| name.get().cloned());
        name.expect("only what is or was a member is asked about")
    }

    /// Makes a later view active.
    pub fn install(&self, view: View) {
        let epoch = view.epoch;
        assert!(epoch > self.epoch(), "epochs grow, and {epoch} does not");
        note_names(&self.names, &view);
        self.epoch.store(epoch, Ordering::Release);
        self.current.store(Arc::new(view));
    }
}

/// Notes the names of a view's nodes. A name stays valid, because an id is never reused.
fn note_names(names: &ByNode<OnceLock<String>>, view: &View) {
    for topology in view.topologies() {
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
