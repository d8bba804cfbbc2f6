//! Warnings about a run's figures.

mod text;

use std::time::Duration;

use crate::outcome::{Outcome, UnreachableAddress};
use crate::record;

/// Share of time on a CPU above which a client's thread counts as the limit.
const CPU_LIMIT: f64 = 0.95;

/// Client delay at p99 above which the client's own delay distorts the latencies.
const LATE_LIMIT: Duration = Duration::from_millis(2);

/// Share of failures above which the figures mainly describe failures.
const FAILED_LIMIT: f64 = 0.001;

/// Minimum backlog that causes a warning, as seconds of the planned rate.
const BACKLOG_LIMIT: f64 = 0.1;

/// Minimum share of the plan that must be answered in time.
const ACHIEVED_LIMIT: f64 = 0.99;

/// Share of time in use above which a connection delays the requests due on it.
const CONNECTION_LIMIT: f64 = 0.9;

/// Minimum number of samples beyond a reliable percentile.
const SAMPLES_BEYOND: f64 = 10.0;

/// The percentile by which every run is judged.
const JUDGED_QUANTILE: f64 = 0.99;

/// A problem with the figures of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunWarning {
    /// More than 0.1 % of the answers were not 2xx.
    NotSuccess {
        /// Share of all answers, 0–1.
        share: f64,
        /// The most frequent status that is not 2xx.
        status: u16,
    },
    /// More than 0.1 % of the requests were lost with their connection.
    Lost {
        /// Number of requests that were lost.
        count: u64,
        /// Share of all requests, 0–1.
        share: f64,
    },
    /// The server sent something other than HTTP/1.1.
    NotHttp {
        /// Number of occurrences.
        count: u64,
        /// Beginning of the first occurrence.
        first: String,
    },
    /// More than 0.1 % of the requests took longer than the timeout.
    Timeouts {
        /// Number of these requests.
        count: u64,
        /// Share of all requests, 0–1.
        share: f64,
    },
    /// The server closed connections after answers.
    Reconnects {
        /// Number of reopened connections.
        count: u64,
        /// Number of answers.
        answers: u64,
        /// True in a closed loop, where all latencies include the time to reconnect.
        closed_loop: bool,
    },
    /// Values read differ from those written.
    WrongValues {
        /// Number of wrong values.
        count: u64,
    },
    /// A thread of the client used up its CPU.
    ClientCpu {
        /// Share of the time that the busiest thread was on a CPU.
        share: f64,
    },
    /// All threads of the client together used up their CPUs.
    ClientCpus {
        /// CPUs that the threads used, on average.
        used: f64,
        /// CPUs that the threads may use.
        cpus: usize,
    },
    /// The client sent requests late.
    ClientLate {
        /// Client delay at p99.
        late: Duration,
    },
    /// The backlog kept growing, so the percentiles depend on the length of the run.
    BacklogGrowing {
        /// Requests due but not sent when the plan ended.
        backlog: u64,
        /// Growth of the backlog in requests per second.
        per_second: f64,
    },
    /// The rate of answers in time stayed below the plan.
    RateUnreached {
        /// Answers per second.
        got: f64,
        /// Planned requests per second.
        planned: f64,
    },
    /// The only connection was in use all the time.
    ConnectionLimit {
        /// Requests per second that the connection can carry at this latency.
        at_most: f64,
    },
    /// Some requests had no answer at the end of the drain.
    Unfinished {
        /// Number of these requests.
        count: u64,
    },
    /// A percentile has too few samples.
    FewSamples {
        /// The lowest percentile with too few samples, 0–1.
        quantile: f64,
        /// The highest percentile in use.
        upto: f64,
        /// Number of samples.
        samples: u64,
    },
    /// An address of a target could not be reached.
    UnreachableAddress(UnreachableAddress),
}

impl RunWarning {
    /// Returns the warning's code, for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotSuccess { .. } => "non-2xx",
            Self::Lost { .. } => "errors",
            Self::WrongValues { .. } => "wrong-values",
            Self::NotHttp { .. } => "no-http",
            Self::Timeouts { .. } => "timeouts",
            Self::Reconnects { .. } => "reconnects",
            Self::ClientCpu { .. } | Self::ClientCpus { .. } | Self::ClientLate { .. } => {
                "client-limited"
            }
            Self::BacklogGrowing { .. } => "backlog",
            Self::RateUnreached { .. } => "rate-unreached",
            Self::ConnectionLimit { .. } => "connection-limit",
            Self::Unfinished { .. } => "unfinished",
            Self::FewSamples { .. } => "few-samples",
            Self::UnreachableAddress(_) => "address-left-out",
        }
    }

    /// Converts the warning to its form in `run.json`.
    pub fn record(&self) -> record::Warning {
        record::Warning { code: self.code().to_owned(), text: self.to_string() }
    }

    /// Returns a warning if there are too few samples for a percentile that is about to be printed.
    pub fn few_samples(quantile: f64, samples: u64) -> Option<Self> {
        Self::few_samples_of_any(&[quantile], samples)
    }

    /// Returns a warning if there are too few samples for any of these percentiles, given in
    /// ascending order.
    pub fn few_samples_of_any(quantiles: &[f64], samples: u64) -> Option<Self> {
        // In floating point, 1 - 0.99 is slightly more than 0.01.
        let few = |&quantile: &f64| (samples as f64) < required_samples(quantile) * (1.0 - 1e-9);
        let (quantile, upto) = (quantiles.iter().copied().find(few)?, *quantiles.last()?);
        Some(Self::FewSamples { quantile, upto, samples })
    }
}

/// Returns the number of samples that a percentile needs.
fn required_samples(quantile: f64) -> f64 {
    SAMPLES_BEYOND / (1.0 - quantile)
}

impl Outcome {
    /// Returns all warnings, the most severe first.
    pub fn warnings(&self) -> Vec<RunWarning> {
        if self.interrupted && self.planned == 0 {
            // A run that was interrupted before its first request has no figures.
            return Vec::new();
        }
        let all = self.all_methods();
        let failed = [self.not_success(), self.not_http(), self.lost_requests(), self.timeouts()];
        let mut warnings: Vec<RunWarning> = failed.into_iter().flatten().collect();
        let count = self.tally.wrong_values;
        warnings.extend((count > 0).then_some(RunWarning::WrongValues { count }));
        warnings.extend(self.client_cpu());
        let late = Duration::from_nanos(all.late.value_at_quantile(0.99));
        warnings.extend((late > LATE_LIMIT).then_some(RunWarning::ClientLate { late }));
        warnings.extend(self.rate.and_then(|rate| self.overload(rate, all.written.mean() / 1e9)));
        warnings.extend(self.unreached_rate());
        let count = self.tally.unfinished;
        warnings.extend((count > 0).then_some(RunWarning::Unfinished { count }));
        warnings.extend(RunWarning::few_samples(JUDGED_QUANTILE, all.intended.len()));
        warnings.extend(self.reconnects());
        warnings.extend(self.left_out.iter().cloned().map(RunWarning::UnreachableAddress));
        warnings
    }

    fn not_success(&self) -> Option<RunWarning> {
        let statuses = self.tally.statuses.by_status();
        let others = statuses.iter().filter(|(status, _)| !(200..300).contains(*status));
        let (&status, _) = others.max_by_key(|(_, count)| **count)?;
        let refused = self.answer_count() - self.tally.statuses.success();
        let share = refused as f64 / self.answer_count() as f64;
        (share > FAILED_LIMIT).then_some(RunWarning::NotSuccess { share, status })
    }

    fn lost_requests(&self) -> Option<RunWarning> {
        let count = self.tally.errors.count_lost() - self.tally.garbage.answers;
        let share = count as f64 / self.planned.max(1) as f64;
        (share > FAILED_LIMIT).then_some(RunWarning::Lost { count, share })
    }

    fn not_http(&self) -> Option<RunWarning> {
        let garbage = &self.tally.garbage;
        let (count, first) = (garbage.all(), String::from_utf8_lossy(&garbage.first).into_owned());
        (count > 0).then_some(RunWarning::NotHttp { count, first })
    }

    fn timeouts(&self) -> Option<RunWarning> {
        let count = self.tally.errors.timeout;
        let share = count as f64 / self.planned.max(1) as f64;
        (share > FAILED_LIMIT).then_some(RunWarning::Timeouts { count, share })
    }

    fn reconnects(&self) -> Option<RunWarning> {
        let (count, answers) = (self.tally.reconnects, self.answer_count());
        let often = count as f64 > answers as f64 * FAILED_LIMIT;
        let closed_loop = self.rate.is_none();
        often.then_some(RunWarning::Reconnects { count, answers, closed_loop })
    }

    /// Checks the busiest thread or, if threads outnumber CPUs, all threads together.
    fn client_cpu(&self) -> Option<RunWarning> {
        let share = self.busy.iter().copied().fold(0.0, f64::max);
        if share > CPU_LIMIT {
            return Some(RunWarning::ClientCpu { share });
        }
        let (used, cpus) = (self.busy.iter().sum::<f64>(), self.cpus);
        (used > CPU_LIMIT * cpus as f64).then_some(RunWarning::ClientCpus { used, cpus })
    }

    /// Checks whether the load exceeds the capacity of a single connection, or of the server.
    fn overload(&self, rate: f64, mean_s: f64) -> Option<RunWarning> {
        let targets = (self.connections / self.connections_each).max(1) as f64;
        if self.connections_each == 1 && rate / targets * mean_s > CONNECTION_LIMIT {
            return Some(RunWarning::ConnectionLimit { at_most: 1.0 / mean_s });
        }
        let seconds = self.duration.as_secs_f64() / self.backlog.len().max(1) as f64;
        let per_second = growth(&self.backlog, rate)? / seconds;
        let backlog = *self.backlog.last()?;
        Some(RunWarning::BacklogGrowing { backlog, per_second })
    }

    fn unreached_rate(&self) -> Option<RunWarning> {
        // Requests in flight at the end do not count as failures.
        let in_time = self.tally.in_time + self.connections as u64;
        let short = (in_time as f64) < self.planned as f64 * ACHIEVED_LIMIT;
        let (planned, got) = (self.rate?, self.throughput());
        (short && !self.interrupted).then_some(RunWarning::RateUnreached { got, planned })
    }
}

/// Returns the growth of the backlog per sample, by least squares over the last two thirds of the
/// run, or `None` if the backlog is small or constant.
fn growth(backlog: &[u64], rate: f64) -> Option<f64> {
    let last = *backlog.last()? as f64;
    let third = backlog.len() / 3;
    let part = &backlog[third..];
    let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len().max(1) as f64;
    let (middle, end) = (mean(&backlog[third..2 * third]), mean(&backlog[2 * third..]));
    let grows = end > 1.2 * middle && last > rate * BACKLOG_LIMIT;
    let centre = (part.len() as f64 - 1.0) / 2.0;
    let level = mean(part);
    let (mut above, mut below) = (0.0, 0.0);
    for (i, &value) in part.iter().enumerate() {
        let x = i as f64 - centre;
        above += x * (value as f64 - level);
        below += x * x;
    }
    (grows && below > 0.0).then(|| above / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_backlog_is_distinguished_from_a_constant_one() {
        let ramp: Vec<u64> = (1..=20).map(|i| i * 1000).collect();
        let slope = growth(&ramp, 10_000.0).unwrap();
        assert!((slope - 1000.0).abs() < 1e-6, "{slope}");
        assert_eq!(growth(&[5000; 20], 10_000.0), None);
        assert_eq!(growth(&(1..=20).collect::<Vec<_>>(), 10_000.0), None);
        assert_eq!(growth(&[], 10_000.0), None);
        assert_eq!(growth(&[9000], 10_000.0), None);
    }

    #[test]
    fn counts_of_one_are_worded_in_the_singular() {
        for (warning, says) in [
            (RunWarning::Unfinished { count: 1 }, "1 request had no answer when the run ended; it"),
            (
                RunWarning::Unfinished { count: 2 },
                "2 requests had no answer when the run ended; they",
            ),
            (
                RunWarning::Lost { count: 1, share: 0.01 },
                "1 request (1.00 %) was lost with its conn",
            ),
            (RunWarning::WrongValues { count: 1 }, "1 value read was not the one written"),
        ] {
            let text = warning.to_string();
            assert!(text.starts_with(says), "{text}");
        }
    }

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        for (quantile, enough) in [(0.5, 20), (0.99, 1000), (0.999, 10_000), (0.99999, 1_000_000)] {
            assert_eq!(RunWarning::few_samples(quantile, enough), None);
            let few = RunWarning::few_samples(quantile, enough - 1).unwrap();
            assert_eq!(few.code(), "few-samples");
        }
        let text = RunWarning::few_samples(0.999, 17).unwrap().to_string();
        assert_eq!(text, "17 samples are too few for p99.9: 10000 are needed");
        let printed = [0.5, 0.99, 0.999, 0.99999];
        let text = RunWarning::few_samples_of_any(&printed, 2000).unwrap().to_string();
        let says = "2000 samples are too few for p99.9 to p99.999: 10000 to 1000000 are needed";
        assert_eq!(text, says);
        assert_eq!(RunWarning::few_samples_of_any(&printed, 1_000_000), None);
    }
}
