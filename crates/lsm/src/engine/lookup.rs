//! Lookups of one key: their results, and the search through a tree.

use super::tree::{TreeState, tables_covering};
use crate::error::Error;
use crate::local_bytes::is_late;
use crate::table::{INLINE_MAX, ReadMode, TableGet, file_name};
use record::{Kind, Rank, Record, RecordRef, Version};

/// Result of [`Engine::get`](super::Engine::get).
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The newest record, which may be a tombstone.
    Found(Record),
    /// The store holds no record of this key.
    Absent,
    /// The answer requires the disk, or the record is large: retry on a thread that may block.
    WouldBlock,
    /// The read would take this many bytes of memory, more than its limit.
    TooLong(usize),
}

/// Result of [`Engine::holds_newer`](super::Engine::holds_newer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewerVersion {
    /// The store has no newer record.
    No,
    /// The store has a newer record, which has this version.
    Held(Version),
    /// The answer requires the disk.
    WouldBlock,
}

/// The newest record of a key, without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHead {
    /// Version of the record, which identifies it.
    pub version: Version,
    /// A value or a tombstone.
    pub kind: Kind,
    /// Expiry of the value in milliseconds since 1970; 0 = never.
    pub expiry_ms: u64,
    /// Length of the value in bytes.
    pub value_len: usize,
}

impl RecordHead {
    pub(crate) fn of(record: &RecordRef<'_>) -> Self {
        let (version, kind, expiry_ms) = (record.version(), record.kind(), record.expiry_ms());
        Self { version, kind, expiry_ms, value_len: record.value().len() }
    }
}

/// Result of [`Engine::lookup_head`](super::Engine::lookup_head).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadLookup {
    /// The newest record.
    Found(RecordHead),
    /// The store holds no record of this key.
    Absent,
    /// The answer requires the disk, or lies in a long block of a table.
    WouldBlock,
}

/// The newest record found so far.
#[derive(Default)]
pub(super) struct Newest {
    pub(super) record: Option<Record>,
}

impl Newest {
    fn offer(&mut self, found: RecordRef<'_>, owned: impl FnOnce() -> Record) {
        let newer = |held: &Record| found.order(&held.view()).is_gt();
        if self.record.as_ref().is_none_or(newer) {
            self.record = Some(owned());
        }
    }
}

/// The newest record that [`Engine::lookup_head`](super::Engine::lookup_head) has found so far,
/// with its rank.
pub(super) type NewestHead = Option<(Rank, RecordHead)>;

/// Replaces `best` by the head of `record` if the record is newer. Returns true if the record is
/// late: an older memtable or table may contain a newer record.
pub(super) fn keep_newest_head(best: &mut NewestHead, record: &RecordRef<'_>) -> bool {
    let rank = record.rank();
    if best.as_ref().is_none_or(|(best, _)| *best < rank) {
        *best = Some((rank, RecordHead::of(record)));
    }
    is_late(record)
}

pub(super) fn head_lookup_of(best: NewestHead) -> HeadLookup {
    best.map_or(HeadLookup::Absent, |(_, held)| HeadLookup::Found(held))
}

#[derive(PartialEq, Eq)]
pub(super) enum SearchOutcome {
    Complete,
    WouldBlock,
    /// The read would take this many bytes, including records already read.
    TooLong(usize),
}

/// Searches a tree for a key, from the newest memtable to the deepest table. Stops at the first
/// record that is not late. `newest` receives the newest record.
pub(super) fn search(
    state: &TreeState,
    key: &[u8],
    hash: u64,
    mode: ReadMode,
    newest: &mut Newest,
) -> Result<SearchOutcome, Error> {
    // The limit of a read includes the late records that the search has passed.
    let mut read = 0;
    for memtable in state.memtables() {
        if let Some(found) = memtable.get(key, hash) {
            let bytes = found.raw().len();
            match mode {
                ReadMode::NonBlocking if bytes > INLINE_MAX => {
                    return Ok(SearchOutcome::WouldBlock);
                }
                ReadMode::Limited(room) if bytes > INLINE_MAX && read + bytes > room => {
                    return Ok(SearchOutcome::TooLong(read + bytes));
                }
                _ => read += bytes,
            }
            newest.offer(found, || found.to_record());
            if !is_late(&found) {
                return Ok(SearchOutcome::Complete);
            }
        }
    }
    for table in tables_covering(&state.levels, key) {
        let left = match mode {
            ReadMode::Limited(room) => ReadMode::Limited(room.saturating_sub(read)),
            ReadMode::Blocking | ReadMode::NonBlocking => mode,
        };
        match table.get(key, hash, left)? {
            TableGet::Absent => {}
            TableGet::WouldBlock => return Ok(SearchOutcome::WouldBlock),
            TableGet::TooLong(bytes) => return Ok(SearchOutcome::TooLong(read + bytes)),
            TableGet::Found(raw) => {
                read += raw.len();
                let record = Record::parse(raw).map_err(|bad| {
                    let file = file_name(table.meta().id);
                    Error::corrupt(&file, 0, format!("a record: {}", bad.0))
                })?;
                let late = is_late(&record.view());
                newest.offer(record.view(), || record.clone());
                if !late {
                    break;
                }
            }
        }
    }
    Ok(SearchOutcome::Complete)
}
