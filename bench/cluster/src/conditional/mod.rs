//! Cost of a condition: compares conditional writes with plain writes, with etcd's transactions and
//! with Cassandra's lightweight transactions. Also measures conditional writes that contend for one
//! key.
//!
//! ```text
//!                       ┌▶ kvorum, three nodes ─ PUT, PUT If-Match, add=1, PUT If-None-Match
//!   one thread, closed ─┼▶ etcd, three nodes, its leader ─ a transaction: compare, then put
//!                       └▶ Cassandra, three nodes ─ UPDATE … IF v = ?, INSERT … IF NOT EXISTS
//! ```
//!
//! All rows of kvorum share one cluster. A conditional write has the same keys as a plain write, so
//! that the two differ only in the condition.

mod figures;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use load::{Outcome, Plan, Requests, RunWarning, Write};

use crate::Bench;
use crate::cassandra::{self, Cassandra};
use crate::cql::StatementKind;
use crate::etcd;
use crate::fleet::{self, Fleet, Kind, SyncSetting};
use crate::metrics::{Counts, SCRAPE_TIMEOUT};
use crate::requests;
use figures::Run;

const SECTION: &str = "conditional";

/// Number of keys over which writes are spread, except in rows of a single key.
const KEYS: u64 = 1_000;

const KVORUM: Kind = Kind::Three(SyncSetting::Always);

const PUT_1: &str = "PUT, 1 connection";
const ETCD_1: &str = "etcd, 1 connection";
const PUT_16: &str = "PUT, 16 connections";
const ETCD_16: &str = "etcd, 16 connections";
const ADD_1: &str = "add=1, 1 client";
const CASSANDRA_1: &str = "Cassandra, 1 connection";
const CASSANDRA_16: &str = "Cassandra, 16 connections";
const CASSANDRA_HOT_1: &str = "Cassandra, UPDATE IF, 1 client";

/// The system that a row measures, and the request that the row sends.
#[derive(Clone, Copy)]
enum To {
    Http(Kind, Write),
    Cassandra(StatementKind),
}

/// The definition of a row: its requests, and the rows to compare it with.
struct RowDefinition {
    name: &'static str,
    to: To,
    connections: usize,
    /// True if the connections are spread over all nodes, false if all go to one.
    all: bool,
    /// The expected status of each answer.
    status: u16,
    /// Name of the row to which this row is compared in its own table: a plain `PUT` with as many
    /// connections, or the row of one client.
    base: &'static str,
    /// Names of the rows of etcd and of Cassandra to compare with. `None` for a row of a single
    /// key.
    rivals: Option<[&'static str; 2]>,
}

impl RowDefinition {
    /// Defines a row of `PUT`s to one node of kvorum, and the values that other rows share with it.
    const fn put(name: &'static str, write: Write, connections: usize) -> Self {
        let one = connections == 1;
        let base = if one { PUT_1 } else { PUT_16 };
        let rivals = Some(if one { [ETCD_1, CASSANDRA_1] } else { [ETCD_16, CASSANDRA_16] });
        let to = To::Http(KVORUM, write);
        Self { name, to, connections, all: false, status: 201, base, rivals }
    }

    const fn etcd(name: &'static str, connections: usize) -> Self {
        let line = Self::put(name, requests::ETCD_IF, connections);
        Self { to: To::Http(Kind::Etcd, requests::ETCD_IF), status: 200, ..line }
    }

    const fn cassandra(name: &'static str, connections: usize) -> Self {
        let line = Self::put(name, requests::PLAIN, connections);
        Self { to: To::Cassandra(StatementKind::Equal), ..line }
    }

    /// Defines a row of additions to one number.
    const fn add(name: &'static str, connections: usize, all: bool) -> Self {
        let line = Self::put(name, requests::ADD, connections);
        Self { all, status: 200, base: ADD_1, rivals: None, ..line }
    }

    const fn unmet(name: &'static str, connections: usize) -> Self {
        let line = Self::put(name, requests::IF_NONE_MATCH, connections);
        Self { status: 412, base: ADD_1, rivals: None, ..line }
    }

    const fn cassandra_hot(
        name: &'static str,
        statement_kind: StatementKind,
        connections: usize,
    ) -> Self {
        let line = Self::cassandra(name, connections);
        Self { to: To::Cassandra(statement_kind), base: CASSANDRA_HOT_1, rivals: None, ..line }
    }

    /// Returns true for a row of many keys, which the first table shows.
    fn many(&self) -> bool {
        self.rivals.is_some()
    }

    fn is_addition(&self) -> bool {
        !self.many() && self.status == 200
    }
}

const ROW_DEFINITIONS: [RowDefinition; 18] = [
    RowDefinition::put(PUT_1, requests::PLAIN, 1),
    RowDefinition::put("PUT If-Match, 1 connection", requests::IF_MATCH, 1),
    RowDefinition::etcd(ETCD_1, 1),
    RowDefinition::cassandra(CASSANDRA_1, 1),
    RowDefinition::put(PUT_16, requests::PLAIN, 16),
    RowDefinition::put("PUT If-Match, 16 connections", requests::IF_MATCH, 16),
    RowDefinition::put("PUT If-Match, 16 (again)", requests::IF_MATCH, 16),
    RowDefinition::etcd(ETCD_16, 16),
    RowDefinition::cassandra(CASSANDRA_16, 16),
    RowDefinition::add(ADD_1, 1, false),
    RowDefinition::add("add=1, 8 clients", 8, false),
    RowDefinition::add("add=1, 64 clients", 64, false),
    RowDefinition::add("add=1, 63 clients of all nodes", 63, true),
    RowDefinition::unmet("If-None-Match, 412, 16 clients", 16),
    RowDefinition::cassandra_hot(CASSANDRA_HOT_1, StatementKind::EqualHot, 1),
    RowDefinition::cassandra_hot("Cassandra, UPDATE IF, 8 clients", StatementKind::EqualHot, 8),
    RowDefinition::cassandra_hot("Cassandra, UPDATE IF, 64 clients", StatementKind::EqualHot, 64),
    RowDefinition::cassandra_hot(
        "Cassandra, IF NOT EXISTS, not applied, 16",
        StatementKind::Absent,
        16,
    ),
];

/// A row with the figures of its repeats.
struct Row {
    line: RowDefinition,
    runs: Vec<Run>,
}

/// Measures all rows, and reports them.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    bench.report.say(&format!(
        "## Conditional writes\n\nThree nodes, `--sync always`; closed loop, one thread, to one \
         node; {KEYS} keys, values of 10 bytes. `PUT If-Match` has the condition `*`. etcd: a \
         transaction that compares `mod_revision` and puts, by its JSON gateway, to the node \
         that leads. Syncs are those of the logs."
    ));
    let fleets = Fleets::start(bench)?;
    let lines = ROW_DEFINITIONS.into_iter().filter(|line| fleets.is_running(line));
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
            let run = fleets.measure(&row.line, Duration::from_secs(bench.scale.seconds))?;
            run.report_figures(bench, row.line.name, repeat);
            row.runs.push(run);
        }
    }
    bench.report.say(&figures::many_keys(&rows).to_string());
    bench.report.say(
        "### One key\n\nAdditions to one number, which was checked after each repeat: it grew by \
         what was acknowledged; and a write whose condition is not true.",
    );
    bench.report.say(&figures::one_key(&rows).to_string());
    for row in &rows {
        for (repeat, run) in row.runs.iter().enumerate() {
            for warning in &run.warnings {
                bench.report.say(&format!("{}, repeat {}: {warning}", row.line.name, repeat + 1));
            }
        }
    }
    bench.report.say(&format!("First node of each:\n\n{}", fleets.commands()));
    Ok(())
}

/// The measured clusters.
struct Fleets {
    http: Vec<Fleet>,
    cassandra: Option<Cassandra>,
}

impl Fleets {
    /// Starts kvorum, etcd and Cassandra, and writes all keys. The error is that kvorum can't be
    /// started; another system that can't be started is only reported.
    fn start(bench: &mut Bench) -> Result<Self, String> {
        let mut http = vec![start_filled(bench, KVORUM)?];
        if bench.etcd {
            eprintln!("{SECTION}: starting etcd");
            match start_filled(bench, Kind::Etcd) {
                Ok(fleet) => http.push(fleet),
                Err(why) => bench.report.say(&format!("Skipped etcd: {why}")),
            }
        }
        let mut fleets = Self { http, cassandra: None };
        if let Some(at) = cassandra::place() {
            fleets.start_cassandra(bench, &at);
        }
        Ok(fleets)
    }

    fn start_cassandra(&mut self, bench: &mut Bench, at: &Path) {
        eprintln!("{SECTION}: starting Cassandra, and load for its JVMs: a minute or some");
        let started = cassandra::version(at).and_then(|version| {
            Ok((version, Cassandra::start_warmed(&mut bench.place, at, KEYS)?))
        });
        match started {
            Ok((version, cassandra)) => {
                bench.report.say(&format!(
                    "Cassandra {version}: `UPDATE … IF v = ?`, a condition that holds, prepared, \
                     consistency `QUORUM` and `SERIAL`, by its own protocol, to a replica that \
                     the key decides; `commitlog_sync: batch`, `paxos_variant: v2`, three \
                     replicas, 1 GiB of heap each. Before the first measurement it had {} such \
                     statements, in {:.0} s; before each {} s of load.",
                    cassandra.warm_up_load.0,
                    cassandra.warm_up_load.1.as_secs_f64(),
                    cassandra::WARM_UP.as_secs()
                ));
                self.cassandra = Some(cassandra);
            }
            Err(why) => bench.report.say(&format!("Skipped Cassandra: {why}")),
        }
    }

    /// Returns true if the row's cluster is running.
    fn is_running(&self, line: &RowDefinition) -> bool {
        match line.to {
            To::Http(kind, _) => self.http.iter().any(|fleet| fleet.kind == kind),
            To::Cassandra(_) => self.cassandra.is_some(),
        }
    }

    fn measure(&self, line: &RowDefinition, duration: Duration) -> Result<Run, String> {
        match (line.to, &self.cassandra) {
            (To::Http(kind, write), _) => {
                let fleet = self.http.iter().find(|fleet| fleet.kind == kind);
                let fleet = fleet.expect("lines without a fleet were left out");
                line.measure(fleet, write, duration)
            }
            (To::Cassandra(statement_kind), Some(cassandra)) => {
                let (results, cpu) =
                    cassandra.measure(statement_kind, line.connections, duration)?;
                Ok(Run::of_cassandra(&results, cpu))
            }
            (To::Cassandra(_), None) => unreachable!("lines without a fleet were left out"),
        }
    }

    /// Returns a Markdown list of the commands that started the first node of each cluster.
    fn commands(&self) -> String {
        let http = self.http.iter().filter_map(|fleet| Some(fleet.nodes.first()?.argv.as_str()));
        let all = http.chain(self.cassandra.as_ref().map(Cassandra::argv));
        all.map(|argv| format!("* `{argv}`")).collect::<Vec<_>>().join("\n")
    }
}

fn start_filled(bench: &mut Bench, kind: Kind) -> Result<Fleet, String> {
    let fleet = bench.place.start(kind)?;
    fleet.fill(KEYS)?;
    fleet.pause();
    Ok(fleet)
}

impl RowDefinition {
    fn measure(&self, fleet: &Fleet, write: Write, duration: Duration) -> Result<Run, String> {
        let mut plan = Plan {
            connections: self.connections,
            requests: Requests::Custom(write),
            put_percent: 100,
            ..fleet.plan(self.all, KEYS, duration)
        };
        fleet.resume(&plan)?;
        let nodes = fleet.addresses();
        if fleet.kind == Kind::Etcd {
            plan.targets = fleet::targets(&[etcd::leader(&nodes)?]);
        }
        let sum_before = if self.is_addition() { read_sum(nodes[0])? } else { 0 };
        let (before, cpu) = (Counts::of(&nodes), fleet.cpu());
        let outcome = fleet::run(&plan)?;
        let cpu = fleet.cpu() - cpu;
        let counts = Counts::of(&nodes).since(&before);
        let done = outcome.tally.statuses.of(self.status);
        if self.is_addition() {
            check_sum(read_sum(nodes[0])? - sum_before, done, outcome.planned)?;
        }
        fleet.pause();
        Ok(self.run(fleet.kind, &outcome, cpu, &counts))
    }

    fn run(&self, kind: Kind, outcome: &Outcome, cpu: f64, counts: &Counts) -> Run {
        let requests = outcome.answer_count().max(1) as f64;
        let latency = outcome.all_methods().intended;
        let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
        let (messages, syncs) = match kind {
            Kind::Etcd => {
                (None, counts.get_by_full_name("etcd_disk_wal_fsync_duration_seconds_count"))
            }
            _ => (Some(counts.get("peer_messages_sent")), counts.get("wal_syncs")),
        };
        // A row that expects 412 must not warn of 412.
        let is_unexpected = |warning: &RunWarning| match warning {
            RunWarning::NotSuccess { status, .. } => *status != self.status,
            _ => true,
        };
        let warnings = outcome.warnings();
        Run {
            rate: outcome.throughput(),
            micros: cpu * 1e6 / requests,
            mean: latency.mean() / 1e6,
            percentiles: [ms(0.5), ms(0.99), ms(1.0)],
            messages: messages.map(|messages| messages / requests),
            syncs: Some(syncs / requests),
            failed: outcome.planned - outcome.tally.statuses.of(self.status),
            warnings: warnings
                .iter()
                .filter(|w| is_unexpected(w))
                .map(ToString::to_string)
                .collect(),
        }
    }
}

/// Reads the number to which clients add, from a majority of its replicas.
fn read_sum(node: SocketAddr) -> Result<i64, String> {
    let path = format!("/v0/entity?id={}", requests::HOT_KEY);
    let text =
        load::server::fetch(node, &path, SCRAPE_TIMEOUT).map_err(|error| error.to_string())?;
    text.parse().map_err(|_| format!("http://{node}{path} is {text:?}: it must be a number"))
}

/// Checks that the number grew by at least the number of acknowledged additions, and at most the
/// number of sent additions.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_or_repeated_addition_is_an_error() {
        assert_eq!(check_sum(10, 10, 10), Ok(()));
        assert_eq!(check_sum(11, 10, 12), Ok(()));
        for (grown, acknowledged, sent) in [(9, 10, 10), (13, 10, 12), (-1, 0, 0)] {
            let error = check_sum(grown, acknowledged, sent).unwrap_err();
            assert!(error.contains(&format!("grew by {grown}")), "{error}");
        }
    }

    #[test]
    fn every_row_is_compared_with_existing_rows() {
        let is_there = |name: &str| ROW_DEFINITIONS.iter().any(|line| line.name == name);
        for line in ROW_DEFINITIONS {
            assert!(is_there(line.base), "{}", line.name);
            assert!(line.rivals.is_none_or(|rivals| rivals.into_iter().all(is_there)));
        }
    }
}
