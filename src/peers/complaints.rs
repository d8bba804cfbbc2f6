//! Log lines about peers that don't fit: one, not one for each retry of each loop.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cluster::NodeId;
use parking_lot::Mutex;

/// How long the same complaint is not logged again.
const SILENCE: Duration = Duration::from_secs(60);

/// Whom a log line is about: a node of the cluster, or a stranger that connected and proved
/// nothing.
type Whom = Option<NodeId>;

/// What was logged, and when.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// As many as there are nodes and reasons.
    said: Mutex<HashMap<(Whom, &'static str), Instant>>,
}

impl Complaints {
    /// Calls `say` to log it, unless it was just logged.
    pub(super) fn about(&self, whom: impl Into<Whom>, what: &'static str, say: impl FnOnce()) {
        let now = Instant::now();
        let mut said = self.said.lock();
        let last = said.entry((whom.into(), what)).or_insert(now);
        if *last == now || now - *last >= SILENCE {
            *last = now;
            drop(said);
            say();
        }
    }

    /// Whom something was logged about, in order.
    #[cfg(test)]
    pub(super) fn about_whom(&self) -> Vec<Whom> {
        let said = self.said.lock();
        let mut whom: Vec<Whom> = said.keys().map(|(whom, _)| *whom).collect();
        whom.sort_unstable();
        whom
    }
}
