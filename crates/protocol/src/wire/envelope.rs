//! Received envelopes and their items. Any process may have sent the bytes, so nothing here panics,
//! and no received length decides an allocation, with one exception: before a caller uses
//! [`Assembly`](super::Assembly), it reads the length of a long message
//! ([`PieceHeader`](super::PieceHeader)) and reserves memory of that length.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::messages::take_message;
use super::reader::FieldReader;
use super::{
    ENVELOPE_HEAD, ENVELOPE_MAX, Head, ITEM_HEAD, Item, Malformed, PIECE_MAX, Sender, WHOLE_MAX,
    flag, kind,
};
use crate::membership::disk_ids::LogPosition;
use crate::message::Message;
use crate::placement::view::ViewId;

/// Returns the length in bytes of the envelope at the start of `input`, with its head; `None` =
/// `input` is too short to tell. A length above [`ENVELOPE_MAX`] is an error.
pub fn envelope_len(input: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(length) = input.get(8..12) else { return Ok(None) };
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
    match length.checked_add(ENVELOPE_HEAD) {
        Some(total) if total <= ENVELOPE_MAX => Ok(Some(total)),
        _ => Err(Malformed("an envelope that is too long")),
    }
}

/// An envelope whose checksum is correct.
#[derive(Debug)]
pub struct Envelope {
    sender: Sender,
    /// The number of items that are not read yet.
    left: u32,
    at: usize,
    bytes: Bytes,
}

impl Envelope {
    /// Opens a whole envelope, with its head, and verifies its length and checksum.
    pub fn open(bytes: Bytes) -> Result<Self, Malformed> {
        let Some((head, items)) = bytes.split_first_chunk::<ENVELOPE_HEAD>() else {
            return Err(Malformed("it ends too early"));
        };
        let (numbers, _) = head.as_chunks::<8>();
        let &[check, counts, epoch, placement, clock, position] = numbers else {
            unreachable!("a head is six numbers");
        };
        let [check, counts, epoch, placement, clock, position] =
            [check, counts, epoch, placement, clock, position].map(u64::from_le_bytes);
        if xxh3_64(&bytes[size_of::<u64>()..]) != check {
            return Err(Malformed("an envelope whose check is wrong"));
        }
        let (length, left) = (counts as u32 as usize, (counts >> 32) as u32);
        if length != items.len() {
            return Err(Malformed("an envelope of another length than it says"));
        }
        if left == 0 {
            return Err(Malformed("an empty envelope"));
        }
        let sender =
            Sender { view: ViewId { epoch, placement }, clock, position: LogPosition(position) };
        Ok(Self { sender, left, at: ENVELOPE_HEAD, bytes })
    }

    /// Returns the sender's state.
    pub fn sender(&self) -> Sender {
        self.sender
    }

    /// Returns the next item; `None` = no items are left.
    pub fn next_item(&mut self) -> Result<Option<Item>, Malformed> {
        if self.left == 0 {
            return if self.at == self.bytes.len() {
                Ok(None)
            } else {
                Err(Malformed("bytes after the last item"))
            };
        }
        self.left -= 1;
        let (head, mut from) = FieldReader::open(&self.bytes, self.at)?;
        let item = match head.kind {
            kind::PIECE..=kind::GOODBYE => take_between(&head, &mut from)?,
            _ if ITEM_HEAD + from.unread_bytes() > WHOLE_MAX => {
                return Err(Malformed("a long message in one piece"));
            }
            _ => Item::Message(take_message(head, &mut from)?),
        };
        self.at = from.close()?;
        Ok(Some(item))
    }
}

/// Reads an item other than a message.
fn take_between(head: &Head, from: &mut FieldReader<'_>) -> Result<Item, Malformed> {
    let has_id = matches!(head.kind, kind::LINK_PING | kind::LINK_PONG);
    if !has_id && head.id != 0 {
        return Err(Malformed("an id where there is no request"));
    }
    Ok(match head.kind {
        kind::PIECE => {
            let length = from.unread_bytes();
            if length == 0 || length > PIECE_MAX {
                return Err(Malformed("a piece that is empty or too long"));
            }
            Item::Piece { last: from.flag(flag::LAST), bytes: from.take(length)? }
        }
        kind::CREDIT => Item::Credit(from.u32()?),
        kind::LINK_PING => Item::Ping { token: head.id },
        kind::LINK_PONG => Item::Pong { token: head.id, wall: from.u64()? },
        kind::GOODBYE => Item::Goodbye,
        _ => return Err(Malformed("an unknown type")),
    })
}

/// Decodes a message that was reassembled from pieces.
pub fn message_of(bytes: Bytes) -> Result<Message, Malformed> {
    let (head, mut from) = FieldReader::open(&bytes, 0)?;
    let message = take_message(head, &mut from)?;
    if from.close()? != bytes.len() {
        return Err(Malformed("a message of another length than its pieces"));
    }
    Ok(message)
}
