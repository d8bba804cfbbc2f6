//! The wire format of messages between nodes. `docs/formats/peer-protocol.md` describes the layout
//! of every message.
//!
//! ```text
//!  envelope: check 8 │ length 4 │ count 4 │ epoch 8 │ layout 8 │ clock 8 │ position 8 │ items
//!  item:     type 1 │ flags 1 │ class 1 │ zero 1 │ length 4 │ id 8 │ remaining ms 4 │ body
//! ```
//!
//! Each field is followed by its length in bytes; all numbers are little-endian. `check` is the
//! xxh3-64 of all bytes of the envelope after it, and `count` the number of items.
//!
//! An envelope carries the items of one turn of a loop on one connection. A message of more than
//! [`WHOLE_MAX`] bytes is cut into pieces, so that short messages overtake it. The decoder trusts
//! no length. Bytes that no encoder produces are [`Malformed`], and end the connection.

mod compare_fields;
mod conditional_fields;
mod council_fields;
mod envelope;
mod field;
mod messages;
mod moves_fields;
mod out;
mod page_fields;
mod pieces;
mod proof_fields;
mod reader;
mod writer;

use bytes::Bytes;

pub use envelope::{Envelope, envelope_len, message_of};
pub use messages::{LongKind, message_len};
pub use pieces::{Assembly, OutgoingPieces, PieceHeader};
pub use writer::Writer;

use crate::membership::disk_ids::LogPosition;
use crate::message::Message;
use crate::placement::view::ViewId;

/// The length of an envelope's head, before its items, in bytes.
pub const ENVELOPE_HEAD: usize = 48;

/// The length of an item's head, before its body, in bytes.
pub const ITEM_HEAD: usize = 20;

/// The length of the length field before a key, in bytes.
const KEY_LEN: usize = 2;

/// The longest message that is sent whole, with its head, in bytes; a longer message is sent in
/// pieces. Such a message does not noticeably delay the messages behind it on the connection.
pub const WHOLE_MAX: usize = 32 << 10;

/// The largest number of a message's bytes in one piece.
pub const PIECE_MAX: usize = 64 << 10;

/// The length in bytes at which an envelope is closed and the next one begins: the receiver
/// processes one envelope while the next arrives.
pub const ENVELOPE_FULL: usize = 64 << 10;

/// The longest accepted envelope, in bytes. The receiver needs a whole envelope in memory to verify
/// its checksum.
pub const ENVELOPE_MAX: usize = 256 << 10;

/// The longest accepted message, in bytes: enough for a value of the maximum length (8 MiB) with
/// its key and record, and for a page or batch of hints with such a value.
pub const MESSAGE_MAX: usize = 16 << 20;

/// The largest number of bytes of pieces that may be in transit before the receiver returns credit.
pub const WINDOW: usize = 256 << 10;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 1024;

const _: () = assert!(ENVELOPE_FULL + ITEM_HEAD + PIECE_MAX <= ENVELOPE_MAX);
const _: () = assert!(ENVELOPE_FULL + WHOLE_MAX <= ENVELOPE_MAX);
const _: () = assert!(2 * PIECE_MAX <= WINDOW && WINDOW < u32::MAX as usize);
const _: () = assert!(MESSAGE_MAX < u32::MAX as usize);

/// The error for bytes that no node of this version sends. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub struct Malformed(pub &'static str);

/// The sender's state in an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The sender's view.
    pub view: ViewId,
    /// The sender's clock, as the time of a version.
    pub clock: u64,
    /// The log position up to which the sender has stored all writes that it acknowledged; 0 = not
    /// reported. See [`Logs`](crate::Logs).
    pub position: LogPosition,
}

/// An item of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A whole message.
    Message(Message),
    /// The next part of a long message.
    Piece {
        /// True for the last part of the message.
        last: bool,
        /// The bytes of this part.
        bytes: Bytes,
    },
    /// The number of further bytes of pieces that the other end may send.
    Credit(u32),
    /// A ping, which asks whether the other end is alive.
    Ping {
        /// The token that the pong repeats.
        token: u64,
    },
    /// The answer to a ping.
    Pong {
        /// The ping's token.
        token: u64,
        /// The sender's wall clock, in microseconds since 1970.
        wall: u64,
    },
    /// The sender is about to stop, and accepts no more requests. It still sends its replies.
    Goodbye,
}

/// The head of an item, without flags and length.
#[derive(Debug, Clone, Copy)]
struct Head {
    kind: u8,
    class: u8,
    id: u64,
    remaining_ms: u32,
}

/// The types of items other than messages. The types of requests are below them, those of replies
/// above (`messages.rs`).
mod kind {
    pub(super) const PIECE: u8 = 0x40;
    pub(super) const CREDIT: u8 = 0x41;
    pub(super) const LINK_PING: u8 = 0x42;
    pub(super) const LINK_PONG: u8 = 0x43;
    pub(super) const GOODBYE: u8 = 0x44;
}

/// Flags of items. A flag is allowed only in items that define it.
mod flag {
    /// The answering node is authoritative: its "not found" counts.
    pub(super) const AUTHORITATIVE: u8 = 1;
    /// A range has an end, or a page has a next key.
    pub(super) const BOUNDED: u8 = 2;
    /// The filter is [`HeldBy`](crate::Filter::HeldBy).
    pub(super) const HELD_BY: u8 = 4;
    /// The filter is [`Moved`](crate::Filter::Moved).
    pub(super) const MOVED: u8 = 8;
    /// The filter is [`Remembered`](crate::Filter::Remembered).
    pub(super) const REMEMBERED: u8 = 16;
    /// A comparison lists outlines of records instead of sums.
    pub(super) const LISTED: u8 = 4;
    /// The piece is the last one.
    pub(super) const LAST: u8 = 8;
}

#[cfg(test)]
mod tests;
