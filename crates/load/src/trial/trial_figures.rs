//! Figures of a trial, as used by verdicts and limits.

use hdrhistogram::Histogram;

use crate::search::Quantity;
use crate::server::{Metrics, Usage};

/// Nanoseconds in a millisecond.
const MS: f64 = 1e6;

/// The figures of one trial.
#[derive(Debug, Clone)]
pub(crate) struct TrialFigures {
    /// Due requests; in a closed loop, sent requests.
    pub(crate) planned: u64,
    /// Answers within the plan's duration.
    pub(crate) in_time: u64,
    /// Answers per second within the plan's duration.
    pub(crate) throughput: f64,
    /// Answers that were neither 2xx nor `304`, and requests without an answer on a broken
    /// connection.
    pub(crate) errors: u64,
    /// Description of the redirects among the errors. Empty without redirects.
    pub(crate) redirects: String,
    /// Latencies from the intended start and from the write, and the client's own delays, all in
    /// nanoseconds.
    pub(crate) intended: Histogram<u64>,
    pub(crate) written: Histogram<u64>,
    pub(crate) late: Histogram<u64>,
    pub(crate) connections: usize,
    /// Requests due but not sent at the end of the plan, if the backlog kept growing.
    pub(crate) backlog: Option<u64>,
    /// The greater of two shares, 0–1: the share of the time that the client's busiest thread was
    /// on a CPU, and the share of the client's CPUs that all its threads used together.
    pub(crate) client_busy: f64,
    /// CPUs used by the client, on average.
    pub(crate) client_cpus: f64,
    /// Usage of the servers' processes on this machine.
    pub(crate) servers: Vec<Usage>,
    /// Servers' metrics: growth of counters, gauges at the end.
    pub(crate) metrics: Vec<Metrics>,
    /// Description of the server's end, if the server ended, with the last lines of its output.
    pub(crate) died: Option<String>,
    /// True if Ctrl-C ended the trial.
    pub(crate) interrupted: bool,
}

impl TrialFigures {
    /// Returns [`Self::redirects`] after a separator, or an empty text without redirects.
    pub(crate) fn format_redirects(&self, separator: &str) -> String {
        match self.redirects.as_str() {
            "" => String::new(),
            redirects => format!("{separator}{redirects}"),
        }
    }

    /// Returns a figure of the objective in milliseconds, or for errors a share of 0–1.
    pub(crate) fn value(&self, what: Quantity) -> f64 {
        match what {
            Quantity::Quantile(quantile) => self.intended.value_at_quantile(quantile) as f64 / MS,
            Quantity::Mean => self.intended.mean() / MS,
            Quantity::Max => self.intended.max() as f64 / MS,
            Quantity::Errors => self.errors as f64 / self.planned.max(1) as f64,
        }
    }

    /// Returns true if requests were sent. Otherwise the figures have no meaning.
    pub(crate) fn is_run(&self) -> bool {
        self.planned > 0
    }

    /// Returns the figure, or `None` if no request was answered.
    pub(crate) fn value_if_answered(&self, what: Quantity) -> Option<f64> {
        (!self.intended.is_empty()).then(|| self.value(what))
    }

    /// Returns the quantile, mean or maximum of the client's own delays in milliseconds, or 0 for
    /// errors.
    pub(crate) fn lateness(&self, what: Quantity) -> f64 {
        match what {
            Quantity::Quantile(quantile) => self.late.value_at_quantile(quantile) as f64 / MS,
            Quantity::Mean => self.late.mean() / MS,
            Quantity::Max => self.late.max() as f64 / MS,
            Quantity::Errors => 0.0,
        }
    }

    /// Returns the share of the plan that was answered in time. Requests in flight at the end, at
    /// most one per connection, count as answered.
    pub(crate) fn achieved_share(&self) -> f64 {
        let in_flight = self.connections as u64;
        let answered = (self.in_time + in_flight).min(self.planned);
        answered as f64 / self.planned.max(1) as f64
    }

    /// Returns the mean time from the write of a request to its answer, in milliseconds.
    pub(crate) fn answer_ms(&self) -> f64 {
        self.written.mean() / MS
    }

    /// Returns the number of CPUs that other processes used, without client and servers. Returns
    /// `None` if no server is on this machine.
    pub(crate) fn others_cpus(&self) -> Option<f64> {
        let machine = self.servers.first()?.machine_cpus;
        let servers: f64 = self.servers.iter().map(|usage| usage.cpu_s / usage.seconds).sum();
        Some((machine - servers - self.client_cpus).max(0.0))
    }

    /// Returns the growth of a counter, or the value of a gauge, summed over all servers.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.metrics.iter().filter_map(|metrics| metrics.total(name)).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hdrhistogram::Histogram;

    use super::TrialFigures;
    use crate::server::{Metrics, Usage};

    /// Creates the figures of a trial of 10 s in which each answer took `ms` milliseconds, and a
    /// tenth of them from the write.
    pub(crate) fn figures(rate: u64, ms: f64) -> TrialFigures {
        let histogram = |ms: f64| {
            let mut histogram = Histogram::new(3).unwrap();
            histogram.record_n((ms * 1e6) as u64, rate * 10).unwrap();
            histogram
        };
        TrialFigures {
            planned: rate * 10,
            in_time: rate * 10,
            throughput: rate as f64,
            errors: 0,
            redirects: String::new(),
            intended: histogram(ms),
            written: histogram(ms / 10.0),
            late: histogram(0.01),
            connections: 64,
            backlog: None,
            client_busy: 0.3,
            client_cpus: 0.3,
            servers: vec![Usage {
                seconds: 10.0,
                cpu_s: 2.0,
                cpus: 2,
                idle: 0.5,
                ..Usage::default()
            }],
            metrics: vec![Metrics::default()],
            died: None,
            interrupted: false,
        }
    }
}
