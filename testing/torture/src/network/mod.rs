//! Links that are cut, lossy or slow, and processes that pose as nodes.

pub mod partition;
pub mod stranger;
