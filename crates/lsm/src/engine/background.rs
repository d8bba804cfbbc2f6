//! Flush and compaction: one step a call, and how their results replace what they came from.

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

/// What flushes and compactions share.
#[derive(Default)]
pub(super) struct Background {
    /// Held for the length of a step, so that there is one flush at a time …
    flush: Mutex<()>,
    /// … and one compaction.
    pub(super) compaction: Mutex<()>,
    /// Held while segments are synced outside the writer's lock, and while retired ones are
    /// removed: a removed file can't be synced.
    pub(super) log_sync: Mutex<()>,
    closing: AtomicBool,
    /// Tables that a failed edit of the manifest named: its file may or may not hold that edit.
    disputed: Mutex<Vec<u64>>,
    /// Tables in which a compaction found damage, and what. Until they are replaced (`discard.rs`)
    /// none is tried that needs them.
    pub(super) damaged: Mutex<BTreeMap<String, Error>>,
}

/// Tables being written in one step. Unless they become [`Unfinished::durable`], their files are
/// removed again, so that a full disk is not filled further by every attempt.
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

    /// Makes the names durable too and opens the tables.
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

/// Whether a step found something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It did it; there may be more.
    Done,
    /// There was nothing.
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
            // A table must not outlive a hole in the log before it.
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

    /// Flushes all that has been rotated.
    pub(super) fn flush_rotated(&self) -> Result<(), Error> {
        while self.flush_one()? == Work::Done {}
        Ok(())
    }

    /// Lets go of the segments that hold nothing but what is in tables.
    pub(super) fn advance_floor(&self) -> Result<(), Error> {
        let floor = self.floor_without(None);
        let Some(oldest_segment) = self.oldest_needed(floor) else { return Ok(()) };
        if oldest_segment > lock(&self.manifest).state().oldest_segment {
            self.edit_manifest(&[Edit::Floor { sequence: floor, oldest_segment }])?;
            self.retire_log(oldest_segment);
        }
        Ok(())
    }

    /// The oldest segment that holds a sequence at or after `floor`; `None` before there is a log.
    fn oldest_needed(&self, floor: u64) -> Option<u64> {
        lock(&self.writer).wal.as_ref().map(|wal| wal.oldest_needed(floor))
    }

    /// The first sequence that only the log holds, once `flushed` is a table.
    fn floor_without(&self, flushed: Option<&Arc<Memtable>>) -> u64 {
        // Read before the memtables: a batch that is being applied has a greater sequence.
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

    /// Does the most urgent compaction. If there is none, one for what may be purged.
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
        // Its tables can be deleted only once nobody holds them, this step included.
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
        // Before any record is asked for: what rises meanwhile may have come too late for some.
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

    /// Writes the merged tables; their names and contents are durable afterwards.
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

    /// A compaction found what it can't read. Damage ends it and nothing else: the node must go on,
    /// to be given what it has lost. A read that fails says that the disk is not what it was.
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

    /// What was chosen, unless it needs a table of which it is known that it can't be read.
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

    /// Lets a long compaction end early when the store closes or has failed.
    pub(super) fn may_go_on(&self) -> Result<(), Error> {
        if self.background.closing.load(Ordering::Relaxed) {
            return Err(Error::Closing);
        }
        self.healthy()
    }

    /// Makes running compactions end at their next table.
    pub(crate) fn begin_closing(&self) {
        self.background.closing.store(true, Ordering::Relaxed);
    }

    /// Whether a record can go: allowed from outside, and nothing of its key is anywhere else in
    /// the tree, neither below nor above, where a record that arrived late may be older. `inputs`
    /// are the sorted ids of the tables that are merged.
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

    /// Puts `tables` into level `to` of a tree in place of those with `ids`.
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

    /// Brings the manifest's file in line with its state after a failed edit, before more tables
    /// are written: the ones that the failed edit named can go only then.
    fn settle_manifest(&self) -> Result<(), Error> {
        let disputed = !lock(&self.background.disputed).is_empty();
        if disputed { self.edit_manifest(&[]) } else { Ok(()) }
    }

    /// A full disk and a lack of descriptors pass by themselves. Any other error met in the
    /// background ends all writing: the disk, or the directory, is not what it was.
    pub(super) fn classify(&self, error: Error) -> Error {
        if error.passes() { error } else { self.fail(&error) }
    }

    /// Fails the store if the directory was moved or removed, or lost its files: descriptors that
    /// are open go on working, and what is written through them can't be found again.
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

    /// Removes the files of tables that were replaced and that no one reads any more.
    pub fn delete_obsolete_tables(&self) {
        let dead = std::mem::take(&mut *lock(&self.obsolete));
        let stay = dead.into_iter().filter(|table| !self.remove_file(&file_name(*table)));
        let stay: Vec<_> = stay.collect();
        lock(&self.obsolete).extend(stay);
    }

    /// A file that can't be removed is a leftover that the next open removes. It is a sign of what
    /// any other failure is a sign of: a disk that takes no changes, a directory that is gone.
    /// Says whether it is gone.
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

/// Lets those who serve requests go first. A scheduler that sees two busy threads gives each some
/// milliseconds in turn, and whatever arrives on a CPU meanwhile waits for that: a background
/// thread that offers its CPU every 100 µs or so keeps that wait out of the tail
/// (`docs/benchmarks.md` has the figures). It stops doing so once it is far behind.
#[derive(Default)]
struct YieldBudget {
    bytes: usize,
}

/// Bytes of records between two offers: about 100 µs of merging and compressing, or of reading and
/// verifying for a repair round, which always offers.
pub(super) const YIELD_BYTES: usize = 16 << 10;
/// Backlog from which background work takes its full share of the CPU.
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

/// Whether nothing below a level overlaps a table.
fn is_above_nothing(levels: &Levels, level: usize, meta: &TableMeta) -> bool {
    levels[level + 1..].iter().all(|below| {
        let at = below.partition_point(|table| table.meta().largest < meta.smallest);
        below.get(at).is_none_or(|table| table.meta().smallest > meta.largest)
    })
}

fn apart(level: &[Arc<Table>]) -> bool {
    level.windows(2).all(|pair| pair[0].meta().largest < pair[1].meta().smallest)
}

/// All levels, without a table.
pub(super) fn no_tables() -> Levels {
    vec![Vec::new(); MAX_LEVELS]
}
