//! Requests that wait: for a later view than this node's, or until other nodes know this node's
//! disk (`membership/known_disk.rs`), because until then the node must not acknowledge them.
//!
//! ```text
//!  1 A request under view 8 arrives. This node's view is
//!      ├─ of the same placement ─────────────▶ the request is carried out
//!      ├─ of a later epoch ──────────────────▶ Superseded; nothing was done
//!      ├─ of epoch 8 and another placement ──▶ TopologyMismatch; nothing was done
//!      └─ of an earlier epoch ───────────────▶ the request waits for view 8
//!  2 The request is carried out (`Cx::reply_as_replica`). This node's view is
//!      ├─ of the same placement ─▶ the reply
//!      └─ of another placement ──▶ Superseded; the request may have been carried out
//! ```
//!
//! The second check has the effect that each reply that counts under a view is sent before the node
//! changes to another placement, however slow the store is.

use std::collections::VecDeque;

use crate::clock::Now;
use crate::dispatch::core::Cx;
use crate::event::{Demand, OpId};
use crate::message::{Reply, Request};
use crate::placement::view::ViewId;

/// The largest number of requests that wait on one loop; more are refused as overload. A decided
/// view takes one round of messages to arrive, and a busy loop has some hundreds of unfinished
/// requests.
const MAX_WAITING: usize = 512;

/// A request that waits for a later view, or until other nodes know this node's disk.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) op: OpId,
    pub(crate) demand: Demand,
    pub(crate) under: ViewId,
    pub(crate) request: Request,
}

/// The requests that wait on one loop.
#[derive(Debug, Default)]
pub(crate) struct WaitingRequests {
    waiting: VecDeque<WaitingRequest>,
}

impl WaitingRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Drops requests whose deadline is over.
    pub(crate) fn drop_late(&mut self, now: Now) {
        self.waiting.retain(|ahead| ahead.demand.until > now.mono);
    }
}

impl WaitingRequests {
    /// Handles a request under a view of another placement: a request under a later view waits for
    /// that view, and any other request is refused.
    pub(crate) fn of_another_view(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        demand: Demand,
        under: ViewId,
        request: Request,
    ) {
        let own = cx.core.view.epoch;
        let reply = if under.epoch < own {
            Reply::Superseded { epoch: own }
        } else if under.epoch == own {
            Reply::TopologyMismatch
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(WaitingRequest { op, demand, under, request });
            return;
        } else {
            Reply::Busy
        };
        cx.reply_unchecked(op, reply);
    }

    /// Delays a request until other nodes know this node's disk.
    pub(crate) fn wait_until_known(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        demand: Demand,
        request: Request,
    ) {
        if self.waiting.len() < MAX_WAITING {
            let under = cx.core.view.id();
            self.waiting.push_back(WaitingRequest { op, demand, under, request });
        } else {
            cx.reply_unchecked(op, Reply::Busy);
        }
    }

    /// Removes and returns the requests whose view is in force. A request that waits for the disk
    /// is returned too, and waits again if the disk is still unknown.
    pub(crate) fn take(&mut self, cx: &Cx<'_>) -> VecDeque<WaitingRequest> {
        let epoch = cx.core.view.epoch;
        let is_ready = |request: &WaitingRequest| request.under.epoch <= epoch;
        let (ready, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(is_ready);
        self.waiting = waiting;
        ready
    }
}
