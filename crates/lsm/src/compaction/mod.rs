//! Compaction strategy: pure functions that choose compactions ([`choose`], [`Descent`]).
//! [`crate::engine`] executes them.

mod choose;
mod descent;

pub(crate) use choose::{Choice, MAX_LEVELS, Shape, Targets, choose};
pub(crate) use descent::Descent;
