//! What somebody wants of the members, as the layout that does it; or why it can't be done.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Before, Layout, MAX_COUNCIL, MAX_URL, Node, Seat, Stage, VoterId};
use crate::membership::directory::Incarnation;
use crate::node_id::NodeId;
use crate::placement::topology::{Member, TopologyError, balanced};

/// A node that is to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joiner {
    /// What it is called, its zone and its weight.
    pub member: Member,
    /// Where others reach it.
    pub url: String,
    /// The incarnation of its directory; `None` = that is not known.
    pub disk: Option<Incarnation>,
}

/// What is to be different. Names that occur twice count once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanChange {
    /// The nodes that join.
    pub add: Vec<Joiner>,
    /// Who leaves, and hands over what it holds.
    pub remove: Vec<String>,
    /// Who leaves, and is lost with its disk.
    pub remove_lost: Vec<String>,
    /// The nodes whose weights change, by name, and their new weights.
    pub weights: Vec<(String, u32)>,
    /// Another number of copies.
    pub replicas: Option<u8>,
    /// The names of the new council's nodes.
    pub council: Option<Vec<String>>,
    /// Where nodes are by now: the layouts that follow say so, also of those that leave.
    pub urls: Vec<(NodeId, String)>,
}

impl PlanChange {
    /// Where a node is.
    fn url_of(&self, node: &Node) -> String {
        let moved = self.urls.iter().find(|(id, _)| *id == node.id);
        moved.map_or(&node.url, |(_, url)| url).clone()
    }
}

/// Why there is no such layout. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// One transition at a time.
    #[error(
        "another change is under way, since epoch {began}: wait for its end, or abort it, before \
         the next one is planned"
    )]
    Moving {
        /// The epoch in which the other change began.
        began: u64,
    },
    /// A name of nobody.
    #[error("node {0:?} is not a member: names are those of `kvorum cluster status`")]
    Unknown(String),
    /// A name that is taken.
    #[error(
        "node {0:?} is a member already: give the new node another name, or remove the other first"
    )]
    IsMember(String),
    /// A name that is to be given on at once.
    #[error(
        "node {0:?} can't be added by the plan that removes one of that name: what nodes keep for \
         each other goes by names. If it lost its disk and has the same URL, it needs no plan: \
         start it with --join and an empty directory. Else give the new node another name, or add \
         it once it is removed"
    )]
    NameStays(String),
    /// A URL that does not fit.
    #[error("the URL of node {0:?} has more than {MAX_URL} bytes")]
    LongUrl(String),
    /// Nothing is different.
    #[error(
        "nothing changes: the members, their weights and URLs, replicas and council are like that \
         already"
    )]
    Nothing,
    /// Fewer nodes than copies.
    #[error(
        "{left} nodes would be left, fewer than replicas {replicas}: remove fewer, or plan fewer \
         replicas with the same command"
    )]
    TooFew {
        /// Nodes that stay or join.
        left: usize,
        /// Copies of a key.
        replicas: u8,
    },
    /// All ids were given.
    #[error("65,535 nodes have been members, and no id is left for another one")]
    NoIds,
    /// A council that can't decide, or decides badly.
    #[error("a council has 1, 3, 5 or {MAX_COUNCIL} nodes, and {0} were named")]
    CouncilSize(usize),
    /// A councillor that is not reachable.
    #[error("node {0:?} can't be a councillor: which disk it has is not known, for it is not up")]
    NotSeen(String),
    /// A council that could decide nothing, perhaps for ever: a node that is down may have lost
    /// its disk, and its vote with it, and nobody is seated anew while keys move.
    #[error(
        "of the council that would follow ({}) a majority is not up, and it has to decide how the \
         change goes on: start those nodes, or name a council of nodes that are up with --council",
        .0.join(", ")
    )]
    CouncilDown(Vec<String>),
    /// What a topology refuses.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl Layout {
    /// The layout that makes a change, to be decided by the council of this one.
    /// `voter_of`: which voter a node is that is up; also of one that joins, by its name.
    pub fn planned(
        &self,
        change: &PlanChange,
        voter_of: impl Fn(&str) -> Option<VoterId>,
    ) -> Result<Self, PlanError> {
        if self.stage != Stage::Settled {
            let is_prepared = self.stage == Stage::Prepare;
            let began = if is_prepared { self.epoch } else { self.began - 1 };
            return Err(PlanError::Moving { began });
        }
        let replicas = change.replicas.unwrap_or(self.replicas);
        let (members, next_id) = self.members_after(change)?;
        // What there are too few of already may stay so: a cluster that grows from one node.
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
            return Err(PlanError::Nothing);
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
            began: self.began,
            nodes,
            before: (!same).then_some(Before { nodes: before, replicas: self.replicas }),
            council,
            next_id,
            base: self.id(),
            decrees: self.decrees.clone(),
            access: Arc::clone(&self.access),
        })
    }

    /// Those nodes, each with a hash weight by which it holds its share.
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
        Ok(balanced(was, places.collect(), replicas)?.into_iter().map(node).collect())
    }

    /// Who belongs to the cluster afterwards, and the next id.
    fn members_after(
        &self,
        change: &PlanChange,
    ) -> Result<(Vec<(NodeId, Joiner)>, u32), PlanError> {
        let weights = change.weights.iter().map(|(name, _)| name);
        for name in change.remove.iter().chain(&change.remove_lost).chain(weights) {
            if self.named(name).is_none() {
                return Err(PlanError::Unknown(name.clone()));
            }
        }
        let leaves =
            |name: &String| change.remove.contains(name) || change.remove_lost.contains(name);
        let stay = self.nodes.iter().filter(|node| !leaves(&node.member.name));
        let stays = |node: &Node| {
            let mut member = node.member.clone();
            let other = change.weights.iter().rev().find(|(name, _)| *name == member.name);
            member.weight = other.map_or(member.weight, |(_, weight)| *weight);
            (node.id, Joiner { member, url: change.url_of(node), disk: node.first_disk })
        };
        let mut members: Vec<(NodeId, Joiner)> = stay.map(stays).collect();
        let mut next_id = self.next_id;
        for joiner in &change.add {
            let name = &joiner.member.name;
            // Two nodes of one name would issue versions of one origin.
            let joins_twice = members.iter().any(|(_, member)| member.member.name == *name);
            if leaves(name) {
                return Err(PlanError::NameStays(name.clone()));
            }
            if joins_twice || self.named(name).is_some() {
                return Err(PlanError::IsMember(name.clone()));
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

/// Refuses a council of which no majority is up.
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

/// A node's seat, if it is known which voter it is: by now, or when it was seated.
fn seat(node: &Node, held: &[Seat], voter_of: impl Fn(&str) -> Option<VoterId>) -> Option<Seat> {
    let held = held.iter().find(|seat| seat.node == node.id);
    // One whose disk was replaced is seated anew.
    let voter = voter_of(&node.member.name).map(Some).or(held.map(|seat| seat.voter))?;
    Some(Seat { node: node.id, voter })
}

/// The council of these nodes that follows on one.
pub(super) fn council_of(
    nodes: &[Node],
    held: &[Seat],
    voter_of: impl Fn(&str) -> Option<VoterId>,
) -> Vec<Seat> {
    let stay: Vec<NodeId> = held.iter().map(|seat| seat.node).collect();
    let seat = |node: &Node| seat(node, held, &voter_of);
    let is_up = |node: &Node| voter_of(&node.member.name).is_some();
    let chosen = councillors(nodes, &stay, |node| seat(node).is_some(), is_up);
    let of_id = |id: NodeId| nodes.iter().find(|node| node.id == id);
    chosen.into_iter().filter_map(|id| seat(of_id(id)?)).collect()
}

/// The nodes of a council, in the order of their ids: who is in it stays, others come from the
/// zones that have the fewest. One, three from three nodes on, five from five on. If one is too
/// many, a node that is down loses its seat before one that is up.
pub(super) fn councillors(
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
    // An even council needs as many to agree as one that has one more.
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
