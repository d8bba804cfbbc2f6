//! Opens the engine with the node's options.

use std::error::Error;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm::{Db, Disk, Engine, Options, RealDisk};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::counters::clocks::wall_micros;
use crate::node::advice::Advice;
use crate::settings::config::Config;

/// log2 of the number of trees of a new store. With one tree a scan merges the fewest sources, and
/// one compaction thread can process the writes of one WAL. The number is fixed at the creation of
/// a data directory.
const TREE_BITS: u8 = 0;

/// Opens the store in the data directory and recovers it, or creates a new store.
pub(crate) fn open(config: &Config) -> Result<Db, lsm::Error> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&config.data)?);
    let options = Options {
        new_store_id: RandomState::new().hash_one("store"),
        new_tree_bits: TREE_BITS,
        sync: config.sync,
        memtable_bytes: config.memory.memtable_bytes as usize,
        cache_bytes: config.memory.cache_bytes as usize,
        segment_bytes: config.memory.segment_bytes as usize,
        purge: Arc::new(server::purge_rule(wall_micros)),
        ..Options::default()
    };
    Db::open(disk, options)
}

/// Denies other users access to files and directories that this process creates, whatever umask it
/// inherited.
pub(crate) fn restrict_umask() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// An error, and the data directory in which it occurred.
#[derive(Debug, thiserror::Error)]
#[error("data directory {}: {source}{}", data.display(), Advice::of(source, data))]
pub(crate) struct DirectoryError<E: Error + 'static> {
    pub(crate) data: PathBuf,
    pub(crate) source: E,
}

/// The error of a command that opens the store of a stopped node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoppedError {
    #[error("it holds no node's data")]
    NoStore,
    #[error("cannot look into it: {0}")]
    Unreadable(#[source] io::Error),
    #[error(transparent)]
    Store(#[from] lsm::Error),
}

/// Opens the store of a stopped node, for a command that works on its data directory.
pub(crate) fn open_stopped(data: &Path) -> Result<Engine, StoppedError> {
    restrict_umask();
    // The listing fails for a file or a broken link, whose path exists but is not a directory.
    fs::read_dir(data).map_err(StoppedError::Unreadable)?;
    if !data.join("STORE").try_exists().map_err(StoppedError::Unreadable)? {
        return Err(StoppedError::NoStore);
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(data)?);
    Ok(Engine::open(disk, Options::default())?)
}
