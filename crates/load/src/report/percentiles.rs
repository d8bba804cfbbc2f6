//! Chart of latency by percentile, with the curves of all runs, on the axis 1/(1−p) as in wrk2's
//! charts.
//!
//! The *knee* of a curve is the point where it turns upward: the point farthest below the chord of
//! the curve, with latencies on a linear axis and 1/(1−p) on a logarithmic axis (the *Kneedle*
//! algorithm: Satopää, Albrecht, Irwin, Raghavan: "Finding a Kneedle in a Haystack", 2011).

use super::chart::{Axis, Chart, Line, Mark, Shape, Unit};
use super::key_figures;
use super::run_view::{RunView, firm, thin_from};
use crate::record::{Latency, Point};

/// Minimum distance of a knee below the chord, as a share of the curve's height.
const MIN_KNEE_DEPTH: f64 = 0.1;

/// Minimum number of reliable points of a curve that can have a knee.
const LEAST_POINTS: usize = 12;

/// An objective: the latency in milliseconds that a curve must stay below at a quantile of 0–1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Objective {
    pub(crate) quantile: f64,
    pub(crate) ms: f64,
    pub(crate) text: String,
}

/// Builds the chart. Returns `None` if no run has percentiles.
pub(crate) fn chart(runs: &[RunView<'_>], objectives: &[Objective]) -> Option<Chart> {
    let mut lines = Vec::new();
    let mut marks = Vec::new();
    for run in runs {
        let Some(latency) = run.latency().filter(|latency| !latency.curve().is_empty()) else {
            continue;
        };
        lines.push(Line {
            name: run.name().to_owned(),
            switch: Some(run.number),
            colour: run.colour,
            points: points(latency),
            thin_from: thin_from(latency),
            hidden: run.hidden,
            ..Line::default()
        });
        if let Some(knee) = knee(latency).filter(|_| !run.hidden) {
            marks.push(Mark::Point {
                x: place(knee.quantile),
                y: knee.value,
                shape: Shape::Knee,
                text: format!(
                    "{}: turns upward at {}",
                    run.name(),
                    key_figures::percentile(knee.quantile)
                ),
                switch: Some(run.number),
                colour: run.colour,
            });
        }
    }
    marks.extend(objectives.iter().map(|objective| Mark::Level {
        y: objective.ms,
        to: Some(place(objective.quantile)),
        text: objective.text.clone(),
    }));
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let last = all().map(|point| point.0).fold(0.0, f64::max);
    let ys = all().map(|point| point.1).chain(objectives.iter().map(|objective| objective.ms));
    let y = Axis::log(Unit::Milliseconds, ys);
    (!lines.is_empty()).then_some(Chart {
        id: "percentiles".to_owned(),
        title: "Latency by percentile".to_owned(),
        note: format!("{}grey: fewer than 10 samples lie beyond; ring: the knee", from(runs)),
        x: Axis::percentiles(last),
        y,
        lines,
        marks,
        group: String::new(),
        low: false,
    })
}

/// Returns a note that the latencies begin at the intended start if this is true for all runs,
/// otherwise an empty text.
fn from(runs: &[RunView<'_>]) -> &'static str {
    let due = |run: &RunView<'_>| {
        !run.run().plan.closed && run.latency().is_none_or(|latency| latency.from == "intended")
    };
    if runs.iter().all(due) { "from the intended start; " } else { "" }
}

/// Returns the points (1/(1−p), ms) of a curve. The last point, the maximum, is placed at the
/// percentile beyond which one sample lies.
fn points(latency: &Latency) -> Vec<(f64, f64)> {
    let curve = latency.curve();
    let finite = curve.iter().filter(|point| point.quantile < 1.0);
    let last = finite.clone().map(|point| place(point.quantile)).fold(1.0, f64::max);
    let end = curve.iter().find(|point| point.quantile >= 1.0);
    // If the spectrum has an earlier point of 100 %, its quantile is a rounded 99.9999….
    let end = end.map(|point| (last.max(latency.count as f64), point.value));
    finite.map(|point| (place(point.quantile), point.value)).chain(end).collect()
}

/// Returns the position 1/(1−p) of a quantile p on the axis.
fn place(quantile: f64) -> f64 {
    1.0 / (1.0 - quantile)
}

/// Returns the knee of a curve, or `None` if no knee is distinct.
pub(crate) fn knee(latency: &Latency) -> Option<Point> {
    let curve = latency.curve();
    let firm: Vec<_> = curve
        .iter()
        .filter(|point| point.quantile < 1.0 && firm(latency, point.quantile))
        .collect();
    let (first, last) = (firm.first()?, firm.last()?);
    let width = place(last.quantile).ln() - place(first.quantile).ln();
    let height = last.value - first.value;
    if firm.len() < LEAST_POINTS || width <= 0.0 || height <= 0.0 {
        return None;
    }
    let below = |point: &Point| {
        let along = (place(point.quantile).ln() - place(first.quantile).ln()) / width;
        along - (point.value - first.value) / height
    };
    let knee = firm.into_iter().max_by(|a, b| below(a).total_cmp(&below(b)))?;
    (below(knee) >= MIN_KNEE_DEPTH).then_some(*knee)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(count: u64, curve: impl Fn(f64) -> f64) -> Latency {
        let quantiles = (0..100).map(|step| 1.0 - 0.9_f64.powi(step));
        let spectrum =
            quantiles.map(|quantile| Point { value: curve(quantile), quantile, count: 0 });
        Latency { count, spectrum: spectrum.collect(), ..Latency::default() }
    }

    #[test]
    fn the_knee_lies_where_the_curve_turns_upward() {
        let stalls = latency(1_000_000, |p| if p < 0.98 { 1.0 } else { 200.0 * (p - 0.98) + 1.0 });
        let knee = knee(&stalls).unwrap();
        assert!((0.97..0.99).contains(&knee.quantile), "{knee:?}");
    }

    #[test]
    fn a_straight_curve_has_no_knee() {
        assert_eq!(knee(&latency(1_000_000, |p| place(p).ln() + 1.0)), None);
        assert_eq!(knee(&latency(1_000_000, |_| 1.0)), None);
        assert_eq!(knee(&Latency::default()), None);
    }

    #[test]
    fn few_samples_make_no_knee() {
        let stalls = |p: f64| if p < 0.98 { 1.0 } else { 200.0 * (p - 0.98) + 1.0 };
        assert_eq!(knee(&latency(100, stalls)), None, "98 % has two samples beyond it");
    }
}
