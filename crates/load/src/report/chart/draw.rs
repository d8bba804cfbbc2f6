//! Draws a chart as SVG.
//!
//! ```text
//!   left ┌──────────────────────────┐ top
//!  tick ─┤ · · level · · ·          │
//!        │      ╱╲    │ band │      │
//!  tick ─┤  ───╱  ╲───│──────│───   │
//!        └──┬────────┬────────┬─────┘ bottom
//!          tick     tick     tick
//! ```

use std::fmt::Write;

use maud::{Markup, html};

use super::{COLOURS, Chart, Line, Mark, Shape, dashes};

/// Dimensions of a drawing, in SVG user units of about a pixel.
pub(super) struct Size {
    class: &'static str,
    width: f64,
    height: f64,
    low: f64,
    left: f64,
    /// Number of ticks that fit along the x axis and the y axis.
    ticks: (usize, usize),
}

pub(super) const WIDE: Size =
    Size { class: "wide", width: 900.0, height: 380.0, low: 190.0, left: LEFT, ticks: (10, 8) };

pub(super) const NARROW: Size =
    Size { class: "narrow", width: 400.0, height: 300.0, low: 170.0, left: LEFT, ticks: (4, 6) };

/// Width of the longest tick label, `1000 MiB`.
const LEFT: f64 = 72.0;

const TOP: f64 = 12.0;
const RIGHT: f64 = 18.0;
const BOTTOM: f64 = 30.0;

/// Half the width of a point.
const POINT: f64 = 5.0;

/// Layout of one drawing.
struct PlotArea<'a> {
    chart: &'a Chart,
    size: &'a Size,
    height: f64,
}

/// Draws a chart as SVG.
pub(super) fn svg(chart: &Chart, size: &Size) -> Markup {
    let height = if chart.low { size.low } else { size.height };
    let plane = PlotArea { chart, size, height };
    let view = format!("0 0 {} {height}", size.width);
    let plot = [size.left, TOP, plane.right() - size.left, plane.bottom() - TOP];
    let plot = plot.map(|place| place.to_string()).join(" ");
    html! {
        svg class=(size.class) viewBox=(view) data-plot=(plot) role="img" tabindex="0"
            aria-label=(about(chart)) {
            (plane.axes())
            @for mark in &chart.marks {
                @if !matches!(mark, Mark::Point { .. }) { (plane.mark(mark)) }
            }
            @for line in &chart.lines { (plane.line(line)) }
            @for mark in &chart.marks {
                @if matches!(mark, Mark::Point { .. }) { (plane.mark(mark)) }
            }
            g.cursor {}
        }
    }
}

/// Describes the chart in words, for screen readers.
fn about(chart: &Chart) -> String {
    let names: Vec<_> = chart.lines.iter().map(|line| line.name.as_str()).collect();
    format!("{}: {}. {}", chart.title, chart.note, names.join(", "))
}

impl PlotArea<'_> {
    fn right(&self) -> f64 {
        self.size.width - RIGHT
    }

    fn bottom(&self) -> f64 {
        self.height - BOTTOM
    }

    fn x(&self, value: f64) -> Option<f64> {
        let place = self.chart.x.at(value)?;
        Some(self.size.left + place * (self.right() - self.size.left))
    }

    fn y(&self, value: f64) -> Option<f64> {
        let place = self.chart.y.at(value)?;
        Some(self.bottom() - place * (self.bottom() - TOP))
    }

    fn axes(&self) -> Markup {
        let (left, right, bottom) = (self.size.left, self.right(), self.bottom());
        let down = if self.chart.low { 4 } else { self.size.ticks.1 };
        let ys = self.chart.y.ticks(down);
        // A long axis has more ticks than space for labels, so only every n-th tick has a label.
        let xs = self.chart.x.ticks(self.size.ticks.0);
        let every = xs.len().div_ceil(self.size.ticks.0 + 1).max(1);
        html! {
            g.axis {
                @for (value, word) in &ys {
                    @if let Some(y) = self.y(*value) {
                        line.grid x1=(left) x2=(right) y1=(px(y)) y2=(px(y)) {}
                        text x=(left - 8.0) y=(px(y + 4.0)) text-anchor="end" { (word) }
                    }
                }
                @for (place, (value, word)) in xs.iter().enumerate() {
                    @if let Some(x) = self.x(*value) {
                        line.grid x1=(px(x)) x2=(px(x)) y1=(TOP) y2=(bottom) {}
                        @if place % every == 0 {
                            text x=(px(x)) y=(bottom + 19.0) text-anchor=(self.anchor(x)) {
                                (word)
                            }
                        }
                    }
                }
                line.base x1=(left) x2=(right) y1=(bottom) y2=(bottom) {}
            }
        }
    }

    /// Returns the text anchor of a label at `x`. A label at the right end stays inside the
    /// drawing.
    fn anchor(&self, x: f64) -> &'static str {
        if x > self.right() - 14.0 { "end" } else { "middle" }
    }

    fn line(&self, line: &Line) -> Markup {
        let colour = format!("c{}{}", line.colour % COLOURS, dashes(line.colour));
        let off = if line.hidden { " off" } else { "" };
        let thin = line.thin_from.unwrap_or(f64::INFINITY);
        // The firm part and the thin part both contain the point where they meet.
        let firm: Vec<_> = line.points.iter().copied().filter(|point| point.0 <= thin).collect();
        let rest: Vec<_> = match firm.last() {
            Some(last) if firm.len() < line.points.len() => {
                [*last].into_iter().chain(line.points[firm.len()..].iter().copied()).collect()
            }
            _ => line.points[firm.len()..].to_vec(),
        };
        html! {
            g class={ "line " (colour) (off) } data-switch=[line.switch] {
                @if line.filled { path.fill d=(self.area(&firm)) {} }
                path d=(self.path(&firm)) {}
                @if !rest.is_empty() { path.thin d=(self.path(&rest)) {} }
            }
        }
    }

    /// Returns the SVG path through all points that the axes can show, interrupted at gaps.
    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        let mut pen = 'M';
        for (x, y) in points {
            match (self.x(*x), self.y(*y)) {
                (Some(x), Some(y)) => {
                    // Writing into a string can't fail.
                    let _ = write!(path, "{pen}{} {}", px(x), px(y));
                    pen = 'L';
                }
                _ => pen = 'M',
            }
        }
        path
    }

    /// Returns the SVG path of the area below the line, from its first finite point to its last.
    fn area(&self, points: &[(f64, f64)]) -> String {
        let has_place = |point: &&(f64, f64)| point.1.is_finite();
        let (Some(first), Some(last)) =
            (points.iter().find(has_place), points.iter().rev().find(has_place))
        else {
            return String::new();
        };
        let (Some(from), Some(to)) = (self.x(first.0), self.x(last.0)) else {
            return String::new();
        };
        let bottom = px(self.bottom());
        let whole: Vec<_> = points.iter().copied().filter(|point| point.1.is_finite()).collect();
        let line = self.path(&whole);
        format!("M{} {bottom}{}L{} {bottom}Z", px(from), line.replacen('M', "L", 1), px(to))
    }

    fn mark(&self, mark: &Mark) -> Markup {
        match mark {
            Mark::Level { y, to, text } => self.level(*y, *to, text),
            Mark::Band { from, to, text } => self.band(*from, *to, text),
            Mark::Point { x, y, shape, text, switch, colour } => html! {
                @if let (Some(x), Some(y)) = (self.x(*x), self.y(*y)) {
                    g class={ "point c" (colour % COLOURS) } data-switch=[*switch] {
                        title { (text) }
                        (shape.markup(x, y))
                    }
                }
            },
        }
    }

    fn level(&self, y: f64, to: Option<f64>, text: &str) -> Markup {
        let end = to.and_then(|to| self.x(to)).unwrap_or(self.right());
        html! {
            @if let Some(y) = self.y(y) {
                g.level {
                    line x1=(self.size.left) x2=(px(end)) y1=(px(y)) y2=(px(y)) {}
                    @if to.is_some() {
                        line x1=(px(end)) x2=(px(end)) y1=(px(y - 7.0)) y2=(px(y)) {}
                    }
                    text x=(self.size.left + 6.0) y=(px(y - 5.0)) { (text) }
                }
            }
        }
    }

    fn band(&self, from: f64, to: f64, text: &str) -> Markup {
        html! {
            @if let (Some(from), Some(to)) = (self.x(from), self.x(to)) {
                g.band {
                    rect x=(px(from)) y=(TOP) width=(px((to - from).max(1.5)))
                        height=(px(self.bottom() - TOP)) {}
                    @if from > self.size.width / 2.0 {
                        text x=(px(from - 5.0)) y=(TOP + 14.0) text-anchor="end" { (text) }
                    } @else {
                        text x=(px(to + 5.0)) y=(TOP + 14.0) { (text) }
                    }
                }
            }
        }
    }
}

impl Shape {
    fn markup(self, x: f64, y: f64) -> Markup {
        let p = POINT;
        let by = |dx: f64, dy: f64| format!("{} {}", px(x + dx), px(y + dy));
        let cross = format!("M{}L{}M{}L{}", by(-p, -p), by(p, p), by(-p, p), by(p, -p));
        let diamond = format!(
            "M{}L{}L{}L{}Z",
            by(0.0, -p - 1.0),
            by(p + 1.0, 0.0),
            by(0.0, p + 1.0),
            by(-p - 1.0, 0.0)
        );
        html! {
            @match self {
                Self::Pass => circle.pass cx=(px(x)) cy=(px(y)) r=(p) {},
                Self::Knee => circle.knee cx=(px(x)) cy=(px(y)) r=(p) {},
                Self::Unjudged => circle.unjudged cx=(px(x)) cy=(px(y)) r=(p - 1.5) {},
                Self::Fail => path.fail d=(cross) {},
                Self::Unclear => path.unclear d=(diamond) {},
            }
        }
    }
}

/// Rounds a coordinate to a tenth of a pixel.
fn px(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}
