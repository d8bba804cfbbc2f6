//! `compare`: says what differs between A and B, and whether it is more than the noise.
//!
//! ```text
//!  A, B ─▶ saved ─┬─ parameters   what was not the same: plan, machine, server, script
//!                 ├─ metrics      a figure for each repeat
//!                 ├─ rank         Mann–Whitney, Hodges–Lehmann, Holm
//!                 └─ judge        differs, same, too few
//! ```
//!
//! A side is a run directory, or a directory with several runs of the same: repeats; runs of
//! something else among them are refused. With repeats the noise is what runs of one side differ
//! by, which is what has to be beaten. With one run of each side only the noise *within* the runs
//! is seen, and that only in runs that are long enough; that is said, and small differences are
//! not called real.

mod judge;
mod metrics;
mod parameters;
mod rank;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::saved::{self, Saved};
use judge::{Judged, Sampling, Verdict, judge, least_repeats, sampling};
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

/// Compares, and returns what to tell.
pub fn compare(args: &CompareArgs) -> Result<String, String> {
    let (a, b) = (side(&args.a)?, side(&args.b)?);
    let mut told = String::new();
    // Writing into a string cannot fail.
    let _ = tell(&mut told, &a, &b);
    Ok(told)
}

/// All runs of a side.
fn side(directory: &Path) -> Result<Vec<Saved>, String> {
    let found = saved::read(&[directory.to_owned()])?;
    let runs: Vec<_> = found.iter().flat_map(|found| found.runs().to_vec()).collect();
    if runs.len() > rank::MAX_SAMPLE {
        return Err(format!(
            "{}: {} runs, at most {} are compared: move some elsewhere",
            directory.display(),
            runs.len(),
            rank::MAX_SAMPLE
        ));
    }
    let shown = directory.display();
    if let Some(empty) = runs.iter().find(|saved| saved.run.format == 0) {
        return Err(format!(
            "{shown}: {} has no run: its server died or did not start. Give directories with runs",
            empty.name
        ));
    }
    if let Some(why) = parameters::mixed(&runs) {
        return Err(format!(
            "{shown}: its runs are not repeats of the same: {why}. Give single runs (one of the \
             directories in it), or move the repeats of one into a directory of their own"
        ));
    }
    Ok(runs)
}

fn tell(told: &mut String, a: &[Saved], b: &[Saved]) -> std::fmt::Result {
    let runs = |side: &[Saved]| match side {
        [one] => format!("1 run ({})", one.name),
        many => format!("{} runs", many.len()),
    };
    writeln!(told, "A: {}    B: {}", runs(a), runs(b))?;
    let differences = parameters::differences(a, b);
    if differences.is_empty() {
        writeln!(told, "Parameters: the same")?;
    } else {
        writeln!(told, "Parameters that differ:")?;
        for found in &differences {
            let shown =
                |value: &str| if value.is_empty() { "–".to_owned() } else { value.into() };
            writeln!(told, "  {}: {} | {}", found.name, shown(&found.a), shown(&found.b))?;
        }
    }
    warnings(told, a, b)?;
    let judged = judge(a, b);
    for metric in Metric::ALL {
        if let Some(judged) = judged.iter().find(|judged| judged.metric == metric) {
            writeln!(told, "  {}", sentence(judged))?;
        } else if let ([a], [b]) = (a, b)
            && let (Some(a), Some(b)) = (metric.of(&a.run), metric.of(&b.run))
        {
            writeln!(told, "  {}. No verdict", figures(metric, a, b))?;
        }
    }
    left_out(told, a, b, &judged)?;
    verdict(told, &judged)
}

/// Runs whose own figures are in doubt cannot prove anything.
fn warnings(told: &mut String, a: &[Saved], b: &[Saved]) -> std::fmt::Result {
    for (name, side) in [("A", a), ("B", b)] {
        let mut codes: Vec<_> = side
            .iter()
            .flat_map(|saved| &saved.run.warnings)
            .map(|warning| warning.code.as_str())
            .collect();
        codes.sort_unstable();
        codes.dedup();
        if !codes.is_empty() {
            writeln!(told, "WARNING {name} has runs with warnings: {}", codes.join(", "))?;
        }
    }
    Ok(())
}

/// What could not be compared, and what that means.
fn left_out(told: &mut String, a: &[Saved], b: &[Saved], judged: &[Judged]) -> std::fmt::Result {
    let told_by = |metric: &Metric, side: &[Saved]| metrics::of_runs(*metric, side).is_some();
    let absent: Vec<_> = Metric::ALL
        .iter()
        .filter(|metric| !judged.iter().any(|judged| judged.metric == **metric))
        .filter(|metric| !told_by(metric, a) || !told_by(metric, b))
        .map(|metric| metric.name())
        .collect();
    if !absent.is_empty() {
        writeln!(told, "Not compared, for not all runs tell them: {}", absent.join(", "))?;
    }
    let repeats = least_repeats();
    if sampling(a, b) == Sampling::Stretches {
        if judged.is_empty() {
            let least = metrics::least_seconds();
            return writeln!(
                told,
                "One run of each cannot be told from noise: that takes {repeats} repeats of each, \
                 or a timeline.csv of {least} s or more in both."
            );
        }
        writeln!(
            told,
            "One run of each: its seconds show the noise within it, not what runs differ by from \
             start to start. Nothing below 5 % is called real; {repeats} repeats of each tell more."
        )?;
    } else if judged.iter().any(|judged| judged.verdict == Verdict::TooFew) {
        writeln!(told, "Too few repeats: {repeats} or more of each side can tell.")?;
    }
    Ok(())
}

/// One metric in words.
fn sentence(judged: &Judged) -> String {
    let figures = figures(judged.metric, judged.a, judged.b);
    let (more, less) = judged.metric.more();
    let word = if judged.effect >= 0.0 { more } else { less };
    let by = amount(judged, judged.effect.abs());
    let ends =
        if judged.effect >= 0.0 { (judged.low, judged.high) } else { (-judged.high, -judged.low) };
    let (low, high) = (amount(judged, ends.0), amount(judged, ends.1));
    match judged.verdict {
        Verdict::Differs => {
            format!("{figures}. B's is {by} {word} ({low}..{high}): more than the noise")
        }
        Verdict::Same if ends.0 > 0.0 => {
            let least = amount(judged, judged.least);
            format!("{figures}. B's is {by} {word} ({low}..{high}): below {least}, too little")
        }
        Verdict::Same if ends.1.is_finite() => {
            let most = judged.low.abs().max(judged.high.abs());
            let most = amount(judged, most);
            format!("{figures}. No difference; one above {most} would have been seen")
        }
        Verdict::Same => format!("{figures}. No difference"),
        Verdict::TooFew => format!("{figures}. Too few repeats to tell"),
    }
}

/// Both sides beside each other.
fn figures(metric: Metric, a: f64, b: f64) -> String {
    let figure = |value: f64| match metric {
        Metric::P50 | Metric::P99 | Metric::P999 => format!("{value:.3} ms"),
        Metric::Throughput => format!("{value:.1}/s"),
        Metric::ServerCpu => format!("{value:.2} µs"),
        Metric::Errors => format!("{:.3} %", value * 100.0),
    };
    format!("{}: A {}, B {}", metric.name(), figure(a), figure(b))
}

fn amount(judged: &Judged, value: f64) -> String {
    if judged.metric.is_ratio() {
        format!("{:.1} %", value * 100.0)
    } else {
        format!("{:.3} points", value * 100.0)
    }
}

/// The last line, for people in a hurry and for scripts.
fn verdict(told: &mut String, judged: &[Judged]) -> std::fmt::Result {
    let named = |verdict: Verdict| {
        let named = judged.iter().filter(|judged| judged.verdict == verdict);
        named.map(|judged| judged.metric.name()).collect::<Vec<_>>().join(", ")
    };
    let differs = named(Verdict::Differs);
    if !differs.is_empty() {
        writeln!(told, "verdict: B differs from A: {differs}")
    } else if judged.is_empty() || judged.iter().any(|one| one.verdict == Verdict::TooFew) {
        writeln!(told, "verdict: cannot be told")
    } else {
        writeln!(told, "verdict: no difference")
    }
}
