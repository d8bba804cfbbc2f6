//! Row 26 of docs/results/reliability.md: a node is down while many keys are written, and one of
//! the two nodes that store its hints is killed during the replay. In the end the node must have
//! all keys.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::workload::fill::{FillParams, fill};

use crate::Setup;

const NODES: usize = 3;

/// The node that is down.
const DOWN_NODE: usize = 2;

/// Timeout of the replay.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs one replay, and kills and restarts a node that stores hints during it.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "interval"])?;
    let ledger = Arc::new(Ledger::default());
    cluster.kill(DOWN_NODE)?;
    let keys = setup.size(1_000_000, 10_000);
    let what = FillParams { keys, value_len: 30, prefix: 'h', votes: "&ack=2&from=3" };
    let filled = fill(&cluster.others(DOWN_NODE), &ledger, what)?;
    cluster.start_node(DOWN_NODE)?;
    let begun = Instant::now();
    let mut killed = None;
    let mut speed = 0.0;
    loop {
        let there = stored_keys(&cluster)?;
        let took = begun.elapsed();
        if there >= keys {
            break;
        }
        if took > TIMEOUT {
            return Err(Failure::Broken(format!("{there} of {keys} hints after {took:?}")));
        }
        if killed.is_none() && there > keys / 4 {
            speed = there as f64 / took.as_secs_f64();
            killed = Some(there);
            cluster.kill(0)?;
            cluster.start_node(0)?;
        }
        thread::sleep(Duration::from_millis(setup.size(200, 5)));
    }
    let took = begun.elapsed();
    let agreed = cluster.wait_until_equal(TIMEOUT)?;
    cluster.check(&ledger)?;
    Ok(format!(
        "{keys} keys written in {:.0} s with one node away; replayed in {:.1} s, {:.0} hints/s, \
         {}; C with {} keys by reading, 0 lost",
        filled.as_secs_f64(),
        took.as_secs_f64(),
        if killed.is_some() { speed } else { keys as f64 / took.as_secs_f64() },
        match killed {
            Some(there) => format!("a holder killed after {there}"),
            None => "over before a holder could be killed".to_owned(),
        },
        agreed.read
    ))
}

/// Returns the number of keys that the node which was down stores, from its metric `kvorum_keys`.
fn stored_keys(cluster: &Cluster) -> Result<u64, Failure> {
    let keys = cluster.node(DOWN_NODE)?.metric("kvorum_keys")?;
    Ok(keys.unwrap_or_default() as u64)
}
