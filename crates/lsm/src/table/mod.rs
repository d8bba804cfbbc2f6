//! SSTables: immutable files of keys in ascending order, each key with one record.
//!
//! ```text
//!  ┌ partition ────────────────────────────────┐
//!  │ data block … │ [filter block] │ index block │ partition … │ top │ properties │ footer
//!  └───────▲──────────────▲────────────┬──▲─────┘               └─┬─┘
//!          └──────────────┼────────────┘  │                       │
//!                         └───────────────┴───────────────────────┘
//! ```
//!
//! Keys are *internal keys*: the byte of a [`crate::Space`], then the user key. A data block holds
//! about [`crate::Options::block_bytes`] of entries, or one large record alone. An index block
//! locates the data blocks of its partition and holds the latest write time of each. A filter
//! answers most reads of absent keys. Data, index and filter blocks go through the block cache;
//! only the top block, which lists the partitions, stays in memory: about 50 bytes per half
//! megabyte of data.
//!
//! Damage to a block of any kind is an error and never reads as "absent".
//!
//! `docs/formats/files.md` specifies the bytes of the file.

use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::batch::Space;
use crate::cache::BlockCache;
use crate::disk::File;
use crate::error::{Error, IoOp};
use record::RecordRef;

mod block;
mod entries;
mod filter;
mod footer;
mod index;
mod iter;
mod meta;
#[cfg(test)]
mod tests;
mod verified;
mod write;

use block::{BlockHandle, MAX_CONTENT_LEN, OpenedBlock};
use entries::{Cursor, Malformed};
pub(crate) use iter::{Access, TableIter};
pub(crate) use meta::{PurgeableSummary, TableMeta};
pub(crate) use verified::{ScanStats, UnreadableRange, VerifiedIter};
pub(crate) use write::{TableParams, TableWriter};

/// Longest record in bytes that a nonblocking read returns. The copy and the verification of a
/// longer record would delay the other requests of an event loop.
pub(crate) const INLINE_MAX: usize = 16 * 1024;

/// Longest block in bytes that a nonblocking read opens. Blocks of several records are never
/// longer.
const INLINE_MAX_BLOCK: usize = 64 * 1024;

/// Suffix of the names of table files.
pub(crate) const SUFFIX: &str = ".sst";

/// File name of table `id`.
pub(crate) fn file_name(id: u64) -> String {
    format!("{id:010}{SUFFIX}")
}

/// Returns true if an entry of a data block is well-formed. The block's checksum proves that no
/// byte has changed since the write, but not that the writer's memory was intact.
#[inline]
fn is_entry(data: &Cursor) -> bool {
    let space = data.key().first().and_then(|space| Space::from_u8(*space));
    space.is_some() && RecordRef::parse(data.value()).is_ok()
}

/// The mode of a read: whether the read may wait for the disk, and how much memory it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// The read may wait.
    Blocking,
    /// The read must not wait: the thread has other requests to serve.
    NonBlocking,
    /// The read may wait, but a record over `INLINE_MAX` may take at most this many bytes of
    /// memory.
    Limited(usize),
}

/// Result of a lookup in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TableGet {
    /// The encoded record, which shares memory with its block.
    Found(Bytes),
    /// The table does not hold the key.
    Absent,
    /// The answer requires the disk, or is longer than [`INLINE_MAX`].
    WouldBlock,
    /// The read would take this many bytes of memory, more than its limit.
    TooLong(usize),
}

/// An open table.
pub(crate) struct Table {
    file: Arc<dyn File>,
    name: String,
    meta: TableMeta,
    seed: u64,
    top: TopIndex,
    cache: Arc<BlockCache>,
    /// Purge limit of the compaction that wrote the table, if it checked every record
    /// ([`Table::set_purge_checked_up_to`]). [`Table::purgeable`] does not count records up to this
    /// time.
    purge_checked_up_to: OnceLock<Option<u64>>,
    /// Number of the cleanup of orphaned records ([`crate::orphans`]) in which a compaction wrote
    /// the table, if it checked every record.
    orphans_checked_in: OnceLock<u64>,
    /// The list that receives the table's id when the last reader drops the table; set once the
    /// table has been replaced.
    obsolete: OnceLock<Arc<Mutex<Vec<u64>>>>,
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(obsolete) = self.obsolete.get() {
            obsolete.lock().push(self.meta.id);
        }
    }
}

#[derive(Clone, Copy)]
struct Partition {
    index: BlockHandle,
    /// The filter block; length 0 = the partition has no filter.
    filter: BlockHandle,
}

/// The decoded top block: the partitions of a table, with all their keys in one buffer.
#[derive(Default)]
struct TopIndex {
    keys: Vec<u8>,
    /// End of each partition's key in `keys`.
    key_ends: Vec<usize>,
    partitions: Vec<Partition>,
}

impl TopIndex {
    /// Decodes the top block of a table whose other blocks end at `limit` or before.
    fn decode(block: Bytes, limit: u64) -> Result<Self, Malformed> {
        let mut top = Self::default();
        let mut cursor = Cursor::default();
        cursor.set_block(block)?;
        cursor.seek_to_first()?;
        while cursor.valid() {
            let mut value = cursor.value();
            let index = BlockHandle::take(&mut value, limit).ok_or(Malformed)?;
            let filter = BlockHandle::take(&mut value, limit).ok_or(Malformed)?;
            top.keys.extend_from_slice(cursor.key());
            top.key_ends.push(top.keys.len());
            top.partitions.push(Partition { index, filter });
            cursor.next()?;
        }
        Ok(top)
    }

    fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.key_ends[i - 1] };
        &self.keys[start..self.key_ends[i]]
    }

    /// Index of the partition that holds the first key at or after `ikey`; the number of partitions
    /// if there is none.
    fn find(&self, ikey: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.partitions.len());
        while low < high {
            let middle = (low + high) / 2;
            if entries::is_less(self.key(middle), ikey) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Reason why a block was not read.
enum BlockError {
    WouldBlock,
    TooLong(usize),
    Failed(Error),
}

impl From<Error> for BlockError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Table {
    /// Opens the table that the manifest describes as `meta`. Verifies the footer, the top block
    /// and the properties.
    pub(crate) fn open(
        file: Arc<dyn File>,
        meta: &TableMeta,
        store_id: u64,
        cache: Arc<BlockCache>,
    ) -> Result<Self, Error> {
        let name = file_name(meta.id);
        let len = file.len().map_err(|e| Error::io(IoOp::Stat, &name, e))?;
        if len != meta.bytes {
            let what = format!("the table is {len} bytes long, {} were written", meta.bytes);
            return Err(Error::corrupt(&name, len.min(meta.bytes), what));
        }
        let seed = block::table_seed(store_id, meta.id);
        let tail = footer::read_tail(&*file, &name, meta, store_id)?;
        let top = tail.block(tail.top, seed, &name)?;
        let properties = tail.block(tail.properties, seed, &name)?;
        if !footer::are_properties_of(&properties, meta) {
            let what = "the table's properties are not what the manifest says";
            return Err(Error::corrupt(&name, tail.properties.offset, what));
        }
        let top = TopIndex::decode(top, tail.top.offset)
            .map_err(|Malformed| Error::corrupt(&name, tail.top.offset, "malformed top block"))?;
        let meta = meta.clone();
        let (purge_checked_up_to, orphans_checked_in) = (OnceLock::new(), OnceLock::new());
        Ok(Self {
            file,
            name,
            meta,
            seed,
            top,
            cache,
            purge_checked_up_to,
            orphans_checked_in,
            obsolete: OnceLock::new(),
        })
    }

    /// Marks the table as replaced: `obsolete` receives the table's id when the last reader drops
    /// the table.
    pub(crate) fn mark_obsolete(&self, obsolete: Arc<Mutex<Vec<u64>>>) {
        let marked = self.obsolete.set(obsolete);
        assert!(marked.is_ok(), "a table is replaced once");
    }

    /// The manifest's entry for the table.
    pub(crate) fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// Looks up the record of the internal key `ikey`, whose user key has the hash `hash` (xxh3-64,
    /// seed 0).
    pub(crate) fn get(&self, ikey: &[u8], hash: u64, mode: ReadMode) -> Result<TableGet, Error> {
        match self.find(ikey, hash, mode) {
            Ok(Some(raw)) if mode == ReadMode::NonBlocking && raw.len() > INLINE_MAX => {
                Ok(TableGet::WouldBlock)
            }
            Ok(Some(raw)) => match mode {
                ReadMode::Limited(room) if raw.len() > room.max(INLINE_MAX) => {
                    Ok(TableGet::TooLong(raw.len()))
                }
                _ => Ok(TableGet::Found(raw)),
            },
            Ok(None) => Ok(TableGet::Absent),
            Err(BlockError::WouldBlock) => Ok(TableGet::WouldBlock),
            Err(BlockError::TooLong(bytes)) => Ok(TableGet::TooLong(bytes)),
            Err(BlockError::Failed(error)) => Err(error),
        }
    }

    fn find(&self, ikey: &[u8], hash: u64, mode: ReadMode) -> Result<Option<Bytes>, BlockError> {
        let Some(partition) = self.top.partitions.get(self.top.find(ikey)) else {
            return Ok(None);
        };
        if partition.filter.len > 0 {
            let filter = self.block(partition.filter, mode)?;
            let may = filter::may_contain(&filter, hash);
            if !may.ok_or_else(|| self.malformed_error(partition.filter))? {
                self.cache.count_bloom_skip(partition.filter.offset);
                return Ok(None);
            }
        }
        let found = self.find_in(partition, ikey, mode)?;
        if found.is_none() && partition.filter.len > 0 {
            self.cache.count_bloom_false_positive(partition.filter.offset);
        }
        Ok(found)
    }

    /// Searches a partition whose filter, if any, admits the key.
    fn find_in(
        &self,
        partition: &Partition,
        ikey: &[u8],
        mode: ReadMode,
    ) -> Result<Option<Bytes>, BlockError> {
        let index = self.block(partition.index, mode)?;
        let bad_index = || self.malformed_error(partition.index);
        let found = entries::find_from(&index, ikey).map_err(|Malformed| bad_index())?;
        let Some(value) = found else { return Ok(None) };
        let handle = BlockHandle::take(&mut &index[value], partition.index.offset);
        let handle = handle.ok_or_else(bad_index)?;
        let block = self.block(handle, mode)?;
        let value =
            entries::find(&block, ikey).map_err(|Malformed| self.malformed_error(handle))?;
        Ok(value.map(|value| block.slice(value)))
    }

    /// The content of a block, read through the cache.
    fn block(&self, handle: BlockHandle, mode: ReadMode) -> Result<Bytes, BlockError> {
        if let Some(block) = self.cache.get(self.meta.id, handle.offset) {
            return Ok(block);
        }
        let block = self.read_block(handle, mode)?;
        self.cache.insert(self.meta.id, handle.offset, &block);
        Ok(block)
    }

    fn read_block(&self, handle: BlockHandle, mode: ReadMode) -> Result<Bytes, BlockError> {
        if let ReadMode::Limited(room) = mode {
            let bytes = self.bytes_to_open(handle)?;
            if bytes > room.max(INLINE_MAX_BLOCK) {
                return Err(BlockError::TooLong(bytes));
            }
        }
        let mut stored = vec![0; handle.len as usize];
        let max_len = match mode {
            ReadMode::Blocking | ReadMode::Limited(_) => {
                self.read(&mut stored, handle.offset)?;
                MAX_CONTENT_LEN
            }
            ReadMode::NonBlocking if stored.len() > INLINE_MAX_BLOCK => {
                return Err(BlockError::WouldBlock);
            }
            ReadMode::NonBlocking => {
                match self.file.try_read_exact_at(&mut stored, handle.offset) {
                    Ok(()) => INLINE_MAX_BLOCK,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        return Err(BlockError::WouldBlock);
                    }
                    Err(e) => return Err(BlockError::Failed(self.read_error(handle.offset, e))),
                }
            }
        };
        match block::open(Bytes::from(stored), self.seed, handle.offset, max_len) {
            Ok(OpenedBlock::Content(block)) => Ok(block),
            Ok(OpenedBlock::TooLong) => Err(BlockError::WouldBlock),
            Err(what) => Err(Error::corrupt(&self.name, handle.offset, what).into()),
        }
    }

    /// Memory in bytes that reading a block takes. The figure comes from the end of the block,
    /// which no checksum has verified at this point.
    fn bytes_to_open(&self, handle: BlockHandle) -> Result<usize, Error> {
        let stored = handle.len as usize;
        let Some(before) = stored.checked_sub(block::TAIL_LEN) else { return Ok(stored) };
        let mut tail = [0; block::TAIL_LEN];
        self.read(&mut tail, handle.offset + before as u64)?;
        Ok(stored + block::expansion(&tail))
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buf, offset).map_err(|e| self.read_error(offset, e))
    }

    fn read_error(&self, offset: u64, error: std::io::Error) -> Error {
        if error.kind() == ErrorKind::UnexpectedEof {
            Error::corrupt(&self.name, offset, "the file was cut short while it was open")
        } else {
            Error::io(IoOp::Read, &self.name, error)
        }
    }

    fn malformed_error(&self, handle: BlockHandle) -> Error {
        Error::corrupt(&self.name, handle.offset, "a block is not what a release writes")
    }
}
