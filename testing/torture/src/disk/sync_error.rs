//! Row 10 of docs/results/reliability.md: the disk returns an error (EIO or ENOSPC) once, and then
//! works again. After the first failure, nothing may be acknowledged until a restart, which must
//! recover every acknowledged write.
//!
//! strace injects errors into the running node. A real EIO comes from an ext4 image on a full
//! tmpfs, where the kernel itself fails to write blocks back.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::faults::mount::{Mount, make_image};
use kit::faults::strace::Strace;
use kit::node::Node;
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::{check, read_all};
use kit::random::Random;
use kit::workload::writers::{Statuses, WriterParams, Writers};

use crate::Setup;

/// Timeout for the fault to occur, and for the node to notice it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which clients keep writing after the first failure.
const WRITE_TIME_AFTER_FAULT: Duration = Duration::from_millis(700);

/// The system calls that fail, and the error that each returns.
const FAULTS: [(&str, &str); 5] = [
    ("fdatasync", "EIO"),
    ("pwrite64", "EIO"),
    ("fsync", "EIO"),
    ("fdatasync", "ENOSPC"),
    ("pwrite64", "ENOSPC"),
];

/// Injects an error `rounds` times, and provokes a real error once.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut random = Random::new(setup.seed);
    let (mut acknowledged, mut struck) = (0, 0);
    for round in 0..setup.rounds {
        let (call, errno) = FAULTS[round as usize % FAULTS.len()];
        let when = 1 + random.below(if call == "fsync" { 3 } else { 200 });
        let within = |failure| match failure {
            Failure::Broken(what) | Failure::Refused(what) => {
                Failure::Broken(format!("{what} ({call} {errno}, call {when})"))
            }
            other => other,
        };
        let sync = if round % 4 == 3 { "interval" } else { "always" };
        let (acked, failed) = inject_failure(setup, sync, call, errno, when).map_err(within)?;
        acknowledged += acked;
        struck += u32::from(failed);
    }
    let real = match real(setup) {
        Ok(real) => real,
        Err(Failure::Skipped(why)) => format!("the real one was skipped: {why}"),
        Err(other) => return Err(other),
    };
    Ok(format!(
        "{} faults injected, {struck} ended writing: {acknowledged} writes acknowledged before, 0 \
         after, 0 lost; {real}",
        setup.rounds
    ))
}

/// Injects one failure of one call. Returns the number of acknowledged writes, and true if the node
/// answered 500 afterwards.
fn inject_failure(
    setup: &Setup,
    sync: &str,
    call: &str,
    errno: &str,
    when: u64,
) -> Result<(usize, bool), Failure> {
    let dir = tempfile::tempdir()?;
    let args = ["--sync", sync, "--memory", "64MiB", "--memtable", "1MiB"];
    let launch = setup.launch(dir.path(), dir.path(), &args);
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams { clients: 8, value_len: 20_000, ..WriterParams::default() };
    let fault = format!("error={errno}:when={when}");
    let strace = Strace::attach(&node, call, &fault, &dir.path().join("strace"))?;
    let writers = Writers::start(node.address, &ledger, work, setup.seed ^ when)?;
    let struck = |statuses: &Statuses| statuses.contains_key(&500);
    // Some calls are rare, and some failures are transient. In both cases the node may continue to
    // accept writes.
    let is_certain = call == "fdatasync" && errno == "EIO";
    let patience = if is_certain { TIMEOUT } else { setup.size(TIMEOUT / 10, TIMEOUT / 20) };
    let failed = writers.wait(patience, struck);
    drop(strace);
    thread::sleep(WRITE_TIME_AFTER_FAULT);
    let first = writers.first_500();
    let statuses = writers.stop()?;
    let acknowledged = ledger.counts().0;
    if failed {
        check_says_so(&node, &ledger, first, &statuses)?;
    } else if is_certain {
        return Err(Failure::Broken(format!("no write failed, but {statuses:?}")));
    }
    node.kill()?;
    let node = launch.start()?;
    check(&node, &ledger, ProcessState::New)?;
    Ok((acknowledged, failed))
}

/// Checks that a node with a failed disk acknowledges no write, is not ready, and still serves
/// reads.
fn check_says_so(
    node: &Node,
    ledger: &Ledger,
    first: Option<Duration>,
    statuses: &Statuses,
) -> Result<(), Failure> {
    let after = first.map_or(0, |first| ledger.count_acknowledged_after(first));
    if after > 0 {
        return Err(Failure::Broken(format!(
            "{after} acknowledged after the failure: {statuses:?}"
        )));
    }
    let ready = node.client()?.request("GET", "/readyz", b"")?.status;
    if ready != 503 {
        return Err(Failure::Broken(format!("/readyz answers {ready} after a failed sync")));
    }
    // Reads continue, and return only valid values.
    let found = read_all(node)?;
    ledger.check(&found, ProcessState::Same)?;
    Ok(())
}

/// Provokes a real EIO: the kernel cannot write the image's blocks back, because the tmpfs below
/// the image is full.
fn real(setup: &Setup) -> Result<String, Failure> {
    let below = Mount::tmpfs(96)?;
    let image = below.path().join("image");
    make_image(&image, 1 << 30)?;
    let mut disk = Mount::image(&image)?;
    let dir = tempfile::tempdir()?;
    let args = ["--sync", "always", "--memory", "64MiB", "--memtable", "2MiB"];
    let launch = setup.launch(disk.path(), dir.path(), &args);
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams::for_full_disk();
    let writers = Writers::start(node.address, &ledger, work, setup.seed)?;
    let struck = |statuses: &Statuses| statuses.contains_key(&500);
    if !writers.wait(TIMEOUT, struck) {
        return Err(Failure::Environment(format!("no write failed, but {:?}", writers.statuses())));
    }
    thread::sleep(WRITE_TIME_AFTER_FAULT);
    let first = writers.first_500();
    let statuses = writers.stop()?;
    let after = first.map_or(0, |first| ledger.count_acknowledged_after(first));
    if after > 0 {
        return Err(Failure::Broken(format!(
            "{after} acknowledged after a real EIO: {statuses:?}"
        )));
    }
    node.kill()?;
    let acknowledged = ledger.counts().0;
    below.resize(2048)?;
    disk.remount()?;
    let node = launch.start()?;
    check(&node, &ledger, ProcessState::New)?;
    Ok(format!("real EIO (ext4 on a full tmpfs): 0 of {acknowledged} lost, 0 false acks"))
}
