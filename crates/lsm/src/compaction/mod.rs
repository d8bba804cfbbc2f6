//! Compaction: choosing is pure ([`choose`]), merging is in [`crate::engine`].

mod choose;
mod whole;

pub(crate) use choose::{Choice, MAX_LEVELS, Shape, Targets, choose};
pub(crate) use whole::Descent;
