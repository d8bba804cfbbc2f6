//! The row `stderr` of docs/results/reliability.md: the log of every node goes to a sink that
//! fails: a pipe whose reader has closed it, a full file system, or a pipe whose reader does not
//! read. Clients must see no effect, and SIGTERM must stop the nodes as usual.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::Client;
use kit::cluster::Cluster;
use kit::node::Node;
use kit::oracle::ledger::Ledger;
use kit::workload::prober::{ProbeParams, Prober};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use crate::Setup;

const NODES: usize = 3;

const PACE: ProbeParams = ProbeParams {
    clients: 8,
    every: Duration::from_millis(16),
    votes: "",
    large: 0,
    conditional: 0,
    tries: 2,
};

/// Number of lines that each node logs: more than fit into a pipe and the node's own buffer.
const LINES: usize = 12_000;

/// Number of concurrent requests that each cause a log line.
const WINDOW: usize = 200;

/// Time in which hints must make all replicas equal.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a stop, which completes the requests in flight, and waits a second for the log.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Timeout for the first recording of the profiler to begin.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// Name of a node's profiler thread.
const RECORDER: &str = "profiler";

/// Sink of the log.
#[derive(Debug, Clone, Copy)]
pub enum LogSink {
    /// A pipe whose reader has closed it.
    Closed,
    /// A full file system.
    Full,
    /// A pipe whose reader does not read.
    Stalled,
}

/// Runs `rounds` clusters with each kind of sink.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let kinds = [LogSink::Closed, LogSink::Full, LogSink::Stalled];
    let figures: Vec<String> =
        kinds.iter().map(|kind| one(setup, *kind)).collect::<Result<_, _>>()?;
    Ok(figures.join("; "))
}

/// Runs `rounds` clusters with one kind of sink.
pub fn one(setup: &Setup, kind: LogSink) -> Result<String, Failure> {
    let mut total = StderrFigures::default();
    for round in 0..setup.rounds {
        total.add(&run_with_sink(setup, kind, setup.seed + u64::from(round))?);
    }
    Ok(format!(
        "{}: {} requests, {} tried twice, 0 failed, 0 lost, {} lines dropped, slowest end {:.1} s",
        format!("{kind:?}").to_lowercase(),
        total.requests,
        total.retried,
        total.dropped,
        total.slowest_end.as_secs_f64()
    ))
}

#[derive(Default)]
struct StderrFigures {
    requests: u64,
    retried: u64,
    dropped: u64,
    slowest_end: Duration,
}

impl StderrFigures {
    fn add(&mut self, more: &Self) {
        self.requests += more.requests;
        self.retried += more.retried;
        self.dropped += more.dropped;
        self.slowest_end = self.slowest_end.max(more.slowest_end);
    }
}

/// Runs one cluster, each of whose nodes logs many lines. One node is killed and restarted; then
/// all nodes are stopped.
fn run_with_sink(setup: &Setup, kind: LogSink, seed: u64) -> Result<StderrFigures, Failure> {
    let mut cluster = Cluster::plan(&setup.binary, NODES, None, &["--sync", "always"])?;
    let mut readers = Vec::new();
    for launch in &mut cluster.launches {
        if matches!(kind, LogSink::Full) {
            launch.log = Path::new("/dev/full").to_owned();
        } else {
            launch.log.set_file_name("stderr");
            readers.push(pipe(&launch.log)?);
        }
    }
    (0..NODES).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    if matches!(kind, LogSink::Closed) {
        readers.clear();
    }
    let ledger = Arc::new(Ledger::default());
    let prober = Prober::start(cluster.addresses(), &ledger, PACE, seed)?;
    let mut figures = StderrFigures::default();
    for node in 0..NODES {
        provoke_log_lines(&cluster, node)?;
    }
    let victim = (seed % NODES as u64) as usize;
    figures.dropped = count_dropped(&cluster)?;
    if figures.dropped == 0 {
        return Err(Failure::Environment(format!("{kind:?}: every line was taken")));
    }
    cluster.kill(victim)?;
    thread::sleep(Duration::from_millis(500));
    // The node's log can be opened only while the pipe has a reader.
    let reader = (!matches!(kind, LogSink::Full)).then(|| reader(&cluster.launches[victim].log));
    cluster.start_node(victim)?;
    cluster.wait_until_ready()?;
    drop(reader);
    let seen = prober.stop()?;
    if let Some(first) = seen.failed.first() {
        return Err(Failure::Broken(format!("{kind:?}: {} failed, as{first}", seen.failed.len())));
    }
    (figures.requests, figures.retried) = (seen.requests, seen.retried);
    cluster.wait_until_equal(CONVERGENCE_TIMEOUT)?;
    cluster.check(&ledger)?;
    for node in 0..NODES {
        check_healthy(&cluster, node)?;
        let begun = Instant::now();
        cluster.stop(node)?;
        figures.slowest_end = figures.slowest_end.max(begun.elapsed());
    }
    if figures.slowest_end > ENDS_WITHIN {
        return Err(Failure::Broken(format!("{kind:?}: ends after {:?}", figures.slowest_end)));
    }
    Ok(figures)
}

/// Creates a named pipe, and opens it for reading.
fn pipe(path: &Path) -> Result<File, Failure> {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).map_err(std::io::Error::from)?;
    reader(path)
}

fn reader(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    Ok(File::options().read(true).custom_flags(flags).open(path)?)
}

/// Makes a node log a line for each of many requests. Each request asks for a recording of the
/// cheapest event while another recording runs, so the node refuses it and logs a line.
fn provoke_log_lines(cluster: &Cluster, node: usize) -> Result<(), Failure> {
    let target = "/admin/profile?event=lock&seconds=1";
    let mut recorder = cluster.node(node)?.client()?;
    recorder.send("GET", "/admin/profile?event=lock&seconds=300", b"")?;
    wait_until_recording(cluster.node(node)?)?;
    let mut client = cluster.node(node)?.client()?;
    for _ in 0..LINES / WINDOW {
        (0..WINDOW).try_for_each(|_| client.send("GET", target, b""))?;
        for _ in 0..WINDOW {
            let status = client.answer()?.status;
            if status != 409 {
                return Err(Failure::Broken(format!("a second recording is answered {status}")));
            }
        }
    }
    Ok(())
}

/// Waits until the profiler's thread runs. A request for the state of the profiler would not help:
/// the recording could then belong to that request, and the profiler writes only while nothing else
/// needs the CPU.
fn wait_until_recording(node: &Node) -> Result<(), Failure> {
    let begun = Instant::now();
    while begun.elapsed() < BEGINS_WITHIN {
        for task in fs::read_dir(format!("/proc/{}/task", node.pid()))? {
            // The thread may have ended since the listing.
            let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
            if name.trim_end() == RECORDER {
                return Ok(());
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(Failure::Broken(format!("no recording after {BEGINS_WITHIN:?}")))
}

fn count_dropped(cluster: &Cluster) -> Result<u64, Failure> {
    let mut dropped = 0.0;
    for node in 0..NODES {
        dropped += cluster.node(node)?.metric("kvorum_log_lines_dropped")?.unwrap_or_default();
    }
    Ok(dropped as u64)
}

fn check_healthy(cluster: &Cluster, node: usize) -> Result<(), Failure> {
    let mut client = Client::connect(cluster.addresses()[node])?;
    match client.request("GET", "/healthz", b"")?.status {
        200 => Ok(()),
        status => Err(Failure::Broken(format!("/healthz answers {status}"))),
    }
}
