//! Who belongs to the cluster, and which nodes hold which keys.
//!
//! ```text
//!   key ──xxh3-64──▶ top 16 bits = partition ──▶ nodes in order of preference
//!                                                ├─ 8 stored, 16 bits each ─┤ more: computed
//!        from = 3:                               [ c  a  e ] b  d …
//! ```
//!
//! All of it is a function of the members and of nothing else: every node computes the same, on
//! every platform and in every release. A change of the function is a change of [`FORM`].

mod balance;
mod buckets;
mod description;
mod hash_weight;
mod overlap;
mod placement;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64;

pub use balance::Fill;
pub(crate) use balance::balanced;
pub use buckets::Buckets;
use description::describe;
pub use description::difference;
pub use hash_weight::HashWeight;
use overlap::Holdings;
pub(crate) use overlap::Overlap;
use placement::Placement;

use crate::clock::origin_of;
use crate::node_id::NodeId;

/// Number of partitions, fixed for all clusters: the top 16 bits of a key's hash.
pub const PARTITIONS: usize = 1 << 16;

/// Version of the description, and of the placement that follows from it.
const FORM: u32 = 1;

/// What stands for no place.
const NOWHERE: u16 = u16::MAX;

/// Nodes of a cluster at most: a [`NodeId`] has 16 bits.
const MAX_NODES: usize = u16::MAX as usize;

/// Bytes of a node's name or zone at most: their lengths have one byte in the peers' handshake.
const MAX_NAME: usize = u8::MAX as usize;

/// Greatest weight of a node, the least being 1.
const MAX_WEIGHT: u32 = 1000;

/// Replicas of a partition that are looked up instead of computed: more than almost any request
/// asks for, in 16 bytes.
const STORED: usize = 8;

/// One node, as all nodes must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity: 1 to 255 bytes without white space.
    pub name: String,
    /// Copies go to different zones first; empty = a zone of its own.
    pub zone: String,
    /// Its share of the keys in relation to the others', 1 to 1000.
    pub weight: u32,
}

impl Member {
    /// Whether it can be a node at all.
    pub fn check(&self) -> Result<(), TopologyError> {
        check_members(std::slice::from_ref(self), 1)
    }
}

/// Why members make no cluster. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// There is no such cluster.
    #[error("a cluster needs at least one node")]
    NoNodes,
    /// More nodes than a [`NodeId`] can tell apart.
    #[error("{0} nodes are more than {MAX_NODES}")]
    TooManyNodes(usize),
    /// Nothing would be stored.
    #[error("replicas is 0: at least one node must hold a key")]
    NoReplicas,
    /// A node without a name has no identity.
    #[error("a node has an empty name")]
    EmptyName,
    /// A name or zone that does not fit where names must fit.
    #[error("{0:?} is not a valid name: write up to {MAX_NAME} bytes without white space")]
    BadName(String),
    /// A weight out of range.
    #[error("node {name}: weight {weight} is out of range 1..{MAX_WEIGHT}")]
    BadWeight {
        /// Of which node.
        name: String,
        /// The weight as given.
        weight: u32,
    },
    /// Two nodes of one id.
    #[error("nodes {0} and {1} have the same id")]
    SameId(String, String),
    /// Two nodes of one name.
    #[error("two nodes are named {0}")]
    Duplicate(String),
    /// Two names that versions could not tell apart.
    #[error("nodes {0} and {1} can't be in one cluster, their hashes are equal: rename one")]
    Collision(String, String),
}

/// The cluster's nodes and, for every partition, its replicas in order. Clones share the tables.
#[derive(Debug, Clone)]
pub struct Topology {
    /// In the order of their names: a node's *place* is where it is in here.
    members: Arc<[Member]>,
    /// The members' ids, by their places.
    ids: Arc<[NodeId]>,
    /// Each id's place, or [`NOWHERE`].
    places: Arc<[u16]>,
    /// What the members draw partitions with, by their places.
    hash_weights: Arc<[HashWeight]>,
    replicas: u8,
    placement: Arc<Placement>,
    /// For each partition the ids of the first nodes of its order, `stride` of them.
    stored: Arc<[u16]>,
    stride: usize,
    holdings: Arc<Holdings>,
    /// Made when they are first asked for.
    buckets: Arc<OnceLock<Buckets>>,
    digest: u64,
}

/// The partition that a key belongs to, in every topology: the top 16 bits of its xxh3-64.
pub fn partition_of(key: &[u8]) -> u16 {
    (xxh3_64(key) >> 48) as u16
}

impl Topology {
    /// The cluster of a fixed list. Its order does not matter: the ids are the nodes' places in the
    /// sorted list of their names.
    pub fn new(mut members: Vec<Member>, replicas: u8) -> Result<Self, TopologyError> {
        if members.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes(members.len()));
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Self::of((0..=u16::MAX).map(NodeId).zip(members).collect(), replicas)
    }

    /// Places all partitions: 65,536 × members steps of some nanoseconds. Ids were given to the
    /// nodes before, and stay theirs whoever else comes or goes. Each node draws with its weight.
    pub fn of(nodes: Vec<(NodeId, Member)>, replicas: u8) -> Result<Self, TopologyError> {
        let by_weight = |(id, member): (NodeId, Member)| {
            let weight = HashWeight::of(member.weight.clamp(1, MAX_WEIGHT));
            (id, member, weight)
        };
        Self::with_hash_weights(nodes.into_iter().map(by_weight).collect(), replicas)
    }

    /// The same; each node draws with the hash weight that comes with it.
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
        let stride = members.len().min(STORED);
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

    /// Whether there are clones of it.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.stored) > 1
    }

    /// Whether it is a clone of another one.
    #[cfg(test)]
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.stored, &other.stored)
    }

    /// Nodes of the cluster.
    pub fn nodes(&self) -> usize {
        self.members.len()
    }

    /// All nodes, in the order of their names.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        let ids = Arc::clone(&self.ids);
        (0..ids.len()).map(move |place| ids[place])
    }

    /// The partition that a key belongs to.
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        partition_of(key)
    }

    /// Puts the first `from` replicas of a partition into `into`, in order; all nodes, if `from` is
    /// more than there are. The replicas for a smaller `from` are a prefix of those for a larger.
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

    /// Whether a node is among the first `from` replicas of a partition; 0 = the default number.
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

    /// The buckets by which replicas compare what they hold. The first call looks at all
    /// partitions: some milliseconds.
    pub fn buckets(&self) -> &Buckets {
        let copies = self.default_copies();
        let new = || Buckets::new(|partition, order| self.replicas(partition, copies, order));
        self.buckets.get_or_init(new)
    }

    /// No nodes yet, to be counted among the first `from` replicas of partitions.
    pub(crate) fn overlap(&self, from: u8) -> Overlap<'_> {
        self.holdings.overlap(from)
    }

    /// Whether some partition has more than `spare` of these nodes among its first `from`
    /// replicas; they can have so many by their zones. Looks at the partitions that they hold: many
    /// where the nodes are few, but there one is soon found. Of more replicas than are stored it
    /// says yes without looking.
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
        // Whatever has more than `spare` of them has one that is not among the first `spare`.
        let held = nodes.iter().skip(spare).map(|node| self.holdings.of(self.place(*node)));
        held.flatten().any(has_more)
    }

    /// Where a node is in the list of their names, if it is one of the cluster's. An id that came
    /// from outside may be none.
    pub(crate) fn place_of(&self, node: NodeId) -> Option<usize> {
        let place = self.places.get(usize::from(node.0)).filter(|place| **place != NOWHERE);
        place.map(|place| usize::from(*place))
    }

    /// Where a node of the cluster is in the list of their names.
    pub(crate) fn place(&self, node: NodeId) -> usize {
        self.place_of(node).expect("it is one of the cluster's nodes")
    }

    /// Whether a node is one of the cluster's.
    pub fn contains(&self, node: NodeId) -> bool {
        self.place_of(node).is_some()
    }

    /// The facts of one of the cluster's nodes.
    pub fn member(&self, node: NodeId) -> &Member {
        &self.members[self.place(node)]
    }

    /// The node of this name.
    pub fn own(&self, name: &str) -> Option<NodeId> {
        let place = self.members.binary_search_by(|member| member.name.as_str().cmp(name));
        place.ok().map(|place| self.ids[place])
    }

    /// What a node draws partitions with.
    pub(crate) fn hash_weight(&self, node: NodeId) -> HashWeight {
        self.hash_weights[self.place(node)]
    }

    /// Copies of a key that are wanted: more than there may be nodes.
    pub(crate) fn wanted_copies(&self) -> u8 {
        self.replicas
    }

    /// Copies of a key unless a request says otherwise: at most one a node.
    pub fn default_copies(&self) -> u8 {
        self.replicas.min(self.members.len().min(255) as u8)
    }

    /// Copies of a record that says this number: 0 = as many as by default.
    pub fn copies_of(&self, said: u8) -> u8 {
        if said == 0 { self.default_copies() } else { said }
    }

    /// Hash of [`Topology::describe`]: nodes that agree on it place every key alike.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// All that decides where keys are, as text that is the same on every node:
    /// [`difference`] compares two of them.
    pub fn describe(&self) -> String {
        describe(&self.members, &self.ids, &self.hash_weights, self.replicas)
    }
}

/// The place of each id. All of them fit: there are no more members than places.
fn places(ids: &[NodeId], members: &[Member]) -> Result<Vec<u16>, TopologyError> {
    let ends = ids.iter().map(|id| usize::from(id.0) + 1).max().unwrap_or(0);
    let mut places = vec![NOWHERE; ends];
    for (place, id) in ids.iter().enumerate() {
        let held = std::mem::replace(&mut places[usize::from(id.0)], place as u16);
        if held != NOWHERE {
            let name = |place: usize| members[place].name.clone();
            return Err(TopologyError::SameId(name(usize::from(held)), name(place)));
        }
    }
    Ok(places)
}

/// `members` are sorted by name.
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

/// How often partitions were looked at, for tests that count work.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    pub(crate) fn count() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// Looks by this thread since the last call.
    pub(crate) fn take() -> usize {
        LOOKS.take()
    }
}
