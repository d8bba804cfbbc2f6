//! Row 20 of docs/results/reliability.md: a node is killed, its data directory is removed, and it
//! restarts under its name. The node must not report lost keys as absent, and the other nodes must
//! return the keys' values.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::workload::fill::{FillParams, fill};
use kit::workload::prober::{ProbeParams, Prober};
use rustix::process::Signal;

use crate::Setup;

const NODES: usize = 3;

/// The node that loses its disk.
const WIPED: usize = 1;

const PACE: ProbeParams = ProbeParams {
    clients: 4,
    every: Duration::from_millis(25),
    votes: "&ack=2&from=3",
    large: 2,
    conditional: 25,
    tries: 2,
};

const VALUE_LEN: usize = 4000;

/// Timeout of a rebuild.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Number of keys of which only one copy remains, and number of those that are read while the copy
/// can't be reached. Each such read takes the whole deadline of a request.
const LONE: u64 = 200;
const ASKED: usize = 3;

/// Runs two scenarios: reads of keys whose only copy can't be reached, and a rebuild under load.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let lone = lone_copies(setup)?;
    Ok(format!("{lone}; {}", rebuild(setup)?))
}

/// Writes keys that two of three nodes acknowledge while the third node is down. Then wipes one of
/// the two, suspends the other, and restarts the third. Neither of the two nodes that answer stores
/// the keys, and neither may report them as absent.
fn lone_copies(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "always"])?;
    let ledger = Arc::new(Ledger::default());
    let (away, holder) = ((WIPED + 1) % NODES, (WIPED + 2) % NODES);
    cluster.kill(away)?;
    let what = FillParams { keys: LONE, value_len: 100, prefix: 'l', votes: "&ack=2&from=3" };
    fill(&cluster.others(away), &ledger, what)?;
    cluster.node(holder)?.signal(Signal::STOP)?;
    cluster.kill(WIPED)?;
    fs::remove_dir_all(cluster.data(WIPED))?;
    cluster.start_node(WIPED)?;
    cluster.start_node(away)?;
    for node in [WIPED, away] {
        let mut client = Client::connect(cluster.addresses()[node])?;
        for key in ledger.keys().iter().take(ASKED) {
            let answer = client.request("GET", &(target(key) + what.votes), b"")?;
            if !matches!(answer.status, 503 | 504) {
                let status = answer.status;
                return Err(Failure::Broken(format!(
                    "GET {key} answers {status} while its only copy can't be reached"
                )));
            }
        }
    }
    cluster.node(holder)?.signal(Signal::CONT)?;
    cluster.wait_until_ready()?;
    cluster.check(&ledger)?;
    let agreed = cluster.wait_until_equal(TIMEOUT)?;
    Ok(format!("{} keys of which one copy was left never said to be absent", agreed.keys))
}

/// Rebuilds a wiped node under load.
fn rebuild(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "interval"])?;
    let ledger = Arc::new(Ledger::default());
    let keys = setup.size(100_000, 3_000);
    let what = FillParams { keys, value_len: VALUE_LEN, prefix: 'w', votes: "&ack=3&from=3" };
    fill(cluster.addresses(), &ledger, what)?;
    let prober = Prober::start(cluster.addresses(), &ledger, PACE, setup.seed)?;
    cluster.kill(WIPED)?;
    fs::remove_dir_all(cluster.data(WIPED))?;
    cluster.start_node(WIPED)?;
    let begun = Instant::now();
    while cluster.dump(WIPED)?.len() < keys as usize {
        if begun.elapsed() > TIMEOUT {
            let there = cluster.dump(WIPED)?.len();
            return Err(Failure::Broken(format!("{there} of {keys} keys after {TIMEOUT:?}")));
        }
        thread::sleep(Duration::from_millis(setup.size(500, 50)));
    }
    let took = begun.elapsed();
    let seen = prober.stop()?;
    if let Some(why) = seen.failed.first() {
        return Err(Failure::Broken(format!("a request failed at two nodes{why}")));
    }
    cluster.wait_until_ready()?;
    let agreed = cluster.wait_until_equal(TIMEOUT)?;
    cluster.check(&ledger)?;
    // Without the killed node, every quorum needs the rebuilt node.
    cluster.kill((WIPED + 1) % NODES)?;
    cluster.check(&ledger)?;
    let bytes = keys as f64 * VALUE_LEN as f64;
    Ok(format!(
        "{keys} keys, {:.0} MB given back in {:.1} s beside clients: {:.2} GB/min; {} requests \
         meanwhile, {} tried twice, 0 failed, 0 lost; {} keys by reading",
        bytes / 1e6,
        took.as_secs_f64(),
        bytes / 1e9 / took.as_secs_f64() * 60.0,
        seen.requests,
        seen.retried,
        agreed.read
    ))
}
