//! Row 27 of docs/results/reliability.md: repair rounds. One replica has lost keys without a trace,
//! and another has damaged blocks. Only a round can find the loss: no hint and no mark records it,
//! and no read repairs it. One round must make all replicas equal, also with a node down, with two
//! concurrent rounds, and after the kill of the round's coordinator. Keys that are damaged on all
//! replicas must be named.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::faults::rot;
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::random::Random;
use kit::workload::fill::{FillParams, fill_some};
use serde_json::Value;

use crate::Setup;
use crate::replicas::proofs::{self, Round, parse};

const NODES: usize = 3;

/// The node that receives the requests for rounds, and coordinates them.
const DRIVER: usize = 0;

/// The node with the damaged disk.
const DAMAGED_NODE: usize = 1;

/// The node that loses records.
const LOSER: usize = 2;

const VALUE_LEN: usize = 100;

/// Percentage of damaged blocks, and minimum number of damaged blocks.
const ROT: u64 = 1;
const LEAST_ROT: u64 = 8;

/// One of this many keys is lost.
const LOSS_DIVISOR: u64 = 100;

/// Number of the first lost key. The numbers of the others follow in steps of [`LOSS_DIVISOR`].
const LOST: u64 = 42;

/// Number of keys that are damaged on all replicas.
const KEYS_DAMAGED_EVERYWHERE: u64 = 3;

/// Timeout of a round; a longer one counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Minimum age of the records that a round compares: twice `--deadline` plus `--max-clock-skew`,
/// rounded up.
const SETTLED: Duration = Duration::from_secs(3);

struct RepairRow<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    ledger: Arc<Ledger>,
    keys: u64,
    random: Random,
}

/// Runs all scenarios, with `rounds` kills of the coordinator.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let mut row = RepairRow::start(setup)?;
    let healed = row.repair_lost_and_damaged()?;
    row.repair_with_node_down()?;
    row.run_concurrent_rounds()?;
    let killed = row.kill_coordinator()?;
    let doomed = row.damage_all_replicas()?;
    Ok(format!("{healed}; with a node away, and two rounds at once, right; {killed}; {doomed}"))
}

fn is_lost(number: u64) -> bool {
    number % LOSS_DIVISOR == LOST
}

fn name(number: u64) -> String {
    format!("r{number:07}")
}

/// Returns true if the bytes begin with a key of this row and a space, as the ledger's values do.
fn begins_value(bytes: &[u8]) -> bool {
    let digits = bytes.get(1..8).is_some_and(|number| number.iter().all(u8::is_ascii_digit));
    bytes.starts_with(b"r") && digits && bytes.get(8) == Some(&b' ')
}

fn number_of(key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.strip_prefix('r')?.parse().ok()
}

impl<'a> RepairRow<'a> {
    /// Starts three nodes with equal records. The keys that will be lost are written last, because
    /// only the newest records can be removed.
    fn start(setup: &'a Setup) -> Result<Self, Failure> {
        let args = ["--sync", "interval", "--repair-interval", "off"];
        let memtable = ["--memtable", setup.size("8MiB", "1MiB")];
        let cluster = Cluster::start(&setup.binary, NODES, None, &[&args[..], &memtable].concat())?;
        let ledger = Arc::new(Ledger::default());
        let keys = setup.size(1_000_000, 5_000);
        let what = FillParams { keys, value_len: VALUE_LEN, prefix: 'r', votes: "&ack=3&from=3" };
        fill_some(cluster.addresses(), &ledger, what, |number| !is_lost(number))?;
        fill_some(cluster.addresses(), &ledger, what, is_lost)?;
        thread::sleep(SETTLED);
        Ok(Self { setup, cluster, ledger, keys, random: Random::new(setup.seed) })
    }

    /// Removes one percent of the keys from a node's store. Returns their number.
    fn lose(&mut self, node: usize) -> Result<u64, Failure> {
        self.cluster.stop(node)?;
        let stays = |key: &[u8]| number_of(key).is_none_or(|number| !is_lost(number));
        let lost = rot::remove_newest(self.cluster.data(node), stays)?;
        self.cluster.start_node(node)?;
        Ok(lost)
    }

    /// Removes keys from one replica, and damages other keys on another replica. One round must
    /// repair both.
    fn repair_lost_and_damaged(&mut self) -> Result<String, Failure> {
        let lost = self.lose(LOSER)?;
        self.cluster.stop(DAMAGED_NODE)?;
        let data = self.cluster.data(DAMAGED_NODE);
        let flips = rot::flip(data, (ROT, LEAST_ROT), begins_value, &mut self.random)?;
        self.cluster.start_node(DAMAGED_NODE)?;
        self.cluster.wait_until_ready()?;
        let first = self.equal_round(DRIVER)?;
        if first.count("differing") < lost || first.count("damaged") == 0 {
            return Err(first.wrong("does not tell what was lost and what had rotted"));
        }
        self.check_all_records_stored(&[0, 1, 2])?;
        let second = self.equal_round(DRIVER)?;
        if second.count("differing") > 0 || second.count("damaged") > 0 {
            return Err(second.wrong("finds something to repair after one that was equal"));
        }
        // All three replicas must answer each read.
        for number in (0..self.keys).step_by(self.setup.size(100, 10)) {
            self.get_from_all(&name(number))?;
        }
        Ok(format!(
            "{} keys on three nodes, {lost} gone on one and {flips} bits flipped in another one's \
             tables: equal after **{:.1} s**, {} keys brought, {} damaged ranges healed, {} MB \
             read; another round finds nothing, in {:.1} s",
            self.keys,
            first.took.as_secs_f64(),
            first.count("repaired"),
            first.count("healed"),
            first.count("bytes_read") / 1_000_000,
            second.took.as_secs_f64()
        ))
    }

    /// Checks that a round with a node down names that node, and makes the other nodes equal.
    fn repair_with_node_down(&mut self) -> Result<(), Failure> {
        self.lose(DAMAGED_NODE)?;
        self.cluster.stop(LOSER)?;
        let round = self.round(DRIVER)?;
        let absent = [Value::from(format!("n{}", LOSER + 1))];
        if round.is_equal || round.json["absent"].as_array().is_none_or(|who| *who != absent) {
            return Err(round.wrong("does not name the node that is away"));
        }
        self.check_all_records_stored(&[DRIVER, DAMAGED_NODE])?;
        self.cluster.start_node(LOSER)?;
        self.cluster.wait_until_ready()?;
        self.equal_round(DRIVER)?;
        self.check_all_records_stored(&[0, 1, 2])
    }

    /// Runs concurrent rounds of two nodes, one of which receives two requests. Another coordinator
    /// may stop a slow coordinator's round. The stopped round reports that, and is requested again,
    /// as docs/operate/repair-and-backup.md advises.
    fn run_concurrent_rounds(&mut self) -> Result<(), Failure> {
        self.lose(LOSER)?;
        self.cluster.wait_until_ready()?;
        let until = Instant::now() + TIMEOUT;
        let equal = |row: &Self, node| loop {
            let round = row.round(node)?;
            let is_overtaken = round.json["stopped"] == "another node drives a round";
            if !is_overtaken || Instant::now() > until {
                return row.check_equal(round).map(drop);
            }
        };
        let rounds = thread::scope(|scope| {
            let row = &*self;
            let ask = |node| scope.spawn(move || equal(row, node));
            let asked = [DRIVER, DAMAGED_NODE, DRIVER].map(ask);
            asked.into_iter().try_for_each(|asked| {
                asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        rounds?;
        self.check_all_records_stored(&[0, 1, 2])
    }

    /// Kills the coordinator in the middle of a round, `rounds` times.
    fn kill_coordinator(&mut self) -> Result<String, Failure> {
        let mut in_time = 0;
        for _ in 0..self.setup.rounds {
            self.lose(LOSER)?;
            self.cluster.wait_until_ready()?;
            let moment = self.setup.size(self.keys, 0) * self.random.below(100) / 100;
            let mut client = self.cluster.node(DRIVER)?.client()?;
            client.request("POST", "/admin/repair?full=true", b"")?;
            let begun = Instant::now();
            loop {
                let answer = client.request("GET", "/admin/repair", b"")?;
                let repair = parse(&answer.body)?;
                let compared = repair["current"]["records"].as_u64();
                if compared.is_some_and(|records| records >= moment) {
                    in_time += 1;
                    break;
                }
                if repair["waiting"].is_null() && compared.is_none() {
                    break;
                }
                if begun.elapsed() > TIMEOUT {
                    return Err(Failure::Broken(format!("a round hangs: {repair}")));
                }
                thread::sleep(POLL_INTERVAL);
            }
            self.cluster.kill(DRIVER)?;
            self.cluster.start_node(DRIVER)?;
            self.cluster.wait_until_ready()?;
            self.equal_round(DRIVER)?;
            self.check_all_records_stored(&[0, 1, 2])?;
        }
        let kills = self.setup.rounds;
        Ok(format!("{in_time} of {kills} nodes killed while they drove a round: the next is equal"))
    }

    /// Damages a few keys on all replicas, and other keys on one replica. A round must name the
    /// former and repair the latter.
    fn damage_all_replicas(&mut self) -> Result<String, Failure> {
        let doomed: Vec<String> = (1..=KEYS_DAMAGED_EVERYWHERE)
            .map(|part| {
                name(self.keys * part / (KEYS_DAMAGED_EVERYWHERE + 1) / LOSS_DIVISOR * LOSS_DIVISOR)
            })
            .collect();
        let mut values = Vec::new();
        for key in &doomed {
            let answer = Client::connect(self.cluster.addresses()[DRIVER])?.get(key)?;
            values.push(answer.body[VALUE_LEN / 2..].to_vec());
        }
        (0..NODES).try_for_each(|node| self.cluster.stop(node))?;
        for node in 0..NODES {
            for value in &values {
                if rot::flip_where(self.cluster.data(node), value, &mut self.random)? == 0 {
                    let why = format!("node {} holds a value in no table as it is", node + 1);
                    return Err(Failure::Environment(why));
                }
            }
        }
        rot::flip(self.cluster.data(DAMAGED_NODE), (0, LEAST_ROT), begins_value, &mut self.random)?;
        (0..NODES).try_for_each(|node| self.cluster.start_node(node))?;
        self.cluster.wait_until_ready()?;
        let round = self.round(DRIVER)?;
        let unhealed = unhealed_ranges(&round);
        if round.is_equal {
            return Err(round.wrong("calls equal what nobody can read any more"));
        }
        for (key, node) in doomed.iter().flat_map(|key| (0..NODES).map(move |node| (key, node))) {
            let node = format!("n{}", node + 1);
            let is_it = |range: &&Unhealed| range.node == node && range.has(key);
            if !unhealed.iter().any(|range| is_it(&range)) {
                return Err(round.wrong(&format!("does not name {key} on {node}")));
            }
        }
        let is_named = |range: &Unhealed| doomed.iter().any(|key| range.has(key));
        if let Some(other) = unhealed.iter().find(|range| !is_named(range)) {
            return Err(round.wrong(&format!("leaves {other:?}, which two others hold")));
        }
        let again = self.round(DRIVER)?;
        if again.count("differing") > 0 || again.count("damaged") != unhealed.len() as u64 {
            return Err(again.wrong("finds more than what can't be healed"));
        }
        let mut around = 0;
        for number in (0..self.keys).step_by(self.setup.size(100, 1)) {
            let key = name(number);
            if unhealed.iter().any(|range| range.has(&key)) {
                around += 1;
            } else {
                self.get_from_all(&key)?;
            }
        }
        Ok(format!(
            "{KEYS_DAMAGED_EVERYWHERE} keys that rotted on all replicas: named, {} ranges of {} \
             healed, {around} keys asked for lie within the others",
            round.count("healed"),
            round.count("damaged"),
        ))
    }

    fn equal_round(&self, node: usize) -> Result<Round, Failure> {
        self.check_equal(self.round(node)?)
    }

    fn check_equal(&self, round: Round) -> Result<Round, Failure> {
        if round.is_equal && round.json["equal"] == true {
            return Ok(round);
        }
        Err(round.wrong("did not make all replicas equal"))
    }

    /// Runs `kvorum repair --full --wait --json` against a node.
    fn round(&self, node: usize) -> Result<Round, Failure> {
        proofs::round(self.setup, &self.cluster, node, true)
    }

    /// Checks that each of these nodes stores every key with its acknowledged value.
    fn check_all_records_stored(&self, nodes: &[usize]) -> Result<(), Failure> {
        for node in nodes {
            let held = self.cluster.dump(*node)?;
            let keys = self.ledger.check(&held, ProcessState::Same)?.keys;
            if held.len() != keys {
                let what = format!("node {} holds {} of {keys} keys", node + 1, held.len());
                return Err(Failure::Broken(what));
            }
        }
        Ok(())
    }

    /// Reads the key from all three replicas, and checks the value.
    fn get_from_all(&self, key: &str) -> Result<(), Failure> {
        let mut client = Client::connect(self.cluster.addresses()[DRIVER])?;
        let answer = client.request("GET", &format!("{}&ack=3&from=3", target(key)), b"")?;
        match answer.status {
            200 => self.ledger.check_read(key, Some(&answer.body)),
            status => Err(Failure::Broken(format!("GET {key} of all three answers {status}"))),
        }
    }
}

/// A range of keys of a node that a round could not repair.
#[derive(Debug)]
struct Unhealed {
    node: String,
    first: String,
    last: Option<String>,
}

impl Unhealed {
    fn has(&self, key: &str) -> bool {
        self.first.as_str() <= key && self.last.as_ref().is_none_or(|last| key <= last.as_str())
    }
}

fn unhealed_ranges(round: &Round) -> Vec<Unhealed> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ranges = round.json["unhealed"].as_array().map_or(&[][..], Vec::as_slice);
    let range = |range: &Value| Unhealed {
        node: text(&range["node"]).unwrap_or_default(),
        // Among the characters of this row's range bounds, only a zero byte is escaped.
        first: text(&range["first"]).unwrap_or_default().replace("\\x00", "\0"),
        last: text(&range["last"]),
    };
    ranges.iter().map(range).collect()
}
