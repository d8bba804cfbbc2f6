//! Events of the links to other nodes: replies, and requests whose link is lost.

use super::Protocol;
use crate::clock::Now;
use crate::event::{Effect, SlotId};
use crate::message::{NodeId, Reply};
use crate::request::Requests;
use crate::request::slots::SlotKind;

impl Protocol {
    /// Handles a node's reply, or the reply of this node's own replica.
    pub(super) fn handle_reply(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        let (parts, mut cx) = self.tables_and_context(now, out);
        match SlotKind::of(id) {
            SlotKind::Read => parts.reads.handle_reply(&mut cx, id, peer, reply),
            SlotKind::Write => parts.writes.handle_reply(&mut cx, id, peer, reply),
            SlotKind::Change => parts.changes.handle_reply(&mut cx, id, peer, reply),
            SlotKind::Call => parts.calls.handle_reply(&mut cx, id, peer, reply),
        }
        self.perform_own(now, out);
    }

    /// Notes that a link is up.
    pub(super) fn on_link_up(&mut self, peer: NodeId) {
        self.core.peers.mark_up(peer);
        self.parts.reads.on_link_up(peer);
        self.parts.writes.on_link_up(peer);
        self.parts.changes.on_link_up(peer);
        self.parts.calls.on_link_up(peer);
    }

    /// Handles the loss of a link, with its unanswered requests.
    pub(super) fn on_link_lost(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.core.peers.mark_down(peer);
        let (parts, mut cx) = self.tables_and_context(now, out);
        parts.reads.on_link_lost(&mut cx, peer);
        parts.writes.on_link_lost(&mut cx, peer);
        parts.changes.on_link_lost(&mut cx, peer);
        parts.calls.on_link_lost(&mut cx, peer);
    }

    /// Handles the failure to make any link to a node.
    pub(super) fn on_unreachable(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.core.peers.mark_down(peer);
        let (parts, mut cx) = self.tables_and_context(now, out);
        parts.reads.on_unreachable(&mut cx, peer);
        parts.writes.on_unreachable(&mut cx, peer);
        parts.changes.on_unreachable(&mut cx, peer);
        parts.calls.on_unreachable(&mut cx, peer);
    }

    /// Handles a dropped message: the queue to its node is full.
    pub(super) fn on_message_dropped(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        out: &mut Vec<Effect>,
    ) {
        let (parts, mut cx) = self.tables_and_context(now, out);
        match SlotKind::of(id) {
            SlotKind::Read => parts.reads.on_message_dropped(&mut cx, id, peer),
            SlotKind::Write => parts.writes.on_message_dropped(&mut cx, id, peer),
            SlotKind::Change => parts.changes.on_message_dropped(&mut cx, id, peer),
            SlotKind::Call => parts.calls.on_message_dropped(&mut cx, id, peer),
        }
    }
}
