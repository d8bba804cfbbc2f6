//! Row 23 of docs/results/reliability.md: the wall clocks of three nodes are minutes apart, jump
//! while the nodes run, and step back over a restart (by libfaketime; the monotonic clock is
//! unaffected). After a large step back a node refuses to start. Clients write each key through one
//! node after another; an older write must never hide a newer acknowledged write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::ledger::Ledger;
use crate::prober::{ProbeParams, Prober};
use crate::random::Random;
use crate::{Failure, Setup};

const NODES: usize = 3;

/// Paths of libfaketime on Debian and Ubuntu.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Greatest clock error of the row, in seconds.
const MOST: u64 = 300;

const PACE: ProbeParams = ProbeParams {
    clients: 8,
    every: Duration::from_millis(10),
    votes: "&ack=2&from=3",
    large: 0,
    conditional: 25,
    tries: 2,
};

/// Greatest step back in seconds after which a node still starts. The node's clock then begins at
/// its durable bound.
const NEAR: i64 = 30;

/// One request in this many may fail at two nodes. A node with a wrong clock may have stored its
/// write before it noticed the wrong clock.
const SERVED: u64 = 4;

/// Time within which hints make all replicas equal.
const BY_ITSELF: Duration = Duration::from_secs(20);

/// Runs `rounds` of clock jumps.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::plan(setup, NODES, None, &["--sync", "interval"])?;
    let offsets = faked(&mut cluster)?;
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let mut figures = ClockFigures::default();
    for _ in 0..setup.rounds {
        let prober = Prober::start(cluster.addresses(), &ledger, PACE, random.number())?;
        let lasts = Duration::from_millis(setup.size(1500, 500));
        thread::sleep(lasts);
        let node = random.below(NODES as u64) as usize;
        let offset = random.below(2 * MOST + 1) as i64 - MOST as i64;
        set(&offsets[node], offset)?;
        thread::sleep(lasts);
        if random.percent(50) {
            // A step back over a restart, to a time before issued versions. After a large step, the
            // node refuses to start.
            let back = if random.percent(50) { MOST as i64 } else { NEAR };
            set(&offsets[node], -back)?;
            cluster.kill(node)?;
            match cluster.start_node(node) {
                Err(Failure::Refused(why)) if why.contains("repair-clock") => {
                    figures.refused_starts += 1;
                    set(&offsets[node], 0)?;
                    start_repaired(setup, &mut cluster, node)?;
                }
                started => started?,
            }
            figures.steps += 1;
            thread::sleep(lasts);
        }
        let seen = prober.stop()?;
        figures.requests += seen.requests;
        figures.refused += seen.retried;
        figures.failed += seen.failed.len();
        // The clocks are set right again, because replicas that differ can agree only then.
        offsets.iter().try_for_each(|path| set(path, 0))?;
        cluster.wait_until_ready()?;
        figures.read = figures.read.max(cluster.wait_until_equal(BY_ITSELF)?.read);
        cluster.check(&ledger)?;
    }
    let ClockFigures { requests, refused, failed, steps, refused_starts, read } = figures;
    if failed as u64 * SERVED > requests {
        return Err(Failure::Broken(format!(
            "{failed} of {requests} requests failed at two nodes with one wrong clock of three"
        )));
    }
    Ok(format!(
        "{} jumps of up to {MOST} s, {steps} steps back over a restart, {refused_starts} of which \
         were refused: {requests} requests, {refused} refused by the first node, {failed} by two; \
         lost updates 0; C ({read} keys by reading)",
        setup.rounds
    ))
}

#[derive(Debug, Default)]
struct ClockFigures {
    requests: u64,
    refused: u64,
    failed: usize,
    steps: u32,
    refused_starts: u32,
    read: usize,
}

/// Starts a node whose clock is right. If the start is refused because the clock was far ahead
/// before, runs `kvorum repair-clock` first. Returns the output of the repair, if one was needed.
pub(crate) fn start_repaired(
    setup: &Setup,
    cluster: &mut Cluster,
    node: usize,
) -> Result<Option<String>, Failure> {
    match cluster.start_node(node) {
        Err(Failure::Refused(why)) if why.contains("repair-clock") => {}
        started => return started.map(|()| None),
    }
    let mut repair = Command::new(&setup.binary);
    let output =
        repair.args(["repair-clock", "--yes", "--data"]).arg(cluster.data(node)).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        return Err(Failure::Broken(format!("repair-clock ended with {}: {said}", output.status)));
    }
    cluster.start_node(node)?;
    Ok(Some(said))
}

/// Makes every node of a planned cluster run with a wall clock that [`set`] controls. Returns the
/// file that controls each node's clock.
pub(crate) fn faked(cluster: &mut Cluster) -> Result<Vec<PathBuf>, Failure> {
    let nodes = 0..cluster.launches.len();
    let offsets: Vec<PathBuf> =
        nodes.map(|node| cluster.dir().join(format!("offset-{node}"))).collect();
    for (launch, offset) in cluster.launches.iter_mut().zip(&offsets) {
        set(offset, 0)?;
        launch.wrapper = preload(offset)?;
    }
    Ok(offsets)
}

/// Returns the wrapper that runs a node with a wall clock that the file at `offset` controls. The
/// environment variable `LIBFAKETIME` gives the path of the library, if not the usual one.
pub(crate) fn preload(offset: &Path) -> Result<Vec<String>, Failure> {
    let named = std::env::var("LIBFAKETIME").ok();
    let library =
        named.as_deref().into_iter().chain(LIBRARIES).find(|path| Path::new(path).exists());
    let library = library.ok_or_else(|| Failure::Skipped("there is no libfaketime".to_owned()))?;
    Ok(vec![
        "env".to_owned(),
        format!("LD_PRELOAD={library}"),
        format!("FAKETIME_TIMESTAMP_FILE={}", offset.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        "DONT_FAKE_MONOTONIC=1".to_owned(),
    ])
}

/// Sets a node's wall clock off by `seconds` from now on. Replaces the file atomically, so that the
/// library never reads half of it.
pub(crate) fn set(path: &Path, seconds: i64) -> Result<(), Failure> {
    set_millis(path, seconds * 1000)
}

/// Sets a node's wall clock off by `millis` from now on.
pub(crate) fn set_millis(path: &Path, millis: i64) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let (sign, off) = (if millis < 0 { '-' } else { '+' }, millis.unsigned_abs());
    fs::write(&new, format!("{sign}{}.{:03}s\n", off / 1000, off % 1000))?;
    Ok(fs::rename(&new, path)?)
}
