//! Costs of a request besides time: system calls of all nodes, bytes over the loopback interface,
//! and kvorum's counters of messages and log writes. A run of its own measures these costs, because
//! counting system calls slows the nodes.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench_table::{Table, find};

use crate::Bench;
use crate::fleet;
use crate::metrics::Counts;
use crate::quorum::Row;

const SECTION: &str = "cost";

/// Time limit until perf has created its output file.
const ATTACH_LIMIT: Duration = Duration::from_secs(5);

/// Columns of the table: name, metric, and the metric to divide by, or `None` to divide by the
/// number of requests.
const COLUMNS: [(&str, &str, Option<&str>); 7] = [
    ("peer bytes", "peer_bytes_sent", None),
    ("peer messages", "peer_messages_sent", None),
    ("peer envelopes", "peer_envelopes_sent", None),
    ("peer writes", "peer_send_calls", None),
    ("messages an envelope", "peer_messages_sent", Some("peer_envelopes_sent")),
    ("records a log write", "wal_operations", Some("wal_writes")),
    ("log syncs", "wal_syncs", None),
];

/// Measures one run of each row, and reports the costs.
pub(crate) fn run(bench: &mut Bench, rows: &[Row]) -> Result<(), String> {
    let mut columns = vec!["a request", "system calls, all nodes", "loopback bytes"];
    columns.extend(COLUMNS.iter().map(|(name, ..)| *name));
    let mut table = Table::new(&columns);
    for row in rows {
        let plan = row.plan(bench.scale.keys, Duration::from_secs(bench.scale.seconds));
        row.fleet.resume(&plan)?;
        let nodes = row.fleet.addresses();
        let perf = Perf::start(row, bench.place.root.join("calls"));
        let (before, bytes) = (Counts::of(&nodes), loopback_bytes());
        let outcome = fleet::run(&plan)?;
        let (bytes, counts) = (loopback_bytes() - bytes, Counts::of(&nodes).since(&before));
        let calls = perf.and_then(Perf::stop);
        row.fleet.pause();
        let requests = outcome.answer_count().max(1) as f64;
        let calls = calls.map(|calls| calls / requests);
        if let Ok(calls) = calls {
            bench.report.figure(SECTION, row.name, 0, "calls_per_request", calls);
        }
        let mut line = vec![
            Some(row.name.to_owned()),
            Some(calls.map_or_else(|why| why, |calls| format!("{calls:.2}"))),
            Some(format!("{:.0}", bytes / requests)),
        ];
        for (name, of, to) in COLUMNS {
            let value = match to {
                Some(to) => counts.ratio(of, to),
                None => Some(counts.get(of) / requests).filter(|value| *value > 0.0),
            };
            if let Some(value) = value {
                bench.report.figure(SECTION, row.name, 0, name, value);
            }
            line.push(value.map(round_value));
        }
        table.row(line);
    }
    bench.report.say(
        "### Cost of a request\n\nOne run each. System calls: \
         `perf stat -e raw_syscalls:sys_enter` over all nodes. Loopback bytes: all that went over \
         it, between the client and the nodes too. The others: what the nodes count, summed up.",
    );
    bench.report.say(&table.to_string());
    Ok(())
}

fn round_value(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Returns the number of bytes that the loopback interface has carried so far; 0 if unknown.
pub(crate) fn loopback_bytes() -> f64 {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    text.lines()
        .find_map(|line| line.trim().strip_prefix("lo:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

/// A perf process that counts the system calls of all nodes of a row.
struct Perf {
    child: Child,
    log: PathBuf,
}

impl Perf {
    fn start(row: &Row, log: PathBuf) -> Result<Self, String> {
        let pids: Vec<String> = row.fleet.nodes.iter().map(|node| node.pid().to_string()).collect();
        let child = Command::new(find("perf", "linux-perf")?)
            .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &pids.join(","), "-o"])
            .arg(&log)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("perf: {error}"))?;
        // perf does not report when its counters are open. It opens them soon after its output file
        // exists.
        let begun = Instant::now();
        while begun.elapsed() < ATTACH_LIMIT && !log.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self { child, log })
    }

    /// Interrupts perf, which then writes its counts. Returns the number of system calls since the
    /// start.
    fn stop(mut self) -> Result<f64, String> {
        let interrupt = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let ended = interrupt.and_then(|_| self.child.wait());
        ended.map_err(|error| format!("perf: {error}"))?;
        let counts = fs::read_to_string(&self.log).map_err(|error| error.to_string())?;
        // A file of this row would make the next `start` return before perf counts.
        let _ = fs::remove_file(&self.log);
        counts
            .lines()
            .find(|line| line.contains("raw_syscalls"))
            .and_then(|line| line.split(',').next()?.parse().ok())
            .ok_or_else(|| "perf counted nothing".to_owned())
    }
}
