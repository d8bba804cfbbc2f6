//! Runs [`cluster::Node`] on the first loop: hints go out, a lost disk is streamed back, and who
//! was met is kept.
//!
//! ```text
//!  all loops ── Met ──▶ ┌ channel ┐ ──▶ cluster::Node ──▶ effects ─┬─▶ calls, by this loop
//!  time ──────────────▶ └─────────┘ ◀── what came of it ◀──────────┼─▶ hints, read off the loop
//!                                                                  └─▶ identity, written off it
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::{
    Event, NODE_TICK_MICROS, NodeConfig, NodeEffect, NodeEvent, NodeId, OpId, Reply, Request,
    Standing, Trouble,
};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::node::Node;
use crate::node::hints;
use crate::node::records;
use crate::runtime::event_loop::EventLoop;

/// Events on their way: a few a peer, and whoever finds it full waits.
pub(crate) const EVENTS: usize = 1024;

/// How long after hints could not be read that is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// How long after a standing could not be kept that is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Never ends.
pub(crate) async fn run(event_loop: Rc<EventLoop>, mut events: mpsc::Receiver<NodeEvent>) {
    let node = &event_loop.node;
    let max_skew_micros = node.config.max_clock_skew.as_micros() as u64;
    let config = NodeConfig { max_skew_micros };
    let mut machine = cluster::Node::new(Arc::clone(&node.shared), config);
    let mut ticks = interval(Duration::from_micros(NODE_TICK_MICROS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut effects = Vec::new();
    loop {
        let event = tokio::select! {
            event = events.recv() => event.unwrap_or(NodeEvent::Tick),
            _ = ticks.tick() => NodeEvent::Tick,
        };
        machine.handle(event_loop.now(), event, &mut effects);
        for effect in effects.drain(..) {
            perform(&event_loop, effect);
        }
    }
}

fn perform(event_loop: &Rc<EventLoop>, effect: NodeEffect) {
    let node = Arc::clone(&event_loop.node);
    match effect {
        NodeEffect::ReadHints { peer, after, max_bytes } => {
            spawn_local(read_hints(node, peer, after, max_bytes));
        }
        NodeEffect::DropHints { peer, items } => hints::drop_delivered(event_loop, peer, &items),
        NodeEffect::Call { call, node: to, class, request } => {
            let this = Rc::clone(event_loop);
            let streams = matches!(request, Request::Page(_));
            spawn_local(async move {
                let result = this.call(to, class, request).await;
                if streams {
                    note_unstreamed(&node, to, &result);
                }
                tell(&node, NodeEvent::Returned { call, result }).await;
            });
        }
        NodeEffect::Remember { peer, claim } => {
            off_the_loop(move || {
                let name = node.shared.name_of(peer);
                match node.identity.remember(&name, &claim) {
                    Ok(()) => {
                        node.shared.logs.know(peer, claim.incarnation);
                        node.shared.logs.kept(peer, &claim);
                    }
                    Err(error) => {
                        tracing::warn!(%error, peer = name, "cannot persist a peer's state");
                    }
                }
            });
        }
        NodeEffect::Stand(standing) => {
            spawn_local(stand(node, standing));
        }
        NodeEffect::KeepMissed { node: whose } => {
            spawn_local(async move {
                let keeper = Arc::clone(&node);
                let kept = off_the_loop(move || keep(&keeper, whose)).await;
                let kept = matches!(kept, Ok(Ok(())));
                tell(&node, NodeEvent::MissedKept { node: whose, kept }).await;
            });
        }
    }
}

fn keep(node: &Node, whose: NodeId) -> Result<(), lsm::Error> {
    let name = node.shared.name_of(whose);
    let kept = node.identity.keep_missed(whose, &name, &node.shared.missed);
    kept.inspect_err(|error| {
        tracing::warn!(%error, node = name, "cannot persist what a node is marked to lack");
    })
}

/// Keeps what a node is marked to lack, for another node that waits for it.
pub(crate) fn keep_missed(event_loop: &Rc<EventLoop>, op: OpId, whose: NodeId) {
    let this = Rc::clone(event_loop);
    spawn_local(async move {
        let keeper = Arc::clone(&this.node);
        let result = match off_the_loop(move || keep(&keeper, whose)).await {
            Ok(kept) => kept.map(|()| None).map_err(|error| records::store_error(&error)),
            // The runtime ends.
            Err(_) => return,
        };
        this.happen(Event::Written { op, result });
    });
}

/// Persists a standing; only then it is acted on, and told.
async fn stand(node: Arc<Node>, standing: Standing) {
    let keeper = Arc::clone(&node);
    let (own, missed) = (node.shared.own, Arc::clone(&node.shared));
    let kept = off_the_loop(move || keeper.identity.set_standing(standing, own, &missed.missed));
    let kept = match kept.await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(%error, ?standing, "cannot persist the node's standing");
            sleep(KEEP_AGAIN).await;
            false
        }
        // The runtime ends.
        Err(_) => return,
    };
    if kept {
        match standing {
            Standing::New | Standing::Copied => {}
            Standing::Member => tracing::info!("rebuild complete: node is a full member"),
            Standing::Amnesiac => tracing::warn!(
                "the other nodes know more of this node than its data directory holds: the disk \
                 was replaced, an older copy was put back, or the end of the log was lost. What is \
                 missing is streamed from them; until then reads do not rely on what it lacks"
            ),
        }
    }
    tell(&node, NodeEvent::Stood { standing, kept }).await;
}

/// A peer that streams nothing keeps this node from vouching for what it lacks: that is told.
fn note_unstreamed(node: &Node, peer: NodeId, result: &Result<Reply, Trouble>) {
    let why = match result {
        Ok(Reply::Page(_)) => return,
        Ok(Reply::Busy) | Err(Trouble::Busy) => "it is busy",
        Ok(_) => "its store has failed; its log says more",
        Err(_) => "it did not answer in time",
    };
    node.facts.complain(peer, "unstreamed", || {
        let peer = node.shared.name_of(peer);
        tracing::warn!(peer, why, "a peer does not stream what this node lacks; it is asked again");
    });
}

/// Hands an event in. At the end of the node there is nobody to take it.
pub(crate) async fn tell(node: &Node, event: NodeEvent) {
    let _ = node.caretaker.send(event).await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "bounded: one read of hints for each peer, small writes for each peer and kind"
)]
fn off_the_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

async fn read_hints(node: Arc<Node>, peer: NodeId, after: Option<Bytes>, max_bytes: usize) {
    loop {
        let (reader, from) = (Arc::clone(&node), after.clone());
        let read = off_the_loop(move || hints::read(&reader, peer, from.as_deref(), max_bytes));
        match read.await {
            Ok(Ok(items)) => return tell(&node, NodeEvent::Hints { peer, items }).await,
            Ok(Err(error)) => tracing::warn!(%error, "hints can't be read; they stay"),
            // The runtime ends.
            Err(_) => return,
        }
        sleep(READ_AGAIN).await;
    }
}
