//! Values of contended keys: numbers, which additions can change, and texts. Each write has a
//! unique value, so that a value identifies its write.

use linear::Value;
use protocol::Record;

/// Upper bound on the sum of all additions to a number, so that it stays distinct from the next.
const APART: i64 = 1 << 32;

/// Returns the value that an operation writes, by its number: one in eight is a text.
pub(crate) fn value_of(number: u64) -> Value {
    if number % 8 == 7 { Value::Text(number) } else { Value::Number(number as i64 * APART) }
}

/// Encodes the value.
pub(crate) fn encode(value: Value) -> Vec<u8> {
    let text = match value {
        Value::Number(number) => return number.to_string().into_bytes(),
        Value::Text(text) => text,
    };
    // Longer than the records that replicas report at once; some are long enough to be sent in
    // pieces.
    let len = if text % 64 == 63 { 40_000 } else { 8 + text as usize % 512 };
    let mut bytes = format!("text {text} ").into_bytes();
    bytes.resize(bytes.len() + len, b'.');
    bytes
}

/// Decodes the value of a record: `Some(None)` for a tombstone; `None` if no client can have
/// written it.
pub(crate) fn decode(key: &[u8], record: &Record) -> Option<Option<Value>> {
    if !record.verifies(key) {
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
