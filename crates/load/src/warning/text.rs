//! Texts of the warnings.

use std::fmt;

use super::{RunWarning, required_samples};
use crate::outcome::UnreachableAddress;

impl fmt::Display for RunWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSuccess { share, status } => write!(
                f,
                "{:.2} % of the answers were not 2xx, most of them {status}: the latencies are \
                 theirs too",
                share * 100.0
            ),
            Self::Lost { count, share } => write_lost(f, *count, *share),
            Self::NotHttp { count, first } => not_http(f, *count, first),
            Self::Timeouts { count, share } => timeouts(f, *count, *share),
            Self::Reconnects { count, answers, closed_loop } => {
                reconnects(f, *count, *answers, *closed_loop)
            }
            Self::WrongValues { count } => wrong_values(f, *count),
            Self::ClientCpu { share } => write!(
                f,
                "CLIENT-LIMITED: a client thread used {:.0} % of a CPU: part of these latencies is \
                 its own; use more threads, cores or machines",
                share * 100.0
            ),
            Self::ClientCpus { used, cpus } => write!(
                f,
                "CLIENT-LIMITED: the client's threads used {used:.2} of the {} that they may use: \
                 part of these latencies is its own; give it more cores or machines",
                format_count(*cpus as u64, "CPU"),
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
                "{} had no answer when the run ended; {} as having taken at least that long",
                format_count(*count, "request"),
                of(*count, "it counts", "they count"),
            ),
            Self::FewSamples { quantile, upto, samples } => {
                few_samples(f, *quantile, *upto, *samples)
            }
            Self::UnreachableAddress(UnreachableAddress { target, address, cause }) => write!(
                f,
                "{address}, an address of {target}, took no connection ({cause}): the others have \
                 all of the load"
            ),
        }
    }
}

fn write_lost(f: &mut fmt::Formatter<'_>, count: u64, share: f64) -> fmt::Result {
    write!(
        f,
        "{} ({:.2} %) {} lost with {}; {} in no latency",
        format_count(count, "request"),
        share * 100.0,
        of(count, "was", "were"),
        of(count, "its connection", "their connections"),
        of(count, "it is", "they are"),
    )
}

fn not_http(f: &mut fmt::Formatter<'_>, count: u64, first: &str) -> fmt::Result {
    write!(
        f,
        "{} {} not HTTP/1.1 (first bytes: {first:?}): the latencies are without {}",
        format_count(count, "answer"),
        of(count, "was", "were"),
        of(count, "it", "them"),
    )
}

fn timeouts(f: &mut fmt::Formatter<'_>, count: u64, share: f64) -> fmt::Result {
    write!(
        f,
        "{} ({:.2} %) took longer than the timeout (-T); the latencies have {} time in full",
        format_count(count, "request"),
        share * 100.0,
        of(count, "its", "their"),
    )
}

fn reconnects(
    f: &mut fmt::Formatter<'_>,
    count: u64,
    answers: u64,
    closed_loop: bool,
) -> fmt::Result {
    write!(
        f,
        "reconnects: the server closed the connection after {count} of {}; the time to \
         connect again is in the latencies{}",
        format_count(answers, "answer"),
        if closed_loop { "" } else { " as far as a request was due in it" },
    )
}

fn wrong_values(f: &mut fmt::Formatter<'_>, count: u64) -> fmt::Result {
    write!(
        f,
        "{} read {} not {} written with this seed and length",
        format_count(count, "value"),
        of(count, "was", "were"),
        of(count, "the one", "those"),
    )
}

fn few_samples(f: &mut fmt::Formatter<'_>, quantile: f64, upto: f64, samples: u64) -> fmt::Result {
    let samples = format_count(samples, "sample");
    write!(f, "{samples} are too few for p{}", percent(quantile))?;
    if upto == quantile {
        return write!(f, ": {:.0} are needed", required_samples(quantile));
    }
    let (least, most) = (required_samples(quantile), required_samples(upto));
    write!(f, " to p{}: {least:.0} to {most:.0} are needed", percent(upto))
}

/// Converts to percent without rounding errors: 99.9, not 99.90000000000001.
fn percent(quantile: f64) -> f64 {
    (quantile * 1e7).round() / 1e5
}

fn of<'a>(count: u64, one: &'a str, several: &'a str) -> &'a str {
    if count == 1 { one } else { several }
}

/// Formats a count with its noun: `1 request`, `2 requests`.
fn format_count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", of(count, "", "s"))
}
