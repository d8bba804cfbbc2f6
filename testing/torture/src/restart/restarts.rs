//! Row 22 of docs/results/reliability.md: rolling restarts, repeatedly. Also the row `killed`: one
//! node is killed and restarted. Clients send requests at a fixed rate, with up to two attempts
//! each.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::prober::{ProbeFigures, ProbeParams, Prober};

use crate::Setup;

const NODES: usize = 3;

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Restarts each node in turn, `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &args(setup))?;
    let ledger = Arc::new(Ledger::default());
    let prober = Prober::start(cluster.addresses(), &ledger, ProbeParams::USUAL, setup.seed)?;
    thread::sleep(Duration::from_millis(500));
    for _ in 0..setup.rounds {
        for node in 0..NODES {
            cluster.stop(node)?;
            cluster.start_node(node)?;
        }
    }
    let seen = prober.stop()?;
    check_all_succeeded(&seen)?;
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    cluster.check(&ledger)?;
    Ok(format!(
        "{} restarts of each of {NODES} nodes: {} requests, {} tried twice, 0 failed, longest gap \
         {} ms, p99 {:.0} ms, max {:.0} ms; C after {:.1} s ({} keys by reading)",
        setup.rounds,
        seen.requests,
        seen.retried,
        seen.longest_gap.as_millis(),
        seen.percentile(99.0).as_secs_f64() * 1e3,
        seen.percentile(100.0).as_secs_f64() * 1e3,
        agreed.took.as_secs_f64(),
        agreed.read
    ))
}

/// Kills and restarts a random node, `rounds` times.
pub fn kill_nodes(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &args(setup))?;
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let prober = Prober::start(cluster.addresses(), &ledger, ProbeParams::USUAL, setup.seed)?;
    for _ in 0..setup.rounds {
        let node = random.below(NODES as u64) as usize;
        thread::sleep(Duration::from_millis(300 + random.below(500)));
        cluster.kill(node)?;
        thread::sleep(Duration::from_millis(500 + random.below(setup.size(3000, 500))));
        cluster.start_node(node)?;
        // If the killed node may have a newer version of a record, a read needs that node or the
        // third node. Both must be ready before the next kill.
        cluster.wait_until_ready()?;
    }
    thread::sleep(Duration::from_millis(300));
    let seen = prober.stop()?;
    check_all_succeeded(&seen)?;
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    cluster.check(&ledger)?;
    Ok(format!(
        "{} kills: {} requests, {} tried twice, 0 failed, longest gap {} ms, p99 {:.0} ms; C after \
         {:.1} s ({} keys by reading), 0 lost",
        setup.rounds,
        seen.requests,
        seen.retried,
        seen.longest_gap.as_millis(),
        seen.percentile(99.0).as_secs_f64() * 1e3,
        agreed.took.as_secs_f64(),
        agreed.read
    ))
}

/// Settings of the nodes. The deadline of the quick form is long, because it runs beside other
/// tests, where replicas may be slow.
fn args(setup: &Setup) -> [&'static str; 4] {
    ["--sync", "always", "--deadline", setup.size("1s", "8s")]
}

pub(crate) fn check_all_succeeded(seen: &ProbeFigures) -> Result<(), Failure> {
    match seen.failed.first() {
        None => Ok(()),
        Some(first) => Err(Failure::Broken(format!(
            "{} of {} requests failed at two nodes, as{first}",
            seen.failed.len(),
            seen.requests
        ))),
    }
}
