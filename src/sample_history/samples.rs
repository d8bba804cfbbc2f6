//! The values of a sample, and their JSON form for the dashboard's page.
//!
//! ```text
//!  thread.rs, once a second ─▶ Sampler ─▶ ring.rs ─▶ /ui/events ─▶ the page
//! ```
//!
//! The page finds each value by its name ([`fields`]), and treats a sample like the difference of
//! two consecutive snapshots. A node and its page are of one release, so the JSON form may change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::NodeId;
use serde::Serialize;

use crate::counters::clocks::wall_micros;
use crate::counters::latency::BUCKETS;
use crate::counters::{Counters, RequestKind, STATUSES};
use crate::node::Node;
use crate::operations::snapshot::{kind_name, queues};
use crate::operations::usage;
use crate::sample_history::ring::Sample;

const PERIOD_MS: u64 = 1000;

/// Offset within each second at which all nodes take samples and send snapshots, in milliseconds.
/// If the nodes' clocks differ by less than half a second, samples with the same second belong
/// together.
const PHASE_MS: u64 = 500;

/// Maximum number of peers whose hints a sample has. The peers with the most hints are chosen. The
/// limit bounds the length of a sample, which is sent to other nodes as one line. A cluster with
/// more unreachable peers has greater problems than its dashboard.
const MAX_HINTED_PEERS: usize = 16;

/// Kinds of requests in a sample. The other kinds of requests concern only the node itself.
const KINDS: [RequestKind; 5] =
    [RequestKind::Get, RequestKind::Put, RequestKind::Delete, RequestKind::Add, RequestKind::Range];

/// Counters of the process and its store, with the names that the page uses.
const COUNTERS: [(&str, fn(&Node, &lsm::Stats) -> u64); 16] = [
    ("cpu_ms", |_, _| usage::cpu_time().as_millis() as u64),
    ("peer_messages", |node, _| sum(node, |counters| counters.peers.messages_sent.get())),
    ("store.slowdown_nanos", |node, _| sum(node, |counters| counters.slowdown_nanos.get())),
    ("store.flush_bytes", |_, stats| stats.flush_bytes),
    ("store.flush_nanos", |_, stats| stats.flush_nanos),
    ("store.compaction_bytes", |_, stats| stats.compaction_write_bytes),
    ("store.compaction_nanos", |_, stats| stats.compaction_nanos),
    ("store.commit_nanos", |_, stats| stats.commit_nanos),
    ("store.wal_bytes", |_, stats| stats.wal_bytes),
    ("store.wal_syncs", |_, stats| stats.wal_syncs),
    ("store.slowed", |_, stats| stats.slowed_writes),
    ("store.refused", |_, stats| stats.refused_writes),
    ("store.cache_hits", |_, stats| stats.cache_hits),
    ("store.cache_misses", |_, stats| stats.cache_misses),
    ("store.bloom_skips", |_, stats| stats.bloom_skips),
    ("store.bloom_false_positives", |_, stats| stats.bloom_false_positives),
];

/// Gauges. A sample has their current values, after the depths of the queues.
const GAUGES: [(&str, fn(&Node, &lsm::Stats) -> u64); 2] =
    [("disk", usage::disk_bytes), ("resident", |_, _| usage::resident_bytes())];

/// One sample for the page: the second since 1970, the duration in milliseconds, index and value of
/// each non-zero value, and the hints by peer.
#[derive(Debug, Serialize)]
pub(crate) struct PastSecond(u64, u64, Vec<(u64, u64)>, BTreeMap<String, u64>);

/// Takes samples of a node. Each sample has the increase of the counters since the previous sample.
pub(crate) struct Sampler {
    counters: Vec<u64>,
    at: Instant,
}

impl Sampler {
    /// Creates a sampler whose first sample begins now.
    pub(crate) fn new(node: &Node) -> Self {
        Self { counters: counters(node, &node.db.stats()), at: Instant::now() }
    }

    /// Stores a sample of the time since the previous sample.
    pub(crate) fn sample(&mut self, node: &Node) {
        let stats = node.db.stats();
        let (counters, now) = (counters(node, &stats), Instant::now());
        let differences = counters.iter().zip(&self.counters).map(|(now, was)| now - was.min(now));
        let queues = queues(node, &stats).into_iter().map(|queue| queue.depth);
        let gauges = GAUGES.iter().map(|(_, value)| value(node, &stats));
        let values = (0..).zip(differences.chain(queues).chain(gauges));
        node.history.push(&Sample {
            second: wall_micros() / 1_000_000,
            took_ms: now.duration_since(self.at).as_millis() as u64,
            values: values.filter(|(_, value)| *value > 0).collect(),
            hints: hints(node),
        });
        (self.counters, self.at) = (counters, now);
    }
}

/// Returns the time from `now_ms`, in milliseconds since 1970, to the next sample and snapshot.
pub(crate) fn until_next(now_ms: u64) -> Duration {
    Duration::from_millis(PERIOD_MS - (now_ms + PERIOD_MS - PHASE_MS) % PERIOD_MS)
}

/// Returns the names of a sample's values, in the order of the values.
pub(crate) fn fields(node: &Node) -> Vec<String> {
    let of_kind = |kind: RequestKind| {
        let name = kind_name(kind);
        let statuses = STATUSES.iter().map(move |status| format!("{name}.statuses.{status}"));
        statuses.chain((0..BUCKETS).map(move |bucket| format!("{name}.latency.{bucket}")))
    };
    let named = |(name, _): &(&str, _)| (*name).to_owned();
    let all = COUNTERS.iter().map(named).chain(KINDS.into_iter().flat_map(of_kind));
    let queues = (0..queues(node, &node.db.stats()).len()).map(|place| format!("queues.{place}"));
    all.chain(queues).chain(GAUGES.iter().map(|(name, _)| (*name).to_owned())).collect()
}

/// Converts a sample to the page's form.
pub(crate) fn past_second(node: &Node, sample: Sample) -> PastSecond {
    let Sample { second, took_ms, values, hints } = sample;
    let name = |id: u64| node.shared.name_of(NodeId(id as u16));
    let hints = hints.into_iter().map(|(id, hints)| (name(id), hints));
    PastSecond(second, took_ms, values, hints.collect())
}

fn sum(node: &Node, count: impl Fn(&Counters) -> u64) -> u64 {
    node.counters.iter().map(|counters| count(counters)).sum()
}

/// Returns the values of all counters, in the order of [`fields`].
fn counters(node: &Node, stats: &lsm::Stats) -> Vec<u64> {
    let mut all: Vec<u64> = COUNTERS.iter().map(|(_, value)| value(node, stats)).collect();
    for place in KINDS.map(|kind| kind as usize) {
        all.extend(
            (0..STATUSES.len())
                .map(|status| sum(node, |counters| counters.requests[place][status].get())),
        );
        all.extend(
            (0..BUCKETS)
                .map(|bucket| sum(node, |counters| counters.latency[place].buckets[bucket].get())),
        );
    }
    all
}

/// Returns the number of hints for each peer, by peer id, for at most `MAX_HINTED_PEERS` peers.
fn hints(node: &Node) -> Vec<(u64, u64)> {
    let shared = &node.shared;
    let waiting = node
        .others()
        .into_iter()
        .map(|id| (u64::from(id.0), shared.transfer.hints.waiting_hints(id).0));
    let mut waiting: Vec<_> = waiting.filter(|(_, hints)| *hints > 0).collect();
    waiting.sort_by_key(|(_, hints)| std::cmp::Reverse(*hints));
    waiting.truncate(MAX_HINTED_PEERS);
    waiting.sort_unstable();
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_sample_is_due_500_ms_into_a_second() {
        for (now, wait) in [(0, 500), (499, 1), (500, 1000), (501, 999), (999, 501), (7_100, 400)] {
            assert_eq!(until_next(now), Duration::from_millis(wait), "at {now} ms");
        }
    }
}
