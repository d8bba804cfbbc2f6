//! What is wrong with a run's figures.

use std::fmt;
use std::time::Duration;

use crate::outcome::{LeftOut, Outcome};
use crate::record;

/// A client thread that was on its CPU for more of the time than this was the limit itself.
const CPU_LIMIT: f64 = 0.95;

/// A client whose sends are this late at p99 has put its own delay into the latencies it reports.
const LATE_LIMIT: Duration = Duration::from_millis(2);

/// A share of failures above which the figures are of something else.
const FAILED_LIMIT: f64 = 0.001;

/// A backlog smaller than this many seconds of the plan is no backlog.
const BACKLOG_LIMIT: f64 = 0.1;

/// The share of the plan that must be answered in time.
const ACHIEVED_LIMIT: f64 = 0.99;

/// A connection that is in use for more of the time than this delays what is due on it.
const CONNECTION_LIMIT: f64 = 0.9;

/// Samples that must lie beyond a percentile for it to be one.
const SAMPLES_BEYOND: f64 = 10.0;

/// The percentile that every run is looked at by.
const USUAL: f64 = 0.99;

/// What is wrong with the figures of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// More than 0.1 % of the answers were not 2xx.
    NotSuccess {
        /// Their share.
        share: f64,
        /// The most frequent status among them.
        status: u16,
    },
    /// More than 0.1 % of the requests were lost with their connection.
    Lost {
        /// How many.
        count: u64,
        /// Their share.
        share: f64,
    },
    /// Values read were not those written.
    WrongValues {
        /// How many.
        count: u64,
    },
    /// A thread of the client was out of CPU.
    ClientCpu {
        /// The greatest share of the time that one of them was on a CPU.
        share: f64,
    },
    /// The client sent late.
    ClientLate {
        /// Its lateness at p99.
        late: Duration,
    },
    /// More became due than was answered: percentiles measure the length of the run.
    BacklogGrowing {
        /// Requests due but not sent when the plan ended.
        backlog: u64,
        /// By how many it grew each second.
        per_second: f64,
    },
    /// Less was answered in time than the plan said.
    RateUnreached {
        /// Answers a second.
        got: f64,
        /// Requests a second by plan.
        planned: f64,
    },
    /// The only connection was in use all the time.
    ConnectionLimit {
        /// Requests a second that it can carry at its latency.
        at_most: f64,
    },
    /// No answer came by the end of the drain.
    Unfinished {
        /// To how many requests.
        count: u64,
    },
    /// A percentile of too few samples.
    FewSamples {
        /// The percentile, 0–1.
        quantile: f64,
        /// How many there are.
        samples: u64,
    },
    /// An address that could not be reached.
    LeftOut(LeftOut),
}

impl Warning {
    /// One word for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotSuccess { .. } => "non-2xx",
            Self::Lost { .. } => "errors",
            Self::WrongValues { .. } => "wrong-values",
            Self::ClientCpu { .. } | Self::ClientLate { .. } => "client-limited",
            Self::BacklogGrowing { .. } => "backlog",
            Self::RateUnreached { .. } => "rate-unreached",
            Self::ConnectionLimit { .. } => "connection-limit",
            Self::Unfinished { .. } => "unfinished",
            Self::FewSamples { .. } => "few-samples",
            Self::LeftOut(_) => "address-left-out",
        }
    }

    /// For `run.json`.
    pub fn record(&self) -> record::Warning {
        record::Warning { code: self.code().to_owned(), text: self.to_string() }
    }

    /// Whether that many samples are too few for this percentile, which is about to be printed.
    pub fn few_samples(quantile: f64, samples: u64) -> Option<Self> {
        let needed = SAMPLES_BEYOND / (1.0 - quantile);
        // 1 - 0.99 is a little more than 0.01.
        let few = (samples as f64) < needed * (1.0 - 1e-9);
        few.then_some(Self::FewSamples { quantile, samples })
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSuccess { share, status } => write!(
                f,
                "{:.2} % of the answers were not 2xx, most of them {status}: the latencies are \
                 theirs too",
                share * 100.0
            ),
            Self::Lost { count, share } => write!(
                f,
                "{count} requests ({:.2} %) were lost with their connections; they are in no \
                 latency",
                share * 100.0
            ),
            Self::WrongValues { count } => {
                write!(f, "{count} values read were not those written with this seed and length")
            }
            Self::ClientCpu { share } => write!(
                f,
                "CLIENT-LIMITED: a client thread used {:.0} % of a CPU: part of these latencies is \
                 its own; use more threads, cores or machines",
                share * 100.0
            ),
            Self::ClientLate { late } => write!(
                f,
                "CLIENT-LIMITED: at p99 the client sent {:.1} ms late: part of these latencies is \
                 its own; give it a CPU to itself",
                late.as_secs_f64() * 1e3
            ),
            Self::BacklogGrowing { backlog, per_second } => write!(
                f,
                "the backlog grew by {per_second:.0} requests a second, to {backlog}: the \
                 percentiles measure the length of the run"
            ),
            Self::RateUnreached { got, planned } => write!(
                f,
                "{got:.0} of {planned:.0} requests a second were answered in time: this is not a \
                 measurement at {planned:.0}/s"
            ),
            Self::ConnectionLimit { at_most } => write!(
                f,
                "one connection can carry at most {at_most:.0} requests a second at this latency: \
                 it was the limit, use more (-c)"
            ),
            Self::Unfinished { count } => write!(
                f,
                "{count} requests had no answer when the run ended; they count as having taken at \
                 least that long"
            ),
            Self::FewSamples { quantile, samples } => write!(
                f,
                "{samples} samples are too few for p{}: {:.0} are needed",
                // As people write it: 99.9, not 99.90000000000001.
                (quantile * 1e7).round() / 1e5,
                SAMPLES_BEYOND / (1.0 - quantile)
            ),
            Self::LeftOut(LeftOut { target, address, cause }) => write!(
                f,
                "{address}, an address of {target}, took no connection ({cause}): the others have \
                 all of the load"
            ),
        }
    }
}

impl Outcome {
    /// What is wrong with these figures, the worst first.
    pub fn warnings(&self) -> Vec<Warning> {
        let all = self.both();
        let mut warnings: Vec<Warning> =
            [self.not_success(), self.lost()].into_iter().flatten().collect();
        let count = self.tally.wrong_values;
        warnings.extend((count > 0).then_some(Warning::WrongValues { count }));
        let share = self.busy.iter().copied().fold(0.0, f64::max);
        warnings.extend((share > CPU_LIMIT).then_some(Warning::ClientCpu { share }));
        let late = Duration::from_nanos(all.late.value_at_quantile(0.99));
        warnings.extend((late > LATE_LIMIT).then_some(Warning::ClientLate { late }));
        warnings.extend(self.rate.and_then(|rate| self.overload(rate, all.written.mean() / 1e9)));
        warnings.extend(self.unreached());
        let count = self.tally.unfinished;
        warnings.extend((count > 0).then_some(Warning::Unfinished { count }));
        warnings.extend(Warning::few_samples(USUAL, all.intended.len()));
        warnings.extend(self.left_out.iter().cloned().map(Warning::LeftOut));
        warnings
    }

    fn not_success(&self) -> Option<Warning> {
        let statuses = self.tally.statuses.by_status();
        let others = statuses.iter().filter(|(status, _)| !(200..300).contains(*status));
        let (&status, _) = others.max_by_key(|(_, count)| **count)?;
        let refused = self.answered() - self.tally.statuses.success();
        let share = refused as f64 / self.answered() as f64;
        (share > FAILED_LIMIT).then_some(Warning::NotSuccess { share, status })
    }

    fn lost(&self) -> Option<Warning> {
        let count = self.tally.errors.lost();
        let share = count as f64 / self.planned.max(1) as f64;
        (share > FAILED_LIMIT).then_some(Warning::Lost { count, share })
    }

    /// Too much for the only connection there is, or for the server.
    fn overload(&self, rate: f64, mean_s: f64) -> Option<Warning> {
        let targets = (self.connections / self.connections_each).max(1) as f64;
        if self.connections_each == 1 && rate / targets * mean_s > CONNECTION_LIMIT {
            return Some(Warning::ConnectionLimit { at_most: 1.0 / mean_s });
        }
        let seconds = self.duration.as_secs_f64() / self.backlog.len().max(1) as f64;
        let per_second = growth(&self.backlog, rate)? / seconds;
        let backlog = *self.backlog.last()?;
        Some(Warning::BacklogGrowing { backlog, per_second })
    }

    fn unreached(&self) -> Option<Warning> {
        // Those in flight at the end are no failure.
        let in_time = self.tally.in_time + self.connections as u64;
        let short = (in_time as f64) < self.planned as f64 * ACHIEVED_LIMIT;
        let (planned, got) = (self.rate?, self.throughput());
        (short && !self.interrupted).then_some(Warning::RateUnreached { got, planned })
    }
}

/// By how many requests a backlog grows from sample to sample, by the least squares over the last
/// two thirds of the run, if it grows: what stands in a queue once need not.
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
    fn a_backlog_that_grows_is_told_from_one_that_stays() {
        let ramp: Vec<u64> = (1..=20).map(|i| i * 1000).collect();
        let slope = growth(&ramp, 10_000.0).unwrap();
        assert!((slope - 1000.0).abs() < 1e-6, "{slope}");
        assert_eq!(growth(&[5000; 20], 10_000.0), None);
        assert_eq!(growth(&(1..=20).collect::<Vec<_>>(), 10_000.0), None);
        assert_eq!(growth(&[], 10_000.0), None);
        assert_eq!(growth(&[9000], 10_000.0), None);
    }

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        for (quantile, enough) in [(0.5, 20), (0.99, 1000), (0.999, 10_000), (0.99999, 1_000_000)] {
            assert_eq!(Warning::few_samples(quantile, enough), None);
            let few = Warning::few_samples(quantile, enough - 1).unwrap();
            assert_eq!(few.code(), "few-samples");
        }
        let text = Warning::few_samples(0.999, 17).unwrap().to_string();
        assert_eq!(text, "17 samples are too few for p99.9: 10000 are needed");
    }
}
