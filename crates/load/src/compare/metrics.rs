//! The compared metrics. Each repeat has one figure of each metric.
//!
//! With one run on each side, there are no repeats. In this case, each run is cut into stretches of
//! several seconds, which replace repeats (the method of *batch means*: Law, "Simulation Modeling
//! and Analysis", 9.5.3). Neighbouring seconds are correlated; neighbouring stretches are much less
//! correlated.

use crate::record::{Failures, Run};
use crate::saved::{LoadedRun, SavedTimeline};

/// Number of stretches of a single run: enough for the test, and each long enough to be
/// independent.
const STRETCHES: usize = 8;

/// Minimum length of a stretch in seconds: long enough to contain a flush or a stall of one second.
const STRETCH_S: usize = 5;

/// Minimum number of samples beyond a percentile. With fewer samples, the percentile is not
/// compared.
const MIN_BEYOND: f64 = 10.0;

/// Suffix of the metric with a server's CPU time, in seconds.
const CPU_METRIC: &str = "cpu_seconds_total";

/// A compared metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// Median latency from the intended start.
    P50,
    P99,
    P999,
    /// Answers per second.
    Throughput,
    /// CPU time of the servers per answer.
    ServerCpu,
    /// Share of failed requests: see [`Failures::share`].
    Errors,
}

impl Metric {
    pub(crate) const ALL: [Self; 6] =
        [Self::P50, Self::P99, Self::P999, Self::Throughput, Self::ServerCpu, Self::Errors];

    /// Returns the metric's printed name.
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

    /// Returns the words for a larger and for a smaller value.
    pub(crate) fn comparison_words(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("higher", "lower"),
            _ => ("more", "less"),
        }
    }

    /// Returns true if the metric is compared by ratios. Error shares are compared by their
    /// difference, because an error share is often 0.
    pub(crate) fn is_ratio(self) -> bool {
        self != Self::Errors
    }

    /// Returns the metric's value in a run: milliseconds, answers per second, microseconds of CPU
    /// time per answer, or a share. Returns `None` if the run lacks the metric, or has too few
    /// samples for it.
    pub(crate) fn of(self, run: &Run) -> Option<f64> {
        let quantile = |quantile: f64| {
            let latency = run.latency("intended").or_else(|| run.latency.first())?;
            // An imported output may lack the number of samples.
            let samples = Some(latency.count).filter(|count| *count > 0);
            let samples = samples.unwrap_or(run.counts.answered);
            let firm = samples as f64 * (1.0 - quantile) >= MIN_BEYOND;
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

    /// Returns the metric's value in the seconds `from..to` of a run.
    fn of_seconds(self, timeline: &SavedTimeline, from: usize, to: usize) -> Option<f64> {
        let column = |name: &str| timeline.column(name).and_then(|values| values.get(from..to));
        let sum = |name: &str| column(name).map(|values| values.iter().sum::<f64>());
        let seconds = (to - from) as f64;
        match self {
            Self::P50 => finite_median(column("p50_ms")?),
            Self::P99 => finite_median(column("p99_ms")?),
            // A second rarely has the 10,000 samples that p99.9 needs.
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
                let failures = Failures {
                    answered: sum("answered")?,
                    refused: sum("refused")?,
                    lost: sum("lost")?,
                    timeouts: sum("timeouts")?,
                    // Timelines of earlier programs lack these two columns.
                    refused_timeouts: sum("refused_timeouts").unwrap_or_default(),
                    unanswered_timeouts: sum("unanswered_timeouts").unwrap_or_default(),
                    connect_errors: sum("connect_errors")?,
                };
                failures.share()
            }
        }
    }
}

/// Returns the metric's values in all runs of a side, or `None` if any run lacks the metric.
pub(crate) fn of_runs(metric: Metric, runs: &[LoadedRun]) -> Option<Vec<f64>> {
    runs.iter().map(|saved| metric.of(&saved.run)).collect()
}

/// Returns the metric's values in the stretches of a run, or `None` if the run is too short or
/// lacks the metric.
pub(crate) fn of_stretches(metric: Metric, run: &LoadedRun) -> Option<Vec<f64>> {
    let timeline = run.timeline.as_ref()?;
    let seconds = timeline.seconds().len();
    let length = seconds / STRETCHES;
    if length < STRETCH_S {
        return None;
    }
    // The seconds that remain are left out at the beginning, the least settled part of the run.
    let over = seconds - length * STRETCHES;
    (0..STRETCHES)
        .map(|place| over + place * length)
        .map(|from| metric.of_seconds(timeline, from, from + length))
        .collect()
}

/// Returns the minimum length in seconds of a run that can be cut into stretches.
pub(crate) fn least_seconds() -> usize {
    STRETCHES * STRETCH_S
}

/// Returns the sum of a counter's increases. The first increase of a run is unknown, and is
/// estimated by the mean of the others. Returns `None` if further increases are unknown.
fn total(values: &[f64]) -> Option<f64> {
    let known: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
    (!known.is_empty() && known.len() + 1 >= values.len()).then_some(mean * values.len() as f64)
}

/// Returns the median of the finite values, or `None` if the median is not positive.
fn finite_median(values: &[f64]) -> Option<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|value| *value > 0.0)
}
