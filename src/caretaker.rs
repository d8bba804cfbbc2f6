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
use cluster::{NODE_TICK_MICROS, NodeEffect, NodeEvent, NodeId, Standing};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::event_loop::EventLoop;
use crate::hints;
use crate::node::Node;

/// Events on their way: a few a peer, and whoever finds it full waits.
pub(crate) const EVENTS: usize = 1024;

/// How long after hints could not be read that is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Never ends.
pub(crate) async fn run(event_loop: Rc<EventLoop>, mut events: mpsc::Receiver<NodeEvent>) {
    let node = &event_loop.node;
    let topology = &node.shared.topology;
    let known = (0..topology.nodes() as u16)
        .map(|peer| node.identity.known(&topology.member(NodeId(peer)).name))
        .collect();
    let incarnation = node.identity.incarnation();
    let shared = Arc::clone(&node.shared);
    let max_skew = node.config.max_clock_skew.as_micros() as u64;
    let mut machine = cluster::Node::new(shared, incarnation, known, max_skew);
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
            spawn_local(async move {
                let result = this.call(to, class, request).await;
                tell(&node, NodeEvent::Returned { call, result }).await;
            });
        }
        NodeEffect::Remember { peer, incarnation } => {
            off_the_loop(move || {
                let name = &node.shared.topology.member(peer).name;
                match node.identity.remember(name, incarnation) {
                    Ok(()) => node.facts.know(peer, incarnation),
                    Err(error) => {
                        tracing::warn!(%error, peer = name, "that it was met could not be kept");
                    }
                }
            });
        }
        NodeEffect::Stand(standing) => {
            match standing {
                Standing::New => {}
                Standing::Member => tracing::info!("holds everything that it is to hold"),
                Standing::Amnesiac => tracing::warn!(
                    "the others knew another disk of this node: what it held is streamed back; \
                     until then reads do not rely on what it lacks"
                ),
            }
            off_the_loop(move || {
                if let Err(error) = node.identity.set_standing(standing) {
                    tracing::warn!(%error, ?standing, "the node's standing could not be kept");
                }
            });
        }
    }
}

/// Hands an event in. At the end of the node there is nobody to take it.
pub(crate) async fn tell(node: &Node, event: NodeEvent) {
    let _ = node.caretaker.send(event).await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "bounded: one read of hints for each peer, and two kinds of small writes"
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
