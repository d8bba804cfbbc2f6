//! Row 23 of docs/results/reliability.md: the wall clocks of three nodes are minutes apart, jump
//! while the nodes run, and step back over a restart (by libfaketime; the monotonic clock is
//! unaffected). After a large step back a node refuses to start. Clients write each key through one
//! node after another; an older write must never hide a newer acknowledged write.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::faults::clock::{set, start_faked, start_repaired};
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::prober::{ProbeParams, Prober};

use crate::Setup;

const NODES: usize = 3;

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

/// Reciprocal of the share of requests that may fail at two nodes. A node with a wrong clock may
/// have stored its write before it noticed the wrong clock.
const SERVED: u64 = 4;

/// Time within which hints make all replicas equal.
const BY_ITSELF: Duration = Duration::from_secs(20);

/// Runs `rounds` of clock jumps.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let (mut cluster, offsets) = start_faked(&setup.binary, NODES, &["--sync", "interval"])?;
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
