//! What to compact next: a pure function of the levels' shape, so that it can be tested and
//! simulated without a byte on disk. Levelled compaction as in LevelDB and RocksDB: level 0 holds
//! whole flushed memtables side by side (a tier), every level below is one sorted run, ten times
//! the size of the one above.

use std::ops::RangeInclusive;

/// Levels of a tree, level 0 included: 7 hold 128 MiB × 10^5.
pub(crate) const MAX_LEVELS: usize = 7;

/// A table as the choice sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape<'a> {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    pub(crate) smallest: &'a [u8],
    pub(crate) largest: &'a [u8],
}

/// What the choice weighs, from `Options`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Targets {
    pub(crate) level0_tables: usize,
    pub(crate) level1_bytes: u64,
    pub(crate) ratio: u64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Every level is within its target.
    Nothing,
    /// Put one table a level deeper as it is: nothing there overlaps it.
    Move {
        /// The table.
        table: u64,
        /// Its level afterwards.
        to: usize,
    },
    /// Merge these tables into level `to`.
    Merge {
        /// Tables of the upper level.
        upper: Vec<u64>,
        /// The tables of level `to` that they overlap.
        lower: Vec<u64>,
        /// Level of the result.
        to: usize,
    },
}

impl Targets {
    /// Target bytes of a level below 0.
    pub(crate) fn level_bytes(&self, level: usize) -> u64 {
        self.level1_bytes.saturating_mul(self.ratio.saturating_pow(level as u32 - 1))
    }

    /// Bytes above target, summed over the levels below 0 and, past its trigger, level 0.
    pub(crate) fn debt(&self, levels: &[Vec<Shape<'_>>]) -> u64 {
        let sum = |level: &[Shape<'_>]| level.iter().map(|table| table.bytes).sum::<u64>();
        let (level0, below) = levels.split_first().expect("level 0 is always there");
        let over0 = if level0.len() > self.level0_tables { sum(level0) } else { 0 };
        let below = below.iter().enumerate();
        over0 + below.map(|(i, l)| sum(l).saturating_sub(self.level_bytes(i + 1))).sum::<u64>()
    }

    /// How urgent the most urgent level is; ≥ 1.0 asks for a compaction.
    fn most_urgent(&self, levels: &[Vec<Shape<'_>>]) -> (usize, f64) {
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

    /// The urgency alone.
    pub(crate) fn urgency(&self, levels: &[Vec<Shape<'_>>]) -> f64 {
        self.most_urgent(levels).1
    }
}

/// Chooses the next compaction. `levels[0]` is ordered newest first, the others by key.
pub(crate) fn choose(levels: &[Vec<Shape<'_>>], targets: &Targets) -> Choice {
    let (level, urgency) = targets.most_urgent(levels);
    if urgency < 1.0 {
        return Choice::Nothing;
    }
    if level == 0 { whole_level0(levels) } else { cheapest_table(levels, level) }
}

/// The tables of the deepest level and every one above it, into the deepest: for `Db::compact`.
pub(crate) fn everything(levels: &[Vec<Shape<'_>>]) -> Choice {
    let Some(top) = levels.iter().position(|level| !level.is_empty()) else {
        return Choice::Nothing;
    };
    let deepest = levels.iter().rposition(|level| !level.is_empty()).unwrap_or(top);
    if top == deepest && top > 0 {
        return Choice::Nothing;
    }
    let to = deepest.max(1);
    let ids = |levels: &[Vec<Shape<'_>>]| levels.iter().flatten().map(|table| table.id).collect();
    Choice::Merge { upper: ids(&levels[..to]), lower: ids(&levels[to..=to.max(deepest)]), to }
}

fn whole_level0(levels: &[Vec<Shape<'_>>]) -> Choice {
    let upper: Vec<u64> = levels[0].iter().map(|table| table.id).collect();
    let range = range_of(&levels[0]);
    let lower: Vec<u64> = overlapping(&levels[1], &range).map(|table| table.id).collect();
    if let ([table], true) = (&upper[..], lower.is_empty()) {
        return Choice::Move { table: *table, to: 1 };
    }
    Choice::Merge { upper, lower, to: 1 }
}

/// The table of a level whose move down rewrites the least for each of its bytes.
fn cheapest_table(levels: &[Vec<Shape<'_>>], level: usize) -> Choice {
    let below = &levels[level + 1];
    let cost = |table: &Shape<'_>| {
        let range = table.smallest..=table.largest;
        let rewritten: u64 = overlapping(below, &range).map(|lower| lower.bytes).sum();
        rewritten as f64 / table.bytes.max(1) as f64
    };
    let cheapest = levels[level].iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    let table = cheapest.expect("a level over its target has tables");
    let range = table.smallest..=table.largest;
    let lower: Vec<u64> = overlapping(below, &range).map(|table| table.id).collect();
    if lower.is_empty() {
        Choice::Move { table: table.id, to: level + 1 }
    } else {
        Choice::Merge { upper: vec![table.id], lower, to: level + 1 }
    }
}

fn range_of<'a>(tables: &[Shape<'a>]) -> RangeInclusive<&'a [u8]> {
    let smallest = tables.iter().map(|table| table.smallest).min().unwrap_or_default();
    let largest = tables.iter().map(|table| table.largest).max().unwrap_or_default();
    smallest..=largest
}

fn overlapping<'l, 'a>(
    level: &'l [Shape<'a>],
    range: &'l RangeInclusive<&'a [u8]>,
) -> impl Iterator<Item = &'l Shape<'a>> {
    level.iter().filter(|table| {
        table.smallest <= *range.end() && table.largest >= *range.start()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: Targets = Targets { level0_tables: 4, level1_bytes: 100, ratio: 10 };

    fn table(id: u64, bytes: u64, range: (&'static str, &'static str)) -> Shape<'static> {
        Shape { id, bytes, smallest: range.0.as_bytes(), largest: range.1.as_bytes() }
    }

    fn levels(filled: Vec<Vec<Shape<'static>>>) -> Vec<Vec<Shape<'static>>> {
        let mut levels = filled;
        levels.resize(MAX_LEVELS, Vec::new());
        levels
    }

    #[test]
    fn nothing_is_done_within_the_targets() {
        let few = (1..4).map(|id| table(id, 50, ("a", "z"))).collect();
        assert_eq!(choose(&levels(vec![few]), &TARGETS), Choice::Nothing);
        assert_eq!(choose(&levels(vec![]), &TARGETS), Choice::Nothing);
    }

    #[test]
    fn level_0_goes_as_a_whole_with_what_it_overlaps() {
        let level0 = (1..5).map(|id| table(id, 50, ("f", "k"))).collect();
        let level1 = vec![table(10, 9, ("a", "e")), table(11, 9, ("h", "i")), table(12, 9, ("k", "z"))];
        assert_eq!(
            choose(&levels(vec![level0, level1]), &TARGETS),
            Choice::Merge { upper: vec![1, 2, 3, 4], lower: vec![11, 12], to: 1 }
        );
    }

    #[test]
    fn a_level_gives_the_table_that_is_cheapest_to_move() {
        let level1 = vec![table(1, 80, ("a", "c")), table(2, 80, ("d", "f"))];
        let level2 = vec![table(3, 500, ("b", "c")), table(4, 40, ("d", "e"))];
        assert_eq!(
            choose(&levels(vec![vec![], level1.clone(), level2]), &TARGETS),
            Choice::Merge { upper: vec![2], lower: vec![4], to: 2 }
        );
        let apart = vec![table(3, 500, ("b", "c"))];
        assert_eq!(
            choose(&levels(vec![vec![], level1, apart]), &TARGETS),
            Choice::Move { table: 2, to: 2 }
        );
    }

    #[test]
    fn everything_ends_in_the_deepest_level() {
        let filled = vec![
            vec![table(1, 1, ("a", "b"))],
            vec![table(2, 1, ("a", "b"))],
            vec![table(3, 1, ("x", "z"))],
        ];
        assert_eq!(
            everything(&levels(filled)),
            Choice::Merge { upper: vec![1, 2], lower: vec![3], to: 2 }
        );
        assert_eq!(everything(&levels(vec![vec![], vec![table(2, 1, ("a", "b"))]])), Choice::Nothing);
    }
}
