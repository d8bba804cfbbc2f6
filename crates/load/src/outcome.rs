//! What came of a run: three histograms a method, counts, and what is wrong with the figures.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest latency that is told apart, in nanoseconds: an hour. Longer ones count as this.
const LONGEST: u64 = 3_600_000_000_000;

/// Decimal digits a histogram keeps: 0.1 %.
const DIGITS: u8 = 3;

/// A client that was on its CPU for more of the time than this was the limit itself.
const CPU_LIMIT: f64 = 0.95;

/// A client whose sends are this late at p99, in nanoseconds, has put its own delay into the
/// latencies it reports.
const LATE_LIMIT: u64 = 2_000_000;

/// A share of answers other than 2xx above which the figures are of something else.
const REFUSED_LIMIT: f64 = 0.001;

/// A backlog smaller than this many milliseconds of the plan is no backlog.
const BACKLOG_LIMIT_MS: u64 = 100;

/// Latencies of one method, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// From the moment that the plan said until the answer was complete. Requests not answered by
    /// the end are in it with the time they had waited.
    pub intended: Histogram<u64>,
    /// From writing the request until the answer was complete.
    pub written: Histogram<u64>,
    /// From the moment that the request was due *and* its connection free until it was written: the
    /// client's own delay.
    pub late: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self { intended: histogram(), written: histogram(), late: histogram() }
    }

    fn add(&mut self, other: &Self) {
        // The bounds are the same, so nothing can be out of range.
        self.intended += &other.intended;
        self.written += &other.written;
        self.late += &other.late;
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("constant bounds are valid")
}

/// Answers by status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statuses {
    /// 2xx.
    pub success: u64,
    /// 404: not an error of the server, but no value was read either.
    pub not_found: u64,
    /// 503: refused for overload.
    pub unavailable: u64,
    /// All others.
    pub other: u64,
}

impl Statuses {
    pub(crate) fn count(&mut self, status: u16) {
        match status {
            200..=299 => self.success += 1,
            404 => self.not_found += 1,
            503 => self.unavailable += 1,
            _ => self.other += 1,
        }
    }

    /// Answers of any status.
    pub fn all(&self) -> u64 {
        self.success + self.not_found + self.unavailable + self.other
    }
}

/// Requests and connections that failed without an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors {
    /// Connections that could not be made again.
    pub connect: u64,
    /// Requests whose connection ended, or brought something other than HTTP, before the answer.
    pub read: u64,
    /// Requests that could not be written.
    pub write: u64,
    /// Answers later than the plan's timeout; they are in the histograms too.
    pub timeout: u64,
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Latencies of `GET`s.
    pub get: Latencies,
    /// Latencies of `PUT`s.
    pub put: Latencies,
    /// Answers by status.
    pub statuses: Statuses,
    /// Failures.
    pub errors: Errors,
    /// Requests that were due; in a closed loop, that were sent.
    pub planned: u64,
    /// Requests due but not answered when the run ended.
    pub unfinished: u64,
    /// Answers within the plan's duration.
    pub in_time: u64,
    /// How long the plan was.
    pub duration: Duration,
    /// CPU time of the generating thread, and the wall time it ran.
    pub client_cpu: Duration,
    /// Wall time, the drain included.
    pub elapsed: Duration,
    /// Requests due but not yet sent, at 20 moments of the run, the last at the end of the plan.
    pub backlog: Vec<u64>,
    pub(crate) rate: Option<u64>,
}

impl Outcome {
    /// Latencies of both methods together.
    pub fn both(&self) -> Latencies {
        let mut both = self.get.clone();
        both.add(&self.put);
        both
    }

    /// Answers a second within the plan's duration.
    pub fn throughput(&self) -> f64 {
        self.in_time as f64 / self.duration.min(self.elapsed).as_secs_f64()
    }

    /// What is wrong with these figures.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let refused = self.statuses.all() - self.statuses.success;
        let share = refused as f64 / self.statuses.all().max(1) as f64;
        if share > REFUSED_LIMIT {
            warnings.push(Warning::NotSuccess { share });
        }
        let cpu = self.client_cpu.as_secs_f64() / self.elapsed.as_secs_f64();
        let late = Duration::from_nanos(self.both().late.value_at_quantile(0.99));
        if cpu > CPU_LIMIT || late.as_nanos() as u64 > LATE_LIMIT {
            warnings.push(Warning::ClientLimited { cpu, late });
        }
        if let Some(rate) = self.rate
            && let Some(backlog) = growing(&self.backlog, rate)
        {
            warnings.push(Warning::BacklogGrowing { backlog });
        }
        warnings
    }
}

/// The backlog at the end, if the last third of the run had clearly more than the second.
fn growing(backlog: &[u64], rate: u64) -> Option<u64> {
    let third = backlog.len() / 3;
    let last = *backlog.last()?;
    let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len().max(1) as f64;
    let (middle, end) = (mean(&backlog[third..2 * third]), mean(&backlog[2 * third..]));
    let grows = end > 1.2 * middle && last > rate * BACKLOG_LIMIT_MS / 1000;
    grows.then_some(last)
}

/// What is wrong with the figures of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warning {
    /// More than 0.1 % of the answers were not 2xx.
    NotSuccess {
        /// Their share.
        share: f64,
    },
    /// The client was out of CPU, or sent late.
    ClientLimited {
        /// Share of the time that its thread was on a CPU.
        cpu: f64,
        /// Its lateness at p99.
        late: Duration,
    },
    /// More became due than was answered: percentiles measure the length of the run.
    BacklogGrowing {
        /// Requests due but not sent when the plan ended.
        backlog: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSuccess { share } => {
                write!(f, "WARNING {:.2} % of the answers were not 2xx", share * 100.0)
            }
            Self::ClientLimited { cpu, late } => write!(
                f,
                "WARNING CLIENT-LIMITED: the client used {:.0} % of a CPU and sent {late:?} late \
                 at p99; part of these latencies is its own",
                cpu * 100.0
            ),
            Self::BacklogGrowing { backlog } => write!(
                f,
                "WARNING the backlog grew to {backlog} requests: the percentiles measure the \
                 length of the run"
            ),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, latencies) in [("GET", &self.get), ("PUT", &self.put)] {
            if !latencies.intended.is_empty() {
                writeln!(f, "{name}")?;
                line(f, "intended", &latencies.intended)?;
                line(f, "written", &latencies.written)?;
                line(f, "late", &latencies.late)?;
            }
        }
        let Statuses { success, not_found, unavailable, other } = self.statuses;
        writeln!(
            f,
            "answers    2xx {success}, 404 {not_found}, 503 {unavailable}, other {other}; \
             unfinished {}",
            self.unfinished
        )?;
        let Errors { connect, read, write, timeout } = self.errors;
        writeln!(f, "errors     connect {connect}, read {read}, write {write}, timeout {timeout}")?;
        let cpu = self.client_cpu.as_secs_f64() / self.elapsed.as_secs_f64() * 100.0;
        writeln!(f, "answers/s  {:.0}, client CPU {cpu:.0} %", self.throughput())?;
        for warning in self.warnings() {
            writeln!(f, "{warning}")?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, h: &Histogram<u64>) -> fmt::Result {
    let ms = |q: f64| h.value_at_quantile(q) as f64 / 1e6;
    writeln!(
        f,
        "  {name:<9}p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, max {:.3} ms, {} samples",
        ms(0.5),
        ms(0.99),
        ms(0.999),
        h.max() as f64 / 1e6,
        h.len()
    )
}

#[cfg(test)]
mod tests {
    use super::growing;

    #[test]
    fn a_backlog_that_grows_is_told_from_one_that_stays() {
        let ramp: Vec<u64> = (1..=20).map(|i| i * 1000).collect();
        assert_eq!(growing(&ramp, 10_000), Some(20_000));
        assert_eq!(growing(&[5000; 20], 10_000), None);
        assert_eq!(growing(&(1..=20).collect::<Vec<_>>(), 10_000), None);
        assert_eq!(growing(&[], 10_000), None);
    }
}
