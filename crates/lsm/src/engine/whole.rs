//! Compacts the whole store on request, one step per call. [`Descent`] chooses the steps.

use std::cell::Cell;

use super::tree::{Levels, lock, shapes};
use super::{Engine, Work};
use crate::compaction::{Choice, Descent};
use crate::error::Error;
use crate::table::Table;

/// Progress of a compaction of the whole store. The default is its start; the caller flushes
/// beforehand the memtables that it should include.
#[derive(Debug, Clone, Default)]
pub struct Whole {
    tree: usize,
    descent: Descent,
    /// Number of records that the steps so far have processed …
    pub(crate) done: u64,
    /// … of this estimated total.
    pub(crate) of: u64,
}

impl Engine {
    /// Executes the next step; [`Work::Nothing`] = the compaction is complete.
    pub fn compact_next(&self, whole: &mut Whole) -> Result<Work, Error> {
        let reached = self.options.purge.reached();
        let dropping = self.options.purge.leftovers().number();
        let purgeable =
            |table: &Table| table.purgeable_at_most(reached).max(table.leftovers_at_most(dropping));
        while whole.tree < self.trees.len() {
            self.may_go_on()?;
            // A failed step must be repeated, so it advances a copy of the position.
            let (mut descent, passed) = (whole.descent.clone(), Cell::new(0));
            let choose = |levels: &Levels| {
                let shapes = shapes(levels, purgeable);
                let choice = descent.next(&shapes);
                let all = shapes.iter().flatten();
                passed.set(all.filter(|t| takes(&choice, t.id)).map(|t| t.entries).sum());
                choice
            };
            let work = self.compact_tree(whole.tree, choose)?;
            whole.descent = descent;
            whole.done += passed.get();
            whole.of = whole.done + self.left(whole, purgeable);
            if work == Work::Done {
                return Ok(Work::Done);
            }
            whole.tree += 1;
            whole.descent = Descent::default();
        }
        // Steps skip tables known to be damaged; such a compaction is incomplete and fails here.
        let damaged = lock(&self.background.damaged).first_key_value().map(|(_, e)| e.clone());
        damaged.map_or(Ok(Work::Nothing), Err)
    }

    /// Compacts all tables of every tree into its deepest level, without flushing first.
    pub fn compact_all(&self) -> Result<(), Error> {
        let mut whole = Whole::default();
        while self.compact_next(&mut whole)? == Work::Done {}
        Ok(())
    }

    /// Estimated number of records still to be processed.
    fn left(&self, whole: &Whole, purgeable: impl Fn(&Table) -> u64) -> u64 {
        let of_tree = |tree: usize| {
            let begun = tree == whole.tree;
            let descent = if begun { whole.descent.clone() } else { Descent::default() };
            descent.left(&shapes(&self.trees[tree].load_full().levels, &purgeable))
        };
        (whole.tree..self.trees.len()).map(of_tree).sum()
    }

    /// Bytes of all tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        let bytes = |levels: &Levels| levels.iter().flatten().map(|t| t.meta().bytes).sum::<u64>();
        self.trees.iter().map(|tree| bytes(&tree.load().levels)).sum()
    }
}

fn takes(choice: &Choice, table: u64) -> bool {
    match choice {
        Choice::Nothing => false,
        Choice::Move { table: moved, .. } => *moved == table,
        Choice::Merge { upper, lower, .. } => upper.contains(&table) || lower.contains(&table),
    }
}
