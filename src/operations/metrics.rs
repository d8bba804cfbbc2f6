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
    let help = "Time from a request's head to its answer, by route and method";
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
    out.gauges("connections", "Connections open, by event loop", connections)?;
    let accepted = node.accepting.accepted.load(Ordering::Relaxed);
    out.counter("connections_accepted", "Connections accepted", accepted)?;
    let failed = node.accepting.failed.load(Ordering::Relaxed);
    out.counter("accept_failures", "Failures to accept a connection", failed)?;
    let dropped = stderr::dropped();
    out.counter("log_lines_dropped", "Log lines that stderr did not take", dropped)?;
    let reaped = sum(node, |counters| &counters.reaped);
    out.counter("connections_reaped", "Connections given up as too slow", reaped)?;
    let evicted = sum(node, |counters| &counters.evicted);
    let help = "Idle connections closed because others waited for a place";
    out.counter("connections_evicted", help, evicted)?;
    let gave_way = sum(node, |counters| &counters.gave_way);
    let help = "Slow uploads and unread answers that were ended because others waited for memory";
    out.counter("gave_way", help, gave_way)?;
    let malformed = sum(node, |counters| &counters.malformed);
    out.counter(
        "connections_malformed",
        "Connections closed because of malformed HTTP",
        malformed,
    )?;
    let (gets, pages) = node.reads.waiting();
    let queues = [([("queue", "reads")], gets as u64), ([("queue", "pages")], pages as u64)];
    out.gauges("queue_depth", "Jobs waiting for a read thread", queues.into_iter())?;
    let waiting = sum(node, |counters| &counters.waiting_bytes);
    out.gauge("write_waiting_bytes", "Bytes of writes waiting for the log", waiting)?;
    let batches = sum(node, |counters| &counters.batches);
    out.counter("write_batches", "Batches of writes handed to the log", batches)?;
    let writes = sum(node, |counters| &counters.batched_writes);
    out.counter("writes_batched", "Writes in those batches", writes)?;
    let held_back = sum(node, |counters| &counters.slowdown_nanos);
    let help = "Time for which batches were held back because the store is behind";
    out.seconds("write_slowdown_seconds", help, held_back)?;
    let ranges = sum(node, |counters| &counters.ranges);
    out.counter("ranges", "Range reads begun", ranges)?;
    let bodies = node.bodies.held() as u64;
    out.gauge("body_bytes", "Bytes held for long values from clients", bodies)?;
    let answers = node.answers.held() as u64;
    out.gauge("answer_bytes", "Bytes held for long values for clients", answers)?;
    let (received, lent) = (node.facts.received_bytes(), node.lent.held() as u64);
    out.gauge("received_bytes", "Bytes held for long requests of other nodes", received)?;
    out.gauge("lent_bytes", "Bytes held for long values read for other nodes", lent)?;
    let pages = node.pages.held() as u64;
    out.gauge("page_bytes", "Bytes held for pages of range reads", pages)
}

fn hints(out: &mut Out<'_, '_>, node: &Node) -> fmt::Result {
    let (view, ledger) = (node.shared.view(), &node.shared.hints);
    let topology = &view.topology;
    let others = || topology.ids().filter(|id| *id != node.shared.own);
    let by_peer = |of: fn(&HintLedger, NodeId) -> u64| {
        others().map(move |id| ([("peer", topology.member(id).name.clone())], of(ledger, id)))
    };
    out.gauges(
        "hints",
        "Writes that a node missed and that are kept for it",
        by_peer(|ledger, id| ledger.waiting(id).0),
    )?;
    out.gauges("hint_bytes", "Their bytes", by_peer(|ledger, id| ledger.waiting(id).1))?;
    out.gauges(
        "hints_of_the_future",
        "Those of them that are stamped too far ahead to be delivered yet",
        by_peer(HintLedger::of_the_future),
    )?;
    let missed = topology.ids().map(|id| {
        let name = topology.member(id).name.clone();
        ([("node", name)], u64::from(node.shared.missed.partitions(id)))
    });
    let help = "Partitions of which a node may lack writes that no hint brings it";
    out.gauges("partitions_to_repair", help, missed)?;
    let delivered = others().map(|id| ledger.taken(id)).sum();
    out.counter("hints_delivered", "Hints that nodes took", delivered)?;
    let dropped = others().map(|id| ledger.dropped(id)).sum();
    out.counter("hints_dropped", "Missed writes of which no hint was kept", dropped)
}

fn peers(out: &mut Out<'_, '_>, node: &Node) -> fmt::Result {
    type Of = fn(&PeerCounts) -> &Count;
    let all: [(&str, &str, Of); 10] = [
        ("peer_envelopes_sent", "Envelopes sent to other nodes", |peers| &peers.envelopes_sent),
        ("peer_envelopes_received", "Envelopes from other nodes", |peers| {
            &peers.envelopes_received
        }),
        ("peer_messages_sent", "Messages to other nodes", |peers| &peers.messages_sent),
        ("peer_messages_received", "Messages from other nodes", |peers| &peers.messages_received),
        ("peer_bytes_sent", "Bytes sent to other nodes", |peers| &peers.bytes_sent),
        ("peer_bytes_received", "Bytes from other nodes", |peers| &peers.bytes_received),
        ("peer_writes", "System calls that sent to other nodes", |peers| &peers.writes),
        ("peer_malformed", "Peers' connections closed for what they sent", |peers| {
            &peers.malformed
        }),
        ("peer_refused_handshakes", "Handshakes that came to nothing", |peers| &peers.refused),
        ("peer_connections_made", "Connections made to other nodes", |peers| &peers.connected),
    ];
    for (name, help, of) in all {
        out.counter(name, help, sum(node, |counters| of(&counters.peers)))?;
    }
    let view = node.shared.view();
    let topology = &view.topology;
    let others = topology.ids().filter(|id| *id != node.shared.own);
    let lines = others.map(|id| {
        let up = u64::from(node.facts.seen(id).lines());
        ([("peer", topology.member(id).name.clone())], up)
    });
    out.gauges("peer_lines", "Event loops that are connected to a node, by node", lines)
}

fn machine(out: &mut Out<'_, '_>, node: &Node, stats: &lsm::Stats) -> fmt::Result {
    let uptime = node.started.elapsed().as_secs();
    out.gauge("uptime_seconds", "Seconds since the node began to recover", uptime)?;
    let cpu = usage::cpu_time().as_nanos() as u64;
    out.seconds("cpu_seconds", "Processor time of all threads", cpu)?;
    out.gauge("resident_bytes", "Resident memory", usage::resident_bytes())?;
    let disk = usage::disk_bytes(node, stats);
    out.gauge("disk_bytes", "Bytes of files in the data directory", disk)?;
    let parts = usage::parts(node, stats);
    let label = |part: &usage::Part| [("part", part.name)];
    let used = parts.iter().map(|part| (label(part), part.used));
    out.gauges("memory_used_bytes", "Of each part of --memory, bytes taken", used)?;
    let budgets = parts.iter().map(|part| (label(part), part.budget));
    out.gauges("memory_budget_bytes", "Of each part of --memory, bytes that may be", budgets)
}

fn store_times(out: &mut Out<'_, '_>, stats: &lsm::Stats) -> fmt::Result {
    out.seconds("flush_seconds", "Time spent flushing", stats.flush_nanos)?;
    out.seconds("compaction_seconds", "Time spent compacting", stats.compaction_nanos)?;
    let help = "Time that a group of batches took: log, sync under always, memtables";
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
        ("keys", "Keys that have a value, an estimate", stats.keys),
        ("memtable_bytes", "Bytes in active memtables", stats.memtable_bytes),
        ("immutable_bytes", "Bytes in memtables waiting for a flush", stats.immutable_bytes),
        ("immutable_memtables", "Memtables waiting for a flush", stats.immutable_memtables),
        ("wal_segments", "WAL segments on disk", stats.wal_segments),
        ("commit_queue_batches", "Batches waiting for the log", stats.commit_queue_batches),
        ("commit_queue_bytes", "Bytes waiting for the log", stats.commit_queue_bytes),
        ("compaction_debt_bytes", "Bytes compactions have to move", stats.compaction_debt_bytes),
        ("cache_bytes", "Bytes in the block cache", stats.cache_bytes),
        ("store_failed", "1 = no writes are taken any more", u64::from(stats.failed.is_some())),
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
        ("compactions", "Compactions done", stats.compactions),
        ("compaction_read_bytes", "Bytes read by compactions", stats.compaction_read_bytes),
        ("compaction_write_bytes", "Bytes written by compactions", stats.compaction_write_bytes),
        ("cache_hits", "Block cache hits", stats.cache_hits),
        ("cache_misses", "Block cache misses", stats.cache_misses),
        ("bloom_skips", "Tables a bloom filter let a read skip", stats.bloom_skips),
        (
            "bloom_false_positives",
            "Tables read in vain, which a filter did not let a read skip",
            stats.bloom_false_positives,
        ),
        ("slowed_writes", "Writes slowed down for backlog", stats.slowed_writes),
        ("refused_writes", "Writes refused for backlog", stats.refused_writes),
        ("version_conflicts", "Equal versions with other content", stats.version_conflicts),
    ] {
        out.counter(name, help, value)?;
    }
    let level = |number: usize| [("level", number.to_string())];
    let tables = stats.levels.iter().enumerate().map(|(n, at)| (level(n), at.tables));
    out.gauges("level_tables", "Tables, by level", tables)?;
    let bytes = stats.levels.iter().enumerate().map(|(n, at)| (level(n), at.bytes));
    out.gauges("level_bytes", "Bytes of tables, by level", bytes)
}
