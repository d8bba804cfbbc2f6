//! Compacts the whole store on request, one step per call. [`Descent`] chooses the steps.

use std::cell::Cell;

use super::compactor::Compactor;
use super::core::Core;
use super::flush::StepOutcome;
use super::tree::{Levels, shapes};
use crate::compaction::{CompactionChoice, Descent};
use crate::error::Error;
use crate::table::Table;

/// Progress of a compaction of the whole store. The default value is the start of the compaction.
/// Before the start, the caller flushes the memtables that the compaction should include.
#[derive(Debug, Clone, Default)]
pub struct FullCompaction {
    tree: usize,
    descent: Descent,
    /// Number of records that the steps so far have processed.
    pub(crate) done: u64,
    /// Estimated number of records that all steps process.
    pub(crate) of: u64,
}

impl FullCompaction {
    /// Executes the next step; [`StepOutcome::Nothing`] = the compaction is complete.
    pub(super) fn next_step(
        &mut self,
        core: &Core,
        compactor: &Compactor,
    ) -> Result<StepOutcome, Error> {
        let purge_limit = core.options.purge.purge_limit();
        let dropping = core.options.purge.orphans().number();
        let purgeable = |table: &Table| {
            table.purgeable_at_most(purge_limit).max(table.orphans_at_most(dropping))
        };
        while self.tree < core.trees.len() {
            compactor.check_not_closing(core)?;
            // The step advances a copy of the position, so that a failed step can be repeated.
            let (mut descent, passed) = (self.descent.clone(), Cell::new(0));
            let choose = |levels: &Levels| {
                let shapes = shapes(levels, purgeable);
                let choice = descent.next(&shapes);
                let all = shapes.iter().flatten();
                passed.set(all.filter(|t| includes_table(&choice, t.id)).map(|t| t.entries).sum());
                choice
            };
            let work = compactor.compact_tree(core, self.tree, choose)?;
            self.descent = descent;
            self.done += passed.get();
            self.of = self.done + self.remaining_records(core, purgeable);
            if work == StepOutcome::Done {
                return Ok(StepOutcome::Done);
            }
            self.tree += 1;
            self.descent = Descent::default();
        }
        // Steps skip tables known to be damaged; the compaction is then incomplete and fails here.
        core.trees.damaged_tables().skipped_error().map_or(Ok(StepOutcome::Nothing), Err)
    }

    /// Estimated number of records still to be processed.
    fn remaining_records(&self, core: &Core, purgeable: impl Fn(&Table) -> u64) -> u64 {
        let of_tree = |tree: usize| {
            let is_current = tree == self.tree;
            let descent = if is_current { self.descent.clone() } else { Descent::default() };
            descent
                .remaining_records(&shapes(&core.trees.tree(tree).load_full().levels, &purgeable))
        };
        (self.tree..core.trees.len()).map(of_tree).sum()
    }
}

fn includes_table(choice: &CompactionChoice, table: u64) -> bool {
    match choice {
        CompactionChoice::Nothing => false,
        CompactionChoice::Move { table: moved, .. } => *moved == table,
        CompactionChoice::Merge { upper, lower, .. } => {
            upper.contains(&table) || lower.contains(&table)
        }
    }
}
