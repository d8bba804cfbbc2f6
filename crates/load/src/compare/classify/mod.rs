//! Derives a verdict on each metric from the figures of both sides.
//!
//! Every tested metric weakens the tests of the other metrics, because Holm's method divides the
//! level by the number of tests. So a metric that *cannot* differ is not tested: where all figures
//! of both sides lie closer together than the least difference that counts as real, "no difference"
//! is the only possible verdict. Whether a metric is tested depends on its figures alone and not on
//! their sides, so the chance of a false alarm stays the same (Tarone, "A Modified Bonferroni
//! Method for Discrete Data", 1990). The rule excludes throughput in an open loop, and errors if no
//! request fails.
//!
//! With six repeats a side and noise of 3 %, the comparison finds an increase of one metric by 10 %
//! in 95 % of cases if it tests five metrics at the level of runs, 5 %. If it tested all six, at
//! half that level, it would find the increase in 75 %. Between two equal servers it finds a
//! difference in 3 % of cases. These numbers are simulated; `tests.rs` checks bounds for five
//! metrics.

use super::metrics::{self, Metric};
use super::rank::{least_p, levels, shift};
use crate::saved::LoadedRun;

/// Chance of any false alarm in one comparison, over all its metrics. Rank tests of few runs have
/// few possible p-values, so the actual chance is smaller: less than 4 % with six runs a side.
pub(crate) const ALPHA: f64 = 0.05;

/// Chance of any false alarm between stretches, which are less independent than runs.
const STRETCHES_ALPHA: f64 = 0.025;

/// Minimum relative difference that counts as real. Nobody acts on a smaller difference, and in an
/// open loop the throughputs of two servers always differ by a few requests.
const LEAST_RATIO: f64 = 0.01;

/// Minimum difference between shares of errors that counts as real: one in a thousand.
const LEAST_SHARE: f64 = 0.001;

/// Minimum relative difference between two single runs that counts as real. Stretches of a run do
/// not show the difference between starts: memory layout, file placement and neighbours change from
/// start to start.
const SINGLE_RUN_RATIO: f64 = 0.05;

/// The verdict on one metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassifiedMetric {
    pub(crate) metric: Metric,
    /// The medians of both sides.
    pub(crate) a: f64,
    pub(crate) b: f64,
    /// B relative to A. For ratios, 0.1 = 10 % more; for shares, the difference of the shares.
    pub(crate) effect: f64,
    /// Confidence interval of `effect` at the level of the metric's test. The interval excludes 0
    /// exactly if the test found a difference.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Minimum difference that counts as real.
    pub(crate) least: f64,
    pub(crate) verdict: CompareVerdict,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompareVerdict {
    /// The difference exceeds the noise.
    Differs,
    /// The difference is within the noise, or too small to matter.
    Same,
    /// With so few repeats, no difference can exceed the noise.
    TooFew,
}

/// The samples of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Each run is one sample.
    Runs,
    /// Stretches of one run of each side.
    Stretches,
}

/// Chooses the samples. Several runs of each side are better samples than stretches of one run.
pub(crate) fn choose_sampling(a: &[LoadedRun], b: &[LoadedRun]) -> Sampling {
    if a.len() == 1 && b.len() == 1 { Sampling::Stretches } else { Sampling::Runs }
}

/// Classifies every metric that both sides report.
pub(crate) fn classify(a: &[LoadedRun], b: &[LoadedRun]) -> Vec<ClassifiedMetric> {
    let sampling = choose_sampling(a, b);
    let figures = |metric, side: &[LoadedRun]| match sampling {
        Sampling::Runs => metrics::of_runs(metric, side),
        Sampling::Stretches => metrics::of_stretches(metric, &side[0]),
    };
    let samples: Vec<_> = Metric::ALL
        .into_iter()
        .filter_map(|metric| Some((metric, figures(metric, a)?, figures(metric, b)?)))
        .collect();
    classify_samples(&samples, sampling)
}

/// Classifies the metrics by their figures.
pub(super) fn classify_samples(
    samples: &[(Metric, Vec<f64>, Vec<f64>)],
    sampling: Sampling,
) -> Vec<ClassifiedMetric> {
    let scaled: Vec<_> =
        samples.iter().map(|(metric, a, b)| [a, b].map(|side| scale(*metric, side))).collect();
    let leasts: Vec<f64> = samples.iter().map(|sample| least(sample.0, sampling)).collect();
    let can_differ = |at: &usize| {
        let [a, b] = &scaled[*at];
        let all = || a.iter().chain(b).copied();
        let spread = all().fold(f64::MIN, f64::max) - all().fold(f64::MAX, f64::min);
        effect(samples[*at].0, spread) >= leasts[*at]
    };
    let alpha = match sampling {
        Sampling::Runs => ALPHA,
        Sampling::Stretches => STRETCHES_ALPHA,
    };
    let tested: Vec<usize> = (0..samples.len()).filter(can_differ).collect();
    let p_values: Vec<f64> =
        tested.iter().map(|at| shift(&scaled[*at][0], &scaled[*at][1], alpha).p).collect();
    let mut level = vec![alpha / tested.len().max(1) as f64; samples.len()];
    for (at, decided) in tested.iter().zip(levels(&p_values, alpha)) {
        level[*at] = decided;
    }
    (0..samples.len())
        .map(|at| {
            let (metric, a, b) = &samples[at];
            let shift = shift(&scaled[at][0], &scaled[at][1], level[at]);
            let effect = |shift| effect(*metric, shift);
            let verdict = if least_p(a.len(), b.len()) > level[at] {
                CompareVerdict::TooFew
            } else if shift.p <= level[at] && effect(shift.middle).abs() >= leasts[at] {
                CompareVerdict::Differs
            } else {
                CompareVerdict::Same
            };
            ClassifiedMetric {
                metric: *metric,
                a: median(a),
                b: median(b),
                effect: effect(shift.middle),
                low: effect(shift.low),
                high: effect(shift.high),
                least: leasts[at],
                verdict,
            }
        })
        .collect()
}

/// Scales figures for the test: those of a ratio metric to logarithms, because a difference of
/// logarithms is the logarithm of a ratio.
fn scale(metric: Metric, figures: &[f64]) -> Vec<f64> {
    let log = |figure: &f64| if metric.is_ratio() { figure.ln() } else { *figure };
    figures.iter().map(log).collect()
}

/// Converts a difference of scaled figures into an effect.
fn effect(metric: Metric, shift: f64) -> f64 {
    if metric.is_ratio() { shift.exp_m1() } else { shift }
}

/// Returns the minimum difference that counts as real, in the unit of [`effect`].
fn least(metric: Metric, sampling: Sampling) -> f64 {
    match (metric.is_ratio(), sampling) {
        (true, Sampling::Runs) => LEAST_RATIO,
        (true, Sampling::Stretches) => SINGLE_RUN_RATIO,
        (false, _) => LEAST_SHARE,
    }
}

/// Returns the minimum number of repeats of each side with which every metric gets a verdict.
pub(crate) fn least_repeats() -> usize {
    let alone = ALPHA / Metric::ALL.len() as f64;
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
