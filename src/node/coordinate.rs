//! Drives one loop's protocol instance ([`server::Loop`]). The driver passes events of clients,
//! other nodes, the store and timers to it, and carries out its effects.
//!
//! ```text
//!  http ──▶ ask ──▶ ┌events┐ ──▶ server::Loop ──▶ driver ─┬─▶ the store: reads at once or by the
//!   ▲               └──────┘                            │    read pool, writes as a batch
//!   └── answers      ▲   ▲                              ├─▶ peers
//!                    │   └──────── results ◀────────────┘
//!                    └─ time
//! ```
//!
//! Everything runs on one thread, one event after the other. An event that arrives while the loop
//! handles another event is queued.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lsm::{Batch, Engine, Lookup, ReadMode, Space};
use protocol::{
    Answer, AskedQuorum, Body, CallId, Class, ClientId, CompareRequest, Conditional, ConnectionId,
    Damage, Demand, Event, FailureKind, Message, NodeId, Now, OpId, PageRequest, Record, Reply,
    Request, StoreError,
};
use server::identity::OwnRecords;
use server::link::MessageReservation;
use server::{
    Driver, Loop, Outcome, StoreRead, TaskEvent, WriteBatcher, WritePurpose, store_error,
};
use slab::Slab;
use tokio::task::spawn_local;
use tokio::time::{Instant as TokioInstant, sleep, sleep_until};

use crate::counters::clocks;
use crate::counters::memory_budget::MemoryReservation;
use crate::node::reads::ReadError;
use crate::node::requests::Requests;
use crate::node::task::{dispatch, off_the_loop};
use crate::settings::memory::{LONG_RECORD, longest_wait};

/// A read stops waiting for memory early, by 1/`ANSWER_SHARE` of the deadline. So the answer with
/// the reason still reaches the client in time.
const ANSWER_SHARE: u32 = 8;

const NO_ROOM: &str = "the memory for responses is in use";

const QUEUE_FULL: &str = "the read queue is full (--queue)";

/// An event for the loop.
#[derive(Debug)]
enum LoopEvent {
    /// A protocol event.
    Event(Event),
    /// A client's write of a record, which has this node's version.
    Write(ClientId, (Bytes, Record), AskedQuorum),
    /// The result of a read that had to wait. The read's target includes its limit in bytes.
    Read(OpId, StoreRead, Result<Option<Record>, StoreError>),
    /// The outcome of a batched write.
    Written(WritePurpose, Outcome),
    /// The outcome of a write of the node's own records.
    Kept(OpId, OwnRecords, Result<(), lsm::Error>),
    /// A timer has expired.
    Wake,
}

/// The state of a task that waits for one result.
#[derive(Debug)]
enum ReplyWaiter<T> {
    /// The result has not arrived. The waker is set after the first poll.
    Waiting(Option<Waker>),
    Done(T),
    /// The waiter was dropped before the result arrived.
    Abandoned,
}

/// All tasks that wait for results of one kind.
#[derive(Debug)]
struct PendingRequests<T>(RefCell<Slab<ReplyWaiter<T>>>);

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self(RefCell::new(Slab::new()))
    }
}

impl<T> PendingRequests<T> {
    /// Opens a slot for one waiter.
    fn open(&self) -> ReplySlot<'_, T> {
        let number = self.0.borrow_mut().insert(ReplyWaiter::Waiting(None)) as u64;
        ReplySlot { pending: self, number, taken: false }
    }

    fn complete(&self, number: u64, with: T) {
        let mut waiting = self.0.borrow_mut();
        let place = &mut waiting[number as usize];
        match std::mem::replace(place, ReplyWaiter::Done(with)) {
            ReplyWaiter::Waiting(Some(waker)) => {
                drop(waiting);
                waker.wake();
            }
            ReplyWaiter::Waiting(None) => {}
            ReplyWaiter::Abandoned => drop(waiting.remove(number as usize)),
            ReplyWaiter::Done(_) => unreachable!("everything is answered once"),
        }
    }

    fn poll(&self, number: u64, cx: &Context<'_>) -> Poll<T> {
        let mut waiting = self.0.borrow_mut();
        let place = &mut waiting[number as usize];
        if let ReplyWaiter::Waiting(waker) = place {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match waiting.remove(number as usize) {
            ReplyWaiter::Done(with) => Poll::Ready(with),
            _ => unreachable!("who polls is not gone"),
        }
    }

    /// Abandons a slot. Does nothing if the result was taken.
    fn leave(&self, number: u64) {
        let mut waiting = self.0.borrow_mut();
        match waiting.get_mut(number as usize) {
            Some(place @ ReplyWaiter::Waiting(_)) => *place = ReplyWaiter::Abandoned,
            Some(ReplyWaiter::Done(_)) => drop(waiting.remove(number as usize)),
            Some(ReplyWaiter::Abandoned) | None => {}
        }
    }
}

/// The slot of a waiting task. A dropped slot is abandoned unless the result was taken.
struct ReplySlot<'a, T> {
    pending: &'a PendingRequests<T>,
    number: u64,
    taken: bool,
}

impl<T> ReplySlot<'_, T> {
    async fn wait(mut self) -> T {
        let with = poll_fn(|cx| self.pending.poll(self.number, cx)).await;
        self.taken = true;
        with
    }
}

impl<T> Drop for ReplySlot<'_, T> {
    fn drop(&mut self) {
        if !self.taken {
            self.pending.leave(self.number);
        }
    }
}

/// A loop's protocol instance, and the tasks that wait for its results.
pub(crate) struct Coordination {
    own: RefCell<Loop>,
    /// Events that arrived while the loop was handling another event.
    waiting: RefCell<VecDeque<LoopEvent>>,
    clients: PendingRequests<Answer>,
    calls: PendingRequests<Result<Reply, FailureKind>>,
    /// Memory reserved for the read that is being dispatched, for the part of this node.
    room: Cell<Option<MemoryReservation>>,
    /// The next wake-up of the ticker, in microseconds of the monotonic clock; `None` = not set.
    armed: Cell<Option<u64>>,
    ticker: RefCell<Option<Waker>>,
}

impl Coordination {
    pub(crate) fn new(own: Loop) -> Self {
        Self {
            own: RefCell::new(own),
            waiting: RefCell::default(),
            clients: PendingRequests::default(),
            calls: PendingRequests::default(),
            room: Cell::default(),
            armed: Cell::new(None),
            ticker: RefCell::default(),
        }
    }

    /// Returns the number of conditional writes whose client or node has not been answered.
    pub(crate) fn unanswered_changes(&self) -> usize {
        self.own.borrow().unanswered_changes()
    }

    /// Moves the ticker's wake-up forward to `wake` if that is sooner. Returns true if it moved, so
    /// that the caller wakes the ticker.
    fn arm(&self, wake: Option<u64>) -> bool {
        let is_sooner = |wake: &u64| self.armed.get().is_none_or(|armed| *wake < armed);
        let Some(sooner) = wake.filter(is_sooner) else { return false };
        self.armed.set(Some(sooner));
        true
    }
}

impl Requests {
    /// Reserves memory for a long value if other reads wait for memory. The reservation precedes
    /// the requests to other nodes, whose work would otherwise be wasted if there is no memory.
    /// Returns `None` if the value needs no reservation, or if the read itself will reserve memory.
    pub(crate) async fn reserve_for_read(
        &self,
        key: &Bytes,
    ) -> Result<Option<MemoryReservation>, ReadError> {
        let node = &self.node;
        let deadline = node.config.deadline;
        if node.answers.wanted_bytes() == 0
            || !matches!(
                node.db.engine().get(Space::Data, key, ReadMode::NonBlocking),
                Ok(Lookup::WouldBlock)
            )
        {
            return Ok(None);
        }
        match node.reads.get(Space::Data, key, 0, deadline).await {
            Ok(Lookup::TooLong(bytes)) => {
                let held = node.answers.wait(bytes, longest_wait(deadline)).await;
                held.map(Some).ok_or(ReadError::NoRoom)
            }
            // The read itself will have any other outcome again.
            _ => Ok(None),
        }
    }

    /// Reads a key without waiting, if this node's store alone decides. Returns `None` if the
    /// caller must use [`Requests::get`].
    pub(crate) fn get_alone(self: &Rc<Self>, key: &[u8], quorum: AskedQuorum) -> Option<Answer> {
        let mut own = self.coordination.own.try_borrow_mut().ok()?;
        own.get_alone(&mut Process(self), key, quorum)
    }

    /// Reads a key. If this node's record is long, its memory is the reservation `room`.
    pub(crate) async fn get(
        self: &Rc<Self>,
        key: Bytes,
        quorum: AskedQuorum,
        room: Option<MemoryReservation>,
    ) -> Answer {
        let slot = self.coordination.clients.open();
        self.coordination.room.set(room);
        self.dispatch(Event::Get { client: ClientId(slot.number), key, quorum });
        drop(self.coordination.room.take());
        slot.wait().await
    }

    /// Writes a record that has this node's version.
    pub(crate) async fn write(
        self: &Rc<Self>,
        key: Bytes,
        record: Record,
        quorum: AskedQuorum,
    ) -> Answer {
        let slot = self.coordination.clients.open();
        self.handle(LoopEvent::Write(ClientId(slot.number), (key, record), quorum));
        slot.wait().await
    }

    /// Changes a value if its condition is true. `id` identifies a write with an idempotency key.
    pub(crate) async fn change(
        self: &Rc<Self>,
        key: Bytes,
        conditional: Conditional,
        quorum: AskedQuorum,
        id: Option<u64>,
    ) -> Answer {
        // A ballot is a version of this node's clock, so the clock must be compared first.
        // If the disk is slow, the clock's bound lags, and the write waits like a plain write. If
        // the wait is too short, the protocol gets no ballot either, and the answer says why.
        let _ = self.version().await;
        let slot = self.coordination.clients.open();
        let client = ClientId(slot.number);
        self.dispatch(Event::Change { client, key, conditional, quorum, id });
        slot.wait().await
    }

    /// Sends one request to one node, and returns its reply.
    pub(crate) async fn call(
        self: &Rc<Self>,
        node: NodeId,
        class: Class,
        request: Request,
    ) -> Result<Reply, FailureKind> {
        let slot = self.coordination.calls.open();
        self.dispatch(Event::Call { call: CallId(slot.number), node, class, request });
        slot.wait().await
    }

    /// Dispatches an event to the loop, and carries out its effects.
    pub(crate) fn dispatch(self: &Rc<Self>, event: Event) {
        self.handle(LoopEvent::Event(event));
    }

    /// Dispatches the outcome of a batched write to the loop.
    pub(crate) fn on_write_result(self: &Rc<Self>, purpose: WritePurpose, outcome: &Outcome) {
        self.handle(LoopEvent::Written(purpose, outcome.clone()));
    }

    fn handle(self: &Rc<Self>, event: LoopEvent) {
        let coordination = &self.coordination;
        let Ok(mut own) = coordination.own.try_borrow_mut() else {
            coordination.waiting.borrow_mut().push_back(event);
            return;
        };
        let driver = &mut Process(self);
        let mut next = Some(event);
        while let Some(event) = next {
            match event {
                LoopEvent::Event(event) => own.handle(driver, event),
                LoopEvent::Write(client, record, quorum) => {
                    own.write(driver, client, record, quorum);
                }
                LoopEvent::Read(op, wanted, result) => own.was_read(driver, op, &wanted, result),
                LoopEvent::Written(purpose, outcome) => {
                    own.on_write_result(driver, purpose, &outcome)
                }
                LoopEvent::Kept(op, keeps, result) => {
                    own.on_own_record_stored(driver, op, &keeps, result)
                }
                LoopEvent::Wake => own.wake(driver),
            }
            next = coordination.waiting.borrow_mut().pop_front();
        }
        let wake = own.next_wake();
        drop(own);
        if coordination.arm(wake)
            && let Some(ticker) = coordination.ticker.borrow_mut().take()
        {
            ticker.wake();
        }
    }

    /// Wakes the loop at its next deadline, or too early: a timer stays armed after its request is
    /// answered, because the next request would arm it again. Never ends.
    pub(crate) async fn tick(self: &Rc<Self>) {
        let coordination = &self.coordination;
        let mut asleep = Box::pin(sleep_until(TokioInstant::now()));
        loop {
            let mut set_for = None;
            poll_fn(|cx| {
                *coordination.ticker.borrow_mut() = Some(cx.waker().clone());
                let wake = coordination.own.borrow_mut().next_wake();
                coordination.arm(wake);
                let Some(armed) = coordination.armed.get() else { return Poll::Pending };
                if set_for.replace(armed) != Some(armed) {
                    asleep.as_mut().reset(clocks::instant(armed).into());
                }
                asleep.as_mut().poll(cx)
            })
            .await;
            self.handle(LoopEvent::Wake);
            coordination.armed.set(None);
        }
    }

    /// Reads a record that requires the disk or a memory reservation, and waits for both. Reads for
    /// this node's clients and for other nodes have separate memory budgets.
    async fn read_patiently(
        &self,
        op: OpId,
        wanted: &StoreRead,
        demand: Demand,
        mut room: Option<MemoryReservation>,
    ) -> Result<Option<Record>, ReadError> {
        let node = &self.node;
        let owner = match op {
            OpId::Slot(_) => &node.answers,
            OpId::Peer { .. } => &node.lent,
        };
        let deadline = clocks::instant(demand.until);
        let left = || deadline.saturating_duration_since(Instant::now());
        let (space, key) = wanted.place();
        loop {
            let within = room.as_ref().map_or(0, MemoryReservation::bytes);
            match node.reads.get(space, key, within, left()).await? {
                Lookup::Found(mut record) => {
                    if let Some(mut held) = room.filter(|_| record.byte_len() > LONG_RECORD) {
                        held.shrink(record.byte_len());
                        record = record.relocate(|bytes| held.keep(bytes));
                    }
                    return Ok(Some(record));
                }
                Lookup::Absent => return Ok(None),
                Lookup::TooLong(bytes) => {
                    // Releases the current reservation before it waits for a larger one.
                    drop(room.take());
                    let max_wait = left().saturating_sub(node.config.deadline / ANSWER_SHARE);
                    room = Some(owner.wait(bytes, max_wait).await.ok_or(ReadError::NoRoom)?);
                }
                Lookup::WouldBlock => unreachable!("the pool may wait"),
            }
        }
    }

    /// Reserves memory for a long record, then asks another node for it.
    fn fetch(self: &Rc<Self>, peer: NodeId, mut message: Message, most: usize, left: Duration) {
        let this = Rc::clone(self);
        spawn_local(async move {
            let (id, asked) = (message.id, Instant::now());
            let max_wait = left.saturating_sub(this.node.config.deadline / ANSWER_SHARE);
            let Some(room) = this.node.answers.wait(most, max_wait).await else {
                return this.dispatch(Event::MessageDropped { peer, id });
            };
            // The request carries the remaining time, because the other node waits for memory too.
            let left = left.saturating_sub(asked.elapsed());
            if let Body::Request { remaining_ms, .. } = &mut message.body {
                *remaining_ms = left.as_millis() as u32;
            }
            this.peers.fetch(peer, message, room);
            // After `left` no request waits for the reply.
            sleep(left).await;
            drop(this.peers.take_reservation(peer, id));
        });
    }
}

/// This process as the driver of a loop and of the node's task.
pub(crate) struct Process<'a>(pub(crate) &'a Rc<Requests>);

impl WriteBatcher for Process<'_> {
    fn now(&self) -> Now {
        clocks::now()
    }

    fn write(
        &mut self,
        bytes: usize,
        purpose: WritePurpose,
        fill: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome {
        self.0.writes.add(bytes, purpose, fill)
    }
}

impl Driver for Process<'_> {
    fn engine(&self) -> &Engine {
        self.0.node.db.engine()
    }

    fn try_get(&mut self, space: Space, key: &[u8]) -> Result<Lookup, lsm::Error> {
        self.engine().get(space, key, ReadMode::NonBlocking)
    }

    fn read(&mut self, op: OpId, wanted: StoreRead, demand: Demand) {
        let this = Rc::clone(self.0);
        let room = this.coordination.room.take();
        spawn_local(async move {
            let result = match this.read_patiently(op, &wanted, demand, room).await {
                // The caller notices the expired deadline itself.
                Err(ReadError::Deadline) => return,
                Err(ReadError::QueueFull) => Err(StoreError::Busy(QUEUE_FULL)),
                Err(ReadError::NoRoom) => Err(StoreError::Busy(NO_ROOM)),
                Err(ReadError::Store(error)) => Err(store_error(&error)),
                Ok(record) => Ok(record),
            };
            this.handle(LoopEvent::Read(op, wanted, result));
        });
    }

    fn page(&mut self, op: OpId, request: PageRequest, demand: Demand) {
        let until = clocks::instant(demand.until);
        let page = self.0.node.reads.page(op, request, demand.class, until);
        let this = Rc::clone(self.0);
        spawn_local(async move {
            // An error means that no request waits for the page, or that the node stops.
            if let Ok(result) = page.await {
                this.dispatch(Event::PageRead { op, result });
            }
        });
    }

    fn compare(&mut self, op: OpId, request: CompareRequest, demand: Demand) {
        let until = clocks::instant(demand.until);
        let compared = self.0.node.reads.compare(request, demand.class, until);
        let this = Rc::clone(self.0);
        spawn_local(async move {
            // An error means that no request waits for the result, or that the node stops.
            if let Ok(result) = compared.await {
                this.dispatch(Event::Compared { op, result });
            }
        });
    }

    fn discard(&mut self, op: OpId, ranges: Vec<Damage>) {
        let this = Rc::clone(self.0);
        spawn_local(async move {
            let node = std::sync::Arc::clone(&this.node);
            // Fails only when the runtime ends.
            let discarded = off_the_loop(move || server::discard(node.db.engine(), &ranges));
            if let Ok(result) = discarded.await {
                this.dispatch(Event::Written { op, result });
            }
        });
    }

    fn keep(&mut self, op: OpId, batch: Batch, keeps: OwnRecords) {
        let this = Rc::clone(self.0);
        spawn_local(async move {
            let node = std::sync::Arc::clone(&this.node);
            // Fails only when the runtime ends.
            if let Ok(result) = off_the_loop(move || node.db.commit(batch)).await {
                this.handle(LoopEvent::Kept(op, keeps, result));
            }
        });
    }

    fn send(&mut self, peer: NodeId, message: Message) {
        match longest_reply(&message) {
            Some((most, left)) if most > LONG_RECORD => self.0.fetch(peer, message, most, left),
            _ => self.0.peers.send(peer, message),
        }
    }

    fn respond(&mut self, connection: ConnectionId, id: u64, reply: Reply) {
        self.0.peers.respond(connection, id, reply);
    }

    fn answer(&mut self, client: ClientId, answer: Answer) {
        self.0.coordination.clients.complete(client.0, answer);
    }

    fn return_call(&mut self, call: CallId, result: Result<Reply, FailureKind>) {
        self.0.coordination.calls.complete(call.0, result);
    }

    fn accept(&mut self, key: &Bytes, record: &Record) {
        let node = &self.0.node;
        node.quotas.accept(&node.shared, node.db.engine(), key, record);
    }

    fn send_to_task(&mut self, event: TaskEvent) {
        let node = Arc::clone(&self.0.node);
        spawn_local(async move { dispatch(&node, event).await });
    }
}

/// Returns the maximum length of the record in the reply to a request, and the time that remains
/// for the reply. `None` if the message is a reply, or a request for something other than a record.
fn longest_reply(message: &Message) -> Option<(usize, Duration)> {
    match &message.body {
        Body::Request { remaining_ms, request, .. } => {
            let most = request.most()? as usize;
            Some((most, Duration::from_millis(u64::from(*remaining_ms))))
        }
        Body::Reply(_) => None,
    }
}
