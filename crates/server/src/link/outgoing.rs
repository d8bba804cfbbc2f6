//! The sending half of a connection: queues, encodes and fragments messages.
//!
//! ```text
//!  a short message ─┬─ encoded into the open envelope ───────────────────────────┐
//!                   └─ queued unencoded, if too many bytes are encoded already ──┤
//!  a long message ──── queued ─▶ cut into pieces, as far as credit allows ───────┤
//!                                        one write per turn ◀─ output buffer ◀───┘
//! ```
//!
//! A message queued unencoded takes no memory of its own: it shares its records with their owner. A
//! request whose requester no longer waits is not sent.

use std::collections::VecDeque;

use protocol::wire::{OutgoingPieces, PIECE_MAX, WINDOW, Writer, message_len};
use protocol::{Body, Message, Now};

/// The sending half of a connection; see the module.
pub(super) struct Outgoing {
    pub(super) writer: Writer,
    pub(super) short: Queue,
    pub(super) long: Queue,
    cut: Option<OutgoingPieces>,
    /// Bytes of pieces that the peer's credit allows.
    pub(super) credit: usize,
}

/// Unencoded messages, each with the monotonic time at which it was queued.
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

    /// Removes the first message, expired or not.
    fn pop_first(&mut self) -> Option<(Message, u64)> {
        let (message, since) = self.messages.pop_front()?;
        let bytes = message_len(&message);
        assert!(self.bytes >= bytes, "what waits was counted");
        self.bytes -= bytes;
        assert!(self.bytes == 0 || !self.is_empty(), "where nothing waits, nothing is counted");
        Some((message, since))
    }

    /// Removes the first message that has not expired, and updates its remaining time.
    fn pop(&mut self, now: &impl Fn() -> Now) -> Option<Message> {
        while let Some((mut message, since)) = self.pop_first() {
            if deduct_queueing_time(&mut message, since, now().mono) {
                return Some(message);
            }
        }
        None
    }

    /// Drops expired messages at the front, which releases their records.
    pub(super) fn drop_expired(&mut self, mono: u64) {
        while let Some((message, since)) = self.messages.front() {
            if remaining_time_ms(message, *since, mono) != Some(0) {
                return;
            }
            self.pop_first();
        }
    }
}

impl Outgoing {
    pub(super) fn new() -> Self {
        let (short, long) = (Queue::default(), Queue::default());
        Self { writer: Writer::default(), short, long, cut: None, credit: WINDOW }
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        let cut = self.cut.as_ref().map_or(0, OutgoingPieces::unsent_bytes);
        self.writer.len() + self.short.bytes + self.long.bytes + cut
    }

    /// Encodes queued short messages until `bytes` are encoded.
    pub(super) fn encode_short(&mut self, bytes: usize, now: &impl Fn() -> Now) {
        while self.writer.len() < bytes {
            let Some(message) = self.short.pop(now) else { return };
            self.writer.message(&message);
            if self.writer.is_full() {
                return;
            }
        }
    }

    /// Adds pieces of long messages until about `PIECE_MAX` bytes are encoded. A greater number of
    /// bytes would delay short messages.
    pub(super) fn add_pieces(&mut self, now: &impl Fn() -> Now) {
        while self.writer.len() < PIECE_MAX {
            if self.cut.is_none() {
                let Some(message) = self.long.pop(now) else { return };
                self.cut = Some(OutgoingPieces::new(&message));
            }
            let Some(cut) = &mut self.cut else { return };
            let added = cut.next(self.credit, &mut self.writer);
            assert!(added <= self.credit, "nothing is sent that the other side has no room for");
            self.credit -= added;
            if cut.unsent_bytes() == 0 {
                self.cut = None;
            } else if added == 0 {
                return;
            }
        }
    }
}

/// Returns the milliseconds for which the requester still waits; `None` = the message is a reply.
fn remaining_time_ms(message: &Message, since: u64, mono: u64) -> Option<u32> {
    let Body::Request { remaining_ms, .. } = &message.body else { return None };
    let waited = u32::try_from(mono.saturating_sub(since) / 1000).unwrap_or(u32::MAX);
    Some(remaining_ms.saturating_sub(waited))
}

/// Deducts a request's queueing time from its remaining time; returns false if it has expired.
pub(super) fn deduct_queueing_time(message: &mut Message, since: u64, mono: u64) -> bool {
    let left = remaining_time_ms(message, since, mono);
    if let (Body::Request { remaining_ms, .. }, Some(left)) = (&mut message.body, left) {
        *remaining_ms = left;
    }
    left != Some(0)
}
