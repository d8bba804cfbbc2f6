//! Fuzzes the decoder of messages between nodes. The decoder must decode or refuse every input. The
//! encoding of a decoded message must yield the same bytes.
//!
//! ```text
//!  input: mode u8 │ bytes
//!  mode 0: the bytes as they are
//!       1: an envelope, whose checksum, length and number of items are corrected
//!       2: a message that was assembled from pieces
//! ```
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::wire::{
    Assembly, ENVELOPE_HEAD, ENVELOPE_MAX, Envelope, ITEM_HEAD, Item, Malformed, OutgoingPieces,
    PieceHeader, Sender, WHOLE_MAX, WINDOW, Writer, envelope_len, message_len, message_of,
};
use protocol::{LogPosition, Message, ViewId};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum length in bytes of a message that the target assembles. A real receiver limits the
/// length by its free memory.
const LONGEST: usize = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((mode, bytes)) = input.split_first() else { return };
    match mode % 3 {
        0 => stream(bytes),
        1 => stream(&with_consistent_head(bytes)),
        _ => long_message(Bytes::copy_from_slice(bytes)),
    }
});

/// Processes received bytes as a connection does.
fn stream(mut bytes: &[u8]) {
    let mut assembly = Assembly::default();
    while let Ok(Some(length)) = envelope_len(bytes) {
        let Some((envelope, rest)) = bytes.split_at_checked(length) else { return };
        let Ok(sender) = Envelope::open(Bytes::copy_from_slice(envelope)).map(|e| e.sender())
        else {
            return;
        };
        let Ok(items) = items(envelope) else { return };
        let mut writer = Writer::default();
        items.iter().for_each(|item| encode_item(&mut writer, item));
        writer.seal(sender);
        assert_eq!(writer.closed_envelopes(), envelope, "{items:?}");
        for item in items {
            if let Item::Piece { last, bytes } = item
                && !piece(&mut assembly, &bytes, last)
            {
                return;
            }
        }
        bytes = rest;
    }
}

fn items(envelope: &[u8]) -> Result<Vec<Item>, Malformed> {
    let mut envelope = Envelope::open(Bytes::copy_from_slice(envelope))?;
    std::iter::from_fn(|| envelope.next_item().transpose()).collect()
}

fn encode_item(writer: &mut Writer, item: &Item) {
    match item {
        Item::Message(message) => writer.message(message),
        Item::Piece { last, bytes } => writer.piece(bytes, *last),
        Item::Credit(bytes) => writer.credit(*bytes),
        Item::Ping { token } => writer.ping(*token),
        Item::Pong { token, wall } => writer.pong(*token, *wall),
        Item::Goodbye => writer.goodbye(),
    }
}

const SENDER: Sender =
    Sender { view: ViewId { epoch: 1, placement: 2 }, clock: 3, position: LogPosition(4) };

/// Adds a piece of a long message. Returns true if the connection continues.
fn piece(assembly: &mut Assembly, piece: &[u8], last: bool) -> bool {
    if assembly.buffered_bytes() == 0
        && PieceHeader::parse(piece).is_ok_and(|long| long.bytes > LONGEST)
    {
        return false;
    }
    match assembly.add(piece, last) {
        Ok(Some(whole)) => long_message(whole),
        Ok(None) => {}
        Err(_) => return false,
    }
    true
}

/// Checks that an assembled message stays the same when it is cut into pieces and assembled again.
fn long_message(bytes: Bytes) {
    let Ok(message) = message_of(bytes.clone()) else { return };
    assert_eq!(message_len(&message), bytes.len(), "{message:?}");
    if bytes.len() <= WHOLE_MAX {
        let mut writer = Writer::default();
        writer.message(&message);
        writer.seal(SENDER);
        assert_eq!(writer.closed_envelopes()[ENVELOPE_HEAD..], bytes);
    }
    if PieceHeader::parse(&bytes).is_ok() {
        assert_eq!(cut(&message), bytes, "{message:?}");
    }
}

fn cut(message: &Message) -> Vec<u8> {
    let (mut cut, mut assembly) = (OutgoingPieces::new(message), Assembly::default());
    loop {
        let mut writer = Writer::default();
        cut.next(WINDOW, &mut writer);
        writer.seal(SENDER);
        let items = items(writer.closed_envelopes()).expect("a piece is an item");
        let [Item::Piece { last, bytes }] = &items[..] else { panic!("no piece: {items:?}") };
        if let Some(whole) = assembly.add(bytes, *last).expect("pieces fit together") {
            return whole.to_vec();
        }
    }
}

/// Returns these bytes as an envelope with a consistent head.
fn with_consistent_head(bytes: &[u8]) -> Vec<u8> {
    let mut envelope = bytes[..bytes.len().min(ENVELOPE_MAX)].to_vec();
    if envelope.len() < ENVELOPE_HEAD {
        envelope.resize(ENVELOPE_HEAD, 0);
    }
    let (mut count, mut rest) = (0_u32, &envelope[ENVELOPE_HEAD..]);
    while let Some(length) = rest.get(4..8) {
        let length = length.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        rest = rest.get(ITEM_HEAD + length..).unwrap_or_default();
        count += 1;
    }
    let length = (envelope.len() - ENVELOPE_HEAD) as u32;
    envelope[8..12].copy_from_slice(&length.to_le_bytes());
    envelope[12..16].copy_from_slice(&count.to_le_bytes());
    let check = xxh3_64(&envelope[8..]);
    envelope[..8].copy_from_slice(&check.to_le_bytes());
    envelope
}
