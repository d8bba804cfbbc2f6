//! Row 30 of docs/results/reliability.md: clients add to a few counters, through all nodes at once,
//! while nodes are killed and suspended. No addition may be lost or applied twice: all returned
//! sums must differ, and the last sum must be the number of applied additions. A third of the
//! clients send each addition with an idempotency key, and retry it until they know its outcome.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Answer, Client};
use kit::cluster::Cluster;
use kit::random::Random;
use kit::workload::clients::Clients;
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::Setup;

const NODES: usize = 3;
const COUNTERS: usize = 3;
const CLIENTS: usize = 9;

/// Timeout of an answer: longer than the deadline inside the node.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout until a majority answers a read of a counter.
const READABLE: Duration = Duration::from_secs(30);

/// Outcomes of the additions to one counter.
#[derive(Debug, Default)]
struct Additions {
    sums: BTreeSet<i64>,
    unknown: u64,
    /// Number of refused additions that were certainly not applied.
    refused: u64,
    /// Number of acknowledged additions whose outcome only a retry returned.
    again: u64,
}

/// Outcome of one request.
enum CounterOutcome {
    Done(i64),
    Undone,
    Unknown,
    /// The idempotency key was used before, and the nodes no longer know the outcome.
    Used,
}

/// An addition that its client retries.
struct PendingAddition {
    counter: usize,
    key: String,
    begun: Instant,
    /// True if an earlier attempt may have applied the addition.
    unknown: bool,
}

#[derive(Debug)]
struct CounterState {
    addresses: Vec<SocketAddr>,
    stop: AtomicBool,
    additions: [Mutex<Additions>; COUNTERS],
}

/// Injects `rounds` faults: kills and restarts a random node, or suspends it for a while.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "interval"])?;
    cluster.wait_until_ready()?;
    let shared = Arc::new(CounterState {
        addresses: cluster.addresses().to_vec(),
        stop: AtomicBool::new(false),
        additions: Default::default(),
    });
    let mut random = Random::new(setup.seed);
    let of_all = Arc::clone(&shared);
    let play = move |number, random| of_all.add(number, random);
    let clients = Clients::start(CLIENTS, &mut random, play)?;
    let faults = faults(setup, &mut cluster, &mut random);
    shared.stop.store(true, Ordering::Relaxed);
    clients.join()?;
    faults?;
    cluster.wait_until_ready()?;
    check(&cluster, &shared, setup.rounds)
}

fn faults(setup: &Setup, cluster: &mut Cluster, random: &mut Random) -> Result<(), Failure> {
    for _ in 0..setup.rounds {
        let node = random.below(NODES as u64) as usize;
        thread::sleep(Duration::from_millis(300 + random.below(700)));
        let lasts = Duration::from_millis(200 + random.below(setup.size(4000, 1500)));
        if random.percent(50) {
            cluster.kill(node)?;
            thread::sleep(lasts);
            cluster.start_node(node)?;
        } else {
            cluster.node(node)?.signal(Signal::STOP)?;
            thread::sleep(lasts);
            cluster.node(node)?.signal(Signal::CONT)?;
        }
        cluster.wait_until_ready()?;
    }
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn check(cluster: &Cluster, shared: &CounterState, rounds: u32) -> Result<String, Failure> {
    let (mut done, mut unknown, mut refused, mut again) = (0, 0, 0, 0);
    for (counter, additions) in shared.additions.iter().enumerate() {
        let additions = additions.lock();
        let last = read(cluster.addresses()[counter % NODES], counter)?;
        let acknowledged = additions.sums.len() as i64;
        let greatest = additions.sums.last().copied().unwrap_or(0);
        let most = acknowledged + additions.unknown as i64;
        if last < greatest || last < acknowledged || last > most {
            return Err(Failure::Broken(format!(
                "counter {counter} is {last}: {acknowledged} additions were acknowledged, the \
                 greatest sum told is {greatest}, {} are unknown",
                additions.unknown
            )));
        }
        done += additions.sums.len();
        unknown += additions.unknown;
        refused += additions.refused;
        again += additions.again;
    }
    if done == 0 {
        return Err(Failure::Broken("no addition was acknowledged".to_owned()));
    }
    Ok(format!(
        "{rounds} kills and pauses: {done} additions acknowledged, {again} of them when they were \
         sent again, {unknown} unknown, {refused} refused, 0 lost, 0 done twice"
    ))
}

/// Reads a counter from a majority.
fn read(address: SocketAddr, counter: usize) -> Result<i64, Failure> {
    let begun = Instant::now();
    loop {
        let answer = Client::connect_within(address, TIMEOUT)
            .and_then(|mut client| client.request("GET", &target(counter), b""));
        match answer {
            Ok(answer) if answer.status == 404 => return Ok(0),
            Ok(answer) if answer.status == 200 => return sum(&answer),
            other if begun.elapsed() > READABLE => {
                return Err(Failure::Broken(format!("counter {counter} is not told: {other:?}")));
            }
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn target(counter: usize) -> String {
    format!("/v0/entity?id=counter-{counter}")
}

fn sum(answer: &Answer) -> Result<i64, Failure> {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    text.parse().map_err(|_| Failure::Broken(format!("{text:?} is not a sum")))
}

impl CounterState {
    /// Runs one client, which sends one addition after another, and changes the node after failures
    /// and at random.
    fn add(&self, number: usize, mut random: Random) -> Result<(), Failure> {
        let insists = number.is_multiple_of(3);
        let mut place = number;
        let mut connection: Option<Client> = None;
        let mut open: Option<PendingAddition> = None;
        while open.is_some() || !self.stop.load(Ordering::Relaxed) {
            let addition = open.take().unwrap_or_else(|| PendingAddition {
                counter: random.below(COUNTERS as u64) as usize,
                key: format!("{:016x}", random.number()),
                begun: Instant::now(),
                unknown: false,
            });
            let address = self.addresses[place % NODES];
            let client = Client::reuse_or_connect(connection.take(), address, TIMEOUT);
            let Ok(mut client) = client else {
                place += 1;
                thread::sleep(Duration::from_millis(5));
                // The connection failed, so nothing was sent.
                if addition.unknown {
                    open = self.note(addition, CounterOutcome::Undone, insists)?;
                }
                continue;
            };
            let key = if insists { Some(&addition.key) } else { None };
            let outcome = outcome(ask(&mut client, addition.counter, key))?;
            if !matches!(outcome, CounterOutcome::Done(_)) || random.percent(5) {
                place += 1;
            } else {
                connection = Some(client);
            }
            open = self.note(addition, outcome, insists)?;
        }
        Ok(())
    }

    /// Records the outcome of an addition. Returns the addition if the client must retry it; `None`
    /// if its outcome is final.
    fn note(
        &self,
        addition: PendingAddition,
        outcome: CounterOutcome,
        insists: bool,
    ) -> Result<Option<PendingAddition>, Failure> {
        let mut additions = self.additions[addition.counter].lock();
        match outcome {
            CounterOutcome::Done(sum) => {
                if !additions.sums.insert(sum) {
                    return Err(Failure::Broken(format!("sum {sum} was told twice")));
                }
                additions.again += u64::from(addition.unknown);
            }
            CounterOutcome::Undone if !addition.unknown => additions.refused += 1,
            CounterOutcome::Undone | CounterOutcome::Unknown
                if insists && addition.is_worth_another_try() =>
            {
                return Ok(Some(PendingAddition { unknown: true, ..addition }));
            }
            CounterOutcome::Undone | CounterOutcome::Unknown | CounterOutcome::Used => {
                additions.unknown += 1
            }
        }
        Ok(None)
    }
}

impl PendingAddition {
    fn is_worth_another_try(&self) -> bool {
        self.unknown && self.begun.elapsed() < READABLE || self.begun.elapsed() < TIMEOUT
    }
}

/// Adds one to a counter.
fn ask(client: &mut Client, counter: usize, key: Option<&String>) -> std::io::Result<Answer> {
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    client.request_with("POST", &(target(counter) + "&add=1"), &key, b"")
}

fn outcome(answer: std::io::Result<Answer>) -> Result<CounterOutcome, Failure> {
    let Ok(answer) = answer else { return Ok(CounterOutcome::Unknown) };
    if answer.status == 200 {
        return Ok(CounterOutcome::Done(sum(&answer)?));
    }
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    match answer.status {
        409 if text.contains("idempotency-key-used") => Ok(CounterOutcome::Used),
        status if status < 500 => Err(Failure::Broken(format!("{status}: {text}"))),
        _ if text.contains("\"outcome\":\"none\"") => Ok(CounterOutcome::Undone),
        _ => Ok(CounterOutcome::Unknown),
    }
}
