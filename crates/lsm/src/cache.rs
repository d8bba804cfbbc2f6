//! The block cache: uncompressed blocks of all tables, shared by all readers, limited in bytes.
//!
//! A block is identified by its table and its offset there. Table ids are never reused, so blocks
//! of a removed table are never found again, and are evicted like other unused blocks.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

/// Longest cached block in bytes. A longer block holds a single large record; a few such blocks
/// would evict thousands of blocks that hold dozens of records each.
const MAX_CACHED_LEN: usize = 64 * 1024;

/// A block longer than the cache's capacity divided by this number is not cached, so that even a
/// tiny cache has space for several blocks.
const MIN_CACHED_BLOCKS: u64 = 16;

/// Bytes of a cache entry in addition to its block: key, list links, hash slot, the block's handle
/// and reference count, and the allocator's rounding.
const ENTRY_OVERHEAD: u64 = 160;

/// Mean length of a block in bytes, for estimating the number of entries.
const MEAN_BLOCK_LEN: u64 = 4 * 1024;

/// Smallest capacity of a shard, in bytes: each shard can hold several blocks of maximum length.
const MIN_SHARD_BYTES: u64 = 1 << 20;

/// Maximum number of shards: enough to make contention on one lock rare.
const MAX_SHARDS: u64 = 64;

/// Number of counter sets, each in a cache line of its own. The block's offset chooses the set, so
/// that readers of different blocks rarely contend for a cache line.
const STRIPES: usize = 16;

type Blocks = Cache<BlockKey, Bytes, BlockWeight, BlockHash, DefaultLifecycle<BlockKey, Bytes>>;

/// The block cache of a store; see the module.
pub(crate) struct BlockCache {
    /// `None` = the cache is off.
    blocks: Option<Blocks>,
    max_len: usize,
    stripes: [Stripe; STRIPES],
}

#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
    bloom_skips: AtomicU64,
    bloom_false_positives: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct BlockKey {
    table: u64,
    offset: u64,
}

impl std::hash::Hash for BlockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.table);
        state.write_u64(self.offset);
    }
}

#[derive(Clone)]
struct BlockWeight;

impl Weighter<BlockKey, Bytes> for BlockWeight {
    fn weight(&self, _key: &BlockKey, block: &Bytes) -> u64 {
        block.len() as u64 + ENTRY_OVERHEAD
    }
}

/// The hash function of block keys. Table ids and offsets come from this process, so no attacker
/// can choose colliding keys; one folded multiplication per word is enough.
#[derive(Clone, Default)]
struct BlockHash;

struct FoldedMultiply(u64);

impl BuildHasher for BlockHash {
    type Hasher = FoldedMultiply;
    fn build_hasher(&self) -> FoldedMultiply {
        FoldedMultiply(0x243f_6a88_85a3_08d3)
    }
}

impl Hasher for FoldedMultiply {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

impl BlockCache {
    /// Creates a cache of at most `capacity` bytes; 0 = off.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity as u64;
        let shards = (capacity / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let blocks = (capacity > 0).then(|| {
            let options = OptionsBuilder::new()
                .weight_capacity(capacity)
                .estimated_items_capacity((capacity / MEAN_BLOCK_LEN).max(1) as usize)
                .shards(shards as usize)
                .build()
                .expect("both capacities are set");
            Cache::with_options(options, BlockWeight, BlockHash, DefaultLifecycle::default())
        });
        let max_len = MAX_CACHED_LEN.min((capacity / MIN_CACHED_BLOCKS) as usize);
        Self { blocks, max_len, stripes: Default::default() }
    }

    /// Returns the block of `table` at `offset`, or `None` if it is not cached. Counts a hit or a
    /// miss.
    pub(crate) fn get(&self, table: u64, offset: u64) -> Option<Bytes> {
        let found = self.blocks.as_ref().and_then(|b| b.get(&BlockKey { table, offset }));
        let stripe = &self.stripes[(offset >> 12) as usize % STRIPES];
        let counter = if found.is_some() { &stripe.hits } else { &stripe.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Returns true if a block of this stored length may be short enough for the cache.
    pub(crate) fn may_cache(&self, stored: usize) -> bool {
        stored <= self.max_len
    }

    /// Caches a block, unless the block is too long or the cache is off.
    pub(crate) fn insert(&self, table: u64, offset: u64, block: &Bytes) {
        if let Some(blocks) = &self.blocks
            && block.len() <= self.max_len
        {
            blocks.insert(BlockKey { table, offset }, block.clone());
        }
    }

    /// Counts a table that a read skipped because of the bloom filter at `offset`.
    pub(crate) fn count_bloom_skip(&self, offset: u64) {
        Self::count(&self.stripe(offset).bloom_skips);
    }

    /// Counts a read that passed the bloom filter at `offset` but did not find its key.
    pub(crate) fn count_bloom_false_positive(&self, offset: u64) {
        Self::count(&self.stripe(offset).bloom_false_positives);
    }

    fn stripe(&self, offset: u64) -> &Stripe {
        &self.stripes[(offset >> 12) as usize % STRIPES]
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes in use, including the overhead of each entry.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, |blocks| blocks.weight())
    }

    /// Number of cache hits since the start.
    pub(crate) fn hits(&self) -> u64 {
        self.sum(|stripe| &stripe.hits)
    }

    /// Number of cache misses since the start.
    pub(crate) fn misses(&self) -> u64 {
        self.sum(|stripe| &stripe.misses)
    }

    /// Number of table reads that a bloom filter avoided, since the start.
    pub(crate) fn bloom_skips(&self) -> u64 {
        self.sum(|stripe| &stripe.bloom_skips)
    }

    /// Number of table reads that passed a bloom filter without finding the key, since the start.
    pub(crate) fn bloom_false_positives(&self) -> u64 {
        self.sum(|stripe| &stripe.bloom_false_positives)
    }

    fn sum(&self, counter: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.stripes.iter().map(|stripe| counter(stripe).load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_within_its_capacity_and_counts_hits() {
        let cache = BlockCache::new(100_000);
        for offset in 0..1000 {
            cache.insert(1, offset, &Bytes::from(vec![0; 4000]));
            assert!(cache.bytes() <= 100_000, "{} bytes", cache.bytes());
        }
        assert!(cache.bytes() > 50_000, "only {} bytes are used", cache.bytes());
        let found = (0..1000).filter(|offset| cache.get(1, *offset).is_some()).count() as u64;
        assert!(found > 10);
        assert_eq!((cache.hits(), cache.misses()), (found, 1000 - found));
    }

    #[test]
    fn equal_offsets_of_two_tables_name_different_blocks() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(1, 8, &Bytes::from_static(b"one"));
        cache.insert(2, 8, &Bytes::from_static(b"two"));
        assert_eq!(cache.get(1, 8).unwrap(), b"one"[..]);
        assert_eq!(cache.get(2, 8).unwrap(), b"two"[..]);
        assert_eq!(cache.get(8, 1), None);
    }

    #[test]
    fn long_blocks_are_not_cached_and_capacity_zero_caches_nothing() {
        let cache = BlockCache::new(64 << 20);
        cache.insert(1, 0, &Bytes::from(vec![0; MAX_CACHED_LEN + 1]));
        assert_eq!(cache.get(1, 0), None);
        let off = BlockCache::new(0);
        off.insert(1, 0, &Bytes::from_static(b"block"));
        assert_eq!((off.get(1, 0), off.bytes()), (None, 0));
    }
}
