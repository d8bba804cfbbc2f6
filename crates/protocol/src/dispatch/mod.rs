//! The protocol instance of an event loop: coordinates the requests of the loop's clients, and
//! answers other nodes as a replica. The protocol is a pure state machine: an [`Event`] goes in,
//! and the [`Effect`]s to carry out come out. Nothing in this folder waits, reads a clock or
//! touches a socket.
//!
//! ```text
//!  clients ──▶ Get, Write ─┐              ┌─▶ Read, Write, Page ──▶ this node's store ──┐
//!  scans, hints ──▶ Call  ─┼─▶ Protocol ──┼─▶ Send ──▶ another node ──▶ its Request ──┐  │
//!  other nodes ─▶ Request ─┘              └─▶ Answer, ReturnCall, Respond, Hint       │  │
//!                   ▲                                                                 │  │
//!                   └── Reply, LinkUp, LinkLost, Unreachable ◀────────────────────────┘  │
//!                   └── Read, Written, PageRead ◀────────────────────────────────────────┘
//! ```
//!
//! [`Protocol`] hands each event to the part that owns its state, and lends that part the context.
//! The parts are reads, writes, changes and calls (`request/`, `paxos/`) and the node's replica
//! (`replica/`).
//!
//! An unfinished request has a *slot*, which has a *vote* for each replica. Enough votes decide the
//! request. The slot stays until the other votes are in, or a sweep finds that the deadline is
//! over, because votes after the answer are still of use: for repairs after reads, and for hints
//! after writes.

pub(crate) mod core;
mod replies_and_links;
mod view_change;

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use self::core::{Core, Cx};
use crate::clock::Now;
use crate::event::{
    Answer, ClientId, Config, ConnectionId, Demand, Effect, Event, FailureKind, OpId,
    RequestFailure, SlotId, StoreError,
};
use crate::message::{Reply, Request};
use crate::paxos::recent::OpLookup;
use crate::paxos::{Changes, recall};
use crate::placement::view::{View, ViewId};
use crate::replica::reply::{long, reply_to_error, reply_to_read, reply_to_write};
use crate::replica::{OwnResult, Replica};
use crate::request::call::{Calls, OwnRequest};
use crate::request::peers::PeerLatencies;
use crate::request::quorum::{AskedQuorum, Quorum};
use crate::request::read::Reads;
use crate::request::sets::Replicas;
use crate::request::slots::SlotKind;
use crate::request::unstored_hints::UnstoredHints;
use crate::request::write::Writes;
use crate::request::write::write_alone::{AloneId, ClientWrite};
use crate::request::{RequestCx, Requests};
use crate::shared::Shared;
use record::{Record, RecordOutline};

/// The period of the deadline check of all slots, in microseconds: less than the least deadline.
const SWEEP_MICROS: u64 = 20_000;

/// Returns the answer to a client of a fenced node.
fn fenced_answer(now: Now, client: ClientId, quorum: Quorum, is_write: bool) -> Effect {
    let (failure, acked, unknown, detail) = (FailureKind::Fenced, 0, false, None);
    let (parts, since) = (Vec::new(), now.mono);
    let failed = RequestFailure { failure, acked, parts, since, quorum, is_write, unknown, detail };
    Effect::Answer { client, answer: Answer::Failed(failed) }
}

/// Unfinished requests, by kind.
#[derive(Debug, Default)]
struct RequestTables {
    reads: Reads,
    writes: Writes,
    changes: Changes,
    calls: Calls,
}

/// The protocol of one event loop.
#[derive(Debug)]
pub struct Protocol {
    core: Core,
    parts: RequestTables,
    replica: Replica,
    unstored_hints: UnstoredHints,
    next_sweep: u64,
}

impl Core {
    fn cx<'a>(&'a mut self, now: Now, out: &'a mut Vec<Effect>) -> Cx<'a> {
        Cx { now, core: self, out }
    }
}

impl Protocol {
    /// Makes a protocol without requests.
    pub fn new(shared: Arc<Shared>, config: Config) -> Self {
        let view = Rc::new(View::clone(&shared.view()));
        let core = Core {
            shared,
            view,
            config,
            peers: PeerLatencies::default(),
            replicas: Replicas::default(),
            own_replies: Vec::new(),
        };
        let (parts, replica, unstored_hints) =
            (RequestTables::default(), Replica::default(), UnstoredHints::default());
        Self { core, parts, replica, unstored_hints, next_sweep: 0 }
    }

    /// Returns the unfinished requests, and the context for their methods.
    fn tables_and_context<'a>(
        &'a mut self,
        now: Now,
        out: &'a mut Vec<Effect>,
    ) -> (&'a mut RequestTables, RequestCx<'a>) {
        let Self { core, parts, replica, unstored_hints, .. } = self;
        (parts, RequestCx { cx: core.cx(now, out), replica, unstored_hints })
    }

    /// Handles one event; appends the effects to carry out to `out`.
    pub fn handle(&mut self, now: Now, event: Event, out: &mut Vec<Effect>) {
        if self.core.view.epoch != self.core.shared.membership.views.epoch() {
            self.follow_view(now, out);
        }
        match event {
            Event::Get { client, quorum, .. }
            | Event::Write { client, quorum, .. }
            | Event::Change { client, quorum, .. }
                if self.core.shared.membership.state.is_fenced() =>
            {
                let is_write = !matches!(event, Event::Get { .. });
                out.push(fenced_answer(
                    now,
                    client,
                    quorum.resolve(&self.core.view.topology),
                    is_write,
                ));
            }
            Event::Get { client, key, quorum } => {
                let (parts, mut cx) = self.tables_and_context(now, out);
                parts.reads.get(&mut cx, client, key, quorum);
            }
            Event::Write { client, key, record, quorum } => {
                let deadline = now.mono + self.core.config.deadline_micros;
                let write = ClientWrite { client, key, record, asked: quorum, deadline };
                let (parts, mut cx) = self.tables_and_context(now, out);
                parts.writes.write(&mut cx, write, false);
            }
            Event::Change { client, key, conditional, quorum, id } => {
                let (parts, mut cx) = self.tables_and_context(now, out);
                parts.changes.change(&mut cx, client, (key, id), conditional, quorum);
            }
            Event::Call { call, node, class, request } => {
                let (parts, mut cx) = self.tables_and_context(now, out);
                parts.calls.call(&mut cx, call, node, class, request);
                self.perform_own(now, out);
            }
            Event::Recalled { op, result } => self.on_recalled(now, op, result, out),
            Event::Read { op, result } => self.on_read(now, op, result, out),
            Event::ReadTooLong { op, outline } => self.on_read_too_long(now, op, outline, out),
            Event::Written { op, result } => self.on_written(now, op, result, out),
            Event::PageRead { op, result } => {
                self.on_page_read(now, op, result.map(Reply::Page), out)
            }
            Event::Compared { op, result } => {
                self.on_page_read(now, op, result.map(Reply::Compared), out);
            }
            Event::LinkUp(peer) => self.on_link_up(peer),
            Event::LinkLost(peer) => self.on_link_lost(now, peer, out),
            Event::Unreachable(peer) => self.on_unreachable(now, peer, out),
            Event::MessageDropped { peer, id } => {
                self.on_message_dropped(now, peer, SlotId(id), out)
            }
            Event::Reply { peer, id, reply } => {
                self.handle_reply(now, peer, SlotId(id), reply, out)
            }
            Event::Request { connection, id, class, remaining_ms, under, request } => {
                let demand = self.core.demand_of(now, class, remaining_ms);
                self.handle_request(now, connection, id, demand, (under, request), out);
            }
            Event::HintStored { hint, kept } => {
                self.unstored_hints.on_hint_stored(&self.core.shared, hint, kept)
            }
            Event::Tick => self.tick(now, out),
        }
        while self.drain_queues(now, out) {}
    }

    /// Carries out one step that the event has made possible. Returns `false` if no step is left.
    fn drain_queues(&mut self, now: Now, out: &mut Vec<Effect>) -> bool {
        if !self.parts.calls.to_perform.is_empty() {
            self.perform_own(now, out);
        } else if let Some(completion) = self.parts.reads.to_complete.pop() {
            let (parts, mut cx) = self.tables_and_context(now, out);
            parts.changes.complete(&mut cx, completion);
        } else if let Some((id, reply)) = self.core.own_replies.pop() {
            self.handle_reply(now, self.core.shared.own, id, reply, out);
        } else if !self.replica.acceptor.retry_freed(&mut self.core.cx(now, out)) {
            let (parts, mut cx) = self.tables_and_context(now, out);
            return parts.changes.begin_next(&mut cx);
        }
        true
    }

    /// True if a read of this key needs no other node: no partition moves, `ack` is one, and the
    /// read is not due to ask all replicas.
    pub fn reads_alone(&self, key: &[u8], asked: AskedQuorum) -> bool {
        self.parts.reads.reads_alone(&self.core, key, asked)
    }

    /// Returns the answer to a read that needs no other node, from this node's record of the key.
    /// `None` = the record does not count, because this node is not authoritative for it or because
    /// it is a future record.
    pub fn answer_alone(&mut self, now: Now, held: Option<Record>) -> Option<Answer> {
        self.parts.reads.answer_alone(&self.core, now, held)
    }

    /// True if a write needs no other node: the key has one replica, this node; no partition moves;
    /// and the store holds no newer record and may have lost none.
    pub fn writes_alone(&self, key: &[u8], record: &Record, asked: AskedQuorum) -> bool {
        Writes::writes_alone(&self.core, key, record, asked)
    }

    /// Begins a write that needs no other node. [`Protocol::end_alone`] ends it.
    pub fn write_alone(
        &mut self,
        now: Now,
        client: ClientId,
        (key, record): (Bytes, Record),
        asked: AskedQuorum,
    ) -> AloneId {
        let deadline = now.mono + self.core.config.deadline_micros;
        self.parts.writes.alone.add(ClientWrite { client, key, record, asked, deadline })
    }

    /// Returns the key and the record of a write that needs no other node; `None` = the write has
    /// ended, or continues as an ordinary write.
    pub fn alone(&self, id: AloneId) -> Option<(&Bytes, &Record)> {
        self.parts.writes.alone.get(id).map(|write| (&write.key, &write.record))
    }

    /// Completes a write that needs no other node and that the store has stored. Returns the
    /// client's answer; `None` = the caller must call [`Protocol::end_alone`], because a later view
    /// is in force or the write already has a slot. The method needs no time: most writes of a
    /// single node end here.
    pub fn complete_alone(&mut self, id: AloneId) -> Option<(ClientId, Answer)> {
        if self.core.view.epoch != self.core.shared.membership.views.epoch() {
            return None;
        }
        let write = self.parts.writes.alone.take(id)?;
        Some((write.client, Writes::answer_alone(&self.core, &write)))
    }

    /// Handles the store's result for a write that needs no other node. If the store failed, the
    /// write continues as an ordinary write, which counts as possibly stored if the store had begun
    /// it. Returns the client's answer; `None` = the write continues.
    pub fn end_alone(
        &mut self,
        now: Now,
        id: AloneId,
        result: Result<(), StoreError>,
        out: &mut Vec<Effect>,
    ) -> Option<(ClientId, Answer)> {
        let is_current = self.core.view.epoch == self.core.shared.membership.views.epoch();
        if !is_current {
            self.follow_view(now, out);
        }
        let answer = self.parts.writes.alone.take(id).and_then(|write| {
            let Err(error) = result else {
                return Some((write.client, Writes::answer_alone(&self.core, &write)));
            };
            let may_be_held = matches!(error, StoreError::Failed { begun: true, .. });
            let (parts, mut cx) = self.tables_and_context(now, out);
            parts.writes.write(&mut cx, write, may_be_held);
            None
        });
        if answer.is_none() || !is_current {
            while self.drain_queues(now, out) {}
        }
        answer
    }

    /// Returns the time by which [`Event::Tick`] is due, by the monotonic clock in microseconds;
    /// `None` = no work waits.
    pub fn next_wake(&mut self) -> Option<u64> {
        let acceptor = &self.replica.acceptor;
        if self.is_empty() && acceptor.is_empty() && self.replica.waiting.is_empty() {
            return None;
        }
        let parts = &mut self.parts;
        let hedges = [parts.reads.next_hedge(), parts.changes.next_hedge(), acceptor.next_poll()];
        hedges.into_iter().flatten().chain([self.next_sweep]).min()
    }

    /// Returns the number of unfinished requests.
    pub fn len(&self) -> usize {
        let RequestTables { reads, writes, changes, calls } = &self.parts;
        reads.len() + writes.len() + changes.len() + calls.len()
    }

    /// Returns the number of conditional writes whose client or node has not been answered.
    pub fn unanswered_changes(&self) -> usize {
        self.parts.changes.count_unanswered()
    }

    /// True if there is no unfinished request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn tick(&mut self, now: Now, out: &mut Vec<Effect>) {
        let (parts, mut cx) = self.tables_and_context(now, out);
        parts.reads.hedge_due(&mut cx);
        parts.changes.hedge_due(&mut cx);
        if self.replica.acceptor.next_poll().is_some_and(|at| at <= now.mono) {
            self.replica.acceptor.retry_all(&mut self.core.cx(now, out));
        }
        if now.mono < self.next_sweep {
            return;
        }
        self.next_sweep = now.mono + SWEEP_MICROS;
        self.replica.acceptor.expire(&mut self.core.cx(now, out));
        self.replica.waiting.drop_late(now);
        if !self.replica.waiting.is_empty() && self.core.shared.membership.known_disk.acknowledges()
        {
            self.serve_waiting(now, out);
        }
        let (parts, mut cx) = self.tables_and_context(now, out);
        parts.reads.expire_overdue(&mut cx);
        parts.writes.resume_late(&mut cx, now.mono);
        parts.writes.expire_overdue(&mut cx);
        parts.changes.expire_overdue(&mut cx);
        parts.calls.expire_overdue(&mut cx);
    }

    /// Handles a request of another node.
    fn handle_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        id: u64,
        demand: Demand,
        (under, request): (ViewId, Request),
        out: &mut Vec<Effect>,
    ) {
        let mut cx = self.core.cx(now, out);
        let request = self.replica.check_request(&mut cx, connection, id, demand, (under, request));
        if let Some((op, request)) = request {
            self.perform(now, op, demand, request, out);
        }
    }

    /// Carries out a request of another node or of this one: as its coordinator if the request asks
    /// for a coordinator, otherwise as a replica.
    fn perform(
        &mut self,
        now: Now,
        op: OpId,
        demand: Demand,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        let (parts, mut cx) = self.tables_and_context(now, out);
        match request {
            Request::ReadQuorum { key, most } => {
                parts.reads.read_quorum_for(&mut cx, op, demand, (key, most));
            }
            Request::Change { key, id, ack, conditional } => {
                parts.changes.change_for(&mut cx, op, demand, (key, id, ack), conditional);
            }
            request => cx.replica.perform(&mut cx.cx, op, demand, request),
        }
    }

    /// Carries out the requests that calls have made to this node itself.
    fn perform_own(&mut self, now: Now, out: &mut Vec<Effect>) {
        for OwnRequest { id, demand, request } in std::mem::take(&mut self.parts.calls.to_perform) {
            self.perform(now, OpId::Slot(id), demand, request, out);
        }
    }

    /// Handles a result of a read of the store.
    fn on_read(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Option<Record>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let own: OwnResult<_> = self.replica.on_read(&mut self.core.cx(now, out), op, result);
        let Some((id, result)) = own else { return };
        let (parts, mut cx) = self.tables_and_context(now, out);
        match SlotKind::of(id) {
            SlotKind::Read => parts.reads.on_own_read(&mut cx, id, result),
            SlotKind::Call => {
                let reply = reply_to_read(&cx.core.shared, result);
                parts.calls.on_own_reply(&mut cx, id, reply);
            }
            // The read belonged to the accept of a conditional write, which a later view has
            // cancelled.
            SlotKind::Change => {}
            // A plain write has no ballot, so this node's acceptor takes no part in it.
            SlotKind::Write => unreachable!("a write reads nothing"),
        }
    }

    /// Handles a read of the store that found a record too long for the asker.
    fn on_read_too_long(
        &mut self,
        now: Now,
        op: OpId,
        outline: RecordOutline,
        out: &mut Vec<Effect>,
    ) {
        let own: OwnResult<_> =
            self.replica.on_read_too_long(&mut self.core.cx(now, out), op, outline);
        let Some((id, outline)) = own else { return };
        let (parts, mut cx) = self.tables_and_context(now, out);
        match SlotKind::of(id) {
            // A read slot sets no limit on the length of this node's own record, so this event is a
            // failure.
            SlotKind::Read => parts.reads.on_own_failure(&mut cx, id),
            SlotKind::Call => {
                let reply = long(&cx.core.shared, outline);
                parts.calls.on_own_reply(&mut cx, id, reply);
            }
            SlotKind::Change => {}
            SlotKind::Write => unreachable!("a write reads nothing"),
        }
    }

    /// Handles a result of a write to the store.
    fn on_written(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        if matches!(result, Err(StoreError::NoSpace(_))) {
            self.core.shared.replica.lack_of_space.note(now);
        }
        let own: OwnResult<_> = self.replica.on_written(&mut self.core.cx(now, out), op, result);
        let Some((id, result)) = own else { return };
        let (parts, mut cx) = self.tables_and_context(now, out);
        match SlotKind::of(id) {
            SlotKind::Read => parts.reads.on_own_write(&mut cx, id, result),
            SlotKind::Write => parts.writes.on_own_write(&mut cx, id, result),
            // A conditional write brings a plain record to a majority, or a call stores records on
            // this node.
            SlotKind::Change | SlotKind::Call => {
                self.handle_reply(now, self.core.shared.own, id, reply_to_write(&result), out);
            }
        }
    }

    /// Handles a result of a lookup of a conditional write.
    fn on_recalled(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Option<OpLookup>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let partition = match op {
            OpId::Peer { partition, .. } => partition,
            OpId::Slot(id) => self.parts.changes.partition_of(id),
        };
        recall::on_recall(&mut self.core.cx(now, out), op, partition, result);
    }

    /// Handles a page that the store read, or a comparison.
    fn on_page_read(
        &mut self,
        now: Now,
        op: OpId,
        result: Result<Reply, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let reply = result.unwrap_or_else(|error| reply_to_error(&error));
        self.core.cx(now, out).reply_as_replica(op, reply);
    }
}
