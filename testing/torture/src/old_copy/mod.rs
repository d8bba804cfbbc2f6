//! Data directories that are replaced by an older copy of themselves, or run twice.

pub mod lost_interval;
pub mod outdated;
pub mod rollback;
pub mod set_aside;
pub mod twins;
