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

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How often connections are looked at. Every limit below is kept within one tick.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// A request's head must be complete this long after its first byte (the first one after accept).
const HEAD_TICKS: u32 = ticks(12);

/// While a body is being received, every such window must bring [`BODY_WINDOW_BYTES`].
const BODY_TICKS: u32 = ticks(10);

/// The slowest upload that is served is this much in [`BODY_TICKS`].
const BODY_WINDOW_BYTES: u32 = 64 * 1024;

/// A client that takes no byte of its answer for this long is given up.
const WRITE_TICKS: u32 = ticks(13);

/// A connection without a request is kept this long: longer than the pools of common clients and
/// proxies (60 s), so that the server is not the one that closes under a request.
const IDLE_TICKS: u32 = ticks(120);

/// How long a refused client may go on sending before its answer is cut off.
const LINGER_TICKS: u32 = ticks(5);

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
    /// Closed for writing; what the client still sends is thrown away.
    Linger,
}

/// What is known of a connection without asking the kernel. Shared by the socket, the requests on
/// it and the sweep, all on one loop.
#[derive(Debug)]
pub(crate) struct Watch {
    phase: Cell<Phase>,
    /// Tick at which the phase began, or last made progress.
    since: Cell<u32>,
    /// Tick since which the kernel takes no more bytes.
    write_blocked: Cell<Option<u32>>,
    /// Bytes of the body that arrived in this window.
    window: Cell<u32>,
    /// Whether the client may still be sending what nobody will read.
    unread: Cell<bool>,
    reaped: Cell<bool>,
    broken: Cell<bool>,
    /// Whether the request under way is for nobody once the client has closed its end.
    heeded: Cell<bool>,
    left: Cell<bool>,
    upgraded: Cell<bool>,
    /// Who is at the other end, as far as it was known when it came.
    pub(crate) client: Cell<Option<SocketAddr>>,
    /// Place in the loop's list of connections.
    pub(crate) place: Cell<usize>,
    /// The loop's tick, shared with it.
    now: Rc<Cell<u32>>,
    task: RefCell<Option<Waker>>,
}

impl Watch {
    /// The watch of a connection just accepted: it owes a request.
    pub(crate) fn new(now: Rc<Cell<u32>>) -> Rc<Self> {
        Rc::new(Self {
            phase: Cell::new(Phase::Head),
            since: Cell::new(now.get()),
            write_blocked: Cell::new(None),
            window: Cell::new(0),
            unread: Cell::new(true),
            reaped: Cell::new(false),
            broken: Cell::new(false),
            heeded: Cell::new(false),
            left: Cell::new(false),
            upgraded: Cell::new(false),
            client: Cell::new(None),
            place: Cell::new(0),
            now,
            task: RefCell::new(None),
        })
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.now.get());
    }

    /// A request's head is complete.
    pub(crate) fn request_begins(&self) {
        self.phase.set(Phase::Busy);
    }

    /// Its body is being waited for.
    pub(crate) fn body_begins(&self) {
        self.window.set(0);
        self.enter(Phase::Body);
    }

    /// Its body is complete, or not wanted any more.
    pub(crate) fn body_ends(&self) {
        self.phase.set(Phase::Busy);
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
        let now = self.now.get();
        let lasted = now.wrapping_sub(self.since.get());
        let blocked = self.write_blocked.get().map_or(0, |since| now.wrapping_sub(since));
        let over = blocked >= WRITE_TICKS
            || match self.phase.get() {
                Phase::Head => lasted >= HEAD_TICKS,
                Phase::Body => self.window_is_over(lasted),
                Phase::Idle => blocked == 0 && lasted >= IDLE_TICKS,
                Phase::Linger => lasted >= LINGER_TICKS,
                Phase::Busy => false,
            };
        if over && !self.reaped.replace(true) {
            self.wake();
            return true;
        }
        false
    }

    fn window_is_over(&self, lasted: u32) -> bool {
        if lasted < BODY_TICKS {
            return false;
        }
        let slow = self.window.get() < BODY_WINDOW_BYTES;
        self.body_begins();
        slow
    }

    fn saw_read(&self, bytes: usize) {
        match self.phase.get() {
            Phase::Idle => {
                self.unread.set(true);
                self.enter(Phase::Head);
            }
            Phase::Body => {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.window.set(self.window.get().saturating_add(bytes));
            }
            Phase::Head | Phase::Busy | Phase::Linger => {}
        }
    }

    fn saw_end(&self) {
        self.unread.set(false);
    }

    fn saw_write(&self) {
        self.write_blocked.set(None);
        if self.phase.get() == Phase::Idle {
            self.since.set(self.now.get());
        }
    }

    fn saw_full(&self) {
        if self.write_blocked.get().is_none() {
            self.write_blocked.set(Some(self.now.get()));
        }
    }
}

/// A client's socket. Closing it lets an answer that refuses what is still being sent reach the
/// client: a socket closed with bytes unread resets the connection and the answer with it.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    watch: Rc<Watch>,
    scratch: Scratch,
    thrown_away: Option<usize>,
}

/// Where a loop's sockets put small answers together, one at a time.
pub(crate) type Scratch = Rc<RefCell<Vec<u8>>>;

/// An answer of at most so many bytes is copied into one piece: the kernel takes one small buffer
/// faster than two, which is 3 % of a request.
const ONE_PIECE: usize = 2048;

impl Socket {
    /// Puts `watch` over `stream`.
    pub(crate) fn new(stream: TcpStream, watch: Rc<Watch>, scratch: Scratch) -> Self {
        Self { stream, watch, scratch, thrown_away: None }
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>, mut thrown: usize) -> Poll<io::Result<()>> {
        let mut scratch = [0; 16 * 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() && thrown < LINGER_BYTES => {
                    thrown += buf.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    self.thrown_away = Some(thrown);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Socket {
    /// The conversation is over. Where an answer was broken off, the connection is reset; where
    /// another protocol goes on, it is handed out.
    pub(crate) fn end(self) -> Option<TcpStream> {
        if self.watch.broken.get() {
            // Should it fail, the missing last chunk is what is left to tell.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
        self.watch.upgraded.get().then_some(self.stream)
    }
}

/// Whether the other end is closed and all that it sent was read.
fn is_closed(stream: &TcpStream) -> bool {
    match SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]) {
        Ok(waiting) => waiting == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = result {
            match buf.filled().len() - before {
                0 => self.watch.saw_end(),
                read => self.watch.saw_read(read),
            }
        }
        result
    }
}

impl Socket {
    fn note_write(&self, result: &Poll<io::Result<usize>>) {
        match result {
            Poll::Ready(Ok(_)) => self.watch.saw_write(),
            Poll::Ready(Err(_)) => self.watch.saw_end(),
            Poll::Pending => self.watch.saw_full(),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note_write(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let stream = Pin::new(&mut this.stream);
        let result = if bufs.iter().map(|buf| buf.len()).sum::<usize>() <= ONE_PIECE {
            let mut scratch = this.scratch.borrow_mut();
            scratch.clear();
            bufs.iter().for_each(|buf| scratch.extend_from_slice(buf));
            stream.poll_write(cx, &scratch)
        } else {
            stream.poll_write_vectored(cx, bufs)
        };
        this.note_write(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.watch.heeded.get() && is_closed(&self.stream) {
            self.watch.left.set(true);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(thrown) = self.thrown_away {
            return self.poll_linger(cx, thrown);
        }
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        if matches!(shut, Poll::Ready(Ok(()))) && self.watch.unread.get() {
            self.watch.enter(Phase::Linger);
            return self.poll_linger(cx, 0);
        }
        shut
    }
}

#[cfg(test)]
mod tests;
