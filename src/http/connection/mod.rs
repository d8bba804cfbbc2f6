//! The state of one client's connection, and the time limits of its phases.
//!
//! ```text
//!              first byte         head complete            answer ready
//!   Idle ───────────────▶ Head ─────────────────▶ Busy ─────────────────▶ Idle
//!    │        accepted ──▶ │                       │ ▲                     │ closes, with part of
//!    │                     │ too long              ▼ │ body complete       │ the body unread
//!    │                     ▼                      Body                     ▼
//!    └─ too long ────────▶ reaped ◀── too slow ────┘                    Linger ──▶ closed
//! ```
//!
//! The constants `…_TICKS` below limit the time in each phase. hyper's own header timeout counts
//! from the end of the last answer, so hyper can't distinguish a slow head from an idle connection.
//! That timeout also costs a timer for each request. Here the socket records its progress in a few
//! cells, and one sweep per loop and tick (see `event_loop`) compares the cells with the limits.
//!
//! An HTTP/2 connection is busy while it has streams, and each stream has its own
//! [`ConnectionState`] ([`streams`]).

mod socket;
pub(crate) mod streams;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use memchr::memchr2;
use protocol::handshake::Channel;
pub(crate) use socket::{ScratchBuffer, Socket};
use streams::{Parent, Streams};

use crate::node::connection_slots::ConnectionSlot;
use crate::tokens::lookup::CachedToken;

/// Interval of the sweep over connections. The sweep detects an exceeded limit at most one tick
/// late.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// Time limit from a request's first byte to its complete head. For the first request the time
/// begins at the accept.
const HEAD_TICKS: u32 = ticks(12);

/// Length of a window of an upload. Each window must bring [`BODY_WINDOW_BYTES`].
const BODY_TICKS: u32 = ticks(10);

/// Minimum number of bytes of an upload in each window of [`BODY_TICKS`].
const BODY_WINDOW_BYTES: u32 = 64 * 1024;

/// Minimum age of an upload with reserved memory before the upload may be aborted in favor of
/// requests that wait for such memory.
const GRACE_TICKS: u32 = ticks(1);

/// Bytes per tick (1 MiB/s) below which an upload with reserved memory may be aborted. The slowest
/// upload is aborted first.
const FAIR_TICK_BYTES: u64 = 256 << 10;

/// Time in which the client must acknowledge [`WRITE_WINDOW_BYTES`] of an answer that holds memory
/// while other requests lack memory of this kind. Otherwise the answer is aborted.
const UNREAD_TICKS: u32 = ticks(4);

/// Length of a window of a blocked answer. While the kernel accepts no output, the client must
/// acknowledge [`WRITE_WINDOW_BYTES`] in each window, or enough for the kernel to accept more.
const WRITE_TICKS: u32 = ticks(13);

/// Minimum number of bytes that a client must acknowledge in [`WRITE_TICKS`], 5 KB/s. The window is
/// small compared with the kernel's buffer of up to 4 MiB, which accepts no output before a third
/// of it is free.
const WRITE_WINDOW_BYTES: u64 = 64 * 1024;

/// Interval at which a blocked answer's acknowledged bytes are queried.
const QUERY_TICKS: u32 = ticks(1);

/// Lifetime of a connection without a request: longer than in the pools of common clients and
/// proxies (60 s). So the client closes first, and the node closes no connection on which a request
/// is on its way.
const IDLE_TICKS: u32 = ticks(120);

/// Minimum idle time of a client that may be closed to admit another connection.
const EVICTED_TICKS: u32 = ticks(1);

/// Minimum age of a connection that may be closed because its client has not sent the first line of
/// a request.
const SILENT_TICKS: u32 = 2;

/// Time in which a connection in a reserve slot must send its request even if other connections
/// wait for the slot: enough for the scheduler of a busy machine. The 64 reserve slots then admit
/// 1,280 unknown connections a second.
const RESERVE_GRACE: Duration = Duration::from_millis(50);

/// Time for which a refused client may continue to send. Then its connection is closed, or its
/// HTTP/2 stream is reset, and the client may lose the answer.
const LINGER_TICKS: u32 = ticks(5);

/// Time in which a client must close its HTTP/2 connection after GOAWAY. The client has all answers
/// by then.
const GOAWAY_TICKS: u32 = ticks(1);

/// Bytes that a refused client may still send before its connection is closed or its stream reset.
const LINGER_BYTES: usize = 64 << 20;

const fn ticks(seconds: u32) -> u32 {
    seconds * (1000 / TICK.as_millis() as u32)
}

/// Memory that an answer holds until its client has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerMemory {
    /// Memory for a long value.
    Value,
    /// Memory for pages of a range.
    Range,
}

/// The state of a connection or a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between requests. The last answer may still be partly unsent.
    Idle,
    /// A part of a request's head has arrived.
    Head,
    /// A request is being answered.
    Busy,
    /// A request's body is being received.
    Body,
    /// A connection that is closed for writing, or a stream that is answered. Further input is
    /// discarded.
    Linger,
}

/// The observed state of a connection or stream, readable without a system call. The socket, the
/// requests on the connection and the sweep share it, all on one loop.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    phase: Cell<Phase>,
    /// Tick at which the phase began, or of its last progress.
    since: Cell<u32>,
    /// Tick at which the current window of a blocked answer began; `None` while the kernel accepts
    /// output.
    write_blocked: Cell<Option<u32>>,
    /// Bytes received. Counted over HTTP/2 only.
    read: Cell<u64>,
    /// Bytes that the kernel accepted.
    written: Cell<u64>,
    /// Bytes that the client had acknowledged at the start of the window; `None` = not queried yet.
    acknowledged: Cell<Option<u64>>,
    /// True if the socket must query the number of acknowledged bytes at its next write.
    must_query: Cell<bool>,
    /// True if the next bytes belong to a request's first line.
    is_in_first_line: Cell<bool>,
    /// True if the request's first line had a '#'.
    fragment: Cell<bool>,
    /// Bytes of the body that arrived in the current window.
    window: Cell<u32>,
    /// Memory reserved for the body, in bytes; the tick of the reservation; the bytes received
    /// since.
    holds: Cell<usize>,
    holds_since: Cell<u32>,
    body_bytes: Cell<u64>,
    is_upload_aborted: Cell<bool>,
    /// Memory that the answer holds until its client has read it.
    answer_memory: Cell<Option<AnswerMemory>>,
    /// True if the client may still be sending input that the node will not read.
    unread: Cell<bool>,
    is_given_up: Cell<bool>,
    broken: Cell<bool>,
    /// True if the request is to be dropped once the client has closed its end.
    checks_for_leave: Cell<bool>,
    /// Time of the accept.
    accepted_at: Instant,
    /// True if a part of an answer is still being produced.
    open: Cell<bool>,
    /// True if the connection has a reserve slot, because at its accept all client slots were
    /// taken.
    is_in_reserve: Cell<bool>,
    left: Cell<bool>,
    upgraded: Cell<bool>,
    /// True if GOAWAY was sent, or is about to be sent. The HTTP/2 connection then ends.
    leaving: Cell<bool>,
    /// State of the connection's streams; `None` over HTTP/1.
    streams: Cell<Option<Streams>>,
    /// Connection of this stream; `None` if this is the state of a connection.
    parent: Option<Parent>,
    /// Transport security of the connection.
    pub(crate) security: Cell<Security>,
    /// Address of the client, as of the accept.
    pub(crate) client: Cell<Option<SocketAddr>>,
    /// The last token that the connection sent.
    pub(crate) token: RefCell<Option<Rc<CachedToken>>>,
    /// The authority of the last request that was addressed to this node.
    pub(super) authority: RefCell<Box<[u8]>>,
    /// Index in the loop's list of connections.
    pub(crate) index: Cell<usize>,
    /// The loop's tick, shared with the loop.
    now: Rc<Cell<u32>>,
    task: RefCell<Option<Waker>>,
}

/// The transport security of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Security {
    /// Plaintext, on a node that serves plaintext.
    #[default]
    Plain,
    /// Plaintext, on a port that speaks TLS: no request is served.
    Missing,
    /// TLS. The client's certificate was checked if this node requires certificates.
    Tls,
    /// TLS with the nodes' ALPN name, without a client certificate. The proofs of nodes cover the
    /// channel.
    Peer {
        /// The exporter secret, which only the two ends know.
        channel: Channel,
        /// True if clients must show a certificate, which this connection has not shown.
        lacks_certificate: bool,
    },
}

impl Security {
    /// Returns the channel that the proofs of nodes cover; `None` if the connection is not
    /// [`Self::Peer`].
    pub(crate) fn channel(self) -> Option<Channel> {
        if let Self::Peer { channel, .. } = self { Some(channel) } else { None }
    }

    /// True if the client must show a certificate, but showed none, so the client must prove to be
    /// a node.
    pub(crate) fn lacks_certificate(self) -> bool {
        matches!(self, Self::Peer { lacks_certificate: true, .. })
    }
}

/// Marks a connection as having an incomplete answer. The drop of this value removes the mark.
pub(crate) struct Open(Rc<ConnectionState>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(false);
    }
}

impl ConnectionState {
    /// Creates the state of a connection just accepted, from which a request is expected.
    pub(crate) fn new(now: Rc<Cell<u32>>, slot: ConnectionSlot) -> Rc<Self> {
        Self::with_parent(now, slot, None)
    }

    fn with_parent(now: Rc<Cell<u32>>, slot: ConnectionSlot, parent: Option<Parent>) -> Rc<Self> {
        Rc::new(Self {
            phase: Cell::new(Phase::Head),
            since: Cell::new(now.get()),
            write_blocked: Cell::new(None),
            read: Cell::new(0),
            written: Cell::new(0),
            acknowledged: Cell::new(None),
            must_query: Cell::new(false),
            is_in_first_line: Cell::new(true),
            fragment: Cell::new(false),
            window: Cell::new(0),
            holds: Cell::new(0),
            holds_since: Cell::new(0),
            body_bytes: Cell::new(0),
            is_upload_aborted: Cell::new(false),
            answer_memory: Cell::new(None),
            unread: Cell::new(true),
            is_given_up: Cell::new(false),
            broken: Cell::new(false),
            checks_for_leave: Cell::new(false),
            accepted_at: Instant::now(),
            open: Cell::new(false),
            is_in_reserve: Cell::new(slot == ConnectionSlot::Reserve),
            left: Cell::new(false),
            upgraded: Cell::new(false),
            leaving: Cell::new(false),
            streams: Cell::new(None),
            parent,
            security: Cell::default(),
            client: Cell::new(None),
            token: RefCell::default(),
            authority: RefCell::default(),
            index: Cell::new(0),
            now,
            task: RefCell::new(None),
        })
    }

    /// Returns the kind of the connection's slot.
    pub(crate) fn slot(&self) -> ConnectionSlot {
        if self.is_in_reserve.get() { ConnectionSlot::Reserve } else { ConnectionSlot::Client }
    }

    /// True if the connection has a reserve slot.
    pub(crate) fn is_reserve(&self) -> bool {
        self.connection().is_in_reserve.get()
    }

    /// Marks the answer as incomplete until the result is dropped. Meanwhile the connection does
    /// not count as idle.
    pub(crate) fn open(self: &Rc<Self>) -> Open {
        self.open.set(true);
        Open(Rc::clone(self))
    }

    /// Returns the ticks for which the client has been idle; `None` if the connection must not be
    /// closed to admit another connection.
    pub(crate) fn idle_ticks(&self) -> Option<u32> {
        let least = match self.phase.get() {
            Phase::Idle if !self.open.get() && self.write_blocked.get().is_none() => EVICTED_TICKS,
            Phase::Head if self.is_in_first_line.get() => SILENT_TICKS,
            _ => return None,
        };
        let lasted = self.now.get().wrapping_sub(self.since.get());
        (!self.is_in_reserve.get() && lasted >= least).then_some(lasted)
    }

    /// Returns the age of a connection in a reserve slot that has sent no request; `None` if the
    /// connection must not be closed to admit another connection.
    pub(crate) fn request_overdue(&self) -> Option<Duration> {
        let owes = match self.phase.get() {
            Phase::Head => true,
            Phase::Idle => self.leaving.get(),
            Phase::Busy | Phase::Body | Phase::Linger => false,
        };
        if !self.is_in_reserve.get() || !owes {
            return None;
        }
        Some(self.accepted_at.elapsed()).filter(|owing| *owing >= RESERVE_GRACE)
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.now.get());
    }

    /// Returns true once if the request's first line had a '#'. hyper has cut the target at the
    /// '#', so a part of the key or of the required quorum may be missing. (If a request arrives in
    /// one piece with the previous request, it is not checked.)
    pub(crate) fn take_fragment_flag(&self) -> bool {
        self.fragment.take()
    }

    /// Records that a request's head is complete.
    pub(crate) fn begin_request(&self) {
        self.is_upload_aborted.set(false);
        self.phase.set(Phase::Busy);
    }

    /// Records that the node waits for the request's body.
    pub(crate) fn begin_body(&self) {
        self.begin_window();
        if let Some(parent) = &self.parent {
            parent.begin_wait();
        }
    }

    fn begin_window(&self) {
        self.window.set(0);
        self.enter(Phase::Body);
    }

    /// Records that the request's body is complete, or not needed any more.
    pub(crate) fn end_body(&self) {
        self.phase.set(Phase::Busy);
    }

    /// Records the memory reserved for the body, in bytes; 0 = none.
    pub(crate) fn holds(&self, bytes: usize) {
        if self.holds.replace(bytes) == 0 {
            self.holds_since.set(self.now.get());
            self.body_bytes.set(0);
        }
    }

    /// True if the upload was aborted in favor of waiting requests.
    pub(crate) fn is_upload_aborted(&self) -> bool {
        self.is_upload_aborted.get()
    }

    /// Returns the bytes per tick of an upload with reserved memory, if that rate is below
    /// [`FAIR_TICK_BYTES`]; otherwise `None`.
    pub(crate) fn slow_pace(&self) -> Option<u64> {
        let lasted = self.now.get().wrapping_sub(self.holds_since.get());
        let receiving = self.phase.get() == Phase::Body && self.holds.get() > 0;
        if !receiving || lasted < GRACE_TICKS {
            return None;
        }
        Some(self.body_bytes.get() / u64::from(lasted)).filter(|pace| *pace < FAIR_TICK_BYTES)
    }

    /// Aborts the upload in favor of waiting requests. Returns the bytes of memory that the abort
    /// will release.
    pub(crate) fn abort_upload(&self) -> usize {
        self.is_upload_aborted.set(true);
        self.wake();
        self.holds.get()
    }

    /// Records the memory that the current answer holds.
    pub(crate) fn set_answer_memory(&self, memory: Option<AnswerMemory>) {
        self.answer_memory.set(memory);
    }

    /// True if the answer holds `memory`, and its client reads too slowly.
    pub(crate) fn is_unread(&self, memory: AnswerMemory) -> bool {
        let now = self.now.get();
        let blocked = self.write_blocked.get().map_or(0, |since| now.wrapping_sub(since));
        let is_unread = match &self.parent {
            None => blocked >= UNREAD_TICKS,
            Some(parent) => parent.is_unread(),
        };
        self.answer_memory.get() == Some(memory) && is_unread && !self.is_given_up.get()
    }

    /// Aborts the connection in the middle of its answer, in favor of waiting requests. Over HTTP/2
    /// it aborts only the stream, if that suffices to release the memory.
    pub(crate) fn cut_off(&self) {
        match &self.parent {
            Some(parent) if parent.is_stuck() => parent.connection.cut_off(),
            _ => {
                self.mark_incomplete();
                self.give_up();
            }
        }
    }

    /// Records that the answer is ready. `is_fully_read` is true if the request is fully read.
    pub(crate) fn end_request(&self, is_fully_read: bool) {
        self.unread.set(!is_fully_read);
        self.enter(Phase::Idle);
    }

    /// Sets whether each flush of the connection checks if the client has closed its end.
    pub(crate) fn set_leave_check(&self, checks_for_leave: bool) {
        self.checks_for_leave.set(checks_for_leave);
    }

    /// True if a check has found that the client closed its end. A half-closed connection counts
    /// too, because it can't be distinguished from a closed connection.
    pub(crate) fn has_left(&self) -> bool {
        self.left.get()
    }

    /// Records that another protocol follows this answer.
    pub(crate) fn upgrade(&self) {
        self.upgraded.set(true);
    }

    /// Marks the answer as incomplete. The connection is then reset, so the client can't mistake
    /// the received part for the whole answer.
    pub(crate) fn mark_incomplete(&self) {
        self.broken.set(true);
    }

    /// Registers the waker of the connection's task.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// Wakes the connection's task, which then checks this state and the loop's state.
    pub(crate) fn wake(&self) {
        if let Some(task) = self.task.borrow().as_ref() {
            task.wake_by_ref();
        }
    }

    /// True if the connection is given up: it ends as soon as its task runs.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }

    /// Checks the limits. Returns true if this call gave the connection up.
    pub(crate) fn sweep(&self) -> bool {
        if let Some(parent) = &self.parent {
            self.end_overdue_linger(parent);
            let is_over =
                !self.is_given_up.get() && parent.is_too_slow(self.phase.get() == Phase::Body);
            if is_over {
                self.give_up();
            }
            return is_over;
        }
        let now = self.now.get();
        let lasted = now.wrapping_sub(self.since.get());
        let blocked = self.write_blocked.get().map(|since| now.wrapping_sub(since));
        let unread = blocked.is_some_and(|blocked| blocked >= WRITE_TICKS);
        let over = unread
            || match self.phase.get() {
                Phase::Head => lasted >= HEAD_TICKS,
                Phase::Body => self.end_window_if_due(lasted),
                Phase::Idle | Phase::Linger if self.leaving.get() => lasted >= GOAWAY_TICKS,
                Phase::Idle => blocked.is_none() && !self.open.get() && lasted >= IDLE_TICKS,
                Phase::Linger => lasted >= LINGER_TICKS,
                Phase::Busy => false,
            };
        if over && !self.is_given_up.get() {
            self.give_up();
            return true;
        }
        if blocked.is_some_and(|blocked| blocked % QUERY_TICKS == 0) {
            // The socket queries the kernel at its next write.
            self.must_query.set(true);
            self.wake();
        }
        false
    }

    /// Ends the connection at the next run of its task. An incomplete answer is broken off.
    pub(crate) fn give_up(&self) {
        if self.write_blocked.get().is_some() {
            self.mark_incomplete();
        }
        self.is_given_up.set(true);
        match &self.parent {
            // The stream's task, which could reset the stream, has ended.
            Some(parent) if parent.is_over.get() => parent.connection.cut_off(),
            _ => self.wake(),
        }
    }

    /// If the window is over after `lasted` ticks, begins the next window. Returns true if the
    /// window that ended was too slow.
    fn end_window_if_due(&self, lasted: u32) -> bool {
        if lasted < BODY_TICKS {
            return false;
        }
        let slow = self.window.get() < BODY_WINDOW_BYTES;
        self.begin_window();
        slow
    }

    fn record_read(&self, bytes: &[u8]) {
        if self.streams.get().is_some() {
            self.read.set(self.read.get() + bytes.len() as u64);
            return;
        }
        match self.phase.get() {
            Phase::Idle => {
                self.unread.set(true);
                self.enter(Phase::Head);
                self.is_in_first_line.set(true);
                self.fragment.set(false);
                self.look_for_fragment(bytes);
            }
            Phase::Head => self.look_for_fragment(bytes),
            Phase::Body => self.record_body(bytes.len()),
            Phase::Busy | Phase::Linger => {}
        }
    }

    fn record_body(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window.set(self.window.get().saturating_add(bytes));
        self.body_bytes.set(self.body_bytes.get() + u64::from(bytes));
    }

    fn look_for_fragment(&self, bytes: &[u8]) {
        if !self.is_in_first_line.get() {
            return;
        }
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let line = &bytes[blank..];
        if let Some(place) = memchr2(b'#', b'\n', line) {
            self.fragment.set(line[place] == b'#');
            self.is_in_first_line.set(false);
        }
    }

    fn record_end_of_input(&self) {
        self.unread.set(false);
    }

    fn record_write(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes as u64);
        self.write_blocked.set(None);
        if self.phase.get() == Phase::Idle && self.streams.get().is_none() {
            self.since.set(self.now.get());
        }
    }

    /// Records that the kernel accepts no output. `unacknowledged` returns the number of bytes in
    /// the kernel's buffer.
    fn record_blocked_write(&self, unacknowledged: impl FnOnce() -> Option<u64>) {
        if self.write_blocked.get().is_none() {
            self.write_blocked.set(Some(self.now.get()));
            self.acknowledged.set(None);
        }
        if !self.must_query.take() {
            return;
        }
        let Some(held) = unacknowledged() else { return };
        let acknowledged = self.written.get().saturating_sub(held);
        let before = self.acknowledged.get();
        if before.is_some_and(|before| acknowledged >= before + WRITE_WINDOW_BYTES) {
            self.write_blocked.set(Some(self.now.get()));
        } else if before.is_some() {
            return;
        }
        self.acknowledged.set(Some(acknowledged));
    }
}

#[cfg(test)]
mod tests;
