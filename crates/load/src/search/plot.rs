//! Plots the curve of a search as text: latency over rate, both on logarithmic scales.

use super::decide::StepVerdict;
use super::slo::SloTime;

/// Columns and rows of the plot. With its labels, the plot fits a terminal of 80 columns.
const WIDTH: usize = 64;
const HEIGHT: usize = 12;

/// One trial in the plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dot {
    pub(crate) rate: u64,
    pub(crate) ms: f64,
    pub(crate) verdict: StepVerdict,
}

/// A logarithmic scale from the least to the greatest value.
struct Scale {
    low: f64,
    high: f64,
    cells: usize,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64> + Clone, cells: usize) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        // A single value lies in the middle of its scale.
        let (low, high) = if high > low { (low, high) } else { (low / 2.0, high * 2.0) };
        Self { low, high, cells }
    }

    fn cell(&self, value: f64) -> usize {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        (share * (self.cells - 1) as f64).round() as usize
    }

    fn value(&self, cell: usize) -> f64 {
        let share = cell as f64 / (self.cells - 1) as f64;
        self.low * (self.high / self.low).powf(share)
    }
}

/// Draws `dots` under the title `name`, with a line at `limit` milliseconds. Empty without dots.
pub(crate) fn plot(name: &str, dots: &[Dot], limit: Option<f64>) -> String {
    let dots: Vec<Dot> = dots.iter().copied().filter(|dot| dot.ms > 0.0 && dot.rate > 0).collect();
    if dots.is_empty() {
        return String::new();
    }
    let across = Scale::new(dots.iter().map(|dot| dot.rate as f64), WIDTH);
    let up = Scale::new(dots.iter().map(|dot| dot.ms).chain(limit), HEIGHT);
    let mut rows = vec![vec![' '; WIDTH]; HEIGHT];
    if let Some(limit) = limit {
        rows[up.cell(limit)].fill('-');
    }
    // Failed trials are drawn over passed ones, because they matter more.
    for verdict in [StepVerdict::Pass, StepVerdict::Inconclusive, StepVerdict::Fail] {
        for dot in dots.iter().filter(|dot| dot.verdict == verdict) {
            rows[up.cell(dot.ms)][across.cell(dot.rate as f64)] = mark(verdict);
        }
    }
    let mut text = format!("{name} over requests/s: o pass, x fail, ? no verdict");
    text.push_str(if limit.is_some() { ", --- objective\n" } else { "\n" });
    for (row, cells) in rows.iter().enumerate().rev() {
        let labelled = row % 4 == 0 || row == HEIGHT - 1;
        let label = if labelled { SloTime(up.value(row)).to_string() } else { String::new() };
        let cells: String = cells.iter().collect();
        text.push_str(format!("{label:>9} |{}", cells.trim_end()).trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:>9} +{}\n", "", "-".repeat(WIDTH)));
    let (low, high) = (across.low.round(), across.high.round());
    let gap = WIDTH - format!("{low}").len();
    text.push_str(&format!("{:>11}{low}{high:>gap$}\n", ""));
    text
}

pub(crate) fn mark(verdict: StepVerdict) -> char {
    match verdict {
        StepVerdict::Pass => 'o',
        StepVerdict::Fail => 'x',
        StepVerdict::Inconclusive => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_drawn() {
        let dot = |rate, ms, verdict| Dot { rate, ms, verdict };
        let dots = [
            dot(1000, 1.0, StepVerdict::Pass),
            dot(4000, 4.0, StepVerdict::Pass),
            dot(8000, 30.0, StepVerdict::Inconclusive),
            dot(16_000, 1000.0, StepVerdict::Fail),
        ];
        let text = plot("p99", &dots, Some(10.0));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "p99 over requests/s: o pass, x fail, ? no verdict, --- objective");
        assert_eq!(lines.len(), 1 + HEIGHT + 2);
        assert!(lines[1].starts_with("       1s |") && lines[1].ends_with(" x"), "{text}");
        assert!(lines[HEIGHT].starts_with("      1ms |o"), "{text}");
        assert!(lines.iter().any(|line| line.contains("----------") && !line.contains('+')));
        assert!(lines[HEIGHT + 2].contains("1000 ") && text.ends_with("16000\n"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        for mark in ["o", "x", "?"] {
            assert!(lines[1..=HEIGHT].iter().any(|line| line.contains(mark)), "{mark}: {text}");
        }
    }

    #[test]
    fn nothing_and_one_trial_can_be_drawn() {
        assert_eq!(plot("p99", &[], Some(1.0)), "");
        let one = Dot { rate: 100, ms: 2.0, verdict: StepVerdict::Pass };
        assert!(plot("p99", &[one], None).contains('o'));
    }
}
