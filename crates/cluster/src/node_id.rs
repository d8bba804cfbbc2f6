//! Who a node is, to all others.

/// A node. It is given its id once, and keeps it whoever comes or goes; no other node is given it
/// later. The nodes of a fixed list have their places in the sorted list of names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);
