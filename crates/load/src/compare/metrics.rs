//! The figures that are compared, one for each repeat.
//!
//! With one run of each side there are no repeats. Then each run is cut into stretches of seconds,
//! and these stand for them (the method of *batch means*: Law, "Simulation Modeling and Analysis",
//! 9.5.3): seconds next to each other are alike, stretches much less.

use crate::record::{Run, error_share};
use crate::saved::{Saved, Timeline};

/// Stretches that a single run is cut into: enough for the test, each long enough to be
/// independent.
const STRETCHES: usize = 8;

/// Seconds of a stretch, at least: what a flush or a stall of one second does is inside.
const STRETCH_S: usize = 5;

/// Samples that must lie beyond a percentile for it to mean something.
const BEYOND: f64 = 10.0;

/// How the metric is named by which servers tell their processor time, in seconds.
const CPU_METRIC: &str = "cpu_seconds_total";

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// Median latency from the intended start.
    P50,
    P99,
    P999,
    /// Answers a second.
    Throughput,
    /// CPU time of the servers for each answer.
    ServerCpu,
    /// Share of what was sent that failed: see [`error_share`].
    Errors,
}

impl Metric {
    pub(crate) const ALL: [Self; 6] =
        [Self::P50, Self::P99, Self::P999, Self::Throughput, Self::ServerCpu, Self::Errors];

    /// As it is named.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Throughput => "throughput",
            Self::ServerCpu => "server CPU per request",
            Self::Errors => "errors",
        }
    }

    /// What more of it is.
    pub(crate) fn more(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("higher", "lower"),
            _ => ("more", "less"),
        }
    }

    /// Whether its differences are ratios; those of shares are not, for these are often 0.
    pub(crate) fn is_ratio(self) -> bool {
        self != Self::Errors
    }

    /// The figure of one run; none if the run does not say.
    pub(crate) fn of(self, run: &Run) -> Option<f64> {
        let quantile = |quantile: f64| {
            let latency = run.latency("intended").or_else(|| run.latency.first())?;
            // An imported output may not say how many samples its figures are of.
            let samples = Some(latency.count).filter(|count| *count > 0);
            let samples = samples.unwrap_or(run.counts.answered);
            let firm = samples as f64 * (1.0 - quantile) >= BEYOND;
            latency.at(quantile).filter(|value| firm && *value > 0.0)
        };
        match self {
            Self::P50 => quantile(0.5),
            Self::P99 => quantile(0.99),
            Self::P999 => quantile(0.999),
            Self::Throughput => run.throughput.filter(|rate| *rate > 0.0),
            Self::ServerCpu => {
                let cpu: Option<f64> = run.servers.iter().map(|server| server.cpu_s).sum();
                let answered = run.counts.answered as f64;
                cpu.filter(|cpu| *cpu > 0.0 && answered > 0.0).map(|cpu| cpu * 1e6 / answered)
            }
            Self::Errors => run.error_share(),
        }
    }

    /// The same of some seconds of a run.
    fn of_seconds(self, timeline: &Timeline, from: usize, to: usize) -> Option<f64> {
        let column = |name: &str| timeline.column(name).and_then(|values| values.get(from..to));
        let sum = |name: &str| column(name).map(|values| values.iter().sum::<f64>());
        let seconds = (to - from) as f64;
        match self {
            Self::P50 => middle(column("p50_ms")?),
            Self::P99 => middle(column("p99_ms")?),
            // A second rarely has the 10,000 samples that it needs.
            Self::P999 => None,
            Self::Throughput => sum("answered").map(|sum| sum / seconds),
            Self::ServerCpu => {
                let cpus = timeline.servers().filter(|(_, name, _)| name.ends_with(CPU_METRIC));
                let all: Vec<f64> =
                    cpus.filter_map(|(_, _, column)| total(column.values.get(from..to)?)).collect();
                let answered = sum("answered").filter(|answered| *answered > 0.0)?;
                (!all.is_empty()).then(|| all.iter().sum::<f64>() * 1e6 / answered)
            }
            Self::Errors => {
                let lost = sum("lost")? + sum("connect_errors")?;
                error_share(sum("refused")? + sum("timeouts")?, lost, sum("answered")?)
            }
        }
    }
}

/// The figures of all runs of a side; none if one of them does not say.
pub(crate) fn of_runs(metric: Metric, runs: &[Saved]) -> Option<Vec<f64>> {
    runs.iter().map(|saved| metric.of(&saved.run)).collect()
}

/// The figures of the stretches of a run; none if it is too short or does not say.
pub(crate) fn of_stretches(metric: Metric, run: &Saved) -> Option<Vec<f64>> {
    let timeline = run.timeline.as_ref()?;
    let seconds = timeline.seconds().len();
    let length = seconds / STRETCHES;
    if length < STRETCH_S {
        return None;
    }
    // What is over at the beginning is the part that is least settled.
    let over = seconds - length * STRETCHES;
    (0..STRETCHES)
        .map(|place| over + place * length)
        .map(|from| metric.of_seconds(timeline, from, from + length))
        .collect()
}

/// Seconds that a run must last to be cut into stretches.
pub(crate) fn least_seconds() -> usize {
    STRETCHES * STRETCH_S
}

/// The sum of growths. The first of a run is not known, and stands as the mean of the others.
fn total(values: &[f64]) -> Option<f64> {
    let known: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
    (!known.is_empty() && known.len() + 1 >= values.len()).then_some(mean * values.len() as f64)
}

/// The median of what is a figure.
fn middle(values: &[f64]) -> Option<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|value| *value > 0.0)
}
