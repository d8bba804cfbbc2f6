//! Counts and latencies of one thread in one second, or of a whole run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::request::Method;

/// Longest recorded latency in nanoseconds: an hour. A longer latency counts as an hour.
const MAX_LATENCY: u64 = 3_600_000_000_000;

/// Significant decimal digits of a histogram: 0.1 %.
const DIGITS: u8 = 3;

/// Maximum number of bytes kept of data that is not HTTP, enough to recognise the protocol.
const GARBAGE_LEN: usize = 60;

/// Number of possible statuses, which have three digits.
const STATUSES: usize = 1000;

/// Latencies of one method, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// Time from the planned start until the answer was complete. Requests that have no answer at
    /// the end are included, with their waiting time.
    pub intended: Histogram<u64>,
    /// Time from the write of the request until the answer was complete.
    pub written: Histogram<u64>,
    /// The client's own delay: from the moment when the request was due *and* its connection was
    /// free, to the write.
    pub late: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self { intended: histogram(), written: histogram(), late: histogram() }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // The bounds are the same, so no value can be out of range.
        self.intended += &other.intended;
        self.written += &other.written;
        self.late += &other.late;
    }

    fn clear(&mut self) {
        // A reset writes every counter of a histogram, used or not, so empty histograms are
        // skipped.
        for histogram in [&mut self.intended, &mut self.written, &mut self.late] {
            if !histogram.is_empty() {
                histogram.reset();
            }
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY, DIGITS).expect("constant bounds are valid")
}

/// Answers by status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses(Vec<u64>);

impl Default for Statuses {
    fn default() -> Self {
        Self(vec![0; STATUSES])
    }
}

impl Statuses {
    pub(crate) fn count(&mut self, status: u16) {
        self.0[usize::from(status) % STATUSES] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the number of answers with this status.
    pub fn of(&self, status: u16) -> u64 {
        self.0.get(usize::from(status)).copied().unwrap_or(0)
    }

    /// Returns the number of answers with a status from `first` to `last` (inclusive).
    pub fn between(&self, first: u16, last: u16) -> u64 {
        (first..=last).map(|status| self.of(status)).sum()
    }

    /// Returns the number of answers with a status of 2xx.
    pub fn success(&self) -> u64 {
        self.between(200, 299)
    }

    /// Returns the number of answers neither 2xx nor 3xx, which wrk2 prints as `Non-2xx or 3xx
    /// responses`.
    pub fn refusals(&self) -> u64 {
        (0..).zip(&self.0).filter(|(s, _)| Self::is_refusal(*s)).map(|(_, count)| count).sum()
    }

    /// Returns true if a status is neither 2xx nor 3xx.
    pub(crate) fn is_refusal(status: u16) -> bool {
        !(200..=399).contains(&status)
    }

    /// Returns the number of answers of any status.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the number of answers by status.
    pub fn by_status(&self) -> BTreeMap<u16, u64> {
        (0..).zip(&self.0).filter(|(_, count)| **count > 0).map(|(s, count)| (s, *count)).collect()
    }
}

/// Requests and connections that failed without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errors {
    /// Connections that could not be re-established.
    pub connect: u64,
    /// Requests whose connection ended, or delivered something other than HTTP, before the answer.
    pub read: u64,
    /// Requests that could not be written.
    pub write: u64,
    /// Answers later than the plan's timeout, and requests that had waited longer than it when the
    /// run ended. The histograms include these too.
    pub timeout: u64,
    /// The part of `timeout` with an answer that was neither 2xx nor 3xx.
    pub refused_timeout: u64,
    /// The part of `timeout` without an answer.
    pub unanswered_timeout: u64,
}

impl Errors {
    /// Returns the number of requests that were sent, wholly or partly, and will never have an
    /// answer.
    pub fn count_lost(&self) -> u64 {
        self.read + self.write
    }

    fn add(&mut self, other: &Self) {
        self.connect += other.connect;
        self.read += other.read;
        self.write += other.write;
        self.timeout += other.timeout;
        self.refused_timeout += other.refused_timeout;
        self.unanswered_timeout += other.unanswered_timeout;
    }
}

/// Counts of received data that are not HTTP/1.1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NonHttp {
    /// Occurrences in place of an answer. Each is also a read error.
    pub answers: u64,
    /// Occurrences without a request, such as a greeting.
    pub unsolicited: u64,
    /// Beginning of the first occurrence.
    pub first: Vec<u8>,
}

impl NonHttp {
    /// Returns the number of occurrences.
    pub fn all(&self) -> u64 {
        self.answers + self.unsolicited
    }

    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if self.first.is_empty() {
            self.first.extend_from_slice(&bytes[..bytes.len().min(GARBAGE_LEN)]);
        }
    }

    fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.unsolicited += other.unsolicited;
        self.keep(&other.first);
    }
}

/// Counts and latencies of some period.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Latencies by method; absent for methods without requests.
    latencies: [Option<Box<Latencies>>; Method::ALL.len()],
    /// Answers by status.
    pub statuses: Statuses,
    /// Requests and connections that failed, by kind.
    pub errors: Errors,
    /// Received data that is not HTTP/1.1.
    pub garbage: NonHttp,
    /// Number of times that the server closed a connection after an answer and the client reopened
    /// it.
    pub reconnects: u64,
    /// Requests sent, answered or not.
    pub sent: u64,
    /// Answers within the plan's duration.
    pub in_time: u64,
    /// Requests due but not answered when the run ended.
    pub unfinished: u64,
    /// Values read that differ from the value written.
    pub wrong_values: u64,
    /// Bytes received from the servers.
    pub bytes: u64,
}

impl Tally {
    /// Returns the latencies of one method, if the method was used.
    pub fn latencies(&self, method: Method) -> Option<&Latencies> {
        self.latencies[method as usize].as_deref()
    }

    pub(crate) fn latencies_mut(&mut self, method: Method) -> &mut Latencies {
        self.latencies[method as usize].get_or_insert_with(|| Box::new(Latencies::new()))
    }

    /// Returns the latencies of all methods together.
    pub fn all_latencies(&self) -> Latencies {
        let mut all = Latencies::new();
        self.latencies.iter().flatten().for_each(|latencies| all.add(latencies));
        all
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for method in Method::ALL {
            if let Some(latencies) = other.latencies(method) {
                self.latencies_mut(method).add(latencies);
            }
        }
        self.statuses.add(&other.statuses);
        self.errors.add(&other.errors);
        self.garbage.add(&other.garbage);
        self.reconnects += other.reconnects;
        self.sent += other.sent;
        self.in_time += other.in_time;
        self.unfinished += other.unfinished;
        self.wrong_values += other.wrong_values;
        self.bytes += other.bytes;
    }

    /// Returns true if nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        let counts = [self.sent, self.unfinished, self.statuses.all(), self.garbage.all()];
        counts.iter().all(|&count| count == 0) && self.errors == Errors::default()
    }

    /// Resets all counts, and keeps the memory of the histograms.
    pub(crate) fn clear(&mut self) {
        let Self { latencies, statuses, errors, garbage, reconnects, .. } = self;
        let Self { sent, in_time, unfinished, wrong_values, bytes, .. } = self;
        latencies.iter_mut().flatten().for_each(|latencies| latencies.clear());
        statuses.0.fill(0);
        *errors = Errors::default();
        (garbage.answers, garbage.unsolicited) = (0, 0);
        garbage.first.clear();
        for count in [reconnects, sent, in_time, unfinished, wrong_values, bytes] {
            *count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_tally_is_empty() {
        let mut tally = Tally::default();
        tally.latencies_mut(Method::Put).intended.saturating_record(5);
        tally.statuses.count(201);
        tally.errors.read = 3;
        (tally.garbage.answers, tally.reconnects) = (2, 4);
        tally.garbage.keep(b"SSH");
        let mut sum = Tally::default();
        sum.add(&tally);
        tally.clear();
        sum.add(&tally);
        assert_eq!(
            (sum.garbage.all(), &sum.garbage.first[..], sum.reconnects),
            (2, &b"SSH"[..], 4)
        );
        assert!(tally.is_empty() && !sum.is_empty());
        assert_eq!(sum.all_latencies().intended.len(), 1);
        assert_eq!(
            (sum.statuses.success(), sum.statuses.all(), sum.errors.count_lost()),
            (1, 1, 3)
        );
        assert!(sum.latencies(Method::Get).is_none());
    }

    #[test]
    fn statuses_are_counted_by_class() {
        let mut statuses = Statuses::default();
        for status in [200, 299, 301, 404, 404, 503, 599] {
            statuses.count(status);
        }
        assert_eq!((statuses.success(), statuses.refusals(), statuses.all()), (2, 4, 7));
        assert_eq!((statuses.of(404), statuses.of(418)), (2, 0));
        assert_eq!(statuses.by_status().into_iter().next_back(), Some((599, 1)));
    }
}
