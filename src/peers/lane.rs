//! One connection to or from another node, after the handshake.
//!
//! ```text
//!  push ─▶ short: encoded into the open envelope ─────────────┐
//!       │    └ too many wait: kept as they are ──────────────┤
//!       └▶ long: waits ─▶ cut ─▶ pieces, as credit allows ─▶ writer ─▶ one write a turn ─▶ socket
//! ```
//!
//! What is kept as it is takes no memory of its own: records are shared with whoever owns them. A
//! request that nobody waits for any more is not sent.
//!
//! The lane is what its loop's tasks push to. Its driver does the rest.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use cluster::handshake::Met;
use cluster::wire::{Cut, PIECE_MAX, WHOLE_MAX, WINDOW, Writer, message_len};
use cluster::{Body, LaneId, Message, NodeId};

use super::SILENT_BEATS;
use super::facts::Facts;
use crate::counters::Counters;

/// A lane that was dialed is given up when so many beats in a row brought nothing.
const MISSED_BEATS: u32 = 2;

/// While this part of a lane's bytes is encoded and not taken by the asker, no more of its requests
/// are read. What waits for credit does not count: credit must be read.
const PAUSE_SHARE: usize = 4;

/// Who made the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// This node: its requests go out.
    Dialed,
    /// The other one: its requests come in.
    Accepted(LaneId),
}

/// What a loop's tasks see of a connection.
pub(super) struct Lane {
    pub(super) facts: Arc<Facts>,
    pub(super) counters: Arc<Counters>,
    pub(super) peer: NodeId,
    /// The other node's disk and its process on it.
    pub(super) disk: (u64, u64),
    pub(super) way: Way,
    pub(super) out: RefCell<Outgoing>,
    driver: RefCell<Option<Waker>>,
    pub(super) closed: Cell<Option<&'static str>>,
    pub(super) finishing: Cell<bool>,
    /// Whether anything came since the last beat.
    pub(super) heard: Cell<bool>,
    /// Whether a message was pushed since the last beat.
    pushed: Cell<bool>,
    silent_beats: Cell<u32>,
    /// Whether the other node asked for no more requests.
    pub(super) leaving: Cell<bool>,
}

/// What is to be written.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) writer: Writer,
    short: Queue,
    long: Queue,
    cut: Option<Cut>,
    /// Bytes of pieces that may be sent.
    pub(super) credit: usize,
}

/// Messages that wait as they are, since when.
#[derive(Default)]
struct Queue {
    messages: VecDeque<(Message, Instant)>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, message: Message) {
        self.bytes += message_len(&message);
        self.messages.push_back((message, Instant::now()));
    }

    /// The first that somebody waits for, with the time that is left of it.
    fn pop(&mut self) -> Option<Message> {
        while let Some((mut message, since)) = self.messages.pop_front() {
            self.bytes -= message_len(&message);
            if shorten(&mut message, since) {
                return Some(message);
            }
        }
        None
    }

    /// Drops those at the front that nobody waits for any more: what they share is given back.
    fn forget_late(&mut self) {
        while let Some((message, since)) = self.messages.front() {
            if left_of(message, *since) != Some(0) {
                return;
            }
            self.bytes -= message_len(message);
            self.messages.pop_front();
        }
    }
}

impl Outgoing {
    pub(super) fn waiting(&self) -> usize {
        let cut = self.cut.as_ref().map_or(0, Cut::left);
        self.writer.len() + self.short.bytes + self.long.bytes + cut
    }

    /// Encodes short messages that waited, as many as `bytes` have room for.
    pub(super) fn add_short(&mut self, bytes: usize) {
        while self.writer.len() < bytes {
            let Some(message) = self.short.pop() else { return };
            self.writer.message(&message);
            if self.writer.is_full() {
                return;
            }
        }
    }

    /// Adds pieces of long messages: few, so that short ones need not wait behind them.
    pub(super) fn add_pieces(&mut self) {
        while self.writer.len() < PIECE_MAX {
            if self.cut.is_none() {
                let Some(message) = self.long.pop() else { return };
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

/// Milliseconds for which somebody will wait for the reply yet; `None` = it is no request.
fn left_of(message: &Message, since: Instant) -> Option<u32> {
    let Body::Request { remaining_ms, .. } = &message.body else { return None };
    let waited = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
    Some(remaining_ms.saturating_sub(waited))
}

/// Takes off a request's time what it has waited; `false` if nobody waits for the reply any more.
pub(super) fn shorten(message: &mut Message, since: Instant) -> bool {
    let left = left_of(message, since);
    if let (Body::Request { remaining_ms, .. }, Some(left)) = (&mut message.body, left) {
        *remaining_ms = left;
    }
    left != Some(0)
}

impl Lane {
    /// One that this node made.
    pub(super) fn dialed(facts: &Arc<Facts>, counters: &Arc<Counters>, met: Met) -> Rc<Self> {
        Self::new(facts, counters, met, Way::Dialed)
    }

    /// One that the other node made.
    pub(super) fn accepted(
        facts: &Arc<Facts>,
        counters: &Arc<Counters>,
        met: Met,
        id: LaneId,
    ) -> Rc<Self> {
        Self::new(facts, counters, met, Way::Accepted(id))
    }

    fn new(facts: &Arc<Facts>, counters: &Arc<Counters>, met: Met, way: Way) -> Rc<Self> {
        Rc::new(Self {
            facts: Arc::clone(facts),
            counters: Arc::clone(counters),
            peer: met.node,
            disk: (met.incarnation, met.life),
            way,
            out: RefCell::new(Outgoing { credit: WINDOW, ..Outgoing::default() }),
            driver: RefCell::default(),
            closed: Cell::new(None),
            finishing: Cell::new(false),
            heard: Cell::new(true),
            pushed: Cell::new(false),
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

    /// Adds a message, unless too much waits.
    pub(super) fn push(&self, message: Message) -> bool {
        let length = message_len(&message);
        let mut out = self.out.borrow_mut();
        let waiting = out.waiting();
        if waiting > 0 && waiting + length > self.facts.room.queue_bytes {
            return false;
        }
        self.counters.peers.messages_sent.add(1);
        self.pushed.set(true);
        let encoded = out.writer.len();
        if length > WHOLE_MAX {
            out.long.forget_late();
            out.long.push(message);
        } else if encoded > 0 && encoded + length > self.facts.room.lane_bytes
            || !out.short.messages.is_empty()
        {
            out.short.forget_late();
            out.short.push(message);
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

    pub(super) fn seal(&self, out: &mut Outgoing) {
        if out.writer.has_open() && out.writer.seal(self.facts.sender(self.peer)) {
            self.counters.peers.envelopes_sent.add(1);
        }
    }

    /// Says that this node wants no more requests, or will send none.
    pub(super) fn goodbye(&self) {
        self.out.borrow_mut().writer.goodbye();
        self.wake();
    }

    /// Asks for a sign of life if it was dialed, and gives it up if there was none. An idle lane
    /// asks in its turn only, of which there is one in `skips` beats.
    pub(super) fn beat(&self, token: u64, turn: bool, skips: u32) {
        let in_use = self.pushed.replace(false) || !self.heard.get();
        if self.way == Way::Dialed && !turn && !in_use {
            return;
        }
        let silent = if self.heard.replace(false) { 0 } else { self.silent_beats.get() + 1 };
        self.silent_beats.set(silent);
        let most = if self.way == Way::Dialed { MISSED_BEATS } else { SILENT_BEATS * skips };
        if silent >= most {
            self.close("no ping answered");
        } else if self.way == Way::Dialed {
            let mut out = self.out.borrow_mut();
            out.short.forget_late();
            out.long.forget_late();
            out.writer.beat(token);
            drop(out);
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

    pub(super) fn attend(&self, waker: &Waker) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *driver = Some(waker.clone());
        }
    }

    /// Whether requests must wait because the replies do.
    pub(super) fn is_paused(&self) -> bool {
        self.way != Way::Dialed
            && self.out.borrow().writer.len() > self.facts.room.lane_bytes / PAUSE_SHARE
    }
}
