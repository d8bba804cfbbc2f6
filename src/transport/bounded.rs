//! The socket under TLS, with a limit on the bytes received since the last application data.
//!
//! rustls buffers up to 64 KiB of an incomplete handshake message, during the handshake and after
//! it, for any client. These 64 KiB exceed a connection's share of `--memory`
//! (`settings/memory.rs`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Limit on the bytes received since the last application data: bytes of a handshake, or of TLS
/// messages between two pieces of data. A ClientHello has 1.8 KiB with a post-quantum key share,
/// and up to 2 KiB more with a ticket. A certificate has 0.5 to 2 KiB, so chains of five fit. A
/// record with data has 16.3 KiB.
pub(super) const MAX_WITHOUT_DATA: usize = 20 << 10;

/// A socket with a limit on the bytes received since the last application data.
#[derive(Debug)]
pub(crate) struct Bounded {
    socket: TcpStream,
    /// Bytes received since the last application data.
    without_data: usize,
    /// True if the previous read reached the limit, and no data has arrived since.
    is_over: bool,
}

impl Bounded {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, without_data: 0, is_over: false }
    }

    /// Resets the count. Called after the handshake, and after each arrival of data.
    pub(super) fn record_data(&mut self) {
        self.without_data = 0;
        self.is_over = false;
    }

    /// Ends a read at the limit. The first call returns `Pending`: after the handshake the caller
    /// can then process the data received so far, although the rest of a record is missing. A
    /// second call without data in between fails.
    fn pause(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_over, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let what = format!(
            "{} bytes of TLS came with no data among them: a handshake has fewer, with all its \
             certificates",
            self.without_data
        );
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, what)))
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.without_data >= MAX_WITHOUT_DATA {
            return this.pause(cx);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
        this.without_data += buf.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
