//! Reads: point lookups, snapshots and scans. No read waits for a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::tree::{TreeState, tables_over};
use super::{Engine, InternalKey, hash_of};
use crate::batch::Space;
use crate::error::Error;
use crate::local::is_late;
use crate::memtable::MemtableIter;
use crate::merge::{LevelIter, Merge, Source};
use crate::table::{Access, INLINE_MAX, Table, TableGet, TableIter, Wait, file_name};
use record::{Kind, Rank, Record, RecordRef, Version};

/// Result of [`Engine::get`].
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The newest record, which may be a tombstone.
    Found(Record),
    /// The store holds no record of this key.
    Absent,
    /// The answer requires the disk, or the record is large: retry on a thread that may wait.
    WouldBlock,
    /// The read would take this many bytes of memory, more than allowed.
    TooLong(usize),
}

/// Result of [`Engine::holds_newer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// No newer record is held.
    No,
    /// A newer record with this version is held.
    Held(Version),
    /// The answer requires the disk.
    WouldBlock,
}

/// The newest record of a key, without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Version of the record, which identifies it.
    pub version: Version,
    /// A value or a tombstone.
    pub kind: Kind,
    /// Expiry of the value in milliseconds since 1970; 0 = never.
    pub expiry_ms: u64,
    /// Length of the value in bytes.
    pub value_len: usize,
}

impl Held {
    pub(crate) fn of(record: &RecordRef<'_>) -> Self {
        let (version, kind, expiry_ms) = (record.version(), record.kind(), record.expiry_ms());
        Self { version, kind, expiry_ms, value_len: record.value().len() }
    }
}

/// Result of [`Engine::look`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The newest record.
    Held(Held),
    /// The store holds no record of this key.
    Absent,
    /// The answer requires the disk, or lies in a long block of a table.
    WouldBlock,
}

/// The newest record found so far.
#[derive(Default)]
struct Newest {
    record: Option<Record>,
}

impl Newest {
    fn offer(&mut self, found: RecordRef<'_>, owned: impl FnOnce() -> Record) {
        let newer = |held: &Record| found.order(&held.view()).is_gt();
        if self.record.as_ref().is_none_or(newer) {
            self.record = Some(owned());
        }
    }
}

impl Engine {
    /// The newest record of `key`, verified.
    pub fn get(&self, space: Space, key: &[u8], wait: Wait) -> Result<Lookup, Error> {
        let hash = hash_of(key);
        let internal = InternalKey::new(space, key);
        let state = self.trees[self.tree_of(hash)].load();
        let mut newest = Newest::default();
        let looked = look(&state, internal.bytes(), hash, wait, &mut newest)?;
        match looked {
            Looked::Everywhere => {}
            Looked::WouldBlock => return Ok(Lookup::WouldBlock),
            Looked::TooLong(bytes) => return Ok(Lookup::TooLong(bytes)),
        }
        let Some(record) = newest.record else { return Ok(Lookup::Absent) };
        record.view().verify(key).map_err(|bad| damaged(&state, internal.bytes(), bad.0))?;
        Ok(Lookup::Found(record))
    }

    /// Reads the newest record of `key`, tombstones included; waits for the disk if necessary.
    pub fn read(&self, space: Space, key: &[u8]) -> Result<Option<Record>, Error> {
        match self.get(space, key, Wait::Yes)? {
            Lookup::Found(record) => Ok(Some(record)),
            Lookup::Absent => Ok(None),
            Lookup::WouldBlock | Lookup::TooLong(_) => {
                unreachable!("a read that may wait does not block, nor is anything too long for it")
            }
        }
    }

    /// Looks up the newest record of `key` without its value, without waiting. A value in a
    /// memtable may have any length, so it is not copied.
    pub fn look(&self, space: Space, key: &[u8]) -> Result<Look, Error> {
        let hash = hash_of(key);
        let internal = InternalKey::new(space, key);
        let state = self.trees[self.tree_of(hash)].load();
        let mut newest: Best = None;
        for memtable in state.memtables() {
            if let Some(found) = memtable.get(internal.bytes(), hash)
                && !offer(&mut newest, &found)
            {
                return Ok(found_of(newest));
            }
        }
        for table in tables_over(&state.levels, internal.bytes()) {
            match table.get(internal.bytes(), hash, Wait::No)? {
                TableGet::Absent => {}
                TableGet::WouldBlock | TableGet::TooLong(_) => return Ok(Look::WouldBlock),
                TableGet::Found(raw) => {
                    let record = RecordRef::parse(&raw)
                        .map_err(|bad| Error::corrupt(&file_name(table.meta().id), 0, bad.0))?;
                    if !offer(&mut newest, &record) {
                        break;
                    }
                }
            }
        }
        Ok(found_of(newest))
    }

    /// Determines without waiting whether a record of `key` with a version greater than `version`
    /// exists. A record that a conditional write derived from the record with `version` has the
    /// same version and does not count. Only tables that hold a greater version are searched, so
    /// for a current version the memtables suffice.
    pub fn holds_newer(&self, space: Space, key: &[u8], version: Version) -> Result<Newer, Error> {
        let hash = hash_of(key);
        let internal = InternalKey::new(space, key);
        let key = internal.bytes();
        let state = self.trees[self.tree_of(hash)].load();
        let mut newest = version;
        for memtable in state.memtables() {
            let held = memtable.get(key, hash).map_or(version, |record| record.version());
            newest = newest.max(held);
        }
        for table in state.levels.iter().flatten() {
            let meta = table.meta();
            if meta.max_version <= newest || key < &meta.smallest[..] || key > &meta.largest[..] {
                continue;
            }
            match table.get(key, hash, Wait::No)? {
                TableGet::Absent => {}
                TableGet::WouldBlock | TableGet::TooLong(_) => return Ok(Newer::WouldBlock),
                TableGet::Found(raw) => {
                    let held = RecordRef::parse(&raw).map_or(version, |record| record.version());
                    newest = newest.max(held);
                }
            }
        }
        Ok(if newest > version { Newer::Held(newest) } else { Newer::No })
    }

    /// Sequence of the last visible group. Sequences never decrease, even across restarts.
    pub fn sequence(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// A point-in-time view of all trees.
    pub fn snapshot(&self) -> Snapshot {
        loop {
            let before: Vec<_> = self.trees.iter().map(|tree| tree.load_full()).collect();
            let sequence = self.visible.load(Ordering::Acquire);
            // Tables carry no sequences. If no tree's state was replaced in between, everything in
            // these tables and rotated memtables was visible at `sequence`.
            let same =
                |(tree, state): (&super::Tree, &Arc<TreeState>)| Arc::ptr_eq(&tree.load(), state);
            if self.trees.iter().zip(&before).all(same) {
                return Snapshot { trees: before, sequence };
            }
        }
    }
}

/// The newest record that [`Engine::look`] has found so far, with its rank.
type Best = Option<(Rank, Held)>;

/// Keeps a record that [`Engine::look`] found if it is the newest so far. Returns true if the
/// record is late, so that an older memtable or table may hold a newer one.
fn offer(best: &mut Best, record: &RecordRef<'_>) -> bool {
    let rank = record.rank();
    if best.as_ref().is_none_or(|(best, _)| *best < rank) {
        *best = Some((rank, Held::of(record)));
    }
    is_late(record)
}

fn found_of(best: Best) -> Look {
    best.map_or(Look::Absent, |(_, held)| Look::Held(held))
}

#[derive(PartialEq, Eq)]
enum Looked {
    Everywhere,
    WouldBlock,
    /// The read would take this many bytes, including records already read.
    TooLong(usize),
}

/// Searches from the newest memtable to the deepest table, until a hit that is not late.
fn look(
    state: &TreeState,
    key: &[u8],
    hash: u64,
    wait: Wait,
    newest: &mut Newest,
) -> Result<Looked, Error> {
    // Records read before the search continues stay in memory, so they count.
    let mut read = 0;
    for memtable in state.memtables() {
        if let Some(found) = memtable.get(key, hash) {
            let bytes = found.raw().len();
            match wait {
                Wait::No if bytes > INLINE_MAX => return Ok(Looked::WouldBlock),
                Wait::Within(room) if bytes > INLINE_MAX && read + bytes > room => {
                    return Ok(Looked::TooLong(read + bytes));
                }
                _ => read += bytes,
            }
            newest.offer(found, || found.to_record());
            if !is_late(&found) {
                return Ok(Looked::Everywhere);
            }
        }
    }
    for table in tables_over(&state.levels, key) {
        let left = match wait {
            Wait::Within(room) => Wait::Within(room.saturating_sub(read)),
            Wait::Yes | Wait::No => wait,
        };
        match table.get(key, hash, left)? {
            TableGet::Absent => {}
            TableGet::WouldBlock => return Ok(Looked::WouldBlock),
            TableGet::TooLong(bytes) => return Ok(Looked::TooLong(read + bytes)),
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
    Ok(Looked::Everywhere)
}

/// The error for a record that does not match its checksum, with the file that may hold it.
fn damaged(state: &TreeState, key: &[u8], what: &str) -> Error {
    let holds = |table: &&Arc<Table>| {
        let meta = table.meta();
        &meta.smallest[..] <= key && key <= &meta.largest[..]
    };
    let table = state.levels.iter().flatten().find(holds);
    let place = table.map_or_else(|| "memtable".to_owned(), |table| file_name(table.meta().id));
    Error::corrupt(&place, 0, format!("a record of a {}-byte key: {what}", key.len() - 1))
}

/// A point-in-time view of a store, which pins memtables and tables and should be short-lived.
pub struct Snapshot {
    pub(super) trees: Vec<Arc<TreeState>>,
    pub(super) sequence: u64,
}

impl Snapshot {
    /// Keys of `space` in `start..end` (`None` = to the last) in order, each with its newest
    /// record, tombstones included.
    pub fn scan(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Scan {
        self.scan_since(space, start, end, 0)
    }

    /// [`Snapshot::scan`] without the tables in which everything was written before `since`
    /// ([`RecordRef::when`]). A key whose newest record was written earlier may be returned with
    /// another record or be missing. The cost is proportional to the data written since.
    pub fn scan_since(&self, space: Space, start: &[u8], end: Option<&[u8]>, since: u64) -> Scan {
        let mut sources = Vec::new();
        for tree in &self.trees {
            sources_of(tree, self.sequence, since, Access::Cached, &mut sources);
        }
        let end = match end {
            Some(end) => InternalKey::start_of(space, end),
            None => vec![space as u8 + 1],
        };
        let start = InternalKey::start_of(space, start);
        Scan { merge: Merge::new(sources), start: Some(start), end }
    }
}

/// The sources of a tree for a merge, without tables in which nothing was written at or after
/// `since`.
fn sources_of(
    state: &TreeState,
    sequence: u64,
    since: u64,
    access: Access,
    sources: &mut Vec<Source>,
) {
    let is_new = |table: &&Arc<Table>| table.meta().max_when >= since;
    for memtable in state.memtables() {
        if memtable.sequences().is_some() {
            let iter = MemtableIter::new(Arc::clone(memtable), sequence);
            sources.push(Source::Memtable(iter));
        }
    }
    let (level0, below) = state.levels.split_first().expect("level 0 is always there");
    for table in level0.iter().filter(is_new) {
        sources.push(Source::Table(TableIter::new(Arc::clone(table), access)));
    }
    for level in below {
        let tables: Vec<_> = level.iter().filter(is_new).cloned().collect();
        if !tables.is_empty() {
            sources.push(Source::Level(LevelIter::new(tables, access)));
        }
    }
}

/// A scan whose items borrow from it.
pub struct Scan {
    merge: Merge,
    /// The start key, until the first call of [`Scan::next`].
    start: Option<Vec<u8>>,
    /// End of the range as an internal key, exclusive.
    end: Vec<u8>,
}

impl Scan {
    /// Returns the next key and its record, verified. May wait for the disk.
    #[allow(clippy::should_implement_trait, reason = "an item borrows from the scan")]
    pub fn next(&mut self) -> Result<Option<(&[u8], RecordRef<'_>)>, Error> {
        match self.start.take() {
            Some(start) => self.merge.seek(&start)?,
            None if self.merge.valid() => self.merge.next()?,
            None => return Ok(None),
        }
        if !self.merge.valid() || self.merge.key() >= &self.end[..] {
            return Ok(None);
        }
        let (key, record) = (&self.merge.key()[1..], self.merge.record());
        record.verify(key).map_err(|bad| {
            Error::corrupt("scan", 0, format!("a record of a {}-byte key: {}", key.len(), bad.0))
        })?;
        Ok(Some((key, record)))
    }

    /// Copies of the records that the last returned one has hidden in this store, 0 = the cluster's
    /// default: only the greatest other number, and none that the record's own number covers.
    pub fn hidden_copies(&self) -> impl Iterator<Item = u8> + use<> {
        self.merge.reach().copies()
    }
}
