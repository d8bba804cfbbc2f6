//! A client's socket, which reports reads and writes to the connection's watch.
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

/// A client's socket. Its shutdown lets a refusal sent during an upload reach the client: a socket
/// closed with bytes unread resets the connection, and the answer is lost with it.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    watch: Rc<ConnectionState>,
    scratch: ScratchBuffer,
    thrown_away: Option<usize>,
    /// True once the socket was shut down.
    is_shut: bool,
}

/// Buffer in which a loop's sockets assemble small answers, one at a time.
pub(crate) type ScratchBuffer = Rc<RefCell<Vec<u8>>>;

/// Maximum size of an answer that is copied into one piece: the kernel takes one small buffer
/// faster than two, which is 3 % of a request.
const ONE_PIECE: usize = 2048;

impl Socket {
    /// Puts `watch` over `stream`.
    pub(crate) fn new(stream: Stream, watch: Rc<ConnectionState>, scratch: ScratchBuffer) -> Self {
        Self { stream, watch, scratch, thrown_away: None, is_shut: false }
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>, mut thrown: usize) -> Poll<io::Result<()>> {
        let mut scratch = [0; 16 * 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(self.stream.socket_mut()).poll_read(cx, &mut buf) {
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
    /// Ends the HTTP session. If an answer was broken off, the connection is reset; if another
    /// protocol follows, the stream is returned.
    pub(crate) fn end(self) -> Option<Stream> {
        if self.watch.broken.get() {
            // If this fails, only the missing last chunk tells the client.
            let _ = SockRef::from(self.stream.socket()).set_linger(Some(Duration::ZERO));
        }
        self.watch.upgraded.get().then_some(self.stream)
    }
}

/// True if the other end is closed and everything it sent was read.
fn is_closed(stream: &TcpStream) -> bool {
    match SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]) {
        Ok(waiting) => waiting == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Returns the number of bytes that the kernel holds until the other end acknowledges them.
fn unacknowledged(stream: &TcpStream) -> Option<u64> {
    // SAFETY: TIOCOUTQ writes one int and reads nothing. No crate here wraps it, and only the
    // kernel knows the number: without it a reader of 100 KB/s looks like one that stopped.
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
                [] => self.watch.saw_end(),
                read => self.watch.saw_read(read),
            }
        }
        result
    }
}

impl Socket {
    fn note_write(&self, result: &Poll<io::Result<usize>>) {
        match result {
            Poll::Ready(Ok(bytes)) => self.watch.saw_write(*bytes),
            Poll::Ready(Err(_)) => self.watch.saw_end(),
            Poll::Pending => self.watch.saw_full_socket(|| unacknowledged(self.stream.socket())),
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
        if self.watch.heeded.get() && is_closed(self.stream.socket()) {
            self.watch.left.set(true);
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        match &flushed {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => self.watch.saw_end(),
            Poll::Pending => self.watch.saw_full_socket(|| unacknowledged(self.stream.socket())),
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
    /// Shuts the connection down, unless that was done, another protocol continues on it, or it is
    /// reset. hyper leaves a connection open on which any request had an `Upgrade` header, also if
    /// the upgrade was not granted. Without this shutdown, the refusal of a body that is still
    /// being sent would be lost.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_shut || self.watch.upgraded.get() || self.watch.broken.get() {
            return Poll::Ready(());
        }
        // Fails harmlessly if the client is gone.
        Pin::new(self).poll_shutdown(cx).map(drop)
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
