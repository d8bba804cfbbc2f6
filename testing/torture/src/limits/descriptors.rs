//! Row 12 of docs/results/reliability.md: a node has fewer file descriptors than its connections
//! need. The log must stay intact, the accept loop must not spin, and after the clients have left
//! the node must serve as before.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::check;
use kit::workload::writers::{Statuses, WriterParams, Writers};

use crate::Setup;

/// Option of `prlimit` that limits the node's descriptors.
const LIMIT: &str = "--nofile=128:128";

/// Number of clients that only connect.
const CROWD: usize = 1000;

/// Duration of the observation while the node cannot accept connections.
const WATCHED: Duration = Duration::from_secs(2);

/// Maximum CPU usage during the observation, in percent.
const IDLE_PERCENT: u128 = 10;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Connects a crowd of clients once per round.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut worst = (0, Duration::ZERO);
    let mut total = Statuses::new();
    for round in 0..setup.rounds {
        let (cpu, recovery, statuses) = crowd(setup, u64::from(round))?;
        worst = (worst.0.max(cpu), worst.1.max(recovery));
        for (status, count) in statuses {
            *total.entry(status).or_default() += count;
        }
    }
    Ok(format!(
        "{} crowds of {CROWD} on 128 descriptors: {} % CPU while none can be accepted, answers \
         meanwhile {total:?}, 0 lost, a new client is served {} ms after they left",
        setup.rounds,
        worst.0,
        worst.1.as_millis()
    ))
}

fn crowd(setup: &Setup, seed: u64) -> Result<(u128, Duration, Statuses), Failure> {
    let dir = tempfile::tempdir()?;
    let args = ["--memory", "64MiB", "--memtable", "1MiB", "--loops", "2", "--sync", "always"];
    let mut launch = setup.launch(dir.path(), dir.path(), &args);
    launch.wrapper = vec!["prlimit".to_owned(), LIMIT.to_owned(), "--".to_owned()];
    let node = launch.start()?;
    let ledger = Arc::new(Ledger::default());
    let work = WriterParams { clients: 8, value_len: 20_000, ..WriterParams::default() };
    let writers = Writers::start(node.address, &ledger, work, seed)?;
    if !writers.wait(TIMEOUT, |statuses| statuses.get(&201).is_some_and(|count| *count > 50)) {
        return Err(Failure::Broken(format!("no writes: {:?}", writers.statuses())));
    }
    let crowd = connect(&node.address)?;
    // The writers keep their connections, so they continue during log rotations and flushes.
    let before = writers.statuses();
    thread::sleep(WATCHED);
    let during = writers.stop()?;
    if during.get(&201) == before.get(&201) {
        return Err(Failure::Broken(format!("no write was taken meanwhile: {during:?}")));
    }
    let bad = |statuses: &Statuses| statuses.keys().any(|s| ![200, 201, 202, 404].contains(s));
    if bad(&during) {
        return Err(Failure::Broken(format!("for lack of descriptors: {during:?}")));
    }
    let cpu = idle_cpu(&node)?;
    drop(crowd);
    let begun = Instant::now();
    let writers = Writers::start(node.address, &ledger, work, seed + 1)?;
    let served = writers.wait(TIMEOUT, |statuses| statuses.contains_key(&201));
    let recovery = begun.elapsed();
    thread::sleep(Duration::from_millis(300));
    let after = writers.stop()?;
    if !served || bad(&after) {
        return Err(Failure::Broken(format!("after the crowd left: {after:?}")));
    }
    check(&node, &ledger, ProcessState::Same)?;
    node.kill()?;
    let node = launch.start()?;
    check(&node, &ledger, ProcessState::New)?;
    Ok((cpu, recovery, during))
}

/// Connects up to [`CROWD`] clients; stops when the listener's queue is full.
fn connect(address: &std::net::SocketAddr) -> Result<Vec<TcpStream>, Failure> {
    let mut crowd = Vec::new();
    while crowd.len() < CROWD {
        match TcpStream::connect_timeout(address, Duration::from_millis(500)) {
            Ok(stream) => crowd.push(stream),
            Err(error) if error.kind() == ErrorKind::TimedOut => break,
            Err(error) => {
                return Err(Failure::Environment(format!("client {}: {error}", crowd.len())));
            }
        }
    }
    Ok(crowd)
}

/// Returns the node's CPU usage in percent while clients wait for a connection and none sends
/// requests.
fn idle_cpu(node: &kit::node::Node) -> Result<u128, Failure> {
    // Flushes and compactions of earlier writes may still use the CPU; they end within the pause.
    thread::sleep(Duration::from_secs(1));
    let before = node.cpu()?;
    thread::sleep(WATCHED);
    let percent = (node.cpu()? - before).as_millis() * 100 / WATCHED.as_millis();
    if percent > IDLE_PERCENT {
        return Err(Failure::Broken(format!("{percent} % CPU with nobody to serve")));
    }
    Ok(percent)
}
