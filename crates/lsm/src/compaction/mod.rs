//! Compaction: choosing is pure ([`choose`]), merging is in [`crate::engine`].

mod choose;

pub(crate) use choose::{Choice, MAX_LEVELS, Shape, Targets, choose, everything};
