//! The store as callers see it. (Held in memory until the log lands.)

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::batch::{Batch, Operations, Space};
use crate::disk::Disk;
use crate::error::Error;
use crate::options::Options;
use crate::record::{Record, RecordRef, Version};
use crate::stats::Stats;

/// What a read that must not wait found out.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The newest record, which may be a tombstone.
    Found(Record),
    /// No record of this key.
    Absent,
    /// The answer needs the disk, or is large: ask again where waiting is allowed.
    WouldBlock,
}

/// How far the background work is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// Write on.
    Clear,
    /// Wait this long before the next write.
    Slow(Duration),
    /// Refuse writes for now.
    Full,
}

type Map = BTreeMap<(Space, Vec<u8>), Record>;

/// A store. Cheap to share by reference or `Arc`; dropped, it stops its threads.
pub struct Db {
    map: Mutex<Map>,
}

impl Db {
    /// Opens the store on `disk`, creating it if the disk is empty, recovering it otherwise.
    pub fn open(_disk: Arc<dyn Disk>, _options: Options) -> Result<Self, Error> {
        Ok(Self { map: Mutex::new(BTreeMap::new()) })
    }

    /// The newest record of `key`, tombstones included. May wait for the disk.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Record>, Error> {
        Ok(self.map.lock().unwrap().get(&(space, key.to_vec())).cloned())
    }

    /// The same, without ever waiting for the disk.
    pub fn try_get(&self, space: Space, key: &[u8]) -> Result<Lookup, Error> {
        Ok(self.get(space, key)?.map_or(Lookup::Absent, Lookup::Found))
    }

    /// Writes one value; returns once it is as durable as [`crate::SyncMode`] says.
    pub fn put(
        &self,
        space: Space,
        key: &[u8],
        version: Version,
        value: &[u8],
    ) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.put(space, key, version, value)?;
        self.write_batch(batch)
    }

    /// Writes one tombstone.
    pub fn delete(&self, space: Space, key: &[u8], version: Version) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.delete(space, key, version)?;
        self.write_batch(batch)
    }

    /// Writes a batch on this thread, slowing down (and at the limit waiting) with the backlog.
    pub fn write_batch(&self, batch: Batch) -> Result<(), Error> {
        self.commit(batch)
    }

    /// Writes a batch on this thread without regard to the backlog: for event loops, which ask
    /// [`Db::pressure`] first. Waits for the log only.
    pub fn commit(&self, batch: Batch) -> Result<(), Error> {
        let mut map = self.map.lock().unwrap();
        for op in Operations::new(batch.bytes()) {
            let op = op.expect("own batch");
            let slot =
                map.entry((op.space, op.key.to_vec())).or_insert_with(|| op.record.to_record());
            if op.record.order(&slot.view()).is_gt() {
                *slot = op.record.to_record();
            }
        }
        Ok(())
    }

    /// Queues a batch and returns at once; `done` is called from the commit thread when the batch is
    /// as durable as [`crate::SyncMode`] says, visible to reads, or refused. Must not block.
    pub fn submit(&self, batch: Batch, done: impl FnOnce(Result<(), Error>) + Send + 'static) {
        done(self.commit(batch));
    }

    /// How far flushes and compactions are behind.
    pub fn pressure(&self) -> Pressure {
        Pressure::Clear
    }

    /// A point-in-time view. Pins memory: keep it short.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { map: self.map.lock().unwrap().clone() }
    }

    /// A scan over a snapshot taken now; see [`Snapshot::scan`].
    pub fn scan(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Scan {
        self.snapshot().scan(space, start, end)
    }

    /// Moves all memtables into tables and waits for it.
    pub fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Flushes, then compacts every tree into its bottom level, and waits for it.
    pub fn compact(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Stops background work, syncs the log and says whether that worked. Dropping does the same
    /// and can't say.
    pub fn close(self) -> Result<(), Error> {
        Ok(())
    }
}

/// A point-in-time view of a store.
pub struct Snapshot {
    map: Map,
}

impl Snapshot {
    /// Keys of `space` in `start..end` (`None` = to the last) in order, each with its newest
    /// record, tombstones included.
    pub fn scan(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Scan {
        let upper = match end {
            Some(end) if end <= start => return Scan { items: Vec::new().into_iter(), item: None },
            Some(end) => Bound::Excluded((space, end.to_vec())),
            None => Bound::Unbounded,
        };
        let items: Vec<_> = self
            .map
            .range((Bound::Included((space, start.to_vec())), upper))
            .filter(|((s, _), _)| *s == space)
            .map(|((_, key), record)| (key.clone(), record.clone()))
            .collect();
        Scan { items: items.into_iter(), item: None }
    }
}

/// An iterator that lends its items.
pub struct Scan {
    items: std::vec::IntoIter<(Vec<u8>, Record)>,
    item: Option<(Vec<u8>, Record)>,
}

impl Scan {
    /// The next key and record. May wait for the disk.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(&[u8], RecordRef<'_>)>, Error> {
        self.item = self.items.next();
        Ok(self.item.as_ref().map(|(key, record)| (key.as_slice(), record.view())))
    }
}
