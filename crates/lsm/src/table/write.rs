//! Writes a table sequentially, with at most one partition in memory.

use std::sync::Arc;

use bytes::Bytes;
use lz4_flex::block::CompressTable;
use xxhash_rust::xxh3::xxh3_64;

use super::block::{self, BlockHandle};
use super::entries::{EntriesBuilder, shared_prefix};
use super::{TableMeta, file_name, filter, footer};
use crate::batch::MAX_KEY_LEN;
use crate::disk::{Disk, File};
use crate::error::{Error, IoOp};
use record::RecordRef;

/// Bytes collected for one `write`, after which writeback starts: enough for sequential I/O on any
/// disk, too few to fill the disk's queue.
const WRITE_LEN: usize = 512 * 1024;

/// A partition ends when its index block reaches this many bytes: together with its checksum and
/// last key, the block should fit an allocation of 4 KiB.
const INDEX_LEN: usize = 4 * 1024 - 96;

/// A partition also ends when its filter reaches this many bytes: about 6,000 keys at 10 bits each.
const FILTER_LEN: usize = 7 * 1024;

/// Bytes of buffer memory that a builder keeps between blocks.
const KEPT_LEN: usize = 256 * 1024;

/// Parameters of a new table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableParams {
    /// Id of the table, never used before in this store.
    pub(crate) table_id: u64,
    /// The store's identity.
    pub(crate) store_id: u64,
    /// Target bytes of an uncompressed data block.
    pub(crate) block_bytes: usize,
    /// Bits of bloom filter per key; 0 = no filter.
    pub(crate) bloom_bits: u8,
    /// True = data blocks are compressed.
    pub(crate) compress: bool,
}

/// A table being written. Dropping the writer before [`TableWriter::finish`] leaves an unusable
/// file behind.
pub(crate) struct TableWriter {
    params: TableParams,
    out: Output,
    compressors: Option<Compressors>,
    data: EntriesBuilder,
    index: EntriesBuilder,
    top: EntriesBuilder,
    /// The last completed data block, and its greatest [`RecordRef::latest`]. The block is added to
    /// the index once the next key is known, because its index key depends on that key.
    last_block: Option<(BlockHandle, u64)>,
    /// The greatest [`RecordRef::latest`] in the open data block.
    block_latest: u64,
    /// Hashes of the partition's keys.
    hashes: Vec<u64>,
    /// True if the partition covers unreadable keys. Such a partition gets no filter.
    has_unreadable: bool,
    /// The greatest key of the unreadable ranges so far.
    last_unreadable: Vec<u8>,
    scratch: Vec<u8>,
    index_key: Vec<u8>,
    meta: TableMeta,
    raw_bytes: u64,
}

/// LZ4's hash tables, reused between blocks. The small table is faster to clear, but its offsets
/// reach only 64 KiB; longer content needs the large table.
struct Compressors {
    small: CompressTable,
    large: CompressTable,
}

impl Compressors {
    fn for_len(&mut self, len: usize) -> &mut CompressTable {
        if len < usize::from(u16::MAX) { &mut self.small } else { &mut self.large }
    }
}

/// The file of the table, with the bytes not yet written.
struct Output {
    file: Arc<dyn File>,
    name: String,
    seed: u64,
    written: u64,
    buf: Vec<u8>,
}

impl Output {
    fn position(&self) -> u64 {
        self.written + self.buf.len() as u64
    }

    fn encode_block(
        &mut self,
        content: &[u8],
        lz4: Option<&mut CompressTable>,
    ) -> Result<BlockHandle, Error> {
        let at = self.position();
        let handle = block::encode_block(&mut self.buf, content, self.seed, at, lz4);
        if self.buf.len() >= WRITE_LEN {
            self.write()?;
        }
        Ok(handle)
    }

    fn write(&mut self) -> Result<(), Error> {
        self.file
            .write_all_at(&self.buf, self.written)
            .map_err(|e| Error::io(IoOp::Write, &self.name, e))?;
        self.file.start_writeback(self.written, self.buf.len() as u64);
        self.written += self.buf.len() as u64;
        self.buf.clear();
        self.buf.shrink_to(WRITE_LEN + KEPT_LEN);
        Ok(())
    }
}

impl TableWriter {
    /// Creates the table's file; fails if it exists.
    pub(crate) fn create(disk: &dyn Disk, params: TableParams) -> Result<Self, Error> {
        let name = file_name(params.table_id);
        let file = disk.create(&name).map_err(|e| Error::io(IoOp::Create, &name, e))?;
        let seed = block::table_seed(params.store_id, params.table_id);
        let compressors = params
            .compress
            .then(|| Compressors { small: CompressTable::small(), large: CompressTable::large() });
        Ok(Self {
            params,
            out: Output { file, name, seed, written: 0, buf: Vec::with_capacity(WRITE_LEN) },
            compressors,
            data: EntriesBuilder::default(),
            index: EntriesBuilder::default(),
            top: EntriesBuilder::default(),
            last_block: None,
            block_latest: 0,
            hashes: Vec::new(),
            has_unreadable: false,
            last_unreadable: Vec::new(),
            scratch: Vec::new(),
            index_key: Vec::new(),
            meta: TableMeta { id: params.table_id, ..TableMeta::default() },
            raw_bytes: 0,
        })
    }

    /// Appends an internal key with its encoded record; keys must ascend strictly.
    pub(crate) fn add(&mut self, ikey: &[u8], raw: &[u8]) -> Result<(), Error> {
        assert!((1..=MAX_KEY_LEN + 1).contains(&ikey.len()), "a key without space, or too long");
        assert!(self.meta.entries == 0 || ikey > self.data.last(), "keys do not ascend");
        assert!(ikey > &self.last_unreadable[..], "a key among those that can't be read");
        let record = RecordRef::parse(raw).map_err(|bad| {
            let what = format!("a record to be written here: {}", bad.0);
            Error::corrupt(&self.out.name, self.out.position(), what)
        })?;
        let large = raw.len() > self.params.block_bytes / 2;
        let full = self.data.len_with(ikey, raw) > self.params.block_bytes;
        if !self.data.is_empty() && (large || full) {
            self.seal_data()?;
        }
        if let Some((handle, latest)) = self.last_block.take() {
            let last = self.data.last();
            let key = separator_len(last, ikey).map_or(last, |len| &ikey[..len]);
            self.index_key.clear();
            self.index_key.extend_from_slice(key);
            self.add_block_to_index(handle, latest)?;
        }
        self.add_record(ikey, record);
        self.data.add(ikey, raw);
        if large {
            self.seal_data()?;
        }
        Ok(())
    }

    /// Appends an unreadable block for the unreadable keys `first..=last` of the table `other`, so
    /// that a read of such a key still fails. Keys appended afterwards must be greater.
    pub(crate) fn add_unreadable(
        &mut self,
        (first, last): (&[u8], &[u8]),
        other: &TableMeta,
    ) -> Result<(), Error> {
        if !self.data.is_empty() {
            self.seal_data()?;
        }
        if let Some((handle, latest)) = self.last_block.take() {
            // An unreadable range starts with the last key of the previous block plus a zero byte.
            let before = first.strip_suffix(&[0]).filter(|before| *before >= self.data.last());
            self.index_key.clear();
            self.index_key.extend_from_slice(before.unwrap_or(self.data.last()));
            self.add_block_to_index(handle, latest)?;
        }
        if self.meta.smallest.is_empty() {
            self.meta.smallest = Bytes::copy_from_slice(first);
        }
        self.meta.widen_by(other);
        let mut wrong = Vec::new();
        let handle = block::encode_block(&mut wrong, &[], self.out.seed, self.out.position(), None);
        wrong.iter_mut().for_each(|byte| *byte = !*byte);
        self.out.buf.extend_from_slice(&wrong);
        self.has_unreadable = true;
        self.last_unreadable = last.to_vec();
        self.index_key.clear();
        self.index_key.extend_from_slice(last);
        self.add_block_to_index(handle, u64::MAX)
    }

    /// Estimated length in bytes of the file if the table ended here; the real length would be
    /// slightly greater.
    pub(crate) fn bytes_written(&self) -> u64 {
        let open = self.data.len() + self.index.len() + self.top.len();
        self.out.position() + open as u64
    }

    /// Writes the remaining blocks and the footer, and syncs the file. The file's name is durable
    /// only after a sync of the directory.
    pub(crate) fn finish(mut self) -> Result<TableMeta, Error> {
        assert!(!self.meta.smallest.is_empty(), "a table without entries");
        if !self.data.is_empty() {
            self.seal_data()?;
        }
        let last_unreadable = &self.last_unreadable[..];
        self.meta.largest = Bytes::copy_from_slice(self.data.last().max(last_unreadable));
        if let Some((handle, latest)) = self.last_block.take() {
            self.index_key.clear();
            self.index_key.extend_from_slice(self.data.last());
            self.add_block_to_index(handle, latest)?;
        }
        if !self.index.is_empty() {
            self.cut_partition()?;
        }
        self.write_tail()?;
        let Output { file, name, written, .. } = self.out;
        self.meta.bytes = written;
        file.sync_data().map_err(|e| Error::io(IoOp::Sync, &name, e))?;
        Ok(self.meta)
    }

    fn add_record(&mut self, ikey: &[u8], record: RecordRef<'_>) {
        self.meta.add_record(ikey, record);
        self.block_latest = self.block_latest.max(record.latest());
        self.raw_bytes += (ikey.len() + record.raw().len()) as u64;
        if self.params.bloom_bits > 0 {
            self.hashes.push(xxh3_64(&ikey[1..]));
        }
    }

    fn seal_data(&mut self) -> Result<(), Error> {
        let content = self.data.finish();
        let compressor = self.compressors.as_mut().map(|c| c.for_len(content.len()));
        let handle = self.out.encode_block(content, compressor)?;
        self.last_block = Some((handle, std::mem::take(&mut self.block_latest)));
        self.data.clear(KEPT_LEN);
        Ok(())
    }

    /// Adds a data block to the index under `index_key`, and ends the partition if it is full.
    fn add_block_to_index(&mut self, handle: BlockHandle, latest: u64) -> Result<(), Error> {
        self.scratch.clear();
        handle.put(&mut self.scratch);
        self.scratch.extend_from_slice(&latest.to_le_bytes());
        self.index.add(&self.index_key, &self.scratch);
        let filter_len = filter::len_for(self.hashes.len(), self.params.bloom_bits);
        if self.index.len() >= INDEX_LEN || filter_len >= FILTER_LEN {
            self.cut_partition()?;
        }
        Ok(())
    }

    /// Writes the filter and index of the partition and adds the partition to the top block.
    /// Neither block is compressed: filters do not compress, indexes hardly do, and both are read
    /// more often than data.
    fn cut_partition(&mut self) -> Result<(), Error> {
        let mut filter = BlockHandle::default();
        if self.params.bloom_bits > 0 && !std::mem::take(&mut self.has_unreadable) {
            filter::build(&self.hashes, self.params.bloom_bits, &mut self.scratch);
            filter = self.out.encode_block(&self.scratch, None)?;
        }
        let index = self.out.encode_block(self.index.finish(), None)?;
        self.scratch.clear();
        index.put(&mut self.scratch);
        filter.put(&mut self.scratch);
        self.top.add(self.index.last(), &self.scratch);
        self.index.clear(KEPT_LEN);
        self.hashes.clear();
        Ok(())
    }

    fn write_tail(&mut self) -> Result<(), Error> {
        self.out.write()?;
        let Output { buf: tail, seed, written: at, .. } = &mut self.out;
        let top = block::encode_block(tail, self.top.finish(), *seed, *at, None);
        self.scratch.clear();
        footer::put_properties(&mut self.scratch, &self.meta, self.raw_bytes);
        let properties_at = *at + tail.len() as u64;
        let properties = block::encode_block(tail, &self.scratch, *seed, properties_at, None);
        let (store_id, table_id) = (self.params.store_id, self.params.table_id);
        self.meta.check = footer::put_footer(tail, top, properties, store_id, table_id);
        self.out.write()
    }
}

/// A short separator of two neighboring keys: `last` ≤ separator < `next`. `Some(len)` stands for
/// the first `len` bytes of `next`, `None` for `last`.
fn separator_len(last: &[u8], next: &[u8]) -> Option<usize> {
    let len = shared_prefix(last, next) + 1;
    (len < next.len() && len < last.len()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_lie_between_their_neighbours() {
        let keys = [&b"a"[..], b"ab", b"abcdef", b"abd", b"abdxyz", b"b", b"baaaa", b"caaaa"];
        for pair in keys.windows(2) {
            let (last, next) = (pair[0], pair[1]);
            let key = separator_len(last, next).map_or(last, |len| &next[..len]);
            assert!(last <= key && key < next, "{last:?} {key:?} {next:?}");
            assert!(key.len() <= last.len());
        }
        assert_eq!(separator_len(b"baaaa", b"caaaa"), Some(1));
    }
}
