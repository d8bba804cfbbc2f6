//! The `search` command: finds the rate at which a server breaks.
//!
//! ```text
//!   mod.rs            for each point of a sweep and each mix: a search; then the table
//!   search_args.rs    the command line
//!   slo.rs            the objective: p99<10ms,errors<0.1%
//!   rate_search.rs    one search: runs, classifies and prints the trials that decide/ chooses
//!   decide/           pure function: earlier trials ─▶ next trial
//!   classify_step.rs  pure function: figures of a trial ─▶ pass, fail, inconclusive
//!   limit.rs          pure function: figures of a failed trial ─▶ CPU, disk, lock, connections …
//!   recorded.rs       commands that compare two recordings
//!   sweep.rs          a flag of the server and its values
//!   plot.rs           the curve as text
//! ```

mod classify_step;
mod decide;
mod limit;
mod plot;
mod rate_search;
mod recorded;
mod search_args;
pub(crate) mod slo;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rate_search::Search;
pub use search_args::SearchArgs;
pub(crate) use slo::{Quantity, SloTime};

use crate::record::{Finding, Series};
use crate::trial::Workload;
use crate::trial::series::SeriesWriter;
use crate::{ServerProfile, trial};

pub use crate::trial::Error;

/// Runs the searches of `args`, prints each trial when it ends, then prints the results, and stores
/// both in a directory. Once `stop` is true, ends early with the results so far.
pub fn run(
    args: &SearchArgs,
    known: &ServerProfile,
    stop: &Arc<AtomicBool>,
) -> Result<Series, Error> {
    let slo = args.objective();
    args.bounds()?;
    let command = args.series.command()?;
    let words = command.as_ref().map_or(Vec::new(), |command| command.words().to_vec());
    let points = sweep::points(command, &args.sweep)?;
    let all = [None].into_iter().chain(args.also.iter().map(|also| Some(also.as_str())));
    let workloads: Vec<Workload> =
        all.map(|also| args.series.workload(also, known)).collect::<Result<_, _>>()?;
    let mut kept = SeriesWriter::create(args.series.out.as_deref(), "search", known, &words)?;
    kept.set_slo(slo.to_string());
    let mut ended = Ok(());
    'all: for point in &points {
        for workload in &workloads {
            let label = label(&point.label, workload, workloads.len());
            let new_search = Search::new(args, known, stop, &mut kept, workload, point, label);
            ended = new_search.and_then(Search::run);
            if ended.is_err() || stop.load(Ordering::Relaxed) {
                break 'all;
            }
        }
    }
    if stop.load(Ordering::Relaxed) {
        kept.set_interrupted();
        kept.save()?;
    }
    let failed = ended.err().filter(|error| !error.is_interrupt());
    // Findings from before an error are still valid.
    if failed.is_none() || !kept.discard_if_empty() {
        print_all(args, &kept)?;
    }
    failed.map_or_else(|| Ok(kept.series().clone()), Err)
}

/// Returns the label of one search in its series.
fn label(point: &str, workload: &Workload, workloads: usize) -> String {
    let name = if workloads > 1 { workload.name.as_str() } else { "" };
    [point, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Prints the results of all searches.
fn print_all(args: &SearchArgs, kept: &SeriesWriter) -> Result<(), Error> {
    let (series, dir) = (kept.series(), kept.dir());
    if args.series.json {
        let text = serde_json::to_string_pretty(series).expect("all of it is plain data");
        return trial::print_results(&text, dir);
    }
    let mut text = String::new();
    if series.findings.len() > 1 {
        text += &format!("\n{}\n", table(&series.findings));
    }
    let at = dir.display();
    text += &format!("\nkept in {at}; {} report {at}", trial::program());
    trial::print_results(&text, dir)
}

/// Formats all findings, one row each.
fn table(findings: &[Finding]) -> String {
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| group_digits(rate as u64));
    let wide = findings.iter().map(|finding| finding.value.chars().count()).max().unwrap_or(0);
    let mut text = format!(
        "{:<wide$} {:>12} {:>12} {:>12}  limit\n",
        "", "holds/s", "breaks at/s", "closed loop"
    );
    for finding in findings {
        text.push_str(&format!(
            "{:<wide$} {:>12} {:>12} {:>12}  {}\n",
            finding.value,
            rate(finding.passes),
            rate(finding.fails),
            rate(finding.ceiling),
            finding.limit
        ));
    }
    text.trim_end().to_owned()
}

/// Formats a number with thousands separators: `38,400`.
pub(crate) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{group_digits, table};
    use crate::record::Finding;

    #[test]
    fn numbers_are_grouped() {
        let all = [0, 12, 123, 1234, 38_400, 1_000_000].map(group_digits);
        assert_eq!(all, ["0", "12", "123", "1,234", "38,400", "1,000,000"]);
    }

    #[test]
    fn a_sweep_is_one_table() {
        let finding = |value: &str, passes, limit: &str| Finding {
            value: value.to_owned(),
            passes,
            limit: limit.to_owned(),
            ..Finding::default()
        };
        let text = table(&[
            finding("loops=1", Some(20_000.0), "cpu"),
            finding("loops=2 queue=64", None, "unknown"),
        ]);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
        assert_eq!(rows[1], ["loops=1", "20,000", "-", "-", "cpu"]);
        assert_eq!(rows[2], ["loops=2", "queue=64", "-", "-", "-", "unknown"]);
    }
}
