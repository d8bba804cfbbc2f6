//! The row `settings` of docs/results/reliability.md: settings change during restarts, and nodes
//! have different settings. Stored data must be readable, scannable and replicable, and a rebuild
//! must restore it, with any settings. Values of 8 MB are written through the first node, which
//! keeps `--memory 512MiB`. The second and the third node are restarted in turn with other
//! settings; after the first two restarts both have only 64 MiB. Each restarted node has missed
//! overwrites or lost its disk.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::oracle::ledger::{Ledger, WriteOutcome};
use kit::random::Random;
use kit::workload::writers::outcome_of;

use crate::Setup;

const NODES: usize = 3;

/// Settings of the first node, through which all values are written.
const LARGE: [&str; 4] = ["--memory", "512MiB", "--max-value", "8MiB"];

/// Settings of the other nodes. With most of these settings, no part of the node's memory has room
/// for the longest values.
const SETTINGS: [&[&str]; 6] = [
    &["--memory", "64MiB", "--max-value", "1KiB"],
    &["--memory", "64MiB", "--memtable", "1MiB", "--loops", "1", "--read-threads", "1"],
    &["--memory", "128MiB", "--sync", "interval", "--queue", "1"],
    &["--memory", "256MiB", "--max-value", "1B", "--deadline", "5s"],
    &["--memory", "1GiB", "--loops", "4", "--memtable", "8MiB"],
    &LARGE,
];

/// Lengths in bytes of the values, one for each key.
const LENGTHS: [usize; 12] = [
    8_000_000, 100, 1_000_000, 60_000, 8_000_000, 70_000, 300_000, 2_000_000, 16_400, 8_000_000,
    4_100_000, 1,
];

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of a write that is refused and repeated.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before a refused write is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Maximum resident memory beyond `--memory`, in bytes: 64 MiB, and copies of one value of 8 MiB,
/// for each replica as the value is read, sent and assembled.
const BEYOND: u64 = (64 << 20) + 8 * (8 << 20);

/// Restarts a node with changed settings, `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &[])?;
    let base: Vec<_> = cluster.launches.iter().map(|launch| launch.args.clone()).collect();
    let setting = |cluster: &mut Cluster, node: usize, settings: &[&str]| {
        let settings = settings.iter().map(|word| (*word).to_owned());
        cluster.launches[node].args = base[node].iter().cloned().chain(settings).collect();
    };
    for node in 0..NODES {
        setting(&mut cluster, node, &LARGE);
        cluster.start_node(node)?;
    }
    cluster.wait_until_ready()?;
    let ledger = Arc::new(Ledger::default());
    write_all(&cluster, &ledger, "&ack=3&from=3")?;
    let mut random = Random::new(setup.seed);
    let (mut wiped, mut peak, mut read) = (0, 0, 0);
    for round in 0..setup.rounds as usize {
        let node = 1 + round % (NODES - 1);
        // The first two rounds give both other nodes little memory, so that a wiped node is rebuilt
        // from such nodes.
        let chosen = if round < 2 { round } else { random.below(SETTINGS.len() as u64) as usize };
        if random.percent(50) {
            cluster.kill(node)?
        } else {
            cluster.stop(node)?
        }
        setting(&mut cluster, node, SETTINGS[chosen]);
        let wipes = round % 3 == 2;
        if wipes {
            wiped += 1;
            fs::remove_dir_all(cluster.data(node))?;
        } else {
            // The node misses these writes while it is down; hints deliver them later.
            write_all(&cluster, &ledger, "&ack=2&from=3")?;
        }
        cluster.start_node(node)?;
        cluster.wait_until_ready()?;
        read += cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?.read;
        cluster.check(&ledger)?;
        if SETTINGS[chosen].contains(&"64MiB") {
            peak = peak.max(resident(&cluster, node)?);
        }
    }
    Ok(format!(
        "{} restarts with other settings, {wiped} of them without a disk: {} values of up to 8 MB \
         read by key and range from every node, {read} brought about by reading, 0 lost; peak RSS \
         of nodes with 64MiB {} MiB",
        setup.rounds,
        LENGTHS.len(),
        peak >> 20
    ))
}

fn resident(cluster: &Cluster, node: usize) -> Result<u64, Failure> {
    let (_, most) = cluster.node(node)?.resident()?;
    if most > (64 << 20) + BEYOND {
        let took = most >> 20;
        return Err(Failure::Broken(format!("a node with --memory 64MiB took {took} MiB")));
    }
    Ok(most)
}

/// Overwrites every key through the first node, and repeats refused writes.
fn write_all(cluster: &Cluster, ledger: &Ledger, votes: &str) -> Result<(), Failure> {
    let mut client = Client::connect(cluster.addresses()[0])?;
    for (key, len) in LENGTHS.iter().enumerate() {
        let key = format!("k{key:02}");
        let begun = Instant::now();
        loop {
            let (ticket, value) = ledger.put(&key, *len);
            let answer = client.request("PUT", &(target(&key) + votes), &value);
            let said = outcome_of(&answer);
            ledger.end(ticket, said);
            if said == WriteOutcome::Ok {
                break;
            }
            if begun.elapsed() > TIMEOUT {
                return Err(Failure::Broken(format!("{key} can't be written: {answer:?}")));
            }
            if !answer.is_ok_and(|answer| !answer.closes) {
                client = Client::connect(cluster.addresses()[0])?;
            }
            thread::sleep(RETRY_PAUSE);
        }
    }
    Ok(())
}
