//! Row 9 of docs/results/reliability.md: the disk becomes full. The node must refuse writes with
//! 507 and continue to serve reads. No acknowledged write may be lost. Once there is free space
//! again, the node must accept writes without a restart.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::target;
use kit::faults::mount::{Mount, make_image};
use kit::node::{Launch, Node};
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::check;
use kit::workload::writers::{Statuses, WriterParams, Writers, outcome_of};

use crate::Setup;

/// Size of the disk in MiB.
const DISK_MIB: u64 = 64;

/// Timeout for filling the disk, and for the recovery.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Duration of the writes while the disk is full.
const FULL: Duration = Duration::from_secs(1);

/// Fills a tmpfs and then enlarges it, `rounds` times; fills an ext4 once and then deletes a file.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut slowest = Duration::ZERO;
    let mut refused = 0;
    for round in 0..setup.rounds {
        let disk = Mount::tmpfs(DISK_MIB)?;
        let dir = tempfile::tempdir()?;
        let launch = setup.launch(disk.path(), dir.path(), &args(round));
        let (took, statuses) = fill_up(&launch, || disk.resize(4 * DISK_MIB))?;
        slowest = slowest.max(took);
        refused += statuses.get(&507).copied().unwrap_or(0);
    }
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    make_image(&image, (3 * DISK_MIB) << 20)?;
    let disk = Mount::image(&image)?;
    let ballast = disk.fill_leaving((2 * DISK_MIB) << 20)?;
    let launch = setup.launch(disk.path(), dir.path(), &args(0));
    let (ext4, _) = fill_up(&launch, || Ok(fs::remove_file(&ballast)?))?;
    Ok(format!(
        "{} disks filled: {refused} writes answered 507, all reads answered, 0 lost; first 201 \
         {} ms after a tmpfs had room again, {} ms on ext4",
        setup.rounds + 1,
        slowest.as_millis(),
        ext4.as_millis()
    ))
}

fn args(round: u32) -> [&'static str; 6] {
    let sync = if round.is_multiple_of(2) { "always" } else { "interval" };
    ["--sync", sync, "--memory", "64MiB", "--memtable", "2MiB"]
}

/// Fills the disk, and then frees space. Returns the time from the free space until the first
/// accepted write.
fn fill_up(
    launch: &Launch,
    make_room: impl FnOnce() -> Result<(), Failure>,
) -> Result<(Duration, Statuses), Failure> {
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams { clients: 8, ..WriterParams::for_full_disk() };
    let writers = Writers::start(node.address, &ledger, work, 1)?;
    let full = |statuses: &Statuses| statuses.contains_key(&507);
    if !writers.wait(TIMEOUT, full) {
        return Err(Failure::Broken(format!("no 507, but {:?}", writers.statuses())));
    }
    // By now every write is refused, and every read must still be served.
    thread::sleep(FULL);
    let statuses = writers.stop()?;
    let unexpected =
        statuses.keys().find(|status| ![200, 201, 202, 404, 503, 507].contains(*status));
    if let Some(status) = unexpected {
        return Err(Failure::Broken(format!(
            "a full disk is answered with {status}: {statuses:?}"
        )));
    }
    check(&node, &ledger, ProcessState::Same)?;
    accepts_writes_again_and_survives_a_kill(launch, node, &ledger, make_room, statuses)
}

/// Frees space under the running node, and waits until it accepts a write. Then kills the node
/// under writes, restarts it and checks it. Returns the time from the free space until the accepted
/// write.
fn accepts_writes_again_and_survives_a_kill(
    launch: &Launch,
    node: Node,
    ledger: &Arc<Ledger>,
    make_room: impl FnOnce() -> Result<(), Failure>,
    statuses: Statuses,
) -> Result<(Duration, Statuses), Failure> {
    make_room()?;
    let begun = Instant::now();
    let mut client = node.client()?;
    let took = loop {
        let (ticket, value) = ledger.put("first-after", 100);
        let answer = client.request("PUT", &target("first-after"), &value);
        ledger.end(ticket, outcome_of(&answer));
        match answer?.status {
            201 => break begun.elapsed(),
            503 | 507 if begun.elapsed() < TIMEOUT => thread::sleep(Duration::from_millis(5)),
            status => return Err(Failure::Broken(format!("{status} although there is room"))),
        }
    };
    let work = WriterParams { keys: 1000, ..WriterParams::default() };
    let writers = Writers::start(node.address, ledger, work, 2)?;
    thread::sleep(Duration::from_millis(300));
    node.kill()?;
    writers.stop()?;
    let node = launch.start()?;
    check(&node, ledger, ProcessState::New)?;
    Ok((took, statuses))
}
