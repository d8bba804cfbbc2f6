//! One event loop's part in the protocol: it coordinates its clients' requests, and answers other
//! nodes as a replica. A pure state machine: what happens comes in as an [`Event`], what is to be
//! done goes out as [`Effect`]s, and nothing in here waits, reads a clock or touches a socket.
//!
//! ```text
//!  clients ──▶ Get, Write ─┐                ┌─▶ Read, Write, Page ──▶ this node's store ──┐
//!  scans, hints ──▶ Call  ─┼─▶ Coordinator ─┼─▶ Send ──▶ another node ──▶ its Request ──┐  │
//!  other nodes ─▶ Request ─┘    (slots)     └─▶ Answer, Returned, Respond, Hint         │  │
//!                   ▲                                                                   │  │
//!                   └── Reply, Up, Lost, Unreachable ◀──────────────────────────────────┘  │
//!                   └── Read, Written, Paged ◀─────────────────────────────────────────────┘
//! ```
//!
//! A request that is under way has a *slot*, and in it a *vote* for each replica. It is decided as
//! soon as enough votes are in. The slot stays until the others are in too, or its deadline is
//! over, because they are still of use: for repairs after reads, for hints after writes.

mod acceptor;
mod anew;
mod call;
mod conditional;
mod council;
mod hints;
mod part;
mod peers;
mod proving;
mod read;
mod replica;
mod sets;
mod slots;
mod under;
mod votes;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use acceptor::Acceptor;
use conditional::home::Queues;
use hints::Hints;
use peers::PeerLatencies;
use sets::Replicas;
use slots::{Slots, Work};
use under::ThoseAhead;

use crate::clock::Now;
use crate::event::{
    Answer, ClientId, Config, Effect, Event, FailureKind, OpId, RequestFailed, Shared, SlotId,
};
use crate::layout::VoteReply;
use crate::message::Reply;
use crate::quorum::Quorum;
use crate::view::View;

/// How often slots are looked at for deadlines, in microseconds: a fraction of the least deadline.
const SWEEP_MICROS: u64 = 20_000;

/// Repairs at once for which no client waits. Nothing depends on them, and reads are not the way to
/// bring a replica up to date that lacks much.
const MAX_BACKGROUND: usize = 256;

/// The answer to a client of a fenced node.
fn fenced(now: Now, client: ClientId, quorum: Quorum, is_write: bool) -> Effect {
    let (failure, acked, unknown, detail) = (FailureKind::Fenced, 0, false, None);
    let (parts, since) = (Vec::new(), now.mono);
    let failed = RequestFailed { failure, acked, parts, since, quorum, is_write, unknown, detail };
    Effect::Answer { client, answer: Answer::Failed(failed) }
}

/// The protocol of one event loop.
#[derive(Debug)]
pub struct Coordinator {
    shared: Arc<Shared>,
    /// The view that requests are counted by until they are answered. An `Rc` of this loop, so that
    /// loops don't share a reference count.
    view: Rc<View>,
    config: Config,
    slots: Slots,
    hints: Hints,
    peers: PeerLatencies,
    /// What coordinators of conditional writes ask of this node.
    acceptor: Acceptor,
    /// Conditional writes that wait for others of the same key.
    queues: Queues,
    /// What this node asked itself, and was done while an event was handled.
    done_here: Vec<(SlotId, Reply)>,
    /// Requests of nodes that go by a later view.
    ahead: ThoseAhead,
    /// A key's replicas, as they were looked up last.
    replicas: Replicas,
    /// Reads so far, to have all replicas asked once in a while.
    reads: u64,
    /// Repairs under way for which no client waits.
    background: usize,
    /// Writes to this node's store that are under way and that a record which this node has lost
    /// may be above, with that record's greatest time. Empty unless the node lacks something.
    overtaken: BTreeMap<OpId, u64>,
    /// Steps of rounds of which something is being stored.
    proving: BTreeSet<OpId>,
    /// Votes that are being stored, and what is to be said then.
    voting: BTreeMap<OpId, VoteReply>,
    next_sweep: u64,
}

impl Coordinator {
    /// A coordinator without requests.
    pub fn new(shared: Arc<Shared>, config: Config) -> Self {
        let view = Rc::new(View::clone(&shared.view()));
        let slots = Slots::default();
        Self {
            shared,
            view,
            config,
            slots,
            hints: Hints::default(),
            peers: PeerLatencies::default(),
            acceptor: Acceptor::default(),
            queues: Queues::default(),
            done_here: Vec::new(),
            ahead: ThoseAhead::default(),
            replicas: Replicas::default(),
            reads: 0,
            background: 0,
            overtaken: BTreeMap::new(),
            proving: BTreeSet::new(),
            voting: BTreeMap::new(),
            next_sweep: 0,
        }
    }

    /// Handles one event; appends what is to be done to `out`.
    pub fn handle(&mut self, now: Now, event: Event, out: &mut Vec<Effect>) {
        if self.view.epoch != self.shared.views.epoch() {
            self.look_at_views(now, out);
        }
        match event {
            Event::Get { client, quorum, .. }
            | Event::Write { client, quorum, .. }
            | Event::Change { client, quorum, .. }
                if self.shared.membership.is_fenced() =>
            {
                let is_write = !matches!(event, Event::Get { .. });
                out.push(fenced(now, client, quorum.by(&self.view.topology), is_write));
            }
            Event::Get { client, key, quorum } => self.get(now, client, key, quorum, out),
            Event::Write { client, key, record, quorum } => {
                self.write(now, client, key, record, quorum, out);
            }
            Event::Change { client, key, conditional, quorum, id } => {
                self.change(now, client, (key, id), conditional, quorum, out);
            }
            Event::Recalled { op, result } => self.was_recalled(now, op, result, out),
            Event::Call { call, node, class, request } => {
                self.call(now, call, node, class, request, out);
            }
            Event::Read { op, result } => self.was_read(now, op, result, out),
            Event::Outlined { op, outline } => self.outlined(now, op, outline, out),
            Event::Written { op, result } => self.was_written(now, op, result, out),
            Event::Paged { op, result } => self.was_scanned(op, result.map(Reply::Page), out),
            Event::Compared { op, result } => {
                self.was_scanned(op, result.map(Reply::Compared), out);
            }
            Event::Up(peer) => self.up(peer),
            Event::Lost(peer) => self.lost(now, peer, out),
            Event::Unreachable(peer) => self.unreachable(now, peer, out),
            Event::Overflow { peer, id } => self.overflow(now, peer, SlotId(id), out),
            Event::Reply { peer, id, reply } => self.replied(now, peer, SlotId(id), reply, out),
            Event::Request { connection, id, class, remaining_ms, under, request } => {
                let demand = self.demand_of(now, class, remaining_ms);
                self.requested(now, connection, id, demand, (under, request), out);
            }
            Event::Hinted { hint, kept } => self.hinted(hint, kept),
            Event::Tick => self.tick(now, out),
        }
        loop {
            if let Some((id, reply)) = self.done_here.pop() {
                self.replied(now, self.shared.own, id, reply, out);
            } else if !self.accepts_after_others(now, out) && !self.begin_next(now, out) {
                return;
            }
        }
    }

    /// When [`Event::Tick`] is due at the latest, by the monotonic clock; `None` = nothing waits.
    pub fn next_wake(&mut self) -> Option<u64> {
        if self.slots.is_empty() && self.acceptor.is_empty() && self.ahead.is_empty() {
            return None;
        }
        let wakes = [self.slots.next_hedge(), self.acceptor.next_look()];
        wakes.into_iter().flatten().chain([self.next_sweep]).min()
    }

    /// Requests under way.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no request is under way.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn tick(&mut self, now: Now, out: &mut Vec<Effect>) {
        while let Some(id) = self.slots.pop_hedge(now.mono) {
            self.hedge(now, id, out);
        }
        if self.acceptor.next_look().is_some_and(|at| at <= now.mono) {
            self.look_again(now, out);
        }
        if now.mono < self.next_sweep {
            return;
        }
        self.next_sweep = now.mono + SWEEP_MICROS;
        self.accepts_no_longer(now);
        self.ahead.drop_late(now);
        if !self.ahead.is_empty() && self.shared.known_disk.acknowledges() {
            self.take_those_ahead(now, out);
        }
        for id in self.slots.ids(|slot| slot.deadline <= now.mono) {
            self.expire(now, id, out);
        }
    }

    /// It is looked at a request that is late, or waited.
    fn hedge(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.find(id).filter(|slot| !slot.is_answered()) else { return };
        match &slot.work {
            Work::Read(_) => self.hedge_read(now, id, out),
            Work::Change(_) => self.change_again(now, id, out),
            Work::Write(_) | Work::Call(_) => unreachable!("{id:?} is never hedged"),
        }
    }

    /// A slot's deadline is over: whoever waits is answered, and the slot is freed.
    fn expire(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        match &mut self.slots.get_mut(id).work {
            Work::Read(read) => {
                if !read.is_answered() {
                    read.fall_silent();
                }
                self.end_read(id, out);
            }
            Work::Write(write) => {
                if !write.is_answered() {
                    write.fall_silent();
                }
                self.end_write(id, out);
            }
            Work::Change(_) => self.end_change(now, id, out),
            Work::Call(_) => self.end_call(id, Err(FailureKind::TooFew), out),
        }
    }
}
