//! A node's store: the engine's synchronous core on a disk in memory. What the embedder's threads
//! do is done here step by step, at simulated moments.
//!
//! ```text
//!  a turn's writes ─▶ waiting ─▶ committing ──(a sync's time passes)──▶ core.commit ─▶ outcomes
//!                         crash here: nothing, or a torn group, is on the disk
//! ```

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use cluster::{OpId, Page, Rank, Record, StoreError};
use lsm::{Backlog, Batch, Core, Error, Lookup, MemDisk, Options, Space, SyncMode, Wait, Work};

use crate::random::Random;
use crate::records::{from_engine, from_view, rank_of};

/// Records that are looked at for one page, so that a desert of others' keys ends one.
const PAGE_RECORDS: usize = 1024;

/// One write of a turn, and what its outcome needs.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) op: OpId,
    pub(crate) items: Vec<(Bytes, Rank)>,
    pub(crate) look: bool,
}

/// Who gets to know what became of a batch.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A loop, for these writes.
    Loop(usize, Vec<Written>),
    /// The clock: its bound is durable.
    Clock(u64),
}

/// What became of a batch.
pub(crate) enum Outcome {
    /// For a loop's writes, in their order.
    Loop(usize, Vec<(OpId, Result<bool, StoreError>)>),
    /// Whether the clock's bound is durable.
    Clock(u64, bool),
}

/// See the module.
pub(crate) struct Store {
    core: Core,
    /// Background work found no space: a refusal is for lack of it.
    starved: bool,
    waiting: Vec<(Asker, Batch)>,
    committing: Vec<(Asker, Batch)>,
}

impl Store {
    /// Opens or recovers what is on the disk.
    pub(crate) fn open(disk: &MemDisk, store_id: u64, sync: SyncMode) -> Result<Self, Error> {
        let core = Core::open(Arc::new(disk.clone()), options(store_id, sync))?;
        Ok(Self { core, starved: false, waiting: Vec::new(), committing: Vec::new() })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn get(&self, space: Space, key: &[u8]) -> Result<Option<Record>, StoreError> {
        match self.core.get(space, key, Wait::Yes) {
            Ok(Lookup::Found(record)) => Ok(Some(from_engine(&record))),
            Ok(_) => Ok(None),
            Err(error) => Err(store_error(&error)),
        }
    }

    /// A number that the node keeps for itself, and the time of its record; 0 if there is none.
    pub(crate) fn bound(&self, key: &[u8]) -> Result<(u64, u64), Error> {
        let Lookup::Found(record) = self.core.get(Space::Node, key, Wait::Yes)? else {
            return Ok((0, 0));
        };
        let bytes = record.value().as_ref().try_into().expect("written as eight bytes");
        Ok((u64::from_le_bytes(bytes), record.view().version().time))
    }

    /// Why no write is taken at the moment, if so.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        if self.core.backlog() != Backlog::Full {
            return None;
        }
        Some(match self.core.healthy() {
            Err(error) => store_error(&error),
            Ok(()) if self.starved => StoreError::NoSpace("no space for tables".to_owned()),
            Ok(()) => StoreError::Busy("flushes or compactions are too far behind"),
        })
    }

    /// Queues a batch; whether a group is to be begun with [`Store::begin`].
    pub(crate) fn submit(&mut self, asker: Asker, batch: Batch) -> bool {
        self.waiting.push((asker, batch));
        self.committing.is_empty()
    }

    /// All that waits becomes a group, to be ended with [`Store::end`] when it is synced; whether
    /// there is any.
    pub(crate) fn begin(&mut self) -> bool {
        assert!(self.committing.is_empty(), "one group at a time");
        self.committing = mem::take(&mut self.waiting);
        !self.committing.is_empty()
    }

    /// Commits the group.
    pub(crate) fn end(&mut self) -> Vec<Outcome> {
        let group = mem::take(&mut self.committing);
        let looked: Vec<Vec<bool>> = group.iter().map(|(asker, _)| self.look(asker)).collect();
        let result = self.core.commit(group.iter().map(|(_, batch)| batch));
        let result = result.map(|_| ()).map_err(|error| store_error(&error));
        let outcome = |((asker, _), newer): ((Asker, Batch), Vec<bool>)| match asker {
            Asker::Clock(bound) => Outcome::Clock(bound, result.is_ok()),
            Asker::Loop(index, writes) => {
                let each =
                    |(write, newer): (Written, bool)| (write.op, result.clone().map(|()| newer));
                Outcome::Loop(index, writes.into_iter().zip(newer).map(each).collect())
            }
        };
        group.into_iter().zip(looked).map(outcome).collect()
    }

    /// For each of a batch's writes, whether a newer record is held.
    fn look(&self, asker: &Asker) -> Vec<bool> {
        let Asker::Loop(_, writes) = asker else { return Vec::new() };
        let newer = |(key, rank): &(Bytes, Rank)| {
            let held = self.core.get(Space::Data, key, Wait::Yes);
            match held {
                Ok(Lookup::Found(held)) => rank_of(held.view()) > *rank,
                Ok(_) => false,
                Err(_) => true,
            }
        };
        writes.iter().map(|write| write.look && write.items.iter().any(newer)).collect()
    }

    /// One step of each kind of background work; whether there was any.
    pub(crate) fn work(&mut self) -> bool {
        // What fails is tried again, or has failed the store, which writes then show.
        let _ = self.core.prepare_segment();
        let steps = [self.core.flush_one(), self.core.compact_one()];
        self.core.bury();
        self.starved = steps.iter().any(|step| step.as_ref().is_err_and(Error::is_no_space));
        steps.iter().any(|step| matches!(step, Ok(Work::Done)))
    }

    /// What `interval` leaves unsynced becomes durable.
    pub(crate) fn sync(&self) {
        // A failure fails the store, which writes then show.
        let _ = self.core.sync_log();
    }

    /// Reads part of a range: the records that `wanted` says belong to it.
    pub(crate) fn page(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        max_bytes: usize,
        mut wanted: impl FnMut(&[u8], &Record) -> bool,
    ) -> Result<Page, StoreError> {
        let mut page = Page { items: Vec::new(), next: None, sure: true };
        let mut bytes = 0;
        let mut scan = self.core.snapshot().scan(Space::Data, start, end);
        for seen in 0.. {
            let next = scan.next().map_err(|error| store_error(&error))?;
            let Some((key, record)) = next else { break };
            if seen == PAGE_RECORDS || bytes >= max_bytes && !page.items.is_empty() {
                page.next = Some(Bytes::copy_from_slice(key));
                break;
            }
            let record = from_view(record);
            if wanted(key, &record) {
                bytes += key.len() + record.bytes.len();
                page.items.push((Bytes::copy_from_slice(key), record));
            }
        }
        Ok(page)
    }

    /// The process ends here. What was being committed may have reached the disk in part: the power
    /// goes, or the process is killed, within one of the next calls to the disk.
    pub(crate) fn die(self, disk: &MemDisk, random: &mut Random) {
        if !self.committing.is_empty() && random.permille(700) {
            disk.crash_after(random.below(4));
            // Nobody is told.
            let _ = self.core.commit(self.committing.iter().map(|(_, batch)| batch));
        }
    }

    /// Ends the store cleanly.
    pub(crate) fn close(self) {
        // What could not be ended cleanly is recovered.
        let _ = self.core.close_log();
    }
}

/// Small, so that a minute of a simulated client's writes is rotated, flushed and compacted.
fn options(store_id: u64, sync: SyncMode) -> Options {
    Options {
        new_store_id: store_id,
        new_tree_bits: 0,
        sync,
        memtable_bytes: 128 << 10,
        cache_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        block_bytes: 1 << 10,
        table_bytes: 128 << 10,
        level0_tables: 2,
        level1_bytes: 256 << 10,
        level_ratio: 4,
        ..Options::default()
    }
}

/// The engine's error as the protocol knows it.
fn store_error(error: &Error) -> StoreError {
    match error {
        Error::Busy { what } => StoreError::Busy(what),
        error if error.is_no_space() => StoreError::NoSpace(error.to_string()),
        Error::Failed { begun, .. } => {
            StoreError::Failed { begun: *begun, detail: error.to_string() }
        }
        error => StoreError::Failed { begun: false, detail: error.to_string() },
    }
}
