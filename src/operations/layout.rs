//! The cluster's layout and plans of it as a node tells of them: the JSON of `/admin/layout` and
//! what is below it. A field that is not known is left out.

use std::collections::BTreeMap;

use cluster::layout::{Layout, MovedCopies, Seat, Stage};
use cluster::{NodeId, Progress, Topology};
use serde::{Deserialize, Serialize};

use super::warnings;
use super::words::words;
use crate::node::Node;
use crate::peers::join::Asker;

/// The layout that a node goes by.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayoutStatus {
    /// The node that tells.
    pub(crate) node: String,
    /// The id of its cluster, in hexadecimal digits; missing = it has none yet.
    #[serde(default)]
    pub(crate) cluster_id: Option<String>,
    /// Which change of the members this is, from 1 on.
    pub(crate) epoch: u64,
    /// How far partitions that move are.
    pub(crate) stage: LayoutStage,
    /// Copies of a key unless a request says otherwise.
    pub(crate) replicas: u8,
    /// The members, by name.
    pub(crate) nodes: Vec<MemberStatus>,
    /// The nodes that decide about the next layout.
    pub(crate) council: Vec<String>,
    /// Whether this node has a vote in that.
    pub(crate) has_vote: bool,
    /// While partitions move: how far each node is. Councillors know it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) moves: Vec<MoveStatus>,
    /// Nodes that ask this one for a place in the cluster, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) joining: Vec<JoinerStatus>,
    /// The last change that was applied at this node since its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<ChangeStatus>,
}

words! {
    /// How far partitions that move are.
    pub(crate) enum LayoutStage {
        /// No partition moves.
        Settled = "settled",
        /// Nodes that join are waited for, and nodes that have to drop what earlier changes left.
        Prepare = "prepare",
        /// Keys move, and reads use the old replicas.
        ReadOld = "read old",
        /// Reads use the new replicas.
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

/// How far a node is while partitions move.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MoveStatus {
    /// The node's name.
    pub(crate) node: String,
    /// The epoch of the layout that it goes by.
    pub(crate) epoch: u64,
    /// Whether it has taken all that moves to it.
    pub(crate) has_all: bool,
    /// Nodes from which it has taken all …
    pub(crate) sources: u16,
    /// … of so many.
    pub(crate) of_sources: u16,
    /// Records that it has taken in this change since it was started, and their bytes.
    pub(crate) records: u64,
    /// Bytes of those records.
    pub(crate) bytes: u64,
    /// What it waits for before it can take the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<WaitStatus>,
}

/// Another node's future records: a node that takes what moves to it waits until their time has
/// come, for that one does not keep them, and they hide what it held before.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WaitStatus {
    /// The node that holds them.
    pub(crate) source: String,
    /// Until when, in milliseconds since 1970.
    pub(crate) until_ms: u64,
}

/// A member of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemberStatus {
    /// The member's name.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) url: String,
    /// Its zone, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) zone: String,
    /// The member's weight, 1 to 1000.
    pub(crate) weight: u32,
    /// The number that it was given, and nobody else is.
    pub(crate) id: u16,
}

/// A node that belongs to no cluster and asks for a place in this one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinerStatus {
    /// What it is to be called.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) url: String,
    /// Its zone, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) zone: String,
    /// The node's weight, 1 to 1000.
    pub(crate) weight: u32,
}

/// What became of a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChangeStatus {
    /// The plan's id.
    pub(crate) plan: String,
    /// The epoch that it was to have.
    pub(crate) epoch: u64,
    /// How far it is.
    pub(crate) progress: ChangeProgress,
    /// Whether keys move by it: then three more layouts follow, or one that goes back.
    pub(crate) moves: bool,
    /// Whether the members are not those that it made, and none move: it was gone back from.
    #[serde(default)]
    pub(crate) undone: bool,
    /// Councillors that said that they have no vote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) without_vote: Vec<String>,
}

words! {
    /// How far a change is.
    pub(crate) enum ChangeProgress {
        /// Councillors are asked.
        Asking = "asking",
        /// It is decided; a majority of the council must still hear of it.
        Decided = "decided",
        /// A majority of the council knows it.
        Done = "done",
        /// Another change was decided instead.
        Overtaken = "overtaken",
        /// No majority of the council answered; it may be decided all the same.
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

/// A change that nobody has applied yet, and what it would do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Its id: what `apply` takes.
    pub(crate) plan: String,
    /// The epoch that it was made in: applied in another one, it is refused.
    pub(crate) base_epoch: u64,
    /// The council afterwards.
    pub(crate) council: Vec<String>,
    /// What is different from before, besides who is a member: replicas, weights, seats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) changes: Vec<String>,
    /// The members afterwards and those that leave, by name.
    pub(crate) nodes: Vec<PlannedNode>,
    /// Copies of partitions that move, of 65,536 × replicas.
    pub(crate) moved_copies: u64,
    /// Bytes that move, by what the node that was asked holds on average for a copy.
    pub(crate) moved_bytes: u64,
    /// The least seconds that the receiver of most takes, at this node's `--stream-rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_at_rate: Option<u64>,
    /// From whom to whom.
    pub(crate) moves: Vec<Move>,
    /// What to think of before it is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A node in a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlannedNode {
    /// The node's name.
    pub(crate) name: String,
    /// What becomes of it.
    pub(crate) change: NodeChange,
    /// What it holds now, in relation to its share by weight (1 = just that) …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fill_before: Option<f64>,
    /// … and afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fill_after: Option<f64>,
}

words! {
    /// What a plan does to a node.
    pub(crate) enum NodeChange {
        /// It is a member before and afterwards.
        Stays = "stays",
        /// It becomes a member.
        Joins = "joins",
        /// It hands over its keys, and is no member afterwards.
        Leaves = "leaves",
    }
}

/// What one node hands to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Move {
    /// Who has it.
    pub(crate) from: String,
    /// Who gets it.
    pub(crate) to: String,
    /// Copies of partitions.
    pub(crate) copies: u32,
    /// About so many bytes.
    pub(crate) bytes: u64,
}

/// A plan's or a layout's id, as people copy it.
pub(crate) fn id_text(id: u128) -> String {
    format!("{id:032x}")
}

impl From<Asker> for JoinerStatus {
    fn from(asker: Asker) -> Self {
        let Asker { name, url, zone, weight, .. } = asker;
        Self { name, url, zone, weight }
    }
}

impl LayoutStatus {
    /// As it is now.
    pub(crate) fn of(node: &Node) -> Self {
        let shared = &node.shared;
        let layout = shared.membership.layouts.entered();
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
        let moves = shared.membership.moves.reported().into_iter().map(|(id, state)| MoveStatus {
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

impl Plan {
    /// What a layout does to the one that `node` goes by. Looks at all partitions of both.
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

/// What a plan changes besides who is a member.
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
    let reseated = planned.council.iter().filter(|seat| {
        let held = base.council.iter().find(|held| held.node == seat.node);
        held.is_some_and(|held| held.voter.is_some() && held.voter != seat.voter)
    });
    let reseated: Vec<Seat> = reseated.copied().collect();
    if !reseated.is_empty() {
        let names = names(planned, &reseated).join(", ");
        changes.push(format!("{names} votes again, with the disk that it has now"));
    }
    changes
}

pub(super) fn names(layout: &Layout, council: &[Seat]) -> Vec<String> {
    let node = |seat: &Seat| Some(layout.node(seat.node)?.member.name.clone());
    council.iter().filter_map(node).collect()
}

/// What this node's store holds on average for a copy of a partition.
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
    let node = |node: &cluster::layout::Node, change: NodeChange| PlannedNode {
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
