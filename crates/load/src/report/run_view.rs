//! The runs of a report in display order, each with its colour.

use crate::record::{Latency, Run, Series};
use crate::saved::{LoadedRun, SavedEntry};

/// Maximum number of curves that are visible at first. More curves would hide one another.
const MAX_VISIBLE: usize = 8;

/// Maximum number of runs with curves and details. Each such run adds up to 100 KB to the page. At
/// the maximum, the page has 20 MB, which browsers display without delay.
pub(crate) const MAX_FULL: usize = 200;

/// Minimum number of samples beyond a reliable percentile.
const MIN_BEYOND: f64 = 10.0;

/// A run in the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunView<'a> {
    pub(crate) saved: &'a LoadedRun,
    /// Index of the run's switch in the legend, and suffix of its anchor.
    pub(crate) number: usize,
    /// Index of the run's colour. Curves that are shown at first have the first colours.
    pub(crate) colour: usize,
    /// True if the run is hidden in the charts until its switch is turned on.
    pub(crate) hidden: bool,
    /// True if the run has a curve and details. Any other run is a row among the trials of its
    /// series.
    pub(crate) full: bool,
}

/// Returns all runs. In a series with many trials, only the trials around the limit are shown at
/// first.
pub(crate) fn all(found: &[SavedEntry]) -> Vec<RunView<'_>> {
    let mut shown = Vec::new();
    let mut ranks = Vec::new();
    for found in found {
        let first = match found {
            SavedEntry::Run(_) => vec![0],
            SavedEntry::Series(series) => at_first(&series.series),
        };
        for (place, saved) in found.runs().iter().enumerate() {
            let hidden = !first.contains(&place);
            ranks.push(match found {
                SavedEntry::Series(series) if hidden => rank(&series.series.trials[place].role),
                _ => 0,
            });
            shown.push(RunView { saved, number: shown.len(), colour: 0, hidden, full: false });
        }
    }
    let mut visible = 0;
    for shown in &mut shown {
        visible += usize::from(!shown.hidden);
        shown.hidden |= visible > MAX_VISIBLE;
    }
    let mut order: Vec<usize> = (0..shown.len()).collect();
    order.sort_by_key(|place| ranks[*place]);
    order.iter().take(MAX_FULL).for_each(|place| shown[*place].full = true);
    order.sort_by_key(|place| shown[*place].hidden);
    for (colour, place) in order.into_iter().enumerate() {
        shown[place].colour = colour;
    }
    shown
}

/// Returns the rank by which a hidden trial gets a curve and details. Lower ranks come first. Rank
/// 0 belongs to the trials that are visible at first.
fn rank(role: &str) -> u8 {
    match role {
        "ceiling" | "bracket" | "bisect" => 2,
        _ => 1,
    }
}

/// Returns the indexes of the trials whose curves are visible at first. If there are few trials,
/// these are all. Otherwise they are, for each finding, the last trial at the rate that passes and
/// the last trial at the rate that fails; or the first trials if there are none of these.
fn at_first(series: &Series) -> Vec<usize> {
    let all = series.trials.len();
    if all <= MAX_VISIBLE {
        return (0..all).collect();
    }
    let edges = series.findings.iter().flat_map(|finding| {
        [(finding.passes, "pass"), (finding.fails, "fail")].map(|(rate, verdict)| {
            series.trials.iter().rposition(|trial| {
                let there = trial.value == finding.value && trial.rate == rate;
                there && rate.is_some() && trial.verdict == verdict && trial.role != "profile"
            })
        })
    });
    let edges: Vec<_> = edges.flatten().collect();
    if edges.is_empty() { (0..MAX_VISIBLE).collect() } else { edges }
}

impl<'a> RunView<'a> {
    pub(crate) fn name(&self) -> &'a str {
        &self.saved.name
    }

    pub(crate) fn run(&self) -> &'a Run {
        &self.saved.run
    }

    /// Returns the main latency: from the intended start, or else as the tool measured it. Returns
    /// `None` if the run has no latencies.
    pub(crate) fn latency(&self) -> Option<&'a Latency> {
        let run = self.run();
        run.latency("intended").or_else(|| run.latency.first())
    }

    /// Describes the start of [`Self::latency`].
    pub(crate) fn describe_latency_start(&self) -> &'static str {
        let from = self.latency().map_or("intended", |latency| latency.from.as_str());
        match (from, self.run().plan.closed) {
            ("intended", false) => "from the moment that a request was due",
            ("intended", true) => {
                "from the moment that a connection was free (a closed loop, which waits with the \
                 server)"
            }
            (_, true) => {
                "from the writing of a request (a closed loop, which waits with the server)"
            }
            _ => "from the writing of a request (what it waited to be sent is not in it)",
        }
    }

    /// Returns the share of answers that were neither 2xx nor 3xx, or NaN if the number of answers
    /// is unknown.
    pub(crate) fn refused_share(&self) -> f64 {
        let counts = &self.run().counts;
        let known = if self.run().is_counted() { 1.0 } else { f64::NAN };
        known * counts.refused as f64 / counts.answered.max(1) as f64
    }

    /// Returns the servers' CPU time per answer in µs, or `None` if it is unknown.
    pub(crate) fn cpu_per_answer(&self) -> Option<f64> {
        let servers: Option<f64> = self.run().servers.iter().map(|server| server.cpu_s).sum();
        let answered = self.run().counts.answered as f64;
        servers.filter(|cpu| *cpu > 0.0 && answered > 0.0).map(|cpu| cpu * 1e6 / answered)
    }
}

/// Returns true if enough samples lie beyond a percentile, or if their number is unknown.
pub(crate) fn firm(latency: &Latency, quantile: f64) -> bool {
    latency.count == 0 || latency.count as f64 * (1.0 - quantile) >= MIN_BEYOND - 1e-6
}

/// Returns the value of 1/(1−p) for the quantile p above which percentiles have too few samples.
/// Returns `None` if the number of samples is unknown.
pub(crate) fn thin_from(latency: &Latency) -> Option<f64> {
    (latency.count > 0).then(|| latency.count as f64 / MIN_BEYOND)
}
