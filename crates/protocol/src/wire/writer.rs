//! The writer of envelopes, which encodes messages into the connection's output buffer.

use xxhash_rust::xxh3::xxh3_64;

use super::messages::put_message;
use super::out::{OpenItem, Out};
use super::{ENVELOPE_FULL, ENVELOPE_HEAD, Head, PIECE_MAX, Sender, flag, kind};
use crate::message::Message;

/// The outgoing envelopes of a connection: closed ones, and at most one open one at the end.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    /// The offset of the open envelope.
    open: usize,
    /// The number of items in the open envelope.
    count: u32,
}

impl Writer {
    /// Adds a message that is short enough to travel whole.
    pub fn message(&mut self, message: &Message) {
        self.begin();
        put_message(&mut self.bytes, message);
    }

    /// Adds a part of a long message.
    pub fn piece(&mut self, bytes: &[u8], last: bool) {
        assert!(bytes.len() <= PIECE_MAX, "a piece of {} bytes", bytes.len());
        self.item(kind::PIECE, 0, |item| {
            item.bytes(bytes);
            if last {
                item.flag(flag::LAST);
            }
        });
    }

    /// Allows the other end to send `bytes` more bytes of pieces.
    pub fn credit(&mut self, bytes: u32) {
        self.item(kind::CREDIT, 0, |item| item.u32(bytes));
    }

    /// Adds a ping.
    pub fn ping(&mut self, token: u64) {
        self.item(kind::LINK_PING, token, |_| ());
    }

    /// Adds a pong. `wall` is in microseconds since 1970.
    pub fn pong(&mut self, token: u64, wall: u64) {
        self.item(kind::LINK_PONG, token, |item| item.u64(wall));
    }

    /// Asks the other end to send no further requests.
    pub fn goodbye(&mut self) {
        self.item(kind::GOODBYE, 0, |_| ());
    }

    /// True if the open envelope must be closed before another item is added.
    pub fn is_full(&self) -> bool {
        self.count > 0 && self.bytes.len() - self.open >= ENVELOPE_FULL
    }

    /// True if there is an open envelope.
    pub fn has_open(&self) -> bool {
        self.count > 0
    }

    /// Closes the open envelope. Returns `false` if no envelope is open.
    pub fn seal(&mut self, sender: Sender) -> bool {
        if self.count == 0 {
            return false;
        }
        let envelope = &mut self.bytes[self.open..];
        let length = (envelope.len() - ENVELOPE_HEAD) as u32;
        envelope[8..12].copy_from_slice(&length.to_le_bytes());
        envelope[12..16].copy_from_slice(&self.count.to_le_bytes());
        envelope[16..24].copy_from_slice(&sender.view.epoch.to_le_bytes());
        envelope[24..32].copy_from_slice(&sender.view.placement.to_le_bytes());
        envelope[32..40].copy_from_slice(&sender.clock.to_le_bytes());
        envelope[40..48].copy_from_slice(&sender.position.0.to_le_bytes());
        let check = xxh3_64(&envelope[8..]);
        envelope[..8].copy_from_slice(&check.to_le_bytes());
        self.open = self.bytes.len();
        self.count = 0;
        true
    }

    /// Returns the closed envelopes.
    pub fn closed_envelopes(&self) -> &[u8] {
        &self.bytes[..self.open]
    }

    /// Returns the length of the closed envelopes and the open one, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops the first `bytes` bytes, which were sent.
    pub fn drop_sent(&mut self, bytes: usize) {
        assert!(bytes <= self.open, "sent what is not sealed");
        self.open -= bytes;
        self.bytes.drain(..bytes);
    }

    /// Releases unused memory beyond `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        if self.bytes.capacity() > bytes {
            self.bytes.shrink_to(bytes);
        }
    }

    fn begin(&mut self) {
        if self.count == 0 {
            self.bytes.resize(self.open + ENVELOPE_HEAD, 0);
        }
        self.count += 1;
    }

    fn item(&mut self, kind: u8, id: u64, body: impl FnOnce(&mut OpenItem<'_>)) {
        self.begin();
        let mut item = OpenItem::new(&mut self.bytes, Head { kind, class: 0, id, remaining_ms: 0 });
        body(&mut item);
        item.close();
    }
}
