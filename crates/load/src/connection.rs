//! One connection: a socket that never blocks, the request on its way out, the answer coming in.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::reply::Reply;

/// A request whose answer is awaited. Times are nanoseconds from the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) intended: u64,
    pub(crate) written: u64,
    pub(crate) put: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum State {
    Connecting,
    Idle,
    Waiting(Request),
    /// Broken; to be opened anew at this time.
    Closed(u64),
}

/// What became of an awaited answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Received {
    /// Not all of it is here.
    Partly,
    /// It is complete. `usable`: the connection takes another request.
    Whole { status: u16, usable: bool },
    /// It will never be complete.
    Broken,
}

pub(crate) struct Connection {
    stream: Option<TcpStream>,
    pub(crate) state: State,
    /// The next slot of this connection.
    pub(crate) slot: u64,
    /// Since when it could have sent.
    pub(crate) free_since: u64,
    /// The request, refilled for each.
    pub(crate) out: Vec<u8>,
    out_at: usize,
    reply: Reply,
}

impl Connection {
    pub(crate) fn new(slot: u64) -> Self {
        Self {
            stream: None,
            state: State::Closed(0),
            slot,
            free_since: 0,
            out: Vec::new(),
            out_at: 0,
            reply: Reply::new(),
        }
    }

    /// Begins to connect, and asks for events under `index`.
    ///
    /// Edge-triggered for both directions: registered once, no call to change it later.
    pub(crate) fn open(
        &mut self,
        target: SocketAddr,
        epoll: &OwnedFd,
        index: usize,
    ) -> io::Result<()> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &target) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(epoll, socket.as_fd(), EventData::new_u64(index as u64), events)?;
        self.stream = Some(TcpStream::from(socket));
        self.state = State::Connecting;
        self.reply.reset();
        Ok(())
    }

    /// Whether connecting came to its end, and how.
    pub(crate) fn finish_connect(&mut self) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Err(ErrorKind::NotConnected.into()) };
        match stream.take_error()? {
            Some(error) => Err(error),
            None => stream.peer_addr().map(|_| ()),
        }
    }

    pub(crate) fn close(&mut self, retry_at: u64) {
        self.stream = None;
        self.state = State::Closed(retry_at);
    }

    /// Begins to write `out`.
    pub(crate) fn send(&mut self, request: Request) -> io::Result<()> {
        self.out_at = 0;
        self.reply.reset();
        self.state = State::Waiting(request);
        self.flush()
    }

    /// Writes what the socket takes of `out`.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Err(ErrorKind::NotConnected.into()) };
        while self.out_at < self.out.len() {
            match stream.write(&self.out[self.out_at..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => self.out_at += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there. `ended`: the event said that the server sends no more. A read that does
    /// not fill the buffer has emptied the socket, and saves the call that would say so, but it
    /// hides an end that came with the same event.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], ended: bool) -> Received {
        let Some(stream) = &mut self.stream else { return Received::Broken };
        loop {
            let len = match stream.read(buffer) {
                Ok(0) if self.reply.end_of_stream() => return self.whole(false),
                Ok(0) => return Received::Broken,
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Partly,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Received::Broken,
            };
            match self.reply.feed(&buffer[..len]) {
                Ok(taken) if self.reply.is_done() => return self.whole(taken == len && !ended),
                Ok(_) if len < buffer.len() && !ended => return Received::Partly,
                Ok(_) => {}
                Err(_) => return Received::Broken,
            }
        }
    }

    fn whole(&self, clean: bool) -> Received {
        let usable = clean && !self.reply.closes() && self.out_at == self.out.len();
        Received::Whole { status: self.reply.status(), usable }
    }
}
