//! A connection's socket, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use protocol::handshake::Channel;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::bounded::Bounded;
use super::tls::HTTP2;

/// Exporter label of the channel secret (RFC 5705). Both ends of a connection between nodes use it.
const LABEL: &[u8] = b"EXPORTER-kvorum-peer";

/// A connection as a byte stream.
#[derive(Debug)]
pub(crate) enum Stream {
    /// A plaintext connection.
    Plain(TcpStream),
    /// A TLS connection, after its handshake. Boxed, because the state has some hundred bytes.
    Tls(Box<TlsStream<Bounded>>),
}

impl Stream {
    /// Wraps a TLS connection after its handshake.
    pub(super) fn new_tls(mut stream: TlsStream<Bounded>) -> Self {
        stream.get_mut().0.record_data();
        Self::Tls(Box::new(stream))
    }

    /// Returns the socket under the stream.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0.socket(),
        }
    }

    /// Returns the socket under the stream, for use outside of the TLS session.
    pub(crate) fn socket_mut(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_mut().0.socket_mut(),
        }
    }

    /// True if the TLS handshake selected HTTP/2.
    pub(crate) fn chose_http2(&self) -> bool {
        let Self::Tls(stream) = self else { return false };
        stream.get_ref().1.alpn_protocol() == Some(HTTP2)
    }

    /// Returns the TLS exporter secret, which only the two ends have; `None` without TLS.
    pub(crate) fn channel(&self) -> Option<Channel> {
        let Self::Tls(stream) = self else { return None };
        let exported = match &**stream {
            TlsStream::Client(stream) => {
                stream.get_ref().1.export_keying_material(Channel::default(), LABEL, None)
            }
            TlsStream::Server(stream) => {
                stream.get_ref().1.export_keying_material(Channel::default(), LABEL, None)
            }
        };
        Some(exported.expect("the handshake is over, and 32 bytes are few"))
    }
}

/// Reads the data of one read of the socket, whereas `TlsStream` would read until `buf` is full.
/// Each arrival of data is reported to [`Bounded`], because its limit counts from the last data.
fn read(
    stream: &mut TlsStream<Bounded>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let data = ready!(Pin::new(&mut *stream).poll_fill_buf(cx))?;
        let length = data.len().min(buf.remaining());
        buf.put_slice(&data[..length]);
        Pin::new(&mut *stream).consume(length);
        stream.get_mut().0.record_data();
        // If the session does not want to read, it has already decrypted more data.
        if length == 0 || buf.remaining() == 0 || stream.get_ref().1.wants_read() {
            return Poll::Ready(Ok(()));
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => read(stream, cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Flushes data that TLS may have buffered for the socket.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
