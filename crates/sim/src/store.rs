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
use cluster::{Claim, HintId, NodeId, OpId, Page, Record, Stamp, Standing, StoreError};
use lsm::{
    Backlog, Batch, Core, Error, Kind, Lookup, MemDisk, Newer, Options, Space, Version, Wait, Work,
};

use crate::plan::Plan;
use crate::random::Random;
use crate::records::{from_engine, from_view, parse};

/// Records that are looked at for one page: over tombstones, or keys that others send, it ends by
/// what was looked at.
const PAGE_RECORDS: usize = 128;

/// Bytes of keys and records that are looked at for one page; one record always is.
const PAGE_WORK_BYTES: usize = 16 << 10;

/// A hint on its way into the store.
#[derive(Debug, Clone)]
pub(crate) struct Hint {
    pub(crate) id: HintId,
    pub(crate) peer: NodeId,
    pub(crate) key: Bytes,
    pub(crate) stamp: Stamp,
}

/// Who gets to know what became of a batch.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A loop, for these writes; each with whether a newer record was held.
    Loop(usize, Vec<(OpId, Option<u64>)>),
    /// A loop, for these hints.
    Hints(usize, Vec<Hint>),
    /// The clock: its bound is durable.
    Clock(u64),
    /// What is known of another node is kept.
    Remember(NodeId, Claim),
    /// The node's standing is kept, with so many changes of what it misses.
    Stand(Standing, u64),
    /// What a node misses is kept.
    Missed {
        /// Whose marks.
        whose: NodeId,
        /// So many changes of them.
        changes: u64,
        /// The loop that wants it for this, if one does.
        index: usize,
        op: Option<OpId>,
    },
    /// Nobody.
    None,
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
    pub(crate) fn open(disk: &MemDisk, store_id: u64, plan: &Plan) -> Result<Self, Error> {
        let core = Core::open(Arc::new(disk.clone()), options(store_id, plan))?;
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

    /// A number that the node keeps for itself.
    pub(crate) fn number(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        let Lookup::Found(record) = self.core.get(Space::Node, key, Wait::Yes)? else {
            return Ok(None);
        };
        let bytes = record.value().as_ref().try_into().expect("written as eight bytes");
        Ok(Some(u64::from_le_bytes(bytes)))
    }

    /// Something else that the node keeps for itself.
    pub(crate) fn bytes(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let Lookup::Found(record) = self.core.get(Space::Node, key, Wait::Yes)? else {
            return Ok(None);
        };
        Ok(Some(record.value()))
    }

    /// Hints whose key begins with `prefix`, from `start` on: the key without it, and the record.
    pub(crate) fn hints(
        &self,
        prefix: &[u8],
        start: &[u8],
        max_bytes: usize,
    ) -> Result<Vec<(Bytes, Record)>, Error> {
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut scan = self.core.snapshot().scan(Space::Hints, start, None);
        while let Some((hint, held)) = scan.next()? {
            let Some(key) = hint.strip_prefix(prefix) else { break };
            if held.kind() != Kind::Value {
                continue;
            }
            let record = parse(Bytes::copy_from_slice(held.value()));
            let record = record.expect("a hint holds a record");
            bytes += key.len() + record.bytes.len();
            items.push((Bytes::copy_from_slice(key), record));
            if bytes >= max_bytes {
                break;
            }
        }
        Ok(items)
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

    /// Commits the group; what became of it, and who asked.
    pub(crate) fn end(&mut self) -> (Result<(), StoreError>, Vec<Asker>) {
        let group = mem::take(&mut self.committing);
        let result = self.core.commit(group.iter().map(|(_, batch)| batch));
        let result = result.map(|_| ()).map_err(|error| store_error(&error));
        (result, group.into_iter().map(|(asker, _)| asker).collect())
    }

    /// Whether a newer record is held, as far as that is told without waiting; if not, yes.
    pub(crate) fn holds_newer(&self, key: &[u8], stamp: Stamp) -> Newer {
        let version = Version { time: stamp.time, origin: stamp.origin };
        self.core.holds_newer(Space::Data, key, version).unwrap_or(Newer::WouldBlock)
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
        since: u64,
        max_bytes: usize,
        mut wanted: impl FnMut(&[u8], &Record) -> bool,
    ) -> Result<Page, StoreError> {
        let mut page = Page { items: Vec::new(), next: None, sure: true };
        let (mut bytes, mut looked_at) = (0, 0);
        let mut scan = self.core.snapshot().scan_since(Space::Data, start, end, since);
        for seen in 0.. {
            let next = scan.next().map_err(|error| store_error(&error))?;
            let Some((key, record)) = next else { break };
            let worked = seen == PAGE_RECORDS || seen > 0 && looked_at >= PAGE_WORK_BYTES;
            if worked || bytes >= max_bytes && !page.items.is_empty() {
                page.next = Some(Bytes::copy_from_slice(key));
                break;
            }
            looked_at += key.len() + record.raw().len();
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
        let _ = self.core.close();
    }
}

/// Small, so that a minute of a simulated client's writes is rotated, flushed and compacted.
fn options(store_id: u64, plan: &Plan) -> Options {
    Options {
        new_store_id: store_id,
        new_tree_bits: 0,
        sync: plan.sync,
        memtable_bytes: plan.memtable_bytes,
        cache_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        block_bytes: 1 << 10,
        table_bytes: 128 << 10,
        level0_tables: 2,
        level1_bytes: 256 << 10,
        level_ratio: 4,
        // Nobody else has hints: one that was delivered is gone for good.
        may_purge: Arc::new(|space, _, _| space == Space::Hints),
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
