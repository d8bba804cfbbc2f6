//! Values of contended keys. A value is a text, or a number to which conditional writes can add.
//! Each write has a unique value, which identifies the write.

use linear::Value;
use protocol::Record;

/// Distance between two written numbers. All additions to a number together are smaller, so that no
/// sum equals another written number.
const NUMBER_DISTANCE: i64 = 1 << 32;

/// Returns the value of the write with this number. One value in eight is a text.
pub(crate) fn value_of(number: u64) -> Value {
    if number % 8 == 7 {
        Value::Text(number)
    } else {
        Value::Number(number as i64 * NUMBER_DISTANCE)
    }
}

/// Encodes a value as the content of a record.
pub(crate) fn encode(value: Value) -> Vec<u8> {
    let text = match value {
        Value::Number(number) => return number.to_string().into_bytes(),
        Value::Text(text) => text,
    };
    // Many texts exceed `BRIEF_BYTES`, so replicas first report only their outlines. One text in
    // eight is long enough to be sent in pieces.
    let len = if text % 64 == 63 { 40_000 } else { 8 + text as usize % 512 };
    let mut bytes = format!("text {text} ").into_bytes();
    bytes.resize(bytes.len() + len, b'.');
    bytes
}

/// Decodes the value of a record. Returns `Some(None)` for a tombstone, and `None` if no client can
/// have written the record.
pub(crate) fn decode(key: &[u8], record: &Record) -> Option<Option<Value>> {
    if !record.is_intact(key) {
        return None;
    }
    if record.kind() == protocol::Kind::Tombstone {
        return Some(None);
    }
    let text = str::from_utf8(record.view().value()).ok()?;
    let value = match text.strip_prefix("text ") {
        None => Value::Number(text.parse().ok()?),
        Some(rest) => Value::Text(rest.split(' ').next()?.parse().ok()?),
    };
    (encode(value) == text.as_bytes()).then_some(Some(value))
}
