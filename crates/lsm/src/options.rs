//! Tuning options of the engine, each with its unit, range and default.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::format_range::{FormatRange, STORE_FORMATS};
use crate::purge::PurgeRule;

/// The point at which a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// After `fdatasync`: the write survives a power cut.
    Always,
    /// After `write`, with a sync at this interval. A killed process loses nothing; a power cut
    /// loses at most one interval.
    Interval(Duration),
    /// After `write`; the operating system decides when to sync.
    Never,
}

/// Options for opening a store. `Options::default()` suits a node with 512 MiB.
#[derive(Clone)]
pub struct Options {
    /// Identity of a newly created store, any random number; ignored for an existing one.
    pub new_store_id: u64,
    /// log2 of the number of trees in a newly created store, 0–7; ignored for an existing one.
    pub new_tree_bits: u8,
    /// Store formats that this process opens and writes; a newly created store has the first.
    /// Always [`STORE_FORMATS`], except in tests of an upgrade.
    pub formats: FormatRange,
    /// The point at which a write is acknowledged.
    pub sync: SyncMode,
    /// Bytes at which a memtable is rotated, 64 KiB–1 GiB. Larger values mean fewer, bigger
    /// flushes.
    pub memtable_bytes: usize,
    /// Bytes of the block cache, which all trees share; 0 = no cache. It caches uncompressed data,
    /// index and filter blocks.
    pub cache_bytes: usize,
    /// Bytes of one WAL segment, 64 KiB–1 GiB, allocated before use.
    pub segment_bytes: usize,
    /// Target bytes of an uncompressed data block, 512 B–64 KiB.
    pub block_bytes: usize,
    /// Bits of bloom filter per key, 0–20; 10 gives about 1 % false positives.
    pub bloom_bits: u8,
    /// True = data blocks are compressed with LZ4.
    pub compress: bool,
    /// Length of an output table in bytes at which a compaction starts a new table.
    pub table_bytes: u64,
    /// Number of level-0 tables of a tree that triggers a compaction.
    pub level0_tables: usize,
    /// Target bytes of level 1; each deeper level is `level_ratio` times larger.
    pub level1_bytes: u64,
    /// Growth factor from one level to the next.
    pub level_ratio: u64,
    /// The rule that decides which tombstones and expired values compactions may purge. The owner
    /// may raise the rule's watermark while the store is open.
    pub purge: Arc<PurgeRule>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            new_store_id: 0,
            new_tree_bits: 0,
            formats: STORE_FORMATS,
            sync: SyncMode::Always,
            memtable_bytes: 32 << 20,
            cache_bytes: 256 << 20,
            segment_bytes: 32 << 20,
            block_bytes: 4 << 10,
            bloom_bits: 10,
            compress: true,
            table_bytes: 32 << 20,
            level0_tables: 4,
            level1_bytes: 128 << 20,
            level_ratio: 10,
            purge: Arc::new(PurgeRule::never()),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("sync", &self.sync)
            .field("memtable_bytes", &self.memtable_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("segment_bytes", &self.segment_bytes)
            .finish_non_exhaustive()
    }
}
