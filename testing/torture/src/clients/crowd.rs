//! The row `crowd` of docs/results/reliability.md: idle clients occupy all connection slots of all
//! nodes, and reconnect whenever a node closes their connections, while nodes are killed and
//! restarted. The nodes must still serve other clients from 2 of 3 replicas, connect after a
//! restart, and answer probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::Client;
use kit::cluster::Cluster;
use kit::oracle::ledger::Ledger;
use kit::random::Random;
use kit::workload::prober::{ProbeParams, Prober};

use crate::Setup;

const NODES: usize = 3;

/// Connection slots for clients per node.
const PLACES: &str = "64";

/// Idle clients per node.
const IDLE: usize = 192;

/// Each request has one attempt more than in other rows: one node is down, and another may refuse
/// the request because many idle clients wait for its connection slots.
const PACE: ProbeParams = ProbeParams {
    clients: 8,
    every: Duration::from_millis(16),
    votes: "&ack=2&from=3",
    large: 0,
    conditional: 25,
    tries: 3,
};

/// Delay before an idle client whose connection was closed reconnects.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Timeout of a probe.
const PROBE: Duration = Duration::from_secs(1);

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Kills and restarts a random node `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--connections", PLACES];
    let mut cluster = Cluster::start(&setup.binary, NODES, None, &args)?;
    let addresses = cluster.addresses().to_vec();
    let ledger = Arc::new(Ledger::default());
    let mut random = Random::new(setup.seed);
    let crowd = Crowd::default();
    let (seen, worst) = thread::scope(|scope| {
        for address in &addresses {
            scope.spawn(|| crowd.keep_idle_connections(*address));
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
                cluster.wait_until_ready()?;
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
    let agreed = cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
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

/// The state that the idle clients and the probes share.
struct Crowd {
    stop: AtomicBool,
    /// The node that is down or restarting; `u64::MAX` if all nodes run.
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
    /// Keeps [`IDLE`] connections to one node. A third of the clients send nothing, a third send
    /// part of a head, and a third send one request and then stay idle.
    fn keep_idle_connections(&self, address: SocketAddr) {
        let mut idle: Vec<Client> = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let before = idle.len();
            idle.retain(Client::is_open);
            self.closed.fetch_add((before - idle.len()) as u64, Ordering::Relaxed);
            while idle.len() < IDLE {
                // The connection fails while the node is down.
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
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// Repeatedly probes all nodes that should be running. Returns the longest time until an
    /// answer.
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
