//! From the figures of both sides to a verdict on each metric.
//!
//! Every metric that is tested weakens the tests of the others (Holm divides by their number), so
//! one that *cannot* differ is not: where all figures of both sides lie closer together than the
//! least difference that is called real, no verdict but "no difference" is possible. That depends
//! on the figures alone and not on which side they are of, so the chance of a false alarm stays
//! what it was (Tarone, "A Modified Bonferroni Method for Discrete Data", 1990). In an open loop
//! this leaves out throughput, and without errors these.
//!
//! With five metrics, six repeats a side and noise of 3 %, 10 % more of one are found in 95 % of
//! cases rather than in 75 %, with 2.5 % and all six tested, and A against A is called different in
//! 3 % (simulated; `tests.rs` holds to the greater part of that).

use super::metrics::{self, Metric};
use super::rank::{least_p, levels, shift};
use crate::saved::Saved;

/// Chance of any false alarm in one comparison, over all its metrics. Ranks of few runs have few
/// p-values, of which the next smaller is taken: with six a side it is less than 4 %.
pub(crate) const ALPHA: f64 = 0.05;

/// The same of stretches, which are not quite as independent as runs.
const STRETCHES_ALPHA: f64 = 0.025;

/// Differences below this are never called real: nobody acts on them, and in an open loop the
/// throughput of two servers differs by a few requests with certainty.
const LEAST_RATIO: f64 = 0.01;

/// The same for shares of errors: one in a thousand.
const LEAST_SHARE: f64 = 0.001;

/// What two single runs of the same server differ by: their stretches do not show it, for memory
/// lay-out, file placement and neighbours change from start to start.
const SINGLE_RUN_RATIO: f64 = 0.05;

/// The verdict on one metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Classified {
    pub(crate) metric: Metric,
    /// The median figure of each side.
    pub(crate) a: f64,
    pub(crate) b: f64,
    /// B against A: of ratios 0.1 = 10 % more; of shares the difference.
    pub(crate) effect: f64,
    /// Its interval at the level of its test, so that it is without 0 exactly if the test found a
    /// difference.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Below what a difference is not called real.
    pub(crate) least: f64,
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
    /// Each run is one sample.
    Runs,
    /// Stretches of one run of each side.
    Stretches,
}

/// Runs or stretches? Several runs of each side are better than any part of one.
pub(crate) fn sampling(a: &[Saved], b: &[Saved]) -> Sampling {
    if a.len() == 1 && b.len() == 1 { Sampling::Stretches } else { Sampling::Runs }
}

/// Classifies every metric that both sides report.
pub(crate) fn classify(a: &[Saved], b: &[Saved]) -> Vec<Classified> {
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
pub(super) fn decide(
    samples: &[(Metric, Vec<f64>, Vec<f64>)],
    sampling: Sampling,
) -> Vec<Classified> {
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
                Verdict::TooFew
            } else if shift.p <= level[at] && effect(shift.middle).abs() >= leasts[at] {
                Verdict::Differs
            } else {
                Verdict::Same
            };
            Classified {
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

/// Figures as they are tested: the differences of logarithms are ratios.
fn scale(metric: Metric, figures: &[f64]) -> Vec<f64> {
    let log = |figure: &f64| if metric.is_ratio() { figure.ln() } else { *figure };
    figures.iter().map(log).collect()
}

/// What a difference of scaled figures is of the figures.
fn effect(metric: Metric, shift: f64) -> f64 {
    if metric.is_ratio() { shift.exp_m1() } else { shift }
}

/// The least difference that is called real.
fn least(metric: Metric, sampling: Sampling) -> f64 {
    match (metric.is_ratio(), sampling) {
        (true, Sampling::Runs) => LEAST_RATIO,
        (true, Sampling::Stretches) => SINGLE_RUN_RATIO,
        (false, _) => LEAST_SHARE,
    }
}

/// Repeats of each side from which on all metrics can be judged.
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
