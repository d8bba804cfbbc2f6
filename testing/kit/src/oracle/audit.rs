//! Audit of a cluster after a fault that makes some keys wrong and leaves others right. Clients
//! write keys of three kinds (overwritten, deleted, new), and read every key at several nodes. The
//! audit counts wrong answers by kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::client::{Answer, Client, target};
use crate::cluster::Cluster;
use crate::oracle::ledger::{Ledger, WriteOutcome, WrongAnswer};
use crate::workload::writers::outcome_of;

/// Query parameters with the quorum of writes and reads.
pub const VOTES: &str = "&ack=2&from=3";

/// Every pair of `ack` and `from` on three nodes.
pub const QUORUMS: [&str; 6] =
    ["&ack=1&from=1", "&ack=1&from=2", "&ack=2&from=2", "&ack=1&from=3", VOTES, "&ack=3&from=3"];

/// Number of clients at each node, each with one request in flight.
const CLIENTS: usize = 16;

/// Timeout of an answer, longer than the deadline inside the node.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which the audit fails if one write is still refused.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// Time after which the audit fails if a read still has no answer. On a busy machine, nodes miss
/// their own deadlines.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// Pause before a client retries a refused request.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Length of a value in bytes.
const VALUE_LEN: usize = 200;

/// Maximum number of wrong keys that a report names.
const SAMPLES: usize = 3;

/// Results of many reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFigures {
    /// Number of right answers.
    pub right: u64,
    /// Number of requests without an answer, or with 503 or 504.
    pub unavailable: u64,
    /// Number of values older than the newest acknowledged value.
    pub old: u64,
    /// Number of values of keys whose deletion was acknowledged.
    pub deleted: u64,
    /// Number of 404s for keys with an acknowledged value.
    pub absent: u64,
    /// Names of some keys with wrong answers.
    samples: BTreeSet<String>,
}

impl AuditFigures {
    /// Returns the number of wrong answers.
    pub fn wrong(&self) -> u64 {
        self.old + self.deleted + self.absent
    }

    fn note(&mut self, key: &str, wrong: Option<WrongAnswer>) {
        let count = match wrong {
            None => &mut self.right,
            Some(WrongAnswer::Old) => &mut self.old,
            Some(WrongAnswer::Deleted) => &mut self.deleted,
            Some(WrongAnswer::Absent) => &mut self.absent,
        };
        *count += 1;
        if wrong.is_some() && self.samples.len() < SAMPLES {
            self.samples.insert(key.to_owned());
        }
    }
}

impl AddAssign for AuditFigures {
    fn add_assign(&mut self, other: Self) {
        self.right += other.right;
        self.unavailable += other.unavailable;
        self.old += other.old;
        self.deleted += other.deleted;
        self.absent += other.absent;
        let room = SAMPLES.saturating_sub(self.samples.len());
        self.samples.extend(other.samples.into_iter().take(room));
    }
}

impl fmt::Display for AuditFigures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { right, unavailable, old, deleted, absent, samples } = self;
        write!(
            out,
            "{old} old values, {deleted} deleted keys, {absent} wrong 404s, {right} right, \
             {unavailable} unavailable"
        )?;
        match samples.is_empty() {
            true => Ok(()),
            false => write!(out, " (wrong: {samples:?})"),
        }
    }
}

/// Writes, to all replicas, `count` keys for [`edit`] to overwrite and `count` keys for it to
/// delete.
pub fn prepare(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    prefix: &str,
    count: u64,
) -> Result<(), Failure> {
    in_parallel(addresses, |client, place, clients| {
        for number in (place..count).step_by(clients as usize) {
            for kind in ['o', 'd'] {
                let key = format!("{prefix}{kind}{number}");
                client.write(ledger, &key, Some(VALUE_LEN), "&ack=3&from=3")?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Overwrites and deletes the keys of [`prepare`], and writes `count` new keys. Repeats each
/// request until two of three replicas have acknowledged it.
pub fn edit(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    prefix: &str,
    count: u64,
) -> Result<(), Failure> {
    in_parallel(addresses, |client, place, clients| {
        for number in (place..count).step_by(clients as usize) {
            let key = |kind: char| format!("{prefix}{kind}{number}");
            client.write(ledger, &key('n'), Some(VALUE_LEN), VOTES)?;
            client.write(ledger, &key('o'), Some(VALUE_LEN), VOTES)?;
            client.write(ledger, &key('d'), None, VOTES)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Writes one key through one node. Repeats the write until two of three replicas have acknowledged
/// it.
pub fn write_one(address: SocketAddr, ledger: &Ledger, key: &str) -> Result<(), Failure> {
    let mut client = ReconnectingClient { address, client: None };
    client.write(ledger, key, Some(VALUE_LEN), VOTES)
}

/// Deletes these keys. Repeats each delete until the quorum `votes` has acknowledged it.
pub fn delete(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    keys: &[String],
    votes: &str,
) -> Result<(), Failure> {
    in_parallel(addresses, |client, place, clients| {
        let mut share = keys.iter().skip(place as usize).step_by(clients as usize);
        share.try_for_each(|key| client.write(ledger, key, None, votes))
    })?;
    Ok(())
}

/// Reads each of these keys once at each of these nodes, from two of three replicas.
pub fn read(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    keys: &[String],
) -> Result<AuditFigures, Failure> {
    read_by(addresses, ledger, keys, VOTES)
}

fn read_by(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    keys: &[String],
    votes: &str,
) -> Result<AuditFigures, Failure> {
    let mut found = AuditFigures::default();
    for address in addresses {
        let shares = in_parallel(&[*address], |client, place, clients| {
            let mut found = AuditFigures::default();
            for key in keys.iter().skip(place as usize).step_by(clients as usize) {
                client.read(ledger, key, votes, &mut found)?;
            }
            Ok(found)
        })?;
        shares.into_iter().for_each(|share| found += share);
    }
    Ok(found)
}

/// Repeats the reads until every answer is right. Returns the sum of all results, and the time
/// until all answers were right; `None` if some answer is still wrong or missing after `at_most`.
pub fn read_until_right(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    keys: &[String],
    at_most: Duration,
) -> Result<(AuditFigures, Option<Duration>), Failure> {
    let begun = Instant::now();
    let mut all = AuditFigures::default();
    loop {
        let found = read(addresses, ledger, keys)?;
        let right = found.wrong() == 0 && found.unavailable == 0;
        all += found;
        if right {
            return Ok((all, Some(begun.elapsed())));
        }
        if begun.elapsed() > at_most {
            return Ok((all, None));
        }
        thread::sleep(RETRY_PAUSE);
    }
}

/// Reads one range over all keys at each of these nodes. A range that fails counts as one
/// unavailable answer.
pub fn ranges(addresses: &[SocketAddr], ledger: &Ledger) -> Result<AuditFigures, Failure> {
    ranges_by(addresses, ledger, VOTES)
}

fn ranges_by(
    addresses: &[SocketAddr],
    ledger: &Ledger,
    votes: &str,
) -> Result<AuditFigures, Failure> {
    let mut found = AuditFigures::default();
    for address in addresses {
        let mut held = BTreeMap::new();
        let scanned = Client::connect_within(*address, TIMEOUT).and_then(|mut client| {
            client.scan(&format!("%01{votes}"), |key, value| {
                held.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
                Ok(())
            })
        });
        if scanned.is_err() {
            found.unavailable += 1;
            continue;
        }
        for key in ledger.keys() {
            let value = held.get(&key).map(Vec::as_slice);
            found.note(&key, ledger.wrong(&key, value)?);
        }
    }
    Ok(found)
}

/// Checks that all nodes hold the same records, and that every node's answers are right and
/// complete. With each of [`QUORUMS`], reads one range over all keys, and about `some` single keys.
/// Repeats requests without an answer. Returns the number of right answers.
pub fn check_everywhere(cluster: &Cluster, ledger: &Ledger, some: usize) -> Result<u64, Failure> {
    cluster.check_equal()?;
    let keys = ledger.keys();
    let step = (keys.len() / some).max(1);
    let keys: Vec<String> = keys.into_iter().step_by(step).collect();
    let mut answers = 0;
    let mut check = |what: &str, found: AuditFigures| {
        answers += found.right;
        match found.wrong() + found.unavailable {
            0 => Ok(()),
            _ => Err(Failure::Broken(format!("{what}: {found}"))),
        }
    };
    for node in 0..cluster.addresses().len() {
        check(&format!("node {} holds", node + 1), audit_node(cluster, node, ledger)?)?;
    }
    for votes in QUORUMS {
        for (node, address) in cluster.addresses().iter().enumerate() {
            let asked = format!("node {}, asked with {votes}", node + 1);
            let found = repeat_until_answered(|| ranges_by(&[*address], ledger, votes))?;
            check(&format!("ranges of {asked}"), found)?;
            let found = repeat_until_answered(|| read_by(&[*address], ledger, &keys, votes))?;
            check(&format!("keys of {asked}"), found)?;
        }
    }
    Ok(answers)
}

/// Repeats the requests until all have an answer, one answer is wrong, or [`READ_PATIENCE`] has
/// passed.
fn repeat_until_answered(
    ask: impl Fn() -> Result<AuditFigures, Failure>,
) -> Result<AuditFigures, Failure> {
    let begun = Instant::now();
    loop {
        let found = ask()?;
        let is_over = begun.elapsed() > READ_PATIENCE;
        if found.unavailable == 0 || found.wrong() > 0 || is_over {
            return Ok(found);
        }
        thread::sleep(RETRY_PAUSE);
    }
}

/// Compares the records that one node stores with the ledger, key by key.
pub fn audit_node(
    cluster: &Cluster,
    node: usize,
    ledger: &Ledger,
) -> Result<AuditFigures, Failure> {
    let held = cluster.dump(node)?;
    let mut found = AuditFigures::default();
    for key in ledger.keys() {
        let value = held.get(&key).map(Vec::as_slice);
        found.note(&key, ledger.wrong(&key, value)?);
    }
    Ok(found)
}

/// Repeats the check until all stored records are right. Returns the last results, and the time
/// until then; `None` if some record is still wrong after `at_most`.
pub fn wait_until_held(
    cluster: &Cluster,
    node: usize,
    ledger: &Ledger,
    at_most: Duration,
) -> Result<(AuditFigures, Option<Duration>), Failure> {
    let begun = Instant::now();
    loop {
        let found = audit_node(cluster, node, ledger)?;
        if found.wrong() == 0 {
            return Ok((found, Some(begun.elapsed())));
        }
        if begun.elapsed() > at_most {
            return Ok((found, None));
        }
        thread::sleep(RETRY_PAUSE);
    }
}

/// Runs `work` on client threads at these nodes. Each call gets the client's index among all
/// clients, and the number of clients.
fn in_parallel<T: Send>(
    addresses: &[SocketAddr],
    work: impl Fn(&mut ReconnectingClient, u64, u64) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let clients = addresses.len() * CLIENTS;
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..clients)
            .map(|place| {
                let mut client = ReconnectingClient {
                    address: addresses[place % addresses.len()],
                    client: None,
                };
                scope.spawn(move || work(&mut client, place as u64, clients as u64))
            })
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    })
}

/// A client that reconnects after its connection has ended.
struct ReconnectingClient {
    address: SocketAddr,
    client: Option<Client>,
}

impl ReconnectingClient {
    fn request(&mut self, method: &str, place: &str, body: &[u8]) -> std::io::Result<Answer> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect_within(self.address, TIMEOUT)?,
        };
        let answer = client.request(method, place, body)?;
        if !answer.closes {
            self.client = Some(client);
        }
        Ok(answer)
    }

    /// Writes a value of `len` bytes, or deletes the key if `len` is `None`. Repeats the request
    /// until it is acknowledged.
    fn write(
        &mut self,
        ledger: &Ledger,
        key: &str,
        len: Option<usize>,
        votes: &str,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let place = target(key) + votes;
        loop {
            let (ticket, answer) = match len {
                Some(len) => {
                    let (ticket, value) = ledger.put(key, len);
                    (ticket, self.request("PUT", &place, &value))
                }
                None => (ledger.delete(key), self.request("DELETE", &place, b"")),
            };
            let said = outcome_of(&answer);
            ledger.end(ticket, said);
            if said == WriteOutcome::Ok {
                return Ok(());
            }
            if begun.elapsed() > WRITE_PATIENCE {
                return Err(Failure::Broken(format!("{key} can't be written: {answer:?}")));
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    fn read(
        &mut self,
        ledger: &Ledger,
        key: &str,
        votes: &str,
        found: &mut AuditFigures,
    ) -> Result<(), Failure> {
        match self.request("GET", &(target(key) + votes), b"") {
            Ok(Answer { status: 200, body, .. }) => {
                found.note(key, ledger.wrong(key, Some(&body))?);
            }
            Ok(Answer { status: 404, .. }) => found.note(key, ledger.wrong(key, None)?),
            Ok(Answer { status: 503 | 504, .. }) | Err(_) => found.unavailable += 1,
            Ok(answer) => {
                return Err(Failure::Broken(format!(
                    "GET {key} answers {}: {}",
                    answer.status,
                    String::from_utf8_lossy(&answer.body)
                )));
            }
        }
        Ok(())
    }
}
