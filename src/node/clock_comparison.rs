//! Clock comparison at startup. A node's first writes wait until the node has compared its wall
//! clock with the clocks of all reachable nodes.
//!
//! Other nodes refuse versions of a clock that is ahead. On this node such a version would hide
//! every later write of its key until the version's time: see [`protocol::Clock::note_comparison`].

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// Limit on the wait of writes. A running node answers within a few round trips, and a stopped node
/// refuses the connection. A node that does neither can't acknowledge writes either.
const COMPARISON_TIMEOUT: Duration = Duration::from_millis(500);

/// State of the clock comparison.
#[derive(Debug, Default)]
pub(crate) struct ClockComparison {
    over: AtomicBool,
    ended: Notify,
}

impl ClockComparison {
    /// Waits until the comparison has ended.
    pub(crate) async fn wait(&self) {
        if self.is_over() {
            return;
        }
        let ended = self.ended.notified();
        if !self.is_over() {
            ended.await;
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends the comparison once `all` (the pings to the other nodes) has completed, or after
    /// `COMPARISON_TIMEOUT`. Each link that connects later compares clocks itself.
    pub(crate) async fn end_after(&self, all: impl Future<Output = ()>) {
        if timeout(COMPARISON_TIMEOUT, all).await.is_err() {
            tracing::info!(
                waited = ?COMPARISON_TIMEOUT,
                "not all nodes answered; clock comparison postponed"
            );
        }
        self.over.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }
}
