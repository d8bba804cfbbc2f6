//! Row 18 of docs/results/reliability.md: one or two of three nodes are suspended (SIGSTOP) for a
//! while, and then continue.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers};
use rustix::process::Signal;

use crate::Setup;

const NODES: usize = 3;

/// Timeout of an answer, shorter than most suspensions. After a timeout the client connects to the
/// next node.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Suspends one or two nodes, `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--max-value", "8MiB"];
    let cluster = Cluster::start(&setup.binary, NODES, None, &args)?;
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let (mut longest, mut slowest, mut read) = (Duration::ZERO, Duration::ZERO, 0);
    for round in 0..setup.rounds {
        let (large, large_len) = (1, 8 << 20);
        let work = WriterParams {
            clients: 12,
            keys: 60,
            large,
            large_len,
            patience: TIMEOUT,
            ..WriterParams::default()
        };
        let writers = Writers::start_on(cluster.addresses(), &ledger, work, random.number())?;
        thread::sleep(Duration::from_millis(200));
        let first = random.below(NODES as u64) as usize;
        let victims: Vec<_> =
            (0..1 + random.below(2) as usize).map(|n| (first + n) % NODES).collect();
        for victim in &victims {
            cluster.node(*victim)?.signal(Signal::STOP)?;
        }
        // One suspension in eight may be as long as the row demands; the other suspensions are
        // shorter.
        let most = if round % 8 == 7 { setup.size(60_000, 2000) } else { setup.size(8000, 1500) };
        let lasts = Duration::from_millis(1000 + random.below(most - 1000 + 1));
        longest = longest.max(lasts);
        thread::sleep(lasts);
        for victim in &victims {
            cluster.node(*victim)?.signal(Signal::CONT)?;
        }
        thread::sleep(Duration::from_millis(300));
        writers.stop()?;
        let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
        cluster.check(&ledger)?;
        slowest = slowest.max(agreed.took);
        read = read.max(agreed.read);
    }
    let (acknowledged, _, unknown) = ledger.counts();
    Ok(format!(
        "{} pauses of one or two nodes for up to {:.0} s: {acknowledged} writes acknowledged, \
         {unknown} unknown, 0 lost; C after {:.1} s ({read} keys by reading)",
        setup.rounds,
        longest.as_secs_f64(),
        slowest.as_secs_f64(),
    ))
}
