//! The row `finalize`: an upgrade that is reverted, repeated and finalized. Needs the binaries of
//! three successive releases, which `testing/torture/finalize.sh` builds. The numbers 1 to 3 are
//! the store formats and the versions of the peer protocol that each release supports.
//!
//! ```text
//!  earlier (1)        up ─▶ this (1, 2)   each node stopped, then killed once more
//!  earlier (1)  ◀─ back     this          each node killed
//!  earlier            up ─▶ this          one node is dead; one node's clock is set back
//!                           this ─ finalize: refused while a node is dead, or of the earlier
//!                                  release; a node killed in its raise; asked again: 2
//!  earlier refuses the directory, later (2, 3) works beside this, and refuses the earlier one
//! ```
//!
//! Clients send requests throughout, with up to two attempts each. The ledger records the
//! acknowledged writes. A refused start and a refused finalize must not change a byte of a
//! directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::clock::{fake_clocks, set};
use kit::faults::strace::Strace;
use kit::oracle::ledger::Ledger;
use kit::workload::prober::{ProbeFigures, ProbeParams, Prober};

use crate::Setup;
use crate::restart::restarts::check_all_succeeded;

const NODES: usize = 3;

/// The node that is killed while it raises its store format.
const KILLED_NODE: usize = 2;

/// The node whose clock is set back, and the offset in seconds, small enough for the node to start.
const SKEWED_NODE: usize = 1;
const CLOCK_OFFSET_S: i64 = -20;

/// Reciprocal of the maximum share of requests that may fail at two nodes while one node's clock is
/// wrong.
const FAILURE_DIVISOR: u64 = 4;

/// Time for which nodes of both releases run together.
const MIXED: Duration = Duration::from_millis(700);

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for a log line, and for the raise of a store format to begin.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Content and modification time of each file of a directory, by path.
type Files = BTreeMap<PathBuf, (Vec<u8>, Option<SystemTime>)>;

struct FinalizeRow<'a> {
    setup: &'a Setup,
    earlier: &'a Path,
    later: &'a Path,
    cluster: Cluster,
    /// The files that control the nodes' clocks.
    clocks: Vec<PathBuf>,
    ledger: Arc<Ledger>,
    figures: RollFigures,
}

#[derive(Debug, Default)]
struct RollFigures {
    requests: u64,
    retried: u64,
    failed_by_clock: usize,
    longest_gap: Duration,
    killed_before: u32,
    killed_between: u32,
}

/// Runs the row `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let (Some(earlier), Some(later)) = (&setup.earlier, &setup.later) else {
        let why = "it needs --earlier and --later, as testing/torture/finalize.sh builds them";
        return Err(Failure::Skipped(why.to_owned()));
    };
    let mut figures = RollFigures::default();
    for round in 0..setup.rounds {
        let mut cluster = Cluster::plan(earlier, NODES, None, &["--sync", "always"])?;
        let clocks = fake_clocks(&mut cluster)?;
        let ledger = Arc::new(Ledger::default());
        let mut row = FinalizeRow { setup, earlier, later, cluster, clocks, ledger, figures };
        row.round(u64::from(round))?;
        figures = row.figures;
    }
    Ok(format!(
        "{} times up, back, up again and finalized: {} requests, {} tried twice, 0 failed (beside \
         a clock that was set back {}), longest gap {} ms; a node killed in {} raises ({} before \
         them); 0 lost, and no refusal changed a byte",
        setup.rounds,
        figures.requests,
        figures.retried,
        figures.failed_by_clock,
        figures.longest_gap.as_millis(),
        figures.killed_between,
        figures.killed_before,
    ))
}

impl FinalizeRow<'_> {
    fn round(&mut self, round: u64) -> Result<(), Failure> {
        (0..NODES).try_for_each(|node| self.cluster.start_node(node))?;
        self.cluster.wait_until_ready()?;
        let seed = self.setup.seed + round;
        self.under_load(seed, |row| {
            for node in 0..NODES {
                row.cluster.stop(node)?;
                row.start_as(node, row.setup.binary.clone())?;
                row.cluster.kill(node)?;
                thread::sleep(MIXED / 4);
                row.start_as(node, row.setup.binary.clone())?;
            }
            for node in 0..NODES {
                row.cluster.kill(node)?;
                row.start_as(node, row.earlier.to_owned())?;
            }
            Ok(())
        })?;
        self.check_skipped_release_refused()?;
        self.upgrade_with_node_down()?;
        self.upgrade_with_clock_set_back(seed)?;
        self.finalize(seed)?;
        self.check_downgrade_refused()?;
        self.check_release_compatibility()?;
        self.cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
        self.cluster.check(&self.ledger)?;
        Ok(())
    }

    /// Starts a node with this binary, and waits until the cluster is ready.
    fn start_as(&mut self, node: usize, binary: PathBuf) -> Result<(), Failure> {
        self.cluster.launches[node].binary = binary;
        self.cluster.start_node(node)?;
        self.cluster.wait_until_ready()?;
        thread::sleep(MIXED);
        Ok(())
    }

    /// Runs `what` while clients send requests. No request may fail at two nodes.
    fn under_load(
        &mut self,
        seed: u64,
        what: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let seen = self.beside_clients(seed, what)?;
        check_all_succeeded(&seen)
    }

    fn beside_clients(
        &mut self,
        seed: u64,
        what: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<ProbeFigures, Failure> {
        let addresses = self.cluster.addresses();
        let prober = Prober::start(addresses, &self.ledger, ProbeParams::USUAL, seed)?;
        thread::sleep(MIXED);
        let done = what(self);
        let seen = prober.stop()?;
        done?;
        self.figures.requests += seen.requests;
        self.figures.retried += seen.retried;
        self.figures.longest_gap = self.figures.longest_gap.max(seen.longest_gap);
        self.cluster.check(&self.ledger)?;
        Ok(seen)
    }

    /// Checks that a release which no longer supports the store's format refuses the directory.
    fn check_skipped_release_refused(&mut self) -> Result<(), Failure> {
        self.cluster.stop(0)?;
        self.check_refused_start(
            0,
            self.later.to_owned(),
            "this release opens 2 to 3: nothing was changed",
        )?;
        self.start_as(0, self.earlier.to_owned())
    }

    /// Upgrades a node while another node is down. No quorum serves meanwhile, and no write may be
    /// lost.
    fn upgrade_with_node_down(&mut self) -> Result<(), Failure> {
        self.cluster.kill(KILLED_NODE)?;
        self.cluster.stop(0)?;
        self.cluster.launches[0].binary.clone_from(&self.setup.binary);
        self.cluster.start_node(0)?;
        self.start_as(KILLED_NODE, self.earlier.to_owned())?;
        self.cluster.check(&self.ledger)?;
        self.refuses_to_finalize("upgrade n2, then ask again")
    }

    /// Upgrades a node, and sets its clock back while the node is down.
    fn upgrade_with_clock_set_back(&mut self, seed: u64) -> Result<(), Failure> {
        let seen = self.beside_clients(seed, |row| {
            row.cluster.stop(SKEWED_NODE)?;
            set(&row.clocks[SKEWED_NODE], CLOCK_OFFSET_S)?;
            row.cluster.launches[SKEWED_NODE].binary.clone_from(&row.setup.binary);
            row.cluster.start_node(SKEWED_NODE)?;
            thread::sleep(MIXED * 2);
            set(&row.clocks[SKEWED_NODE], 0)?;
            row.cluster.wait_until_ready()
        })?;
        if seen.failed.len() as u64 * FAILURE_DIVISOR > seen.requests {
            return Err(Failure::Broken(format!(
                "{} of {} requests failed at two nodes with one clock of three set back",
                seen.failed.len(),
                seen.requests
            )));
        }
        self.figures.failed_by_clock += seen.failed.len();
        self.under_load(seed + 1, |row| {
            row.cluster.stop(KILLED_NODE)?;
            row.start_as(KILLED_NODE, row.setup.binary.clone())
        })
    }

    /// Finalizes the upgrade. Before that, finalize must be refused while a node is down, and a
    /// node is killed while it raises its store format.
    fn finalize(&mut self, seed: u64) -> Result<(), Failure> {
        self.cluster.kill(KILLED_NODE)?;
        self.refuses_to_finalize("n3 does not tell its store format")?;
        self.start_as(KILLED_NODE, self.setup.binary.clone())?;
        self.under_load(seed + 2, |row| {
            row.kill_during_raise()?;
            let known = row.formats()?;
            if known.contains(&1) {
                row.cluster.output(&row.setup.binary, 1, &["finalize"])?;
            }
            let again = row.cluster.output(&row.setup.binary, 1, &["finalize"])?;
            let again = String::from_utf8_lossy(&again).into_owned();
            match (row.formats()?, again.starts_with("nothing to do")) {
                (formats, true) if formats == [2; NODES] => Ok(()),
                (formats, _) => {
                    Err(Failure::Broken(format!("{formats:?} after finalize, which says {again}")))
                }
            }
        })
    }

    /// Kills a node while it raises its store format: strace delays the rename that completes the
    /// raise.
    fn kill_during_raise(&mut self) -> Result<(), Failure> {
        let log = self.cluster.dir().join("strace");
        let node = self.cluster.node(KILLED_NODE)?;
        let strace = Strace::attach(node, "rename", "delay_enter=3000000", &log)?;
        let (cluster, setup) = (&self.cluster, self.setup);
        let asked = thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.command(&setup.binary, 0, &["finalize"]));
            let begun = Instant::now();
            while !cluster.data(KILLED_NODE).join("STORE.tmp").exists() && begun.elapsed() < TIMEOUT
            {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(200));
            let killed = rustix::process::kill_process(
                rustix::process::Pid::from_raw(node.pid() as i32).expect("it runs"),
                rustix::process::Signal::KILL,
            );
            killed.map_err(std::io::Error::from)?;
            // The dead node's connections stay open as long as strace delays one of its threads.
            strace.kill();
            asked.join().map_err(|_| Failure::Environment("a command panicked".to_owned()))?
        })?;
        self.cluster.kill(KILLED_NODE)?;
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        let store = format_in(self.cluster.data(KILLED_NODE))?;
        match (asked.status.success(), store) {
            (false, 1) if said.contains("not known to have it: n3") => {
                self.figures.killed_between += 1;
            }
            (false, 1) if said.contains("no store was raised") => self.figures.killed_before += 1,
            (success, store) => {
                return Err(Failure::Broken(format!(
                    "finalize beside a killed node succeeded: {success}, with store format {store} \
                     there: {said}"
                )));
            }
        }
        self.start_as(KILLED_NODE, self.setup.binary.clone())
    }

    /// Returns the store format of each node, as its status reports it. It must equal the format in
    /// the file `STORE`.
    fn formats(&self) -> Result<Vec<u32>, Failure> {
        let of = |node| -> Result<u32, Failure> {
            let status: Value = serde_json::from_str(&self.cluster.status(node)?)
                .map_err(|error| Failure::Broken(format!("a status is not JSON: {error}")))?;
            let told = status["store_format"].as_u64().unwrap_or(0) as u32;
            let stored = format_in(self.cluster.data(node))?;
            if told == stored {
                return Ok(told);
            }
            Err(Failure::Broken(format!("a node tells format {told}, and STORE has {stored}")))
        };
        (0..NODES).map(of).collect()
    }

    /// Checks that finalize is refused with the reason `why`, and changes no store.
    fn refuses_to_finalize(&self, why: &str) -> Result<(), Failure> {
        let stores = || (0..NODES).map(|node| fs::read(self.cluster.data(node).join("STORE")));
        let before: Vec<Vec<u8>> = stores().collect::<Result<_, _>>()?;
        let asked = self.cluster.command(&self.setup.binary, 0, &["finalize"])?;
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        let after: Vec<Vec<u8>> = stores().collect::<Result<_, _>>()?;
        if asked.status.success() || !said.contains(why) || before != after {
            return Err(Failure::Broken(format!("finalize was to be refused by {why:?}: {said}")));
        }
        Ok(())
    }

    /// Checks that the earlier release refuses a finalized directory.
    fn check_downgrade_refused(&mut self) -> Result<(), Failure> {
        self.cluster.stop(0)?;
        let why = "STORE has format version 2, this release reads up to 1: nothing was changed";
        self.check_refused_start(0, self.earlier.to_owned(), why)
    }

    /// Checks that a node refuses to start with the reason `why`, and does not change its
    /// directory.
    fn check_refused_start(
        &mut self,
        node: usize,
        binary: PathBuf,
        why: &str,
    ) -> Result<(), Failure> {
        let before = files(self.cluster.data(node))?;
        self.cluster.launches[node].binary = binary;
        match self.cluster.start_node(node) {
            Err(Failure::Refused(said)) if said.contains(why) => {}
            Err(other) => return Err(other),
            Ok(()) => return Err(Failure::Broken(format!("a start was to be refused by {why:?}"))),
        }
        let after = files(self.cluster.data(node))?;
        if before == after {
            return Ok(());
        }
        let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
        let differing: Vec<_> = before.keys().chain(after.keys()).filter(differs).collect();
        Err(Failure::Broken(format!("a refused start changed {differing:?}")))
    }

    /// Checks which releases work together. A node of the later release works beside nodes of this
    /// release. It refuses a node of the earlier release, even with an empty disk, and logs the
    /// reason. As this release, that node is rebuilt, and finalize raises its new store.
    fn check_release_compatibility(&mut self) -> Result<(), Failure> {
        self.start_as(0, self.later.to_owned())?;
        let empty = SKEWED_NODE;
        self.cluster.stop(empty)?;
        fs::remove_dir_all(self.cluster.data(empty))?;
        self.cluster.launches[empty].binary = self.earlier.to_owned();
        self.cluster.start_node(empty)?;
        self.logs(0, "supports version 1 of the peer protocol, this node, n1, versions 2 to 3")?;
        self.cluster.kill(empty)?;
        fs::remove_dir_all(self.cluster.data(empty))?;
        self.start_as(empty, self.setup.binary.clone())?;
        if self.formats()? != [2, 1, 2] {
            return Err(Failure::Broken(format!("{:?} with a new disk", self.formats()?)));
        }
        self.cluster.output(&self.setup.binary, KILLED_NODE, &["finalize"])?;
        match self.formats()? {
            formats if formats == [2; NODES] => Ok(()),
            formats => Err(Failure::Broken(format!("{formats:?} after the new disk's raise"))),
        }
    }

    /// Waits until a node has logged `what`.
    fn logs(&self, node: usize, what: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let log = fs::read_to_string(&self.cluster.launches[node].log)?;
            if log.contains(what) {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(Failure::Broken(format!("a node has not logged {what:?}: {last:?}")));
            }
            thread::sleep(RETRY_PAUSE);
        }
    }
}

/// Returns the store format in the file `STORE` of a directory.
fn format_in(data: &Path) -> Result<u32, Failure> {
    let bytes = fs::read(data.join("STORE"))?;
    let field = bytes.get(8..12).and_then(|field| field.try_into().ok());
    let field = field.ok_or_else(|| Failure::Broken("STORE is cut short".to_owned()))?;
    Ok(u32::from_le_bytes(field))
}

/// Returns the contents of all files of a directory.
fn files(data: &Path) -> Result<Files, Failure> {
    let mut found = Files::new();
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        let changed = fs::metadata(&path)?.modified().ok();
        found.insert(path.clone(), (fs::read(&path)?, changed));
    }
    Ok(found)
}
