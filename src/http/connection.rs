//! One client's connection, and the watch that is kept over it.
//!
//! ```text
//!              bytes              request begins           answer ready
//!   Idle ───────────────▶ Head ─────────────────▶ Busy ─────────────────▶ Idle
//!    ▲ accepted: Head      │                       │ ▲                     │
//!    │                     │ too long              ▼ │ body complete       │ closing, more unread
//!    │                     ▼                      Body                     ▼
//!    └─ too long ────────▶ reaped ◀── too slow ────┘                    Linger ──▶ closed
//! ```
//!
//! hyper's own header timeout counts from the end of the last answer, so that it can't tell a slow
//! head from an idle connection, and costs a timer for each request. Here the socket notes what it
//! sees in a few cells, and one sweep per loop and tick (see `event_loop`) compares them.
//!
//! Over HTTP/2 a connection is busy while it has streams, and each of them has a watch of its own
//! ([`streams`]).

mod socket;
pub(crate) mod streams;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use cluster::handshake::Channel;
use memchr::memchr2;
pub(crate) use socket::{Scratch, Socket};
use streams::{Parent, Streams};

use crate::node::access::Remembered;
use crate::node::places::Place;

/// How often connections are looked at. Every limit below is kept within one tick.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// A request's head must be complete this long after its first byte (the first one after accept).
const HEAD_TICKS: u32 = ticks(12);

/// While a body is being received, every such window must bring [`BODY_WINDOW_BYTES`].
const BODY_TICKS: u32 = ticks(10);

/// The slowest upload that is served is this much in [`BODY_TICKS`].
const BODY_WINDOW_BYTES: u32 = 64 * 1024;

/// While others wait for the memory of bodies, an upload that has had its memory for so long …
const GRACE_TICKS: u32 = ticks(1);

/// … and brought fewer bytes in each tick than this (1 MiB/s) gives way, the slowest first.
const FAIR_TICK_BYTES: u64 = 256 << 10;

/// While others wait for the memory of answers, a client that acknowledges less than
/// [`WRITE_WINDOW_BYTES`] of a long one in this time gives way.
const UNREAD_TICKS: u32 = ticks(4);

/// While the kernel takes no more of an answer, the client must acknowledge [`WRITE_WINDOW_BYTES`]
/// in every such window, or as much as lets the kernel take more.
const WRITE_TICKS: u32 = ticks(13);

/// The slowest reader that is served takes this much in [`WRITE_TICKS`], 5 KB/s. A window is small
/// beside the kernel's buffer of up to 4 MiB, which takes no more before a third of it is free.
const WRITE_WINDOW_BYTES: u64 = 64 * 1024;

/// How often it is looked how much of such an answer has been acknowledged.
const LOOK_TICKS: u32 = ticks(1);

/// A connection without a request is kept this long: longer than the pools of common clients and
/// proxies (60 s), so that the server is not the one that closes under a request.
const IDLE_TICKS: u32 = ticks(120);

/// A client that is asked nothing of is closed for the sake of another one after so long …
const EVICTED_TICKS: u32 = ticks(1);

/// … and one that has not even begun to say what it wants, after so long.
const SILENT_TICKS: u32 = 2;

/// A guest may take this long to say what it wants, whoever else waits: some scheduling on a busy
/// machine. With [`GUESTS`](crate::settings::memory::GUESTS) of them it lets 1,280 strangers a
/// second come and go.
const GUEST_GRACE: Duration = Duration::from_millis(50);

/// How long a refused client may go on sending before its answer is cut off: its connection is
/// closed, or its stream of HTTP/2 reset.
const LINGER_TICKS: u32 = ticks(5);

/// A client that was told that its HTTP/2 connection ends may take this long to end it: it has had
/// all answers.
const FAREWELL_TICKS: u32 = ticks(1);

/// How many bytes a refused client may go on sending before its answer is cut off.
const LINGER_BYTES: usize = 64 << 20;

const fn ticks(seconds: u32) -> u32 {
    seconds * (1000 / TICK.as_millis() as u32)
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between requests; an answer may still be on its way out.
    Idle,
    /// Part of a request's head is here.
    Head,
    /// A request is being answered.
    Busy,
    /// Its body is being received.
    Body,
    /// Closed for writing, or a stream that is answered; what the client still sends is thrown
    /// away.
    Linger,
}

/// What is known of a connection without asking the kernel. Shared by the socket, the requests on
/// it and the sweep, all on one loop.
#[derive(Debug)]
pub(crate) struct Watch {
    phase: Cell<Phase>,
    /// Tick at which the phase began, or last made progress.
    since: Cell<u32>,
    /// Tick since which the kernel takes no more bytes, or the last window ended.
    write_blocked: Cell<Option<u32>>,
    /// Bytes that came; counted over HTTP/2 only.
    read: Cell<u64>,
    /// Bytes that the kernel took.
    written: Cell<u64>,
    /// Of these, what the client had acknowledged when the window began, once that is known.
    acknowledged: Cell<Option<u64>>,
    /// Whether it is to be looked how much that is now.
    look: Cell<bool>,
    /// Whether the next bytes belong to a request's first line.
    line_open: Cell<bool>,
    /// Whether that line held a '#'.
    fragment: Cell<bool>,
    /// Bytes of the body that arrived in this window.
    window: Cell<u32>,
    /// Memory that the body has, since when, and what came since then.
    holds: Cell<usize>,
    holds_since: Cell<u32>,
    brought: Cell<u64>,
    gave_way: Cell<bool>,
    /// Whether the answer is a long one, which has memory of its own.
    long_answer: Cell<bool>,
    /// Whether the client may still be sending what nobody will read.
    unread: Cell<bool>,
    reaped: Cell<bool>,
    broken: Cell<bool>,
    /// Whether the request under way is for nobody once the client has closed its end.
    heeded: Cell<bool>,
    /// When it was accepted.
    came: Instant,
    /// Whether more of an answer is still being made.
    open: Cell<bool>,
    /// Whether it came when all places of clients were taken.
    guest: Cell<bool>,
    left: Cell<bool>,
    upgraded: Cell<bool>,
    /// Whether the client was told, or is about to be, that the HTTP/2 connection ends.
    leaving: Cell<bool>,
    /// What it knows of its streams, if it speaks HTTP/2.
    streams: Cell<Option<Streams>>,
    /// Whose stream it is, if it is one.
    parent: Option<Parent>,
    /// What security it has.
    pub(crate) security: Cell<Security>,
    /// Who is at the other end, as far as it was known when it came.
    pub(crate) client: Cell<Option<SocketAddr>>,
    /// The token that it sent last.
    pub(crate) token: RefCell<Option<Rc<Remembered>>>,
    /// The authority of its last request that was found to be this node's.
    pub(super) authority: RefCell<Box<[u8]>>,
    /// Where it is in the loop's list of connections.
    pub(crate) index: Cell<usize>,
    /// The loop's tick, shared with it.
    now: Rc<Cell<u32>>,
    task: RefCell<Option<Waker>>,
}

/// What is known of a connection's security.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Security {
    /// In clear, as this node serves.
    #[default]
    Plain,
    /// In clear, on a port that speaks TLS: nothing is done on it.
    Missing,
    /// By TLS. Of a client, its certificate was checked if this node asks for one.
    Tls,
    /// By TLS, as nodes connect: none was asked for. The channel covers what nodes prove on it.
    Peer {
        /// What its two ends alone know.
        channel: Channel,
        /// Whether clients must show a certificate, which nobody did here.
        lacks_certificate: bool,
    },
}

impl Security {
    /// What nodes prove themselves for.
    pub(crate) fn channel(self) -> Option<Channel> {
        if let Self::Peer { channel, .. } = self { Some(channel) } else { None }
    }

    /// Whether the other end should have shown a certificate, if it is no node.
    pub(crate) fn lacks_certificate(self) -> bool {
        matches!(self, Self::Peer { lacks_certificate: true, .. })
    }
}

/// More of a connection's answer is to come.
pub(crate) struct Open(Rc<Watch>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(false);
    }
}

impl Watch {
    /// The watch of a connection just accepted: it owes a request.
    pub(crate) fn new(now: Rc<Cell<u32>>, place: Place) -> Rc<Self> {
        Self::made(now, place, None)
    }

    fn made(now: Rc<Cell<u32>>, place: Place, parent: Option<Parent>) -> Rc<Self> {
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
            gave_way: Cell::new(false),
            long_answer: Cell::new(false),
            unread: Cell::new(true),
            reaped: Cell::new(false),
            broken: Cell::new(false),
            heeded: Cell::new(false),
            came: Instant::now(),
            open: Cell::new(false),
            guest: Cell::new(place == Place::Guest),
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

    /// What place it has.
    pub(crate) fn place(&self) -> Place {
        if self.guest.get() { Place::Guest } else { Place::Client }
    }

    /// Whether it came when all places of clients were taken.
    pub(crate) fn is_guest(&self) -> bool {
        self.connection().guest.get()
    }

    /// More of the answer is made, for as long as the result lives: it only seems to be idle.
    pub(crate) fn open(self: &Rc<Self>) -> Open {
        self.open.set(true);
        Open(Rc::clone(self))
    }

    /// For how many ticks a client has been idle, if it may be closed for the sake of another one.
    pub(crate) fn idle_ticks(&self) -> Option<u32> {
        let least = match self.phase.get() {
            Phase::Idle if !self.open.get() && self.write_blocked.get().is_none() => EVICTED_TICKS,
            Phase::Head if self.line_open.get() => SILENT_TICKS,
            _ => return None,
        };
        let lasted = self.now.get().wrapping_sub(self.since.get());
        (!self.guest.get() && lasted >= least).then_some(lasted)
    }

    /// For how long a guest has owed its request, if it may be closed for the sake of another one.
    pub(crate) fn owing(&self) -> Option<Duration> {
        let owes = match self.phase.get() {
            Phase::Head => true,
            Phase::Idle => self.leaving.get(),
            Phase::Busy | Phase::Body | Phase::Linger => false,
        };
        if !self.guest.get() || !owes {
            return None;
        }
        Some(self.came.elapsed()).filter(|owing| *owing >= GUEST_GRACE)
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.now.get());
    }

    /// Whether the request's first line held a '#'. hyper has cut that off its target with all that
    /// follows: a part of the key, or how many replicas must answer. (A request that came in one
    /// piece with the one before it is not looked at.)
    pub(crate) fn saw_fragment(&self) -> bool {
        self.fragment.take()
    }

    /// A request's head is complete.
    pub(crate) fn request_begins(&self) {
        self.phase.set(Phase::Busy);
    }

    /// Its body is being waited for.
    pub(crate) fn body_begins(&self) {
        self.window_begins();
        if let Some(parent) = &self.parent {
            parent.waiting_begins();
        }
    }

    fn window_begins(&self) {
        self.window.set(0);
        self.enter(Phase::Body);
    }

    /// Its body is complete, or not wanted any more.
    pub(crate) fn body_ends(&self) {
        self.phase.set(Phase::Busy);
    }

    /// The body has so many bytes of memory now; 0 = it gave them back.
    pub(crate) fn holds(&self, bytes: usize) {
        if self.holds.replace(bytes) == 0 {
            self.holds_since.set(self.now.get());
            self.brought.set(0);
            self.gave_way.set(false);
        }
    }

    /// Whether the body has lost its place to those who wait.
    pub(crate) fn gave_way(&self) -> bool {
        self.gave_way.get()
    }

    /// Bytes a tick of an upload that has memory and is slow.
    pub(crate) fn slow_pace(&self) -> Option<u64> {
        let lasted = self.now.get().wrapping_sub(self.holds_since.get());
        let receiving = self.phase.get() == Phase::Body && self.holds.get() > 0;
        if !receiving || lasted < GRACE_TICKS {
            return None;
        }
        Some(self.brought.get() / u64::from(lasted)).filter(|pace| *pace < FAIR_TICK_BYTES)
    }

    /// Ends the upload, for others wait; what memory that gives back.
    pub(crate) fn give_way(&self) -> usize {
        self.gave_way.set(true);
        self.wake();
        self.holds.get()
    }

    /// Whether the answer that is sent now is a long one.
    pub(crate) fn answers_long(&self, long: bool) {
        self.long_answer.set(long);
    }

    /// Whether a long answer has memory that its client does not take off it.
    pub(crate) fn is_unread(&self) -> bool {
        let now = self.now.get();
        let blocked = self.write_blocked.get().map_or(0, |since| now.wrapping_sub(since));
        let is_unread = match &self.parent {
            None => blocked >= UNREAD_TICKS,
            Some(parent) => parent.is_unread(),
        };
        self.long_answer.get() && is_unread && !self.reaped.get()
    }

    /// Ends the connection in the middle of its answer, for others wait for the memory. Of a stream
    /// that alone is ended, if the memory comes back with it.
    pub(crate) fn cut_off(&self) {
        match &self.parent {
            Some(parent) if parent.is_stuck() => parent.connection.cut_off(),
            _ => {
                self.break_off();
                self.give_up();
            }
        }
    }

    /// Its answer is ready. `clean`: nothing of the request is left unread.
    pub(crate) fn request_ends(&self, clean: bool) {
        self.unread.set(!clean);
        self.enter(Phase::Idle);
    }

    /// From now on, whenever the connection is polled, it is looked whether the client has left.
    pub(crate) fn heed_leaving(&self, heeded: bool) {
        self.heeded.set(heeded);
    }

    /// Whether the client was seen to have closed its end. One that only has nothing more to say is
    /// not told from one that is gone.
    pub(crate) fn has_left(&self) -> bool {
        self.left.get()
    }

    /// Another protocol goes on where this answer ends.
    pub(crate) fn upgrade(&self) {
        self.upgraded.set(true);
    }

    /// The answer ends in the middle: the connection is reset, so that the client can't take what
    /// it got for all there is.
    pub(crate) fn break_off(&self) {
        self.broken.set(true);
    }

    /// Remembers whom to wake when the verdict changes.
    pub(crate) fn attend(&self, waker: &Waker) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// Wakes the connection's task, so that it looks at its verdict and the loop's state.
    pub(crate) fn wake(&self) {
        if let Some(task) = self.task.borrow().as_ref() {
            task.wake_by_ref();
        }
    }

    /// Whether the sweep gave the connection up.
    pub(crate) fn reaped(&self) -> bool {
        self.reaped.get()
    }

    /// Looks for a limit that was passed; `true` if the connection was given up just now.
    pub(crate) fn sweep(&self) -> bool {
        if let Some(parent) = &self.parent {
            self.lingers_no_longer(parent);
            let is_over = !self.reaped.get() && parent.is_too_slow(self.phase.get() == Phase::Body);
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
                Phase::Body => self.window_is_over(lasted),
                Phase::Idle | Phase::Linger if self.leaving.get() => lasted >= FAREWELL_TICKS,
                Phase::Idle => blocked.is_none() && !self.open.get() && lasted >= IDLE_TICKS,
                Phase::Linger => lasted >= LINGER_TICKS,
                Phase::Busy => false,
            };
        if over && !self.reaped.get() {
            self.give_up();
            return true;
        }
        if blocked.is_some_and(|blocked| blocked % LOOK_TICKS == 0) {
            // The socket looks when it is asked to write.
            self.look.set(true);
            self.wake();
        }
        false
    }

    /// Ends the connection as soon as its task runs. An answer that is not all out is broken off.
    pub(crate) fn give_up(&self) {
        if self.write_blocked.get().is_some() {
            self.break_off();
        }
        self.reaped.set(true);
        match &self.parent {
            // Nothing runs any more that could reset the stream.
            Some(parent) if parent.is_over.get() => parent.connection.cut_off(),
            _ => self.wake(),
        }
    }

    fn window_is_over(&self, lasted: u32) -> bool {
        if lasted < BODY_TICKS {
            return false;
        }
        let slow = self.window.get() < BODY_WINDOW_BYTES;
        self.window_begins();
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

    /// The kernel takes no more; `unacknowledged` asks it how many bytes it holds.
    fn saw_full(&self, unacknowledged: impl FnOnce() -> Option<u64>) {
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
