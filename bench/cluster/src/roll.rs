//! A rolling restart, as in an upgrade: under load, each of three nodes in turn is shut down and
//! started again. The benchmark measures the errors and delays that clients see, beside etcd.
//!
//! ```text
//!   0 s    2 s                                                        end
//!   ├ load ┼─ node 1 restarts ─ 1 s ─┼─ node 2 … ─ 1 s ─┼─ node 3 … ─┼ 2 s ┤
//! ```
//!
//! The next node is shut down one second after the last one accepts writes again. Nodes of both
//! stores are shut down by SIGTERM, on which the leader of etcd transfers its leadership.

use std::thread;
use std::time::{Duration, Instant};

use bench_table::{Spread, Table};
use kit::workload::prober::percentile;

use crate::Bench;
use crate::fleet::{Kind, SyncSetting};
use crate::retrying::{self, CLIENTS, KEYS, Requests, Tally};

const SECTION: &str = "roll";

/// Requests per second of each client. All clients together send about a quarter of the requests
/// that etcd can answer on two CPUs.
const RATE: u64 = 50;

/// Duration of the load before the first restart, and after the last one.
const LOAD_MARGIN: Duration = Duration::from_secs(2);

/// Pause after each restart.
const PAUSE: Duration = Duration::from_secs(1);

/// The figures of a rolling restart: names in the raw figures, and columns of the table.
const FIGURES: [(&str, &str); 9] = [
    ("answered", "answered"),
    ("retried", "retried"),
    ("failed", "failed again"),
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
    ("p99.9_ms", "p99.9 ms"),
    ("slowest_ms", "slowest ms"),
    ("longest_gap_ms", "longest time without any answer, ms"),
    ("longest_restart_ms", "longest restart, ms"),
];

/// Index of the p99 in [`FIGURES`].
const P99: usize = 4;

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## A rolling restart\n\n{CLIENTS} clients, {} requests/s together, half PUT, half GET, \
         synced, by a majority; each of the three nodes is stopped (SIGTERM) and started again. A \
         request that fails is retried once, at another node. *Restart*: from the signal until \
         the node accepts a write.",
        CLIENTS * RATE
    ));
    let mut kinds = vec![Kind::Three(SyncSetting::Always)];
    kinds.extend(bench.etcd.then_some(Kind::Etcd));
    let mut columns = vec![vec![Vec::new(); FIGURES.len()]; kinds.len()];
    for repeat in 0..bench.scale.repeats {
        for (kind, columns) in kinds.iter().zip(&mut columns) {
            let figures = figures(&once(bench, *kind)?);
            for (((name, _), value), column) in FIGURES.iter().zip(figures).zip(columns) {
                bench.report.figure(SECTION, &kind.to_string(), repeat, name, value);
                column.push(value);
            }
        }
    }
    let mut heads = vec!["", "p99, × etcd"];
    heads.extend(FIGURES.map(|(_, head)| head));
    let mut table = Table::new(&heads);
    let etcd = kinds.iter().position(|kind| *kind == Kind::Etcd);
    for (kind, own) in kinds.iter().zip(&columns) {
        let ratios = |etcd: usize| own[P99].iter().zip(&columns[etcd][P99]).map(|(a, b)| a / b);
        let ratios = etcd.map(|etcd| ratios(etcd).collect::<Vec<_>>()).unwrap_or_default();
        let mut row = vec![Some(kind.to_string()), format_spread(&ratios)];
        row.extend(own.iter().map(|column| format_spread(column)));
        table.row(row);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

fn format_spread(values: &[f64]) -> Option<String> {
    Spread::of(values).map(|spread| spread.to_string())
}

/// The results of one rolling restart.
struct Roll {
    tally: Tally,
    /// Longest time from the SIGTERM to a node until the restarted node accepts a write.
    longest_restart: Duration,
}

fn once(bench: &mut Bench, kind: Kind) -> Result<Roll, String> {
    let mut fleet = bench.place.start(kind)?;
    fleet.fill(KEYS)?;
    let addresses = fleet.addresses();
    let requests = Requests { write: fleet.requests(), rate: RATE };
    let (tally, longest_restart) = retrying::run_while(&addresses, requests, |_| {
        thread::sleep(LOAD_MARGIN);
        let mut longest = Duration::ZERO;
        for node in 0..fleet.nodes.len() {
            let begun = Instant::now();
            fleet.nodes[node].restart()?;
            fleet.wait_ready()?;
            longest = longest.max(begun.elapsed());
            thread::sleep(PAUSE);
        }
        thread::sleep(LOAD_MARGIN);
        Ok(longest)
    })?;
    Ok(Roll { tally, longest_restart })
}

/// Returns the figures of a rolling restart, in the order of [`FIGURES`].
fn figures(roll: &Roll) -> [f64; FIGURES.len()] {
    let Roll { tally, longest_restart } = roll;
    let at = |percent| milliseconds(&percentile(tally.took.clone(), percent));
    [
        tally.answered.len() as f64,
        tally.retried as f64,
        tally.failed as f64,
        at(50.0),
        at(99.0),
        at(99.9),
        at(100.0),
        milliseconds(&tally.longest_gap()),
        milliseconds(longest_restart),
    ]
}

fn milliseconds(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
