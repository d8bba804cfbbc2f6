//! Which of a node's keys a page is to have.

use xxhash_rust::xxh3::Xxh3;

use crate::choice::Chooser;
use crate::message::{Filter, NodeId};
use crate::quorum::Quorum;
use crate::record::{Kind, Rank};
use crate::topology::{Topology, partition_of};
use crate::view::View;

/// Digests in a page request at most: 128 KiB.
pub const MAX_KNOWN: usize = 16 * 1024;

/// What stands for a record of a key when a node tells which ones it holds. The seed is drawn by
/// that node, so that nobody can make two records of one digest.
pub(crate) fn moved_digest(seed: u64, key: &[u8], rank: Rank) -> u64 {
    let mut digest = Xxh3::with_seed(seed);
    digest.update(key);
    let Rank { version, ballot, kind, check } = rank;
    let numbers = [version.time, u64::from(version.origin), ballot, kind as u64, check];
    digest.update(numbers.map(u64::to_le_bytes).as_flattened());
    digest.digest()
}

/// Which of a node's keys belong onto another node.
#[derive(Debug)]
struct Held<'a> {
    node: NodeId,
    since: u64,
    /// In their order; none = all.
    partitions: &'a [u16],
}

impl Held<'_> {
    fn wants(&self, looked: &mut Looked<'_>, key: &[u8], copies: u8, time: u64) -> bool {
        let partition = partition_of(key);
        let listed =
            self.partitions.is_empty() || self.partitions.binary_search(&partition).is_ok();
        if time < self.since || !listed {
            return false;
        }
        let Looked { view, replicas } = looked;
        let mut is_replica = |topology: &Topology| {
            look_up(topology, partition, copies, replicas);
            replicas.contains(&self.node)
        };
        is_replica(&view.topology) || view.other.as_ref().is_some_and(is_replica)
    }
}

/// Which of them move to another node.
#[derive(Debug)]
struct Moved<'a> {
    node: NodeId,
    first: bool,
    seed: u64,
    /// In their order.
    known: Vec<u64>,
    /// Of the nodes of before.
    before: &'a Topology,
    after: &'a Topology,
}

impl Moved<'_> {
    fn wants(
        &self,
        looked: &mut Looked<'_>,
        own: NodeId,
        key: &[u8],
        (copies, rank): (u8, Rank),
    ) -> bool {
        let partition = partition_of(key);
        let replicas = &mut looked.replicas;
        look_up(self.after, partition, copies, replicas);
        if !replicas.contains(&self.node) {
            return false;
        }
        let after = replicas.len();
        look_up(self.before, partition, copies, replicas);
        let moves = !replicas.contains(&self.node) || replicas.len() > after;
        moves
            && (!self.first || replicas.first() == Some(&own))
            && (self.known.is_empty()
                || self.known.binary_search(&moved_digest(self.seed, key, rank)).is_err())
    }
}

fn look_up(topology: &Topology, partition: u16, copies: u8, into: &mut Vec<NodeId>) {
    let copies = if copies == 0 { topology.default_copies() } else { copies };
    topology.replicas(partition, copies, into);
}

/// What replicas are looked up in, and into.
#[derive(Debug)]
struct Looked<'a> {
    view: &'a View,
    replicas: Vec<NodeId>,
}

/// Says which of a node's keys a page is to have.
#[derive(Debug)]
pub struct PartitionFilter<'a> {
    own: NodeId,
    kind: FilterKind<'a>,
    looked: Looked<'a>,
}

#[derive(Debug)]
enum FilterKind<'a> {
    Chosen(Chooser<'a>),
    HeldBy(Held<'a>),
    Moved(Moved<'a>),
    /// Nothing moves.
    None,
}

impl<'a> PartitionFilter<'a> {
    /// For pages of the node `own`.
    pub fn new(view: &'a View, own: NodeId, filter: &'a Filter) -> Self {
        let kind = match filter {
            Filter::Chosen { ack, from, preference } => {
                let quorum = Quorum { ack: *ack, from: *from };
                FilterKind::Chosen(Chooser::new(&view.topology, quorum, preference))
            }
            Filter::HeldBy { node, since, promise: _, partitions } => {
                FilterKind::HeldBy(Held { node: *node, since: *since, partitions })
            }
            Filter::Moved { node, first, seed, known } => match &view.other {
                Some(other) => {
                    let mut known = known.clone();
                    known.sort_unstable();
                    let (before, after) = (&view.topology, other);
                    let (node, first, seed) = (*node, *first, *seed);
                    FilterKind::Moved(Moved { node, first, seed, known, before, after })
                }
                None => FilterKind::None,
            },
        };
        Self { own, kind, looked: Looked { view, replicas: Vec::new() } }
    }

    /// Whether the page is to have this key; `copies` and the `rank` are what its record says.
    /// Where no other node is asked for the key, nothing but values is sent: there is no older
    /// record that a tombstone would hide.
    pub fn wants(&mut self, key: &[u8], copies: u8, rank: Rank) -> bool {
        let Self { own, kind, looked } = self;
        match kind {
            FilterKind::Chosen(chooser) if chooser.is_alone() && rank.kind != Kind::Value => false,
            FilterKind::Chosen(chooser) if chooser.is_everybody() => true,
            FilterKind::Chosen(chooser) => chooser.choose(partition_of(key)).contains(own),
            FilterKind::HeldBy(held) => held.wants(looked, key, copies, rank.when()),
            FilterKind::Moved(moved) => moved.wants(looked, *own, key, (copies, rank)),
            FilterKind::None => false,
        }
    }
}
