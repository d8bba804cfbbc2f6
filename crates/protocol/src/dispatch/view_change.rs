//! The change to a view of another placement while requests are unfinished: the new view counts
//! each unanswered request from the beginning.
//!
//! ```text
//!  view 7: a request's slot has asked all replicas, and has two replies ─┐
//!  view 8: the slot gets a new id and empty votes ◀──────────────────────┘
//!            ├─▶ the replicas of view 8 are asked ─▶ their replies decide ─▶ answer
//!            └─▶ replies under the slot's old id are ignored
//! ```
//!
//! A quorum is defined by the replica sets of one view, and by replies given under that view.
//! Nothing from the earlier view therefore counts, except that a write remains marked as possibly
//! done. The deadline stays the same.
//!
//! A reply of this node's own replica needs no check of the view: the reply carries the slot's id,
//! and the first event under the later view gives all unanswered slots new ids.

use std::rc::Rc;

use super::Protocol;
use crate::clock::Now;
use crate::event::{Effect, OpId, SlotId};
use crate::placement::view::{View, ViewId};
use crate::replica::waiting::WaitingRequest;
use crate::request::Requests;
use crate::request::slots::SlotKind;

impl Protocol {
    /// Returns the view under which this loop counts replies to the requests of the last event.
    /// Messages to other nodes carry this view.
    pub fn counting_view(&self) -> ViewId {
        self.core.view.id()
    }

    /// Follows the view in force, if it has changed.
    pub(super) fn follow_view(&mut self, now: Now, out: &mut Vec<Effect>) {
        let view = self.core.shared.view();
        if view.epoch == self.core.view.epoch {
            // The caller saw a later epoch, which is published before its view is installed: the
            // next event checks again.
            return;
        }
        let before = std::mem::replace(&mut self.core.view, Rc::new(View::clone(&view)));
        let placement_changed = !before.agrees_with(self.core.view.id());
        if placement_changed {
            let mut cx = self.core.cx(now, out);
            self.replica.acceptor.reject_previous_placement(&mut cx);
            let shared = &self.core.shared;
            shared.paxos.recent.forget(view.epoch, shared.clock.now(now));
        }
        let (parts, mut cx) = self.tables_and_context(now, out);
        parts.reads.view_changed(&mut cx, placement_changed);
        parts.writes.view_changed(&mut cx, placement_changed);
        parts.changes.view_changed(&mut cx, placement_changed);
        parts.calls.view_changed(&mut cx, placement_changed);
        if placement_changed {
            parts.writes.resume_alone(&mut cx);
        }
        self.perform_own(now, out);
        self.serve_waiting(now, out);
    }

    /// Serves requests that waited for a view that is now in force, or until other nodes know this
    /// node's disk. A request of this node itself is dropped if a later view has given its slot a
    /// new id.
    pub(super) fn serve_waiting(&mut self, now: Now, out: &mut Vec<Effect>) {
        let ready = self.replica.waiting.take(&self.core.cx(now, out));
        for WaitingRequest { op, demand, under, request } in ready {
            match op {
                OpId::Peer { connection, id, .. } => {
                    self.handle_request(now, connection, id, demand, (under, request), out);
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
