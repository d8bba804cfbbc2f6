//! Which replicas had acknowledged a write when it was answered: what a receipt says.

/// Some of a key's first replicas, by their places in the key's order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaSet(pub(crate) u8);

impl ReplicaSet {
    /// Replicas of a key that can be told of: as many as topologies store.
    pub const MOST: u8 = u8::BITS as u8;

    /// Those at these places, as far as they can be told of.
    pub fn of(places: impl Iterator<Item = usize>) -> Self {
        Self(places.fold(0, |set, place| set | 1_u8.checked_shl(place as u32).unwrap_or(0)))
    }

    /// Whether the replica at this place is one of them.
    pub fn has(self, place: usize) -> bool {
        place < usize::from(Self::MOST) && self.0 >> place & 1 == 1
    }
}

/// Who had acknowledged a write when it was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acks {
    /// The epoch of the view that says which replicas the key has.
    pub epoch: u64,
    /// Those of its replicas that hold the write, and had said so.
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
