//! Sending to replicas, and what may come of it: a reply, a refusal, silence, a lost connection.

use super::Coordinator;
use super::part::{Errand, ReplicaError, Way};
use super::slots::Work;
use crate::clock::Now;
use crate::event::{Effect, FailureKind, SlotId, StoreError};
use crate::message::{Body, Class, Message, NodeId, Reply, Request};

impl Coordinator {
    pub(super) fn send(
        &self,
        peer: NodeId,
        id: SlotId,
        remaining_micros: u64,
        class: Class,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        assert_ne!(peer, self.shared.own, "a node does not write to itself");
        let remaining_ms = remaining_micros.div_ceil(1000).min(u64::from(u32::MAX)) as u32;
        let body = Body::Request { remaining_ms, class, request };
        out.push(Effect::Send { peer, message: Message { id: id.0, body } });
    }

    /// The errand of a node that is asked now.
    pub(super) fn errand_to(&self, now: Now, node: NodeId) -> Errand {
        let is_own = node == self.shared.own;
        let way = if is_own || self.peers.is_up(node) { Way::Sent } else { Way::Waits };
        Errand { since: now.mono, way }
    }

    /// The error of this node's vote for a failure of its store; the detail is kept for the client.
    pub(super) fn note_store_error(&mut self, id: SlotId, error: StoreError) -> ReplicaError {
        let (replica_error, detail) = match error {
            StoreError::Busy(what) => (ReplicaError::Busy, what.to_owned()),
            StoreError::NoSpace(what) => (ReplicaError::NoSpace, what),
            StoreError::Sealed(_) => return ReplicaError::Outbid,
            StoreError::Failed { begun: true, detail } => (ReplicaError::Failed, detail),
            StoreError::Failed { begun: false, detail } => (ReplicaError::Refused, detail),
        };
        self.slots.get_mut(id).detail = Some(detail);
        replica_error
    }

    /// A node did not do its part in a slot.
    pub(super) fn fail(
        &mut self,
        now: Now,
        id: SlotId,
        node: NodeId,
        error: ReplicaError,
        out: &mut Vec<Effect>,
    ) {
        // A node that has replied already is not awaited: then this is stale.
        match &self.slots.get(id).work {
            Work::Read(read) => {
                if let Some(vote) = read.awaited(node) {
                    self.read_failed(now, id, vote, error, out);
                }
            }
            Work::Write(write) => {
                if let Some(vote) = write.awaited(node) {
                    self.write_failed(id, vote, error, out);
                }
            }
            Work::Change(change) => {
                if let Some(vote) = change.awaited(node) {
                    self.change_failed(now, id, vote, error, out);
                }
            }
            Work::Call(_) => self.end_call(id, Err(FailureKind::TooFew), out),
        }
    }

    /// A node replied: another one, or this one as a replica of a conditional write.
    pub(super) fn replied(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        // Stale: the slot is gone or was renewed, or has this node's reply already.
        let Some(slot) = self.slots.find_mut(id) else { return };
        let Some(errand) = slot.errand_of(peer).copied() else { return };
        if let Reply::Superseded { epoch } = reply {
            return self.superseded(now, peer, id, epoch, out);
        }
        match slot.work {
            Work::Call(_) => self.end_call(id, Ok(reply), out),
            Work::Read(_) => self.read_replied(now, peer, id, errand, reply, out),
            Work::Write(_) => self.acknowledged(now, peer, id, &reply, out),
            Work::Change(_) => self.change_replied(now, peer, id, reply, out),
        }
    }

    /// A node replied to a write, or to a repair.
    pub(super) fn acknowledged(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        reply: &Reply,
        out: &mut Vec<Effect>,
    ) {
        let error = match reply {
            Reply::Stored => return self.stored(now, id, peer, None, out),
            // It may be another conditional write on the same base, without what this one did.
            Reply::Newer { .. } if self.brings_conditional(id) => ReplicaError::Outbid,
            Reply::Newer { time } => return self.stored(now, id, peer, Some(*time), out),
            // It takes nothing any more of when the write was given its version.
            Reply::Outbid { promise } if self.is_to_be_anew(id) => {
                return self.stored(now, id, peer, Some(*promise), out);
            }
            refusal => ReplicaError::of_refusal(refusal),
        };
        self.fail(now, id, peer, error, out);
    }

    /// Whether it is a read that brings what a conditional write made to replicas.
    fn brings_conditional(&self, id: SlotId) -> bool {
        let newest = match &self.slots.get(id).work {
            Work::Read(read) => read.newest(),
            Work::Write(_) | Work::Change(_) | Work::Call(_) => None,
        };
        newest.is_some_and(|newest| newest.ballot() > 0)
    }

    /// A link is up: what was sent to the node before is on its way.
    pub(super) fn up(&mut self, peer: NodeId) {
        self.peers.up(peer);
        for id in self.slots.awaiting(peer) {
            self.errand(id, peer).goes_out();
        }
    }

    /// A link is lost, and with it all requests that were not answered: they are sent once more.
    pub(super) fn lost(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.peers.down(peer);
        for id in self.slots.awaiting(peer) {
            let way = self.errand(id, peer).way;
            // A home that has begun a write must not be asked to do it once more.
            if way == Way::Resent || way == Way::Sent && self.is_forwarded(id) {
                self.fail(now, id, peer, ReplicaError::Silent, out);
                continue;
            }
            self.ask_once_more(now, id, peer, out);
        }
    }

    /// There is no link to a node, and none can be made.
    pub(super) fn unreachable(&mut self, now: Now, peer: NodeId, out: &mut Vec<Effect>) {
        self.peers.down(peer);
        for id in self.slots.awaiting(peer) {
            let error = if self.errand(id, peer).may_have_arrived() {
                ReplicaError::Silent
            } else {
                ReplicaError::Unreached
            };
            self.fail(now, id, peer, error, out);
        }
    }

    /// A message was dropped: too much waits for its node already.
    pub(super) fn overflow(&mut self, now: Now, peer: NodeId, id: SlotId, out: &mut Vec<Effect>) {
        let awaited = self.slots.find_mut(id).and_then(|slot| slot.errand_of(peer));
        if awaited.is_some() {
            self.fail(now, id, peer, ReplicaError::Busy, out);
        }
    }

    fn is_forwarded(&self, id: SlotId) -> bool {
        matches!(&self.slots.get(id).work, Work::Change(change) if change.is_forwarded())
    }

    /// What a node was asked in a slot.
    pub(super) fn errand(&mut self, id: SlotId, node: NodeId) -> &mut Errand {
        self.slots.get_mut(id).errand_of(node).expect("it was asked, and has not replied")
    }
}
