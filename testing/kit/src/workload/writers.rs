//! Concurrent clients that write, delete and read, and record every write in the ledger.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use crate::Failure;
use crate::client::{Answer, Client, target};
use crate::oracle::ledger::{Ledger, WriteOutcome};
use crate::random::Random;

/// Pause before a client reconnects after its connection was refused.
const RECONNECT: Duration = Duration::from_millis(5);

/// Default timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Parameters of the clients.
#[derive(Debug, Clone, Copy)]
pub struct WriterParams {
    /// Number of clients, each with one request in flight.
    pub clients: usize,
    /// Number of keys that each client has alone, and number of keys that all clients share.
    pub keys: u64,
    /// Length in bytes of the longest value.
    pub value_len: u64,
    /// Percentage of puts whose value has 100 KiB or more.
    pub large: u64,
    /// Maximum length of a large value in bytes.
    pub large_len: usize,
    /// Percentage of deletes among all requests.
    pub deletes: u64,
    /// Percentage of reads of the client's own keys among all requests.
    pub reads: u64,
    /// Prefix of the keys.
    pub prefix: char,
    /// Quorum, as `&ack=2&from=3`, or empty.
    pub votes: &'static str,
    /// Timeout of an answer. After the timeout, the outcome counts as unknown.
    pub patience: Duration,
}

impl Default for WriterParams {
    fn default() -> Self {
        Self {
            clients: 16,
            keys: 200,
            value_len: 2000,
            large: 0,
            large_len: 1 << 20,
            deletes: 15,
            reads: 10,
            prefix: 'k',
            votes: "",
            patience: TIMEOUT,
        }
    }
}

impl WriterParams {
    /// Parameters with many keys, long values and few deletes: the data grows until a small disk is
    /// full.
    pub fn for_full_disk() -> Self {
        Self { keys: 1500, value_len: 60_000, deletes: 2, ..Self::default() }
    }
}

/// Number of answers by status code; 0 counts requests without an answer.
pub type Statuses = BTreeMap<u16, u64>;

/// The running clients, stopped when dropped.
#[derive(Debug)]
pub struct Writers {
    shared: Arc<WriterState>,
    threads: Vec<JoinHandle<Result<(), Failure>>>,
}

#[derive(Debug)]
struct WriterState {
    addresses: Vec<SocketAddr>,
    ledger: Arc<Ledger>,
    work: WriterParams,
    stop: AtomicBool,
    statuses: Mutex<Statuses>,
    /// Time of the first answer 500 to a write.
    first_500: Mutex<Option<Duration>>,
}

impl Writers {
    /// Starts clients at the node at `address`.
    pub fn start(
        address: SocketAddr,
        ledger: &Arc<Ledger>,
        work: WriterParams,
        seed: u64,
    ) -> Result<Self, Failure> {
        Self::start_on(&[address], ledger, work, seed)
    }

    /// Starts clients at several nodes. A client whose connection ends continues at the next node.
    pub fn start_on(
        addresses: &[SocketAddr],
        ledger: &Arc<Ledger>,
        work: WriterParams,
        seed: u64,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(WriterState {
            addresses: addresses.to_vec(),
            ledger: Arc::clone(ledger),
            work,
            stop: AtomicBool::new(false),
            statuses: Mutex::default(),
            first_500: Mutex::default(),
        });
        let mut writers = Self { shared, threads: Vec::new() };
        for number in 0..work.clients {
            let shared = Arc::clone(&writers.shared);
            let random = Random::new(seed ^ (number as u64) << 32);
            let builder = thread::Builder::new().stack_size(256 << 10);
            writers.threads.push(builder.spawn(move || shared.work(number, random))?);
        }
        Ok(writers)
    }

    /// Returns the numbers of answers so far.
    pub fn statuses(&self) -> Statuses {
        self.shared.statuses.lock().clone()
    }

    /// Returns the time, on the ledger's clock, of the first answer 500 to a write; `None` if there
    /// was none.
    pub fn first_500(&self) -> Option<Duration> {
        *self.shared.first_500.lock()
    }

    /// Waits until `done` returns true, for at most `at_most`. Returns false after this time.
    pub fn wait(&self, at_most: Duration, done: impl Fn(&Statuses) -> bool) -> bool {
        let until = self.shared.ledger.now() + at_most;
        while !done(&self.statuses()) {
            if self.shared.ledger.now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Stops the clients. Returns the numbers of answers, or an error if a client read an invalid
    /// value.
    pub fn stop(mut self) -> Result<Statuses, Failure> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            ended.map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok(self.statuses())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The owner drops running clients only after another failure, and reports that failure.
            let _ = thread.join();
        }
    }
}

impl WriterState {
    fn work(&self, number: usize, mut random: Random) -> Result<(), Failure> {
        for place in number.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let address = self.addresses[place % self.addresses.len()];
            match Client::connect_within(address, self.work.patience) {
                Ok(client) => self.converse(client, number, &mut random)?,
                Err(_) => thread::sleep(RECONNECT),
            }
        }
        Ok(())
    }

    /// Sends requests until the connection ends or the clients are told to stop.
    fn converse(
        &self,
        mut client: Client,
        number: usize,
        random: &mut Random,
    ) -> Result<(), Failure> {
        let work = &self.work;
        while !self.stop.load(Ordering::Relaxed) {
            let own = format!("{}{number}-{}", work.prefix, random.below(work.keys));
            let dice = random.below(100);
            let answer = if dice < work.reads {
                let answer = client.request("GET", &(target(&own) + work.votes), b"");
                if let Ok(Answer { status: status @ (200 | 404), body, .. }) = &answer {
                    self.ledger.check_read(&own, (*status == 200).then_some(body))?;
                }
                answer
            } else {
                let shared = random.percent(20);
                let key = if shared {
                    format!("{}s-{}", work.prefix, random.below(work.keys))
                } else {
                    own
                };
                self.write(&mut client, &key, dice < work.reads + work.deletes, random)
            };
            let status = answer.as_ref().map_or(0, |answer| answer.status);
            let mut statuses = self.statuses.lock();
            *statuses.entry(status).or_default() += 1;
            drop(statuses);
            if answer.is_err() || answer.is_ok_and(|answer| answer.closes) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn write(
        &self,
        client: &mut Client,
        key: &str,
        delete: bool,
        random: &mut Random,
    ) -> std::io::Result<Answer> {
        let place = target(key) + self.work.votes;
        let (ticket, answer) = if delete {
            let ticket = self.ledger.delete(key);
            (ticket, client.request("DELETE", &place, b""))
        } else {
            let large = random.percent(self.work.large);
            let len = if large {
                large_len(random, self.work.large_len)
            } else {
                value_len(random, self.work.value_len)
            };
            let (ticket, value) = self.ledger.put(key, len);
            (ticket, client.request("PUT", &place, &value))
        };
        self.ledger.end(ticket, outcome_of(&answer));
        if answer.as_ref().is_ok_and(|answer| answer.status == 500) {
            let mut first = self.first_500.lock();
            first.get_or_insert(self.ledger.now());
        }
        answer
    }
}

/// Chooses a length in bytes at random: 90 percent of the lengths are below a tenth of `most`.
fn value_len(random: &mut Random, most: u64) -> usize {
    let most = if random.percent(90) { most / 10 } else { most };
    random.below(most.max(1)) as usize
}

/// Chooses a length from 100 KiB to `most` bytes at random, each doubling with equal probability.
pub fn large_len(random: &mut Random, most: usize) -> usize {
    const LEAST: usize = 100 << 10;
    let doublings = (most / LEAST).max(1).ilog2() + 1;
    let len = LEAST << random.below(u64::from(doublings));
    (len + random.below(len as u64) as usize).min(most)
}

/// Returns the outcome of a write, as its answer reports it.
pub fn outcome_of(answer: &std::io::Result<Answer>) -> WriteOutcome {
    match answer {
        Ok(Answer { status: 201 | 202, .. }) => WriteOutcome::Ok,
        Ok(answer) => {
            let none = br#""outcome":"none""#;
            let refused =
                answer.status < 500 || answer.body.windows(none.len()).any(|window| window == none);
            if refused { WriteOutcome::Failed } else { WriteOutcome::Unknown }
        }
        Err(_) => WriteOutcome::Unknown,
    }
}
