//! Overview above all charts: the warnings about the figures, then the figures.

use maud::{Markup, html};

use super::chart::key;
use super::key_figures;
use super::percentiles::knee;
use super::run_view::{RunView, firm};
use crate::record::Latency;

/// Maximum number of warnings of one kind that are shown unfolded.
const MAX_UNFOLDED: usize = 3;

/// The percentiles in the table.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// Renders the warnings of all runs, grouped by kind, or a sentence that there are none. With
/// `doubted`, findings have warnings, and the sentence is left out.
pub(crate) fn validity(runs: &[RunView<'_>], doubted: bool) -> Markup {
    let warned: Vec<_> = runs.iter().filter(|run| !run.run().warnings.is_empty()).collect();
    let stopped: Vec<_> = runs.iter().filter(|run| run.run().interrupted).collect();
    html! {
        section #validity {
            @if warned.is_empty() && stopped.is_empty() {
                @if !doubted {
                    p.verdict.good { "No warnings: nothing speaks against the figures of "
                        (plural(runs.len(), "run")) "." }
                }
            } @else {
                p.verdict.bad { "Read this first: the figures of "
                    (plural(warned.len().max(stopped.len()), "run")) " of " (runs.len())
                    " need care." }
            }
            @for run in &stopped {
                p.warning { b { "interrupted" } " " (link(run)) ": figures are those up to then" }
            }
            @if !warned.is_empty() {
                ul.warnings {
                    @for (code, texts) in group_warnings(&warned) { (kind(code, &texts)) }
                }
            }
        }
    }
}

/// A warning's text, and the runs with this warning.
type WarningGroup<'a> = (&'a str, Vec<&'a RunView<'a>>);

/// Renders all warnings of a kind. A long list is folded unless the kind invalidates the run.
fn kind(code: &str, texts: &[WarningGroup<'_>]) -> Markup {
    let said = html! {
        @for (text, runs) in texts {
            p { span.names { @for run in runs { (link(run)) " " } } (text) }
        }
    };
    let folded = texts.len() > MAX_UNFOLDED && severity(code) > 0;
    html! {
        li {
            b { (code) }
            @if folded {
                details { summary { (plural(texts.len(), "warning")) ", such as: " (texts[0].0) }
                    (said) }
            } @else { (said) }
        }
    }
}

/// Groups warnings by kind, the most severe first; equal texts are merged with all their runs.
fn group_warnings<'a>(runs: &[&'a RunView<'a>]) -> Vec<(&'a str, Vec<WarningGroup<'a>>)> {
    let mut kinds: Vec<(&str, Vec<WarningGroup<'_>>)> = Vec::new();
    for run in runs {
        for warning in &run.run().warnings {
            let place = kinds.iter().position(|kind| kind.0 == warning.code).unwrap_or_else(|| {
                kinds.push((&warning.code, Vec::new()));
                kinds.len() - 1
            });
            let texts = &mut kinds[place].1;
            match texts.iter_mut().find(|said| said.0 == warning.text) {
                Some(said) => said.1.push(run),
                None => texts.push((&warning.text, vec![run])),
            }
        }
    }
    kinds.sort_by_key(|(code, _)| severity(code));
    kinds
}

/// Returns the severity of a warning. 0: the figures are invalid; 1: the figures mislead; 2: the
/// figures are less precise than they seem.
fn severity(code: &str) -> u8 {
    match code {
        "non-2xx" | "client-limited" => 0,
        "backlog" | "errors" | "socket-errors" | "rate-unreached" | "rate-not-reached"
        | "other-command" => 1,
        _ => 2,
    }
}

/// Renders a run's name, as a link to its details.
pub(crate) fn link(run: &RunView<'_>) -> Markup {
    html! {
        @if run.full { a href={ "#run-" (run.number) } { (run.name()) } } @else { (run.name()) }
    }
}

fn plural(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}

/// Renders the table of all runs with their main figures.
pub(crate) fn table(runs: &[RunView<'_>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Figures of all runs" {
            table.runs {
                thead { tr {
                    th scope="col" { "run" }
                    th scope="col" { "asked/s" }
                    th scope="col" { "answered/s" }
                    @for quantile in QUANTILES {
                        th scope="col" { "p" (key_figures::percentile(quantile).replace(" %", "")) }
                    }
                    th scope="col" { "max" }
                    th scope="col" { "knee" }
                    th scope="col" { "not 2xx/3xx" }
                    th scope="col" title="not 2xx/3xx, too late or lost" {
                        "errors" }
                    th scope="col" title="of the server's process, in µs" { "CPU/request" }
                    th scope="col" { "warnings" }
                } }
                tbody { @for run in runs { (row(run)) } }
            }
        }
        p.hint { "Latencies are counted " (describe_latency_starts(runs)) ". Grey: fewer than 10 "
            "samples lie beyond that percentile. Knee: where the curve turns upward." }
    }
}

/// Describes the start of the latencies: the most common start, and the runs with another start.
fn describe_latency_starts(runs: &[RunView<'_>]) -> Markup {
    let mut kinds: Vec<(&str, Vec<&RunView<'_>>)> = Vec::new();
    for run in runs.iter().filter(|run| run.latency().is_some()) {
        match kinds.iter_mut().find(|kind| kind.0 == run.describe_latency_start()) {
            Some(kind) => kind.1.push(run),
            None => kinds.push((run.describe_latency_start(), vec![run])),
        }
    }
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.1.len()));
    html! {
        @match kinds.as_slice() {
            [] => "from the moment that a request was due",
            [most, rest @ ..] => {
                (most.0)
                @for (counted, runs) in rest {
                    "; but those of " @for (place, run) in runs.iter().enumerate() {
                        @if place > 0 { ", " } (link(run))
                    } " " (counted)
                }
            }
        }
    }
}

fn row(run: &RunView<'_>) -> Markup {
    let latency = run.latency();
    let all = run.run();
    let warnings = all.warnings.len();
    html! {
        tr {
            th scope="row" { (key(run.colour)) (link(run)) }
            td { @match all.plan.total_rate() {
                Some(rate) => (key_figures::rate(rate)),
                None => @if all.plan.closed { "closed loop" } @else { "–" },
            } }
            td { (key_figures::rate(all.throughput)) }
            @for quantile in QUANTILES { (at(latency, quantile)) }
            td { (latency.map_or_else(|| "–".to_owned(), |latency| key_figures::ms(latency.max))) }
            td { (latency.and_then(knee).map_or_else(|| "–".to_owned(),
                |knee| key_figures::percentile((knee.quantile * 1e4).round() / 1e4))) }
            @let refused = run.refused_share();
            td.bad[refused > 0.0] { (key_figures::share(refused)) }
            @let errors = all.error_share();
            td.bad[errors > Some(0.0)] {
                (errors.map_or_else(|| "–".to_owned(), key_figures::share))
            }
            td { (run.cpu_per_answer().map_or_else(|| "–".to_owned(),
                |cpu| format!("{} µs", key_figures::three(cpu)))) }
            td.bad[warnings > 0] { (warnings) }
        }
    }
}

/// Renders the table cell of a percentile, in grey if too few samples lie beyond the percentile.
pub(crate) fn at(latency: Option<&Latency>, quantile: f64) -> Markup {
    let value = latency.and_then(|latency| Some((latency, latency.at(quantile)?)));
    html! {
        @match value {
            Some((latency, value)) => td.few[!firm(latency, quantile)] { (key_figures::ms(value)) },
            None => td { "–" },
        }
    }
}
