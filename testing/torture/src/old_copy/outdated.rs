//! Row 38 of docs/results/reliability.md, with repair proofs: a node's directory is replaced by an
//! older copy, made in the middle of a repair round. Since then, a later round was proven, and the
//! other nodes have purged the deleted keys. The copy's records of these keys must not reappear:
//! the node must set the copy aside, and is rebuilt. The three nodes over time:
//!
//! ```text
//!  A ─ base ─ killed in B's round, copied ─ deletes ┬ proof ┬ later ─ copy put back ─ rebuilt
//!  B ─ base ─ coordinates a round ───────── deletes ┼ purge ┼ later ─ paused ──────── goes on
//!  C ─ base ─ slow ──────────────────────── deletes ┘       └ down ──────── started
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::strace::Strace;
use kit::oracle::audit::{self, AuditFigures};
use kit::oracle::ledger::Ledger;
use rustix::process::Signal;

use crate::Setup;
use crate::old_copy::rollback::{A, B, C, Findings, KEYS, NODES, Report, RestoreForm, copy};
use crate::replicas::proofs::{ARGS, Stage, begin_until, compact, prove, stage_of};

/// Stages of a round at which a copy is made, and the way in which it is restored. A test uses only
/// the first entry.
const EACH: [(Stage, RestoreForm); 3] = [
    (Stage::Ready, RestoreForm::InPlace),
    (Stage::Sealed, RestoreForm::Moved),
    (Stage::Proven, RestoreForm::Copied),
];

/// Timeout for a node to detect its outdated directory.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A node's message about an older copy: the text before and after the path to which the node has
/// moved the contents of its directory.
const SAYS: (&str, &str) = ("what it held was moved to ", ". Start the node again");

/// Additional duration of C's syncs, so that A can be copied between two steps of a round.
const SLOW_SYNC: Duration = Duration::from_millis(150);

/// Maximum number of attempts to copy A at a stage.
const TRIES: usize = 10;

/// Tests all stages, `rounds` times. Before its directory is replaced, A is stopped, or killed in
/// every other round.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut report = Report::default();
    for round in 0..setup.rounds {
        let killed = round % 2 == 1;
        for (stage, form) in setup.size(&EACH[..], &EACH[..1]) {
            let name = format!("{form:?} as it was {stage:?} before more was proven");
            let name = format!("{name}, killed {killed}");
            report.note(&name, one(setup, (*stage, *form), killed))?;
        }
    }
    report.verdict()
}

/// Replaces A's directory by an older copy, made at the stage `stage` of a round.
fn one(
    setup: &Setup,
    (stage, form): (Stage, RestoreForm),
    killed: bool,
) -> Result<String, Failure> {
    let ledger = Ledger::default();
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &ARGS)?;
    let count = setup.size(KEYS.0, KEYS.1);
    audit::prepare(cluster.addresses(), &ledger, "", count)?;
    audit::prepare(cluster.addresses(), &ledger, "later-", count / 3)?;
    let kept = copy_in(&mut cluster, stage)?;
    audit::edit(cluster.addresses(), &ledger, "", count)?;
    prove(setup, &cluster, B)?;
    compact(setup, &cluster)?;
    cluster.kill(C)?;
    audit::edit(&cluster.others(C), &ledger, "later-", count / 3)?;
    if killed {
        cluster.kill(A)?;
    } else {
        cluster.stop(A)?;
    }
    form.put_back(cluster.data(A), &kept)?;
    let mut findings = Findings::default();
    cluster.node(B)?.signal(Signal::STOP)?;
    cluster.start_node(C)?;
    let addresses = [cluster.addresses()[A], cluster.addresses()[C]];
    // C learned of the proof before it was killed, but not of later writes.
    let keys = ledger.keys();
    let noticed = || wait_until_set_aside(&mut cluster, A);
    let (place, found) = while_read(&addresses, &ledger, &keys, noticed)?;
    for (node, found) in ["A", "C"].iter().zip(&found) {
        findings.reads(&format!("B paused, A's old copy started, {node} asked"), found);
    }
    findings.note(format!("set aside as {}", place.display()));
    cluster.start_node(A)?;
    findings.read_without_b(&cluster, &ledger)?;
    cluster.node(B)?.signal(Signal::CONT)?;
    findings.check_with_all(&cluster, &ledger)?;
    findings.restart(&mut cluster, &ledger)?;
    prove(setup, &cluster, A)?;
    compact(setup, &cluster)?;
    let answers = audit::check_everywhere(&cluster, &ledger, count as usize)?;
    findings.note(format!("{answers} answers of every node under every quorum right"));
    findings.verdict()
}

/// Kills A at the stage `wanted` of a round, copies its directory, and restarts A. Returns the
/// copy's path.
fn copy_in(cluster: &mut Cluster, wanted: Stage) -> Result<PathBuf, Failure> {
    let kept = cluster.dir().join("copy");
    let log = cluster.dir().join("strace.log");
    for _ in 0..TRIES {
        let slow = format!("delay_enter={}", SLOW_SYNC.as_micros());
        let slow = Strace::attach(cluster.node(C)?, "fdatasync", &slow, &log)?;
        if !begin_until(cluster, (B, false), (A, wanted))? {
            continue;
        }
        cluster.kill(A)?;
        copy(cluster.data(A), &kept)?;
        let looked_at = cluster.dir().join("looked-at");
        copy(&kept, &looked_at)?;
        let stage = stage_of(&looked_at)?;
        fs::remove_dir_all(looked_at)?;
        drop(slow);
        cluster.start_node(A)?;
        cluster.wait_until_ready()?;
        if stage == wanted {
            return Ok(kept);
        }
        fs::remove_dir_all(&kept)?;
    }
    Err(Failure::Environment(format!("in {TRIES} rounds A was never killed {wanted:?}")))
}

/// Repeatedly reads these keys at each of these nodes while `done` runs. Returns the result of
/// `done`, and the results of the reads by node.
pub(crate) fn while_read<T>(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    keys: &[String],
    done: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Vec<AuditFigures>), Failure> {
    let over = AtomicBool::new(false);
    let over = &over;
    thread::scope(|scope| {
        let readers = addresses.iter().map(|address| {
            scope.spawn(move || {
                let mut all = AuditFigures::default();
                while !over.load(Ordering::Relaxed) {
                    all += audit::read(&[*address], ledger, keys)?;
                }
                Ok::<_, Failure>(all)
            })
        });
        let readers: Vec<_> = readers.collect();
        let outcome = done();
        over.store(true, Ordering::Relaxed);
        let found = readers
            .into_iter()
            .map(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let found = found.collect::<Result<_, _>>()?;
        Ok((outcome?, found))
    })
}

/// Starts a node whose directory is an older copy, and waits until the node has detected the copy
/// and exited. Returns the path to which the node has moved the copy's contents.
pub(crate) fn wait_until_set_aside(cluster: &mut Cluster, node: usize) -> Result<PathBuf, Failure> {
    match cluster.start_node(node) {
        Err(Failure::Refused(said)) if is_set_aside(&said) => {}
        started => started?,
    }
    let begun = Instant::now();
    while cluster.is_running(node)? {
        if begun.elapsed() > TIMEOUT {
            let status = cluster.status(node)?;
            let what = format!("node {} does not notice that it is an older copy", node + 1);
            return Err(Failure::Broken(format!("{what}: {status}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
    let Some(place) = place_of(cluster, node)? else {
        let log = cluster.launches[node].log.display();
        return Err(Failure::Broken(format!(
            "node {} ended without a word of it: {log}",
            node + 1
        )));
    };
    let data = cluster.data(node);
    let left = fs::read_dir(data)?.flatten().map(|entry| entry.path());
    let left: Vec<PathBuf> = left.filter(|path| !is_aside(path)).collect();
    let aside = fs::read_dir(&place)?.count();
    match aside > 1 && place.parent() == Some(data) && left.is_empty() {
        true => Ok(place),
        false => {
            Err(Failure::Broken(format!("{data:?} holds {left:?}, and {place:?} is not a copy")))
        }
    }
}

/// Returns true if a node's last log line says that it has set its directory aside.
pub(crate) fn is_set_aside(said: &str) -> bool {
    said.contains(SAYS.0)
}

/// Returns the path to which a node has moved the contents of its directory; `None` if its last log
/// line does not say so.
pub(crate) fn place_of(cluster: &Cluster, node: usize) -> Result<Option<PathBuf>, Failure> {
    let log = String::from_utf8_lossy(&fs::read(&cluster.launches[node].log)?).into_owned();
    let last = log.lines().last().unwrap_or_default();
    let place = last.split_once(SAYS.0).and_then(|(_, rest)| rest.split_once(SAYS.1));
    Ok(place.map(|(place, _)| PathBuf::from(place)))
}

pub(crate) fn is_aside(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("outdated-"))
}
