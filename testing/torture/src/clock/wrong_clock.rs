//! Row 23 of docs/results/reliability.md, second part: the clock of one of three nodes is off by a
//! day (by means of libfaketime), either from some moment on or from the node's start on, and is
//! then corrected. The node acknowledges writes with wrong timestamps only while no other node
//! runs. These writes must not be visible at other nodes, must not block later writes, must not
//! reach other nodes by hint, read repair or rebuild, and must be gone after `kvorum repair-clock`.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::cluster::Cluster;
use kit::faults::clock::{set, start_repaired, start_with_fake_clocks};
use kit::oracle::ledger::{Ledger, WriteOutcome};
use kit::random::Random;
use kit::workload::prober::{ProbeParams, Prober};
use kit::workload::writers::outcome_of;
use kit::{Failure, client};

use crate::Setup;

const NODES: usize = 3;
const DAY: i64 = 86_400;
const VOTES: &str = "&ack=2&from=3";
const PACE: ProbeParams = ProbeParams {
    clients: 8,
    every: Duration::from_millis(4),
    votes: VOTES,
    large: 0,
    conditional: 0,
    tries: 2,
};

/// Number of keys that a node writes while no other node runs.
const KEYS_OF_LONE_NODE: usize = 300;

/// Time in which hints and rebuilds must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct WrongClockFigures {
    requests: u64,
    refused_starts: u32,
    removed: Vec<String>,
    written: usize,
}

/// Makes a random node's clock wrong in each round, in one of four ways.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let (mut cluster, offsets) =
        start_with_fake_clocks(&setup.binary, NODES, &["--sync", "interval"])?;
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let mut figures = WrongClockFigures::default();
    for round in 0..setup.rounds {
        let node = random.below(NODES as u64) as usize;
        let prober = Prober::start(cluster.addresses(), &ledger, PACE, random.number())?;
        let row = WrongClockRow {
            setup,
            cluster: &mut cluster,
            offsets: &offsets,
            figures: &mut figures,
        };
        row.wrong(node, round, &ledger)?;
        figures.requests += prober.stop()?.requests;
        // Every key is written once while the node still stores the writes with wrong timestamps,
        // and once after their removal.
        figures.written += every_key_can_be_written(&cluster, &ledger, &mut random)?;
        let row = WrongClockRow {
            setup,
            cluster: &mut cluster,
            offsets: &offsets,
            figures: &mut figures,
        };
        row.right(node)?;
        cluster.wait_until_ready()?;
        figures.written += every_key_can_be_written(&cluster, &ledger, &mut random)?;
        cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
        cluster.check(&ledger)?;
    }
    let WrongClockFigures { requests, refused_starts, removed, written } = figures;
    Ok(format!(
        "{} clocks off by a day: {requests} requests meanwhile; {refused_starts} starts refused \
         until `repair-clock`, which removed {}; before and after that {written} keys read and \
         written, 0 refused; lost 0; C",
        setup.rounds,
        if removed.is_empty() { "nothing".to_owned() } else { removed.join(", ") }
    ))
}

struct WrongClockRow<'a> {
    setup: &'a Setup,
    cluster: &'a mut Cluster,
    offsets: &'a [PathBuf],
    figures: &'a mut WrongClockFigures,
}

impl WrongClockRow<'_> {
    /// Makes a node's clock wrong for some seconds. Corrects the clock while the node is running,
    /// or while it is down. The node runs afterwards, unless it refuses to start.
    fn wrong(mut self, node: usize, round: u32, ledger: &Ledger) -> Result<(), Failure> {
        let lasts = Duration::from_millis(self.setup.size(3000, 1000));
        let ahead = round.is_multiple_of(2);
        thread::sleep(lasts / 3);
        let from_its_start = round % 4 >= 2;
        if from_its_start {
            self.cluster.kill(node)?;
        }
        set(&self.offsets[node], if ahead { DAY } else { -DAY })?;
        if from_its_start && ahead {
            self.writes_alone(node, ledger)?;
        } else if from_its_start {
            // The clock is behind all timestamps that the node has issued, so the node must refuse
            // to start and name `repair-clock`.
            self.is_refused(node)?;
        }
        thread::sleep(lasts);
        set(&self.offsets[node], 0)?;
        if from_its_start && !ahead {
            return self.cluster.start_node(node);
        }
        thread::sleep(lasts / 3);
        // The rebuild needs a cluster without future records: while some node has any, a node that
        // lost its disk is not authoritative.
        if ahead && !from_its_start {
            self.rebuild_another_node((node + 1) % NODES)?;
        }
        Ok(())
    }

    /// Starts a node with a wrong clock while no other node runs. The node can't compare clocks, so
    /// it acknowledges writes. Such writes may be removed later.
    fn writes_alone(&mut self, node: usize, ledger: &Ledger) -> Result<(), Failure> {
        let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
        others.iter().try_for_each(|other| self.cluster.kill(*other))?;
        self.cluster.start_node(node)?;
        let mut client = self.cluster.node(node)?.client()?;
        for key in ledger.keys().iter().take(KEYS_OF_LONE_NODE) {
            let (ticket, value) = ledger.put(key, 100);
            let target = client::target(key) + "&ack=1&from=3";
            let answer = client.request("PUT", &target, &value)?;
            ledger.end(ticket, WriteOutcome::Unknown);
            if answer.status != 201 {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(Failure::Broken(format!("{key} alone: {} {body}", answer.status)));
            }
        }
        others.iter().try_for_each(|other| self.cluster.start_node(*other))
    }

    /// Gives a node an empty disk, and waits until the other nodes have rebuilt it. The clock of
    /// one of them was a day ahead until a moment ago.
    fn rebuild_another_node(&mut self, node: usize) -> Result<(), Failure> {
        self.cluster.kill(node)?;
        std::fs::remove_dir_all(self.cluster.data(node))?;
        self.cluster.start_node(node)?;
        self.cluster.wait_until_ready()
    }

    /// Restarts the node with the correct time, after a repair if the node refuses to start
    /// without.
    fn right(self, node: usize) -> Result<(), Failure> {
        self.cluster.kill(node)?;
        if let Some(said) = start_repaired(&self.setup.binary, self.cluster, node)? {
            self.figures.refused_starts += 1;
            let counts =
                said.split_once(": ").and_then(|(_, rest)| rest.split_once(" have timestamps"));
            self.figures.removed.extend(counts.map(|(counts, _)| counts.to_owned()));
        }
        Ok(())
    }

    fn is_refused(&mut self, node: usize) -> Result<(), Failure> {
        match self.cluster.start_node(node) {
            Err(Failure::Refused(why)) if why.contains("repair-clock") => {
                self.figures.refused_starts += 1;
                Ok(())
            }
            Err(other) => Err(other),
            Ok(()) => Err(Failure::Broken(format!(
                "node {} started with a clock a day behind all timestamps it issued",
                node + 1
            ))),
        }
    }
}

/// Reads every key of the ledger, and then writes or deletes it, each key through the next node. No
/// request may be refused, except a write at a node that must wait for its own clock.
fn every_key_can_be_written(
    cluster: &Cluster,
    ledger: &Ledger,
    random: &mut Random,
) -> Result<usize, Failure> {
    let mut clients = Vec::new();
    for node in 0..NODES {
        clients.push(cluster.node(node)?.client()?);
    }
    let keys = ledger.keys();
    for (number, key) in keys.iter().enumerate() {
        let place = number % NODES;
        let target = client::target(key) + VOTES;
        let read = clients[place].request("GET", &target, b"")?;
        match read.status {
            200 => ledger.check_read(key, Some(&read.body))?,
            404 => ledger.check_read(key, None)?,
            status => {
                let body = String::from_utf8_lossy(&read.body).into_owned();
                let what = format!("GET {key} at node {}: {status} {body}", place + 1);
                return Err(Failure::Broken(what));
            }
        }
        let (ticket, answer) = if random.percent(30) {
            let ticket = ledger.delete(key);
            (ticket, clients[place].request("DELETE", &target, b""))
        } else {
            let (ticket, value) = ledger.put(key, 100);
            (ticket, clients[place].request("PUT", &target, &value))
        };
        ledger.end(ticket, outcome_of(&answer));
        let answer = answer?;
        let status = answer.status;
        let own_clock =
            status == 503 && String::from_utf8_lossy(&answer.body).contains("another node");
        if !matches!(status, 201 | 202) && !own_clock {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(Failure::Broken(format!("{key} at node {}: {status} {body}", place + 1)));
        }
    }
    Ok(keys.len())
}
