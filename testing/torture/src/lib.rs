//! Injects faults into running `kvorum` nodes, and checks their acknowledged writes afterwards.
//!
//! ```text
//!  writers ──HTTP──▶ node (a real process) ◀── kill -9, power cut, full disk, EIO, no descriptors
//!     │                │ restarted
//!     └──▶ ledger ◀────┘ values found: acknowledged? invented? reverted?
//! ```
//!
//! Each *row* of the table in `docs/results/reliability.md` is a module with a function `run`. The
//! binary runs rows in full length, and the tests of the workspace run each row for a few seconds.
//!
//! The folders are named after the broken part:
//!
//! ```text
//!  clients   slow, idle, and with malformed requests
//!  clock     wrong and stepping wall clocks, values that expire
//!  combined  faults of several kinds at once
//!  crash     kill -9, SIGTERM, SIGSTOP
//!  disk      power cuts, full, failing, rotten, slow and wiped disks
//!  limits    too little memory, too few descriptors, overload
//!  members   nodes that join, leave and are replaced
//!  network   partitions, lossy and slow links, strangers
//!  old_copy  an older copy of a data directory, a copy beside the node
//!  replicas  replicas that differ: hints, repair rounds, purged deletes
//!  restart   rolling restarts, upgrades, changed settings
//! ```

pub mod clients;
pub mod clock;
pub mod combined;
pub mod crash;
pub mod disk;
pub mod limits;
pub mod members;
pub mod network;
pub mod old_copy;
pub mod replicas;
pub mod restart;

use std::path::{Path, PathBuf};

use kit::node::Launch;

/// Parameters of a row.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The `kvorum` binary.
    pub binary: PathBuf,
    /// Number of times that the fault is injected.
    pub rounds: u32,
    /// True for the sizes and durations of a test, false for those of a published run.
    pub quick: bool,
    /// Seed of the random choices.
    pub seed: u64,
    /// The binary of an earlier release, for the row that upgrades its nodes.
    pub earlier: Option<PathBuf>,
    /// The binary of a later release, for the row that finalizes an upgrade.
    pub later: Option<PathBuf>,
    /// Directory for the curves; `None` if curves are not stored.
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
