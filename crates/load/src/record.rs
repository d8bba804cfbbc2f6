//! What a run leaves on disk, as `run.json` says it. `docs/measuring.md` describes the directory.
//!
//! ```text
//!  DIR/run.json        this: what was asked, where, what came of it, what is wrong with it
//!  DIR/output.txt      the same for people, as wrk2 prints it
//!  DIR/script.lua      the script, if one was used
//!  DIR/intended.hdr    interval logs, a line a second and method: from the intended start,
//!  DIR/written.hdr       from writing the request, and how late requests were sent
//!  DIR/late.hdr
//!  DIR/timeline.csv    a row a second: rate, errors, latencies, backlog, and what servers tell
//!  DIR/profile/        HOST-PORT-EVENT.EXT
//! ```
//!
//! Readers take a file with fields that they do not know, and refuse another [`FORMAT`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Version of `run.json`; goes up when a field changes its meaning.
pub const FORMAT: u32 = 1;

/// One run: what `run.json` holds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Version of the file's format: [`FORMAT`].
    pub format: u32,
    /// Where the figures are from: `load`, or `import` for another tool's output.
    pub source: String,
    /// Name and version of the tool that made them, with its git revision if that is known.
    pub tool: String,
    /// The command line, word by word.
    pub argv: Vec<String>,
    /// When it began, RFC 3339 in UTC; empty if unknown.
    pub started: String,
    /// The machine of the client.
    pub machine: Machine,
    /// What was to be done.
    pub plan: Planned,
    /// Ended by ctrl-C: figures up to then.
    pub interrupted: bool,
    /// Wall time in seconds without the warm-up, the drain included.
    pub elapsed_s: f64,
    /// Answers a second within the plan's duration; none if an imported output does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    /// How many of what.
    pub counts: Counts,
    /// Percentiles. The one to look at is `intended` of all methods.
    pub latency: Vec<Latency>,
    /// Requests due but not yet sent, at even moments of the run, the last at the plan's end.
    pub backlog: Vec<u64>,
    /// CPU seconds of the client's threads in that time.
    pub client_cpu_s: f64,
    /// The servers, as far as they can be looked at.
    pub servers: Vec<Server>,
    /// What is wrong with the figures.
    pub warnings: Vec<Warning>,
    /// What an imported file did not say, in words.
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
    /// How many of it the client may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Release of the kernel.
    pub kernel: String,
}

/// What a run was to do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Planned {
    /// URLs, as given.
    pub targets: Vec<String>,
    /// How often rate, threads and connections were there: once for each target, or 1.
    pub copies: usize,
    /// Threads of the client.
    pub threads: usize,
    /// Connections over all threads, of each copy.
    pub connections: usize,
    /// Requests a second over all connections of a copy; none in a closed loop, or if unknown.
    pub rate: Option<f64>,
    /// Whether each connection sent when it had its answer.
    pub closed: bool,
    /// `even` or `poisson`.
    pub arrival: String,
    /// Seconds before figures were taken.
    pub warmup_s: f64,
    /// Seconds that figures were taken.
    pub duration_s: f64,
    /// What was sent: the script's name, or keys and mix in words.
    pub requests: String,
    /// The script's file in this directory; empty = none.
    pub script: String,
    /// The seed of all that is random.
    pub seed: u64,
}

/// How many of what.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Requests that were due; in a closed loop, that were sent.
    pub planned: u64,
    /// Answers, of any status.
    pub answered: u64,
    /// Those within the plan's duration.
    pub in_time: u64,
    /// Requests due but not answered when the run ended.
    pub unfinished: u64,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers that were neither 2xx nor 3xx.
    pub refused: u64,
    /// Connections that could not be made.
    pub connect_errors: u64,
    /// Requests whose connection ended, or brought no HTTP, before the answer was complete.
    pub read_errors: u64,
    /// Requests that could not be written.
    pub write_errors: u64,
    /// Answers later than the timeout.
    pub timeouts: u64,
    /// Values that were not the one written.
    pub wrong_values: u64,
    /// Times that something came that was no HTTP/1.1; those in the place of an answer are read
    /// errors too.
    pub not_http: u64,
    /// Times that the server closed a connection after an answer, and it was opened again.
    pub reconnects: u64,
    /// Bytes that were received.
    pub bytes: u64,
}

/// A histogram in figures. All values are milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// `intended`, `written` or `late`.
    pub from: String,
    /// Which requests: empty = all, else a method.
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
    /// wrk2's short distribution and what else objectives and tables are made of, 0.5 to 1: exact,
    /// which the points of the spectrum beside them are not.
    pub percentiles: Vec<Point>,
    /// wrk2's detailed spectrum.
    pub spectrum: Vec<Point>,
}

/// One line of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    /// The percentile's value in milliseconds.
    pub value: f64,
    /// Share of the samples that are no greater, 0–1.
    pub quantile: f64,
    /// How many that are.
    pub count: u64,
}

/// A server, as far as it could be looked at.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// The server's URL.
    pub url: String,
    /// What it says of itself (`/metrics`, `/v0/status` …), name to value: version and settings.
    pub about: BTreeMap<String, String>,
    /// CPU seconds that its process took during the run; none if it is not on this machine.
    pub cpu_s: Option<f64>,
    /// Its resident memory at the end in bytes.
    pub rss: Option<u64>,
    /// Its counters' growth during the run, and its gauges at the end, by `/metrics` name.
    pub metrics: BTreeMap<String, f64>,
}

/// Something that is wrong with a run's figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// One word for machines: `non-2xx`, `client-limited`, `backlog`, `few-samples`,
    /// `connection-limit` …
    pub code: String,
    /// The line for people.
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
    /// Collapsed stacks (`a;b;c WEIGHT` a line), relative to the run's directory.
    pub folded: String,
}

impl Planned {
    /// Requests a second to all targets together; none in a closed loop, or if unknown.
    pub fn whole_rate(&self) -> Option<f64> {
        // Those that do not say how many copies had one.
        self.rate.map(|rate| rate * self.copies.max(1) as f64)
    }
}

impl Run {
    /// What the servers recorded of themselves meanwhile, which is in their CPU time: `cpu, lock`;
    /// empty without recordings.
    pub(crate) fn recorded(&self) -> String {
        let events: BTreeSet<&str> =
            self.profiles.iter().map(|profile| profile.event.as_str()).collect();
        events.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Whether it is known how many requests were answered: an output that was cut short has none.
    pub fn is_counted(&self) -> bool {
        self.source != "import" || self.counts.answered > 0
    }

    /// The share of what was sent that failed: see [`error_share`]. `None` = nobody knows.
    pub fn error_share(&self) -> Option<f64> {
        let counts = &self.counts;
        let lost = counts.read_errors + counts.write_errors;
        let [refused, lost, late, unconnected, answered] =
            [counts.refused, lost, counts.timeouts, counts.connect_errors, counts.answered]
                .map(|count| count as f64);
        let share = error_share(refused + late, lost + unconnected, answered);
        share.filter(|_| self.is_counted())
    }

    /// The histogram `from` of all methods together.
    pub fn latency(&self, from: &str) -> Option<&Latency> {
        self.latency.iter().find(|latency| latency.from == from && latency.method.is_empty())
    }
}

impl Latency {
    /// The value in milliseconds that a share of `quantile` (0–1) of the samples does not exceed:
    /// one of `percentiles`, or else the spectrum's first point at or above it, which is no less.
    pub fn at(&self, quantile: f64) -> Option<f64> {
        let exact = self.percentiles.iter().find(|p| (p.quantile - quantile).abs() < 1e-9);
        let point = exact.or_else(|| self.spectrum.iter().find(|p| p.quantile >= quantile));
        point.map(|point| point.value)
    }

    /// All that is known of the curve, in order.
    pub(crate) fn curve(&self) -> Vec<Point> {
        let mut points = [&self.percentiles[..], &self.spectrum].concat();
        points.sort_by(|a, b| a.quantile.total_cmp(&b.quantile));
        points.dedup_by(|a, b| (a.quantile - b.quantile).abs() < 1e-9);
        points
    }
}

/// A search, a cold–hot series or a sweep: what `series.json` holds. Its runs are directories
/// beside it.
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
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// The machine of the client.
    pub machine: Machine,
    /// The objective in words: `p99<10ms,errors<0.1%`; empty if there is none.
    pub slo: String,
    /// What the server was started with; empty if it was there.
    pub server: Vec<String>,
    /// Ended by ctrl-C.
    pub interrupted: bool,
    /// All runs in the order in which they were made.
    pub trials: Vec<Trial>,
    /// What was found; of a sweep, for each value.
    pub findings: Vec<Finding>,
}

/// One run of a series.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// Its directory, relative to the series'.
    pub dir: String,
    /// What it was for: `ceiling`, `bracket`, `bisect`, `confirm`, `profile`; of coldhot
    /// `put-cold`, `put-hot`, `get-cold`, `get-hot`.
    pub role: String,
    /// The swept flag's value; empty without a sweep.
    pub value: String,
    /// Requests a second; none in a closed loop.
    pub rate: Option<f64>,
    /// `pass`, `fail` or `inconclusive`; empty where nothing was judged.
    pub verdict: String,
    /// Why, in words.
    pub why: String,
}

/// Where a server breaks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// The swept flag's value; empty without a sweep.
    pub value: String,
    /// The highest rate that passed.
    pub passes: Option<f64>,
    /// The lowest rate above it that failed.
    pub fails: Option<f64>,
    /// Requests a second in a closed loop.
    pub ceiling: Option<f64>,
    /// What limits: `died` (the server did), `cpu`, `disk`, `lock`, `connections`, `client`,
    /// `unknown`.
    pub limit: String,
    /// How that was seen, in words.
    pub why: String,
    /// What speaks against it: `not-confirmed`, `not-monotone`, `no-verdict`, `other-processes`.
    pub warnings: Vec<Warning>,
}

/// The share of errors, as `compare`, reports and the last line of a run have it: answers that were
/// neither 2xx nor 3xx or came later than the timeout (`bad`), and requests that brought no answer
/// or found no connection (`lost`), of all that were sent. What was due and never sent is no error:
/// throughput and backlog tell of that. `None` = nothing was sent.
pub fn error_share(bad: f64, lost: f64, answered: f64) -> Option<f64> {
    let sent = answered + lost;
    (sent > 0.0).then(|| ((bad + lost) / sent).min(1.0))
}
