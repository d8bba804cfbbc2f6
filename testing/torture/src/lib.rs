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

pub mod audit;
pub mod blackout;
pub mod client;
mod clients;
pub mod clocks;
pub mod cluster;
pub mod converge;
pub mod corrupt;
pub mod counters;
pub mod crowd;
pub mod curve;
pub mod descriptors;
pub mod disk_full;
mod expired;
pub mod expiry;
pub mod fill;
pub mod fuzz;
pub mod hints;
pub mod histories;
pub mod kill;
pub mod ledger;
pub mod lives;
pub mod lost_interval;
pub mod members;
pub mod memory;
pub mod mixed;
pub mod mount;
pub mod net;
pub mod node;
pub mod outdated;
pub mod overload;
pub mod partition;
pub mod pause;
pub mod ports;
pub mod power_cut;
pub mod prober;
mod proofs;
pub mod purge;
pub mod random;
pub mod real_input;
mod register;
pub mod repair;
pub mod restarts;
pub mod rollback;
pub mod rot;
pub mod scans;
pub mod set_aside;
pub mod settings;
pub mod slow;
pub mod slow_replica;
pub mod stderr;
pub mod steady;
pub mod strace;
pub mod stranger;
pub mod strikes;
pub mod sync_error;
pub mod tombstones;
pub mod twins;
pub mod unread;
pub mod upgrade;
pub mod wiped;
pub mod writers;
pub mod wrong_clock;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::ledger::{Ledger, ProcessState, Tally};
use crate::node::{Launch, Node};

/// The reason why a row ended without figures.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An invariant was broken.
    #[error("BROKEN: {0}")]
    Broken(String),
    /// The node refused to start. (Whether a refusal is right depends on the row.)
    #[error("BROKEN: {0}")]
    Refused(String),
    /// The machine lacks something that the row needs.
    #[error("skipped: {0}")]
    Skipped(String),
    /// Something outside the node failed.
    #[error("could not be run: {0}")]
    Environment(String),
    /// A system call outside the node failed.
    #[error("could not be run: {0}")]
    Io(#[from] io::Error),
}

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
        Launch {
            wrapper: Vec::new(),
            binary: self.binary.clone(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data: dir.join("data"),
            log: log_dir.join("node.log"),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        }
    }

    /// Returns `quick` in a test, otherwise `full`.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Reads a range over all keys. Returns the values by key.
pub fn read_all(node: &Node) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let (found, disorder) = client::read_patiently(node.address, |client| {
        let (mut found, mut last, mut disorder) = (BTreeMap::new(), Vec::new(), None);
        client.scan("%01", |key, value| {
            if key <= last.as_slice() {
                disorder = Some(String::from_utf8_lossy(key).into_owned());
            }
            last = key.to_vec();
            found.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
            Ok(())
        })?;
        Ok((found, disorder))
    })?;
    match disorder {
        Some(key) => Err(Failure::Broken(format!("{key} comes out of order in a range"))),
        None => Ok(found),
    }
}

/// Reads everything by range and by key. Both must agree, and satisfy oracles A and F.
pub fn check(node: &Node, ledger: &Ledger, process: ProcessState) -> Result<Tally, Failure> {
    let found = read_all(node)?;
    check_gets(node, ledger, &found)?;
    ledger.check(&found, process)
}

/// Checks that a `GET` of every key in the ledger returns the same value as the range.
pub fn check_gets(
    node: &Node,
    ledger: &Ledger,
    found: &BTreeMap<String, Vec<u8>>,
) -> Result<(), Failure> {
    let mut client = node.client()?;
    for key in ledger.keys() {
        let answer = client.get_patiently(&key)?;
        let same = match (answer.status, found.get(&key)) {
            (200, Some(value)) => *value == answer.body,
            (404, None) => true,
            _ => false,
        };
        if !same {
            let (status, there) = (answer.status, found.contains_key(&key));
            return Err(Failure::Broken(format!(
                "GET {key} answers {status}; that a range finds it is {there}"
            )));
        }
    }
    Ok(())
}
