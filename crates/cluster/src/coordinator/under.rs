//! Requests of nodes that go by another view than this one.
//!
//! ```text
//!  a request under view 8 ─▶ this node goes by ─┬─ one of the same placement ─▶ carried out
//!                                               ├─ a later one: Superseded, nothing was done
//!                                               └─ an earlier one: waits until it does not
//!  what is done by then ───▶ is the placement still in force? ─┬─ yes ─▶ the reply
//!                                                              └─ no ──▶ Superseded: may be done
//! ```
//!
//! The second look makes the order of the two right, whatever store and disk take: a reply that
//! counts under a view was given before this node went by another one.

use std::collections::VecDeque;

use super::Coordinator;
use crate::clock::Now;
use crate::event::{Demand, Effect, OpId};
use crate::message::{Reply, Request};
use crate::view::ViewId;

/// So many requests wait on one loop for a view that is decided and has not come here; more are
/// refused as overload. It takes a round of messages to come, and a busy loop has some hundreds of
/// requests under way at once.
const MOST_AHEAD: usize = 512;

/// A request under a later view, or one that waits until this node's disk is known.
#[derive(Debug)]
struct Ahead {
    op: OpId,
    demand: Demand,
    under: ViewId,
    request: Request,
}

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct ThoseAhead {
    waiting: VecDeque<Ahead>,
}

impl ThoseAhead {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nobody waits for the replies to some of them any more.
    pub(super) fn drop_late(&mut self, now: Now) {
        self.waiting.retain(|ahead| ahead.demand.until > now.mono);
    }
}

impl Coordinator {
    /// A request of a node that goes by a view of another placement.
    pub(super) fn of_another_view(
        &mut self,
        op: OpId,
        demand: Demand,
        under: ViewId,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        let own = self.view.epoch;
        let reply = if under.epoch < own {
            Reply::Superseded { epoch: own }
        } else if under.epoch == own {
            Reply::WrongEpoch
        } else if self.ahead.waiting.len() < MOST_AHEAD {
            self.ahead.waiting.push_back(Ahead { op, demand, under, request });
            return;
        } else {
            Reply::Busy
        };
        self.respond_to_op(op, reply, out);
    }

    /// Keeps a request back until other nodes know this node's disk: see `known_disk.rs`.
    pub(super) fn wait_until_known(
        &mut self,
        op: OpId,
        demand: Demand,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        if self.ahead.waiting.len() < MOST_AHEAD {
            let under = self.view.id();
            self.ahead.waiting.push_back(Ahead { op, demand, under, request });
        } else {
            self.respond_to_op(op, Reply::Busy, out);
        }
    }

    /// A later view is in force, or this node's disk is known: who has waited for that is served.
    /// What this node asks itself waits by the id of its slot, which a later view renews.
    pub(super) fn take_those_ahead(&mut self, now: Now, out: &mut Vec<Effect>) {
        for ahead in std::mem::take(&mut self.ahead.waiting) {
            if ahead.under.epoch > self.view.epoch {
                self.ahead.waiting.push_back(ahead);
                continue;
            }
            let Ahead { op, demand, under, request } = ahead;
            match op {
                OpId::Peer { connection, id, .. } => {
                    self.requested(now, connection, id, demand, (under, request), out);
                }
                OpId::Slot(id) if self.slots.find(id).is_some() => {
                    self.perform(now, op, demand, request, out);
                }
                OpId::Slot(_) => {}
            }
        }
    }

    /// What this node was asked is done. What it asked itself comes back once the event is handled,
    /// as if another node had replied; another node is told nothing that its view does not count.
    pub(super) fn done(&mut self, op: OpId, reply: Reply, out: &mut Vec<Effect>) {
        let is_of_before = match op {
            OpId::Peer { placement, .. } => placement != 0 && placement != self.view.id().placement,
            OpId::Slot(_) => false,
        };
        let epoch = self.view.epoch;
        let reply = if is_of_before { Reply::Superseded { epoch } } else { reply };
        self.respond_to_op(op, reply, out);
    }

    /// The same of what this node has coordinated, which it has counted by its own view.
    pub(super) fn respond_to_op(&mut self, op: OpId, reply: Reply, out: &mut Vec<Effect>) {
        match op {
            OpId::Slot(id) => self.done_here.push((id, reply)),
            OpId::Peer { connection, id, .. } => {
                out.push(Effect::Respond { connection, id, reply });
            }
        }
    }
}
