//! Row 19 of docs/results/reliability.md: every sync of one of three replicas takes 200 ms longer.
//! Requests with a quorum of two must not become slower, whichever node is the coordinator, and the
//! work that waits for the slow node must stay bounded.
//!
//! strace also runs during the measurement without the fault, so that the two measurements differ
//! only in the delay.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::faults::strace::Strace;
use kit::oracle::ledger::Ledger;
use kit::workload::prober::{ProbeFigures, ProbeParams, Prober};

use crate::Setup;

const NODES: usize = 3;

/// The node with the slow disk.
const SLOW: usize = 2;

const PACE: ProbeParams = ProbeParams {
    clients: 8,
    every: Duration::from_millis(20),
    votes: "&ack=2&from=3",
    large: 2,
    conditional: 0,
    tries: 2,
};

/// Maximum growth of the 99th percentile, as a factor.
const RATIO: f64 = 2.0;

/// A 99th percentile below this bound is acceptable at any ratio: on a busy machine a baseline of a
/// few milliseconds doubles by chance.
const FAST_ENOUGH: Duration = Duration::from_millis(25);

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Compares the latencies with and without the fault.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", "always", "--memory", "64MiB"];
    let cluster = Cluster::start(&setup.binary, NODES, None, &args)?;
    let ledger = Arc::new(Ledger::default());
    // A first measurement is discarded, because its requests open the connections.
    measure(setup, &cluster, &ledger, "delay_exit=1", Duration::from_secs(1))?;
    let lasts = Duration::from_secs(setup.size(15, 4));
    let before = measure(setup, &cluster, &ledger, "delay_exit=1", lasts)?;
    let slow = measure(setup, &cluster, &ledger, "delay_exit=200000", lasts)?;
    let (resident, _) = cluster.node(0)?.resident()?;
    let (normal, slowed) = (before.percentile(99.0), slow.percentile(99.0));
    let ratio = slowed.as_secs_f64() / normal.as_secs_f64();
    for seen in [&before, &slow] {
        if let Some(why) = seen.failed.first() {
            let failed = seen.failed.len();
            return Err(Failure::Broken(format!("{failed} requests failed at two nodes: {why}")));
        }
    }
    if ratio > RATIO && slowed > FAST_ENOUGH {
        return Err(Failure::Broken(format!(
            "one slow replica makes p99 {slowed:?} instead of {normal:?}"
        )));
    }
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    cluster.check(&ledger)?;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(format!(
        "p99 {:.1} ms with one slow replica, {:.1} ms without: {ratio:.2} x (p50 {:.1}, {:.1}; \
         max {:.0}, {:.0}) over {} requests, {} tried twice; RSS of a coordinator {} MiB; C after \
         {:.1} s ({} keys by reading)",
        millis(slowed),
        millis(normal),
        millis(slow.percentile(50.0)),
        millis(before.percentile(50.0)),
        millis(slow.percentile(100.0)),
        millis(before.percentile(100.0)),
        slow.requests,
        slow.retried,
        resident >> 20,
        agreed.took.as_secs_f64(),
        agreed.read
    ))
}

fn measure(
    setup: &Setup,
    cluster: &Cluster,
    ledger: &Arc<Ledger>,
    fault: &str,
    lasts: Duration,
) -> Result<ProbeFigures, Failure> {
    let log = cluster.dir().join("strace");
    let strace = Strace::attach(cluster.node(SLOW)?, "fdatasync", fault, &log)?;
    let prober = Prober::start(cluster.addresses(), ledger, PACE, setup.seed)?;
    thread::sleep(lasts);
    let seen = prober.stop()?;
    drop(strace);
    Ok(seen)
}
