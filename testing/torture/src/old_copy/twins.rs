//! Row 38 of docs/results/reliability.md, with twins: a copy of a node's directory is started
//! beside the node, under the node's name and on another port. The older of the two processes must
//! be fenced, and say why. After the copy is stopped and the original restarted, no write that
//! either process acknowledged may be lost, or hidden by an older value.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::node::{Launch, Node};
use kit::oracle::audit;
use kit::oracle::ledger::Ledger;
use kit::workload::writers::{WriterParams, Writers, outcome_of};
use rustix::process::Signal;

use crate::Setup;
use crate::old_copy::rollback::{A, B, C, Findings, KEYS, copy, prepare_cluster, wait_until_met};

/// Maximum time for which both processes may serve.
const FENCED: Duration = Duration::from_secs(15);

/// Time for which the fenced process must stay fenced.
const STAYS: Duration = Duration::from_secs(3);

/// Timeout of an answer, longer than the deadline inside the node.
const ANSWER: Duration = Duration::from_secs(3);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Words that explain a refusal; the refusal must contain one of them.
const REASONS: [&str; 4] = ["copy", "process", "directory", "life"];

/// Answers of one of the two processes, as status codes; 0 stands for no answer.
#[derive(Debug)]
struct TwinAnswers {
    ready: u16,
    put: u16,
    /// Answer to a read for which the process's own store is enough.
    get: u16,
    /// Body of the answer to the write, or the error.
    why: String,
}

impl TwinAnswers {
    fn of(address: SocketAddr, ledger: &Ledger) -> Result<Self, Failure> {
        let ask = |method: &str, place: &str, body: &[u8]| {
            Client::connect_within(address, ANSWER)
                .and_then(|mut client| client.request(method, place, body))
        };
        let status = |answer: std::io::Result<kit::client::Answer>| answer.map_or(0, |a| a.status);
        let (ticket, value) = ledger.put("probe", 50);
        let put = ask("PUT", &(target("probe") + audit::VOTES), &value);
        ledger.end(ticket, outcome_of(&put));
        let why = match &put {
            Ok(answer) => String::from_utf8_lossy(&answer.body).into_owned(),
            Err(error) => error.to_string(),
        };
        Ok(Self {
            ready: status(ask("GET", "/readyz", b"")),
            put: status(put),
            get: status(ask("GET", &(target("o0") + "&ack=1&from=3"), b"")),
            why,
        })
    }

    fn serves(&self) -> bool {
        self.ready == 200 && self.put == 201
    }

    fn is_fenced(&self) -> bool {
        self.ready == 503 && self.put >= 500 && self.get >= 500
    }
}

impl fmt::Display for TwinAnswers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ready, put, get, why } = self;
        write!(out, "readyz {ready}, PUT {put} ({}), GET {get}", why.trim())
    }
}

/// Runs one twin, whose directory was copied while the node was running, or stopped. With `alone`,
/// B, which has all writes, does not answer while the original restarts.
pub(crate) fn run(setup: &Setup, running: bool, alone: bool) -> Result<String, Failure> {
    let ledger = Arc::new(Ledger::default());
    let mut cluster = prepare_cluster(setup, &ledger)?;
    let kept = cluster.dir().join("copy");
    if running {
        copy(cluster.data(A), &kept)?;
    } else {
        cluster.stop(A)?;
        copy(cluster.data(A), &kept)?;
        cluster.start_node(A)?;
        cluster.wait_until_ready()?;
    }
    // These writes put the original's log far ahead of the copy's log before the copy starts.
    audit::edit(cluster.addresses(), &ledger, "", setup.size(KEYS.0, KEYS.1))?;
    cluster.kill(C)?;
    let launch = twin_of(&cluster, &kept);
    let twin = match launch.start() {
        Ok(twin) => twin,
        // A node may refuse a directory that was copied while in use.
        Err(Failure::Refused(said)) if running => return Ok(format!("refused: {said}")),
        Err(other) => return Err(other),
    };
    let mut findings = Findings::default();
    side_by_side(&cluster, &twin, &ledger, &mut findings)?;
    // Only the twin and B receive these writes.
    let newer = audit::edit(&[twin.address], &ledger, "twin-", setup.size(KEYS.0, KEYS.1) / 3);
    match newer {
        Ok(()) => {}
        Err(Failure::Broken(why)) => findings.record_broken(format!("the newer life: {why}")),
        Err(other) => return Err(other),
    }
    twin.stop()?;
    cluster.stop(A)?;
    if alone {
        cluster.node(B)?.signal(Signal::STOP)?;
        cluster.start_node(A)?;
    } else {
        cluster.start_node(A)?;
        wait_until_met(&cluster)?;
        cluster.node(B)?.signal(Signal::STOP)?;
    }
    cluster.start_node(C)?;
    findings.read_without_b(&cluster, &ledger)?;
    cluster.node(B)?.signal(Signal::CONT)?;
    findings.check_with_all(&cluster, &ledger)?;
    findings.verdict()
}

/// Returns the launch parameters of a twin: a node on a copy of A's directory, on another port.
fn twin_of(cluster: &Cluster, data: &std::path::Path) -> Launch {
    let mut launch = cluster.launches[A].clone();
    launch.data = data.to_owned();
    launch.log = cluster.dir().join("twin.log");
    launch.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    launch.args.extend(["--advertise".to_owned(), format!("http://{}", cluster.addresses()[A])]);
    launch
}

/// Runs both processes, with clients at both and at B, until the original stays fenced or the time
/// is over.
fn side_by_side(
    cluster: &Cluster,
    twin: &Node,
    ledger: &Arc<Ledger>,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let all = [cluster.addresses()[A], twin.address, cluster.addresses()[B]];
    let work = WriterParams {
        clients: 12,
        keys: 30,
        value_len: 500,
        prefix: 't',
        votes: audit::VOTES,
        patience: ANSWER,
        ..WriterParams::default()
    };
    let writers = Writers::start_on(&all, ledger, work, 1)?;
    let begun = Instant::now();
    let mut since = None;
    let mut last = None;
    while begun.elapsed() < FENCED + STAYS {
        let original = TwinAnswers::of(cluster.addresses()[A], ledger)?;
        let copy = TwinAnswers::of(twin.address, ledger)?;
        let settled = original.is_fenced() && copy.serves();
        since = if settled { since.or(Some(begun.elapsed())) } else { None };
        last = Some((original, copy));
        if since.is_some_and(|since| begun.elapsed() > since + STAYS) {
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    let (original, copy) =
        last.ok_or_else(|| Failure::Environment("neither was asked".to_owned()))?;
    match since {
        Some(since) => findings.note(format!(
            "the original fenced after {:.1} s, saying {}",
            since.as_secs_f64(),
            original.why.trim()
        )),
        None => findings.record_broken(format!(
            "after {FENCED:?} not the newer life alone serves: the original {original}; the copy \
             {copy}"
        )),
    }
    if since.is_some() && !REASONS.iter().any(|reason| original.why.contains(reason)) {
        findings.record_broken("the refusal does not say why".to_owned());
    }
    match writers.stop() {
        Ok(statuses) => findings.note(format!("answers meanwhile {statuses:?}")),
        Err(Failure::Broken(what)) => findings.record_broken(format!("read meanwhile: {what}")),
        Err(other) => return Err(other),
    }
    Ok(())
}
