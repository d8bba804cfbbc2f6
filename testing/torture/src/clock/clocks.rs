//! Row 23 of docs/results/reliability.md: the wall clocks of three nodes are minutes apart, jump
//! while the nodes run, and step back during a restart (by means of libfaketime; the monotonic
//! clock is unaffected). After a large step back a node must refuse to start. Clients write each
//! key through one node after another; an older write must never hide a newer acknowledged write.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::faults::clock::{set, start_repaired, start_with_fake_clocks};
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::prober::{ProbeParams, Prober};

use crate::Setup;

const NODES: usize = 3;

/// Maximum clock error of the row, in seconds.
const MOST: u64 = 300;

const PACE: ProbeParams = ProbeParams {
    clients: 8,
    every: Duration::from_millis(10),
    votes: "&ack=2&from=3",
    large: 0,
    conditional: 25,
    tries: 2,
};

/// Maximum step back in seconds after which a node still starts. The node's clock then begins at
/// its durable bound.
const MAX_STEP_BACK: i64 = 30;

/// Reciprocal of the maximum share of requests that may fail at two nodes. A node with a wrong
/// clock may store its write before it notices that its clock is wrong.
const FAILURE_DIVISOR: u64 = 4;

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the clock of a random node jump, `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let (mut cluster, offsets) =
        start_with_fake_clocks(&setup.binary, NODES, &["--sync", "interval"])?;
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
            // During a restart, the clock steps back to a time before issued versions. After a
            // large step the node refuses to start.
            let back = if random.percent(50) { MOST as i64 } else { MAX_STEP_BACK };
            set(&offsets[node], -back)?;
            cluster.kill(node)?;
            match cluster.start_node(node) {
                Err(Failure::Refused(why)) if why.contains("repair-clock") => {
                    figures.refused_starts += 1;
                    set(&offsets[node], 0)?;
                    start_repaired(&setup.binary, &mut cluster, node)?;
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
        // All clocks are corrected, because differing replicas become equal only with correct
        // clocks.
        offsets.iter().try_for_each(|path| set(path, 0))?;
        cluster.wait_until_ready()?;
        figures.read = figures.read.max(cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?.read);
        cluster.check(&ledger)?;
    }
    let ClockFigures { requests, refused, failed, steps, refused_starts, read } = figures;
    if failed as u64 * FAILURE_DIVISOR > requests {
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
