//! `/metrics`: what the loops and the engine count, in the Prometheus (OpenMetrics) text format.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cluster::{HintLedger, NodeId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::counters::latency;
use crate::counters::{Count, Counters, Kind, PeerCounts, STATUSES};
use crate::node::Node;
use crate::operations::stderr;
use crate::operations::usage;

const NANOS: f64 = 1e9;

/// The doublings of latency that are told, of those that are counted: from 16.384 µs …
const FIRST_DOUBLING: usize = 4;

/// … up to 8.6 s, each as one bucket.
const LAST_DOUBLING: usize = 23;

type NoLabels = [(&'static str, &'static str); 0];

/// All metrics of `node` as text.
pub(crate) fn encode(node: &Arc<Node>) -> String {
    let mut registry = Registry::with_prefix("kvorum");
    registry.register_collector(Box::new(Metrics(Arc::clone(node))));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("a string takes any text");
    text
}

struct Metrics(Arc<Node>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(&mut encoder);
        requests(&mut out, &self.0)?;
        server(&mut out, &self.0)?;
        peers(&mut out, &self.0)?;
        hints(&mut out, &self.0)?;
        let stats = self.0.db.stats();
        machine(&mut out, &self.0, &stats)?;
        store(&mut out, &stats)?;
        store_times(&mut out, &stats)
    }
}

/// Writes one metric after the other.
struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn seconds(&mut self, name: &str, help: &str, nanos: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(nanos as f64 / NANOS).encode(metric)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value as i64).encode(metric)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value as i64).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn sum(node: &Node, count: impl Fn(&Counters) -> &Count) -> u64 {
    node.counters.iter().map(|counters| count(counters).get()).sum()
}

fn requests(out: &mut Out<'_, '_>, node: &Node) -> fmt::Result {
    let help = "Requests answered, by route, method and status";
    let mut metric = out.0.encode_descriptor("requests", help, None, MetricType::Counter)?;
    for (kind, route, method) in Kind::ALL {
        for (place, status) in STATUSES.iter().enumerate() {
            let count = sum(node, |counters| &counters.requests[kind as usize][place]);
            if count > 0 {
                let status = if *status == 0 { "other".to_owned() } else { status.to_string() };
                let labels = [("route", route), ("method", method), ("status", status.as_str())];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    let help = "Time from a request's header to its response, by route and method";
    let name = "request_duration_seconds";
    let mut metric = out.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (kind, route, method) in Kind::ALL {
        let buckets = latency_buckets(node, kind);
        let count = buckets.iter().map(|(_, count)| count).sum();
        let nanos = sum(node, |counters| &counters.latency[kind as usize].nanos);
        let labels = [("route", route), ("method", method)];
        metric.encode_family(&labels)?.encode_histogram::<NoLabels>(
            nanos as f64 / NANOS,
            count,
            &buckets,
            None,
        )?;
    }
    Ok(())
}

/// The counted buckets put together into those that are told, as (bound in seconds, number).
fn latency_buckets(node: &Node, kind: Kind) -> Vec<(f64, u64)> {
    let count = |bucket| sum(node, |counters| &counters.latency[kind as usize].buckets[bucket]);
    let mut from = 0;
    let mut told = Vec::with_capacity(LAST_DOUBLING - FIRST_DOUBLING + 2);
    for doubling in FIRST_DOUBLING..=LAST_DOUBLING {
        let to = doubling * latency::PER_DOUBLING + 1;
        let bound = (latency::FIRST_NANOS << doubling) as f64 / NANOS;
        told.push((bound, (from..to).map(count).sum()));
        from = to;
    }
    told.push((f64::INFINITY, (from..latency::BUCKETS).map(count).sum()));
    told
}

fn server(out: &mut Out<'_, '_>, node: &Node) -> fmt::Result {
    let connections = node.counters.iter().enumerate().map(|(number, counters)| {
        let open = counters.connections.load(Ordering::Relaxed) as u64;
        ([("loop", number.to_string())], open)
    });
    out.gauges("connections", "Open connections, by event loop", connections)?;
    let accepted = node.accepting.accepted.load(Ordering::Relaxed);
    out.counter("connections_accepted", "Connections accepted", accepted)?;
    let failed = node.accepting.failed.load(Ordering::Relaxed);
    out.counter("accept_failures", "Failed attempts to accept a connection", failed)?;
    let dropped = stderr::dropped();
    out.counter("log_lines_dropped", "Log lines dropped because stderr was blocked", dropped)?;
    let reaped = sum(node, |counters| &counters.reaped);
    out.counter(
        "connections_timed_out",
        "Connections closed because the client was too slow",
        reaped,
    )?;
    let evicted = sum(node, |counters| &counters.evicted);
    let help = "Idle connections closed to make room for new ones";
    out.counter("connections_evicted", help, evicted)?;
    let gave_way = sum(node, |counters| &counters.gave_way);
    let help = "Slow transfers aborted to free memory for waiting requests";
    out.counter("transfers_aborted", help, gave_way)?;
    let malformed = sum(node, |counters| &counters.malformed);
    out.counter(
        "connections_malformed",
        "Connections closed because of malformed HTTP",
        malformed,
    )?;
    let (gets, pages) = node.reads.waiting();
    let queues = [([("queue", "reads")], gets as u64), ([("queue", "pages")], pages as u64)];
    out.gauges("queue_depth", "Reads waiting for a read thread", queues.into_iter())?;
    let waiting = sum(node, |counters| &counters.waiting_bytes);
    out.gauge("write_waiting_bytes", "Bytes of writes waiting for the log", waiting)?;
    let batches = sum(node, |counters| &counters.batches);
    out.counter("write_batches", "Write batches passed to the log", batches)?;
    let writes = sum(node, |counters| &counters.batched_writes);
    out.counter("writes_batched", "Writes in these batches", writes)?;
    let held_back = sum(node, |counters| &counters.slowdown_nanos);
    let help = "Time that write batches were delayed by flush or compaction backlog";
    out.seconds("write_slowdown_seconds", help, held_back)?;
    let ranges = sum(node, |counters| &counters.ranges);
    out.counter("ranges", "Range reads started", ranges)?;
    let bodies = node.bodies.held() as u64;
    out.gauge(
        "request_body_bytes",
        "Memory for large values received from clients, in \
        bytes",
        bodies,
    )?;
    let answers = node.answers.held() as u64;
    out.gauge("response_body_bytes", "Memory for large values sent to clients, in bytes", answers)?;
    let (received, lent) = (node.facts.received_bytes(), node.lent.held() as u64);
    out.gauge(
        "peer_request_bytes",
        "Memory for large requests of other nodes, in bytes",
        received,
    )?;
    out.gauge(
        "peer_response_bytes",
        "Memory for large values sent to other nodes, in \
        bytes",
        lent,
    )?;
    let pages = node.pages.held() as u64;
    out.gauge("range_page_bytes", "Memory for pages of range reads, in bytes", pages)
}

fn hints(out: &mut Out<'_, '_>, node: &Node) -> fmt::Result {
    let (topology, ledger) = (&node.shared.topology, &node.shared.hints);
    let others = || (0..topology.nodes() as u16).map(NodeId).filter(|id| *id != node.shared.own);
    let by_peer = |of: fn(&HintLedger, NodeId) -> u64| {
        others().map(move |id| ([("peer", topology.member(id).name.clone())], of(ledger, id)))
    };
    out.gauges(
        "hints",
        "Writes that a peer missed and that this node keeps for it",
        by_peer(|ledger, id| ledger.waiting(id).0),
    )?;
    out.gauges(
        "hint_bytes",
        "Size of the hints kept for a peer, in bytes",
        by_peer(|ledger, id| ledger.waiting(id).1),
    )?;
    out.gauges(
        "hints_ahead_of_clock",
        "Hints that wait because their timestamps are too far ahead of the clock",
        by_peer(HintLedger::of_the_future),
    )?;
    let missed = (0..topology.nodes() as u16).map(NodeId).map(|id| {
        let name = topology.member(id).name.clone();
        ([("node", name)], u64::from(node.shared.missed.partitions(id)))
    });
    let help = "Partitions in which a node may lack writes for which no hint is kept";
    out.gauges("partitions_to_repair", help, missed)?;
    let delivered = others().map(|id| ledger.taken(id)).sum();
    out.counter("hints_delivered", "Hints delivered to peers", delivered)?;
    let dropped = others().map(|id| ledger.dropped(id)).sum();
    out.counter("hints_dropped", "Missed writes for which no hint could be kept", dropped)
}

fn peers(out: &mut Out<'_, '_>, node: &Node) -> fmt::Result {
    type Of = fn(&PeerCounts) -> &Count;
    let all: [(&str, &str, Of); 10] = [
        ("peer_envelopes_sent", "Envelopes sent to other nodes", |peers| &peers.envelopes_sent),
        ("peer_envelopes_received", "Envelopes received from other nodes", |peers| {
            &peers.envelopes_received
        }),
        ("peer_messages_sent", "Messages sent to other nodes", |peers| &peers.messages_sent),
        ("peer_messages_received", "Messages received from other nodes", |peers| {
            &peers.messages_received
        }),
        ("peer_bytes_sent", "Bytes sent to other nodes", |peers| &peers.bytes_sent),
        ("peer_bytes_received", "Bytes received from other nodes", |peers| &peers.bytes_received),
        ("peer_send_calls", "System calls that send data to other nodes", |peers| &peers.writes),
        ("peer_malformed", "Peer connections closed because of malformed data", |peers| {
            &peers.malformed
        }),
        ("peer_handshakes_refused", "Refused handshakes with other nodes", |peers| &peers.refused),
        ("peer_connections_opened", "Connections opened to other nodes", |peers| &peers.connected),
    ];
    for (name, help, of) in all {
        out.counter(name, help, sum(node, |counters| of(&counters.peers)))?;
    }
    let topology = &node.shared.topology;
    let others = (0..topology.nodes() as u16).map(NodeId).filter(|id| *id != node.shared.own);
    let lines = others.map(|id| {
        let up = u64::from(node.facts.seen(id).lines());
        ([("peer", topology.member(id).name.clone())], up)
    });
    out.gauges("peer_connected_loops", "Event loops with a connection to the peer", lines)
}

fn machine(out: &mut Out<'_, '_>, node: &Node, stats: &lsm::Stats) -> fmt::Result {
    let uptime = node.started.elapsed().as_secs();
    out.gauge("uptime_seconds", "Time since the node started recovery, in seconds", uptime)?;
    let cpu = usage::cpu_time().as_nanos() as u64;
    out.seconds("cpu_seconds", "CPU time of all threads", cpu)?;
    out.gauge("resident_bytes", "Resident memory, in bytes", usage::resident_bytes())?;
    let disk = usage::disk_bytes(node, stats);
    out.gauge("disk_bytes", "Size of the files in the data directory, in bytes", disk)?;
    let parts = usage::parts(node, stats);
    let label = |part: &usage::Part| [("part", part.name)];
    let used = parts.iter().map(|part| (label(part), part.used));
    out.gauges("memory_used_bytes", "Memory in use, by part of --memory, in bytes", used)?;
    let budgets = parts.iter().map(|part| (label(part), part.budget));
    out.gauges("memory_budget_bytes", "Memory limit, by part of --memory, in bytes", budgets)
}

fn store_times(out: &mut Out<'_, '_>, stats: &lsm::Stats) -> fmt::Result {
    out.seconds("flush_seconds", "Time spent flushing", stats.flush_nanos)?;
    out.seconds("compaction_seconds", "Time spent compacting", stats.compaction_nanos)?;
    let help = "Time to commit a group of batches: log, sync under --sync always, memtables";
    let name = "commit_duration_seconds";
    let mut metric = out.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    let bound = |bucket| match bucket {
        n if n + 1 == lsm::COMMIT_BUCKETS => f64::INFINITY,
        n => (lsm::FIRST_COMMIT_NANOS << n) as f64 / NANOS,
    };
    let buckets: Vec<_> =
        stats.commit_times.iter().enumerate().map(|(n, count)| (bound(n), *count)).collect();
    let count = stats.commit_times.iter().sum();
    metric.encode_histogram::<NoLabels>(stats.commit_nanos as f64 / NANOS, count, &buckets, None)
}

fn store(out: &mut Out<'_, '_>, stats: &lsm::Stats) -> fmt::Result {
    for (name, help, value) in [
        ("keys", "Keys that have a value (estimate)", stats.keys),
        ("memtable_bytes", "Bytes in active memtables", stats.memtable_bytes),
        ("immutable_bytes", "Bytes in memtables waiting to be flushed", stats.immutable_bytes),
        ("immutable_memtables", "Memtables waiting to be flushed", stats.immutable_memtables),
        ("wal_segments", "WAL segments on disk", stats.wal_segments),
        ("commit_queue_batches", "Batches waiting for the log", stats.commit_queue_batches),
        ("commit_queue_bytes", "Bytes waiting for the log", stats.commit_queue_bytes),
        (
            "compaction_debt_bytes",
            "Bytes that compactions still have to move",
            stats.compaction_debt_bytes,
        ),
        ("cache_bytes", "Bytes in the block cache", stats.cache_bytes),
        (
            "store_failed",
            "1 if the store has failed and accepts no writes",
            u64::from(stats.failed.is_some()),
        ),
    ] {
        out.gauge(name, help, value)?;
    }
    for (name, help, value) in [
        ("wal_writes", "Groups of batches written to the WAL", stats.wal_writes),
        ("wal_operations", "Puts and deletes written to the WAL", stats.wal_operations),
        ("wal_bytes", "Bytes written to the WAL", stats.wal_bytes),
        ("wal_syncs", "Syncs of the WAL", stats.wal_syncs),
        ("flushes", "Memtables flushed", stats.flushes),
        ("flush_bytes", "Bytes of tables written by flushes", stats.flush_bytes),
        ("compactions", "Completed compactions", stats.compactions),
        ("compaction_read_bytes", "Bytes read by compactions", stats.compaction_read_bytes),
        ("compaction_write_bytes", "Bytes written by compactions", stats.compaction_write_bytes),
        ("cache_hits", "Block cache hits", stats.cache_hits),
        ("cache_misses", "Block cache misses", stats.cache_misses),
        ("bloom_skips", "Tables that a read skipped because of a bloom filter", stats.bloom_skips),
        (
            "bloom_false_positives",
            "Tables that a read searched in vain because of a bloom filter's false positive",
            stats.bloom_false_positives,
        ),
        (
            "slowed_writes",
            "Writes delayed because of flush or compaction backlog",
            stats.slowed_writes,
        ),
        (
            "refused_writes",
            "Writes refused because of flush or compaction backlog",
            stats.refused_writes,
        ),
        (
            "version_conflicts",
            "Records with the same version and different content",
            stats.version_conflicts,
        ),
    ] {
        out.counter(name, help, value)?;
    }
    let level = |number: usize| [("level", number.to_string())];
    let tables = stats.levels.iter().enumerate().map(|(n, at)| (level(n), at.tables));
    out.gauges("level_tables", "Tables, by level", tables)?;
    let bytes = stats.levels.iter().enumerate().map(|(n, at)| (level(n), at.bytes));
    out.gauges("level_bytes", "Bytes of tables, by level", bytes)
}
