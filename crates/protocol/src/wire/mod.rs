//! The wire format of messages between nodes. `docs/formats/peer-protocol.md` has the layout of
//! every message.
//!
//! ```text
//!  envelope: check 8 │ length 4 │ count 4 │ epoch 8 │ layout 8 │ clock 8 │ position 8 │ items …
//!            └ xxh3-64 of all that follows it
//!  item:     type 1 │ flags 1 │ class 1 │ 0 │ length 4 │ id 8 │ remaining ms 4 │ body …
//! ```
//!
//! All numbers are little-endian. An envelope carries the items of one turn of a loop on one
//! connection. A message of more than [`WHOLE_MAX`] bytes is cut into pieces, so that small ones
//! overtake it. Decoding trusts no length: bytes that are not exactly as they would have been
//! encoded are [`Malformed`], and end the connection.

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
pub use pieces::{Announced, Assembly, Cut};
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

/// The longest message that travels whole, head included, in bytes; a longer one travels in pieces.
/// Short enough that messages behind it on the same connection are not delayed noticeably.
pub const WHOLE_MAX: usize = 32 << 10;

/// The most bytes of a message that one piece carries.
pub const PIECE_MAX: usize = 64 << 10;

/// The length in bytes at which an envelope is closed and another one begun: the receiver works on
/// the first while the second arrives.
pub const ENVELOPE_FULL: usize = 64 << 10;

/// The longest envelope accepted, in bytes. The receiver must hold a whole envelope, to check it.
pub const ENVELOPE_MAX: usize = 256 << 10;

/// The longest message accepted, in bytes: the largest value there can be (8 MiB) with its key and
/// record, or as many bytes of a page or of hints.
pub const MESSAGE_MAX: usize = 16 << 20;

/// The most bytes of a message's pieces that may be on their way unacknowledged by the receiver.
pub const WINDOW: usize = 256 << 10;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 1024;

const _: () = assert!(ENVELOPE_FULL + ITEM_HEAD + PIECE_MAX <= ENVELOPE_MAX);
const _: () = assert!(ENVELOPE_FULL + WHOLE_MAX <= ENVELOPE_MAX);
const _: () = assert!(2 * PIECE_MAX <= WINDOW && WINDOW < u32::MAX as usize);
const _: () = assert!(MESSAGE_MAX < u32::MAX as usize);

/// The error of bytes that no node of this version sends. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub struct Malformed(pub &'static str);

/// The sender's state in an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The view that the sender goes by.
    pub view: ViewId,
    /// The sender's clock: the time of a version.
    pub clock: u64,
    /// The position up to which the sender's log holds everything that it acknowledged; 0 = not
    /// stated. See [`Logs`](crate::Logs).
    pub position: LogPosition,
}

/// An item of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A whole message.
    Message(Message),
    /// The next part of a long message.
    Piece {
        /// True if the message is complete with this part.
        last: bool,
        /// The bytes of this part.
        bytes: Bytes,
    },
    /// Permission to send this many more bytes of pieces.
    Credit(u32),
    /// A ping, which asks whether the other end is alive.
    Ping {
        /// The token that comes back in the pong.
        token: u64,
    },
    /// The answer to a ping.
    Pong {
        /// The ping's token.
        token: u64,
        /// The sender's wall clock, in microseconds since 1970.
        wall: u64,
    },
    /// A request to send no more requests: this node is about to stop. Replies still come.
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

/// Types of items other than messages. Types of requests are below, types of replies above:
/// `messages.rs`.
mod kind {
    pub(super) const PIECE: u8 = 0x40;
    pub(super) const CREDIT: u8 = 0x41;
    pub(super) const LINK_PING: u8 = 0x42;
    pub(super) const LINK_PONG: u8 = 0x43;
    pub(super) const GOODBYE: u8 = 0x44;
}

/// Flags of items; each is allowed only where it has a meaning.
mod flag {
    /// The answering node is authoritative for its absences.
    pub(super) const AUTHORITATIVE: u8 = 1;
    /// The range has an end, or the page a next key.
    pub(super) const BOUNDED: u8 = 2;
    /// The filter is a node, not a preference.
    pub(super) const HELD_BY: u8 = 4;
    /// The filter is a move to a node.
    pub(super) const MOVED: u8 = 8;
    /// The filter is the memory of writes with an idempotency key.
    pub(super) const REMEMBERED: u8 = 16;
    /// Records are listed, not summed.
    pub(super) const LISTED: u8 = 4;
    /// The last piece.
    pub(super) const LAST: u8 = 8;
}

#[cfg(test)]
mod tests;
