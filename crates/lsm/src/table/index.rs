//! A decoded index block, which is one partition of a table's index: its data blocks, the latest
//! write time in each, and the keys that bound them. Index blocks decoded here bypass the cache.

use bytes::Buf;

use super::block::BlockHandle;
use super::entries::{Cursor, Malformed};
use super::iter::blocking_read_error;
use super::{ReadMode, Table};
use crate::error::Error;

/// The index entry of a data block.
pub(super) struct Block {
    pub(super) handle: BlockHandle,
    /// The greatest [`crate::RecordRef::latest`] in the block.
    pub(super) latest: u64,
    /// End of the block's key in [`Index::keys`].
    key_end: usize,
}

/// A decoded index block.
#[derive(Default)]
pub(super) struct Index {
    pub(super) blocks: Vec<Block>,
    keys: Vec<u8>,
}

impl Index {
    /// The separator between a block and the next one: at least the block's last key, less than the
    /// next block's first key.
    pub(super) fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.blocks[i - 1].key_end };
        &self.keys[start..self.blocks[i].key_end]
    }
}

/// Reads the index of a table's partition, bypassing the cache.
pub(super) fn read_index(table: &Table, partition: usize) -> Result<Index, Error> {
    let handle = table.top.partitions[partition].index;
    let content = table.read_block(handle, ReadMode::Blocking).map_err(blocking_read_error)?;
    let bad = |Malformed| table.malformed_error(handle);
    let (mut index, mut cursor) = (Index::default(), Cursor::default());
    cursor.set_block(content).map_err(bad)?;
    cursor.seek_to_first().map_err(bad)?;
    while cursor.valid() {
        let mut value = cursor.value();
        let data = BlockHandle::take(&mut value, handle.offset).ok_or_else(|| bad(Malformed))?;
        let latest = value.try_get_u64_le().map_err(|_| bad(Malformed))?;
        index.keys.extend_from_slice(cursor.key());
        index.blocks.push(Block { handle: data, latest, key_end: index.keys.len() });
        cursor.next().map_err(bad)?;
    }
    Ok(index)
}
