//! Row 38 of docs/results/reliability.md, with kills: a node detects that its directory is an older
//! copy, and sets the directory aside. The node is killed before each call that creates, moves or
//! syncs a file. After a restart, the node must complete the move, start with an empty directory
//! and be rebuilt, and the directory that was set aside must be complete. The three nodes over
//! time:
//!
//! ```text
//!  A ─ base, copied ─ deletes ┬ proof ┬ stopped, copy put back ─ started ─ killed ─ started
//!  B ─ base ───────── deletes ┼ purge ┼───────────── paused, goes on ─┘ at step 1, 2, …
//!  C ─ base ───────── deletes ┘       └───────────── paused, goes on
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::strace::Strace;
use kit::oracle::audit;
use kit::oracle::ledger::Ledger;
use rustix::process::Signal;

use crate::Setup;
use crate::old_copy::outdated::{is_aside, is_set_aside, place_of};
use crate::old_copy::rollback::{A, B, C, NODES, copy, membership};
use crate::replicas::proofs::{ARGS, compact, prove, round, stage_of};

/// System calls that count as steps: each entry has the names of one kind on all architectures. A
/// test uses the second entry.
const STEPS: [&str; 3] = ["?mkdir,?mkdirat", "?rename,?renameat,?renameat2", "fsync"];

/// Maximum number of steps of one kind.
const MAX_STEPS: u32 = 60;

/// A test kills the node at one of this many steps.
const FEW: usize = 3;

/// Number of keys of each kind.
const KEYS: (u64, u64) = (200, 30);

/// Number of keys that are read singly, at every node with every quorum.
const READ_KEYS: usize = 10;

/// Timeout for a node to detect the older copy, or to be rebuilt.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// For each kind of step, kills the node at one step after another, until the node completes the
/// move before the kill.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    match one_by_one(setup) {
        Err(Failure::Skipped(why)) => Ok(format!("\n  killed while setting aside skipped: {why}")),
        other => other,
    }
}

fn one_by_one(setup: &Setup) -> Result<String, Failure> {
    let ledger = Ledger::default();
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &ARGS)?;
    let count = setup.size(KEYS.0, KEYS.1);
    audit::prepare(cluster.addresses(), &ledger, "", count)?;
    prove(setup, &cluster, B)?;
    let kept = cluster.dir().join("copy");
    cluster.stop(A)?;
    copy(cluster.data(A), &kept)?;
    cluster.start_node(A)?;
    cluster.wait_until_ready()?;
    audit::edit(cluster.addresses(), &ledger, "", count)?;
    prove(setup, &cluster, B)?;
    compact(setup, &cluster)?;
    let mut row = SetAsideRow { setup, cluster, ledger, kept, answers: 0 };
    let steps = setup.size(&STEPS[..], &STEPS[1..2]).iter();
    let kills = steps.map(|calls| row.kill_at_each(calls)).sum::<Result<usize, Failure>>()?;
    Ok(format!(
        "\n  killed at {kills} steps of setting an older copy aside: it starts, is rebuilt, and \
         what was set aside is whole; {} answers of every node under every quorum right",
        row.answers
    ))
}

struct SetAsideRow<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    ledger: Ledger,
    /// A copy of A's directory from before the deletes.
    kept: PathBuf,
    answers: u64,
}

impl SetAsideRow<'_> {
    /// Kills A at each step of the kind `calls`. Returns the number of kills.
    fn kill_at_each(&mut self, calls: &str) -> Result<usize, Failure> {
        for (kills, number) in (1..MAX_STEPS).step_by(self.setup.size(1, FEW)).enumerate() {
            let is_killed = kill_at(&mut self.cluster, &self.kept, (calls, number))?;
            self.check_rebuild().map_err(|failure| match failure {
                Failure::Broken(what) | Failure::Refused(what) => {
                    Failure::Broken(format!("killed at {calls} number {number}: {what}"))
                }
                other => other,
            })?;
            if !is_killed {
                return Ok(kills);
            }
        }
        Err(Failure::Environment(format!(
            "setting aside takes more than {MAX_STEPS} times {calls}"
        )))
    }

    fn check_rebuild(&mut self) -> Result<(), Failure> {
        wait_until_rebuilt(&mut self.cluster)?;
        check_whole(self.cluster.data(A))?;
        let full = round(self.setup, &self.cluster, A, true)?;
        if !full.is_equal || full.count("differing") > 0 {
            return Err(full.wrong("finds the rebuilt node not equal"));
        }
        self.answers += audit::check_everywhere(&self.cluster, &self.ledger, READ_KEYS)?;
        Ok(())
    }
}

/// Starts A on its older copy, and kills it before call number `number`. Returns true if A reached
/// this call.
fn kill_at(
    cluster: &mut Cluster,
    kept: &Path,
    (calls, number): (&str, u32),
) -> Result<bool, Failure> {
    cluster.stop(A)?;
    fs::remove_dir_all(cluster.data(A))?;
    copy(kept, cluster.data(A))?;
    // No peer may tell A that its copy is outdated before strace is attached.
    for other in [B, C] {
        cluster.node(other)?.signal(Signal::STOP)?;
    }
    cluster.start_node(A)?;
    let log = cluster.dir().join("strace.log");
    let kill = format!("signal=KILL:when={number}");
    let armed = Strace::attach(cluster.node(A)?, calls, &kill, &log);
    for other in [B, C] {
        cluster.node(other)?.signal(Signal::CONT)?;
    }
    let armed = armed?;
    let begun = Instant::now();
    while cluster.is_running(A)? {
        if begun.elapsed() > TIMEOUT {
            return Err(Failure::Broken("A does not notice that it is an older copy".to_owned()));
        }
        thread::sleep(POLL_INTERVAL);
    }
    drop(armed);
    Ok(place_of(cluster, A)?.is_none())
}

/// Restarts A until it keeps running and has all keys again. If A was killed before the first step,
/// it detects the older copy again.
fn wait_until_rebuilt(cluster: &mut Cluster) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        if !cluster.is_running(A)? {
            match cluster.start_node(A) {
                Err(Failure::Refused(said)) if is_set_aside(&said) => continue,
                started => started?,
            }
        }
        if membership(cluster, A).is_ok_and(|membership| membership == "member") {
            return cluster.wait_until_ready();
        }
        if begun.elapsed() > TIMEOUT {
            let status = cluster.status(A)?;
            return Err(Failure::Broken(format!("A is not rebuilt in {TIMEOUT:?}: {status}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Checks that exactly one directory was set aside, and that it is a complete store.
fn check_whole(data: &Path) -> Result<(), Failure> {
    let entries = fs::read_dir(data)?.flatten().map(|entry| entry.path());
    let aside: Vec<PathBuf> = entries.filter(|path| is_aside(path)).collect();
    let [place] = &aside[..] else {
        return Err(Failure::Broken(format!("{aside:?} were set aside")));
    };
    let opened = stage_of(place);
    opened.map(drop).map_err(|failure| Failure::Broken(format!("{}: {failure}", place.display())))
}
