//! What is under way when a view of another placement comes into force: who has not been answered
//! is counted by that one, from the beginning.
//!
//! ```text
//!  view 7: read old ── a slot: asked, two replies ─┐            replies under the old id: stale
//!  view 8: read new ───────────────────────────────┴─▶ new id, new votes ─▶ asked again ─▶ answer
//! ```
//!
//! Whether enough have done their part is said of the sets of one view, and of replies that were
//! given under it. So nothing of the earlier one counts; but that a write may have been done is not
//! forgotten. The deadline stays.
//!
//! This node's own replica needs no check of the view: its part is asked under the slot's id, and
//! that is renewed in the same call that sees the later view.

use std::rc::Rc;

use super::Protocol;
use crate::clock::Now;
use crate::event::{Effect, OpId, SlotId};
use crate::placement::view::{View, ViewId};
use crate::replica::waiting::WaitingRequest;
use crate::request::Requests;
use crate::request::slots::SlotKind;

impl Protocol {
    /// The view by which replies to what the last event's effects ask are counted. What is sent to
    /// other nodes bears it.
    pub fn under(&self) -> ViewId {
        self.core.view.id()
    }

    /// Another view may be in force.
    pub(super) fn look_at_views(&mut self, now: Now, out: &mut Vec<Effect>) {
        let view = self.core.shared.view();
        if view.epoch == self.core.view.epoch {
            // The epoch is ahead of the view that is installed: the next event looks again.
            return;
        }
        let before = std::mem::replace(&mut self.core.view, Rc::new(View::clone(&view)));
        let is_another = !before.agrees_with(self.core.view.id());
        if is_another {
            let mut cx = self.core.cx(now, out);
            self.replica.acceptor.accepts_no_more_of_before(&mut cx);
            let shared = &self.core.shared;
            shared.paxos.recent.forget(view.epoch, shared.clock.now(now));
        }
        let (parts, mut cx) = self.lend(now, out);
        parts.reads.view_changed(&mut cx, is_another);
        parts.writes.view_changed(&mut cx, is_another);
        parts.changes.view_changed(&mut cx, is_another);
        parts.calls.view_changed(&mut cx, is_another);
        self.perform_own(now, out);
        self.take_waiting(now, out);
    }

    /// A later view is in force, or this node's disk is known: requests that have waited for that
    /// are served. What this node asks itself waits by the id of its slot, which a later view
    /// renews.
    pub(super) fn take_waiting(&mut self, now: Now, out: &mut Vec<Effect>) {
        let ready = self.replica.waiting.take(&self.core.cx(now, out));
        for WaitingRequest { op, demand, under, request } in ready {
            match op {
                OpId::Peer { connection, id, .. } => {
                    self.requested(now, connection, id, demand, (under, request), out);
                }
                OpId::Slot(id) if self.is_under_way(id) => {
                    self.perform(now, op, demand, request, out);
                }
                OpId::Slot(_) => {}
            }
        }
    }

    fn is_under_way(&mut self, id: SlotId) -> bool {
        match SlotKind::of(id) {
            SlotKind::Read => self.parts.reads.slots().find(id).is_some(),
            SlotKind::Write => self.parts.writes.slots().find(id).is_some(),
            SlotKind::Change => self.parts.changes.slots().find(id).is_some(),
            SlotKind::Call => self.parts.calls.slots().find(id).is_some(),
        }
    }
}
