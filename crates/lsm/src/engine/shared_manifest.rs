//! The manifest, shared by flushes, compactions and the log.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::files::Files;
use super::tree::lock;
use crate::error::Error;
use crate::manifest::{Edit, Manifest};
use crate::table::file_name;

/// The manifest, edited by one thread at a time.
pub(super) struct SharedManifest {
    manifest: Mutex<Manifest>,
    /// Number of the manifest's last edit, readable without waiting for an edit in progress.
    edits: AtomicU64,
    /// Tables that a failed edit added. The edit may be in the manifest's file nevertheless, so the
    /// files of these tables stay until the manifest is rewritten.
    disputed: Mutex<Vec<u64>>,
}

impl SharedManifest {
    pub(super) fn new(manifest: Manifest) -> Self {
        let edits = AtomicU64::new(manifest.edits());
        Self { manifest: Mutex::new(manifest), edits, disputed: Mutex::default() }
    }

    /// Number of the last edit.
    pub(super) fn edits(&self) -> u64 {
        self.edits.load(Ordering::Relaxed)
    }

    /// Oldest log segment in use.
    pub(super) fn oldest_segment(&self) -> u64 {
        lock(&self.manifest).state().oldest_segment
    }

    /// Makes the edits durable, all or none.
    pub(super) fn edit(&self, files: &Files, edits: &[Edit]) -> Result<(), Error> {
        let mut manifest = lock(&self.manifest);
        let named = edits.iter().filter_map(|edit| match edit {
            Edit::Add(placed) => Some(placed.meta.id),
            _ => None,
        });
        match manifest.apply(edits) {
            Ok(()) => {
                self.edits.store(manifest.edits(), Ordering::Relaxed);
                for table in std::mem::take(&mut *lock(&self.disputed)) {
                    files.remove(&file_name(table));
                }
                Ok(())
            }
            Err(error) => {
                lock(&self.disputed).extend(named);
                Err(files.health.classify(error))
            }
        }
    }

    /// Rewrites the manifest's file if an edit has failed. The files of the failed edit's tables
    /// can then be removed before further tables are written.
    pub(super) fn rewrite_after_failure(&self, files: &Files) -> Result<(), Error> {
        let disputed = !lock(&self.disputed).is_empty();
        if disputed { self.edit(files, &[]) } else { Ok(()) }
    }
}
