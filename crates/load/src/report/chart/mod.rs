//! Charts: lines over two axes, with levels, bands and points. Their SVG works without scripts.
//!
//! Each chart is drawn twice, for wide and for narrow screens. The style sheet shows the drawing
//! for the screen's width, so that labels are legible on a phone. JSON beside the chart holds the
//! data for the cursor of the page's script.

mod draw;
mod scale;

use maud::{Markup, PreEscaped, html};
use serde_json::json;

pub(crate) use scale::{Axis, Unit};

/// Number of line colours; further lines reuse them with dashes.
pub(crate) const COLOURS: usize = 7;

/// The contents of one chart.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    /// Identifier, unique in the page, of letters, digits and hyphens.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Meaning of the y axis, and remarks.
    pub(crate) note: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
    pub(crate) marks: Vec<Mark>,
    /// Name of the chart's group. Charts of one group share their cursor; empty means no group.
    pub(crate) group: String,
    /// True for a chart that is drawn lower than usual, as one of a stack over the same x axis.
    pub(crate) low: bool,
}

/// A line of a chart.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Index of the legend's switch that shows and hides the line in all charts. Each run has one
    /// switch.
    pub(crate) switch: Option<usize>,
    /// Index of the line's colour.
    pub(crate) colour: usize,
    /// Points (x, y); a NaN y is a gap.
    pub(crate) points: Vec<(f64, f64)>,
    /// The x beyond which there are too few samples. From there on, the line is grey.
    pub(crate) thin_from: Option<f64>,
    /// True if the area between line and axis is filled.
    pub(crate) filled: bool,
    /// True if the line is hidden until its switch is turned on.
    pub(crate) hidden: bool,
}

/// A mark in a chart, beside its lines.
#[derive(Debug, Clone)]
pub(crate) enum Mark {
    /// A horizontal line at y for an objective, from the left edge to x = `to`, or to the right
    /// edge.
    Level { y: f64, to: Option<f64>, text: String },
    /// A vertical band between two x, for an interval.
    Band { from: f64, to: f64, text: String },
    /// A single point, for a trial or a knee.
    Point { x: f64, y: f64, shape: Shape, text: String, switch: Option<usize>, colour: usize },
}

/// Shape of a point, by the meaning of the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A trial that passed, drawn as a filled circle.
    Pass,
    /// A trial that failed, drawn as a cross.
    Fail,
    /// A trial without a clear verdict, drawn as a diamond.
    Unclear,
    /// The knee of a curve, drawn as a ring.
    Knee,
    /// A trial that was not judged, drawn as a small ring.
    Unjudged,
}

impl Chart {
    /// Renders the chart with its title and legend.
    pub(crate) fn markup(&self) -> Markup {
        let low = if self.low { "chart low" } else { "chart" };
        html! {
            figure class=(low) id=(self.id) data-group=(self.group) {
                figcaption {
                    span.title { (self.title) }
                    span.note { (self.note) }
                    button.export type="button" hidden { "SVG" }
                }
                @if self.lines.len() > 1 { (self.legend()) }
                (draw::svg(self, &draw::WIDE))
                (draw::svg(self, &draw::NARROW))
                script type="application/json" { (PreEscaped(self.data())) }
            }
        }
    }

    fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for line in &self.lines {
                    li {
                        @match line.switch {
                            Some(switch) => button type="button" data-switch=(switch)
                                aria-pressed=(!line.hidden) { (key(line.colour)) (line.name) },
                            None => span { (key(line.colour)) (line.name) },
                        }
                    }
                }
            }
        }
    }

    /// Returns the cursor's data, as JSON that cannot close the HTML element around it.
    fn data(&self) -> String {
        let axis = |axis: &Axis| {
            json!({"unit": axis.unit.name(), "log": axis.log,
            "min": axis.min, "max": axis.max})
        };
        let lines = self.lines.iter().map(|line| {
            // JSON has no NaN, so null represents a gap.
            let points: Vec<_> = line.points.iter().map(|(x, y)| json!([x, y])).collect();
            json!({"name": line.name, "switch": line.switch, "colour": line.colour % COLOURS,
                "thin": line.thin_from, "points": points})
        });
        let data = json!({"title": self.title, "x": axis(&self.x), "y": axis(&self.y),
            "lines": lines.collect::<Vec<_>>()});
        data.to_string().replace('<', "\\u003c")
    }
}

/// Renders the sample of a line in the legend.
pub(crate) fn key(colour: usize) -> Markup {
    let class = format!("key c{}{}", colour % COLOURS, dashes(colour));
    html! {
        svg class=(class) viewBox="0 0 22 10" aria-hidden="true" {
            line x1="1" y1="5" x2="21" y2="5" {}
        }
    }
}

/// Returns the CSS class of the dashes that distinguish lines of one colour.
fn dashes(colour: usize) -> &'static str {
    ["", " dash", " dot"][(colour / COLOURS).min(2)]
}
