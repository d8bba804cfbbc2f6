//! A connection of the load generator: a non-blocking socket, the request that the connection
//! sends, and the answer that it receives.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::reply::Reply;
use crate::request::RequestInfo;
use crate::tls::{Session, Tls};

/// A request that awaits its answer. Times are nanoseconds since the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) intended: u64,
    pub(crate) written: u64,
    pub(crate) info: RequestInfo,
    /// True if the request was due after the warm-up, so that it counts.
    pub(crate) counted: bool,
    /// Number of answers still to come: more than one for pipelined requests.
    pub(crate) left: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ConnectionState {
    Connecting,
    Idle,
    /// Connected, but the script delays the next request.
    Thinking,
    Waiting(Request),
    /// Closed, and to be reopened at a set time.
    Closed,
}

/// Result of an attempt to receive an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReceiveProgress {
    /// The answer is incomplete.
    Partly,
    /// The answer is complete and has this status.
    Whole(u16),
    /// The connection failed before the answer was complete.
    Broken,
    /// The bytes are not HTTP/1.1; see [`Connection::garbage`].
    Garbage,
}

/// Bytes that were read from a connection and are not parsed yet. Each thread needs only one inbox.
pub(crate) struct Inbox {
    buffer: Box<[u8]>,
    at: usize,
    len: usize,
    /// True if the socket may have more bytes.
    more: bool,
    /// True if the server has closed its side.
    ended: bool,
}

impl Inbox {
    /// Creates an inbox that reads up to `len` bytes at once.
    pub(crate) fn new(len: usize) -> Self {
        let buffer = vec![0; len].into_boxed_slice();
        Self { buffer, at: 0, len: 0, more: true, ended: false }
    }

    /// Resets the inbox for an event of a connection. `ended` is true if the event reports that the
    /// server has closed its side.
    ///
    /// A read that does not fill the buffer has emptied the socket, which makes a further call
    /// unnecessary. The exception is an event that reports an end of stream: only a further read
    /// returns the end.
    pub(crate) fn open(&mut self, ended: bool) -> &mut Self {
        (self.at, self.len, self.more, self.ended) = (0, 0, true, ended);
        self
    }

    /// Reads from a plain-text socket. Returns the number of bytes, and true if there may be more.
    fn read(&mut self, socket: &OwnedFd) -> io::Result<(usize, bool)> {
        let read = || rustix::net::recv(socket, &mut self.buffer[..], RecvFlags::empty());
        let (len, _) = rustix::io::retry_on_intr(read)?;
        Ok((len, len == self.buffer.len() || self.ended))
    }
}

pub(crate) struct Connection {
    /// The socket. `None` while the connection is closed.
    stream: Option<OwnedFd>,
    /// The TLS session, if the target uses TLS.
    session: Option<Box<Session>>,
    pub(crate) state: ConnectionState,
    /// Index of the target. `address` is one of the target's addresses.
    pub(crate) target: usize,
    pub(crate) address: SocketAddr,
    /// Time from which the connection could send: it was established, had its last answer, or ended
    /// a delay of the script.
    pub(crate) ready: u64,
    /// Time at which a closed loop would have sent its next request, if the server had not closed
    /// the connection after its last answer.
    pub(crate) due_since: Option<u64>,
    /// True once an answer has arrived on this socket.
    pub(crate) proven: bool,
    /// True while the connection is on the free list.
    pub(crate) listed: bool,
    /// The encoded request. The buffer is reused.
    pub(crate) out: Vec<u8>,
    out_at: usize,
    reply: Reply,
}

impl Connection {
    pub(crate) fn new(target: usize, address: SocketAddr, keep: bool) -> Self {
        Self {
            stream: None,
            session: None,
            state: ConnectionState::Closed,
            target,
            address,
            ready: 0,
            due_since: None,
            proven: false,
            listed: false,
            out: Vec::new(),
            out_at: 0,
            reply: Reply::new(keep),
        }
    }

    /// Starts to connect, and registers for events under `index`.
    ///
    /// The registration is edge-triggered for both directions, so it never has to change.
    pub(crate) fn open(
        &mut self,
        epoll: &OwnedFd,
        index: usize,
        tls: Option<&Tls>,
    ) -> io::Result<()> {
        let family =
            if self.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &self.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(epoll, socket.as_fd(), EventData::new_u64(index as u64), events)?;
        self.stream = Some(socket);
        self.session = tls.map(|tls| Box::new(Session::new(tls)));
        self.state = ConnectionState::Connecting;
        self.proven = false;
        self.reply.reset(false);
        Ok(())
    }

    /// Continues to connect, including the TLS handshake. Returns true once connected.
    pub(crate) fn finish_connect(&mut self) -> io::Result<bool> {
        let Some(stream) = &self.stream else { return Err(ErrorKind::NotConnected.into()) };
        rustix::net::sockopt::socket_error(stream)??;
        match &mut self.session {
            // An event before the socket is connected brings no bytes to read.
            Some(session) => session.handshake(stream),
            None => rustix::net::getpeername(stream).map(|_| true).map_err(io::Error::from),
        }
    }

    /// Returns the error that ended the TLS session, or `None` if the session did not end or ended
    /// in order.
    pub(crate) fn tls_error(&self) -> Option<io::Error> {
        self.session.as_ref().and_then(|session| session.failure())
    }

    /// Closes by a reset. After an orderly close, the side that closes first keeps the port for a
    /// minute. With a server that closes after each answer, this machine would soon run out of
    /// ports.
    pub(crate) fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            // If this call fails, the close is orderly.
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
        self.session = None;
        self.state = ConnectionState::Closed;
    }

    /// Starts to write `out`, and then expects the answer to `request`.
    pub(crate) fn send(&mut self, request: Request) -> io::Result<()> {
        self.out_at = 0;
        self.reply.reset(self.out.starts_with(b"HEAD "));
        self.state = ConnectionState::Waiting(request);
        self.flush()
    }

    /// Writes as much of `out` as the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Err(ErrorKind::NotConnected.into()) };
        if let Some(session) = &mut self.session {
            self.out_at += session.write(stream, &self.out[self.out_at..])?;
            return Ok(());
        }
        while self.out_at < self.out.len() {
            match rustix::net::send(&*stream, &self.out[self.out_at..], SendFlags::NOSIGNAL) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => self.out_at += len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the body of the answer, if the connection keeps bodies.
    pub(crate) fn body(&self) -> &[u8] {
        self.reply.body()
    }

    /// Returns the head of the answer, if the connection keeps heads.
    pub(crate) fn head(&self) -> &[u8] {
        self.reply.head()
    }

    /// Prepares for the next of several answers.
    pub(crate) fn expect_next(&mut self) {
        self.reply.reset(false);
    }

    /// Reads as much of one answer as has arrived. Adds the number of bytes read to `bytes`.
    pub(crate) fn receive(&mut self, inbox: &mut Inbox, bytes: &mut u64) -> ReceiveProgress {
        let Some(stream) = &mut self.stream else { return ReceiveProgress::Broken };
        loop {
            if inbox.at == inbox.len {
                if !inbox.more {
                    return ReceiveProgress::Partly;
                }
                let received = match &mut self.session {
                    Some(session) => session.read(stream, &mut inbox.buffer, inbox.ended),
                    None => inbox.read(stream),
                };
                (inbox.len, inbox.more) = match received {
                    Ok((0, _)) if self.reply.end_of_stream() => (0, inbox.ended),
                    Ok((0, _)) => return ReceiveProgress::Broken,
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return ReceiveProgress::Partly;
                    }
                    Err(_) => return ReceiveProgress::Broken,
                };
                inbox.at = 0;
                *bytes += inbox.len as u64;
            }
            match self.reply.feed(&inbox.buffer[inbox.at..inbox.len]) {
                Ok(taken) => inbox.at += taken,
                Err(_) => return ReceiveProgress::Garbage,
            }
            if self.reply.is_done() {
                return ReceiveProgress::Whole(self.reply.status());
            }
        }
    }

    /// Returns the bytes that are not HTTP/1.1, as far as they are still buffered.
    pub(crate) fn garbage<'a>(&'a self, inbox: &'a Inbox) -> &'a [u8] {
        match self.reply.pieces() {
            [] => &inbox.buffer[inbox.at..inbox.len],
            pieces => pieces,
        }
    }

    /// Returns true if the server keeps the connection open after the current answer.
    pub(crate) fn allows_next_answer(&self) -> bool {
        !self.reply.closes()
    }

    /// Returns true if the server ends the connection with its last answer.
    pub(crate) fn is_ended(&self, inbox: &Inbox) -> bool {
        inbox.ended || !self.allows_next_answer()
    }

    /// Returns true if the connection can take another request after its last answer.
    pub(crate) fn is_usable(&self, inbox: &Inbox) -> bool {
        let sent = self.session.as_ref().is_none_or(|session| session.is_flushed());
        let clean = inbox.at == inbox.len && self.out_at == self.out.len() && sent;
        clean && !self.is_ended(inbox)
    }
}
