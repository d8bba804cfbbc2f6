//! What nodes say to each other, in bytes. `docs/peer-protocol.md` has the layout of every message.
//!
//! ```text
//!  envelope: check 8 │ length 4 │ count 4 │ epoch 8 │ layout 8 │ clock 8 │ position 8 │ items …
//!            └ xxh3-64 of all that follows it
//!  item:     type 1 │ flags 1 │ class 1 │ 0 │ length 4 │ id 8 │ remaining ms 4 │ body …
//! ```
//!
//! All numbers are little-endian. An envelope is what one turn of a loop has to say on one
//! connection. A message of more than [`WHOLE_MAX`] bytes is cut into pieces, so that small ones
//! overtake it. Nothing here trusts a length: whatever is not exactly as it would have been encoded
//! is [`Malformed`], and ends the connection.

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

use crate::membership::directory::LogPosition;
use crate::message::Message;
use crate::placement::view::ViewId;

/// Bytes before an envelope's items.
pub const ENVELOPE_HEAD: usize = 48;

/// Bytes before an item's body.
pub const ITEM_HEAD: usize = 20;

/// Bytes of a length before a key.
const KEY_LEN: usize = 2;

/// A longer message, head included, travels in pieces. Short enough that what waits behind it on
/// the same connection does not notice.
pub const WHOLE_MAX: usize = 32 << 10;

/// Most bytes of a message that one piece carries.
pub const PIECE_MAX: usize = 64 << 10;

/// An envelope that has so many bytes is sealed, and another one begun: the receiver works on the
/// first while the second arrives.
pub const ENVELOPE_FULL: usize = 64 << 10;

/// Longest envelope that is taken, in bytes. The receiver must hold one whole, to check it.
pub const ENVELOPE_MAX: usize = 256 << 10;

/// Longest message that is taken, in bytes: the largest value there can be (8 MiB), its key and
/// record, or as many bytes of a page or of hints.
pub const MESSAGE_MAX: usize = 16 << 20;

/// Bytes of a message's pieces that may be on their way without the receiver having said that it
/// took them.
pub const WINDOW: usize = 256 << 10;

/// Longest key, in bytes.
pub const KEY_MAX: usize = 1024;

const _: () = assert!(ENVELOPE_FULL + ITEM_HEAD + PIECE_MAX <= ENVELOPE_MAX);
const _: () = assert!(ENVELOPE_FULL + WHOLE_MAX <= ENVELOPE_MAX);
const _: () = assert!(2 * PIECE_MAX <= WINDOW && WINDOW < u32::MAX as usize);
const _: () = assert!(MESSAGE_MAX < u32::MAX as usize);

/// The bytes are not what a node of this version sends. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub struct Malformed(pub &'static str);

/// What an envelope says about its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The view that it works by.
    pub view: ViewId,
    /// Its clock: the time of a version.
    pub clock: u64,
    /// How far its log holds what it acknowledged; 0 = it does not say. See
    /// [`Logs`](crate::Logs).
    pub position: LogPosition,
}

/// What an envelope carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A message, whole.
    Message(Message),
    /// The next part of a long one.
    Piece {
        /// Whether the message is complete with it.
        last: bool,
        /// The bytes of this part.
        bytes: Bytes,
    },
    /// So many more bytes of pieces may be sent.
    Credit(u32),
    /// Asks the other end whether it is alive.
    Ping {
        /// Comes back in the pong.
        token: u64,
    },
    /// The answer to a ping.
    Pong {
        /// The ping's token.
        token: u64,
        /// The sender's wall clock, in microseconds since 1970.
        wall: u64,
    },
    /// No more requests, please: this node is about to stop. Replies still come.
    Goodbye,
}

/// What an item's head says, besides flags and length.
#[derive(Debug, Clone, Copy)]
struct Head {
    kind: u8,
    class: u8,
    id: u64,
    remaining_ms: u32,
}

/// Types of items that are no messages. Those of requests are below, those of replies above:
/// `messages.rs`.
mod kind {
    pub(super) const PIECE: u8 = 0x40;
    pub(super) const CREDIT: u8 = 0x41;
    pub(super) const LINK_PING: u8 = 0x42;
    pub(super) const LINK_PONG: u8 = 0x43;
    pub(super) const GOODBYE: u8 = 0x44;
}

/// Flags of items; each is allowed where it means something only.
mod flag {
    /// The answering node is authoritative for what it does not hold.
    pub(super) const AUTHORITATIVE: u8 = 1;
    /// The range has an end, or the page a next key.
    pub(super) const BOUNDED: u8 = 2;
    /// The filter is a node, not a preference.
    pub(super) const HELD_BY: u8 = 4;
    /// The filter is what moves to a node.
    pub(super) const MOVED: u8 = 8;
    /// The filter is what is remembered of writes with an idempotency key.
    pub(super) const REMEMBERED: u8 = 16;
    /// Records are listed, not summed.
    pub(super) const LISTED: u8 = 4;
    /// The last piece.
    pub(super) const LAST: u8 = 8;
}

#[cfg(test)]
mod tests;
