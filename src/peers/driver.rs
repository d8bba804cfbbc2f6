//! Reads and writes a lane's connection, as a task of its own.
//!
//! ```text
//!  socket ─▶ scratch ─▶ envelopes ─▶ messages, or pieces put together ─▶ sink
//!                  └ what is no whole envelope yet: rest
//! ```
//!
//! A long message is put together only where there is room for it: a request waits for some, and
//! gives no credit for more until then; a record that was fetched has it already; what nobody has
//! room for is thrown away.
//!
//! Being woken by a push, it runs after the tasks that were ready before, so that what they all
//! push in one turn of the loop is one envelope and one `write`.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use cluster::wire::{
    Announced, Assembly, ENVELOPE_MAX, Envelope, ITEM_HEAD, Item, LongKind, Malformed, WINDOW,
    envelope_len, message_of,
};
use cluster::{Body, Event, Message, Reply};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::lane::{Lane, Way};
use super::{FromPeers, Peers};
use crate::node::budget::Held;
use crate::node::clock::wall_micros;

/// Reads of one lane before others of its loop have their turn.
const READS_PER_TURN: usize = 4;

/// Bytes of a message that brings a record, besides the record.
const FOUND_HEAD: usize = ITEM_HEAD + size_of::<u32>();

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

/// The long message that comes in.
enum Long {
    /// None.
    No,
    /// It waits for room.
    Waits(Pin<Box<dyn Future<Output = Held>>>),
    /// It is put together, in this room; `None` = whoever asked for it has some.
    Comes(Option<Held>),
    /// It is thrown away.
    Skipped(Announced),
}

/// Reads and writes a lane's connection.
pub(super) struct Driver {
    stream: TcpStream,
    lane: Rc<Lane>,
    /// The beginning of an envelope.
    rest: Vec<u8>,
    /// Pieces that were not taken yet, and how many bytes they have.
    pieces: VecDeque<(Bytes, bool)>,
    piece_bytes: usize,
    long: Long,
    assembly: Assembly,
    /// Whether the other node has the same topology in mind, as its last envelope said.
    fits: bool,
    /// Whether nothing more is written.
    finished: bool,
}

impl Driver {
    /// `rest` is what came behind the handshake.
    pub(super) fn new(stream: TcpStream, lane: Rc<Lane>, rest: Vec<u8>) -> Self {
        let (pieces, assembly) = (VecDeque::new(), Assembly::default());
        let (piece_bytes, long, fits, finished) = (0, Long::No, true, false);
        Self { stream, lane, rest, pieces, piece_bytes, long, assembly, fits, finished }
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
            self.gather(cx, peers)?;
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
            lane.close("a later process with that node's data directory is known");
            return Ok(());
        }
        let fits = lane.facts.shared.views.with(|view| view.agrees_with(sender.layout));
        while let Some(item) = envelope.next(&lane.facts.codec)? {
            match item {
                Item::Message(message) => self.message(message, fits, peers)?,
                Item::Piece { last, bytes } => {
                    self.piece_bytes += bytes.len();
                    if self.piece_bytes > WINDOW {
                        return Err(Malformed("more fragments than the credit allows"));
                    }
                    self.pieces.push_back((bytes, last));
                    self.fits = fits;
                }
                Item::Credit(bytes) => {
                    let mut out = lane.out.borrow_mut();
                    out.credit += bytes as usize;
                    if out.credit > WINDOW {
                        return Err(Malformed("more credit returned than was used"));
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

    /// Takes pieces as far as there is room for what they make.
    fn gather(&mut self, cx: &mut Context<'_>, peers: &Peers) -> Result<(), Malformed> {
        let mut taken = 0;
        while let Some((piece, _)) = self.pieces.front() {
            if matches!(self.long, Long::No) {
                self.long = self.begin(Announced::by(piece)?, peers);
            }
            if let Long::Waits(room) = &mut self.long {
                let Poll::Ready(held) = room.as_mut().poll(cx) else { break };
                self.long = Long::Comes(Some(held));
            }
            let Some((piece, last)) = self.pieces.pop_front() else { break };
            taken += piece.len();
            let whole = match self.long {
                Long::Comes(_) => self.assembly.add(&piece, last)?,
                _ => None,
            };
            if last {
                let long = mem::replace(&mut self.long, Long::No);
                self.take_long(long, whole, peers)?;
            }
        }
        if taken > 0 {
            self.piece_bytes -= taken;
            self.lane.out.borrow_mut().writer.credit(taken as u32);
        }
        Ok(())
    }

    /// The last piece of a long message came.
    fn take_long(&self, long: Long, whole: Option<Bytes>, peers: &Peers) -> Result<(), Malformed> {
        match (long, whole) {
            (Long::Comes(held), Some(bytes)) => {
                let bytes = match held {
                    Some(held) => held.keep(bytes),
                    None => bytes,
                };
                let message = message_of(bytes, &self.lane.facts.codec)?;
                self.message(message, self.fits, peers)?;
            }
            // There was no room for it.
            (Long::Skipped(what), _) if self.lane.way == Way::Dialed => {
                let (peer, id, reply) = (self.lane.peer, what.id, Reply::Busy);
                peers.tell(FromPeers::Event(Event::Reply { peer, id, reply }));
            }
            _ => {}
        }
        Ok(())
    }

    /// Where a long message goes.
    fn begin(&self, what: Announced, peers: &Peers) -> Long {
        let room = &self.lane.facts.room;
        match what.kind {
            LongKind::Request => match room.received.take(what.bytes) {
                Some(held) => Long::Comes(Some(held)),
                None => {
                    let received = Arc::clone(&room.received);
                    Long::Waits(Box::pin(async move { received.get(what.bytes).await }))
                }
            },
            LongKind::Found => match peers.take_room(self.lane.peer, what.id) {
                Some(held) if what.bytes <= held.bytes() + FOUND_HEAD => Long::Comes(Some(held)),
                _ => Long::Skipped(what),
            },
            // Whoever reads a range has room for its pages.
            LongKind::Page => Long::Comes(None),
        }
    }

    fn message(&self, message: Message, fits: bool, peers: &Peers) -> Result<(), Malformed> {
        let Message { id, body } = message;
        let peer = self.lane.peer;
        self.lane.counters.peers.messages_received.add(1);
        match (self.lane.way, body) {
            (Way::Dialed, Body::Reply(mut reply)) => {
                // A long message had its room before; one that is just over the bound has it here.
                if let (Reply::Found { record, .. }, Some(held)) =
                    (&mut reply, peers.take_room(peer, id))
                {
                    record.bytes = held.keep(Bytes::copy_from_slice(&record.bytes));
                }
                peers.tell(FromPeers::Event(Event::Reply { peer, id, reply }));
            }
            (Way::Accepted(_), Body::Request { .. }) if !fits => {
                peers.respond_on(&self.lane, id, Reply::WrongEpoch);
            }
            (Way::Accepted(lane), Body::Request { remaining_ms, class, request }) => {
                let event = Event::Request { lane, id, class, remaining_ms, request };
                peers.tell(FromPeers::Event(event));
            }
            (Way::Dialed, Body::Request { .. }) => {
                return Err(Malformed("a request on a connection for replies"));
            }
            (Way::Accepted(_), Body::Reply(_)) => {
                return Err(Malformed("a reply on a connection for requests"));
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
                out.add_short(lane.facts.room.lane_bytes);
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
