//! Buckets: groups of partitions with the same replicas in the same order, by which replicas
//! compare their records.

use std::collections::BTreeMap;

use super::{PARTITIONS, partition_of};

/// Approximate number of buckets in a small cluster. If a bucket differs, all its keys are listed;
/// each bucket costs a sum of some 20 bytes on the wire.
const BUCKETS: usize = 512;

/// The assignment of partitions to buckets.
#[derive(Debug)]
pub struct Buckets {
    of: Box<[u16]>,
    /// One partition of each bucket.
    examples: Vec<u16>,
}

impl Buckets {
    /// Groups partitions that have the same replicas in the same order. Visits all partitions,
    /// which takes some milliseconds.
    pub(super) fn new<R: Ord + Clone>(mut replicas_of: impl FnMut(u16, &mut Vec<R>)) -> Self {
        let mut groups: BTreeMap<Vec<R>, usize> = BTreeMap::new();
        let mut order = Vec::new();
        let group_of: Vec<usize> = (0..=u16::MAX)
            .map(|partition| {
                replicas_of(partition, &mut order);
                let next = groups.len();
                *groups.entry(order.clone()).or_insert(next)
            })
            .collect();
        let each = (BUCKETS / groups.len()).max(1);
        let mut numbers = BTreeMap::new();
        let mut examples = Vec::new();
        let mut of = Vec::with_capacity(PARTITIONS);
        for (partition, group) in (0..=u16::MAX).zip(group_of) {
            let bucket =
                *numbers.entry((group, usize::from(partition) % each)).or_insert_with(|| {
                    examples.push(partition);
                    examples.len() - 1
                });
            of.push(bucket as u16);
        }
        Self { of: of.into(), examples }
    }

    /// Returns the bucket of a key.
    pub fn of(&self, key: &[u8]) -> u16 {
        self.of[usize::from(partition_of(key))]
    }

    /// Returns one partition of each bucket; there are at most as many buckets as partitions.
    pub(crate) fn examples(&self) -> &[u16] {
        &self.examples
    }
}

#[cfg(test)]
mod tests {
    use crate::placement::topology::{Member, Topology};

    #[test]
    fn buckets_are_few_and_each_has_its_replicas() {
        for (nodes, replicas, most) in [(1, 1, 512), (3, 3, 512), (5, 3, 512), (40, 5, 65_536)] {
            let member = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
            let topology = Topology::new((0..nodes).map(member).collect(), replicas).unwrap();
            let buckets = topology.buckets();
            assert!(buckets.examples.len() <= most && buckets.examples.len() > 256);
            let (mut one, mut other) = (Vec::new(), Vec::new());
            for partition in (0..=u16::MAX).step_by(7) {
                let bucket = buckets.of[usize::from(partition)];
                topology.replicas(partition, replicas, &mut one);
                topology.replicas(buckets.examples[usize::from(bucket)], replicas, &mut other);
                assert_eq!(one, other);
            }
        }
    }
}
