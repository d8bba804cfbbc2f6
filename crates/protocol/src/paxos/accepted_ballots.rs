//! The ballots under which a replica accepted records that name a conditional write.
//!
//! A write is done if a majority accepted, under one ballot, a record that names the write. After a
//! try that too few replicas accepted, a coordinator tries the write under another ballot. So a
//! replica may accept the write under several ballots, of which a majority shares only some. The
//! replica therefore keeps several ballots.

/// The largest number of ballots that a replica keeps for a write. A majority shares no ballot any
/// more once a replica has accepted the write under this many later ballots, each of which too few
/// replicas accepted.
pub const MOST_BALLOTS: usize = 4;

/// The greatest ballots under which a replica accepted a write; none if the replica has the write
/// only from other replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptedBallots {
    /// The ballots, the greatest first. Unused places are 0, which is no ballot.
    places: [u64; MOST_BALLOTS],
}

impl AcceptedBallots {
    /// No ballot: the replica accepted no record that names the write.
    pub const NONE: Self = Self { places: [0; MOST_BALLOTS] };

    /// Returns the single ballot `ballot`; 0 = none.
    pub fn one(ballot: u64) -> Self {
        Self::NONE.with(ballot)
    }

    /// Returns these ballots and `ballot`. Only the greatest [`MOST_BALLOTS`] are kept.
    #[must_use]
    pub fn with(mut self, ballot: u64) -> Self {
        if ballot == 0 || self.has(ballot) {
            return self;
        }
        let at = self.places.iter().position(|place| *place < ballot);
        if let Some(at) = at {
            self.places[at..].rotate_right(1);
            self.places[at] = ballot;
        }
        self
    }

    /// Returns the ballots, the greatest first.
    pub fn iter(self) -> impl Iterator<Item = u64> + Clone {
        self.places.into_iter().take_while(|ballot| *ballot > 0)
    }

    /// True if there is no ballot.
    pub fn is_empty(&self) -> bool {
        self.greatest() == 0
    }

    /// Returns the greatest ballot; 0 = there is none.
    pub fn greatest(&self) -> u64 {
        self.places[0]
    }

    /// True if `ballot` is one of these ballots.
    pub fn has(&self, ballot: u64) -> bool {
        self.iter().any(|own| own == ballot)
    }
}

impl FromIterator<u64> for AcceptedBallots {
    fn from_iter<I: IntoIterator<Item = u64>>(ballots: I) -> Self {
        ballots.into_iter().fold(Self::NONE, Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ballots: &[u64]) -> Vec<u64> {
        ballots.iter().copied().collect::<AcceptedBallots>().iter().collect()
    }

    #[test]
    fn the_greatest_ballots_are_kept_each_once() {
        assert_eq!(of(&[]), [0; 0]);
        assert_eq!(of(&[0, 5, 0]), [5]);
        assert_eq!(of(&[5, 9, 5, 7]), [9, 7, 5]);
        assert_eq!(of(&[5, 9, 7, 3, 8]), [9, 8, 7, 5]);
        assert_eq!(of(&[5, 9, 7, 6, 3]), [9, 7, 6, 5]);
        assert_eq!(AcceptedBallots::one(0), AcceptedBallots::NONE);
        let ballots = AcceptedBallots::one(4).with(6);
        assert!(ballots.has(4) && ballots.has(6) && !ballots.has(0) && !ballots.is_empty());
        assert_eq!(ballots.greatest(), 6);
    }
}
