//! What one connection has to write.
//!
//! ```text
//!  push ─▶ short: encoded into the open envelope ─────────────┐
//!       │    └ too many wait: kept as they are ──────────────┤
//!       └▶ long: waits ─▶ cut ─▶ pieces, as credit allows ─▶ writer ─▶ one write a turn ─▶ socket
//! ```
//!
//! What is kept as it is takes no memory of its own: records are shared with whoever owns them. A
//! request that nobody waits for any more is not sent.

use std::collections::VecDeque;

use cluster::wire::{Cut, PIECE_MAX, WINDOW, Writer, message_len};
use cluster::{Body, Message, Now};

/// What is to be written.
pub(super) struct Outgoing {
    pub(super) writer: Writer,
    pub(super) short: Queue,
    pub(super) long: Queue,
    cut: Option<Cut>,
    /// Bytes of pieces that may be sent.
    pub(super) credit: usize,
}

/// Messages that wait as they are, since when by the counting clock.
#[derive(Default)]
pub(super) struct Queue {
    messages: VecDeque<(Message, u64)>,
    bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, message: Message, mono: u64) {
        self.bytes += message_len(&message);
        self.messages.push_back((message, mono));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The first one, whoever waits for it.
    fn pop_any(&mut self) -> Option<(Message, u64)> {
        let (message, since) = self.messages.pop_front()?;
        let bytes = message_len(&message);
        assert!(self.bytes >= bytes, "what waits was counted");
        self.bytes -= bytes;
        assert!(self.bytes == 0 || !self.is_empty(), "where nothing waits, nothing is counted");
        Some((message, since))
    }

    /// The first that somebody waits for, with the time that is left of it.
    fn pop(&mut self, now: &impl Fn() -> Now) -> Option<Message> {
        while let Some((mut message, since)) = self.pop_any() {
            if shorten(&mut message, since, now().mono) {
                return Some(message);
            }
        }
        None
    }

    /// Drops those at the front that nobody waits for any more: what they share is given back.
    pub(super) fn forget_late(&mut self, mono: u64) {
        while let Some((message, since)) = self.messages.front() {
            if left_of(message, *since, mono) != Some(0) {
                return;
            }
            self.pop_any();
        }
    }
}

impl Outgoing {
    pub(super) fn new() -> Self {
        let (short, long) = (Queue::default(), Queue::default());
        Self { writer: Writer::default(), short, long, cut: None, credit: WINDOW }
    }

    pub(super) fn waiting(&self) -> usize {
        let cut = self.cut.as_ref().map_or(0, Cut::left);
        self.writer.len() + self.short.bytes + self.long.bytes + cut
    }

    /// Encodes short messages that waited, as many as `bytes` have room for.
    pub(super) fn add_short(&mut self, bytes: usize, now: &impl Fn() -> Now) {
        while self.writer.len() < bytes {
            let Some(message) = self.short.pop(now) else { return };
            self.writer.message(&message);
            if self.writer.is_full() {
                return;
            }
        }
    }

    /// Adds pieces of long messages: few, so that short ones need not wait behind them.
    pub(super) fn add_pieces(&mut self, now: &impl Fn() -> Now) {
        while self.writer.len() < PIECE_MAX {
            if self.cut.is_none() {
                let Some(message) = self.long.pop(now) else { return };
                self.cut = Some(Cut::new(&message));
            }
            let Some(cut) = &mut self.cut else { return };
            let added = cut.next(self.credit, &mut self.writer);
            assert!(added <= self.credit, "nothing is sent that the other side has no room for");
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
fn left_of(message: &Message, since: u64, mono: u64) -> Option<u32> {
    let Body::Request { remaining_ms, .. } = &message.body else { return None };
    let waited = u32::try_from(mono.saturating_sub(since) / 1000).unwrap_or(u32::MAX);
    Some(remaining_ms.saturating_sub(waited))
}

/// Takes off a request's time what it has waited; `false` if nobody waits for the reply any more.
pub(super) fn shorten(message: &mut Message, since: u64, mono: u64) -> bool {
    let left = left_of(message, since, mono);
    if let (Body::Request { remaining_ms, .. }, Some(left)) = (&mut message.body, left) {
        *remaining_ms = left;
    }
    left != Some(0)
}
