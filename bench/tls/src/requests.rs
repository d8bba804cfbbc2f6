//! GETs and PUTs on persistent connections, with TLS and in plaintext, to one node and to a cluster
//! of three.

use std::time::Duration;

use bench_table::{Server, Spread, Table, ratio};
use load::{KeyOrder, Keys, Pace, Plan};

use crate::{Bench, order};

const SECTION: &str = "requests";

/// Number of connections of the closed loop.
const CONNECTIONS: usize = 64;

/// Number of keys, so few that even with long values all of them stay in a memtable. Flushes and
/// compactions cost the same with and without TLS, and would only hide the difference.
const KEYS: u64 = 2_000;

/// Lengths of values in bytes: the usual length of these benchmarks, and one of several TCP
/// segments.
const LENGTHS: [usize; 2] = [64, 8 << 10];

/// Time limit for filling a store.
const FILL_TIMEOUT: Duration = Duration::from_secs(120);

/// A measured combination of cluster and requests.
struct Row {
    nodes: usize,
    put: bool,
    value_len: usize,
    rates: [Vec<f64>; 2],
    micros: [Vec<f64>; 2],
}

impl Row {
    fn name(&self) -> String {
        let nodes = if self.nodes == 1 { "one node" } else { "three nodes" };
        let method = if self.put { "PUT" } else { "GET" };
        format!("{nodes}, {method} of {} bytes", self.value_len)
    }
}

/// Two equal clusters: the first in plaintext, the second with TLS.
struct Pair {
    servers: [Vec<Server>; 2],
    plans: [Plan; 2],
}

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let mut rows = Vec::new();
    for nodes in [1, 3] {
        for value_len in LENGTHS {
            let pair = Pair::start(bench, nodes, value_len)?;
            let mut of_pair: Vec<Row> = [false, true]
                .map(|put| Row {
                    nodes,
                    put,
                    value_len,
                    rates: Default::default(),
                    micros: Default::default(),
                })
                .into();
            for repeat in 0..bench.repeats {
                for index in order(4, repeat) {
                    let (row, secure) = (&mut of_pair[index / 2], index % 2);
                    pair.measure(bench, row, secure, repeat)?;
                }
            }
            rows.extend(of_pair);
        }
    }
    bench.report.say(&format!(
        "## Kept connections\n\nClosed loop on {CONNECTIONS} connections, {KEYS} keys, `--sync \
         interval:100`; of three nodes, all of which are asked, the CPU time of all. Three nodes \
         speak TLS with each other too."
    ));
    let mut table = Table::new(&[
        "",
        "requests/s, TLS × clear",
        "CPU per request, TLS × clear",
        "requests/s, clear",
        "TLS",
        "server CPU µs/request, clear",
        "TLS",
    ]);
    for row in &rows {
        let [clear, tls] = &row.rates;
        let [clear_micros, tls_micros] = &row.micros;
        let shown = |values: &Vec<f64>| Spread::of(values).map(|spread| spread.to_string());
        table.row(vec![
            Some(row.name()),
            ratio(tls, clear).map(|spread| spread.to_string()),
            ratio(tls_micros, clear_micros).map(|spread| spread.to_string()),
            shown(clear),
            shown(tls),
            shown(clear_micros),
            shown(tls_micros),
        ]);
    }
    bench.report.say(&table.to_string());
    bench.report.say(&between_nodes(&rows));
    Ok(())
}

/// Describes the cost of TLS between nodes: the cost of TLS in a cluster, less that on a single
/// node, which has TLS only with clients.
fn between_nodes(rows: &[Row]) -> String {
    let median = |values: &Vec<f64>| Spread::of(values).map_or(0.0, |spread| spread.median);
    let added = |row: &Row| median(&row.micros[1]) - median(&row.micros[0]);
    let lines = rows.iter().filter(|row| row.nodes == 3).filter_map(|row| {
        let alone = rows
            .iter()
            .find(|one| one.nodes == 1 && one.put == row.put && one.value_len == row.value_len)?;
        let peers = added(row) - added(alone);
        let share = peers / median(&row.micros[0]) * 100.0;
        Some(format!(
            "* {}: TLS adds {:.1} µs, {:.1} of them with clients (as it does to one node); between \
             nodes {peers:.1} µs, {share:.0} % of what a request takes in clear.",
            row.name(),
            added(row),
            added(alone),
        ))
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Pair {
    fn start(bench: &mut Bench, nodes: usize, value_len: usize) -> Result<Self, String> {
        let mut start = |secure| -> Result<(Vec<Server>, Plan), String> {
            let servers = bench.place.nodes(nodes, secure, &["--sync", "interval:100"])?;
            let targets: Vec<_> =
                servers.iter().map(|server| bench.place.target(server, secure)).collect();
            let plan = Plan {
                targets,
                connections: CONNECTIONS,
                duration: Duration::from_secs(bench.seconds),
                warmup: Duration::from_millis(300),
                keys: Keys { order: KeyOrder::Uniform, count: KEYS, len: 16 },
                value_len,
                ..Plan::new(bench.place.target(&servers[0], secure))
            };
            fill(&plan)?;
            servers.iter().for_each(Server::pause);
            Ok((servers, plan))
        };
        let (clear, clear_plan) = start(false)?;
        let (tls, tls_plan) = start(true)?;
        Ok(Self { servers: [clear, tls], plans: [clear_plan, tls_plan] })
    }

    fn measure(
        &self,
        bench: &mut Bench,
        row: &mut Row,
        secure: usize,
        repeat: usize,
    ) -> Result<(), String> {
        let servers = &self.servers[secure];
        servers.iter().for_each(Server::resume);
        let plan =
            Plan { put_percent: if row.put { 100 } else { 0 }, ..self.plans[secure].clone() };
        // After a pause, nodes first reconnect to one another, which must not count.
        settle(&plan)?;
        let before: f64 = servers.iter().map(Server::cpu).sum();
        let outcome = load::run(&plan).map_err(|error| error.to_string())?;
        let cpu = servers.iter().map(Server::cpu).sum::<f64>() - before;
        servers.iter().for_each(Server::pause);
        let answered = outcome.answer_count() as f64;
        let good = outcome.tally.statuses.success() as f64;
        if good < answered * 0.999 {
            return Err(format!("{}: not all was done:\n{outcome}", row.name()));
        }
        // `cpu` includes the warm-up, whose requests are not in `answered`.
        let share = bench.seconds as f64 / (bench.seconds as f64 + plan.warmup.as_secs_f64());
        let (rate, micros) = (outcome.throughput(), cpu * share * 1e6 / answered);
        let name = format!("{} {}", row.name(), if secure == 1 { "TLS" } else { "clear" });
        bench.report.figure(SECTION, &name, repeat, "requests_per_s", rate);
        bench.report.figure(SECTION, &name, repeat, "server_cpu_us", micros);
        row.rates[secure].push(rate);
        row.micros[secure].push(micros);
        Ok(())
    }
}

fn fill(plan: &Plan) -> Result<(), String> {
    let mut plan = Plan { duration: FILL_TIMEOUT, limit: KEYS, put_percent: 100, ..plan.clone() };
    plan.warmup = Duration::ZERO;
    plan.keys.order = KeyOrder::Scattered;
    plan.pace = Pace::Closed;
    let outcome = load::run(&plan).map_err(|error| error.to_string())?;
    match outcome.tally.statuses.success() {
        KEYS => Ok(()),
        done => Err(format!("only {done} of {KEYS} keys could be put:\n{outcome}")),
    }
}

fn settle(plan: &Plan) -> Result<(), String> {
    let plan = Plan { duration: Duration::from_millis(500), ..plan.clone() };
    load::run(&plan).map(drop).map_err(|error| error.to_string())
}
