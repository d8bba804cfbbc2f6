//! The ids of nodes.

/// The id of a node. A node keeps its id while others join and leave, and no other node ever gets
/// the same id. In a fixed list, a node's id is its index in the sorted list of names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);
