//! Rate-limited log lines about peers. A problem is logged once, not for each retry of each loop.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::NodeId;

/// Interval in which the same complaint is logged only once.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// The subject of a log line: a node of the cluster, or `None` for an unauthenticated connection.
type Subject = Option<NodeId>;

/// The complaints logged so far, with their times.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// Time of the last log line, by subject and reason. The number of nodes and reasons bounds the
    /// size of the map.
    last_logged: Mutex<HashMap<(Subject, &'static str), Instant>>,
}

impl Complaints {
    /// Calls `say` to log a complaint, unless it was logged within [`REPEAT_INTERVAL`] already.
    pub(super) fn log_unless_recent(
        &self,
        whom: impl Into<Subject>,
        what: &'static str,
        say: impl FnOnce(),
    ) {
        let now = Instant::now();
        let mut last_logged = self.last_logged.lock();
        let last = last_logged.entry((whom.into(), what)).or_insert(now);
        if *last == now || now - *last >= REPEAT_INTERVAL {
            *last = now;
            drop(last_logged);
            say();
        }
    }

    /// Returns the subjects of all logged complaints, in order.
    #[cfg(test)]
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let last_logged = self.last_logged.lock();
        let mut whom: Vec<Subject> = last_logged.keys().map(|(whom, _)| *whom).collect();
        whom.sort_unstable();
        whom
    }
}
