//! Status of the cluster's layout, and plans of changes: the JSON of `/admin/layout` and of the
//! paths below it. An optional field is missing if its value is unknown or empty. Only `cluster_id`
//! is null instead.

use std::collections::BTreeMap;

use protocol::layout::{Layout, MovedCopies, Seat, Stage};
use protocol::{NodeId, Progress, Topology};
use serde::{Deserialize, Serialize};

use crate::joining::message::JoinRequest;
use crate::layout::warnings;
use crate::node::Node;
use crate::operations::words::words;

/// The layout in force on a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayoutStatus {
    /// Name of the reporting node.
    pub(crate) node: String,
    /// Id of the node's cluster, in hexadecimal digits; null = the cluster has none yet.
    #[serde(default)]
    pub(crate) cluster_id: Option<String>,
    /// Number of the layout, from 1 on. Each decided change increments it.
    pub(crate) epoch: u64,
    /// Stage of the partition moves.
    pub(crate) stage: LayoutStage,
    /// Default number of replicas of a key.
    pub(crate) replicas: u8,
    /// The members, by name.
    pub(crate) nodes: Vec<MemberStatus>,
    /// The nodes of the metadata quorum (the council), which decides the next layout.
    pub(crate) council: Vec<String>,
    /// True if this node has a vote in the metadata quorum.
    pub(crate) has_vote: bool,
    /// Progress of each node while partitions move. Only nodes of the metadata quorum have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) moves: Vec<MoveStatus>,
    /// Nodes that ask this node to join the cluster, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) joining: Vec<JoinerStatus>,
    /// The last change that was applied at this node since its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<ChangeStatus>,
}

words! {
    /// Stage of the partition moves.
    pub(crate) enum LayoutStage {
        /// No partition moves.
        Settled = "settled",
        /// The change waits for joining nodes, and for nodes that must drop orphaned records of
        /// earlier changes.
        Prepare = "prepare",
        /// Keys move. Writes go to the old and the new replicas, reads to the old replicas.
        ReadOld = "read old",
        /// All keys have moved. Reads use the new replicas, and writes still go to both.
        ReadNew = "read new",
    }
}

impl From<Stage> for LayoutStage {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Settled => Self::Settled,
            Stage::Prepare => Self::Prepare,
            Stage::ReadOld => Self::ReadOld,
            Stage::ReadNew => Self::ReadNew,
        }
    }
}

/// A node's progress while partitions move.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MoveStatus {
    /// The node's name.
    pub(crate) node: String,
    /// Epoch of the layout in force on the node.
    pub(crate) epoch: u64,
    /// True if the node has pulled all partitions that move to it.
    pub(crate) has_all: bool,
    /// Number of source nodes from which all partitions have been pulled.
    pub(crate) sources: u16,
    /// Total number of source nodes.
    pub(crate) of_sources: u16,
    /// Number of records pulled in this change since the node's start.
    pub(crate) records: u64,
    /// Size of the pulled records, in bytes.
    pub(crate) bytes: u64,
    /// The wait that delays the pull of the node's remaining partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<WaitStatus>,
}

/// A wait for future records of a source that will drop them. A future record hides its key's
/// earlier values, and no node accepts it before its time. So the pulling node waits until that
/// time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WaitStatus {
    /// Name of the node that has the future records.
    pub(crate) source: String,
    /// End of the wait, in milliseconds since 1970.
    pub(crate) until_ms: u64,
}

/// A member of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemberStatus {
    /// The member's name.
    pub(crate) name: String,
    /// The member's URL.
    pub(crate) url: String,
    /// The member's zone; empty = none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) zone: String,
    /// The member's weight, 1 to 1000.
    pub(crate) weight: u32,
    /// The member's id, which is never reused.
    pub(crate) id: u16,
}

/// A node that belongs to no cluster and asks to join this cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinerStatus {
    /// Requested name of the node.
    pub(crate) name: String,
    /// The node's URL.
    pub(crate) url: String,
    /// The node's zone; empty = none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) zone: String,
    /// The node's weight, 1 to 1000.
    pub(crate) weight: u32,
}

/// Progress of an applied change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChangeStatus {
    /// The plan's id.
    pub(crate) plan: String,
    /// Epoch of the planned layout.
    pub(crate) epoch: u64,
    /// Progress of the decision.
    pub(crate) progress: ChangeProgress,
    /// True if the change moves keys. Then three more layouts follow, or one layout that undoes the
    /// change.
    pub(crate) moves: bool,
    /// True if the change was undone: no partition moves, and the members or the number of replicas
    /// differ from the plan.
    #[serde(default)]
    pub(crate) undone: bool,
    /// Nodes of the metadata quorum that have reported that they have no vote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) without_vote: Vec<String>,
}

words! {
    /// Progress of a change's decision.
    pub(crate) enum ChangeProgress {
        /// The metadata quorum has not decided yet.
        Asking = "asking",
        /// The change is decided. A majority of the metadata quorum has not learned of the decision
        /// yet.
        Decided = "decided",
        /// The change is decided, and a majority of the metadata quorum has learned of the
        /// decision.
        Done = "done",
        /// Another change was decided instead.
        Overtaken = "overtaken",
        /// No majority of the metadata quorum answered. The change may still be decided later.
        GivenUp = "given_up",
    }
}

impl From<Progress> for ChangeProgress {
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Asking => Self::Asking,
            Progress::Decided => Self::Decided,
            Progress::Done => Self::Done,
            Progress::Overtaken => Self::Overtaken,
            Progress::GivenUp => Self::GivenUp,
        }
    }
}

/// A planned change that was not applied yet, and its effects.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayoutPlan {
    /// The plan's id, the argument of `apply`.
    pub(crate) plan: String,
    /// Epoch of the layout on which the plan is based. In any other epoch the plan is refused.
    pub(crate) base_epoch: u64,
    /// The metadata quorum after the change.
    pub(crate) council: Vec<String>,
    /// Changes of replicas, weights and seats; changes of members are in `nodes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) changes: Vec<String>,
    /// The members after the change, and the nodes that leave, by name.
    pub(crate) nodes: Vec<PlannedNode>,
    /// Number of partition copies that move, out of 65,536 × replicas.
    pub(crate) moved_copies: u64,
    /// Estimated number of bytes that move, based on the average size of a partition copy on the
    /// asked node.
    pub(crate) moved_bytes: u64,
    /// Minimum duration of the change in seconds: the bytes of the node that receives most, divided
    /// by the asked node's `--stream-rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_at_rate: Option<u64>,
    /// The transfers, by pair of nodes.
    pub(crate) moves: Vec<Move>,
    /// Warnings to consider before the plan is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A node in a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlannedNode {
    /// The node's name.
    pub(crate) name: String,
    /// The plan's effect on the node.
    pub(crate) change: NodeChange,
    /// Ratio of the node's partitions before the change to its share by weight; 1 = exactly the
    /// share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fill_before: Option<f64>,
    /// The same ratio after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fill_after: Option<f64>,
}

words! {
    /// A plan's effect on a node.
    pub(crate) enum NodeChange {
        /// The node is a member before and after the change.
        Stays = "stays",
        /// The node becomes a member.
        Joins = "joins",
        /// The node hands over its keys, and is not a member after the change.
        Leaves = "leaves",
    }
}

/// A transfer from one node to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Move {
    /// The node that sends the partitions.
    pub(crate) from: String,
    /// The node that receives the partitions.
    pub(crate) to: String,
    /// Number of partition copies.
    pub(crate) copies: u32,
    /// Estimated size in bytes.
    pub(crate) bytes: u64,
}

/// Formats the id of a plan or a layout: 32 hexadecimal digits.
pub(crate) fn id_text(id: u128) -> String {
    format!("{id:032x}")
}

impl From<JoinRequest> for JoinerStatus {
    fn from(asker: JoinRequest) -> Self {
        let JoinRequest { name, url, zone, weight, .. } = asker;
        Self { name, url, zone, weight }
    }
}

impl LayoutStatus {
    /// Returns the current status.
    pub(crate) fn of(node: &Node) -> Self {
        let shared = &node.shared;
        let layout = shared.membership.layouts.active_layout();
        let change = shared.membership.layouts.change().map(|change| ChangeStatus {
            plan: id_text(change.layout.id()),
            epoch: change.layout.epoch,
            progress: change.progress.into(),
            moves: change.layout.stage == Stage::Prepare,
            undone: layout.epoch > change.layout.epoch
                && layout.stage == Stage::Settled
                && (&layout.nodes, layout.replicas)
                    != (&change.layout.nodes, change.layout.replicas),
            without_vote: change.without_vote.iter().map(|id| shared.name_of(*id)).collect(),
        });
        let moves =
            shared.membership.moves.reported_progress().into_iter().map(|(id, state)| MoveStatus {
                node: shared.name_of(id),
                epoch: state.epoch,
                has_all: state.has_all,
                sources: state.sources.0,
                of_sources: state.sources.1,
                records: state.records,
                bytes: state.bytes,
                waits: state.waits.map(|waits| WaitStatus {
                    source: shared.name_of(waits.source),
                    until_ms: waits.until.div_ceil(1000),
                }),
            });
        let nodes = layout.nodes.iter().map(|member| MemberStatus {
            name: member.member.name.clone(),
            url: node.url_of(member.id),
            zone: member.member.zone.clone(),
            weight: member.member.weight,
            id: member.id.0,
        });
        Self {
            node: shared.own_name.clone(),
            cluster_id: shared.membership.cluster.id().map(|id| id.to_string()),
            epoch: layout.epoch,
            stage: layout.stage.into(),
            replicas: layout.replicas,
            nodes: nodes.collect(),
            council: names(&layout, &layout.council),
            has_vote: shared.membership.layouts.has_seat(),
            moves: moves.collect(),
            joining: node.joiners.all().into_iter().map(JoinerStatus::from).collect(),
            change,
        }
    }
}

impl LayoutPlan {
    /// Describes the effects of the change from the layout `base` to the layout `planned`. Visits
    /// all partitions of both layouts.
    pub(crate) fn of(node: &Node, base: &Layout, planned: &Layout) -> Self {
        let topology =
            |layout: &Layout| layout.topology().expect("it was checked when it was made");
        let (before, after) = (topology(base), topology(planned));
        let moves = MovedCopies::between(&before, &after);
        let bytes_a_copy = bytes_a_copy(node, &before);
        let name = |id: NodeId| {
            let of = planned.node(id).or_else(|| base.node(id));
            of.map(|node| node.member.name.clone()).unwrap_or_default()
        };
        let mut taken = BTreeMap::<NodeId, f64>::new();
        for ((_, to), copies) in &moves.by_pair {
            *taken.entry(*to).or_default() += f64::from(*copies) * bytes_a_copy;
        }
        let most = taken.into_values().fold(0.0, f64::max);
        let seconds_at_rate =
            node.config.stream_rate.map(|rate| (most / rate as f64).ceil() as u64);
        let moves_by_pair = moves.by_pair.iter().map(|((from, to), copies)| Move {
            from: name(*from),
            to: name(*to),
            copies: *copies,
            bytes: (f64::from(*copies) * bytes_a_copy) as u64,
        });
        Self {
            plan: id_text(planned.id()),
            base_epoch: base.epoch,
            council: names(planned, &planned.council),
            changes: changes(base, planned),
            nodes: planned_nodes(base, planned, &before, &after),
            moved_copies: moves.copies(),
            moved_bytes: (moves.copies() as f64 * bytes_a_copy) as u64,
            seconds_at_rate,
            moves: moves_by_pair.collect(),
            warnings: warnings::of(node, base, planned, &after),
        }
    }
}

/// Describes the changes of replicas, weights and seats.
fn changes(base: &Layout, planned: &Layout) -> Vec<String> {
    let mut changes = Vec::new();
    let (was, is) = (base.replicas, planned.replicas);
    if was != is {
        let fewer = if is < was { ": fewer nodes may fail" } else { "" };
        changes.push(format!("replicas {was} → {is}{fewer}"));
    }
    for node in &planned.nodes {
        let Some(before) = base.node(node.id) else { continue };
        let (name, was, is) = (&node.member.name, before.member.weight, node.member.weight);
        if was != is {
            changes.push(format!("weight of {name} {was} → {is}"));
        }
    }
    changes.extend(vote_changes(base, planned));
    changes
}

/// Describes which councillors' votes the plan binds to the disks that they have now. In the first
/// layout of a cluster from a list, votes are not yet bound to disks.
fn vote_changes(base: &Layout, planned: &Layout) -> Vec<String> {
    let rebound = |was_bound: bool| -> Vec<String> {
        let is_rebound = |seat: &&Seat| {
            let held = base.council.iter().find(|held| held.node == seat.node);
            seat.voter.is_some()
                && held.is_some_and(|held| {
                    held.voter != seat.voter && held.voter.is_some() == was_bound
                })
        };
        let seats: Vec<Seat> = planned.council.iter().filter(is_rebound).copied().collect();
        names(planned, &seats)
    };
    let mut changes = Vec::new();
    match rebound(true).as_slice() {
        [] => {}
        [one] => changes.push(format!("{one} votes again, with the disk that it has now")),
        all => changes
            .push(format!("{} vote again, each with the disk that it has now", all.join(", "))),
    }
    let first = rebound(false).join(", ");
    if !first.is_empty() {
        changes.push(format!("{first}: the votes belong to the disks that these nodes have now"));
    }
    changes
}

pub(crate) fn names(layout: &Layout, council: &[Seat]) -> Vec<String> {
    let node = |seat: &Seat| Some(layout.node(seat.node)?.member.name.clone());
    council.iter().filter_map(node).collect()
}

/// Returns the average size of a partition copy in this node's store, in bytes.
fn bytes_a_copy(node: &Node, topology: &Topology) -> f64 {
    let own = node.shared.own;
    let held = topology.fill().into_iter().find(|fill| fill.node == own);
    let stats = node.db.stats();
    let bytes = stats.levels.iter().map(|level| level.bytes).sum::<u64>() + stats.memtable_bytes;
    held.filter(|fill| fill.held > 0).map_or(0.0, |fill| bytes as f64 / fill.held as f64)
}

fn planned_nodes(
    base: &Layout,
    planned: &Layout,
    before: &Topology,
    after: &Topology,
) -> Vec<PlannedNode> {
    let ratios = |topology: &Topology| -> Vec<(NodeId, f64)> {
        topology.fill().iter().map(|fill| (fill.node, (fill.ratio() * 1e3).round() / 1e3)).collect()
    };
    let (was, is) = (ratios(before), ratios(after));
    let of =
        |ratios: &[(NodeId, f64)], id| ratios.iter().find(|(node, _)| *node == id).map(|r| r.1);
    let node = |node: &protocol::layout::Node, change: NodeChange| PlannedNode {
        name: node.member.name.clone(),
        change,
        fill_before: of(&was, node.id),
        fill_after: of(&is, node.id),
    };
    let stays = |id| base.nodes.iter().any(|before| before.id == id);
    let next = planned
        .nodes
        .iter()
        .map(|n| node(n, if stays(n.id) { NodeChange::Stays } else { NodeChange::Joins }));
    let leaves = base.nodes.iter().filter(|n| planned.nodes.iter().all(|next| next.id != n.id));
    let mut nodes: Vec<PlannedNode> =
        next.chain(leaves.map(|n| node(n, NodeChange::Leaves))).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}
