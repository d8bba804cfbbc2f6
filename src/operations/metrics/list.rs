//! The list of all metrics: name, type, labels, help. The descriptions in `/metrics` and the table
//! in `docs/reference/metrics.md` are generated from this list.
//!
//! A new metric needs an entry here, and its value in [`super`] (a metric of an event loop also
//! needs a `Count`). Then `UPDATE_DOCS=1 cargo test -p kvorum the_manual` writes the table.

use prometheus_client::metrics::MetricType;

/// The description of a metric.
#[derive(Debug)]
pub(super) struct Metric {
    /// Name without the prefix `kvorum_` and, for a counter, without the suffix `_total`.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    /// Names of the labels. Each written number has a value for each label.
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            pub(super) const $constant: Metric = Metric {
                name: $name,
                kind: MetricType::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// All metrics, in the order of the table.
        #[cfg(test)]
        pub(super) const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    REQUESTS: Counter "requests" ["route", "method", "status"]
        "Requests answered, by route, method and status";
    REQUEST_DURATION: Histogram "request_duration_seconds" ["route", "method"]
        "Time from a request's header to its response, by route and method; includes waiting for \
         the client's body";
    REQUESTS_REFUSED: Counter "requests_refused" ["reason"]
        "Requests refused because of their token: reason=\"no-token\" (401: the token is missing, \
         unknown, revoked or expired), \"scope\" (403) or \"rate\" (429)";
    TOKENS: Gauge "tokens" [] "Tokens that this node knows and that have not expired";
    TOKEN_EXPIRY: Gauge "token_expiry_seconds" []
        "Seconds until the next token expires; 0 if no token expires";
    QUOTA_STORED: Gauge "quota_stored_bytes" ["prefix"]
        "Estimate of the bytes of keys and values stored under a prefix with a quota; each key is \
         counted once, not once per replica";
    QUOTA_SOFT: Gauge "quota_soft_bytes" ["prefix"]
        "Soft limits of quotas, by prefix; quotas without a soft limit are left out";
    QUOTA_HARD: Gauge "quota_hard_bytes" ["prefix"]
        "Hard limits of quotas, by prefix; quotas without a hard limit are left out";
    QUOTA_REFUSED: Counter "quota_refused_writes" ["prefix"]
        "Writes refused because a hard limit was reached";
    CONNECTIONS: Gauge "connections" ["loop"] "Open connections, by event loop";
    CONNECTIONS_ACCEPTED: Counter "connections_accepted" [] "Accepted connections";
    ACCEPT_FAILURES: Counter "accept_failures" []
        "Failed attempts to accept a connection, usually for lack of file descriptors";
    CONNECTIONS_TIMED_OUT: Counter "connections_timed_out" []
        "Connections closed because the client was too slow; it must send a header within 12 s and \
         64 KiB of a body within 10 s, and read 64 KiB of a response within 13 s";
    CONNECTIONS_EVICTED: Counter "connections_evicted" []
        "Idle connections closed to make room for new ones";
    CONNECTIONS_HTTP2: Counter "connections_http2" [] "Connections that spoke HTTP/2";
    CONNECTIONS_MALFORMED: Counter "connections_malformed" []
        "Connections closed because of malformed HTTP";
    TLS_HANDSHAKES: Counter "tls_handshakes" []
        "TLS handshakes completed with clients and other nodes";
    TLS_HANDSHAKES_FAILED: Counter "tls_handshakes_failed" []
        "Failed TLS handshakes: the client does not support TLS 1.3, its certificate is unknown or \
         missing, the handshake exceeds 20 KiB, or the other side aborted it";
    TLS_CERTIFICATE_EXPIRY: Gauge "tls_certificate_expiry_timestamp_seconds" []
        "Time when the first of the TLS certificates in use expires (of the node and its \
         intermediate CAs), in seconds since 1970; 0 without TLS";
    TLS_RELOADS: Counter "tls_reloads" []
        "Number of times that a changed TLS certificate was loaded";
    TLS_RELOAD_FAILED: Gauge "tls_reload_failed" []
        "1 while the node uses the last valid certificate, because the present TLS files are not \
         valid or no client would accept them; see the log";
    SECRET_RELOADS: Counter "cluster_secret_reloads" []
        "Number of times that changed files with the cluster's secrets were loaded";
    TRANSFERS_ABORTED: Counter "transfers_aborted" []
        "Slow uploads and unread responses aborted to free memory for waiting requests";
    LOG_LINES_DROPPED: Counter "log_lines_dropped" []
        "Log lines dropped because stderr was blocked";
    QUEUE_DEPTH: Gauge "queue_depth" ["queue"]
        "Jobs that wait for a read thread: queue=\"reads\" (beyond --queue, reads get 503) or \
         \"pages\" (of ranges)";
    WRITE_WAITING_BYTES: Gauge "write_waiting_bytes" [] "Bytes of writes waiting for the log";
    WRITE_BATCHES: Counter "write_batches" [] "Write batches passed to the log";
    WRITES_BATCHED: Counter "writes_batched" []
        "Writes in write_batches; divided by write_batches, the number of writes that share a turn \
         of an event loop";
    WRITE_SLOWDOWN: Counter "write_slowdown_seconds" []
        "Time that write batches were delayed by flush or compaction backlog";
    SLOWED_WRITES: Counter "slowed_writes" []
        "Writes delayed because of flush or compaction backlog";
    REFUSED_WRITES: Counter "refused_writes" []
        "Writes refused because of flush or compaction backlog";
    RANGES: Counter "ranges" [] "Range reads started";
    REQUEST_BODY_BYTES: Gauge "request_body_bytes" []
        "Memory for large values received from clients, in bytes";
    RESPONSE_BODY_BYTES: Gauge "response_body_bytes" []
        "Memory for large values sent to clients, in bytes";
    PEER_REQUEST_BYTES: Gauge "peer_request_bytes" []
        "Memory for large requests of other nodes, in bytes";
    PEER_RESPONSE_BYTES: Gauge "peer_response_bytes" []
        "Memory for large values sent to other nodes, in bytes";
    RANGE_PAGE_BYTES: Gauge "range_page_bytes" [] "Memory for pages of range reads, in bytes";
    PEER_CONNECTED_LOOPS: Gauge "peer_connected_loops" ["peer"]
        "Event loops with a connection to the peer; 0 means that it is unreachable";
    PEER_CONNECTIONS_OPENED: Counter "peer_connections_opened" []
        "Connections opened to other nodes; a rising number means that connections are lost";
    PEER_HANDSHAKES_REFUSED: Counter "peer_handshakes_refused" []
        "Refused handshakes with other nodes: different secret, topology, cluster or name, or an \
         unknown peer; see the log";
    PEER_HANDSHAKES_UNFINISHED: Counter "peer_handshakes_unfinished" []
        "Handshakes of incoming peer connections that ended without a verdict: the other end \
         closed the connection or took longer than 1 s. The cause is a pause or an overload of \
         either side, or another program that connects";
    PEER_CLOCK_SKEW: Gauge "peer_clock_skew_seconds" ["peer"]
        "Seconds by which the peer's clock is ahead of this node's clock; negative if the peer's \
         clock is behind";
    PEER_MALFORMED: Counter "peer_malformed" []
        "Peer connections closed because of malformed data; the cause is a faulty network card, or \
         another program that connects";
    PEER_MESSAGES_SENT: Counter "peer_messages_sent" [] "Messages sent to other nodes";
    PEER_MESSAGES_RECEIVED: Counter "peer_messages_received" []
        "Messages received from other nodes";
    PEER_ENVELOPES_SENT: Counter "peer_envelopes_sent" []
        "Envelopes sent to other nodes; peer_messages_sent divided by this is the number of \
         messages that share an envelope";
    PEER_ENVELOPES_RECEIVED: Counter "peer_envelopes_received" []
        "Envelopes received from other nodes";
    PEER_SEND_CALLS: Counter "peer_send_calls" [] "System calls that send data to other nodes";
    PEER_BYTES_SENT: Counter "peer_bytes_sent" [] "Bytes sent to other nodes";
    PEER_BYTES_RECEIVED: Counter "peer_bytes_received" [] "Bytes received from other nodes";
    HINTS: Gauge "hints" ["peer"]
        "Writes that a peer missed and that this node keeps for it, at most 1 GiB for all peers \
         together";
    HINT_BYTES: Gauge "hint_bytes" ["peer"] "Size of the hints kept for a peer, in bytes";
    HINTS_AHEAD_OF_CLOCK: Gauge "hints_ahead_of_clock" ["peer"]
        "Hints that cannot be delivered yet because their timestamps are too far ahead; the cause \
         is a clock that was wrong";
    HINTS_DELIVERED: Counter "hints_delivered" [] "Hints delivered to peers";
    HINTS_DROPPED: Counter "hints_dropped" []
        "Missed writes for which no hint could be kept, because the limit was reached or the store \
         was overloaded";
    PARTITIONS_TO_REPAIR: Gauge "partitions_to_repair" ["node"]
        "Partitions, of 65536, in which a node may lack writes without hints; other nodes stream \
         these partitions to it. A value that stays high means that a node is down";
    FORGOTTEN_IDEMPOTENCY_KEYS: Gauge "forgotten_idempotency_keys" []
        "1 while this node may have forgotten writes with an idempotency key, because its disk was \
         lost or keys moved to it: while two replicas of a key have the value 1, first writes of \
         the key with an idempotency key are answered 409";
    REPAIR_ROUNDS: Counter "repair_rounds" []
        "Repair rounds that this node drove and that have ended";
    REPAIR_RUNNING: Gauge "repair_running" [] "1 while this node drives a repair round";
    REPAIR_EQUAL: Gauge "repair_equal" []
        "1 if all replicas were equal at the end of the last repair round that this node drove";
    REPAIR_PROVEN_TIME: Gauge "repair_proven_timestamp_seconds" []
        "Time in seconds since 1970 up to which all replicas are proven equal, so tombstones up to \
         this time may be purged; 0 = no proof yet";
    REPAIR_FULL_TIME: Gauge "repair_last_full_timestamp_seconds" []
        "Time when the last full repair round ended that this node drove and in which all nodes \
         took part, in seconds since 1970; 0 = there was none";
    REPAIRED_KEYS: Counter "repaired_keys" []
        "Keys made equal by repair rounds that this node drove";
    HEALED_RANGES: Counter "healed_ranges" []
        "Damaged ranges of keys, on any node, repaired by repair rounds that this node drove";
    UNHEALED_RANGES: Gauge "unhealed_ranges" []
        "Damaged ranges of keys, on any node, that the last repair round driven by this node found \
         but could not repair";
    DAMAGED_TABLES: Gauge "damaged_tables" []
        "Tables in which a read or a compaction of this node found damage since its start; a full \
         repair round repairs them; without other replicas, restore a backup";
    PURGEABLE_BYTES: Gauge "purgeable_bytes" []
        "Estimated bytes of tombstones and expired values that compaction may drop for good";
    LAYOUT_EPOCH: Gauge "layout_epoch" []
        "Epoch of the layout that this node uses, from 1 on; the same on all nodes within a second \
         after a change";
    COUNCIL_VOTE: Gauge "council_vote" []
        "1 if this node has a vote on the next change of the members";
    COUNCIL_VOTE_LOST: Gauge "council_vote_lost" []
        "1 if this node is in the council but has lost its vote, because its disk was replaced or \
         its directory copied";
    UPTIME: Gauge "uptime_seconds" [] "Time since the node started recovery, in seconds";
    CPU: Counter "cpu_seconds" [] "CPU time of all threads";
    RESIDENT_BYTES: Gauge "resident_bytes" [] "Resident memory, in bytes";
    DISK_BYTES: Gauge "disk_bytes" [] "Size of the files in the data directory, in bytes";
    DISK_FULL: Gauge "disk_full" []
        "1 if the last write to disk failed for lack of space: client writes are refused, or will \
         be soon";
    MEMORY_USED_BYTES: Gauge "memory_used_bytes" ["part"]
        "Memory in use, by part of --memory, in bytes";
    MEMORY_BUDGET_BYTES: Gauge "memory_budget_bytes" ["part"]
        "Memory limit, by part of --memory, in bytes";
    KEYS: Gauge "keys" []
        "Keys that have a value: exact until the first flush or stop, then an estimate";
    MEMTABLE_BYTES: Gauge "memtable_bytes" [] "Bytes in active memtables";
    IMMUTABLE_BYTES: Gauge "immutable_bytes" [] "Bytes in memtables waiting to be flushed";
    IMMUTABLE_MEMTABLES: Gauge "immutable_memtables" []
        "Memtables waiting to be flushed, at most three; writes are delayed from the second on";
    WAL_SEGMENTS: Gauge "wal_segments" [] "WAL segments on disk";
    WAL_WRITES: Counter "wal_writes" [] "Groups of batches written to the WAL";
    WAL_OPERATIONS: Counter "wal_operations" [] "Puts and deletes written to the WAL";
    WAL_BYTES: Counter "wal_bytes" [] "Bytes written to the WAL";
    WAL_SYNCS: Counter "wal_syncs" [] "Syncs of the WAL";
    COMMIT_DURATION: Histogram "commit_duration_seconds" []
        "Time to commit a group of batches: write to the log, sync (with --sync always), and \
         insertion into memtables";
    COMMIT_QUEUE_BATCHES: Gauge "commit_queue_batches" [] "Batches waiting for the log";
    COMMIT_QUEUE_BYTES: Gauge "commit_queue_bytes" [] "Bytes waiting for the log";
    FLUSHES: Counter "flushes" [] "Memtables flushed";
    FLUSH_BYTES: Counter "flush_bytes" [] "Bytes of tables written by flushes";
    FLUSH: Counter "flush_seconds" []
        "Time spent flushing, in seconds; its rate is the utilization of the thread kv-flush, 1 = \
         busy all the time";
    COMPACTIONS: Counter "compactions" [] "Completed compactions";
    COMPACTION_READ_BYTES: Counter "compaction_read_bytes" [] "Bytes read by compactions";
    COMPACTION_WRITE_BYTES: Counter "compaction_write_bytes" []
        "Bytes written by compactions; write amplification is the sum of wal_bytes, flush_bytes \
         and this metric, divided by wal_bytes";
    COMPACTION: Counter "compaction_seconds" []
        "Time spent compacting, in seconds; its rate is the utilization of the thread kv-compact, \
         1 = busy all the time";
    COMPACTION_DEBT_BYTES: Gauge "compaction_debt_bytes" []
        "Bytes that compactions still have to move";
    LEVEL_TABLES: Gauge "level_tables" ["level"] "Tables, by level";
    LEVEL_BYTES: Gauge "level_bytes" ["level"] "Bytes of tables, by level";
    CACHE_BYTES: Gauge "cache_bytes" [] "Bytes in the block cache";
    CACHE_HITS: Counter "cache_hits" [] "Block cache hits";
    CACHE_MISSES: Counter "cache_misses" [] "Block cache misses";
    BLOOM_SKIPS: Counter "bloom_skips" [] "Tables that a read skipped because of a bloom filter";
    BLOOM_FALSE_POSITIVES: Counter "bloom_false_positives" []
        "Tables that a read searched in vain because of a false positive of a bloom filter; by \
         design about 1 % of the sum of this metric and bloom_skips";
    VERSION_CONFLICTS: Counter "version_conflicts" []
        "Records with the same version and different content: a clock or a disk is wrong, see the \
         log";
    STORE_FAILED: Gauge "store_failed" [] "1 if the store has failed and accepts no writes";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::operations::manual;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn the_manual_lists_every_metric() {
        let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
        for Metric { name, kind, labels, help } in ALL {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            table +=
                &format!("| `{name}` | {} | {} | {help} |\n", kind.as_str(), labels.join(", "));
        }
        manual::holds("metrics", &table);
    }
}
