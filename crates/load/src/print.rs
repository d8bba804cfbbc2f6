//! A run as wrk2 prints it, to the column, so that what reads wrk2's output reads this.
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
//! There is no calibration and so no line about it: nothing is dropped. What is wrong with the
//! figures comes last.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;

use crate::record::Run;

/// Percentiles of the short list.
const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// wrk never says hours.
const MINUTES: [(&str, f64); 1] = [("m", 60.0)];

/// Lines of the spectrum for each halving of the distance to 100 %.
const TICKS: u32 = 5;

/// A unit grows when the number reaches this share of the next, as in wrk.
const NEXT_UNIT: f64 = 0.85;

/// What is printed.
#[derive(Debug, Clone, Copy)]
pub struct Printed<'a> {
    /// Counts, plan and warnings.
    pub run: &'a Run,
    /// From the intended start, in nanoseconds.
    pub intended: &'a Histogram<u64>,
    /// From writing the request, in nanoseconds.
    pub written: &'a Histogram<u64>,
    /// Answers of a thread in each second.
    pub rates: &'a [u64],
    /// Whether latencies are printed in detail (`-L`).
    pub detail: bool,
    /// Whether those from writing are, too (`-U`).
    pub uncorrected: bool,
}

/// The first two lines, which are printed when the run begins.
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
        let latency = Spread::of(intended);
        latency.line(f, "Latency", |nanos| time(nanos / 1e3))?;
        Spread::of_rates(self.rates).line(f, "Req/Sec", metric)?;
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
            writeln!(f, "  Interrupted: these are the figures up to then")?;
        }
        writeln!(f, "Requests/sec: {:>9.2}", run.throughput)?;
        let transfer = if run.elapsed_s > 0.0 { counts.bytes as f64 / run.elapsed_s } else { 0.0 };
        writeln!(f, "Transfer/sec: {:>10}B", binary(transfer))?;
        for warning in &run.warnings {
            writeln!(f, "WARNING {}", warning.text)?;
        }
        Ok(())
    }
}

/// Mean, deviation and maximum of something, and how much of it is within the deviation.
struct Spread {
    mean: f64,
    stdev: f64,
    max: f64,
    /// Percent.
    within: f64,
}

impl Spread {
    fn of(histogram: &Histogram<u64>) -> Self {
        let (mean, stdev) = (histogram.mean(), histogram.stdev());
        let near = |value: u64| (value as f64 - mean).abs() <= stdev;
        let count: u64 = histogram
            .iter_recorded()
            .filter(|step| near(histogram.median_equivalent(step.value_iterated_to())))
            .map(|step| step.count_at_value())
            .sum();
        let within = 100.0 * count as f64 / histogram.len().max(1) as f64;
        Self { mean, stdev, max: histogram.max() as f64, within }
    }

    fn of_rates(rates: &[u64]) -> Self {
        let count = rates.len().max(1) as f64;
        let mean = rates.iter().sum::<u64>() as f64 / count;
        // Not `sum`, which is -0.0 of nothing.
        let squares = rates.iter().fold(0.0, |sum, &rate| sum + (rate as f64 - mean).powi(2));
        let stdev = (squares / (count - 1.0).max(1.0)).sqrt();
        let near = rates.iter().filter(|&&rate| (rate as f64 - mean).abs() <= stdev).count();
        let max = rates.iter().copied().max().unwrap_or(0) as f64;
        Self { mean, stdev, max, within: 100.0 * near as f64 / count }
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, name: &str, unit: fn(f64) -> String) -> fmt::Result {
        writeln!(
            f,
            "    {name:<10}{}{}{}{:8.2}%",
            padded(&unit(self.mean), 8),
            padded(&unit(self.stdev), 10),
            padded(&unit(self.max), 9),
            self.within
        )
    }
}

/// The short list, then every step to 100 %, and the line that ends it.
fn spectrum(f: &mut fmt::Formatter<'_>, latency: &Histogram<u64>, what: &str) -> fmt::Result {
    writeln!(f, "  Latency Distribution (HdrHistogram - {what})")?;
    for percent in PERCENTILES {
        let value = latency.value_at_quantile(percent / 100.0) as f64;
        writeln!(f, "{percent:7.3}%{}", padded(&time(value / 1e3), 10))?;
    }
    writeln!(f, "\n  Detailed Percentile spectrum:")?;
    writeln!(f, "       Value   Percentile   TotalCount 1/(1-Percentile)\n")?;
    for (value, quantile, count) in steps(latency) {
        let value = value as f64 / 1e6;
        write!(f, "{value:12.3} {quantile:12.6} {count:12} ")?;
        writeln!(f, "{:12.2}", 1.0 / (1.0 - quantile))?;
    }
    let (mean, stdev) = (latency.mean() / 1e6, latency.stdev() / 1e6);
    writeln!(f, "#[Mean    = {mean:12.3}, StdDeviation   = {stdev:12.3}]")?;
    let max = latency.max() as f64 / 1e6;
    writeln!(f, "#[Max     = {max:12.3}, Total count    = {:12}]", latency.len())?;
    writeln!(f, "#[Buckets = {:12}, SubBuckets     = {:12}]", latency.buckets(), SUB_BUCKETS)?;
    f.write_str("----------------------------------------------------------\n")
}

/// Of a histogram with three digits.
const SUB_BUCKETS: u32 = 2048;

/// Value, share of the samples asked for, and how many samples are no greater, up to all.
pub(crate) fn steps(histogram: &Histogram<u64>) -> impl Iterator<Item = (u64, f64, u64)> {
    let mut count = 0;
    histogram.iter_quantiles(TICKS).map(move |step| {
        count += step.count_since_last_iteration();
        (step.value_iterated_to(), step.quantile_iterated_to(), count)
    })
}

/// Right-aligned so that numbers stand under each other, whatever the length of their units.
fn padded(text: &str, width: usize) -> String {
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

/// Microseconds.
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
