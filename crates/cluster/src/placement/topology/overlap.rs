//! How many of some nodes can be replicas of one partition: at most, by their zones alone, and
//! whether any partition has so many.
//!
//! The order of a partition has the first node of each zone, then the second of each, and so on
//! (`placement.rs`). So its first `from` are `full` nodes of every zone that has as many, and one
//! more of each of `rest` zones:
//!
//! ```text
//!   zone x:  a b c      from = 4:  one node of each zone (full = 1), one more of x or y (rest = 1)
//!   zone y:  d e                   of b, c and e it has three at most, of d and e two
//!   zone z:  f
//! ```
//!
//! In a cluster with many partitions for each set of nodes there is one that reaches the bound. In
//! a large one there may be none, and then the partitions that the nodes hold are looked at.

use super::{Member, PARTITIONS};

/// The nodes' zones, and which partitions each node holds.
#[derive(Debug)]
pub(super) struct Holdings {
    zones: Zones,
    /// Where each node's partitions begin in `partitions`; one more at the end.
    begins: Vec<u32>,
    /// The partitions of which a node is among the replicas that are stored, node after node.
    partitions: Vec<u16>,
}

impl Holdings {
    /// `stored` are the places of the first `stride` nodes of each partition.
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

    /// The partitions that the node at a place holds.
    pub(super) fn of(&self, place: usize) -> &[u16] {
        &self.partitions[self.begins[place] as usize..self.begins[place + 1] as usize]
    }

    /// No nodes yet, of the first `from` of a partition.
    pub(super) fn overlap(&self, from: u8) -> Overlap<'_> {
        let (full, rest) = self.zones.of_first(usize::from(from));
        let inside = vec![0; self.zones.larger.first().copied().unwrap_or(0)];
        Overlap { zones: &self.zones.of, full, rest, inside, within: 0, above: 0 }
    }
}

/// The zones that nodes are in.
#[derive(Debug)]
pub(super) struct Zones {
    /// Each node's zone as a number, by its place.
    pub(super) of: Vec<u16>,
    /// How many zones have more than so many nodes, from 0 on.
    larger: Vec<usize>,
}

impl Zones {
    /// `members` are sorted by name.
    pub(super) fn of(members: &[Member]) -> Self {
        let mut by_zone: Vec<usize> = (0..members.len()).collect();
        by_zone.sort_by_key(|place| &members[*place].zone);
        let mut of = vec![0; members.len()];
        let mut sizes: Vec<usize> = Vec::new();
        let mut last: Option<&str> = None;
        for place in by_zone {
            let zone = members[place].zone.as_str();
            // Without a zone each is one of its own.
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

    /// Of the first `from` nodes of a partition so many are of every zone that has as many, and so
    /// many zones have one more.
    pub(super) fn of_first(&self, from: usize) -> (usize, usize) {
        let (mut full, mut rest) = (0, from);
        for zones in self.larger.iter().take_while(|zones| **zones > 0) {
            let Some(left) = rest.checked_sub(*zones) else { break };
            (full, rest) = (full + 1, left);
        }
        (full, rest)
    }
}

/// Some nodes, and how many of them a partition can have among its first `from` at most.
#[derive(Debug)]
pub(crate) struct Overlap<'a> {
    zones: &'a [u16],
    full: usize,
    rest: usize,
    /// How many of the nodes each zone has.
    inside: Vec<usize>,
    /// The nodes that the `full` ones of their zones can be.
    within: usize,
    /// Zones that have more of the nodes than that.
    above: usize,
}

impl Overlap<'_> {
    /// Adds the node at a place. None is added twice.
    pub(crate) fn add(&mut self, place: usize) {
        let inside = &mut self.inside[usize::from(self.zones[place])];
        *inside += 1;
        if *inside <= self.full {
            self.within += 1;
        } else if *inside == self.full + 1 {
            self.above += 1;
        }
    }

    /// At most so many of them are among the first `from` of any partition.
    pub(crate) fn most(&self) -> usize {
        self.within + self.above.min(self.rest)
    }
}
