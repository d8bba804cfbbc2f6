//! Calls: one request to one node, which may be this one, for ranges, hints and repair, which
//! decide for themselves what the replies amount to.

use std::rc::Rc;

use bytes::Bytes;

use super::Coordinator;
use super::part::{Errand, Way};
use super::sets::Quorums;
use super::slots::{Call, Slot, Work};
use crate::clock::Now;
use crate::event::{CallId, Demand, Effect, FailureKind, OpId, SlotId, StoreError};
use crate::message::{Class, NodeId, Reply, Request};
use crate::quorum::{AskedQuorum, Quorum};

/// What no client waits for may take so many times as long: a long record over a slow link, a page
/// off a busy disk. It is begun anew until it is done, so one that takes longer than it may never
/// is. That a node is gone is noticed by its connection, long before.
const BACKGROUND_DEADLINES: u64 = 10;

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
        let errand = Errand { since: now.mono, way: Way::Waits };
        let id = self.slots.add(Slot {
            view: Rc::clone(&self.view),
            deadline: now.mono + self.patience(class),
            key: Bytes::new(),
            quorums: Quorums::of(AskedQuorum::from(Quorum { ack: 1, from: 1 }), &self.view),
            work: Work::Call(Call { call, node, class, request, errand }),
            detail: None,
        });
        self.call_again(now, id, out);
    }

    /// Microseconds that a call, or another node's request, of this class may take.
    pub(super) fn patience(&self, class: Class) -> u64 {
        let deadline = self.config.deadline_micros;
        match class {
            Class::Client => deadline,
            Class::Hint | Class::Repair | Class::Stream => deadline * BACKGROUND_DEADLINES,
        }
    }

    /// Sends a call's request, or carries it out here.
    pub(super) fn call_again(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let until = slot.deadline;
        let remaining = until.saturating_sub(now.mono);
        let Work::Call(call) = &slot.work else { unreachable!("{id:?} is no call") };
        let (node, class, request) = (call.node, call.class, call.request.clone());
        let errand = self.errand_to(now, node);
        if let Work::Call(call) = &mut self.slots.get_mut(id).work {
            call.errand = errand;
        }
        if node == self.shared.own {
            self.perform(now, OpId::Slot(id), Demand { class, until }, request, out);
        } else {
            self.send(node, id, remaining, class, request, out);
        }
    }

    /// This node's store read a page, or compared one.
    pub(super) fn was_scanned(
        &mut self,
        op: OpId,
        result: Result<Reply, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let reply = result.unwrap_or_else(|error| super::replica::reply_to_error(&error));
        self.done(op, reply, out);
    }

    pub(super) fn end_call(
        &mut self,
        id: SlotId,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<Effect>,
    ) {
        let Work::Call(call) = &self.slots.get(id).work else {
            unreachable!("{id:?} is no call");
        };
        out.push(Effect::Returned { call: call.call, result });
        self.slots.remove(id);
    }
}
