//! A process that looks into itself while it serves: flame graphs of CPU, allocation, lock and wall
//! time, with nothing attached, no root and no restart.

#[cfg(feature = "record")]
pub mod folded;
#[cfg(feature = "record")]
pub mod graph;

#[cfg(feature = "record")]
pub use folded::Folded;
