//! A store's records as a script needs them: the bytes are the value, the check is a hash.

use bytes::Bytes;
use cluster::{Codec, Kind, Next, Operation, Rank, Record, Steps, StepsCodec, Version};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) const CODEC: Codec = Codec { parse: |_| None, verify, reissue };

pub(crate) const STEPS: StepsCodec = StepsCodec { reballot, steps, value, build };

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

fn reissue(_key: &[u8], record: &Record, version: Version) -> Record {
    Record { rank: Rank { version, ..record.rank }, ..record.clone() }
}

fn reballot(_key: &[u8], record: &Record, ballot: u64) -> Record {
    Record { rank: Rank { ballot, ..record.rank }, ..record.clone() }
}

/// Behind the value: `#step:id,id=result`.
fn build(key: &[u8], next: &Next<'_>) -> Record {
    let Next { family: version, ballot, kind, copies, steps, value } = *next;
    let operation = |Operation { id, result }: &Operation| match result {
        Some(result) => format!("{id}={result}"),
        None => id.to_string(),
    };
    let operations: Vec<String> = steps.operations.iter().map(operation).collect();
    let value = std::str::from_utf8(value).expect("a script's values are text");
    let bytes = Bytes::from(format!("{value}#{}:{}", steps.step, operations.join(",")));
    let rank = Rank { version, ballot, kind, check: check(key, kind, &bytes) };
    Record { rank, copies, bytes }
}

fn split(record: &Record) -> (&str, Option<&str>) {
    let text = std::str::from_utf8(&record.bytes).expect("a script's values are text");
    text.split_once('#').map_or((text, None), |(value, steps)| (value, Some(steps)))
}

fn value(record: &Record) -> Bytes {
    record.bytes.slice(..split(record).0.len())
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
