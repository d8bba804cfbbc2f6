//! Clients that send requests at a fixed rate, independent of the latency, and retry a failed
//! request at another node. The results show the effect of a fault on users.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Failure;
use crate::client::{Answer, Client, target};
use crate::oracle::ledger::Ledger;
use crate::random::Random;
use crate::workload::curve::Second;
use crate::workload::writers::{large_len, outcome_of};

/// Timeout of an answer: longer than the deadline inside the node.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Length of a value in bytes.
const VALUE_LEN: u64 = 500;

/// Maximum length of a large value in bytes.
const LARGE_LEN: usize = 1 << 20;

/// Number of keys of each client.
const KEYS: u64 = 500;

/// Parameters of the clients.
#[derive(Debug, Clone, Copy)]
pub struct ProbeParams {
    /// Number of clients, each with one connection to every node.
    pub clients: usize,
    /// Interval between two requests of one client.
    pub every: Duration,
    /// Quorum, as `&ack=2&from=3`, or empty.
    pub votes: &'static str,
    /// Percentage of writes whose value has 100 KiB to 1 MiB.
    pub large: u64,
    /// Percentage of writes with an idempotency key. Nodes treat these as conditional writes.
    pub conditional: u64,
    /// Maximum number of attempts of a request, each at the next node.
    pub tries: u32,
}

impl ProbeParams {
    /// Eight clients that send 500 requests per second in all, some of them with large values or
    /// idempotency keys. Each request has up to two attempts, at two nodes.
    pub const USUAL: Self = Self {
        clients: 8,
        every: Duration::from_millis(16),
        votes: "",
        large: 2,
        conditional: 25,
        tries: 2,
    };

    /// Returns the number of requests per second of all clients.
    pub fn rate(&self) -> f64 {
        self.clients as f64 / self.every.as_secs_f64()
    }
}

/// Results of the clients.
#[derive(Debug, Clone, Default)]
pub struct ProbeFigures {
    /// Number of requests; retries do not count.
    pub requests: u64,
    /// Number of requests whose first attempt failed.
    pub retried: u64,
    /// Requests whose last attempt failed too, each with its answer.
    pub failed: Vec<String>,
    /// The longest time between two successive successful requests, of all clients together.
    pub longest_gap: Duration,
    /// Each request's due time since the start, and the time from its due time until its end.
    times: Vec<(Duration, Duration)>,
    /// Due times of failed requests.
    failed_at: Vec<Duration>,
}

impl ProbeFigures {
    /// Returns a percentile of the requests' latencies; `percent` is 0 to 100.
    pub fn percentile(&self, percent: f64) -> Duration {
        percentile(self.times.iter().map(|(_, took)| *took).collect(), percent)
    }

    /// Returns a percentile of the latencies of requests that were due in one of these spans.
    pub fn percentile_in(&self, percent: f64, spans: &[(Duration, Duration)]) -> Duration {
        let is_in = |due: &Duration| spans.iter().any(|(from, to)| (from..to).contains(&due));
        let times = self.times.iter().filter(|(due, _)| is_in(due));
        percentile(times.map(|(_, took)| *took).collect(), percent)
    }

    /// Returns the results second by second. `resident` is the memory of the largest node in each
    /// second, in bytes.
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

/// Returns a percentile of these times; `percent` is 0 to 100. Returns zero if there are no times.
pub fn percentile(mut times: Vec<Duration>, percent: f64) -> Duration {
    times.sort_unstable();
    let place = (times.len() as f64 * percent / 100.0) as usize;
    times.get(place.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// The running clients, stopped when dropped.
#[derive(Debug)]
pub struct Prober {
    shared: Arc<ProberState>,
    threads: Vec<JoinHandle<Result<(), Failure>>>,
}

#[derive(Debug)]
struct ProberState {
    addresses: Vec<SocketAddr>,
    ledger: Arc<Ledger>,
    pace: ProbeParams,
    begun: Instant,
    stop: AtomicBool,
    seen: Mutex<(ProbeFigures, Instant)>,
}

impl Prober {
    /// Starts clients at the nodes.
    pub fn start(
        addresses: &[SocketAddr],
        ledger: &Arc<Ledger>,
        pace: ProbeParams,
        seed: u64,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(ProberState {
            addresses: addresses.to_vec(),
            ledger: Arc::clone(ledger),
            pace,
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            seen: Mutex::new((ProbeFigures::default(), Instant::now())),
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

    /// Returns the time since the clients' start.
    pub fn elapsed(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Stops the clients. Returns their results, or an error if a client read an invalid value.
    pub fn stop(mut self) -> Result<ProbeFigures, Failure> {
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
            // The owner drops running clients only after another failure, and reports that failure.
            let _ = thread.join();
        }
    }
}

impl ProberState {
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

    /// Sends one request, and checks and records its answer.
    fn attempt(
        &self,
        connection: &mut Option<Client>,
        place: usize,
        key: &str,
        read: bool,
        random: &mut Random,
    ) -> Result<Answer, Failure> {
        // A node that was restarted has closed the pooled connection; like any connection pool, the
        // client then connects again.
        let mut client =
            Client::reuse_or_connect(connection.take(), self.addresses[place], TIMEOUT)?;
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
            // Idempotency keys must differ even between two runs with the same seed.
            let token = || {
                let nanos = self.ledger.now().as_nanos();
                format!("Idempotency-Key: \"{key}-{nanos}\"\r\n")
            };
            let token = random.percent(self.pace.conditional).then(token).unwrap_or_default();
            let answer = client.request_with("PUT", &target, &token, &value);
            self.ledger.end(ticket, outcome_of(&answer));
            answer?
        };
        if !answer.closes {
            *connection = Some(client);
        }
        Ok(answer)
    }
}
