//! Calls: one request to one node, which may be this one, for those who do their own counting:
//! ranges, hints, rebuilding.

use bytes::Bytes;

use super::Coordinator;
use super::slots::{CallWork, Slot, State, Vote, Work};
use crate::event::{CallId, ClientId, Effect, Now, OpId, StoreError, Trouble};
use crate::message::{Class, NodeId, Page, Reply, Request};
use crate::quorum::Quorum;

impl Coordinator {
    pub(super) fn call(
        &mut self,
        now: Now,
        call: CallId,
        node: NodeId,
        class: Class,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        let mut votes = self.slots.votes();
        votes.push(Vote::new(node, 0));
        let id = self.slots.add(Slot {
            client: ClientId(0),
            answered: false,
            deadline: now.mono + self.config.deadline_micros,
            key: Bytes::new(),
            quorum: Quorum { ack: 1, from: 1 },
            votes,
            work: Work::Call(CallWork { call, class, request }),
            detail: None,
        });
        self.call_again(now, id, out);
    }

    /// Sends a call's request, or does it here.
    pub(super) fn call_again(&mut self, now: Now, id: u64, out: &mut Vec<Effect>) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Call(CallWork { class, request, .. }) = &slot.work else { return };
        let remaining = slot.deadline.saturating_sub(now.mono);
        let (class, request) = (*class, request.clone());
        let demand = slot.demand(class);
        let vote = &mut slot.votes[0];
        (vote.state, vote.asked_at) = (State::Asked, now.mono);
        if vote.node == own {
            self.perform(now, OpId::Slot(id), demand, request, out);
        } else {
            vote.sent = self.peers.is_up(vote.node);
            let node = vote.node;
            self.send(node, id, remaining, class, request, out);
        }
    }

    /// This node's store read a page.
    pub(super) fn was_paged(
        &mut self,
        op: OpId,
        result: Result<Page, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let reply = match result {
            Ok(page) => Reply::Page(page),
            Err(error) => super::replica::reply_to_error(&error),
        };
        self.done(op, reply, out);
    }

    /// A call's or another node's request is done.
    pub(super) fn done(&mut self, op: OpId, reply: Reply, out: &mut Vec<Effect>) {
        match op {
            OpId::Slot(id) => self.end_call(id, Ok(reply), out),
            OpId::Lane { lane, id } => out.push(Effect::Respond { lane, id, reply }),
        }
    }

    pub(super) fn end_call(
        &mut self,
        id: u64,
        result: Result<Reply, Trouble>,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get(id) else { return };
        let Work::Call(work) = &slot.work else { return };
        out.push(Effect::Returned { call: work.call, result });
        self.slots.remove(id);
    }
}
