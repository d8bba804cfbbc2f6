//! The kill of a node: the benchmark kills and restarts a node of a cluster of three under load. It
//! measures the errors and delays that clients see, and the time until the node has its missed
//! writes.
//!
//! ```text
//!   0        1/4            1/2                               end
//!   ├─ load ─┼─ node 3 dead ─┼─ node 3 back: hints go out ──────┤
//! ```
//!
//! Each client thread has a preferred node. If the preferred node refuses, disconnects or answers
//! 5xx, the client asks the next node, once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench_table::{Spread, Table};
use kit::raw;

use crate::Bench;
use crate::fleet::{Kind, SyncSetting};
use crate::metrics::LIMIT;
use crate::requests;

const SECTION: &str = "kill";

/// Client threads, a third of them for each node.
const CLIENTS: u64 = 24;

/// Requests per second of each client, half of them PUTs.
const RATE: u64 = 125;

/// Length of a run, as a multiple of the length in a closed loop.
const LONGER: u64 = 6;

/// Number of different keys.
const KEYS: u64 = 20_000;

/// Longest wait for an answer. The nodes' own deadline is 1 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Longest wait for the delivery of the hints after the end of the load.
const HINTS_LIMIT: Duration = Duration::from_secs(60);

/// The results of a client.
#[derive(Default)]
struct PeerSeen {
    /// Time of each answer since the start.
    answered: Vec<Duration>,
    slowest: Duration,
    retried: u64,
    failed: u64,
}

/// Delivery of the hints.
struct Hints {
    most: u64,
    /// Time from when the node listens again until no hint was left.
    took: Option<Duration>,
}

/// Measures, and reports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let seconds = bench.scale.seconds * LONGER;
    bench.report.say(&format!(
        "## A node killed and back\n\n{CLIENTS} clients, {} requests/s together, half PUT, half \
         GET, `ack` 2 of `from` 3, `--sync always`, for {seconds} s; node 3 is killed (SIGKILL) \
         after a quarter and started again after a half. A request that fails is made once more, \
         at another node.",
        CLIENTS * RATE
    ));
    let mut columns: [Vec<f64>; 7] = Default::default();
    for repeat in 0..bench.scale.repeats {
        let (met, hints) = once(bench, Duration::from_secs(seconds))?;
        let mut answered = met.answered;
        answered.sort_unstable();
        let gaps = answered.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3);
        let rate = hints.took.map_or(f64::NAN, |took| hints.most as f64 / took.as_secs_f64());
        let figures = [
            ("answered", answered.len() as f64),
            ("retried", met.retried as f64),
            ("failed", met.failed as f64),
            ("longest_gap_ms", gaps.fold(0.0, f64::max)),
            ("slowest_ms", met.slowest.as_secs_f64() * 1e3),
            ("hints", hints.most as f64),
            ("hints_per_second", rate),
        ];
        for (column, (figure, value)) in columns.iter_mut().zip(figures) {
            bench.report.figure(SECTION, "kill", repeat, figure, value);
            column.push(value);
        }
    }
    let mut table = Table::new(&["", "median (least–greatest)"]);
    for (name, column) in [
        "requests answered",
        "made once more",
        "failed after that",
        "longest time without any answer, ms",
        "slowest request, ms",
        "hints that waited",
        "hints replayed a second",
    ]
    .iter()
    .zip(&columns)
    {
        let known: Vec<f64> = column.iter().copied().filter(|value| !value.is_nan()).collect();
        table.row(vec![
            Some((*name).to_owned()),
            Spread::of(&known).map(|spread| spread.to_string()),
        ]);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

fn once(bench: &mut Bench, duration: Duration) -> Result<(PeerSeen, Hints), String> {
    let mut fleet = bench.place.start(Kind::Three(SyncSetting::Always))?;
    fleet.fill(KEYS)?;
    let addresses = fleet.addresses();
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let (addresses, over) = (&addresses[..], &over);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || Client::new(addresses, number).run(start, over)))
            .collect();
        let hints = (|| {
            sleep_until(start + duration / 4);
            // Dropping the node kills its process.
            drop(fleet.nodes.pop());
            sleep_until(start + duration / 2);
            let command = bench.place.kvorum(SyncSetting::Always, addresses, 2)?;
            let most = hints_waiting(&addresses[..2]);
            fleet.nodes.push(bench.place.launch(command, addresses[2])?);
            let back = Instant::now();
            Ok(Hints { most, took: delivered(&addresses[..2], back, start + duration) })
        })();
        sleep_until(start + duration);
        over.store(true, Ordering::Relaxed);
        let mut all = PeerSeen::default();
        for client in clients {
            let met = client.join().map_err(|_| "a client thread panicked".to_owned())?;
            all.answered.extend(met.answered);
            all.slowest = all.slowest.max(met.slowest);
            all.retried += met.retried;
            all.failed += met.failed;
        }
        hints.map(|hints| (all, hints))
    })
}

fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Returns the time from `back` until no hint was left, or `None` if some were still left
/// `HINTS_LIMIT` after `end`.
fn delivered(nodes: &[SocketAddr], back: Instant, end: Instant) -> Option<Duration> {
    while Instant::now() < end + HINTS_LIMIT {
        if hints_waiting(nodes) == 0 {
            return Some(back.elapsed());
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Returns the number of hints that the nodes store, from their `/v0/status`.
fn hints_waiting(nodes: &[SocketAddr]) -> u64 {
    let of = |address: &SocketAddr| -> Option<u64> {
        let page = load::server::fetch(*address, "/v0/status", LIMIT).ok()?;
        let status: serde_json::Value = serde_json::from_str(&page).ok()?;
        let peers = status.get("peers")?.as_array()?;
        Some(peers.iter().filter_map(|peer| peer.get("hints")?.as_u64()).sum())
    };
    nodes.iter().filter_map(of).sum()
}

/// A client with one connection to each node, which is opened when needed.
struct Client<'a> {
    nodes: &'a [SocketAddr],
    number: u64,
    connections: Vec<Option<raw::Client>>,
}

impl<'a> Client<'a> {
    fn new(nodes: &'a [SocketAddr], number: u64) -> Self {
        Self { nodes, number, connections: nodes.iter().map(|_| None).collect() }
    }

    fn run(mut self, start: Instant, over: &AtomicBool) -> PeerSeen {
        let mut met = PeerSeen::default();
        let home = self.number as usize % self.nodes.len();
        let mut request = Vec::new();
        for turn in 0.. {
            let due = start + Duration::from_nanos(turn * 1_000_000_000 / RATE);
            sleep_until(due);
            if over.load(Ordering::Relaxed) {
                break;
            }
            let key = turn.wrapping_mul(0x9e37_79b9).wrapping_add(self.number * 7919) % KEYS;
            request.clear();
            requests::DEFAULT(turn % 2 == 0, key, &mut request);
            let mut answered = self.ask(home, &request);
            if !answered {
                met.retried += 1;
                answered = self.ask((home + 1) % self.nodes.len(), &request);
            }
            if answered {
                met.answered.push(start.elapsed());
                met.slowest = met.slowest.max(due.elapsed());
            } else {
                met.failed += 1;
            }
        }
        met
    }

    /// Returns true if the node answered the request with something other than 5xx.
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
