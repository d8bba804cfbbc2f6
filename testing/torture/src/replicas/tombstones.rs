//! The row `tombstones` of docs/results/reliability.md: ranges over a million tombstones. However
//! many tombstones precede the next live key, a range must complete, with every quorum and from
//! every node, and also after a node has lost its disk and received all tombstones again. While a
//! node is killed, a range may fail, but must not be truncated without an error.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::random::Random;

use crate::Setup;

const NODES: usize = 3;

/// The node that loses its disk.
const WIPED: usize = 2;

/// Number of requests in flight on one connection.
const AT_ONCE: u64 = 200;

/// Query parameters of the ranges.
const VOTES: [&str; 5] = ["", "&ack=3&from=3", "&ack=1&from=3", "&ack=1&from=1", "&local=true"];

/// The live keys: one before all tombstones, one among them, and one after them.
const LIVE: [&str; 3] = ["a-first", "g0000001-live", "z-last"];

/// `rounds` times, reads every range from every node, and one range while a node is killed.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "interval"])?;
    let graves = setup.size(1_000_000, 30_000);
    delete_keys(cluster.addresses(), graves)?;
    let mut client = Client::connect(cluster.addresses()[0])?;
    for key in LIVE {
        let put = client.request("PUT", &(target(key) + "&ack=3&from=3"), key.as_bytes())?;
        if put.status != 201 {
            return Err(Failure::Environment(format!("PUT {key} answers {}", put.status)));
        }
    }
    let mut slowest = Duration::ZERO;
    let mut whole = 0;
    let mut random = Random::new(setup.seed);
    for _ in 0..setup.rounds {
        for address in cluster.addresses() {
            for votes in VOTES {
                slowest = slowest.max(walk(*address, votes)?);
            }
        }
        whole += u32::from(under_a_kill(&mut cluster, &mut random, slowest)?);
    }
    let rebuilt = rebuild(&mut cluster)?;
    for votes in VOTES {
        walk(cluster.addresses()[WIPED], votes)?;
    }
    Ok(format!(
        "{graves} tombstones before the last key: every range came whole, the slowest in {:.1} s; \
         of {} with a node killed meanwhile {whole} came whole and the others broke off for all to \
         see; a wiped node was rebuilt in {:.1} s",
        slowest.as_secs_f64(),
        setup.rounds,
        rebuilt.as_secs_f64(),
    ))
}

/// Deletes keys that never existed, through all nodes in parallel.
fn delete_keys(addresses: &[SocketAddr], graves: u64) -> Result<(), Failure> {
    let share = graves / addresses.len() as u64;
    thread::scope(|scope| {
        let gravediggers: Vec<_> = addresses
            .iter()
            .zip(0..)
            .map(|(address, n)| scope.spawn(move || delete_share(*address, n * share, share)))
            .collect();
        gravediggers.into_iter().try_for_each(|digger| {
            digger.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn delete_share(address: SocketAddr, first: u64, share: u64) -> Result<(), Failure> {
    let mut client = Client::connect(address)?;
    for begun in (first..first + share).step_by(AT_ONCE as usize) {
        let keys = begun..(begun + AT_ONCE).min(first + share);
        let requests = keys.clone().map(|key| {
            format!(
                "DELETE /v0/entity?id=g{key:07}&ack=2&from=3 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
        });
        client.send_raw(requests.collect::<String>().as_bytes())?;
        for _ in keys {
            // A delete may be refused, because the row does not need every tombstone.
            let status = client.answer()?.status;
            if !matches!(status, 202 | 503 | 504) {
                return Err(Failure::Broken(format!("a DELETE answers {status}")));
            }
        }
    }
    Ok(())
}

/// Reads one range over all keys, which must return exactly the live keys. Returns the duration.
fn walk(address: SocketAddr, votes: &str) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let found = scan_keys(address, votes).map_err(|error| {
        let after = begun.elapsed();
        Failure::Broken(format!("a range with {votes:?} at {address}: {error} after {after:?}"))
    })?;
    if found != LIVE {
        return Err(Failure::Broken(format!("a range with {votes:?} at {address} has {found:?}")));
    }
    Ok(begun.elapsed())
}

fn scan_keys(address: SocketAddr, votes: &str) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    Client::connect(address)?.scan(&format!("%01{votes}"), |key, _| {
        found.push(String::from_utf8_lossy(key).into_owned());
        Ok(())
    })?;
    Ok(found)
}

/// Reads a range while another node is killed at a random moment. The range must be complete or end
/// with an error. Returns true if it was complete.
fn under_a_kill(
    cluster: &mut Cluster,
    random: &mut Random,
    takes: Duration,
) -> Result<bool, Failure> {
    let killed = random.below(NODES as u64) as usize;
    let reader = cluster.addresses()[(killed + 1) % NODES];
    let after = Duration::from_micros(random.below(takes.as_micros() as u64 + 1));
    let read = thread::scope(|scope| {
        let reading = scope.spawn(|| scan_keys(reader, ""));
        thread::sleep(after);
        cluster.kill(killed)?;
        Ok::<_, Failure>(reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    cluster.start_node(killed)?;
    cluster.wait_until_ready()?;
    match read {
        Ok(found) if found == LIVE => Ok(true),
        Ok(found) => Err(Failure::Broken(format!("a range under a kill has {found:?}"))),
        Err(_) => Ok(false),
    }
}

/// Removes a node's directory. Returns the time until the node was authoritative again.
fn rebuild(cluster: &mut Cluster) -> Result<Duration, Failure> {
    cluster.kill(WIPED)?;
    fs::remove_dir_all(cluster.data(WIPED))?;
    cluster.start_node(WIPED)?;
    let begun = Instant::now();
    cluster.wait_until_ready()?;
    Ok(begun.elapsed())
}
