//! The receipt of a write: the replicas that had acknowledged it when the client was answered.

/// A set of a key's first replicas, each given by its position in the key's order of replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaSet(pub(crate) u8);

impl ReplicaSet {
    /// The greatest number of replicas in a set: as many as a topology stores for a key.
    pub const MOST: u8 = u8::BITS as u8;

    /// Makes a set of the replicas at these positions; positions from `MOST` on are ignored.
    pub fn of(places: impl Iterator<Item = usize>) -> Self {
        Self(places.fold(0, |set, place| set | 1_u8.checked_shl(place as u32).unwrap_or(0)))
    }

    /// True if the replica at this position is in the set.
    pub fn has(self, place: usize) -> bool {
        place < usize::from(Self::MOST) && self.0 >> place & 1 == 1
    }
}

/// The replicas that had acknowledged a write when the client was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acks {
    /// The epoch of the view that gives the order of the key's replicas.
    pub epoch: u64,
    /// The replicas that had acknowledged the write.
    pub by: ReplicaSet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let set = ReplicaSet::of([0, 2, 7, 8, 300].into_iter());
        let has: Vec<usize> = (0..400).filter(|place| set.has(*place)).collect();
        assert_eq!(has, [0, 2, 7], "of those beyond it tells nothing");
    }
}
