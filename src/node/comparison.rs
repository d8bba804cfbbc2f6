//! A node's first writes wait until it has compared its wall clock with those of the nodes that it
//! can reach. What a clock that is ahead stamps nobody else takes, and here it hides every later
//! write of its key until its time comes: see [`crate::peers::Facts::is_ahead_of_most`].

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::{Class, Request};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::runtime::event_loop::EventLoop;

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
        let ended = self.ended.notified();
        if !self.over.load(Ordering::Acquire) {
            ended.await;
        }
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }
}

/// Asks every other node for a sign of life, once. A line that rises compares clocks by itself.
pub(crate) async fn run(event_loop: &Rc<EventLoop>) {
    let node = &event_loop.node;
    let all = node.shared.view().topology.ids();
    let asked: Vec<_> = all
        .filter(|peer| *peer != node.shared.own)
        .map(|peer| {
            let this = Rc::clone(event_loop);
            spawn_local(async move { this.call(peer, Class::Client, Request::Ping).await })
        })
        .collect();
    let all = async {
        for answer in asked {
            // Whatever it is, it is compared with, or it can't be.
            let _ = answer.await;
        }
    };
    if timeout(LONGEST, all).await.is_err() {
        tracing::info!(waited = ?LONGEST, "not all nodes answered; clock comparison postponed");
    }
    node.comparison.end();
}
