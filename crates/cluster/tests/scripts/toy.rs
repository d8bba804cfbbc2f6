//! A store's records as a script needs them: the bytes are the value, the check is a hash.

use bytes::Bytes;
use cluster::{Codec, Kind, Rank, Record, Version};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) const CODEC: Codec = Codec { parse: |_| None, verify, reissue };

/// A record as the node makes it where a value enters the cluster.
pub(crate) fn record(key: &[u8], kind: Kind, value: &str, version: Version, copies: u8) -> Record {
    let bytes = Bytes::copy_from_slice(value.as_bytes());
    Record { rank: Rank { version, kind, check: check(key, kind, &bytes) }, copies, bytes }
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

fn check(key: &[u8], kind: Kind, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64_with_seed(key, kind as u64))
}
