//! Flushes: a flush writes the oldest rotated memtable as a table of level 0, and releases the log
//! segments that no other memtable needs.

use std::sync::Arc;

use parking_lot::Mutex;

use super::core::{Core, add};
use super::tree::lock;
use super::unfinished_tables::UnfinishedTables;
use super::write_path::WritePath;
use super::yield_budget::YieldBudget;
use crate::error::Error;
use crate::local_bytes::raw_with_hidden_copies;
use crate::manifest::{Edit, LevelTable};
use crate::memtable::{Memtable, MemtableIter};
use crate::table::Table;

/// Result of a step of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// The step did some work; there may be more.
    Done,
    /// There was nothing to do.
    Nothing,
}

/// Executes flushes, one at a time.
#[derive(Default)]
pub(super) struct Flusher {
    flushing: Mutex<()>,
}

impl Flusher {
    /// Flushes the oldest rotated memtable of all trees.
    pub(super) fn flush_one(
        &self,
        core: &Core,
        write_path: &WritePath,
    ) -> Result<StepOutcome, Error> {
        let _one_at_a_time = lock(&self.flushing);
        core.health().check()?;
        let oldest = core.trees.iter().enumerate().filter_map(|(tree, t)| {
            let memtable = Arc::clone(t.load().immutables.last()?);
            let (first, last) = memtable.sequences().expect("empty ones are not kept");
            Some((first, last, tree, memtable))
        });
        core.manifest.rewrite_after_failure(&core.files)?;
        let Some((_, last, tree, memtable)) = oldest.min_by_key(|(first, ..)| *first) else {
            return Ok(StepOutcome::Nothing);
        };
        if !core.syncs_each_group() && write_path.is_started() {
            // The log must be durable before the table: after a power cut, no table may contain
            // records of a group while earlier groups of the log are lost.
            write_path.sync(core)?;
        }
        let table = write_memtable(core, &memtable)?;
        install(core, write_path, (tree, last), &memtable, table)?;
        Ok(StepOutcome::Done)
    }

    /// Flushes all rotated memtables.
    pub(super) fn flush_rotated(&self, core: &Core, write_path: &WritePath) -> Result<(), Error> {
        while self.flush_one(core, write_path)? == StepOutcome::Done {}
        Ok(())
    }

    /// Releases the log segments whose groups are all in tables.
    pub(super) fn advance_floor(&self, core: &Core, write_path: &WritePath) -> Result<(), Error> {
        let floor = core.trees.floor_without(None);
        let Some(oldest_segment) = write_path.oldest_needed(floor) else { return Ok(()) };
        if oldest_segment > core.manifest.oldest_segment() {
            core.edit_manifest(&[Edit::Floor { sequence: floor, oldest_segment }])?;
            write_path.release_segments(core, oldest_segment);
        }
        Ok(())
    }
}

fn write_memtable(core: &Core, memtable: &Arc<Memtable>) -> Result<Arc<Table>, Error> {
    let mut iter = MemtableIter::new(Arc::clone(memtable), u64::MAX);
    iter.seek_to_first();
    let mut unfinished = UnfinishedTables::new(core);
    let mut writer = unfinished.table()?;
    let mut yield_budget = YieldBudget::default();
    while iter.valid() {
        let raw = raw_with_hidden_copies(&iter.record(), iter.hidden_copies());
        writer.add(iter.key(), &raw).map_err(|error| core.health().classify(error))?;
        yield_budget.take(&core.backlog, raw.len());
        iter.next();
    }
    unfinished.finish(writer)?;
    let mut tables = unfinished.make_durable()?;
    let table = tables.pop().expect("one was finished");
    add(&core.counters.flush_bytes, table.meta().bytes);
    Ok(table)
}

/// Replaces `memtable`, whose last sequence is `last`, by `table` in the manifest and in the tree.
fn install(
    core: &Core,
    write_path: &WritePath,
    (tree, last): (usize, u64),
    memtable: &Arc<Memtable>,
    table: Arc<Table>,
) -> Result<(), Error> {
    let placed = LevelTable { tree: tree as u8, level: 0, meta: table.meta().clone() };
    let mut edits = vec![Edit::Add(placed), Edit::Flushed { tree: tree as u8, sequence: last }];
    let floor = core.trees.floor_without(Some(memtable));
    let oldest_segment = write_path.oldest_needed(floor);
    if let Some(oldest_segment) = oldest_segment {
        edits.push(Edit::Floor { sequence: floor, oldest_segment });
    }
    core.edit_manifest(&edits)?;
    core.trees.tree(tree).replace(|state| {
        let flushed = state.immutables.pop();
        assert!(flushed.is_some_and(|m| Arc::ptr_eq(&m, memtable)), "flushes keep their order");
        Arc::make_mut(&mut state.levels)[0].insert(0, table);
    });
    add(&core.counters.flushes, 1);
    core.measure_backlog();
    if let Some(oldest_segment) = oldest_segment {
        write_path.release_segments(core, oldest_segment);
    }
    Ok(())
}
