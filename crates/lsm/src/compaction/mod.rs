//! Compaction: choosing is pure ([`choose`]), merging is in [`crate::core`].

mod choose;

pub(crate) use choose::{Choice, MAX_LEVELS, Shape, Targets, choose, everything};
