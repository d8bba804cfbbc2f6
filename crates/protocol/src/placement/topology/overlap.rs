//! Overlap of a set of nodes with the replicas of one partition: an upper bound computed from the
//! zones alone; and the partitions that each node holds, among which `Topology::have_more_than`
//! searches for one whose overlap exceeds a number.
//!
//! The node order of a partition has the first node of each zone, then the second of each, and so
//! on (`ranking.rs`). Records with `from` replicas are on the first `from` nodes of that order:
//! `full` nodes of every zone (or all nodes of a smaller zone), and one more node of each of `rest`
//! zones:
//!
//! ```text
//!   zone x:  a b c      from = 4:  one node of each zone (full = 1), one more of x or y (rest = 1)
//!   zone y:  d e                   so at most three of {b, c, e} are replicas, or two of {d, e}
//!   zone z:  f
//! ```
//!
//! In a cluster with many partitions per set of replicas, some partition reaches the bound. In a
//! large cluster there may be no such partition; the search then tests the partitions that the
//! nodes of the set hold.

use super::{Member, PARTITIONS};

/// The nodes' zones, and the partitions that each node holds.
#[derive(Debug)]
pub(super) struct Holdings {
    zones: Zones,
    /// Index in `partitions` at which each node's partitions begin; the last entry is the length of
    /// `partitions`.
    begins: Vec<u32>,
    /// The partitions with the node among their stored replicas, node after node.
    partitions: Vec<u16>,
}

impl Holdings {
    /// Builds the table. `stored` are the positions of the first `stride` nodes of each partition.
    pub(super) fn new(
        members: &[Member],
        stored: impl Iterator<Item = usize> + Clone,
        stride: usize,
    ) -> Self {
        let zones = Zones::of(members);
        let mut begins = vec![0; members.len() + 1];
        for place in stored.clone() {
            begins[place + 1] += 1;
        }
        for place in 0..members.len() {
            begins[place + 1] += begins[place];
        }
        let mut next = begins.clone();
        let mut partitions = vec![0; PARTITIONS * stride];
        for (at, place) in stored.enumerate() {
            let next = &mut next[place];
            partitions[*next as usize] = (at / stride) as u16;
            *next += 1;
        }
        Self { zones, begins, partitions }
    }

    /// Returns the partitions that the node at a position holds.
    pub(super) fn of(&self, place: usize) -> &[u16] {
        &self.partitions[self.begins[place] as usize..self.begins[place + 1] as usize]
    }

    /// Returns an empty set of nodes, to be counted among the first `from` nodes of partitions.
    pub(super) fn overlap(&self, from: u8) -> Overlap<'_> {
        let (full, rest) = self.zones.of_first(usize::from(from));
        let inside = vec![0; self.zones.larger.first().copied().unwrap_or(0)];
        Overlap { zones: &self.zones.of, full, rest, inside, within: 0, above: 0 }
    }
}

/// The zones of the nodes.
#[derive(Debug)]
pub(super) struct Zones {
    /// The zone number of each node, by position.
    pub(super) of: Vec<u16>,
    /// Number of zones with more than `n` nodes, for each `n` from 0 on.
    larger: Vec<usize>,
}

impl Zones {
    /// Numbers the zones. `members` are sorted by name.
    pub(super) fn of(members: &[Member]) -> Self {
        let mut by_zone: Vec<usize> = (0..members.len()).collect();
        by_zone.sort_by_key(|place| &members[*place].zone);
        let mut of = vec![0; members.len()];
        let mut sizes: Vec<usize> = Vec::new();
        let mut last: Option<&str> = None;
        for place in by_zone {
            let zone = members[place].zone.as_str();
            // A node without a zone has one of its own.
            if zone.is_empty() || last != Some(zone) {
                sizes.push(0);
            }
            last = Some(zone);
            let number = sizes.len() - 1;
            of[place] = number as u16;
            sizes[number] += 1;
        }
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let larger = (0..largest).map(|than| sizes.iter().filter(|size| **size > than).count());
        let larger = larger.collect();
        Self { of, larger }
    }

    /// Returns `(full, rest)`: the first `from` nodes of a partition are `full` nodes of every zone
    /// (or all nodes of a smaller zone), and one more node of each of `rest` zones.
    pub(super) fn of_first(&self, from: usize) -> (usize, usize) {
        let (mut full, mut rest) = (0, from);
        for zones in self.larger.iter().take_while(|zones| **zones > 0) {
            let Some(left) = rest.checked_sub(*zones) else { break };
            (full, rest) = (full + 1, left);
        }
        (full, rest)
    }
}

/// A set of nodes, and the maximum number of them among a partition's first `from` nodes.
#[derive(Debug)]
pub(crate) struct Overlap<'a> {
    zones: &'a [u16],
    full: usize,
    rest: usize,
    /// Number of nodes of the set, by zone.
    inside: Vec<usize>,
    /// Number of nodes of the set that fit in the `full` nodes of their zones.
    within: usize,
    /// Number of zones with more than `full` nodes of the set.
    above: usize,
}

impl Overlap<'_> {
    /// Adds the node at a position. A node must not be added twice.
    pub(crate) fn add(&mut self, place: usize) {
        let inside = &mut self.inside[usize::from(self.zones[place])];
        *inside += 1;
        if *inside <= self.full {
            self.within += 1;
        } else if *inside == self.full + 1 {
            self.above += 1;
        }
    }

    /// Returns the maximum number of the set's nodes among the first `from` nodes of any partition.
    pub(crate) fn most(&self) -> usize {
        self.within + self.above.min(self.rest)
    }
}
