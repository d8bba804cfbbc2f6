//! What a condition costs: conditional writes beside plain ones and beside etcd's transactions,
//! and what many of them to one key do to each other.
//!
//! ```text
//!                       ┌▶ kvorum, three nodes ─ PUT, PUT If-Match, add=1, PUT If-None-Match
//!   one thread, closed ─┤
//!                       └▶ etcd, three nodes, its leader ─ a transaction: compare, then put
//! ```
//!
//! All rows of kvorum share one cluster: a plain write and a conditional one differ in nothing but
//! the condition, not even in their keys.

use std::net::SocketAddr;
use std::time::Duration;

use bench_table::{Spread, Table, ratio};
use load::{Outcome, Plan, Requests, Warning, Write};

use crate::Bench;
use crate::etcd;
use crate::fleet::{self, Fleet, Kind, Sync};
use crate::metrics::{Counts, LIMIT};
use crate::requests;

const SECTION: &str = "conditional";

/// Keys that writes are dealt over, but for rows of one key.
const KEYS: u64 = 1_000;

const KVORUM: Kind = Kind::Three(Sync::Always);

const PUT_1: &str = "PUT, 1 connection";
const ETCD_1: &str = "etcd, 1 connection";
const PUT_16: &str = "PUT, 16 connections";
const ETCD_16: &str = "etcd, 16 connections";
const ADD_1: &str = "add=1, 1 client";

/// What a row sends, and what it is compared with.
struct Line {
    name: &'static str,
    kind: Kind,
    write: Write,
    connections: usize,
    /// Whether the connections are dealt over all nodes, or all to one.
    all: bool,
    /// The status of an answer that is as it should be.
    status: u16,
    /// The row of kvorum to compare with.
    base: &'static str,
    /// The row of etcd to compare with.
    etcd: Option<&'static str>,
}

impl Line {
    /// A `PUT` by kvorum, to one of its nodes.
    const fn put(name: &'static str, write: Write, connections: usize) -> Self {
        let (base, etcd) = if connections == 1 { (PUT_1, ETCD_1) } else { (PUT_16, ETCD_16) };
        let (kind, all, status, etcd) = (KVORUM, false, 201, Some(etcd));
        Self { name, kind, write, connections, all, status, base, etcd }
    }

    const fn etcd(name: &'static str, connections: usize) -> Self {
        let line = Self::put(name, requests::ETCD_IF, connections);
        Self { kind: Kind::Etcd, status: 200, ..line }
    }

    /// Additions to one number.
    const fn add(name: &'static str, connections: usize, all: bool) -> Self {
        let line = Self::put(name, requests::ADD, connections);
        Self { all, status: 200, base: ADD_1, etcd: None, ..line }
    }

    const fn unmet(name: &'static str, connections: usize) -> Self {
        let line = Self::put(name, requests::IF_NONE_MATCH, connections);
        Self { status: 412, base: ADD_1, etcd: None, ..line }
    }

    /// Whether it is about many keys, and so in the first table.
    fn many(&self) -> bool {
        self.etcd.is_some()
    }

    fn adds(&self) -> bool {
        !self.many() && self.status == 200
    }
}

const LINES: [Line; 12] = [
    Line::put(PUT_1, requests::PLAIN, 1),
    Line::put("PUT If-Match, 1 connection", requests::IF_MATCH, 1),
    Line::etcd(ETCD_1, 1),
    Line::put(PUT_16, requests::PLAIN, 16),
    Line::put("PUT If-Match, 16 connections", requests::IF_MATCH, 16),
    Line::put("PUT If-Match, 16 (again)", requests::IF_MATCH, 16),
    Line::etcd(ETCD_16, 16),
    Line::add(ADD_1, 1, false),
    Line::add("add=1, 8 clients", 8, false),
    Line::add("add=1, 64 clients", 64, false),
    Line::add("add=1, 63 clients of all nodes", 63, true),
    Line::unmet("If-None-Match, 412, 16 clients", 16),
];

/// A line with its repeats.
struct Row {
    line: Line,
    runs: Vec<Run>,
}

/// What one repeat gave.
struct Run {
    rate: f64,
    /// CPU time of all nodes, in microseconds a request.
    micros: f64,
    /// Milliseconds.
    mean: f64,
    /// p50, p99 and the greatest, in milliseconds.
    percentiles: [f64; 3],
    /// Messages between nodes, a request; etcd does not count them.
    messages: Option<f64>,
    /// Syncs of the nodes' logs, a request.
    syncs: f64,
    failed: u64,
    warnings: Vec<String>,
}

/// Measures and reports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## Conditional writes\n\nThree nodes, `--sync always`; closed loop, one thread, to one \
         node; {KEYS} keys, values of 10 bytes. `PUT If-Match` has the condition `*`. etcd: a \
         transaction that compares `mod_revision` and puts, by its JSON gateway, to the node \
         that leads. Syncs are those of the logs."
    ));
    let fleets = start(bench)?;
    let lines = LINES.into_iter().filter(|line| fleets.iter().any(|fleet| fleet.kind == line.kind));
    let mut rows: Vec<Row> = lines.map(|line| Row { line, runs: Vec::new() }).collect();
    let repeats = bench.scale.repeats;
    for repeat in 0..repeats {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let row = &mut rows[index];
            eprintln!("{SECTION}: repeat {} of {repeats}: {}", repeat + 1, row.line.name);
            let fleet = fleets.iter().find(|fleet| fleet.kind == row.line.kind);
            let fleet = fleet.expect("lines without a fleet were left out");
            let run = row.line.measure(fleet, Duration::from_secs(bench.scale.seconds))?;
            run.keep(bench, row.line.name, repeat);
            row.runs.push(run);
        }
    }
    bench.report.say(&many_keys(&rows).to_string());
    bench.report.say(
        "### One key\n\nAdditions to one number, which was checked after each repeat: it grew by \
         what was acknowledged; and a write whose condition is not true.",
    );
    bench.report.say(&one_key(&rows).to_string());
    for row in &rows {
        for (repeat, run) in row.runs.iter().enumerate() {
            for warning in &run.warnings {
                bench.report.say(&format!("{}, repeat {}: {warning}", row.line.name, repeat + 1));
            }
        }
    }
    let commands = fleets.iter().flat_map(|fleet| fleet.nodes.first());
    let commands: Vec<String> = commands.map(|node| format!("* `{}`", node.argv)).collect();
    bench.report.say(&format!("First node of each:\n\n{}", commands.join("\n")));
    Ok(())
}

/// Starts and fills kvorum, and etcd if it can be; says if not.
fn start(bench: &mut Bench) -> Result<Vec<Fleet>, String> {
    let mut fleets = vec![filled(bench, KVORUM)?];
    if bench.etcd {
        eprintln!("{SECTION}: starting etcd");
        match filled(bench, Kind::Etcd) {
            Ok(fleet) => fleets.push(fleet),
            Err(why) => bench.report.say(&format!("Skipped etcd: {why}")),
        }
    }
    Ok(fleets)
}

fn filled(bench: &mut Bench, kind: Kind) -> Result<Fleet, String> {
    let fleet = bench.place.start(kind)?;
    fleet.fill(KEYS)?;
    fleet.pause();
    Ok(fleet)
}

impl Line {
    fn measure(&self, fleet: &Fleet, duration: Duration) -> Result<Run, String> {
        let mut plan = Plan {
            connections: self.connections,
            requests: Requests::Custom(self.write),
            put_percent: 100,
            ..fleet.plan(self.all, KEYS, duration)
        };
        fleet.resume(&plan)?;
        let nodes = fleet.addresses();
        if fleet.kind == Kind::Etcd {
            plan.targets = fleet::targets(&[etcd::leader(&nodes)?]);
        }
        let before_it = if self.adds() { sum(nodes[0])? } else { 0 };
        let (before, cpu) = (Counts::of(&nodes), fleet.cpu());
        let outcome = fleet::run(&plan)?;
        let cpu = fleet.cpu() - cpu;
        let counts = Counts::of(&nodes).since(&before);
        let done = outcome.tally.statuses.of(self.status);
        if self.adds() {
            check_sum(sum(nodes[0])? - before_it, done, outcome.planned)?;
        }
        fleet.pause();
        Ok(self.run(&outcome, cpu, &counts))
    }

    fn run(&self, outcome: &Outcome, cpu: f64, counts: &Counts) -> Run {
        let requests = outcome.answered().max(1) as f64;
        let latency = outcome.both().intended;
        let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
        let (messages, syncs) = match self.kind {
            Kind::Etcd => (None, counts.named("etcd_disk_wal_fsync_duration_seconds_count")),
            _ => (Some(counts.get("peer_messages_sent")), counts.get("wal_syncs")),
        };
        // 412 is no failure where it is asked for.
        let told = |warning: &Warning| match warning {
            Warning::NotSuccess { status, .. } => *status != self.status,
            _ => true,
        };
        let warnings = outcome.warnings();
        Run {
            rate: outcome.throughput(),
            micros: cpu * 1e6 / requests,
            mean: latency.mean() / 1e6,
            percentiles: [ms(0.5), ms(0.99), ms(1.0)],
            messages: messages.map(|messages| messages / requests),
            syncs: syncs / requests,
            failed: outcome.planned - outcome.tally.statuses.of(self.status),
            warnings: warnings.iter().filter(|w| told(w)).map(ToString::to_string).collect(),
        }
    }
}

/// The number that is added to, as a majority has it.
fn sum(node: SocketAddr) -> Result<i64, String> {
    let path = format!("/v0/entity?id={}", requests::HOT);
    let text = load::server::fetch(node, &path, LIMIT).map_err(|error| error.to_string())?;
    text.parse().map_err(|_| format!("http://{node}{path} is {text:?}: it must be a number"))
}

/// Whether a number grew by what was acknowledged, and by no more than was sent.
fn check_sum(grown: i64, acknowledged: u64, sent: u64) -> Result<(), String> {
    let range = i128::from(acknowledged)..=i128::from(sent);
    if range.contains(&i128::from(grown)) {
        return Ok(());
    }
    Err(format!(
        "the number grew by {grown}, but of {sent} additions {acknowledged} were acknowledged: \
         some were lost, or done twice. That is a fault of kvorum: report it, with this command"
    ))
}

impl Run {
    fn keep(&self, bench: &mut Bench, name: &str, repeat: usize) {
        let [p50, p99, max] = self.percentiles;
        for (figure, value) in [
            ("requests_per_second", self.rate),
            ("nodes_us", self.micros),
            ("mean_ms", self.mean),
            ("p50_ms", p50),
            ("p99_ms", p99),
            ("max_ms", max),
            ("messages_per_request", self.messages.unwrap_or(f64::NAN)),
            ("syncs_per_request", self.syncs),
            ("failed", self.failed as f64),
        ] {
            if !value.is_nan() {
                bench.report.figure(SECTION, name, repeat, figure, value);
            }
        }
    }
}

impl Row {
    fn column(&self, of: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(of).collect()
    }

    fn spread(&self, of: impl Fn(&Run) -> f64) -> Option<String> {
        Spread::of(&self.column(of)).map(|spread| spread.to_string())
    }

    /// The median of what not all nodes count.
    fn median(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<String> {
        let known: Vec<f64> = self.runs.iter().filter_map(of).collect();
        Spread::of(&known).map(|spread| format!("{:.2}", spread.median))
    }

    /// The cells of [`FIGURES`].
    fn figures(&self) -> Vec<Option<String>> {
        vec![
            self.spread(|run| run.rate),
            self.spread(|run| run.micros),
            self.spread(|run| run.mean),
            self.spread(|run| run.percentiles[0]),
            self.spread(|run| run.percentiles[1]),
            self.spread(|run| run.percentiles[2]),
            self.median(|run| run.messages),
            self.median(|run| Some(run.syncs)),
            Some(self.runs.iter().map(|run| run.failed).sum::<u64>().to_string()),
        ]
    }
}

/// `of` over the same of the row called `name`.
fn over(rows: &[Row], row: &Row, name: &str, of: fn(&Run) -> f64) -> Option<String> {
    let to = rows.iter().find(|row| row.line.name == name)?;
    ratio(&row.column(of), &to.column(of)).map(|ratio| ratio.to_string())
}

/// What both tables end with.
const FIGURES: [&str; 9] = [
    "requests/s",
    "CPU µs/request, all nodes",
    "mean ms",
    "p50 ms",
    "p99 ms",
    "max ms",
    "messages/op",
    "syncs/op",
    "failed",
];

fn many_keys(rows: &[Row]) -> Table {
    let ratios = ["", "× PUT", "CPU, × PUT", "mean, × PUT", "× etcd", "etcd's CPU, × this"];
    let mut table = Table::new(&[&ratios[..], &FIGURES].concat());
    for row in rows.iter().filter(|row| row.line.many()) {
        let (name, base) = (row.line.name, row.line.base);
        let etcd = row.line.etcd.and_then(|name| rows.iter().find(|row| row.line.name == name));
        let ratios = vec![
            Some(name.to_owned()),
            over(rows, row, base, |run| run.rate),
            over(rows, row, base, |run| run.micros),
            over(rows, row, base, |run| run.mean),
            etcd.and_then(|etcd| over(rows, row, etcd.line.name, |run| run.rate)),
            etcd.and_then(|etcd| over(rows, etcd, name, |run| run.micros)),
        ];
        table.row([ratios, row.figures()].concat());
    }
    table
}

fn one_key(rows: &[Row]) -> Table {
    let mut table = Table::new(&[&["", "× 1 client", "CPU, × 1 client"][..], &FIGURES].concat());
    for row in rows.iter().filter(|row| !row.line.many()) {
        let ratios = vec![
            Some(row.line.name.to_owned()),
            over(rows, row, row.line.base, |run| run.rate),
            over(rows, row, row.line.base, |run| run.micros),
        ];
        table.row([ratios, row.figures()].concat());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_lost_an_addition_or_took_one_twice_is_told() {
        assert_eq!(check_sum(10, 10, 10), Ok(()));
        assert_eq!(check_sum(11, 10, 12), Ok(()));
        for (grown, acknowledged, sent) in [(9, 10, 10), (13, 10, 12), (-1, 0, 0)] {
            let error = check_sum(grown, acknowledged, sent).unwrap_err();
            assert!(error.contains(&format!("grew by {grown}")), "{error}");
        }
    }

    #[test]
    fn every_row_is_compared_with_one_that_there_is() {
        let is_there = |name: &str| LINES.iter().any(|line| line.name == name);
        for line in LINES {
            assert!(is_there(line.base), "{}", line.name);
            assert!(line.etcd.is_none_or(is_there), "{}", line.name);
        }
    }
}
