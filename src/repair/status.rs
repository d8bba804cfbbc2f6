//! Status of repair rounds: the JSON of `GET /admin/repair`, and of `repair` in `GET /v0/status`.
//! Fields with unknown values are omitted.

use protocol::{Clock, RoundId, RoundReport, RoundStatus, Unhealed, Unrepaired};
use serde::{Deserialize, Serialize};

use crate::node::Node;

/// The repair rounds that a node has driven since its start.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Repair {
    /// Number of the round that was requested but has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<u64>,
    /// The running round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Round>,
    /// The last round that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Round>,
    /// End of the last full round in which all nodes reported all of their records, in milliseconds
    /// since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_full_ms: Option<u64>,
    /// Time up to which all writes are proven to be the same on all nodes, in milliseconds since
    /// 1970. Tombstones and expired values of writes up to this time may be purged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) proven_ms: Option<u64>,
    /// Repair fence of this node, in milliseconds since 1970. The node accepts no new record
    /// written up to this time. The fence is that of the last round in which the node took part,
    /// whichever node drove the round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sealed_ms: Option<u64>,
    /// Time of the last round whose exchanged records are all durable on this node, in milliseconds
    /// since 1970. Once all nodes have reached a time, it is proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ready_ms: Option<u64>,
    /// Number of keys that repair rounds made equal.
    pub(crate) repaired_keys: u64,
    /// Number of damaged key ranges that repair rounds healed.
    pub(crate) healed_ranges: u64,
}

/// One repair round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Number of the round, from 1 at the node's start.
    pub(crate) number: u64,
    /// True if the round compares all records, false if only writes since the last round.
    pub(crate) full: bool,
    /// Start of the round, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// Duration in milliseconds; missing while the round runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) took_ms: Option<u64>,
    /// Number of this node's records compared so far.
    pub(crate) records: u64,
    /// Estimated number of records to compare; only while a full round runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of_records: Option<u64>,
    /// Bytes that all nodes have read from their disks for the round.
    pub(crate) bytes_read: u64,
    /// Number of keys that differed.
    pub(crate) differing: u64,
    /// Number of differing keys that have been made equal so far.
    pub(crate) repaired: u64,
    /// Number of differing keys that could not be made equal.
    pub(crate) failed: u64,
    /// The nodes because of which these keys could not be made equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unrepaired: Vec<UnrepairedKeys>,
    /// Number of key ranges that a node could not read.
    pub(crate) damaged: u64,
    /// Number of damaged ranges that have been rewritten.
    pub(crate) healed: u64,
    /// The first damaged ranges that were not healed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unhealed: Vec<Range>,
    /// Nodes that did not take part in the round to its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) absent: Vec<String>,
    /// The reason why the round ended early; missing = it did not end early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<String>,
    /// True if all replicas have the same records, as far as the round compared them.
    pub(crate) equal: bool,
    /// True if the equality is proven. Then tombstones from before the round may be purged.
    #[serde(default)]
    pub(crate) proven: bool,
    /// The reason why the equality is not proven; missing = it is proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unproven: Option<String>,
}

/// Keys that could not be made equal because of one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnrepairedKeys {
    /// Name of the node.
    pub(crate) node: String,
    /// Number of the keys.
    pub(crate) keys: u64,
    /// The reason why the node did not do its part, and the remedy.
    pub(crate) why: String,
}

/// A range of keys that a node can't read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Range {
    /// Name of the node that can't read the range.
    pub(crate) node: String,
    /// First key of the range, escaped like keys of `kvorum scan`.
    pub(crate) first: String,
    /// Last key of the range; missing = the range extends to the last key of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
    /// The reason why the range was not healed.
    pub(crate) why: String,
}

impl Repair {
    /// Returns the current status.
    pub(crate) fn of(node: &Node) -> Self {
        let RoundStatus { waiting, current, last, last_full, repaired, healed, ended: _ } =
            node.shared.repair.rounds.status();
        let known = node.shared.repair.proofs.known_proof();
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
        let range = |(id, damage, why): &(protocol::NodeId, protocol::Damage, Unhealed)| Range {
            node: name(*id),
            first: damage.first.escape_ascii().to_string(),
            last: damage.last.as_ref().map(|last| last.escape_ascii().to_string()),
            why: why.to_string(),
        };
        let unrepaired = |(&(id, why), &keys): (&(protocol::NodeId, Unrepaired), &u64)| {
            UnrepairedKeys { node: name(id), keys, why: why.to_string() }
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
            unrepaired: report.unrepaired.iter().map(unrepaired).collect(),
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

/// Returns the time of a round in milliseconds since 1970; `None` if there was no round.
fn millis_of(round: RoundId) -> Option<u64> {
    (round.time > 0).then(|| Clock::micros(round.time) / 1000)
}
