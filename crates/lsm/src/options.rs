//! Every knob of the engine, with its unit, range and reason where it is declared.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::purge::PurgeRule;

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// After `fdatasync`: survives a power cut.
    Always,
    /// After `write`; synced this often. A killed process loses nothing, a power cut at most this.
    Interval(Duration),
    /// After `write`; synced when the operating system likes.
    Never,
}

/// How a store is opened. `Options::default()` suits a node with 512 MiB.
#[derive(Clone)]
pub struct Options {
    /// Identity of a store that is created; ignored when one exists. Any random number.
    pub new_store_id: u64,
    /// log2 of the number of trees of a store that is created, 0–8; ignored when one exists.
    pub new_tree_bits: u8,
    /// When a write is acknowledged.
    pub sync: SyncMode,
    /// Bytes of one memtable before it is rotated, 64 KiB–1 GiB. Larger: fewer, bigger flushes.
    pub memtable_bytes: usize,
    /// Bytes of the block cache, shared by all trees: data, index and filter blocks, uncompressed.
    pub cache_bytes: usize,
    /// Bytes of one WAL segment, 64 KiB–1 GiB. Allocated ahead of its use.
    pub segment_bytes: usize,
    /// Target bytes of an uncompressed data block, 512 B–64 KiB.
    pub block_bytes: usize,
    /// Bits of bloom filter for each key, 0–20; 10 gives about 1 % false positives.
    pub bloom_bits: u8,
    /// Whether blocks are compressed with LZ4.
    pub compress: bool,
    /// Bytes after which a compaction begins a new table.
    pub table_bytes: u64,
    /// Tables in level 0 of a tree that start a compaction.
    pub level0_tables: usize,
    /// Target bytes of level 1; each level below is `level_ratio` times larger.
    pub level1_bytes: u64,
    /// Growth from level to level.
    pub level_ratio: u64,
    /// Which tombstones and expired values may go. Its owner may go on raising watermarks.
    pub purge: Arc<PurgeRule>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            new_store_id: 0,
            new_tree_bits: 0,
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
