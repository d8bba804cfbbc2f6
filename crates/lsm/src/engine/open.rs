//! Creates a store, or recovers an existing one.
//!
//! ```text
//!  STORE      identity: written first, never changed
//!  MANIFEST   tables of the store, and the part of the log that they cover
//!  *.sst      tables; those that the manifest does not name are removed
//!  *.wal      log segments, replayed from the end of the part that tables cover
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::background::no_tables;
use super::tree::{Levels, Tree, lock};
use super::write::{TreeWriter, Writer, new_memtable};
use super::{Background, Counters, Engine, Work};
use crate::cache::BlockCache;
use crate::disk::Disk;
use crate::error::{Error, IoOp};
use crate::manifest::{self, Edit, Manifest, ManifestState};
use crate::options::Options;
use crate::table::file_name;
use crate::wal::{
    Expected, LogEnd, Recovered, Wal, parse_segment_name, recover, refuse_stale, segment_name,
};

pub(super) const STORE: &str = "STORE";
const STORE_TEMPORARY: &str = "STORE.tmp";
const STORE_MAGIC: &[u8; 8] = b"KVORUMDB";
/// Current version of the store's layout.
pub const STORE_FORMAT: u32 = 1;
const STORE_LEN: usize = 32;
/// Bytes of the first log segment of a process run. The open waits until its zeros are written; the
/// next segment, of full size, is prepared while this one fills.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;
/// log2 of the maximum number of trees: the manifest encodes a tree in one byte.
const MAX_TREE_BITS: u8 = 7;

/// Identity of a store, written once before anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    store_id: u64,
    tree_bits: u8,
}

impl Identity {
    fn encode(&self) -> [u8; STORE_LEN] {
        let mut bytes = [0; STORE_LEN];
        bytes[..8].copy_from_slice(STORE_MAGIC);
        bytes[8..12].copy_from_slice(&STORE_FORMAT.to_le_bytes());
        bytes[12] = self.tree_bits;
        bytes[16..24].copy_from_slice(&self.store_id.to_le_bytes());
        let check = xxh3_64(&bytes[..24]);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let corrupt = |what: &str| Error::corrupt(STORE, 0, what);
        if bytes.len() != STORE_LEN || &bytes[..8] != STORE_MAGIC {
            return Err(corrupt("it is not the file of a kvorum store"));
        }
        let field = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        if field(24) != xxh3_64(&bytes[..24]) {
            return Err(corrupt("its checksum does not match"));
        }
        let format = field(8) as u32;
        if format > STORE_FORMAT {
            let file = STORE.to_owned();
            return Err(Error::NewerFormat { file, found: format, supported: STORE_FORMAT });
        }
        if bytes[12] > MAX_TREE_BITS {
            return Err(corrupt("its number of trees is out of range"));
        }
        Ok(Self { store_id: field(16), tree_bits: bytes[12] })
    }
}

impl Engine {
    /// Opens the store on `disk`, creating it if the disk is empty.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let names = disk.list().map_err(|error| Error::io(IoOp::List, "directory", error))?;
        let identity = identify(&*disk, &names, &options)?;
        let has_log = names.iter().any(|name| parse_segment_name(name).is_some());
        let manifest = if manifest::exists(&names) {
            Manifest::open(Arc::clone(&disk), identity.store_id, |state, edits| {
                // The check comes before any write or removal: a refusal must destroy no evidence.
                refuse_stale(&*disk, &expected(state, identity.store_id), edits)
            })?
        } else if has_log || names.iter().any(|name| name.ends_with(".sst")) {
            return Err(Error::corrupt("MANIFEST", 0, "it is missing, but there is data"));
        } else {
            Manifest::create(Arc::clone(&disk), identity.store_id)?
        };
        let state = manifest.state().clone();
        let engine = Self::assemble(disk, options, identity, manifest, &state)?;
        engine.remove_leftovers(&names, &state);
        engine.recover_log(&state)?;
        engine.measure_backlog();
        engine.opened.store(true, Ordering::Release);
        Ok(engine)
    }

    fn assemble(
        disk: Arc<dyn Disk>,
        options: Options,
        identity: Identity,
        manifest: Manifest,
        state: &ManifestState,
    ) -> Result<Self, Error> {
        let mut engine = Self {
            cache: Arc::new(BlockCache::new(options.cache_bytes)),
            disk,
            store_id: identity.store_id,
            trees: Vec::new(),
            writer: Mutex::new(Writer::new(Vec::new())),
            prepared: Mutex::new(None),
            next_segment: AtomicU64::new(1),
            manifest_edits: AtomicU64::new(manifest.edits()),
            manifest: Mutex::new(manifest),
            next_table: AtomicU64::new(state.next_table),
            visible: AtomicU64::new(0),
            opened: AtomicBool::new(false),
            failed: OnceLock::new(),
            background: Background::default(),
            obsolete: Arc::default(),
            backlog: AtomicU64::new(0),
            counters: Counters::default(),
            options,
        };
        let mut writers = Vec::new();
        for tree in 0..1_usize << identity.tree_bits {
            let levels = engine.open_levels(state, tree as u8)?;
            let metas = || levels.iter().flatten().map(|table| table.meta());
            let max_version = metas().map(|meta| meta.max_version).max().unwrap_or_default();
            let max_when = metas().map(|meta| meta.max_when).max().unwrap_or_default();
            let (memtable, writer) = new_memtable(engine.options.memtable_bytes);
            engine.trees.push(Tree::new(memtable, levels));
            writers.push(TreeWriter::new(writer, max_version, max_when));
        }
        lock(&engine.writer).trees = writers;
        Ok(engine)
    }

    fn open_levels(&self, state: &ManifestState, tree: u8) -> Result<Levels, Error> {
        let mut levels = no_tables();
        for placed in state.tables.values().filter(|placed| placed.tree == tree) {
            let name = file_name(placed.meta.id);
            let table = self.open_table(&placed.meta).map_err(|error| match &error {
                Error::Io { source, .. }
                    if source.kind() == std::io::ErrorKind::NotFound
                        && self.disk.find(&name).is_err() =>
                {
                    Error::corrupt(&name, 0, "it is missing, but the manifest names it")
                }
                _ => error,
            })?;
            let level = levels.get_mut(usize::from(placed.level));
            level
                .ok_or_else(|| Error::corrupt("MANIFEST", 0, format!("{name} has no such level")))?
                .push(table);
        }
        let (level0, below) = levels.split_first_mut().expect("level 0 is always there");
        level0.sort_by_key(|table| std::cmp::Reverse(table.meta().id));
        for level in below {
            level.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
        }
        Ok(levels)
    }

    fn remove_leftovers(&self, names: &[String], state: &ManifestState) {
        for name in names {
            let id = name.strip_suffix(".sst").and_then(|digits| digits.parse::<u64>().ok());
            if id.is_some_and(|id| !state.tables.contains_key(&id)) {
                self.remove_file(name);
            }
        }
    }

    fn recover_log(&self, state: &ManifestState) -> Result<(), Error> {
        let found = self.replay(state)?;
        if found.torn {
            tracing::info!(
                next = found.next_sequence,
                "the log had a torn tail; nothing in it had been acknowledged as durable"
            );
        }
        self.next_segment.store(found.next_segment, Ordering::Relaxed);
        let ends: Vec<_> = found.ends.iter().map(|end| Edit::End(*end)).collect();
        if !ends.is_empty() {
            self.edit_manifest(&ends)?;
        }
        let edits = self.manifest_edits.load(Ordering::Relaxed);
        let first = self.new_segment(FIRST_SEGMENT_BYTES.min(self.options.segment_bytes as u64))?;
        let wal = Wal::start(self.store_id, first, found.next_sequence, edits, found.segments)?;
        self.counters.wal_segments.store(wal.segment_count() as u64, Ordering::Relaxed);
        lock(&self.writer).wal = Some(wal);
        self.visible.store(found.next_sequence - 1, Ordering::Release);
        for segment in found.discarded {
            self.remove_file(&segment_name(segment));
        }
        self.settle_log(state)
    }

    /// Rotates and flushes the replayed records, so that repeated kills make neither the log nor
    /// the start longer. Flushes normally run in the background after the open. If the previous run
    /// ended before it had flushed its replayed log, this run might too, so the flushes run here. A
    /// full disk does not prevent the open.
    fn settle_log(&self, state: &ManifestState) -> Result<(), Error> {
        self.rotate_all();
        if state.ends.iter().any(LogEnd::has_groups) {
            match self.flush_rotated() {
                Err(error) if error.passes() => {
                    tracing::warn!(%error, "cannot flush the recovered log; its records stay in \
                        the log");
                }
                flushed => flushed?,
            }
        }
        self.advance_floor()
    }

    fn replay(&self, state: &ManifestState) -> Result<Recovered, Error> {
        let flushed = |tree: usize| state.flushed.get(&(tree as u8)).copied().unwrap_or(0);
        recover(&*self.disk, &expected(state, self.store_id), &mut |sequence, payload| {
            let mut writer = lock(&self.writer);
            let bound = Writer::bound_of(payload);
            let rotated = self.make_room(&mut writer, bound);
            let applied = writer.apply(
                sequence,
                payload,
                |hash| self.tree_of(hash),
                |tree| sequence > flushed(tree),
            );
            drop(writer);
            let conflicts = applied.map_err(|what| {
                Error::corrupt("*.wal", 0, format!("group {sequence} is malformed: {what}"))
            })?;
            self.note_conflicts(conflicts);
            // Limits memory: a memtable is flushed before the next one is full.
            while rotated && self.flush_one()? == Work::Done {}
            Ok(())
        })
    }
}

/// The manifest's knowledge of the log.
fn expected(state: &ManifestState, store_id: u64) -> Expected<'_> {
    Expected {
        store_id,
        oldest_segment: state.oldest_segment,
        floor: state.floor,
        flushed: state.flushed.values().copied().max().unwrap_or(0),
        ends: &state.ends,
    }
}

fn identify(disk: &dyn Disk, names: &[String], options: &Options) -> Result<Identity, Error> {
    if names.iter().any(|name| name == STORE) {
        let failed = |error| Error::io(IoOp::Read, STORE, error);
        let file = disk.open(STORE).map_err(failed)?;
        let mut bytes = vec![0; file.len().map_err(failed)?.min(4096) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        return Identity::decode(&bytes);
    }
    if let Some(found) = names.iter().find(|name| *name != STORE_TEMPORARY) {
        return Err(Error::NotAStore { found: found.clone() });
    }
    let identity = Identity { store_id: options.new_store_id, tree_bits: options.new_tree_bits };
    assert!(identity.tree_bits <= MAX_TREE_BITS, "tree bits over their bound");
    let failed = |operation| move |error| Error::io(operation, STORE_TEMPORARY, error);
    if names.iter().any(|name| name == STORE_TEMPORARY) {
        disk.remove(STORE_TEMPORARY).map_err(failed(IoOp::Remove))?;
    }
    let file = disk.create(STORE_TEMPORARY).map_err(failed(IoOp::Create))?;
    file.write_all_at(&identity.encode(), 0).map_err(failed(IoOp::Write))?;
    file.sync_data().map_err(failed(IoOp::Sync))?;
    disk.rename(STORE_TEMPORARY, STORE).map_err(failed(IoOp::Rename))?;
    disk.sync_dir().map_err(|error| Error::io(IoOp::Sync, "directory", error))?;
    Ok(identity)
}
