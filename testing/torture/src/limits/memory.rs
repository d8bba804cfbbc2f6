//! Row 13 of docs/results/reliability.md: requests need more memory than the node has: values of
//! the maximum length, ranges that no client reads, clients that send and never read, and many
//! connections. The node must answer 503 and 413, its memory must stay within the bound, and no
//! acknowledged write may be lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::node::Node;
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::check;
use kit::workload::writers::{Statuses, WriterParams, Writers};

use crate::Setup;

/// Memory budget of the node.
const MEMORY: &str = "128MiB";

/// Maximum memory of the process in bytes: the budget and 64 MiB.
pub const MOST_RESIDENT: u64 = 192 << 20;

/// Maximum length in bytes of a value that the node accepts.
const MAX_VALUE: usize = 1 << 20;

/// Number of clients of each bad kind.
const EACH: usize = 100;

/// Timeout for a bad client to connect, and for each of its sends.
const IMPATIENCE: Duration = Duration::from_millis(100);

/// Runs the bad clients beside good clients, once per round.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut peak = 0;
    let mut statuses = Statuses::new();
    for round in 0..setup.rounds {
        let (resident, answers) = siege(setup, u64::from(round))?;
        peak = peak.max(resident);
        for (status, count) in answers {
            *statuses.entry(status).or_default() += count;
        }
    }
    Ok(format!(
        "{} sieges with --memory {MEMORY}: peak RSS {} MiB, answers {statuses:?}, 0 lost",
        setup.rounds,
        peak >> 20
    ))
}

/// Checks that the process never used more than [`MOST_RESIDENT`]. Returns its peak in bytes.
pub fn check_within_bounds(node: &Node) -> Result<u64, Failure> {
    let (_, most) = node.resident()?;
    if most > MOST_RESIDENT {
        return Err(Failure::Broken(format!("the process took {} MiB", most >> 20)));
    }
    Ok(most)
}

fn siege(setup: &Setup, seed: u64) -> Result<(u64, Statuses), Failure> {
    let dir = tempfile::tempdir()?;
    let sync = if seed.is_multiple_of(2) { "interval" } else { "always" };
    let args = ["--memory", MEMORY, "--sync", sync];
    let launch = setup.launch(dir.path(), dir.path(), &args);
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams {
        clients: setup.size(64, 24),
        keys: 8,
        value_len: MAX_VALUE as u64,
        deletes: 5,
        reads: 30,
        ..WriterParams::default()
    };
    let writers = Writers::start(node.address, &ledger, work, seed)?;
    let stop = AtomicBool::new(false);
    let lasts = setup.size(Duration::from_secs(15), Duration::from_secs(4));
    thread::scope(|scope| {
        let (address, stop_now) = (node.address, &stop);
        let kinds: [ClientKind; 4] = [stubborn_readers, unread_ranges, half_bodies, too_large];
        let bad =
            kinds.map(|kind| scope.spawn(move || open_bad_connections(address, stop_now, kind)));
        thread::sleep(lasts);
        stop.store(true, Ordering::Relaxed);
        for thread in bad {
            thread.join().map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok::<_, Failure>(())
    })?;
    let statuses = writers.stop()?;
    let allowed = [200, 201, 202, 404, 503, 504];
    if statuses.keys().any(|status| !allowed.contains(status)) {
        return Err(Failure::Broken(format!("a siege is answered with {statuses:?}")));
    }
    check_too_large_refused(&node)?;
    check(&node, &ledger, ProcessState::Same)?;
    let most = check_within_bounds(&node)?;
    node.kill()?;
    let node = launch.start()?;
    check(&node, &ledger, ProcessState::New)?;
    Ok((most.max(check_within_bounds(&node)?), statuses))
}

type ClientKind = fn(&mut Client) -> std::io::Result<()>;

/// Repeatedly opens many connections of bad clients of one kind.
fn open_bad_connections(
    address: SocketAddr,
    stop: &AtomicBool,
    kind: ClientKind,
) -> Result<(), Failure> {
    while !stop.load(Ordering::Relaxed) {
        let mut held = Vec::new();
        for _ in 0..EACH {
            let Ok(mut client) = Client::connect_within(address, IMPATIENCE) else { break };
            // A failure is no error: the node may close a bad client's connection.
            let _ = kind(&mut client);
            held.push(client);
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// Requests large values many times, and reads no answers.
fn stubborn_readers(client: &mut Client) -> std::io::Result<()> {
    (0..8).try_for_each(|n| client.send("GET", &target(&format!("k{n}-{n}")), b""))
}

/// Requests a range over all keys, and reads no answer.
fn unread_ranges(client: &mut Client) -> std::io::Result<()> {
    client.send("GET", "/v0/entities?start=a", b"")
}

/// Sends half of a large value, and stops. No oracle checks the key.
fn half_bodies(client: &mut Client) -> std::io::Result<()> {
    client.send_raw(
        format!(
            "PUT {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_VALUE}\r\n\r\n",
            target("half")
        )
        .as_bytes(),
    )?;
    client.send_raw(&vec![b'h'; MAX_VALUE / 2])
}

/// Sends a value that is one byte too long, and does not wait for the answer.
fn too_large(client: &mut Client) -> std::io::Result<()> {
    client.send("PUT", &target("large"), &vec![b'l'; MAX_VALUE + 1])
}

/// Sends a value that is one byte too long, and checks that the answer is 413.
fn check_too_large_refused(node: &Node) -> Result<(), Failure> {
    let mut client = node.client()?;
    let answer = client.request("PUT", &target("large"), &vec![b'l'; MAX_VALUE + 1])?;
    match answer.status {
        413 => Ok(()),
        status => Err(Failure::Broken(format!("a value too large was answered {status}"))),
    }
}
