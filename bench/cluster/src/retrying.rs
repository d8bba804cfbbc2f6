//! Clients that retry a failed request once, at another node.
//!
//! Each client is a thread with a preferred node. If the preferred node refuses the connection,
//! disconnects, does not answer in time or answers 5xx, the client sends the request to the next
//! node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::raw;
use load::Write;

/// Number of client threads. Each node is the preferred node of a third of them.
pub(crate) const CLIENTS: u64 = 24;

/// Number of different keys.
pub(crate) const KEYS: u64 = 20_000;

/// Timeout of an answer, longer than the nodes' own deadline of 1 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The requests of all clients, half of them PUTs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    /// Encodes a request for this kind of cluster.
    pub(crate) write: Write,
    /// Requests per second of each client.
    pub(crate) rate: u64,
}

/// The results of the clients: answers, times, and requests that failed.
#[derive(Default)]
pub(crate) struct Tally {
    /// Time of each answer, since the start of the clients.
    pub(crate) answered: Vec<Duration>,
    /// Latency of each answered request, from when the request was due.
    pub(crate) took: Vec<Duration>,
    /// Number of requests that were retried.
    pub(crate) retried: u64,
    /// Number of requests that failed at the second node too.
    pub(crate) failed: u64,
}

impl Tally {
    /// Returns the longest time between two consecutive answers.
    pub(crate) fn longest_gap(&self) -> Duration {
        let mut answered = self.answered.clone();
        answered.sort_unstable();
        let gaps = answered.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }

    fn add(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.took.extend(other.took);
        self.retried += other.retried;
        self.failed += other.failed;
    }
}

/// Runs the clients while `during` runs. `during` receives the time at which the clients start.
/// Returns the results of the clients and of `during`.
pub(crate) fn run_while<T>(
    nodes: &[SocketAddr],
    requests: Requests,
    during: impl FnOnce(Instant) -> Result<T, String>,
) -> Result<(Tally, T), String> {
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        let is_over = &is_over;
        let client = |number| Client::new(nodes, number).run(requests, start, is_over);
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let done = during(start);
        is_over.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        for client in clients {
            all.add(client.join().map_err(|_| "a client thread panicked".to_owned())?);
        }
        done.map(|done| (all, done))
    })
}

pub(crate) fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// A client with at most one connection to each node, opened for the first request to the node.
struct Client<'a> {
    nodes: &'a [SocketAddr],
    number: u64,
    connections: Vec<Option<raw::Client>>,
}

impl<'a> Client<'a> {
    fn new(nodes: &'a [SocketAddr], number: u64) -> Self {
        Self { nodes, number, connections: nodes.iter().map(|_| None).collect() }
    }

    fn run(mut self, requests: Requests, start: Instant, is_over: &AtomicBool) -> Tally {
        let mut tally = Tally::default();
        let home = self.number as usize % self.nodes.len();
        let mut request = Vec::new();
        for turn in 0.. {
            let due = start + Duration::from_nanos(turn * 1_000_000_000 / requests.rate);
            sleep_until(due);
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let key = turn.wrapping_mul(0x9e37_79b9).wrapping_add(self.number * 7919) % KEYS;
            request.clear();
            (requests.write)(turn % 2 == 0, key, &mut request);
            let mut answered = self.ask(home, &request);
            if !answered {
                tally.retried += 1;
                answered = self.ask((home + 1) % self.nodes.len(), &request);
            }
            if answered {
                tally.answered.push(start.elapsed());
                tally.took.push(due.elapsed());
            } else {
                tally.failed += 1;
            }
        }
        tally
    }

    /// Sends a request to a node. Returns true if the node answers with a status below 500.
    fn ask(&mut self, node: usize, request: &[u8]) -> bool {
        let taken = self.connections[node].take();
        let connect = || raw::Client::try_connect(self.nodes[node], ANSWER_LIMIT);
        let answer = taken.map_or_else(connect, Ok).and_then(|mut client| {
            client.try_send(request)?;
            let answer = client.try_response()?;
            Ok(((!answer.closes()).then_some(client), answer.status))
        });
        match answer {
            Ok((client, status)) => {
                self.connections[node] = client;
                status < 500
            }
            Err(_) => false,
        }
    }
}
