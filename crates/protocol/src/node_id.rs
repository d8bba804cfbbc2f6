//! The ids of nodes.

/// The id of a node. A node is given its id once and keeps it whoever joins or leaves; no other
/// node is given it later. In a fixed list, a node's id is its index in the sorted list of names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);
