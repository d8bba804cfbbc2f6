//! Realistic use of a store: `wrk` runs a script of a user, `put.lua`, for minutes, `kill -9` ends
//! the node in the middle, and then `wrk` runs the script again. Some keys are overwritten and
//! deleted, and `curl` reads all keys. After that, a data set many times the size of the memory is
//! tested.
//!
//! Each thread of wrk has its own counter in `put.lua`. One thread writes `key1`, `key2`, … (`key0`
//! is the test call that wrk makes at its start), and 64 connections send the keys in order. So if
//! wrk reports N good answers, at least N of the first N + 64 keys must exist. wrk's count replaces
//! a ledger for wrk's keys; the other clients, which run beside wrk, have a real ledger.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{split_item, target};
use kit::node::{Launch, Node};
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::random::Random;
use kit::workload::writers::{WriterParams, Writers, outcome_of};
use rustix::process::{Pid, Signal, kill_process};

use crate::Setup;
use crate::limits::memory;

/// Number of wrk's connections.
const CONNECTIONS: u64 = 64;

/// Timeout of a run of wrk.
const LOADING: Duration = Duration::from_secs(180);

/// Every key of wrk whose number is a multiple of this one is overwritten, and the key after it is
/// deleted.
const CHANGED: u64 = 1000;

/// Returns the path of the published script.
fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/load/tests/scripts/put.lua")
}

/// Runs the scenario with wrk, and then the large data set.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let keys = setup.size(3_000_000, 60_000);
    let dir = tempfile::tempdir()?;
    let launch = setup.launch(dir.path(), dir.path(), &["--sync", "always"]);
    let ledger = Arc::new(Ledger::default());

    let node = launch.start()?;
    let wrk = Wrk::start(&node)?;
    let work = WriterParams { clients: 4, prefix: 'z', ..WriterParams::default() };
    let writers = Writers::start(node.address, &ledger, work, setup.seed)?;
    wait_for_puts(&node, keys / 2)?;
    node.kill()?;
    let half = wrk.finish()?;
    writers.stop()?;
    let ledger_keys = ledger.counts().0;
    let mut node = launch.start()?;
    let found = scan(&node)?;
    ledger.check(&found.ledgers, ProcessState::New)?;
    present(&found, half)?;

    let wrk = Wrk::start(&node)?;
    let begun = Instant::now();
    wait_for_puts(&node, keys)?;
    let all = wrk.finish()?;
    let rate = all as f64 / begun.elapsed().as_secs_f64();
    let changes = change(&node, &ledger, all)?;
    node = restart(node, &launch)?;
    let found = scan(&node)?;
    present(&found, all)?;
    check_changed(&found, changes)?;
    ledger.check(&found.ledgers, ProcessState::New)?;
    drop(node);
    let large = large(setup)?;
    Ok(format!(
        "killed after {half} of wrk's and {ledger_keys} of the ledger's writes, 0 lost; {all} more \
         at {rate:.0}/s, {} overwritten or deleted, restarted, {} items read with \
         curl, all right; {large}",
        2 * changes,
        found.items
    ))
}

/// A running wrk, which is killed when dropped.
struct Wrk(Child);

impl Wrk {
    fn start(node: &Node) -> Result<Self, Failure> {
        let child = Command::new("wrk")
            .args(["-t1", &format!("-c{CONNECTIONS}"), "-d600s", "-s"])
            .arg(script())
            .arg(format!("http://{}", node.address))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(child.map_err(|error| Failure::Skipped(format!("wrk: {error}")))?))
    }

    /// Interrupts wrk. Returns the number of successful answers that wrk reports.
    fn finish(mut self) -> Result<u64, Failure> {
        kill_process(Pid::from_child(&self.0), Signal::INT).map_err(std::io::Error::from)?;
        let mut text = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut text)?;
        }
        self.0.wait()?;
        let number = |line: &str| line.split_whitespace().find_map(|word| word.parse().ok());
        let line = |part| text.lines().find(|line| line.contains(part));
        let bad: u64 = line("Non-2xx").and_then(number).unwrap_or(0);
        let all: Option<u64> = line(" requests in ").and_then(number);
        if bad > 0 {
            return Err(Failure::Broken(format!("wrk got answers other than 201:\n{text}")));
        }
        all.ok_or_else(|| Failure::Environment(format!("wrk printed no figures:\n{text}")))
    }
}

impl Drop for Wrk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_puts(node: &Node, wanted: u64) -> Result<(), Failure> {
    let begun = Instant::now();
    let name = "kvorum_wal_operations_total";
    let before = node.metric(name)?.unwrap_or(0.0);
    while node.metric(name)?.unwrap_or(0.0) - before < wanted as f64 {
        if begun.elapsed() > LOADING {
            return Err(Failure::Environment(format!(
                "{wanted} writes take more than {LOADING:?}"
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The contents of a range over all keys.
#[derive(Default)]
struct RangeResult {
    items: u64,
    /// wrk's keys by number; true if the value is the one that wrk wrote, false if the key was
    /// overwritten.
    wrks: BTreeMap<u64, bool>,
    /// Keys in the ledger, with their values.
    ledgers: BTreeMap<String, Vec<u8>>,
}

/// Reads all keys with curl, and decodes one chunk of the raw answer after another.
fn scan(node: &Node) -> Result<RangeResult, Failure> {
    let url = format!("http://{}/v0/entities?start=%01", node.address);
    let mut curl = Command::new("curl")
        .args(["--silent", "--fail", "--raw", &url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::Skipped(format!("curl: {error}")))?;
    let mut found = RangeResult::default();
    if let Some(stdout) = curl.stdout.take() {
        let mut reader = BufReader::with_capacity(1 << 16, stdout);
        while let Some(item) = raw_chunk(&mut reader)? {
            let (key, value) = split_item(&item)
                .ok_or_else(|| Failure::Broken("an item without a line end".to_owned()))?;
            found.add(&String::from_utf8_lossy(key), value)?;
        }
    }
    let status = curl.wait()?;
    if !status.success() {
        return Err(Failure::Broken(format!("curl ended with {status}")));
    }
    Ok(found)
}

/// Reads one chunk with its framing. Returns `None` after the last chunk.
fn raw_chunk(reader: &mut impl std::io::BufRead) -> Result<Option<Vec<u8>>, Failure> {
    let broken = |what: &str| Failure::Broken(format!("a chunk {what}"));
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let length = usize::from_str_radix(head.trim_end(), 16).map_err(|_| broken("head"))?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk)?;
    if !chunk.ends_with(b"\r\n") {
        return Err(broken("end"));
    }
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}

impl RangeResult {
    fn add(&mut self, key: &str, value: &[u8]) -> Result<(), Failure> {
        self.items += 1;
        if key.starts_with('z') {
            self.ledgers.insert(key.to_owned(), value.to_vec());
            return Ok(());
        }
        let number = key.strip_prefix("key").and_then(|number| number.parse::<u64>().ok());
        let wrks = number.map(|number| (number, value == format!("value{number}").as_bytes()));
        match wrks {
            Some((number, true)) => self.wrks.insert(number, true),
            Some((number, false)) if value == new_value(number).as_bytes() => {
                self.wrks.insert(number, false)
            }
            _ => return Err(Failure::Broken(format!("{key} was never written like that"))),
        };
        Ok(())
    }
}

/// Checks that at most as many of wrk's keys are missing as wrk had requests in flight. Deleted
/// keys do not count.
fn present(found: &RangeResult, acknowledged: u64) -> Result<(), Failure> {
    let deleted = |number: u64| number % CHANGED == 1;
    let asked = acknowledged + CONNECTIONS;
    let gone = (1..=asked).filter(|number| deleted(*number)).count() as u64;
    let there = found.wrks.range(1..=asked).filter(|(number, _)| !deleted(**number)).count() as u64;
    let missing = asked - gone - there.min(asked - gone);
    if missing > CONNECTIONS {
        return Err(Failure::Broken(format!(
            "{missing} of wrk's keys are missing, {CONNECTIONS} may be"
        )));
    }
    Ok(())
}

fn new_value(number: u64) -> String {
    format!("new value of {number}")
}

/// Overwrites some of wrk's keys and deletes as many. Returns the number of overwritten keys.
fn change(node: &Node, ledger: &Ledger, acknowledged: u64) -> Result<u64, Failure> {
    let mut client = node.client()?;
    let numbers = (CHANGED..acknowledged - CONNECTIONS).step_by(CHANGED as usize);
    let mut changes = 0;
    for number in numbers {
        let put = target(&format!("key{number}"));
        let put = client.request("PUT", &put, new_value(number).as_bytes())?.status;
        let delete = target(&format!("key{}", number + 1));
        let delete = client.request("DELETE", &delete, b"")?.status;
        if (put, delete) != (201, 202) {
            return Err(Failure::Broken(format!("a change was answered {put}, {delete}")));
        }
        changes += 1;
    }
    let (ticket, value) = ledger.put("z-last", 100);
    let answer = client.request("PUT", &target("z-last"), &value);
    ledger.end(ticket, outcome_of(&answer));
    Ok(changes)
}

fn check_changed(found: &RangeResult, changes: u64) -> Result<(), Failure> {
    for number in (1..=changes).map(|n| n * CHANGED) {
        if found.wrks.get(&number) != Some(&false) || found.wrks.contains_key(&(number + 1)) {
            return Err(Failure::Broken(format!("key{number} or the next is as before")));
        }
    }
    Ok(())
}

fn restart(node: Node, launch: &Launch) -> Result<Node, Failure> {
    let status = node.stop()?;
    if !status.success() {
        return Err(Failure::Broken(format!("after SIGTERM the node ended with {status}")));
    }
    launch.start()
}

/// Writes, scans and randomly reads a data set many times the size of the memory. The node's memory
/// must stay within its bound.
fn large(setup: &Setup) -> Result<String, Failure> {
    const VALUE: usize = 4000;
    let keys = setup.size(2_u64 << 30, 200 << 20) / VALUE as u64;
    let dir = tempfile::tempdir()?;
    let args = ["--memory", "128MiB", "--sync", "interval"];
    let launch = setup.launch(dir.path(), dir.path(), &args);
    let node = launch.start()?;
    let begun = Instant::now();
    fill(&node, keys, VALUE)?;
    let filled = begun.elapsed();
    let node = restart(node, &launch)?;
    let begun = Instant::now();
    let mut next = 0;
    node.client()?.scan("%01", |key, value| {
        let wanted = (format!("large{next:09}"), large_value(next, VALUE));
        next += 1;
        let same = key == wanted.0.as_bytes() && value == wanted.1;
        if same { Ok(()) } else { Err(std::io::Error::other(format!("not item {next}"))) }
    })?;
    if next != keys {
        return Err(Failure::Broken(format!("a range found {next} of {keys} items")));
    }
    let scanned = begun.elapsed();
    let gets = read_at_random(&node, keys, VALUE, setup)?;
    let most = memory::check_within_bounds(&node)?;
    Ok(format!(
        "{} MiB with --memory 128MiB filled in {:.0} s, scanned in {:.0} s, {gets} random GETs: \
         peak RSS {} MiB",
        (keys * VALUE as u64) >> 20,
        filled.as_secs_f64(),
        scanned.as_secs_f64(),
        most >> 20
    ))
}

fn large_value(number: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut value: Vec<u8> =
        (0..len.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).collect();
    value.truncate(len);
    value
}

/// Writes all keys through a few clients.
fn fill(node: &Node, keys: u64, len: usize) -> Result<(), Failure> {
    const CLIENTS: u64 = 8;
    thread::scope(|scope| {
        let fill_part = |part: u64| -> Result<(), Failure> {
            let mut client = node.client()?;
            for number in (part..keys).step_by(CLIENTS as usize) {
                let (target, value) =
                    (target(&format!("large{number:09}")), large_value(number, len));
                loop {
                    match client.request("PUT", &target, &value)?.status {
                        201 => break,
                        503 => thread::sleep(Duration::from_millis(50)),
                        status => return Err(Failure::Broken(format!("PUT answers {status}"))),
                    }
                }
            }
            Ok(())
        };
        let parts: Vec<_> = (0..CLIENTS).map(|p| scope.spawn(move || fill_part(p))).collect();
        for part in parts {
            part.join().map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok(())
    })
}

fn read_at_random(node: &Node, keys: u64, len: usize, setup: &Setup) -> Result<u64, Failure> {
    let mut random = Random::new(setup.seed);
    let mut client = node.client()?;
    let gets = setup.size(50_000, 3000);
    for _ in 0..gets {
        let number = random.below(keys);
        let answer = client.get(&format!("large{number:09}"))?;
        if answer.status != 200 || answer.body != large_value(number, len) {
            return Err(Failure::Broken(format!("GET large{number:09} answers {}", answer.status)));
        }
    }
    Ok(gets)
}
