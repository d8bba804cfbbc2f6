//! Who is asked for a range: for every partition the first `ack` of its first `from` replicas, in
//! the order of preference.
//!
//! Which nodes those are for any partition takes a walk over all 65,536 of them, about two
//! milliseconds of a loop's time. It follows from the topology, the quorum and the nodes that can
//! be asked, so the last few results are kept.

use std::sync::{Arc, Mutex, PoisonError};

use crate::message::NodeId;
use crate::quorum::Quorum;
use crate::topology::{PARTITIONS, Topology};

/// Choices that are kept: some quorums, each with none or one of some nodes failed.
const KEPT: usize = 32;

/// One choice: what it was made for, and what it came to.
#[derive(Debug)]
struct Choice {
    quorum: Quorum,
    preference: Box<[NodeId]>,
    nodes: Option<Arc<[NodeId]>>,
}

/// Choices of one topology; the one used last is the first.
#[derive(Debug, Default)]
pub(crate) struct Choices(Mutex<Vec<Choice>>);

impl Choices {
    /// The nodes that are chosen for any partition; `None` if one has fewer than `ack`.
    pub(crate) fn nodes(
        &self,
        topology: &Topology,
        quorum: Quorum,
        preference: &[NodeId],
    ) -> Option<Arc<[NodeId]>> {
        if usize::from(quorum.from) == topology.nodes() {
            // All partitions have the same replicas.
            return preference.get(..usize::from(quorum.ack)).map(Arc::from);
        }
        {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let same =
                |choice: &Choice| choice.quorum == quorum && *choice.preference == *preference;
            if let Some(place) = kept.iter().position(same) {
                kept[..=place].rotate_right(1);
                return kept[0].nodes.clone();
            }
        }
        let nodes = chosen_nodes(topology, quorum, preference);
        let choice = Choice { quorum, preference: preference.into(), nodes: nodes.clone() };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.insert(0, choice);
        nodes
    }
}

/// The nodes that are chosen for any partition; `None` if one has too few.
fn chosen_nodes(
    topology: &Topology,
    quorum: Quorum,
    preference: &[NodeId],
) -> Option<Arc<[NodeId]>> {
    let ack = usize::from(quorum.ack);
    let mut chooser = Chooser::new(topology, quorum, preference);
    let mut chosen = vec![false; topology.nodes()];
    for partition in 0..=(PARTITIONS - 1) as u16 {
        let nodes = chooser.choose(partition);
        if nodes.len() < ack {
            return None;
        }
        nodes.iter().for_each(|node| chosen[usize::from(node.0)] = true);
    }
    Some(preference.iter().copied().filter(|node| chosen[usize::from(node.0)]).collect())
}

/// Works out who of a partition's replicas is asked.
#[derive(Debug)]
pub(crate) struct Chooser<'a> {
    topology: &'a Topology,
    quorum: Quorum,
    /// Each node's place in the order of preference; those that are not asked come after all.
    places: Vec<u16>,
    /// Whether all nodes are replicas and all of them are asked.
    everybody: bool,
    /// Whether only one node is asked for each key.
    alone: bool,
    replicas: Vec<NodeId>,
}

impl<'a> Chooser<'a> {
    /// For a quorum, and the nodes that are asked, best first.
    pub(crate) fn new(topology: &'a Topology, quorum: Quorum, preference: &[NodeId]) -> Self {
        let mut places = vec![u16::MAX; topology.nodes()];
        for (node, place) in preference.iter().zip(0..) {
            if let Some(held) = places.get_mut(usize::from(node.0)) {
                *held = place;
            }
        }
        let everybody = usize::from(quorum.ack) == topology.nodes();
        let alone = quorum.ack == 1 || preference.len() == 1;
        Self { topology, quorum, places, everybody, alone, replicas: Vec::new() }
    }

    /// Whether every node is asked for every key.
    pub(crate) fn is_everybody(&self) -> bool {
        self.everybody
    }

    /// Whether only one node is asked for each key.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Those that are asked, at most `ack`.
    pub(crate) fn choose(&mut self, partition: u16) -> &[NodeId] {
        self.topology.replicas(partition, self.quorum.from, &mut self.replicas);
        let places = &self.places;
        self.replicas.retain(|node| places[usize::from(node.0)] != u16::MAX);
        self.replicas.sort_unstable_by_key(|node| places[usize::from(node.0)]);
        self.replicas.truncate(usize::from(self.quorum.ack));
        &self.replicas
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Member;

    fn topology(nodes: usize) -> Topology {
        let name = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
        Topology::new((0..nodes).map(name).collect(), 3).unwrap()
    }

    #[test]
    fn what_is_kept_is_what_would_be_chosen_anew() {
        let (topology, choices) = (topology(5), Choices::default());
        let orders: Vec<Vec<NodeId>> = (0..5)
            .flat_map(|own| (0..5).map(move |failed| (own, failed)))
            .map(|(own, failed)| {
                let all = (0..5).map(|n| NodeId((own + n) % 5));
                all.filter(|node| node.0 != failed).collect()
            })
            .collect();
        for _ in 0..3 {
            for (ack, from) in [(1, 2), (2, 2), (2, 3), (3, 3), (1, 4), (4, 4), (2, 5)] {
                let quorum = Quorum { ack, from };
                for order in &orders {
                    let anew = chosen_nodes(&topology, quorum, order);
                    let kept = choices.nodes(&topology, quorum, order);
                    assert_eq!(kept, anew, "{quorum:?} of {order:?}");
                }
            }
        }
        assert_eq!(choices.0.lock().unwrap().len(), KEPT);
    }
}
