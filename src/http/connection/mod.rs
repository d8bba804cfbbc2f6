//! One client's connection, and the watch over its progress.
//!
//! ```text
//!              first byte         head complete            answer ready
//!   Idle ───────────────▶ Head ─────────────────▶ Busy ─────────────────▶ Idle
//!    ▲ accepted: Head      │                       │ ▲                     │
//!    │                     │ too long              ▼ │ body complete       │ closing, more unread
//!    │                     ▼                      Body                     ▼
//!    └─ too long ────────▶ reaped ◀── too slow ────┘                    Linger ──▶ closed
//! ```
//!
//! The limits on the time in each phase are the `…_TICKS` below. hyper's own header timeout counts
//! from the end of the last answer, so that hyper can't tell a slow head from an idle connection,
//! and costs a timer for each request. Here the socket notes its progress in a few cells, and one
//! sweep per loop and tick (see `event_loop`) compares the cells with the limits.
//!
//! Over HTTP/2 a connection is busy while it has streams, and each stream has a watch of its own
//! ([`streams`]).

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

/// Interval of the sweep over connections. Every limit below is kept within one tick.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// Time from a request's first byte (for the first request: from accept) to its complete head.
const HEAD_TICKS: u32 = ticks(12);

/// While a body is being received, each window of this length must bring [`BODY_WINDOW_BYTES`].
const BODY_TICKS: u32 = ticks(10);

/// Minimum number of bytes of an upload in each window of [`BODY_TICKS`].
const BODY_WINDOW_BYTES: u32 = 64 * 1024;

/// Minimum age at which an upload that holds body memory may be aborted, while others wait for
/// such memory.
const GRACE_TICKS: u32 = ticks(1);

/// Bytes a tick (1 MiB/s) below which such an upload is aborted, the slowest first.
const FAIR_TICK_BYTES: u64 = 256 << 10;

/// While others wait for the memory of answers, a client that acknowledges less than
/// [`WRITE_WINDOW_BYTES`] of a long answer in this time is aborted.
const UNREAD_TICKS: u32 = ticks(4);

/// While the kernel takes no more of an answer, the client must acknowledge [`WRITE_WINDOW_BYTES`]
/// in each window of this length, or enough for the kernel to take more.
const WRITE_TICKS: u32 = ticks(13);

/// Minimum that a reader must take in [`WRITE_TICKS`], 5 KB/s. A window is small beside the
/// kernel's buffer of up to 4 MiB, which takes no more before a third of it is free.
const WRITE_WINDOW_BYTES: u64 = 64 * 1024;

/// Interval of checks of how much of a blocked answer has been acknowledged.
const LOOK_TICKS: u32 = ticks(1);

/// Lifetime of a connection without a request: longer than the pools of common clients and proxies
/// (60 s), so that the client closes first, and no request meets a connection that the node closes.
const IDLE_TICKS: u32 = ticks(120);

/// Minimum idle time of a client that may be closed to admit another connection.
const EVICTED_TICKS: u32 = ticks(1);

/// Minimum age of a client that may be closed because it has not sent the first line of its
/// request.
const SILENT_TICKS: u32 = 2;

/// Time that a connection in a reserve slot has for its request even while others wait: enough for
/// the scheduler of a busy machine. The 64 reserve slots then admit 1,280 unknown connections a
/// second.
const RESERVE_GRACE: Duration = Duration::from_millis(50);

/// Time for which a refused client may go on sending before its answer is cut off: its connection
/// is closed, or its stream of HTTP/2 reset.
const LINGER_TICKS: u32 = ticks(5);

/// Time that a client has to close its HTTP/2 connection after GOAWAY: it has received all answers.
const FAREWELL_TICKS: u32 = ticks(1);

/// Bytes that a refused client may go on sending before its answer is cut off.
const LINGER_BYTES: usize = 64 << 20;

const fn ticks(seconds: u32) -> u32 {
    seconds * (1000 / TICK.as_millis() as u32)
}

/// The state of a connection or a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between requests; an answer may still be on its way out.
    Idle,
    /// A part of a request's head has arrived.
    Head,
    /// A request is being answered.
    Busy,
    /// A request's body is being received.
    Body,
    /// Closed for writing, or a stream that is answered; further input is discarded.
    Linger,
}

/// The observed state of a connection, known without asking the kernel. Shared by the socket, the
/// requests on the connection and the sweep, all on one loop.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    phase: Cell<Phase>,
    /// Tick at which the phase began, or last made progress.
    since: Cell<u32>,
    /// Tick since which the kernel takes no more bytes, or at which the last window ended.
    write_blocked: Cell<Option<u32>>,
    /// Bytes received; counted over HTTP/2 only.
    read: Cell<u64>,
    /// Bytes that the kernel took.
    written: Cell<u64>,
    /// Bytes that the client had acknowledged when the window began; `None` = not known yet.
    acknowledged: Cell<Option<u64>>,
    /// True if the socket is to check how much is acknowledged now.
    look: Cell<bool>,
    /// True if the next bytes belong to a request's first line.
    line_open: Cell<bool>,
    /// True if that line had a '#'.
    fragment: Cell<bool>,
    /// Bytes of the body that arrived in this window.
    window: Cell<u32>,
    /// Memory that the body holds, in bytes; since when, and the bytes received since then.
    holds: Cell<usize>,
    holds_since: Cell<u32>,
    brought: Cell<u64>,
    is_upload_aborted: Cell<bool>,
    /// True if the answer is a long one, which has memory of its own.
    is_answer_long: Cell<bool>,
    /// True if the client may still be sending input that nobody will read.
    unread: Cell<bool>,
    is_given_up: Cell<bool>,
    broken: Cell<bool>,
    /// True if the request under way is to be dropped once the client has closed its end.
    heeded: Cell<bool>,
    /// Time of the accept.
    came: Instant,
    /// True if more of an answer is still being produced.
    open: Cell<bool>,
    /// True if the connection has a reserve slot: it came when all client slots were taken.
    is_in_reserve: Cell<bool>,
    left: Cell<bool>,
    upgraded: Cell<bool>,
    /// True if GOAWAY was sent, or is about to be: the HTTP/2 connection ends.
    leaving: Cell<bool>,
    /// State of the connection's streams; `None` over HTTP/1.
    streams: Cell<Option<Streams>>,
    /// Connection of this stream; `None` if the watch is over a connection.
    parent: Option<Parent>,
    /// Transport security of the connection.
    pub(crate) security: Cell<Security>,
    /// Address of the other end, as known at the accept.
    pub(crate) client: Cell<Option<SocketAddr>>,
    /// The last token that the connection sent.
    pub(crate) token: RefCell<Option<Rc<CachedToken>>>,
    /// The authority of the last request that was found to be this node's.
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
    /// TLS. A client's certificate was checked if this node asks for one.
    Tls,
    /// TLS by the nodes' ALPN name, without a client certificate. Nodes' proofs cover the channel.
    Peer {
        /// The exporter secret, which only the two ends know.
        channel: Channel,
        /// True if clients must show a certificate, which this connection did not.
        lacks_certificate: bool,
    },
}

impl Security {
    /// Returns the channel that nodes' proofs cover.
    pub(crate) fn channel(self) -> Option<Channel> {
        if let Self::Peer { channel, .. } = self { Some(channel) } else { None }
    }

    /// True if the other end should have shown a certificate, unless it is a node.
    pub(crate) fn lacks_certificate(self) -> bool {
        matches!(self, Self::Peer { lacks_certificate: true, .. })
    }
}

/// A mark on a connection whose answer is not complete; dropping it removes the mark.
pub(crate) struct Open(Rc<ConnectionState>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(false);
    }
}

impl ConnectionState {
    /// Creates the watch of a connection just accepted: a request is due.
    pub(crate) fn new(now: Rc<Cell<u32>>, slot: ConnectionSlot) -> Rc<Self> {
        Self::made(now, slot, None)
    }

    fn made(now: Rc<Cell<u32>>, slot: ConnectionSlot, parent: Option<Parent>) -> Rc<Self> {
        Rc::new(Self {
            phase: Cell::new(Phase::Head),
            since: Cell::new(now.get()),
            write_blocked: Cell::new(None),
            read: Cell::new(0),
            written: Cell::new(0),
            acknowledged: Cell::new(None),
            look: Cell::new(false),
            line_open: Cell::new(true),
            fragment: Cell::new(false),
            window: Cell::new(0),
            holds: Cell::new(0),
            holds_since: Cell::new(0),
            brought: Cell::new(0),
            is_upload_aborted: Cell::new(false),
            is_answer_long: Cell::new(false),
            unread: Cell::new(true),
            is_given_up: Cell::new(false),
            broken: Cell::new(false),
            heeded: Cell::new(false),
            came: Instant::now(),
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

    /// Marks the answer as incomplete for as long as the result lives: the connection only seems to
    /// be idle.
    pub(crate) fn open(self: &Rc<Self>) -> Open {
        self.open.set(true);
        Open(Rc::clone(self))
    }

    /// Returns the ticks for which a client has been idle, if it may be closed to admit another
    /// connection.
    pub(crate) fn idle_ticks(&self) -> Option<u32> {
        let least = match self.phase.get() {
            Phase::Idle if !self.open.get() && self.write_blocked.get().is_none() => EVICTED_TICKS,
            Phase::Head if self.line_open.get() => SILENT_TICKS,
            _ => return None,
        };
        let lasted = self.now.get().wrapping_sub(self.since.get());
        (!self.is_in_reserve.get() && lasted >= least).then_some(lasted)
    }

    /// Returns the time for which the request of a connection in a reserve slot has been due, if
    /// the connection may be closed to admit another.
    pub(crate) fn request_overdue(&self) -> Option<Duration> {
        let owes = match self.phase.get() {
            Phase::Head => true,
            Phase::Idle => self.leaving.get(),
            Phase::Busy | Phase::Body | Phase::Linger => false,
        };
        if !self.is_in_reserve.get() || !owes {
            return None;
        }
        Some(self.came.elapsed()).filter(|owing| *owing >= RESERVE_GRACE)
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.now.get());
    }

    /// True if the request's first line had a '#'. hyper has cut the '#', and all that follows, off
    /// the target: a part of the key, or of the required quorum. (A request that came in one piece
    /// with the previous one is not checked.)
    pub(crate) fn saw_fragment(&self) -> bool {
        self.fragment.take()
    }

    /// Notes that a request's head is complete.
    pub(crate) fn request_begins(&self) {
        self.is_upload_aborted.set(false);
        self.phase.set(Phase::Busy);
    }

    /// Notes that the request's body is awaited.
    pub(crate) fn body_begins(&self) {
        self.begin_window();
        if let Some(parent) = &self.parent {
            parent.waiting_begins();
        }
    }

    fn begin_window(&self) {
        self.window.set(0);
        self.enter(Phase::Body);
    }

    /// Notes that the request's body is complete, or no longer wanted.
    pub(crate) fn body_ends(&self) {
        self.phase.set(Phase::Busy);
    }

    /// Notes the memory that the body holds, in bytes; 0 = it was released.
    pub(crate) fn holds(&self, bytes: usize) {
        if self.holds.replace(bytes) == 0 {
            self.holds_since.set(self.now.get());
            self.brought.set(0);
        }
    }

    /// True if the body was aborted in favor of waiting requests.
    pub(crate) fn is_upload_aborted(&self) -> bool {
        self.is_upload_aborted.get()
    }

    /// Returns the bytes a tick of an upload that holds memory and is slow.
    pub(crate) fn slow_pace(&self) -> Option<u64> {
        let lasted = self.now.get().wrapping_sub(self.holds_since.get());
        let receiving = self.phase.get() == Phase::Body && self.holds.get() > 0;
        if !receiving || lasted < GRACE_TICKS {
            return None;
        }
        Some(self.brought.get() / u64::from(lasted)).filter(|pace| *pace < FAIR_TICK_BYTES)
    }

    /// Aborts the upload in favor of waiting requests; returns the bytes of memory that are
    /// released.
    pub(crate) fn abort_upload(&self) -> usize {
        self.is_upload_aborted.set(true);
        self.wake();
        self.holds.get()
    }

    /// Notes whether the current answer is a long one.
    pub(crate) fn note_long_answer(&self, long: bool) {
        self.is_answer_long.set(long);
    }

    /// True if a long answer holds memory, and its client does not read.
    pub(crate) fn is_unread(&self) -> bool {
        let now = self.now.get();
        let blocked = self.write_blocked.get().map_or(0, |since| now.wrapping_sub(since));
        let is_unread = match &self.parent {
            None => blocked >= UNREAD_TICKS,
            Some(parent) => parent.is_unread(),
        };
        self.is_answer_long.get() && is_unread && !self.is_given_up.get()
    }

    /// Aborts the connection in the middle of its answer, in favor of waiting requests. Of HTTP/2,
    /// only the stream is aborted, if that releases the memory.
    pub(crate) fn cut_off(&self) {
        match &self.parent {
            Some(parent) if parent.is_stuck() => parent.connection.cut_off(),
            _ => {
                self.mark_incomplete();
                self.give_up();
            }
        }
    }

    /// Notes that the answer is ready. `clean`: nothing of the request is left unread.
    pub(crate) fn request_ends(&self, clean: bool) {
        self.unread.set(!clean);
        self.enter(Phase::Idle);
    }

    /// Sets whether each flush of the connection checks if the client has left.
    pub(crate) fn set_leave_check(&self, heeded: bool) {
        self.heeded.set(heeded);
    }

    /// True if the client was seen to have closed its end. A half-closed connection can't be told
    /// from one whose client is gone.
    pub(crate) fn has_left(&self) -> bool {
        self.left.get()
    }

    /// Notes that another protocol follows after this answer.
    pub(crate) fn upgrade(&self) {
        self.upgraded.set(true);
    }

    /// Marks the answer as incomplete: the connection is reset, so that the client can't take the
    /// part received for the whole.
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

    /// Wakes the connection's task, which then checks this watch and the loop's state.
    pub(crate) fn wake(&self) {
        if let Some(task) = self.task.borrow().as_ref() {
            task.wake_by_ref();
        }
    }

    /// True if the sweep gave the connection up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }

    /// Checks the limits; returns true if the connection was given up just now.
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
                Phase::Idle | Phase::Linger if self.leaving.get() => lasted >= FAREWELL_TICKS,
                Phase::Idle => blocked.is_none() && !self.open.get() && lasted >= IDLE_TICKS,
                Phase::Linger => lasted >= LINGER_TICKS,
                Phase::Busy => false,
            };
        if over && !self.is_given_up.get() {
            self.give_up();
            return true;
        }
        if blocked.is_some_and(|blocked| blocked % LOOK_TICKS == 0) {
            // The socket checks when it is polled for writing.
            self.look.set(true);
            self.wake();
        }
        false
    }

    /// Ends the connection as soon as its task runs. An incomplete answer is broken off.
    pub(crate) fn give_up(&self) {
        if self.write_blocked.get().is_some() {
            self.mark_incomplete();
        }
        self.is_given_up.set(true);
        match &self.parent {
            // No task runs any more that could reset the stream.
            Some(parent) if parent.is_over.get() => parent.connection.cut_off(),
            _ => self.wake(),
        }
    }

    /// Ends the window and begins the next one, if `lasted` ticks are enough. Returns true if the
    /// window that ended was too slow.
    fn end_window_if_due(&self, lasted: u32) -> bool {
        if lasted < BODY_TICKS {
            return false;
        }
        let slow = self.window.get() < BODY_WINDOW_BYTES;
        self.begin_window();
        slow
    }

    fn saw_read(&self, bytes: &[u8]) {
        if self.streams.get().is_some() {
            self.read.set(self.read.get() + bytes.len() as u64);
            return;
        }
        match self.phase.get() {
            Phase::Idle => {
                self.unread.set(true);
                self.enter(Phase::Head);
                self.line_open.set(true);
                self.fragment.set(false);
                self.look_for_fragment(bytes);
            }
            Phase::Head => self.look_for_fragment(bytes),
            Phase::Body => self.saw_body(bytes.len()),
            Phase::Busy | Phase::Linger => {}
        }
    }

    fn saw_body(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window.set(self.window.get().saturating_add(bytes));
        self.brought.set(self.brought.get() + u64::from(bytes));
    }

    fn look_for_fragment(&self, bytes: &[u8]) {
        if !self.line_open.get() {
            return;
        }
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let line = &bytes[blank..];
        if let Some(place) = memchr2(b'#', b'\n', line) {
            self.fragment.set(line[place] == b'#');
            self.line_open.set(false);
        }
    }

    fn saw_end(&self) {
        self.unread.set(false);
    }

    fn saw_write(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes as u64);
        self.write_blocked.set(None);
        if self.phase.get() == Phase::Idle && self.streams.get().is_none() {
            self.since.set(self.now.get());
        }
    }

    /// Notes that the kernel takes no more; `unacknowledged` asks it how many bytes it holds.
    fn saw_full_socket(&self, unacknowledged: impl FnOnce() -> Option<u64>) {
        if self.write_blocked.get().is_none() {
            self.write_blocked.set(Some(self.now.get()));
            self.acknowledged.set(None);
        }
        if !self.look.take() {
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
