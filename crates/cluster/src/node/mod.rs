//! What a node does once, for all its loops: it has hints delivered, it finds out whether its disk
//! is the one that the others know, and it has what was on a lost disk streamed back.
//!
//! ```text
//!   Met ─────────▶ ┌────────┐ ─▶ Remember, Stand (kept on disk)
//!   Tick ────────▶ │  Node  │ ─▶ ReadHints, DropHints (this node's store)
//!   Hints ───────▶ │        │ ─▶ Call ──▶ a coordinator ──▶ a node, which may be this one
//!   Returned ────▶ └────────┘                                │
//!        ▲                                                   │
//!        └───────────────────────────────────────────────────┘
//! ```

mod rebuild;
mod replay;

use std::sync::Arc;

use bytes::Bytes;

use crate::event::{CallId, Now, Shared, Trouble};
use crate::message::{Class, NodeId, Reply, Request};
use crate::record::Record;
use crate::standing::Standing;
use rebuild::Source;
use replay::Replay;

/// How often [`NodeEvent::Tick`] is due, in microseconds. Hints go out at most this long after the
/// retry that finds their node back.
pub const NODE_TICK_MICROS: u64 = 250_000;

/// What happens to a node.
#[derive(Debug, Clone)]
pub enum NodeEvent {
    /// A connection to a node was made, by either.
    Met {
        /// Who it is.
        peer: NodeId,
        /// Which disk it has.
        incarnation: u64,
        /// Which disk of this node it knew, if any.
        knows_us_as: Option<u64>,
    },
    /// Hints for a node, as the store has them, in the order of their keys; empty = there is
    /// none at or after where it was asked to begin.
    Hints {
        /// For whom.
        peer: NodeId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
    },
    /// A call was answered.
    Returned {
        /// Which.
        call: CallId,
        /// What came of it.
        result: Result<Reply, Trouble>,
    },
    /// Time has passed.
    Tick,
}

/// What a node wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEffect {
    /// Read hints for a node from the store; ends in [`NodeEvent::Hints`].
    ReadHints {
        /// For whom.
        peer: NodeId,
        /// The key after which to begin; `None` = with the first.
        after: Option<Bytes>,
        /// Bytes of keys and records after which to stop; one is always read.
        max_bytes: usize,
    },
    /// Hints were delivered: remove them, unless the store has a newer one of the same key by now.
    DropHints {
        /// To whom.
        peer: NodeId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
    },
    /// Ask a node, through the coordinator of some loop; ends in [`NodeEvent::Returned`].
    Call {
        /// The call's number, chosen here.
        call: CallId,
        /// Whom.
        node: NodeId,
        /// Why.
        class: Class,
        /// What.
        request: Request,
    },
    /// Keep durably which disk a node has.
    Remember {
        /// Who.
        peer: NodeId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Keep durably what this node's standing is; it counts already.
    Stand(Standing),
}

/// Who waits for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Replay(NodeId),
    Rebuild(NodeId),
}

/// What a process does besides its loops.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    incarnation: u64,
    /// Microseconds that a stamp may be ahead of the wall clock.
    max_skew_micros: u64,
    /// The others' incarnations, as far as they are known.
    known: Vec<Option<u64>>,
    /// Who said that it never met another disk of this node.
    vouched: Vec<bool>,
    replays: Vec<Replay>,
    sources: Vec<Source>,
    calls: Vec<(CallId, Caller)>,
    next_call: u64,
}

impl Node {
    /// `known` is what was kept of the others' incarnations, by node.
    pub fn new(
        shared: Arc<Shared>,
        incarnation: u64,
        known: Vec<Option<u64>>,
        max_skew_micros: u64,
    ) -> Self {
        let nodes = shared.topology.nodes();
        assert_eq!(known.len(), nodes, "one place for each node");
        Self {
            incarnation,
            max_skew_micros,
            known,
            vouched: vec![false; nodes],
            replays: (0..nodes).map(|_| Replay::default()).collect(),
            sources: (0..nodes).map(|_| Source::default()).collect(),
            calls: Vec::new(),
            next_call: 0,
            shared,
        }
    }

    /// Takes in one event; appends what is to be done to `out`.
    pub fn handle(&mut self, now: Now, event: NodeEvent, out: &mut Vec<NodeEffect>) {
        match event {
            NodeEvent::Met { peer, incarnation, knows_us_as } => {
                self.met(peer, incarnation, knows_us_as, out);
            }
            NodeEvent::Hints { peer, items } => self.read_hints(now, peer, items, out),
            NodeEvent::Returned { call, result } => {
                let Some(at) = self.calls.iter().position(|(id, _)| *id == call) else { return };
                match self.calls.swap_remove(at).1 {
                    Caller::Replay(peer) => self.replayed(now, peer, result, out),
                    Caller::Rebuild(peer) => self.streamed(now, peer, result, out),
                }
            }
            NodeEvent::Tick => {
                self.replay_due(now, out);
                self.rebuild_due(now, out);
            }
        }
    }

    /// How far rebuilding is: nodes that have streamed everything, of all others.
    pub fn rebuilt(&self) -> (usize, usize) {
        let done = self.sources.iter().filter(|source| source.is_done()).count();
        (done, self.sources.len() - 1)
    }

    fn met(
        &mut self,
        peer: NodeId,
        incarnation: u64,
        knows_us_as: Option<u64>,
        out: &mut Vec<NodeEffect>,
    ) {
        let known = &mut self.known[usize::from(peer.0)];
        if *known != Some(incarnation) {
            *known = Some(incarnation);
            out.push(NodeEffect::Remember { peer, incarnation });
        }
        let standing = self.shared.vouching.standing();
        match knows_us_as {
            // Whoever has streamed all it holds to this disk has met it. So this one has not, and
            // those who vouched for a new node did not know better.
            Some(other) if other != self.incarnation => {
                if standing != Standing::Amnesiac {
                    self.sources.iter_mut().for_each(|source| *source = Source::default());
                    self.stand(Standing::Amnesiac, out);
                }
            }
            _ if standing != Standing::New => {}
            // It has met this disk: in the same breath, or before a restart. That says nothing
            // about what it knew before.
            Some(_) => {}
            None => {
                self.vouched[usize::from(peer.0)] = true;
                let vouched = self.vouched.iter().filter(|vouched| **vouched).count();
                // All of them: whoever is missing may be the only one that met a former life.
                if vouched + 1 == self.sources.len() {
                    self.stand(Standing::Member, out);
                }
            }
        }
    }

    fn stand(&mut self, standing: Standing, out: &mut Vec<NodeEffect>) {
        self.shared.vouching.set(standing);
        out.push(NodeEffect::Stand(standing));
    }

    fn call(
        &mut self,
        caller: Caller,
        node: NodeId,
        class: Class,
        request: Request,
        out: &mut Vec<NodeEffect>,
    ) {
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.calls.push((call, caller));
        out.push(NodeEffect::Call { call, node, class, request });
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let own = self.shared.own;
        (0..self.shared.topology.nodes() as u16).map(NodeId).filter(move |node| *node != own)
    }
}
