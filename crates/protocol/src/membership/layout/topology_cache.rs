//! Cache of topologies by the nodes of a layout. Computing a topology takes at least a microsecond
//! per node and thousand partitions, and planning, applying and adopting a layout each need its
//! topology. So the process computes a topology once, and keeps it while a clone of it is in use.

use parking_lot::Mutex;

use super::Node;
use crate::node_id::NodeId;
use crate::placement::topology::{Topology, TopologyError};

/// The topologies in use, and the latest topology.
static MADE: Mutex<Vec<Topology>> = Mutex::new(Vec::new());

/// Returns the topology of these nodes, cached if possible.
pub(crate) fn cached_topology(nodes: &[Node], replicas: u8) -> Result<Topology, TopologyError> {
    let of = |node: &Node| (node.id, node.member.clone(), node.hash_weight);
    let mut by_name: Vec<&Node> = nodes.iter().collect();
    by_name.sort_by(|a, b| a.member.name.cmp(&b.member.name));
    let is_same = |made: &&Topology| {
        let is = |(id, node): (NodeId, &&Node)| {
            let (member, hash_weight) = (made.member(id), made.hash_weight(id));
            (id, member, hash_weight) == (node.id, &node.member, node.hash_weight)
        };
        let are_as_many = made.nodes() == nodes.len() && made.wanted_copies() == replicas;
        are_as_many && made.ids().zip(&by_name).all(is)
    };
    if let Some(made) = lock_cache().iter().find(is_same) {
        return Ok(made.clone());
    }
    let topology = Topology::with_hash_weights(nodes.iter().map(of).collect(), replicas)?;
    let mut made = lock_cache();
    made.retain(Topology::is_shared);
    made.push(topology.clone());
    Ok(topology)
}

fn lock_cache() -> parking_lot::MutexGuard<'static, Vec<Topology>> {
    MADE.lock()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::topology::{HashWeight, Member};

    fn node(id: u16, zone: &str) -> Node {
        Node {
            id: NodeId(id),
            member: Member { name: format!("placed-{id}"), zone: zone.to_owned(), weight: 1 },
            hash_weight: HashWeight::new(1 << 16).unwrap(),
            url: String::new(),
            first_disk: None,
            is_lost: false,
        }
    }

    #[test]
    fn a_topology_is_computed_once_while_it_is_in_use() {
        let nodes: Vec<Node> = (0..3).map(|id| node(id, "")).collect();
        let first = cached_topology(&nodes, 2).unwrap();
        let others = [
            cached_topology(&nodes[..2], 2).unwrap(),
            cached_topology(&nodes, 3).unwrap(),
            cached_topology(&[node(0, "x"), node(1, ""), node(2, "")], 2).unwrap(),
            cached_topology(&[node(0, ""), node(1, ""), node(3, "")], 2).unwrap(),
        ];
        assert!(others.iter().all(|other| !other.shares_with(&first)));
        let mut again = nodes;
        again.rotate_left(1);
        again[0].url = "http://elsewhere".to_owned();
        assert!(cached_topology(&again, 2).unwrap().shares_with(&first));
        assert!(first.is_shared());
        assert!(
            cached_topology(&[again[0].clone(), again[0].clone(), again[1].clone()], 2).is_err()
        );
    }
}
