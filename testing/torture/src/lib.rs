//! Breaks running `kvorum` nodes on purpose, and checks what became of their acknowledged writes.
//!
//! ```text
//!  writers ──HTTP──▶ node (a real process) ◀── kill -9, power cut, full disk, EIO, no descriptors
//!     │                │ restarted
//!     └──▶ ledger ◀────┘ values found: acknowledged? invented? reverted?
//! ```
//!
//! Each *row* of the table in `docs/results/reliability.md` is a module with a function `run`. The
//! binary runs rows in their long form, and the workspace's tests run each for a few seconds.

pub mod blackout;
pub mod clocks;
pub mod converge;
pub mod corrupt;
pub mod counters;
pub mod crowd;
pub mod descriptors;
pub mod disk_full;
mod expired;
pub mod expiry;
pub mod fuzz;
pub mod hints;
pub mod histories;
pub mod kill;
pub mod lives;
pub mod lost_interval;
pub mod members;
pub mod memory;
pub mod mixed;
pub mod outdated;
pub mod overload;
pub mod partition;
pub mod pause;
pub mod power_cut;
mod proofs;
pub mod purge;
pub mod real_input;
pub mod repair;
pub mod restarts;
pub mod rollback;
pub mod scans;
pub mod set_aside;
pub mod settings;
pub mod slow;
pub mod slow_replica;
pub mod stderr;
pub mod steady;
pub mod stranger;
pub mod strikes;
pub mod sync_error;
pub mod tombstones;
pub mod twins;
pub mod unread;
pub mod upgrade;
pub mod wiped;
pub mod wrong_clock;

use std::path::{Path, PathBuf};

use kit::node::Launch;

/// Parameters of a row.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The `kvorum` binary.
    pub binary: PathBuf,
    /// Number of times that the fault is injected.
    pub rounds: u32,
    /// True for the sizes and times of a test, false for those of a published run.
    pub quick: bool,
    /// Seed of the random choices.
    pub seed: u64,
    /// The binary of an earlier release, for the row that upgrades its nodes.
    pub earlier: Option<PathBuf>,
    /// Directory for curves, if curves are to be stored.
    pub curves: Option<PathBuf>,
}

impl Setup {
    /// Returns the launch parameters of a node with its data in `dir/data` and its log in
    /// `log_dir`.
    pub fn launch(&self, dir: &Path, log_dir: &Path, args: &[&str]) -> Launch {
        Launch::new(&self.binary, dir, log_dir, args)
    }

    /// Returns `quick` in a test, otherwise `full`.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
