//! The `/metrics` endpoint: counters of the event loops and the engine, in the OpenMetrics text
//! format of Prometheus.

mod list;
mod plain;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelValue, EncodeMetric, MetricEncoder, text,
};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use protocol::{Clock, HintLedger, NodeId, escape};

use self::list::Metric;
pub(crate) use self::plain::to_plain_text;
use crate::counters::latency;
use crate::counters::{Count, Counters, PeerCounts, REFUSED, RequestKind, STATUSES};
use crate::node::Node;
use crate::operations::access::has_lost_vote;
use crate::operations::stderr;
use crate::operations::usage;
use crate::quotas::counts::CountedQuota;
use crate::tokens::lookup as access;
use crate::transport::Tls;

const NANOS: f64 = 1e9;
const MICROS: f64 = 1e6;

/// The first doubling of the latency with its own reported bucket, up to 16.384 µs.
const FIRST_DOUBLING: usize = 4;

/// The last doubling of the latency with its own reported bucket, up to 8.6 s.
const LAST_DOUBLING: usize = 23;

type NoLabels = [(&'static str, &'static str); 0];

/// Returns all metrics of `node` as text.
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
        let mut out = MetricsWriter(&mut encoder);
        requests(&mut out, &self.0)?;
        access(&mut out, &self.0)?;
        quotas(&mut out, &self.0)?;
        server(&mut out, &self.0)?;
        peers(&mut out, &self.0)?;
        hints(&mut out, &self.0)?;
        let stats = self.0.db.stats();
        machine(&mut out, &self.0, &stats)?;
        store(&mut out, &stats)?;
        store_times(&mut out, &stats)
    }
}

/// Writes metrics one after the other.
struct MetricsWriter<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl MetricsWriter<'_, '_> {
    fn begin(&mut self, metric: &Metric) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(metric.name, metric.help, None, metric.kind)
    }

    fn counter(&mut self, metric: &Metric, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.begin(metric)?)
    }

    fn seconds(&mut self, metric: &Metric, nanos: u64) -> fmt::Result {
        ConstCounter::new(nanos as f64 / NANOS).encode(self.begin(metric)?)
    }

    fn gauge(&mut self, metric: &Metric, value: u64) -> fmt::Result {
        ConstGauge::new(gauge_value(value)).encode(self.begin(metric)?)
    }

    /// Writes a gauge with one label: one integer for each value of the label.
    fn gauges<L: EncodeLabelValue>(
        &mut self,
        metric: &Metric,
        values: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family(
            metric,
            values.map(|(label, value)| (label, ConstGauge::new(gauge_value(value)))),
        )
    }

    /// Writes a gauge with one label: one decimal number for each value of the label.
    fn decimal_gauges<L: EncodeLabelValue>(
        &mut self,
        metric: &Metric,
        values: impl Iterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family(metric, values.map(|(label, value)| (label, ConstGauge::new(value))))
    }

    fn family<L: EncodeLabelValue, V: EncodeMetric>(
        &mut self,
        metric: &Metric,
        values: impl Iterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.begin(metric)?;
        for (label, value) in values {
            let labels = [(metric.labels[0], label)];
            value.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn sum(node: &Node, count: impl Fn(&Counters) -> &Count) -> u64 {
    node.counters.iter().map(|counters| count(counters).get()).sum()
}

/// Returns the value of a gauge, which the format limits to 63 bits.
fn gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn requests(out: &mut MetricsWriter<'_, '_>, node: &Node) -> fmt::Result {
    let mut metric = out.begin(&list::REQUESTS)?;
    let names = list::REQUESTS.labels;
    for (kind, route, method) in RequestKind::ALL {
        for (place, status) in STATUSES.iter().enumerate() {
            let count = sum(node, |counters| &counters.requests[kind as usize][place]);
            if count > 0 {
                let status = if *status == 0 { "other".to_owned() } else { status.to_string() };
                let labels = [(names[0], route), (names[1], method), (names[2], status.as_str())];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    let mut metric = out.begin(&list::REQUEST_DURATION)?;
    let names = list::REQUEST_DURATION.labels;
    for (kind, route, method) in RequestKind::ALL {
        let buckets = latency_buckets(node, kind);
        let count = buckets.iter().map(|(_, count)| count).sum();
        let nanos = sum(node, |counters| &counters.latency[kind as usize].nanos);
        let labels = [(names[0], route), (names[1], method)];
        metric.encode_family(&labels)?.encode_histogram::<NoLabels>(
            nanos as f64 / NANOS,
            count,
            &buckets,
            None,
        )?;
    }
    Ok(())
}

/// Merges the counted buckets into the reported buckets: (upper bound in seconds, number of
/// requests).
fn latency_buckets(node: &Node, kind: RequestKind) -> Vec<(f64, u64)> {
    let count = |bucket| sum(node, |counters| &counters.latency[kind as usize].buckets[bucket]);
    let mut from = 0;
    let mut reported = Vec::with_capacity(LAST_DOUBLING - FIRST_DOUBLING + 2);
    for doubling in FIRST_DOUBLING..=LAST_DOUBLING {
        let to = doubling * latency::PER_DOUBLING + 1;
        let bound = (latency::FIRST_NANOS << doubling) as f64 / NANOS;
        reported.push((bound, (from..to).map(count).sum()));
        from = to;
    }
    reported.push((f64::INFINITY, (from..latency::BUCKETS).map(count).sum()));
    reported
}

fn access(out: &mut MetricsWriter<'_, '_>, node: &Node) -> fmt::Result {
    let mut metric = out.begin(&list::REQUESTS_REFUSED)?;
    for (place, reason) in REFUSED.iter().enumerate() {
        let count = sum(node, |counters| &counters.refused[place]);
        let labels = [(list::REQUESTS_REFUSED.labels[0], *reason)];
        ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
    }
    let (all, now_ms) = (node.access.all(&node.shared), access::now_ms(node));
    let living = || all.tokens.iter().filter(|token| !token.has_expired(now_ms));
    out.gauge(&list::TOKENS, living().count() as u64)?;
    let next = living().map(|token| token.expires_ms).filter(|at| *at > 0).min();
    out.gauge(&list::TOKEN_EXPIRY, next.map_or(0, |at| (at - now_ms).div_ceil(1000)))
}

fn quotas(out: &mut MetricsWriter<'_, '_>, node: &Node) -> fmt::Result {
    let all = node.quotas.all();
    let name = |counted: &CountedQuota| escape(&counted.quota.prefix);
    let limits = |limit: fn(&CountedQuota) -> Option<u64>| {
        all.iter().filter_map(move |counted| Some((name(counted), limit(counted)?)))
    };
    out.gauges(&list::QUOTA_STORED, limits(CountedQuota::stored_bytes))?;
    out.gauges(&list::QUOTA_SOFT, limits(|of| Some(of.quota.soft).filter(|soft| *soft > 0)))?;
    out.gauges(&list::QUOTA_HARD, limits(|of| Some(of.quota.hard).filter(|hard| *hard > 0)))?;
    let mut refused = out.begin(&list::QUOTA_REFUSED)?;
    for counted in all.iter() {
        let labels = [(list::QUOTA_REFUSED.labels[0], name(counted))];
        ConstCounter::new(counted.refused_writes()).encode(refused.encode_family(&labels)?)?;
    }
    Ok(())
}

fn server(out: &mut MetricsWriter<'_, '_>, node: &Node) -> fmt::Result {
    let connections = node.counters.iter().enumerate().map(|(number, counters)| {
        (number.to_string(), counters.connections.load(Ordering::Relaxed) as u64)
    });
    out.gauges(&list::CONNECTIONS, connections)?;
    let (gets, pages) = node.reads.count_waiting();
    let queues = [("reads", gets as u64), ("pages", pages as u64)];
    out.gauges(&list::QUEUE_DEPTH, queues.into_iter())?;
    let accepting = &node.accepting;
    out.counter(&list::CONNECTIONS_ACCEPTED, accepting.accepted.load(Ordering::Relaxed))?;
    out.counter(&list::ACCEPT_FAILURES, accepting.failed.load(Ordering::Relaxed))?;
    out.counter(&list::LOG_LINES_DROPPED, stderr::dropped_lines())?;
    type Of = fn(&Counters) -> &Count;
    let counters: [(&Metric, Of); 10] = [
        (&list::CONNECTIONS_TIMED_OUT, |counters| &counters.timed_out),
        (&list::CONNECTIONS_EVICTED, |counters| &counters.evicted),
        (&list::TRANSFERS_ABORTED, |counters| &counters.transfers_aborted),
        (&list::CONNECTIONS_HTTP2, |counters| &counters.http2),
        (&list::CONNECTIONS_MALFORMED, |counters| &counters.malformed),
        (&list::TLS_HANDSHAKES, |counters| &counters.tls_handshakes),
        (&list::TLS_HANDSHAKES_FAILED, |counters| &counters.tls_failed),
        (&list::WRITE_BATCHES, |counters| &counters.batches),
        (&list::WRITES_BATCHED, |counters| &counters.batched_writes),
        (&list::RANGES, |counters| &counters.ranges),
    ];
    for (metric, of) in counters {
        out.counter(metric, sum(node, of))?;
    }
    let tls = node.tls.as_deref();
    out.gauge(&list::TLS_CERTIFICATE_EXPIRY, tls.map_or(0, Tls::expires))?;
    out.counter(&list::TLS_RELOADS, tls.map_or(0, Tls::reloads))?;
    out.counter(&list::SECRET_RELOADS, node.secrets.replacements())?;
    out.gauge(&list::TLS_RELOAD_FAILED, tls.is_some_and(Tls::has_bad_files).into())?;
    out.seconds(&list::WRITE_SLOWDOWN, sum(node, |counters| &counters.slowdown_nanos))?;
    out.gauge(&list::WRITE_WAITING_BYTES, sum(node, |counters| &counters.waiting_bytes))?;
    out.gauge(&list::REQUEST_BODY_BYTES, node.limits.bodies.reserved_bytes() as u64)?;
    out.gauge(&list::RESPONSE_BODY_BYTES, node.answers.reserved_bytes() as u64)?;
    out.gauge(&list::PEER_REQUEST_BYTES, node.facts.reserved_for_requests())?;
    out.gauge(&list::PEER_RESPONSE_BYTES, node.lent.reserved_bytes() as u64)?;
    out.gauge(&list::RANGE_PAGE_BYTES, node.pages.reserved_bytes() as u64)
}

fn hints(out: &mut MetricsWriter<'_, '_>, node: &Node) -> fmt::Result {
    let (view, ledger) = (node.shared.view(), &node.shared.transfer.hints);
    let nodes = node.others();
    let others = || nodes.iter().copied();
    let by_peer = |of: fn(&HintLedger, NodeId) -> u64| {
        others().map(move |id| (node.shared.name_of(id), of(ledger, id)))
    };
    out.gauges(&list::HINTS, by_peer(|ledger, id| ledger.waiting_hints(id).0))?;
    out.gauges(&list::HINT_BYTES, by_peer(|ledger, id| ledger.waiting_hints(id).1))?;
    out.gauges(&list::HINTS_AHEAD_OF_CLOCK, by_peer(HintLedger::future_hints))?;
    let missed = view.ids().map(|id| {
        let name = node.shared.name_of(id);
        (name, u64::from(node.shared.transfer.missed.partitions(id)))
    });
    out.gauges(&list::PARTITIONS_TO_REPAIR, missed)?;
    let may_have_forgotten = node.shared.forgotten_idempotency().is_some();
    out.gauge(&list::FORGOTTEN_IDEMPOTENCY_KEYS, u64::from(may_have_forgotten))?;
    let rounds = node.shared.repair.rounds.status();
    let last = rounds.last.as_ref();
    out.counter(&list::REPAIR_ROUNDS, rounds.ended)?;
    out.gauge(&list::REPAIR_RUNNING, u64::from(rounds.current.is_some()))?;
    out.gauge(&list::REPAIR_EQUAL, u64::from(last.is_some_and(|last| last.is_equal())))?;
    let watermark = Clock::micros(node.shared.repair.proofs.watermark());
    out.gauge(&list::REPAIR_PROVEN_TIME, watermark / 1_000_000)?;
    out.gauge(&list::REPAIR_FULL_TIME, rounds.last_full.unwrap_or(0) / 1_000_000)?;
    out.counter(&list::REPAIRED_KEYS, rounds.repaired)?;
    out.counter(&list::HEALED_RANGES, rounds.healed)?;
    let unhealed = last.map_or(0, |last| last.damaged.saturating_sub(last.healed));
    out.gauge(&list::UNHEALED_RANGES, unhealed)?;
    out.counter(&list::HINTS_DELIVERED, others().map(|id| ledger.delivered_count(id)).sum())?;
    out.counter(&list::HINTS_DROPPED, others().map(|id| ledger.dropped_count(id)).sum())
}

fn peers(out: &mut MetricsWriter<'_, '_>, node: &Node) -> fmt::Result {
    type Of = fn(&PeerCounts) -> &Count;
    let all: [(&Metric, Of); 11] = [
        (&list::PEER_ENVELOPES_SENT, |peers| &peers.envelopes_sent),
        (&list::PEER_ENVELOPES_RECEIVED, |peers| &peers.envelopes_received),
        (&list::PEER_MESSAGES_SENT, |peers| &peers.messages_sent),
        (&list::PEER_MESSAGES_RECEIVED, |peers| &peers.messages_received),
        (&list::PEER_BYTES_SENT, |peers| &peers.bytes_sent),
        (&list::PEER_BYTES_RECEIVED, |peers| &peers.bytes_received),
        (&list::PEER_SEND_CALLS, |peers| &peers.writes),
        (&list::PEER_MALFORMED, |peers| &peers.malformed),
        (&list::PEER_HANDSHAKES_REFUSED, |peers| &peers.refused),
        (&list::PEER_HANDSHAKES_UNFINISHED, |peers| &peers.unfinished),
        (&list::PEER_CONNECTIONS_OPENED, |peers| &peers.connected),
    ];
    for (metric, of) in all {
        out.counter(metric, sum(node, |counters| of(&counters.peers)))?;
    }
    let nodes = node.others();
    let others = || nodes.iter().copied();
    let loops = |id| (node.shared.name_of(id), u64::from(node.facts.observations(id).links()));
    out.gauges(&list::PEER_CONNECTED_LOOPS, others().map(loops))?;
    let skew = |id| (node.shared.name_of(id), node.facts.skew_micros(id) as f64 / MICROS);
    out.decimal_gauges(&list::PEER_CLOCK_SKEW, others().map(skew))
}

fn machine(out: &mut MetricsWriter<'_, '_>, node: &Node, stats: &lsm::Stats) -> fmt::Result {
    out.gauge(&list::LAYOUT_EPOCH, node.shared.membership.views.epoch())?;
    out.gauge(&list::COUNCIL_VOTE, u64::from(node.shared.membership.layouts.has_seat()))?;
    out.gauge(&list::COUNCIL_VOTE_LOST, u64::from(has_lost_vote(node)))?;
    out.gauge(&list::UPTIME, node.started.elapsed().as_secs())?;
    out.seconds(&list::CPU, usage::cpu_time().as_nanos() as u64)?;
    out.gauge(&list::RESIDENT_BYTES, usage::resident_bytes())?;
    out.gauge(&list::DISK_BYTES, usage::disk_bytes(node, stats))?;
    out.gauge(&list::DISK_FULL, u64::from(node.db.lacks_space()))?;
    let parts = usage::memory_parts(node, stats);
    out.gauges(&list::MEMORY_USED_BYTES, parts.iter().map(|part| (part.name, part.used)))?;
    out.gauges(&list::MEMORY_BUDGET_BYTES, parts.iter().map(|part| (part.name, part.budget)))
}

fn store_times(out: &mut MetricsWriter<'_, '_>, stats: &lsm::Stats) -> fmt::Result {
    out.seconds(&list::FLUSH, stats.flush_nanos)?;
    out.seconds(&list::COMPACTION, stats.compaction_nanos)?;
    let mut metric = out.begin(&list::COMMIT_DURATION)?;
    let bound = |bucket| match bucket {
        n if n + 1 == lsm::COMMIT_BUCKETS => f64::INFINITY,
        n => (lsm::FIRST_COMMIT_NANOS << n) as f64 / NANOS,
    };
    let buckets: Vec<_> =
        stats.commit_times.iter().enumerate().map(|(n, count)| (bound(n), *count)).collect();
    let count = stats.commit_times.iter().sum();
    metric.encode_histogram::<NoLabels>(stats.commit_nanos as f64 / NANOS, count, &buckets, None)
}

fn store(out: &mut MetricsWriter<'_, '_>, stats: &lsm::Stats) -> fmt::Result {
    for (metric, value) in [
        (&list::KEYS, stats.keys),
        (&list::DAMAGED_TABLES, stats.damaged_tables),
        (&list::PURGEABLE_BYTES, stats.purgeable_bytes),
        (&list::MEMTABLE_BYTES, stats.memtable_bytes),
        (&list::IMMUTABLE_BYTES, stats.immutable_bytes),
        (&list::IMMUTABLE_MEMTABLES, stats.immutable_memtables),
        (&list::WAL_SEGMENTS, stats.wal_segments),
        (&list::COMMIT_QUEUE_BATCHES, stats.commit_queue_batches),
        (&list::COMMIT_QUEUE_BYTES, stats.commit_queue_bytes),
        (&list::COMPACTION_DEBT_BYTES, stats.compaction_debt_bytes),
        (&list::CACHE_BYTES, stats.cache_bytes),
        (&list::STORE_FAILED, u64::from(stats.failed.is_some())),
    ] {
        out.gauge(metric, value)?;
    }
    for (metric, value) in [
        (&list::WAL_WRITES, stats.wal_writes),
        (&list::WAL_OPERATIONS, stats.wal_operations),
        (&list::WAL_BYTES, stats.wal_bytes),
        (&list::WAL_SYNCS, stats.wal_syncs),
        (&list::FLUSHES, stats.flushes),
        (&list::FLUSH_BYTES, stats.flush_bytes),
        (&list::COMPACTIONS, stats.compactions),
        (&list::COMPACTION_READ_BYTES, stats.compaction_read_bytes),
        (&list::COMPACTION_WRITE_BYTES, stats.compaction_write_bytes),
        (&list::CACHE_HITS, stats.cache_hits),
        (&list::CACHE_MISSES, stats.cache_misses),
        (&list::BLOOM_SKIPS, stats.bloom_skips),
        (&list::BLOOM_FALSE_POSITIVES, stats.bloom_false_positives),
        (&list::SLOWED_WRITES, stats.slowed_writes),
        (&list::REFUSED_WRITES, stats.refused_writes),
        (&list::VERSION_CONFLICTS, stats.version_conflicts),
    ] {
        out.counter(metric, value)?;
    }
    let tables = stats.levels.iter().enumerate().map(|(n, level)| (n.to_string(), level.tables));
    out.gauges(&list::LEVEL_TABLES, tables)?;
    let bytes = stats.levels.iter().enumerate().map(|(n, level)| (n.to_string(), level.bytes));
    out.gauges(&list::LEVEL_BYTES, bytes)
}
