//! Compaction strategy: pure functions that choose compactions ([`choose`], [`Descent`]).
//! [`crate::engine`] executes them.

mod choose;
mod descent;

pub(crate) use choose::{CompactionChoice, LevelTargets, MAX_LEVELS, TableShape, choose};
pub(crate) use descent::Descent;
