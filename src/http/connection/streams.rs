//! HTTP/2: many requests on one connection, each in a stream of its own.
//!
//! ```text
//!  connection's watch: its place, idle or busy, whether the socket takes more
//!     ├── stream's watch: pace of its body, of its answer; its memory ─ gives way ─▶ reset
//!     └── stream's watch …        the first has the connection's place, each other one another
//! ```
//!
//! A stream lives until its answer is in the connection's write buffer, or it is reset: until then
//! its memory is taken.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use super::{Phase, UNREAD_TICKS, WRITE_WINDOW_BYTES, Watch};
use crate::http::Service;
use crate::node::places::Place;

/// Streams of a loop at once that found no place: they are refused by an answer, or are probes.
/// More are reset, which needs no memory.
const MOST_UNPLACED: usize = 64;

/// Watches of one loop, in no order.
#[derive(Debug, Default)]
pub(crate) struct Watches(RefCell<Vec<Rc<Watch>>>);

impl Watches {
    pub(crate) fn add(&self, watch: &Rc<Watch>) {
        let mut watches = self.0.borrow_mut();
        watch.index.set(watches.len());
        watches.push(Rc::clone(watch));
    }

    pub(crate) fn remove(&self, watch: &Watch) {
        let mut watches = self.0.borrow_mut();
        let index = watch.index.get();
        watches.swap_remove(index);
        if let Some(moved) = watches.get(index) {
            moved.index.set(index);
        }
    }

    pub(crate) fn all(&self) -> Ref<'_, Vec<Rc<Watch>>> {
        self.0.borrow()
    }
}

/// What a connection knows of its streams.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Streams {
    /// All of them.
    open: usize,
    /// Those that have a place.
    placed: usize,
    /// Places that they took beside the connection's.
    places: usize,
}

/// What a stream's watch has besides.
#[derive(Debug)]
pub(super) struct Parent {
    pub(super) connection: Rc<Watch>,
    is_placed: bool,
    /// Whether its task has ended: what is left of its answer can't be taken back alone.
    pub(super) is_over: Cell<bool>,
    /// Pieces of its answer that are not all in the connection's write buffer.
    owed: Cell<usize>,
    /// Of [`Watch::written`], what was so when the window began.
    window_began: Cell<u64>,
    /// Whom to wake when nothing is owed any more.
    waiting: RefCell<Option<Waker>>,
}

impl Parent {
    /// Whether what is on its way can't be taken back without the connection, which takes no more.
    pub(super) fn is_stuck(&self) -> bool {
        let connection = &self.connection;
        let blocked = connection.write_blocked.get();
        blocked.is_some_and(|since| connection.now.get().wrapping_sub(since) >= UNREAD_TICKS)
    }
}

/// A stream, for as long as anything of it is left.
pub(crate) struct Stream {
    watch: Rc<Watch>,
    service: Rc<Service>,
}

impl Stream {
    /// The client has opened one. It may be given up already, for there are too many.
    pub(crate) fn begin(service: &Rc<Service>, connection: &Rc<Watch>) -> Rc<Self> {
        let mut streams = connection.streams.get().unwrap_or_default();
        // The first has the connection's own place.
        let is_next = streams.placed > streams.places;
        if is_next && service.limits().places.enter_again() {
            streams.places += 1;
        }
        let is_placed = streams.placed <= streams.places;
        streams.placed += usize::from(is_placed);
        streams.open += 1;
        connection.streams.set(Some(streams));
        connection.phase.set(Phase::Busy);
        let parent = Parent {
            connection: Rc::clone(connection),
            is_placed,
            is_over: Cell::new(false),
            owed: Cell::new(0),
            window_began: Cell::new(0),
            waiting: RefCell::default(),
        };
        let watch = Watch::made(Rc::clone(&connection.now), Place::Client, Some(parent));
        watch.security.set(connection.security.get());
        watch.client.set(connection.client.get());
        service.streams.add(&watch);
        if !is_placed && service.unplaced.replace(service.unplaced.get() + 1) >= MOST_UNPLACED {
            watch.give_up();
        }
        Rc::new(Self { watch, service: Rc::clone(service) })
    }

    pub(crate) fn watch(&self) -> &Rc<Watch> {
        &self.watch
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.service.streams.remove(&self.watch);
        let Some(parent) = &self.watch.parent else { return };
        let connection = &parent.connection;
        let mut streams = connection.streams.get().unwrap_or_default();
        streams.open -= 1;
        if parent.is_placed {
            streams.placed -= 1;
        } else {
            self.service.unplaced.set(self.service.unplaced.get() - 1);
        }
        if streams.places > streams.placed.saturating_sub(1) {
            streams.places -= 1;
            self.service.limits().places.leave(Place::Client);
        }
        connection.streams.set(Some(streams));
        if streams.open == 0 {
            connection.enter(Phase::Idle);
        }
    }
}

/// A piece of a stream's answer on its way into the connection's write buffer.
pub(crate) struct Owed(Rc<Stream>);

impl Owed {
    pub(crate) fn new(stream: &Rc<Stream>) -> Self {
        let watch = &stream.watch;
        if let Some(parent) = &watch.parent
            && parent.owed.replace(parent.owed.get() + 1) == 0
        {
            watch.write_blocked.set(Some(watch.now.get()));
            parent.window_began.set(watch.written.get());
        }
        Self(Rc::clone(stream))
    }

    /// So much of it is there.
    pub(crate) fn paid(&self, bytes: usize) {
        let watch = &self.0.watch;
        let Some(parent) = &watch.parent else { return };
        let written = watch.written.get() + bytes as u64;
        watch.written.set(written);
        if written >= parent.window_began.get() + WRITE_WINDOW_BYTES {
            watch.write_blocked.set(Some(watch.now.get()));
            parent.window_began.set(written);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let watch = &self.0.watch;
        let Some(parent) = &watch.parent else { return };
        parent.owed.set(parent.owed.get() - 1);
        if parent.owed.get() == 0 {
            watch.write_blocked.set(None);
            if let Some(waiting) = parent.waiting.take() {
                waiting.wake();
            }
        }
    }
}

impl Watch {
    /// The connection speaks HTTP/2.
    pub(crate) fn speak_http2(&self) {
        self.streams.set(Some(Streams::default()));
    }

    /// The connection: this one, or whose stream it is.
    pub(crate) fn connection(&self) -> &Self {
        self.parent.as_ref().map_or(self, |parent| &parent.connection)
    }

    /// Whether it is a stream's.
    pub(crate) fn is_stream(&self) -> bool {
        self.parent.is_some()
    }

    /// Whether it has a place, be it a guest's.
    pub(crate) fn is_placed(&self) -> bool {
        self.parent.as_ref().is_none_or(|parent| parent.is_placed)
    }

    /// A piece of a stream's body came. (Of a connection, the socket has seen it.)
    pub(crate) fn saw_piece(&self, bytes: usize) {
        if self.parent.is_some() {
            self.saw_body(bytes);
        }
    }

    /// The stream's task has ended.
    pub(crate) fn is_over(&self) {
        if let Some(parent) = &self.parent {
            parent.is_over.set(true);
        }
    }

    /// Whether pieces of the stream's answer are on their way; if so, who asks is woken when none
    /// are.
    pub(crate) fn owes(&self, cx: &Context<'_>) -> bool {
        let Some(parent) = &self.parent else { return false };
        if parent.owed.get() > 0 {
            parent.waiting.replace(Some(cx.waker().clone()));
        }
        parent.owed.get() > 0
    }

    /// The client is told that its HTTP/2 connection ends once its requests are answered.
    pub(crate) fn leave(&self) {
        let connection = self.connection();
        if !connection.leaving.replace(true) {
            if connection.phase.get() == Phase::Head || connection.phase.get() == Phase::Idle {
                connection.enter(Phase::Idle);
            }
            connection.wake();
        }
    }

    /// Whether it was.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }
}
