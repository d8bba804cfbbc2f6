//! Repeats the *seeds* (`crates/load/tests/seeds`), published load tests that were made with wrk2:
//! open loops at the rates of their authors.

use std::time::Duration;

use bench_table::{Spread, Table};
use hdrhistogram::Histogram;
use load::{KeyOrder, Outcome, Pace, Plan, Requests};
use protocol::{Member, NodeId, Topology};

use crate::Bench;
use crate::fleet::{self, Fleet, Kind, SyncSetting, node_name};
use crate::metrics::Counts;
use crate::requests;

/// Seed 002: number of connections to each node, and requests per second to each node.
const SEED_002_LOAD: (usize, u64) = (128, 10_000);

/// Seed 000: number of connections, and PUTs and GETs per second, all to one node.
const SEED_000_LOAD: (usize, u64, u64) = (64, 40_000, 2_500);

/// Duration of a run at a fixed rate, as a multiple of `--seconds`.
const DURATION_FACTOR: u64 = 4;

/// Number of keys that are written before the measurement.
const KEYS: u64 = 50_000;

/// The figures of a run. `percentiles` are p50, p99, p99.9 and maximum in milliseconds, `rate` is
/// answers per second, and `cpu` is microseconds per request.
struct Run {
    percentiles: [f64; 4],
    rate: f64,
    failed: u64,
    cpu: f64,
    warnings: Vec<String>,
}

impl Run {
    fn of(outcomes: &[Outcome], cpu: f64) -> Self {
        let mut latency: Option<Histogram<u64>> = None;
        for outcome in outcomes {
            let intended = outcome.all_methods().intended;
            match &mut latency {
                Some(all) => *all += intended,
                None => latency = Some(intended),
            }
        }
        let ms = |quantile| {
            latency.as_ref().map_or(0.0, |all| all.value_at_quantile(quantile) as f64 / 1e6)
        };
        let answers: u64 = outcomes.iter().map(|outcome| outcome.answer_count()).sum();
        Self {
            percentiles: [ms(0.5), ms(0.99), ms(0.999), ms(1.0)],
            rate: outcomes.iter().map(Outcome::throughput).sum(),
            failed: outcomes.iter().map(|o| o.planned - o.tally.statuses.success()).sum(),
            cpu: cpu * 1e6 / answers.max(1) as f64,
            warnings: outcomes.iter().flat_map(Outcome::warnings).map(|w| w.to_string()).collect(),
        }
    }
}

/// Measures seed 002: 10,000 requests per second to each of three nodes at once, on 128 connections
/// each.
pub(crate) fn seed002(bench: &mut Bench) -> Result<(), String> {
    let (connections, rate) = SEED_002_LOAD;
    bench.report.say(&format!(
        "## Seed 002: all nodes at once\n\nOpen loop, {rate}/s on each of three nodes at once, \
         {connections} connections each, `ack` 2 of `from` 3; milliseconds from the intended start."
    ));
    let mut table = FixedRateTable::new(bench, "seed002");
    for (name, sync, put) in [
        ("GET", SyncSetting::Interval, false),
        ("PUT, interval", SyncSetting::Interval, true),
        ("PUT, always", SyncSetting::Always, true),
    ] {
        let fleet = table.bench.place.start(Kind::Three(sync))?;
        fleet.fill(KEYS)?;
        let mut runs = Vec::new();
        for _ in 0..table.bench.scale.repeats {
            let plans: Vec<Plan> = fleet
                .addresses()
                .into_iter()
                .map(|target| {
                    let plan = create_open_loop_plan(&fleet, table.bench, put, connections, rate);
                    Plan { targets: fleet::targets(&[target]), ..plan }
                })
                .collect();
            let cpu = fleet.cpu();
            let outcomes = run_at_once(&plans)?;
            runs.push(Run::of(&outcomes, fleet.cpu() - cpu));
        }
        table.row(name, &runs, None);
    }
    table.end();
    Ok(())
}

/// Measures seed 000: one copy of each key, and requests to one node, so that other nodes hold most
/// of the requested keys.
pub(crate) fn seed000(bench: &mut Bench) -> Result<(), String> {
    let (connections, puts, gets) = SEED_000_LOAD;
    bench.report.say(&format!(
        "## Seed 000: one copy\n\nOpen loop, {connections} connections to one of three nodes, \
         `ack` 1 of `from` 1: PUT {puts}/s, GET {gets}/s; milliseconds from the intended start. \
         Proxied: messages that the asked node sent to others, a request; by placement, {:.1} % of \
         the keys are others'.",
        share_of_others() * 100.0
    ));
    let mut table = FixedRateTable::new(bench, "seed000");
    for (name, sync, put, rate) in [
        ("GET", SyncSetting::Interval, false, gets),
        ("PUT, interval", SyncSetting::Interval, true, puts),
        ("PUT, always", SyncSetting::Always, true, puts),
    ] {
        let fleet = table.bench.place.start(Kind::Three(sync))?;
        let asked = &fleet.addresses()[..1];
        let plan = create_open_loop_plan(&fleet, table.bench, put, connections, rate);
        let requests = Requests::Custom(requests::ONE_COPY);
        let plan = Plan { targets: fleet::targets(asked), requests, ..plan };
        let filling = Plan { put_percent: 100, limit: KEYS, pace: Pace::Closed, ..plan.clone() };
        fleet::run(&filling)?;
        let (mut runs, mut proxied) = (Vec::new(), Vec::new());
        for _ in 0..table.bench.scale.repeats {
            let (cpu, before) = (fleet.cpu(), Counts::of(asked));
            let outcome = fleet::run(&plan)?;
            let sent = Counts::of(asked).since(&before).get("peer_messages_sent");
            proxied.push(sent / outcome.answer_count().max(1) as f64 * 100.0);
            runs.push(Run::of(&[outcome], fleet.cpu() - cpu));
        }
        table.row(name, &runs, Spread::of(&proxied));
    }
    table.end();
    Ok(())
}

/// Creates the plan of an open loop. PUTs write from the first key on, and GETs read any existing
/// key.
fn create_open_loop_plan(
    fleet: &Fleet,
    bench: &Bench,
    put: bool,
    connections: usize,
    rate: u64,
) -> Plan {
    let duration = Duration::from_secs(bench.scale.seconds * DURATION_FACTOR);
    let mut plan = fleet.plan(true, KEYS, duration);
    plan.connections = connections;
    plan.pace = Pace::Open(rate as f64);
    if put {
        plan.put_percent = 100;
        plan.keys.order = KeyOrder::Sequential;
        plan.keys.count = u64::MAX >> 16;
    }
    plan
}

/// Runs all plans at once, each on a thread of its own.
fn run_at_once(plans: &[Plan]) -> Result<Vec<Outcome>, String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            plans.iter().map(|plan| scope.spawn(move || fleet::run(plan))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a client thread panicked".to_owned())?)
            .collect()
    })
}

/// Returns the share of the keys whose only copy is not on the first of three nodes.
fn share_of_others() -> f64 {
    let member = |n| Member { name: node_name(n), zone: String::new(), weight: 1 };
    let topology = Topology::new((0..3).map(member).collect(), 3).expect("these are a cluster");
    let first = topology.find(&node_name(0));
    let mut nodes: Vec<NodeId> = Vec::new();
    let others = (0..KEYS).filter(|number| {
        let key = format!("key{number}");
        topology.replicas(topology.partition_of(key.as_bytes()), 1, &mut nodes);
        nodes.first().copied() != first
    });
    others.count() as f64 / KEYS as f64
}

/// A table of runs at fixed rates.
struct FixedRateTable<'a> {
    bench: &'a mut Bench,
    section: &'static str,
    table: Table,
    warnings: Vec<String>,
}

impl<'a> FixedRateTable<'a> {
    fn new(bench: &'a mut Bench, section: &'static str) -> Self {
        let table = Table::new(&[
            "",
            "p50",
            "p99",
            "p99.9",
            "max",
            "answers/s",
            "CPU µs/request, all nodes",
            "proxied",
            "failed",
        ]);
        Self { bench, section, table, warnings: Vec::new() }
    }

    fn row(&mut self, name: &str, runs: &[Run], proxied: Option<Spread>) {
        let spread = |of: &dyn Fn(&Run) -> f64| {
            let column: Vec<f64> = runs.iter().map(of).collect();
            Spread::of(&column).map(|spread| spread.to_string())
        };
        for (repeat, run) in runs.iter().enumerate() {
            for (figure, value) in ["p50", "p99", "p99.9", "max"].iter().zip(run.percentiles) {
                let figure = format!("{figure}_ms");
                self.bench.report.figure(self.section, name, repeat, &figure, value);
            }
            self.bench.report.figure(self.section, name, repeat, "answers_per_second", run.rate);
            for warning in &run.warnings {
                self.warnings.push(format!("{name} repeat {repeat}: {warning}"));
            }
        }
        let mut line = vec![Some(name.to_owned())];
        line.extend((0..4).map(|i| spread(&|run| run.percentiles[i])));
        line.extend([spread(&|run| run.rate), spread(&|run| run.cpu)]);
        line.push(proxied.map(|percent| format!("{percent} %")));
        line.push(Some(runs.iter().map(|run| run.failed).sum::<u64>().to_string()));
        self.table.row(line);
    }

    fn end(self) {
        self.bench.report.say(&self.table.to_string());
        for warning in self.warnings {
            self.bench.report.say(&warning);
        }
    }
}
