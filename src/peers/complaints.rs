//! Rate-limited log lines about peers: one line for each problem, not one for each retry
//! of each loop.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::NodeId;

/// Time for which the same complaint is not logged again.
const SILENCE: Duration = Duration::from_secs(60);

/// The subject of a log line: a node of the cluster, or `None` for an unauthenticated connection.
type Subject = Option<NodeId>;

/// The complaints logged so far, with their times.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// Time of the last log line, by subject and reason; bounded by the number of nodes and
    /// reasons.
    said: Mutex<HashMap<(Subject, &'static str), Instant>>,
}

impl Complaints {
    /// Calls `say` to log a complaint, unless the same complaint was logged within [`SILENCE`].
    pub(super) fn log_unless_recent(
        &self,
        whom: impl Into<Subject>,
        what: &'static str,
        say: impl FnOnce(),
    ) {
        let now = Instant::now();
        let mut said = self.said.lock();
        let last = said.entry((whom.into(), what)).or_insert(now);
        if *last == now || now - *last >= SILENCE {
            *last = now;
            drop(said);
            say();
        }
    }

    /// Returns the subjects of all complaints, in order.
    #[cfg(test)]
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let said = self.said.lock();
        let mut whom: Vec<Subject> = said.keys().map(|(whom, _)| *whom).collect();
        whom.sort_unstable();
        whom
    }
}
