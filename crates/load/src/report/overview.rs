//! What to know before any chart: whether the figures can be trusted, and the figures.

use maud::{Markup, html};

use super::chart::key;
use super::figures;
use super::percentiles::knee;
use super::shown::{Shown, firm};
use crate::record::Latency;

/// The percentiles of the table.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// Warnings of all runs, those of the same kind together; or that there are none.
pub(crate) fn validity(runs: &[Shown<'_>]) -> Markup {
    let warned: Vec<_> = runs.iter().filter(|run| !run.run().warnings.is_empty()).collect();
    let stopped: Vec<_> = runs.iter().filter(|run| run.run().interrupted).collect();
    html! {
        section #validity {
            @if warned.is_empty() && stopped.is_empty() {
                p.verdict.good { "No warnings: nothing speaks against the figures of "
                    (plural(runs.len(), "run")) "." }
            } @else {
                p.verdict.bad { "Read this first: the figures of "
                    (plural(warned.len().max(stopped.len()), "run")) " of " (runs.len())
                    " need care." }
            }
            @for run in &stopped {
                p.warning { b { "interrupted" } " " (link(run)) ": the figures are those up to then" }
            }
            @if !warned.is_empty() {
                ul.warnings {
                    @for (code, text, names) in grouped(&warned) {
                        li { b { (code) } " " span.names {
                            @for run in names { (link(run)) " " }
                        } (text) }
                    }
                }
            }
        }
    }
}

/// Warnings in the order of their first appearance, equal ones once with all their runs.
fn grouped<'a>(runs: &[&'a Shown<'a>]) -> Vec<(&'a str, &'a str, Vec<&'a Shown<'a>>)> {
    let mut grouped: Vec<(&str, &str, Vec<&Shown<'_>>)> = Vec::new();
    for run in runs {
        for warning in &run.run().warnings {
            let (code, text) = (warning.code.as_str(), warning.text.as_str());
            match grouped.iter_mut().find(|known| (known.0, known.1) == (code, text)) {
                Some(known) => known.2.push(run),
                None => grouped.push((code, text, vec![run])),
            }
        }
    }
    // What makes all figures worthless comes before what blurs some.
    let weight = |code: &str| match code {
        "non-2xx" | "client-limited" => 0,
        "backlog" | "socket-errors" | "rate-not-reached" => 1,
        _ => 2,
    };
    grouped.sort_by_key(|(code, _, _)| weight(code));
    grouped
}

/// A run's name, leading to what is known of it.
pub(crate) fn link(run: &Shown<'_>) -> Markup {
    html! { a href={ "#run-" (run.number) } { (run.name()) } }
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
                    th scope="col" { "errors" }
                    th scope="col" title="of the server's process, in µs" { "CPU/request" }
                    th scope="col" { "warnings" }
                } }
                tbody { @for run in runs { (row(run)) } }
            }
        }
        p.hint { "Latencies are counted from the moment that each request was due. Grey: fewer than "
            "10 samples lie beyond that percentile. Knee: where the curve turns upward." }
    }
}

fn row(run: &Shown<'_>) -> Markup {
    let latency = run.latency();
    let all = run.run();
    let warnings = all.warnings.len();
    html! {
        tr {
            th scope="row" { (key(run.number)) (link(run)) }
            td { @match all.plan.rate {
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
            td.bad[run.errors() > 0] { (figures::grouped(run.errors() as f64)) }
            td { (cpu(run)) }
            td.bad[warnings > 0] { (warnings) }
        }
    }
}

/// One percentile, grey if it rests on too few samples.
fn at(latency: Option<&Latency>, quantile: f64) -> Markup {
    let value = latency.and_then(|latency| Some((latency, latency.at(quantile)?)));
    html! {
        @match value {
            Some((latency, value)) => td.few[!firm(latency, quantile)] { (figures::ms(value)) },
            None => td { "–" },
        }
    }
}

/// CPU time of the servers for each answer.
fn cpu(run: &Shown<'_>) -> String {
    let servers: Option<f64> = run.run().servers.iter().map(|server| server.cpu_s).sum();
    let answered = run.run().counts.answered;
    match servers.filter(|cpu| *cpu > 0.0 && answered > 0) {
        Some(cpu) => format!("{} µs", figures::three(cpu * 1e6 / answered as f64)),
        None => "–".to_owned(),
    }
}
