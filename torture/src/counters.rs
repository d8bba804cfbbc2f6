//! Row 30: additions to a few counters, through all nodes at once, while nodes are killed and stand
//! still. No addition is lost, none is done twice: sums that were told are all different, and the
//! last one is the number of those that were done.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Answer, Client};
use crate::cluster::Cluster;
use crate::random::Random;
use crate::{Failure, Setup};

const NODES: usize = 3;
const COUNTERS: usize = 3;
const CLIENTS: usize = 9;

/// Longer than a node's deadline.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long it may take until a counter can be read by a majority again.
const READABLE: Duration = Duration::from_secs(30);

/// What became of the additions to one counter.
#[derive(Debug, Default)]
struct Told {
    sums: BTreeSet<i64>,
    unknown: u64,
    /// Refused, and said not to be done.
    refused: u64,
}

#[derive(Debug)]
struct Shared {
    addresses: Vec<SocketAddr>,
    stop: AtomicBool,
    told: [Mutex<Told>; COUNTERS],
}

/// `rounds` faults: a node is killed and starts again, or stands still for a while.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::start(setup, NODES, None, &["--sync", "interval"])?;
    cluster.until_ready()?;
    let shared = Arc::new(Shared {
        addresses: cluster.addresses().to_vec(),
        stop: AtomicBool::new(false),
        told: Default::default(),
    });
    let mut random = Random::new(setup.seed);
    let clients = start(&shared, &mut random)?;
    let faults = faults(setup, &mut cluster, &mut random);
    shared.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| Failure::Trouble("a client panicked".to_owned()))??;
    }
    faults?;
    cluster.until_ready()?;
    judge(&cluster, &shared, setup.rounds)
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
        cluster.until_ready()?;
    }
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn judge(cluster: &Cluster, shared: &Shared, rounds: u32) -> Result<String, Failure> {
    let (mut done, mut unknown, mut refused) = (0, 0, 0);
    for (counter, told) in shared.told.iter().enumerate() {
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let last = read(cluster.addresses()[counter % NODES], counter)?;
        let acknowledged = told.sums.len() as i64;
        let greatest = told.sums.last().copied().unwrap_or(0);
        let most = acknowledged + told.unknown as i64;
        if last < greatest || last < acknowledged || last > most {
            return Err(Failure::Broken(format!(
                "counter {counter} is {last}: {acknowledged} additions were acknowledged, the \
                 greatest sum told is {greatest}, {} are unknown",
                told.unknown
            )));
        }
        done += told.sums.len();
        unknown += told.unknown;
        refused += told.refused;
    }
    if done == 0 {
        return Err(Failure::Broken("no addition was acknowledged".to_owned()));
    }
    Ok(format!(
        "{rounds} kills and pauses: {done} additions acknowledged, {unknown} unknown, {refused} \
         refused, 0 lost, 0 done twice"
    ))
}

/// A counter, as a majority holds it.
fn read(address: SocketAddr, counter: usize) -> Result<i64, Failure> {
    let begun = Instant::now();
    loop {
        let answer = Client::connect_within(address, PATIENCE)
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
    text.parse().map_err(|_| Failure::Broken(format!("{text:?} is no sum")))
}

fn start(
    shared: &Arc<Shared>,
    random: &mut Random,
) -> Result<Vec<JoinHandle<Result<(), Failure>>>, Failure> {
    let client = |number| {
        let (shared, random) = (Arc::clone(shared), Random::new(random.number()));
        let builder = thread::Builder::new().stack_size(256 << 10);
        Ok(builder.spawn(move || shared.add(number, random))?)
    };
    (0..CLIENTS).map(client).collect()
}

impl Shared {
    /// One client: one addition after the other, each at whichever node.
    fn add(&self, number: usize, mut random: Random) -> Result<(), Failure> {
        let mut place = number;
        let mut connection: Option<Client> = None;
        while !self.stop.load(Ordering::Relaxed) {
            let counter = random.below(COUNTERS as u64) as usize;
            let target = target(counter) + "&add=1";
            let client = match connection.take().filter(Client::is_open) {
                Some(client) => Ok(client),
                None => Client::connect_within(self.addresses[place % NODES], PATIENCE),
            };
            let Ok(mut client) = client else {
                // Nothing was sent.
                place += 1;
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            let answer = client.request("POST", &target, b"");
            let fails = !answer.as_ref().is_ok_and(|answer| answer.status == 200);
            self.note(counter, answer)?;
            if fails || random.percent(5) {
                place += 1;
            } else {
                connection = Some(client);
            }
        }
        Ok(())
    }

    fn note(&self, counter: usize, answer: std::io::Result<Answer>) -> Result<(), Failure> {
        let mut told = self.told[counter].lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(answer) if answer.status == 200 => {
                let sum = sum(&answer)?;
                if !told.sums.insert(sum) {
                    return Err(Failure::Broken(format!("sum {sum} was told twice")));
                }
            }
            Ok(answer) => {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                if answer.status < 500 {
                    return Err(Failure::Broken(format!("{}: {text}", answer.status)));
                }
                let undone = text.contains("\"outcome\":\"none\"");
                told.refused += u64::from(undone);
                told.unknown += u64::from(!undone);
            }
            Err(_) => told.unknown += 1,
        }
        Ok(())
    }
}
