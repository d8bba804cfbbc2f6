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
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{
    Answer, CallId, Class, ClientId, Coordinator, Effect, Event, NodeId, Now, OpId, PageRequest,
    Quorum, Reply, Request, StoreError, Trouble,
};
use lsm::{Lookup, Newer, Space};
use slab::Slab;
use tokio::time::{Instant as TokioInstant, sleep_until};

use crate::caretaker;
use crate::clock::wall_micros;
use crate::event_loop::EventLoop;
use crate::hints;
use crate::reads::ReadError;
use crate::records;
use crate::writes::WriteError;

/// What a write takes while it waits, besides key and record.
const WRITE_OVERHEAD: usize = 64;

const QUEUE_FULL: &str = "too many reads wait for the disk (--queue)";

/// What a write to the store was for.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The coordinator waits for it. The time of a newer record that is held is known before.
    Op(OpId, Option<u64>),
    /// A hint.
    Hint(hints::Underway),
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
            begun: Instant::now(),
            armed: Cell::new(None),
            ticker: RefCell::default(),
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.begun.elapsed().as_micros() as u64, wall: wall_micros() }
    }
}

impl EventLoop {
    /// The time, as the protocol's machines of this loop take it.
    pub(crate) fn now(&self) -> Now {
        self.coordination.now()
    }

    /// Reads a key.
    pub(crate) async fn get(self: &Rc<Self>, key: Bytes, quorum: Quorum) -> Answer {
        let number = self.coordination.clients.open();
        let place = Place { desk: &self.coordination.clients, number, taken: false };
        self.happen(Event::Get { client: ClientId(number), key, quorum });
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
            Effect::Read { op, key } => self.read(op, key),
            Effect::Write { op, key, record, look } => self.store(op, &key, &record, look),
            Effect::WriteAll { op, items } => self.store_all(op, &items),
            Effect::Page { op, request } => self.page(op, request),
            Effect::Send { peer, message } => self.peers.send(peer, message),
            Effect::Respond { lane, id, reply } => self.peers.respond(lane, id, reply),
            Effect::Answer { client: ClientId(number), answer } => {
                self.coordination.clients.done(number, answer);
            }
            Effect::Returned { call: CallId(number), result } => {
                self.coordination.calls.done(number, result);
            }
            Effect::Hint { peer, key, record } => hints::keep(self, peer, &key, &record),
            Effect::KeepMissed { op, node } => caretaker::keep_missed(self, op, node),
        }
    }

    fn read(self: &Rc<Self>, op: OpId, key: Bytes) {
        let result = match self.node.db.try_get(Space::Data, &key) {
            Ok(Lookup::Found(record)) => Ok(Some(records::from_store(&record))),
            Ok(Lookup::Absent) => Ok(None),
            Ok(Lookup::WouldBlock) => {
                let this = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    let node = &this.node;
                    let found = node.reads.get(&key, node.config.deadline).await;
                    let found = found.map(|record| record.as_ref().map(records::from_store));
                    let result = match found {
                        Ok(record) => Ok(record),
                        // Whoever asked knows by itself that its time is up.
                        Err(ReadError::Deadline) => return,
                        Err(ReadError::QueueFull) => Err(StoreError::Busy(QUEUE_FULL)),
                        Err(ReadError::Store(error)) => Err(records::store_error(&error)),
                    };
                    this.happen(Event::Read { op, result });
                });
                return;
            }
            Err(error) => Err(records::store_error(&error)),
        };
        self.happen(Event::Read { op, result });
    }

    fn store(self: &Rc<Self>, op: OpId, key: &[u8], record: &cluster::Record, look: bool) {
        let version = records::version(record.rank.stamp);
        let newer = if look { self.newer(key, version) } else { None };
        let bytes = key.len() + record.bytes.len() + WRITE_OVERHEAD;
        let added = self.writes.add(bytes, Purpose::Op(op, newer), |batch| {
            batch.record(Space::Data, key, &records::to_store(record))
        });
        if let Err(error) = added {
            self.happen(Event::Written { op, result: Err(write_error(&error)) });
        }
    }

    /// The time of a newer record's stamp than `version`, or one that is not below it.
    fn newer(&self, key: &[u8], version: lsm::Version) -> Option<u64> {
        match self.node.db.holds_newer(Space::Data, key, version) {
            Ok(Newer::No) => None,
            Ok(Newer::Held(held)) => Some(held.time),
            // An error shows again, and better, when the record is written or read.
            Ok(Newer::WouldBlock) | Err(_) => Some(self.node.shared.newest.load(Ordering::Relaxed)),
        }
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
            Purpose::Hint(hint) => hints::kept(self, &hint, outcome),
            Purpose::Nothing => {}
        }
    }

    fn page(self: &Rc<Self>, op: OpId, request: PageRequest) {
        let page = self.node.reads.page(request);
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let result = match page.await {
                Ok(page) => page.map_err(|error| records::page_error(&error)),
                // The read pool is gone: the node stops.
                Err(_) => Err(StoreError::Busy("the node stops")),
            };
            this.happen(Event::Paged { op, result });
        });
    }
}

fn write_error(error: &WriteError) -> StoreError {
    match error {
        WriteError::Busy => StoreError::Busy("too many writes wait for the disk"),
        WriteError::Store(error) => records::store_error(error),
    }
}
