//! Entity tags as header values: `"0123456789abcdef-01234567"`, and after conditional writes
//! `"0123456789abcdef-01234567-12-0123456789abcdef"`, with the number of conditional writes and the
//! id of the last one.

use std::cell::RefCell;
use std::io::Write as _;

use bytes::{BufMut, BytesMut};
use hyper::header::HeaderValue;
use protocol::{Tag, Version};

/// Length of a tag in bytes: two quotes, 16 and 8 hex digits, a hyphen. After conditional writes a
/// tag has two more hyphens, up to 10 digits, and 16 hex digits.
const TAG_LEN: usize = 27;
const LONG_LEN: usize = TAG_LEN + 1 + 10 + 1 + 16;

/// Number of tags that are slices of one buffer. One allocation then serves many answers.
const TAGS_PER_BLOCK: usize = 128;

/// The two hex digits of each byte.
static HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

/// Formats tags as header values.
#[derive(Debug, Default)]
pub(crate) struct Etags {
    block: RefCell<BytesMut>,
}

impl Etags {
    /// Formats a tag with its quotes.
    pub(crate) fn of(&self, tag: Tag) -> HeaderValue {
        let mut block = self.block.borrow_mut();
        if block.capacity() < LONG_LEN {
            *block = BytesMut::with_capacity(TAG_LEN * TAGS_PER_BLOCK);
        }
        put(&mut block, tag);
        let tag = block.split().freeze();
        HeaderValue::from_maybe_shared(tag).expect("hex digits and quotes are a header value")
    }
}

/// Writes a tag with its quotes.
#[inline]
pub(super) fn put(out: &mut BytesMut, tag: Tag) {
    let mut text = [b'"'; TAG_LEN];
    put_hex(&mut text[1..17], &tag.version.time.to_be_bytes());
    text[17] = b'-';
    put_hex(&mut text[18..26], &tag.version.origin.to_be_bytes());
    match tag.last {
        None => out.put_slice(&text),
        Some((step, id)) => {
            out.put_slice(&text[..26]);
            write!(out.writer(), "-{step}-{id:016x}\"").expect("a buffer grows");
        }
    }
}

/// Parses a quoted tag; `None` if no value can have the tag.
pub(crate) fn parse(text: &[u8]) -> Option<Tag> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix('"')?.strip_suffix('"')?;
    let mut parts = text.split('-');
    let time = hex(parts.next()?, 16)?;
    let origin = u32::try_from(hex(parts.next()?, 8)?).ok()?;
    let last = match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => None,
        (Some(step), Some(id), None) => {
            let digits = step.bytes().all(|byte| byte.is_ascii_digit());
            let plain = digits && (step == "0" || !step.starts_with('0'));
            Some((step.parse().ok().filter(|_| plain)?, hex(id, 16)?))
        }
        _ => return None,
    };
    Some(Tag { version: Version { time, origin }, last })
}

/// Parses a number of exactly `digits` lower-case hex digits; `None` for any other text.
fn hex(text: &str, digits: usize) -> Option<u64> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let number = u64::from_str_radix(text, 16).ok()?;
    (text.len() == digits && text.bytes().all(is_digit)).then_some(number)
}

fn put_hex(out: &mut [u8], bytes: &[u8]) {
    for (pair, byte) in out.as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = HEX[usize::from(*byte)];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The tag parsed from an accepted text is formatted as the same text.
        #[test]
        fn any_tag_is_read_back_and_other_texts_are_refused(
            text in "\"?[0-9a-f]{15,17}-[0-9a-f]{8}(-[0-9]{1,10}-[0-9a-f]{16})?\"?|\\PC{0,40}",
        ) {
            if let Some(tag) = parse(text.as_bytes()) {
                prop_assert_eq!(Etags::default().of(tag), text);
            }
        }
    }

    #[test]
    fn a_tag_is_the_displayed_version_in_quotes() {
        let etags = Etags::default();
        for time in 0..3 * TAGS_PER_BLOCK as u64 {
            let version = Version { time: time * 0x0123_4567_89ab, origin: 0xfedc_ba98 };
            let displayed = version;
            assert_eq!(etags.of(Tag { version, last: None }), format!("\"{displayed}\""));
            let (step, id) = (time as u32 * 11_000_000 + 1, u64::MAX - time);
            let long = etags.of(Tag { version, last: Some((step, id)) });
            assert_eq!(long, format!("\"{displayed}-{step}-{id:016x}\""));
        }
    }

    #[test]
    fn formatted_tags_are_parsed_and_other_spellings_are_refused() {
        let etags = Etags::default();
        let version = Version { time: 0xfeed_0000_0000_0001, origin: 7 };
        for last in [None, Some((1, 0)), Some((0, 1)), Some((u32::MAX, u64::MAX))] {
            let tag = Tag { version, last };
            assert_eq!(parse(etags.of(tag).as_bytes()), Some(tag));
        }
        for text in [
            "\"\"",
            "\"feed000000000001-7\"",
            "\"FEED000000000001-00000007\"",
            "\"+eed000000000001-00000007\"",
            "\"feed000000000001-00000007-\"",
            "\"feed000000000001-00000007-1\"",
            "\"feed000000000001-00000007-01-0000000000000000\"",
            "\"feed000000000001-00000007-00-0000000000000000\"",
            "\"feed000000000001-00000007-4294967296-0000000000000000\"",
            "\"feed000000000001-00000007-1-0000000000000000-\"",
            "feed000000000001-00000007",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
