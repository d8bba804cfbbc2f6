//! One connection: latency and throughput of a single client that waits for each answer.

use std::time::Duration;

use bench_table::{Spread, Table};
use load::{KeyOrder, Keys, Outcome, Pace, Plan};

use crate::Bench;
use crate::client::{self, KEY_LEN, VALUE_LEN};
use crate::process::Server;
use crate::rivals::{Rival, SyncSetting};

const SECTION: &str = "one";

/// Requests per second of the open loop.
const RATE: u64 = 10_000;

const KEYS: u64 = 200_000;

struct Row {
    name: &'static str,
    put_percent: u8,
    server: Server,
    open: Vec<Outcome>,
    closed: Vec<Outcome>,
}

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## One connection\n\nOpen loop at {RATE}/s, latency from the intended start; and a closed \
         loop, which is all that one connection can do."
    ));
    let mut rows = start(bench);
    for repeat in 0..bench.scale.repeats {
        for row in &mut rows {
            row.server.resume();
            let open = measure(row, Pace::Open(RATE as f64), bench.scale.seconds, repeat)?;
            let closed = measure(row, Pace::Closed, bench.scale.seconds, repeat)?;
            row.server.pause();
            for (figure, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p99.9_us", 0.999)] {
                bench.report.figure(SECTION, row.name, repeat, figure, micros(&open, quantile));
            }
            let closed_rate = closed.throughput();
            bench.report.figure(SECTION, row.name, repeat, "open_per_second", open.throughput());
            bench.report.figure(SECTION, row.name, repeat, "closed_per_second", closed_rate);
            row.open.push(open);
            row.closed.push(closed);
        }
    }
    let columns = ["", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "answers/s", "closed loop/s"];
    let mut table = Table::new(&columns);
    for row in &rows {
        let open = |figure: &dyn Fn(&Outcome) -> f64| {
            Spread::of(&row.open.iter().map(figure).collect::<Vec<_>>()).map(|s| s.to_string())
        };
        let closed: Vec<f64> = row.closed.iter().map(Outcome::throughput).collect();
        table.row(vec![
            Some(row.name.to_owned()),
            open(&|outcome| micros(outcome, 0.5)),
            open(&|outcome| micros(outcome, 0.99)),
            open(&|outcome| micros(outcome, 0.999)),
            open(&|outcome| micros(outcome, 1.0)),
            open(&Outcome::throughput),
            Spread::of(&closed).map(|s| s.to_string()),
        ]);
    }
    bench.report.say(&table.to_string());
    for row in &rows {
        for (repeat, outcome) in row.open.iter().enumerate() {
            for warning in outcome.warnings() {
                bench.report.say(&format!("{} repeat {repeat}: {warning}", row.name));
            }
        }
    }
    Ok(())
}

fn start(bench: &mut Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, rival, put_percent) in [
        ("hyper hello, GET", Rival::Hyper, 0),
        ("kvorum GET", Rival::kvorum(SyncSetting::Interval), 0),
        ("kvorum PUT, interval", Rival::kvorum(SyncSetting::Interval), 100),
        ("kvorum PUT, always", Rival::kvorum(SyncSetting::Always), 100),
    ] {
        let server = bench.place.start(&rival).and_then(|server| {
            if let Rival::Kvorum(..) = rival {
                client::fill(&server, KEYS, VALUE_LEN)?;
                client::settle(&server);
            }
            server.pause();
            Ok(server)
        });
        match server {
            Ok(server) => {
                let (open, closed) = (Vec::new(), Vec::new());
                rows.push(Row { name, put_percent, server, open, closed });
            }
            Err(why) => bench.report.say(&format!("Skipped {name}: {why}")),
        }
    }
    rows
}

fn measure(row: &Row, pace: Pace, seconds: u64, repeat: usize) -> Result<Outcome, String> {
    let plan = Plan {
        connections: 1,
        pace,
        duration: Duration::from_secs(seconds),
        put_percent: row.put_percent,
        keys: Keys { order: KeyOrder::Uniform, count: KEYS, len: KEY_LEN },
        value_len: VALUE_LEN,
        seed: repeat as u64,
        ..Plan::new(client::target(&row.server))
    };
    load::run(&plan).map_err(|error| error.to_string())
}

fn micros(outcome: &Outcome, quantile: f64) -> f64 {
    outcome.all_methods().intended.value_at_quantile(quantile) as f64 / 1e3
}
