//! Drives the node's task ([`server::Task`]) on the first loop.
//!
//! ```text
//!  all loops ── seen ─▶ ┌ channel ┐ ──▶ server::Task ──▶ driver ─┬─▶ calls, by this loop
//!  time ──────────────▶ └─────────┘ ◀── results ◀──────────────┼─▶ hints, read by another thread
//!                                                              └─▶ identity, written by another
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lsm::{Batch, PurgeRule};
use protocol::{
    BackgroundConfig, BackgroundEvent, CallId, Class, Clock, FailureKind, NODE_TICK_MICROS, NodeId,
    Reply, Request,
};
use server::identity::OwnRecords;
use server::{HintQuery, Task, TaskDriver, TaskEvent, hints};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::node::Node;
use crate::node::coordinate::Process;
use crate::node::requests::Requests;

/// Capacity of the channel, in events: a few for each peer. If the channel is full, senders wait.
pub(crate) const EVENTS: usize = 1024;

/// Runs the node's task. Never ends.
pub(crate) async fn run(requests: Rc<Requests>, mut events: mpsc::Receiver<TaskEvent>) {
    let node = &requests.node;
    let config = BackgroundConfig {
        deadline_micros: node.config.deadline.as_micros() as u64,
        syncs_always: node.config.sync == lsm::SyncMode::Always,
        max_skew_micros: node.config.max_clock_skew.as_micros() as u64,
        rounds: node.config.rounds,
        stream_rate: node.config.stream_rate,
        remembered: server::decode_entry,
    };
    let mut task = Task::new(Arc::clone(&node.shared), Arc::clone(&node.identity), config);
    let mut ticks = interval(Duration::from_micros(NODE_TICK_MICROS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            event = events.recv() => event.unwrap_or(BackgroundEvent::Tick.into()),
            _ = ticks.tick() => BackgroundEvent::Tick.into(),
        };
        task.handle(&mut Process(&requests), event);
    }
}

impl TaskDriver for Process<'_> {
    fn call(&mut self, call: CallId, to: NodeId, class: Class, request: Request) {
        let this = Rc::clone(self.0);
        let streams = matches!(request, Request::Page(_));
        spawn_local(async move {
            let result = this.call(to, class, request).await;
            if streams {
                log_failed_stream(&this.node, to, &result);
            }
            dispatch(&this.node, BackgroundEvent::CallReturned { call, result }.into()).await;
        });
    }

    fn read_hints(&mut self, wanted: HintQuery) {
        dispatch_result_of(&self.0.node, move |node| {
            let HintQuery { peer, after, max_bytes, .. } = &wanted;
            let (engine, shared) = (node.db.engine(), &node.shared);
            let read = hints::read(engine, shared, *peer, after.as_deref(), *max_bytes);
            TaskEvent::HintsRead(wanted, read)
        });
    }

    fn keep(&mut self, batch: Batch, keeps: OwnRecords) {
        dispatch_result_of(&self.0.node, move |node| TaskEvent::Kept(keeps, node.db.commit(batch)));
    }

    fn report_outdated(&mut self, proven: u64) {
        let proven_ms = Clock::micros(proven) / 1000;
        tracing::error!(proven_ms, "this data directory is an older copy: the node stops");
        self.0.node.outdated.note();
    }

    fn purge_rule(&self) -> &PurgeRule {
        self.0.node.db.engine().purge_rule()
    }

    fn compact(&mut self) -> u64 {
        self.0.node.db.request_compaction_anew()
    }

    fn compaction_succeeded(&self, number: u64) -> Option<bool> {
        self.0.node.db.compaction_succeeded(number)
    }

    fn after(&mut self, micros: u64, event: TaskEvent) {
        let node = Arc::clone(&self.0.node);
        spawn_local(async move {
            sleep(Duration::from_micros(micros)).await;
            dispatch(&node, event).await;
        });
    }
}

/// Logs a peer whose repair stream fails. Without the stream this node can't become a member again.
fn log_failed_stream(node: &Node, peer: NodeId, result: &Result<Reply, FailureKind>) {
    let why = match result {
        Ok(Reply::Page(_)) => return,
        Ok(Reply::Busy) | Err(FailureKind::Busy) => "it is overloaded",
        Ok(_) => "its store has failed; see its log",
        Err(_) => "it did not answer in time",
    };
    node.facts.log_complaint(peer, "unstreamed", || {
        let peer = node.shared.name_of(peer);
        tracing::warn!(peer, why, "repair stream failed, will retry");
    });
}

/// Sends an event to the task. Does nothing if the task has ended, together with the node.
pub(crate) async fn dispatch(node: &Node, event: TaskEvent) {
    let _ = node.task.send(event).await;
}

fn dispatch_result_of(node: &Arc<Node>, work: impl FnOnce(&Node) -> TaskEvent + Send + 'static) {
    let node = Arc::clone(node);
    spawn_local(async move {
        let worker = Arc::clone(&node);
        // The result is an error only when the runtime ends.
        if let Ok(event) = off_the_loop(move || work(&worker)).await {
            dispatch(&node, event).await;
        }
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "bounded: one read of hints for each peer, small writes for each peer and kind"
)]
pub(crate) fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}
