//! Layouts: who belongs to the cluster, under which epoch, and who decides the next one.
//!
//! ```text
//!   settled ─plan─▶ prepare ──▶ read old ──▶ read new ──▶ settled    each an epoch later, decided
//!                      └───abort─────┴──▶ settled, as before          by the council of the one
//!                                                                     before
//! ```
//!
//! In *read old* and *read new* there are two sets of members. A partition whose replicas are the
//! same in both is untouched; another one moves. What the stages mean for requests is in
//! docs/membership-model.md.
//!
//! A layout is made by one node (`plan.rs`), decided by councillors (`council.rs`), and then a fact
//! that every node keeps and hands to who is behind (`bytes.rs`). If the councillors are lost, one
//! is made without them (`decree.rs`). It also says who may ask the nodes for what (`access.rs`),
//! and how much clients may store (`quota.rs`); where only that changes, the next layout is of the
//! same stage.

mod access;
mod bytes;
mod council;
mod decree;
mod moved_copies;
mod placed;
mod plan;
mod quota;

pub use access::{
    Access, AccessError, Kinds, MAX_TOKEN_NAME, MAX_TOKEN_PREFIX, MAX_TOKENS, Methods, Token,
    TokenHash,
};
pub use bytes::MAX_BYTES;
pub use council::{
    Ballot, Council, Keep, Proposal, Proposed, Vote, VoteReply, VoteRequest, Voter, VoterId,
};
pub use decree::{Decree, NoDecree};
pub use moved_copies::MovedCopies;
pub(crate) use placed::placed;
pub use plan::{Joiner, PlanChange, PlanError};
pub use quota::{MAX_QUOTA_PREFIX, MAX_QUOTAS, Quota, after_prefix};

use std::sync::Arc;

use crate::membership::directory::Incarnation;
use crate::node_id::NodeId;
use crate::placement::topology::{HashWeight, Member, Topology, TopologyError};

/// Members of a council at most: with 7, three may fail, and a decision still asks only four.
pub const MAX_COUNCIL: usize = 7;

/// Bytes of a node's URL at most: its length has one byte.
pub const MAX_URL: usize = u8::MAX as usize;

/// How far the partitions that move are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There are no such partitions.
    Settled,
    /// None moves yet: nodes that join start, and nodes drop what they hold of another time.
    Prepare,
    /// Both sets of nodes are written; what the earlier one reports is read.
    ReadOld,
    /// Both are written; what the later one reports is read.
    ReadNew,
}

/// A node, as a layout has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Given once, and to no other node.
    pub id: NodeId,
    /// What decides about its partitions.
    pub member: Member,
    /// What it draws them with.
    pub hash_weight: HashWeight,
    /// Where others reach it.
    pub url: String,
    /// The incarnation of the directory that it joined with: no other one of its name was there
    /// before. `None` = that is not known.
    pub first_disk: Option<Incarnation>,
    /// It was declared lost when it was removed: nothing waits for what it alone may hold.
    pub is_lost: bool,
}

/// A councillor: a node, and which votes of it count. One that may have lost votes has none until a
/// later layout seats it anew: it does not know what it has promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The councillor's id.
    pub node: NodeId,
    /// The voter that it was when it was seated ([`Voter`]); `None` = whoever lost no vote ever.
    pub voter: Option<VoterId>,
}

/// The cluster as of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Which change this is; see [`crate::FIRST_EPOCH`].
    pub epoch: u64,
    /// Copies of a key unless a request says otherwise.
    pub replicas: u8,
    /// How far it is from what it was made of.
    pub stage: Stage,
    /// The epoch since which keys are placed as they are: in which they began to move, or all had
    /// moved.
    pub began: u64,
    /// The nodes that belong to it, in the order of their names.
    pub nodes: Vec<Node>,
    /// While partitions move: the nodes of before, and the copies of a key.
    pub before: Option<Before>,
    /// Who decides about the next layout.
    pub council: Vec<Seat>,
    /// The least id that was given to no node yet.
    pub next_id: u32,
    /// The id of the layout that this one was made for.
    pub base: u128,
    /// The decrees that led to it, the first one first.
    pub decrees: Vec<Decree>,
    /// Who may ask the nodes for what.
    pub access: Arc<Access>,
}

/// What a transition began with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// The nodes, in the order of their names.
    pub nodes: Vec<Node>,
    /// Copies of a key.
    pub replicas: u8,
}

impl Layout {
    /// That of a fixed list of nodes, which places every key as the list does. The council is the
    /// first 1, 3 or 5 names, of as many zones as there are.
    pub fn first(topology: &Topology, url_of: impl Fn(NodeId) -> String) -> Self {
        let node = |id: NodeId| Node {
            id,
            member: topology.member(id).clone(),
            hash_weight: topology.hash_weight(id),
            url: url_of(id),
            first_disk: None,
            is_lost: false,
        };
        let nodes: Vec<Node> = topology.ids().map(node).collect();
        let chosen = plan::councillors(&nodes, &[], |_| true, |_| true);
        let council = chosen.into_iter().map(|node| Seat { node, voter: None });
        Self {
            epoch: crate::FIRST_EPOCH,
            replicas: topology.wanted_copies(),
            stage: Stage::Settled,
            began: crate::FIRST_EPOCH,
            before: None,
            council: council.collect(),
            next_id: nodes.iter().map(|node| u32::from(node.id.0) + 1).max().unwrap_or(0),
            base: 0,
            decrees: Vec::new(),
            access: Arc::default(),
            nodes,
        }
    }

    /// What tells it from every other layout, of its epoch too. Nobody has decided the first one:
    /// each node makes it of its settings, and where these have others' URLs is no difference.
    pub fn id(&self) -> u128 {
        let hash = |layout: &Self| xxhash_rust::xxh3::xxh3_128(&layout.to_bytes());
        if self.epoch > crate::FIRST_EPOCH {
            return hash(self);
        }
        let mut first = self.clone();
        first.nodes.iter_mut().for_each(|node| node.url.clear());
        hash(&first)
    }

    /// Its nodes, and those of before that are not among them.
    pub fn all(&self) -> impl Iterator<Item = &Node> {
        let before = self.before.iter().flat_map(|before| &before.nodes);
        let leaves = |node: &&Node| self.nodes.iter().all(|other| other.id != node.id);
        self.nodes.iter().chain(before.filter(leaves))
    }

    /// Whether there is one node, and none is about to come or to go.
    pub fn is_alone(&self) -> bool {
        self.all().count() == 1
    }

    /// The node of this id, in the layout or in what it grows out of.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.all().find(|node| node.id == id)
    }

    /// The node of this name, in the layout.
    pub fn named(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.member.name == name)
    }

    /// The node of this id, in the layout.
    pub fn member(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Whether this id was given to a node that has left: it is refused for ever.
    pub fn is_gone(&self, id: NodeId) -> bool {
        u32::from(id.0) < self.next_id && self.node(id).is_none()
    }

    /// Where the keys are once all have moved.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        placed(&self.nodes, self.replicas)
    }

    /// The next stage, if partitions move: reads switch, then all is settled.
    pub fn next_stage(&self) -> Option<Self> {
        let next = Self { epoch: self.epoch + 1, base: self.id(), ..self.clone() };
        match self.stage {
            Stage::Settled => None,
            Stage::Prepare => Some(Self { stage: Stage::ReadOld, began: next.epoch, ..next }),
            Stage::ReadOld => Some(Self { stage: Stage::ReadNew, ..next }),
            Stage::ReadNew => {
                Some(Self { stage: Stage::Settled, began: next.epoch, before: None, ..next })
            }
        }
    }

    /// Back to where it was, as long as reads have not switched. Before keys began to move nothing
    /// is placed otherwise by that. The council stays the new one, so that a councillor whose disk
    /// is lost can be replaced meanwhile; nodes that stay take the seats of those that were to
    /// join. Ids that were given stay given. `voter_of`: which voter a node is that is up.
    pub fn aborted(&self, voter_of: impl Fn(&str) -> Option<VoterId>) -> Option<Self> {
        let before = self.before.as_ref().filter(|_| self.stage != Stage::ReadNew)?;
        let is_placed_anew = self.stage == Stage::ReadOld;
        let council = plan::council_of(&before.nodes, &self.council, voter_of);
        if council.is_empty() {
            return None;
        }
        Some(Self {
            epoch: self.epoch + 1,
            replicas: before.replicas,
            stage: Stage::Settled,
            began: if is_placed_anew { self.epoch + 1 } else { self.began },
            nodes: before.nodes.clone(),
            before: None,
            council,
            next_id: self.next_id,
            base: self.id(),
            decrees: self.decrees.clone(),
            access: Arc::clone(&self.access),
        })
    }
}
