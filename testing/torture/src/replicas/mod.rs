//! Replicas that differ: hints, repair rounds, and deletes that must stay deleted.

pub mod hints;
pub(crate) mod proofs;
pub mod purge;
pub mod repair;
pub mod strikes;
pub mod tombstones;
