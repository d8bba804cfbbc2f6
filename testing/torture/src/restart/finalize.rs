//! The row `finalize`: an upgrade that goes back, and its end. Needs the binaries of three
//! successive releases, which `testing/torture/finalize.sh` builds; 1 to 3 are the store formats
//! and the versions of the peer protocol that each of them knows.
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
//! Clients send meanwhile, and try each request at most twice. The ledger knows what was
//! acknowledged. A refused start and a refused finalize change no byte of a directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::clock::{faked, set};
use kit::faults::strace::Strace;
use kit::oracle::ledger::Ledger;
use kit::workload::prober::{ProbeFigures, ProbeParams, Prober};

use crate::Setup;
use crate::restart::restarts::check_all_succeeded;

const NODES: usize = 3;

/// The node that is killed in its raise.
const STRUCK: usize = 2;

/// The node whose clock is set back, and the seconds: less than a start refuses.
const BEHIND: usize = 1;
const BACK: i64 = -20;

/// Reciprocal of the share of requests that may fail at two nodes while one node's clock is wrong.
const SERVED: u64 = 4;

/// Time for which nodes of both releases run together.
const MIXED: Duration = Duration::from_millis(700);

/// Time within which hints make all replicas equal.
const BY_ITSELF: Duration = Duration::from_secs(30);

/// Time limit for a log line, or for a command that is repeated.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// The name, length, content and time of change of each file of a directory.
type Files = BTreeMap<PathBuf, (Vec<u8>, Option<SystemTime>)>;

struct FinalizeRow<'a> {
    setup: &'a Setup,
    earlier: &'a Path,
    later: &'a Path,
    cluster: Cluster,
    /// The file that controls each node's clock.
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
        let clocks = faked(&mut cluster)?;
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
        self.skips_no_release()?;
        self.up_beside_a_dead_node()?;
        self.up_with_a_clock_set_back(seed)?;
        self.finalize(seed)?;
        self.goes_not_back()?;
        self.mixes_no_three()?;
        self.cluster.wait_until_equal(BY_ITSELF)?;
        self.cluster.check(&self.ledger)?;
        Ok(())
    }

    /// Starts a node as this release, and waits until the cluster is whole.
    fn start_as(&mut self, node: usize, binary: PathBuf) -> Result<(), Failure> {
        self.cluster.launches[node].binary = binary;
        self.cluster.start_node(node)?;
        self.cluster.wait_until_ready()?;
        thread::sleep(MIXED);
        Ok(())
    }

    /// Does this while clients send; each request succeeds at one of two nodes.
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

    /// A release that does not know the store's format any more refuses the directory.
    fn skips_no_release(&mut self) -> Result<(), Failure> {
        self.cluster.stop(0)?;
        self.refused(0, self.later.to_owned(), "this release opens 2 to 3: nothing was changed")?;
        self.start_as(0, self.earlier.to_owned())
    }

    /// Upgrades a node while another one is dead; no quorum serves meanwhile, and nothing is lost.
    fn up_beside_a_dead_node(&mut self) -> Result<(), Failure> {
        self.cluster.kill(STRUCK)?;
        self.cluster.stop(0)?;
        self.cluster.launches[0].binary.clone_from(&self.setup.binary);
        self.cluster.start_node(0)?;
        self.start_as(STRUCK, self.earlier.to_owned())?;
        self.cluster.check(&self.ledger)?;
        self.refuses_to_finalize("upgrade n2, then ask again")
    }

    /// Upgrades a node whose clock is set back while the node is down.
    fn up_with_a_clock_set_back(&mut self, seed: u64) -> Result<(), Failure> {
        let seen = self.beside_clients(seed, |row| {
            row.cluster.stop(BEHIND)?;
            set(&row.clocks[BEHIND], BACK)?;
            row.cluster.launches[BEHIND].binary.clone_from(&row.setup.binary);
            row.cluster.start_node(BEHIND)?;
            thread::sleep(MIXED * 2);
            set(&row.clocks[BEHIND], 0)?;
            row.cluster.wait_until_ready()
        })?;
        if seen.failed.len() as u64 * SERVED > seen.requests {
            return Err(Failure::Broken(format!(
                "{} of {} requests failed at two nodes with one clock of three set back",
                seen.failed.len(),
                seen.requests
            )));
        }
        self.figures.failed_by_clock += seen.failed.len();
        self.under_load(seed + 1, |row| {
            row.cluster.stop(STRUCK)?;
            row.start_as(STRUCK, row.setup.binary.clone())
        })
    }

    /// Finalizes; one node is dead at first, and then killed in its raise.
    fn finalize(&mut self, seed: u64) -> Result<(), Failure> {
        self.cluster.kill(STRUCK)?;
        self.refuses_to_finalize("n3 does not tell its store format")?;
        self.start_as(STRUCK, self.setup.binary.clone())?;
        self.under_load(seed + 2, |row| {
            row.kill_in_the_raise()?;
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

    /// Kills a node while its raise is under way: strace delays the rename that ends the raise.
    fn kill_in_the_raise(&mut self) -> Result<(), Failure> {
        let log = self.cluster.dir().join("strace");
        let node = self.cluster.node(STRUCK)?;
        let strace = Strace::attach(node, "rename", "delay_enter=3000000", &log)?;
        let (cluster, setup) = (&self.cluster, self.setup);
        let asked = thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.command(&setup.binary, 0, &["finalize"]));
            let begun = Instant::now();
            while !cluster.data(STRUCK).join("STORE.tmp").exists() && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(200));
            let killed = rustix::process::kill_process(
                rustix::process::Pid::from_raw(node.pid() as i32).expect("it runs"),
                rustix::process::Signal::KILL,
            );
            killed.map_err(std::io::Error::from)?;
            // While strace holds the delayed thread, the dead node's connections stay open.
            strace.kill();
            asked.join().map_err(|_| Failure::Environment("a command panicked".to_owned()))?
        })?;
        self.cluster.kill(STRUCK)?;
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        let store = format_in(self.cluster.data(STRUCK))?;
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
        self.start_as(STRUCK, self.setup.binary.clone())
    }

    /// Returns the store format of each node, as the nodes tell it.
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

    /// Finalizes in vain, because of `why`. No store is changed.
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

    /// The earlier release refuses a finalized directory.
    fn goes_not_back(&mut self) -> Result<(), Failure> {
        self.cluster.stop(0)?;
        let why = "STORE has format version 2, this release reads up to 1: nothing was changed";
        self.refused(0, self.earlier.to_owned(), why)
    }

    /// Starts a node in vain, because of `why`. Its directory stays as it is.
    fn refused(&mut self, node: usize, binary: PathBuf, why: &str) -> Result<(), Failure> {
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

    /// A node of the later release works beside those of this one. One of the earlier release with
    /// an empty disk is told by the later one why the two can't work together. As this release, the
    /// node is rebuilt, and its new store is raised.
    fn mixes_no_three(&mut self) -> Result<(), Failure> {
        self.start_as(0, self.later.to_owned())?;
        let empty = BEHIND;
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
        self.cluster.output(&self.setup.binary, STRUCK, &["finalize"])?;
        match self.formats()? {
            formats if formats == [2; NODES] => Ok(()),
            formats => Err(Failure::Broken(format!("{formats:?} after the new disk's raise"))),
        }
    }

    /// Waits until a node has logged this.
    fn logs(&self, node: usize, what: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let log = fs::read_to_string(&self.cluster.launches[node].log)?;
            if log.contains(what) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(Failure::Broken(format!("a node has not logged {what:?}: {last:?}")));
            }
            thread::sleep(AGAIN);
        }
    }
}

/// Returns the store format in the file `STORE`.
fn format_in(data: &Path) -> Result<u32, Failure> {
    let bytes = fs::read(data.join("STORE"))?;
    let field = bytes.get(8..12).and_then(|field| field.try_into().ok());
    let field = field.ok_or_else(|| Failure::Broken("STORE is cut short".to_owned()))?;
    Ok(u32::from_le_bytes(field))
}

/// Returns all files of a directory.
fn files(data: &Path) -> Result<Files, Failure> {
    let mut found = Files::new();
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        let changed = fs::metadata(&path)?.modified().ok();
        found.insert(path.clone(), (fs::read(&path)?, changed));
    }
    Ok(found)
}
