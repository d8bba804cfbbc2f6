//! Repair rounds, proofs and compactions as an operator runs them, with commands and requests. Also
//! reads and changes a stopped node's directory: its stage in a round, and its hints.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kit::Failure;
use kit::cluster::{ADMIN_TOKEN, Cluster};
use lsm::{Batch, Db, Options, RealDisk, Space};
use serde_json::Value;

use crate::Setup;

/// Flags of the nodes. Rounds run only on request. A round proves writes that are older than twice
/// the deadline plus the skew.
pub(crate) const ARGS: [&str; 8] =
    ["--sync", "interval", "--repair-interval", "off", "--deadline", "500ms", "--memory", "64MiB"];

/// Timeout of commands and rounds; a longer one counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Pause between two polls of a round, whose steps take milliseconds.
const ROUND_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Pause between two other polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Pause between two rounds. Writes that were too recent for the first round are old enough for the
/// next one.
const NEXT_ROUND: Duration = Duration::from_millis(200);

/// Layout of a node's stored proof: a format and a flag, then three rounds: the round of its fence,
/// the last round for which the node was ready, and the last proven round. Each round is a time and
/// a node.
const ROUNDS_AT: usize = 2;
const ROUND_LEN: usize = 10;

/// A finished round.
#[derive(Debug)]
pub(crate) struct Round {
    /// Output of `kvorum repair --wait --json`.
    pub(crate) json: Value,
    /// True if the command ended with exit code 0.
    pub(crate) is_equal: bool,
    /// Duration of the command.
    pub(crate) took: Duration,
}

impl Round {
    pub(crate) fn count(&self, field: &str) -> u64 {
        self.json[field].as_u64().unwrap_or_default()
    }

    pub(crate) fn wrong(&self, what: &str) -> Failure {
        Failure::Broken(format!("a round {what}: {}", self.json))
    }
}

/// Runs a command of the binary until it exits. Returns the exit status, stdout, and stderr.
fn command(setup: &Setup, args: &[&str]) -> Result<(ExitStatus, Vec<u8>, String), Failure> {
    let begun = Instant::now();
    let mut child = Command::new(&setup.binary)
        .args(args)
        .env("KVORUM_ADMIN_TOKEN", ADMIN_TOKEN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > TIMEOUT {
            child.kill()?;
            child.wait()?;
            let what = format!("`kvorum {}` does not end in {TIMEOUT:?}", args.join(" "));
            return Err(Failure::Broken(what));
        }
        thread::sleep(POLL_INTERVAL);
    };
    let (mut printed, mut said) = (Vec::new(), String::new());
    child.stdout.take().map_or(Ok(0), |mut out| out.read_to_end(&mut printed))?;
    child.stderr.take().map_or(Ok(0), |mut out| out.read_to_string(&mut said))?;
    Ok((status, printed, said))
}

pub(crate) fn parse(json: &[u8]) -> Result<Value, Failure> {
    let shown = || String::from_utf8_lossy(json).into_owned();
    serde_json::from_slice(json).map_err(|_| Failure::Broken(format!("no JSON: {:?}", shown())))
}

/// Runs `kvorum repair --wait --json`, with `--full` if `full`.
pub(crate) fn round(
    setup: &Setup,
    cluster: &Cluster,
    node: usize,
    full: bool,
) -> Result<Round, Failure> {
    let begun = Instant::now();
    let url = format!("http://{}", cluster.addresses()[node]);
    let mut args = vec!["repair", "--wait", "--json", "--url", &url];
    if full {
        args.push("--full");
    }
    let (status, printed, said) = command(setup, &args)?;
    let took = begun.elapsed();
    if !matches!(status.code(), Some(0 | 1)) {
        return Err(Failure::Broken(format!("kvorum repair ended with {status}: {said}")));
    }
    Ok(Round { json: parse(&printed)?, is_equal: status.success(), took })
}

/// Requests a round from a node, and waits until the round has begun. Returns the number of the
/// round.
pub(crate) fn begin(cluster: &Cluster, driver: usize, full: bool) -> Result<u64, Failure> {
    let mut client = cluster.node(driver)?.client()?;
    let asked = client.request("POST", &format!("/admin/repair?full={full}"), b"")?;
    let number = parse(&asked.body)?["number"].as_u64().unwrap_or_default();
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        let repair = parse(&client.request("GET", "/admin/repair", b"")?.body)?;
        if repair["current"]["number"].as_u64() >= Some(number)
            || repair["last"]["number"].as_u64() >= Some(number)
        {
            return Ok(number);
        }
        thread::sleep(ROUND_POLL_INTERVAL);
    }
    Err(Failure::Broken(format!("node {} begins no round in {TIMEOUT:?}", driver + 1)))
}

/// Begins a round, and waits until the member has completed exactly the step `done`. Returns false
/// if the member was never observed at this stage.
pub(crate) fn begin_until(
    cluster: &Cluster,
    (driver, full): (usize, bool),
    (member, done): (usize, Stage),
) -> Result<bool, Failure> {
    let mut client = cluster.node(member)?.client()?;
    let mut read = || parse(&client.request("GET", "/admin/repair", b"")?.body);
    let before = read()?["sealed_ms"].as_u64();
    let number = begin(cluster, driver, full)?;
    let mut driving = cluster.node(driver)?.client()?;
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        let member = read()?;
        let stage = Stage::from_answer(&member);
        if member["sealed_ms"].as_u64() > before && stage >= done {
            return Ok(stage == done);
        }
        let driven = parse(&driving.request("GET", "/admin/repair", b"")?.body)?;
        if driven["last"]["number"].as_u64() >= Some(number) {
            return Ok(false);
        }
        thread::sleep(ROUND_POLL_INTERVAL);
    }
    Err(Failure::Broken(format!("a round of node {} does not end in {TIMEOUT:?}", driver + 1)))
}

/// Requests rounds until all writes before the call are proven. Returns the last round.
pub(crate) fn prove(setup: &Setup, cluster: &Cluster, node: usize) -> Result<Round, Failure> {
    let begun = Instant::now();
    let wanted = now_ms();
    loop {
        let round = round(setup, cluster, node, false)?;
        let status = parse(cluster.status(node)?.as_bytes())?;
        let proven = status["repair"]["proven_ms"].as_u64().unwrap_or_default();
        if round.json["proven"] == true && proven > wanted {
            return Ok(round);
        }
        if begun.elapsed() > TIMEOUT {
            let what = format!("does not prove what is {TIMEOUT:?} old ({proven} of {wanted})");
            return Err(round.wrong(&what));
        }
        thread::sleep(NEXT_ROUND);
    }
}

/// Runs `kvorum compact --wait` at all nodes. Returns the total size of their tables in bytes.
pub(crate) fn compact(setup: &Setup, cluster: &Cluster) -> Result<u64, Failure> {
    let mut bytes = 0;
    for address in cluster.addresses() {
        let url = format!("http://{address}");
        let args = ["compact", "--wait", "--json", "--url", &url];
        let (status, printed, said) = command(setup, &args)?;
        if !status.success() {
            let printed = String::from_utf8_lossy(&printed).into_owned();
            let what = format!("kvorum compact ended with {status}: {said}{printed}");
            return Err(Failure::Broken(what));
        }
        bytes += parse(&printed)?["bytes"].as_u64().unwrap_or_default();
    }
    Ok(bytes)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// A node's stage in the last round in which it took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The repair fence is set. Records received before the fence need not be durable.
    Sealed,
    /// Records from before the fence are durable. The node does not know yet whether all other
    /// nodes are ready.
    Ready,
    /// The round is proven.
    Proven,
}

impl Stage {
    fn of([seal, ready, proven]: [u64; 3]) -> Self {
        if proven >= seal {
            Self::Proven
        } else if ready >= seal {
            Self::Ready
        } else {
            Self::Sealed
        }
    }

    /// Parses the stage from a node's answer about its rounds.
    fn from_answer(repair: &Value) -> Self {
        let times = ["sealed_ms", "ready_ms", "proven_ms"];
        Self::of(times.map(|field| repair[field].as_u64().unwrap_or_default()))
    }
}

/// Number of nodes observed at each stage.
#[derive(Debug, Default)]
pub(crate) struct Stages([u32; 3]);

impl Stages {
    pub(crate) fn note(&mut self, stage: Stage) {
        self.0[stage as usize] += 1;
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [sealed, ready, proven] = self.0;
        write!(out, "{sealed} sealed, {ready} ready, {proven} proven")
    }
}

fn open(data: &Path) -> Result<Db, Failure> {
    let failed =
        |why: &dyn fmt::Display| Failure::Environment(format!("{}: {why}", data.display()));
    let disk = Arc::new(RealDisk::open(data).map_err(|error| failed(&error))?);
    Db::open(disk, Options::default()).map_err(|error| failed(&error))
}

fn engine_failure(error: lsm::Error) -> Failure {
    Failure::Environment(error.to_string())
}

/// Returns the stage in a round, as a copied directory records it. Opens the copy in this process,
/// which recovers it.
pub(crate) fn stage_of(copy: &Path) -> Result<Stage, Failure> {
    let db = open(copy)?;
    let found = db.get(Space::Node, b"proof").map_err(engine_failure)?;
    db.close().map_err(engine_failure)?;
    let bytes = found.map(|record| record.value().to_vec()).unwrap_or_default();
    let times: Vec<u64> = bytes
        .get(ROUNDS_AT..)
        .unwrap_or_default()
        .chunks_exact(ROUND_LEN)
        .filter_map(|round| Some(u64::from_le_bytes(*round.first_chunk()?)))
        .take(3)
        .collect();
    let times = <[u64; 3]>::try_from(times);
    times
        .map(Stage::of)
        .map_err(|_| Failure::Environment(format!("{} bytes tell of no proof", bytes.len())))
}

/// Removes all hints from a stopped node's store, as if they had exceeded the limit on hints.
/// Returns their number.
pub(crate) fn forget_hints(data: &Path) -> Result<u64, Failure> {
    let db = open(data)?;
    let mut scan = db.scan(Space::Hints, &[], None);
    let (mut batch, mut hints) = (Batch::new(), 0);
    while let Some((key, record)) = scan.next().map_err(engine_failure)? {
        if record.kind() == lsm::Kind::Value {
            batch.delete(Space::Hints, key, record.version()).map_err(engine_failure)?;
            hints += 1;
        }
    }
    drop(scan);
    if hints > 0 {
        db.write_batch(batch).map_err(engine_failure)?;
    }
    db.close().map_err(engine_failure)?;
    Ok(hints)
}
