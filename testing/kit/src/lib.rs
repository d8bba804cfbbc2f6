//! Starts `kvorum` nodes as real processes, injects faults, and checks their answers. Every suite
//! and benchmark that needs a running node uses this crate.
//!
//! ```text
//!  workload ──client──▶ node, cluster (real processes) ◀── faults: disks, networks, clocks, calls
//!     │                                                        killed by pid, stopped, restarted
//!     └──▶ oracle ◀── values found: acknowledged? invented? reverted? linearizable?
//! ```

pub mod client;
pub mod cluster;
pub mod faults;
pub mod node;
pub mod oracle;
pub mod ports;
pub mod process;
pub mod random;
pub mod raw;
pub mod workload;

use std::io;

/// Reason why a scenario ended without results.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The nodes violated an invariant.
    #[error("BROKEN: {0}")]
    Broken(String),
    /// The node refused to start. The scenario decides whether the refusal is right.
    #[error("BROKEN: {0}")]
    Refused(String),
    /// The machine lacks something that the scenario needs.
    #[error("skipped: {0}")]
    Skipped(String),
    /// Something outside the node failed.
    #[error("could not be run: {0}")]
    Environment(String),
    /// A system call outside the node failed.
    #[error("could not be run: {0}")]
    Io(#[from] io::Error),
}
