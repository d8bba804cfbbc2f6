//! Writes that wait for room in this node's store.
//!
//! ```text
//!  store ─▶ into this turn's batch
//!       └─ too much waits for the log, or flushes are behind ─▶ backlog ─▶ a batch, in order
//!                                                                  └ too late ─▶ busy
//! ```
//!
//! A write that its replica refuses at once has been sent to the others already, and what became of
//! it is unknown. So it waits, as long as somebody waits for it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{Demand, Event, OpId, Record};
use lsm::{Newer, Space};
use tokio::sync::Notify;

use crate::node::coordinate::{Purpose, write_error};
use crate::node::records;
use crate::node::writes::WriteError;
use crate::runtime::event_loop::EventLoop;
use crate::settings::memory::LONG_RECORD;

/// What a write takes while it waits, besides key and record.
pub(crate) const WRITE_OVERHEAD: usize = 64;

/// How often it is looked whether there is room: a small part of what a sync takes.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A write gives up this part of the deadline before it, so that its replica can still say so.
const ANSWER_SHARE: u32 = 8;

/// A write for the store.
#[derive(Debug)]
struct Write {
    op: OpId,
    key: Bytes,
    record: Record,
    /// Whether to look if a newer record is held.
    look: bool,
}

impl Write {
    /// Bytes that nobody has set aside: those of a long record have an owner.
    fn unowned(&self) -> usize {
        let record = self.record.bytes.len();
        self.key.len() + WRITE_OVERHEAD + if record > LONG_RECORD { 0 } else { record }
    }
}

/// One loop's writes that wait, the oldest first, and until when.
#[derive(Debug)]
pub(crate) struct Backlog {
    waiting: RefCell<VecDeque<(Write, Instant)>>,
    unowned: Cell<usize>,
    /// Bytes that may wait besides those that have an owner.
    bound: usize,
    came: Notify,
}

impl Backlog {
    pub(crate) fn new(bound: usize) -> Self {
        let (waiting, unowned) = (RefCell::default(), Cell::new(0));
        Self { waiting, unowned, bound, came: Notify::new() }
    }

    fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Keeps a write; `false` if too much waits.
    fn add(&self, write: Write, until: Instant) -> bool {
        let unowned = self.unowned.get() + write.unowned();
        if !self.is_empty() && unowned > self.bound {
            return false;
        }
        self.unowned.set(unowned);
        self.waiting.borrow_mut().push_back((write, until));
        self.came.notify_one();
        true
    }

    fn pop(&self) -> Option<(Write, Instant)> {
        let next = self.waiting.borrow_mut().pop_front()?;
        self.unowned.set(self.unowned.get() - next.0.unowned());
        Some(next)
    }

    fn put_back(&self, write: Write, until: Instant) {
        self.unowned.set(self.unowned.get() + write.unowned());
        self.waiting.borrow_mut().push_front((write, until));
    }
}

impl EventLoop {
    /// Writes a record to this node's store; what comes of it is told as an event.
    pub(crate) fn store(
        self: &Rc<Self>,
        op: OpId,
        key: Bytes,
        record: Record,
        look: bool,
        demand: Demand,
    ) {
        let write = Write { op, key, record, look };
        let result =
            if self.backlog.is_empty() { self.try_store(&write) } else { Err(WriteError::Busy) };
        let result = match result {
            Err(WriteError::Busy) => {
                let until = self.until(demand);
                let answers_in = self.node.config.deadline / ANSWER_SHARE;
                let until = until.checked_sub(answers_in).unwrap_or(until);
                if self.backlog.add(write, until) { Ok(()) } else { Err(WriteError::Busy) }
            }
            result => result,
        };
        if let Err(error) = result {
            self.happen(Event::Written { op, result: Err(write_error(&error)) });
        }
    }

    fn try_store(&self, write: &Write) -> Result<(), WriteError> {
        let Write { op, key, record, look } = write;
        let version = records::version(record.rank.stamp);
        let newer = if *look { self.newer(key, version) } else { None };
        let bytes = key.len() + record.bytes.len() + WRITE_OVERHEAD;
        self.writes.add(bytes, Purpose::Op(*op, newer), |batch| {
            batch.record(Space::Data, key, &records::to_store(record))
        })
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

    /// Stores what waits as soon as there is room. Never ends.
    pub(crate) async fn store_backlog(self: &Rc<Self>) {
        loop {
            if self.backlog.is_empty() {
                self.backlog.came.notified().await;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            self.store_some();
        }
    }

    fn store_some(self: &Rc<Self>) {
        let now = Instant::now();
        while let Some((write, until)) = self.backlog.pop() {
            let op = write.op;
            let result = if until <= now { Err(WriteError::Busy) } else { self.try_store(&write) };
            match result {
                Ok(()) => {}
                Err(WriteError::Busy) if until > now => {
                    return self.backlog.put_back(write, until);
                }
                Err(error) => {
                    self.happen(Event::Written { op, result: Err(write_error(&error)) });
                }
            }
        }
    }
}
