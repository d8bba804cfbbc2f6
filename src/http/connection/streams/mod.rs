//! HTTP/2 streams: many requests on one connection.
//!
//! ```text
//!  connection's watch: its slot, idle or busy, whether the socket takes more, bytes moved
//!     ├── stream's watch: whether client or node waits for the other, the memory that it holds
//!     └── stream's watch …     the first stream has the connection's slot, the others their own
//! ```
//!
//! A stream keeps its memory until its answer is in the connection's write buffer, or the stream is
//! reset. If a stream is answered before its request's body has arrived, it lingers: the node
//! discards further input for a while. An immediate reset would make clients drop the answer.
//!
//! The streams of a connection share its bandwidth. So a stream that waits for its client is too
//! slow only if hardly any bytes move on the whole connection, or if no bytes move on the stream
//! for far longer. While other requests wait for memory, the rate of each long answer counts, as on
//! HTTP/1 connections. While the socket accepts no output, the limits of the connection apply
//! instead of those of its streams.

use std::cell::{Cell, Ref, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hyper::body::{Body as _, Incoming};

use super::{
    BODY_TICKS, BODY_WINDOW_BYTES, ConnectionState, GOAWAY_TICKS, IDLE_TICKS, LINGER_BYTES,
    LINGER_TICKS, Phase, UNREAD_TICKS, WRITE_TICKS, WRITE_WINDOW_BYTES,
};
use crate::http::Service;
use crate::node::connection_slots::ConnectionSlot;

/// Maximum number of a loop's concurrent streams without a slot. A stream without a slot waits for
/// one, is about to be refused, or is a probe. Further streams are reset, which needs no memory.
pub(crate) const MAX_WITHOUT_SLOT: usize = 64;

/// Time after which a stream is reset if no bytes move on it, even if bytes move on other streams.
const NO_PROGRESS_TICKS: u32 = IDLE_TICKS;

/// Number of answer bytes for which the client may send one byte that is not of a request or a
/// body. The acknowledgment of an answer costs at most some 26 bytes per KiB.
const OVERHEAD_SHARE: u64 = 16;

/// The states of one loop's connections or streams, in no order.
#[derive(Debug, Default)]
pub(crate) struct Watches(RefCell<Vec<Rc<ConnectionState>>>);

impl Watches {
    pub(crate) fn add(&self, watch: &Rc<ConnectionState>) {
        let mut watches = self.0.borrow_mut();
        watch.index.set(watches.len());
        watches.push(Rc::clone(watch));
    }

    pub(crate) fn remove(&self, watch: &ConnectionState) {
        let mut watches = self.0.borrow_mut();
        let index = watch.index.get();
        watches.swap_remove(index);
        if let Some(moved) = watches.get(index) {
            moved.index.set(index);
        }
    }

    pub(crate) fn all(&self) -> Ref<'_, Vec<Rc<ConnectionState>>> {
        self.0.borrow()
    }
}

/// A connection's record of its streams.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Streams {
    /// Number of open streams.
    open: usize,
    /// True if one of the streams has the connection's slot.
    is_slot_taken: bool,
    /// Bytes read and written on the connection when the last request or part of a body arrived.
    read: u64,
    written: u64,
}

/// The kind of slot that a stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamSlot {
    /// The slot of the connection, which may be a reserve slot.
    Connections,
    /// A separate client slot, like that of a connection.
    Own,
    /// Without a slot. At most [`MAX_WITHOUT_SLOT`] streams are.
    Spare,
}

/// The part of a stream's state that a connection does not have.
#[derive(Debug)]
pub(super) struct Parent {
    pub(super) connection: Rc<ConnectionState>,
    seat: Cell<StreamSlot>,
    /// True once the stream's task has ended. From then on the rest of its answer can't be
    /// withdrawn without the whole connection.
    pub(super) is_over: Cell<bool>,
    /// Number of the answer's pieces that are not completely in the connection's write buffer.
    owed: Cell<usize>,
    /// Tick at which the current window began. Bytes must move in each window.
    began: Cell<u32>,
    /// Bytes moved on the connection when the window began.
    moved: Cell<u64>,
    /// Tick at which bytes last moved on the stream.
    stirred: Cell<u32>,
    /// Bytes of the answer that were buffered in the stream's own window, and the tick at which
    /// that window began, later by the time in which no piece waited for the client. A window ends
    /// once it has [`WRITE_WINDOW_BYTES`].
    buffered: Cell<u64>,
    buffered_since: Cell<u32>,
    /// Tick at which the last piece of the answer was completely buffered, or at which the window
    /// began since.
    settled: Cell<u32>,
    /// Waker of a task that waits until all pieces of the answer are in the connection's write
    /// buffer.
    waiting: RefCell<Option<Waker>>,
    /// The unread rest of a request body, if the answer is sent before the body has arrived.
    unread: RefCell<Option<Incoming>>,
}

impl Parent {
    fn new(connection: &Rc<ConnectionState>, seat: StreamSlot) -> Self {
        Self {
            connection: Rc::clone(connection),
            seat: Cell::new(seat),
            is_over: Cell::new(false),
            owed: Cell::new(0),
            began: Cell::new(0),
            moved: Cell::new(0),
            stirred: Cell::new(0),
            buffered: Cell::new(0),
            buffered_since: Cell::new(0),
            settled: Cell::new(0),
            waiting: RefCell::default(),
            unread: RefCell::default(),
        }
    }

    /// True if the connection's socket has accepted no output for so long that the stream's data
    /// can be withdrawn only together with the connection.
    pub(super) fn is_stuck(&self) -> bool {
        let connection = &self.connection;
        let blocked = connection.write_blocked.get();
        blocked.is_some_and(|since| connection.now.get().wrapping_sub(since) >= UNREAD_TICKS)
    }

    fn begin_window(&self) {
        self.began.set(self.connection.now.get());
        self.moved.set(self.connection.transferred_bytes());
    }

    fn note_activity(&self) {
        self.stirred.set(self.connection.now.get());
    }

    /// Records that the stream waits for the client from now on.
    pub(super) fn begin_wait(&self) {
        self.begin_window();
        self.note_activity();
        self.begin_answer_window();
    }

    fn begin_answer_window(&self) {
        self.buffered.set(0);
        self.buffered_since.set(self.connection.now.get());
        self.settled.set(self.connection.now.get());
    }

    /// Records that one more piece of the answer waits for the client.
    fn note_piece_waiting(&self) {
        if self.owed.replace(self.owed.get() + 1) > 0 {
            return;
        }
        self.begin_window();
        self.note_activity();
        let waited = self.buffered_since.get().wrapping_sub(self.settled.get());
        self.buffered_since.set(self.connection.now.get().wrapping_add(waited));
    }

    /// Records that a piece of the answer is completely in the connection's write buffer.
    fn note_piece_buffered(&self) {
        self.owed.set(self.owed.get() - 1);
        if self.owed.get() > 0 {
            return;
        }
        self.settled.set(self.connection.now.get());
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }

    /// Records that `bytes` bytes of the answer are in the connection's write buffer.
    fn note_buffered(&self, bytes: usize) {
        self.note_activity();
        self.buffered.set(self.buffered.get() + bytes as u64);
        if self.buffered.get() >= WRITE_WINDOW_BYTES {
            self.begin_answer_window();
        }
    }

    /// True if the client reads the answer so slowly that it may be aborted in favor of others.
    pub(super) fn is_unread(&self) -> bool {
        let now = self.connection.now.get();
        let began = self.connection.write_blocked.get().unwrap_or(self.buffered_since.get());
        self.owed.get() > 0 && now.wrapping_sub(began) >= UNREAD_TICKS
    }

    /// True if the stream has waited too long for the client. `receives` is true if the stream
    /// waits for more of a body.
    pub(super) fn is_too_slow(&self, receives: bool) -> bool {
        if !receives && self.owed.get() == 0 {
            return false;
        }
        if self.connection.write_blocked.get().is_some() {
            self.begin_wait();
            return false;
        }
        let (ticks, bytes) = if receives {
            (BODY_TICKS, u64::from(BODY_WINDOW_BYTES))
        } else {
            (WRITE_TICKS, WRITE_WINDOW_BYTES)
        };
        if self.connection.transferred_bytes() >= self.moved.get() + bytes {
            self.begin_window();
        }
        let now = self.connection.now.get();
        now.wrapping_sub(self.began.get()) >= ticks
            || now.wrapping_sub(self.stirred.get()) >= NO_PROGRESS_TICKS
    }
}

/// The state of a stream, which lives until the stream's tasks and unsent pieces are gone.
pub(crate) struct StreamState {
    watch: Rc<ConnectionState>,
    service: Rc<Service>,
}

impl StreamState {
    /// Creates the state of a stream that the client has opened; `None` if too many streams are
    /// without a slot.
    pub(crate) fn begin(
        service: &Rc<Service>,
        connection: &Rc<ConnectionState>,
    ) -> Option<Rc<Self>> {
        let mut streams = connection.streams.get().unwrap_or_default();
        let seat = if !streams.is_slot_taken {
            streams.is_slot_taken = true;
            StreamSlot::Connections
        } else if service.limits().connection_slots.acquire_for_stream() {
            StreamSlot::Own
        } else if service.without_slot.get() < MAX_WITHOUT_SLOT {
            service.without_slot.set(service.without_slot.get() + 1);
            StreamSlot::Spare
        } else {
            return None;
        };
        streams.open += 1;
        connection.streams.set(Some(streams));
        connection.note_request_data();
        connection.phase.set(Phase::Busy);
        let parent = Parent::new(connection, seat);
        let watch = ConnectionState::with_parent(
            Rc::clone(&connection.now),
            ConnectionSlot::Client,
            Some(parent),
        );
        watch.security.set(connection.security.get());
        watch.client.set(connection.client.get());
        service.streams.add(&watch);
        Some(Rc::new(Self { watch, service: Rc::clone(service) }))
    }

    pub(crate) fn watch(&self) -> &Rc<ConnectionState> {
        &self.watch
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        let service = &self.service;
        service.streams.remove(&self.watch);
        let Some(parent) = &self.watch.parent else { return };
        let connection = &parent.connection;
        let mut streams = connection.streams.get().unwrap_or_default();
        assert!(streams.open > 0, "a stream that ends was open");
        streams.open -= 1;
        match parent.seat.get() {
            StreamSlot::Connections => streams.is_slot_taken = false,
            StreamSlot::Own => service.limits().connection_slots.release(ConnectionSlot::Client),
            StreamSlot::Spare => service.without_slot.set(service.without_slot.get() - 1),
        }
        connection.streams.set(Some(streams));
        if streams.open == 0 && connection.phase.get() == Phase::Busy {
            connection.enter(Phase::Idle);
            if connection.is_in_reserve.get() {
                connection.leave();
            }
        }
    }
}

/// A piece of a stream's answer that is not completely in the connection's write buffer.
pub(crate) struct UnsentPiece(Rc<StreamState>);

impl UnsentPiece {
    pub(crate) fn new(stream: &Rc<StreamState>) -> Self {
        if let Some(parent) = &stream.watch.parent {
            parent.note_piece_waiting();
        }
        Self(Rc::clone(stream))
    }

    /// Records that `bytes` bytes of the piece are in the write buffer.
    pub(crate) fn note_buffered(&self, bytes: usize) {
        if let Some(parent) = &self.0.watch.parent {
            parent.note_buffered(bytes);
        }
    }
}

impl Drop for UnsentPiece {
    fn drop(&mut self) {
        if let Some(parent) = &self.0.watch.parent {
            parent.note_piece_buffered();
        }
    }
}

impl ConnectionState {
    /// Records that the connection uses HTTP/2.
    pub(crate) fn mark_http2(&self) {
        self.streams.set(Some(Streams::default()));
    }

    /// Records that the HTTP/2 connection has ended, which ends all of its streams.
    pub(crate) fn end_streams(&self) {
        self.is_given_up.set(true);
    }

    /// Returns the state of the connection: of this connection, or of this stream's connection.
    pub(crate) fn connection(&self) -> &Self {
        self.parent.as_ref().map_or(self, |parent| &parent.connection)
    }

    /// True if this is the state of a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.parent.is_some()
    }

    /// True if the request has a client slot.
    pub(crate) fn has_slot(&self) -> bool {
        match self.parent.as_ref().map(|parent| parent.seat.get()) {
            Some(StreamSlot::Own) => true,
            Some(StreamSlot::Spare) => false,
            Some(StreamSlot::Connections) | None => !self.is_reserve(),
        }
    }

    /// Takes a client slot if one is free, and returns true if it did. `waited` is true if the
    /// request is registered as waiting, so it takes precedence.
    pub(crate) fn try_take_slot(&self, service: &Service, waited: bool) -> bool {
        let slots = &service.limits().connection_slots;
        let parent = self.parent.as_ref().filter(|parent| parent.seat.get() == StreamSlot::Spare);
        let Some(parent) = parent else {
            let takes = slots.move_to_client_slot();
            if takes {
                self.connection().is_in_reserve.set(false);
            }
            return takes;
        };
        let takes = if waited { slots.acquire_after_wait() } else { slots.acquire_for_stream() };
        if takes {
            parent.seat.set(StreamSlot::Own);
            service.without_slot.set(service.without_slot.get() - 1);
        }
        takes
    }

    /// Returns the number of bytes of answers sent and of bodies received.
    fn transferred_bytes(&self) -> u64 {
        self.written.get() + self.body_bytes.get()
    }

    /// Records that a request or a part of a body arrived.
    fn note_request_data(&self) {
        let Some(streams) = self.streams.get() else { return };
        let (read, written) = (self.read.get(), self.written.get());
        self.streams.set(Some(Streams { read, written, ..streams }));
    }

    /// True if the client sent too many bytes that belong neither to requests nor to bodies: more
    /// than `most`, plus an allowance for acknowledgments.
    pub(crate) fn is_flooding(&self, most: u64) -> bool {
        let Some(streams) = self.streams.get() else { return false };
        let taken = (self.written.get() - streams.written) / OVERHEAD_SHARE;
        self.read.get() - streams.read > most + taken
    }

    /// Records that a piece of a stream's body arrived. (On an HTTP/1 connection, the socket
    /// records it.)
    pub(crate) fn record_body_piece(&self, bytes: usize) {
        if let Some(parent) = &self.parent {
            self.record_body(bytes);
            parent.note_activity();
            let connection = &parent.connection;
            connection.body_bytes.set(connection.body_bytes.get() + bytes as u64);
            connection.note_request_data();
        }
    }

    /// Records that the stream's task has ended.
    pub(crate) fn is_over(&self) {
        if let Some(parent) = &self.parent {
            parent.is_over.set(true);
        }
    }

    /// Stores the unread rest of a body, if the stream's answer is sent before the body has
    /// arrived.
    pub(crate) fn keep_unread_body(&self, rest: Option<Incoming>) {
        if let Some(parent) = &self.parent {
            parent.unread.replace(rest);
        }
    }

    /// Discards the rest of the body of an answered stream, at most [`LINGER_BYTES`] and for at
    /// most [`LINGER_TICKS`].
    pub(crate) async fn linger(&self) {
        let rest = self.parent.as_ref().and_then(|parent| parent.unread.take());
        let Some(mut rest) = rest else { return };
        self.enter(Phase::Linger);
        let mut discarded = 0;
        poll_fn(|cx| {
            self.set_waker(cx.waker());
            while self.phase.get() == Phase::Linger
                && !self.is_given_up()
                && !self.connection().is_given_up()
                && discarded < LINGER_BYTES
            {
                match Pin::new(&mut rest).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        let bytes = frame.data_ref().map_or(0, |data| data.len());
                        discarded += bytes;
                        self.record_body_piece(bytes);
                    }
                    Poll::Ready(Some(Err(_)) | None) => break,
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Ends a stream's lingering after its time limit. The limit is short if the connection is to
    /// end.
    pub(super) fn end_overdue_linger(&self, parent: &Parent) {
        let leaving = parent.connection.leaving.get();
        let most = if leaving { GOAWAY_TICKS } else { LINGER_TICKS };
        let lasted = self.now.get().wrapping_sub(self.since.get());
        if self.phase.get() == Phase::Linger && lasted >= most {
            self.enter(Phase::Idle);
            self.wake();
        }
    }

    /// True if a piece of the stream's answer is not completely in the connection's write buffer.
    /// Then the task of `cx` is woken once all pieces are in the buffer.
    pub(crate) fn has_unsent_pieces(&self, cx: &Context<'_>) -> bool {
        let Some(parent) = &self.parent else { return false };
        if parent.owed.get() > 0 {
            parent.waiting.replace(Some(cx.waker().clone()));
        }
        parent.owed.get() > 0
    }

    /// Starts the end of the HTTP/2 connection: the node sends GOAWAY, and answers open requests.
    pub(crate) fn leave(&self) {
        let connection = self.connection();
        if !connection.leaving.replace(true) {
            if matches!(connection.phase.get(), Phase::Head | Phase::Idle) {
                connection.enter(Phase::Idle);
            }
            connection.wake();
        }
    }

    /// True if GOAWAY was sent, or is about to be sent.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }
}

#[cfg(test)]
mod tests;
