//! Waits until a server has no background work, because flushes and compactions after one trial
//! must not affect the next trial.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Endpoint, Error, Metrics, ServerSnapshot};
use crate::ServerProfile;

/// Maximum wait. A compaction of a few gigabytes takes a minute.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

/// Pause between two polls.
const POLL_PAUSE: Duration = Duration::from_millis(200);

/// Number of consecutive polls without activity that count as idle. The end of a compaction may
/// start the next one.
const IDLE_POLLS: u32 = 3;

/// CPU share below which a process counts as idle. Answering the scrapes takes some CPU.
const IDLE_CPU: f64 = 0.1;

/// Time limit of a scrape.
const SCRAPE_LIMIT: Duration = Duration::from_secs(5);

/// Result of the wait.
#[derive(Debug, Clone, PartialEq)]
pub enum Idle {
    /// The server is idle.
    Yes {
        /// Time until the server was idle.
        waited: Duration,
    },
    /// The server is still busy.
    Busy {
        /// The activity: a metric and its value, or the process's CPU usage.
        with: String,
    },
    /// The server is on another machine and has no metrics, so the wait was only a short pause.
    Unknown,
}

/// Waits until all metrics in `known.idle` are zero on all servers, and the processes `pids` are
/// idle. Returns [`Error::Interrupted`] once `stop` is true.
pub fn wait_until_idle(
    endpoints: &[Endpoint],
    pids: &[u32],
    known: &ServerProfile,
    stop: &AtomicBool,
) -> Result<Idle, Error> {
    let begun = Instant::now();
    let mut quiet = 0;
    let mut snapshots: Vec<_> =
        pids.iter().filter_map(|pid| Some((*pid, ServerSnapshot::at(*pid)?))).collect();
    let has_metrics = !known.idle.is_empty() && !known.metrics_path.is_empty();
    let mut is_observed = !snapshots.is_empty();
    loop {
        std::thread::sleep(POLL_PAUSE);
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let mut busy = None;
        for endpoint in endpoints.iter().filter(|_| has_metrics) {
            // A server without metrics is observed only by its process.
            let metrics = Metrics::scrape(endpoint, known.metrics_path, SCRAPE_LIMIT).ok();
            is_observed |= metrics.is_some();
            busy = busy.or_else(|| busy_with(metrics.as_ref()?, known.idle));
        }
        busy = busy.or_else(|| busy_process(&mut snapshots));
        quiet = if busy.is_some() { 0 } else { quiet + 1 };
        if quiet >= IDLE_POLLS {
            let yes = Idle::Yes { waited: begun.elapsed() };
            return Ok(if is_observed { yes } else { Idle::Unknown });
        }
        if begun.elapsed() > IDLE_LIMIT {
            return Ok(Idle::Busy { with: busy.unwrap_or_default() });
        }
    }
}

/// Returns the first metric in `names` that is not zero, with its value, or `None`.
fn busy_with(metrics: &Metrics, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        let value = metrics.total(name)?;
        (value > 0.0).then(|| format!("{name} {value}"))
    })
}

/// Returns the CPU usage of a process that was busy since the last poll, or `None`.
fn busy_process(snapshots: &mut [(u32, ServerSnapshot)]) -> Option<String> {
    let mut found = None;
    for (pid, snapshot) in snapshots {
        let Some(now) = ServerSnapshot::at(*pid) else { continue };
        let usage = now.since(snapshot);
        let share = usage.cpu_s / usage.seconds;
        if share > IDLE_CPU {
            found = Some(format!("{:.0} % of a CPU", share * 100.0));
        }
        *snapshot = now;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Metrics, busy_with};

    #[test]
    fn the_first_nonzero_metric_is_named() {
        let metrics = Metrics::parse("debt 0\nqueue{n=\"1\"} 0\nqueue{n=\"2\"} 3\n");
        assert_eq!(busy_with(&metrics, &["debt"]), None);
        assert_eq!(busy_with(&metrics, &["debt", "queue"]), Some("queue 3".to_owned()));
        assert_eq!(busy_with(&metrics, &["of another server"]), None);
    }
}
