//! Long messages: cut here, put together there.
//!
//! ```text
//!  message ─▶ Cut ─▶ piece ─▶ piece ─▶ last piece ─▶ Assembly ─▶ message
//!              │ no more than the credit allows           │ takes a piece:
//!              └◀─────────────── credit ◀─────────────────┘ as many bytes again
//! ```
//!
//! On one connection long messages travel one after the other in each direction, and whole ones
//! between their pieces. The sender begins with a credit of [`WINDOW`](super::WINDOW) bytes.

use bytes::Bytes;

use super::decode;
use super::encode::{Writer, message_len, put_message};
use super::{ITEM_HEAD, MESSAGE_MAX, Malformed, PIECE_MAX};
use crate::message::Message;
use crate::record::Codec;

/// A long message of which a part may have been sent.
#[derive(Debug)]
pub struct Cut {
    bytes: Vec<u8>,
    at: usize,
}

impl Cut {
    /// Nothing of `message` is sent yet.
    pub fn new(message: &Message) -> Self {
        let mut bytes = Vec::with_capacity(message_len(message));
        put_message(&mut bytes, message);
        Self { bytes, at: 0 }
    }

    /// Bytes that were not sent yet.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Adds the next piece, if `credit` allows one; returns how many bytes it has.
    pub fn next(&mut self, credit: usize, writer: &mut Writer) -> usize {
        let length = self.left().min(PIECE_MAX);
        if length == 0 || length > credit {
            return 0;
        }
        let end = self.at + length;
        writer.piece(&self.bytes[self.at..end], end == self.bytes.len());
        self.at = end;
        length
    }
}

/// A long message of which a part has arrived.
#[derive(Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes the next piece; returns the message if that was the last.
    pub fn add(
        &mut self,
        piece: &[u8],
        last: bool,
        codec: &Codec,
    ) -> Result<Option<Message>, Malformed> {
        self.bytes.extend_from_slice(piece);
        let announced = match self.bytes.get(4..ITEM_HEAD) {
            Some(head) => u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize,
            None => return Err(Malformed("a first piece without a head")),
        };
        if announced > MESSAGE_MAX - ITEM_HEAD || self.bytes.len() > ITEM_HEAD + announced {
            return Err(Malformed("a message that is too long"));
        }
        if !last {
            return Ok(None);
        }
        decode::message(Bytes::from(std::mem::take(&mut self.bytes)), codec).map(Some)
    }

    /// Bytes of a message that is not complete.
    pub fn held(&self) -> usize {
        self.bytes.len()
    }
}
