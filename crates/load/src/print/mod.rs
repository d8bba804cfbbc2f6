//! Prints a run in wrk2's format, column by column, so that parsers of wrk2's output can read it.
//!
//! ```text
//!  Running 30s test @ http://localhost:8080
//!    1 threads and 1 connections
//!    Thread Stats   Avg      Stdev     Max   +/- Stdev
//!      Latency     0.94ms    1.31ms  26.85ms   97.02%
//!      Req/Sec    10.00k     0.00    10.00k   100.00%
//!    Latency Distribution (HdrHistogram - Recorded Latency)
//!   50.000%    0.78ms
//!    …
//! ```
//!
//! There is no calibration line, because nothing is calibrated and no sample is dropped. Warnings
//! come last.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;

use crate::outcome::{self, HistogramSummary};
use crate::record::{Point, Run};

/// Percentiles of the short list, ascending; the last is the greatest value.
pub(crate) const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// Units of long times. wrk never prints hours.
const MINUTES: [(&str, f64); 1] = [("m", 60.0)];

/// Share of the next larger unit from which a number is printed in that unit, as in wrk.
const NEXT_UNIT: f64 = 0.85;

/// The printed data of a run.
#[derive(Debug, Clone, Copy)]
pub struct Printed<'a> {
    /// Counts, plan and warnings.
    pub run: &'a Run,
    /// Latencies from the intended start, in nanoseconds.
    pub intended: &'a Histogram<u64>,
    /// Latencies from the write of the request, in nanoseconds.
    pub written: &'a Histogram<u64>,
    /// Answers per second of one thread, sampled repeatedly.
    pub rates: &'a Histogram<u64>,
    /// True if latencies are printed in detail (`-L`).
    pub detail: bool,
    /// True if latencies from the write are printed too (`-U`).
    pub uncorrected: bool,
}

/// Formats the first two lines, which are printed when the run begins.
pub fn header(run: &Run) -> String {
    format!(
        "Running {} test @ {}\n  {} threads and {} connections\n",
        units(run.plan.duration_s, "s", &MINUTES, 0),
        run.plan.targets.join(" "),
        run.plan.threads,
        run.plan.connections
    )
}

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, intended, written, .. } = self;
        f.write_str("  Thread Stats   Avg      Stdev     Max   +/- Stdev\n")?;
        line(f, "Latency", &HistogramSummary::of(intended), |nanos| time(nanos / 1e3))?;
        line(f, "Req/Sec", &HistogramSummary::of(self.rates), metric)?;
        if self.detail {
            spectrum(f, intended, "Recorded Latency")?;
        }
        if self.uncorrected {
            f.write_char('\n')?;
            let what = "Uncorrected Latency (measured without taking delayed starts into account)";
            spectrum(f, written, what)?;
        }
        let counts = &run.counts;
        writeln!(
            f,
            "  {} requests in {}, {}B read",
            counts.answered,
            time(run.elapsed_s * 1e6),
            binary(counts.bytes as f64)
        )?;
        let (connect, read) = (counts.connect_errors, counts.read_errors);
        let (write, timeout) = (counts.write_errors, counts.timeouts);
        if connect + read + write + timeout > 0 {
            writeln!(
                f,
                "  Socket errors: connect {connect}, read {read}, write {write}, timeout {timeout}"
            )?;
        }
        if counts.refused > 0 {
            writeln!(f, "  Non-2xx or 3xx responses: {}", counts.refused)?;
        }
        if counts.unfinished > 0 {
            let unfinished = counts.unfinished;
            writeln!(f, "  Unfinished requests: {unfinished}, counted as at least this long")?;
        }
        if counts.wrong_values > 0 {
            writeln!(f, "  Values other than the one written: {}", counts.wrong_values)?;
        }
        if run.interrupted {
            let what = match (counts.planned, run.plan.warmup_s > 0.0) {
                (0, false) => "before anything was sent",
                (0, true) => "before anything was counted",
                _ => "these are the figures up to then",
            };
            writeln!(f, "  Interrupted: {what}")?;
        }
        writeln!(f, "Requests/sec: {:>9.2}", run.throughput.unwrap_or_default())?;
        let transfer = if run.elapsed_s > 0.0 { counts.bytes as f64 / run.elapsed_s } else { 0.0 };
        writeln!(f, "Transfer/sec: {:>10}B", binary(transfer))?;
        for warning in &run.warnings {
            writeln!(f, "WARNING {}", warning.text)?;
        }
        if run.error_share() == Some(1.0) {
            writeln!(
                f,
                "No request succeeded: no figure above is of one that did. With --strict a run \
                 with a warning or a failed request ends with exit code 3"
            )?;
        }
        Ok(())
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    figures: &HistogramSummary,
    unit: fn(f64) -> String,
) -> fmt::Result {
    writeln!(
        f,
        "    {name:<10}{}{}{}{:8.2}%",
        align_right(&unit(figures.mean), 8),
        align_right(&unit(figures.stdev), 10),
        align_right(&unit(figures.max), 9),
        figures.within * 100.0
    )
}

/// Prints the short list of percentiles, the spectrum up to 100 %, and the footer of the spectrum.
fn spectrum(f: &mut fmt::Formatter<'_>, latency: &Histogram<u64>, what: &str) -> fmt::Result {
    writeln!(f, "  Latency Distribution (HdrHistogram - {what})")?;
    for percent in PERCENTILES {
        let value = latency.value_at_quantile(percent / 100.0) as f64;
        writeln!(f, "{percent:7.3}%{}", align_right(&time(value / 1e3), 10))?;
    }
    writeln!(f, "\n  Detailed Percentile spectrum:")?;
    writeln!(f, "       Value   Percentile   TotalCount 1/(1-Percentile)\n")?;
    for Point { value, quantile, count } in outcome::spectrum(latency) {
        let beyond = 1.0 / (1.0 - quantile);
        writeln!(f, "{value:12.3} {quantile:12.6} {count:12} {beyond:12.2}")?;
    }
    let (mean, stdev) = (latency.mean() / 1e6, latency.stdev() / 1e6);
    writeln!(f, "#[Mean    = {mean:12.3}, StdDeviation   = {stdev:12.3}]")?;
    let max = latency.max() as f64 / 1e6;
    writeln!(f, "#[Max     = {max:12.3}, Total count    = {:12}]", latency.len())?;
    writeln!(f, "#[Buckets = {:12}, SubBuckets     = {:12}]", latency.buckets(), SUB_BUCKETS)?;
    f.write_str("----------------------------------------------------------\n")
}

/// Sub-buckets of a histogram with three significant digits.
const SUB_BUCKETS: u32 = 2048;

/// Right-aligns `text` so that numbers line up, whatever the length of their units.
fn align_right(text: &str, width: usize) -> String {
    let letters = text.bytes().rev().take(2).filter(u8::is_ascii_alphabetic).count();
    let pad = 2 - letters;
    format!("{text:>width$}{:pad$}", "", width = width - pad)
}

fn units(mut number: f64, base: &str, larger: &[(&str, f64)], digits: usize) -> String {
    let mut unit = base;
    for (name, scale) in larger {
        if number < scale * NEXT_UNIT {
            break;
        }
        number /= scale;
        unit = name;
    }
    format!("{number:.digits$}{unit}")
}

/// Formats a time given in microseconds, in a suitable unit.
fn time(micros: f64) -> String {
    if micros >= 1e6 {
        units(micros / 1e6, "s", &MINUTES, 2)
    } else {
        units(micros, "us", &[("ms", 1e3)], 2)
    }
}

fn metric(number: f64) -> String {
    units(number, "", &[("k", 1e3), ("M", 1e3), ("G", 1e3), ("T", 1e3)], 2)
}

fn binary(bytes: f64) -> String {
    units(bytes, "", &[("K", 1024.0), ("M", 1024.0), ("G", 1024.0), ("T", 1024.0)], 2)
}

#[cfg(test)]
mod tests;
