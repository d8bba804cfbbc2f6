//! The stored form of a block, and its location.
//!
//! ```text
//!  raw := content │ 0u8 │ check u64
//!  lz4 := compressed content │ content length u32 │ 1u8 │ check u64
//! ```
//!
//! `check` is the xxh3-64 of the block's bytes before `check`. The seed is the table's seed (a hash
//! of the ids of store and table) plus the block's offset, so a block from another offset or table
//! is detected like a flipped bit. The checksum is verified before any other byte is interpreted.

use bytes::Bytes;
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::entries::{decode_varint, put_varint};
use crate::batch::MAX_KEY_LEN;
use record::MAX_RECORD_LEN;

const KIND_RAW: u8 = 0;
const KIND_LZ4: u8 = 1;

const CHECK_LEN: usize = 8;
const KIND_LEN: usize = 1;
const CONTENT_LEN_LEN: usize = 4;

/// Bytes at the end of a compressed block, including the length of its content.
pub(super) const TAIL_LEN: usize = CONTENT_LEN_LEN + KIND_LEN + CHECK_LEN;

/// Longest content in bytes: a record of maximum length under the longest key, or the top block of
/// a table of terabytes. Limits the memory that a length read from a file can allocate.
pub(super) const MAX_CONTENT_LEN: usize = MAX_RECORD_LEN + 2 * MAX_KEY_LEN;

/// Longest stored block in bytes: content is stored raw unless compression shortens it.
pub(super) const MAX_STORED_LEN: usize = MAX_CONTENT_LEN + KIND_LEN + CHECK_LEN;

/// A block is stored compressed if compression saves at least 1/`MIN_SAVED_PART` of its bytes. A
/// smaller saving does not justify the decompression at every read.
const MIN_SAVED_PART: usize = 8;

/// Location of a block in its file, including the checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockHandle {
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl BlockHandle {
    /// Appends offset (low and high 32 bits) and length as varints.
    pub(super) fn put(self, buf: &mut Vec<u8>) {
        put_varint(buf, self.offset as u32);
        put_varint(buf, (self.offset >> 32) as u32);
        put_varint(buf, self.len);
    }

    /// Decodes a handle at the front of `bytes`, and advances `bytes` past it. Returns `None` if
    /// the handle is malformed, or its block is too long or ends after `limit`.
    pub(super) fn take(bytes: &mut &[u8], limit: u64) -> Option<Self> {
        let (low, at) = decode_varint(bytes, 0)?;
        let (high, at) = decode_varint(bytes, at)?;
        let (len, at) = decode_varint(bytes, at)?;
        *bytes = &bytes[at..];
        let handle = Self { offset: u64::from(high) << 32 | u64::from(low), len };
        (handle.end()? <= limit && len as usize <= MAX_STORED_LEN).then_some(handle)
    }

    /// Offset of the first byte after the block; `None` = the sum overflows.
    pub(super) fn end(self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.len))
    }
}

/// The seed of all checksums of a table.
pub(super) fn table_seed(store_id: u64, table_id: u64) -> u64 {
    let mut ids = [0; 16];
    ids[..8].copy_from_slice(&store_id.to_le_bytes());
    ids[8..].copy_from_slice(&table_id.to_le_bytes());
    xxh3_64(&ids)
}

fn checksum_of(stored: &[u8], seed: u64, offset: u64) -> u64 {
    xxh3_64_with_seed(stored, seed.wrapping_add(offset))
}

/// Appends `content` to `out` as the block that will be stored at `offset`, compressed if there is
/// a `compressor` and compression saves enough.
pub(super) fn encode_block(
    out: &mut Vec<u8>,
    content: &[u8],
    seed: u64,
    offset: u64,
    compressor: Option<&mut CompressTable>,
) -> BlockHandle {
    assert!(content.len() <= MAX_CONTENT_LEN, "a block over its bound");
    let start = out.len();
    if compressor.is_some_and(|table| compress(out, content, table)) {
        out.extend_from_slice(&(content.len() as u32).to_le_bytes());
        out.push(KIND_LZ4);
    } else {
        out.extend_from_slice(content);
        out.push(KIND_RAW);
    }
    let check = checksum_of(&out[start..], seed, offset);
    out.extend_from_slice(&check.to_le_bytes());
    BlockHandle { offset, len: (out.len() - start) as u32 }
}

/// Appends `content` compressed and returns true; appends nothing if compression saves too little.
fn compress(out: &mut Vec<u8>, content: &[u8], table: &mut CompressTable) -> bool {
    let start = out.len();
    out.resize(start + get_maximum_output_size(content.len()), 0);
    let len = compress_into_with_table(content, &mut out[start..], table)
        .expect("the output has room for the worst case");
    let saves_enough = len + CONTENT_LEN_LEN <= content.len() - content.len() / MIN_SAVED_PART;
    out.truncate(if saves_enough { start + len } else { start });
    saves_enough
}

/// A verified block.
pub(super) enum OpenedBlock {
    /// The block's content, decompressed.
    Content(Bytes),
    /// The content is longer than requested.
    TooLong,
}

/// Verifies and decodes the block stored at `offset`. Content longer than `max_len` is not
/// decompressed.
pub(super) fn open(
    stored: Bytes,
    seed: u64,
    offset: u64,
    max_len: usize,
) -> Result<OpenedBlock, &'static str> {
    let Some((rest, check)) = stored.split_last_chunk::<CHECK_LEN>() else {
        return Err("a block is shorter than its check");
    };
    if u64::from_le_bytes(*check) != checksum_of(rest, seed, offset) {
        return Err("a block's checksum does not match");
    }
    match rest.split_last() {
        Some((&KIND_RAW, content)) => {
            let len = content.len();
            Ok(if len > max_len {
                OpenedBlock::TooLong
            } else {
                OpenedBlock::Content(stored.slice(..len))
            })
        }
        Some((&KIND_LZ4, rest)) => decompress(rest, max_len),
        _ => Err("a block is of no known kind"),
    }
}

/// Bytes of memory that opening a block takes in addition to its stored bytes: the length of the
/// decompressed content, taken from the end of the block.
pub(super) fn expansion(tail: &[u8; TAIL_LEN]) -> usize {
    let [a, b, c, d, kind, ..] = *tail;
    if kind == KIND_LZ4 {
        (u32::from_le_bytes([a, b, c, d]) as usize).min(MAX_CONTENT_LEN)
    } else {
        0
    }
}

fn decompress(rest: &[u8], max_len: usize) -> Result<OpenedBlock, &'static str> {
    let Some((compressed, len)) = rest.split_last_chunk::<CONTENT_LEN_LEN>() else {
        return Err("a compressed block has no length");
    };
    let len = u32::from_le_bytes(*len) as usize;
    if len > MAX_CONTENT_LEN {
        return Err("a compressed block says that it is longer than any");
    }
    if len > max_len {
        return Ok(OpenedBlock::TooLong);
    }
    let mut content = vec![0; len];
    match decompress_into(compressed, &mut content) {
        Ok(written) if written == len => Ok(OpenedBlock::Content(Bytes::from(content))),
        _ => Err("a block does not decompress to its length"),
    }
}
