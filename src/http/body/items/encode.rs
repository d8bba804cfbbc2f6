//! Encodes the items of a range in each form. Encoded chunks are bounded: a long value is encoded
//! piece by piece. Forms that send the stored bytes do not copy the value.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::Tag;

use crate::http::body::{Content, Item};
use crate::http::entities::form::Form;
use crate::http::{etags, frames};

/// Bytes of a value that are encoded at once. A multiple of three, because Base64 encodes three
/// bytes as four characters.
const PIECE_BYTES: usize = 15 << 10;

/// An item of a range.
#[derive(Debug)]
pub(in crate::http) struct RangeItem {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    pub(super) tag: Tag,
    /// Expiry in milliseconds since 1970; 0 = never.
    pub(super) expiry_ms: u64,
}

/// Encodes items as a body.
#[derive(Debug)]
pub(super) struct Encoder {
    form: Form,
    /// True if values are sent.
    values: bool,
    has_begun: bool,
    rest: Option<UnsentLine>,
}

/// The unsent rest of a line.
#[derive(Debug)]
struct UnsentLine {
    value: Bytes,
    is_text: bool,
    /// Bytes that follow the value.
    tail: BytesMut,
}

impl Encoder {
    pub(super) fn new(form: Form, values: bool) -> Self {
        Self { form, values, has_begun: false, rest: None }
    }

    /// True if values are sent.
    pub(super) fn sends_values(&self) -> bool {
        self.values
    }

    /// Encodes an item, or the first piece of a long item. [`Self::more`] returns the further
    /// pieces.
    pub(super) fn item(&mut self, found: RangeItem) -> Item {
        let RangeItem { key, value, tag, expiry_ms } = found;
        match self.form {
            Form::Chunks => {
                let mut line = BytesMut::with_capacity(key.len() + 1);
                line.put_slice(&key);
                line.put_u8(b'\n');
                line.freeze().chain(value.into())
            }
            Form::Frames => {
                let mut head = self.begin();
                let mut etag = BytesMut::new();
                etags::put(&mut etag, tag);
                let value = self.values.then_some(value);
                frames::put_item(&mut head, &etag, &key, value.as_ref().map(Bytes::len), expiry_ms);
                head.freeze().chain(value.unwrap_or_default().into())
            }
            Form::Lines => self.line(&key, value, tag, expiry_ms),
        }
    }

    /// Returns the next piece of the last item; `None` if no piece is left.
    pub(super) fn more(&mut self) -> Option<Item> {
        let rest = self.rest.take()?;
        let mut piece = BytesMut::new();
        self.put_value(&mut piece, rest);
        Some(whole(piece))
    }

    /// Encodes the end of a body; `None` if the form has no end marker. `next` is the cursor of the
    /// next page, if there is a next page.
    pub(super) fn end(&mut self, next: Option<&str>) -> Option<Item> {
        match self.form {
            Form::Chunks => None,
            Form::Frames => {
                let mut end = self.begin();
                frames::put_end(&mut end, next);
                Some(whole(end))
            }
            Form::Lines => {
                let line = match next {
                    None => "{\"end\":true}\n".to_owned(),
                    Some(cursor) => format!("{{\"next\":\"{cursor}\"}}\n"),
                };
                Some(whole(line.as_bytes().into()))
            }
        }
    }

    /// Returns a buffer for a frame. The buffer of the first frame begins with the magic.
    fn begin(&mut self) -> BytesMut {
        let mut out = BytesMut::with_capacity(128);
        if !std::mem::replace(&mut self.has_begun, true) {
            frames::put_magic(&mut out);
        }
        out
    }

    fn line(&mut self, key: &[u8], value: Bytes, tag: Tag, expiry_ms: u64) -> Item {
        let mut line = BytesMut::with_capacity(128 + key.len() + value.len().min(PIECE_BYTES));
        match str::from_utf8(key) {
            Ok(text) => {
                line.put_slice(b"{\"key\":\"");
                put_text(&mut line, text);
            }
            Err(_) => {
                line.put_slice(b"{\"key_base64\":\"");
                line.put_slice(STANDARD.encode(key).as_bytes());
            }
        }
        let mut tail = BytesMut::with_capacity(96);
        tail.put_slice(b"\",\"etag\":\"\\\"");
        let mut etag = BytesMut::new();
        etags::put(&mut etag, tag);
        tail.put_slice(&etag[1..etag.len() - 1]);
        tail.put_slice(b"\\\"\"");
        if expiry_ms != 0 {
            tail.put_slice(format!(",\"expires_ms\":{expiry_ms}").as_bytes());
        }
        tail.put_slice(b"}\n");
        if !self.values {
            line.put_slice(&tail);
            return whole(line);
        }
        let is_text = str::from_utf8(&value).is_ok();
        line.put_slice(if is_text { b"\",\"value\":\"" } else { b"\",\"value_base64\":\"" });
        self.put_value(&mut line, UnsentLine { value, is_text, tail });
        whole(line)
    }

    /// Writes the next piece of a value, and the tail after the last piece. Stores the unsent rest
    /// in `self.rest`.
    fn put_value(&mut self, out: &mut BytesMut, mut rest: UnsentLine) {
        let mut len = rest.value.len().min(PIECE_BYTES);
        if rest.is_text {
            // Moves the end of the piece back to the boundary of a character, by three bytes at
            // most.
            while rest.value.get(len).is_some_and(|byte| byte & 0xc0 == 0x80) {
                len -= 1;
            }
            let piece = str::from_utf8(&rest.value[..len]).expect("the value is UTF-8, uncut");
            put_text(out, piece);
        } else {
            out.put_slice(STANDARD.encode(&rest.value[..len]).as_bytes());
        }
        rest.value.advance(len);
        if rest.value.is_empty() {
            out.put_slice(&rest.tail);
        } else {
            self.rest = Some(rest);
        }
    }
}

/// Characters besides line feeds at which the line readers of some languages end a line (Python's
/// `splitlines`). Unescaped, they would split an item's line of JSON.
const LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Writes text with the escapes of a JSON string, without the quotes.
fn put_text(out: &mut BytesMut, text: &str) {
    let quoted = serde_json::to_string(text).expect("text always serializes");
    let mut rest = &quoted[1..quoted.len() - 1];
    while let Some(place) = rest.find(LINE_ENDS) {
        let (before, behind) = rest.split_at(place);
        let end = behind.chars().next().expect("it was found");
        out.put_slice(before.as_bytes());
        out.put_slice(format!("\\u{:04x}", u32::from(end)).as_bytes());
        rest = &behind[end.len_utf8()..];
    }
    out.put_slice(rest.as_bytes());
}

fn whole(bytes: BytesMut) -> Item {
    bytes.freeze().chain(Content::default())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use protocol::Version;
    use serde_json::Value;

    use super::*;

    fn encode_body(form: Form, values: bool, items: &[(Vec<u8>, Vec<u8>, u64)]) -> Vec<u8> {
        let mut encoder = Encoder::new(form, values);
        let mut body = Vec::new();
        for (key, value, expiry_ms) in items {
            let tag = Tag { version: Version { time: 5, origin: 7 }, last: Some((1, 2)) };
            let (key, value) = (Bytes::from(key.clone()), Bytes::from(value.clone()));
            let mut piece =
                Some(encoder.item(RangeItem { key, value, tag, expiry_ms: *expiry_ms }));
            while let Some(mut bytes) = piece {
                let most = 6 * PIECE_BYTES + 8 * 1024;
                assert!(form == Form::Frames || bytes.remaining() < most, "a piece is bounded");
                body.extend(bytes.copy_to_bytes(bytes.remaining()));
                piece = encoder.more();
            }
        }
        let mut end = encoder.end(None).unwrap();
        body.extend(end.copy_to_bytes(end.remaining()));
        body
    }

    fn bytes_of(line: &Value, name: &str) -> Vec<u8> {
        match (line[name].as_str(), line[format!("{name}_base64")].as_str()) {
            (Some(text), None) => text.as_bytes().to_vec(),
            (None, Some(encoded)) => STANDARD.decode(encoded).unwrap(),
            both => panic!("{name}: {both:?}"),
        }
    }

    fn text_or_bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![vec(any::<u8>(), 0..20), "\\PC{0,20}".prop_map(String::into_bytes)]
    }

    /// Python's `splitlines` ends a line at each of these characters.
    #[test]
    fn nothing_but_a_line_feed_ends_a_line() {
        let key =
            "a\u{2028}b\u{85}\u{2029}\u{2029}\r\u{b}\u{c}\u{1c}\u{1d}\u{1e}".as_bytes().to_vec();
        let items = [(key.clone(), key.clone(), 0), (b"z".to_vec(), b"\xc2".to_vec(), 0)];
        let body = String::from_utf8(encode_body(Form::Lines, true, &items)).unwrap();
        assert!(
            !body.contains(|sign: char| sign != '\n'
                && (sign.is_control() || "\u{2028}\u{2029}".contains(sign)))
        );
        let line: Value = serde_json::from_str(body.lines().next().unwrap()).unwrap();
        assert_eq!((bytes_of(&line, "key"), bytes_of(&line, "value")), (key.clone(), key));
        assert_eq!(body.lines().count(), 3);
    }

    proptest! {
        #[test]
        fn any_items_survive_a_round_trip_as_lines(
            items in vec((text_or_bytes(), text_or_bytes(), 0..3u64), 0..5),
            values in any::<bool>(),
            times in prop_oneof![3 => Just(1), 1 => 1..9_000usize],
        ) {
            let mut items = items;
            items.iter_mut().for_each(|(_, value, _)| *value = value.repeat(times));
            let body = String::from_utf8(encode_body(Form::Lines, values, &items)).unwrap();
            let lines: Vec<Value> =
                body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            prop_assert_eq!(lines.len(), items.len() + 1);
            prop_assert_eq!(&lines[items.len()], &serde_json::json!({"end": true}));
            for (line, (key, value, expiry_ms)) in lines.iter().zip(&items) {
                prop_assert_eq!(&bytes_of(line, "key"), key);
                prop_assert_eq!(
                    line["etag"].as_str(),
                    Some("\"0000000000000005-00000007-1-0000000000000002\"")
                );
                prop_assert_eq!(line["expires_ms"].as_u64(), Some(*expiry_ms).filter(|ms| *ms > 0));
                if values {
                    prop_assert_eq!(&bytes_of(line, "value"), value);
                } else {
                    prop_assert!(line["value"].is_null() && line["value_base64"].is_null());
                }
            }
        }

        #[test]
        fn any_items_survive_a_round_trip_as_frames(
            items in vec((text_or_bytes(), text_or_bytes(), 0..3u64), 0..5),
            values in any::<bool>(),
        ) {
            let body = encode_body(Form::Frames, values, &items);
            let mut frames = frames::Frames::new(&body[..]);
            for (key, value, expires_ms) in items {
                let etag = b"\"0000000000000005-00000007-1-0000000000000002\"".to_vec();
                let value = values.then_some(value);
                let expected = frames::Frame::Item(frames::Item { etag, key, value, expires_ms });
                prop_assert_eq!(frames.read().unwrap(), expected);
            }
            prop_assert_eq!(frames.read().unwrap(), frames::Frame::End);
        }
    }
}
