//! Requests that a node coordinates. Each kind of request has its own slots.
//!
//! ```text
//!  Reads, Writes       clients' requests without a condition
//!  Calls               requests to one node each, for ranges, hints and background tasks
//!  Changes (`paxos/`)  conditional writes
//! ```

pub(crate) mod call;
pub(crate) mod outstanding;
pub(crate) mod peers;
pub(crate) mod quorum;
pub(crate) mod range_choice;
pub(crate) mod read;
pub(crate) mod receipt;
pub(crate) mod reported;
pub(crate) mod scan;
pub(crate) mod sets;
pub(crate) mod slots;
pub(crate) mod unstored_hints;
pub(crate) mod write;

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use crate::dispatch::core::Cx;
use crate::event::SlotId;
use crate::message::{NodeId, Reply};
use crate::replica::Replica;
use outstanding::{Delivery, Outstanding, ReplicaError};
use slots::{Slots, Work};
use unstored_hints::UnstoredHints;

/// Context of the methods of requests, which call the node's own replica directly.
#[derive(Debug)]
pub(crate) struct RequestCx<'a> {
    pub(crate) cx: Cx<'a>,
    pub(crate) replica: &'a mut Replica,
    pub(crate) unstored_hints: &'a mut UnstoredHints,
}

impl<'a> Deref for RequestCx<'a> {
    type Target = Cx<'a>;

    fn deref(&self) -> &Cx<'a> {
        &self.cx
    }
}

impl<'a> DerefMut for RequestCx<'a> {
    fn deref_mut(&mut self) -> &mut Cx<'a> {
        &mut self.cx
    }
}

/// The handling of replies, failures, deadlines and later views, for one kind of request.
pub(crate) trait Requests {
    type Work: Work;

    fn slots(&mut self) -> &mut Slots<Self::Work>;

    /// Handles a node's reply that is not stale.
    fn on_reply(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        peer: NodeId,
        outstanding: Outstanding,
        reply: Reply,
    );

    /// Handles a node's failure to do its part in an unfinished slot.
    fn on_failure(&mut self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId, error: ReplicaError);

    /// Sends a request again to a node that has not done its part.
    fn ask_again(&mut self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId);

    /// Restarts a request under the view in force, which places keys differently.
    fn restart(&mut self, cx: &mut RequestCx<'_>, id: SlotId);

    /// Answers a request whose deadline is over, and frees its slot.
    fn expire(&mut self, cx: &mut RequestCx<'_>, id: SlotId);

    /// True if a slot's request may be sent to a node a second time.
    fn may_ask_twice(&mut self, _: SlotId) -> bool {
        true
    }

    /// Handles the refusal of a node whose view differs, if this kind of request handles it in a
    /// special way. Returns `true` if it does. `is_later`: the node's view is later than this
    /// node's.
    fn on_superseded(&mut self, _: &mut RequestCx<'_>, _: SlotId, is_later: bool) -> bool {
        let _ = is_later;
        false
    }

    /// Handles a node's reply, or the reply of this node's own replica.
    fn handle_reply(&mut self, cx: &mut RequestCx<'_>, id: SlotId, peer: NodeId, reply: Reply) {
        // The reply is stale if the slot has ended or was renewed, or the node has replied already.
        let Some(slot) = self.slots().find_mut(id) else { return };
        let Some(outstanding) = slot.work.outstanding_at(peer).copied() else { return };
        if let Reply::Superseded { epoch } = reply {
            return self.handle_superseded(cx, id, peer, epoch);
        }
        self.on_reply(cx, id, peer, outstanding, reply);
    }

    /// Handles the refusal of a node whose view differs from the request's.
    fn handle_superseded(&mut self, cx: &mut RequestCx<'_>, id: SlotId, peer: NodeId, epoch: u64) {
        let is_later = epoch > cx.core.view.epoch;
        let work = self.slots().work(id);
        let delivery =
            work.outstanding_at(peer).expect("it was asked, and has not replied").delivery;
        if work.is_answered() {
            self.on_failure(cx, id, peer, ReplicaError::Declined);
        } else if self.on_superseded(cx, id, is_later) || is_later {
            // `on_superseded` handled it, or this node is about to switch to the later view, which
            // restarts the slot.
        } else if delivery == Delivery::Resent {
            // The node was asked again under the view in force.
            self.on_failure(cx, id, peer, ReplicaError::Declined);
        } else {
            self.ask_once_more(cx, id, peer);
        }
    }

    /// Sends a node the request again. The earlier message may have arrived.
    fn ask_once_more(&mut self, cx: &mut RequestCx<'_>, id: SlotId, peer: NodeId) {
        self.ask_again(cx, id, peer);
        self.slots().outstanding(id, peer).delivery = Delivery::Resent;
    }

    /// Notes that a link is up, so that requests that waited for the link are being sent.
    fn on_link_up(&mut self, peer: NodeId) {
        for id in self.slots().slots_awaiting(peer) {
            self.slots().outstanding(id, peer).mark_sent();
        }
    }

    /// Handles the loss of a link. Its unanswered requests are sent once more.
    fn on_link_lost(&mut self, cx: &mut RequestCx<'_>, peer: NodeId) {
        for id in self.slots().slots_awaiting(peer) {
            let delivery = self.slots().outstanding(id, peer).delivery;
            if delivery == Delivery::Resent || delivery == Delivery::Sent && !self.may_ask_twice(id)
            {
                self.on_failure(cx, id, peer, ReplicaError::Silent);
            } else {
                self.ask_once_more(cx, id, peer);
            }
        }
    }

    /// Handles the failure to make any link to a node.
    fn on_unreachable(&mut self, cx: &mut RequestCx<'_>, peer: NodeId) {
        for id in self.slots().slots_awaiting(peer) {
            let has_arrived = self.slots().outstanding(id, peer).may_have_arrived();
            let error = if has_arrived { ReplicaError::Silent } else { ReplicaError::Unreached };
            self.on_failure(cx, id, peer, error);
        }
    }

    /// Handles a dropped message: the queue to its node is full.
    fn on_message_dropped(&mut self, cx: &mut RequestCx<'_>, id: SlotId, peer: NodeId) {
        let slot = self.slots().find_mut(id);
        if slot.is_some_and(|slot| slot.work.outstanding_at(peer).is_some()) {
            self.on_failure(cx, id, peer, ReplicaError::Busy);
        }
    }

    /// Counts unanswered requests under the view now in force, and restarts them if that view
    /// places keys differently.
    fn view_changed(&mut self, cx: &mut RequestCx<'_>, placement_changed: bool) {
        let view = Rc::clone(&cx.core.view);
        for id in self.slots().set_view(&view) {
            // The restart of one request may have ended others.
            if placement_changed && self.slots().find(id).is_some() {
                self.restart(cx, id);
            }
        }
    }

    /// Ends the requests whose deadline is over.
    fn expire_overdue(&mut self, cx: &mut RequestCx<'_>) {
        for id in self.slots().overdue(cx.now.mono) {
            if self.slots().find(id).is_some() {
                self.expire(cx, id);
            }
        }
    }
}
