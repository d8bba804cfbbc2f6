//! Long messages, which the sender cuts into pieces and the receiver reassembles.
//!
//! ```text
//!  message ─▶ OutgoingPieces ─▶ piece ─▶ piece ─▶ last piece ─▶ Assembly ─▶ message
//!                   ▲                                              │
//!                   └───────────────────── credit ◀────────────────┘
//! ```
//!
//! `OutgoingPieces` sends at most as many bytes as it has credit for. The receiver returns credit
//! for each piece that it has processed.
//!
//! On one connection and in one direction, long messages are sent in sequence, with whole messages
//! between their pieces. The sender begins with a credit of [`WINDOW`](super::WINDOW) bytes.

use bytes::Bytes;

use super::messages::{LongKind, message_len, put_message};
use super::writer::Writer;
use super::{ITEM_HEAD, MESSAGE_MAX, Malformed, PIECE_MAX, kind};
use crate::message::{Body, Message, Page, Reply, Request};
use record::{MIN_RECORD_LEN, Record, Version};

/// A long message that is being sent in pieces.
#[derive(Debug)]
pub struct OutgoingPieces {
    /// The encoded message without the last part of its last record's content: the first piece is
    /// filled, and the rest of the content is `tail`.
    head: Vec<u8>,
    tail: Bytes,
    at: usize,
}

impl OutgoingPieces {
    /// Prepares `message` for sending in pieces.
    pub fn new(message: &Message) -> Self {
        let mut message = message.clone();
        let tail = take_last_record(&mut message);
        let mut head = Vec::with_capacity(message_len(&message).max(PIECE_MAX));
        put_message(&mut head, &message);
        let mut tail = tail.unwrap_or_default();
        if !tail.is_empty() {
            head.truncate(head.len() - MIN_RECORD_LEN);
            let record_len = head.len() - size_of::<u32>();
            head[record_len..].copy_from_slice(&(tail.len() as u32).to_le_bytes());
            let length = (head.len() - ITEM_HEAD + tail.len()) as u32;
            head[4..8].copy_from_slice(&length.to_le_bytes());
            let room = PIECE_MAX.saturating_sub(head.len()).min(tail.len());
            head.extend_from_slice(&tail.split_to(room));
        }
        Self { head, tail, at: 0 }
    }

    /// Returns the number of bytes that are not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        self.head.len() + self.tail.len() - self.at
    }

    /// Adds the next piece and returns its length in bytes; 0 = `credit` is less than that length,
    /// or no piece is left.
    pub fn next(&mut self, credit: usize, writer: &mut Writer) -> usize {
        let left = match self.at.checked_sub(self.head.len()) {
            None => &self.head[self.at..],
            Some(at) => &self.tail[at..],
        };
        let piece = &left[..left.len().min(PIECE_MAX)];
        let length = piece.len();
        if length == 0 || length > credit {
            return 0;
        }
        writer.piece(piece, length == self.unsent_bytes());
        self.at += length;
        length
    }
}

/// Removes and returns the record at the end of a message, and puts a record of [`MIN_RECORD_LEN`]
/// in its place; `None` = the message ends with no record.
fn take_last_record(message: &mut Message) -> Option<Bytes> {
    let record = match &mut message.body {
        Body::Request {
            request: Request::Write { record, .. } | Request::AcceptNext { record, .. },
            ..
        }
        | Body::Reply(Reply::Found { record, .. }) => Some(record),
        Body::Request { request: Request::Writes { items }, .. }
        | Body::Reply(Reply::Page(Page { items, .. })) => {
            items.last_mut().map(|(_, record)| record)
        }
        _ => None,
    };
    let shortest = || Record::tombstone(&[], Version::default());
    record.map(|record| std::mem::replace(record, shortest()).bytes())
}

/// The description of a long message, read from its first piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHeader {
    /// The kind of the message.
    pub kind: LongKind,
    /// The message's id.
    pub id: u64,
    /// The length of the whole message, in bytes.
    pub bytes: usize,
}

impl PieceHeader {
    /// Reads the description from the first piece.
    pub fn parse(piece: &[u8]) -> Result<Self, Malformed> {
        let Some((head, _)) = piece.split_first_chunk::<ITEM_HEAD>() else {
            return Err(Malformed("a first piece without a head"));
        };
        let [kind, _, _, _, a, b, c, d, id @ .., _, _, _, _] = *head;
        let is_request = kind < kind::PIECE;
        let long = if is_request { Request::long_kind(kind) } else { Reply::long_kind(kind) };
        let Some(kind) = long else {
            return Err(Malformed("a short message in pieces"));
        };
        let body = u32::from_le_bytes([a, b, c, d]) as usize;
        if body > MESSAGE_MAX - ITEM_HEAD {
            return Err(Malformed("a message that is too long"));
        }
        Ok(Self { kind, id: u64::from_le_bytes(id), bytes: ITEM_HEAD + body })
    }
}

/// A long message of which some pieces have arrived.
#[derive(Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
    /// The length of the whole message, in bytes.
    total: usize,
}

impl Assembly {
    /// Adds the next piece. The last piece returns the message's bytes, which
    /// [`message_of`](super::message_of) decodes. More bytes than the first piece announces are an
    /// error.
    pub fn add(&mut self, piece: &[u8], last: bool) -> Result<Option<Bytes>, Malformed> {
        if self.bytes.is_empty() {
            self.total = PieceHeader::parse(piece)?.bytes;
            self.bytes.reserve_exact(self.total);
        }
        if self.bytes.len() + piece.len() > self.total {
            return Err(Malformed("a message that is too long"));
        }
        self.bytes.extend_from_slice(piece);
        Ok(last.then(|| Bytes::from(std::mem::take(&mut self.bytes))))
    }

    /// Returns the number of bytes of an incomplete message that are in memory.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }
}
