//! The manifest: which tables make up the store and how far they cover the log.
//!
//! ```text
//!  MANIFEST   ┌ header ┬ edit: the whole state ┬ edit ┬ edit … ┐
//! ```
//!
//! An append-only log of edits; each is synced before anything relies on it. It begins with the
//! whole state, and is written anew (beside, then renamed over) at every open, when it has grown
//! and after an append failed: so nothing is ever appended after a tail that a crash left. Edits
//! are counted for the life of the store; WAL segments carry the count, which betrays an older copy
//! that was put back.

mod edit;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use edit::Edit;

use crate::disk::{Disk, File};
use crate::error::{Error, IoOp};
use crate::table::TableMeta;
use crate::wal::LogEnd;

/// Version of the manifest's format.
const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"KVMANIFS";
pub(crate) const NAME: &str = "MANIFEST";
const TEMPORARY: &str = "MANIFEST.tmp";
const HEAD: usize = 40;
const EDIT_HEAD: usize = 12;
/// The manifest is written anew when it is longer than this and than twice its state: reading it
/// back stays a matter of milliseconds.
const REWRITE_BYTES: u64 = 1 << 20;

/// One table and where it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) tree: u8,
    pub(crate) level: u8,
    pub(crate) meta: TableMeta,
}

/// Everything the manifest says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    /// By table id.
    pub(crate) tables: BTreeMap<u64, Placed>,
    /// For each tree, the last sequence that is in its tables.
    pub(crate) flushed: BTreeMap<u8, u64>,
    /// All groups of the log before this sequence are in tables.
    pub(crate) floor: u64,
    /// Log segments before this one are leftovers; 0 until the store's first log was begun.
    pub(crate) oldest_segment: u64,
    /// Where segments of earlier process lives ended.
    pub(crate) ends: Vec<LogEnd>,
    /// No table has had this id or a greater one.
    pub(crate) next_table: u64,
}

/// The manifest's file and the state it says.
pub(crate) struct Manifest {
    disk: Arc<dyn Disk>,
    store_id: u64,
    file: Arc<dyn File>,
    len: u64,
    /// Edits written since the store was created; the number of the last one.
    edits: u64,
    state: ManifestState,
    /// Length of the state's own edit when the file was begun.
    base_len: u64,
    /// An append failed: what the file ends with is unknown.
    broken: bool,
}

impl Manifest {
    /// Writes the first manifest of a store.
    pub(crate) fn create(disk: Arc<dyn Disk>, store_id: u64) -> Result<Self, Error> {
        let state = ManifestState { floor: 1, next_table: 1, ..ManifestState::default() };
        Self::begin(disk, store_id, 0, state)
    }

    /// Reads the manifest and, if `accept` takes its state and number of edits for current, begins
    /// it anew. One that is refused stays as it is: with an edit more at each attempt, an older
    /// copy that was put back would count as current in the end.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        store_id: u64,
        accept: impl FnOnce(&ManifestState, u64) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let failed = |error| Error::io(IoOp::Read, NAME, error);
        let file = disk.open(NAME).map_err(failed)?;
        let mut bytes = vec![0; file.len().map_err(failed)? as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let (state, edits) = replay(&bytes, store_id)?;
        accept(&state, edits)?;
        Self::begin(disk, store_id, edits, state)
    }

    fn begin(
        disk: Arc<dyn Disk>,
        store_id: u64,
        edits: u64,
        state: ManifestState,
    ) -> Result<Self, Error> {
        let (file, len) = write_anew(&*disk, store_id, edits, &state)?;
        Ok(Self {
            disk,
            store_id,
            file,
            len,
            edits: edits + 1,
            state,
            base_len: len,
            broken: false,
        })
    }

    /// What the manifest says.
    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Number of the last edit.
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Makes edits durable, all or none. On an error the state is as before, whatever the file
    /// holds: the next call, be it without edits, writes it anew. Until that worked, files that the
    /// edits name stay.
    pub(crate) fn apply(&mut self, edits: &[Edit]) -> Result<(), Error> {
        if edits.is_empty() && !self.broken {
            return Ok(());
        }
        let mut state = self.state.clone();
        for edit in edits {
            edit.apply(&mut state);
        }
        if self.broken || self.len > REWRITE_BYTES.max(2 * self.base_len) {
            // If this fails after the rename, appending to the old file would write into nowhere.
            self.broken = true;
            *self = Self::begin(Arc::clone(&self.disk), self.store_id, self.edits, state)?;
            return Ok(());
        }
        let record = seal(&edit::encode(edits), self.store_id, self.edits + 1);
        self.broken = true;
        self.file
            .write_all_at(&record, self.len)
            .map_err(|error| Error::io(IoOp::Write, NAME, error))?;
        self.file.sync_data().map_err(|error| Error::io(IoOp::Sync, NAME, error))?;
        self.broken = false;
        self.len += record.len() as u64;
        self.edits += 1;
        self.state = state;
        Ok(())
    }
}

/// Whether there is a manifest.
pub(crate) fn exists(names: &[String]) -> bool {
    names.iter().any(|name| name == NAME)
}

fn write_anew(
    disk: &dyn Disk,
    store_id: u64,
    edits: u64,
    state: &ManifestState,
) -> Result<(Arc<dyn File>, u64), Error> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&store_id.to_le_bytes());
    bytes.extend_from_slice(&edits.to_le_bytes());
    let check = xxh3_64_with_seed(&bytes, 0);
    bytes.extend_from_slice(&check.to_le_bytes());
    assert_eq!(bytes.len(), HEAD);
    bytes.extend_from_slice(&seal(
        &edit::encode(&[Edit::Reset(state.clone())]),
        store_id,
        edits + 1,
    ));

    let failed = |operation| move |error| Error::io(operation, TEMPORARY, error);
    let names = disk.list().map_err(|error| Error::io(IoOp::List, "directory", error))?;
    if names.iter().any(|name| name == TEMPORARY) {
        disk.remove(TEMPORARY).map_err(failed(IoOp::Remove))?;
    }
    let file = disk.create(TEMPORARY).map_err(failed(IoOp::Create))?;
    file.write_all_at(&bytes, 0).map_err(failed(IoOp::Write))?;
    file.sync_data().map_err(failed(IoOp::Sync))?;
    disk.rename(TEMPORARY, NAME).map_err(failed(IoOp::Rename))?;
    disk.sync_dir().map_err(|error| Error::io(IoOp::Sync, "directory", error))?;
    Ok((file, bytes.len() as u64))
}

fn seal(payload: &[u8], store_id: u64, number: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(EDIT_HEAD + payload.len());
    record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    record.extend_from_slice(&edit_check(payload, store_id, number).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// Seeded by the store and the edit's number, so that an edit means something only in its place.
fn edit_check(payload: &[u8], store_id: u64, number: u64) -> u64 {
    xxh3_64_with_seed(payload, store_id ^ number.rotate_left(32) ^ payload.len() as u64)
}

fn replay(bytes: &[u8], store_id: u64) -> Result<(ManifestState, u64), Error> {
    let corrupt = |at: usize, what: &str| Error::corrupt(NAME, at as u64, what);
    let head = bytes.get(..HEAD).ok_or_else(|| corrupt(0, "its header is cut short"))?;
    if &head[..8] != MAGIC || u64_at(head, 32) != xxh3_64_with_seed(&head[..32], 0) {
        return Err(corrupt(0, "its header does not match"));
    }
    let mut format = [0; 4];
    format.copy_from_slice(&head[8..12]);
    let found = u32::from_le_bytes(format);
    if found > FORMAT {
        return Err(Error::NewerFormat { file: NAME.to_owned(), found, supported: FORMAT });
    }
    if u64_at(head, 16) != store_id {
        return Err(corrupt(16, "it belongs to another store"));
    }
    let (mut state, mut number, mut at) = (ManifestState::default(), u64_at(head, 24), HEAD);
    let first = number;
    while let Some(payload) = read_edit(&bytes[at..], store_id, number + 1) {
        for edit in edit::decode(payload).map_err(|what| corrupt(at, what))? {
            edit.apply(&mut state);
        }
        at += EDIT_HEAD + payload.len();
        number += 1;
    }
    if number == first {
        return Err(corrupt(at, "its first edit, the whole state, does not match"));
    }
    // An edit that was cut off by a crash was never relied on. One that has another after it was.
    for later in at..bytes.len() {
        if (2..=8).any(|skip| read_edit(&bytes[later..], store_id, number + skip).is_some()) {
            return Err(corrupt(at, "an edit is damaged although a later one is whole"));
        }
    }
    Ok((state, number))
}

fn read_edit(bytes: &[u8], store_id: u64, number: u64) -> Option<&[u8]> {
    let head = bytes.get(..EDIT_HEAD)?;
    let mut len = [0; 4];
    len.copy_from_slice(&head[..4]);
    let payload = bytes.get(EDIT_HEAD..EDIT_HEAD + u32::from_le_bytes(len) as usize)?;
    (!payload.is_empty() && u64_at(head, 4) == edit_check(payload, store_id, number))
        .then_some(payload)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}
