//! Rows 15 to 18, 20, 22 and 23 of docs/results/reliability.md with conditional writes: clients
//! record short histories of contended keys, while nodes are killed, restarted, suspended, isolated
//! and lose their disks, with clocks as far apart as `--max-clock-skew` allows. Each history must
//! be linearizable.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::Client;
use kit::cluster::Cluster;
use kit::faults::clock::{preload, set_millis};
use kit::faults::net::Net;
use kit::oracle::register::{CheckSummary, Register};
use kit::random::Random;
use kit::workload::clients::Clients;
use rustix::process::Signal;

use crate::Setup;

const NODES: usize = 3;
const CLIENTS: usize = 12;

/// Number of keys in use at the same time, for two or three clients each.
const KEYS: usize = 5;

/// Timeout of an answer: longer than the deadline inside the node.
const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct HistoryState {
    addresses: Vec<SocketAddr>,
    stop: AtomicBool,
    registers: Vec<Register>,
    /// Number of the next operation.
    number: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HistoryFault {
    Kill,
    Restart,
    /// The node is killed, and its directory is removed.
    Wipe,
    Pause,
    Isolate,
    OneWay,
    Bridge,
    Loss,
    /// The wall clock steps, and keeps its new offset.
    Clock,
}

const FAULTS: [HistoryFault; 9] = [
    HistoryFault::Kill,
    HistoryFault::Isolate,
    HistoryFault::Pause,
    HistoryFault::OneWay,
    HistoryFault::Wipe,
    HistoryFault::Bridge,
    HistoryFault::Clock,
    HistoryFault::Restart,
    HistoryFault::Loss,
];

/// Maximum offset of a clock in milliseconds, so that any two clocks are less than
/// `--max-clock-skew` apart.
const CLOCK_OFF: u64 = 200;

/// Injects each fault `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let net = Net::new(NODES)?;
    net.inside(|| play(setup, &net))
}

fn play(setup: &Setup, net: &Net) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--memory", "64MiB"];
    let mut cluster = Cluster::plan(&setup.binary, NODES, Some(net), &args)?;
    let clocks = clocks(&mut cluster)?;
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let begun = Instant::now();
    let shared = Arc::new(HistoryState {
        addresses: cluster.addresses().to_vec(),
        stop: AtomicBool::new(false),
        registers: (0..KEYS).map(|place| Register::new(place, begun)).collect(),
        number: AtomicU64::new(1),
    });
    let mut random = Random::new(setup.seed);
    let of_all = Arc::clone(&shared);
    let play = move |number, random| of_all.play(number, random);
    let clients = Clients::start(CLIENTS, &mut random, play)?;
    let faults = faults(setup, (net, &clocks), &mut cluster, &mut random);
    shared.stop.store(true, Ordering::Relaxed);
    clients.join()?;
    faults?;
    let mut checked = CheckSummary::default();
    for register in &shared.registers {
        let of_it = register.check().map_err(|failure| match failure {
            Failure::Broken(what) => Failure::Broken(format!("{what} (seed {})", setup.seed)),
            other => other,
        })?;
        checked.add(&of_it);
    }
    let CheckSummary { histories, operations, conditional, unmet, unknown, twice, gave_up } =
        checked;
    if conditional == 0 || unmet == 0 {
        return Err(Failure::Broken("no condition was met, or all were".to_owned()));
    }
    let apart = if clocks.is_empty() { ", clocks as they are" } else { "" };
    Ok(format!(
        "{} faults{apart}: {histories} histories of {operations} operations are linearizable \
         ({conditional} conditional writes, {unmet} unmet, {unknown} unknown), {twice} of them \
         with a plain write that was seen twice, {gave_up} given up",
        setup.rounds as usize * FAULTS.len()
    ))
}

/// Creates the files that control the nodes' wall clocks; returns none without libfaketime.
fn clocks(cluster: &mut Cluster) -> Result<Vec<PathBuf>, Failure> {
    let mut clocks = Vec::new();
    for node in 0..NODES {
        let clock = cluster.dir().join(format!("offset-{node}"));
        set_millis(&clock, 0)?;
        match preload(&clock) {
            Ok(words) => cluster.launches[node].wrapper.extend(words),
            Err(Failure::Skipped(_)) => return Ok(Vec::new()),
            Err(other) => return Err(other),
        }
        clocks.push(clock);
    }
    Ok(clocks)
}

fn faults(
    setup: &Setup,
    (net, clocks): (&Net, &[PathBuf]),
    cluster: &mut Cluster,
    random: &mut Random,
) -> Result<(), Failure> {
    for _ in 0..setup.rounds {
        for fault in FAULTS {
            let node = random.below(NODES as u64) as usize;
            let other = (node + 1 + random.below(2) as usize) % NODES;
            // A node may lose its disk only while all other disks are intact.
            if fault == HistoryFault::Wipe || random.percent(50) {
                cluster.wait_until_ready()?;
            }
            thread::sleep(Duration::from_millis(random.below(setup.size(600, 200))));
            let lasts = Duration::from_millis(100 + random.below(setup.size(2500, 500)));
            match fault {
                HistoryFault::Kill => cluster.kill(node)?,
                HistoryFault::Restart => cluster.stop(node)?,
                HistoryFault::Wipe => {
                    cluster.kill(node)?;
                    fs::remove_dir_all(cluster.data(node))?;
                }
                HistoryFault::Pause => cluster.node(node)?.signal(Signal::STOP)?,
                HistoryFault::Isolate => net.isolate(node)?,
                HistoryFault::OneWay => net.cut(node, other)?,
                HistoryFault::Bridge => net.cut_both_ways(node, other)?,
                HistoryFault::Loss => net.drop_packets(20)?,
                HistoryFault::Clock => {
                    if let Some(clock) = clocks.get(node) {
                        let off = random.below(2 * CLOCK_OFF + 1) as i64 - CLOCK_OFF as i64;
                        set_millis(clock, off)?;
                    }
                }
            }
            thread::sleep(lasts);
            match fault {
                HistoryFault::Kill | HistoryFault::Restart => cluster.start_node(node)?,
                HistoryFault::Wipe => {
                    cluster.start_node(node)?;
                    cluster.wait_until_ready()?;
                }
                HistoryFault::Pause => cluster.node(node)?.signal(Signal::CONT)?,
                HistoryFault::Isolate
                | HistoryFault::OneWay
                | HistoryFault::Bridge
                | HistoryFault::Loss => net.heal()?,
                HistoryFault::Clock => {}
            }
        }
    }
    cluster.wait_until_ready()?;
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

impl HistoryState {
    /// Runs one client, which sends one operation after another, and changes the node after errors
    /// and at random.
    fn play(&self, mut place: usize, mut random: Random) -> Result<(), Failure> {
        let mut connection: Option<Client> = None;
        while !self.stop.load(Ordering::Relaxed) {
            let register = &self.registers[random.below(KEYS as u64) as usize];
            let address = self.addresses[place % NODES];
            let client = Client::reuse_or_connect(connection.take(), address, TIMEOUT);
            let Ok(mut client) = client else {
                place += 1;
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            let number = self.number.fetch_add(1, Ordering::Relaxed);
            let call = register.call(number, &mut random);
            let answer = call.ask(&mut client);
            let stays = answer.as_ref().is_ok_and(|answer| answer.status < 500 && !answer.closes);
            register.end(&call, answer)?;
            if stays && !random.percent(5) {
                connection = Some(client);
            } else {
                place += 1;
            }
        }
        Ok(())
    }
}
