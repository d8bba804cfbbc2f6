//! Figures of the section on conditional writes, and its two tables: one of rows with many keys,
//! and one of rows with a single key.

use bench_table::{Spread, Table, ratio};

use super::{Row, SECTION};
use crate::Bench;
use crate::cql::LoopResults;

/// The figures of one repeat.
pub(super) struct Run {
    pub(super) rate: f64,
    /// CPU time of all nodes, in microseconds per request.
    pub(super) micros: f64,
    /// Mean latency in milliseconds.
    pub(super) mean: f64,
    /// p50, p99 and maximum latency, in milliseconds.
    pub(super) percentiles: [f64; 3],
    /// Messages between nodes per request, which only kvorum counts.
    pub(super) messages: Option<f64>,
    /// Syncs of the nodes' logs per request, which Cassandra does not count.
    pub(super) syncs: Option<f64>,
    pub(super) failed: u64,
    pub(super) warnings: Vec<String>,
}

impl Run {
    pub(super) fn of_cassandra(results: &LoopResults, cpu: f64) -> Self {
        let done = results.latency.len();
        let ms = |quantile| results.latency.value_at_quantile(quantile) as f64 / 1e6;
        Self {
            rate: done as f64 / results.took.as_secs_f64(),
            micros: cpu * 1e6 / (done + results.failed).max(1) as f64,
            mean: results.latency.mean() / 1e6,
            percentiles: [ms(0.5), ms(0.99), ms(1.0)],
            messages: None,
            syncs: None,
            failed: results.failed,
            warnings: results
                .why
                .iter()
                .map(|why| format!("the first that failed: {why}"))
                .collect(),
        }
    }

    pub(super) fn report_figures(&self, bench: &mut Bench, name: &str, repeat: usize) {
        let [p50, p99, max] = self.percentiles;
        for (figure, value) in [
            ("requests_per_second", self.rate),
            ("nodes_us", self.micros),
            ("mean_ms", self.mean),
            ("p50_ms", p50),
            ("p99_ms", p99),
            ("max_ms", max),
            ("messages_per_request", self.messages.unwrap_or(f64::NAN)),
            ("syncs_per_request", self.syncs.unwrap_or(f64::NAN)),
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

    /// Returns the median of a figure, or `None` if the row's system does not count the figure.
    fn median(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<String> {
        let known: Vec<f64> = self.runs.iter().filter_map(of).collect();
        Spread::of(&known).map(|spread| format!("{:.2}", spread.median))
    }

    /// Returns the row's cells in the columns [`FIGURES`].
    fn figures(&self) -> Vec<Option<String>> {
        vec![
            self.spread(|run| run.rate),
            self.spread(|run| run.micros),
            self.spread(|run| run.mean),
            self.spread(|run| run.percentiles[0]),
            self.spread(|run| run.percentiles[1]),
            self.spread(|run| run.percentiles[2]),
            self.median(|run| run.messages),
            self.median(|run| run.syncs),
            Some(self.runs.iter().map(|run| run.failed).sum::<u64>().to_string()),
        ]
    }
}

/// Returns the ratio of a figure of `row` to the same figure of the row called `name`, or `None` if
/// there is no such row. `of` extracts the figure from a repeat.
fn ratio_to_row(rows: &[Row], row: &Row, name: &str, of: fn(&Run) -> f64) -> Option<String> {
    let to = rows.iter().find(|row| row.line.name == name)?;
    ratio(&row.column(of), &to.column(of)).map(|ratio| ratio.to_string())
}

/// The last columns of both tables.
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

pub(super) fn many_keys(rows: &[Row]) -> Table {
    let ratios = [
        "",
        "× PUT",
        "CPU, × PUT",
        "mean, × PUT",
        "× etcd",
        "etcd's CPU, × this",
        "× Cassandra",
        "Cassandra's CPU, × this",
    ];
    let mut table = Table::new(&[&ratios[..], &FIGURES].concat());
    for row in rows.iter().filter(|row| row.line.many()) {
        let (name, base) = (row.line.name, row.line.base);
        let mut ratios = vec![
            Some(name.to_owned()),
            ratio_to_row(rows, row, base, |run| run.rate),
            ratio_to_row(rows, row, base, |run| run.micros),
            ratio_to_row(rows, row, base, |run| run.mean),
        ];
        for rival in row.line.rivals.into_iter().flatten() {
            let other = rows.iter().find(|row| row.line.name == rival);
            ratios.push(ratio_to_row(rows, row, rival, |run| run.rate));
            ratios.push(other.and_then(|other| ratio_to_row(rows, other, name, |run| run.micros)));
        }
        table.row([ratios, row.figures()].concat());
    }
    table
}

pub(super) fn one_key(rows: &[Row]) -> Table {
    let mut table = Table::new(&[&["", "× 1 client", "CPU, × 1 client"][..], &FIGURES].concat());
    for row in rows.iter().filter(|row| !row.line.many()) {
        let ratios = vec![
            Some(row.line.name.to_owned()),
            ratio_to_row(rows, row, row.line.base, |run| run.rate),
            ratio_to_row(rows, row, row.line.base, |run| run.micros),
        ];
        table.row([ratios, row.figures()].concat());
    }
    table
}
