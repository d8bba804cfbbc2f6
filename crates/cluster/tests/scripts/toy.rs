//! A store's records as a script needs them: the bytes are the value, the check is a hash.

use bytes::Bytes;
use cluster::{Codec, Kind, Next, Operation, Rank, Record, Steps, StepsCodec, Version};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::words::BASE;

pub(crate) const CODEC: Codec = Codec { parse: |_| None, verify, reissue };

pub(crate) const STEPS: StepsCodec = StepsCodec { reballot, steps, value, expiry_ms, build };

/// A record as the node makes it where a value enters the cluster.
pub(crate) fn record(key: &[u8], kind: Kind, value: &str, version: Version, copies: u8) -> Record {
    let bytes = Bytes::copy_from_slice(value.as_bytes());
    Record {
        rank: Rank { version, ballot: 0, kind, check: check(key, kind, &bytes) },
        copies,
        bytes,
    }
}

/// The same, as a disk or a network that rots would have it.
pub(crate) fn damaged(mut record: Record) -> Record {
    record.rank.check ^= 1;
    record
}

pub(crate) fn verify(key: &[u8], record: &Record) -> bool {
    record.rank.check == check(key, record.rank.kind, &record.bytes)
}

/// A tombstone with this version.
pub(crate) fn tombstone(key: &[u8], version: Version) -> Record {
    record(key, Kind::Tombstone, "", version, 0)
}

fn reissue(_key: &[u8], record: &Record, version: Version) -> Record {
    Record { rank: Rank { version, ..record.rank }, ..record.clone() }
}

fn reballot(_key: &[u8], record: &Record, version: Version, ballot: u64) -> Record {
    Record { rank: Rank { version, ballot, ..record.rank }, copies: 0, ..record.clone() }
}

/// Behind the value: `~expiry` in milliseconds after the script's beginning, `#step:id,id=result`.
fn build(key: &[u8], next: &Next<'_>) -> Record {
    let Next { family: version, ballot, kind, copies, expiry_ms, steps, value } = *next;
    let operation = |Operation { id, result }: &Operation| match result {
        Some(result) => format!("{id}={result}"),
        None => id.to_string(),
    };
    let operations: Vec<String> = steps.operations.iter().map(operation).collect();
    let value = std::str::from_utf8(value).expect("a script's values are text");
    let expiry = match expiry_ms {
        0 => String::new(),
        expiry_ms => format!("~{}", expiry_ms as i64 - (BASE / 1000) as i64),
    };
    let bytes = Bytes::from(format!("{value}{expiry}#{}:{}", steps.step, operations.join(",")));
    let rank = Rank { version, ballot, kind, check: check(key, kind, &bytes) };
    Record { rank, copies, bytes }
}

fn split(record: &Record) -> (&str, Option<&str>) {
    let text = std::str::from_utf8(&record.bytes).expect("a script's values are text");
    text.split_once('#').map_or((text, None), |(value, steps)| (value, Some(steps)))
}

fn value(record: &Record) -> Bytes {
    let text = split(record).0;
    record.bytes.slice(..text.find('~').unwrap_or(text.len()))
}

fn expiry_ms(record: &Record) -> u64 {
    let after = split(record).0.split_once('~').map(|(_, expiry)| expiry);
    let after = after.map(|after| after.parse().expect("an expiry is a number of milliseconds"));
    after.map_or(0, |after| (BASE / 1000).saturating_add_signed(after))
}

fn steps(record: &Record) -> Steps {
    let Some((step, operations)) = split(record).1.and_then(|steps| steps.split_once(':')) else {
        return Steps::default();
    };
    let operation = |text: &str| {
        let (id, result) = text.split_once('=').map_or((text, None), |(id, r)| (id, Some(r)));
        let result = result.map(|result| result.parse().expect("build wrote it"));
        Operation { id: id.parse().expect("build wrote it"), result }
    };
    let operations = operations.split(',').filter(|text| !text.is_empty()).map(operation);
    Steps { step: step.parse().expect("build wrote it"), operations: operations.collect() }
}

fn check(key: &[u8], kind: Kind, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64_with_seed(key, kind as u64))
}
