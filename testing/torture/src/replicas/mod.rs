//! Replicas that differ: hints, repair rounds, and purged deletes that must not reappear.

pub mod hints;
pub(crate) mod proofs;
pub mod purge;
pub mod repair;
pub mod strikes;
pub mod tombstones;
