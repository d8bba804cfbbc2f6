//! kvorum's storage engine: a log-structured merge-tree in which the record with the highest
//! *version* of a key wins, whatever the order of arrival.
//!
//! ```text
//!  db ─▶ engine ─┬─ write ─▶ wal ─▶ memtable                                   ┐
//!   threads      ├─ flush, compact ─▶ table, manifest                          ├─▶ disk
//!                │    compaction chooses the tables to merge;                  │
//!                │    purge and orphans choose the records to drop             │
//!                └─ read ─▶ memtable, table ─▶ cache ─▶ merge                  ┘
//! ```

mod batch;
mod cache;
mod compaction;
mod db;
pub mod disk;
mod engine;
mod error;
mod format_range;
mod local_bytes;
mod manifest;
mod memtable;
mod merge;
mod options;
mod orphans;
mod purge;
mod requested_compactions;
mod stats;
mod table;
mod wal;

pub use batch::{Batch, MAX_BATCH_LEN, MAX_KEY_LEN, Space};
pub use db::{Db, Pressure};
pub use disk::{Disk, File, MemDisk, RealDisk};
pub use engine::{
    Backlog, CommitEffects, Damaged, Discarded, Engine, FullCompaction, HeadLookup, KeyRange,
    Lookup, MAX_IMMUTABLES, NewerVersion, RecordHead, RemovalFilter, Scan, ScanCost, ScanItem,
    Snapshot, StepOutcome, VerifiedScan,
};
pub use error::{Error, IoOp};
pub use format_range::{FormatRange, STORE_FORMATS};
pub use options::{Options, SyncMode};
pub use purge::PurgeRule;
pub use record::{
    BadRecord, Fields, Kind, MAX_EXTENSION_LEN, MAX_OPERATIONS, MAX_RECORD_LEN, OpHistory,
    Operation, Record, RecordRef, Version,
};
pub use requested_compactions::{Compaction, Moment, RequestedCompactions};
pub use stats::{COMMIT_BUCKETS, FIRST_COMMIT_NANOS, LevelStats, Stats};
pub use table::ReadMode;
