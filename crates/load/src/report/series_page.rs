//! The part of a report about a search, a sweep or a cold–hot series.

use maud::{Markup, html};

use super::chart::{Axis, Chart, Line, Mark, Shape, Unit, key};
use super::details::command;
use super::key_figures;
use super::overview::{at, link};
use super::pairs;
use super::percentiles::Objective;
use super::run_view::RunView;
use crate::record::{Finding, Trial};
use crate::saved::SavedSeries;
use crate::search::slo::{Quantity, Slo, Term};

/// One series and its runs, in the order of its trials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeriesView<'a> {
    pub(crate) saved: &'a SavedSeries,
    pub(crate) runs: &'a [RunView<'a>],
    /// Index of the series in the report, for anchors.
    pub(crate) number: usize,
}

/// Returns the latency terms of an objective such as `p99<10ms,errors<0.1%`. Empty if the objective
/// can't be parsed.
pub(crate) fn objectives(slo: &str) -> Vec<Objective> {
    let terms = slo.parse::<Slo>().map(|slo| slo.terms).unwrap_or_default();
    let objective = |term: Term| match term.what {
        Quantity::Quantile(quantile) => Some(Objective {
            quantile,
            ms: term.limit,
            text: format!("objective {} < {}", term.what, key_figures::ms(term.limit)),
        }),
        Quantity::Mean | Quantity::Max | Quantity::Errors => None,
    };
    terms.into_iter().filter_map(objective).collect()
}

impl SeriesView<'_> {
    /// Renders one sentence for each finding.
    pub(crate) fn verdict(&self) -> Markup {
        let series = &self.saved.series;
        html! {
            @for finding in &series.findings {
                p.verdict.found {
                    @if !finding.value.is_empty() { (finding.value) ": " }
                    (sentence(finding, &series.slo))
                }
                @if !finding.warnings.is_empty() {
                    ul.warnings {
                        @for warning in &finding.warnings {
                            li { b { (warning.code) } " " (warning.text) }
                        }
                    }
                }
            }
            @if series.interrupted {
                p.verdict.bad { (self.saved.name) " was interrupted: it holds what was found up to "
                    "then." }
            }
        }
    }

    /// Returns true if the findings have warnings or the series was interrupted.
    pub(crate) fn is_doubted(&self) -> bool {
        let series = &self.saved.series;
        series.interrupted || series.findings.iter().any(|finding| !finding.warnings.is_empty())
    }

    /// Renders the section of the series.
    pub(crate) fn section(&self) -> Markup {
        let series = &self.saved.series;
        html! {
            section.series id={ "series-" (self.number) } {
                h2 { @match series.kind.as_str() {
                    "coldhot" => "Cold and hot",
                    _ => "Search for the breaking point",
                } " " span.name { (self.saved.name) } }
                @if let Some(chart) = self.curve() { (chart.markup()) }
                @if series.findings.iter().any(|finding| !finding.value.is_empty()) {
                    (sweep(&series.findings))
                }
                (pairs::all(&series.trials, self.runs))
                (self.trials())
                h4 { "Command" }
                pre tabindex="0" { (command(&series.argv)) }
                @if !series.server.is_empty() {
                    h4 { "Server" }
                    pre tabindex="0" { (command(&series.server)) }
                }
            }
        }
    }

    /// Builds the chart of the objective's percentile over the rate, with each trial's verdict.
    /// Returns `None` if no trial was judged, as in a cold–hot series.
    fn curve(&self) -> Option<Chart> {
        let series = &self.saved.series;
        if series.trials.iter().all(|trial| trial.verdict.is_empty()) {
            return None;
        }
        let objectives = objectives(&series.slo);
        let quantile = objectives.iter().map(|objective| objective.quantile).fold(0.0, f64::max);
        let quantile = if quantile > 0.0 { quantile } else { 0.99 };
        let values = self.values();
        let mut lines = Vec::new();
        let mut marks = Vec::new();
        let mut places = Vec::new();
        for (colour, value) in values.iter().enumerate() {
            let mut points = Vec::new();
            for (trial, run) in series.trials.iter().zip(self.runs) {
                let latency = run.latency().and_then(|latency| latency.at(quantile));
                let (Some(rate), Some(y)) = (trial.rate, latency) else { continue };
                if trial.value != *value {
                    continue;
                }
                // A trial without a verdict, such as an interrupted one, is not part of the curve.
                if !trial.verdict.is_empty() {
                    points.push((rate, y));
                }
                places.push((rate, y));
                marks.push(point(trial, rate, y, colour));
            }
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let name = if value.is_empty() { "trials".to_owned() } else { value.clone() };
            lines.push(Line { name, colour, points: merge_equal_x(&points), ..Line::default() });
        }
        // For a sweep, the table shows the limits, because overlapping bands would be unreadable.
        if let [finding] = series.findings.as_slice()
            && let Some(passes) = finding.passes
        {
            let text = "breaks".to_owned();
            marks.push(Mark::Band { from: passes, to: finding.fails.unwrap_or(passes), text });
        }
        marks.extend(objectives.iter().map(|objective| Mark::Level {
            y: objective.ms,
            to: None,
            text: objective.text.clone(),
        }));
        let unjudged = marks
            .iter()
            .any(|mark| matches!(mark, Mark::Point { shape, .. } if *shape == Shape::Unjudged));
        let unjudged = if unjudged { "  ○ not judged" } else { "" };
        let xs = places.iter().map(|place| place.0);
        let ys = places.iter().map(|place| place.1);
        let ys = ys.chain(objectives.iter().map(|objective| objective.ms));
        let (x, y) = (Axis::log(Unit::Rate, xs), Axis::log(Unit::Milliseconds, ys));
        (places.len() > 1).then(|| Chart {
            id: format!("series-{}-curve", self.number),
            title: format!("p{} over rate", key_figures::percentile(quantile).replace(" %", "")),
            note: format!("● pass  ✕ fail  ◇ inconclusive{unjudged}; shaded: where it breaks"),
            x,
            y,
            lines,
            marks,
            group: String::new(),
            low: false,
        })
    }

    /// Returns the swept values in order. Without a sweep, returns one empty value.
    fn values(&self) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for trial in &self.saved.series.trials {
            if !values.contains(&trial.value) {
                values.push(trial.value.clone());
            }
        }
        values
    }

    fn trials(&self) -> Markup {
        let series = &self.saved.series;
        let swept = series.trials.iter().any(|trial| !trial.value.is_empty());
        html! {
            div.scroll tabindex="0" role="region" aria-label="Trials" { table.trials {
                thead { tr {
                    th scope="col" { "trial" }
                    th scope="col" { "for" }
                    @if swept { th scope="col" { "value" } }
                    th scope="col" { "asked/s" }
                    th scope="col" { "answered/s" }
                    th scope="col" { "p50" }
                    th scope="col" { "p99" }
                    th scope="col" { "verdict" }
                    th.words scope="col" { "why" }
                } }
                tbody { @for (trial, run) in series.trials.iter().zip(self.runs) { tr {
                    th scope="row" { (link(run)) }
                    td { (trial.role) }
                    @if swept { td { (trial.value) } }
                    td { (trial.rate.map_or_else(|| "closed loop".to_owned(), key_figures::rate)) }
                    td { (key_figures::rate(run.run().throughput)) }
                    (at(run.latency(), 0.5))
                    (at(run.latency(), 0.99))
                    td class={ "verdict-" (trial.verdict) } {
                        (sign(&trial.verdict)) (trial.verdict)
                    }
                    td.words { (trial.why) }
                } } }
            } }
        }
    }
}

fn sign(verdict: &str) -> &'static str {
    match verdict {
        "pass" => "● ",
        "fail" => "✕ ",
        "inconclusive" => "◇ ",
        _ => "",
    }
}

fn point(trial: &Trial, rate: f64, y: f64, colour: usize) -> Mark {
    let shape = match trial.verdict.as_str() {
        "fail" => Shape::Fail,
        "inconclusive" => Shape::Unclear,
        "pass" => Shape::Pass,
        _ => Shape::Unjudged,
    };
    let verdict = if trial.verdict.is_empty() { "not judged" } else { &trial.verdict };
    let text = format!(
        "{}: {} at {}/s, {}. {}",
        trial.dir,
        verdict,
        key_figures::rate(rate),
        key_figures::ms(y),
        trial.why
    );
    Mark::Point { x: rate, y, shape, text, switch: None, colour }
}

/// Merges points with the same x into one point, at the median of their y. The points must be
/// sorted by x.
fn merge_equal_x(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let same = points.chunk_by(|a, b| a.0 == b.0);
    same.map(|group| {
        let mut ys: Vec<f64> = group.iter().map(|point| point.1).collect();
        ys.sort_by(f64::total_cmp);
        (group[0].0, ys[ys.len() / 2])
    })
    .collect()
}

fn sentence(finding: &Finding, slo: &str) -> String {
    let objective = if slo.is_empty() { String::new() } else { format!(" within {slo}") };
    let edge = match (finding.passes, finding.fails) {
        (Some(passes), Some(fails)) => format!(
            "It holds {}/s{objective} and breaks by {}/s.",
            key_figures::rate(passes),
            key_figures::rate(fails)
        ),
        (Some(passes), None) => {
            format!(
                "It holds {}/s{objective}; no rate tried was too much.",
                key_figures::rate(passes)
            )
        }
        (None, Some(fails)) => {
            format!("It does not hold even {}/s{objective}.", key_figures::rate(fails))
        }
        (None, None) => "No breaking point was found.".to_owned(),
    };
    let limit = match (finding.limit.as_str(), finding.why.as_str()) {
        ("", _) => String::new(),
        // Without a breaking point there is no limiting resource. The first sentence says so.
        ("unknown", _) if finding.passes.or(finding.fails).is_none() => String::new(),
        ("unknown", why) => format!(" What limits is not known: {why}"),
        (limit, "") => format!(" What limits: {limit}."),
        (limit, why) => format!(" What limits: {limit} ({why})."),
    };
    format!("{edge}{limit}")
}

/// Renders the finding for each value, with a bar up to the rate that passes and a tick at the rate
/// that fails.
fn sweep(findings: &[Finding]) -> Markup {
    let ends = findings.iter().flat_map(|finding| [finding.passes, finding.fails, finding.ceiling]);
    let most = ends.flatten().fold(1.0, f64::max);
    let place = |rate: f64| (rate / most * 1000.0).round() / 10.0;
    let rate = |rate: Option<f64>| rate.map_or_else(|| "–".to_owned(), key_figures::rate);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Sweep" { table.sweep {
            thead { tr {
                th scope="col" { "value" } th scope="col" { "holds/s" }
                th scope="col" { "breaks/s" }
                th scope="col" { "closed loop/s" } th.bars scope="col" { "" }
                th.words scope="col" { "what limits" }
            } }
            tbody { @for (colour, finding) in findings.iter().enumerate() { tr {
                th scope="row" { (key(colour)) (finding.value) }
                td { (rate(finding.passes)) } td { (rate(finding.fails)) }
                td { (rate(finding.ceiling)) }
                td.bars { svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
                    @let holds = place(finding.passes.unwrap_or(0.0));
                    rect.holds x="0" y="1" width=(holds) height="8" {}
                    @if let Some(fails) = finding.fails {
                        rect.breaks x=(holds) y="1" width=((place(fails) - holds).max(0.5))
                            height="8" {}
                    }
                } }
                td.words { (finding.limit) @if !finding.why.is_empty() { ": " (finding.why) } }
            } } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_terms_become_objectives() {
        let found = objectives("p99<10ms, errors<0.1%,p50<=0.5s");
        let found: Vec<_> =
            found.iter().map(|objective| (objective.quantile, objective.ms)).collect();
        assert_eq!(found, [(0.99, 10.0), (0.5, 500.0)]);
        assert_eq!(objectives(""), []);
        assert_eq!(objectives("of another tool"), []);
    }

    #[test]
    fn a_finding_is_described_by_its_rates_and_its_limit() {
        let found = Finding {
            passes: Some(41_000.0),
            fails: Some(43_000.0),
            limit: "cpu".to_owned(),
            why: "1.9 of 2 cores".to_owned(),
            ..Finding::default()
        };
        assert_eq!(
            sentence(&found, "p99<10ms"),
            "It holds 41,000/s within p99<10ms and breaks by 43,000/s. What limits: cpu (1.9 of 2 \
             cores)."
        );
        assert_eq!(sentence(&Finding::default(), ""), "No breaking point was found.");
    }

    #[test]
    fn trials_at_one_rate_are_merged_into_their_median() {
        let points = [(1.0, 5.0), (1.0, 3.0), (1.0, 4.0), (2.0, 9.0)];
        assert_eq!(merge_equal_x(&points), [(1.0, 4.0), (2.0, 9.0)]);
    }
}
