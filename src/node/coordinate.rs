//! Carries out what a loop's coordinator wants done, and tells it what came of it.
//!
//! ```text
//!  http ──▶ ask ──▶ ┌ events ┐ ──▶ cluster::Coordinator ──▶ effects ─┬─▶ the store: now, or by the
//!   ▲               └────────┘                                      │    read pool, or as a batch
//!   └── answers       ▲    ▲                                        ├─▶ peers
//!                     │    └──────────── what came of it ◀──────────┘
//!                     └─ time
//! ```
//!
//! Everything in here happens on one thread, one event after the other: an effect that is done at
//! once puts its event into the queue, and never calls back into the coordinator.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{
    Answer, Body, CallId, Class, ClientId, Coordinator, Demand, Effect, Event, HintId, Message,
    NodeId, Now, OpId, PageRequest, Quorum, Reply, Request, StoreError, Trouble,
};
use lsm::{Lookup, Space};
use slab::Slab;
use tokio::time::{Instant as TokioInstant, sleep_until};

use crate::node::backlog::WRITE_OVERHEAD;
use crate::node::budget::Held;
use crate::node::caretaker;
use crate::node::clock::wall_micros;
use crate::node::hints;
use crate::node::reads::ReadError;
use crate::node::records;
use crate::node::writes::WriteError;
use crate::runtime::event_loop::EventLoop;
use crate::settings::memory::{LONG_RECORD, longest_wait};

/// A read gives up waiting for memory this part of the deadline before it, so that it can be said.
const ANSWER_SHARE: u32 = 8;

/// The same of a read for another node.
const LENT_SHARE: u32 = 2;

const NO_ROOM: &str = "too many bytes are being sent";

const QUEUE_FULL: &str = "too many reads wait for the disk (--queue)";

/// What a write to the store was for.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The coordinator waits for it. The time of a newer record that is held is known before.
    Op(OpId, Option<u64>),
    /// A hint.
    Hint(HintId),
    /// Nobody waits.
    Nothing,
}

/// Somebody who waits for one thing.
#[derive(Debug)]
enum Waiting<T> {
    /// Not polled yet, or polled with this waker.
    For(Option<Waker>),
    Done(T),
    /// Nobody waits any more.
    Gone,
}

/// All who wait for things of one kind.
#[derive(Debug)]
struct Desk<T>(RefCell<Slab<Waiting<T>>>);

impl<T> Default for Desk<T> {
    fn default() -> Self {
        Self(RefCell::new(Slab::new()))
    }
}

impl<T> Desk<T> {
    fn open(&self) -> u64 {
        self.0.borrow_mut().insert(Waiting::For(None)) as u64
    }

    fn done(&self, number: u64, with: T) {
        let mut waiting = self.0.borrow_mut();
        let place = &mut waiting[number as usize];
        match std::mem::replace(place, Waiting::Done(with)) {
            Waiting::For(Some(waker)) => {
                drop(waiting);
                waker.wake();
            }
            Waiting::For(None) => {}
            Waiting::Gone => drop(waiting.remove(number as usize)),
            Waiting::Done(_) => unreachable!("everything is answered once"),
        }
    }

    fn poll(&self, number: u64, cx: &Context<'_>) -> Poll<T> {
        let mut waiting = self.0.borrow_mut();
        let place = &mut waiting[number as usize];
        if let Waiting::For(waker) = place {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match waiting.remove(number as usize) {
            Waiting::Done(with) => Poll::Ready(with),
            _ => unreachable!("who polls is not gone"),
        }
    }

    /// Gives up waiting; nothing happens if it was done and taken.
    fn leave(&self, number: u64) {
        let mut waiting = self.0.borrow_mut();
        match waiting.get_mut(number as usize) {
            Some(place @ Waiting::For(_)) => *place = Waiting::Gone,
            Some(Waiting::Done(_)) => drop(waiting.remove(number as usize)),
            Some(Waiting::Gone) | None => {}
        }
    }
}

/// Leaves a desk unless what was waited for came.
struct Place<'a, T> {
    desk: &'a Desk<T>,
    number: u64,
    taken: bool,
}

impl<T> Place<'_, T> {
    async fn wait(mut self) -> T {
        let with = poll_fn(|cx| self.desk.poll(self.number, cx)).await;
        self.taken = true;
        with
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        if !self.taken {
            self.desk.leave(self.number);
        }
    }
}

/// A loop's coordinator and those who wait for it.
pub(crate) struct Coordination {
    machine: RefCell<Coordinator>,
    events: RefCell<VecDeque<Event>>,
    effects: Cell<Vec<Effect>>,
    running: Cell<bool>,
    clients: Desk<Answer>,
    calls: Desk<Result<Reply, Trouble>>,
    /// Memory of the read that is begun, for this node's part in it.
    room: Cell<Option<Held>>,
    begun: Instant,
    /// When the ticker wakes next, in microseconds after `begun`.
    armed: Cell<Option<u64>>,
    ticker: RefCell<Option<Waker>>,
}

impl Coordination {
    pub(crate) fn new(machine: Coordinator) -> Self {
        Self {
            machine: RefCell::new(machine),
            events: RefCell::default(),
            effects: Cell::default(),
            running: Cell::new(false),
            clients: Desk::default(),
            calls: Desk::default(),
            room: Cell::default(),
            begun: Instant::now(),
            armed: Cell::new(None),
            ticker: RefCell::default(),
        }
    }

    /// Until when somebody waits for what the store is to do.
    fn when(&self, demand: Demand) -> Instant {
        self.begun + Duration::from_micros(demand.until)
    }

    fn now(&self) -> Now {
        Now { mono: self.begun.elapsed().as_micros() as u64, wall: wall_micros() }
    }
}

impl EventLoop {
    /// Until when somebody waits for what the store is to do.
    pub(crate) fn until(&self, demand: Demand) -> Instant {
        self.coordination.when(demand)
    }

    /// The time, as the protocol's machines of this loop take it.
    pub(crate) fn now(&self) -> Now {
        self.coordination.now()
    }

    /// Memory for a long value, while others wait for some: it is to be had before anybody is asked
    /// for the value, or what that takes of other nodes may be in vain. `None` = none is needed, or
    /// the read will see to it.
    pub(crate) async fn room_for(&self, key: &Bytes) -> Result<Option<Held>, ReadError> {
        let node = &self.node;
        let deadline = node.config.deadline;
        if node.answers.wanted() == 0
            || !matches!(node.db.try_get(Space::Data, key), Ok(Lookup::WouldBlock))
        {
            return Ok(None);
        }
        match node.reads.get(key, 0, deadline).await {
            Ok(Lookup::TooLong(bytes)) => {
                let held = node.answers.wait(bytes, longest_wait(deadline)).await;
                held.map(Some).ok_or(ReadError::NoRoom)
            }
            // Whatever it is, the read will meet it too.
            _ => Ok(None),
        }
    }

    /// Reads a key, into `room` if this node holds a long value.
    pub(crate) async fn get(
        self: &Rc<Self>,
        key: Bytes,
        quorum: Quorum,
        room: Option<Held>,
    ) -> Answer {
        let number = self.coordination.clients.open();
        let place = Place { desk: &self.coordination.clients, number, taken: false };
        self.coordination.room.set(room);
        self.happen(Event::Get { client: ClientId(number), key, quorum });
        drop(self.coordination.room.take());
        place.wait().await
    }

    /// Writes a record that has this node's stamp.
    pub(crate) async fn write(
        self: &Rc<Self>,
        key: Bytes,
        record: cluster::Record,
        quorum: Quorum,
    ) -> Answer {
        let number = self.coordination.clients.open();
        let place = Place { desk: &self.coordination.clients, number, taken: false };
        self.happen(Event::Write { client: ClientId(number), key, record, quorum });
        place.wait().await
    }

    /// Asks one node for one thing.
    pub(crate) async fn call(
        self: &Rc<Self>,
        node: NodeId,
        class: Class,
        request: Request,
    ) -> Result<Reply, Trouble> {
        let number = self.coordination.calls.open();
        let place = Place { desk: &self.coordination.calls, number, taken: false };
        self.happen(Event::Call { call: CallId(number), node, class, request });
        place.wait().await
    }

    /// Tells the coordinator what happened, and does what it wants done.
    pub(crate) fn happen(self: &Rc<Self>, event: Event) {
        let coordination = &self.coordination;
        coordination.events.borrow_mut().push_back(event);
        if coordination.running.replace(true) {
            return;
        }
        let mut effects = coordination.effects.take();
        while let Some(event) = { coordination.events.borrow_mut().pop_front() } {
            let now = coordination.now();
            coordination.machine.borrow_mut().handle(now, event, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect);
            }
        }
        coordination.effects.set(effects);
        coordination.running.set(false);
        let wake = coordination.machine.borrow_mut().next_wake();
        let sooner = |wake: u64| coordination.armed.get().is_none_or(|armed| wake < armed);
        if wake.is_some_and(sooner)
            && let Some(ticker) = coordination.ticker.borrow_mut().take()
        {
            ticker.wake();
        }
    }

    /// Tells the coordinator that time passes. Never ends.
    pub(crate) async fn tick(self: &Rc<Self>) {
        let coordination = &self.coordination;
        let mut sleep = Box::pin(sleep_until(TokioInstant::now()));
        loop {
            poll_fn(|cx| {
                *coordination.ticker.borrow_mut() = Some(cx.waker().clone());
                let wake = coordination.machine.borrow_mut().next_wake();
                coordination.armed.set(wake);
                let Some(wake) = wake else { return Poll::Pending };
                let at = coordination.begun + Duration::from_micros(wake);
                sleep.as_mut().reset(at.into());
                sleep.as_mut().poll(cx)
            })
            .await;
            self.happen(Event::Tick);
        }
    }

    fn perform(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Read { op, key, most, demand } => self.read(op, key, most, demand),
            Effect::Write { op, key, record, look, demand } => {
                self.store(op, key, record, look, demand);
            }
            // Refused at once where a client's write would wait: it is sent again.
            Effect::WriteAll { op, items, demand: _ } => self.store_all(op, &items),
            Effect::Page { op, request, demand } => self.page(op, request, demand),
            Effect::Send { peer, message } => match most_of(&message) {
                Some((most, left)) if most > LONG_RECORD => self.fetch(peer, message, most, left),
                _ => self.peers.send(peer, message),
            },
            Effect::Respond { lane, id, reply } => self.peers.respond(lane, id, reply),
            Effect::Answer { client: ClientId(number), answer } => {
                self.coordination.clients.done(number, answer);
            }
            Effect::Returned { call: CallId(number), result } => {
                self.coordination.calls.done(number, result);
            }
            Effect::Hint { hint, peer, key, record } => {
                hints::keep(self, hint, peer, &key, &record);
            }
            Effect::KeepMissed { op, node } => caretaker::keep_missed(self, op, node),
        }
    }

    fn read(self: &Rc<Self>, op: OpId, key: Bytes, most: u32, demand: Demand) {
        let result = match self.node.db.try_get(Space::Data, &key) {
            Ok(Lookup::Found(record)) => Ok(Some(records::from_store(&record))),
            Ok(Lookup::Absent) => Ok(None),
            Ok(Lookup::WouldBlock | Lookup::TooLong(_)) => {
                let this = Rc::clone(self);
                let room = self.coordination.room.take();
                tokio::task::spawn_local(async move {
                    let result = match this.read_patiently(op, &key, demand, room).await {
                        // Whoever asked knows by itself that its time is up.
                        Err(ReadError::Deadline) => return,
                        Err(ReadError::QueueFull) => Err(StoreError::Busy(QUEUE_FULL)),
                        Err(ReadError::NoRoom) => Err(StoreError::Busy(NO_ROOM)),
                        Err(ReadError::Store(error)) => Err(records::store_error(&error)),
                        Ok(record) => Ok(record),
                    };
                    this.was_read(op, result, most);
                });
                return;
            }
            Err(error) => Err(records::store_error(&error)),
        };
        self.was_read(op, result, most);
    }

    fn was_read(
        self: &Rc<Self>,
        op: OpId,
        result: Result<Option<cluster::Record>, StoreError>,
        most: u32,
    ) {
        self.happen(match result {
            Ok(Some(record)) if record.bytes.len() > most as usize => {
                Event::Outlined { op, outline: record.outline() }
            }
            result => Event::Read { op, result },
        });
    }

    /// Reads what needs the disk or has to have room in memory, which is waited for before it is
    /// read. This node's clients and other nodes have memory of their own.
    async fn read_patiently(
        &self,
        op: OpId,
        key: &Bytes,
        demand: Demand,
        mut room: Option<Held>,
    ) -> Result<Option<cluster::Record>, ReadError> {
        let node = &self.node;
        // Another node's time began before, and it has yet to hear that there was no room.
        let (owner, share) = match op {
            OpId::Slot(_) => (&node.answers, ANSWER_SHARE),
            OpId::Lane { .. } => (&node.lent, LENT_SHARE),
        };
        let deadline = self.coordination.when(demand);
        let left = || deadline.saturating_duration_since(Instant::now());
        loop {
            let within = room.as_ref().map_or(0, Held::bytes);
            match node.reads.get(key, within, left()).await? {
                Lookup::Found(record) => {
                    let mut record = records::from_store(&record);
                    if let Some(mut held) = room.filter(|_| record.bytes.len() > LONG_RECORD) {
                        held.shrink(record.bytes.len());
                        record.bytes = held.keep(record.bytes);
                    }
                    return Ok(Some(record));
                }
                Lookup::Absent => return Ok(None),
                Lookup::TooLong(bytes) => {
                    // What is held is given back before more is waited for.
                    drop(room.take());
                    let patience = left().saturating_sub(node.config.deadline / share);
                    room = Some(owner.wait(bytes, patience).await.ok_or(ReadError::NoRoom)?);
                }
                Lookup::WouldBlock => unreachable!("the pool may wait"),
            }
        }
    }

    /// Asks another node for a long record, once there is room for it.
    fn fetch(self: &Rc<Self>, peer: NodeId, message: Message, most: usize, left: Duration) {
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let (id, asked) = (message.id, Instant::now());
            let patience = left.saturating_sub(this.node.config.deadline / ANSWER_SHARE);
            let Some(room) = this.node.answers.wait(most, patience).await else {
                return this.happen(Event::Overflow { peer, id });
            };
            this.peers.fetch(peer, message, room);
            // After that nobody waits for it any more.
            tokio::time::sleep(left.saturating_sub(asked.elapsed())).await;
            drop(this.peers.take_room(peer, id));
        });
    }

    fn store_all(self: &Rc<Self>, op: OpId, items: &[(Bytes, cluster::Record)]) {
        let bytes = items.iter().map(|(k, r)| k.len() + r.bytes.len() + WRITE_OVERHEAD).sum();
        let added = self.writes.add(bytes, Purpose::Op(op, None), |batch| {
            items.iter().try_for_each(|(key, record)| {
                batch.record(Space::Data, key, &records::to_store(record))
            })
        });
        if let Err(error) = added {
            self.happen(Event::Written { op, result: Err(write_error(&error)) });
        }
    }

    /// A write is done, or known not to be.
    pub(crate) fn written(self: &Rc<Self>, purpose: Purpose, outcome: &Result<(), WriteError>) {
        match purpose {
            Purpose::Op(op, newer) => {
                if outcome.is_ok() {
                    self.node.shared.logs.wrote(self.node.db.sequence());
                }
                let result = outcome.as_ref().map(|()| newer).map_err(write_error);
                self.happen(Event::Written { op, result });
            }
            Purpose::Hint(hint) => self.happen(Event::Hinted { hint, kept: outcome.is_ok() }),
            Purpose::Nothing => {}
        }
    }

    fn page(self: &Rc<Self>, op: OpId, request: PageRequest, demand: Demand) {
        let until = self.coordination.when(demand);
        let page = self.node.reads.page(request, demand.class, until);
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let result = match page.await {
                Ok(page) => page.map_err(|error| records::page_error(&error)),
                // Nobody waits for it any more, or the node stops.
                Err(_) => return,
            };
            this.happen(Event::Paged { op, result });
        });
    }
}

/// How long a record a read may be answered with, and how long somebody waits for that.
fn most_of(message: &Message) -> Option<(usize, Duration)> {
    match &message.body {
        Body::Request { remaining_ms, request: Request::Read { most, .. }, .. } => {
            Some((*most as usize, Duration::from_millis(u64::from(*remaining_ms))))
        }
        _ => None,
    }
}

pub(crate) fn write_error(error: &WriteError) -> StoreError {
    match error {
        WriteError::Busy => StoreError::Busy("too many writes wait for the disk"),
        WriteError::Store(error) => records::store_error(error),
    }
}
