//! Sums over the records of a replica, and the buckets in which the sums of several replicas
//! differ.
//!
//! ```text
//!   keys from … to …, on each replica:
//!     key ─▶ partition ─▶ bucket: partitions with the same replicas in the same order
//!     sum of a bucket = Σ xxh3-128(key, rank), modulo 2^128, for each number of copies
//! ```
//!
//! Sums do not depend on the order of keys, and one record's contribution does not depend on other
//! records. So replicas with the same records have the same sums; replicas with different records
//! have equal sums in one of 2^128 cases per bucket. (A malicious peer could make every comparison
//! with it differ, but such a peer could also simply report false records.)

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_128;

use crate::message::NodeId;
use crate::placement::topology::{Buckets, Topology};
use crate::repair::compare_messages::Sum;
use record::Rank;

/// Sums over a node's records, under construction.
#[derive(Debug)]
pub struct Sums<'a> {
    buckets: &'a Buckets,
    topology: &'a Topology,
    own: NodeId,
    copies: u8,
    usual: Vec<u128>,
    others: BTreeMap<(u16, u8), u128>,
    /// Number of records that are not summed, by bucket.
    continued: BTreeMap<u16, u128>,
    bytes: Vec<u8>,
}

impl<'a> Sums<'a> {
    /// Makes the sums over no records.
    pub fn new(topology: &'a Topology, own: NodeId) -> Self {
        let (buckets, copies) = (topology.buckets(), topology.default_copies());
        let (usual, others) = (vec![0; buckets.examples().len()], BTreeMap::new());
        let (continued, bytes) = (BTreeMap::new(), Vec::new());
        Self { buckets, topology, own, copies, usual, others, continued, bytes }
    }

    /// Adds a record.
    pub fn add(&mut self, key: &[u8], rank: &Rank, copies: u8) {
        let Rank { version, ballot, kind, check } = rank;
        self.bytes.clear();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(&version.time.to_le_bytes());
        self.bytes.extend_from_slice(&version.origin.to_le_bytes());
        self.bytes.extend_from_slice(&ballot.to_le_bytes());
        self.bytes.push(*kind as u8);
        self.bytes.extend_from_slice(&check.to_le_bytes());
        let bucket = self.buckets.of(key);
        let sum = match copies {
            0 => &mut self.usual[usize::from(bucket)],
            copies if copies == self.copies => &mut self.usual[usize::from(bucket)],
            copies => self.others.entry((bucket, copies)).or_default(),
        };
        *sum = sum.wrapping_add(xxh3_128(&self.bytes));
    }

    /// Counts a record that is not summed: its base version is within the compared time, but a
    /// later conditional write continued it. A record with fewer copies, which this node does not
    /// hold, may hide the counted record.
    pub fn count_unsummed(&mut self, key: &[u8]) {
        *self.continued.entry(self.buckets.of(key)).or_default() += 1;
    }

    /// Returns the finished sums.
    pub fn end(self) -> Vec<Sum> {
        let mut sums = Vec::new();
        let mut order = Vec::new();
        let all = u8::try_from(self.topology.nodes()).unwrap_or(u8::MAX);
        for (bucket, sum) in self.usual.iter().enumerate() {
            self.topology.replicas(self.buckets.examples()[bucket], self.copies, &mut order);
            let place = order.iter().position(|node| *node == self.own);
            // A node that is no replica of the bucket may hold an older record of a key.
            if place.is_some() || *sum != 0 {
                let (bucket, place) = (bucket as u16, place.map_or(u8::MAX, |place| place as u8));
                sums.push(Sum { bucket, place, copies: self.copies, sum: *sum });
            }
        }
        for ((bucket, copies), sum) in self.others {
            self.topology.replicas(self.buckets.examples()[usize::from(bucket)], all, &mut order);
            let place = order.iter().position(|node| *node == self.own);
            let place = place.map_or(u8::MAX, |place| place.min(usize::from(u8::MAX)) as u8);
            sums.push(Sum { bucket, place, copies, sum });
        }
        let continued = self.continued.into_iter();
        sums.extend(continued.map(|(bucket, sum)| Sum { bucket, place: 0, copies: 0, sum }));
        sums
    }
}

/// Returns the buckets in which replicas differ, by their reports of the same keys. Replicas
/// without a report are ignored. Three kinds of buckets are always included:
///
/// * buckets with records of more copies than the default, because the replicas of these records
///   differ between the partitions of a bucket;
/// * buckets with a record on a node that is not a replica;
/// * buckets with records of fewer copies where some records are not summed, because a record with
///   fewer copies may hide an unsummed record and be purged before it.
pub(crate) fn differing_buckets(reported: &BTreeMap<NodeId, &[Sum]>, usual: u8) -> Vec<u16> {
    let mut places: BTreeMap<u16, Vec<(u8, NodeId)>> = BTreeMap::new();
    let mut sums: BTreeMap<(u16, u8), BTreeMap<NodeId, u128>> = BTreeMap::new();
    let mut beyond: BTreeSet<u16> = BTreeSet::new();
    let (mut fewer, mut continued) = (BTreeSet::new(), BTreeSet::new());
    for (node, reported) in reported {
        for sum in *reported {
            if sum.is_count_of_unsummed() {
                continued.insert(sum.bucket);
                continue;
            }
            if sum.copies < usual && sum.sum != 0 {
                fewer.insert(sum.bucket);
            }
            sums.entry((sum.bucket, sum.copies)).or_default().insert(*node, sum.sum);
            if sum.place >= sum.copies && sum.sum != 0 {
                beyond.insert(sum.bucket);
            }
            if sum.copies == usual && sum.place < usual {
                places.entry(sum.bucket).or_default().push((sum.place, *node));
            }
        }
    }
    let mut differing: Vec<u16> = Vec::new();
    for ((bucket, copies), sums) in &sums {
        let replicas = places.get(bucket).map_or(&[][..], |places| places);
        let mut held = replicas
            .iter()
            .filter(|(place, _)| place < copies)
            .map(|(_, node)| sums.get(node).copied().unwrap_or(0));
        let first = held.next();
        let is_hidden = fewer.contains(bucket) && continued.contains(bucket);
        let is_beyond = beyond.contains(bucket) || is_hidden;
        let differs = *copies > usual || is_beyond || held.any(|sum| Some(sum) != first);
        if differs && differing.last() != Some(bucket) {
            differing.push(*bucket);
        }
    }
    differing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::topology::{Member, partition_of};
    use record::{Kind, Version};

    fn topology(nodes: usize, replicas: u8) -> Topology {
        let member = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
        Topology::new((0..nodes).map(member).collect(), replicas).unwrap()
    }

    fn rank(time: u64) -> Rank {
        let version = Version { time, origin: 1 };
        Rank { version, ballot: 0, kind: Kind::Value, check: 7 }
    }

    /// Returns the differing buckets if each replica of a key holds the key, unless `lacks` is
    /// true.
    fn differing_of(
        topology: &Topology,
        copies_of: impl Fn(u32) -> u8,
        lacks: impl Fn(NodeId, u32) -> bool,
    ) -> Vec<u16> {
        let mut order = Vec::new();
        let sums = topology.ids().map(|node| {
            let mut sums = Sums::new(topology, node);
            for n in 0..2000_u32 {
                let (key, copies) = (n.to_be_bytes(), copies_of(n));
                let from = topology.copies_of(copies);
                topology.replicas(partition_of(&key), from, &mut order);
                if order.contains(&node) && !lacks(node, n) {
                    sums.add(&key, &rank(5), copies);
                }
            }
            (node, sums.end())
        });
        let sums: BTreeMap<NodeId, Vec<Sum>> = sums.collect();
        let reported = sums.iter().map(|(node, sums)| (*node, &sums[..])).collect();
        differing_buckets(&reported, topology.default_copies())
    }

    #[test]
    fn replicas_that_hold_the_same_do_not_differ() {
        for (nodes, replicas) in [(1, 3), (2, 3), (3, 3), (3, 2), (5, 3), (9, 3), (40, 5)] {
            let topology = topology(nodes, replicas);
            let copies = topology.default_copies();
            assert!(differing_of(&topology, |_| 0, |_, _| false).is_empty(), "{nodes} nodes");
            let fewer = |n| if n % 3 == 0 { 1.max(copies - 1) } else { n as u8 % 2 * copies };
            assert!(
                differing_of(&topology, fewer, |_, _| false).is_empty(),
                "{nodes} nodes, fewer copies"
            );
        }
    }

    #[test]
    fn one_record_that_one_replica_lacks_is_found() {
        for (nodes, replicas) in [(2, 3), (3, 3), (3, 2), (5, 3), (40, 5)] {
            let topology = topology(nodes, replicas);
            let mut order = Vec::new();
            for n in [0, 77, 1999_u32] {
                topology.replicas(partition_of(&n.to_be_bytes()), 2, &mut order);
                for replica in order.clone() {
                    let lacks = |node, key| key == n && node == replica;
                    let found = differing_of(&topology, |_| 0, lacks);
                    assert_eq!(found, [topology.buckets().of(&n.to_be_bytes())]);
                    let found = differing_of(&topology, |_| 2, lacks);
                    assert_eq!(found, [topology.buckets().of(&n.to_be_bytes())]);
                }
            }
        }
    }

    #[test]
    fn buckets_with_more_copies_than_the_default_always_differ() {
        let topology = topology(5, 3);
        let found = differing_of(&topology, |n| if n == 9 { 5 } else { 0 }, |_, _| false);
        assert_eq!(found, [topology.buckets().of(&9_u32.to_be_bytes())]);
    }

    /// The record with fewer copies is held by its replicas only. It may hide an older record on
    /// another node.
    #[test]
    fn buckets_with_fewer_copies_and_unsummed_records_differ() {
        let topology = topology(5, 3);
        let bucket = topology.buckets().of(b"k");
        let mut order = Vec::new();
        topology.replicas(partition_of(b"k"), 3, &mut order);
        let found = |copies: u8, continues: bool| {
            let sums = order.iter().map(|node| {
                let mut sums = Sums::new(&topology, *node);
                let place = order.iter().position(|other| other == node).unwrap();
                if place < usize::from(copies) {
                    sums.add(b"k", &rank(5), copies);
                } else if continues {
                    sums.count_unsummed(b"k");
                }
                (*node, sums.end())
            });
            let sums: BTreeMap<NodeId, Vec<Sum>> = sums.collect();
            differing_buckets(&sums.iter().map(|(node, sums)| (*node, &sums[..])).collect(), 3)
        };
        assert_eq!((found(1, false), found(1, true)), (vec![], vec![bucket]));
        assert_eq!((found(2, false), found(2, true)), (vec![], vec![bucket]));
        assert_eq!((found(0, true), found(3, true)), (vec![], vec![]), "nothing has fewer copies");
    }

    #[test]
    fn another_rank_has_another_sum() {
        let topology = topology(3, 3);
        let node = topology.ids().next().unwrap();
        let sum = |rank: Rank| {
            let mut sums = Sums::new(&topology, node);
            sums.add(b"k", &rank, 0);
            sums.end()
        };
        let Rank { version, .. } = rank(5);
        let others = [
            rank(6),
            Rank { version: Version { origin: 2, ..version }, ..rank(5) },
            Rank { ballot: 1, ..rank(5) },
            Rank { kind: Kind::Tombstone, ..rank(5) },
            Rank { check: 8, ..rank(5) },
        ];
        others.into_iter().for_each(|other| assert_ne!(sum(rank(5)), sum(other), "{other:?}"));
    }
}
