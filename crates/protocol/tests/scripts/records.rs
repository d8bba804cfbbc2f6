//! Records in scripts: real records whose contents are words.
//!
//! ```text
//!  value~expiry#step:id,id=result,id/digest=result
//! ```
//!
//! An expiry is in milliseconds after the start of the script; a value without an expiry never
//! expires. The part after `#` is the operation history, for the record of a conditional write.

use bytes::Bytes;
use protocol::{Kind, OpHistory, Operation, Record, Version};
use record::Fields;

use crate::words::BASE;

/// Makes a record of a plain write.
pub(crate) fn record(key: &[u8], kind: Kind, value: &str, version: Version, copies: u8) -> Record {
    Record::new(key, &Fields { copies, ..Fields::new(kind, version) }, value.as_bytes())
}

/// Makes a record with this content; a `ballot` other than 0 makes it that of a conditional write.
pub(crate) fn parse(
    key: &[u8],
    (kind, content): (Kind, &str),
    (version, ballot): (Version, u64),
    copies: u8,
) -> Result<Record, String> {
    let (content, steps) =
        content.split_once('#').map_or((content, None), |(value, steps)| (value, Some(steps)));
    let (value, expiry_ms) = match content.split_once('~') {
        Some((value, after)) => {
            let after = after.parse().map_err(|_| format!("{after:?} is no expiry"))?;
            (value, (BASE / 1000).saturating_add_signed(after))
        }
        None => (content, 0),
    };
    let OpHistory { step, operations } = steps.map_or(Ok(OpHistory::default()), parse_steps)?;
    if ballot == 0 && !operations.is_empty() {
        return Err(format!("{content:?} has steps and no ballot"));
    }
    let operations = &operations[..];
    let plain = Fields::new(kind, version);
    let fields = Fields { ballot, step, operations, copies, expiry_ms, ..plain };
    Ok(Record::new(key, &fields, value.as_bytes()))
}

fn parse_steps(text: &str) -> Result<OpHistory, String> {
    let malformed = || format!("{text:?} is not like step:id,id=result");
    let (step, operations) = text.split_once(':').ok_or_else(malformed)?;
    let operation = |text: &str| {
        let (id, result) = text.split_once('=').map_or((text, None), |(id, r)| (id, Some(r)));
        let (id, digest) = id.split_once('/').unwrap_or((id, "0"));
        let result = result.map(str::parse).transpose().ok()?;
        Some(Operation { id: id.parse().ok()?, result, digest: digest.parse().ok()? })
    };
    let operations = operations.split(',').filter(|text| !text.is_empty()).map(operation);
    let operations = operations.collect::<Option<_>>().ok_or_else(malformed)?;
    Ok(OpHistory { step: step.parse().map_err(|_| malformed())?, operations })
}

/// Prints a record's content in the form that [`parse`] reads.
pub(crate) fn text(record: &Record) -> String {
    let mut text = String::from_utf8(record.value().into()).expect("a script's values are text");
    if record.expiry_ms() != 0 {
        text += &format!("~{}", record.expiry_ms() as i64 - (BASE / 1000) as i64);
    }
    let OpHistory { step, operations } = record.op_history();
    let operation = |Operation { id, result, digest }: &Operation| {
        let digest = if *digest == 0 { String::new() } else { format!("/{digest}") };
        let result = result.map(|result| format!("={result}")).unwrap_or_default();
        format!("{id}{digest}{result}")
    };
    if step != 0 || !operations.is_empty() {
        let operations: Vec<String> = operations.iter().map(operation).collect();
        text += &format!("#{step}:{}", operations.join(","));
    }
    text
}

/// Returns the record with a wrong checksum, as after damage.
pub(crate) fn with_wrong_checksum(record: &Record) -> Record {
    let mut raw = record.raw().to_vec();
    *raw.last_mut().expect("a record ends with its check") ^= 1;
    Record::parse(Bytes::from(raw)).expect("a record with another check is well-formed")
}
