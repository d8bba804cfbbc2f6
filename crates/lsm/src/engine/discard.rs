//! Discarding damage: a table with damaged blocks is rewritten without the blocks whose keys have
//! been written again from other replicas. For the other damaged blocks the new table gets
//! unreadable placeholders.
//!
//! A discarded block no longer hides older records in other tables. Before the discard, the caller
//! must therefore write the newest record of each key of the block, or know that the key has none.

use std::sync::Arc;

use super::compactor::Compactor;
use super::core::Core;
use super::internal_key::InternalKey;
use super::unfinished_tables::UnfinishedTables;
use crate::batch::Space;
use crate::error::Error;
use crate::local_bytes::set_late;
use crate::manifest::{Edit, LevelTable};
use crate::table::{ScanStats, Table, TableWriter, VerifiedIter};
use record::RecordRef;

/// Keys of a space from `first` to `last`, both inclusive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    /// The first key of the range.
    pub first: Vec<u8>,
    /// The last key of the range; `None` = the range has no upper bound.
    pub last: Option<Vec<u8>>,
}

/// Result of [`Engine::discard`](super::Engine::discard).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Tables that were rewritten or removed.
    pub tables: u64,
    /// Tables with remaining damage that is only partly within the ranges.
    pub left: u64,
}

/// A discard of the unreadable blocks and records within ranges of internal keys.
pub(super) struct Discard<'a> {
    core: &'a Core,
    compactor: &'a Compactor,
    /// Disjoint, in order.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Discard<'a> {
    pub(super) fn new(
        core: &'a Core,
        compactor: &'a Compactor,
        space: Space,
        ranges: &[KeyRange],
    ) -> Self {
        Self { core, compactor, ranges: internal_ranges(space, ranges) }
    }

    /// Rewrites the damaged tables. Other compactions wait.
    pub(super) fn run(&self) -> Result<Discarded, Error> {
        let core = self.core;
        let _no_compaction = self.compactor.pause();
        let mut discarded = Discarded::default();
        for tree in 0..core.trees.len() {
            let state = core.trees.tree(tree).load_full();
            for (level, tables) in state.levels.iter().enumerate() {
                for table in tables {
                    if !self.may_overlap(table) {
                        continue;
                    }
                    core.health().check()?;
                    let RewriteResult { output, has_remaining_damage } =
                        self.rewrite_without_damage(table, level)?;
                    discarded.left += u64::from(has_remaining_damage);
                    if let Some(output) = output {
                        self.replace_table(tree, level, table, output)?;
                        discarded.tables += 1;
                    }
                }
            }
        }
        core.files.delete_obsolete_tables();
        Ok(discarded)
    }

    fn may_overlap(&self, table: &Table) -> bool {
        let meta = table.meta();
        let overlaps = |(first, last): &(Vec<u8>, Vec<u8>)| {
            meta.largest[..] >= first[..] && meta.smallest[..] <= last[..]
        };
        self.ranges.iter().any(overlaps)
    }

    /// Rewrites a table without its unreadable parts within the ranges, if it has any. All records
    /// of a rewritten table of level 0 are marked late, so that no read stops at them: after a
    /// restart, level 0 is sorted by id, so the new table precedes tables with newer records.
    fn rewrite_without_damage(
        &self,
        table: &Arc<Table>,
        level: usize,
    ) -> Result<RewriteResult, Error> {
        let (core, ranges) = (self.core, &self.ranges);
        let is_within = |first: &[u8], last: &[u8]| {
            ranges.iter().any(|(from, to)| &from[..] <= first && last <= &to[..])
        };
        let overlaps_some_range = |first: &[u8], last: &[u8]| {
            ranges.iter().any(|(from, to)| first <= &to[..] && &from[..] <= last)
        };
        let stats: Arc<ScanStats> = Arc::default();
        let end = vec![u8::MAX];
        let mut iter = VerifiedIter::new(vec![Arc::clone(table)], 0, end, Arc::clone(&stats));
        let (mut unfinished, mut writer) = (UnfinishedTables::new(core), None);
        let (mut needs_rewrite, mut has_remaining_damage, mut late) = (false, false, Vec::new());
        iter.seek(&[]);
        loop {
            while let Some(range) = stats.take_unreadable() {
                let first = range.first.max(table.meta().smallest.to_vec());
                let last = range.last.min(table.meta().largest.to_vec());
                // A damaged filter needs no placeholder: the new table gets a new filter.
                let lost = range.lost.filter(|_| !is_within(&first, &last));
                let Some((lost_first, lost_last)) = lost else {
                    needs_rewrite |= overlaps_some_range(&first, &last);
                    continue;
                };
                has_remaining_damage |= overlaps_some_range(&lost_first, &lost_last);
                let first = lost_first.max(table.meta().smallest.to_vec());
                let last = lost_last.min(table.meta().largest.to_vec());
                let out = writer_in(&mut writer, &mut unfinished)?;
                let added = out.add_unreadable((&first, &last), table.meta());
                added.map_err(|error| core.health().classify(error))?;
            }
            if !iter.valid() {
                break;
            }
            let (key, raw) = (iter.key(), iter.record());
            let is_sound = RecordRef::parse(raw).is_ok_and(|r| r.verify(&key[1..]).is_ok());
            if !is_sound && is_within(key, key) {
                needs_rewrite = true;
            } else {
                let raw = if level == 0 {
                    late.clear();
                    late.extend_from_slice(raw);
                    set_late(&mut late, true);
                    &late
                } else {
                    raw
                };
                let out = writer_in(&mut writer, &mut unfinished)?;
                out.add(key, raw).map_err(|error| core.health().classify(error))?;
            }
            iter.next();
        }
        if !needs_rewrite {
            return Ok(RewriteResult { output: None, has_remaining_damage });
        }
        writer.map_or(Ok(()), |writer| unfinished.finish(writer))?;
        Ok(RewriteResult { output: Some(unfinished.make_durable()?.pop()), has_remaining_damage })
    }

    fn replace_table(
        &self,
        tree: usize,
        level: usize,
        table: &Arc<Table>,
        output: Option<Arc<Table>>,
    ) -> Result<(), Error> {
        let (core, replaced_id) = (self.core, table.meta().id);
        let place = |table: &Arc<Table>| {
            Edit::Add(LevelTable {
                tree: tree as u8,
                level: level as u8,
                meta: table.meta().clone(),
            })
        };
        let edits: Vec<Edit> =
            [Edit::Remove(replaced_id)].into_iter().chain(output.as_ref().map(place)).collect();
        core.edit_manifest(&edits)?;
        core.trees.tree(tree).replace(|state| {
            let levels = Arc::make_mut(&mut state.levels);
            let at = levels[level].iter().position(|table| table.meta().id == replaced_id);
            let at = at.expect("nobody else takes tables away meanwhile");
            levels[level].splice(at..=at, output);
        });
        core.files.mark_obsolete(table);
        core.trees.damaged_tables().forget(replaced_id);
        core.measure_backlog();
        Ok(())
    }
}

/// Result of rewriting one table.
struct RewriteResult {
    /// The replacement; `None` = the table stays, `Some(None)` = it is removed.
    output: Option<Option<Arc<Table>>>,
    /// True if damage remains that is partly within the ranges.
    has_remaining_damage: bool,
}

/// Returns the current table writer; creates a table if there is none.
fn writer_in<'a>(
    writer: &'a mut Option<TableWriter>,
    unfinished: &mut UnfinishedTables<'_>,
) -> Result<&'a mut TableWriter, Error> {
    match writer {
        Some(out) => Ok(out),
        None => Ok(writer.insert(unfinished.table()?)),
    }
}

/// Converts the ranges to internal keys, sorts them, and joins adjacent ranges: a scan of several
/// tables may report one unreadable range of a table as several adjacent ranges.
fn internal_ranges(space: Space, ranges: &[KeyRange]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = ranges
        .iter()
        .map(|KeyRange { first, last }| {
            let last = match last {
                Some(last) => InternalKey::start_of(space, last),
                None => vec![space as u8 + 1],
            };
            (InternalKey::start_of(space, first), last)
        })
        .collect();
    ranges.sort_unstable();
    let mut joined: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, before)) if first <= [&before[..], &[0]].concat() => {
                *before = last.max(std::mem::take(before));
            }
            _ => joined.push((first, last)),
        }
    }
    joined
}
