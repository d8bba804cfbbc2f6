//! Removing what a wrong clock wrote: every record written after a time, out of a store that nobody
//! else uses. What such a record shadowed holds again, as far as it is still there.
//!
//! ```text
//!  level 0   newest ─▶ oldest: the oldest that has one, and all that are newer, are written anew
//!            oldest first, so that their order stays      ─▶ one edit of the manifest
//!  below     each table that has one is written anew      ─▶ an edit for each
//! ```
//!
//! Tables are not merged: a merge would keep the newest record of a key and drop the others, and
//! then the newest would go too. A crash in between leaves whole tables, old or new, and is made up
//! for by doing it again.
//!
//! What was shadowed may have been shadowed before by something that a compaction has dropped
//! since: a tombstone, of which other replicas know no more once it is proven and purged. So what
//! was written up to the watermark goes first, from under the others: if it is still to be there,
//! the other replicas have it.

use std::sync::Arc;

use super::Engine;
use super::background::Unfinished;
use super::tree::Levels;
use crate::batch::Space;
use crate::error::Error;
use crate::manifest::{Edit, Placed};
use crate::table::{Access, Table, TableIter};
use record::RecordRef;

/// Which records go.
#[derive(Debug, Clone, Copy)]
pub struct Above<'a> {
    /// What was written until then ([`RecordRef::when`]) stays.
    pub time: u64,
    /// Those of other spaces stay.
    pub spaces: &'a [Space],
    /// What was written up to then and lies under such a record goes too, for all replicas held the
    /// same; 0 = nothing does. What has one copy stays.
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

/// What is removed at once, …
enum Removal<'a> {
    /// … what is meant, or …
    Meant(Above<'a>),
    /// … what is proven and lies under that, which is in these tables.
    Under(Above<'a>, Vec<Arc<Table>>),
}

/// The same, asked of the records of one table in the order of their keys.
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
    /// Moves everything into tables, then hands out space and key of each record that
    /// [`Engine::remove_above`] would remove, and when it was written. One key may come more than
    /// once.
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

    /// Removes the records that are meant; how many they were. Nothing else may use the store.
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

    /// Writes tables of a level anew, without the records that go; the last one first, so that a
    /// level 0 keeps its order.
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

/// Hands out the records of a table that go, with their internal keys.
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
