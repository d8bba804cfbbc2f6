//! The engine under every fault that a disk in memory can simulate: crashes, errors, lack of space,
//! damage. Each test names its row of `docs/results/reliability.md`. The tests are short by
//! default; `KVORUM_SEEDS=<n>` in the environment multiplies their work by n:
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
