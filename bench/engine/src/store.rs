//! The engines that run in this process, behind one trait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use lsm::{Db, Kind, Options, RealDisk, Space, SyncMode, Version};

use crate::config::{BLOCK_LEN, BLOOM_BITS, Config};

/// An open engine.
pub(crate) trait Store: Sync {
    /// Writes a value. Waits for the disk if the store was opened with sync.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String>;
    /// Returns the length of the value, or `None` if the key does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String>;
    /// Reads up to `count` entries from `key` on. Returns the total length of their values in
    /// bytes.
    fn scan(&self, key: &[u8], count: usize) -> Result<usize, String>;
    /// Compacts everything into the last level.
    fn compact(&self) -> Result<(), String>;
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// A store of `crates/lsm`.
pub(crate) struct Kvorum {
    db: Db,
    clock: AtomicU64,
}

impl Kvorum {
    pub(crate) fn open(config: &Config, sync: bool) -> Result<Self, String> {
        let disk = RealDisk::open(&config.dir).map_err(text)?;
        let options = Options {
            sync: if sync { SyncMode::Always } else { SyncMode::Never },
            memtable_bytes: config.memtable as usize,
            cache_bytes: config.cache as usize,
            block_bytes: BLOCK_LEN as usize,
            bloom_bits: BLOOM_BITS,
            compress: true,
            table_bytes: config.table(),
            level1_bytes: config.level1(),
            ..Options::default()
        };
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_err(text)?.as_micros();
        let db = Db::open(Arc::new(disk), options).map_err(text)?;
        Ok(Self { db, clock: AtomicU64::new((micros as u64) << 12) })
    }
}

impl Store for Kvorum {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let version = Version { time: self.clock.fetch_add(1, Ordering::Relaxed), origin: 1 };
        self.db.put(Space::Data, key, version, value).map_err(text)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        let record = self.db.get(Space::Data, key).map_err(text)?;
        Ok(record.map(|record| record.view().value().len()))
    }

    fn scan(&self, key: &[u8], count: usize) -> Result<usize, String> {
        let mut scan = self.db.scan(Space::Data, key, None);
        let (mut bytes, mut read) = (0, 0);
        while read < count
            && let Some((_, record)) = scan.next().map_err(text)?
        {
            if record.kind() == Kind::Value {
                bytes += std::hint::black_box(record.value()).len();
                read += 1;
            }
        }
        Ok(bytes)
    }

    fn compact(&self) -> Result<(), String> {
        self.db.compact().map_err(text)
    }
}

/// A store of the crate `fjall`.
pub(crate) struct Fjall {
    db: Database,
    keyspace: Keyspace,
    sync: bool,
}

impl Fjall {
    pub(crate) fn open(config: &Config, sync: bool) -> Result<Self, String> {
        let db = Database::builder(&config.dir).cache_size(config.cache).open().map_err(text)?;
        let options = || {
            let bloom = BloomConstructionPolicy::BitsPerKey(f32::from(BLOOM_BITS));
            let tables =
                fjall::compaction::Leveled::default().with_table_target_size(config.table());
            KeyspaceCreateOptions::default()
                .max_memtable_size(config.memtable)
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_LEN as u32))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
                .compaction_strategy(Arc::new(tables))
        };
        let keyspace = db.keyspace("bench", options).map_err(text)?;
        Ok(Self { db, keyspace, sync })
    }
}

impl Store for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.keyspace.insert(key, value).map_err(text)?;
        if self.sync {
            self.db.persist(PersistMode::SyncData).map_err(text)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        Ok(self.keyspace.get(key).map_err(text)?.map(|value| value.len()))
    }

    fn scan(&self, key: &[u8], count: usize) -> Result<usize, String> {
        let mut bytes = 0;
        for entry in self.keyspace.range(key..).take(count) {
            bytes += std::hint::black_box(entry.value().map_err(text)?).len();
        }
        Ok(bytes)
    }

    fn compact(&self) -> Result<(), String> {
        self.keyspace.rotate_memtable_and_wait().map_err(text)?;
        self.keyspace.major_compact().map_err(text)
    }
}
