//! Row 37 of docs/results/reliability.md: values expire on three nodes that are killed, and whose
//! wall clocks step forward and back (by means of libfaketime). Each read is checked by the clock
//! of the node that answers: a returned value must not have expired by that clock, a missing value
//! must have, and no older value may reappear. Repair rounds run throughout. In the end, with
//! correct clocks, all expired values must be purged for good. `expired.rs` checks their disk
//! space.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kit::Failure;
use kit::client::{Answer, Client, target};
use kit::cluster::Cluster;
use kit::faults::clock::{set_millis, start_repaired, start_with_fake_clocks};
use kit::oracle::reads::read_all;
use kit::random::Random;

use crate::Setup;
use crate::clock::expired;
use crate::replicas::proofs::{compact, prove};

const NODES: usize = 3;

/// Maximum small step of a clock in milliseconds, less than `--max-clock-skew`. Half of the steps
/// are small.
const NEAR: u64 = 225;

/// Maximum step of a clock in milliseconds.
const FAR: u64 = 4_000;

/// Maximum time to live, in seconds.
const MOST_TTL: u64 = 2;

/// An older value of a key whose newer value expires. A read must never return the older value.
const OLDER: &[u8] = b"older";

/// A key whose value never expires.
const LASTING: &str = "lasting";

/// Maximum rounding error of a clock reading or an expiry, in milliseconds.
const ROUNDED: i64 = 2;

/// A value that expires.
#[derive(Debug, Clone)]
struct Value {
    key: String,
    content: Vec<u8>,
    expires_ms: i64,
}

#[derive(Debug, Default)]
struct ExpiryFigures {
    written: usize,
    refused: usize,
    shown: usize,
    hidden: usize,
    kills: usize,
}

struct ExpiryRow<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    /// Files that control the nodes' clocks; `off` has their current offsets in milliseconds.
    clocks: Vec<PathBuf>,
    off: Vec<i64>,
    random: Random,
    values: Vec<Value>,
    figures: ExpiryFigures,
}

/// Steps a random node's clock `rounds` times.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let args = ["--sync", "interval", "--repair-interval", "off"];
    let (cluster, clocks) = start_with_fake_clocks(&setup.binary, NODES, &args)?;
    let (random, values) = (Random::new(setup.seed), Vec::new());
    let (off, figures) = (vec![0; NODES], ExpiryFigures::default());
    let mut row = ExpiryRow { setup, cluster, clocks, off, random, values, figures };
    row.put_lasting()?;
    for _ in 0..setup.rounds {
        row.step()?;
        row.ask_for_round()?;
        row.write(setup.size(200, 30))?;
        row.read(setup.size(600, 90))?;
        if row.random.percent(30) {
            row.kill()?;
        }
        row.forget_old();
    }
    let gone = row.end()?;
    let shared = expired::in_cluster(setup, &row.cluster)?;
    let ExpiryFigures { written, refused, shown, hidden, kills } = row.figures;
    let space = expired::alone(setup)?;
    Ok(format!(
        "{} steps of up to {FAR} ms, {kills} kills: {written} values written, {refused} refused; \
         {shown} reads showed a value, {hidden} none, each as the clock of the node that was asked \
         says; 0 older ones; all gone at every node {:.1} s after the last expiry, also after a \
         restart, and once all is proven and purged; {shared}; {space}",
        setup.rounds,
        gone.as_secs_f64()
    ))
}

impl ExpiryRow<'_> {
    /// Sets the clock of a random node to a random offset.
    fn step(&mut self) -> Result<(), Failure> {
        let node = self.random.below(NODES as u64) as usize;
        let most = if self.random.percent(50) { NEAR } else { FAR };
        let off = self.random.below(2 * most + 1) as i64 - most as i64;
        set_millis(&self.clocks[node], off)?;
        self.off[node] = off;
        Ok(())
    }

    /// Requests a repair round from a random node. The round runs while values are written and
    /// read.
    fn ask_for_round(&mut self) -> Result<(), Failure> {
        let node = self.random.below(NODES as u64) as usize;
        let answer = self.client(node)?.request("POST", "/admin/repair", b"")?;
        match answer.status {
            202 => Ok(()),
            status => Err(Failure::Broken(format!("a round is asked for, and answered {status}"))),
        }
    }

    fn client(&self, node: usize) -> io::Result<Client> {
        Client::connect(self.cluster.addresses()[node])
    }

    /// Writes a value without expiry, which must still exist in the end.
    fn put_lasting(&self) -> Result<(), Failure> {
        let answer = self.client(0)?.request("PUT", &target(LASTING), LASTING.as_bytes())?;
        if answer.status == 201 {
            return Ok(());
        }
        Err(Failure::Environment(format!("PUT {LASTING} answers {}", answer.status)))
    }

    /// Writes values that expire: half of them over older values, and some others by an addition.
    fn write(&mut self, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            let number = self.figures.written + self.figures.refused;
            let key = format!("expires-{number:06}");
            let (node, ttl) =
                (self.random.below(NODES as u64) as usize, self.random.below(MOST_TTL) + 1);
            let over = self.random.percent(50);
            if over {
                let older = target(&key) + "&ack=3&from=3";
                let other = self.client((node + 1) % NODES)?.request("PUT", &older, OLDER)?;
                if other.status != 201 {
                    // The key is not checked, because the older value may appear later.
                    self.figures.refused += 1;
                    continue;
                }
            }
            let add = !over && self.random.percent(50);
            let number = number.to_string().into_bytes();
            let sent = now_ms() + self.off[node];
            let answer = if add {
                let shown = String::from_utf8_lossy(&number).into_owned();
                let target = format!("{}&add={shown}&ttl={ttl}s", target(&key));
                self.client(node)?.request("POST", &target, b"")?
            } else {
                let target = format!("{}&ttl={ttl}s", target(&key));
                self.client(node)?.request("PUT", &target, &number)?
            };
            let Some(expires_ms) = answer.expires_ms.filter(|_| answer.status < 300) else {
                // A node refuses the write if its own clock, or another node's clock, is too far
                // off.
                self.figures.refused += 1;
                continue;
            };
            if expires_ms as i64 + ROUNDED < sent + ttl as i64 * 1000 {
                return Err(Failure::Broken(format!(
                    "{key}, written with ttl={ttl}s at {sent}, expires at {expires_ms} already"
                )));
            }
            self.figures.written += 1;
            self.values.push(Value { key, content: number, expires_ms: expires_ms as i64 });
        }
        Ok(())
    }

    fn read(&mut self, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            if self.values.is_empty() {
                return Ok(());
            }
            let at = self.random.below(self.values.len() as u64) as usize;
            let node = self.random.below(NODES as u64) as usize;
            let (value, off) = (self.values[at].clone(), self.off[node]);
            let sent = now_ms() + off;
            let answer = self.client(node)?.request("GET", &target(&value.key), b"")?;
            let received = now_ms() + off;
            self.check_read(&value, &answer, (sent, received))
                .map_err(|wrong| Failure::Broken(format!("node {}: {wrong}", node + 1)))?;
        }
        Ok(())
    }

    /// Checks a read by the answering node's clock, at the time of the request (`sent`) and of the
    /// answer (`received`), both in milliseconds since 1970.
    fn check_read(
        &mut self,
        value: &Value,
        answer: &Answer,
        (sent, received): (i64, i64),
    ) -> Result<(), String> {
        let Value { key, content, expires_ms } = value;
        match answer.status {
            200 if answer.body != *content => {
                let body = String::from_utf8_lossy(&answer.body);
                Err(format!("{key} is {body:?}, which is older than what was acknowledged"))
            }
            200 if sent > expires_ms + ROUNDED => {
                Err(format!("{key} expired at {expires_ms} and is shown at {sent}"))
            }
            200 => {
                self.figures.shown += 1;
                Ok(())
            }
            404 if received + ROUNDED < *expires_ms => {
                Err(format!("{key} expires at {expires_ms} and is hidden at {received}"))
            }
            404 => {
                self.figures.hidden += 1;
                Ok(())
            }
            // The node is starting, or its clock is too far off.
            503 | 504 => Ok(()),
            status => Err(format!("GET {key} answers {status}")),
        }
    }

    /// Drops the oldest values from the list of values to check. These values have expired by every
    /// clock.
    fn forget_old(&mut self) {
        let most = 1_000;
        let many = self.values.len().saturating_sub(most);
        self.values.drain(..many);
    }

    /// Kills a node, corrects its clock, and restarts it.
    fn kill(&mut self) -> Result<(), Failure> {
        let node = self.random.below(NODES as u64) as usize;
        set_millis(&self.clocks[node], 0)?;
        self.off[node] = 0;
        self.cluster.kill(node)?;
        start_repaired(&self.setup.binary, &mut self.cluster, node)?;
        self.figures.kills += 1;
        Ok(())
    }

    /// Checks that, with correct clocks, all expired values disappear in time and for good. Returns
    /// the time until they had disappeared.
    fn end(&mut self) -> Result<Duration, Failure> {
        for node in 0..NODES {
            set_millis(&self.clocks[node], 0)?;
            self.off[node] = 0;
        }
        let last = self.values.iter().map(|value| value.expires_ms).max().unwrap_or(0);
        while now_ms() <= last + ROUNDED {
            thread::sleep(Duration::from_millis(20));
        }
        let begun = Instant::now();
        self.cluster.wait_until_ready()?;
        self.check_all_gone()?;
        let gone = begun.elapsed();
        for node in 0..NODES {
            self.cluster.kill(node)?;
            start_repaired(&self.setup.binary, &mut self.cluster, node)?;
        }
        self.cluster.wait_until_ready()?;
        self.check_all_gone()?;
        // The repair round and the compaction purge the tombstones that hide older values.
        prove(self.setup, &self.cluster, 0)?;
        compact(self.setup, &self.cluster)?;
        self.check_all_gone()?;
        Ok(gone)
    }

    fn check_all_gone(&self) -> Result<(), Failure> {
        for node in 0..NODES {
            let mut client = self.client(node)?;
            for Value { key, .. } in &self.values {
                let status = client.get_patiently(key)?.status;
                if status != 404 {
                    let node = node + 1;
                    let what = format!("GET {key} at node {node} answers {status} after its time");
                    return Err(Failure::Broken(what));
                }
            }
            let written = |key: &&String| key.starts_with("expires-");
            let found = read_all(self.cluster.node(node)?)?;
            // After a refused write, the key still has its older value.
            let shown: Vec<&String> = found.keys().filter(written).collect();
            let known = |key: &&&String| self.values.iter().any(|value| value.key == ***key);
            if let Some(key) = shown.iter().find(known) {
                let what = format!("a range at node {} has {key} after its time", node + 1);
                return Err(Failure::Broken(what));
            }
            if found.get(LASTING).map(Vec::as_slice) != Some(LASTING.as_bytes()) {
                return Err(Failure::Broken(format!("{LASTING} is gone at node {}", node + 1)));
            }
        }
        Ok(())
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
