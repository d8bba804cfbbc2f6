//! The engine under every fault that a disk in memory can play: crashes, errors, a lack of room,
//! damage. Rows of `docs/reliability.md` are named at each test. Short here; the long form of each
//! is the same test with `KVORUM_SEEDS=<n>` (times the work) in the environment:
//!
//! ```text
//! KVORUM_SEEDS=100 cargo test --release -p lsm --test faults -- --nocapture
//! ```

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod background;
mod concurrent;
mod crash;
mod damage;
mod errors;
mod fixture;
mod full;
mod model;
mod planted;
mod random;
mod restarts;
mod swapped;
