//! Summary of the replication factors ("copies") of hidden records. A key's current record has
//! hidden the key's older records in this store.
//!
//! A record that is not placed on this node may have hidden a record that is placed here, because
//! the hidden record had more copies. The current record must then stay: the store holds no other
//! record of the key.
//!
//! ```text
//!  bit 7      a hidden record had the cluster's default factor
//!  bits 0-6   the greatest other factor; 0 = none, 127 = 127 or more
//! ```
//!
//! The factors that the record's own factor covers are left out: if all records of a key have the
//! same factor, the byte is 0.

/// Summary of the hidden records' replication factors; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HiddenCopies(u8);

/// A hidden record had the cluster's default factor.
const DEFAULT: u8 = 0x80;
/// Mask of the greatest other factor.
const MOST: u8 = 0x7f;

impl HiddenCopies {
    pub(crate) const fn from_u8(byte: u8) -> Self {
        Self(byte)
    }

    pub(crate) const fn to_u8(self) -> u8 {
        self.0
    }

    /// The hidden copies of one record with `copies` copies; 0 = the cluster's default.
    pub(crate) fn of(copies: u8) -> Self {
        if copies == 0 { Self(DEFAULT) } else { Self(copies.min(MOST)) }
    }

    /// The union of both.
    pub(crate) fn union(self, other: Self) -> Self {
        let most = (self.0 & MOST).max(other.0 & MOST);
        Self((self.0 | other.0) & DEFAULT | most)
    }

    /// Removes the factors that `copies` covers under every default of a cluster.
    pub(crate) fn without_covered(self, copies: u8) -> Self {
        let most = self.0 & MOST;
        match copies {
            0 => Self(most),
            copies if most <= copies && most < MOST => Self(self.0 & DEFAULT),
            _ => self,
        }
    }

    /// Representative factors: a node that is a replica under any hidden factor is a replica under
    /// one of the returned factors.
    pub(crate) fn copies(self) -> impl Iterator<Item = u8> {
        let most = match self.0 & MOST {
            0 => None,
            MOST => Some(u8::MAX),
            most => Some(most),
        };
        (self.0 & DEFAULT != 0).then_some(0).into_iter().chain(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u8; 0] = [];

    fn numbers(hidden: HiddenCopies) -> Vec<u8> {
        hidden.copies().collect()
    }

    #[test]
    fn the_greatest_factor_and_the_default_are_kept() {
        let of = |all: &[u8]| {
            all.iter().fold(HiddenCopies::default(), |r, c| r.union(HiddenCopies::of(*c)))
        };
        assert_eq!(numbers(of(&[])), NONE);
        assert_eq!(numbers(of(&[2, 5, 3])), [5]);
        assert_eq!(numbers(of(&[2, 0, 1])), [0, 2]);
        assert_eq!(numbers(of(&[126])), [126]);
        assert_eq!(numbers(of(&[127])), [255]);
        assert_eq!(numbers(of(&[200, 0])), [0, 255]);
        for all in [&[2, 0][..], &[255], &[0], &[]] {
            assert_eq!(HiddenCopies::from_u8(of(all).to_u8()), of(all));
        }
    }

    #[test]
    fn factors_covered_by_the_records_own_factor_are_left_out() {
        let beyond = |hidden: u8, own: u8| numbers(HiddenCopies::of(hidden).without_covered(own));
        assert_eq!(beyond(0, 0), NONE);
        assert_eq!(beyond(3, 3), NONE);
        assert_eq!(beyond(2, 3), NONE);
        assert_eq!(beyond(3, 2), [3]);
        assert_eq!(beyond(3, 0), [3]);
        assert_eq!(beyond(0, 3), [0]);
        assert_eq!(beyond(200, 150), [255], "it may have been more than the own");
    }
}
