//! Types that identify a data directory (`Incarnation`), a process that runs on the directory
//! (`BootId`), and a position in the directory's log (`LogPosition`); see `logs.rs`.

/// The id of a node's data directory, and so of its disk: a random number assigned once to the
/// directory. 0 on the wire and on disk stands for none; in memory `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Converts a number from the wire or disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

/// The id of a boot: one run of a process on a data directory. The id is greater than those of all
/// earlier boots of the directory. 0 on the wire and on disk stands for none; in memory `None`
/// does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub u64);

impl BootId {
    /// Converts a number from the wire or disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// Returns the id of a boot that starts at the version time `time`. `earlier` is the id of the
    /// previous boot of the directory.
    pub fn new_after(time: u64, earlier: Option<Self>) -> Self {
        Self(time.max(earlier.map_or(0, |earlier| earlier.0) + 1))
    }
}

/// A position in a node's log: a sequence number of its store. Position 0 is before the first
/// record, so a report of position 0 claims nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// The position before all records of a log.
    pub const START: Self = Self(0);
}
