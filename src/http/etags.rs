//! Version tags as header values: `"0123456789abcdef-01234567"`.

use std::cell::RefCell;

use bytes::{BufMut, BytesMut};
use cluster::Version;
use hyper::header::HeaderValue;

/// Bytes of a tag: two quotes, 16 and 8 hex digits, a hyphen.
const TAG_LEN: usize = 27;

/// Tags are cut from blocks of this many, so that one allocation serves many answers.
const TAGS_PER_BLOCK: usize = 128;

/// Makes tags.
#[derive(Debug, Default)]
pub(crate) struct Etags {
    block: RefCell<BytesMut>,
}

impl Etags {
    /// The tag of `version`.
    pub(crate) fn of(&self, version: Version) -> HeaderValue {
        let mut block = self.block.borrow_mut();
        if block.capacity() < TAG_LEN {
            *block = BytesMut::with_capacity(TAG_LEN * TAGS_PER_BLOCK);
        }
        let mut text = [b'"'; TAG_LEN];
        put_hex(&mut text[1..17], version.time);
        text[17] = b'-';
        put_hex(&mut text[18..26], u64::from(version.origin));
        block.put_slice(&text);
        let tag = block.split().freeze();
        HeaderValue::from_maybe_shared(tag).expect("hex digits and quotes are a header value")
    }
}

fn put_hex(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 0xf) as usize];
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_the_version_as_displayed_in_quotes() {
        let etags = Etags::default();
        for time in 0..3 * TAGS_PER_BLOCK as u64 {
            let version = Version { time: time * 0x0123_4567_89ab, origin: 0xfedc_ba98 };
            let displayed = node::records::version(version);
            assert_eq!(etags.of(version), format!("\"{displayed}\""));
        }
    }
}
