//! A node's first writes wait until it has compared its wall clock with those of the nodes that it
//! can reach. The other nodes refuse versions of a clock that is ahead, and here such a version
//! hides every later write of its key until its time comes: see [`cluster::Clock::compared`].

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// The longest that writes wait. A node that runs answers within a few round trips, and one that
/// does not refuses the connection; what is in between can't acknowledge writes either.
const LONGEST: Duration = Duration::from_millis(500);

/// Whether the clocks have been compared.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    over: AtomicBool,
    ended: Notify,
}

impl Comparison {
    /// Waits until it is over.
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

    /// Ends it once `all` other nodes were asked for a sign of life, or it took too long. A link
    /// that rises compares clocks by itself.
    pub(crate) async fn end_after(&self, all: impl Future<Output = ()>) {
        if timeout(LONGEST, all).await.is_err() {
            tracing::info!(waited = ?LONGEST, "not all nodes answered; clock comparison postponed");
        }
        self.over.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }
}
