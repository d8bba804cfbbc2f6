//! Representation of keys and values, which are any bytes, in URLs, on a terminal and in JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

pub(super) use crate::http::percent::encode as percent;
pub(super) use protocol::escape;

/// Text that is not valid output of [`escape`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: a backslash is followed by n, t, \\ or xNN (--escaped)")]
pub(super) struct NotEscaped(String);

/// Reverses [`escape`]: returns the original bytes.
pub(super) fn unescape(text: &[u8]) -> Result<Vec<u8>, NotEscaped> {
    let wrong = || NotEscaped(String::from_utf8_lossy(text).into_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (kind, after) = rest.split_first().ok_or_else(wrong)?;
        rest = after;
        match kind {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                let (pair, after) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
                let hex = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
                bytes.push((hex(pair[0])? << 4 | hex(pair[1])?) as u8);
                rest = after;
            }
            _ => return Err(wrong()),
        }
    }
    Ok(bytes)
}

/// Adds the member `name` to a JSON object: as text if `bytes` are UTF-8, otherwise in base64 as
/// `NAME_base64`.
pub(super) fn add(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), STANDARD.encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back_from_one_printable_line() {
        let all: Vec<u8> = (0..=255).chain("ünï\u{85}\u{2028}\\x41".bytes()).collect();
        let line = escape(&all);
        assert!(!line.chars().any(char::is_control), "{line}");
        assert_eq!(unescape(line.as_bytes()), Ok(all));
        assert_eq!(escape("a b/ü".as_bytes()), "a b/ü");
    }

    #[test]
    fn a_malformed_escape_is_refused() {
        for bad in ["\\", "\\q", "a\\x", "\\x4", "\\xg0", "\\x+1"] {
            assert!(unescape(bad.as_bytes()).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn json_encodes_bytes_that_are_not_utf8_in_base64() {
        let mut object = Map::new();
        add(&mut object, "key", "ü".as_bytes());
        add(&mut object, "value", b"\xff\0");
        assert_eq!(Value::from(object).to_string(), r#"{"key":"ü","value_base64":"/wA="}"#);
    }
}
