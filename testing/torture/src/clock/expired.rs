//! Part of row 37 of docs/results/reliability.md: expired values must end up using no disk space.
//! In a cluster, repair rounds prove that all nodes have the values, and compactions then drop them
//! together with the older values that they replaced. A single node drops them by age.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::faults::clock::{preload, set_millis};
use kit::oracle::audit::QUORUMS;
use kit::oracle::reads::read_all;
use kit::random::Random;

use crate::Setup;
use crate::replicas::proofs::{compact, prove};

/// Length of a value in bytes.
const LONG: usize = 64 << 10;

/// Time to live of the values, in milliseconds.
const LIVES_MS: u64 = 2_000;

/// Maximum space that expired values may still use in a cluster, in percent of their size.
const MAX_REMAINING_PERCENT: u64 = 5;

/// Timeout for compactions.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns incompressible bytes.
fn value(random: &mut Random) -> Vec<u8> {
    (0..LONG / 8).flat_map(|_| random.number().to_le_bytes()).collect()
}

/// Returns a key. The keys of consecutive numbers are spread over the key space, so that tables
/// overlap.
fn key(number: u64, name: &str) -> String {
    format!("{:04x}-{name}", (number * 0x9e37) & 0xffff)
}

fn put(client: &mut Client, key: &str, query: &str, value: &[u8]) -> Result<(), Failure> {
    let answer = client.request("PUT", &(target(key) + query), value)?;
    match answer.status {
        201 => Ok(()),
        status => Err(Failure::Environment(format!("PUT {key} answers {status}"))),
    }
}

/// Three nodes: writes values that expire, half of them over older values without expiry. After a
/// repair round and a compaction, the values must be gone and their space free.
pub(crate) fn in_cluster(setup: &Setup, cluster: &Cluster) -> Result<String, Failure> {
    let mut random = Random::new(setup.seed);
    let keys: Vec<String> = (0..setup.size(1024, 128)).map(|n| key(n, "gone")).collect();
    let mut client = Client::connect(cluster.addresses()[0])?;
    let ttl = format!("&ttl={}s", LIVES_MS / 1000);
    for (number, key) in keys.iter().enumerate() {
        if number % 2 == 0 {
            put(&mut client, key, "&ack=3&from=3", &value(&mut random))?;
        }
        put(&mut client, key, &ttl, &value(&mut random))?;
    }
    let before = compact(setup, cluster)?;
    thread::sleep(Duration::from_millis(LIVES_MS));
    let round = prove(setup, cluster, 1)?;
    let after = compact(setup, cluster)?;
    for (node, address) in cluster.addresses().iter().enumerate() {
        let mut client = Client::connect(*address)?;
        for (key, votes) in keys.iter().flat_map(|key| QUORUMS.map(|votes| (key, votes))) {
            let status = client.request("GET", &(target(key) + votes), b"")?.status;
            if status != 404 {
                let asked = format!("GET {key}{votes} at node {}", node + 1);
                return Err(Failure::Broken(format!("{asked} answers {status} once it is purged")));
            }
        }
    }
    if after * 100 > before * MAX_REMAINING_PERCENT {
        let what =
            format!("{before} bytes of expired values are {after} bytes yet: {}", round.json);
        return Err(Failure::Broken(what));
    }
    Ok(format!(
        "{} values that expired on three nodes, half of them over older ones: {} MiB of tables \
         became {:.2} %",
        keys.len(),
        before >> 20,
        after as f64 * 100.0 / before as f64
    ))
}

/// A single node: compactions must drop values that expired more than ten minutes ago.
pub(crate) fn alone(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let mut launch =
        setup.launch(dir.path(), dir.path(), &["--sync", "never", "--memtable", "1MiB"]);
    let clock = dir.path().join("offset");
    set_millis(&clock, 0)?;
    launch.wrapper = preload(&clock)?;
    let node = launch.start()?;
    let mut client = node.client()?;
    let mut random = Random::new(setup.seed);
    let mut put_many = |client: &mut Client, name: &str, count: u64, query: &str| {
        let mut numbers = 0..count;
        numbers.try_for_each(|n| put(client, &key(n, name), query, &value(&mut random)))
    };
    let count = setup.size(1024, 256);
    put_many(&mut client, "expires", count, "&ttl=1s")?;
    let before = tables(&launch.data)?;
    set_millis(&clock, 3_600_000)?;
    put_many(&mut client, "lasts", count / 4, "")?;
    let begun = Instant::now();
    let mut after = tables(&launch.data)?;
    while after > before / 2 {
        if begun.elapsed() > TIMEOUT {
            let what = format!("{before} bytes of expired values are {after} bytes yet");
            return Err(Failure::Broken(what));
        }
        // The writes are slow enough for compactions to keep up.
        put_many(&mut client, "lasts", 8, "")?;
        thread::sleep(Duration::from_millis(50));
        after = tables(&launch.data)?;
    }
    let lasts = read_all(&node)?.len() as u64;
    if lasts != count / 4 {
        return Err(Failure::Broken(format!("{lasts} values of {} are left", count / 4)));
    }
    let mib = |bytes: u64| bytes >> 20;
    Ok(format!("alone, {} MiB of tables became {}", mib(before), mib(after)))
}

/// Returns the total size of a store's tables in bytes.
fn tables(data: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|end| end == "sst") {
            // The table may have been deleted since the listing.
            bytes += entry.metadata().map_or(0, |found| found.len());
        }
    }
    Ok(bytes)
}
