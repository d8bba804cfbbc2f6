//! Removal of records that a wrong clock wrote: every record written after a given time, in a store
//! that nobody else uses. If a removed record hid an older record of its key that still exists, the
//! older record becomes visible again.
//!
//! ```text
//!  level 0        the oldest table with a record to remove, and all newer tables, are
//!                 rewritten, oldest first, to keep their order:  one edit of the manifest
//!  deeper levels  each table with a record to remove is rewritten:  one edit per table
//! ```
//!
//! Tables are rewritten, not merged: a merge would keep only the newest record of each key, which
//! may be a record to remove. A crash leaves whole tables, old or new; a repetition completes the
//! removal.
//!
//! A tombstone between the two records may already be purged on all replicas. The removal must not
//! revive a record that a purged tombstone deleted. Hidden records written up to the watermark (the
//! time up to which a repair round proved all replicas equal) are therefore removed before the
//! wrong clock's records. A hidden record that no tombstone deleted still exists on other replicas.

use std::sync::Arc;

use super::core::Core;
use super::tree::Levels;
use super::unfinished_tables::UnfinishedTables;
use crate::batch::Space;
use crate::error::Error;
use crate::manifest::{Edit, LevelTable};
use crate::table::{Access, Table, TableIter};
use record::RecordRef;

/// The selection of the records to remove.
#[derive(Debug, Clone, Copy)]
pub struct RemovalFilter<'a> {
    /// Records written up to this time ([`RecordRef::write_time`]) stay.
    pub time: u64,
    /// The spaces from which records are removed.
    pub spaces: &'a [Space],
    /// Watermark: a record written up to this time and hidden by a removed record is removed too,
    /// because all replicas had it; 0 = no hidden record is removed. A hidden record that was
    /// written to a single replica stays, because no other replica can have it.
    pub proven: u64,
}

impl RemovalFilter<'_> {
    fn is_of_spaces(&self, key: &[u8]) -> bool {
        Space::from_u8(key[0]).is_some_and(|s| self.spaces.contains(&s))
    }

    fn selects(&self, key: &[u8], record: RecordRef<'_>) -> bool {
        record.write_time() > self.time && self.is_of_spaces(key)
    }

    fn may_select_from(&self, table: &Table) -> bool {
        table.meta().max_write_time > self.time
    }
}

/// A pass of the removal, named after the records that the pass removes.
enum Removal<'a> {
    /// The pass removes the selected records.
    Selected(RemovalFilter<'a>),
    /// The pass removes the records up to the watermark that selected records of these tables hide.
    Hidden(RemovalFilter<'a>, Vec<Arc<Table>>),
}

/// A pass over one table, queried in the order of the table's keys.
struct TableRemoval<'a> {
    selection: RemovalFilter<'a>,
    over: Option<Vec<TableIter>>,
}

impl<'a> Removal<'a> {
    fn may_affect(&self, table: &Table) -> bool {
        match self {
            Self::Selected(selection) => selection.may_select_from(table),
            Self::Hidden(selection, over) => {
                !over.is_empty() && table.meta().min_write_time <= selection.proven
            }
        }
    }

    fn for_table(&self, table: &Table) -> Result<TableRemoval<'a>, Error> {
        let (selection, over) = match self {
            Self::Selected(selection) => {
                return Ok(TableRemoval { selection: *selection, over: None });
            }
            Self::Hidden(selection, over) => (*selection, over),
        };
        let mut iters = Vec::with_capacity(over.len());
        for other in over {
            let mut iter = TableIter::new(Arc::clone(other), Access::Sequential);
            iter.seek(&table.meta().smallest)?;
            iters.push(iter);
        }
        Ok(TableRemoval { selection, over: Some(iters) })
    }

    fn remove_from(&self, core: &Core, tree: usize) -> Result<u64, Error> {
        let mut removed = 0;
        let levels = Levels::clone(&core.trees.tree(tree).load_full().levels);
        for (level, tables) in levels.iter().enumerate() {
            let has = |table: &Arc<Table>| Ok::<_, Error>(self.count(table)? > 0);
            if level == 0 {
                let found: Result<Vec<_>, _> = tables.iter().map(has).collect();
                let oldest = found?.iter().rposition(|has| *has);
                let tables = oldest.map_or(&[][..], |oldest| &tables[..=oldest]);
                removed += self.write_without(core, tree, level, tables)?;
                continue;
            }
            for table in tables {
                if has(table)? {
                    let table = std::slice::from_ref(table);
                    removed += self.write_without(core, tree, level, table)?;
                }
            }
        }
        Ok(removed)
    }

    /// Rewrites tables of a level without the removed records. Starts with the last table, so that
    /// the ids of the new tables keep the order of level 0.
    fn write_without(
        &self,
        core: &Core,
        tree: usize,
        level: usize,
        tables: &[Arc<Table>],
    ) -> Result<u64, Error> {
        if tables.is_empty() {
            return Ok(0);
        }
        let (mut unfinished, mut removed) = (UnfinishedTables::new(core), 0);
        for table in tables.iter().rev() {
            let (mut writer, mut pass) = (None, self.for_table(table)?);
            let mut iter = TableIter::new(Arc::clone(table), Access::Sequential);
            iter.seek_to_first()?;
            while iter.valid() {
                let record = RecordRef::from_trusted(iter.record());
                if pass.removes(iter.key(), record)? {
                    removed += 1;
                } else {
                    let out = match &mut writer {
                        Some(out) => out,
                        None => writer.insert(unfinished.table()?),
                    };
                    out.add(iter.key(), iter.record())?;
                }
                iter.next()?;
            }
            writer.map_or(Ok(()), |writer| unfinished.finish(writer))?;
        }
        let outputs = unfinished.make_durable()?;
        let replaced_ids: Vec<u64> = tables.iter().map(|table| table.meta().id).collect();
        let place = |table: &Arc<Table>| {
            Edit::Add(LevelTable {
                tree: tree as u8,
                level: level as u8,
                meta: table.meta().clone(),
            })
        };
        let edits =
            replaced_ids.iter().map(|id| Edit::Remove(*id)).chain(outputs.iter().map(place));
        core.edit_manifest(&edits.collect::<Vec<_>>())?;
        core.trees.tree(tree).replace(|state| {
            let levels = Arc::make_mut(&mut state.levels);
            levels[level].retain(|table| !replaced_ids.contains(&table.meta().id));
            levels[level].extend(outputs);
            if level == 0 {
                levels[0].sort_by_key(|table| std::cmp::Reverse(table.meta().id));
            } else {
                levels[level].sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
            }
        });
        for table in tables {
            core.files.mark_obsolete(table);
        }
        Ok(removed)
    }

    fn count(&self, table: &Arc<Table>) -> Result<u64, Error> {
        let mut count = 0;
        self.for_each_removal(table, |_, _| count += 1)?;
        Ok(count)
    }

    /// Calls `each` with the internal key and the record of each removal of this pass in a table.
    fn for_each_removal(
        &self,
        table: &Arc<Table>,
        mut each: impl FnMut(&[u8], RecordRef<'_>),
    ) -> Result<(), Error> {
        if !self.may_affect(table) {
            return Ok(());
        }
        let mut pass = self.for_table(table)?;
        let mut iter = TableIter::new(Arc::clone(table), Access::Sequential);
        iter.seek_to_first()?;
        while iter.valid() {
            let record = RecordRef::from_trusted(iter.record());
            if pass.removes(iter.key(), record)? {
                each(iter.key(), record);
            }
            iter.next()?;
        }
        Ok(())
    }
}

impl TableRemoval<'_> {
    fn removes(&mut self, key: &[u8], record: RecordRef<'_>) -> Result<bool, Error> {
        let Self { selection, over } = self;
        let Some(over) = over else { return Ok(selection.selects(key, record)) };
        let may_remove = record.write_time() <= selection.proven && record.copies() != 1;
        if !may_remove || !selection.is_of_spaces(key) {
            return Ok(false);
        }
        for iter in over {
            while iter.valid() && iter.key() < key {
                iter.next()?;
            }
            if iter.valid() && iter.key() == key {
                let other = RecordRef::from_trusted(iter.record());
                if selection.selects(key, other) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Calls `each` with the space, the key and the write time of each record of the tables that
/// `selection` selects.
pub(super) fn records_above(
    core: &Core,
    selection: RemovalFilter<'_>,
    mut each: impl FnMut(Space, &[u8], u64),
) -> Result<(), Error> {
    for tree in core.trees.iter() {
        for table in tree.load_full().levels.iter().flatten() {
            Removal::Selected(selection).for_each_removal(table, |key, record| {
                let space =
                    Space::from_u8(key[0]).expect("a selected record is of a selected space");
                each(space, &key[1..], record.write_time());
            })?;
        }
    }
    Ok(())
}

/// Removes the selected records from all tables and returns their number. Nothing else may use the
/// store.
pub(super) fn remove_above(core: &Core, selection: RemovalFilter<'_>) -> Result<u64, Error> {
    for tree in 0..core.trees.len() {
        let levels = Levels::clone(&core.trees.tree(tree).load_full().levels);
        let over = levels.iter().flatten().filter(|table| selection.may_select_from(table));
        Removal::Hidden(selection, over.cloned().collect()).remove_from(core, tree)?;
    }
    let mut removed = 0;
    for tree in 0..core.trees.len() {
        removed += Removal::Selected(selection).remove_from(core, tree)?;
    }
    core.files.delete_obsolete_tables();
    Ok(removed)
}
