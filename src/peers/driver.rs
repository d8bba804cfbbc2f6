//! Reads and writes the socket of a connection, in its own task.
//!
//! ```text
//!  socket ─▶ scratch ─▶ server::link::Connection ─▶ events ─▶ sink
//!         ◀───────────── bytes to send
//! ```
//!
//! A push wakes the driver. The driver runs after the tasks that are already ready, so all messages
//! that they push in one turn of the loop become one envelope and one `write`.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use protocol::wire::{ENVELOPE_MAX, Malformed};
use protocol::{NodeId, Now};
use server::link::{ConnectionInput, Direction, Host, Traffic};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::PeerConnection;
use super::{PeerConnections, PeerInput};
use crate::counters::clocks;
use crate::counters::memory_budget::MemoryReservation;
use crate::transport::Stream;

/// Maximum number of reads of one connection before other connections of the loop run.
const READS_PER_TURN: usize = 4;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkEnd {
    #[error("{0}")]
    Closed(&'static str),
    #[error("it closed the connection")]
    Left,
    #[error("{0}")]
    Broken(io::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// A pending memory reservation.
type CallWaiter = Option<Pin<Box<dyn Future<Output = MemoryReservation>>>>;

/// Reads and writes the socket of a connection.
pub(super) struct Driver {
    stream: Stream,
    connection: Rc<PeerConnection>,
    /// Bytes received after the handshake. The first turn processes them.
    rest: Vec<u8>,
    /// The pending reservation for the long request that is being received.
    waiting: CallWaiter,
    /// True once the socket was shut down for writing.
    finished: bool,
}

/// The connection's access to the clock and to memory reservations, while it processes input.
struct ConnectionHost<'a, 'c> {
    peers: &'a PeerConnections,
    cx: &'a mut Context<'c>,
    waiting: &'a mut CallWaiter,
}

impl Host for ConnectionHost<'_, '_> {
    type Reservation = MemoryReservation;

    fn now(&self) -> Now {
        clocks::now()
    }

    fn reserve_for_request(&mut self, bytes: usize) -> Option<MemoryReservation> {
        let received = &self.peers.inner.facts.received;
        if self.waiting.is_none() {
            if let Some(held) = received.take(bytes) {
                return Some(held);
            }
            let received = Arc::clone(received);
            *self.waiting = Some(Box::pin(async move { received.get(bytes).await }));
        }
        let Poll::Ready(held) = self.waiting.as_mut()?.as_mut().poll(self.cx) else { return None };
        *self.waiting = None;
        Some(held)
    }

    fn take_reply_reservation(&mut self, peer: NodeId, id: u64) -> Option<MemoryReservation> {
        self.peers.take_reservation(peer, id)
    }
}

impl Driver {
    /// Creates a driver. `rest` are the bytes received after the handshake.
    pub(super) fn new(stream: Stream, connection: Rc<PeerConnection>, rest: Vec<u8>) -> Self {
        Self { stream, connection, rest, waiting: None, finished: false }
    }

    /// Returns the driven connection.
    pub(super) fn connection(&self) -> Rc<PeerConnection> {
        Rc::clone(&self.connection)
    }

    /// Serves the connection to its end, and returns the reason of the end.
    pub(super) async fn run(mut self, peers: &PeerConnections) -> LinkEnd {
        poll_fn(|cx| {
            self.connection.set_waker(cx.waker());
            match self.turn(cx, peers) {
                Ok(()) => Poll::Pending,
                Err(end) => Poll::Ready(end),
            }
        })
        .await
    }

    fn turn(&mut self, cx: &mut Context<'_>, peers: &PeerConnections) -> Result<(), LinkEnd> {
        if !self.rest.is_empty() {
            let rest = mem::take(&mut self.rest);
            self.process_input(&rest, cx, peers)?;
        }
        for _ in 0..READS_PER_TURN {
            let paused = self.is_paused()?;
            let read = !paused && self.read(cx, peers)?;
            if !read && self.waiting.is_some() {
                // Memory may have become free for input that waits for it.
                self.process_input(&[], cx, peers)?;
            }
            self.flush(cx)?;
            // `is_paused` is also the only check whether the connection has closed itself.
            let resumes = !self.is_paused()? && paused;
            if !read && !resumes {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Returns true if reading is paused; an error if the connection is closed.
    fn is_paused(&self) -> Result<bool, LinkEnd> {
        let machine = self.connection.machine.borrow();
        machine.close_reason().map_or(Ok(machine.is_paused()), |why| Err(LinkEnd::Closed(why)))
    }

    /// Reads once. Returns true if bytes were received.
    fn read(&mut self, cx: &mut Context<'_>, peers: &PeerConnections) -> Result<bool, LinkEnd> {
        let mut scratch = mem::take(&mut *peers.inner.scratch.borrow_mut());
        scratch.resize(ENVELOPE_MAX, 0);
        let mut buffer = ReadBuf::new(&mut scratch);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        let read = buffer.filled().len();
        let result = match polled {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(LinkEnd::Broken(error)),
            Poll::Ready(Ok(())) if read == 0 => Err(LinkEnd::Left),
            Poll::Ready(Ok(())) => {
                self.connection.counters.peers.bytes_received.add(read as u64);
                self.process_input(&scratch[..read], cx, peers)
                    .map(|()| true)
                    .map_err(LinkEnd::from)
            }
        };
        *peers.inner.scratch.borrow_mut() = scratch;
        result
    }

    /// Processes input, and dispatches the resulting events.
    fn process_input(
        &mut self,
        mut input: &[u8],
        cx: &mut Context<'_>,
        peers: &PeerConnections,
    ) -> Result<(), Malformed> {
        let mut lent = ConnectionHost { peers, cx, waiting: &mut self.waiting };
        loop {
            // The connection must not be borrowed during a call of the sink, because the sink may
            // send messages on it.
            let came = self.connection.machine.borrow_mut().receive(&mut input, &mut lent)?;
            match came {
                None => return Ok(()),
                Some(ConnectionInput::Event(event)) => peers.dispatch(PeerInput::Event(event)),
                Some(ConnectionInput::Later) => peers.dispatch(PeerInput::Later),
                Some(ConnectionInput::Goodbye)
                    if self.connection.direction == Direction::Dialed =>
                {
                    if let Some(entry) = peers.entry(self.connection.peer) {
                        entry.link.borrow_mut().note_peer_leaving();
                    }
                }
                Some(ConnectionInput::Goodbye) => {}
            }
        }
    }

    /// Writes as many bytes as the socket accepts.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), LinkEnd> {
        let PeerConnection { machine, counters, .. } = &*self.connection;
        let counts = &counters.peers;
        let mut machine = machine.borrow_mut();
        while !self.finished {
            let bytes = machine.to_send(clocks::now);
            if bytes.is_empty() {
                // TLS may have buffered written data.
                match Pin::new(&mut self.stream).poll_flush(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => return Err(LinkEnd::Broken(error)),
                    Poll::Ready(Ok(())) => {}
                }
                if machine.is_finished() {
                    self.finished = Pin::new(&mut self.stream).poll_shutdown(cx).is_ready();
                }
                break;
            }
            match Pin::new(&mut self.stream).poll_write(cx, bytes) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Err(LinkEnd::Broken(error)),
                Poll::Ready(Ok(written)) => {
                    counts.writes.add(1);
                    counts.bytes_sent.add(written as u64);
                    machine.drop_sent(written);
                }
            }
        }
        let traffic = machine.take_traffic();
        let Traffic { envelopes_sent, envelopes_received, messages_sent, messages_received } =
            traffic;
        counts.envelopes_sent.add(envelopes_sent);
        counts.envelopes_received.add(envelopes_received);
        counts.messages_sent.add(messages_sent);
        counts.messages_received.add(messages_received);
        Ok(())
    }
}
