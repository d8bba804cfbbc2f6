//! Estimate of the bytes that clients have stored under a prefix, from this node's part of the
//! keys.
//!
//! A key's hash places the key, so one node's keys are a random sample of all keys. A record on
//! this node whose key has n copies counts as P / p records, where P is the number of all
//! partitions, and p the number of partitions that have this node among their first n replicas. If
//! there are as many replicas as nodes, the estimate is exact; otherwise its error falls with the
//! size of the sample (Horvitz and Thompson, *A Generalization of Sampling Without Replacement From
//! a Finite Universe*, 1952): about 1/√k for k keys of one size on this node.

use std::collections::BTreeMap;

use lsm::{RecordRef, ScanItem, Snapshot, Space};
use protocol::layout::end_of_prefix;
use protocol::{NodeId, Topology};

use crate::usage::Shares;

/// Bytes read by one step: some tens of milliseconds of work.
const STEP_BYTES: u64 = 4 << 20;

/// Records visited by one step.
const STEP_RECORDS: usize = 64 << 10;

/// A walk over this node's keys that begin with a prefix.
#[derive(Debug)]
pub struct StoredWalk {
    topology: Topology,
    own: NodeId,
    /// The next step begins at `start`; the walk ends before `end` (`None` = at the last key).
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    /// Bytes of the keys and values found, by the number of copies of their records.
    found: BTreeMap<u8, u64>,
}

impl StoredWalk {
    /// Returns a walk from the first key of the prefix on. `topology` defines each node's
    /// partitions.
    pub fn new(topology: Topology, own: NodeId, prefix: &[u8]) -> Self {
        let (start, end) = (prefix.to_vec(), end_of_prefix(prefix));
        Self { topology, own, start, end, found: BTreeMap::new() }
    }

    /// Walks for tens of milliseconds, bypassing the cache; returns true if the walk has reached
    /// its end. Skips unreadable records, which a repair round reports. Waits for the disk.
    pub fn step(&mut self, snapshot: &Snapshot, wall_micros: u64) -> bool {
        let start = std::mem::take(&mut self.start);
        let mut scan = snapshot.verified_scan(Space::Data, &start, self.end.as_deref(), 0);
        scan.pause_after(STEP_BYTES);
        let mut left = STEP_RECORDS;
        while let Some(item) = scan.next() {
            match item {
                ScanItem::Record(key, _) if left == 0 => {
                    self.start = key.to_vec();
                    return false;
                }
                ScanItem::Record(key, record) => {
                    left -= 1;
                    self.count_record(key, &record, wall_micros);
                }
                ScanItem::Damaged(_) => {}
                ScanItem::Pause { next } => {
                    self.start = next;
                    return false;
                }
            }
        }
        true
    }

    fn count_record(&mut self, key: &[u8], record: &RecordRef<'_>, wall_micros: u64) {
        let copies = self.topology.copies_of(record.copies());
        let partition = protocol::partition_of(key);
        // A record of a partition that moved away may still be here.
        if record.is_live(|| wall_micros) && self.topology.holds(self.own, partition, copies) {
            *self.found.entry(copies).or_default() += (key.len() + record.value().len()) as u64;
        }
    }

    /// Returns the first key that the walk has not visited yet.
    pub fn position(&self) -> &[u8] {
        &self.start
    }

    /// Returns the estimate for all nodes: bytes of keys and values, each key once. `shares` must
    /// be those of the walk's topology.
    pub fn bytes(&self, shares: &Shares) -> u64 {
        let all = |(copies, bytes): (&u8, &u64)| shares.all(*copies, *bytes);
        self.found.iter().map(all).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use lsm::{Batch, Fields, Kind, Version};
    use protocol::Member;

    use super::*;
    use crate::store::Store;
    use crate::test_node::TestNode;

    fn topology(nodes: usize, replicas: u8) -> Topology {
        let member = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
        Topology::new((0..nodes).map(member).collect(), replicas).unwrap()
    }

    /// Stores each node's part of these keys (key, copies, length of the value) on that node;
    /// returns each node's estimate for `prefix`.
    fn estimates(topology: &Topology, keys: &[(Vec<u8>, u8, usize)], prefix: &[u8]) -> Vec<u64> {
        let of = |own: NodeId| {
            let stage = TestNode::new();
            let mut batch = Batch::new();
            for (key, copies, length) in keys {
                if topology.holds(own, protocol::partition_of(key), *copies) {
                    let version = Version { time: 5, origin: 1 };
                    let fields = Fields { copies: *copies, ..Fields::new(Kind::Value, version) };
                    batch.write(Space::Data, key, &fields, &vec![7; *length]).unwrap();
                }
            }
            Store::commit(&stage.engine, batch).unwrap();
            let mut walk = StoredWalk::new(topology.clone(), own, prefix);
            while !walk.step(&stage.engine.snapshot(), 0) {}
            walk.bytes(&Shares::of(topology, own))
        };
        topology.ids().map(of).collect()
    }

    #[test]
    fn the_estimate_is_exact_with_as_many_replicas_as_nodes() {
        let keys: Vec<_> = (0..300).map(|n| (format!("a/{n:03}").into_bytes(), 0, 95)).collect();
        assert_eq!(estimates(&topology(3, 3), &keys, b"a/"), [30_000; 3]);
        assert_eq!(estimates(&topology(3, 3), &keys, b"a/00"), [1_000; 3]);
        assert_eq!(estimates(&topology(1, 3), &keys, b""), [30_000]);
        assert_eq!(estimates(&topology(3, 3), &keys, b"b"), [0; 3]);
    }

    #[test]
    fn the_estimate_is_close_with_fewer_replicas_than_nodes() {
        for (nodes, replicas, copies) in [(5, 3, 0), (3, 3, 1), (9, 3, 0), (12, 2, 10)] {
            let key = |n: u32| (format!("a/{n:05}").into_bytes(), copies, 93);
            let keys: Vec<_> = (0..10_000).map(key).collect();
            for bytes in estimates(&topology(nodes, replicas), &keys, b"a/") {
                // With 2,000 or more keys on each node, 5 % is more than twice the standard error.
                let off = bytes.abs_diff(1_000_000);
                assert!(off < 80_000, "{nodes} nodes, {copies} copies: {bytes}");
            }
        }
    }
}
