//! The row `mixed` of docs/results/reliability.md: clients send requests with every `ack` and
//! `from` on shared keys, through nodes whose clocks are up to 450 ms apart (by means of
//! libfaketime), while one node after another is killed. Each answer is checked by its version
//! (`ETag`) against the table in `docs/design/consistency.md`: if a request's quorum intersects the
//! quorum of an earlier request, its answer must not be older than the version that the earlier
//! request returned or wrote.
//!
//! ```text
//!  PUT 2/3 ─▶ 201, version 7 ──▶ known: 2 of 3 replicas have version 7 or newer
//!                                   │ requests that begin later:
//!                                   ├ GET 2/3, 2 + 2 > 3: 7 or newer, or the row is broken
//!                                   └ GET 1/3, 1 + 2 = 3: may be older; counted
//! ```

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kit::Failure;
use kit::client::{Answer, Client, target};
use kit::cluster::Cluster;
use kit::faults::clock::{fake_clocks, set_millis};
use kit::random::Random;
use parking_lot::{Mutex, MutexGuard};

use crate::Setup;

const NODES: usize = 3;
const CLIENTS: u64 = 6;
const KEYS: u64 = 12;

/// Maximum offset of a clock in milliseconds, so that any two clocks are less than
/// `--max-clock-skew` apart.
const MOST_OFF: u64 = 225;

/// Timeout of an answer: longer than the deadline inside the node.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A version: time and origin, in the order of comparison.
type Version = (u64, u64);

/// A version, and the minimum number of replicas that store it or a newer version.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KnownVersion {
    held_by: u64,
    from: u64,
    version: Version,
    /// True if an acknowledged write has this version. Later writes must then get higher versions.
    written: bool,
}

impl KnownVersion {
    fn is_met_by(&self, ack: u64, from: u64) -> bool {
        self.held_by + ack > self.from.max(from)
    }
}

#[derive(Debug, Default)]
struct KnownVersions {
    known: Mutex<HashMap<u64, Vec<KnownVersion>>>,
    stop: AtomicBool,
    checked: AtomicU64,
    /// Number of answers older than a known version whose quorums need not intersect.
    older: AtomicU64,
}

impl KnownVersions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<KnownVersion>>> {
        self.known.lock()
    }

    fn known_versions(&self, key: u64) -> Vec<KnownVersion> {
        self.lock().get(&key).cloned().unwrap_or_default()
    }

    fn note(&self, key: u64, new: KnownVersion) {
        let mut known = self.lock();
        let known = known.entry(key).or_default();
        let same = |k: &KnownVersion| {
            (k.held_by, k.from, k.written) == (new.held_by, new.from, new.written)
        };
        match known.iter_mut().find(|known| same(known)) {
            Some(known) => known.version = known.version.max(new.version),
            None => known.push(new),
        }
    }
}

/// Kills and restarts a random node `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &["--sync", "interval"])?;
    let offsets = fake_clocks(&mut cluster)?;
    let mut random = Random::new(setup.seed);
    let mut skew =
        |path: &PathBuf| set_millis(path, random.below(2 * MOST_OFF + 1) as i64 - MOST_OFF as i64);
    offsets.iter().try_for_each(&mut skew)?;
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    let book = KnownVersions::default();
    let addresses = cluster.addresses().to_vec();
    let mut victims = Random::new(setup.seed ^ 1);
    let ended = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (book, addresses) = (&book, &addresses);
                scope.spawn(move || {
                    let asked = ask(book, addresses, Random::new(setup.seed ^ (number + 2) << 32));
                    book.stop.fetch_or(asked.is_err(), Ordering::Relaxed);
                    asked
                })
            })
            .collect();
        let mut broken = || {
            for _ in 0..setup.rounds {
                thread::sleep(Duration::from_millis(setup.size(3000, 1000)));
                let node = victims.below(NODES as u64) as usize;
                cluster.kill(node)?;
                thread::sleep(Duration::from_millis(200));
                cluster.start_node(node)?;
                if book.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        };
        let broken: Result<(), Failure> = broken();
        book.stop.store(true, Ordering::Relaxed);
        let joined = clients.into_iter().map(|client| client.join());
        let panicked = |_| Failure::Environment("a client panicked".to_owned());
        let asked = joined.map(|ended| ended.map_err(panicked)?).fold(Ok(()), Result::and);
        asked.and(broken)
    });
    ended?;
    let checked = book.checked.load(Ordering::Relaxed);
    let older = book.older.load(Ordering::Relaxed);
    Ok(format!(
        "{} kills, clocks {} ms apart at most: {checked} answers of 6 quorums on {KEYS} keys, none \
         older than what its quorum must have met; {older} older than what it need not have met",
        setup.rounds,
        2 * MOST_OFF
    ))
}

fn ask(
    book: &KnownVersions,
    addresses: &[std::net::SocketAddr],
    mut random: Random,
) -> Result<(), Failure> {
    let mut clients: Vec<Option<Client>> = addresses.iter().map(|_| None).collect();
    while !book.stop.load(Ordering::Relaxed) {
        let (key, place) = (random.below(KEYS), random.below(NODES as u64) as usize);
        let from = 1 + random.below(NODES as u64);
        let (ack, write) = (1 + random.below(from), random.percent(40));
        let known = book.known_versions(key);
        let asked = || -> Result<Answer, Failure> {
            let held = &mut clients[place];
            let mut client = match held.take() {
                Some(client) => client,
                None => Client::connect_within(addresses[place], TIMEOUT)?,
            };
            let at = format!("{}&ack={ack}&from={from}", target(&format!("mixed{key}")));
            let method = if write { "PUT" } else { "GET" };
            // The value is the `from` of the write: the number of replicas that get the record.
            let answer = client.request(method, &at, from.to_string().as_bytes())?;
            if !answer.closes {
                *held = Some(client);
            }
            Ok(answer)
        };
        let mut asked = asked;
        match asked() {
            Ok(answer) => check(book, key, (ack, from), write, &known, &answer)?,
            Err(Failure::Io(_)) => thread::sleep(Duration::from_millis(5)),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn check(
    book: &KnownVersions,
    key: u64,
    (ack, from): (u64, u64),
    write: bool,
    known: &[KnownVersion],
    answer: &Answer,
) -> Result<(), Failure> {
    let version = match answer.status {
        200 | 201 => parse(answer.version.as_deref())?,
        404 => (0, 0),
        _ => return Ok(()),
    };
    book.checked.fetch_add(1, Ordering::Relaxed);
    for known in known.iter().filter(|known| !write || known.written) {
        let older = version < known.version || write && version == known.version;
        if older && known.is_met_by(ack, from) {
            let did = if write { "a PUT" } else { "a GET" };
            return Err(Failure::Broken(format!(
                "mixed{key}: {did} {ack}/{from} has version {version:x?}, begun after {known:x?}"
            )));
        }
        book.older.fetch_add(u64::from(older), Ordering::Relaxed);
    }
    if write {
        book.note(key, KnownVersion { held_by: ack, from, version, written: true });
    } else if answer.status == 200 {
        let copies = String::from_utf8_lossy(&answer.body).parse();
        let copies: u64 = copies.map_err(|_| Failure::Broken("a value of nobody".to_owned()))?;
        let (held_by, from) = (ack.min(copies), from.min(copies));
        book.note(key, KnownVersion { held_by, from, version, written: false });
    }
    Ok(())
}

fn parse(version: Option<&str>) -> Result<Version, Failure> {
    let parts = version.and_then(|version| version.split_once('-'));
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let version = parts.and_then(|(time, origin)| Some((number(time)?, number(origin)?)));
    version.ok_or_else(|| Failure::Broken("an answer without a version".to_owned()))
}
