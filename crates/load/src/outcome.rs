//! The results of a run.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::plan::Plan;
use crate::record;
use crate::request::Method;
use crate::tally::{Errors, Latencies, Tally};
use crate::worker::WorkerEnd;

/// Percentiles that a run's record lists exactly.
const PERCENTILES: [f64; 12] =
    [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999, 100.0];

/// Ticks of a spectrum per halving of the distance to 100 %: wrk2's value.
const SPECTRUM_TICKS: u32 = 5;

/// Nanoseconds in a millisecond.
const MILLI: f64 = 1e6;

/// The figures in a line under `Thread Stats` of wrk2, for one histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HistogramSummary {
    /// Mean of the samples.
    pub mean: f64,
    /// Standard deviation of the samples.
    pub stdev: f64,
    /// The greatest sample.
    pub max: f64,
    /// Share of the samples, 0–1, within one standard deviation of the mean.
    pub within: f64,
}

impl HistogramSummary {
    /// Summarises a histogram, in the histogram's unit. For an empty histogram, all figures are 0.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let (mean, stdev) = (histogram.mean(), histogram.stdev());
        let (low, high) = ((mean - stdev).max(0.0).ceil() as u64, (mean + stdev).floor() as u64);
        // Without a deviation, all samples equal the mean.
        let within = if low > high { histogram.len() } else { histogram.count_between(low, high) };
        Self {
            mean,
            stdev,
            max: histogram.max() as f64,
            within: within as f64 / histogram.len() as f64,
        }
    }
}

/// An unused address of a target. Connections to it failed at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachableAddress {
    /// Name of the target with this address.
    pub target: String,
    /// The address that refused connections at the start.
    pub address: SocketAddr,
    /// The error of the connection.
    pub cause: String,
}

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Counts and latencies of all requests.
    pub tally: Tally,
    /// Counts and latencies by target, if each target had its own rate and connections; otherwise
    /// empty.
    pub by_target: Vec<(String, Tally)>,
    /// Number of due requests; in a closed loop, of sent requests. Each was answered, is
    /// unfinished, or was lost by a read or write error.
    pub planned: u64,
    /// Start of the warm-up, from which all times of the plan count.
    pub started: Instant,
    /// Duration of the plan.
    pub duration: Duration,
    /// CPU time of the threads that send requests, since the end of the warm-up.
    pub client_cpu: Duration,
    /// Share of the plan's time that each thread spent on a CPU.
    pub busy: Vec<f64>,
    /// Wall time since the end of the warm-up, including the drain.
    pub elapsed: Duration,
    /// Requests due but not yet sent, at 20 times of the run. The last time is the end of the plan.
    pub backlog: Vec<u64>,
    /// CPUs that the client may use.
    pub cpus: usize,
    /// Answers per second of single threads, sampled every 100 ms.
    pub thread_rates: Histogram<u64>,
    /// Answers per second by target, if [`Self::by_target`] is not empty.
    pub thread_rates_by_target: Vec<Histogram<u64>>,
    /// True if the run was interrupted. The figures then cover only the time before.
    pub interrupted: bool,
    /// Addresses that could not be reached at the start, although other addresses of the same
    /// target could.
    pub left_out: Vec<UnreachableAddress>,
    /// Planned requests per second over all targets; `None` in a closed loop.
    pub rate: Option<f64>,
    /// Connections to all targets.
    pub connections: usize,
    /// Connections to each target.
    pub(crate) connections_each: usize,
}

impl Outcome {
    pub(crate) fn new(
        plan: &Plan,
        started: Instant,
        tallies: Vec<Tally>,
        ended: &[WorkerEnd],
    ) -> Self {
        let mut tally = Tally::default();
        tallies.iter().for_each(|of_target| tally.add(of_target));
        let mut by_target = Vec::new();
        if tallies.len() > 1 {
            let names = plan.targets.iter().map(|target| target.name.clone());
            by_target = names.zip(tallies).collect();
        }
        let samples = ended.iter().map(|ended| ended.backlog.len()).min().unwrap_or(0);
        let backlog = |i| ended.iter().map(|ended| ended.backlog[i]).sum();
        let rates = |ended: &[WorkerEnd]| {
            let mut rates = Histogram::new(3).expect("three digits are valid");
            ended.iter().for_each(|ended| rates += &ended.rates);
            rates
        };
        let of_targets = if by_target.is_empty() { &[] } else { ended };
        let elapsed = ended.iter().map(|ended| ended.elapsed).max().unwrap_or(0);
        Self {
            tally,
            by_target,
            planned: ended.iter().map(|ended| ended.planned).sum(),
            started,
            duration: plan.duration,
            client_cpu: ended.iter().map(|ended| ended.cpu).sum(),
            busy: ended.iter().map(|ended| ended.busy).collect(),
            elapsed: Duration::from_nanos(elapsed),
            backlog: (0..samples).map(backlog).collect(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            thread_rates: rates(ended),
            thread_rates_by_target: of_targets.chunks(plan.threads).map(rates).collect(),
            interrupted: false,
            left_out: Vec::new(),
            rate: plan.rate(),
            connections: plan.all_connections(),
            connections_each: plan.connections.div_ceil(plan.targets.len() / plan.copies()),
        }
    }

    /// Returns the latencies of all methods together.
    pub fn all_methods(&self) -> Latencies {
        self.tally.all_latencies()
    }

    /// Returns the number of answers of any status.
    pub fn answer_count(&self) -> u64 {
        self.tally.statuses.all()
    }

    /// Returns the number of answers per second within the plan's duration.
    pub fn throughput(&self) -> f64 {
        let time = self.duration.min(self.elapsed).as_secs_f64();
        if time > 0.0 { self.tally.in_time as f64 / time } else { 0.0 }
    }

    /// Returns the counts for `run.json`.
    pub fn counts(&self) -> record::Counts {
        counts(&self.tally, self.planned)
    }

    /// Returns the summaries of the histograms for `run.json`: `intended`, `written` and `late`, of
    /// all methods together, and of each method if there are several.
    pub fn latencies(&self) -> Vec<record::Latency> {
        latencies(&self.tally)
    }
}

/// Returns the counts for `run.json`: see [`Outcome::counts`].
pub fn counts(tally: &Tally, planned: u64) -> record::Counts {
    let Errors { connect, read, write, timeout, refused_timeout, unanswered_timeout } =
        tally.errors;
    record::Counts {
        planned,
        answered: tally.statuses.all(),
        in_time: tally.in_time,
        unfinished: tally.unfinished,
        statuses: tally.statuses.by_status(),
        refused: tally.statuses.refusals(),
        connect_errors: connect,
        read_errors: read,
        write_errors: write,
        timeouts: timeout,
        refused_timeouts: refused_timeout,
        unanswered_timeouts: unanswered_timeout,
        wrong_values: tally.wrong_values,
        not_http: tally.garbage.all(),
        reconnects: tally.reconnects,
        bytes: tally.bytes,
    }
}

/// Returns the summaries of the histograms for `run.json`: see [`Outcome::latencies`].
pub fn latencies(tally: &Tally) -> Vec<record::Latency> {
    let all = tally.all_latencies();
    let mut of = vec![("", &all)];
    let methods = Method::ALL.map(|method| (method.name(), tally.latencies(method)));
    let used = methods.into_iter().filter_map(|(name, latencies)| Some((name, latencies?)));
    let used: Vec<_> = used.collect();
    if used.len() > 1 {
        of.extend(used);
    }
    let three = of.into_iter().flat_map(|(method, latencies)| {
        let Latencies { intended, written, late } = latencies;
        [("intended", intended), ("written", written), ("late", late)]
            .map(|(from, histogram)| latency_record(from, method, histogram))
    });
    three.collect()
}

fn latency_record(from: &str, method: &str, histogram: &Histogram<u64>) -> record::Latency {
    record::Latency {
        from: from.to_owned(),
        method: method.to_owned(),
        count: histogram.len(),
        mean: histogram.mean() / MILLI,
        stdev: histogram.stdev() / MILLI,
        min: histogram.min() as f64 / MILLI,
        max: histogram.max() as f64 / MILLI,
        percentiles: percentiles(histogram),
        spectrum: spectrum(histogram),
    }
}

fn percentiles(histogram: &Histogram<u64>) -> Vec<record::Point> {
    let point = |percent: f64| {
        let value = histogram.value_at_quantile(percent / 100.0);
        let count = histogram.count_between(0, value);
        record::Point { value: value as f64 / MILLI, quantile: percent / 100.0, count }
    };
    PERCENTILES.into_iter().filter(|_| !histogram.is_empty()).map(point).collect()
}

/// Returns the points of wrk2's detailed spectrum, in milliseconds.
pub(crate) fn spectrum(histogram: &Histogram<u64>) -> Vec<record::Point> {
    let mut count = 0;
    let points = histogram.iter_quantiles(SPECTRUM_TICKS).map(|step| {
        count += step.count_since_last_iteration();
        let value = step.value_iterated_to() as f64 / MILLI;
        record::Point { value, quantile: step.quantile_iterated_to(), count }
    });
    points.collect()
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for method in Method::ALL {
            if let Some(latencies) = self.tally.latencies(method) {
                writeln!(f, "{}", method.name())?;
                line(f, "intended", &latencies.intended)?;
                line(f, "written", &latencies.written)?;
                line(f, "late", &latencies.late)?;
            }
        }
        write!(f, "answers   ")?;
        for (status, count) in self.tally.statuses.by_status() {
            write!(f, " {status}: {count},")?;
        }
        writeln!(f, " unfinished {} of {}", self.tally.unfinished, self.planned)?;
        let Errors { connect, read, write, timeout, .. } = self.tally.errors;
        writeln!(f, "errors     connect {connect}, read {read}, write {write}, timeout {timeout}")?;
        let busy: Vec<String> = self.busy.iter().map(|b| format!("{:.0} %", b * 100.0)).collect();
        let rate = self.throughput();
        writeln!(f, "answers/s  {rate:.0}, client threads on a CPU {}", busy.join(", "))?;
        for warning in self.warnings() {
            writeln!(f, "WARNING {warning}")?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, h: &Histogram<u64>) -> fmt::Result {
    let ms = |q: f64| h.value_at_quantile(q) as f64 / MILLI;
    writeln!(
        f,
        "  {name:<9}p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, max {:.3} ms, {} samples",
        ms(0.5),
        ms(0.99),
        ms(0.999),
        h.max() as f64 / MILLI,
        h.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In this histogram, the values jump at the 99th percentile, which lies between two points of
    /// the spectrum.
    #[test]
    fn percentiles_between_points_of_the_spectrum_are_exact() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        histogram.record_n(2_000_000, 9903).unwrap();
        histogram.record_n(200_000_000, 97).unwrap();
        let figures = latency_record("intended", "", &histogram);
        let at = |quantile| figures.at(quantile).map(|ms| ms.round() as u64);
        assert_eq!([0.5, 0.99, 0.995, 1.0].map(at), [Some(2), Some(2), Some(200), Some(200)]);
        assert_eq!(
            figures.spectrum.iter().find(|p| p.quantile > 0.99).unwrap().value.round(),
            200.
        );
        assert_eq!(latency_record("intended", "", &Histogram::new(3).unwrap()).at(0.5), None);
    }

    #[test]
    fn the_spectrum_has_wrk2s_points() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for value in 1..=1000_u64 {
            histogram.record(value * 1_000_000).unwrap();
        }
        let points = spectrum(&histogram);
        let quantiles: Vec<f64> = points.iter().take(12).map(|point| point.quantile).collect();
        let expected = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.775];
        for (got, expected) in quantiles.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-9, "{quantiles:?}");
        }
        let half = points[5];
        assert!((half.value - 500.0).abs() < 1.0 && half.count == 500, "{half:?}");
        let last = points[points.len() - 1];
        assert_eq!((last.quantile, last.count), (1.0, 1000));
        assert!((last.value - 1000.0).abs() < 1.0, "{last:?}");
    }

    #[test]
    fn a_histogram_summary_describes_its_samples() {
        let mut histogram = Histogram::new(3).unwrap();
        assert_eq!(HistogramSummary::of(&histogram), HistogramSummary::default());
        histogram.record(100).unwrap();
        let one = HistogramSummary { mean: 100.0, stdev: 0.0, max: 100.0, within: 1.0 };
        assert_eq!(HistogramSummary::of(&histogram), one);
        for value in [100, 100, 100, 1000] {
            histogram.record(value).unwrap();
        }
        let figures = HistogramSummary::of(&histogram);
        assert!((figures.mean - 280.0).abs() < 1.0 && (figures.within - 0.8).abs() < 1e-9);
    }
}
