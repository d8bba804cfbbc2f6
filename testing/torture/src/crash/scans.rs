//! The row `scans` of docs/results/reliability.md: clients read ranges over the whole cluster while
//! its nodes are killed and restarted. A range must be complete, or end with a visible error. A
//! truncated range without an error would be a loss of data.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::client::Client;
use kit::cluster::Cluster;
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::random::Random;
use kit::workload::fill::{FillParams, fill};

use crate::Setup;

const NODES: usize = 3;

/// Maximum time for which a node is down: shorter than the reading of a range in some rounds, and
/// longer in others.
const AWAY_MS: u64 = 800;

/// Results of the readers: numbers of complete, interrupted and refused ranges.
#[derive(Debug, Default, Clone, Copy)]
struct RangeFigures {
    whole: u64,
    broken: u64,
    refused: u64,
}

/// Kills a random node `rounds` times while clients read ranges at every node.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "interval"])?;
    let ledger = Arc::new(Ledger::default());
    let keys = setup.size(40_000, 5_000);
    let what = FillParams { keys, value_len: 200, prefix: 's', votes: "&ack=2&from=3" };
    fill(cluster.addresses(), &ledger, what)?;
    let stop = AtomicBool::new(false);
    let addresses = cluster.addresses().to_vec();
    let mut random = Random::new(setup.seed);
    let seen = thread::scope(|scope| {
        let readers: Vec<_> = addresses
            .iter()
            .map(|address| scope.spawn(|| read_on(*address, &ledger, keys, &stop)))
            .collect();
        let broken = (0..setup.rounds).try_for_each(|_| {
            let node = random.below(NODES as u64) as usize;
            thread::sleep(Duration::from_millis(random.below(AWAY_MS)));
            cluster.kill(node)?;
            thread::sleep(Duration::from_millis(random.below(AWAY_MS)));
            cluster.start_node(node)?;
            cluster.wait_until_ready()
        });
        stop.store(true, Ordering::Relaxed);
        let mut sum = RangeFigures::default();
        for reader in readers {
            let seen = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            sum.whole += seen.whole;
            sum.broken += seen.broken;
            sum.refused += seen.refused;
        }
        broken.map(|()| sum)
    })?;
    let RangeFigures { whole, broken, refused } = seen;
    if whole == 0 {
        return Err(Failure::Environment("no range was ever read to its end".to_owned()));
    }
    Ok(format!(
        "{} kills under ranges of {keys} keys from every node: {whole} came whole, {broken} broke \
         off for all to see, {refused} were refused, 0 were short",
        setup.rounds
    ))
}

/// Repeatedly reads a range over all keys.
fn read_on(
    address: SocketAddr,
    ledger: &Ledger,
    keys: u64,
    stop: &AtomicBool,
) -> Result<RangeFigures, Failure> {
    let mut seen = RangeFigures::default();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut client) = Client::connect(address) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut found = BTreeMap::new();
        let read = client.scan("%01", |key, value| {
            found.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
            Ok(())
        });
        match read {
            Ok(()) if found.len() as u64 == keys => {
                ledger.check(&found, ProcessState::Same)?;
                seen.whole += 1;
            }
            Ok(()) => {
                let there = found.len();
                return Err(Failure::Broken(format!(
                    "a range that came to its end at {address} has {there} of {keys} keys"
                )));
            }
            Err(_) if found.is_empty() => seen.refused += 1,
            Err(_) => seen.broken += 1,
        }
    }
    Ok(seen)
}
