//! Iterates over tables block by block, bypassing the cache, for scans that detect damage and find
//! recent records. Blocks without recent records are skipped; unreadable blocks are reported and
//! passed over.
//!
//! ```text
//!  index:  s0 recent │ s1 old │ s2 recent │ s3 recent │ …     the keys of a block lie between
//!           read       skip     └─── one read ───┘            its separator s and the previous
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::block::{self, MAX_CONTENT_LEN, OpenedBlock};
use super::entries::{Cursor, Malformed};
use super::index::{Block, Index, read_index};
use super::iter::blocking_read_error;
use super::{ReadMode, Table, is_entry};
use crate::error::Error;

/// Maximum bytes per read of adjacent blocks: an efficient size for any disk, and small enough for
/// each table of level 0 to have a buffer of its own.
const CHUNK_LEN: u64 = 64 * 1024;

/// A range of internal keys that could not be read.
#[derive(Debug, Clone)]
pub(crate) struct UnreadableRange {
    pub(crate) table: u64,
    /// Lower bound of the range, inclusive.
    pub(crate) first: Vec<u8>,
    /// Upper bound of the range, inclusive.
    pub(crate) last: Vec<u8>,
    /// The part of the range whose records are unreadable; `None` if only a filter is unreadable.
    pub(crate) lost: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) error: Error,
}

/// Counters and findings of the iterators of one scan.
#[derive(Default)]
pub(crate) struct ScanStats {
    pub(crate) bytes_read: AtomicU64,
    pub(crate) blocks_read: AtomicU64,
    pub(crate) blocks_skipped: AtomicU64,
    has_unreadable: AtomicBool,
    /// At most one entry per table: the scan takes all entries before its next step.
    unreadable: Mutex<Vec<UnreadableRange>>,
}

impl ScanStats {
    fn add(&self, counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds an unreadable range, or joins it to the last range if that is of the same table. So a
    /// table without any readable block takes the memory of one range only.
    fn report_unreadable(&self, range: UnreadableRange) {
        let mut all = self.unreadable.lock();
        match all.last_mut().filter(|last| last.table == range.table) {
            Some(last) => {
                last.last = range.last.max(std::mem::take(&mut last.last));
                last.lost = match (last.lost.take(), range.lost) {
                    (Some((first, _)), Some((_, last))) => Some((first, last)),
                    (before, now) => before.or(now),
                };
            }
            None => all.push(range),
        }
        self.has_unreadable.store(true, Ordering::Release);
    }

    /// Removes and returns one recorded range.
    pub(crate) fn take_unreadable(&self) -> Option<UnreadableRange> {
        if !self.has_unreadable.load(Ordering::Acquire) {
            return None;
        }
        let mut all = self.unreadable.lock();
        let range = all.pop();
        self.has_unreadable.store(!all.is_empty(), Ordering::Release);
        range
    }
}

/// A position in sorted tables that do not overlap, invalid initially and past the last key.
pub(crate) struct VerifiedIter {
    tables: Vec<Arc<Table>>,
    /// Blocks without a record written after this time are skipped; 0 = no block is skipped.
    since: u64,
    /// End of the range, exclusive.
    end: Vec<u8>,
    stats: Arc<ScanStats>,
    table: usize,
    partition: usize,
    index: Index,
    block: usize,
    data: Cursor,
    /// Bytes of the current table's file, starting at `chunk_at`.
    chunk: Bytes,
    chunk_at: u64,
}

impl VerifiedIter {
    pub(crate) fn new(
        tables: Vec<Arc<Table>>,
        since: u64,
        end: Vec<u8>,
        stats: Arc<ScanStats>,
    ) -> Self {
        Self {
            tables,
            since,
            end,
            stats,
            table: 0,
            partition: 0,
            index: Index::default(),
            block: 0,
            data: Cursor::default(),
            chunk: Bytes::new(),
            chunk_at: 0,
        }
    }

    /// Returns true if there is a current key.
    pub(crate) fn valid(&self) -> bool {
        self.data.valid()
    }

    /// The current internal key.
    pub(crate) fn key(&self) -> &[u8] {
        self.data.key()
    }

    /// The encoded record of the current key.
    pub(crate) fn record(&self) -> &[u8] {
        self.data.value()
    }

    /// Moves to the first key at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        self.leave_table();
        self.table = self.tables.partition_point(|table| &table.meta.largest[..] < key);
        let Some(table) = self.tables.get(self.table) else { return };
        self.partition = table.top.find(key);
        if self.load_index() {
            self.block = (0..self.index.blocks.len())
                .find(|block| self.index.key(*block) >= key)
                .unwrap_or(self.index.blocks.len());
            self.find_record(Some(key));
        }
    }

    /// Moves to the next key, or past the last.
    pub(crate) fn next(&mut self) {
        let moved = self.data.next();
        if !self.is_at_record(moved) {
            self.find_record(None);
        }
    }

    /// Moves to the first key at or after `from` in the current block, or to the first key of the
    /// next block that is recent and readable.
    fn find_record(&mut self, from: Option<&[u8]>) {
        loop {
            let Some(block) = self.index.blocks.get(self.block) else {
                self.partition += 1;
                if self.load_index() {
                    continue;
                }
                return;
            };
            if self.is_past_end() {
                return;
            }
            if self.is_old(block) {
                self.stats.add(&self.stats.blocks_skipped, 1);
                self.block += 1;
                continue;
            }
            let sought = match self.read_block() {
                Ok(content) => self.data.set_block(content).and_then(|()| match from {
                    Some(key) => self.data.seek(key),
                    None => self.data.seek_to_first(),
                }),
                Err(error) => {
                    self.skip_unreadable(error);
                    continue;
                }
            };
            if self.is_at_record(sought) {
                return;
            }
        }
    }

    /// Returns true if a step within a block ended at a record. Otherwise makes the next block the
    /// current block, and reports a malformed block.
    fn is_at_record(&mut self, moved: Result<(), Malformed>) -> bool {
        let is_whole = moved.is_ok() && (!self.data.valid() || is_entry(&self.data));
        if !is_whole {
            let handle = self.index.blocks[self.block].handle;
            let error = self.tables[self.table].malformed_error(handle);
            self.skip_unreadable(error);
        } else if !self.data.valid() {
            self.block += 1;
        }
        self.data.valid()
    }

    fn is_old(&self, block: &Block) -> bool {
        self.since > 0 && block.latest <= self.since
    }

    /// Exclusive lower bound of the current block's keys; `None` at the start of a table.
    fn before(&self) -> Option<&[u8]> {
        match (self.block, self.partition) {
            (0, 0) => None,
            (0, partition) => Some(self.tables[self.table].top.key(partition - 1)),
            (block, _) => Some(self.index.key(block - 1)),
        }
    }

    fn is_past_end(&self) -> bool {
        match self.before() {
            Some(key) => key >= &self.end[..],
            None => self.tables[self.table].meta.smallest >= self.end[..],
        }
    }

    /// Reads the index of the current partition, or of the first readable one after it. Returns
    /// false at the end of the last table.
    fn load_index(&mut self) -> bool {
        loop {
            (self.index, self.block) = (Index::default(), 0);
            self.data.drop_block();
            let Some(table) = self.tables.get(self.table) else { return false };
            let Some(partition) = table.top.partitions.get(self.partition).copied() else {
                self.leave_table();
                (self.table, self.partition) = (self.table + 1, 0);
                continue;
            };
            if self.is_past_end() {
                return false;
            }
            let read = read_index(table, self.partition);
            self.stats.add(&self.stats.bytes_read, u64::from(partition.index.len));
            // The iterator does not use filters, but a scan of all records must also detect damage
            // to a filter.
            let filter = if self.since == 0 && partition.filter.len > 0 {
                self.stats.add(&self.stats.bytes_read, u64::from(partition.filter.len));
                table
                    .read_block(partition.filter, ReadMode::Blocking)
                    .map_err(blocking_read_error)
                    .map(drop)
            } else {
                Ok(())
            };
            if let Err(error) = filter {
                self.report_unreadable(table.top.key(self.partition).to_vec(), error, false);
            }
            match read {
                Ok(index) => self.index = index,
                Err(error) => {
                    self.report_unreadable(table.top.key(self.partition).to_vec(), error, true)
                }
            }
            if !self.index.blocks.is_empty() {
                return true;
            }
            self.partition += 1;
        }
    }

    /// Reports the current block as unreadable and moves past it.
    fn skip_unreadable(&mut self, error: Error) {
        self.data.drop_block();
        self.report_unreadable(self.index.key(self.block).to_vec(), error, true);
        self.block += 1;
    }

    /// Reports the range from the current block to `last` as unreadable; `is_lost`: the records of
    /// the range are unreadable, not only a filter.
    fn report_unreadable(&self, last: Vec<u8>, error: Error, is_lost: bool) {
        let meta = &self.tables[self.table].meta;
        let first = match self.before() {
            Some(before) => [before, &[0]].concat(),
            None => meta.smallest.to_vec(),
        };
        let lost = is_lost.then(|| (first.clone(), last.clone()));
        self.stats.report_unreadable(UnreadableRange { table: meta.id, first, last, lost, error });
    }

    /// Returns the content of the current block. Reads adjacent recent blocks in the same call.
    fn read_block(&mut self) -> Result<Bytes, Error> {
        let handle = self.index.blocks[self.block].handle;
        let chunk_end = self.chunk_at + self.chunk.len() as u64;
        let block_end = handle.offset + u64::from(handle.len);
        if handle.offset < self.chunk_at || block_end > chunk_end {
            let run = self.run_length();
            if self.read_chunk(handle.offset, run).is_err() {
                // Another block of the run may have caused the failure.
                self.read_chunk(handle.offset, u64::from(handle.len))?;
            }
        }
        let start = (handle.offset - self.chunk_at) as usize;
        let stored = self.chunk.slice(start..start + handle.len as usize);
        self.stats.add(&self.stats.blocks_read, 1);
        let table = &self.tables[self.table];
        match block::open(stored, table.seed, handle.offset, MAX_CONTENT_LEN) {
            Ok(OpenedBlock::Content(content)) => Ok(content),
            Ok(OpenedBlock::TooLong) => unreachable!("no content is longer than the longest"),
            Err(what) => Err(Error::corrupt(&table.name, handle.offset, what)),
        }
    }

    /// Bytes from the start of the current block to the end of the last adjacent recent block that
    /// fits into one read.
    fn run_length(&self) -> u64 {
        let first = self.index.blocks[self.block].handle;
        let mut end = first.offset + u64::from(first.len);
        for i in self.block + 1..self.index.blocks.len() {
            let block = &self.index.blocks[i];
            let block_end = block.handle.offset + u64::from(block.handle.len);
            let wanted = !self.is_old(block) && self.index.key(i - 1) < &self.end[..];
            if !wanted || block.handle.offset != end || block_end - first.offset > CHUNK_LEN {
                break;
            }
            end = block_end;
        }
        end - first.offset
    }

    fn read_chunk(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        // An uncompressed block is a slice of the chunk; the block is dropped first, so that the
        // chunk's memory can be reused.
        self.data.drop_block();
        let mut chunk = std::mem::take(&mut self.chunk).try_into_mut().unwrap_or_default();
        chunk.resize(len as usize, 0);
        self.stats.add(&self.stats.bytes_read, len);
        self.tables[self.table].read(&mut chunk, offset)?;
        (self.chunk, self.chunk_at) = (chunk.freeze(), offset);
        Ok(())
    }

    /// Drops the buffers of the current table.
    fn leave_table(&mut self) {
        self.data.drop_block();
        (self.chunk, self.chunk_at) = (Bytes::new(), 0);
    }
}
