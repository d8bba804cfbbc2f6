//! What a run did second by second: rate, latency, backlog, and what its servers told, as a stack of
//! charts over one time axis with one cursor.

use super::chart::{Axis, Chart, Line, Unit};
use super::shown::Shown;
use crate::saved::Timeline;

/// Metrics of servers that get a chart; a wall of them shows nothing.
const MAX_METRICS: usize = 12;

/// The charts of a run; none without a timeline.
pub(crate) fn charts(run: &Shown<'_>) -> Vec<Chart> {
    let Some(timeline) = &run.saved.timeline else { return Vec::new() };
    if timeline.seconds().len() < 2 {
        return Vec::new();
    }
    let stack = Stack { run, timeline };
    let mut charts = vec![
        stack.chart(
            "rate",
            "Requests a second",
            "due and answered",
            Unit::Rate,
            &[
                ("due", "due", false),
                ("answered", "answered", true),
                ("refused", "not 2xx/3xx", false),
                ("errors", "errors", false),
            ],
        ),
        stack.chart(
            "latency",
            "Latency",
            "of each second",
            Unit::Milliseconds,
            &[("max", "max", false), ("p99", "p99", false), ("p50", "p50", false)],
        ),
        stack.chart(
            "backlog",
            "Backlog",
            "requests due and not yet sent",
            Unit::Count,
            &[("backlog", "backlog", true)],
        ),
    ];
    charts.extend(stack.servers());
    charts.into_iter().flatten().collect()
}

struct Stack<'a> {
    run: &'a Shown<'a>,
    timeline: &'a Timeline,
}

impl Stack<'_> {
    /// A chart of columns: (name, what it is called, whether it is filled).
    fn chart(
        &self,
        id: &str,
        title: &str,
        note: &str,
        unit: Unit,
        columns: &[(&str, &str, bool)],
    ) -> Option<Chart> {
        let mut lines = Vec::new();
        for (colour, (column, name, filled)) in columns.iter().enumerate() {
            let Some(values) = self.timeline.column(column) else { continue };
            // Errors are drawn where there are any.
            if ["refused", "errors"].contains(column) && values.iter().all(|value| *value <= 0.0) {
                continue;
            }
            lines.push(self.line(name, colour, *filled, values));
        }
        self.finish(id, title, note, unit, lines)
    }

    fn line(&self, name: &str, colour: usize, filled: bool, values: &[f64]) -> Line {
        let seconds = self.timeline.seconds();
        Line {
            name: name.to_owned(),
            colour,
            points: seconds.iter().copied().zip(values.iter().copied()).collect(),
            filled,
            ..Line::default()
        }
    }

    fn finish(
        &self,
        id: &str,
        title: &str,
        note: &str,
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

    /// A chart for each metric, with a line for each server.
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
        let told = metrics.into_iter().filter(|(_, lines)| moved(lines)).take(MAX_METRICS);
        told.enumerate()
            .map(|(place, (metric, lines))| {
                let unit = if metric.contains("bytes") { Unit::Bytes } else { Unit::Count };
                let note = if metric.ends_with("_total") { "a second" } else { "" };
                self.finish(&format!("metric-{place}"), metric, note, unit, lines)
            })
            .collect()
    }
}
