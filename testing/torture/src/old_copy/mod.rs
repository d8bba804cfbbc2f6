//! Data directories that are replaced by an older copy, or used by two processes.

pub mod lost_interval;
pub mod outdated;
pub mod rollback;
pub mod set_aside;
pub mod twins;
