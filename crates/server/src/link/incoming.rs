//! The receiving half of a connection: assembles bytes into whole messages.
//!
//! ```text
//!  bytes ─┬─ a whole envelope ─▶ its items ─┬─ messages ──────────────────────────▶ messages
//!         │                                 └─ pieces ─▶ assembled to a message ──▶ messages
//!         └─ an incomplete envelope is kept until the rest of its bytes arrives
//! ```

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::ViewId;
use protocol::wire::{
    Assembly, Envelope, ITEM_HEAD, Item, Malformed, PieceHeader, Sender, WINDOW, envelope_len,
};

use super::MessageReservation;

/// Overhead of a message with a record, in bytes.
const FOUND_HEAD: usize = ITEM_HEAD + size_of::<u32>();

/// Memory that an idle connection keeps in each direction, in bytes.
pub(super) const KEPT_BYTES: usize = 64 << 10;

/// Number of bytes at the start of an envelope from which its length can be read.
const LENGTH_PREFIX: usize = 12;

/// State of the incoming long message.
pub(super) enum LongMessage<R> {
    /// No long message is coming in.
    No,
    /// The message waits for a reservation.
    Waits(PieceHeader),
    /// The message is being assembled in this reservation; `None` = the requester has a reservation
    /// of its own.
    Assembling(Option<R>),
    /// The message is discarded.
    Skipped(PieceHeader),
}

/// The receiving half of a connection; see the module.
pub(super) struct Incoming<R> {
    /// Beginning of an incomplete envelope.
    rest: Vec<u8>,
    envelope: Option<Envelope>,
    /// Pieces not taken yet, each with its `last` flag, and their size in bytes.
    pub(super) pieces: VecDeque<(Bytes, bool)>,
    piece_bytes: usize,
    /// Bytes of pieces removed since credit was last given.
    taken: usize,
    pub(super) long: LongMessage<R>,
    assembly: Assembly,
    /// The peer's view, from the open envelope, and from the last envelope with a piece.
    pub(super) under: ViewId,
    pub(super) long_under: ViewId,
}

impl<R: MessageReservation> Incoming<R> {
    pub(super) fn new() -> Self {
        Self {
            rest: Vec::new(),
            envelope: None,
            pieces: VecDeque::new(),
            piece_bytes: 0,
            taken: 0,
            long: LongMessage::No,
            assembly: Assembly::default(),
            under: ViewId::default(),
            long_under: ViewId::default(),
        }
    }

    /// Removes the next envelope from `input` and opens it; `None` = the envelope is incomplete, so
    /// its bytes are kept until the rest arrives.
    pub(super) fn open(&mut self, input: &mut &[u8]) -> Result<Option<Sender>, Malformed> {
        let Some(bytes) = self.whole(input)? else { return Ok(None) };
        let envelope = Envelope::open(bytes)?;
        let sender = envelope.sender();
        self.under = sender.view;
        self.envelope = Some(envelope);
        Ok(Some(sender))
    }

    fn whole(&mut self, input: &mut &[u8]) -> Result<Option<Bytes>, Malformed> {
        if self.rest.is_empty()
            && let Some(length) = envelope_len(input)?
            && let Some((envelope, behind)) = input.split_at_checked(length)
        {
            *input = behind;
            return Ok(Some(Bytes::copy_from_slice(envelope)));
        }
        loop {
            let known = envelope_len(&self.rest)?;
            let missing = known.unwrap_or(LENGTH_PREFIX) - self.rest.len();
            let (more, behind) = input.split_at(missing.min(input.len()));
            self.rest.extend_from_slice(more);
            *input = behind;
            if more.len() < missing {
                return Ok(None);
            }
            if known.is_some() {
                let envelope = Bytes::copy_from_slice(&self.rest);
                self.rest.clear();
                self.rest.shrink_to(KEPT_BYTES);
                return Ok(Some(envelope));
            }
        }
    }

    /// Returns the open envelope's next item; `None` = no item is left, or no envelope is open.
    pub(super) fn item(&mut self) -> Result<Option<Item>, Malformed> {
        let Some(envelope) = &mut self.envelope else { return Ok(None) };
        let item = envelope.next_item()?;
        if item.is_none() {
            self.envelope = None;
        }
        Ok(item)
    }

    /// Queues a piece until its message has a reservation.
    pub(super) fn piece(&mut self, bytes: Bytes, last: bool) -> Result<(), Malformed> {
        self.piece_bytes += bytes.len();
        if self.piece_bytes > WINDOW {
            return Err(Malformed("more fragments than the credit allows"));
        }
        self.pieces.push_back((bytes, last));
        self.long_under = self.under;
        Ok(())
    }

    /// Removes the first piece, whose message has a reservation or is discarded. After the last
    /// piece, returns the message's state and, unless the message is discarded, its bytes.
    pub(super) fn take_piece(
        &mut self,
    ) -> Result<Option<(LongMessage<R>, Option<Bytes>)>, Malformed> {
        let Some((piece, last)) = self.pieces.pop_front() else { return Ok(None) };
        assert!(self.piece_bytes >= piece.len(), "each piece was counted when it came");
        self.piece_bytes -= piece.len();
        self.taken += piece.len();
        let whole = match self.long {
            LongMessage::Assembling(_) => self.assembly.add(&piece, last)?,
            _ => None,
        };
        Ok(last.then(|| (std::mem::replace(&mut self.long, LongMessage::No), whole)))
    }

    /// Returns the bytes of the pieces removed since the last call, to be given as credit.
    pub(super) fn take_credit(&mut self) -> u32 {
        std::mem::take(&mut self.taken) as u32
    }
}

/// Returns the state of a reply with a record: assembled in the reservation `room` if the
/// reservation is large enough, discarded otherwise.
pub(super) fn reply_state<R: MessageReservation>(
    what: PieceHeader,
    room: Option<R>,
) -> LongMessage<R> {
    match room {
        Some(room) if what.bytes <= room.bytes() + FOUND_HEAD => {
            LongMessage::Assembling(Some(room))
        }
        _ => LongMessage::Skipped(what),
    }
}
