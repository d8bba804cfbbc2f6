//! Topology: the members of the cluster and the placement of partitions on them.
//!
//! ```text
//!   key ──xxh3-64──▶ top 16 bits = partition ──▶ the partition's order of nodes: c a e b d …
//!                                                with from = 3, the replicas are c, a and e
//! ```
//!
//! The first 8 nodes of each partition's order are stored, with 16 bits each; the rest of the order
//! is computed when needed. The placement is a function of the members alone: every node computes
//! the same placement, on every platform and in every release. A change of the function requires a
//! new [`FORMAT_VERSION`].

mod balance;
mod buckets;
mod description;
mod hash_weight;
mod overlap;
mod ranking;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64;

pub use balance::NodeFill;
pub(crate) use balance::balance_weights;
pub use buckets::Buckets;
use description::describe;
pub use description::difference;
pub use hash_weight::HashWeight;
use overlap::Holdings;
pub(crate) use overlap::Overlap;
use ranking::Placement;

use crate::clock::origin_of;
use crate::node_id::NodeId;

/// Number of partitions, fixed for all clusters: the top 16 bits of a key's hash.
pub const PARTITIONS: usize = 1 << 16;

/// Version of the description and of the placement function.
const FORMAT_VERSION: u32 = 1;

/// Marks an id without a position.
const NO_POSITION: u16 = u16::MAX;

/// Maximum number of nodes: a [`NodeId`] has 16 bits.
const MAX_NODES: usize = u16::MAX as usize;

/// Maximum length of a node's name or zone in bytes: their length fields in the peers' handshake
/// have one byte.
const MAX_NAME: usize = u8::MAX as usize;

/// Maximum weight of a node; the minimum is 1.
const MAX_WEIGHT: u32 = 1000;

/// Number of nodes per partition that are stored instead of computed: in 16 bytes, more replicas
/// than almost any request needs.
const STORED_REPLICAS: usize = 8;

/// The properties of a node on which all nodes must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node's name, which is its identity: 1 to 255 bytes without white space.
    pub name: String,
    /// The node's zone; copies go to different zones first. Empty = a zone of its own.
    pub zone: String,
    /// The node's share of the keys relative to the other nodes, 1 to 1000.
    pub weight: u32,
}

impl Member {
    /// Checks name, zone and weight. Errors: one of them is empty, too long, malformed or out of
    /// range.
    pub fn check(&self) -> Result<(), TopologyError> {
        check_members(std::slice::from_ref(self), 1)
    }
}

/// An error in the members of a cluster. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The list of nodes is empty.
    #[error("a cluster needs at least one node")]
    NoNodes,
    /// More nodes than a [`NodeId`] can tell apart.
    #[error("{0} nodes are more than {MAX_NODES}")]
    TooManyNodes(usize),
    /// The replica count is 0, so that nothing would be stored.
    #[error("replicas is 0: at least one node must hold a key")]
    NoReplicas,
    /// A node's name, its identity, is empty.
    #[error("a node has an empty name")]
    EmptyName,
    /// A name or zone is too long or has white space or control characters.
    #[error("{0:?} is not a valid name: write up to {MAX_NAME} bytes without white space")]
    BadName(String),
    /// A weight is out of range.
    #[error("node {name}: weight {weight} is out of range 1..{MAX_WEIGHT}")]
    BadWeight {
        /// Name of the node.
        name: String,
        /// The weight as given.
        weight: u32,
    },
    /// Two nodes have the same id.
    #[error("nodes {0} and {1} have the same id")]
    SameId(String, String),
    /// Two nodes have the same name.
    #[error("two nodes are named {0}")]
    Duplicate(String),
    /// Two names have the same hash, so that versions could not tell the nodes apart.
    #[error("nodes {0} and {1} can't be in one cluster, their hashes are equal: rename one")]
    Collision(String, String),
}

/// The cluster's nodes and, for every partition, its replicas in order. Clones share the tables.
#[derive(Debug, Clone)]
pub struct Topology {
    /// The members sorted by name. A node's *position* (`place`) is its index here.
    members: Arc<[Member]>,
    /// The members' ids, by position.
    ids: Arc<[NodeId]>,
    /// The position of each id, or [`NO_POSITION`].
    places: Arc<[u16]>,
    /// The members' weights in rendezvous hashing, by position.
    hash_weights: Arc<[HashWeight]>,
    replicas: u8,
    placement: Arc<Placement>,
    /// For each partition, the ids of the first `stride` nodes of its order.
    stored: Arc<[u16]>,
    stride: usize,
    holdings: Arc<Holdings>,
    /// The buckets of the partitions, computed on first use.
    buckets: Arc<OnceLock<Buckets>>,
    digest: u64,
}

/// Returns the partition of a key, the same in every topology: the top 16 bits of its xxh3-64.
pub fn partition_of(key: &[u8]) -> u16 {
    (xxh3_64(key) >> 48) as u16
}

impl Topology {
    /// Creates the topology of a fixed list. Ids are positions in the list sorted by name, so the
    /// order of `members` does not matter.
    pub fn new(mut members: Vec<Member>, replicas: u8) -> Result<Self, TopologyError> {
        if members.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes(members.len()));
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Self::of((0..=u16::MAX).map(NodeId).zip(members).collect(), replicas)
    }

    /// Creates a topology of nodes with assigned ids, which stay the same when other nodes join or
    /// leave. Each node's hash weight is its weight. Takes 65,536 × members steps of some
    /// nanoseconds.
    pub fn of(nodes: Vec<(NodeId, Member)>, replicas: u8) -> Result<Self, TopologyError> {
        let by_weight = |(id, member): (NodeId, Member)| {
            let weight = HashWeight::of(member.weight.clamp(1, MAX_WEIGHT));
            (id, member, weight)
        };
        Self::with_hash_weights(nodes.into_iter().map(by_weight).collect(), replicas)
    }

    /// Creates a topology of nodes with assigned ids and hash weights.
    pub fn with_hash_weights(
        mut nodes: Vec<(NodeId, Member, HashWeight)>,
        replicas: u8,
    ) -> Result<Self, TopologyError> {
        nodes.sort_by(|(_, a, _), (_, b, _)| a.name.cmp(&b.name));
        let mut hash_weights = Vec::with_capacity(nodes.len());
        let split = |(id, member, weight)| {
            hash_weights.push(weight);
            (id, member)
        };
        let (ids, members): (Vec<NodeId>, Vec<Member>) = nodes.into_iter().map(split).unzip();
        check_members(&members, replicas)?;
        let places = places(&ids, &members)?;
        let placement = Placement::of(&members, &ids, &hash_weights);
        let stride = members.len().min(STORED_REPLICAS);
        let mut stored = Vec::with_capacity(PARTITIONS * stride);
        let mut order = Vec::with_capacity(stride);
        for partition in 0..=u16::MAX {
            placement.order(partition, stride, &mut order);
            stored.extend(order.iter().map(|node: &NodeId| node.0));
        }
        let of_stored = stored.iter().map(|id| usize::from(places[usize::from(*id)]));
        let holdings = Holdings::new(&members, of_stored, stride);
        let mut topology = Self {
            members: members.into(),
            ids: ids.into(),
            places: places.into(),
            hash_weights: hash_weights.into(),
            replicas,
            placement: Arc::new(placement),
            stored: stored.into(),
            stride,
            holdings: Arc::new(holdings),
            buckets: Arc::default(),
            digest: 0,
        };
        topology.digest = xxh3_64(topology.describe().as_bytes());
        Ok(topology)
    }

    /// True if there are clones of this topology.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.stored) > 1
    }

    /// True if one topology is a clone of the other.
    #[cfg(test)]
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.stored, &other.stored)
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.members.len()
    }

    /// Returns all nodes, sorted by name.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        let ids = Arc::clone(&self.ids);
        (0..ids.len()).map(move |place| ids[place])
    }

    /// Returns the partition of a key.
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        partition_of(key)
    }

    /// Puts the first `from` replicas of a partition into `into`, in order, or all nodes if there
    /// are fewer. The replicas for a smaller `from` are a prefix of those for a larger one.
    #[inline]
    pub fn replicas(&self, partition: u16, from: u8, into: &mut Vec<NodeId>) {
        #[cfg(test)]
        work::count();
        let from = usize::from(from).min(self.members.len());
        if from <= self.stride {
            into.clear();
            let first = usize::from(partition) * self.stride;
            into.extend(self.stored[first..first + from].iter().map(|id| NodeId(*id)));
        } else {
            self.placement.order(partition, from, into);
        }
    }

    /// True if the node is among the first `from` replicas of a partition; 0 = the default number.
    pub fn holds(&self, node: NodeId, partition: u16, from: u8) -> bool {
        let from = if from == 0 { self.default_copies() } else { from };
        let stored = usize::from(from).min(self.stride);
        let first = usize::from(partition) * self.stride;
        if self.stored[first..first + stored].contains(&node.0) {
            return true;
        }
        if usize::from(from) <= stored || stored == self.nodes() {
            return false;
        }
        let mut order = Vec::new();
        self.placement.order(partition, usize::from(from).min(self.nodes()), &mut order);
        order.contains(&node)
    }

    /// Returns the buckets by which replicas compare their records. The first call visits all
    /// partitions, which takes some milliseconds.
    pub fn buckets(&self) -> &Buckets {
        let copies = self.default_copies();
        let new = || Buckets::new(|partition, order| self.replicas(partition, copies, order));
        self.buckets.get_or_init(new)
    }

    /// Returns an empty `Overlap`, which counts nodes among the first `from` replicas of
    /// partitions.
    pub(crate) fn overlap(&self, from: u8) -> Overlap<'_> {
        self.holdings.overlap(from)
    }

    /// True if some partition has more than `spare` of these nodes among its first `from` replicas.
    /// The caller has checked that the nodes' zones allow this ([`Topology::overlap`]).
    ///
    /// Visits the partitions that the nodes hold. In a small cluster these are many, but a match is
    /// found soon. For more replicas than are stored, returns true without a search.
    pub(crate) fn have_more_than(&self, spare: usize, nodes: &[NodeId], from: u8) -> bool {
        let from = usize::from(from).min(self.members.len());
        if from > self.stride {
            return true;
        }
        let mut among = vec![false; self.places.len()];
        nodes.iter().for_each(|node| among[usize::from(node.0)] = true);
        let has_more = |partition: &u16| {
            #[cfg(test)]
            work::count();
            let first = usize::from(*partition) * self.stride;
            let replicas = self.stored[first..first + from].iter();
            replicas.filter(|id| among[usize::from(**id)]).count() > spare
        };
        // A partition with more than `spare` of the nodes has at least one node beyond the first
        // `spare` of `nodes`. So only the partitions of the nodes beyond the first `spare` are
        // visited.
        let held = nodes.iter().skip(spare).map(|node| self.holdings.of(self.place(*node)));
        held.flatten().any(has_more)
    }

    /// Returns a node's position, or `None` if the node does not belong to the cluster: an id
    /// received from outside may be any number.
    pub(crate) fn position_of(&self, node: NodeId) -> Option<usize> {
        let place = self.places.get(usize::from(node.0)).filter(|place| **place != NO_POSITION);
        place.map(|place| usize::from(*place))
    }

    /// Returns the position of a node of the cluster.
    pub(crate) fn place(&self, node: NodeId) -> usize {
        self.position_of(node).expect("it is one of the cluster's nodes")
    }

    /// True if the node belongs to the cluster.
    pub fn contains(&self, node: NodeId) -> bool {
        self.position_of(node).is_some()
    }

    /// Returns the properties of a node of the cluster.
    pub fn member(&self, node: NodeId) -> &Member {
        &self.members[self.place(node)]
    }

    /// Finds a node by name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let place = self.members.binary_search_by(|member| member.name.as_str().cmp(name));
        place.ok().map(|place| self.ids[place])
    }

    /// Returns a node's weight in rendezvous hashing.
    pub(crate) fn hash_weight(&self, node: NodeId) -> HashWeight {
        self.hash_weights[self.place(node)]
    }

    /// Returns the configured number of copies of a key, which may exceed the number of nodes.
    pub(crate) fn wanted_copies(&self) -> u8 {
        self.replicas
    }

    /// Returns the default number of copies of a key: the configured number, but at most one per
    /// node.
    pub fn default_copies(&self) -> u8 {
        self.replicas.min(self.members.len().min(255) as u8)
    }

    /// Returns the number of copies of a record that asks for `requested` copies; 0 = the default
    /// number.
    pub fn copies_of(&self, requested: u8) -> u8 {
        if requested == 0 { self.default_copies() } else { requested }
    }

    /// Returns the hash of [`Topology::describe`]: nodes with equal digests place every key alike.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Describes everything that decides the placement, as text that is the same on every node;
    /// [`difference`] compares two descriptions.
    pub fn describe(&self) -> String {
        describe(&self.members, &self.ids, &self.hash_weights, self.replicas)
    }
}

/// Returns the position of each id. Every position fits 16 bits, because the number of members is
/// checked.
fn places(ids: &[NodeId], members: &[Member]) -> Result<Vec<u16>, TopologyError> {
    let ends = ids.iter().map(|id| usize::from(id.0) + 1).max().unwrap_or(0);
    let mut places = vec![NO_POSITION; ends];
    for (place, id) in ids.iter().enumerate() {
        let held = std::mem::replace(&mut places[usize::from(id.0)], place as u16);
        if held != NO_POSITION {
            let name = |place: usize| members[place].name.clone();
            return Err(TopologyError::SameId(name(usize::from(held)), name(place)));
        }
    }
    Ok(places)
}

/// Checks the members, which must be sorted by name, and the replica count.
pub(crate) fn check_members(members: &[Member], replicas: u8) -> Result<(), TopologyError> {
    if members.is_empty() {
        return Err(TopologyError::NoNodes);
    }
    if members.len() > MAX_NODES {
        return Err(TopologyError::TooManyNodes(members.len()));
    }
    if replicas == 0 {
        return Err(TopologyError::NoReplicas);
    }
    let unfit = |name: &str| {
        name.len() > MAX_NAME || name.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    for Member { name, zone, weight } in members {
        if name.is_empty() {
            return Err(TopologyError::EmptyName);
        }
        if let Some(bad) = [name, zone].into_iter().find(|text| unfit(text)) {
            return Err(TopologyError::BadName(bad.clone()));
        }
        if !(1..=MAX_WEIGHT).contains(weight) {
            return Err(TopologyError::BadWeight { name: name.clone(), weight: *weight });
        }
    }
    if let Some(pair) = members.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(TopologyError::Duplicate(pair[0].name.clone()));
    }
    let mut origins: Vec<(u32, &str)> =
        members.iter().map(|member| (origin_of(&member.name), member.name.as_str())).collect();
    origins.sort_unstable();
    match origins.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(TopologyError::Collision(pair[0].1.to_owned(), pair[1].1.to_owned())),
        None => Ok(()),
    }
}

/// Counter of visited partitions, for tests that measure work.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    thread_local!(static VISITS: Cell<usize> = const { Cell::new(0) });

    pub(crate) fn count() {
        VISITS.set(VISITS.get() + 1);
    }

    /// Returns this thread's count since the last call.
    pub(crate) fn take() -> usize {
        VISITS.take()
    }
}
