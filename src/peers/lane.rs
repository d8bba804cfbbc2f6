//! One connection to or from another node, after the handshake.
//!
//! ```text
//!  push ─▶ short: encoded into the open envelope ─────────────┐
//!       └▶ long: waits ─▶ cut ─▶ pieces, as credit allows ─▶ writer ─▶ one write a turn ─▶ socket
//!
//!  socket ─▶ scratch ─▶ envelopes ─▶ messages, or pieces put together ─▶ sink
//!                  └ what is no whole envelope yet: rest
//! ```
//!
//! The lane is what its loop's tasks push to; its driver, a task of its own, reads and writes. Being
//! woken by a push it runs after the tasks that were ready before, so that what they all push in
//! one turn of the loop is one envelope and one `write`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use cluster::handshake::Met;
use cluster::wire::{
    Assembly, Cut, ENVELOPE_MAX, Envelope, Item, Malformed, PIECE_MAX, WHOLE_MAX, WINDOW, Writer,
    envelope_len, message_len,
};
use cluster::{Body, Event, LaneId, Message, NodeId, Reply};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::facts::Facts;
use super::{FromPeers, Peers, SILENT_BEATS};
use crate::clock::wall_micros;
use crate::counters::Counters;

/// A lane that was dialed is given up when so many beats in a row brought nothing.
const MISSED_BEATS: u32 = 2;

/// While this part of a lane's bytes is encoded and not taken by the asker, no more of its requests
/// are read. What waits for credit does not count: credit must be read.
const PAUSE_SHARE: usize = 4;

/// Reads of one lane before others of its loop have their turn.
const READS_PER_TURN: usize = 4;

/// Memory that an idle lane keeps for writing, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// Who made the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// This node: its requests go out.
    Dialed,
    /// The other one: its requests come in.
    Accepted(LaneId),
}

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

/// What a loop's tasks see of a connection.
pub(super) struct Lane {
    facts: Arc<Facts>,
    counters: Arc<Counters>,
    peer: NodeId,
    way: Way,
    out: RefCell<Outgoing>,
    driver: RefCell<Option<Waker>>,
    closed: Cell<Option<&'static str>>,
    finishing: Cell<bool>,
    /// Whether anything came since the last beat.
    heard: Cell<bool>,
    silent_beats: Cell<u32>,
    /// Whether the other node asked for no more requests.
    leaving: Cell<bool>,
}

/// What is to be written.
#[derive(Default)]
struct Outgoing {
    writer: Writer,
    long: VecDeque<(Message, Instant)>,
    long_bytes: usize,
    cut: Option<Cut>,
    /// Bytes of pieces that may be sent.
    credit: usize,
}

impl Outgoing {
    fn waiting(&self) -> usize {
        self.writer.len() + self.long()
    }

    /// Bytes of long messages.
    fn long(&self) -> usize {
        self.long_bytes + self.cut.as_ref().map_or(0, Cut::left)
    }

    /// Adds pieces of long messages: few, so that short ones need not wait behind them.
    fn add_pieces(&mut self) {
        while self.writer.len() < PIECE_MAX {
            if self.cut.is_none() {
                let Some((mut message, since)) = self.long.pop_front() else { return };
                self.long_bytes -= message_len(&message);
                shorten(&mut message, since);
                self.cut = Some(Cut::new(&message));
            }
            let Some(cut) = &mut self.cut else { return };
            let added = cut.next(self.credit, &mut self.writer);
            self.credit -= added;
            if cut.left() == 0 {
                self.cut = None;
            } else if added == 0 {
                return;
            }
        }
    }
}

/// Takes off a request's time what it has waited.
pub(super) fn shorten(message: &mut Message, since: Instant) {
    if let Body::Request { remaining_ms, .. } = &mut message.body {
        let waited = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
        *remaining_ms = remaining_ms.saturating_sub(waited);
    }
}

impl Lane {
    /// One that this node made.
    pub(super) fn dialed(facts: &Arc<Facts>, counters: &Arc<Counters>, met: Met) -> Rc<Self> {
        Self::new(facts, counters, met.node, Way::Dialed)
    }

    /// One that the other node made.
    pub(super) fn accepted(
        facts: &Arc<Facts>,
        counters: &Arc<Counters>,
        met: Met,
        id: LaneId,
    ) -> Rc<Self> {
        Self::new(facts, counters, met.node, Way::Accepted(id))
    }

    fn new(facts: &Arc<Facts>, counters: &Arc<Counters>, peer: NodeId, way: Way) -> Rc<Self> {
        Rc::new(Self {
            facts: Arc::clone(facts),
            counters: Arc::clone(counters),
            peer,
            way,
            out: RefCell::new(Outgoing { credit: WINDOW, ..Outgoing::default() }),
            driver: RefCell::default(),
            closed: Cell::new(None),
            finishing: Cell::new(false),
            heard: Cell::new(true),
            silent_beats: Cell::new(0),
            leaving: Cell::new(false),
        })
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> NodeId {
        self.peer
    }

    /// Whether the other node asked for no more requests.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Bytes that are to be written yet.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        if self.closed.get().is_some() { 0 } else { self.out.borrow().waiting() }
    }

    /// Adds a message, unless too much of its kind, short or long, waits.
    pub(super) fn push(&self, message: Message) -> bool {
        let length = message_len(&message);
        let mut out = self.out.borrow_mut();
        let (waiting, most) = if length > WHOLE_MAX {
            (out.long(), self.facts.long_bytes)
        } else {
            (out.writer.len(), self.facts.lane_bytes)
        };
        if waiting > 0 && waiting + length > most {
            return false;
        }
        self.counters.peers.messages_sent.add(1);
        if length > WHOLE_MAX {
            out.long_bytes += length;
            out.long.push_back((message, Instant::now()));
        } else {
            out.writer.message(&message);
            if out.writer.is_full() {
                self.seal(&mut out);
            }
        }
        drop(out);
        self.wake();
        true
    }

    fn seal(&self, out: &mut Outgoing) {
        if out.writer.has_open() && out.writer.seal(self.facts.sender()) {
            self.counters.peers.envelopes_sent.add(1);
        }
    }

    /// Says that this node wants no more requests, or will send none.
    pub(super) fn goodbye(&self) {
        self.out.borrow_mut().writer.goodbye();
        self.wake();
    }

    /// Asks for a sign of life if it was dialed, and gives it up if there was none.
    pub(super) fn beat(&self, token: u64) {
        let silent = if self.heard.replace(false) { 0 } else { self.silent_beats.get() + 1 };
        self.silent_beats.set(silent);
        let most = if self.way == Way::Dialed { MISSED_BEATS } else { SILENT_BEATS };
        if silent >= most {
            self.close("it gave no sign of life");
        } else if self.way == Way::Dialed {
            self.out.borrow_mut().writer.beat(token);
            self.wake();
        }
    }

    /// Ends it when everything is written, and the other node has closed it too: closing first,
    /// with something unread, would take away from it what it has not read yet.
    pub(super) fn finish(&self) {
        self.finishing.set(true);
        self.wake();
    }

    /// Ends it, with whatever was not written.
    pub(super) fn close(&self, why: &'static str) {
        self.closed.set(Some(why));
        self.wake();
    }

    fn wake(&self) {
        if let Some(driver) = self.driver.borrow().as_ref() {
            driver.wake_by_ref();
        }
    }

    fn attend(&self, waker: &Waker) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *driver = Some(waker.clone());
        }
    }

    /// Whether requests must wait because the replies do.
    fn is_paused(&self) -> bool {
        self.way != Way::Dialed
            && self.out.borrow().writer.len() > self.facts.lane_bytes / PAUSE_SHARE
    }
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
                    lane.facts.seen(lane.peer).note_echo(now.saturating_sub(token), wall);
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
