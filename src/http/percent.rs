//! Percent-encoding of bytes in a query string (RFC 3986, 2.1).
//!
//! A raw `+` is ambiguous: HTML forms and most query builders encode a space as `+`, while in RFC
//! 3986 it is a plus. So a raw `+` is refused, because a guess might store a value under another
//! key.

use std::borrow::Cow;
use std::fmt::Write;

/// The reason why a text can't be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("has a % without two hex digits after it")]
    Percent,
    #[error(
        "has a '+', which some programs write for a space and others for a plus: write %2B for a \
         plus, %20 for a space"
    )]
    Plus,
}

/// Encodes all bytes except the unreserved characters of RFC 3986.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Decodes `%XX`. A raw `+` is an error; all other bytes stay unchanged.
pub(crate) fn decode(text: &[u8]) -> Result<Cow<'_, [u8]>, DecodeError> {
    if is_plain(text) {
        return Ok(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'+' => return Err(DecodeError::Plus),
            b'%' => {
                let pair = after.split_first_chunk();
                let (&[high, low], after) = pair.ok_or(DecodeError::Percent)?;
                let hex = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
                let (high, low) = hex(high).zip(hex(low)).ok_or(DecodeError::Percent)?;
                decoded.push(high << 4 | low);
                after
            }
            byte => {
                decoded.push(byte);
                after
            }
        };
    }
    Ok(Cow::Owned(decoded))
}

/// True if a text has neither `%` nor `+`. Checks eight bytes at a time, because each request
/// decodes a key.
fn is_plain(text: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    // A subtraction of one from a zero byte sets its high bit, which was clear before.
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        let word = u64::from_ne_bytes(*word);
        let found =
            has_zero(word ^ (ONES * u64::from(b'%'))) | has_zero(word ^ (ONES * u64::from(b'+')));
        if found != 0 {
            return false;
        }
    }
    !rest.iter().any(|byte| matches!(byte, b'%' | b'+'))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_survive_percent_encoding(bytes in vec(any::<u8>(), 0..40)) {
            let text = encode(&bytes);
            prop_assert_eq!(decode(text.as_bytes()).map(Cow::into_owned), Ok(bytes));
        }

        /// A model of the decoder: `%` and two hex digits form one byte, a `+` is refused, and all
        /// other bytes stay unchanged.
        #[test]
        fn any_text_is_decoded_like_the_model(
            text in vec(prop_oneof![
                3 => Just(b'%'), 1 => Just(b'+'), 6 => b'0'..=b'g', 1 => any::<u8>(),
            ], 0..30),
        ) {
            let mut decoded = Ok(Vec::new());
            let mut bytes = text.iter();
            while let (Ok(all), Some(&byte)) = (&mut decoded, bytes.next()) {
                let hex = |digit: Option<&u8>| char::from(*digit?).to_digit(16);
                match byte {
                    b'+' => decoded = Err(DecodeError::Plus),
                    b'%' => {
                        let (high, low) = (hex(bytes.next()), hex(bytes.next()));
                        match high.zip(low) {
                            Some((high, low)) => all.push((high * 16 + low) as u8),
                            None => decoded = Err(DecodeError::Percent),
                        }
                    }
                    byte => all.push(byte),
                }
            }
            prop_assert_eq!(decode(&text).map(Cow::into_owned), decoded);
        }
    }

    #[test]
    fn a_text_without_escapes_is_not_copied() {
        for text in ["", "a", "plain", "exactly8", "longer than eight bytes/~"] {
            assert!(matches!(decode(text.as_bytes()), Ok(Cow::Borrowed(_))), "{text}");
        }
        // Neighbors of `%` and `+`, and bytes that differ from them in one bit, are plain.
        for byte in (0..=u8::MAX).filter(|byte| !matches!(byte, b'%' | b'+')) {
            assert!(is_plain(&[byte; 9]), "{byte:#x}");
        }
        for place in 0..17 {
            for special in [b'%', b'+'] {
                let mut text = [b'a'; 17];
                text[place] = special;
                assert!(!is_plain(&text), "{special:#x} at {place}");
            }
        }
    }

    #[test]
    fn a_query_holds_any_bytes() {
        assert_eq!(encode(b"a-Z_0.~"), "a-Z_0.~");
        assert_eq!(encode(b"\0 +&=%/\xff\n"), "%00%20%2B%26%3D%25%2F%FF%0A");
        assert_eq!(decode(b"%00%20%2b").unwrap(), &b"\0 +"[..]);
    }
}
