//! Counters and gauges of a store, read in one go.

/// Times of commits double from this many nanoseconds on (16.384 µs) …
pub const FIRST_COMMIT_NANOS: u64 = 1 << 14;

/// … up to 8.6 s; the last bucket holds the rest.
pub const COMMIT_BUCKETS: usize = 21;

/// One level of all trees together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Number of tables.
    pub tables: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

/// What the store has done since it was opened, and how it stands. Counters only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Gauge: users' keys that have a value. Exact until the first flush (a close is one), then
    /// an estimate: what was written again counts twice until it is compacted, and records of the
    /// other spaces count too.
    pub keys: u64,
    /// Gauge: bytes in active memtables.
    pub memtable_bytes: u64,
    /// Gauge: bytes in rotated memtables that are not flushed yet.
    pub immutable_bytes: u64,
    /// Gauge: rotated memtables waiting for, or in, a flush.
    pub immutable_memtables: u64,
    /// Gauge: WAL segments on disk.
    pub wal_segments: u64,
    /// Gauge: batches waiting to be committed.
    pub commit_queue_batches: u64,
    /// Gauge: bytes waiting to be committed.
    pub commit_queue_bytes: u64,
    /// Counter: groups of batches written to the WAL in one `write`.
    pub wal_writes: u64,
    /// Counter: operations (puts, deletes) in them.
    pub wal_operations: u64,
    /// Counter: bytes written to the WAL.
    pub wal_bytes: u64,
    /// Counter: syncs of the WAL.
    pub wal_syncs: u64,
    /// Counter: groups by how long each took (log, sync under `always`, memtables), in buckets
    /// that double.
    pub commit_times: [u64; COMMIT_BUCKETS],
    /// Counter: the sum of those times, in nanoseconds.
    pub commit_nanos: u64,
    /// Counter: flushed memtables.
    pub flushes: u64,
    /// Counter: bytes of tables written by flushes.
    pub flush_bytes: u64,
    /// Counter: nanoseconds spent flushing, with those of a flush under way.
    pub flush_nanos: u64,
    /// Counter: compactions done.
    pub compactions: u64,
    /// Counter: bytes of tables read by compactions.
    pub compaction_read_bytes: u64,
    /// Counter: bytes of tables written by compactions.
    pub compaction_write_bytes: u64,
    /// Counter: nanoseconds spent compacting, with those of a compaction under way.
    pub compaction_nanos: u64,
    /// Gauge: bytes that compactions still have to move to bring every level to its target.
    pub compaction_debt_bytes: u64,
    /// Gauge: about so many bytes of tables, uncompressed, are tombstones and expired values that
    /// may be purged; what they hide comes on top.
    pub purgeable_bytes: u64,
    /// Gauge: tables in which a compaction found damage since the store was opened, and which are
    /// not compacted until that is healed.
    pub damaged_tables: u64,
    /// Gauge: one entry a level, from 0.
    pub levels: Vec<LevelStats>,
    /// Counter: block cache hits.
    pub cache_hits: u64,
    /// Counter: block cache misses.
    pub cache_misses: u64,
    /// Gauge: bytes in the block cache.
    pub cache_bytes: u64,
    /// Counter: tables that a bloom filter let a read skip.
    pub bloom_skips: u64,
    /// Counter: tables that a filter did not let a read skip, and that did not have the key.
    pub bloom_false_positives: u64,
    /// Counter: writes that were slowed down.
    pub slowed_writes: u64,
    /// Counter: writes that were refused for backlog.
    pub refused_writes: u64,
    /// Counter: two records of one key with one version and different content were seen.
    pub version_conflicts: u64,
    /// The failure after which no writes are taken; `None` = healthy.
    pub failed: Option<String>,
}
