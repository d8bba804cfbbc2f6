//! Calls: single requests to a single node, which may be this one. Ranges, hints and repair make
//! calls, and interpret the replies.

use std::rc::Rc;

use bytes::Bytes;

use super::Requests;
use super::outstanding::{Delivery, Outstanding, ReplicaError};
use super::sets::Quorums;
use super::slots::{Slot, SlotKind, Slots, Work};
use crate::event::{CallId, Demand, Effect, FailureKind, SlotId};
use crate::message::{Class, Filter, NodeId, PageRequest, Reply, Request};
use crate::request::RequestCx;
use crate::request::quorum::{AskedQuorum, Quorum};

/// An unfinished call.
#[derive(Debug)]
pub(crate) struct Call {
    call: CallId,
    node: NodeId,
    class: Class,
    request: Request,
    outstanding: Outstanding,
}

/// A call's request to this node itself.
#[derive(Debug)]
pub(crate) struct OwnRequest {
    pub(crate) id: SlotId,
    pub(crate) demand: Demand,
    pub(crate) request: Request,
}

/// All calls of one event loop.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    slots: Slots<Call>,
    /// Requests to this node itself, for any part of the protocol. The dispatcher carries them out
    /// after the method that queued them.
    pub(crate) to_perform: Vec<OwnRequest>,
}

impl Work for Call {
    const KIND: SlotKind = SlotKind::Call;

    fn is_answered(&self) -> bool {
        false
    }

    fn outstanding_at(&mut self, node: NodeId) -> Option<&mut Outstanding> {
        Some(&mut self.outstanding).filter(|_| self.node == node)
    }
}

impl Calls {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_under_way(&self, id: SlotId) -> bool {
        self.slots.find(id).is_some()
    }

    pub(crate) fn call(
        &mut self,
        cx: &mut RequestCx<'_>,
        call: CallId,
        node: NodeId,
        class: Class,
        request: Request,
    ) {
        let outstanding = Outstanding { since: cx.now.mono, delivery: Delivery::Waits };
        let id = self.slots.add(Slot {
            view: Rc::clone(&cx.core.view),
            deadline: cx.now.mono + cx.core.time_limit(class),
            key: Bytes::new(),
            quorums: Quorums::of(AskedQuorum::from(Quorum { ack: 1, from: 1 }), &cx.core.view),
            work: Call { call, node, class, request, outstanding },
            detail: None,
        });
        self.ask(cx, id);
    }

    /// Sends a call's request, or queues it if the call is to this node.
    fn ask(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get_mut(id);
        let until = slot.deadline;
        let remaining = until.saturating_sub(cx.now.mono);
        let call = &mut slot.work;
        let (node, class, request) = (call.node, call.class, call.request.clone());
        call.outstanding = cx.core.new_outstanding(cx.now, node);
        if node == cx.core.shared.own {
            let demand = Demand { class, until };
            self.to_perform.push(OwnRequest { id, demand, request });
        } else {
            cx.send(node, id, remaining, class, request);
        }
    }

    /// Ends a call to this node whose request was carried out; does nothing if the call has
    /// expired.
    pub(crate) fn on_own_reply(&mut self, cx: &mut RequestCx<'_>, id: SlotId, reply: Reply) {
        if self.is_under_way(id) {
            self.end(cx, id, Ok(reply));
        }
    }

    fn end(&mut self, cx: &mut RequestCx<'_>, id: SlotId, result: Result<Reply, FailureKind>) {
        let call = self.slots.remove(id).work.call;
        cx.out.push(Effect::ReturnCall { call, result });
    }
}

impl Requests for Calls {
    type Work = Call;

    fn slots(&mut self) -> &mut Slots<Call> {
        &mut self.slots
    }

    fn on_reply(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        _: NodeId,
        _: Outstanding,
        reply: Reply,
    ) {
        self.end(cx, id, Ok(reply));
    }

    fn on_failure(&mut self, cx: &mut RequestCx<'_>, id: SlotId, _: NodeId, _: ReplicaError) {
        self.end(cx, id, Err(FailureKind::TooFew));
    }

    fn ask_again(&mut self, cx: &mut RequestCx<'_>, id: SlotId, _: NodeId) {
        self.ask(cx, id);
    }

    fn restart(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let request = &self.slots.work(id).request;
        if is_chosen_page(request) {
            // The caller, a range read, continues with the nodes of the new view.
            self.end(cx, id, Ok(Reply::Busy));
        } else if !request.is_of_any_view() {
            let id = self.slots.renew(id);
            self.ask(cx, id);
        }
    }

    fn expire(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        self.end(cx, id, Err(FailureKind::TooFew));
    }

    fn on_superseded(&mut self, cx: &mut RequestCx<'_>, id: SlotId, is_later: bool) -> bool {
        let asks_others = !is_later && is_chosen_page(&self.slots.work(id).request);
        if asks_others {
            self.end(cx, id, Ok(Reply::Busy));
        }
        asks_others
    }
}

/// True if a request asks for a page of a client's range, whose keys depend on the view.
fn is_chosen_page(request: &Request) -> bool {
    matches!(request, Request::Page(PageRequest { filter: Filter::Chosen { .. }, .. }))
}
