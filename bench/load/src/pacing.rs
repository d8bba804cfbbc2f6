//! Lateness of requests and sizes of bursts. The bursts are compared with a simulation of wrk2,
//! whose timer ticks once a millisecond.

use std::time::Duration;

use bench_table::{Spread, Table};
use load::{KeyOrder, Keys, Outcome, Pace, Plan, Target};

use crate::Bench;
use crate::place;
use crate::recorder::{Recorder, Service};

const SECTION: &str = "pacing";

const CONNECTIONS: usize = 64;

/// Length of the window in nanoseconds. Requests that arrive within one window are a burst.
const WINDOW: u64 = 100_000;

/// wrk2's timer interval, in nanoseconds.
const WRK2_TICK: u64 = 1_000_000;

/// Connections, and requests per second, of the measurement of bursts: as many as the server, which
/// has a thread for each connection, can record.
const BURSTS: (usize, f64) = (16, 5000.0);

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    lateness(bench)?;
    bursts(bench)
}

/// Measures the lateness at several shares of the highest rate of one client thread.
fn lateness(bench: &mut Bench) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let server = place::hello(dir.path())?;
    let plan = Plan {
        connections: CONNECTIONS,
        duration: Duration::from_secs(bench.seconds),
        ..Plan::new(Target::new(server.address, "/"))
    };
    let run = |plan: &Plan| load::run(plan).map_err(|error| error.to_string());
    let ceiling = run(&plan)?.throughput();
    bench.report.say(&format!(
        "## Pacing\n\nA closed loop on {CONNECTIONS} connections reaches {ceiling:.0} requests a \
         second with one client thread. Lateness of sending in an open loop, µs:"
    ));
    let mut table =
        Table::new(&["share of the ceiling", "p50", "p99", "p99.9", "max", "client CPU"]);
    for share in [0.1, 0.25, 0.5, 0.75] {
        let mut runs: Vec<Outcome> = Vec::new();
        for _ in 0..bench.repeats {
            runs.push(run(&Plan { pace: Pace::Open(ceiling * share), ..plan.clone() })?);
        }
        let name = format!("{:.0} %", share * 100.0);
        let mut cells = vec![Some(name.clone())];
        for (figure, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            let late =
                |run: &Outcome| run.all_methods().late.value_at_quantile(quantile) as f64 / 1e3;
            let values: Vec<f64> = runs.iter().map(late).collect();
            for (repeat, &value) in values.iter().enumerate() {
                bench.report.figure(SECTION, &name, repeat, &format!("late_{figure}_us"), value);
            }
            cells.push(Spread::of(&values).map(|spread| spread.to_string()));
        }
        let busy: Vec<f64> = runs.iter().map(|run| run.busy[0] * 100.0).collect();
        cells.push(Spread::of(&busy).map(|spread| format!("{spread} %")));
        table.row(cells);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

/// Measures the bursts by the arrival times that the server records.
fn bursts(bench: &mut Bench) -> Result<(), String> {
    let (connections, rate) = BURSTS;
    let server = Recorder::start(Service::None)?;
    let plan = Plan {
        connections,
        pace: Pace::Open(rate),
        duration: Duration::from_secs(bench.seconds),
        keys: Keys { order: KeyOrder::Sequential, count: u64::MAX >> 16, len: 16 },
        ..Plan::new(Target::new(server.address, "/{key}"))
    };
    let outcome = load::run(&plan).map_err(|error| error.to_string())?;
    let seen = server.wait_for_requests(outcome.planned)?;
    let start = outcome.started;
    let since = |at: std::time::Instant| at.saturating_duration_since(start).as_nanos() as u64;
    let ours: Vec<u64> = seen.iter().map(|seen| since(seen.came)).collect();
    let slots: Vec<u64> = (0..outcome.planned).map(|i| (i as f64 * 1e9 / rate) as u64).collect();
    let ticks = slots.iter().map(|slot| slot.next_multiple_of(WRK2_TICK)).collect();
    bench.report.say(&format!(
        "Requests that come within the same {} µs at {rate} a second: for each request, how many \
         came no more than that before it, itself included. wrk2's are simulated: each slot leaves \
         at the next full millisecond.",
        WINDOW / 1000
    ));
    let mut table = Table::new(&["", "mean", "p99", "most"]);
    for (name, times) in [("the plan", slots), ("here, as they came", ours), ("wrk2", ticks)] {
        let sizes = sizes(times);
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len().max(1) as f64;
        let p99 = sizes.get(sizes.len() * 99 / 100).copied().unwrap_or(0);
        let most = sizes.last().copied().unwrap_or(0);
        bench.report.figure(SECTION, name, 0, "burst_p99", p99 as f64);
        let cells = [format!("{mean:.2}"), p99.to_string(), most.to_string()];
        let cells = std::iter::once(name.to_owned()).chain(cells).map(Some);
        table.row(cells.collect());
    }
    bench.report.say(&table.to_string());
    Ok(())
}

/// Returns, for each arrival, the number of arrivals in the window that ends with it, itself
/// included. The numbers are in ascending order.
fn sizes(mut times: Vec<u64>) -> Vec<u64> {
    times.sort_unstable();
    let mut first = 0;
    let mut sizes: Vec<u64> = (0..times.len())
        .map(|last| {
            while times[last] - times[first] >= WINDOW {
                first += 1;
            }
            (last - first + 1) as u64
        })
        .collect();
    sizes.sort_unstable();
    sizes
}
