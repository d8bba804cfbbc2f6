//! The row `lives` of docs/results/reliability.md: starts and ends of a node's process. The first
//! processes of new directories are killed soon after they start. Nodes are stopped and killed
//! under load. A node is stopped on a full disk, and started on a disk that accepts no writes. A
//! directory is copied, moved or removed while its node runs. Files of ended processes must not
//! accumulate, and no acknowledged write may be lost.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::faults::mount::Mount;
use kit::node::{Launch, Node};
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::{check, read_all};
use kit::random::Random;
use kit::workload::writers::{Statuses, WriterParams, Writers};

use crate::Setup;

/// The only arguments of these nodes. No argument sets the sizes of memtables and segments, so
/// these have their large defaults.
const DEFAULTS: [&str; 2] = ["--sync", "always"];

/// Maximum time from a start on a new directory until the kill, in milliseconds.
const YOUNG_MS: u64 = 120;

/// Maximum run time of a process under load.
const RUN_TIME: Duration = Duration::from_millis(700);

/// Timeout for filling the disk, and for the node to notice that its directory is gone.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of log segments after any number of kills: those of two processes, and one
/// created in advance. In this row a process writes less than one segment.
const MOST_SEGMENTS: usize = 5;

const SMALL: [&str; 6] = ["--sync", "always", "--memory", "64MiB", "--memtable", "2MiB"];

/// Runs every scenario of the row, with `rounds` repetitions.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let young = young(setup)?;
    let stopped = run_lives(setup, false)?;
    let killed = run_lives(setup, true)?;
    let gone = run_without_directory(setup)?;
    let copied = run_on_copy(setup)?;
    let mounted = match full_and_read_only(setup) {
        Ok(figures) => figures,
        Err(Failure::Skipped(why)) => format!("full and read-only disks skipped: {why}"),
        Err(other) => return Err(other),
    };
    Ok(format!("{young}; {stopped}; {killed}; {gone}; {copied}; {mounted}"))
}

/// Kills the first processes of new directories.
fn young(setup: &Setup) -> Result<String, Failure> {
    let mut random = Random::new(setup.seed);
    let (mut kills, mut acknowledged) = (0, 0);
    for _ in 0..setup.rounds {
        let dir = tempfile::tempdir()?;
        let launch = setup.launch(dir.path(), dir.path(), &DEFAULTS);
        let ledger = Arc::new(Ledger::default());
        for _ in 0..1 + random.below(6) {
            kills += 1;
            if random.percent(50) {
                let mut child = launch.spawn()?;
                thread::sleep(Duration::from_micros(random.below(YOUNG_MS * 1000)));
                child.kill()?;
                child.wait()?;
                continue;
            }
            let node = launch.start()?;
            let writers =
                Writers::start(node.address, &ledger, WriterParams::default(), random.number())?;
            thread::sleep(Duration::from_millis(random.below(YOUNG_MS)));
            node.kill()?;
            writers.stop()?;
        }
        let node = launch.start()?;
        check(&node, &ledger, ProcessState::New)?;
        acknowledged += ledger.counts().0;
    }
    Ok(format!("{kills} kills of {} young directories: 0 of {acknowledged} lost", setup.rounds))
}

/// Starts and ends processes under load, all of them by SIGKILL if `kill`, otherwise all by
/// SIGTERM. Reports the durations of the starts, and the longest log that an end left.
fn run_lives(setup: &Setup, kill: bool) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let launch = setup.launch(dir.path(), dir.path(), &DEFAULTS);
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let (mut starts, mut ends, mut most) = (Vec::new(), Vec::new(), (0, 0));
    for _ in 0..setup.rounds {
        let begun = Instant::now();
        let node = launch.start()?;
        starts.push(begun.elapsed());
        let writers =
            Writers::start(node.address, &ledger, WriterParams::default(), random.number())?;
        thread::sleep(RUN_TIME.mul_f64(random.below(100) as f64 / 100.0));
        let begun = Instant::now();
        end(node, kill)?;
        ends.push(begun.elapsed());
        writers.stop()?;
        let (segments, bytes) = log(&launch.data)?;
        if !kill && bytes > 1024 {
            return Err(Failure::Broken(format!("a clean stop leaves {bytes} bytes of log")));
        }
        if segments > MOST_SEGMENTS {
            return Err(Failure::Broken(format!("{segments} segments of {bytes} bytes are left")));
        }
        most = most.max((bytes >> 20, segments));
    }
    let node = launch.start()?;
    // A check with `ProcessState::New` leaves one write of each key in the ledger.
    let written = ledger.counts().0;
    check(&node, &ledger, ProcessState::New)?;
    let longest = |all: &[Duration]| all.iter().max().map_or(0, Duration::as_millis);
    Ok(format!(
        "{} {} under load: starts took {} to {} ms, {}at most {} MiB of log were left, \
         0 of {} lost",
        setup.rounds,
        if kill { "kills" } else { "stops" },
        starts.iter().min().map_or(0, Duration::as_millis),
        longest(&starts),
        if kill { String::new() } else { format!("stops up to {} ms, ", longest(&ends)) },
        most.0,
        written
    ))
}

fn end(node: Node, kill: bool) -> Result<(), Failure> {
    if kill {
        return node.kill();
    }
    match node.stop()? {
        status if status.success() => Ok(()),
        status => Err(Failure::Broken(format!("after SIGTERM the node ended with {status}"))),
    }
}

/// Returns the number of log files, and the sum of their sizes in bytes.
fn log(data: &Path) -> Result<(usize, u64), Failure> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(".wal") {
            files += 1;
            bytes += entry.metadata()?.len();
        }
    }
    Ok((files, bytes))
}

/// Removes or moves the directory of a running node under load.
fn run_without_directory(setup: &Setup) -> Result<String, Failure> {
    let mut longest = Duration::ZERO;
    for removed in [true, false] {
        let dir = tempfile::tempdir()?;
        let launch = setup.launch(dir.path(), dir.path(), &DEFAULTS);
        let node = launch.start()?;
        let ledger = Arc::new(Ledger::default());
        let writers = Writers::start(node.address, &ledger, WriterParams::default(), setup.seed)?;
        thread::sleep(RUN_TIME);
        let moved = dir.path().join("moved");
        let begun = Instant::now();
        match removed {
            true => fs::remove_dir_all(&launch.data)?,
            false => fs::rename(&launch.data, &moved)?,
        }
        if !writers.wait(TIMEOUT, |statuses| statuses.contains_key(&500)) {
            return Err(Failure::Broken(format!("no 500, but {:?}", writers.statuses())));
        }
        longest = longest.max(begun.elapsed());
        thread::sleep(RUN_TIME);
        let after = writers.first_500().map_or(0, |first| ledger.count_acknowledged_after(first));
        let statuses = writers.stop()?;
        if after > 0 {
            return Err(Failure::Broken(format!("{after} acknowledged afterwards: {statuses:?}")));
        }
        let ready = node.client()?.request("GET", "/readyz", b"")?.status;
        if ready != 503 {
            return Err(Failure::Broken(format!("/readyz answers {ready} without a directory")));
        }
        node.kill()?;
        if !removed {
            // The moved directory must have all acknowledged writes.
            fs::rename(&moved, &launch.data)?;
            check(&launch.start()?, &ledger, ProcessState::New)?;
        }
    }
    Ok(format!("directory removed, moved: no ack after {} ms at most", longest.as_millis()))
}

/// Copies the directory while the node writes to it. A node on the copy must refuse to start with
/// an error of one line, or serve only values that were once written.
fn run_on_copy(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let launch = setup.launch(dir.path(), dir.path(), &SMALL);
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams { value_len: 20_000, ..WriterParams::default() };
    let writers = Writers::start(node.address, &ledger, work, setup.seed)?;
    let (mut served, mut refused) = (0, 0);
    for round in 0..setup.rounds {
        thread::sleep(RUN_TIME / 4);
        let copy = dir.path().join(format!("copy{round}"));
        // Files that the node deletes during the copying are missing in the copy; a user's copy has
        // the same defect.
        let _ = Command::new("cp").arg("-r").arg(&launch.data).arg(&copy).output()?;
        match (Launch { data: copy.clone(), ..launch.clone() }).start() {
            Ok(copied) => {
                ledger.check_written(&read_all(&copied)?)?;
                served += 1;
            }
            Err(Failure::Refused(said)) if !said.contains("panicked") => refused += 1,
            Err(other) => return Err(other),
        }
        fs::remove_dir_all(&copy)?;
    }
    writers.stop()?;
    check(&node, &ledger, ProcessState::Same)?;
    Ok(format!("{} copies of a running node: {served} served, {refused} refused", setup.rounds))
}

/// Checks that a stop on a full disk is clean, and that the next start succeeds. A node must refuse
/// to start on a read-only disk, with an error of one line.
fn full_and_read_only(setup: &Setup) -> Result<String, Failure> {
    let disk = Mount::tmpfs(64)?;
    let dir = tempfile::tempdir()?;
    let launch = setup.launch(disk.path(), dir.path(), &SMALL);
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams { clients: 8, ..WriterParams::for_full_disk() };
    let writers = Writers::start(node.address, &ledger, work, setup.seed)?;
    let full = |statuses: &Statuses| statuses.get(&507).is_some_and(|refused| *refused > 100);
    if !writers.wait(TIMEOUT, full) {
        return Err(Failure::Broken(format!("no 507, but {:?}", writers.statuses())));
    }
    end(node, false)?;
    writers.stop()?;
    disk.resize(256)?;
    let node = launch.start()?;
    check(&node, &ledger, ProcessState::New)?;
    end(node, false)?;
    disk.remount_as("ro")?;
    match launch.start() {
        Err(Failure::Refused(said)) if said.lines().count() == 1 && said.contains("Read-only") => {}
        Err(Failure::Refused(said)) => return Err(Failure::Broken(said)),
        Ok(_) => return Err(Failure::Broken("it serves on a read-only disk".to_owned())),
        Err(other) => return Err(other),
    }
    disk.remount_as("rw")?;
    check(&launch.start()?, &ledger, ProcessState::New)?;
    Ok("stopped on a full disk, refused on a read-only one: 0 lost".to_owned())
}
