//! What numbers say of a node's data directory, each by a type of its own: which one it is, which
//! process works on it, and how far its log reaches (`logs.rs`).

/// Which data directory, and so which disk, a node has: a random number, given once to the
/// directory. On the wire and on disk 0 stands for none, here `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// That of a number on the wire or on disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

/// Which process it is on a data directory: greater than those before it there. On the wire and on
/// disk 0 stands for none, here `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LifeId(pub u64);

impl LifeId {
    /// That of a number on the wire or on disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// That of a process that begins at this time, given as a version's, after earlier ones.
    pub fn begun(time: u64, earlier: Option<Self>) -> Self {
        Self(time.max(earlier.map_or(0, |earlier| earlier.0) + 1))
    }
}

/// A place in a node's log: a sequence number of its store. 0 is before the first one, and says
/// nothing of what is in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// Before all that a log holds.
    pub const START: Self = Self(0);
}
