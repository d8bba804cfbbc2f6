//! Snapshots of a node, sent to each dashboard once a second. A snapshot has `/v0/status`, and
//! monotonic counters from which the page computes differences. A node and its page are of one
//! release.

use serde::Serialize;

use crate::counters::clocks::wall_micros;
use crate::counters::latency;
use crate::counters::{Count, Counters, RequestKind, STATUSES};
use crate::node::Node;
use crate::operations::status::Status;
use crate::operations::usage;
use crate::settings::memory::OUTSIDE_BYTES;

/// The state of a node at one moment.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    /// The node's wall clock, in milliseconds since 1970.
    at_ms: u64,
    /// Milliseconds since recovery began. The page computes rates from differences of this time.
    up_ms: u64,
    status: Status,
    /// Default number of replicas of a key, and number of members of the cluster.
    copies: u8,
    members: usize,
    loops: usize,
    cpu_ms: u64,
    connections: u64,
    max_connections: usize,
    /// Upper bound of the first latency bucket in nanoseconds, and number of buckets of each
    /// doubling.
    first_nanos: u64,
    per_doubling: usize,
    kinds: Vec<RequestFigures>,
    queues: Vec<Queue>,
    memory: Memory,
    store: Store,
    peer_messages: u64,
    peer_bytes: u64,
}

/// Counts and latencies of requests of one kind.
#[derive(Debug, Serialize)]
struct RequestFigures {
    kind: &'static str,
    /// Number of answers by status, for statuses that have occurred; status 0 = any other status.
    statuses: Vec<(u16, u64)>,
    latency: Vec<u64>,
}

/// The depth of a queue, and its maximum depth.
#[derive(Debug, Serialize)]
pub(crate) struct Queue {
    name: &'static str,
    unit: &'static str,
    pub(crate) depth: u64,
    /// Maximum depth; 0 = another limit bounds the queue.
    bound: u64,
}

#[derive(Debug, Serialize)]
struct Memory {
    resident: u64,
    /// The budget of `--memory`, plus the allowance for memory outside of the budget.
    limit: u64,
    parts: Vec<SnapshotPart>,
}

#[derive(Debug, Serialize)]
struct SnapshotPart {
    name: &'static str,
    used: u64,
    budget: u64,
}

#[derive(Debug, Serialize)]
struct Store {
    disk_bytes: u64,
    wal_segments: u64,
    levels: Vec<(u64, u64)>,
    debt_bytes: u64,
    flushes: u64,
    flush_bytes: u64,
    flush_nanos: u64,
    compactions: u64,
    compaction_bytes: u64,
    compaction_nanos: u64,
    wal_bytes: u64,
    wal_syncs: u64,
    commits: u64,
    commit_nanos: u64,
    slowed: u64,
    slowdown_nanos: u64,
    refused: u64,
    cache_hits: u64,
    cache_misses: u64,
    bloom_skips: u64,
    bloom_false_positives: u64,
}

impl Snapshot {
    pub(crate) fn take(node: &Node, stats: &lsm::Stats, status: Status) -> Self {
        let parts = usage::memory_parts(node, stats).into_iter();
        Self {
            at_ms: wall_micros() / 1000,
            up_ms: node.started.elapsed().as_millis() as u64,
            copies: node.shared.view().topology.default_copies(),
            members: node.shared.nodes(),
            loops: node.config.loops,
            cpu_ms: usage::cpu_time().as_millis() as u64,
            connections: usage::open_connections(node),
            max_connections: node.config.connections,
            first_nanos: latency::FIRST_NANOS,
            per_doubling: latency::PER_DOUBLING,
            kinds: RequestKind::ALL.iter().map(|(kind, ..)| requests(node, *kind)).collect(),
            queues: queues(node, stats),
            memory: Memory {
                resident: usage::resident_bytes(),
                limit: node.config.memory.budget_bytes + OUTSIDE_BYTES,
                parts: parts
                    .map(|part| SnapshotPart {
                        name: part.name,
                        used: part.used,
                        budget: part.budget,
                    })
                    .collect(),
            },
            store: store(node, stats),
            peer_messages: sum(node, |counters| &counters.peers.messages_sent),
            peer_bytes: sum(node, |counters| &counters.peers.bytes_sent),
            status,
        }
    }
}

fn sum(node: &Node, count: impl Fn(&Counters) -> &Count) -> u64 {
    node.counters.iter().map(|counters| count(counters).get()).sum()
}

/// Returns the page's name for a kind of requests.
pub(crate) fn kind_name(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Get => "get",
        RequestKind::Put => "put",
        RequestKind::Delete => "delete",
        RequestKind::Add => "add",
        RequestKind::Range => "range",
        RequestKind::Admin | RequestKind::AdminPost => "admin",
        RequestKind::Other => "other",
    }
}

fn requests(node: &Node, kind: RequestKind) -> RequestFigures {
    let place = kind as usize;
    let count = |status: usize| sum(node, |counters| &counters.requests[place][status]);
    let statuses = STATUSES.iter().enumerate().map(|(number, status)| (*status, count(number)));
    let bucket = |number: usize| sum(node, |counters| &counters.latency[place].buckets[number]);
    RequestFigures {
        kind: kind_name(kind),
        statuses: statuses.filter(|(_, count)| *count > 0).collect(),
        latency: (0..latency::BUCKETS).map(bucket).collect(),
    }
}

pub(crate) fn queues(node: &Node, stats: &lsm::Stats) -> Vec<Queue> {
    let (gets, pages) = node.reads.count_waiting();
    let waiting = sum(node, |counters| &counters.waiting_bytes);
    let queue = |name, unit, depth, bound| Queue { name, unit, depth, bound };
    let plan = &node.config.memory;
    vec![
        queue("disk reads", "jobs", gets as u64, node.config.queue as u64),
        queue("range pages", "jobs", pages as u64, 0),
        queue("writes to the log", "bytes", waiting, plan.waiting_bytes),
        queue("log batches", "batches", stats.commit_queue_batches, 0),
        queue(
            "memtables to flush",
            "tables",
            stats.immutable_memtables,
            lsm::MAX_IMMUTABLES as u64,
        ),
        queue("bytes to compact", "bytes", stats.compaction_debt_bytes, 0),
    ]
}

fn store(node: &Node, stats: &lsm::Stats) -> Store {
    Store {
        disk_bytes: usage::disk_bytes(node, stats),
        wal_segments: stats.wal_segments,
        levels: stats.levels.iter().map(|level| (level.tables, level.bytes)).collect(),
        debt_bytes: stats.compaction_debt_bytes,
        flushes: stats.flushes,
        flush_bytes: stats.flush_bytes,
        flush_nanos: stats.flush_nanos,
        compactions: stats.compactions,
        compaction_bytes: stats.compaction_write_bytes,
        compaction_nanos: stats.compaction_nanos,
        wal_bytes: stats.wal_bytes,
        wal_syncs: stats.wal_syncs,
        commits: stats.wal_writes,
        commit_nanos: stats.commit_nanos,
        slowed: stats.slowed_writes,
        slowdown_nanos: sum(node, |counters| &counters.slowdown_nanos),
        refused: stats.refused_writes,
        cache_hits: stats.cache_hits,
        cache_misses: stats.cache_misses,
        bloom_skips: stats.bloom_skips,
        bloom_false_positives: stats.bloom_false_positives,
    }
}
