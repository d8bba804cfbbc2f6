//! Row "crowd": idle clients take all places of all nodes, and come again whenever they are closed,
//! while peers are killed and come back. Other clients work on at 2 of 3, whoever comes back gets
//! in, and probes are answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::cluster::Cluster;
use crate::ledger::Ledger;
use crate::prober::{Pace, Prober};
use crate::random::Random;
use crate::{Failure, Setup};

const NODES: usize = 3;

/// Places for clients at each node …
const PLACES: &str = "64";

/// … and idle clients at each that want one.
const IDLE: usize = 192;

/// A request is tried once more than elsewhere: one node is down, and another may refuse it, for so
/// many others wait there for a place.
const PACE: Pace = Pace {
    clients: 8,
    every: Duration::from_millis(16),
    votes: "&ack=2&from=3",
    large: 0,
    conditional: 25,
    tries: 3,
};

/// How soon an idle client that was closed comes again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long a probe may take.
const PROBE: Duration = Duration::from_secs(1);

/// How long hints may take to bring everything about.
const BY_ITSELF: Duration = Duration::from_secs(30);

/// `rounds` kills, each of one node that then comes back.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--connections", PLACES];
    let mut cluster = Cluster::start(setup, NODES, None, &args)?;
    let addresses = cluster.addresses().to_vec();
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let crowd = Crowd::default();
    let (seen, worst) = thread::scope(|scope| {
        for address in &addresses {
            scope.spawn(|| crowd.besiege(*address));
        }
        let probed = scope.spawn(|| crowd.probe(&addresses));
        let outcome = (|| {
            let prober = Prober::start(&addresses, &ledger, PACE, setup.seed)?;
            for _ in 0..setup.rounds {
                let node = random.below(NODES as u64) as usize;
                thread::sleep(Duration::from_millis(500 + random.below(500)));
                crowd.away.store(node as u64, Ordering::Relaxed);
                cluster.kill(node)?;
                thread::sleep(Duration::from_millis(500));
                cluster.start_node(node)?;
                cluster.until_ready()?;
                crowd.away.store(u64::MAX, Ordering::Relaxed);
            }
            prober.stop()
        })();
        crowd.stop.store(true, Ordering::Relaxed);
        let worst =
            probed.join().map_err(|_| Failure::Environment("a probe panicked".to_owned()))?;
        Ok::<_, Failure>((outcome?, worst?))
    })?;
    if let Some(first) = seen.failed.first() {
        let (failed, of) = (seen.failed.len(), seen.requests);
        return Err(Failure::Broken(format!("{failed} of {of} requests failed, as{first}")));
    }
    let agreed = cluster.agree(BY_ITSELF)?;
    cluster.check(&ledger)?;
    Ok(format!(
        "{} idle clients for {PLACES} places at each of {NODES} nodes, closed and back {} times; \
         {} kills: {} requests, {} tried twice, 0 failed, longest gap {} ms; slowest of {} \
         probes {} ms; C after {:.1} s, 0 lost",
        IDLE,
        crowd.closed.load(Ordering::Relaxed),
        setup.rounds,
        seen.requests,
        seen.retried,
        seen.longest_gap.as_millis(),
        crowd.probes.load(Ordering::Relaxed),
        worst.as_millis(),
        agreed.took.as_secs_f64()
    ))
}

/// Idle clients, and what is seen beside them.
struct Crowd {
    stop: AtomicBool,
    /// The node that is down or on its way back.
    away: AtomicU64,
    closed: AtomicU64,
    probes: AtomicU64,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            stop: AtomicBool::new(false),
            away: AtomicU64::new(u64::MAX),
            closed: AtomicU64::new(0),
            probes: AtomicU64::new(0),
        }
    }
}

impl Crowd {
    /// Keeps [`IDLE`] connections to one node: a third say nothing, a third begin a head, a third
    /// ask once and stay.
    fn besiege(&self, address: SocketAddr) {
        let mut idle: Vec<Client> = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let before = idle.len();
            idle.retain(Client::is_open);
            self.closed.fetch_add((before - idle.len()) as u64, Ordering::Relaxed);
            while idle.len() < IDLE {
                // The node may be down.
                let Ok(mut client) = Client::connect_within(address, PROBE) else { break };
                let sent = match idle.len() % 3 {
                    0 => Ok(()),
                    1 => client.send_raw(b"GET /v0/entity?id=a HTTP/1.1\r\nX: "),
                    _ => client.request("GET", "/v0/entity?id=a", b"").map(drop),
                };
                if sent.is_err() {
                    break;
                }
                idle.push(client);
            }
            thread::sleep(AGAIN);
        }
    }

    /// Probes all nodes that should run, over and over; how long the slowest answer took.
    fn probe(&self, addresses: &[SocketAddr]) -> Result<Duration, Failure> {
        let mut worst = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) {
            for (node, address) in addresses.iter().enumerate() {
                let is_away = || self.away.load(Ordering::Relaxed) == node as u64;
                if is_away() {
                    continue;
                }
                let begun = Instant::now();
                let answer = Client::connect_within(*address, PROBE)
                    .and_then(|mut client| client.request("GET", "/healthz", b""));
                match answer.map(|answer| answer.status) {
                    Ok(200) => {
                        worst = worst.max(begun.elapsed());
                        self.probes.fetch_add(1, Ordering::Relaxed);
                    }
                    _ if is_away() || self.stop.load(Ordering::Relaxed) => {}
                    seen => {
                        let node = node + 1;
                        return Err(Failure::Broken(format!("a probe of node {node}: {seen:?}")));
                    }
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(worst)
    }
}
