//! Flushes and compactions: the execution of one step per call, and the replacement of its inputs
//! by its results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::leftovers::StepLeftovers;
use super::open::STORE;
use super::tree::{Levels, TreeState, lock, shapes, tables_over};
use super::{Backlog, Engine, add};
use crate::batch::Space;
use crate::compaction::{Choice, MAX_LEVELS, choose};
use crate::error::{Error, IoOp};
use crate::local::raw_with;
use crate::manifest::{self, Edit, Placed};
use crate::memtable::{Memtable, MemtableIter};
use crate::merge::{Merge, Source};
use crate::table::{Access, Table, TableIter, TableMeta, TableParams, TableWriter, file_name};
use crate::wal::segment_name;
use record::RecordRef;

/// State that flushes and compactions share.
#[derive(Default)]
pub(super) struct Background {
    /// Held during a flush: one runs at a time …
    flush: Mutex<()>,
    /// … and during a compaction: one runs at a time.
    pub(super) compaction: Mutex<()>,
    /// Held while segments are synced outside the writer's lock, and while retired ones are
    /// removed, because a removed file cannot be synced.
    pub(super) log_sync: Mutex<()>,
    closing: AtomicBool,
    /// Tables named by a failed edit of the manifest. The manifest's file may or may not hold the
    /// edit.
    disputed: Mutex<Vec<u64>>,
    /// Tables in which a compaction found damage, with the error. Compactions that need one of them
    /// are skipped until it is replaced (`discard.rs`).
    pub(super) damaged: Mutex<BTreeMap<String, Error>>,
}

/// Tables being written in one step. The files are removed unless they become
/// [`Unfinished::durable`], so that repeated attempts do not fill a full disk further.
pub(super) struct Unfinished<'a> {
    engine: &'a Engine,
    ids: Vec<u64>,
    finished: Vec<TableMeta>,
}

impl<'a> Unfinished<'a> {
    pub(super) fn new(engine: &'a Engine) -> Self {
        Self { engine, ids: Vec::new(), finished: Vec::new() }
    }

    pub(super) fn table(&mut self) -> Result<TableWriter, Error> {
        let options = &self.engine.options;
        let params = TableParams {
            table_id: self.engine.next_table.fetch_add(1, Ordering::Relaxed),
            store_id: self.engine.store_id,
            block_bytes: options.block_bytes,
            bloom_bits: options.bloom_bits,
            compress: options.compress,
        };
        let id = params.table_id;
        let writer = TableWriter::create(&*self.engine.disk, params);
        let writer = writer.map_err(|error| self.engine.classify(error))?;
        self.ids.push(id);
        Ok(writer)
    }

    pub(super) fn finish(&mut self, writer: TableWriter) -> Result<(), Error> {
        self.finished.push(writer.finish().map_err(|error| self.engine.classify(error))?);
        Ok(())
    }

    /// Makes the tables' names durable and opens the tables.
    pub(super) fn durable(mut self) -> Result<Vec<Arc<Table>>, Error> {
        let engine = self.engine;
        engine
            .disk
            .sync_dir()
            .map_err(|error| engine.classify(Error::io(IoOp::Sync, "directory", error)))?;
        let tables: Result<Vec<_>, _> =
            self.finished.iter().map(|meta| engine.open_table(meta)).collect();
        if tables.is_ok() {
            self.ids.clear();
        }
        tables.map_err(|error| engine.classify(error))
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for id in &self.ids {
            self.engine.remove_file(&file_name(*id));
        }
    }
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The step did some work; there may be more.
    Done,
    /// There was nothing to do.
    Nothing,
}

impl Engine {
    /// Flushes the memtable that has waited longest.
    pub fn flush_one(&self) -> Result<Work, Error> {
        let _one_at_a_time = lock(&self.background.flush);
        self.healthy()?;
        let oldest = self.trees.iter().enumerate().filter_map(|(tree, t)| {
            let memtable = Arc::clone(t.load().immutables.last()?);
            let (first, last) = memtable.sequences().expect("empty ones are not kept");
            Some((first, last, tree, memtable))
        });
        self.settle_manifest()?;
        let Some((_, last, tree, memtable)) = oldest.min_by_key(|(first, ..)| *first) else {
            return Ok(Work::Nothing);
        };
        if !self.synced_per_group() && lock(&self.writer).wal.is_some() {
            // The log must be durable first: a table must not outlive groups of the log before it.
            self.sync_log()?;
        }
        let table = self.write_memtable(&memtable)?;
        self.install_flush(tree, last, &memtable, table)?;
        Ok(Work::Done)
    }

    fn write_memtable(&self, memtable: &Arc<Memtable>) -> Result<Arc<Table>, Error> {
        let mut iter = MemtableIter::new(Arc::clone(memtable), u64::MAX);
        iter.seek_to_first();
        let mut unfinished = Unfinished::new(self);
        let mut writer = unfinished.table()?;
        let mut yield_budget = YieldBudget::default();
        while iter.valid() {
            let raw = raw_with(&iter.record(), iter.reach());
            writer.add(iter.key(), &raw).map_err(|error| self.classify(error))?;
            yield_budget.take(self, raw.len());
            iter.next();
        }
        unfinished.finish(writer)?;
        let mut tables = unfinished.durable()?;
        let table = tables.pop().expect("one was finished");
        add(&self.counters.flush_bytes, table.meta().bytes);
        Ok(table)
    }

    fn install_flush(
        &self,
        tree: usize,
        last: u64,
        memtable: &Arc<Memtable>,
        table: Arc<Table>,
    ) -> Result<(), Error> {
        let placed = Placed { tree: tree as u8, level: 0, meta: table.meta().clone() };
        let mut edits = vec![Edit::Add(placed), Edit::Flushed { tree: tree as u8, sequence: last }];
        let floor = self.floor_without(Some(memtable));
        let oldest_segment = self.oldest_needed(floor);
        if let Some(oldest_segment) = oldest_segment {
            edits.push(Edit::Floor { sequence: floor, oldest_segment });
        }
        self.edit_manifest(&edits)?;
        self.trees[tree].replace(|state| {
            let flushed = state.immutables.pop();
            assert!(flushed.is_some_and(|m| Arc::ptr_eq(&m, memtable)), "flushes keep their order");
            Arc::make_mut(&mut state.levels)[0].insert(0, table);
        });
        add(&self.counters.flushes, 1);
        self.measure_backlog();
        if let Some(oldest_segment) = oldest_segment {
            self.retire_log(oldest_segment);
        }
        Ok(())
    }

    /// Flushes all rotated memtables.
    pub(super) fn flush_rotated(&self) -> Result<(), Error> {
        while self.flush_one()? == Work::Done {}
        Ok(())
    }

    /// Releases the segments whose groups are all in tables.
    pub(super) fn advance_floor(&self) -> Result<(), Error> {
        let floor = self.floor_without(None);
        let Some(oldest_segment) = self.oldest_needed(floor) else { return Ok(()) };
        if oldest_segment > lock(&self.manifest).state().oldest_segment {
            self.edit_manifest(&[Edit::Floor { sequence: floor, oldest_segment }])?;
            self.retire_log(oldest_segment);
        }
        Ok(())
    }

    /// The oldest segment that holds a sequence at or after `floor`; `None` before the log is
    /// started.
    fn oldest_needed(&self, floor: u64) -> Option<u64> {
        lock(&self.writer).wal.as_ref().map(|wal| wal.oldest_needed(floor))
    }

    /// The first sequence that only the log holds, once `flushed` is a table.
    fn floor_without(&self, flushed: Option<&Arc<Memtable>>) -> u64 {
        // Read before the memtables: a batch being applied has a greater sequence.
        let next = self.visible.load(Ordering::Acquire) + 1;
        let states: Vec<_> = self.trees.iter().map(|tree| tree.load_full()).collect();
        let memtables = states.iter().flat_map(|state| state.memtables());
        let waiting =
            memtables.filter(|memtable| !flushed.is_some_and(|f| Arc::ptr_eq(memtable, f)));
        let firsts = waiting.filter_map(|memtable| memtable.sequences()).map(|(first, _)| first);
        firsts.min().unwrap_or(next).min(next)
    }

    fn retire_log(&self, oldest_segment: u64) {
        let retired = {
            let mut writer = lock(&self.writer);
            let Some(wal) = writer.wal.as_mut() else { return };
            let retired = wal.retire(oldest_segment);
            self.counters.wal_segments.store(wal.segment_count() as u64, Ordering::Relaxed);
            retired
        };
        let _not_being_synced = lock(&self.background.log_sync);
        for segment in retired {
            self.remove_file(&segment_name(segment));
        }
    }

    /// Executes the most urgent compaction, or one that purges records if no other is due.
    pub fn compact_one(&self) -> Result<Work, Error> {
        let (targets, reached) = (self.targets(), self.options.purge.reached());
        let urgency = |tree: &usize| {
            let levels = &self.trees[*tree].load().levels;
            targets.urgency(&shapes(levels, |_| 0))
        };
        let mut trees: Vec<(usize, f64)> =
            (0..self.trees.len()).map(|tree| (tree, urgency(&tree))).collect();
        trees.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (tree, _) in trees {
            let purgeable = |table: &Table| table.purgeable(reached).0;
            let choose = |levels: &Levels| choose(&shapes(levels, purgeable), &targets);
            match self.compact_tree(tree, choose) {
                Ok(Work::Nothing) | Err(Error::Corrupt { .. }) => {}
                done => return done,
            }
        }
        Ok(Work::Nothing)
    }

    pub(super) fn compact_tree(
        &self,
        tree: usize,
        choose: impl FnOnce(&Levels) -> Choice,
    ) -> Result<Work, Error> {
        let _one_at_a_time = lock(&self.background.compaction);
        self.healthy()?;
        let state = self.trees[tree].load_full();
        match self.unless_damaged(choose(&state.levels)) {
            Choice::Nothing => return Ok(Work::Nothing),
            Choice::Move { table, to } => {
                self.edit_manifest(&[Edit::Move(table, to as u8)])?;
                let moved = find(&state.levels, &[table]);
                self.swap_tables(tree, &[table], moved, to);
            }
            Choice::Merge { upper, lower, to } => self.merge(tree, &state, &upper, &lower, to)?,
        }
        add(&self.counters.compactions, 1);
        self.measure_backlog();
        // The replaced tables can be deleted only when nobody holds them, including this function.
        drop(state);
        self.delete_obsolete_tables();
        Ok(Work::Done)
    }

    fn merge(
        &self,
        tree: usize,
        state: &TreeState,
        upper: &[u64],
        lower: &[u64],
        to: usize,
    ) -> Result<(), Error> {
        let ids = [upper, lower].concat();
        let inputs = find(&state.levels, &ids);
        let read: u64 = inputs.iter().map(|table| table.meta().bytes).sum();
        // Read before the first record is checked: a limit that rises later was not applied to all
        // records.
        let reached = self.options.purge.reached();
        let mut leftovers = StepLeftovers::begin(self);
        let outputs = self.merge_tables(tree, &inputs, &mut leftovers)?;
        for table in &outputs {
            if is_above_nothing(&state.levels, to, table.meta()) {
                table.was_asked(reached);
            }
        }
        leftovers.check(&outputs);
        let written: u64 = outputs.iter().map(|table| table.meta().bytes).sum();
        let place = |table: &Arc<Table>| {
            Edit::Add(Placed { tree: tree as u8, level: to as u8, meta: table.meta().clone() })
        };
        let gone = ids.iter().map(|id| Edit::Remove(*id));
        let edits: Vec<_> = gone.chain(outputs.iter().map(place)).collect();
        self.edit_manifest(&edits)?;
        self.swap_tables(tree, &ids, outputs, to);
        for table in inputs {
            table.mark_obsolete(Arc::clone(&self.obsolete));
        }
        add(&self.counters.compaction_read_bytes, read);
        add(&self.counters.compaction_write_bytes, written);
        Ok(())
    }

    /// Writes the merged tables and makes their names and contents durable.
    fn merge_tables(
        &self,
        tree: usize,
        inputs: &[Arc<Table>],
        leftovers: &mut StepLeftovers<'_>,
    ) -> Result<Vec<Arc<Table>>, Error> {
        let sources = inputs
            .iter()
            .map(|table| Source::Table(TableIter::new(Arc::clone(table), Access::Sequential)));
        let mut merge = Merge::new(sources.collect());
        let mut input_ids: Vec<u64> = inputs.iter().map(|table| table.meta().id).collect();
        input_ids.sort_unstable();
        let (mut unfinished, mut writer) = (Unfinished::new(self), None);
        let mut yield_budget = YieldBudget::default();
        merge.seek(&[]).map_err(|error| self.unread(error))?;
        while merge.valid() {
            let (key, record, reach) = (merge.key(), merge.record(), merge.reach());
            let goes = leftovers.goes(self, (tree, &input_ids), key, (record, reach))?
                || self.may_purge(tree, &input_ids, key, record);
            if !goes {
                let out = match &mut writer {
                    Some(out) => out,
                    None => writer.insert(unfinished.table()?),
                };
                let raw = raw_with(&record, reach);
                out.add(key, &raw).map_err(|error| self.classify(error))?;
                if out.bytes_written() >= self.options.table_bytes {
                    writer.take().map_or(Ok(()), |full| unfinished.finish(full))?;
                    self.may_go_on()?;
                }
            }
            yield_budget.take(self, merge.record().raw().len());
            merge.next().map_err(|error| self.unread(error))?;
        }
        writer.take().map_or(Ok(()), |last| unfinished.finish(last))?;
        unfinished.durable()
    }

    /// Handles a read error of a compaction. Damage only ends the compaction: the node must keep
    /// running so that repair can restore the data. Other read errors fail the store.
    pub(super) fn unread(&self, error: Error) -> Error {
        let Error::Corrupt { file, .. } = &error else { return self.classify(error) };
        if lock(&self.background.damaged).insert(file.clone(), error.clone()).is_none() {
            tracing::error!(
                %error,
                "a table is damaged, and is not compacted any more until a full repair round has \
                 healed it; reads of the damaged keys fail, all else goes on"
            );
        }
        error
    }

    /// The choice, or `Nothing` if it needs a table known to be damaged.
    pub(super) fn unless_damaged(&self, choice: Choice) -> Choice {
        let damaged = lock(&self.background.damaged);
        let is_damaged = |id: &u64| damaged.contains_key(&file_name(*id));
        match &choice {
            Choice::Merge { upper, lower, .. }
                if !damaged.is_empty() && upper.iter().chain(lower).any(is_damaged) =>
            {
                Choice::Nothing
            }
            _ => choice,
        }
    }

    /// Ends a long compaction early if the store is closing or has failed.
    pub(super) fn may_go_on(&self) -> Result<(), Error> {
        if self.background.closing.load(Ordering::Relaxed) {
            return Err(Error::Closing);
        }
        self.healthy()
    }

    /// Makes running compactions stop at their next output table.
    pub(crate) fn begin_closing(&self) {
        self.background.closing.store(true, Ordering::Relaxed);
    }

    /// Returns true if a record may be purged: the rule allows it, and no other table or memtable
    /// of the tree may hold its key, neither below nor above, where a late record may be older.
    /// `inputs`: sorted ids of the merged tables.
    fn may_purge(&self, tree: usize, inputs: &[u64], key: &[u8], record: RecordRef<'_>) -> bool {
        let space = Space::from_u8(key[0]).expect("a table's keys were written with a space");
        if !self.options.purge.may_purge(space, record) {
            return false;
        }
        let state = self.trees[tree].load();
        let is_input = |table: &Arc<Table>| inputs.binary_search(&table.meta().id).is_ok();
        let elsewhere = tables_over(&state.levels, key).any(|table| !is_input(table));
        !elsewhere && !Self::in_memtables(&state, key)
    }

    /// Replaces the tables `ids` of a tree by `tables` in level `to`.
    fn swap_tables(&self, tree: usize, ids: &[u64], tables: Vec<Arc<Table>>, to: usize) {
        self.trees[tree].replace(|state| {
            let levels = Arc::make_mut(&mut state.levels);
            for level in levels.iter_mut() {
                level.retain(|table| !ids.contains(&table.meta().id));
            }
            levels[to].extend(tables);
            levels[to].sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
            assert!(apart(&levels[to]), "tables of a level below 0 do not overlap");
        });
    }

    pub(super) fn open_table(&self, meta: &TableMeta) -> Result<Arc<Table>, Error> {
        let name = file_name(meta.id);
        let file = self.disk.open(&name).map_err(|error| Error::io(IoOp::Open, &name, error))?;
        let table = Table::open(file, meta, self.store_id, Arc::clone(&self.cache))?;
        Ok(Arc::new(table))
    }

    pub(super) fn edit_manifest(&self, edits: &[Edit]) -> Result<(), Error> {
        let mut manifest = lock(&self.manifest);
        let named = edits.iter().filter_map(|edit| match edit {
            Edit::Add(placed) => Some(placed.meta.id),
            _ => None,
        });
        match manifest.apply(edits) {
            Ok(()) => {
                self.manifest_edits.store(manifest.edits(), Ordering::Relaxed);
                for table in std::mem::take(&mut *lock(&self.background.disputed)) {
                    self.remove_file(&file_name(table));
                }
                Ok(())
            }
            Err(error) => {
                lock(&self.background.disputed).extend(named);
                Err(self.classify(error))
            }
        }
    }

    /// Rewrites the manifest's file after a failed edit, before more tables are written: only then
    /// can the tables named by the failed edit be removed.
    fn settle_manifest(&self) -> Result<(), Error> {
        let disputed = !lock(&self.background.disputed).is_empty();
        if disputed { self.edit_manifest(&[]) } else { Ok(()) }
    }

    /// Classifies an error of background work. A full disk and a lack of descriptors are transient;
    /// any other error makes the store reject writes.
    pub(super) fn classify(&self, error: Error) -> Error {
        if error.passes() { error } else { self.fail(&error) }
    }

    /// Fails the store if its directory was moved or removed, or lost its files. Open descriptors
    /// would keep working, but data written through them could not be found again.
    pub fn check_directory(&self) -> Result<(), Error> {
        self.healthy()?;
        let _retired_segments_stay = lock(&self.background.log_sync);
        let segment = lock(&self.writer).wal.as_ref().map(|wal| segment_name(wal.end().segment));
        let names = [STORE, manifest::NAME].into_iter().chain(segment.as_deref());
        for name in names {
            let found = self.disk.find(name);
            found.map_err(|error| self.classify(Error::io(IoOp::Stat, name, error)))?;
        }
        Ok(())
    }

    /// Removes the files of replaced tables that have no readers left.
    pub fn delete_obsolete_tables(&self) {
        let dead = std::mem::take(&mut *lock(&self.obsolete));
        let stay = dead.into_iter().filter(|table| !self.remove_file(&file_name(*table)));
        let stay: Vec<_> = stay.collect();
        lock(&self.obsolete).extend(stay);
    }

    /// Removes a file; returns true on success. The next open removes a file that stays. A failure
    /// counts like any other: the disk may accept no changes, or the directory may be gone.
    pub(super) fn remove_file(&self, name: &str) -> bool {
        let removed = self.disk.remove(name);
        if let Err(error) = removed {
            tracing::warn!(%error, name, "cannot delete an obsolete file");
            self.classify(Error::io(IoOp::Remove, name, error));
            return false;
        }
        true
    }
}

/// Yields the CPU to threads that serve requests. A scheduler gives two busy threads some
/// milliseconds each in turn, and a request that arrives on that CPU waits as long. Yielding every
/// 100 µs or so keeps this wait out of the tail latency (`docs/results/benchmarks.md` has the
/// figures). Background work stops yielding once it is far behind.
#[derive(Default)]
struct YieldBudget {
    bytes: usize,
}

/// Bytes of records between two yields: about 100 µs of merging and compressing, or of the reading
/// and verifying of a repair round, which always yields.
pub(super) const YIELD_BYTES: usize = 16 << 10;
/// Backlog at which background work stops yielding.
const HURRY: f64 = 0.25;

impl YieldBudget {
    fn take(&mut self, engine: &Engine, bytes: usize) {
        self.bytes += bytes;
        if self.bytes < YIELD_BYTES {
            return;
        }
        self.bytes = 0;
        match engine.backlog() {
            Backlog::Clear => std::thread::yield_now(),
            Backlog::Behind(part) if part < HURRY => std::thread::yield_now(),
            Backlog::Behind(_) | Backlog::Full => {}
        }
    }
}

fn find(levels: &Levels, ids: &[u64]) -> Vec<Arc<Table>> {
    let tables = levels.iter().flatten().filter(|table| ids.contains(&table.meta().id));
    let found: Vec<_> = tables.cloned().collect();
    assert_eq!(found.len(), ids.len(), "a choice names tables that are there");
    found
}

/// Returns true if nothing below a level overlaps the table.
fn is_above_nothing(levels: &Levels, level: usize, meta: &TableMeta) -> bool {
    levels[level + 1..].iter().all(|below| {
        let at = below.partition_point(|table| table.meta().largest < meta.smallest);
        below.get(at).is_none_or(|table| table.meta().smallest > meta.largest)
    })
}

fn apart(level: &[Arc<Table>]) -> bool {
    level.windows(2).all(|pair| pair[0].meta().largest < pair[1].meta().smallest)
}

/// Levels without any tables.
pub(super) fn no_tables() -> Levels {
    vec![Vec::new(); MAX_LEVELS]
}
