//! Events of the links to other nodes: replies, and requests whose link is lost.

use super::Protocol;
use crate::clock::Now;
use crate::event::{Effect, SlotId};
use crate::message::{NodeId, Reply};
use crate::request::Requests;
use crate::request::slots::SlotKind;

impl Protocol {
    /// Handles a node's reply, or the reply of this node's own replica.
    pub(super) fn replied(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        let (parts, mut cx) = self.lend(now, out);
        match SlotKind::of(id) {
            SlotKind::Read => parts.reads.replied(&mut cx, id, peer, reply),
            SlotKind::Write => parts.writes.replied(&mut cx, id, peer, reply),
            SlotKind::Change => parts.changes.replied(&mut cx, id, peer, reply),
            SlotKind::Call => parts.calls.replied(&mut cx, id, peer, reply),
        }
        self.perform_own(now, out);
    }

    /// Notes that a link is up.
    pub(super) fn up(&mut self, peer: NodeId) {
        self.core.peers.up(peer);
        self.parts.reads.up(peer);
        self.parts.writes.up(peer);
        self.parts.changes.up(peer);
        self.parts.calls.up(peer);
    }

    /// Handles the loss of a link, with its unanswered requests.
    pub(super) fn lost(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.core.peers.down(peer);
        let (parts, mut cx) = self.lend(now, out);
        parts.reads.lost(&mut cx, peer);
        parts.writes.lost(&mut cx, peer);
        parts.changes.lost(&mut cx, peer);
        parts.calls.lost(&mut cx, peer);
    }

    /// Handles the failure to make any link to a node.
    pub(super) fn unreachable(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.core.peers.down(peer);
        let (parts, mut cx) = self.lend(now, out);
        parts.reads.unreachable(&mut cx, peer);
        parts.writes.unreachable(&mut cx, peer);
        parts.changes.unreachable(&mut cx, peer);
        parts.calls.unreachable(&mut cx, peer);
    }

    /// Handles a dropped message: the queue to its node is full.
    pub(super) fn overflow(&mut self, now: Now, peer: NodeId, id: SlotId, out: &mut Vec<Effect>) {
        let (parts, mut cx) = self.lend(now, out);
        match SlotKind::of(id) {
            SlotKind::Read => parts.reads.overflow(&mut cx, id, peer),
            SlotKind::Write => parts.writes.overflow(&mut cx, id, peer),
            SlotKind::Change => parts.changes.overflow(&mut cx, id, peer),
            SlotKind::Call => parts.calls.overflow(&mut cx, id, peer),
        }
    }
}
