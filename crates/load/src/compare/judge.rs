//! From the figures of both sides to a judgment of each metric.

use super::metrics::{self, Metric};
use super::rank::{holm, least_p, shift};
use crate::saved::Saved;

/// Chance of any false alarm in one comparison, over all its metrics. At 2.5 % at most two of 40
/// comparisons of A with itself raise one, in nine cases of ten.
pub(crate) const ALPHA: f64 = 0.025;

/// Differences below this are never called real: nobody acts on them, and in an open loop the
/// throughput of two servers differs by a few requests with certainty.
const LEAST_RATIO: f64 = 0.01;

/// The same for shares of errors: one in a thousand.
const LEAST_SHARE: f64 = 0.001;

/// What two single runs of the same server differ by: their stretches do not show it, for memory
/// lay-out, file placement and neighbours change from start to start.
const SINGLE_RUN_RATIO: f64 = 0.05;

/// The judgment of one metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judged {
    pub(crate) metric: Metric,
    /// The median figure of each side.
    pub(crate) a: f64,
    pub(crate) b: f64,
    /// B against A: of ratios 0.1 = 10 % more; of shares the difference.
    pub(crate) effect: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Holm's p over all metrics.
    pub(crate) p: f64,
    pub(crate) verdict: Verdict,
}

/// What can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// More than the noise.
    Differs,
    /// Not more than the noise, or too little to matter.
    Same,
    /// There are too few repeats for any difference to be more than the noise.
    TooFew,
}

/// What stands for repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Runs.
    Runs,
    /// Stretches of one run of each side.
    Stretches,
}

/// Runs or stretches? Several runs of each side are better than any part of one.
pub(crate) fn sampling(a: &[Saved], b: &[Saved]) -> Sampling {
    if a.len() == 1 && b.len() == 1 { Sampling::Stretches } else { Sampling::Runs }
}

/// Judges every metric that both sides tell.
pub(crate) fn judge(a: &[Saved], b: &[Saved]) -> Vec<Judged> {
    let sampling = sampling(a, b);
    let figures = |metric, side: &[Saved]| match sampling {
        Sampling::Runs => metrics::of_runs(metric, side),
        Sampling::Stretches => metrics::of_stretches(metric, &side[0]),
    };
    let samples: Vec<_> = Metric::ALL
        .into_iter()
        .filter_map(|metric| Some((metric, figures(metric, a)?, figures(metric, b)?)))
        .collect();
    decide(&samples, sampling)
}

/// The same from the figures themselves.
pub(super) fn decide(samples: &[(Metric, Vec<f64>, Vec<f64>)], sampling: Sampling) -> Vec<Judged> {
    let alone = ALPHA / samples.len().max(1) as f64;
    let shifts: Vec<_> = samples
        .iter()
        .map(|(metric, a, b)| {
            let scale = |values: &[f64]| -> Vec<f64> {
                let log = |value: &f64| if metric.is_ratio() { value.ln() } else { *value };
                values.iter().map(log).collect()
            };
            shift(&scale(a), &scale(b), alone)
        })
        .collect();
    let adjusted = holm(&shifts.iter().map(|shift| shift.p).collect::<Vec<_>>());
    let judged = samples.iter().zip(&shifts).zip(adjusted).map(|(((metric, a, b), shift), p)| {
        let effect = |shift: f64| if metric.is_ratio() { shift.exp_m1() } else { shift };
        let least = match (metric.is_ratio(), sampling) {
            (true, Sampling::Runs) => LEAST_RATIO,
            (true, Sampling::Stretches) => SINGLE_RUN_RATIO,
            (false, _) => LEAST_SHARE,
        };
        let verdict = if least_p(a.len(), b.len()) > alone {
            Verdict::TooFew
        } else if p <= ALPHA && effect(shift.middle).abs() >= least {
            Verdict::Differs
        } else {
            Verdict::Same
        };
        Judged {
            metric: *metric,
            a: median(a),
            b: median(b),
            effect: effect(shift.middle),
            low: effect(shift.low),
            high: effect(shift.high),
            p,
            verdict,
        }
    });
    judged.collect()
}

/// Repeats of each side from which on all of `metrics` can be judged.
pub(crate) fn least_repeats(metrics: usize) -> usize {
    let alone = ALPHA / metrics.max(1) as f64;
    (1..super::rank::MAX_SAMPLE).find(|n| least_p(*n, *n) <= alone).unwrap_or(usize::MAX)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests;
