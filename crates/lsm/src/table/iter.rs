//! Iterates over a table in key order.

use std::sync::Arc;

use bytes::Bytes;

use super::block::{self, BlockHandle, MAX_CONTENT_LEN, OpenedBlock};
use super::entries::{Cursor, Malformed};
use super::{BlockError, ReadMode, Table, is_entry};
use crate::error::Error;

/// Bytes per read for a compaction: enough for sequential I/O with a dozen inputs.
const CHUNK_LEN: u64 = 256 * 1024;

/// The way in which an iterator reads data blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads block by block through the block cache, for scans of clients. A block too long for the
    /// cache is read into the buffer of the previous long block, because a new buffer would cost
    /// more than the read.
    Cached,
    /// Many blocks per read, bypassing the cache, for compactions, which read each block once.
    Sequential,
}

/// A position in a table, invalid initially and past the last key. After an error the iterator
/// needs a new seek.
pub(crate) struct TableIter {
    table: Arc<Table>,
    access: Access,
    partition: usize,
    index: Cursor,
    data: Cursor,
    /// Location of the current data block.
    block: BlockHandle,
    /// Exclusive lower bound of the current block's keys; empty for the block in which a seek
    /// ended.
    before: Vec<u8>,
    /// Bytes of the file starting at `chunk_at`, for blocks read without the cache.
    chunk: Bytes,
    chunk_at: u64,
}

impl TableIter {
    pub(crate) fn new(table: Arc<Table>, access: Access) -> Self {
        Self {
            table,
            access,
            partition: 0,
            index: Cursor::default(),
            data: Cursor::default(),
            block: BlockHandle::default(),
            before: Vec::new(),
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

    /// Moves to the first key of the table.
    pub(crate) fn seek_to_first(&mut self) -> Result<(), Error> {
        self.data.drop_block();
        self.before.clear();
        if self.load_index(0)? {
            self.index.seek_to_first().map_err(|bad| self.bad_index(bad))?;
            self.first_of_block()?;
        }
        Ok(())
    }

    /// Moves to the first key at or after `ikey`.
    pub(crate) fn seek(&mut self, ikey: &[u8]) -> Result<(), Error> {
        self.data.drop_block();
        self.before.clear();
        if !self.load_index(self.table.top.find(ikey))? {
            return Ok(());
        }
        self.index.seek(ikey).map_err(|bad| self.bad_index(bad))?;
        if !self.index.valid() {
            return Err(self.bad_index(Malformed));
        }
        self.load_data()?;
        self.data.seek(ikey).map_err(|bad| self.bad_data(bad))?;
        if !self.data.valid() {
            // `ikey` lies between the block's last key and its separator from the next block.
            self.before.extend_from_slice(ikey);
            return self.next_block();
        }
        self.check_first_entry()
    }

    /// Moves to the next key, or past the last.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<(), Error> {
        match self.data.next() {
            Ok(()) if self.data.valid() => self.check_record(),
            Ok(()) => self.leave_block(),
            Err(bad) => Err(self.bad_data(bad)),
        }
    }

    /// Checks the record at the new position. If it is malformed, the position is invalid, so that
    /// no caller reads the record.
    #[inline]
    fn check_record(&mut self) -> Result<(), Error> {
        if is_entry(&self.data) {
            return Ok(());
        }
        self.data.drop_block();
        Err(self.bad_data(Malformed))
    }

    /// Checks the first position in a block. Merges rely on keys that ascend from block to block
    /// and lie within the bounds in the manifest.
    fn check_first_entry(&mut self) -> Result<(), Error> {
        let key = self.data.key();
        if key >= &self.table.meta.smallest[..] && key > &self.before[..] {
            return self.check_record();
        }
        self.data.drop_block();
        Err(self.bad_data(Malformed))
    }

    #[cold]
    fn leave_block(&mut self) -> Result<(), Error> {
        if self.data.last_key() > &self.table.meta.largest[..] {
            return Err(self.bad_data(Malformed));
        }
        self.before.clear();
        self.before.extend_from_slice(self.data.last_key());
        self.next_block()
    }

    fn next_block(&mut self) -> Result<(), Error> {
        self.index.next().map_err(|bad| self.bad_index(bad))?;
        if !self.index.valid() {
            if !self.load_index(self.partition + 1)? {
                return Ok(());
            }
            self.index.seek_to_first().map_err(|bad| self.bad_index(bad))?;
        }
        self.first_of_block()
    }

    /// Loads the index block of a partition; returns false if the partition does not exist.
    fn load_index(&mut self, partition: usize) -> Result<bool, Error> {
        self.partition = partition;
        let Some(found) = self.table.top.partitions.get(partition) else { return Ok(false) };
        let block =
            self.table.block(found.index, ReadMode::Blocking).map_err(blocking_read_error)?;
        self.index.set_block(block).map_err(|bad| self.bad_index(bad))?;
        Ok(true)
    }

    fn first_of_block(&mut self) -> Result<(), Error> {
        if !self.index.valid() {
            return Err(self.bad_index(Malformed));
        }
        self.load_data()?;
        self.data.seek_to_first().map_err(|bad| self.bad_data(bad))?;
        if self.data.valid() { self.check_first_entry() } else { Err(self.bad_data(Malformed)) }
    }

    /// Loads the data block that the index points at.
    fn load_data(&mut self) -> Result<(), Error> {
        let end = self.table.top.partitions[self.partition].index.offset;
        let handle = BlockHandle::take(&mut self.index.value(), end)
            .ok_or_else(|| self.bad_index(Malformed))?;
        let block = match self.access {
            Access::Cached if self.table.cache.may_cache(handle.len as usize) => {
                self.table.block(handle, ReadMode::Blocking).map_err(blocking_read_error)?
            }
            Access::Cached => self.block_of_chunk(handle, handle.offset)?,
            Access::Sequential => self.block_of_chunk(handle, end)?,
        };
        self.block = handle;
        self.data.set_block(block).map_err(|bad| self.bad_data(bad))
    }

    /// Returns the content of a block. If the chunk does not contain the block, first reads a new
    /// chunk that starts with the block and ends at `end` or before.
    fn block_of_chunk(&mut self, handle: BlockHandle, end: u64) -> Result<Bytes, Error> {
        let chunk_end = self.chunk_at + self.chunk.len() as u64;
        let block_end = handle.offset + u64::from(handle.len);
        if handle.offset < self.chunk_at || block_end > chunk_end {
            let len = (end - handle.offset).min(CHUNK_LEN).max(u64::from(handle.len));
            // An uncompressed block is a slice of the chunk; the block is dropped first, so that
            // the chunk's memory can be reused.
            self.data.drop_block();
            let mut chunk = std::mem::take(&mut self.chunk).try_into_mut().unwrap_or_default();
            chunk.resize(len as usize, 0);
            self.table.read(&mut chunk, handle.offset)?;
            self.chunk = chunk.freeze();
            self.chunk_at = handle.offset;
        }
        let start = (handle.offset - self.chunk_at) as usize;
        let stored = self.chunk.slice(start..start + handle.len as usize);
        match block::open(stored, self.table.seed, handle.offset, MAX_CONTENT_LEN) {
            Ok(OpenedBlock::Content(content)) => Ok(content),
            Ok(OpenedBlock::TooLong) => unreachable!("no content is longer than the longest"),
            Err(what) => Err(Error::corrupt(&self.table.name, handle.offset, what)),
        }
    }

    fn bad_data(&self, Malformed: Malformed) -> Error {
        self.table.malformed_error(self.block)
    }

    fn bad_index(&self, Malformed: Malformed) -> Error {
        self.table.malformed_error(self.table.top.partitions[self.partition].index)
    }
}

pub(super) fn blocking_read_error(no_block: BlockError) -> Error {
    match no_block {
        BlockError::Failed(error) => error,
        BlockError::WouldBlock | BlockError::TooLong(_) => {
            unreachable!("the read was allowed to wait, and to take as much as it needs")
        }
    }
}
