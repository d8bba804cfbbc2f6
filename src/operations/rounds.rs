//! Rounds of repair as a node tells of them: the JSON of `GET /admin/repair`, and `repair` in
//! `GET /v0/status`. A field that is not known is left out.

use cluster::{Clock, RoundId, RoundReport, RoundStatus, Unhealed};
use serde::{Deserialize, Serialize};

use crate::node::Node;

/// The rounds that a node drove since its start.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Repair {
    /// The number of the round that somebody asked for and that has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<u64>,
    /// The one under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Round>,
    /// The last one that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Round>,
    /// When the last full one ended to which all nodes told all they hold, in milliseconds since
    /// 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_full_ms: Option<u64>,
    /// What was written up to this time, in milliseconds since 1970, is proven to be the same on
    /// all nodes: what was deleted or has expired by then may be purged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) proven_ms: Option<u64>,
    /// How far this node is in the last round that it took part in, whoever drove it: it takes
    /// nothing new that was written up to this time …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sealed_ms: Option<u64>,
    /// … and all that a round up to this time has brought it is durable. Once that is so on all
    /// nodes, it is proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ready_ms: Option<u64>,
    /// Keys that were made equal.
    pub(crate) repaired_keys: u64,
    /// Damaged ranges of keys that were healed.
    pub(crate) healed_ranges: u64,
}

/// One repair round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Counted from 1 since the node's start.
    pub(crate) number: u64,
    /// Whether it compares everything, not only what was written since the last one.
    pub(crate) full: bool,
    /// When it began, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// How long it took; missing while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) took_ms: Option<u64>,
    /// Records of this node that were compared …
    pub(crate) records: u64,
    /// … of about so many, in a full one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of_records: Option<u64>,
    /// Bytes that all nodes read from their disks for it.
    pub(crate) bytes_read: u64,
    /// Keys that differed …
    pub(crate) differing: u64,
    /// … that are equal by now …
    pub(crate) repaired: u64,
    /// … and that could not be made equal.
    pub(crate) failed: u64,
    /// Ranges of keys that a node could not read …
    pub(crate) damaged: u64,
    /// … and that are written anew by now.
    pub(crate) healed: u64,
    /// The first of those that are not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unhealed: Vec<Range>,
    /// Nodes that took no part, or not to the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) absent: Vec<String>,
    /// Why it ended before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<String>,
    /// Whether all replicas hold the same of what was compared.
    pub(crate) equal: bool,
    /// Whether it is proven that they do, so that what was deleted before may be purged.
    #[serde(default)]
    pub(crate) proven: bool,
    /// Why not, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unproven: Option<String>,
}

/// Keys that a node can't read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Range {
    /// Name of the node.
    pub(crate) node: String,
    /// The first of them, escaped as `kvorum scan` does.
    pub(crate) first: String,
    /// The last of them; missing = the last key there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
    /// Why they were not healed.
    pub(crate) why: String,
}

impl Repair {
    /// As it is now.
    pub(crate) fn of(node: &Node) -> Self {
        let RoundStatus { waiting, current, last, last_full, repaired, healed, ended: _ } =
            node.shared.repair.rounds.status();
        let known = node.shared.repair.proofs.known();
        Self {
            waiting,
            current: current.map(|report| Round::of(node, report)),
            last: last.map(|report| Round::of(node, report)),
            last_full_ms: last_full.map(|micros| micros / 1000),
            proven_ms: millis_of(known.proven),
            sealed_ms: millis_of(known.seal),
            ready_ms: millis_of(known.ready),
            repaired_keys: repaired,
            healed_ranges: healed,
        }
    }
}

impl Round {
    fn of(node: &Node, report: RoundReport) -> Self {
        let name = |id| node.shared.name_of(id);
        let is_over = report.ended.is_some();
        let range = |(id, damage, why): &(cluster::NodeId, cluster::Damage, Unhealed)| Range {
            node: name(*id),
            first: damage.first.escape_ascii().to_string(),
            last: damage.last.as_ref().map(|last| last.escape_ascii().to_string()),
            why: why.to_string(),
        };
        Self {
            number: report.number,
            full: report.full,
            began_ms: report.began / 1000,
            took_ms: report.ended.map(|ended| ended.saturating_sub(report.began) / 1000),
            records: report.records,
            of_records: (report.full && !is_over).then(|| node.db.stats().keys),
            bytes_read: report.bytes_read,
            differing: report.differing,
            repaired: report.repaired,
            failed: report.failed,
            damaged: report.damaged,
            healed: report.healed,
            unhealed: report.unhealed.iter().map(range).collect(),
            absent: report.absent.iter().map(|id| name(*id)).collect(),
            stopped: report.stopped.map(str::to_owned),
            equal: is_over && report.is_equal(),
            proven: report.proven,
            unproven: report.unproven.map(str::to_owned),
        }
    }
}

/// A round's time, if there was one.
fn millis_of(round: RoundId) -> Option<u64> {
    (round.time > 0).then(|| Clock::micros(round.time) / 1000)
}
