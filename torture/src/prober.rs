//! Clients that ask at a fixed pace, whatever the answers take, and try once more at another node
//! when one fails: what people see of a fault.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Failure;
use crate::client::{Answer, Client, target};
use crate::curve::Second;
use crate::ledger::Ledger;
use crate::random::Random;
use crate::writers::{large_len, said};

/// How long an answer may take: longer than a node's own deadline.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of a value.
const VALUE_LEN: u64 = 500;

/// The same of a large one, at most.
const LARGE_LEN: usize = 1 << 20;

/// Keys of each client.
const KEYS: u64 = 500;

/// How the clients ask.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Clients, each with a connection to every node.
    pub clients: usize,
    /// Between two requests of one client.
    pub every: Duration,
    /// `&ack=2&from=3` or nothing.
    pub votes: &'static str,
    /// Writes in a hundred of a value of 100 KiB to 1 MiB.
    pub large: u64,
    /// Writes in a hundred that carry an idempotency key: those are done as conditional writes.
    pub conditional: u64,
    /// How often a request is sent at most, each time to the next node.
    pub tries: u32,
}

impl Pace {
    /// Eight clients, 500 requests a second: long values and conditional writes among them, and
    /// each request is tried at two nodes.
    pub const USUAL: Self = Self {
        clients: 8,
        every: Duration::from_millis(16),
        votes: "",
        large: 2,
        conditional: 25,
        tries: 2,
    };

    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.clients as f64 / self.every.as_secs_f64()
    }
}

/// What the clients saw.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Requests, each counted once however often it was tried.
    pub requests: u64,
    /// Requests of which the first try failed.
    pub retried: u64,
    /// Requests of which the second try failed too, each with what was answered.
    pub failed: Vec<String>,
    /// The longest time between two successes of all clients together.
    pub longest_gap: Duration,
    /// When each request was due, from when the clients began, and how long after that it ended.
    times: Vec<(Duration, Duration)>,
    /// When failed ones were due.
    failed_at: Vec<Duration>,
}

impl Seen {
    /// The time that so many of a hundred requests stay below.
    pub fn percentile(&self, percent: f64) -> Duration {
        percentile(self.times.iter().map(|(_, took)| *took).collect(), percent)
    }

    /// The same of those that were due in one of these spans.
    pub fn percentile_in(&self, percent: f64, spans: &[(Duration, Duration)]) -> Duration {
        let is_in = |due: &Duration| spans.iter().any(|(from, to)| (from..to).contains(&due));
        let times = self.times.iter().filter(|(due, _)| is_in(due));
        percentile(times.map(|(_, took)| *took).collect(), percent)
    }

    /// What came of the requests second by second, with the memory of the largest node.
    pub fn seconds(&self, resident: &[u64]) -> Vec<Second> {
        let of = |number: usize, due: &Duration| due.as_secs() as usize == number;
        let second = |(number, resident): (usize, &u64)| {
            let took = self.times.iter().filter(|(due, _)| of(number, due));
            let took: Vec<Duration> = took.map(|(_, took)| *took).collect();
            let failed = self.failed_at.iter().filter(|due| of(number, due)).count() as u64;
            Second {
                good: took.len() as u64 - failed,
                refused: 0,
                failed,
                p50: percentile(took.clone(), 50.0),
                p99: percentile(took, 99.0),
                resident: *resident,
            }
        };
        resident.iter().enumerate().map(second).collect()
    }
}

fn percentile(mut times: Vec<Duration>, percent: f64) -> Duration {
    times.sort_unstable();
    let place = (times.len() as f64 * percent / 100.0) as usize;
    times.get(place.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Clients that are running.
#[derive(Debug)]
pub struct Prober {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), Failure>>>,
}

#[derive(Debug)]
struct Shared {
    addresses: Vec<SocketAddr>,
    ledger: Arc<Ledger>,
    pace: Pace,
    begun: Instant,
    stop: AtomicBool,
    seen: Mutex<(Seen, Instant)>,
}

impl Prober {
    /// Sets clients on the nodes.
    pub fn start(
        addresses: &[SocketAddr],
        ledger: &Arc<Ledger>,
        pace: Pace,
        seed: u64,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            addresses: addresses.to_vec(),
            ledger: Arc::clone(ledger),
            pace,
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            seen: Mutex::new((Seen::default(), Instant::now())),
        });
        let mut prober = Self { shared, threads: Vec::new() };
        for number in 0..pace.clients {
            let shared = Arc::clone(&prober.shared);
            let random = Random::new(seed ^ 0xb0b0 ^ (number as u64) << 32);
            let builder = thread::Builder::new().stack_size(256 << 10);
            prober.threads.push(builder.spawn(move || shared.ask(number, random))?);
        }
        Ok(prober)
    }

    /// How long the clients have asked.
    pub fn lasts(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Stops the clients; what they saw, unless one of them read what must not be.
    pub fn stop(mut self) -> Result<Seen, Failure> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            ended.map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        let mut seen = self.shared.seen.lock();
        let since = seen.1.elapsed();
        seen.0.longest_gap = seen.0.longest_gap.max(since);
        Ok(seen.0.clone())
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Whoever drops running clients already has a failure to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn ask(&self, number: usize, mut random: Random) -> Result<(), Failure> {
        let count = self.addresses.len();
        let mut connections: Vec<Option<Client>> = (0..count).map(|_| None).collect();
        let mut due = Instant::now() + self.pace.every.mul_f64(number as f64 / 16.0);
        let mut next = number;
        while !self.stop.load(Ordering::Relaxed) {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let key = format!("p{number}-{}", random.below(KEYS));
            let read = random.percent(50);
            let mut why = String::new();
            let mut tries = 0;
            while tries < self.pace.tries {
                let place = next % count;
                next += 1;
                tries += 1;
                match self.attempt(&mut connections[place], place, &key, read, &mut random) {
                    Ok(answer) if answer.status < 500 => {
                        why.clear();
                        break;
                    }
                    Ok(answer) => {
                        let body = String::from_utf8_lossy(&answer.body).into_owned();
                        why = format!("{why}; node {}: {body}", place + 1);
                    }
                    Err(Failure::Io(error)) => why = format!("{why}; node {}: {error}", place + 1),
                    Err(other) => return Err(other),
                }
            }
            self.note(tries, why, due);
            due += self.pace.every;
        }
        Ok(())
    }

    fn note(&self, tries: u32, why: String, due: Instant) {
        let (due, took) = (due.duration_since(self.begun), due.elapsed());
        let mut seen = self.seen.lock();
        let (seen, last) = &mut *seen;
        seen.requests += 1;
        seen.retried += u64::from(tries > 1);
        seen.times.push((due, took));
        if why.is_empty() {
            seen.longest_gap = seen.longest_gap.max(last.elapsed());
            *last = Instant::now();
        } else {
            seen.failed.push(why);
            seen.failed_at.push(due);
        }
    }

    /// One try, judged and noted.
    fn attempt(
        &self,
        connection: &mut Option<Client>,
        place: usize,
        key: &str,
        read: bool,
        random: &mut Random,
    ) -> Result<Answer, Failure> {
        // As the pool of any client does: a node that ended closed what was kept open to it.
        let mut client = Client::reused(connection.take(), self.addresses[place], PATIENCE)?;
        let target = target(key) + self.pace.votes;
        let answer = if read {
            let answer = client.request("GET", &target, b"")?;
            if matches!(answer.status, 200 | 404) {
                let found = (answer.status == 200).then_some(answer.body.as_slice());
                self.ledger.check_read(key, found)?;
            }
            answer
        } else {
            let (ticket, value) = {
                let large = random.percent(self.pace.large);
                let len = if large {
                    large_len(random, LARGE_LEN)
                } else {
                    random.below(VALUE_LEN) as usize
                };
                self.ledger.put(key, len)
            };
            // Of two runs that begin with one seed, too, no two keys are equal.
            let token = || {
                let nanos = self.ledger.now().as_nanos();
                format!("Idempotency-Key: \"{key}-{nanos}\"\r\n")
            };
            let token = random.percent(self.pace.conditional).then(token).unwrap_or_default();
            let answer = client.request_with("PUT", &target, &token, &value);
            self.ledger.end(ticket, said(&answer));
            answer?
        };
        if !answer.closes {
            *connection = Some(client);
        }
        Ok(answer)
    }
}
