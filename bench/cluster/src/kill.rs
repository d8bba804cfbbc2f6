//! Kills and restarts one of three nodes under load. Measures the errors and delays that clients
//! see, and the time until the other nodes have replayed their hints of the writes that the node
//! missed.
//!
//! ```text
//!   0        1/4            1/2                               end
//!   ├─ load ─┼─ node 3 down ─┼─ node 3 up: hints are replayed ────┤
//! ```

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bench_table::{Spread, Table};

use crate::Bench;
use crate::fleet::{Kind, SyncSetting};
use crate::metrics::SCRAPE_TIMEOUT;
use crate::retrying::{self, CLIENTS, KEYS, Requests, Tally, sleep_until};

const SECTION: &str = "kill";

/// Requests per second of each client, half of them PUTs.
const RATE: u64 = 125;

/// Duration of a run, as a multiple of `--seconds`.
const DURATION_FACTOR: u64 = 6;

/// Time limit for the delivery of the hints after the end of the load.
const HINTS_LIMIT: Duration = Duration::from_secs(60);

/// Delivery of the hints.
struct Hints {
    /// Number of hints that the other nodes stored just before the node was started again.
    most: u64,
    /// Time from when the node listens again until no hint is left; `None` if hints are left at
    /// [`HINTS_LIMIT`].
    took: Option<Duration>,
}

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let seconds = bench.scale.seconds * DURATION_FACTOR;
    bench.report.say(&format!(
        "## A node killed and back\n\n{CLIENTS} clients, {} requests/s together, half PUT, half \
         GET, `ack` 2 of `from` 3, `--sync always`, for {seconds} s; node 3 is killed (SIGKILL) \
         after a quarter and started again after a half. A request that fails is retried once, \
         at another node.",
        CLIENTS * RATE
    ));
    let mut columns: [Vec<f64>; 7] = Default::default();
    for repeat in 0..bench.scale.repeats {
        let (tally, hints) = once(bench, Duration::from_secs(seconds))?;
        let rate = hints.took.map_or(f64::NAN, |took| hints.most as f64 / took.as_secs_f64());
        let slowest = tally.took.iter().max().copied().unwrap_or_default();
        let figures = [
            ("answered", tally.answered.len() as f64),
            ("retried", tally.retried as f64),
            ("failed", tally.failed as f64),
            ("longest_gap_ms", tally.longest_gap().as_secs_f64() * 1e3),
            ("slowest_ms", slowest.as_secs_f64() * 1e3),
            ("hints", hints.most as f64),
            ("hints_per_second", rate),
        ];
        for (column, (figure, value)) in columns.iter_mut().zip(figures) {
            bench.report.figure(SECTION, "kill", repeat, figure, value);
            column.push(value);
        }
    }
    let mut table = Table::new(&["", "median (least–greatest)"]);
    for (name, column) in [
        "requests answered",
        "retried requests",
        "failed again",
        "longest time without any answer, ms",
        "slowest request, ms",
        "hints that waited",
        "hints replayed a second",
    ]
    .iter()
    .zip(&columns)
    {
        let known: Vec<f64> = column.iter().copied().filter(|value| !value.is_nan()).collect();
        table.row(vec![
            Some((*name).to_owned()),
            Spread::of(&known).map(|spread| spread.to_string()),
        ]);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

fn once(bench: &mut Bench, duration: Duration) -> Result<(Tally, Hints), String> {
    let mut fleet = bench.place.start(Kind::Three(SyncSetting::Always))?;
    fleet.fill(KEYS)?;
    let addresses = fleet.addresses();
    let requests = Requests { write: fleet.requests(), rate: RATE };
    retrying::run_while(&addresses, requests, |start| {
        sleep_until(start + duration / 4);
        // Dropping the node kills its process.
        drop(fleet.nodes.pop());
        sleep_until(start + duration / 2);
        let command = bench.place.kvorum(SyncSetting::Always, &addresses, 2)?;
        let most = hints_waiting(&addresses[..2]);
        fleet.nodes.push(bench.place.launch(command, addresses[2])?);
        let back = Instant::now();
        let took = time_until_delivered(&addresses[..2], back, start + duration);
        sleep_until(start + duration);
        Ok(Hints { most, took })
    })
}

/// Returns the time from `back` until no hint was left, or `None` if some were still left
/// `HINTS_LIMIT` after `end`.
fn time_until_delivered(nodes: &[SocketAddr], back: Instant, end: Instant) -> Option<Duration> {
    while Instant::now() < end + HINTS_LIMIT {
        if hints_waiting(nodes) == 0 {
            return Some(back.elapsed());
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Returns the number of hints that the nodes store, from their `/v0/status`.
fn hints_waiting(nodes: &[SocketAddr]) -> u64 {
    let of = |address: &SocketAddr| -> Option<u64> {
        let page = load::server::fetch(*address, "/v0/status", SCRAPE_TIMEOUT).ok()?;
        let status: serde_json::Value = serde_json::from_str(&page).ok()?;
        let peers = status.get("peers")?.as_array()?;
        Some(peers.iter().filter_map(|peer| peer.get("hints")?.as_u64()).sum())
    };
    nodes.iter().filter_map(of).sum()
}
