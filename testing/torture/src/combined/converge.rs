//! The row `converge` of docs/results/reliability.md: a replica misses writes because its disk is
//! full, because it is overloaded, or because it is suspended. Afterwards each replica must receive
//! its missed writes without a read, whichever node coordinated them. Until then, `/v0/status` must
//! report that writes are missing.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::faults::mount::{Mount, make_image};
use kit::oracle::ledger::{Ledger, WriteOutcome};
use kit::workload::writers::outcome_of;
use rustix::process::Signal;

use crate::Setup;

const NODES: usize = 3;

/// The node with the small disk, or the suspended node.
const VICTIM: usize = 2;

/// Timeout for the replicas to become equal.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time from the last answer until the nodes know which writes are missing where: the deadline,
/// within which replicas beyond the quorum may still write, and one iteration of every loop.
const SETTLED: Duration = Duration::from_secs(3);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Timeout of an answer, longer than the deadline inside the node.
const ANSWER: Duration = Duration::from_secs(5);

/// Size of the small disk in MiB, and its size after the enlargement.
const DISK_MIB: u64 = 64;
const ROOM_MIB: u64 = 1024;

/// Length in bytes of values that fill the disk before all keys are written.
const FILLING: usize = 60_000;

/// Lengths in bytes of large values, which nodes send on the connection for long messages, and of
/// small values.
const LARGE: usize = 100 << 10;

const SMALL: usize = 200;

/// Pause before a refused write is retried.
const RETRY: Duration = Duration::from_millis(20);

/// A workload that writes unique keys, each until its write is acknowledged.
#[derive(Debug, Clone, Copy)]
struct Flood {
    prefix: char,
    clients: usize,
    keys: u64,
    value_len: usize,
    /// Duration after which the workload ends even if keys are missing.
    at_most: Duration,
}

/// Keys that some replicas lack.
#[derive(Debug, Clone, Copy, Default)]
struct Missing {
    /// Number of acknowledged keys that a node lacks or stores with an older value, by node.
    by_node: [usize; NODES],
    /// Number of acknowledged keys whose value differs between nodes, or that no node stores.
    keys: usize,
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} keys missing ({:?} by node)", self.keys, self.by_node)
    }
}

/// Tests all three causes, `rounds` times. In every other round, the small disk is an ext4 file
/// system, and coordinators are killed.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut lines = String::new();
    let mut broken = false;
    for round in 0..setup.rounds {
        let odd = round % 2 == 1;
        let sync = if odd { "interval" } else { "always" };
        for (name, outcome) in [
            ("full disk", full_disk(setup, odd)),
            ("overload", overload(setup, sync)),
            ("pause", pause(setup, sync, odd)),
        ] {
            let line = match outcome {
                Ok(line) => line,
                Err(failure @ Failure::Skipped(_)) => failure.to_string(),
                Err(failure @ (Failure::Broken(_) | Failure::Refused(_))) => {
                    broken = true;
                    failure.to_string()
                }
                Err(other) => return Err(other),
            };
            lines = format!("{lines}\n  {name}, round {round}: {line}");
        }
    }
    match broken {
        true => Err(Failure::Broken(lines)),
        false => Ok(lines),
    }
}

/// Gives one of three nodes too little disk space for most of its writes, which it receives as a
/// coordinator and as a replica.
fn full_disk(setup: &Setup, ext4: bool) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--memory", "64MiB", "--memtable", "2MiB"];
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &args)?;
    let image = cluster.dir().join("image");
    let (disk, ballast) = if ext4 {
        // ext4 uses one of the two `DISK_MIB` for its journal and inodes.
        make_image(&image, (2 * DISK_MIB + ROOM_MIB) << 20)?;
        let disk = Mount::image(&image)?;
        let ballast = disk.fill_leaving(ROOM_MIB << 20)?;
        (disk, Some(ballast))
    } else {
        (Mount::tmpfs(DISK_MIB)?, None)
    };
    cluster.launches[VICTIM].data = disk.path().join("data");
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let ledger = Ledger::default();
    let at = cluster.addresses();
    let half_of_it = [at[VICTIM], at[0], at[VICTIM], at[1]];
    let large = Flood {
        prefix: 'l',
        clients: 16,
        keys: 2500,
        value_len: FILLING,
        at_most: Duration::from_secs(120),
    };
    let (acked, asked) = flood(&half_of_it, &ledger, large)?;
    let small = Flood { prefix: 's', keys: setup.size(5000, 1000), value_len: SMALL, ..large };
    let (acked_small, asked_small) = flood(&half_of_it, &ledger, small)?;
    thread::sleep(SETTLED);
    let (before, reported) =
        (count_missing(&cluster, &ledger)?, sum_reported_missing(&cluster, &[0, 1, 2])?);
    if before.by_node[VICTIM] == 0 {
        return Err(Failure::Environment("the disk was never full".to_owned()));
    }
    match ballast {
        Some(ballast) => std::fs::remove_file(ballast)?,
        None => disk.resize(ROOM_MIB)?,
    }
    let outcome = converge(&cluster, &ledger);
    // The file systems can be unmounted only after the nodes have stopped.
    (0..NODES).try_for_each(|node| cluster.kill(node))?;
    let written = format!(
        "{acked} of {asked} large and {acked_small} of {asked_small} small writes acknowledged; \
         while full {before}, {reported} told"
    );
    after(&written, outcome)
}

/// Adds a description of the writes before the outcome.
fn after(written: &str, outcome: Result<String, Failure>) -> Result<String, Failure> {
    match outcome {
        Ok(line) => Ok(format!("{written}; then {line}")),
        Err(Failure::Broken(what)) => Err(Failure::Broken(format!("{written}; then {what}"))),
        Err(other) => Err(other),
    }
}

/// Overloads the nodes while all of them run.
fn overload(setup: &Setup, sync: &str) -> Result<String, Failure> {
    let cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", sync])?;
    let ledger = Ledger::default();
    let large = Flood {
        prefix: 'l',
        clients: 64,
        keys: 4000,
        value_len: LARGE,
        at_most: setup.size(Duration::from_secs(8), Duration::from_secs(3)),
    };
    let (acked, asked) = flood(cluster.addresses(), &ledger, large)?;
    let small = Flood { prefix: 's', clients: 256, keys: 50_000, value_len: SMALL, ..large };
    let (acked_small, asked_small) = flood(cluster.addresses(), &ledger, small)?;
    let written = format!(
        "{acked} of {asked} large and {acked_small} of {asked_small} small writes acknowledged"
    );
    after(&written, converge(&cluster, &ledger))
}

/// Suspends one of three nodes. If `killed`, also kills and restarts the other nodes before the
/// suspended node continues, so that only durably stored hints can bring it its missed writes.
fn pause(setup: &Setup, sync: &str, killed: bool) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", sync])?;
    let ledger = Ledger::default();
    cluster.node(VICTIM)?.signal(Signal::STOP)?;
    let others = cluster.others(VICTIM);
    let large = Flood {
        prefix: 'l',
        clients: 64,
        keys: setup.size(1000, 300),
        value_len: LARGE,
        at_most: Duration::from_secs(120),
    };
    let (acked, asked) = flood(&others, &ledger, large)?;
    let small = Flood { prefix: 's', keys: 20_000, value_len: SMALL, ..large };
    let (acked_small, asked_small) = flood(&others, &ledger, small)?;
    thread::sleep(SETTLED);
    let reported = sum_reported_missing(&cluster, &[0, 1])?;
    if killed {
        for node in [0, 1] {
            cluster.kill(node)?;
            cluster.start_node(node)?;
        }
    }
    cluster.node(VICTIM)?.signal(Signal::CONT)?;
    let written = format!(
        "{acked} of {asked} large and {acked_small} of {asked_small} small writes acknowledged, \
         {reported} told; coordinators killed: {killed}"
    );
    after(&written, converge(&cluster, &ledger))
}

/// Writes the keys of a workload. Returns the number of acknowledged keys, and of attempted keys.
fn flood(addresses: &[SocketAddr], ledger: &Ledger, what: Flood) -> Result<(u64, u64), Failure> {
    let begun = Instant::now();
    let (acknowledged, next) = (AtomicU64::new(0), AtomicU64::new(0));
    let write = |address: SocketAddr| {
        let mut client = None;
        let mut key = None;
        while begun.elapsed() < what.at_most {
            let number = key.unwrap_or_else(|| next.fetch_add(1, Ordering::Relaxed));
            if number >= what.keys {
                break;
            }
            key = Some(number);
            let mut connected = match client.take() {
                Some(connected) => connected,
                None => Client::connect_within(address, ANSWER)?,
            };
            let name = format!("{}{number:07}", what.prefix);
            let (ticket, value) = ledger.put(&name, what.value_len);
            let answer = connected.request("PUT", &(target(&name) + "&ack=2&from=3"), &value);
            let said = outcome_of(&answer);
            ledger.end(ticket, said);
            if answer.is_ok_and(|answer| !answer.closes) {
                client = Some(connected);
            }
            if said == WriteOutcome::Ok {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                key = None;
            } else {
                thread::sleep(RETRY);
            }
        }
        Ok::<_, Failure>(())
    };
    thread::scope(|scope| {
        let write = &write;
        let clients: Vec<_> = (0..what.clients)
            .map(|number| {
                let address = addresses[number % addresses.len()];
                scope.spawn(move || write(address))
            })
            .collect();
        clients.into_iter().try_for_each(|client| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok((acknowledged.into_inner(), next.into_inner().min(what.keys)))
}

/// Waits until no node lacks a write, without reading any key through a coordinator.
fn converge(cluster: &Cluster, ledger: &Ledger) -> Result<String, Failure> {
    let all: Vec<_> = (0..NODES).collect();
    let begun = Instant::now();
    let (mut first, mut silent) = (None, 0);
    let now = loop {
        let reported = sum_reported_missing(cluster, &all)?;
        let now = count_missing(cluster, ledger)?;
        let (before, _) = *first.get_or_insert((now, reported));
        let took = begun.elapsed();
        // A key that is missing now was already missing when the statuses were read. The condition
        // must be true twice in a row: a node's status may have been read before another node told
        // it of the missing write.
        silent = if now.keys > 0 && reported == 0 && took > SETTLED { silent + 1 } else { 0 };
        if silent > 1 {
            return Err(Failure::Broken(format!(
                "{now} after {took:.1?} (at first {}), and no node's status says so",
                before.keys
            )));
        }
        if now.keys == 0 || took > TIMEOUT {
            break now;
        }
        thread::sleep(POLL_INTERVAL);
    };
    let took = begun.elapsed();
    let (before, reported_first) = first.unwrap_or_default();
    if now.keys > 0 {
        return Err(Failure::Broken(format!(
            "{now} after {took:.1?} (at first {}), {} told",
            before.keys,
            sum_reported_missing(cluster, &all)?
        )));
    }
    while sum_reported_missing(cluster, &all)? > 0 {
        if begun.elapsed() > took + TIMEOUT {
            let still = sum_reported_missing(cluster, &all)?;
            return Err(Failure::Broken(format!("all are equal, yet {still} are told missing")));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(format!(
        "{before}, {reported_first} told; equal after {:.1} s, nothing told after {:.1} s",
        took.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    ))
}

/// Counts the missing keys by node, from the records that each node stores.
fn count_missing(cluster: &Cluster, ledger: &Ledger) -> Result<Missing, Failure> {
    let acknowledged = ledger.acknowledged_keys();
    let mut held: Vec<BTreeMap<String, u64>> = Vec::with_capacity(NODES);
    let mut missing = Missing::default();
    for (node, lacks) in missing.by_node.iter_mut().enumerate() {
        let mut digests = BTreeMap::new();
        let mut counted = Ok(0);
        cluster.scan_local(node, |key, value| {
            let mut digest = DefaultHasher::new();
            value.hash(&mut digest);
            digests.insert(key.to_owned(), digest.finish());
            if let Ok(wrong) = &mut counted {
                match ledger.wrong(key, Some(value)) {
                    Ok(found) => *wrong += usize::from(found.is_some()),
                    Err(failure) => counted = Err(failure),
                }
            }
        })?;
        *lacks = counted? + acknowledged.iter().filter(|key| !digests.contains_key(*key)).count();
        held.push(digests);
    }
    let differs = |key: &&String| held.iter().any(|node| node.get(*key) != held[0].get(*key));
    let lacking = |key: &&String| held.iter().all(|node| !node.contains_key(*key));
    missing.keys = acknowledged.iter().filter(|key| differs(key) || lacking(key)).count();
    Ok(missing)
}

/// Returns the sum of the stored hints and of the partitions to repair that these nodes report.
pub(crate) fn sum_reported_missing(cluster: &Cluster, nodes: &[usize]) -> Result<u64, Failure> {
    let mut sum = 0;
    for node in nodes {
        let status = cluster.status(*node)?;
        for field in ["\"hints\":", "partitions_to_repair\":"] {
            let numbers = status.split(field).skip(1);
            let number = |rest: &str| {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u64>().unwrap_or_default()
            };
            sum += numbers.map(number).sum::<u64>();
        }
    }
    Ok(sum)
}
