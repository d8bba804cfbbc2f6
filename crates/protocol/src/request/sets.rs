//! The two replica sets under which a request is counted while partitions move: the *read set*, and
//! the *other set*, which is also written. A read returns a record only if a quorum of the other
//! set holds it too, save with `ack` = 1 of several. A request has one vote for each replica of
//! either set, with the replica's position in each set. A write needs `ack` votes in each set. A
//! read needs the reports of `ack` replicas of the read set; then each set must hold the record
//! that the read returns. Votes of different sets are never added.
//!
//! ```text
//!  read set A B C    votes with (position in the read set, position in the other set):
//!  other    A B D      A (0, 0)   B (1, 1)   C (2, none)   D (none, 2)
//!
//!  2 of 3 in each set: A and B suffice; A, C and D suffice; C and D do not
//! ```
//!
//! Without a move, the two sets are the same, and the two numbers of each count are equal.

use std::ops::Add;

use crate::message::NodeId;
use crate::placement::topology::Topology;
use crate::placement::view::View;
use crate::request::quorum::{AskedQuorum, Quorum};
use record::Record;

/// The position of a node in a set that does not contain it: after all others.
const NO_POSITION: u8 = u8::MAX;

/// A pair of numbers, one for each set: counts of replicas, or a replica's positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PerSet {
    pub(crate) read: u8,
    pub(crate) other: u8,
}

impl PerSet {
    /// A count of one in each set.
    pub(crate) const BOTH: Self = Self { read: 1, other: 1 };

    /// True if both sets' counts reach the needed numbers.
    pub(crate) fn suffices(self, needed: Self) -> bool {
        self.read >= needed.read && self.other >= needed.other
    }

    /// Returns the lesser number in each set.
    pub(crate) fn min(self, most: Self) -> Self {
        Self { read: self.read.min(most.read), other: self.other.min(most.other) }
    }

    /// Returns 1 for each set whose count is below the needed number, else 0.
    pub(crate) fn short_of(self, needed: Self) -> Self {
        let (read, other) = (self.read < needed.read, self.other < needed.other);
        Self { read: read.into(), other: other.into() }
    }

    /// For positions: returns 1 for each set in which the replica is among the first `first`, else
    /// 0.
    pub(crate) fn within(self, first: Self) -> Self {
        Self { read: u8::from(self.read < first.read), other: u8::from(self.other < first.other) }
    }

    /// For positions: returns 1 for each set that contains the replica, else 0.
    pub(crate) fn sets(self) -> Self {
        self.within(Self { read: NO_POSITION, other: NO_POSITION })
    }

    /// For positions: true if the replica is in the read set.
    pub(crate) fn is_in_read(self) -> bool {
        self.read != NO_POSITION
    }

    /// For positions: true if the replica is in both sets.
    pub(crate) fn is_in_both(self) -> bool {
        self.read != NO_POSITION && self.other != NO_POSITION
    }

    /// True if the count is 0 in both sets.
    pub(crate) fn is_zero(self) -> bool {
        self.read == 0 && self.other == 0
    }
}

impl Add for PerSet {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        // The sum fits: a set has at most 255 replicas.
        Self { read: self.read + more.read, other: self.other + more.other }
    }
}

/// Counts the votes in each set.
pub(crate) fn count(votes: impl Iterator<Item = PerSet>) -> PerSet {
    votes.fold(PerSet::default(), |count, place| count + place.sets())
}

/// The quorums of a request, one for each set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quorums {
    pub(crate) asked: AskedQuorum,
    pub(crate) read: Quorum,
    pub(crate) other: Quorum,
}

impl Quorums {
    pub(crate) fn of(asked: AskedQuorum, view: &View) -> Self {
        let read = asked.resolve(&view.topology);
        let other = view.other.as_ref().map_or(read, |other| asked.resolve(other));
        Self { asked, read, other }
    }

    /// Returns the quorums of a request, each raised to at least a majority.
    pub(crate) fn of_majorities(asked: AskedQuorum, view: &View) -> Self {
        let raised = |quorum: Quorum| Quorum { ack: quorum.ack.max(quorum.from / 2 + 1), ..quorum };
        let Self { read, other, .. } = Self::of(asked, view);
        Self { asked, read: raised(read), other: raised(other) }
    }

    /// Returns the number of replicas in a majority of each set.
    pub(crate) fn majority(&self) -> PerSet {
        PerSet { read: self.read.from / 2 + 1, other: self.other.from / 2 + 1 }
    }

    pub(crate) fn ack(&self) -> PerSet {
        PerSet { read: self.read.ack, other: self.other.ack }
    }

    pub(crate) fn from(&self) -> PerSet {
        PerSet { read: self.read.from, other: self.other.from }
    }

    /// Returns the quorums limited to the first `copies` replicas of each set.
    pub(crate) fn within(&self, copies: PerSet) -> Self {
        let of = |Quorum { ack, from }, copies: u8| Quorum {
            ack: copies.min(ack),
            from: copies.min(from),
        };
        Self { read: of(self.read, copies.read), other: of(self.other, copies.other), ..*self }
    }

    /// True if each quorum is a majority of the default number of copies.
    pub(crate) fn is_majority_of_defaults(&self, view: &View) -> bool {
        let is = |quorum: Quorum, topology: &Topology| {
            let copies = topology.default_copies();
            quorum.from == copies && quorum.ack > copies / 2
        };
        is(self.read, &view.topology)
            && view.other.as_ref().is_none_or(|other| is(self.other, other))
    }

    /// Returns the numbers that a client is told if too few replicas did their part: the count in
    /// the set that falls short, and the quorum of that set.
    pub(crate) fn shortfall(&self, did: PerSet) -> (u8, Quorum) {
        let other_is_short = did.read >= self.read.ack && did.other < self.other.ack;
        if other_is_short { (did.other, self.other) } else { (did.read, self.read) }
    }
}

/// Returns the number of replicas that should hold a record, in each set.
pub(crate) fn copies_of(record: &Record, view: &View) -> PerSet {
    let of = |topology: &Topology| match record.copies() {
        0 => topology.default_copies(),
        copies => copies,
    };
    let read = of(&view.topology);
    PerSet { read, other: view.other.as_ref().map_or(read, of) }
}

/// The replicas of the key that was looked up last.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    /// The replicas of the read set.
    pub(crate) read: Vec<NodeId>,
    /// The replicas of the other set; `None` = the read set.
    other: Option<Vec<NodeId>>,
}

impl Replicas {
    pub(crate) fn look_up(&mut self, view: &View, key: &[u8], from: PerSet) {
        let partition = view.topology.partition_of(key);
        view.topology.replicas(partition, from.read, &mut self.read);
        self.other = view.other.as_ref().map(|topology| {
            let mut other = Vec::new();
            topology.replicas(partition, from.other, &mut other);
            other
        });
    }

    /// Adds an entry for each replica, made from its positions: first the replicas of the read set
    /// in their order, then the remaining replicas of the other set in their order.
    pub(crate) fn fill<T>(&self, into: &mut Vec<T>, new: impl Fn(NodeId, PerSet) -> T) {
        let Some(other) = &self.other else {
            let same =
                |(node, place): (&NodeId, u8)| new(*node, PerSet { read: place, other: place });
            return into.extend(self.read.iter().zip(0..).map(same));
        };
        let place_in_other = |node| {
            other.iter().position(|other| *other == node).map_or(NO_POSITION, |place| place as u8)
        };
        into.extend(
            self.read
                .iter()
                .zip(0..)
                .map(|(node, read)| new(*node, PerSet { read, other: place_in_other(*node) })),
        );
        let others = other.iter().zip(0..).filter(|(node, _)| !self.read.contains(node));
        into.extend(others.map(|(node, other)| new(*node, PerSet { read: NO_POSITION, other })));
    }

    /// Returns all replicas with their positions.
    pub(crate) fn all(&self) -> Vec<(NodeId, PerSet)> {
        let mut all = Vec::new();
        self.fill(&mut all, |node, place| (node, place));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u16]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn votes_cover_both_sets_with_their_places() {
        let replicas = Replicas { read: nodes(&[4, 2, 7]), other: Some(nodes(&[2, 9, 4])) };
        let all: Vec<(u16, u8, u8)> =
            replicas.all().iter().map(|(node, at)| (node.0, at.read, at.other)).collect();
        assert_eq!(all, [(4, 0, 2), (2, 1, 0), (7, 2, NO_POSITION), (9, NO_POSITION, 1)]);
        let needed = PerSet { read: 2, other: 2 };
        let suffice = |of: &[u16]| {
            let all = replicas.all().into_iter().filter(|(node, _)| of.contains(&node.0));
            count(all.map(|(_, place)| place)).suffices(needed)
        };
        assert!(suffice(&[4, 2]) && suffice(&[4, 7, 9]));
        assert!(!suffice(&[7, 9]) && !suffice(&[4, 7]) && !suffice(&[4, 9]), "never as a sum");
    }

    #[test]
    fn without_a_move_both_sets_are_one() {
        let replicas = Replicas { read: nodes(&[4, 2, 7]), other: None };
        let all: Vec<PerSet> = replicas.all().into_iter().map(|(_, place)| place).collect();
        assert_eq!(all, [0, 1, 2].map(|place| PerSet { read: place, other: place }));
        let first = |read| PerSet { read, other: read };
        assert_eq!(count(all.iter().copied()), first(3));
        assert!(all[1].within(first(1)).is_zero() && all[1].within(first(2)) == first(1));
    }
}
