//! Reads and writes a lane's connection, as a task of its own.
//!
//! ```text
//!  socket ─▶ scratch ─▶ envelopes ─▶ messages, or pieces put together ─▶ sink
//!                  └ what is no whole envelope yet: rest
//! ```
//!
//! Being woken by a push, it runs after the tasks that were ready before, so that what they all
//! push in one turn of the loop is one envelope and one `write`.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use cluster::wire::{Assembly, ENVELOPE_MAX, Envelope, Item, Malformed, WINDOW, envelope_len};
use cluster::{Body, Event, Message, Reply};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::lane::{Lane, Way};
use super::{FromPeers, Peers};
use crate::clock::wall_micros;

/// Reads of one lane before others of its loop have their turn.
const READS_PER_TURN: usize = 4;

/// Memory that an idle lane keeps for writing, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("{0}")]
    Closed(&'static str),
    #[error("it closed the connection")]
    Left,
    #[error("{0}")]
    Broken(io::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// Reads and writes a lane's connection.
pub(super) struct Driver {
    stream: TcpStream,
    lane: Rc<Lane>,
    /// The beginning of an envelope.
    rest: Vec<u8>,
    assembly: Assembly,
    /// Bytes of pieces that were taken, and for which it was given no credit yet.
    taken: usize,
    /// Whether nothing more is written.
    finished: bool,
}

impl Driver {
    /// `rest` is what came behind the handshake.
    pub(super) fn new(stream: TcpStream, lane: Rc<Lane>, rest: Vec<u8>) -> Self {
        let assembly = Assembly::default();
        Self { stream, lane, rest, assembly, taken: 0, finished: false }
    }

    /// The lane that it drives.
    pub(super) fn lane(&self) -> Rc<Lane> {
        Rc::clone(&self.lane)
    }

    /// Serves the connection to its end.
    pub(super) async fn run(mut self, peers: &Peers) -> End {
        let rest = mem::take(&mut self.rest);
        if let Err(malformed) = self.take_in(&rest, peers) {
            return malformed.into();
        }
        poll_fn(|cx| {
            self.lane.attend(cx.waker());
            match self.turn(cx, peers) {
                Ok(()) => Poll::Pending,
                Err(end) => Poll::Ready(end),
            }
        })
        .await
    }

    fn turn(&mut self, cx: &mut Context<'_>, peers: &Peers) -> Result<(), End> {
        for _ in 0..READS_PER_TURN {
            if let Some(why) = self.lane.closed.get() {
                return Err(End::Closed(why));
            }
            let paused = self.lane.is_paused();
            let read = !paused && self.read(cx, peers)?;
            self.flush(cx)?;
            let resumes = paused && !self.lane.is_paused();
            if !read && !resumes {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Reads once; returns whether anything came.
    fn read(&mut self, cx: &mut Context<'_>, peers: &Peers) -> Result<bool, End> {
        let mut scratch = mem::take(&mut *peers.inner.scratch.borrow_mut());
        scratch.resize(ENVELOPE_MAX, 0);
        let begun = self.rest.len();
        scratch[..begun].copy_from_slice(&self.rest);
        let mut buffer = ReadBuf::new(&mut scratch[begun..]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        let read = buffer.filled().len();
        let result = match polled {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(End::Broken(error)),
            Poll::Ready(Ok(())) if read == 0 => Err(End::Left),
            Poll::Ready(Ok(())) => {
                self.lane.counters.peers.bytes_received.add(read as u64);
                self.lane.heard.set(true);
                let taken = self.take_in(&scratch[..begun + read], peers);
                taken.map(|()| true).map_err(End::from)
            }
        };
        *peers.inner.scratch.borrow_mut() = scratch;
        result
    }

    /// Takes in what was read: whole envelopes now, the rest when it is one.
    fn take_in(&mut self, mut input: &[u8], peers: &Peers) -> Result<(), Malformed> {
        while let Some(length) = envelope_len(input)? {
            let Some((envelope, behind)) = input.split_at_checked(length) else { break };
            self.envelope(Bytes::copy_from_slice(envelope), peers)?;
            input = behind;
        }
        self.rest.clear();
        self.rest.extend_from_slice(input);
        if input.is_empty() {
            self.rest.shrink_to(KEPT_BYTES);
        }
        if self.taken > 0 {
            let credit = mem::take(&mut self.taken) as u32;
            self.lane.out.borrow_mut().writer.credit(credit);
        }
        Ok(())
    }

    fn envelope(&mut self, bytes: Bytes, peers: &Peers) -> Result<(), Malformed> {
        let lane = Rc::clone(&self.lane);
        let mut envelope = Envelope::open(bytes)?;
        lane.counters.peers.envelopes_received.add(1);
        let sender = envelope.sender();
        lane.facts.merge_clock(sender.clock);
        let (disk, life) = lane.disk;
        if !lane.facts.shared.logs.heard(lane.peer, disk, life, sender.position) {
            lane.close("a later process with that node's data directory was met");
            return Ok(());
        }
        let fits = sender.epoch == lane.facts.shared.topology.digest();
        while let Some(item) = envelope.next(&lane.facts.codec)? {
            match item {
                Item::Message(message) => self.message(message, fits, peers)?,
                Item::Piece { last, bytes } => {
                    self.taken += bytes.len();
                    let message = self.assembly.add(&bytes, last, &lane.facts.codec)?;
                    if let Some(message) = message {
                        self.message(message, fits, peers)?;
                    }
                }
                Item::Credit(bytes) => {
                    let mut out = lane.out.borrow_mut();
                    out.credit += bytes as usize;
                    if out.credit > WINDOW {
                        return Err(Malformed("more credit than there was to give back"));
                    }
                }
                Item::Beat { token } => {
                    lane.out.borrow_mut().writer.echo(token, wall_micros());
                }
                Item::Echo { token, wall } => {
                    let now = peers.inner.began.elapsed().as_micros() as u64;
                    lane.facts.note_echo(lane.peer, now.saturating_sub(token), wall);
                }
                Item::Goodbye => lane.leaving.set(true),
            }
        }
        Ok(())
    }

    fn message(&self, message: Message, fits: bool, peers: &Peers) -> Result<(), Malformed> {
        let Message { id, body } = message;
        let peer = self.lane.peer;
        self.lane.counters.peers.messages_received.add(1);
        match (self.lane.way, body) {
            (Way::Dialed, Body::Reply(reply)) => {
                peers.tell(FromPeers::Event(Event::Reply { peer, id, reply }));
            }
            (Way::Accepted(_), Body::Request { .. }) if !fits => {
                peers.respond_on(&self.lane, id, Reply::WrongEpoch);
            }
            (Way::Accepted(lane), Body::Request { remaining_ms: _, class, request }) => {
                peers.tell(FromPeers::Event(Event::Request { lane, id, class, request }));
            }
            (Way::Dialed, Body::Request { .. }) => {
                return Err(Malformed("a request from whom was asked"));
            }
            (Way::Accepted(_), Body::Reply(_)) => {
                return Err(Malformed("a reply from whom asks"));
            }
        }
        Ok(())
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let lane = &self.lane;
        while !self.finished {
            let mut out = lane.out.borrow_mut();
            if out.writer.sealed().is_empty() {
                out.add_pieces();
                lane.seal(&mut out);
            }
            if out.writer.is_empty() {
                if lane.finishing.get() && out.waiting() == 0 {
                    self.finished = Pin::new(&mut self.stream).poll_shutdown(cx).is_ready();
                }
                return Ok(());
            }
            match Pin::new(&mut self.stream).poll_write(cx, out.writer.sealed()) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(End::Broken(error)),
                Poll::Ready(Ok(written)) => {
                    lane.counters.peers.writes.add(1);
                    lane.counters.peers.bytes_sent.add(written as u64);
                    out.writer.sent(written);
                    if out.writer.is_empty() {
                        out.writer.shrink(KEPT_BYTES);
                    }
                }
            }
        }
        Ok(())
    }
}
