//! Row 25 of docs/results/reliability.md: bits flip in the tables of one replica. The replica must
//! return no wrong value and no wrong 404, other replicas must not copy the damage, and after a
//! wipe and a rebuild the replica must be correct again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::fill::{FillParams, fill};

use crate::Setup;

const NODES: usize = 3;

/// The node with the damaged disk.
const DAMAGED_NODE: usize = 1;

const VALUE_LEN: usize = 1000;

/// Timeout of a rebuild.
const REBUILD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Flips `rounds` bits in the tables of one stopped node.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    // Little memory, so that no cache hides the damage. Small memtables, so that the data is in
    // tables.
    let args = ["--sync", "interval", "--memory", "64MiB", "--memtable", "1MiB"];
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &args)?;
    let ledger = Arc::new(Ledger::default());
    let keys = setup.size(30_000, 6_000);
    let what = FillParams { keys, value_len: VALUE_LEN, prefix: 'c', votes: "&ack=3&from=3" };
    fill(cluster.addresses(), &ledger, what)?;
    cluster.stop(DAMAGED_NODE)?;
    let mut random = Random::new(setup.seed);
    let flips = flip(&cluster, setup.rounds, &mut random)?;
    let (refused, failed) = match cluster.start_node(DAMAGED_NODE) {
        Ok(()) => (false, read_everything(&cluster, &ledger)?),
        // A refusal to start is as good as a failed read: the node has detected the damage.
        Err(Failure::Refused(said)) if said.contains("damage") || said.contains("corrupt") => {
            (true, 0)
        }
        Err(other) => return Err(other),
    };
    for sound in (0..NODES).filter(|node| *node != DAMAGED_NODE) {
        let held = cluster.dump(sound)?;
        let tally = ledger.check(&held, kit::oracle::ledger::ProcessState::Same)?;
        if held.len() < tally.keys {
            return Err(Failure::Broken(format!("node {} lost keys of its own", sound + 1)));
        }
    }
    cluster.kill(DAMAGED_NODE)?;
    fs::remove_dir_all(cluster.data(DAMAGED_NODE))?;
    cluster.start_node(DAMAGED_NODE)?;
    cluster.wait_until_ready()?;
    let agreed = cluster.wait_until_equal(REBUILD_TIMEOUT)?;
    cluster.check(&ledger)?;
    Ok(format!(
        "{flips} bits flipped in the tables of one replica: {}; all {} keys right from every node, \
         spread to none; wiped and rebuilt, C after {:.1} s",
        match refused {
            true => "its start was refused".to_owned(),
            false => format!("{failed} reads that needed it failed, none was wrong"),
        },
        agreed.keys,
        agreed.took.as_secs_f64()
    ))
}

fn flip(cluster: &Cluster, times: u32, random: &mut Random) -> Result<u32, Failure> {
    let entries = fs::read_dir(cluster.data(DAMAGED_NODE))?.collect::<Result<Vec<_>, _>>()?;
    let tables: Vec<_> = entries
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "sst"))
        .collect();
    if tables.is_empty() {
        return Err(Failure::Environment("there are no tables to damage".to_owned()));
    }
    for _ in 0..times {
        let path = &tables[random.below(tables.len() as u64) as usize];
        let file = File::options().read(true).write(true).open(path)?;
        let at = random.below(file.metadata()?.len());
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << random.below(8);
        file.write_all_at(&byte, at)?;
    }
    Ok(times)
}

/// Reads every key at every node. Reads from two replicas must succeed; reads from all three may
/// fail, but must not be wrong. Returns the number of failed reads.
fn read_everything(cluster: &Cluster, ledger: &Ledger) -> Result<u64, Failure> {
    let mut failed = 0;
    for address in cluster.addresses() {
        let mut client = Client::connect(*address)?;
        for key in ledger.keys() {
            for votes in ["&ack=2&from=3", "&ack=3&from=3"] {
                let answer = client.request("GET", &(target(&key) + votes), b"")?;
                match answer.status {
                    200 | 404 => {
                        let found = (answer.status == 200).then_some(answer.body.as_slice());
                        ledger.check_read(&key, found)?;
                    }
                    500..=599 if votes == "&ack=3&from=3" => failed += 1,
                    status => {
                        return Err(Failure::Broken(format!(
                            "GET {key}{votes} answers {status} with one replica damaged"
                        )));
                    }
                }
            }
        }
    }
    Ok(failed)
}
