//! The `compare` command: compares A with B, and tells real differences from noise.
//!
//! ```text
//!  A, B ─▶ saved ─┬─ parameters   parameters that differ: plan, machine, server, script
//!                 ├─ metrics      a figure for each repeat
//!                 ├─ rank         rank statistics: Mann–Whitney, Hodges–Lehmann, Holm
//!                 └─ classify     the verdict on each metric: differs, same, too few repeats
//! ```
//!
//! A side is one run directory, or a directory with several runs that are repeats of each other.
//! Other mixtures of runs are refused. With repeats, the noise is the variation between the runs of
//! a side. With one run on each side, only the noise *within* the runs is visible, and only in runs
//! that are long enough. The output then states this limit, and small differences do not count as
//! real.

mod classify;
mod metrics;
mod parameters;
mod rank;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::saved::{self, LoadedRun};
use classify::{
    ClassifiedMetric, CompareVerdict, Sampling, choose_sampling, classify, least_repeats,
};
use metrics::Metric;

/// Everything after `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// A run directory, or a directory with several runs of the same: repeats, 5..40, better 6 or
    /// more. Runs of A and B should have been made in turns, so that a machine that slows down
    /// slows both. Of one run each, both need 40 s or more for any verdict
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// The same for what A is compared with
    #[arg(value_name = "B")]
    pub b: PathBuf,
}

/// The reason why two sides can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A side can't be read.
    #[error(transparent)]
    Saved(#[from] saved::Error),
    /// A side has more runs than a rank test accepts.
    #[error(
        "{}: {runs} runs, at most {} are compared: move some elsewhere",
        side.display(),
        rank::MAX_SAMPLE
    )]
    TooMany {
        /// The directory of the side.
        side: PathBuf,
        /// Number of runs in the directory.
        runs: usize,
    },
    /// A trial has no run.
    #[error(
        "{}: {trial} has no run: its server died or did not start. Give directories with runs",
        side.display()
    )]
    NoRun {
        /// The directory of the side.
        side: PathBuf,
        /// The trial's directory.
        trial: String,
    },
    /// The runs of a side are not repeats of the same run.
    #[error(
        "{}: its runs are not repeats of the same: {difference}. Give single runs (one of the \
         directories in it), or move the repeats of one into a directory of their own",
        side.display()
    )]
    Mixed {
        /// The directory of the side.
        side: PathBuf,
        /// The first parameter that differs, and its values.
        difference: String,
    },
}

/// Compares two sides and returns the text to print.
pub fn compare(args: &CompareArgs) -> Result<String, Error> {
    let (a, b) = (side(&args.a)?, side(&args.b)?);
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = describe(&mut text, &a, &b);
    Ok(text)
}

/// Reads all runs of a side.
fn side(directory: &Path) -> Result<Vec<LoadedRun>, Error> {
    let found = saved::read(&[directory.to_owned()])?;
    let runs: Vec<_> = found.iter().flat_map(|found| found.runs().to_vec()).collect();
    if runs.len() > rank::MAX_SAMPLE {
        return Err(Error::TooMany { side: directory.to_owned(), runs: runs.len() });
    }
    if let Some(empty) = runs.iter().find(|saved| saved.run.format == 0) {
        return Err(Error::NoRun { side: directory.to_owned(), trial: empty.name.clone() });
    }
    if let Some(difference) = parameters::difference_within(&runs) {
        return Err(Error::Mixed { side: directory.to_owned(), difference });
    }
    Ok(runs)
}

fn describe(text: &mut String, a: &[LoadedRun], b: &[LoadedRun]) -> std::fmt::Result {
    let runs = |side: &[LoadedRun]| match side {
        [one] => format!("1 run ({})", one.name),
        many => format!("{} runs", many.len()),
    };
    writeln!(text, "A: {}    B: {}", runs(a), runs(b))?;
    let differences = parameters::differences(a, b);
    if differences.is_empty() {
        writeln!(text, "Parameters: the same")?;
    } else {
        writeln!(text, "Parameters that differ:")?;
        for found in &differences {
            let shown =
                |value: &str| if value.is_empty() { "–".to_owned() } else { value.into() };
            writeln!(text, "  {}: {} | {}", found.name, shown(&found.a), shown(&found.b))?;
        }
    }
    warnings(text, a, b)?;
    let classified = classify(a, b);
    for metric in Metric::ALL {
        if let Some(classified) = classified.iter().find(|classified| classified.metric == metric) {
            writeln!(text, "  {}", sentence(classified))?;
        } else if let ([a], [b]) = (a, b)
            && let (Some(a), Some(b)) = (metric.of(&a.run), metric.of(&b.run))
        {
            writeln!(text, "  {}. No verdict", figures(metric, a, b))?;
        }
    }
    list_omitted(text, a, b, &classified)?;
    verdict(text, &classified)
}

/// Warns of runs with warnings of their own, because such runs can't prove a difference.
fn warnings(text: &mut String, a: &[LoadedRun], b: &[LoadedRun]) -> std::fmt::Result {
    for (name, side) in [("A", a), ("B", b)] {
        let mut codes: Vec<_> = side
            .iter()
            .flat_map(|saved| &saved.run.warnings)
            .map(|warning| warning.code.as_str())
            .collect();
        codes.sort_unstable();
        codes.dedup();
        if !codes.is_empty() {
            writeln!(text, "WARNING {name} has runs with warnings: {}", codes.join(", "))?;
        }
    }
    Ok(())
}

/// Lists the metrics that could not be compared, each with the reason.
fn list_omitted(
    text: &mut String,
    a: &[LoadedRun],
    b: &[LoadedRun],
    classified: &[ClassifiedMetric],
) -> std::fmt::Result {
    let reported_by =
        |metric: &Metric, side: &[LoadedRun]| metrics::of_runs(*metric, side).is_some();
    let absent: Vec<_> = Metric::ALL
        .iter()
        .filter(|metric| !classified.iter().any(|classified| classified.metric == **metric))
        .filter(|metric| !reported_by(metric, a) || !reported_by(metric, b))
        .map(|metric| metric.name())
        .collect();
    if !absent.is_empty() {
        writeln!(text, "Not compared, for not all runs tell them: {}", absent.join(", "))?;
    }
    let repeats = least_repeats();
    if choose_sampling(a, b) == Sampling::Stretches {
        if classified.is_empty() {
            let least = metrics::least_seconds();
            return writeln!(
                text,
                "One run of each cannot be told from noise: that takes {repeats} repeats of each, \
                 or a timeline.csv of {least} s or more in both."
            );
        }
        writeln!(
            text,
            "One run of each: its seconds show the noise within it, not what runs differ by from \
             start to start. Nothing below 5 % is called real; {repeats} repeats of each tell more."
        )?;
    } else if classified.iter().any(|classified| classified.verdict == CompareVerdict::TooFew) {
        writeln!(text, "Too few repeats: {repeats} or more of each side can tell.")?;
    }
    Ok(())
}

/// Describes the comparison of one metric in a sentence.
fn sentence(classified: &ClassifiedMetric) -> String {
    let figures = figures(classified.metric, classified.a, classified.b);
    let (more, less) = classified.metric.comparison_words();
    let word = if classified.effect >= 0.0 { more } else { less };
    let by = amount(classified, classified.effect.abs());
    let ends = if classified.effect >= 0.0 {
        (classified.low, classified.high)
    } else {
        (-classified.high, -classified.low)
    };
    let (low, high) = (amount(classified, ends.0), amount(classified, ends.1));
    match classified.verdict {
        CompareVerdict::Differs => {
            format!("{figures}. B's is {by} {word} ({low}..{high}): more than the noise")
        }
        CompareVerdict::Same if ends.0 > 0.0 => {
            let least = amount(classified, classified.least);
            format!("{figures}. B's is {by} {word} ({low}..{high}): below {least}, too little")
        }
        CompareVerdict::Same if ends.1.is_finite() => {
            let most = classified.low.abs().max(classified.high.abs());
            let most = amount(classified, most);
            format!("{figures}. No difference; one above {most} would have been seen")
        }
        CompareVerdict::Same => format!("{figures}. No difference"),
        CompareVerdict::TooFew => format!("{figures}. Too few repeats to tell"),
    }
}

/// Formats the metric's figures of both sides.
fn figures(metric: Metric, a: f64, b: f64) -> String {
    let figure = |value: f64| match metric {
        Metric::P50 | Metric::P99 | Metric::P999 => format!("{value:.3} ms"),
        Metric::Throughput => format!("{value:.1}/s"),
        Metric::ServerCpu => format!("{value:.2} µs"),
        Metric::Errors => format!("{:.3} %", value * 100.0),
    };
    format!("{}: A {}, B {}", metric.name(), figure(a), figure(b))
}

fn amount(classified: &ClassifiedMetric, value: f64) -> String {
    if classified.metric.is_ratio() {
        format!("{:.1} %", value * 100.0)
    } else {
        format!("{:.3} points", value * 100.0)
    }
}

/// Writes the overall verdict as the last line, for scripts and hasty readers.
fn verdict(text: &mut String, classified: &[ClassifiedMetric]) -> std::fmt::Result {
    let named = |verdict: CompareVerdict| {
        let named = classified.iter().filter(|classified| classified.verdict == verdict);
        named.map(|classified| classified.metric.name()).collect::<Vec<_>>().join(", ")
    };
    let differs = named(CompareVerdict::Differs);
    if !differs.is_empty() {
        writeln!(text, "verdict: B differs from A: {differs}")
    } else if classified.is_empty()
        || classified.iter().any(|one| one.verdict == CompareVerdict::TooFew)
    {
        writeln!(text, "verdict: cannot be told")
    } else {
        writeln!(text, "verdict: no difference")
    }
}
