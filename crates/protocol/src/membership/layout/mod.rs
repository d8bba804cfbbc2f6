//! Layouts: the members of the cluster as of one epoch, and the metadata quorum (`Council`) that
//! decides the next layout.
//!
//! ```text
//!   settled ─plan─▶ prepare ──▶ read old ──▶ read new ──▶ settled
//!                      └───abort─────┴──▶ settled, with the members from before the plan
//! ```
//!
//! Each arrow makes a layout of the next epoch, decided by the metadata quorum of the layout before
//! it.
//!
//! *Read old* and *read new* have two sets of members. A partition moves unless its replicas are
//! the same in both sets. docs/design/membership.md describes the effect of each stage on requests.
//!
//! The node that receives an operator's request makes a layout (`plan/mod.rs`), and the metadata
//! quorum decides it (`council/mod.rs`). From then on every node stores the layout (`bytes/mod.rs`)
//! and sends it to nodes that are behind. If the majority of the quorum is lost for good, an
//! operator forces a layout without the quorum (`decree/mod.rs`).
//!
//! A layout also carries the access tokens (`access/mod.rs`) and the storage quotas (`quota.rs`). A
//! change of these alone makes a layout of the same stage.

mod access;
mod bytes;
mod council;
mod decree;
mod moved_copies;
mod plan;
mod quota;
mod topology_cache;

pub use access::{
    Access, AccessError, Kinds, MAX_TOKEN_NAME, MAX_TOKEN_PREFIX, MAX_TOKENS, Methods, Token,
    TokenHash,
};
pub use bytes::MAX_BYTES;
pub use council::{
    Ballot, Keep, LayoutVoter, Proposal, ProposalStep, Vote, VoteReply, VoteRequest, Voter, VoterId,
};
pub use decree::{Decree, DecreeError};
pub use moved_copies::MovedCopies;
pub use plan::{Joiner, PlanChange, PlanError};
pub use quota::{MAX_QUOTA_PREFIX, MAX_QUOTAS, Quota, end_of_prefix};
pub(crate) use topology_cache::cached_topology;

use std::sync::Arc;

use crate::membership::disk_ids::Incarnation;
use crate::node_id::NodeId;
use crate::placement::topology::{HashWeight, Member, Topology, TopologyError};

/// Maximum number of members in the metadata quorum: of 7 members 3 may fail, and a decision still
/// needs only 4 replies.
pub const MAX_COUNCIL: usize = 7;

/// Maximum length of a node's URL in bytes; its length field has one byte.
pub const MAX_URL: usize = u8::MAX as usize;

/// Progress of a membership transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No partition moves.
    Settled,
    /// No partition moves yet: joining nodes start, and nodes drop orphaned records of earlier
    /// placements.
    Prepare,
    /// Writes go to both sets of nodes; reads use the answers of the old set.
    ReadOld,
    /// Writes go to both sets of nodes; reads use the answers of the new set.
    ReadNew,
}

/// A node's entry in a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's id, assigned once and never reused for another node.
    pub id: NodeId,
    /// Name, zone and weight: with `hash_weight`, they determine the node's partitions.
    pub member: Member,
    /// The node's weight in rendezvous hashing.
    pub hash_weight: HashWeight,
    /// The URL at which other nodes reach the node.
    pub url: String,
    /// Incarnation of the directory with which the node joined; no other directory had the node's
    /// name before. `None` if unknown.
    pub first_disk: Option<Incarnation>,
    /// True if the node was declared lost when it was removed: nothing waits for data that only
    /// this node may hold.
    pub is_lost: bool,
}

/// A seat in the metadata quorum: a node, and the voter identity whose votes count. A node that may
/// have lost votes does not know what it has promised, so none of its votes count until a later
/// layout seats it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The id of the quorum member.
    pub node: NodeId,
    /// The node's voter id when it was seated ([`Voter`]); `None` stands for a voter that never
    /// lost a vote.
    pub voter: Option<VoterId>,
}

/// The cluster as of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The layout's epoch, counted from [`crate::FIRST_EPOCH`].
    pub epoch: u64,
    /// Default number of copies of a key.
    pub replicas: u8,
    /// The stage of the transition.
    pub stage: Stage,
    /// The epoch in which the current placement began, when partitions began to move or all had
    /// moved.
    pub placement_epoch: u64,
    /// The members, sorted by name.
    pub nodes: Vec<Node>,
    /// The nodes and replica count before the transition; `None` while settled.
    pub before: Option<PreviousMembers>,
    /// The metadata quorum that decides the next layout.
    pub council: Vec<Seat>,
    /// The lowest node id that was never assigned.
    pub next_id: u32,
    /// The id of the layout's predecessor.
    pub base: u128,
    /// The forced layouts (`Decree`) in this layout's history, oldest first.
    pub decrees: Vec<Decree>,
    /// Access tokens and storage quotas.
    pub access: Arc<Access>,
}

/// The members before a transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviousMembers {
    /// The nodes, sorted by name.
    pub nodes: Vec<Node>,
    /// Default number of copies of a key.
    pub replicas: u8,
}

impl Layout {
    /// Returns the first layout of a fixed list of nodes; it places every key as `topology` does.
    /// The metadata quorum has 1, 3 or 5 nodes, spread over the zones, in the order of their names.
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
        let chosen = plan::choose_council(&nodes, &[], |_| true, |_| true);
        let council = chosen.into_iter().map(|node| Seat { node, voter: None });
        Self {
            epoch: crate::FIRST_EPOCH,
            replicas: topology.wanted_copies(),
            stage: Stage::Settled,
            placement_epoch: crate::FIRST_EPOCH,
            before: None,
            council: council.collect(),
            next_id: nodes.iter().map(|node| u32::from(node.id.0) + 1).max().unwrap_or(0),
            base: 0,
            decrees: Vec::new(),
            access: Arc::default(),
            nodes,
        }
    }

    /// Returns the layout's id: a hash, which differs between any two layouts, even of the same
    /// epoch. Each node builds the first layout from its own settings, without a decision. The URLs
    /// in these settings may differ, so the first layout's id ignores URLs.
    pub fn id(&self) -> u128 {
        let hash = |layout: &Self| xxhash_rust::xxh3::xxh3_128(&layout.to_bytes());
        if self.epoch > crate::FIRST_EPOCH {
            return hash(self);
        }
        let mut first = self.clone();
        first.nodes.iter_mut().for_each(|node| node.url.clear());
        hash(&first)
    }

    /// Returns the layout's nodes, then the nodes of `before` that are leaving.
    pub fn all(&self) -> impl Iterator<Item = &Node> {
        let before = self.before.iter().flat_map(|before| &before.nodes);
        let leaves = |node: &&Node| self.nodes.iter().all(|other| other.id != node.id);
        self.nodes.iter().chain(before.filter(leaves))
    }

    /// True if the layout has one node and no node joins or leaves.
    pub fn is_alone(&self) -> bool {
        self.all().count() == 1
    }

    /// Finds a node by id among the new and the old members.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.all().find(|node| node.id == id)
    }

    /// Finds a node by name among the new members.
    pub fn find_node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.member.name == name)
    }

    /// Finds a node by id among the new members.
    pub fn member(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// True if this id belonged to a node that has left; the cluster refuses it for ever.
    pub fn is_retired(&self, id: NodeId) -> bool {
        u32::from(id.0) < self.next_id && self.node(id).is_none()
    }

    /// Returns the placement that is in force once all partitions have moved.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        cached_topology(&self.nodes, self.replicas)
    }

    /// Returns the next stage's layout, or `None` if the layout is settled.
    pub fn next_stage(&self) -> Option<Self> {
        let next = Self { epoch: self.epoch + 1, base: self.id(), ..self.clone() };
        match self.stage {
            Stage::Settled => None,
            Stage::Prepare => {
                Some(Self { stage: Stage::ReadOld, placement_epoch: next.epoch, ..next })
            }
            Stage::ReadOld => Some(Self { stage: Stage::ReadNew, ..next }),
            Stage::ReadNew => Some(Self {
                stage: Stage::Settled,
                placement_epoch: next.epoch,
                before: None,
                ..next
            }),
        }
    }

    /// Returns the layout that aborts the transition; `None` if there is no transition, if reads
    /// have switched already, or if no quorum member can be seated. The abort of *prepare* changes
    /// no key's placement. The metadata quorum stays the new one, so that a member with a lost disk
    /// can be replaced meanwhile; nodes that stay take the seats of joining nodes. Assigned ids
    /// stay assigned. `voter_of` returns the voter id of a node that is up, by its name.
    pub fn plan_abort(&self, voter_of: impl Fn(&str) -> Option<VoterId>) -> Option<Self> {
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
            placement_epoch: if is_placed_anew { self.epoch + 1 } else { self.placement_epoch },
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
