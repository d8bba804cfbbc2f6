//! What to know before any chart: whether the figures can be trusted, and the figures.

use maud::{Markup, html};

use super::chart::key;
use super::figures;
use super::percentiles::knee;
use super::shown::{Shown, firm};
use crate::record::Latency;

/// Warnings of a kind that are shown unfolded.
const AT_ONCE: usize = 3;

/// The percentiles of the table.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// Warnings of all runs, those of the same kind together; or that there are none.
/// `doubted` says that there are warnings elsewhere, of findings.
pub(crate) fn validity(runs: &[Shown<'_>], doubted: bool) -> Markup {
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
                ul.warnings { @for (code, texts) in grouped(&warned) { (kind(code, &texts)) } }
            }
        }
    }
}

/// A warning's text with the runs that have it.
type Said<'a> = (&'a str, Vec<&'a Shown<'a>>);

/// All warnings of a kind. Of a kind that does not spoil the run, a number of them is folded.
fn kind(code: &str, texts: &[Said<'_>]) -> Markup {
    let said = html! {
        @for (text, runs) in texts {
            p { span.names { @for run in runs { (link(run)) " " } } (text) }
        }
    };
    let folded = texts.len() > AT_ONCE && gravity(code) > 0;
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

/// Warnings by their kind, the gravest first; equal ones are one with all their runs.
fn grouped<'a>(runs: &[&'a Shown<'a>]) -> Vec<(&'a str, Vec<Said<'a>>)> {
    let mut kinds: Vec<(&str, Vec<Said<'_>>)> = Vec::new();
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
    kinds.sort_by_key(|(code, _)| gravity(code));
    kinds
}

/// 0: the figures are worthless; 1: they mislead; 2: they say less than it seems.
fn gravity(code: &str) -> u8 {
    match code {
        "non-2xx" | "client-limited" => 0,
        "backlog" | "errors" | "socket-errors" | "rate-unreached" | "rate-not-reached"
        | "other-command" => 1,
        _ => 2,
    }
}

/// A run's name, leading to what is known of it.
pub(crate) fn link(run: &Shown<'_>) -> Markup {
    html! {
        @if run.full { a href={ "#run-" (run.number) } { (run.name()) } } @else { (run.name()) }
    }
}

fn plural(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}

/// All runs with their main figures.
pub(crate) fn table(runs: &[Shown<'_>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Figures of all runs" {
            table.runs {
                thead { tr {
                    th scope="col" { "run" }
                    th scope="col" { "asked/s" }
                    th scope="col" { "answered/s" }
                    @for quantile in QUANTILES {
                        th scope="col" { "p" (figures::percentile(quantile).replace(" %", "")) }
                    }
                    th scope="col" { "max" }
                    th scope="col" { "knee" }
                    th scope="col" { "not 2xx/3xx" }
                    th scope="col" title="not 2xx/3xx, too late, lost or not connected" {
                        "errors" }
                    th scope="col" title="of the server's process, in µs" { "CPU/request" }
                    th scope="col" { "warnings" }
                } }
                tbody { @for run in runs { (row(run)) } }
            }
        }
        p.hint { "Latencies are counted " (counted(runs)) ". Grey: fewer than 10 samples lie "
            "beyond that percentile. Knee: where the curve turns upward." }
    }
}

/// From when: what most are, and which are not.
fn counted(runs: &[Shown<'_>]) -> Markup {
    let mut kinds: Vec<(&str, Vec<&Shown<'_>>)> = Vec::new();
    for run in runs.iter().filter(|run| run.latency().is_some()) {
        match kinds.iter_mut().find(|kind| kind.0 == run.counted()) {
            Some(kind) => kind.1.push(run),
            None => kinds.push((run.counted(), vec![run])),
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

fn row(run: &Shown<'_>) -> Markup {
    let latency = run.latency();
    let all = run.run();
    let warnings = all.warnings.len();
    html! {
        tr {
            th scope="row" { (key(run.colour)) (link(run)) }
            td { @match all.plan.whole_rate() {
                Some(rate) => (figures::rate(rate)),
                None => @if all.plan.closed { "closed loop" } @else { "–" },
            } }
            td { (figures::rate(all.throughput)) }
            @for quantile in QUANTILES { (at(latency, quantile)) }
            td { (latency.map_or_else(|| "–".to_owned(), |latency| figures::ms(latency.max))) }
            td { (latency.and_then(knee).map_or_else(|| "–".to_owned(),
                |knee| figures::percentile((knee.quantile * 1e4).round() / 1e4))) }
            @let refused = run.refused();
            td.bad[refused > 0.0] { (figures::share(refused)) }
            @let errors = all.error_share();
            td.bad[errors > Some(0.0)] { (errors.map_or_else(|| "–".to_owned(), figures::share)) }
            td { (run.cpu_per_answer().map_or_else(|| "–".to_owned(),
                |cpu| format!("{} µs", figures::three(cpu)))) }
            td.bad[warnings > 0] { (warnings) }
        }
    }
}

/// One percentile, grey if it rests on too few samples.
pub(crate) fn at(latency: Option<&Latency>, quantile: f64) -> Markup {
    let value = latency.and_then(|latency| Some((latency, latency.at(quantile)?)));
    html! {
        @match value {
            Some((latency, value)) => td.few[!firm(latency, quantile)] { (figures::ms(value)) },
            None => td { "–" },
        }
    }
}
