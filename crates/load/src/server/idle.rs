//! Waits until a server does nothing in the background: what the last trial left to flush and to
//! compact must not be part of the next one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Endpoint, Error, Look, Metrics};
use crate::Known;

/// How long to wait for it. A compaction of some gigabytes takes a minute.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// Quiet looks in a row that are believed: a compaction's end may begin the next.
const QUIET: u32 = 3;

/// A process that takes no more of one CPU than this does nothing: being asked takes some.
const IDLE_CPU: f64 = 0.1;

/// How long one scrape may take.
const SCRAPE_LIMIT: Duration = Duration::from_secs(5);

/// What came of the wait.
#[derive(Debug, Clone, PartialEq)]
pub enum Idle {
    /// It does nothing.
    Yes {
        /// After this long.
        waited: Duration,
    },
    /// It still does something.
    Busy {
        /// What: a metric and its value, or its CPU.
        with: String,
    },
    /// It is on another machine and tells nothing; a short pause was made.
    Unknown,
}

/// Waits until all of `known.idle` are zero on all servers, and their processes rest.
pub fn wait_until_idle(
    endpoints: &[Endpoint],
    pids: &[u32],
    known: &Known,
    stop: &AtomicBool,
) -> Result<Idle, Error> {
    let begun = Instant::now();
    let mut quiet = 0;
    let mut looks: Vec<_> = pids.iter().filter_map(|pid| Some((*pid, Look::at(*pid)?))).collect();
    let asked = !known.idle.is_empty() && !known.metrics_path.is_empty();
    let mut looked = !looks.is_empty();
    loop {
        std::thread::sleep(LOOK);
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let mut busy = None;
        for endpoint in endpoints.iter().filter(|_| asked) {
            // One that tells nothing is looked at from outside only.
            let metrics = Metrics::scrape(endpoint, known.metrics_path, SCRAPE_LIMIT).ok();
            looked |= metrics.is_some();
            busy = busy.or_else(|| busy_with(metrics.as_ref()?, known.idle));
        }
        busy = busy.or_else(|| working(&mut looks));
        quiet = if busy.is_some() { 0 } else { quiet + 1 };
        if quiet >= QUIET {
            let yes = Idle::Yes { waited: begun.elapsed() };
            return Ok(if looked { yes } else { Idle::Unknown });
        }
        if begun.elapsed() > IDLE_LIMIT {
            return Ok(Idle::Busy { with: busy.unwrap_or_default() });
        }
    }
}

/// The first of `names` that is not zero.
fn busy_with(metrics: &Metrics, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        let value = metrics.total(name)?;
        (value > 0.0).then(|| format!("{name} {value}"))
    })
}

/// The first process that took CPU since the last look.
fn working(looks: &mut [(u32, Look)]) -> Option<String> {
    let mut found = None;
    for (pid, look) in looks {
        let Some(now) = Look::at(*pid) else { continue };
        let usage = now.since(look);
        let share = usage.cpu_s / usage.seconds;
        if share > IDLE_CPU {
            found = Some(format!("{:.0} % of a CPU", share * 100.0));
        }
        *look = now;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Metrics, busy_with};

    #[test]
    fn what_is_not_zero_is_named() {
        let metrics = Metrics::parse("debt 0\nqueue{n=\"1\"} 0\nqueue{n=\"2\"} 3\n");
        assert_eq!(busy_with(&metrics, &["debt"]), None);
        assert_eq!(busy_with(&metrics, &["debt", "queue"]), Some("queue 3".to_owned()));
        assert_eq!(busy_with(&metrics, &["of another server"]), None);
    }
}
