//! What came over one connection, on its way to whole messages.
//!
//! ```text
//!  bytes ─▶ envelopes ─▶ messages, or pieces put together ─▶ messages
//!        └ what is no whole envelope yet: rest
//! ```

use std::collections::VecDeque;

use bytes::Bytes;
use cluster::ViewId;
use cluster::wire::{
    Announced, Assembly, Envelope, ITEM_HEAD, Item, Malformed, Sender, WINDOW, envelope_len,
};

use super::Room;

/// Bytes of a message that brings a record, besides the record.
const FOUND_HEAD: usize = ITEM_HEAD + size_of::<u32>();

/// Memory that an idle connection keeps in each direction, in bytes.
pub(super) const KEPT_BYTES: usize = 64 << 10;

/// Bytes of an envelope after which its length is known.
const LENGTH_KNOWN: usize = 12;

/// The long message that comes in.
pub(super) enum Long<R> {
    /// No long message comes in.
    No,
    /// It waits for room.
    Waits(Announced),
    /// It is put together, in this room; `None` = whoever asked for it has some.
    Comes(Option<R>),
    /// It is thrown away.
    Skipped(Announced),
}

/// See the module.
pub(super) struct Incoming<R> {
    /// The beginning of an envelope.
    rest: Vec<u8>,
    envelope: Option<Envelope>,
    /// Pieces that were not taken yet, and how many bytes they have.
    pub(super) pieces: VecDeque<(Bytes, bool)>,
    piece_bytes: usize,
    /// Bytes of pieces that were taken, and for which no credit was given yet.
    taken: usize,
    pub(super) long: Long<R>,
    assembly: Assembly,
    /// The view that the other node goes by, as the open envelope said, and as the last did that
    /// brought a piece.
    pub(super) under: ViewId,
    pub(super) long_under: ViewId,
}

impl<R: Room> Incoming<R> {
    pub(super) fn new() -> Self {
        Self {
            rest: Vec::new(),
            envelope: None,
            pieces: VecDeque::new(),
            piece_bytes: 0,
            taken: 0,
            long: Long::No,
            assembly: Assembly::default(),
            under: ViewId::default(),
            long_under: ViewId::default(),
        }
    }

    /// Opens the next envelope that is whole, taking it off `input`; what is none yet is kept.
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
            let missing = known.unwrap_or(LENGTH_KNOWN) - self.rest.len();
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

    /// The open envelope's next item; `None` = there is none, or no envelope is open.
    pub(super) fn item(&mut self) -> Result<Option<Item>, Malformed> {
        let Some(envelope) = &mut self.envelope else { return Ok(None) };
        let item = envelope.next_item()?;
        if item.is_none() {
            self.envelope = None;
        }
        Ok(item)
    }

    /// A piece came; it waits until there is room for what it is a part of.
    pub(super) fn piece(&mut self, bytes: Bytes, last: bool) -> Result<(), Malformed> {
        self.piece_bytes += bytes.len();
        if self.piece_bytes > WINDOW {
            return Err(Malformed("more fragments than the credit allows"));
        }
        self.pieces.push_back((bytes, last));
        self.long_under = self.under;
        Ok(())
    }

    /// Takes the piece in front, for which there is room, or which is thrown away; returns what the
    /// long message was to go to, and its bytes if there are any, if that was the last.
    pub(super) fn take_piece(&mut self) -> Result<Option<(Long<R>, Option<Bytes>)>, Malformed> {
        let Some((piece, last)) = self.pieces.pop_front() else { return Ok(None) };
        assert!(self.piece_bytes >= piece.len(), "each piece was counted when it came");
        self.piece_bytes -= piece.len();
        self.taken += piece.len();
        let whole = match self.long {
            Long::Comes(_) => self.assembly.add(&piece, last)?,
            _ => None,
        };
        Ok(last.then(|| (std::mem::replace(&mut self.long, Long::No), whole)))
    }

    /// Bytes of pieces that were taken since this was asked last: as much credit is to be given.
    pub(super) fn take_credit(&mut self) -> u32 {
        std::mem::take(&mut self.taken) as u32
    }
}

/// Where the record of a reply goes: into what was set aside for it, if that is enough.
pub(super) fn room_for<R: Room>(what: Announced, room: Option<R>) -> Long<R> {
    match room {
        Some(room) if what.bytes <= room.bytes() + FOUND_HEAD => Long::Comes(Some(room)),
        _ => Long::Skipped(what),
    }
}
