//! Which cluster a node belongs to.

/// A cluster, told from others by the hash of its first nodes' names, or of the first node's name
/// and directory. On the wire 0 stands for none, here `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

impl ClusterId {
    /// That of a number on the wire, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}
