//! Creates a store, or recovers an existing one.
//!
//! ```text
//!  STORE      identity and format: written first, replaced when the format is raised
//!  MANIFEST   tables of the store, and the part of the log that they cover
//!  *.sst      tables; those that the manifest does not name are removed
//!  *.wal      log segments, replayed from the end of the part that tables cover
//! ```

use std::sync::Arc;

use super::Engine;
use super::backlog::BacklogMeter;
use super::commit_state::{CommitState, TreeWriter, new_memtable};
use super::compactor::Compactor;
use super::core::{Core, Counters};
use super::files::Files;
use super::flush::{Flusher, StepOutcome};
use super::identity::{Identity, identify};
use super::shared_manifest::SharedManifest;
use super::store_format::StoreFormat;
use super::tree::{Levels, Tree, empty_levels};
use super::trees::Trees;
use super::write_path::WritePath;
use crate::cache::BlockCache;
use crate::disk::Disk;
use crate::error::{Error, IoOp};
use crate::manifest::{self, Edit, Manifest, ManifestState};
use crate::options::Options;
use crate::table::{SUFFIX, file_name};
use crate::wal::{
    ExpectedLog, RecoveredLog, SegmentEnd, Wal, check_not_stale, parse_segment_name, recover,
    segment_name,
};

/// Bytes of the first log segment of a process run. The open waits until the segment's zeros are
/// written, so the segment is small; the next segment, of full size, is prepared in the background.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;

impl Engine {
    /// Opens the store on `disk`, creating it if the disk is empty.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let names = disk.list().map_err(|error| Error::io(IoOp::List, "directory", error))?;
        let identity = identify(&*disk, &names, &options)?;
        let has_log = names.iter().any(|name| parse_segment_name(name).is_some());
        let manifest = if manifest::exists(&names) {
            Manifest::open(Arc::clone(&disk), identity.store_id, |state, edits| {
                // The check comes before any write or removal: a refusal must destroy no evidence.
                check_not_stale(&*disk, &expected_log(state, identity.store_id), edits)
            })?
        } else if has_log || names.iter().any(|name| name.ends_with(".sst")) {
            return Err(Error::corrupt("MANIFEST", 0, "it is missing, but there is data"));
        } else {
            Manifest::create(Arc::clone(&disk), identity.store_id)?
        };
        let state = manifest.state().clone();
        let engine = Self::assemble(disk, options, identity, manifest, &state)?;
        engine.remove_unnamed_tables(&names, &state);
        engine.recover_log(&state)?;
        engine.core.measure_backlog();
        engine.core.health().set_opened();
        Ok(engine)
    }

    fn assemble(
        disk: Arc<dyn Disk>,
        options: Options,
        identity: Identity,
        manifest: Manifest,
        state: &ManifestState,
    ) -> Result<Self, Error> {
        let cache = Arc::new(BlockCache::new(options.cache_bytes));
        let files = Files::new(disk, identity.store_id, cache, state.next_table);
        let (mut trees, mut writers) = (Vec::new(), Vec::new());
        for tree in 0..1_usize << identity.tree_bits {
            let levels = open_levels(&files, state, tree as u8)?;
            let metas = || levels.iter().flatten().map(|table| table.meta());
            let max_version = metas().map(|meta| meta.max_version).max().unwrap_or_default();
            let max_write_time = metas().map(|meta| meta.max_write_time).max().unwrap_or_default();
            let (memtable, writer) = new_memtable(options.memtable_bytes);
            trees.push(Tree::new(memtable, levels));
            writers.push(TreeWriter::new(writer, max_version, max_write_time));
        }
        let core = Core {
            options,
            files,
            manifest: SharedManifest::new(manifest),
            trees: Trees::new(trees),
            backlog: BacklogMeter::default(),
            counters: Counters::default(),
        };
        Ok(Self {
            core,
            format: StoreFormat::new(identity),
            write_path: WritePath::new(CommitState::new(writers)),
            flusher: Flusher::default(),
            compactor: Compactor::default(),
        })
    }

    fn remove_unnamed_tables(&self, names: &[String], state: &ManifestState) {
        for name in names {
            let id = name.strip_suffix(SUFFIX).and_then(|digits| digits.parse::<u64>().ok());
            if id.is_some_and(|id| !state.tables.contains_key(&id)) {
                self.core.files.remove(name);
            }
        }
    }

    fn recover_log(&self, state: &ManifestState) -> Result<(), Error> {
        let (core, write_path) = (&self.core, &self.write_path);
        let found = self.replay(state)?;
        if found.torn {
            tracing::info!(
                next = found.next_sequence,
                "the log had a torn tail; nothing in it had been acknowledged as durable"
            );
        }
        write_path.set_next_segment(found.next_segment);
        let ends: Vec<_> = found.ends.iter().map(|end| Edit::End(*end)).collect();
        if !ends.is_empty() {
            core.edit_manifest(&ends)?;
        }
        let edits = core.manifest.edits();
        let bytes = FIRST_SEGMENT_BYTES.min(core.options.segment_bytes as u64);
        let first = write_path.new_segment(core, bytes)?;
        let store_id = core.files.store_id;
        let wal = Wal::start(store_id, first, found.next_sequence, edits, found.segments)?;
        write_path.start(core, wal);
        core.trees.make_visible(found.next_sequence - 1);
        for segment in found.discarded {
            core.files.remove(&segment_name(segment));
        }
        self.rotate_recovered(state)
    }

    /// Rotates the memtables of the replayed records. Normally, these memtables are flushed in the
    /// background after the open. If the previous run was killed before it had flushed its replayed
    /// log, they are flushed here, so that repeated kills make neither the log nor the start
    /// longer. A full disk does not prevent the open.
    fn rotate_recovered(&self, state: &ManifestState) -> Result<(), Error> {
        self.rotate_all();
        if state.ends.iter().any(SegmentEnd::has_groups) {
            match self.flush_rotated() {
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, "cannot flush the recovered log; its records stay in \
                        the log");
                }
                flushed => flushed?,
            }
        }
        self.flusher.advance_floor(&self.core, &self.write_path)
    }

    fn replay(&self, state: &ManifestState) -> Result<RecoveredLog, Error> {
        let Self { core, write_path, flusher, .. } = self;
        let flushed = |tree: usize| state.flushed.get(&(tree as u8)).copied().unwrap_or(0);
        let expected = expected_log(state, core.files.store_id);
        recover(&*core.files.disk, &expected, &mut |sequence, payload| {
            let wanted = |tree| sequence > flushed(tree);
            let rotated = write_path.apply_recovered(core, (sequence, payload), wanted)?;
            // A flush before the next memtable is full limits the memory of the recovery.
            while rotated && flusher.flush_one(core, write_path)? == StepOutcome::Done {}
            Ok(())
        })
    }
}

fn open_levels(files: &Files, state: &ManifestState, tree: u8) -> Result<Levels, Error> {
    let mut levels = empty_levels();
    for placed in state.tables.values().filter(|placed| placed.tree == tree) {
        let name = file_name(placed.meta.id);
        let table = files.open_table(&placed.meta).map_err(|error| match &error {
            Error::Io { source, .. }
                if source.kind() == std::io::ErrorKind::NotFound
                    && files.disk.find(&name).is_err() =>
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

/// The state of the log according to the manifest.
fn expected_log(state: &ManifestState, store_id: u64) -> ExpectedLog<'_> {
    ExpectedLog {
        store_id,
        oldest_segment: state.oldest_segment,
        floor: state.floor,
        flushed: state.flushed.values().copied().max().unwrap_or(0),
        ends: &state.ends,
    }
}
