//! kvorum's storage engine: a log-structured merge-tree in which a record's *version* decides what
//! a key holds, never the order of arrival.

mod batch;
mod cache;
mod db;
pub mod disk;
mod error;
mod memtable;
mod options;
mod record;
mod stats;
mod table;

pub use batch::{Batch, MAX_BATCH_LEN, Space};
pub use db::{Db, Lookup, Pressure, Scan, Snapshot};
pub use disk::{Disk, File, MemDisk, RealDisk};
pub use error::Error;
pub use options::{MayPurge, Options, SyncMode};
pub use record::{
    BadRecord, Fields, Kind, MAX_EXTENSION_LEN, MAX_KEY_LEN, MAX_RECORD_LEN, Record, RecordRef,
    Version,
};
pub use stats::{LevelStats, Stats};
