//! The record of a run on disk: the contents of `run.json`. `docs/guide/measuring.md` describes the
//! directory.
//!
//! ```text
//!  DIR/run.json        this record: plan, machine, results, warnings
//!  DIR/output.txt      the same for people, in wrk2's format
//!  DIR/script.lua      the script, if one was used
//!  DIR/intended.hdr    latencies from the intended start       ┐ interval logs: one line
//!  DIR/written.hdr     latencies from the request's write      ├ per second and method
//!  DIR/late.hdr        delays from intended start to write     ┘
//!  DIR/timeline.csv    a row per second: rate, errors, latencies, backlog, servers' metrics
//!  DIR/profile/        HOST-PORT-EVENT.EXT
//! ```
//!
//! Readers accept a file with unknown fields, and refuse another [`FORMAT`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Version of `run.json`, incremented when a field changes its meaning.
pub const FORMAT: u32 = 1;

/// One run: the contents of `run.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Version of the file's format, which is [`FORMAT`].
    pub format: u32,
    /// Source of the figures: `load`, or `import` for another tool's output.
    pub source: String,
    /// Name and version of the measuring tool, with its git revision if known.
    pub tool: String,
    /// The words of the command line.
    pub argv: Vec<String>,
    /// Start time in RFC 3339, UTC. Empty if unknown.
    pub started: String,
    /// The machine of the client.
    pub machine: Machine,
    /// The plan of the run.
    pub plan: PlanRecord,
    /// True if Ctrl-C ended the run. The figures then cover only the time before.
    pub interrupted: bool,
    /// Wall time in seconds, including the drain but not the warm-up.
    pub elapsed_s: f64,
    /// Answers per second within the plan's duration. `None` if an imported output lacks the
    /// throughput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    /// Counts of requests, answers and errors.
    pub counts: Counts,
    /// Latency histograms. The main one is `intended` of all methods.
    pub latency: Vec<Latency>,
    /// Requests due but not yet sent, at equal intervals. The last value belongs to the end of the
    /// plan.
    pub backlog: Vec<u64>,
    /// CPU seconds of the client's threads in `elapsed_s`.
    pub client_cpu_s: f64,
    /// The servers, as far as they can be observed.
    pub servers: Vec<Server>,
    /// Problems with the figures.
    pub warnings: Vec<Warning>,
    /// Descriptions of the values that an imported file lacks.
    pub missing: Vec<String>,
    /// Recordings made during the run.
    pub profiles: Vec<Profile>,
}

/// The machine that the client ran on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The machine's host name.
    pub host: String,
    /// Name of the processor model.
    pub cpu: String,
    /// Number of the machine's CPUs that the client may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Release of the kernel.
    pub kernel: String,
}

/// The plan of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanRecord {
    /// URLs, as given.
    pub targets: Vec<String>,
    /// Factor on rate, threads and connections: the number of targets if each target gets its own
    /// load, otherwise 1.
    pub copies: usize,
    /// Threads of the client.
    pub threads: usize,
    /// Connections of each copy, over all its threads.
    pub connections: usize,
    /// Requests per second over all connections of a copy. `None` in a closed loop, or if unknown.
    pub rate: Option<f64>,
    /// True in a closed loop, where each connection sends when its last request is answered.
    pub closed: bool,
    /// `even` or `poisson`.
    pub arrival: String,
    /// Length of the warm-up in seconds.
    pub warmup_s: f64,
    /// Length of the measured time in seconds.
    pub duration_s: f64,
    /// Description of the requests: the script's name, or keys and mix in words.
    pub requests: String,
    /// File name of the script in this directory. Empty without a script.
    pub script: String,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Counts of requests, answers and errors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Due requests; in a closed loop, sent requests.
    pub planned: u64,
    /// Answers, of any status.
    pub answered: u64,
    /// Answers within the plan's duration.
    pub in_time: u64,
    /// Requests due but not answered when the run ended.
    pub unfinished: u64,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers that were neither 2xx nor 3xx.
    pub refused: u64,
    /// Connections that could not be established.
    pub connect_errors: u64,
    /// Requests whose connection ended, or delivered something other than HTTP, before the answer
    /// was complete.
    pub read_errors: u64,
    /// Requests that could not be written.
    pub write_errors: u64,
    /// Answers later than the timeout, and requests that had waited longer than it when the run
    /// ended.
    pub timeouts: u64,
    /// The part of `timeouts` that `refused` counts too. 0 in imported outputs, which do not give
    /// it.
    pub refused_timeouts: u64,
    /// The part of `timeouts` without an answer. 0 in imported outputs, which do not give it.
    pub unanswered_timeouts: u64,
    /// Values read that differ from the value written.
    pub wrong_values: u64,
    /// Number of times that something other than HTTP/1.1 arrived. If it arrives in place of an
    /// answer, the request also counts as a read error.
    pub not_http: u64,
    /// Number of connections that the server closed after an answer and the client reopened.
    pub reconnects: u64,
    /// Bytes received from the servers.
    pub bytes: u64,
}

/// Summary of a histogram. All values are milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// `intended`, `written` or `late`.
    pub from: String,
    /// Method of the requests. Empty for all methods together.
    pub method: String,
    /// Number of samples.
    pub count: u64,
    /// Mean of the samples.
    pub mean: f64,
    /// Standard deviation of the samples.
    pub stdev: f64,
    /// The least sample.
    pub min: f64,
    /// The greatest sample.
    pub max: f64,
    /// Percentiles from 0.5 to 1: the percentiles of wrk2's short distribution, and those in
    /// objectives and tables. These percentiles are exact, unlike the points of the spectrum.
    pub percentiles: Vec<Point>,
    /// wrk2's detailed spectrum.
    pub spectrum: Vec<Point>,
}

/// One line of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    /// The percentile's value in milliseconds.
    pub value: f64,
    /// Share of the samples that do not exceed the value, 0–1.
    pub quantile: f64,
    /// Number of samples that do not exceed the value.
    pub count: u64,
}

/// A server, as far as it could be observed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// The server's URL.
    pub url: String,
    /// Properties that the server reports (`/metrics`, `/v0/status` …), by name: version and
    /// settings.
    pub about: BTreeMap<String, String>,
    /// CPU seconds of the server's process during the run. `None` if the process is not on this
    /// machine.
    pub cpu_s: Option<f64>,
    /// Resident memory of the server's process at the end, in bytes.
    pub rss: Option<u64>,
    /// Growth of the server's counters during the run, and final values of its gauges, by
    /// `/metrics` name.
    pub metrics: BTreeMap<String, f64>,
}

/// A problem with a run's figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// The warning's code, for machines: `non-2xx`, `client-limited`, `backlog`, `few-samples`,
    /// `connection-limit` …
    pub code: String,
    /// The warning's text, for people.
    pub text: String,
}

/// A recording of a server made during a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// URL of the server that was recorded.
    pub url: String,
    /// `cpu`, `alloc`, `lock` or `wall`.
    pub event: String,
    /// File with the collapsed stacks (a line `a;b;c WEIGHT` each), relative to the run's
    /// directory.
    pub folded: String,
}

impl PlanRecord {
    /// Returns the number of requests per second to all targets together, or `None` in a closed
    /// loop or if unknown.
    pub fn total_rate(&self) -> Option<f64> {
        // A record without a number of copies counts as one copy.
        self.rate.map(|rate| rate * self.copies.max(1) as f64)
    }
}

impl Run {
    /// Returns the events that servers recorded during the run, such as `cpu, lock`. The servers'
    /// CPU time includes the cost of the recordings. Empty without recordings.
    pub(crate) fn profiled_events(&self) -> String {
        let events: BTreeSet<&str> =
            self.profiles.iter().map(|profile| profile.event.as_str()).collect();
        events.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Returns true if the number of answers is known. A truncated imported output does not contain
    /// it.
    pub fn is_counted(&self) -> bool {
        self.source != "import" || self.counts.answered > 0
    }

    /// Returns the share of failed requests: see [`Failures::share`]. `None` if unknown.
    pub fn error_share(&self) -> Option<f64> {
        let counts = &self.counts;
        let failures = Failures {
            answered: counts.answered as f64,
            refused: counts.refused as f64,
            lost: (counts.read_errors + counts.write_errors) as f64,
            timeouts: counts.timeouts as f64,
            refused_timeouts: counts.refused_timeouts as f64,
            unanswered_timeouts: counts.unanswered_timeouts as f64,
            connect_errors: counts.connect_errors as f64,
        };
        failures.share().filter(|_| self.is_counted())
    }

    /// Returns the histogram `from` of all methods together, or `None` if the record lacks it.
    pub fn latency(&self, from: &str) -> Option<&Latency> {
        self.latency.iter().find(|latency| latency.from == from && latency.method.is_empty())
    }
}

impl Latency {
    /// Returns the value in milliseconds that a share of `quantile` (0–1) of the samples does not
    /// exceed. The value is from `percentiles` if they contain `quantile`, otherwise from the
    /// spectrum's first point at or above `quantile`, which is never too low. Returns `None` if no
    /// point qualifies.
    pub fn at(&self, quantile: f64) -> Option<f64> {
        let exact = self.percentiles.iter().find(|p| (p.quantile - quantile).abs() < 1e-9);
        let point = exact.or_else(|| self.spectrum.iter().find(|p| p.quantile >= quantile));
        point.map(|point| point.value)
    }

    /// Returns the points of `percentiles` and `spectrum`, ascending and without duplicates.
    pub(crate) fn curve(&self) -> Vec<Point> {
        let mut points = [&self.percentiles[..], &self.spectrum].concat();
        points.sort_by(|a, b| a.quantile.total_cmp(&b.quantile));
        points.dedup_by(|a, b| (a.quantile - b.quantile).abs() < 1e-9);
        points
    }
}

/// A search, a cold–hot series or a sweep: the contents of `series.json`. The directories of the
/// runs are beside that file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Version of the file's format: [`FORMAT`].
    pub format: u32,
    /// `search` or `coldhot`.
    pub kind: String,
    /// Name and version of the tool.
    pub tool: String,
    /// The command line, word by word.
    pub argv: Vec<String>,
    /// Start time, RFC 3339 in UTC.
    pub started: String,
    /// The machine of the client.
    pub machine: Machine,
    /// The objective, such as `p99<10ms,errors<0.1%`. Empty without an objective.
    pub slo: String,
    /// Command that started the server. Empty if the server was already running.
    pub server: Vec<String>,
    /// True if Ctrl-C ended the series.
    pub interrupted: bool,
    /// All runs, in order.
    pub trials: Vec<Trial>,
    /// The findings. A sweep has one for each value.
    pub findings: Vec<Finding>,
}

/// One run of a series.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// The run's directory, relative to the directory of the series.
    pub dir: String,
    /// Role of the run: `ceiling`, `bracket`, `bisect`, `confirm`, `profile`; in coldhot
    /// `put-cold`, `put-hot`, `get-cold`, `get-hot`.
    pub role: String,
    /// The value of the swept flag. Empty without a sweep.
    pub value: String,
    /// Requests per second. `None` in a closed loop.
    pub rate: Option<f64>,
    /// `pass`, `fail` or `inconclusive`. Empty if the run was not judged.
    pub verdict: String,
    /// Reason for the verdict, in words.
    pub why: String,
}

/// The limit of a server, as a search found it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// The value of the swept flag. Empty without a sweep.
    pub value: String,
    /// The highest rate that passed.
    pub passes: Option<f64>,
    /// The lowest rate above `passes` that failed.
    pub fails: Option<f64>,
    /// Requests per second in a closed loop.
    pub ceiling: Option<f64>,
    /// Limiting resource: `died` (the server ended), `cpu`, `disk`, `lock`, `connections`,
    /// `client`, `unknown`.
    pub limit: String,
    /// Evidence for the limit, in words.
    pub why: String,
    /// Doubts about the finding: `not-confirmed`, `not-monotone`, `no-verdict`, `other-processes`.
    pub warnings: Vec<Warning>,
}

/// Counts of a period's answers and failures, from which the share of errors is computed. The
/// fields are those of [`Counts`], and columns of `timeline.csv`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failures {
    /// Answers, as in [`Counts::answered`].
    pub answered: f64,
    /// Answers neither 2xx nor 3xx, as in [`Counts::refused`].
    pub refused: f64,
    /// Requests whose connection ended before the answer: read and write errors.
    pub lost: f64,
    /// Late answers and requests, as in [`Counts::timeouts`].
    pub timeouts: f64,
    /// Late refusals, as in [`Counts::refused_timeouts`].
    pub refused_timeouts: f64,
    /// Late requests without an answer, as in [`Counts::unanswered_timeouts`].
    pub unanswered_timeouts: f64,
    /// Failed attempts to connect, as in [`Counts::connect_errors`].
    pub connect_errors: f64,
}

impl Failures {
    /// Returns the share of errors that `compare`, reports and the last line of a run show: the
    /// requests that failed, divided by the requests sent. A request failed, and counts once, if
    /// its answer was neither 2xx nor 3xx or came later than the timeout, if it was lost, or if it
    /// had waited longer than the timeout when the run ended.
    ///
    /// A due request that was never sent does not count as an error; throughput and backlog show
    /// it. Nor does an attempt to connect that failed: the request waited, and was sent by a later
    /// connection. Returns 1 if nothing was sent because no connection was made, and `None` if
    /// nothing was sent otherwise.
    pub fn share(self) -> Option<f64> {
        let sent = self.answered + self.lost + self.unanswered_timeouts;
        let failed = self.refused + self.timeouts - self.refused_timeouts + self.lost;
        match sent > 0.0 {
            // Imported outputs do not tell how many requests are counted twice.
            true => Some((failed / sent).min(1.0)),
            false => (self.connect_errors > 0.0).then_some(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_connects_do_not_count_as_failed_requests() {
        let none = Failures::default();
        let lost = Failures { lost: 1.0, connect_errors: 183.0, answered: 2499.0, ..none };
        assert_eq!(lost.share(), Some(1.0 / 2500.0));
        assert_eq!(Failures { refused: 25.0, answered: 100.0, ..none }.share(), Some(0.25));
        assert_eq!(Failures { connect_errors: 7.0, ..none }.share(), Some(1.0));
        assert_eq!(none.share(), None);
    }

    #[test]
    fn a_refusal_that_came_late_is_one_failed_request() {
        let both = Failures {
            answered: 200.0,
            refused: 50.0,
            timeouts: 60.0,
            refused_timeouts: 50.0,
            ..Failures::default()
        };
        assert_eq!(both.share(), Some(0.3));
    }

    #[test]
    fn a_request_that_still_waits_at_the_end_is_among_those_sent() {
        let stalled = Failures {
            answered: 90.0,
            timeouts: 10.0,
            unanswered_timeouts: 10.0,
            ..Failures::default()
        };
        assert_eq!(stalled.share(), Some(0.1));
        assert_eq!(Failures { answered: 0.0, ..stalled }.share(), Some(1.0));
    }
}
