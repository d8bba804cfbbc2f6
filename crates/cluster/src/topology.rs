//! Who belongs to the cluster, and which nodes hold which keys.

use xxhash_rust::xxh3::xxh3_64;

use crate::message::NodeId;

/// Number of partitions, fixed for all clusters: the top 16 bits of a key's hash.
pub const PARTITIONS: usize = 1 << 16;

/// One node, as all nodes must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub name: String,
    /// Copies go to different zones first; empty = a zone of its own.
    pub zone: String,
    /// Its share of the keys in relation to the others', 1 to 1000.
    pub weight: u32,
}

/// The cluster's nodes and, for every partition, its replicas in order.
#[derive(Debug)]
pub struct Topology {
    members: Vec<Member>,
    replicas: u8,
}

impl Topology {
    /// Nodes of the cluster.
    pub fn nodes(&self) -> usize {
        self.members.len()
    }

    /// The partition that a key belongs to: the top 16 bits of its xxh3-64.
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        (xxh3_64(key) >> 48) as u16
    }

    /// Puts the first `from` replicas of a partition into `into`, in order.
    pub fn replicas(&self, partition: u16, from: u8, into: &mut Vec<NodeId>) {
        into.clear();
        let nodes = self.members.len() as u16;
        into.extend((0..u16::from(from).min(nodes)).map(|n| NodeId((partition + n) % nodes)));
    }

    /// The node's own facts.
    pub fn member(&self, node: NodeId) -> &Member {
        &self.members[usize::from(node.0)]
    }

    /// Copies of a key unless a request says otherwise: at most one a node.
    pub fn default_copies(&self) -> u8 {
        self.replicas.min(self.members.len().min(255) as u8)
    }
}
