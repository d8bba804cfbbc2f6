//! Warnings about an imported run, derived from its figures.
//!
//! Little's law is the main tool: at λ requests per second and mean latency W, on average λ·W
//! requests are in flight or waiting. A connection of HTTP/1.1 carries one request. All further
//! requests wait in the client for a connection, and this wait is part of the latencies.

use super::imported_command::ImportedCommand;
use super::imported_figures;
use super::output::Output;
use crate::record::{Latency, Run, Warning};

/// Mean latency in ms above which the waiting requests count as a backlog. Below, the connections
/// are only busy.
const BACKLOG_MEAN: f64 = 100.0;

/// Minimum share of the planned rate that a run must reach.
const REACHED: f64 = 0.99;

/// Minimum number of samples beyond a printed percentile. With fewer samples, the run gets a
/// warning.
const MIN_BEYOND: f64 = 10.0;

/// Seconds at the start that wrk2 leaves out of its histogram.
const CALIBRATION_S: f64 = 10.0;

/// Returns all warnings about a run.
pub(super) fn all(run: &Run, output: &Output, command: Option<&ImportedCommand>) -> Vec<Warning> {
    let found = [
        refusal_warning(run),
        errors(run),
        short(run),
        backlog(run, output),
        connections(run),
        few_samples(run),
        calibration(run),
    ];
    let mut warnings: Vec<_> = found.into_iter().flatten().collect();
    warnings.extend(command.and_then(|command| other_command(output, command)));
    warnings
}

fn warning(code: &str, text: String) -> Option<Warning> {
    Some(Warning { code: code.to_owned(), text })
}

fn refusal_warning(run: &Run) -> Option<Warning> {
    let (refused, answered) = (run.counts.refused, run.counts.answered);
    if refused == 0 {
        return None;
    }
    let share = 100.0 * refused as f64 / answered.max(1) as f64;
    let meaning = if refused == answered {
        "no figure of this run is about requests that worked"
    } else {
        "the figures mix requests that worked with refusals, which are often faster"
    };
    let text =
        format!("{share:.4} % of the answers ({refused} of {answered}) were neither 2xx nor 3xx");
    warning("non-2xx", format!("{}: {meaning}", text.replace(".0000 %", " %")))
}

fn errors(run: &Run) -> Option<Warning> {
    let counts = &run.counts;
    let named = [
        (counts.connect_errors, "connect errors"),
        (counts.read_errors, "read errors"),
        (counts.write_errors, "write errors"),
        (counts.timeouts, "timeouts"),
    ];
    let said: Vec<_> = named
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, name)| format!("{number} {name}"))
        .collect();
    if said.is_empty() {
        return None;
    }
    let text = format!("{}: these requests are in no latency figure", said.join(", "));
    warning("socket-errors", text)
}

fn short(run: &Run) -> Option<Warning> {
    let got = run.throughput?;
    let rate = run.plan.rate.filter(|rate| got < rate * REACHED)?;
    let share = 100.0 * got / rate;
    let text = format!("{got:.2} of {rate} requests a second were answered: {share:.1} %");
    warning("rate-not-reached", text)
}

/// Returns the mean number of requests in flight or waiting, by Little's law, and the latencies
/// used. Returns `None` without intended latencies or throughput.
fn under_way(run: &Run) -> Option<(f64, &Latency)> {
    let latency = run.latency("intended").filter(|latency| latency.mean > 0.0)?;
    Some((run.throughput? * latency.mean / 1e3, latency))
}

fn backlog(run: &Run, output: &Output) -> Option<Warning> {
    let (under_way, latency) = under_way(run)?;
    if latency.mean < BACKLOG_MEAN || under_way <= run.plan.connections as f64 {
        return None;
    }
    let mut text = format!(
        "{:.2} a second were answered, but {:.2} s late on average, {:.2} s at worst: on average \
         {under_way:.0} requests were due and not answered",
        run.throughput?,
        latency.mean / 1e3,
        latency.max / 1e3
    );
    // A low median means that half of the requests were fast, so the server reached the rate
    // between stalls.
    let median = latency.at(0.5).filter(|median| *median < latency.mean / 10.0);
    match median {
        Some(median) => {
            let stalls = format!(", in stalls: the median is {median:.2} ms");
            text.push_str(&stalls);
        }
        None => text.push_str(". The rate was held only on paper"),
    }
    let begun = output.calibration.iter().copied().fold(0.0, f64::max);
    if begun > BACKLOG_MEAN {
        let seconds = begun / 1e3;
        text.push_str(&format!(" (already {seconds:.1} s late while wrk2 calibrated)"));
    }
    warning("backlog", text)
}

fn connections(run: &Run) -> Option<Warning> {
    let (under_way, _) = under_way(run)?;
    let connections = run.plan.connections;
    if connections == 0 || under_way <= connections as f64 {
        return None;
    }
    let text = if connections == 1 {
        format!(
            "one connection carries one request at a time, so each had {:.3} ms at this rate: the \
             limit seen may be the connection's, not the server's. More connections would tell",
            1e3 / run.throughput?
        )
    } else {
        format!(
            "{under_way:.0} requests were under way or waiting on average, and {connections} \
             connections carry one each: part of the latency is waiting for a connection"
        )
    };
    warning("connection-limit", text)
}

fn few_samples(run: &Run) -> Option<Warning> {
    let latency = run.latency.first().filter(|latency| latency.count > 0)?;
    let shown = [(0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"), (0.99999, "99.999 %")];
    let beyond = |quantile: f64| latency.count as f64 * (1.0 - quantile);
    let (quantile, name) = shown.iter().find(|(quantile, _)| beyond(*quantile) < MIN_BEYOND)?;
    let highest = latency.curve().last().map_or(0.0, |point| point.quantile);
    if highest < *quantile {
        return None;
    }
    let text = format!(
        "{name} and above mean little: of {} samples {:.1} lie beyond it, and {MIN_BEYOND} should",
        latency.count,
        beyond(*quantile)
    );
    warning("few-samples", text)
}

fn calibration(run: &Run) -> Option<Warning> {
    if run.tool != "wrk2" {
        return None;
    }
    let (count, answered) = (run.latency.first()?.count, run.counts.answered);
    let a_second = run.throughput.unwrap_or_default();
    let left_out = answered.saturating_sub(count);
    let text = if count > 0 && left_out as f64 > a_second {
        format!(
            "the latencies are of {count} of the {answered} requests: wrk2 drops its first \
             {CALIBRATION_S} s from the histogram, not from the totals ({left_out} are {:.1} s)",
            left_out as f64 / a_second.max(1.0)
        )
    } else if count == 0 && run.elapsed_s > CALIBRATION_S {
        format!(
            "the latencies are without the first {CALIBRATION_S} s, which wrk2 drops; the totals \
             are with them"
        )
    } else {
        return None;
    };
    warning("calibration", text)
}

/// Warns if the quoted command is not the command that ran.
fn other_command(output: &Output, command: &ImportedCommand) -> Option<Warning> {
    let mut differs = Vec::new();
    let mut compare = |flag: &str, said: Option<String>, was: Option<String>| {
        if let (Some(said), Some(was)) = (said, was)
            && said != was
        {
            differs.push(format!("{flag} {said} there, {was} here"));
        }
    };
    let number = |number: Option<usize>| number.map(|number| number.to_string());
    compare("-t", number(command.threads), number(output.threads));
    compare("-c", number(command.connections), number(output.connections));
    compare("the URL", command.url.clone(), output.url.clone());
    // wrk prints 100 s as 2m, so the durations are compared in wrk's rounding.
    if let (Some((word, said)), Some(was)) = (&command.duration, &output.headed)
        && imported_figures::format_header_duration(*said) != *was
    {
        differs.push(format!("-d {word} there, {was} here"));
    }
    if differs.is_empty() {
        return None;
    }
    let text = format!("the command shown is not the one that was run: {}", differs.join("; "));
    warning("other-command", text)
}
