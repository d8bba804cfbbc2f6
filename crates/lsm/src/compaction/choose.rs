//! Choice of the next compaction: a pure function of the levels' shape, so that tests need no disk.
//! The strategy is leveled compaction as in LevelDB and RocksDB. Level 0 contains flushed
//! memtables, which may overlap. Every deeper level is one sorted run, larger than the level above
//! it by a constant factor.

use std::ops::RangeInclusive;

/// Levels per tree, including level 0: the deepest of 7 holds 128 MiB × 10^5 with the default
/// options.
pub(crate) const MAX_LEVELS: usize = 7;

/// The properties of a table on which the choice of a compaction depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableShape<'a> {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    pub(crate) smallest: &'a [u8],
    pub(crate) largest: &'a [u8],
    /// Number of keys, tombstones included.
    pub(crate) entries: u64,
    /// Estimated number of entries that may be purged now.
    pub(crate) purgeable: u64,
}

/// Target sizes of the levels, from `Options`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LevelTargets {
    pub(crate) level0_tables: usize,
    pub(crate) level1_bytes: u64,
    pub(crate) ratio: u64,
}

/// Minimum expected share of purged records in the input of a compaction while no level is over its
/// target. A smaller minimum would cause rewrites of whole levels for a few tombstones.
const MIN_PURGED_PART: f64 = 0.2;

/// The next compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CompactionChoice {
    /// No compaction is due.
    Nothing,
    /// Move one table a level deeper without rewriting it: no table there overlaps it.
    Move {
        /// The table's id.
        table: u64,
        /// The level that receives the table.
        to: usize,
    },
    /// Merge these tables into level `to`.
    Merge {
        /// Tables of the upper level.
        upper: Vec<u64>,
        /// Tables of level `to` that the upper tables overlap. If `upper` is empty, these tables
        /// are rewritten in place.
        lower: Vec<u64>,
        /// The level that receives the result.
        to: usize,
    },
}

impl LevelTargets {
    /// Target bytes of a level (1 or deeper).
    pub(crate) fn level_bytes(&self, level: usize) -> u64 {
        self.level1_bytes.saturating_mul(self.ratio.saturating_pow(level as u32 - 1))
    }

    /// Compaction debt in bytes: the excess of each level from 1 on over its target, plus all of
    /// level 0 if it has more than `level0_tables` tables.
    pub(crate) fn debt(&self, levels: &[Vec<TableShape<'_>>]) -> u64 {
        let sum = |level: &[TableShape<'_>]| level.iter().map(|table| table.bytes).sum::<u64>();
        let (level0, below) = levels.split_first().expect("level 0 is always there");
        let over0 = if level0.len() > self.level0_tables { sum(level0) } else { 0 };
        let below = below.iter().enumerate();
        over0 + below.map(|(i, l)| sum(l).saturating_sub(self.level_bytes(i + 1))).sum::<u64>()
    }

    /// The most urgent level and its urgency; a compaction is due at 1.0.
    fn most_urgent(&self, levels: &[Vec<TableShape<'_>>]) -> (usize, f64) {
        let mut most = (0, levels[0].len() as f64 / self.level0_tables as f64);
        for (level, tables) in levels.iter().enumerate().take(MAX_LEVELS - 1).skip(1) {
            let bytes: u64 = tables.iter().map(|table| table.bytes).sum();
            let score = bytes as f64 / self.level_bytes(level) as f64;
            if score > most.1 {
                most = (level, score);
            }
        }
        most
    }

    /// Urgency of the most urgent level.
    pub(crate) fn urgency(&self, levels: &[Vec<TableShape<'_>>]) -> f64 {
        self.most_urgent(levels).1
    }
}

/// Chooses the next compaction. `levels[0]` is ordered newest first, the others by key.
pub(crate) fn choose(levels: &[Vec<TableShape<'_>>], targets: &LevelTargets) -> CompactionChoice {
    let (level, urgency) = targets.most_urgent(levels);
    if urgency < 1.0 {
        return choose_purge(levels);
    }
    if level == 0 { merge_level0(levels) } else { cheapest_table(levels, level) }
}

/// Chooses the compaction that purges the greatest share of its input, when no level is over its
/// target.
fn choose_purge(levels: &[Vec<TableShape<'_>>]) -> CompactionChoice {
    let level0 = purged_part(levels, 0, &levels[0]);
    let parts = levels.iter().enumerate().skip(1).flat_map(|(level, tables)| {
        let with_purgeable = tables.iter().filter(|table| table.purgeable > 0);
        with_purgeable.map(move |table| {
            (purged_part(levels, level, std::slice::from_ref(table)), level, table)
        })
    });
    let most = parts.max_by(|a, b| a.0.total_cmp(&b.0));
    if level0 >= MIN_PURGED_PART && most.is_none_or(|(part, ..)| part <= level0) {
        return merge_level0(levels);
    }
    match most {
        Some((part, level, table)) if part >= MIN_PURGED_PART => {
            if is_bottom(levels, level, std::slice::from_ref(table)) {
                CompactionChoice::Merge { upper: Vec::new(), lower: vec![table.id], to: level }
            } else {
                move_down(levels, level, table)
            }
        }
        _ => CompactionChoice::Nothing,
    }
}

/// Estimated share of the input that a compaction of `tables` drops. If no deeper table overlaps
/// `tables`, they are rewritten in place. Otherwise they are merged one level deeper: the estimate
/// assumes that each purged record hides one record there, and that the merge drops both.
fn purged_part(levels: &[Vec<TableShape<'_>>], level: usize, tables: &[TableShape<'_>]) -> f64 {
    let sum = |sum: (u64, u64), table: &TableShape<'_>| {
        (sum.0.saturating_add(table.purgeable), sum.1.saturating_add(table.entries))
    };
    let (purgeable, entries) = tables.iter().fold((0, 0), sum);
    if purgeable == 0 {
        return 0.0;
    }
    let below = if is_bottom(levels, level, tables) {
        (0, 0)
    } else {
        overlapping_tables(&levels[level + 1], &range_of(tables)).fold((0, 0), sum)
    };
    let purged = purgeable as f64 + purgeable.min(below.1) as f64 + below.0 as f64;
    purged / (entries as f64 + below.1 as f64)
}

/// Returns true if no table of a deeper level overlaps `tables`, so that they can be rewritten in
/// place. Always false for level 0, whose tables are merged into level 1.
fn is_bottom(levels: &[Vec<TableShape<'_>>], level: usize, tables: &[TableShape<'_>]) -> bool {
    let range = range_of(tables);
    level > 0 && levels[level + 1..].iter().all(|l| overlapping_tables(l, &range).next().is_none())
}

pub(super) fn merge_level0(levels: &[Vec<TableShape<'_>>]) -> CompactionChoice {
    let upper: Vec<u64> = levels[0].iter().map(|table| table.id).collect();
    let range = range_of(&levels[0]);
    let lower: Vec<u64> = overlapping_tables(&levels[1], &range).map(|table| table.id).collect();
    if let ([table], true) = (&upper[..], lower.is_empty()) {
        return CompactionChoice::Move { table: *table, to: 1 };
    }
    CompactionChoice::Merge { upper, lower, to: 1 }
}

/// Chooses the table of `level` with the lowest cost of moving one level deeper: the rewritten
/// bytes per byte moved. Purgeable records lower the cost.
fn cheapest_table(levels: &[Vec<TableShape<'_>>], level: usize) -> CompactionChoice {
    let below = &levels[level + 1];
    let cost = |table: &TableShape<'_>| {
        let range = table.smallest..=table.largest;
        let rewritten: u64 = overlapping_tables(below, &range).map(|lower| lower.bytes).sum();
        let staying = 1.0 - table.purgeable as f64 / table.entries.max(1) as f64;
        rewritten as f64 / table.bytes.max(1) as f64 * staying
    };
    let cheapest = levels[level].iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    let table = cheapest.expect("a level over its target has tables");
    move_down(levels, level, table)
}

pub(super) fn move_down(
    levels: &[Vec<TableShape<'_>>],
    level: usize,
    table: &TableShape<'_>,
) -> CompactionChoice {
    let range = table.smallest..=table.largest;
    let lower: Vec<u64> =
        overlapping_tables(&levels[level + 1], &range).map(|table| table.id).collect();
    if lower.is_empty() {
        CompactionChoice::Move { table: table.id, to: level + 1 }
    } else {
        CompactionChoice::Merge { upper: vec![table.id], lower, to: level + 1 }
    }
}

fn range_of<'a>(tables: &[TableShape<'a>]) -> RangeInclusive<&'a [u8]> {
    let smallest = tables.iter().map(|table| table.smallest).min().unwrap_or_default();
    let largest = tables.iter().map(|table| table.largest).max().unwrap_or_default();
    smallest..=largest
}

/// The tables of a level (1 or deeper) that overlap a range.
fn overlapping_tables<'l, 'a>(
    level: &'l [TableShape<'a>],
    range: &'l RangeInclusive<&'a [u8]>,
) -> impl Iterator<Item = &'l TableShape<'a>> {
    let first = level.partition_point(|table| table.largest < *range.start());
    level[first..].iter().take_while(|table| table.smallest <= *range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: LevelTargets = LevelTargets { level0_tables: 4, level1_bytes: 100, ratio: 10 };

    fn table(id: u64, bytes: u64, range: (&'static str, &'static str)) -> TableShape<'static> {
        let (smallest, largest) = (range.0.as_bytes(), range.1.as_bytes());
        TableShape { id, bytes, smallest, largest, entries: bytes, purgeable: 0 }
    }

    fn with_purgeable(
        id: u64,
        purgeable: u64,
        range: (&'static str, &'static str),
    ) -> TableShape<'static> {
        TableShape { purgeable, ..table(id, 10, range) }
    }

    fn levels(filled: Vec<Vec<TableShape<'static>>>) -> Vec<Vec<TableShape<'static>>> {
        let mut levels = filled;
        levels.resize(MAX_LEVELS, Vec::new());
        levels
    }

    #[test]
    fn no_compaction_is_chosen_within_the_targets() {
        let few = (1..4).map(|id| table(id, 50, ("a", "z"))).collect();
        assert_eq!(choose(&levels(vec![few]), &TARGETS), CompactionChoice::Nothing);
        assert_eq!(choose(&levels(vec![]), &TARGETS), CompactionChoice::Nothing);
    }

    #[test]
    fn level_0_is_merged_whole_with_the_tables_it_overlaps() {
        let level0 = (1..5).map(|id| table(id, 50, ("f", "k"))).collect();
        let level1 =
            vec![table(10, 9, ("a", "e")), table(11, 9, ("h", "i")), table(12, 9, ("k", "z"))];
        assert_eq!(
            choose(&levels(vec![level0, level1]), &TARGETS),
            CompactionChoice::Merge { upper: vec![1, 2, 3, 4], lower: vec![11, 12], to: 1 }
        );
    }

    #[test]
    fn the_cheapest_table_of_a_level_is_moved_down() {
        let level1 = vec![table(1, 80, ("a", "c")), table(2, 80, ("d", "f"))];
        let level2 = vec![table(3, 500, ("b", "c")), table(4, 40, ("d", "e"))];
        assert_eq!(
            choose(&levels(vec![vec![], level1.clone(), level2]), &TARGETS),
            CompactionChoice::Merge { upper: vec![2], lower: vec![4], to: 2 }
        );
        let apart = vec![table(3, 500, ("b", "c"))];
        assert_eq!(
            choose(&levels(vec![vec![], level1, apart]), &TARGETS),
            CompactionChoice::Move { table: 2, to: 2 }
        );
    }

    #[test]
    fn purgeable_bottom_tables_are_rewritten_in_place() {
        let rewritten =
            |id, level| CompactionChoice::Merge { upper: vec![], lower: vec![id], to: level };
        let (few, many) = (with_purgeable(1, 1, ("a", "b")), with_purgeable(2, 3, ("c", "d")));
        let filled = levels(vec![vec![], vec![few, many]]);
        assert_eq!(choose(&filled, &TARGETS), rewritten(2, 1));
        assert_eq!(choose(&levels(vec![vec![], vec![few]]), &TARGETS), CompactionChoice::Nothing);
        let deepest =
            levels(vec![vec![]; MAX_LEVELS - 1].into_iter().chain([vec![many]]).collect());
        assert_eq!(choose(&deepest, &TARGETS), rewritten(2, MAX_LEVELS - 1));
    }

    #[test]
    fn purgeable_tables_are_merged_down_with_the_tables_they_overlap() {
        let upper = with_purgeable(1, 10, ("a", "b"));
        let over = |lower| choose(&levels(vec![vec![], vec![upper], vec![lower]]), &TARGETS);
        let merged = CompactionChoice::Merge { upper: vec![1], lower: vec![2], to: 2 };
        assert_eq!(over(table(2, 60, ("b", "c"))), merged);
        assert_eq!(
            over(table(2, 200, ("b", "c"))),
            CompactionChoice::Nothing,
            "too much for so few"
        );
        let far = levels(vec![vec![], vec![upper], vec![], vec![table(2, 60, ("b", "c"))]]);
        assert_eq!(choose(&far, &TARGETS), CompactionChoice::Move { table: 1, to: 2 });
        let level0 = levels(vec![vec![upper], vec![table(2, 60, ("b", "c"))]]);
        let merged = CompactionChoice::Merge { upper: vec![1], lower: vec![2], to: 1 };
        assert_eq!(choose(&level0, &TARGETS), merged);
    }

    #[test]
    fn between_equally_cheap_tables_the_more_purgeable_one_moves() {
        let level1 = vec![
            table(1, 80, ("a", "c")),
            TableShape { purgeable: 20, ..table(2, 80, ("d", "f")) },
        ];
        let level2 = vec![table(3, 40, ("b", "c")), table(4, 40, ("d", "e"))];
        assert_eq!(
            choose(&levels(vec![vec![], level1, level2]), &TARGETS),
            CompactionChoice::Merge { upper: vec![2], lower: vec![4], to: 2 }
        );
    }
}
