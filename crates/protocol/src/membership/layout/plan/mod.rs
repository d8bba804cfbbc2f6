//! Planning of membership changes: turns a requested change into the next layout or an error.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Layout, MAX_COUNCIL, MAX_URL, Node, PreviousMembers, Seat, Stage, VoterId};
use crate::membership::disk_ids::Incarnation;
use crate::node_id::NodeId;
use crate::placement::topology::{Member, TopologyError, balance_weights};

/// A node to be added to the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joiner {
    /// The node's name, zone and weight.
    pub member: Member,
    /// The URL at which other nodes reach the node.
    pub url: String,
    /// The incarnation of the node's directory; `None` if unknown.
    pub disk: Option<Incarnation>,
}

/// A requested change of the membership. A name repeated in a list of removals or in the metadata
/// quorum counts once; adding a name twice is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanChange {
    /// The nodes that join.
    pub add: Vec<Joiner>,
    /// Names of nodes that leave after handing over their data.
    pub remove: Vec<String>,
    /// Names of nodes that leave without handing over data, because their disks are lost.
    pub remove_lost: Vec<String>,
    /// Names and new weights of the nodes whose weight changes.
    pub weights: Vec<(String, u32)>,
    /// The new default number of copies of a key; `None` = unchanged.
    pub replicas: Option<u8>,
    /// The names of the new metadata quorum's members; `None` = chosen automatically.
    pub council: Option<Vec<String>>,
    /// Current URLs of nodes, to be recorded in the next layouts, for leaving nodes too.
    pub urls: Vec<(NodeId, String)>,
}

impl PlanChange {
    /// Returns a node's URL after the change.
    fn url_of(&self, node: &Node) -> String {
        let moved = self.urls.iter().find(|(id, _)| *id == node.id);
        moved.map_or(&node.url, |(_, url)| url).clone()
    }

    fn leaves(&self, name: &String) -> bool {
        self.remove.contains(name) || self.remove_lost.contains(name)
    }

    /// Refuses a node that is removed in two ways, has two weights, or is removed and has a weight.
    fn check_contradictions(&self) -> Result<(), PlanError> {
        let error = |name: &String, what| Err(PlanError::Contradiction(name.clone(), what));
        if let Some(name) = self.remove.iter().find(|name| self.remove_lost.contains(name)) {
            return error(name, "is removed both with its data and as lost");
        }
        for (name, weight) in &self.weights {
            if self.leaves(name) {
                return error(name, "is removed and gets a weight");
            }
            if self.weights.iter().any(|(other, second)| other == name && second != weight) {
                return error(name, "gets two weights");
            }
        }
        Ok(())
    }
}

/// An error in planning a change. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Another transition is under way.
    #[error(
        "another change is under way, since epoch {began}: wait for its end, or abort it, before \
         the next one is planned"
    )]
    Moving {
        /// The epoch in which the other change began.
        began: u64,
    },
    /// No node has this name.
    #[error("node {0:?} is not a member: names are those of `kvorum cluster status`")]
    Unknown(String),
    /// Two parts of the change contradict each other.
    #[error("node {0:?} {1}: name the node once")]
    Contradiction(String, &'static str),
    /// A member has this name already.
    #[error(
        "node {0:?} is a member already: give the new node another name, or remove the other first"
    )]
    IsMember(String),
    /// The change removes and adds a node of the same name.
    #[error(
        "node {0:?} can't be added by the plan that removes one of that name: what nodes keep for \
         each other goes by names. If it lost its disk and has the same URL, it needs no plan: \
         start it with --join and an empty directory. Else give the new node another name, or add \
         it once it is removed"
    )]
    NameStays(String),
    /// Another node of the plan has the URL.
    #[error(
        "nodes {0:?} and {1:?} have the same URL, {2}: start each with an address of its own \
         (--listen, --advertise)"
    )]
    SameUrl(String, String, String),
    /// The URL is longer than the limit.
    #[error("the URL of node {0:?} has more than {MAX_URL} bytes")]
    LongUrl(String),
    /// The change has no effect.
    #[error(
        "nothing changes: the members, their weights and URLs, replicas and council are like that \
         already"
    )]
    Nothing,
    /// The change has no effect, although the metadata quorum is smaller than the nodes allow:
    /// nodes that are down get no seat.
    #[error(
        "nothing changes: the council ({}) is smaller than it could be, and can't grow before more \
         nodes are up. Not up: {}. Start them, then plan again",
        council.join(", "),
        down.join(", ")
    )]
    SmallCouncil {
        /// Names of the nodes in the metadata quorum.
        council: Vec<String>,
        /// Names of the nodes that are down.
        down: Vec<String>,
    },
    /// The change would leave fewer nodes than copies of a key.
    #[error(
        "{left} nodes would be left, fewer than replicas {replicas}: remove fewer, or plan fewer \
         replicas with the same command"
    )]
    TooFew {
        /// Number of nodes that stay or join.
        left: usize,
        /// Default number of copies of a key.
        replicas: u8,
    },
    /// All node ids are used up.
    #[error("65,535 nodes have been members, and no id is left for another one")]
    NoIds,
    /// The metadata quorum has a size that is not allowed.
    #[error("a council has 1, 3, 5 or {MAX_COUNCIL} nodes, and {0} were named")]
    CouncilSize(usize),
    /// The named quorum member is down, so its disk is not known.
    #[error("node {0:?} can't be a councillor: which disk it has is not known, for it is not up")]
    NotSeen(String),
    /// No majority of the new metadata quorum is up, and the quorum might never decide: a node that
    /// is down may have lost its disk and thus its vote, and no seat is reassigned while keys move.
    #[error(
        "of the council that would follow ({}) a majority is not up, and it has to decide how the \
         change goes on: start those nodes, or name a council of nodes that are up with --council",
        .0.join(", ")
    )]
    CouncilDown(Vec<String>),
    /// The members do not form a valid topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl Layout {
    /// Returns the layout that makes a change; the metadata quorum of this layout then decides it.
    /// `voter_of` returns the voter id of a node by its name, also for a joining node; `None` if
    /// the node is down.
    pub fn plan_change(
        &self,
        change: &PlanChange,
        voter_of: impl Fn(&str) -> Option<VoterId>,
    ) -> Result<Self, PlanError> {
        if self.stage != Stage::Settled {
            let is_prepared = self.stage == Stage::Prepare;
            let began = if is_prepared { self.epoch } else { self.placement_epoch - 1 };
            return Err(PlanError::Moving { began });
        }
        let replicas = change.replicas.unwrap_or(self.replicas);
        let (members, next_id) = self.members_after(change)?;
        // A cluster that grows from one node may have fewer nodes than copies. A change may keep
        // that state, but must not worsen it.
        if members.len() < usize::from(replicas)
            && (members.len() < self.nodes.len() || replicas > self.replicas)
        {
            return Err(PlanError::TooFew { left: members.len(), replicas });
        }
        let same = members.len() == self.nodes.len()
            && replicas == self.replicas
            && members.iter().all(|(id, joiner)| {
                self.node(*id).is_some_and(|node| node.member == joiner.member)
            });
        let mut before = self.nodes.clone();
        before.iter_mut().for_each(|node| node.url = change.url_of(node));
        let nodes = if same { before.clone() } else { self.nodes_after(&members, replicas)? };
        let council = self.council_after(change, &nodes, &voter_of)?;
        if same && council == self.council && nodes == self.nodes {
            return Err(self.without_effect(change, &voter_of));
        }
        check_council(&council, &nodes, &voter_of)?;
        for node in &mut before {
            node.is_lost = change.remove_lost.contains(&node.member.name);
        }
        let epoch = self.epoch + 1;
        Ok(Self {
            epoch,
            replicas,
            stage: if same { Stage::Settled } else { Stage::Prepare },
            placement_epoch: self.placement_epoch,
            nodes,
            before: (!same).then_some(PreviousMembers { nodes: before, replicas: self.replicas }),
            council,
            next_id,
            base: self.id(),
            decrees: self.decrees.clone(),
            access: Arc::clone(&self.access),
        })
    }

    /// Returns the nodes, each with a hash weight tuned to its share.
    fn nodes_after(
        &self,
        members: &[(NodeId, Joiner)],
        replicas: u8,
    ) -> Result<Vec<Node>, TopologyError> {
        let was = self.nodes.iter().map(|node| (node.id, &node.member, node.hash_weight));
        let places = members.iter().map(|(id, joiner)| (*id, joiner.member.clone()));
        let joiners: HashMap<NodeId, &Joiner> =
            members.iter().map(|(id, joiner)| (*id, joiner)).collect();
        let node = |(id, member, hash_weight)| {
            let Joiner { url, disk, .. } = joiners[&id];
            let (url, first_disk) = (url.clone(), *disk);
            Node { id, member, hash_weight, url, first_disk, is_lost: false }
        };
        Ok(balance_weights(was, places.collect(), replicas)?.into_iter().map(node).collect())
    }

    /// Returns the members after the change, and the next unused id.
    fn members_after(
        &self,
        change: &PlanChange,
    ) -> Result<(Vec<(NodeId, Joiner)>, u32), PlanError> {
        let weights = change.weights.iter().map(|(name, _)| name);
        for name in change.remove.iter().chain(&change.remove_lost).chain(weights) {
            if self.find_node(name).is_none() {
                return Err(PlanError::Unknown(name.clone()));
            }
        }
        change.check_contradictions()?;
        let leaves = |name: &String| change.leaves(name);
        let stay = self.nodes.iter().filter(|node| !leaves(&node.member.name));
        let stays = |node: &Node| {
            let mut member = node.member.clone();
            let other = change.weights.iter().find(|(name, _)| *name == member.name);
            member.weight = other.map_or(member.weight, |(_, weight)| *weight);
            (node.id, Joiner { member, url: change.url_of(node), disk: node.first_disk })
        };
        let mut members: Vec<(NodeId, Joiner)> = stay.map(stays).collect();
        let mut next_id = self.next_id;
        for joiner in &change.add {
            let name = &joiner.member.name;
            // Two nodes of the same name would issue versions with the same origin.
            let joins_twice = members.iter().any(|(_, member)| member.member.name == *name);
            if leaves(name) {
                return Err(PlanError::NameStays(name.clone()));
            }
            if joins_twice || self.find_node(name).is_some() {
                return Err(PlanError::IsMember(name.clone()));
            }
            if let Some((_, other)) = members.iter().find(|(_, other)| other.url == joiner.url) {
                let (other, url) = (other.member.name.clone(), joiner.url.clone());
                return Err(PlanError::SameUrl(other, name.clone(), url));
            }
            if joiner.url.len() > MAX_URL {
                return Err(PlanError::LongUrl(name.clone()));
            }
            let id = u16::try_from(next_id).ok().filter(|id| *id < u16::MAX);
            members.push((NodeId(id.ok_or(PlanError::NoIds)?), joiner.clone()));
            next_id += 1;
        }
        Ok((members, next_id))
    }

    fn council_after(
        &self,
        change: &PlanChange,
        nodes: &[Node],
        voter_of: impl Fn(&str) -> Option<VoterId>,
    ) -> Result<Vec<Seat>, PlanError> {
        let Some(names) = &change.council else {
            return Ok(council_of(nodes, &self.council, voter_of));
        };
        let seated = |node: &Node| {
            let seat = seat(node, &self.council, &voter_of);
            seat.ok_or_else(|| PlanError::NotSeen(node.member.name.clone()))
        };
        let mut named: Vec<&String> = names.iter().collect();
        named.sort();
        named.dedup();
        if !(1..=MAX_COUNCIL).contains(&named.len()) || named.len().is_multiple_of(2) {
            return Err(PlanError::CouncilSize(named.len()));
        }
        let find = |name: &&String| {
            let node = nodes.iter().find(|node| node.member.name == **name);
            node.ok_or_else(|| PlanError::Unknown((*name).clone()))
        };
        let mut seats =
            named.iter().map(|name| seated(find(name)?)).collect::<Result<Vec<_>, _>>()?;
        seats.sort_by_key(|seat| seat.node);
        Ok(seats)
    }
}

impl Layout {
    /// Returns the error for a change without effect.
    fn without_effect(
        &self,
        change: &PlanChange,
        voter_of: impl Fn(&str) -> Option<VoterId>,
    ) -> PlanError {
        let held: Vec<NodeId> = self.council.iter().map(|seat| seat.node).collect();
        let largest = choose_council(&self.nodes, &held, |_| true, |_| true);
        let names = |is_wanted: &dyn Fn(&Node) -> bool| -> Vec<String> {
            let wanted = self.nodes.iter().filter(|node| is_wanted(node));
            wanted.map(|node| node.member.name.clone()).collect()
        };
        let down = names(&|node| voter_of(&node.member.name).is_none());
        if change.council.is_some() || down.is_empty() || largest.len() <= held.len() {
            return PlanError::Nothing;
        }
        PlanError::SmallCouncil { council: names(&|node| held.contains(&node.id)), down }
    }
}

/// Refuses a metadata quorum unless a majority of its members is up.
fn check_council(
    council: &[Seat],
    nodes: &[Node],
    voter_of: impl Fn(&str) -> Option<VoterId>,
) -> Result<(), PlanError> {
    let of_seat = |seat: &Seat| nodes.iter().find(|node| node.id == seat.node);
    let names: Vec<&str> =
        council.iter().filter_map(of_seat).map(|node| &*node.member.name).collect();
    let up = names.iter().filter(|name| voter_of(name).is_some()).count();
    if up <= council.len() / 2 {
        return Err(PlanError::CouncilDown(names.iter().map(|name| (*name).to_owned()).collect()));
    }
    Ok(())
}

/// Returns a node's seat with its current voter id or, if the node is down, with the voter id of
/// its present seat; `None` if it is down and has no seat.
fn seat(node: &Node, held: &[Seat], voter_of: impl Fn(&str) -> Option<VoterId>) -> Option<Seat> {
    let held = held.iter().find(|seat| seat.node == node.id);
    // A node whose disk was replaced gets a seat with its new voter id.
    let voter = voter_of(&node.member.name).map(Some).or(held.map(|seat| seat.voter))?;
    Some(Seat { node: node.id, voter })
}

/// Returns the metadata quorum of these nodes that succeeds the quorum with the seats `held`.
pub(super) fn council_of(
    nodes: &[Node],
    held: &[Seat],
    voter_of: impl Fn(&str) -> Option<VoterId>,
) -> Vec<Seat> {
    let stay: Vec<NodeId> = held.iter().map(|seat| seat.node).collect();
    let seat = |node: &Node| seat(node, held, &voter_of);
    let is_up = |node: &Node| voter_of(&node.member.name).is_some();
    let chosen = choose_council(nodes, &stay, |node| seat(node).is_some(), is_up);
    let of_id = |id: NodeId| nodes.iter().find(|node| node.id == id);
    chosen.into_iter().filter_map(|id| seat(of_id(id)?)).collect()
}

/// Selects the nodes of a metadata quorum, sorted by id: five out of five or more nodes, three out
/// of three or four, otherwise one. Current members stay; new members come from the zones with the
/// fewest members. If the size would be even, one member is dropped, preferably one that is down.
pub(super) fn choose_council(
    nodes: &[Node],
    stay: &[NodeId],
    can: impl Fn(&Node) -> bool,
    is_up: impl Fn(&Node) -> bool,
) -> Vec<NodeId> {
    let can: Vec<&Node> = nodes.iter().filter(|node| can(node)).collect();
    let size = match can.len() {
        0..3 => 1,
        3..5 => 3,
        _ => 5,
    };
    let stays = |node: &&&Node| stay.contains(&node.id);
    let mut chosen: Vec<&Node> = can.iter().filter(stays).copied().collect();
    while chosen.len() < size {
        let in_zone = |node: &Node| {
            let zone = &node.member.zone;
            chosen.iter().filter(|other| !zone.is_empty() && other.member.zone == *zone).count()
        };
        let is_free = |node: &&&Node| chosen.iter().all(|other| other.id != node.id);
        let Some(next) = can.iter().filter(is_free).min_by_key(|node| in_zone(node)) else { break };
        chosen.push(*next);
    }
    // An even quorum needs the same majority as a quorum with one more member.
    if chosen.len().is_multiple_of(2) {
        chosen.sort_by_key(|node| !is_up(node));
        chosen.pop();
    }
    let mut ids: Vec<NodeId> = chosen.iter().map(|node| node.id).collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests;
