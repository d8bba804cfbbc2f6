//! The engine, without threads or clocks: all work happens within the call that requests it, so the
//! same code runs under [`crate::Db`]'s threads and, step by step, under a simulator.
//!
//! ```text
//!  commit ─▶ log ─▶ (sync) ─▶ memtable ─▶ visible        one caller at a time, in log order
//!                               │ full: rotate
//!  flush_one ◀──────────────────┘ oldest first ─▶ table in level 0 ─▶ manifest ─▶ log retired
//!  compact_one: tables ─▶ merged tables a level deeper ─▶ manifest ─▶ old tables removed
//!  get, snapshot, scan: any thread, any time, never wait for the above
//! ```
//!
//! Invariants:
//! * A record becomes visible only when it is as durable as the sync mode requires, and a batch
//!   becomes visible as a whole.
//! * The record with the greatest version, then ballot, wins, whatever the order of arrival. A
//!   record in a memtable or table is marked *late* unless its version is greater than all versions
//!   *below* it; a read stops at the first hit that is not late. A record of a conditional write
//!   has the version of the record that it continues, so it is late as soon as that record lies
//!   below.
//! * Memtables of a tree are flushed in the order of their rotation. The manifest names a table
//!   only after the table's content and name are durable. The table's inputs, and the log that it
//!   replaces, are removed only after the manifest's edit is durable.
//! * After any failure, even in the background, other than a full disk or a lack of file
//!   descriptors, the engine writes nothing until the store is reopened.

mod background;
mod discard;
mod leftovers;
mod open;
mod read;
mod remove;
#[cfg(test)]
mod tests;
mod tree;
mod verified;
mod whole;
mod write;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use background::Background;
pub use background::Work;
pub use discard::{Discarded, KeyRange};
pub use open::STORE_FORMAT;
pub use read::{Held, Look, Lookup, Newer, Scan, Snapshot};
pub use remove::Above;
use tree::Tree;
pub use verified::{Damaged, Progress, Verified, VerifiedScan};
pub use whole::Whole;
pub use write::Committed;
use write::Writer;

use crate::batch::Space;
use crate::cache::BlockCache;
use crate::compaction::{Choice, Targets, choose};
use crate::disk::Disk;
use crate::error::Error;
use crate::manifest::Manifest;
use crate::options::{Options, SyncMode};
use crate::purge::PurgeRule;
use crate::stats::{LevelStats, Stats};
use crate::table::Table;
use crate::wal::Prepared;

/// State of the flush and compaction backlog.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Backlog {
    /// Writes need no delay.
    Clear,
    /// Writes should slow down: 0.0 = hardly, 1.0 = nearly at the limit.
    Behind(f64),
    /// Writes must be refused for now.
    Full,
}

/// Maximum number of rotated memtables of a tree that wait for their flush. With the active one
/// this limits the memory of memtables.
pub const MAX_IMMUTABLES: usize = 3;
/// Number of level-0 tables, in multiples of the compaction trigger, at which writes slow down …
const LEVEL0_SLOW: usize = 3;
/// … and at which they are refused: a read may have to search every level-0 table.
const LEVEL0_FULL: usize = 8;
/// Compaction debt, in multiples of level 1's target bytes, at which writes slow down …
const DEBT_SLOW: u64 = 16;
/// … and at which they are refused, which limits space amplification.
const DEBT_FULL: u64 = 64;

/// The engine's state and its synchronous operations.
pub struct Engine {
    disk: Arc<dyn Disk>,
    options: Options,
    store_id: u64,
    cache: Arc<BlockCache>,
    trees: Vec<Tree>,
    writer: Mutex<Writer>,
    /// The prepared next log segment, if any.
    prepared: Mutex<Option<Prepared>>,
    next_segment: AtomicU64,
    manifest: Mutex<Manifest>,
    /// Number of the manifest's last edit, readable without waiting for an edit in progress.
    manifest_edits: AtomicU64,
    next_table: AtomicU64,
    /// Highest visible sequence.
    visible: AtomicU64,
    /// True once the store is open. Until then a failure is only returned to the opener.
    opened: AtomicBool,
    failed: OnceLock<Arc<str>>,
    background: Background,
    /// Replaced tables without readers, whose files can be deleted.
    obsolete: Arc<Mutex<Vec<u64>>>,
    /// Backlog in thousandths, updated by [`Engine::measure_backlog`]; [`BACKLOG_FULL`] = full.
    backlog: AtomicU64,
    counters: Counters,
}

const BACKLOG_FULL: u64 = 1000;

#[derive(Default)]
struct Counters {
    wal_writes: AtomicU64,
    wal_operations: AtomicU64,
    wal_bytes: AtomicU64,
    wal_syncs: AtomicU64,
    wal_segments: AtomicU64,
    flushes: AtomicU64,
    flush_bytes: AtomicU64,
    compactions: AtomicU64,
    compaction_read_bytes: AtomicU64,
    compaction_write_bytes: AtomicU64,
    version_conflicts: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Advice for a failure at the process's file size limit, which was lowered below the position of
/// the next write to the log.
const OVER_LIMIT: &str = ", for that is past this process's limit of file sizes (ulimit -f, \
    LimitFSIZE=): raise the limit";

impl Engine {
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The rule that decides which tombstones and expired values may be purged. The owner may raise
    /// the rule's watermarks at any time.
    pub fn purge_rule(&self) -> &Arc<PurgeRule> {
        &self.options.purge
    }

    /// Fails if the store rejects writes.
    pub fn healthy(&self) -> Result<(), Error> {
        match self.failed.get() {
            Some(cause) => Err(Error::Failed { cause: Arc::clone(cause), begun: false }),
            None => Ok(()),
        }
    }

    /// Makes the store reject writes from now on, because the state of the disk is unknown.
    fn fail(&self, error: &Error) -> Error {
        if !self.opened.load(Ordering::Acquire) {
            return error.clone();
        }
        let cause = self.failed.get_or_init(|| {
            tracing::error!(%error, "the store accepts no more writes; reads continue");
            // The process that reopens the store may have the same limit.
            let limit = if error.is_over_file_limit() { OVER_LIMIT } else { "" };
            format!("{error}{limit}").into()
        });
        Error::Failed { cause: Arc::clone(cause), begun: false }
    }

    /// [`Engine::fail`] for a write that may be partly in the log.
    fn fail_begun(&self, error: &Error) -> Error {
        match self.fail(error) {
            Error::Failed { cause, .. } => Error::Failed { cause, begun: true },
            other => other,
        }
    }

    /// State of the flush and compaction backlog.
    pub fn backlog(&self) -> Backlog {
        match self.backlog.load(Ordering::Relaxed) {
            0 => Backlog::Clear,
            BACKLOG_FULL.. => Backlog::Full,
            thousandths => Backlog::Behind(thousandths as f64 / BACKLOG_FULL as f64),
        }
    }

    /// Updates the backlog. Must be called after every change of the number of memtables or tables.
    fn measure_backlog(&self) {
        let part = |value: f64, slow: f64, full: f64| (value - slow) / (full - slow);
        let trigger = self.options.level0_tables;
        let worst = self.trees.iter().map(|tree| {
            let state = tree.load();
            let debt = self.targets().debt(&tree::shapes(&state.levels, |_| 0)) as f64;
            let level1 = self.options.level1_bytes as f64;
            let waiting = state.immutables.len() as f64;
            let level0 = state.levels[0].len() as f64;
            part(waiting, 1.0, MAX_IMMUTABLES as f64)
                .max(part(level0, (trigger * LEVEL0_SLOW) as f64, (trigger * LEVEL0_FULL) as f64))
                .max(part(debt, level1 * DEBT_SLOW as f64, level1 * DEBT_FULL as f64))
        });
        let worst = worst.fold(0.0, f64::max).clamp(0.0, 1.0);
        self.backlog.store((worst * BACKLOG_FULL as f64) as u64, Ordering::Relaxed);
    }

    /// Returns true if there is nothing left to flush or compact.
    pub fn is_idle(&self) -> bool {
        let reached = self.options.purge.reached();
        self.trees.iter().all(|tree| {
            let state = tree.load();
            let shapes = tree::shapes(&state.levels, |table| table.purgeable(reached).0);
            let choice = self.unless_damaged(choose(&shapes, &self.targets()));
            state.immutables.is_empty() && choice == Choice::Nothing
        })
    }

    fn targets(&self) -> Targets {
        Targets {
            level0_tables: self.options.level0_tables,
            level1_bytes: self.options.level1_bytes,
            ratio: self.options.level_ratio,
        }
    }

    fn synced_per_group(&self) -> bool {
        self.options.sync == SyncMode::Always
    }

    /// Index of the tree for a key with this hash.
    fn tree_of(&self, hash: u64) -> usize {
        tree_of(self.trees.len(), hash)
    }

    /// Counters and gauges, without those that [`crate::Db`] adds.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let mut stats = Stats {
            wal_segments: read(&counters.wal_segments),
            wal_writes: read(&counters.wal_writes),
            wal_operations: read(&counters.wal_operations),
            wal_bytes: read(&counters.wal_bytes),
            wal_syncs: read(&counters.wal_syncs),
            flushes: read(&counters.flushes),
            flush_bytes: read(&counters.flush_bytes),
            compactions: read(&counters.compactions),
            compaction_read_bytes: read(&counters.compaction_read_bytes),
            compaction_write_bytes: read(&counters.compaction_write_bytes),
            version_conflicts: read(&counters.version_conflicts),
            damaged_tables: tree::lock(&self.background.damaged).len() as u64,
            cache_hits: self.cache.hits(),
            cache_misses: self.cache.misses(),
            cache_bytes: self.cache.bytes(),
            bloom_skips: self.cache.bloom_skips(),
            bloom_false_positives: self.cache.bloom_false_positives(),
            failed: self.failed.get().map(|cause| cause.to_string()),
            ..Stats::default()
        };
        let (mut keys, reached) = (0, self.options.purge.reached());
        for tree in &self.trees {
            let state = tree.load();
            keys += state.memtables().map(|memtable| memtable.live()).sum::<i64>();
            // A tombstone in a table most likely hides a value in another table.
            let tables = state.levels.iter().flatten().map(|table| table.meta());
            keys +=
                tables.map(|meta| meta.entries as i64 - 2 * meta.tombstones as i64).sum::<i64>();
            stats.memtable_bytes += state.active.used() as u64;
            stats.immutable_memtables += state.immutables.len() as u64;
            stats.immutable_bytes += state.immutables.iter().map(|m| m.used() as u64).sum::<u64>();
            let shapes = tree::shapes(&state.levels, |_| 0);
            stats.compaction_debt_bytes += self.targets().debt(&shapes);
            let purgeable = |table: &Arc<Table>| table.purgeable(reached).1;
            stats.purgeable_bytes += state.levels.iter().flatten().map(purgeable).sum::<u64>();
            stats.levels.resize(state.levels.len(), LevelStats::default());
            for (sum, level) in stats.levels.iter_mut().zip(state.levels.iter()) {
                sum.tables += level.len() as u64;
                sum.bytes += level.iter().map(|table| table.meta().bytes).sum::<u64>();
            }
        }
        stats.keys = keys.max(0) as u64;
        stats
    }
}

/// Hash of a user key: its top bits select the partition, and the bloom filters use all of it.
fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Index of the tree, among `trees`, for a key: the top bits of its partition select it.
fn tree_of(trees: usize, hash: u64) -> usize {
    match trees.trailing_zeros() {
        0 => 0,
        bits => (hash >> (64 - bits)) as usize,
    }
}

/// An internal key: the space, then the user key. Short keys need no allocation.
struct InternalKey {
    short: [u8; InternalKey::SHORT],
    long: Vec<u8>,
    len: usize,
}

impl InternalKey {
    const SHORT: usize = 128;

    fn new(space: Space, key: &[u8]) -> Self {
        let len = key.len() + 1;
        let mut made = Self { short: [0; Self::SHORT], long: Vec::new(), len };
        if len <= Self::SHORT {
            made.short[0] = space as u8;
            made.short[1..len].copy_from_slice(key);
        } else {
            made.long.reserve_exact(len);
            made.long.push(space as u8);
            made.long.extend_from_slice(key);
        }
        made
    }

    fn bytes(&self) -> &[u8] {
        if self.len <= Self::SHORT { &self.short[..self.len] } else { &self.long }
    }
}
