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

use super::Coordinator;
use super::conditional::state::Stage as ChangeStage;
use super::part::{ReplicaError, VoteAt, Way};
use super::read::state::Stage as ReadStage;
use super::sets::Quorums;
use super::slots::Work;
use crate::clock::Now;
use crate::event::{Effect, SlotId};
use crate::message::{Filter, NodeId, PageRequest, Reply, Request};
use crate::quorum::AskedQuorum;
use crate::view::{View, ViewId};

impl Coordinator {
    /// The view by which replies to what the last event's effects ask are counted. What is sent to
    /// other nodes bears it.
    pub fn under(&self) -> ViewId {
        self.view.id()
    }

    /// Another view may be in force.
    pub(super) fn look_at_views(&mut self, now: Now, out: &mut Vec<Effect>) {
        let view = self.shared.view();
        if view.epoch == self.view.epoch {
            // It is about to be.
            return;
        }
        let before = std::mem::replace(&mut self.view, Rc::new(View::clone(&view)));
        let is_another = !before.agrees_with(self.view.id());
        if is_another {
            self.accepts_no_more_of_before(out);
            let until = self.shared.clock.now(now);
            self.shared.recent.forget(self.view.epoch, until);
        }
        for id in self.slots.ids(|slot| !slot.is_answered()) {
            // One that began anew may have ended others.
            let Some(slot) = self.slots.find_mut(id) else { continue };
            slot.view = Rc::clone(&self.view);
            if is_another {
                self.begin_anew(now, id, out);
            }
        }
        self.take_those_ahead(now, out);
    }

    fn begin_anew(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get_mut(id);
        let (asked, view) = (slot.quorums.asked, &self.view);
        match slot.work {
            Work::Change(_) => {
                slot.quorums = Quorums::of_majorities(asked, view);
                self.begin_change_anew(now, id, out);
            }
            Work::Read(_) => {
                slot.quorums = Quorums::of(asked, view);
                self.begin_read_anew(now, id, out);
            }
            Work::Write(_) => {
                slot.quorums = Quorums::of(asked, view);
                self.begin_write_anew(now, id, out);
            }
            Work::Call(_) => self.begin_call_anew(now, id, out),
        }
    }

    fn begin_read_anew(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let id = self.slots.renew(id);
        let slot = self.slots.get(id);
        let (key, from) = (slot.key.clone(), slot.quorums.from());
        let mut votes = std::mem::take(&mut self.slots.read(id).votes);
        self.fill_read_votes(&key, from, &mut votes);
        let read = self.slots.read(id);
        read.votes = votes;
        read.stage = ReadStage::Asking { asked_again: 0, asks_again: false };
        self.ask_first(now, id, false, out);
    }

    /// The same record under the same version: a replica that has it says so.
    fn begin_write_anew(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let id = self.slots.renew(id);
        let slot = self.slots.get(id);
        let (key, from) = (slot.key.clone(), slot.quorums.from());
        let write = self.slots.write(id);
        write.may_be_held = write.may_hold();
        let mut votes = std::mem::take(&mut write.votes);
        self.fill_write_votes(&key, from, &mut votes);
        self.slots.write(id).votes = votes;
        self.ask_all(now, id, out);
    }

    fn begin_change_anew(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let change = self.slots.change(id);
        change.of_earlier_view |= change.is_begun();
        match change.stage {
            // The home counts by its own view, and does it anew by a later one.
            ChangeStage::Forwarded => {}
            ChangeStage::Behind => self.look_for_home(now, id, out),
            // What was asked for promises may be asked again. What may be stored is looked for, as
            // after any try that came to nothing.
            ChangeStage::Preparing { .. } | ChangeStage::Storing { .. } => {
                self.make_change_votes(id);
                self.try_change(now, id, out);
            }
            // Others know these by their id, and nobody was asked anything.
            ChangeStage::Queued | ChangeStage::Follows(_) | ChangeStage::Pausing => {
                self.make_change_votes(id);
            }
            ChangeStage::Answered(_) => unreachable!("what is answered keeps its view"),
        }
    }

    fn begin_call_anew(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let Work::Call(call) = &self.slots.get(id).work else { unreachable!("it is a call") };
        if is_chosen_page(&call.request) {
            // Whoever walks over a range asks others now.
            self.end_call(id, Ok(Reply::Busy), out);
        } else if !call.request.is_of_any_view() {
            let id = self.slots.renew(id);
            self.call_again(now, id, out);
        }
    }

    /// A node has refused, for it goes by another view than this one did when it asked.
    pub(super) fn superseded(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        epoch: u64,
        out: &mut Vec<Effect>,
    ) {
        let own_epoch = self.view.epoch;
        let slot = self.slots.get_mut(id);
        let is_answered = slot.is_answered();
        let errand = slot.errand_of(peer).copied().expect("it was asked, and has not replied");
        if is_answered {
            return self.fail(now, id, peer, ReplicaError::Declined, out);
        }
        match &mut slot.work {
            // It has not begun.
            Work::Change(change) if change.is_forwarded() && epoch > own_epoch => {
                change.stage = ChangeStage::Behind;
            }
            Work::Change(change) if change.is_forwarded() => self.look_for_home(now, id, out),
            // This node is about to go by that view too: then the slot begins anew. Until then it
            // is not known that the replica does not do its part.
            _ if epoch > own_epoch => {}
            Work::Call(call) if is_chosen_page(&call.request) => {
                self.end_call(id, Ok(Reply::Busy), out);
            }
            // It says so of a view that this one goes by.
            _ if errand.way == Way::Resent => {
                self.fail(now, id, peer, ReplicaError::Declined, out);
            }
            _ => self.ask_once_more(now, id, peer, out),
        }
    }

    /// A client's conditional write, which nobody has begun, goes to its home.
    fn look_for_home(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let id = self.slots.renew(id);
        self.make_change_votes(id);
        self.bring_home(now, id, out);
    }

    /// Asks a node again for what it has not done. What it was sent before may have arrived.
    pub(super) fn ask_once_more(
        &mut self,
        now: Now,
        id: SlotId,
        peer: NodeId,
        out: &mut Vec<Effect>,
    ) {
        let awaited = "it is awaited";
        match &self.slots.get(id).work {
            Work::Read(_) => self.read_again(now, id, peer, out),
            Work::Write(write) => {
                let vote: VoteAt = write.awaited(peer).expect(awaited);
                self.ask_to_hold(now, id, vote, out);
            }
            Work::Change(change) => {
                let vote = change.awaited(peer).expect(awaited);
                self.ask_of_change(now, id, vote, out);
            }
            Work::Call(_) => self.call_again(now, id, out),
        }
        self.errand(id, peer).way = Way::Resent;
    }

    /// Which replicas by the view in force are not among the holders of a key.
    pub(super) fn lacking(
        &mut self,
        key: &[u8],
        asked: AskedQuorum,
        holders: &[NodeId],
    ) -> Vec<NodeId> {
        let from = Quorums::of(asked, &self.view).from();
        self.look_up_replicas(key, from);
        let replicas = self.replicas.all().into_iter().map(|(node, _)| node);
        replicas.filter(|node| !holders.contains(node)).collect()
    }
}

/// Whether it is a part of a client's range: which keys it has depends on the view.
fn is_chosen_page(request: &Request) -> bool {
    matches!(request, Request::Page(PageRequest { filter: Filter::Chosen { .. }, .. }))
}
