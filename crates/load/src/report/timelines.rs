//! The charts of a run second by second: rate, latency, backlog, and servers' metrics, as a stack
//! of charts over one time axis with one cursor.

use super::chart::{Axis, Chart, Line, Unit};
use super::run_view::RunView;
use crate::saved::SavedTimeline;

/// Maximum number of charts of servers' metrics. Nobody would read more charts.
const MAX_METRICS: usize = 12;

/// Minimum length in seconds of a run with charts. A search has a hundred short runs, whose few
/// points show nothing beyond their figures.
const LEAST_SECONDS: usize = 8;

/// Builds the charts of a run. Empty without a timeline, or for a run that is too short.
pub(crate) fn charts(run: &RunView<'_>) -> Vec<Chart> {
    let Some(timeline) = &run.saved.timeline else { return Vec::new() };
    if timeline.seconds().len() < LEAST_SECONDS {
        return Vec::new();
    }
    let stack = Stack { run, timeline };
    let mut charts = vec![
        stack.rate(),
        stack.chart(
            ("latency", "Latency", "of each second"),
            Unit::Milliseconds,
            &[("max_ms", "max"), ("p99_ms", "p99"), ("p50_ms", "p50")],
        ),
        stack.chart(
            ("backlog", "Backlog", "requests due and not yet sent"),
            Unit::Count,
            &[("backlog", "backlog")],
        ),
    ];
    charts.extend(stack.servers());
    charts.into_iter().flatten().collect()
}

/// Returns the reason why a run has no charts.
pub(crate) fn no_charts_reason(run: &RunView<'_>) -> String {
    match run.saved.timeline.as_ref().map(|timeline| timeline.seconds().len()) {
        None => "No charts over time: it has no timeline.csv.".to_owned(),
        Some(seconds) => format!(
            "No charts over time: {seconds} seconds are too few for them, {LEAST_SECONDS} are not."
        ),
    }
}

/// Returns the unit of a metric's chart, and a label for its values.
fn unit(metric: &str) -> (Unit, &'static str) {
    let of = |what: &str| metric.contains(what);
    match (SavedTimeline::is_counter(metric), of("bytes"), of("seconds")) {
        (true, true, _) => (Unit::Bytes, "bytes a second"),
        // CPU seconds per second are a number of CPUs.
        (true, _, true) if of("cpu") => (Unit::Count, "CPUs"),
        (true, _, true) => (Unit::Count, "seconds of each second"),
        (true, _, _) => (Unit::Count, "a second"),
        (false, true, _) => (Unit::Bytes, "bytes"),
        (false, _, true) => (Unit::Count, "seconds"),
        (false, _, _) => (Unit::Count, ""),
    }
}

struct Stack<'a> {
    run: &'a RunView<'a>,
    timeline: &'a SavedTimeline,
}

impl Stack<'_> {
    /// Builds the chart of the requests sent and answered, and of the errors if there were any.
    fn rate(&self) -> Option<Chart> {
        let column = |name: &str| self.timeline.column(name).map(<[f64]>::to_vec);
        let went = [("sent", column("sent"), false), ("answered", column("answered"), true)];
        let wrong = [
            ("not 2xx/3xx", column("refused"), false),
            ("errors and failed connects", self.timeline.errors(), false),
        ];
        let some = |values: &Vec<f64>| values.iter().any(|value| *value > 0.0);
        let wrong = wrong.map(|(name, values, filled)| (name, values.filter(some), filled));
        let lines = went.into_iter().chain(wrong).enumerate();
        let lines = lines.filter_map(|(colour, (name, values, filled))| {
            Some(self.line(name, colour, filled, &values?))
        });
        let words = ("rate", "Requests a second", "sent and answered");
        self.finish(words, Unit::Rate, lines.collect())
    }

    /// Builds a chart of columns, each given as (name, label). A single line is filled.
    fn chart(
        &self,
        words: (&str, &str, &str),
        unit: Unit,
        columns: &[(&str, &str)],
    ) -> Option<Chart> {
        let lines = columns.iter().enumerate().filter_map(|(colour, (column, name))| {
            let values = self.timeline.column(column)?;
            Some(self.line(name, colour, columns.len() == 1, values))
        });
        self.finish(words, unit, lines.collect())
    }

    fn line(&self, name: &str, colour: usize, filled: bool, values: &[f64]) -> Line {
        let seconds = self.timeline.seconds();
        Line {
            name: name.to_owned(),
            colour,
            points: seconds.into_iter().zip(values.iter().copied()).collect(),
            filled,
            ..Line::default()
        }
    }

    /// Builds a chart, or returns `None` without lines. The first argument is the suffix of the
    /// chart's id, its title and its note.
    fn finish(
        &self,
        (id, title, note): (&str, &str, &str),
        unit: Unit,
        lines: Vec<Line>,
    ) -> Option<Chart> {
        let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let seconds = self.timeline.seconds();
        let y = match unit {
            Unit::Milliseconds => Axis::log(unit, values()),
            _ => Axis::linear(unit, values()),
        };
        (!lines.is_empty()).then(|| Chart {
            id: format!("run-{}-{id}", self.run.number),
            title: title.to_owned(),
            note: note.to_owned(),
            x: Axis::exact(Unit::Seconds, 0.0, seconds.last().copied().unwrap_or(1.0)),
            y,
            lines,
            marks: Vec::new(),
            group: format!("run-{}", self.run.number),
            low: true,
        })
    }

    /// Builds a chart for each metric, with a line for each server.
    fn servers(&self) -> Vec<Option<Chart>> {
        let mut metrics: Vec<(&str, Vec<Line>)> = Vec::new();
        for (url, metric, column) in self.timeline.servers() {
            let place = metrics.iter().position(|(name, _)| *name == metric);
            let place = place.unwrap_or_else(|| {
                metrics.push((metric, Vec::new()));
                metrics.len() - 1
            });
            let colour = metrics[place].1.len();
            let line = self.line(url, colour, false, &column.values);
            metrics[place].1.push(line);
        }
        let moved = |lines: &[Line]| {
            let mut values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
            values.any(|value| value != 0.0 && value.is_finite())
        };
        let shown = metrics.into_iter().filter(|(_, lines)| moved(lines)).take(MAX_METRICS);
        shown
            .enumerate()
            .map(|(place, (metric, lines))| {
                let (unit, note) = unit(metric);
                self.finish((&format!("metric-{place}"), metric, note), unit, lines)
            })
            .collect()
    }
}
