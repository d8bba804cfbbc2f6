//! Transfer of counts from the threads to the collector, once a second. A thread does not wait for
//! the collector, and does not create or clear histograms.
//!
//! ```text
//!  worker ── full tally ──▶ collector: adds the tally to those of the run and of the second,
//!     ▲                        │       and clears it
//!     └────── empty tally ◀────┘      a worker has SPARES empty tallies besides the one it fills
//! ```

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender};

use crate::control::Interval;
use crate::tally::Tally;

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Minimum length in seconds of the last interval. A shorter interval without counts is dropped.
const LEAST_S: f64 = 0.01;

/// Empty tallies of each thread: one to fill next, and one in reserve for a late collector. Without
/// an empty tally, the thread continues to fill its current tally.
pub(crate) const SPARES: usize = 2;

/// Counts of one thread.
pub(crate) struct WorkerReport {
    pub(crate) worker: usize,
    /// The last second that the report covers, counted from the end of the warm-up.
    second: u64,
    /// Time of the report in nanoseconds since the end of the warm-up.
    at: u64,
    backlog: u64,
    /// True in the thread's last report.
    ended: bool,
    pub(crate) tally: Box<Tally>,
}

/// A thread's end of the channel to the collector.
pub(crate) struct Publisher {
    worker: usize,
    warmup: u64,
    next: u64,
    full: SyncSender<WorkerReport>,
    empty: Receiver<Box<Tally>>,
}

impl Publisher {
    pub(crate) fn new(
        worker: usize,
        warmup: u64,
        full: SyncSender<WorkerReport>,
        empty: Receiver<Box<Tally>>,
    ) -> Self {
        Self { worker, warmup, next: warmup.saturating_add(SECOND), full, empty }
    }

    /// Returns the time of the next publication, in nanoseconds since the start of the run.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Sends the counts up to `now` to the collector, if the thread has an empty tally to fill
    /// next.
    pub(crate) fn publish(&mut self, now: u64, backlog: u64, tally: &mut Box<Tally>) {
        let at = now - self.warmup;
        let second = at / SECOND;
        self.next = self.warmup + (second + 1) * SECOND;
        let Ok(empty) = self.empty.try_recv() else { return };
        let tally = std::mem::replace(tally, empty);
        let (worker, second) = (self.worker, second - 1);
        // The channel has space for all tallies, so the send fails only after the collector has
        // ended.
        let _ =
            self.full.try_send(WorkerReport { worker, second, at, backlog, ended: false, tally });
    }

    /// Sends the last counts to the collector.
    pub(crate) fn end(self, now: u64, backlog: u64, tally: Box<Tally>) {
        let at = now.saturating_sub(self.warmup);
        let (worker, second) = (self.worker, at / SECOND);
        let _ = self.full.send(WorkerReport { worker, second, at, backlog, ended: true, tally });
    }
}

/// Merges the threads' reports into seconds of the whole run.
pub(crate) struct ReportMerger {
    pending: BTreeMap<u64, Interval>,
    /// The last second reported by each thread.
    reported: Vec<Option<u64>>,
    backlog: Vec<u64>,
}

impl ReportMerger {
    pub(crate) fn new(workers: usize) -> Self {
        Self { pending: BTreeMap::new(), reported: vec![None; workers], backlog: vec![0; workers] }
    }

    /// Adds a report. Calls `publish` for each second that the report completes.
    pub(crate) fn add(&mut self, report: &WorkerReport, mut publish: impl FnMut(&Interval)) {
        let WorkerReport { worker, second, at, backlog, ended, ref tally } = *report;
        let interval = self.pending.entry(second).or_insert_with(|| Interval {
            start_s: second,
            length_s: 0.0,
            backlog: 0,
            tally: Tally::default(),
        });
        interval.tally.add(tally);
        let length = (at.saturating_sub(second * SECOND) as f64 / SECOND as f64).min(1.0);
        interval.length_s = interval.length_s.max(length);
        self.backlog[worker] = backlog;
        self.reported[worker] = Some(if ended { u64::MAX } else { second });
        let Some(complete) = self.reported.iter().copied().min().flatten() else { return };
        while let Some(entry) = self.pending.first_entry()
            && *entry.key() <= complete
        {
            let mut interval = entry.remove();
            interval.backlog = self.backlog.iter().sum();
            if interval.length_s >= LEAST_S || !interval.tally.is_empty() {
                publish(&interval);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(worker: usize, second: u64, ended: bool, sent: u64) -> WorkerReport {
        let mut tally = Box::<Tally>::default();
        tally.sent = sent;
        let at = second * SECOND + if ended { SECOND / 4 } else { SECOND + 5 };
        WorkerReport { worker, second, at, backlog: sent, ended, tally }
    }

    #[test]
    fn a_second_is_published_once_all_threads_reported_it() {
        let mut seconds = ReportMerger::new(2);
        let published = std::cell::RefCell::new(Vec::new());
        let mut add = |report| {
            seconds.add(&report, |interval| {
                let Interval { start_s, length_s, backlog, tally } = interval;
                published.borrow_mut().push((*start_s, *length_s, *backlog, tally.sent));
            });
            published.take()
        };
        assert_eq!(add(report(0, 0, false, 1)), []);
        assert_eq!(add(report(0, 1, false, 10)), []);
        assert_eq!(add(report(1, 0, false, 2)), [(0, 1.0, 12, 3)]);
        // The second thread has missed a second. The counts of this second are in its next report.
        assert_eq!(add(report(1, 2, false, 20)), [(1, 1.0, 30, 10)]);
        assert_eq!(add(report(0, 2, true, 5)), [(2, 1.0, 25, 25)]);
        assert_eq!(add(report(1, 3, true, 7)), [(3, 0.25, 12, 7)]);
    }

    #[test]
    fn an_empty_last_interval_is_not_published() {
        for (sent, published) in [(0, 1), (1, 2)] {
            let mut seconds = ReportMerger::new(1);
            let mut times = 0;
            seconds.add(&report(0, 0, false, 3), |_| times += 1);
            let mut last = report(0, 1, true, sent);
            last.at = SECOND;
            seconds.add(&last, |_| times += 1);
            assert_eq!(times, published, "{sent} sent");
        }
    }

    #[test]
    fn a_thread_without_a_spare_tally_keeps_its_current_one() {
        let (full, reports) = std::sync::mpsc::sync_channel(4);
        let (empty_sender, empty) = std::sync::mpsc::sync_channel(SPARES);
        let mut publisher = Publisher::new(0, 0, full, empty);
        let mut tally = Box::<Tally>::default();
        tally.sent = 1;
        publisher.publish(SECOND + 1, 0, &mut tally);
        assert_eq!((tally.sent, publisher.next()), (1, 2 * SECOND));
        empty_sender.try_send(Box::default()).unwrap();
        tally.sent += 1;
        publisher.publish(2 * SECOND + 1, 0, &mut tally);
        assert_eq!(tally.sent, 0);
        let report = reports.try_recv().unwrap();
        assert_eq!((report.second, report.tally.sent), (1, 2));
    }
}
