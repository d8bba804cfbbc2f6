//! A client's socket, which records reads and writes in the connection's state.
#![allow(unsafe_code, reason = "an ioctl without a safe wrapper")]

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::ioctl::{Getter, Opcode, ioctl};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::{ConnectionState, LINGER_BYTES, Phase};
use crate::transport::Stream;

/// A client's socket. The close of a socket with unread bytes resets the connection, which loses
/// the answer. So the shutdown first discards input, and a refusal sent during an upload reaches
/// the client.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    watch: Rc<ConnectionState>,
    scratch: ScratchBuffer,
    discarded_bytes: Option<usize>,
    /// True once the socket was shut down.
    is_shut: bool,
}

/// Buffer in which a loop's sockets assemble small answers, one at a time.
pub(crate) type ScratchBuffer = Rc<RefCell<Vec<u8>>>;

/// Maximum size of an answer that is copied into one buffer before its write. The kernel accepts
/// one small buffer faster than two, which saves 3 % of a request.
const ONE_PIECE: usize = 2048;

impl Socket {
    /// Creates a socket that records its progress in `watch`.
    pub(crate) fn new(stream: Stream, watch: Rc<ConnectionState>, scratch: ScratchBuffer) -> Self {
        Self { stream, watch, scratch, discarded_bytes: None, is_shut: false }
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>, mut discarded: usize) -> Poll<io::Result<()>> {
        let mut scratch = [0; 16 * 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(self.stream.socket_mut()).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() && discarded < LINGER_BYTES => {
                    discarded += buf.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    self.discarded_bytes = Some(discarded);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Socket {
    /// Ends the HTTP session. If an answer was broken off, the connection is reset. Returns the
    /// stream if another protocol follows, otherwise `None`.
    pub(crate) fn end(self) -> Option<Stream> {
        if self.watch.broken.get() {
            // If the reset fails, the client notices only that the last chunk is missing.
            let _ = SockRef::from(self.stream.socket()).set_linger(Some(Duration::ZERO));
        }
        self.watch.upgraded.get().then_some(self.stream)
    }
}

/// True if the client has closed its end and all its bytes were read.
fn is_closed(stream: &TcpStream) -> bool {
    match SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]) {
        Ok(waiting) => waiting == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Returns the number of sent bytes that the client has not acknowledged; `None` if the query
/// fails.
fn unacknowledged_bytes(stream: &TcpStream) -> Option<u64> {
    // SAFETY: TIOCOUTQ writes one int and reads nothing. No crate here wraps it, and only the
    // kernel has the number. Without it a client that reads 100 KB/s looks like a client that
    // stopped.
    let held = unsafe { ioctl(stream, Getter::<{ libc::TIOCOUTQ as Opcode }, c_int>::new()) };
    held.ok().and_then(|held| u64::try_from(held).ok())
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
            match &buf.filled()[before..] {
                [] => self.watch.record_end_of_input(),
                read => self.watch.record_read(read),
            }
        }
        result
    }
}

impl Socket {
    fn note_write(&self, result: &Poll<io::Result<usize>>) {
        match result {
            Poll::Ready(Ok(bytes)) => self.watch.record_write(*bytes),
            Poll::Ready(Err(_)) => self.watch.record_end_of_input(),
            Poll::Pending => {
                self.watch.record_blocked_write(|| unacknowledged_bytes(self.stream.socket()))
            }
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.watch.checks_for_leave.get() && is_closed(self.stream.socket()) {
            self.watch.left.set(true);
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        match &flushed {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => self.watch.record_end_of_input(),
            Poll::Pending => {
                self.watch.record_blocked_write(|| unacknowledged_bytes(self.stream.socket()))
            }
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.poll_shut(cx);
        self.is_shut |= shut.is_ready();
        shut
    }
}

impl Socket {
    /// Shuts the connection down, unless it is shut down already, another protocol continues, or
    /// the connection is reset. hyper leaves a connection open if any request had an `Upgrade`
    /// header, even if the upgrade was not granted. Without this shutdown, the client would lose
    /// the refusal of a body that it still sends.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_shut || self.watch.upgraded.get() || self.watch.broken.get() {
            return Poll::Ready(());
        }
        // The shutdown fails, without harm, if the client is gone.
        Pin::new(self).poll_shutdown(cx).map(drop)
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(discarded) = self.discarded_bytes {
            return self.poll_linger(cx, discarded);
        }
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        if matches!(shut, Poll::Ready(Ok(()))) && self.watch.unread.get() {
            self.watch.enter(Phase::Linger);
            return self.poll_linger(cx, 0);
        }
        shut
    }
}
