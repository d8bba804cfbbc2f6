//! The files of the store: creates, opens and removes tables, and removes other files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::health::Health;
use super::tree::lock;
use crate::cache::BlockCache;
use crate::disk::Disk;
use crate::error::{Error, IoOp};
use crate::options::Options;
use crate::table::{Table, TableMeta, TableParams, TableWriter, file_name};

/// The files of the store.
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) store_id: u64,
    pub(super) cache: Arc<BlockCache>,
    pub(super) health: Health,
    next_table: AtomicU64,
    /// Replaced tables without readers, whose files can be deleted.
    obsolete: Arc<Mutex<Vec<u64>>>,
}

impl Files {
    /// `next_table`: an id greater than that of every table that the store has ever had.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        store_id: u64,
        cache: Arc<BlockCache>,
        next_table: u64,
    ) -> Self {
        let (health, obsolete) = (Health::default(), Arc::default());
        Self { disk, store_id, cache, health, next_table: AtomicU64::new(next_table), obsolete }
    }

    /// Creates the file of a new table. Returns the table's id with its writer.
    pub(super) fn create_table(&self, options: &Options) -> Result<(u64, TableWriter), Error> {
        let params = TableParams {
            table_id: self.next_table.fetch_add(1, Ordering::Relaxed),
            store_id: self.store_id,
            block_bytes: options.block_bytes,
            bloom_bits: options.bloom_bits,
            compress: options.compress,
        };
        let id = params.table_id;
        let writer = TableWriter::create(&*self.disk, params);
        Ok((id, writer.map_err(|error| self.health.classify(error))?))
    }

    pub(super) fn open_table(&self, meta: &TableMeta) -> Result<Arc<Table>, Error> {
        let name = file_name(meta.id);
        let file = self.disk.open(&name).map_err(|error| Error::io(IoOp::Open, &name, error))?;
        let table = Table::open(file, meta, self.store_id, Arc::clone(&self.cache))?;
        Ok(Arc::new(table))
    }

    /// Makes the names of all files durable.
    pub(super) fn sync_names(&self) -> Result<(), Error> {
        let synced = self.disk.sync_dir();
        synced.map_err(|error| self.health.classify(Error::io(IoOp::Sync, "directory", error)))
    }

    /// Marks a replaced table, whose file can be deleted once the table has no readers.
    pub(super) fn mark_obsolete(&self, table: &Table) {
        table.mark_obsolete(Arc::clone(&self.obsolete));
    }

    /// Removes the files of replaced tables that have no readers left.
    pub(super) fn delete_obsolete_tables(&self) {
        let dead = std::mem::take(&mut *lock(&self.obsolete));
        let stay = dead.into_iter().filter(|table| !self.remove(&file_name(*table)));
        let stay: Vec<_> = stay.collect();
        lock(&self.obsolete).extend(stay);
    }

    /// Removes a file; returns true on success. If the removal fails, the next open removes the
    /// file. A failure can make the store reject writes like any other I/O error: the disk may
    /// accept no changes, or the directory may be gone.
    pub(super) fn remove(&self, name: &str) -> bool {
        let removed = self.disk.remove(name);
        if let Err(error) = removed {
            tracing::warn!(%error, name, "cannot delete an obsolete file");
            self.health.classify(Error::io(IoOp::Remove, name, error));
            return false;
        }
        true
    }
}
