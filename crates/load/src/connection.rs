//! One connection: a socket that never blocks, the request on its way out, the answer coming in.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::reply::Reply;
use crate::request::Made;
use crate::tls::{Session, Tls};

/// A request whose answer is awaited. Times are nanoseconds from the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) intended: u64,
    pub(crate) written: u64,
    pub(crate) made: Made,
    /// It is not of the warm-up.
    pub(crate) counted: bool,
    /// Answers still to come: more than one where requests were sent together.
    pub(crate) left: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum State {
    Connecting,
    Idle,
    /// Connected, but its script wants it to wait.
    Thinking,
    Waiting(Request),
    /// To be opened anew when its time has come.
    Closed,
}

/// What became of an awaited answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Received {
    /// Not all of it is here.
    Partly,
    /// It is complete, with this status.
    Whole(u16),
    /// It will never be complete.
    Broken,
    /// It is no HTTP/1.1; see [`Connection::garbage`].
    Garbage,
}

/// What was read from a connection and not looked at yet. One is enough for a thread.
pub(crate) struct Inbox {
    buffer: Box<[u8]>,
    at: usize,
    len: usize,
    /// There may be more to read.
    more: bool,
    /// The server sends no more than there is.
    ended: bool,
}

impl Inbox {
    /// One that takes `len` bytes at once.
    pub(crate) fn new(len: usize) -> Self {
        let buffer = vec![0; len].into_boxed_slice();
        Self { buffer, at: 0, len: 0, more: true, ended: false }
    }

    /// Begins anew, with an event of a connection that may say that the server sends no more.
    ///
    /// A read that does not fill the buffer has emptied the socket, and saves the call that would
    /// say so, but it hides an end that came with the same event.
    pub(crate) fn open(&mut self, ended: bool) -> &mut Self {
        (self.at, self.len, self.more, self.ended) = (0, 0, true, ended);
        self
    }

    /// Reads from a socket in clear: how much, and whether there may be more.
    fn read(&mut self, socket: &OwnedFd) -> io::Result<(usize, bool)> {
        let read = || rustix::net::recv(socket, &mut self.buffer[..], RecvFlags::empty());
        let (len, _) = rustix::io::retry_on_intr(read)?;
        Ok((len, len == self.buffer.len() || self.ended))
    }
}

pub(crate) struct Connection {
    /// Used by bare system calls: those of libc are cancellation points, which cost 4 % of the CPU
    /// time of a request.
    stream: Option<OwnedFd>,
    /// TLS over it, if its server has TLS.
    session: Option<Box<Session>>,
    pub(crate) state: State,
    /// Number of its target, and one of that one's addresses.
    pub(crate) target: usize,
    pub(crate) address: SocketAddr,
    /// Since when it could have sent: it was connected, or had its answer.
    pub(crate) ready: u64,
    /// Since when the next request of a closed loop would have been sent, had the server not closed
    /// the connection after its last answer.
    pub(crate) owed: Option<u64>,
    /// An answer came since it was opened.
    pub(crate) proven: bool,
    /// It is on the list of those that are free.
    pub(crate) listed: bool,
    /// The request, refilled for each.
    pub(crate) out: Vec<u8>,
    out_at: usize,
    reply: Reply,
}

impl Connection {
    pub(crate) fn new(target: usize, address: SocketAddr, keep: bool) -> Self {
        Self {
            stream: None,
            session: None,
            state: State::Closed,
            target,
            address,
            ready: 0,
            owed: None,
            proven: false,
            listed: false,
            out: Vec::new(),
            out_at: 0,
            reply: Reply::new(keep),
        }
    }

    /// Begins to connect, and asks for events under `index`.
    ///
    /// Edge-triggered for both directions: registered once, no call to change it later.
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
        self.state = State::Connecting;
        self.proven = false;
        self.reply.reset(false);
        Ok(())
    }

    /// Goes on connecting, the handshake of TLS included. Whether it came to its end.
    pub(crate) fn finish_connect(&mut self) -> io::Result<bool> {
        let Some(stream) = &self.stream else { return Err(ErrorKind::NotConnected.into()) };
        rustix::net::sockopt::socket_error(stream)??;
        match &mut self.session {
            // An event before the socket is connected has nothing to read.
            Some(session) => session.handshake(stream),
            None => rustix::net::getpeername(stream).map(|_| true).map_err(io::Error::from),
        }
    }

    /// What ended TLS, if that did not end in order.
    pub(crate) fn broken_tls(&self) -> Option<io::Error> {
        self.session.as_ref().and_then(|session| session.failed())
    }

    /// Closes by a reset: with an orderly end, whoever says it first keeps the port for a minute,
    /// and a server that closes after each answer would soon have used them all up.
    pub(crate) fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            // If it fails, the end is an orderly one.
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
        self.session = None;
        self.state = State::Closed;
    }

    /// Begins to write `out`.
    pub(crate) fn send(&mut self, request: Request) -> io::Result<()> {
        self.out_at = 0;
        self.reply.reset(self.out.starts_with(b"HEAD "));
        self.state = State::Waiting(request);
        self.flush()
    }

    /// Writes what the socket takes of `out`.
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

    /// The body of the answer, if it is kept.
    pub(crate) fn body(&self) -> &[u8] {
        self.reply.body()
    }

    /// The head of the answer, if it is kept.
    pub(crate) fn head(&self) -> &[u8] {
        self.reply.head()
    }

    /// Makes ready for the next of several answers.
    pub(crate) fn expect_next(&mut self) {
        self.reply.reset(false);
    }

    /// Reads one answer, as far as it is there, and adds to `bytes` how much was read.
    pub(crate) fn receive(&mut self, inbox: &mut Inbox, bytes: &mut u64) -> Received {
        let Some(stream) = &mut self.stream else { return Received::Broken };
        loop {
            if inbox.at == inbox.len {
                if !inbox.more {
                    return Received::Partly;
                }
                let received = match &mut self.session {
                    Some(session) => session.read(stream, &mut inbox.buffer, inbox.ended),
                    None => inbox.read(stream),
                };
                (inbox.len, inbox.more) = match received {
                    Ok((0, _)) if self.reply.end_of_stream() => (0, inbox.ended),
                    Ok((0, _)) => return Received::Broken,
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Partly,
                    Err(_) => return Received::Broken,
                };
                inbox.at = 0;
                *bytes += inbox.len as u64;
            }
            match self.reply.feed(&inbox.buffer[inbox.at..inbox.len]) {
                Ok(taken) => inbox.at += taken,
                Err(_) => return Received::Garbage,
            }
            if self.reply.is_done() {
                return Received::Whole(self.reply.status());
            }
        }
    }

    /// What was no HTTP/1.1, from where it began as far as it is still here.
    pub(crate) fn garbage<'a>(&'a self, inbox: &'a Inbox) -> &'a [u8] {
        match self.reply.pieces() {
            [] => &inbox.buffer[inbox.at..inbox.len],
            pieces => pieces,
        }
    }

    /// Whether another answer can come after this one.
    pub(crate) fn goes_on(&self) -> bool {
        !self.reply.closes()
    }

    /// Whether the server ends the connection with its last answer.
    pub(crate) fn is_ended(&self, inbox: &Inbox) -> bool {
        inbox.ended || !self.goes_on()
    }

    /// Whether the connection takes another request, after its last answer.
    pub(crate) fn is_usable(&self, inbox: &Inbox) -> bool {
        let sent = self.session.as_ref().is_none_or(|session| session.is_flushed());
        let clean = inbox.at == inbox.len && self.out_at == self.out.len() && sent;
        clean && !self.is_ended(inbox)
    }
}
