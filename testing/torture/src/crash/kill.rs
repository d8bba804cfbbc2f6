//! Rows 1 and 2 of docs/results/reliability.md: `kill -9` at random moments under load, and other
//! ends and obstacles of a process: kills during recovery, two kills in a row, SIGTERM, SIGSTOP, a
//! second process on the same directory, and another sync mode after the restart.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::node::{Launch, Node};
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::check;
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers};
use rustix::process::Signal;

use crate::Setup;

/// Small memtables and little memory, so that some kills hit a flush or a compaction.
const SMALL: [&str; 4] = ["--memory", "64MiB", "--memtable", "1MiB"];

/// Maximum time from the start of the writes until the kill, in milliseconds.
const LONGEST_MS: u64 = 900;

/// Maximum time from a start until its kill, in milliseconds. With these sizes a recovery takes
/// about as long.
const RECOVERY_MS: u64 = 60;

#[derive(Debug, Default)]
struct KillFigures {
    kills: u64,
    in_recovery: u64,
    terminated: u64,
    acknowledged: usize,
    unknown: usize,
    slowest_start: Duration,
}

/// Ends the process `rounds` times in the sync mode `sync`. With `mixed`, each start uses a random
/// mode.
pub fn run(setup: &Setup, sync: &str, mixed: bool) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let launch = setup.launch(dir.path(), dir.path(), &[]);
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let mut figures = KillFigures::default();
    let mut node = start(&launch, sync, mixed, &mut random, &mut figures)?;
    for round in 0..setup.rounds {
        let context = |failure| within(failure, setup, round);
        let work = WriterParams { value_len: 20_000, ..WriterParams::default() };
        let writers = Writers::start(node.address, &ledger, work, random.number())?;
        thread::sleep(Duration::from_millis(20 + random.below(LONGEST_MS)));
        if random.percent(10) {
            check_second_process_refused(&launch)?;
        }
        end(node, &mut random, &mut figures).map_err(context)?;
        writers.stop().map_err(context)?;
        let (acknowledged, _, unknown) = ledger.counts();
        figures.acknowledged += acknowledged;
        figures.unknown += unknown;
        kill_recoveries(&launch, &mut random, &mut figures)?;
        node = start(&launch, sync, mixed, &mut random, &mut figures).map_err(context)?;
        check(&node, &ledger, ProcessState::New).map_err(context)?;
    }
    let KillFigures { kills, in_recovery, terminated, acknowledged, unknown, slowest_start } =
        figures;
    Ok(format!(
        "{kills} kills ({in_recovery} during recovery), {terminated} SIGTERMs: \
         {acknowledged} writes acknowledged, {unknown} unknown, 0 lost, 0 invented; \
         slowest start {} ms",
        slowest_start.as_millis()
    ))
}

fn within(failure: Failure, setup: &Setup, round: u32) -> Failure {
    match failure {
        Failure::Broken(what) | Failure::Refused(what) => {
            Failure::Broken(format!("{what} (seed {}, round {round})", setup.seed))
        }
        other => other,
    }
}

fn start(
    launch: &Launch,
    sync: &str,
    mixed: bool,
    random: &mut Random,
    figures: &mut KillFigures,
) -> Result<Node, Failure> {
    let modes = ["always", "interval", "never", "interval:5"];
    let sync = if mixed { modes[random.below(4) as usize] } else { sync };
    let mut args = vec!["--sync", sync];
    if random.percent(70) {
        args.extend(SMALL);
    }
    let begun = Instant::now();
    let node = launch.with(&args).start()?;
    figures.slowest_start = figures.slowest_start.max(begun.elapsed());
    Ok(node)
}

/// Ends the process by SIGTERM, or kills it, in some cases after a suspension.
fn end(node: Node, random: &mut Random, figures: &mut KillFigures) -> Result<(), Failure> {
    if random.percent(15) {
        figures.terminated += 1;
        let status = node.stop()?;
        if !status.success() {
            return Err(Failure::Broken(format!("after SIGTERM the node ended with {status}")));
        }
        return Ok(());
    }
    if random.percent(10) {
        node.signal(Signal::STOP)?;
        thread::sleep(Duration::from_millis(random.below(200)));
        node.signal(Signal::CONT)?;
        thread::sleep(Duration::from_millis(random.below(50)));
    }
    figures.kills += 1;
    node.kill()
}

/// Kills up to three processes during their recovery.
fn kill_recoveries(
    launch: &Launch,
    random: &mut Random,
    figures: &mut KillFigures,
) -> Result<(), Failure> {
    let times = if random.percent(40) { 1 + random.below(3) } else { 0 };
    for _ in 0..times {
        let args = if random.percent(50) { &SMALL[..] } else { &[] };
        let mut child = launch.with(args).spawn()?;
        thread::sleep(Duration::from_micros(random.below(RECOVERY_MS * 1000)));
        child.kill()?;
        child.wait()?;
        figures.in_recovery += 1;
        figures.kills += 1;
    }
    Ok(())
}

/// Checks that a second process on the same directory refuses to start.
fn check_second_process_refused(launch: &Launch) -> Result<(), Failure> {
    match launch.start() {
        Ok(_) => Err(Failure::Broken("two processes serve one directory".to_owned())),
        Err(Failure::Refused(said)) if said.contains("in use by another process") => Ok(()),
        Err(other) => Err(other),
    }
}
