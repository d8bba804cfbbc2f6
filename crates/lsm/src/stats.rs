//! Counters and gauges of a store, in one snapshot.

/// Upper bound in nanoseconds of the first commit-time bucket (16.384 µs). The bound of each
/// further bucket is twice the previous bound.
pub const FIRST_COMMIT_NANOS: u64 = 1 << 14;

/// Number of commit-time buckets, up to 8.6 s; the last bucket holds all longer times.
pub const COMMIT_BUCKETS: usize = 21;

/// Totals for one level across all trees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Number of tables.
    pub tables: u64,
    /// Bytes of the table files.
    pub bytes: u64,
}

/// Activity since the store was opened, and its current state. Counters only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Gauge: number of user keys that have a value. Exact until the first flush (closing the store
    /// flushes); an estimate after it, until all tables are compacted: a key that is overwritten
    /// later counts twice, and a deletion of a key that had no value counts as one less.
    pub keys: u64,
    /// Gauge: bytes in active memtables.
    pub memtable_bytes: u64,
    /// Gauge: bytes in rotated memtables that are not yet flushed.
    pub immutable_bytes: u64,
    /// Gauge: rotated memtables that wait for a flush or are being flushed.
    pub immutable_memtables: u64,
    /// Gauge: WAL segments on disk.
    pub wal_segments: u64,
    /// Gauge: batches that wait for their commit.
    pub commit_queue_batches: u64,
    /// Gauge: bytes of the batches that wait for their commit.
    pub commit_queue_bytes: u64,
    /// Counter: groups of batches written to the WAL in one `write`.
    pub wal_writes: u64,
    /// Counter: operations (puts, deletes) written to the WAL.
    pub wal_operations: u64,
    /// Counter: bytes written to the WAL.
    pub wal_bytes: u64,
    /// Counter: syncs of the WAL.
    pub wal_syncs: u64,
    /// Counter: histogram of commit times per group (log, sync under `always`, memtables), in
    /// doubling buckets.
    pub commit_times: [u64; COMMIT_BUCKETS],
    /// Counter: sum of the commit times, in nanoseconds.
    pub commit_nanos: u64,
    /// Counter: flushed memtables.
    pub flushes: u64,
    /// Counter: bytes of tables written by flushes.
    pub flush_bytes: u64,
    /// Counter: nanoseconds spent in flushes, including a flush in progress.
    pub flush_nanos: u64,
    /// Counter: completed compactions.
    pub compactions: u64,
    /// Counter: bytes of tables read by compactions.
    pub compaction_read_bytes: u64,
    /// Counter: bytes of tables written by compactions.
    pub compaction_write_bytes: u64,
    /// Counter: nanoseconds spent in compactions, including a compaction in progress.
    pub compaction_nanos: u64,
    /// Gauge: bytes that compactions must still move to bring every level to its target.
    pub compaction_debt_bytes: u64,
    /// Gauge: estimated uncompressed bytes of tombstones and expired values that may be purged now.
    /// The records that they hide are not counted.
    pub purgeable_bytes: u64,
    /// Gauge: tables in which a read or a compaction has found damage since the store was opened.
    /// Compactions that find damage skip the table until it is repaired.
    pub damaged_tables: u64,
    /// Gauge: totals of each level, from level 0 on.
    pub levels: Vec<LevelStats>,
    /// Counter: block cache hits.
    pub cache_hits: u64,
    /// Counter: block cache misses.
    pub cache_misses: u64,
    /// Gauge: bytes in the block cache.
    pub cache_bytes: u64,
    /// Counter: tables that a read skipped because of a bloom filter.
    pub bloom_skips: u64,
    /// Counter: table reads that passed a bloom filter but did not find the key.
    pub bloom_false_positives: u64,
    /// Counter: delayed writes.
    pub slowed_writes: u64,
    /// Counter: writes refused because of the backlog.
    pub refused_writes: u64,
    /// Counter: pairs of records with the same key, version and ballot but different content.
    pub version_conflicts: u64,
    /// The failure that makes the store reject writes; `None` = healthy.
    pub failed: Option<String>,
}
