//! The manifest: the tables of the store, and the part of the log that they cover.
//!
//! ```text
//!  MANIFEST   ┌ header ┬ edit: the whole state ┬ edit ┬ edit … ┐
//! ```
//!
//! The manifest is an append-only log of edits. Each edit is synced before it takes effect. The
//! first edit is the whole state. The file is rewritten (a new file renamed over the old one) at
//! every open, when it is too long, and after a failed append. So no edit ever follows a torn tail
//! that a crash left.
//!
//! Edits are numbered over the lifetime of the store. WAL segments record the number, which exposes
//! a manifest that was replaced by an older copy.

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
use crate::wal::SegmentEnd;

/// Current version of the manifest format.
const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"KVMANIFS";
pub(crate) const NAME: &str = "MANIFEST";
const TEMPORARY: &str = "MANIFEST.tmp";
const HEAD: usize = 40;
const EDIT_HEAD: usize = 12;
/// Length in bytes beyond which the manifest is rewritten, if the length also exceeds twice the
/// `base_len`. The open reads a manifest of this length within milliseconds.
const REWRITE_BYTES: u64 = 1 << 20;

/// A table with its position in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LevelTable {
    pub(crate) tree: u8,
    pub(crate) level: u8,
    pub(crate) meta: TableMeta,
}

/// The state that the manifest describes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    /// All tables, by id.
    pub(crate) tables: BTreeMap<u64, LevelTable>,
    /// The last sequence in the tables of each tree.
    pub(crate) flushed: BTreeMap<u8, u64>,
    /// Tables hold all groups of the log before this sequence.
    pub(crate) floor: u64,
    /// Oldest log segment in use; older files await removal. 0 until the store's first log was
    /// started.
    pub(crate) oldest_segment: u64,
    /// Recorded ends of segments that receive no more groups: the segments of earlier process runs,
    /// and, after a clean close, the last segment of that run.
    pub(crate) ends: Vec<SegmentEnd>,
    /// Next table id: greater than every id used so far.
    pub(crate) next_table: u64,
}

/// The manifest's file and its state.
pub(crate) struct Manifest {
    disk: Arc<dyn Disk>,
    store_id: u64,
    file: Arc<dyn File>,
    len: u64,
    /// Number of edits written since the store was created, which is the number of the last edit.
    edits: u64,
    state: ManifestState,
    /// Length of the file after its first edit, the whole state.
    base_len: u64,
    /// True after a failed append or rewrite, which leaves the end of the file unknown.
    broken: bool,
}

impl Manifest {
    /// Creates the first manifest of a store.
    pub(crate) fn create(disk: Arc<dyn Disk>, store_id: u64) -> Result<Self, Error> {
        let state = ManifestState { floor: 1, next_table: 1, ..ManifestState::default() };
        Self::begin(disk, store_id, 0, state)
    }

    /// Reads the manifest and rewrites it if `accept` approves its state and number of edits. A
    /// rejected manifest stays unchanged: if each attempt added an edit, an older copy would
    /// eventually count as current.
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
        let (file, len) = rewrite(&*disk, store_id, edits, &state)?;
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

    /// The state that the manifest describes.
    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Number of the last edit.
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Makes edits durable, all or none. After an error the state is unchanged but the file may
    /// hold the edits; the next call, even without edits, rewrites the file. Until the rewrite, the
    /// tables that the edits name must be kept.
    pub(crate) fn apply(&mut self, edits: &[Edit]) -> Result<(), Error> {
        if edits.is_empty() && !self.broken {
            return Ok(());
        }
        let mut state = self.state.clone();
        for edit in edits {
            edit.apply(&mut state);
        }
        if self.broken || self.len > REWRITE_BYTES.max(2 * self.base_len) {
            // If `begin` fails after its rename, appends to the old file would be lost. `broken`
            // makes the next call rewrite the file again.
            self.broken = true;
            *self = Self::begin(Arc::clone(&self.disk), self.store_id, self.edits, state)?;
            return Ok(());
        }
        let record = encode_entry(&edit::encode(edits), self.store_id, self.edits + 1);
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

/// Returns true if the file names include a manifest.
pub(crate) fn exists(names: &[String]) -> bool {
    names.iter().any(|name| name == NAME)
}

fn rewrite(
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
    bytes.extend_from_slice(&encode_entry(
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

fn encode_entry(payload: &[u8], store_id: u64, number: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(EDIT_HEAD + payload.len());
    record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    record.extend_from_slice(&edit_check(payload, store_id, number).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// Checksum of an edit. The seed binds the edit to its store and number.
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
    // A torn last edit is ignored: the store never relied on it. An edit with a valid edit after it
    // is damaged.
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
