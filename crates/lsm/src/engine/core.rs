//! The state that all parts of the engine share: options, files, manifest, trees, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::backlog::BacklogMeter;
use super::files::Files;
use super::health::Health;
use super::shared_manifest::SharedManifest;
use super::tree::shapes;
use super::trees::Trees;
use crate::compaction::LevelTargets;
use crate::error::Error;
use crate::manifest::Edit;
use crate::options::{Options, SyncMode};
use crate::stats::{LevelStats, Stats};
use crate::table::Table;

/// The state that all parts of the engine share. Each part borrows the core for a call.
pub(super) struct Core {
    pub(super) options: Options,
    pub(super) files: Files,
    pub(super) manifest: SharedManifest,
    pub(super) trees: Trees,
    pub(super) backlog: BacklogMeter,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) wal_writes: AtomicU64,
    pub(super) wal_operations: AtomicU64,
    pub(super) wal_bytes: AtomicU64,
    pub(super) wal_syncs: AtomicU64,
    pub(super) wal_segments: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) flush_bytes: AtomicU64,
    pub(super) compactions: AtomicU64,
    pub(super) compaction_read_bytes: AtomicU64,
    pub(super) compaction_write_bytes: AtomicU64,
    pub(super) version_conflicts: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Core {
    pub(super) fn health(&self) -> &Health {
        &self.files.health
    }

    /// Applies edits to the manifest durably, all or none.
    pub(super) fn edit_manifest(&self, edits: &[Edit]) -> Result<(), Error> {
        self.manifest.edit(&self.files, edits)
    }

    /// Measures the backlog. Call it after every change of the number of memtables or tables.
    pub(super) fn measure_backlog(&self) {
        self.backlog.measure(&self.trees, &self.targets());
    }

    pub(super) fn targets(&self) -> LevelTargets {
        LevelTargets {
            level0_tables: self.options.level0_tables,
            level1_bytes: self.options.level1_bytes,
            ratio: self.options.level_ratio,
        }
    }

    pub(super) fn syncs_each_group(&self) -> bool {
        self.options.sync == SyncMode::Always
    }

    pub(super) fn report_conflicts(&self, conflicts: u64) {
        if conflicts > 0 {
            add(&self.counters.version_conflicts, conflicts);
            tracing::warn!(conflicts, "found records with the same version and different content");
        }
    }

    /// Counters and gauges, without those that [`crate::Db`] adds.
    pub(super) fn stats(&self) -> Stats {
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
            cache_hits: self.files.cache.hits(),
            cache_misses: self.files.cache.misses(),
            cache_bytes: self.files.cache.bytes(),
            bloom_skips: self.files.cache.bloom_skips(),
            bloom_false_positives: self.files.cache.bloom_false_positives(),
            failed: self.health().cause(),
            damaged_tables: self.trees.count_damaged(),
            ..Stats::default()
        };
        let purge_limit = self.options.purge.purge_limit();
        for tree in self.trees.iter() {
            let state = tree.load();
            stats.keys += state.keys();
            stats.memtable_bytes += state.active.used_bytes() as u64;
            stats.immutable_memtables += state.immutables.len() as u64;
            stats.immutable_bytes +=
                state.immutables.iter().map(|m| m.used_bytes() as u64).sum::<u64>();
            let shapes = shapes(&state.levels, |_| 0);
            stats.compaction_debt_bytes += self.targets().debt(&shapes);
            let purgeable = |table: &Arc<Table>| table.purgeable(purge_limit).1;
            stats.purgeable_bytes += state.levels.iter().flatten().map(purgeable).sum::<u64>();
            stats.levels.resize(state.levels.len(), LevelStats::default());
            for (sum, level) in stats.levels.iter_mut().zip(state.levels.iter()) {
                sum.tables += level.len() as u64;
                sum.bytes += level.iter().map(|table| table.meta().bytes).sum::<u64>();
            }
        }
        stats
    }
}
