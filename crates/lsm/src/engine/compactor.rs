//! Executes compactions, one step per call, and replaces the input tables of a step by its output
//! tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::core::{Core, add};
use super::flush::StepOutcome;
use super::orphan_filter::OrphanFilter;
use super::tree::{Levels, TreeState, lock, shapes, tables_covering};
use super::unfinished_tables::UnfinishedTables;
use super::yield_budget::YieldBudget;
use crate::batch::Space;
use crate::compaction::{CompactionChoice, choose};
use crate::error::Error;
use crate::local_bytes::raw_with_hidden_copies;
use crate::manifest::{Edit, LevelTable};
use crate::merge::{Merge, Source};
use crate::table::{Access, Table, TableIter, TableMeta};
use record::RecordRef;

/// Executes compactions, one at a time.
#[derive(Default)]
pub(super) struct Compactor {
    compacting: Mutex<()>,
    closing: AtomicBool,
}

impl Compactor {
    /// Waits for a compaction in progress, and blocks further compactions until the guard is
    /// dropped.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        lock(&self.compacting)
    }

    /// Returns true if there is nothing left to flush or compact.
    pub(super) fn is_idle(&self, core: &Core) -> bool {
        let purge_limit = core.options.purge.purge_limit();
        core.trees.iter().all(|tree| {
            let state = tree.load();
            let shapes = shapes(&state.levels, |table| table.purgeable(purge_limit).0);
            let choice = skip_damaged(core, choose(&shapes, &core.targets()));
            state.immutables.is_empty() && choice == CompactionChoice::Nothing
        })
    }

    /// Executes the most urgent compaction, or, if no compaction is due, one that purges records.
    pub(super) fn compact_one(&self, core: &Core) -> Result<StepOutcome, Error> {
        let (targets, purge_limit) = (core.targets(), core.options.purge.purge_limit());
        let urgency = |tree: &usize| {
            let levels = &core.trees.tree(*tree).load().levels;
            targets.urgency(&shapes(levels, |_| 0))
        };
        let mut trees: Vec<(usize, f64)> =
            (0..core.trees.len()).map(|tree| (tree, urgency(&tree))).collect();
        trees.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (tree, _) in trees {
            let purgeable = |table: &Table| table.purgeable(purge_limit).0;
            let choose = |levels: &Levels| choose(&shapes(levels, purgeable), &targets);
            match self.compact_tree(core, tree, choose) {
                Ok(StepOutcome::Nothing) | Err(Error::Corrupt { .. }) => {}
                done => return done,
            }
        }
        Ok(StepOutcome::Nothing)
    }

    pub(super) fn compact_tree(
        &self,
        core: &Core,
        tree: usize,
        choose: impl FnOnce(&Levels) -> CompactionChoice,
    ) -> Result<StepOutcome, Error> {
        let _one_at_a_time = lock(&self.compacting);
        core.health().check()?;
        let state = core.trees.tree(tree).load_full();
        match skip_damaged(core, choose(&state.levels)) {
            CompactionChoice::Nothing => return Ok(StepOutcome::Nothing),
            CompactionChoice::Move { table, to } => {
                core.edit_manifest(&[Edit::Move(table, to as u8)])?;
                let moved = find(&state.levels, &[table]);
                core.trees.tree(tree).swap_tables(&[table], moved, to);
            }
            CompactionChoice::Merge { upper, lower, to } => {
                self.merge(core, tree, &state, &upper, &lower, to)?
            }
        }
        add(&core.counters.compactions, 1);
        core.measure_backlog();
        // `state` refers to the replaced tables, so their files cannot be deleted before its drop.
        drop(state);
        core.files.delete_obsolete_tables();
        Ok(StepOutcome::Done)
    }

    fn merge(
        &self,
        core: &Core,
        tree: usize,
        state: &TreeState,
        upper: &[u64],
        lower: &[u64],
        to: usize,
    ) -> Result<(), Error> {
        let ids = [upper, lower].concat();
        let inputs = find(&state.levels, &ids);
        let read: u64 = inputs.iter().map(|table| table.meta().bytes).sum();
        // The limit is read before the first record is checked. A limit read later could be higher
        // than the limit applied to the first records.
        let purge_limit = core.options.purge.purge_limit();
        let mut orphans = OrphanFilter::begin(core, self);
        let outputs = self.merge_tables(core, tree, &inputs, &mut orphans)?;
        for table in &outputs {
            if is_bottommost(&state.levels, to, table.meta()) {
                table.set_purge_checked_up_to(purge_limit);
            }
        }
        orphans.check(&outputs);
        let written: u64 = outputs.iter().map(|table| table.meta().bytes).sum();
        let place = |table: &Arc<Table>| {
            Edit::Add(LevelTable { tree: tree as u8, level: to as u8, meta: table.meta().clone() })
        };
        let removals = ids.iter().map(|id| Edit::Remove(*id));
        let edits: Vec<_> = removals.chain(outputs.iter().map(place)).collect();
        core.edit_manifest(&edits)?;
        core.trees.tree(tree).swap_tables(&ids, outputs, to);
        for table in inputs {
            core.files.mark_obsolete(&table);
        }
        add(&core.counters.compaction_read_bytes, read);
        add(&core.counters.compaction_write_bytes, written);
        Ok(())
    }

    /// Writes the merged tables and makes their names and contents durable.
    fn merge_tables(
        &self,
        core: &Core,
        tree: usize,
        inputs: &[Arc<Table>],
        orphans: &mut OrphanFilter<'_>,
    ) -> Result<Vec<Arc<Table>>, Error> {
        let sources = inputs
            .iter()
            .map(|table| Source::Table(TableIter::new(Arc::clone(table), Access::Sequential)));
        let mut merge = Merge::new(sources.collect());
        let mut input_ids: Vec<u64> = inputs.iter().map(|table| table.meta().id).collect();
        input_ids.sort_unstable();
        let (mut unfinished, mut writer) = (UnfinishedTables::new(core), None);
        let mut yield_budget = YieldBudget::default();
        merge.seek(&[]).map_err(|error| self.classify_read(core, error))?;
        while merge.valid() {
            let (key, record, hidden) = (merge.key(), merge.record(), merge.hidden_copies());
            let goes = orphans.should_drop((tree, &input_ids), key, (record, hidden))?
                || may_purge(core, tree, &input_ids, key, record);
            if !goes {
                let out = match &mut writer {
                    Some(out) => out,
                    None => writer.insert(unfinished.table()?),
                };
                let raw = raw_with_hidden_copies(&record, hidden);
                out.add(key, &raw).map_err(|error| core.health().classify(error))?;
                if out.bytes_written() >= core.options.table_bytes {
                    writer.take().map_or(Ok(()), |full| unfinished.finish(full))?;
                    self.check_not_closing(core)?;
                }
            }
            yield_budget.take(&core.backlog, merge.record().raw().len());
            merge.next().map_err(|error| self.classify_read(core, error))?;
        }
        writer.take().map_or(Ok(()), |last| unfinished.finish(last))?;
        unfinished.make_durable()
    }

    /// Classifies a read error of a compaction. Damage ends only the compaction, because the store
    /// must stay usable for the repair of the data. Other read errors fail the store.
    pub(super) fn classify_read(&self, core: &Core, error: Error) -> Error {
        if !matches!(error, Error::Corrupt { .. }) {
            return core.health().classify(error);
        }
        core.trees.damaged_tables().note_compaction(&error);
        error
    }

    /// Ends a long compaction early if the store is closing or has failed.
    pub(super) fn check_not_closing(&self, core: &Core) -> Result<(), Error> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(Error::Closing);
        }
        core.health().check()
    }

    /// Makes running compactions stop at their next output table.
    pub(super) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }
}

/// Returns true if a record may be purged: the rule allows it, and the key is outside the range of
/// every other table of the tree and in no memtable. Newer tables and memtables count too, because
/// a late record in them may be older than the purged one. `inputs`: sorted ids of the merged
/// tables.
fn may_purge(core: &Core, tree: usize, inputs: &[u64], key: &[u8], record: RecordRef<'_>) -> bool {
    let space = Space::from_u8(key[0]).expect("a table's keys were written with a space");
    if !core.options.purge.may_purge(space, record) {
        return false;
    }
    let state = core.trees.tree(tree).load();
    let is_input = |table: &Arc<Table>| inputs.binary_search(&table.meta().id).is_ok();
    let elsewhere = tables_covering(&state.levels, key).any(|table| !is_input(table));
    !elsewhere && !state.in_memtables(key)
}

fn find(levels: &Levels, ids: &[u64]) -> Vec<Arc<Table>> {
    let tables = levels.iter().flatten().filter(|table| ids.contains(&table.meta().id));
    let found: Vec<_> = tables.cloned().collect();
    assert_eq!(found.len(), ids.len(), "a choice names tables that are there");
    found
}

/// Returns true if no table below `level` overlaps the table.
fn is_bottommost(levels: &Levels, level: usize, meta: &TableMeta) -> bool {
    levels[level + 1..].iter().all(|below| {
        let at = below.partition_point(|table| table.meta().largest < meta.smallest);
        below.get(at).is_none_or(|table| table.meta().smallest > meta.largest)
    })
}

/// Returns the choice, or `Nothing` if the choice merges a table that compactions skip.
fn skip_damaged(core: &Core, choice: CompactionChoice) -> CompactionChoice {
    match &choice {
        CompactionChoice::Merge { upper, lower, .. }
            if core.trees.damaged_tables().skips_any(upper.iter().chain(lower).copied()) =>
        {
            CompactionChoice::Nothing
        }
        _ => choice,
    }
}
