//! Filters that select the records of the pages that a node streams to another node.

use xxhash_rust::xxh3::Xxh3;

use crate::message::{Filter, NodeId};
use crate::placement::topology::{Topology, partition_of};
use crate::placement::view::View;
use crate::request::quorum::Quorum;
use crate::request::range_choice::Chooser;
use record::{Kind, Rank};

/// Maximum number of digests in a page request: 128 KiB.
pub const MAX_KNOWN: usize = 16 * 1024;

/// Returns the digest that stands for a record when a node reports the records it holds. The
/// reporting node draws the seed, so that no attacker can construct two records with one digest.
pub(crate) fn moved_digest(seed: u64, key: &[u8], rank: Rank) -> u64 {
    let mut digest = Xxh3::with_seed(seed);
    digest.update(key);
    let Rank { version, ballot, kind, check } = rank;
    let numbers = [version.time, u64::from(version.origin), ballot, kind as u64, check];
    digest.update(numbers.map(u64::to_le_bytes).as_flattened());
    digest.digest()
}

/// Selects the keys of which another node is a replica, before or after a move of partitions.
#[derive(Debug)]
struct HeldFilter<'a> {
    node: NodeId,
    since: u64,
    /// The partitions of the selected keys, sorted; empty = all.
    partitions: &'a [u16],
}

impl HeldFilter<'_> {
    fn wants(&self, looked: &mut ReplicaLookup<'_>, key: &[u8], copies: u8, time: u64) -> bool {
        let partition = partition_of(key);
        let listed =
            self.partitions.is_empty() || self.partitions.binary_search(&partition).is_ok();
        if time < self.since || !listed {
            return false;
        }
        let ReplicaLookup { view, replicas } = looked;
        let mut is_replica = |topology: &Topology| {
            look_up(topology, partition, copies, replicas);
            replicas.contains(&self.node)
        };
        is_replica(&view.topology) || view.other.as_ref().is_some_and(is_replica)
    }
}

/// Selects keys that move to another node.
#[derive(Debug)]
struct MovedFilter<'a> {
    node: NodeId,
    /// `Some(time)` = the first pass: selects only keys of which this node is the first replica,
    /// with records written up to this version time. Coordinators have probably sent later records
    /// to the other node too. `None` = the second pass, which also selects what the other node
    /// still lacks.
    first: Option<u64>,
    seed: u64,
    /// Digests of the records that the other node holds, sorted.
    known: Vec<u64>,
    /// The placement of the previous replicas.
    before: &'a Topology,
    after: &'a Topology,
}

impl MovedFilter<'_> {
    fn wants(
        &self,
        looked: &mut ReplicaLookup<'_>,
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
        let is_new = !replicas.contains(&self.node);
        // If the number of copies falls, a node that keeps the key may still lack records. The
        // second pass sends them, so that node takes no part in the first pass.
        let is_meant = match self.first {
            Some(until) => is_new && replicas.first() == Some(&own) && rank.write_time() <= until,
            None => is_new || replicas.len() > after,
        };
        let is_known = || self.known.binary_search(&moved_digest(self.seed, key, rank)).is_ok();
        is_meant && (self.known.is_empty() || !is_known())
    }
}

/// Selects the entries of the history of writes with an idempotency key that another node needs.
#[derive(Debug)]
struct RememberedFilter {
    node: NodeId,
    lost: bool,
    /// The last tested partition and the result, cached because names are tested in partition
    /// order.
    last: Option<(u16, bool)>,
}

impl RememberedFilter {
    fn wants(&mut self, view: &View, own: NodeId, name: &[u8]) -> bool {
        let Some(first) = name.first_chunk() else { return false };
        let partition = u16::from_be_bytes(*first);
        match self.last {
            Some((last, wants)) if last == partition => wants,
            _ => {
                let tells = own == self.node || view.topology.holds(own, partition, 0);
                let wants = match self.lost {
                    true => tells && view.topology.holds(self.node, partition, 0),
                    false => tells && view.must_take_over(partition, self.node),
                };
                self.last = Some((partition, wants));
                wants
            }
        }
    }
}

fn look_up(topology: &Topology, partition: u16, copies: u8, into: &mut Vec<NodeId>) {
    topology.replicas(partition, topology.copies_of(copies), into);
}

/// The view by which replicas are looked up, and a buffer for them.
#[derive(Debug)]
struct ReplicaLookup<'a> {
    view: &'a View,
    replicas: Vec<NodeId>,
}

/// The filter of a node's keys for one page.
#[derive(Debug)]
pub struct PartitionFilter<'a> {
    own: NodeId,
    kind: FilterKind<'a>,
    looked: ReplicaLookup<'a>,
}

#[derive(Debug)]
enum FilterKind<'a> {
    Chosen(Chooser<'a>),
    HeldBy(HeldFilter<'a>),
    Moved(MovedFilter<'a>),
    Remembered(RememberedFilter),
    /// Selects nothing, because no partition moves.
    None,
}

impl<'a> PartitionFilter<'a> {
    /// Makes a filter for pages of the node `own`, whose current placement is in force since
    /// `placement_time` ([`Shared::placement_time`](crate::Shared::placement_time)).
    pub fn new(view: &'a View, own: NodeId, placement_time: u64, filter: &'a Filter) -> Self {
        let kind = match filter {
            Filter::Chosen { ack, from, preference } => {
                let quorum = Quorum { ack: *ack, from: *from };
                FilterKind::Chosen(Chooser::new(&view.topology, quorum, preference))
            }
            Filter::HeldBy { node, since, promise: _, partitions } => {
                FilterKind::HeldBy(HeldFilter { node: *node, since: *since, partitions })
            }
            Filter::Moved { node, first, seed, known } => match &view.other {
                Some(other) => {
                    let mut known = known.clone();
                    known.sort_unstable();
                    let (before, after) = (&view.topology, other);
                    let (node, first, seed) = (*node, first.then_some(placement_time), *seed);
                    FilterKind::Moved(MovedFilter { node, first, seed, known, before, after })
                }
                None => FilterKind::None,
            },
            Filter::Remembered { node, lost } => {
                FilterKind::Remembered(RememberedFilter { node: *node, lost: *lost, last: None })
            }
        };
        Self { own, kind, looked: ReplicaLookup { view, replicas: Vec::new() } }
    }

    /// True if the page should have this key, or the history entry of this name; `copies` and
    /// `rank` are those of the record. If this node alone is asked for each key, the page omits
    /// tombstones, because no other node has an older record that they must hide.
    pub fn wants(&mut self, key: &[u8], copies: u8, rank: Rank) -> bool {
        let Self { own, kind, looked } = self;
        match kind {
            FilterKind::Chosen(chooser) if chooser.is_alone() && rank.kind != Kind::Value => false,
            FilterKind::Chosen(chooser) if chooser.is_every_node() => true,
            FilterKind::Chosen(chooser) => chooser.choose(partition_of(key)).contains(own),
            FilterKind::HeldBy(held) => held.wants(looked, key, copies, rank.write_time()),
            FilterKind::Moved(moved) => moved.wants(looked, *own, key, (copies, rank)),
            FilterKind::Remembered(remembered) => remembered.wants(looked.view, *own, key),
            FilterKind::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::topology::Member;
    use record::Version;

    fn topology(ids: &[u16], copies: u8) -> Topology {
        let member = |id: &u16| {
            let name = format!("n{id}");
            (NodeId(*id), Member { name, zone: String::new(), weight: 1 })
        };
        Topology::of(ids.iter().map(member).collect(), copies).unwrap()
    }

    /// The version time since which the current placement is in force.
    const PLACED_AT: u64 = 5;

    fn rank(time: u64) -> Rank {
        let version = Version { time, origin: 1 };
        Rank { version, ballot: 0, kind: Kind::Value, check: 3 }
    }

    /// Returns a rank; every second key was written since the current placement.
    fn rank_of(key: u8) -> Rank {
        rank(PLACED_AT + u64::from(key % 2))
    }

    /// Returns, for each previous node, the number of keys out of 100 that it sends to the node
    /// `to`.
    fn count_sent_keys(view: &View, to: u16, first: bool, known: &[u64]) -> Vec<usize> {
        let filter = Filter::Moved { node: NodeId(to), first, seed: 9, known: known.to_vec() };
        let sends = |own: NodeId| {
            let mut sends = PartitionFilter::new(view, own, PLACED_AT, &filter);
            let holds = |key: &u8| view.topology.holds(own, partition_of(&[*key]), 0);
            (0..100).filter(|key| holds(key) && sends.wants(&[*key], 0, rank_of(*key))).count()
        };
        view.topology.ids().map(sends).collect()
    }

    #[test]
    fn moving_keys_are_sent_once_and_then_by_all_replicas_that_differ() {
        let (before, after) = (topology(&[0, 1, 2], 3), topology(&[0, 1, 2, 3], 3));
        let view = View::new_moving(2, 2, before, after);
        let all = count_sent_keys(&view, 3, false, &[]);
        let moves = all[0];
        assert!((60..90).contains(&moves), "three of four: {all:?}");
        assert_eq!(all, [moves; 3], "each of them holds it");
        let moves_to =
            |key: &u8| view.other.as_ref().unwrap().holds(NodeId(3), partition_of(&[*key]), 0);
        let first = count_sent_keys(&view, 3, true, &[]);
        let written_before = (0..100).step_by(2).filter(moves_to).count();
        assert_eq!(first.iter().sum::<usize>(), written_before, "the rest went to all: {first:?}");
        assert_eq!(count_sent_keys(&view, 0, false, &[]), [0; 3], "who stays gets nothing");
        let known: Vec<u64> = (0..100).map(|key| moved_digest(9, &[key], rank_of(key))).collect();
        assert_eq!(count_sent_keys(&view, 3, false, &known), [0; 3]);
        let older: Vec<u64> = (0..100).map(|key| moved_digest(9, &[key], rank(4))).collect();
        assert_eq!(count_sent_keys(&view, 3, false, &older), all);
    }

    #[test]
    fn with_fewer_copies_staying_replicas_receive_what_they_lack() {
        let view = View::new_moving(2, 2, topology(&[0, 1, 2], 3), topology(&[0], 3));
        assert_eq!(count_sent_keys(&view, 0, true, &[]), [0; 3], "it holds most of it");
        assert_eq!(count_sent_keys(&view, 0, false, &[]), [100; 3]);
    }

    #[test]
    fn without_a_move_nothing_is_sent() {
        assert_eq!(count_sent_keys(&View::first(topology(&[0, 1, 2], 3)), 1, false, &[]), [0; 3]);
    }
}
