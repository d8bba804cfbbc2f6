//! Row 38 of docs/results/reliability.md: a node's directory is replaced by an older copy, after
//! two of three nodes have acknowledged further writes. The node must not report missing keys as
//! absent, and the other nodes must return their values. The three nodes over time:
//!
//! ```text
//!  A ─ base ─ copy ─ base+more ─ stopped, copy put back ─ started ── serves with less than it had
//!  B ─ base ──────── base+more ────────────── paused ───────────── goes on
//!  C ─ base ─ down ───────────────────────────────────── started
//!                                  reads of 2 of 3 through A and C ▲
//! ```
//!
//! Related scenarios: a copy that runs beside the node ([`super::twins`]), and the writes that
//! `--sync interval` loses in a power cut ([`super::lost_interval`]).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::run as command;
use kit::oracle::audit::{self, AuditFigures};
use kit::oracle::ledger::Ledger;
use rustix::process::Signal;

use crate::Setup;
use crate::combined::converge;
use crate::old_copy::{lost_interval, twins};
use crate::replicas::proofs::parse;

pub(crate) const NODES: usize = 3;

/// A is the node whose directory is replaced, B the node that stores the missing writes, and C the
/// node that is down meanwhile.
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const C: usize = 2;

/// Timeout until all reads are right and available after all nodes are back.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Time to wait for the missing keys of B and C. Keys that are missing after this time are
/// reported, but do not fail the row.
const BY_HINTS: Duration = Duration::from_secs(20);

/// Number of keys of each kind, in a full run and in a test.
pub(crate) const KEYS: (u64, u64) = (300, 100);

/// The way in which an older copy replaces the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestoreForm {
    /// A copy of the copy, by `cp -a`.
    Copied,
    /// The copy itself, moved into place.
    Moved,
    /// The copy's contents, written into the existing files as in a rollback of the file system.
    InPlace,
}

/// Each form, with reads while B does not answer (true), and without reads. A test runs the second
/// to the fourth entry.
const EACH: [(RestoreForm, bool); 6] = [
    (RestoreForm::Moved, true),
    (RestoreForm::Copied, true),
    (RestoreForm::Moved, false),
    (RestoreForm::InPlace, true),
    (RestoreForm::Copied, false),
    (RestoreForm::InPlace, false),
];

/// Report of all scenarios of the row.
#[derive(Debug, Default)]
pub(crate) struct Report {
    lines: String,
    broken: bool,
}

impl Report {
    pub(crate) fn note(
        &mut self,
        name: &str,
        outcome: Result<String, Failure>,
    ) -> Result<(), Failure> {
        let line = match outcome {
            Ok(line) => line,
            Err(failure @ (Failure::Broken(_) | Failure::Refused(_))) => {
                self.broken = true;
                failure.to_string()
            }
            Err(failure @ Failure::Skipped(_)) => failure.to_string(),
            Err(other) => return Err(other),
        };
        let _ = write!(self.lines, "\n  {name}: {line}");
        Ok(())
    }

    pub(crate) fn verdict(self) -> Result<String, Failure> {
        match self.broken {
            true => Err(Failure::Broken(self.lines)),
            false => Ok(self.lines),
        }
    }
}

/// Runs all scenarios, `rounds` times. In every other round, A and B are killed instead of stopped.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut report = Report::default();
    for round in 0..setup.rounds {
        let killed = round % 2 == 1;
        let forms = setup.size(&EACH[..], &EACH[1..4]);
        for (form, read) in forms {
            let how = if *read { "read at once" } else { "not read" };
            let name = format!("{form:?}, {how}, killed {killed}");
            report.note(&name, put_back(setup, *form, *read, killed))?;
        }
        let name = format!("the original after its copy, killed {killed}");
        report.note(&name, original_after_copy(setup, killed))?;
        for running in setup.size(&[false, true][..], &[false]) {
            let running = *running;
            let name = format!("twin of a {} node, B paused {killed}", state(running));
            report.note(&name, twins::run(setup, running, killed))?;
        }
        report.note("power cut with sync=interval", lost_interval::run(setup))?;
    }
    report.verdict()
}

fn state(running: bool) -> &'static str {
    if running { "running" } else { "stopped" }
}

/// Starts three nodes, and writes the keys that will be overwritten and deleted.
pub(crate) fn prepare_cluster(setup: &Setup, ledger: &Ledger) -> Result<Cluster, Failure> {
    // A read that can't be answered takes the whole deadline, so the deadline is short.
    let args = ["--sync", "always", "--deadline", "250ms"];
    let cluster = Cluster::start(&setup.binary, NODES, None, &args)?;
    audit::prepare(cluster.addresses(), ledger, "", setup.size(KEYS.0, KEYS.1))?;
    Ok(cluster)
}

/// Copies a whole directory, as backups do.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    // `command` reports a failure as skipped, but a failed copy must not skip the row.
    command("cp", &["-a", &from, &to]).map_err(|failure| Failure::Environment(failure.to_string()))
}

fn put_back(setup: &Setup, form: RestoreForm, read: bool, killed: bool) -> Result<String, Failure> {
    let ledger = Ledger::default();
    let mut cluster = prepare_cluster(setup, &ledger)?;
    let kept = cluster.dir().join("copy");
    cluster.stop(A)?;
    copy(cluster.data(A), &kept)?;
    cluster.start_node(A)?;
    cluster.wait_until_ready()?;
    cluster.kill(C)?;
    audit::edit(&cluster.others(C), &ledger, "", setup.size(KEYS.0, KEYS.1))?;
    if killed {
        cluster.kill(A)?;
        cluster.kill(B)?;
        cluster.start_node(B)?;
    } else {
        cluster.stop(A)?;
    }
    form.put_back(cluster.data(A), &kept)?;
    let mut findings = Findings::default();
    if read {
        if form == RestoreForm::InPlace {
            // A's own disk does not reveal an in-place restore, so A must first connect to a node
            // that knows of it.
            cluster.start_node(A)?;
            wait_until_met(&cluster)?;
        }
        cluster.node(B)?.signal(Signal::STOP)?;
        if form != RestoreForm::InPlace {
            cluster.start_node(A)?;
        }
        cluster.start_node(C)?;
        findings.read_without_b(&cluster, &ledger)?;
        cluster.node(B)?.signal(Signal::CONT)?;
    } else {
        cluster.start_node(A)?;
        cluster.start_node(C)?;
        findings.wait_without_reads(&cluster, &ledger)?;
    }
    findings.check_with_all(&cluster, &ledger)?;
    findings.restart(&mut cluster, &ledger)?;
    findings.verdict()
}

/// Runs a node on a copy of the directory, which acknowledges writes. Then restores the original
/// directory, whose log may be longer than the copy's log.
fn original_after_copy(setup: &Setup, killed: bool) -> Result<String, Failure> {
    let ledger = Ledger::default();
    let count = setup.size(KEYS.0, KEYS.1);
    let mut cluster = prepare_cluster(setup, &ledger)?;
    let data = cluster.data(A).clone();
    let (kept, aside) = (cluster.dir().join("copy"), cluster.dir().join("aside"));
    cluster.stop(A)?;
    copy(&data, &kept)?;
    cluster.start_node(A)?;
    cluster.wait_until_ready()?;
    cluster.kill(C)?;
    let both = cluster.others(C);
    audit::edit(&both, &ledger, "", count)?;
    cluster.stop(A)?;
    fs::rename(&data, &aside)?;
    fs::rename(&kept, &data)?;
    cluster.start_node(A)?;
    audit::edit(&both, &ledger, "later-", count / 3)?;
    if killed {
        cluster.kill(A)?
    } else {
        cluster.stop(A)?
    }
    fs::rename(&data, &kept)?;
    fs::rename(&aside, &data)?;
    cluster.start_node(A)?;
    wait_until_met(&cluster)?;
    cluster.node(B)?.signal(Signal::STOP)?;
    cluster.start_node(C)?;
    let mut findings = Findings::default();
    findings.read_without_b(&cluster, &ledger)?;
    cluster.node(B)?.signal(Signal::CONT)?;
    findings.check_with_all(&cluster, &ledger)?;
    findings.restart(&mut cluster, &ledger)?;
    findings.verdict()
}

impl RestoreForm {
    pub(crate) fn put_back(self, data: &PathBuf, kept: &PathBuf) -> Result<(), Failure> {
        match self {
            Self::Copied => {
                fs::remove_dir_all(data)?;
                copy(kept, data)
            }
            Self::Moved => {
                fs::rename(data, data.with_extension("before"))?;
                Ok(fs::rename(kept, data)?)
            }
            Self::InPlace => overwrite(data, kept),
        }
    }
}

/// Overwrites the files in `data` with the files in `kept`. Existing files keep their inodes.
fn overwrite(data: &Path, kept: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if !kept.join(entry.file_name()).exists() {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(kept)? {
        let entry = entry?;
        let path = data.join(entry.file_name());
        let mut file = File::options().write(true).create(true).truncate(true).open(path)?;
        file.write_all(&fs::read(entry.path())?)?;
        file.set_modified(entry.metadata()?.modified()?)?;
    }
    Ok(())
}

/// Waits until A, which has just started, has connected to B. The reads that cause the connection
/// are of an unused key, so that they repair nothing.
pub(crate) fn wait_until_met(cluster: &Cluster) -> Result<(), Failure> {
    let begun = Instant::now();
    let target = format!("/v0/entity?id=nobody-writes-this{}", audit::VOTES);
    while begun.elapsed() < TIMEOUT {
        cluster.node(A)?.client()?.request("GET", &target, b"")?;
        let status = cluster.status(A)?;
        let peer = status.split("\"name\":\"n2\"").nth(1).unwrap_or_default();
        if peer.split("\"incarnation\":\"").nth(1).is_some_and(|rest| !rest.starts_with('"')) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::Broken(format!("A does not reach B: {}", cluster.status(A)?)))
}

/// Waits until B and C know the current incarnation of A's disk.
fn wait_until_known(cluster: &Cluster) -> Result<(), Failure> {
    let begun = Instant::now();
    let own = parse(cluster.status(A)?.as_bytes())?["incarnation"].clone();
    for node in [B, C] {
        loop {
            let status = parse(cluster.status(node)?.as_bytes())?;
            let peers = status["peers"].as_array();
            let a = peers.into_iter().flatten().find(|peer| peer["name"] == "n1");
            if a.is_some_and(|a| a["incarnation"] == own) {
                break;
            }
            if begun.elapsed() > TIMEOUT {
                return Err(Failure::Broken(format!("{status} knows another disk than {own}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// Notes and failures of one scenario.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    notes: Vec<String>,
    broken: Vec<String>,
}

impl Findings {
    pub(crate) fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    pub(crate) fn record_broken(&mut self, what: String) {
        self.broken.push(what);
    }

    /// Reads all keys through A and C while B does not answer. No answer may be wrong.
    pub(crate) fn read_without_b(
        &mut self,
        cluster: &Cluster,
        ledger: &Ledger,
    ) -> Result<(), Failure> {
        let nodes = [cluster.addresses()[A], cluster.addresses()[C]];
        let membership = membership(cluster, A)?;
        let mut found = audit::ranges(&nodes, ledger)?;
        found += audit::read(&nodes, ledger, &ledger.keys())?;
        self.reads(&format!("B paused, A {membership}"), &found);
        Ok(())
    }

    /// Waits until A has received its missing keys without any read.
    fn wait_without_reads(&mut self, cluster: &Cluster, ledger: &Ledger) -> Result<(), Failure> {
        let first = audit::audit_node(cluster, A, ledger)?.wrong();
        let (found, took) = audit::wait_until_held(cluster, A, ledger, TIMEOUT)?;
        match took {
            Some(took) => self.note(format!(
                "A lacked {first}, nothing after {:.1} s without a read",
                took.as_secs_f64()
            )),
            None => self.record_broken(format!("after {TIMEOUT:?} without a read A holds {found}")),
        }
        self.report_missing_on_others(cluster, ledger)
    }

    /// Checks, with all nodes back, that no read is wrong, that reads soon become available, and
    /// that A then stores all keys.
    pub(crate) fn check_with_all(
        &mut self,
        cluster: &Cluster,
        ledger: &Ledger,
    ) -> Result<(), Failure> {
        let keys = ledger.keys();
        let (found, took) = audit::read_until_right(cluster.addresses(), ledger, &keys, TIMEOUT)?;
        self.reads("all back", &found);
        match took {
            Some(took) => {
                self.note(format!("all right and available after {:.1} s", took.as_secs_f64()));
            }
            None => self.record_broken(format!("not all right and available after {TIMEOUT:?}")),
        }
        if let (found, None) = audit::wait_until_held(cluster, A, ledger, TIMEOUT)? {
            self.record_broken(format!("after {TIMEOUT:?} A itself holds {found}"));
        }
        self.wait_until_member(cluster)?;
        self.report_missing_on_others(cluster, ledger)
    }

    /// Waits until A is a member again. A may store all keys earlier, but the other nodes must
    /// first confirm that they have no more.
    fn wait_until_member(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let membership = membership(cluster, A)?;
            if membership == "member" {
                self.note(format!("A a full member {:.1} s later", begun.elapsed().as_secs_f64()));
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                self.record_broken(format!("after {TIMEOUT:?} A is still {membership}"));
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reports the keys that B and C lack. They may lack keys because the hints for C were lost
    /// with A's directory.
    fn report_missing_on_others(
        &mut self,
        cluster: &Cluster,
        ledger: &Ledger,
    ) -> Result<(), Failure> {
        for (node, name) in [(B, 'B'), (C, 'C')] {
            let first = audit::audit_node(cluster, node, ledger)?.wrong();
            let (found, took) = audit::wait_until_held(cluster, node, ledger, BY_HINTS)?;
            match took {
                Some(_) if first == 0 => {}
                Some(took) => self.note(format!(
                    "{name} lacked {first}, nothing {:.1} s later",
                    took.as_secs_f64()
                )),
                None => self.note(format!(
                    "{name} lacked {first}, {} of them still after {BY_HINTS:?}, {} told",
                    found.wrong(),
                    converge::sum_reported_missing(cluster, &[A, B, C])?
                )),
            }
        }
        Ok(())
    }

    /// Checks that A restarts as usual: A must be authoritative even if B does not answer.
    pub(crate) fn restart(
        &mut self,
        cluster: &mut Cluster,
        ledger: &Ledger,
    ) -> Result<(), Failure> {
        // If B or C sent a greeting before it recorded A's new disk, the greeting may arrive late
        // and make A rebuild once more. Such a greeting must arrive before the restart.
        wait_until_known(cluster)?;
        self.wait_until_member(cluster)?;
        cluster.stop(A)?;
        cluster.start_node(A)?;
        wait_until_met(cluster)?;
        cluster.node(B)?.signal(Signal::STOP)?;
        let nodes = [cluster.addresses()[A], cluster.addresses()[C]];
        let (found, took) = audit::read_until_right(&nodes, ledger, &ledger.keys(), TIMEOUT)?;
        cluster.node(B)?.signal(Signal::CONT)?;
        self.reads("A restarted and B paused", &found);
        if took.is_none() {
            let membership = membership(cluster, A)?;
            self.record_broken(format!("restarted, A ({membership}) and C do not serve without B"));
        }
        Ok(())
    }

    pub(crate) fn reads(&mut self, when: &str, found: &AuditFigures) {
        let line = format!("{when}: {found}");
        if found.wrong() > 0 { self.record_broken(line) } else { self.note(line) }
    }

    pub(crate) fn verdict(self) -> Result<String, Failure> {
        let notes = self.notes.join("; ");
        match self.broken.is_empty() {
            true => Ok(notes),
            false => Err(Failure::Broken(format!("{} [{notes}]", self.broken.join("; ")))),
        }
    }
}

/// Returns a node's membership state, as the node's status reports it.
pub(crate) fn membership(cluster: &Cluster, node: usize) -> Result<String, Failure> {
    let status = cluster.status(node)?;
    let rest = status.split("\"membership\":\"").nth(1).unwrap_or_default();
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}
