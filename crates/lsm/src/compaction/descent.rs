//! Compaction of a whole tree on request: level by level from level 0 on, and within a level table
//! by table in key order. No step is longer than a regular compaction, and regular compactions can
//! run between the steps.
//!
//! ```text
//!  level 0: all its tables         ─▶ merged into level 1
//!  level n: each table in turn     ─▶ merged into, or moved to, level n + 1
//!  deepest level: purgeable tables ─▶ rewritten in place
//! ```
//!
//! The descent ends even if writes continue: tables that appear behind its position stay where they
//! are.

use super::choose::{CompactionChoice, TableShape, merge_level0, move_down};

/// Maximum number of adjacent tables of the deepest level that one step rewrites together. One
/// step takes several tables because purging may leave few records of each.
const MAX_ADJACENT: usize = 8;

/// Position of the descent through a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Descent {
    level: usize,
    /// Largest key of the level's tables that earlier steps processed; empty = none yet.
    after: Vec<u8>,
}

impl Descent {
    /// Returns the next step and advances the position.
    pub(crate) fn next(&mut self, levels: &[Vec<TableShape<'_>>]) -> CompactionChoice {
        if self.level == 0 {
            self.level = 1;
            if !levels[0].is_empty() {
                return match merge_level0(levels) {
                    // Unlike a move, a merge splits the table: a flush writes one table per
                    // memtable, however large.
                    CompactionChoice::Move { table, to } => {
                        CompactionChoice::Merge { upper: vec![table], lower: Vec::new(), to }
                    }
                    choice => choice,
                };
            }
        }
        while self.level <= deepest(levels) {
            let level = &levels[self.level][self.first_beyond(levels)..];
            if self.level < deepest(levels) {
                if let Some(table) = level.first() {
                    self.after = table.largest.to_vec();
                    return move_down(levels, self.level, table);
                }
            } else if let Some(first) = level.iter().position(|table| table.purgeable > 0) {
                let with_purgeable = level[first..].iter().take_while(|table| table.purgeable > 0);
                let with_purgeable: Vec<_> = with_purgeable.take(MAX_ADJACENT).collect();
                self.after = with_purgeable[with_purgeable.len() - 1].largest.to_vec();
                let lower = with_purgeable.iter().map(|table| table.id).collect();
                return CompactionChoice::Merge { upper: Vec::new(), lower, to: self.level };
            }
            self.level += 1;
            self.after.clear();
        }
        CompactionChoice::Nothing
    }

    /// Estimated number of records that the remaining steps process.
    pub(crate) fn remaining_records(&self, levels: &[Vec<TableShape<'_>>]) -> u64 {
        let deepest = deepest(levels);
        let beyond = |level: usize| {
            let from = if level == self.level { self.first_beyond(levels) } else { 0 };
            &levels[level][from..]
        };
        let entries = |tables: &[TableShape<'_>]| tables.iter().map(|t| t.entries).sum::<u64>();
        let (mut left, mut carried) = (0, 0);
        for level in self.level..deepest.max(1) {
            carried += entries(beyond(level));
            // The steps of the next level process the moved records again, with its own records.
            if carried > 0 {
                left += carried + entries(&levels[level + 1]);
            }
        }
        if carried == 0 && (1..=deepest).contains(&self.level) {
            let with_purgeable = beyond(deepest).iter().filter(|table| table.purgeable > 0);
            left += with_purgeable.map(|table| table.entries).sum::<u64>();
        }
        left
    }

    /// Index in the current level of the first table that has not been moved down.
    fn first_beyond(&self, levels: &[Vec<TableShape<'_>>]) -> usize {
        let level = &levels[self.level];
        if self.level == 0 { 0 } else { level.partition_point(|t| t.largest <= &self.after[..]) }
    }
}

/// The deepest level that has a table.
fn deepest(levels: &[Vec<TableShape<'_>>]) -> usize {
    levels.iter().rposition(|level| !level.is_empty()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::MAX_LEVELS;

    fn table(id: u64, range: (&'static str, &'static str)) -> TableShape<'static> {
        let (smallest, largest) = (range.0.as_bytes(), range.1.as_bytes());
        TableShape { id, bytes: 1, smallest, largest, entries: 10, purgeable: 0 }
    }

    fn levels(mut filled: Vec<Vec<TableShape<'static>>>) -> Vec<Vec<TableShape<'static>>> {
        filled.resize(MAX_LEVELS, Vec::new());
        filled
    }

    fn merge(upper: &[u64], lower: &[u64], to: usize) -> CompactionChoice {
        CompactionChoice::Merge { upper: upper.to_vec(), lower: lower.to_vec(), to }
    }

    #[test]
    fn each_level_is_compacted_down_in_key_order() {
        let (one, two) = (table(1, ("a", "c")), table(2, ("b", "z")));
        let before = levels(vec![vec![one, two], vec![], vec![table(3, ("d", "e"))]]);
        let mut walk = Descent::default();
        assert_eq!(walk.remaining_records(&before), 20 + 20 + 10);
        assert_eq!(walk.next(&before), merge(&[1, 2], &[], 1));
        let (four, five) = (table(4, ("a", "c")), table(5, ("d", "z")));
        let then = levels(vec![vec![], vec![four, five], vec![table(3, ("d", "e"))]]);
        assert_eq!(walk.remaining_records(&then), 20 + 10);
        assert_eq!(walk.next(&then), CompactionChoice::Move { table: 4, to: 2 });
        // Tables that appear behind or above the position stay.
        let (six, new) = (table(6, ("a", "b")), table(7, ("a", "z")));
        let then = levels(vec![vec![new], vec![six, five], vec![four, table(3, ("d", "e"))]]);
        assert_eq!(walk.next(&then), merge(&[5], &[3], 2));
        let then = levels(vec![vec![new], vec![six], vec![four, table(8, ("d", "z"))]]);
        assert_eq!(walk.next(&then), CompactionChoice::Nothing);
        assert_eq!(
            (walk.remaining_records(&then), walk.next(&then)),
            (0, CompactionChoice::Nothing)
        );
    }

    #[test]
    fn purgeable_tables_of_the_bottom_level_are_rewritten() {
        let with_purgeable = |id, range| TableShape { purgeable: 1, ..table(id, range) };
        let bottom = vec![
            with_purgeable(1, ("a", "b")),
            with_purgeable(2, ("c", "d")),
            table(3, ("e", "f")),
            with_purgeable(4, ("g", "h")),
        ];
        let levels = levels(vec![vec![], vec![], bottom]);
        let mut walk = Descent::default();
        // A step never spans a table that is not rewritten: the step's output could be one table
        // that overlaps the spanned table.
        assert_eq!(walk.next(&levels), merge(&[], &[1, 2], 2));
        assert_eq!(walk.remaining_records(&levels), 10);
        assert_eq!(walk.next(&levels), merge(&[], &[4], 2));
        assert_eq!(walk.next(&levels), CompactionChoice::Nothing);
    }

    #[test]
    fn an_empty_tree_needs_no_compaction() {
        let mut walk = Descent::default();
        assert_eq!(walk.next(&levels(vec![])), CompactionChoice::Nothing);
        assert_eq!(walk.remaining_records(&levels(vec![])), 0);
        let deepest = levels(
            vec![vec![]; MAX_LEVELS - 1].into_iter().chain([vec![table(1, ("a", "b"))]]).collect(),
        );
        assert_eq!(walk.next(&deepest), CompactionChoice::Nothing);
        assert_eq!(walk.remaining_records(&deepest), 0);
    }
}
