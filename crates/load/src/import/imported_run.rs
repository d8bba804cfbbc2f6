//! Converts one output of wrk or wrk2 into a [`Run`], with a list of the missing and the guessed
//! values.

use super::imported_command::ImportedCommand;
use super::imported_figures::seconds;
use super::output::Output;
use super::warn;
use crate::record::{Counts, FORMAT, Latency, PlanRecord, Point, Run};

/// Rates that people often choose, each divided by its power of ten.
const COMMON_RATES: [f64; 13] = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];

/// Share by which wrk2 falls short of its rate in a run of one minute. Connecting takes part of the
/// time.
const RAMP: f64 = 0.015;

/// Facts about an output from the text around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// The command line before the output.
    pub(super) command: Option<&'a ImportedCommand>,
    /// The method mentioned before the output.
    pub(super) mentioned_method: Option<&'a str>,
}

/// Converts an output into a run.
pub(super) fn convert(output: &Output, context: Context<'_>) -> Run {
    let wrk2 = is_wrk2(output, context.command);
    let mut missing = Vec::new();
    let plan = build_plan_record(output, context, wrk2, &mut missing);
    let elapsed_s = elapsed(output).unwrap_or(plan.duration_s);
    let mut run = Run {
        format: FORMAT,
        source: "import".to_owned(),
        tool: if wrk2 { "wrk2" } else { "wrk" }.to_owned(),
        argv: context.command.map(|command| command.argv.clone()).unwrap_or_default(),
        elapsed_s,
        throughput: output.throughput,
        counts: counts(output, &plan),
        latency: latencies(output, wrk2),
        plan,
        ..Run::default()
    };
    list_missing(output, context, &mut missing);
    run.missing = missing;
    run.warnings = warn::all(&run, output, context.command);
    run
}

/// Returns true for an output of wrk2, which calibrates, has a rate, and prints tables of
/// `HdrHistogram`. wrk only runs closed loops.
fn is_wrk2(output: &Output, command: Option<&ImportedCommand>) -> bool {
    let says = ["Thread calibration", "HdrHistogram"].iter().any(|word| output.text.contains(word));
    let asked = command.is_some_and(|command| {
        command.rate.is_some() || command.argv.first().is_some_and(|word| word.ends_with("wrk2"))
    });
    says || asked
}

fn build_plan_record(
    output: &Output,
    context: Context<'_>,
    wrk2: bool,
    missing: &mut Vec<String>,
) -> PlanRecord {
    let command = context.command;
    let mut plan = PlanRecord {
        targets: output.url.clone().into_iter().collect(),
        threads: output.threads.unwrap_or_default(),
        connections: output.connections.unwrap_or_default(),
        closed: !wrk2,
        arrival: "even".to_owned(),
        duration_s: duration(output, command, missing),
        ..PlanRecord::default()
    };
    plan.rate = command.and_then(|command| command.rate);
    if let Some(word) = command.and_then(|command| command.mistyped_rate.as_ref()) {
        missing.push(format!("the command says {word}: taken as -R{}", &word[1..]));
    }
    if plan.rate.is_none() && wrk2 {
        plan.rate = output.throughput.and_then(guess_rate);
        missing.push(match plan.rate {
            Some(rate) => format!(
                "-R is missing: {rate} a second is the round number nearest to the {:.2} that were \
                 answered",
                output.throughput.unwrap_or_default()
            ),
            None => "-R is missing, and the rate cannot be told from what was answered".to_owned(),
        });
    }
    match (command.and_then(|command| command.script.as_ref()), context.mentioned_method) {
        (Some(script), _) => {
            plan.requests.clone_from(script);
            missing.push(format!("the script {script} itself"));
        }
        (None, Some(method)) => {
            plan.requests = format!("{method}, as the text before it has it");
            missing.push(format!("no script: {method} is what the text before it speaks of"));
        }
        (None, None) => missing.push("no script: what was requested is unknown".to_owned()),
    }
    plan
}

/// Returns the plan's duration in seconds: the duration of the command if the output agrees,
/// otherwise the actual duration of the run.
fn duration(output: &Output, command: Option<&ImportedCommand>, missing: &mut Vec<String>) -> f64 {
    let took = elapsed(output);
    let Some((word, said)) = command.and_then(|command| command.duration.as_ref()) else {
        return took.map(f64::round).unwrap_or_else(|| duration_from_head(output, missing));
    };
    // A run takes a little longer than planned. A truncated output without a duration agrees with
    // any command.
    let agrees = took.is_none_or(|took| (took / said - 1.0).abs() < 0.05);
    if agrees {
        return *said;
    }
    let took = took.unwrap_or_default().round();
    missing.push(format!("the command says -d {word}, but the run took {took} s"));
    took
}

/// Returns the run's duration in seconds, or `None` if the output does not give it. Requests
/// divided by throughput are more exact than the printed duration, which has two decimals.
fn elapsed(output: &Output) -> Option<f64> {
    let throughput = output.throughput.filter(|throughput| *throughput > 0.0);
    let exactly = throughput.zip(output.requests);
    let exactly = exactly.map(|(throughput, requests)| requests as f64 / throughput);
    let printed = || seconds(output.took.as_ref()?).filter(|took| took.is_finite());
    exactly.or_else(printed)
}

/// Returns the duration in seconds from the first line, for an output whose end is missing. Returns
/// 0 if the first line is missing too.
fn duration_from_head(output: &Output, missing: &mut Vec<String>) -> f64 {
    let Some(word) = &output.headed else { return 0.0 };
    missing.push(format!("how long the run took: {word} is what it is headed with, rounded"));
    seconds(word).filter(|headed| headed.is_finite()).unwrap_or_default()
}

/// Guesses the planned rate from the answers per second. Returns `None` if no common rate is close
/// enough.
fn guess_rate(answered: f64) -> Option<f64> {
    let power = 10_f64.powf(answered.max(1.0).log10().floor());
    let near = |rate: &f64| (rate / answered - 1.0).abs();
    let candidates = COMMON_RATES.iter().map(|digits| digits * power).chain([10.0 * power]);
    candidates.min_by(|a, b| near(a).total_cmp(&near(b))).filter(|rate| near(rate) <= RAMP)
}

fn counts(output: &Output, plan: &PlanRecord) -> Counts {
    let answered = output.requests.unwrap_or_default();
    let [connect_errors, read_errors, write_errors, timeouts] =
        output.socket_errors.unwrap_or_default();
    Counts {
        planned: plan.rate.map_or(answered, |rate| (rate * plan.duration_s).round() as u64),
        answered,
        in_time: answered,
        refused: output.refused.unwrap_or_default(),
        connect_errors,
        read_errors,
        write_errors,
        timeouts,
        bytes: output.bytes.unwrap_or_default(),
        ..Counts::default()
    }
}

fn latencies(output: &Output, wrk2: bool) -> Vec<Latency> {
    let [mean, stdev, max] = output.summary.unwrap_or_default();
    let known = output.summary.is_some() || output.mean.is_some();
    if !known && output.distribution.is_empty() && output.spectrum.is_empty() {
        return Vec::new();
    }
    let mut all = vec![Latency {
        from: if wrk2 { "intended" } else { "written" }.to_owned(),
        count: output.samples.unwrap_or_default(),
        mean: output.mean.unwrap_or(mean),
        stdev: output.stdev.unwrap_or(stdev),
        min: output.spectrum.first().map_or(0.0, |point| point.value),
        max: output.max.unwrap_or(max),
        percentiles: add_counts(&output.distribution, output.samples),
        spectrum: output.spectrum.clone(),
        ..Latency::default()
    }];
    let (short, spectrum) = &output.uncorrected;
    let uncorrected = Latency {
        from: "written".to_owned(),
        count: output.samples.unwrap_or_default(),
        percentiles: add_counts(short, output.samples),
        spectrum: spectrum.clone(),
        ..Latency::default()
    };
    if let Some(last) = uncorrected.curve().last() {
        all.push(Latency { max: last.value, ..uncorrected });
    }
    all
}

/// Adds the number of samples to each point of a short distribution, because wrk does not print it.
/// Leaves out the point that marks the table.
fn add_counts(distribution: &[Point], samples: Option<u64>) -> Vec<Point> {
    let samples = samples.unwrap_or_default() as f64;
    let lines = distribution.iter().filter(|point| point.quantile > 0.0);
    lines.map(|point| Point { count: (samples * point.quantile) as u64, ..*point }).collect()
}

/// Lists the parts of a complete output that are missing.
fn list_missing(output: &Output, context: Context<'_>, missing: &mut Vec<String>) {
    let mut say = |text: &str| missing.push(text.to_owned());
    if context.command.is_none() {
        say("no command line stands before the output");
    }
    match (output.spectrum.is_empty(), output.distribution.len()) {
        (false, _) => {}
        (true, 0) => say("no percentiles at all: only mean, deviation and maximum"),
        (true, n) => {
            missing.push(format!("no spectrum: only the {n} quantiles of the short table"))
        }
    }
    let mut say = |text: &str| missing.push(text.to_owned());
    if output.samples.is_none() {
        say("how many samples the histogram holds");
    }
    if output.headed.is_none() {
        say("the line \"Running … test @ URL\": the URL is unknown");
    }
    if output.threads.is_none() {
        say("threads and connections");
    }
    if output.summary.is_none() && output.mean.is_none() {
        say("mean and deviation of the latency");
    }
    if output.requests.is_none() {
        say("the number of requests");
    }
    if output.throughput.is_none() {
        say("Requests/sec");
    }
    if !output.whole {
        say("the end of the output");
    }
    say("when it ran, on what machine and against which version of the server");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_rates_are_guessed_from_round_numbers() {
        assert_eq!(guess_rate(9904.15), Some(10_000.0));
        assert_eq!(guess_rate(34_996.0), Some(35_000.0));
        assert_eq!(guess_rate(25_001.62), Some(25_000.0));
        assert_eq!(guess_rate(1000.0), Some(1000.0));
        assert_eq!(guess_rate(4321.0), None);
        assert_eq!(guess_rate(0.0), None);
    }
}
