//! Settings of every engine, and the operations to run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Settings that are the same for every engine. Worker processes receive them as flags.
#[derive(Debug, Clone, Args)]
pub(crate) struct Config {
    /// Number of keys that are written.
    #[arg(long)]
    pub(crate) keys: u64,
    /// Bytes of the block cache.
    #[arg(long)]
    pub(crate) cache: u64,
    /// Bytes of a memtable.
    #[arg(long)]
    pub(crate) memtable: u64,
    /// Seconds of each row that reads.
    #[arg(long)]
    pub(crate) seconds: u64,
    /// Writes of each of the 8 threads that sync.
    #[arg(long)]
    pub(crate) synced: u64,
    /// Seed of this repeat.
    #[arg(long)]
    pub(crate) seed: u64,
    /// Where the data is.
    #[arg(long)]
    pub(crate) dir: PathBuf,
}

/// Bits of the bloom filter per key.
pub(crate) const BLOOM_BITS: u8 = 10;

/// Size of a block in bytes.
pub(crate) const BLOCK_LEN: u64 = 4096;

/// Number of entries that are read after each seek.
pub(crate) const SEEK_NEXTS: usize = 50;

/// Number of threads of the row whose writes are synced.
pub(crate) const SYNC_THREADS: u64 = 8;

/// Rate of the writer that runs beside a reader, in bytes of keys and values per second. The rate
/// is fixed, because a slower writer would make the reader of the same engine faster.
pub(crate) const BESIDE_RATE: u64 = 10 << 20;

impl Config {
    /// Returns the size of a table in bytes, which is that of a memtable.
    pub(crate) fn table(&self) -> u64 {
        self.memtable
    }

    /// Returns the size of level 1 in bytes.
    pub(crate) fn level1(&self) -> u64 {
        4 * self.memtable
    }

    pub(crate) fn read_duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Returns the flags that pass these settings to another process of this program.
    pub(crate) fn flags(&self) -> Vec<String> {
        let numbers = [
            ("keys", self.keys),
            ("cache", self.cache),
            ("memtable", self.memtable),
            ("seconds", self.seconds),
            ("synced", self.synced),
            ("seed", self.seed),
        ];
        let mut flags: Vec<String> =
            numbers.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        flags.push(format!("--dir={}", self.dir.display()));
        flags
    }
}

/// A part of the benchmark that runs in a process of its own, which first opens the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Phase {
    /// Fill in order.
    Sequential,
    /// Fill at random, overwrite, wait for compaction.
    Write,
    /// Everything that reads, on what `Write` left; in many levels, then compacted.
    Read,
    /// Eight threads that wait for the disk.
    Sync,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::Sequential, Self::Write, Self::Read, Self::Sync];

    /// Returns the rows of the phase, in order.
    pub(crate) fn rows(self) -> &'static [&'static str] {
        match self {
            Self::Sequential => &["fill sequential"],
            Self::Write => &["fill random", "overwrite"],
            Self::Read => &[
                "read random, many levels",
                "read missing",
                "seek + 50 next, many levels",
                "read while writing 10 MiB/s",
                "read random, compacted",
                "seek + 50 next, compacted",
            ],
            Self::Sync => &["fill sync, 8 threads"],
        }
    }

    /// Returns true if the phase uses the data of the previous phase.
    pub(crate) fn keeps_data(self) -> bool {
        self == Self::Read
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Write => "write",
            Self::Read => "read",
            Self::Sync => "sync",
        }
    }
}

/// The measured engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// This repository's engine, `crates/lsm`.
    Kvorum,
    /// The crate of that name.
    Fjall,
    /// RocksDB's own `db_bench`.
    Rocksdb,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvorum => "kvorum",
            Self::Fjall => "fjall",
            Self::Rocksdb => "RocksDB",
        }
    }
}
