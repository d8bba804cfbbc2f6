//! Row 28 of docs/results/reliability.md, with faults in the middle of repair rounds: a node is
//! killed or suspended, loses its disk or gets an older copy of it, has a full disk or a wrong
//! clock, or coordinates a second round at the same time. Keys are deleted throughout, each time
//! with one node down, and clients continue. Whatever the outcome of that round, a later round must
//! prove that all nodes are equal, compactions must purge the deletes, and no deleted key may ever
//! be visible.
//!
//! Some faults are injected at any time of a round, others between two steps (`between.rs`). For
//! the latter, strace delays a node's system calls. So these rows leave the clocks unchanged: a
//! node with an adjustable clock reads a file whenever it reads the clock, strace would delay each
//! of these reads, and rounds would proceed without the node.

mod between;

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::clock::{fake_clocks, set_millis};
use kit::faults::mount::Mount;
use kit::faults::strace::Strace;
use kit::oracle::audit;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::fill::{FillParams, fill};
use kit::workload::writers::{WriterParams, Writers};
use rustix::process::Signal;
use serde_json::Value;

use crate::Setup;
use crate::old_copy::outdated::wait_until_set_aside;
use crate::old_copy::rollback::{NODES, copy};
use crate::replicas::proofs::{
    ARGS, Stages, begin, compact, forget_hints, parse, prove, round, stage_of,
};
use crate::replicas::strikes::between::{InjectionPoint, MOMENTS};

/// A fault that is injected at any time of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    DriverKilled,
    OldCopy,
    Wiped,
    OtherKilled,
    TwoDrivers,
    DriverPaused,
    DiskFull,
    Rebuilt,
    OtherPaused,
    ClockOff,
}

/// A fault of the row, and its moment in the round.
#[derive(Debug, Clone, Copy)]
enum FaultMoment {
    Anywhere(FaultKind),
    Between(InjectionPoint),
}

/// Faults at any time of a round, in their order. A test uses the first entries.
const FAULTS_AT_ANY_TIME: [FaultKind; 10] = [
    FaultKind::DriverKilled,
    FaultKind::OldCopy,
    FaultKind::Wiped,
    FaultKind::OtherKilled,
    FaultKind::TwoDrivers,
    FaultKind::DriverPaused,
    FaultKind::DiskFull,
    FaultKind::Rebuilt,
    FaultKind::OtherPaused,
    FaultKind::ClockOff,
];

/// The node with a small disk, if the machine can mount one, and the disk's size in MiB.
const SMALL: usize = 2;
const DISK_MIB: u64 = 256;

/// Maximum duration of a suspension, in milliseconds, which exceeds the time after which a round
/// continues without the node; and maximum error of a clock, in milliseconds.
const PAUSE_MS: u64 = 4_000;
const OFF_MS: u64 = 4_000;

/// Percentage of steps in which hints are dropped, and percentage in which the node is killed
/// instead of stopped.
const DROPPED: u64 = 40;
const KILLED: u64 = 50;

/// Additional duration of one node's syncs while a fault is injected. Each step of a round ends
/// with a sync, so the rounds become longer.
const SLOW_SYNC: Duration = Duration::from_millis(40);

/// Number of keys that are read singly, at every node with every quorum.
const READ_KEYS: usize = 20;

/// Timeout of an answer, longer than the deadline inside the node.
const ANSWER: Duration = Duration::from_secs(5);

/// Time for which clients continue after a fault.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// Contents of a file that fills a disk.
static CHUNK: [u8; 1 << 16] = [0xbb; 1 << 16];

struct StrikesRow<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    ledger: Arc<Ledger>,
    random: Random,
    /// Number of killed or suspended nodes, by their stage in the round.
    stages: Stages,
    /// A node, and a copy of its directory from before the last proof.
    old: Option<(usize, PathBuf)>,
    /// Keys that the next step of the row deletes.
    doomed: Vec<String>,
    /// Duration of the last round.
    takes: Duration,
    disk: Option<Mount>,
    clocks: Option<Vec<PathBuf>>,
    answers: u64,
}

/// Injects `rounds` faults at any time of a round.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    strikes(setup, true, |number| {
        FaultMoment::Anywhere(FAULTS_AT_ANY_TIME[number % FAULTS_AT_ANY_TIME.len()])
    })
}

/// Injects `rounds` faults between two steps of a round.
pub fn between_steps(setup: &Setup) -> Result<String, Failure> {
    strikes(setup, false, |number| FaultMoment::Between(InjectionPoint::of(number % MOMENTS)))
}

fn strikes(
    setup: &Setup,
    sets_clocks: bool,
    when_of: impl Fn(usize) -> FaultMoment,
) -> Result<String, Failure> {
    let mut row = StrikesRow::start(setup, sets_clocks)?;
    let mut skipped = 0;
    for number in 0..setup.rounds as usize {
        let when = when_of(number);
        let done = row.step(when, number).map_err(|failure| match failure {
            Failure::Broken(what) => {
                Failure::Broken(format!("{what} ({when:?}, seed {}, step {number})", setup.seed))
            }
            other => other,
        })?;
        skipped += u32::from(!done);
    }
    let (acknowledged, _, unknown) = row.ledger.counts();
    Ok(format!(
        "{} strikes in the middle of rounds ({skipped} not possible here), nodes struck that were \
         {}; the next round proves; {acknowledged} writes acknowledged, {unknown} unknown, 0 lost, \
         **0 risen** in {} answers of every node under every quorum",
        setup.rounds, row.stages, row.answers
    ))
}

/// Returns a tool that a fault needs, or `None` if the machine does not have it.
fn none_if_unavailable<T>(made: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match made {
        Err(Failure::Skipped(_)) => Ok(None),
        made => made.map(Some),
    }
}

impl<'a> StrikesRow<'a> {
    fn start(setup: &'a Setup, sets_clocks: bool) -> Result<Self, Failure> {
        let mut cluster = Cluster::plan(&setup.binary, NODES, None, &ARGS)?;
        let clocks =
            if sets_clocks { none_if_unavailable(fake_clocks(&mut cluster))? } else { None };
        let disk = none_if_unavailable(Mount::tmpfs(DISK_MIB))?;
        if let Some(disk) = &disk {
            cluster.launches[SMALL].data = disk.path().join("data");
        }
        (0..NODES).try_for_each(|node| cluster.start_node(node))?;
        cluster.wait_until_ready()?;
        let ledger = Arc::new(Ledger::default());
        let keys = setup.size(50_000, 500);
        let what = FillParams { keys, value_len: 200, prefix: 's', votes: "&ack=3&from=3" };
        fill(cluster.addresses(), &ledger, what)?;
        let mut row = Self {
            setup,
            cluster,
            ledger,
            random: Random::new(setup.seed),
            stages: Stages::default(),
            old: None,
            doomed: Vec::new(),
            takes: Duration::ZERO,
            disk,
            clocks,
            answers: 0,
        };
        row.prove()?;
        Ok(row)
    }

    fn any(&mut self) -> usize {
        self.random.below(NODES as u64) as usize
    }

    fn other(&mut self, than: usize) -> usize {
        (than + 1 + self.random.below(NODES as u64 - 1) as usize) % NODES
    }

    /// Deletes keys while a node is down, and injects a fault into a round. Returns false if the
    /// machine does not allow that fault.
    fn step(&mut self, when: FaultMoment, number: usize) -> Result<bool, Failure> {
        let old = self.edit(number)?;
        let work = WriterParams {
            clients: 6,
            keys: 30,
            deletes: 40,
            prefix: 'w',
            votes: audit::VOTES,
            patience: ANSWER,
            ..WriterParams::default()
        };
        let seed = self.random.number();
        let writers = Writers::start_on(self.cluster.addresses(), &self.ledger, work, seed)?;
        let driver = self.any();
        let done = match when {
            FaultMoment::Anywhere(strike) => self.strike_anywhere(strike, driver)?,
            FaultMoment::Between(moment) => self.strike_in(moment, driver)?,
        };
        thread::sleep(AFTERWARDS);
        writers.stop()?;
        self.cluster.wait_until_ready()?;
        self.prove()?;
        if let Some((_, before)) = self.old.replace(old) {
            fs::remove_dir_all(before)?;
        }
        Ok(done)
    }

    /// Begins a round, and injects a fault at a random moment of it. Returns false if the machine
    /// does not allow that fault.
    fn strike_anywhere(&mut self, strike: FaultKind, driver: usize) -> Result<bool, Failure> {
        let slow = self.any();
        let log = self.cluster.dir().join("strace.log");
        let delay = format!("delay_enter={}", SLOW_SYNC.as_micros());
        let node = self.cluster.node(slow)?;
        let slow = none_if_unavailable(Strace::attach(node, "fdatasync", &delay, &log))?;
        let full = self.random.percent(50);
        begin(&self.cluster, driver, full)?;
        let longest = self.takes + if slow.is_some() { SLOW_SYNC * 4 } else { Duration::ZERO };
        thread::sleep(longest.mul_f64(self.random.below(1000) as f64 / 1000.0));
        self.strike(strike, driver)
    }

    /// Writes keys, overwrites and deletes them while a node is down, and restarts the node.
    /// Returns the node, and a copy of its directory from before the changes.
    fn edit(&mut self, number: usize) -> Result<(usize, PathBuf), Failure> {
        let prefix = format!("x{number}-");
        let count = self.setup.size(1_000, 40);
        audit::prepare(self.cluster.addresses(), &self.ledger, &prefix, count)?;
        let away = self.any();
        match self.random.percent(KILLED) {
            true => self.cluster.kill(away)?,
            false => self.cluster.stop(away)?,
        }
        let kept = self.cluster.dir().join(format!("old-{number}"));
        copy(self.cluster.data(away), &kept)?;
        let others = self.cluster.others(away);
        audit::edit(&others, &self.ledger, &prefix, count)?;
        audit::delete(&others, &self.ledger, &self.doomed, audit::VOTES)?;
        let keys = self.ledger.keys().into_iter();
        self.doomed = keys.filter(|key| key.starts_with(&prefix)).collect();
        if self.random.percent(DROPPED) {
            for node in (0..NODES).filter(|node| *node != away) {
                self.cluster.stop(node)?;
                forget_hints(self.cluster.data(node))?;
                self.cluster.start_node(node)?;
            }
        }
        self.cluster.start_node(away)?;
        if self.random.percent(50) {
            self.cluster.wait_until_ready()?;
        }
        Ok((away, kept))
    }

    /// Proves all writes so far, and checks that compactions purge all that is purgeable, and that
    /// all answers are right.
    fn prove(&mut self) -> Result<(), Failure> {
        let driver = self.any();
        let last = prove(self.setup, &self.cluster, driver)?;
        self.takes = Duration::from_millis(last.count("took_ms"));
        compact(self.setup, &self.cluster)?;
        for node in 0..NODES {
            let status: Value = parse(self.cluster.status(node)?.as_bytes())?;
            if status["purgeable_bytes"] != 0 {
                let what = format!("node {} could purge more after a compaction", node + 1);
                return Err(Failure::Broken(format!("{what}: {status}")));
            }
        }
        self.answers += audit::check_everywhere(&self.cluster, &self.ledger, READ_KEYS)?;
        Ok(())
    }

    fn strike(&mut self, strike: FaultKind, driver: usize) -> Result<bool, Failure> {
        let other = self.other(driver);
        match strike {
            FaultKind::DriverKilled => self.kill(driver)?,
            FaultKind::OtherKilled => self.kill(other)?,
            FaultKind::DriverPaused => self.pause(driver)?,
            FaultKind::OtherPaused => self.pause(other)?,
            FaultKind::Wiped => self.wipe(other)?,
            FaultKind::Rebuilt => {
                self.wipe(other)?;
                round(self.setup, &self.cluster, other, false)?;
            }
            FaultKind::TwoDrivers => self.two_drivers(other)?,
            FaultKind::OldCopy => return self.old_copy(),
            FaultKind::DiskFull => return self.fill_disk(),
            FaultKind::ClockOff => return self.clock_off(),
        }
        Ok(true)
    }

    fn kill(&mut self, node: usize) -> Result<(), Failure> {
        self.cluster.kill(node)?;
        let looked_at = self.cluster.dir().join("killed");
        copy(self.cluster.data(node), &looked_at)?;
        self.stages.note(stage_of(&looked_at)?);
        fs::remove_dir_all(looked_at)?;
        self.cluster.start_node(node)
    }

    fn pause(&mut self, node: usize) -> Result<(), Failure> {
        let lasts = Duration::from_millis(self.random.below(PAUSE_MS));
        let node = self.cluster.node(node)?;
        node.signal(Signal::STOP)?;
        thread::sleep(lasts);
        node.signal(Signal::CONT)
    }

    fn wipe(&mut self, node: usize) -> Result<(), Failure> {
        self.cluster.kill(node)?;
        fs::remove_dir_all(self.cluster.data(node))?;
        self.cluster.start_node(node)
    }

    /// Requests rounds from all nodes while a round is in progress. All of these rounds must end.
    fn two_drivers(&self, other: usize) -> Result<(), Failure> {
        let (setup, cluster) = (self.setup, &self.cluster);
        thread::scope(|scope| {
            let asked = [other, (other + 1) % NODES, (other + 2) % NODES]
                .map(|node| scope.spawn(move || round(setup, cluster, node, false)));
            asked.into_iter().try_for_each(|asked| {
                let ended = asked.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(drop)
            })
        })
    }

    fn old_copy(&mut self) -> Result<bool, Failure> {
        let Some((node, kept)) = &self.old else { return Ok(false) };
        let data = self.cluster.data(*node).clone();
        let node = *node;
        self.cluster.kill(node)?;
        fs::remove_dir_all(&data)?;
        copy(kept, &data)?;
        let place = wait_until_set_aside(&mut self.cluster, node)?;
        self.cluster.start_node(node)?;
        fs::remove_dir_all(place)?;
        Ok(true)
    }

    fn fill_disk(&mut self) -> Result<bool, Failure> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let ballast = disk.path().join("ballast");
        fill_with(&ballast)?;
        thread::sleep(Duration::from_millis(self.random.below(PAUSE_MS)));
        fs::remove_file(ballast)?;
        Ok(true)
    }

    fn clock_off(&mut self) -> Result<bool, Failure> {
        let node = self.any();
        let off = self.random.below(2 * OFF_MS + 1) as i64 - OFF_MS as i64;
        let Some(clocks) = &self.clocks else { return Ok(false) };
        set_millis(&clocks[node], off)?;
        thread::sleep(Duration::from_millis(self.random.below(PAUSE_MS)));
        set_millis(&clocks[node], 0)?;
        // The other nodes refuse the node's writes until the timestamps from its clock are no
        // longer ahead.
        thread::sleep(Duration::from_millis(off.unsigned_abs()));
        Ok(true)
    }
}

/// Writes a file until its disk is full.
fn fill_with(path: &Path) -> Result<(), Failure> {
    let mut file = File::create(path)?;
    loop {
        match file.write_all(&CHUNK) {
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            written => written?,
        }
    }
}
