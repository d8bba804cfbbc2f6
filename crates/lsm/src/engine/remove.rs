//! Removal of records that a wrong clock wrote: every record written after a given time, in a store
//! that nobody else uses. A record hidden by a removed one becomes visible again if it still
//! exists.
//!
//! ```text
//!  level 0   the oldest table with such a record, and all newer tables, are rewritten,
//!            oldest first, to keep their order            ─▶ one edit of the manifest
//!  below     each table with such a record is rewritten   ─▶ one edit per table
//! ```
//!
//! Tables are rewritten, not merged: a merge would keep only the newest record of a key, and then
//! that record would be removed too. A crash leaves whole tables, old or new; repeating the removal
//! completes it.
//!
//! A hidden record may also have been hidden by a third record that a compaction has dropped since:
//! a tombstone, of which no replica has a trace once it is proven and purged. Hidden records
//! written up to the watermark are therefore removed first: if one of them should still exist, the
//! other replicas have it.

use std::sync::Arc;

use super::Engine;
use super::background::Unfinished;
use super::tree::Levels;
use crate::batch::Space;
use crate::error::Error;
use crate::manifest::{Edit, Placed};
use crate::table::{Access, Table, TableIter};
use record::RecordRef;

/// Selects the records to remove.
#[derive(Debug, Clone, Copy)]
pub struct Above<'a> {
    /// Records written up to this time ([`RecordRef::when`]) stay.
    pub time: u64,
    /// Records of other spaces stay.
    pub spaces: &'a [Space],
    /// Watermark: a record written up to this time and hidden by a removed one is removed too,
    /// because all replicas held it; 0 = none is. Records with one copy stay.
    pub proven: u64,
}

impl Above<'_> {
    fn is_of_spaces(&self, key: &[u8]) -> bool {
        Space::from_u8(key[0]).is_some_and(|s| self.spaces.contains(&s))
    }

    fn means(&self, key: &[u8], record: RecordRef<'_>) -> bool {
        record.when() > self.time && self.is_of_spaces(key)
    }

    fn may_mean_some_of(&self, table: &Table) -> bool {
        table.meta().max_when > self.time
    }
}

/// One pass of the removal: …
enum Removal<'a> {
    /// … the selected records, or …
    Meant(Above<'a>),
    /// … the records up to the watermark that these tables' selected records hide.
    Under(Above<'a>, Vec<Arc<Table>>),
}

/// The pass for one table, queried in the order of the table's keys.
struct OfTable<'a> {
    above: Above<'a>,
    over: Option<Vec<TableIter>>,
}

impl<'a> Removal<'a> {
    fn may_be_of(&self, table: &Table) -> bool {
        match self {
            Self::Meant(above) => above.may_mean_some_of(table),
            Self::Under(above, over) => !over.is_empty() && table.meta().min_when <= above.proven,
        }
    }

    fn of_table(&self, table: &Table) -> Result<OfTable<'a>, Error> {
        let (above, over) = match self {
            Self::Meant(above) => return Ok(OfTable { above: *above, over: None }),
            Self::Under(above, over) => (*above, over),
        };
        let mut iters = Vec::with_capacity(over.len());
        for other in over {
            let mut iter = TableIter::new(Arc::clone(other), Access::Sequential);
            iter.seek(&table.meta().smallest)?;
            iters.push(iter);
        }
        Ok(OfTable { above, over: Some(iters) })
    }
}

impl OfTable<'_> {
    fn goes(&mut self, key: &[u8], record: RecordRef<'_>) -> Result<bool, Error> {
        let Self { above, over } = self;
        let Some(over) = over else { return Ok(above.means(key, record)) };
        let may_go = record.when() <= above.proven && record.copies() != 1;
        if !may_go || !above.is_of_spaces(key) {
            return Ok(false);
        }
        for iter in over {
            while iter.valid() && iter.key() < key {
                iter.next()?;
            }
            if iter.valid() && iter.key() == key {
                let other = RecordRef::trusted(iter.record());
                if above.means(key, other) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Engine {
    /// Flushes all memtables, then calls `each` with the space, the key and the write time of each
    /// record that [`Engine::remove_above`] would remove. A key may occur more than once.
    pub fn records_above(
        &self,
        above: Above<'_>,
        mut each: impl FnMut(Space, &[u8], u64),
    ) -> Result<(), Error> {
        self.rotate_all();
        self.flush_rotated()?;
        for tree in &self.trees {
            for table in tree.load_full().levels.iter().flatten() {
                walk(table, &Removal::Meant(above), |key, record| {
                    let space = Space::from_u8(key[0]).expect("it is one of those that are meant");
                    each(space, &key[1..], record.when());
                })?;
            }
        }
        Ok(())
    }

    /// Removes the selected records and returns their number. Nothing else may use the store.
    pub fn remove_above(&self, above: Above<'_>) -> Result<u64, Error> {
        self.rotate_all();
        self.flush_rotated()?;
        for tree in 0..self.trees.len() {
            let levels = Levels::clone(&self.trees[tree].load_full().levels);
            let over = levels.iter().flatten().filter(|table| above.may_mean_some_of(table));
            self.remove(tree, &Removal::Under(above, over.cloned().collect()))?;
        }
        let mut removed = 0;
        for tree in 0..self.trees.len() {
            removed += self.remove(tree, &Removal::Meant(above))?;
        }
        self.delete_obsolete_tables();
        Ok(removed)
    }

    fn remove(&self, tree: usize, removal: &Removal<'_>) -> Result<u64, Error> {
        let mut removed = 0;
        let levels = Levels::clone(&self.trees[tree].load_full().levels);
        for (level, tables) in levels.iter().enumerate() {
            let has = |table: &Arc<Table>| Ok::<_, Error>(count(table, removal)? > 0);
            if level == 0 {
                let found: Result<Vec<_>, _> = tables.iter().map(has).collect();
                let oldest = found?.iter().rposition(|has| *has);
                let tables = oldest.map_or(&[][..], |oldest| &tables[..=oldest]);
                removed += self.write_without(tree, level, tables, removal)?;
                continue;
            }
            for table in tables {
                if has(table)? {
                    let table = std::slice::from_ref(table);
                    removed += self.write_without(tree, level, table, removal)?;
                }
            }
        }
        Ok(removed)
    }

    /// Rewrites tables of a level without the removed records, the last table first, which keeps
    /// the order of level 0.
    fn write_without(
        &self,
        tree: usize,
        level: usize,
        tables: &[Arc<Table>],
        removal: &Removal<'_>,
    ) -> Result<u64, Error> {
        if tables.is_empty() {
            return Ok(0);
        }
        let (mut unfinished, mut removed) = (Unfinished::new(self), 0);
        for table in tables.iter().rev() {
            let (mut writer, mut asked) = (None, removal.of_table(table)?);
            let mut iter = TableIter::new(Arc::clone(table), Access::Sequential);
            iter.seek_to_first()?;
            while iter.valid() {
                let record = RecordRef::trusted(iter.record());
                if asked.goes(iter.key(), record)? {
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
        let outputs = unfinished.durable()?;
        let gone: Vec<u64> = tables.iter().map(|table| table.meta().id).collect();
        let place = |table: &Arc<Table>| {
            Edit::Add(Placed { tree: tree as u8, level: level as u8, meta: table.meta().clone() })
        };
        let edits = gone.iter().map(|id| Edit::Remove(*id)).chain(outputs.iter().map(place));
        self.edit_manifest(&edits.collect::<Vec<_>>())?;
        self.trees[tree].replace(|state| {
            let levels = Arc::make_mut(&mut state.levels);
            levels[level].retain(|table| !gone.contains(&table.meta().id));
            levels[level].extend(outputs);
            if level == 0 {
                levels[0].sort_by_key(|table| std::cmp::Reverse(table.meta().id));
            } else {
                levels[level].sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
            }
        });
        for table in tables {
            table.mark_obsolete(Arc::clone(&self.obsolete));
        }
        Ok(removed)
    }
}

fn count(table: &Arc<Table>, removal: &Removal<'_>) -> Result<u64, Error> {
    let mut count = 0;
    walk(table, removal, |_, _| count += 1)?;
    Ok(count)
}

/// Calls `each` with every record of a table that the pass removes and its internal key.
fn walk(
    table: &Arc<Table>,
    removal: &Removal<'_>,
    mut each: impl FnMut(&[u8], RecordRef<'_>),
) -> Result<(), Error> {
    if !removal.may_be_of(table) {
        return Ok(());
    }
    let mut asked = removal.of_table(table)?;
    let mut iter = TableIter::new(Arc::clone(table), Access::Sequential);
    iter.seek_to_first()?;
    while iter.valid() {
        let record = RecordRef::trusted(iter.record());
        if asked.goes(iter.key(), record)? {
            each(iter.key(), record);
        }
        iter.next()?;
    }
    Ok(())
}
