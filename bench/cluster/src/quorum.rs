//! Requests per second of three nodes, of one node and of etcd in a closed loop.

use std::time::Duration;

use bench_table::{Spread, Table, ratio};
use load::{KeyOrder, Plan};

use crate::Bench;
use crate::cost;
use crate::fleet::{self, CONNECTIONS, Fleet, Kind, SyncSetting};

const SECTION: &str = "quorum";

/// Number of keys of `PUT`s, which write one key after another. No run makes as many requests, so
/// that no key is written twice.
const PUT_KEYS: u64 = 100_000_000;

/// One row of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) fleet: Fleet,
    pub(crate) put: bool,
    /// True if the client sends requests to all nodes, false if only to the first.
    all: bool,
    /// Name of the row of one node to compare with.
    one: &'static str,
    /// Name of the row of etcd to compare with.
    etcd: &'static str,
    runs: Vec<Run>,
}

/// The figures of one run.
struct Run {
    rate: f64,
    /// CPU time of all nodes, in microseconds per request.
    micros: f64,
    percentiles: [f64; 3],
    failed: u64,
    /// Share of a CPU that the client used.
    client: f64,
}

const ONE_GET: &str = "GET, one node";
const ONE_PUT_ALWAYS: &str = "PUT always, one node";
const ONE_PUT_INTERVAL: &str = "PUT interval, one node";
const ETCD_GET: &str = "GET, etcd";
const ETCD_PUT: &str = "PUT, etcd";

type RowDefinition = (&'static str, Kind, bool, bool, &'static str, &'static str);

/// The rows: name, cluster, true for `PUT`, true for requests to all nodes, and the names of the
/// rows of one node and of etcd to compare with.
const ROWS: [RowDefinition; 10] = [
    (ONE_GET, Kind::One(SyncSetting::Interval), false, true, ONE_GET, ETCD_GET),
    ("GET, one node (again)", Kind::One(SyncSetting::Interval), false, true, ONE_GET, ETCD_GET),
    ("GET, three nodes", Kind::Three(SyncSetting::Interval), false, true, ONE_GET, ETCD_GET),
    (
        "GET, three, by one of them",
        Kind::Three(SyncSetting::Interval),
        false,
        false,
        ONE_GET,
        ETCD_GET,
    ),
    (ETCD_GET, Kind::Etcd, false, true, ONE_GET, ETCD_GET),
    (ONE_PUT_ALWAYS, Kind::One(SyncSetting::Always), true, true, ONE_PUT_ALWAYS, ETCD_PUT),
    (
        "PUT always, three nodes",
        Kind::Three(SyncSetting::Always),
        true,
        true,
        ONE_PUT_ALWAYS,
        ETCD_PUT,
    ),
    (ETCD_PUT, Kind::Etcd, true, true, ONE_PUT_ALWAYS, ETCD_PUT),
    (ONE_PUT_INTERVAL, Kind::One(SyncSetting::Interval), true, true, ONE_PUT_INTERVAL, ETCD_PUT),
    (
        "PUT interval, three nodes",
        Kind::Three(SyncSetting::Interval),
        true,
        true,
        ONE_PUT_INTERVAL,
        ETCD_PUT,
    ),
];

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## Quorum\n\nClosed loop, {CONNECTIONS} connections over all nodes, `ack` 2 of `from` 3 \
         (of one node: 1 of 1); keys and values of the seeds (`keyN`, `valueN`). PUT: from key0 \
         on; GET: any of the {} keys that are there.",
        bench.scale.keys
    ));
    let mut rows = start(bench);
    for repeat in 0..bench.scale.repeats {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let run = rows[index].measure(bench)?;
            let name = rows[index].name;
            bench.report.figure(SECTION, name, repeat, "requests_per_second", run.rate);
            bench.report.figure(SECTION, name, repeat, "nodes_us", run.micros);
            bench.report.figure(SECTION, name, repeat, "failed", run.failed as f64);
            for (figure, value) in ["p50_ms", "p99_ms", "p99.9_ms"].iter().zip(run.percentiles) {
                bench.report.figure(SECTION, name, repeat, figure, value);
            }
            rows[index].runs.push(run);
        }
    }
    let table = table(&rows);
    bench.report.say(&table.to_string());
    cost::run(bench, &rows)?;
    let commands = rows.iter().flat_map(|row| row.fleet.nodes.first());
    let commands: Vec<String> = commands.map(|node| format!("* `{}`", node.argv)).collect();
    bench.report.say(&format!("First node of each row:\n\n{}", commands.join("\n")));
    Ok(())
}

/// Starts a cluster for each row, and writes all keys. A cluster that can't be started is reported
/// and left out.
fn start(bench: &mut Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, kind, put, all, one, etcd) in ROWS {
        if kind == Kind::Etcd && !bench.etcd {
            continue;
        }
        let fleet = bench.place.start(kind).and_then(|fleet| {
            fleet.fill(bench.scale.keys)?;
            fleet.pause();
            Ok(fleet)
        });
        match fleet {
            Ok(fleet) => rows.push(Row { name, fleet, put, all, one, etcd, runs: Vec::new() }),
            Err(why) => bench.report.say(&format!("Skipped {name}: {why}")),
        }
    }
    rows
}

impl Row {
    /// Creates the plan of a closed loop of this duration.
    pub(crate) fn plan(&self, keys: u64, duration: Duration) -> Plan {
        let mut plan = self.fleet.plan(self.all, keys, duration);
        if self.put {
            plan.put_percent = 100;
            plan.keys.order = KeyOrder::Sequential;
            plan.keys.count = PUT_KEYS;
        }
        plan
    }

    fn measure(&self, bench: &Bench) -> Result<Run, String> {
        let plan = self.plan(bench.scale.keys, Duration::from_secs(bench.scale.seconds));
        self.fleet.resume(&plan)?;
        let cpu = self.fleet.cpu();
        let outcome = fleet::run(&plan)?;
        let cpu = self.fleet.cpu() - cpu;
        self.fleet.pause();
        let latency = outcome.all_methods().intended;
        let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
        Ok(Run {
            rate: outcome.throughput(),
            micros: cpu * 1e6 / outcome.answer_count().max(1) as f64,
            percentiles: [ms(0.5), ms(0.99), ms(0.999)],
            failed: outcome.planned - outcome.tally.statuses.success(),
            client: outcome.client_cpu.as_secs_f64() / outcome.elapsed.as_secs_f64(),
        })
    }

    fn column(&self, of: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(of).collect()
    }
}

fn table(rows: &[Row]) -> Table {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    let mut table = Table::new(&[
        "",
        "× one node",
        "CPU, × one node",
        "× etcd",
        "requests/s",
        "CPU µs/request, all nodes",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "client's CPU",
        "failed",
    ]);
    for row in rows {
        let over = |name: &str, of: fn(&Run) -> f64| {
            let to = find(name)?.column(of);
            ratio(&row.column(of), &to).map(|ratio| ratio.to_string())
        };
        let spread =
            |of: &dyn Fn(&Run) -> f64| Spread::of(&row.column(of)).map(|spread| spread.to_string());
        let client = Spread::of(&row.column(|run| run.client));
        table.row(vec![
            Some(row.name.to_owned()),
            over(row.one, |run| run.rate),
            over(row.one, |run| run.micros),
            over(row.etcd, |run| run.rate),
            spread(&|run| run.rate),
            spread(&|run| run.micros),
            spread(&|run| run.percentiles[0]),
            spread(&|run| run.percentiles[1]),
            spread(&|run| run.percentiles[2]),
            client.map(|client| format!("{:.0} %", client.median * 100.0)),
            Some(row.runs.iter().map(|run| run.failed).sum::<u64>().to_string()),
        ]);
    }
    table
}
