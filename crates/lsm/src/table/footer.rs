//! The end of a table: top block, properties and footer, all read when the table is opened.
//!
//! ```text
//!  tail       := top block │ properties block │ footer
//!  footer     := top offset u64 │ top length u64 │ properties offset u64 │ properties length u64
//!                │ store id u64 │ table id u64 │ version u32 │ 0u32 │ "kvrmSST\n" │ check u64
//!  properties := entries u64 │ tombstones u64 │ raw bytes u64 │ max version (time u64, origin u32)
//!                │ smallest length u16, smallest │ largest length u16, largest
//!                │ earliest time u64 │ latest time u64 │ deleted │ expiring
//!  deleted, expiring := records u64 │ bytes u64 │ latest u64
//! ```
//!
//! `check` is the xxh3-64 (seed 0) of the tail before `check`. The manifest contains the same
//! value, which exposes the exchange of a table for another table. All future versions keep the
//! length and position of the footer and of its checksum, so that a newer table is distinguishable
//! from a damaged table.

use bytes::{Buf, Bytes};
use xxhash_rust::xxh3::xxh3_64;

use super::TableMeta;
use super::block::{self, BlockHandle, MAX_CONTENT_LEN, MAX_STORED_LEN, OpenedBlock};
use crate::disk::File;
use crate::error::{Error, IoOp};

const MAGIC: [u8; 8] = *b"kvrmSST\n";

/// The newest format version that this release reads, and the version that it writes.
const FORMAT_VERSION: u32 = 1;

const FOOTER_LEN: usize = 72;
const CHECK_LEN: usize = 8;

/// Offset of `raw bytes` in the properties. This field is the only one that the manifest lacks.
const RAW_BYTES_AT: usize = 16;

/// Bytes of the first read when a table is opened. Most tables have a shorter tail.
const TAIL_GUESS: u64 = 16 * 1024;

/// The verified end of a table.
pub(super) struct Tail {
    pub(super) top: BlockHandle,
    pub(super) properties: BlockHandle,
    /// The bytes from the start of the top block to the end of the file.
    bytes: Bytes,
}

impl Tail {
    /// The content of one of the tail's blocks.
    pub(super) fn block(&self, handle: BlockHandle, seed: u64, name: &str) -> Result<Bytes, Error> {
        let start = (handle.offset - self.top.offset) as usize;
        let stored = self.bytes.slice(start..start + handle.len as usize);
        match block::open(stored, seed, handle.offset, MAX_CONTENT_LEN) {
            Ok(OpenedBlock::Content(content)) => Ok(content),
            Ok(OpenedBlock::TooLong) => unreachable!("no content is longer than the longest"),
            Err(what) => Err(Error::corrupt(name, handle.offset, what)),
        }
    }
}

/// Appends the footer to the rest of the tail; returns its checksum.
pub(super) fn put_footer(
    tail: &mut Vec<u8>,
    top: BlockHandle,
    properties: BlockHandle,
    store_id: u64,
    table_id: u64,
) -> u64 {
    for word in [
        top.offset,
        u64::from(top.len),
        properties.offset,
        u64::from(properties.len),
        store_id,
        table_id,
    ] {
        tail.extend_from_slice(&word.to_le_bytes());
    }
    tail.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    tail.extend_from_slice(&0u32.to_le_bytes());
    tail.extend_from_slice(&MAGIC);
    let check = xxh3_64(tail);
    tail.extend_from_slice(&check.to_le_bytes());
    check
}

/// Reads and verifies the tail of the table that the manifest describes as `meta`.
pub(super) fn read_tail(
    file: &dyn File,
    name: &str,
    meta: &TableMeta,
    store_id: u64,
) -> Result<Tail, Error> {
    let len = meta.bytes;
    let Some(footer_at) = len.checked_sub(FOOTER_LEN as u64) else {
        return Err(Error::corrupt(name, 0, "too short to be a table"));
    };
    let bad = |what: String| Err(Error::corrupt(name, footer_at, what));
    let mut at = len.saturating_sub(TAIL_GUESS);
    let mut bytes = read(file, name, at, len)?;
    let footer = Footer::parse(&bytes);
    if footer.magic != MAGIC {
        return bad("not a table: the footer has no magic number".to_owned());
    }
    let Some((top, properties)) = footer.handles(footer_at) else {
        return bad("the footer's offsets do not fit the file".to_owned());
    };
    if top.offset < at {
        at = top.offset;
        bytes = read(file, name, at, len)?;
    }
    bytes.drain(..(top.offset - at) as usize);
    if xxh3_64(&bytes[..bytes.len() - CHECK_LEN]) != footer.check {
        let what = "the checksum of the table's end does not match";
        return Err(Error::corrupt(name, top.offset, what));
    }
    if footer.version > FORMAT_VERSION {
        let (file, found) = (name.to_owned(), footer.version);
        return Err(Error::NewerFormat { file, found, supported: FORMAT_VERSION });
    }
    if (footer.store_id, footer.table_id) != (store_id, meta.id) {
        return bad(format!(
            "the file is table {} of store {:016x}, not table {} of store {store_id:016x}",
            footer.table_id, footer.store_id, meta.id
        ));
    }
    if footer.check != meta.check {
        return bad("not the table that the manifest names: its check is another".to_owned());
    }
    Ok(Tail { top, properties, bytes: Bytes::from(bytes) })
}

/// A decoded footer: the last bytes of a table.
struct Footer {
    handles: [u64; 4],
    store_id: u64,
    table_id: u64,
    version: u32,
    magic: [u8; 8],
    check: u64,
}

impl Footer {
    /// Takes the footer from the end of `bytes`.
    fn parse(bytes: &[u8]) -> Self {
        let mut rest = &bytes[bytes.len() - FOOTER_LEN..];
        let handles = std::array::from_fn(|_| rest.get_u64_le());
        let (store_id, table_id) = (rest.get_u64_le(), rest.get_u64_le());
        let version = rest.get_u32_le();
        rest.advance(4);
        let mut magic = [0; 8];
        rest.copy_to_slice(&mut magic);
        Self { handles, store_id, table_id, version, magic, check: rest.get_u64_le() }
    }

    /// The handles of the top and properties blocks, which must lie side by side before the footer.
    fn handles(&self, footer_at: u64) -> Option<(BlockHandle, BlockHandle)> {
        let handle = |offset, len, end| {
            let handle = BlockHandle { offset, len: u32::try_from(len).ok()? };
            (handle.end() == Some(end) && handle.len as usize <= MAX_STORED_LEN).then_some(handle)
        };
        let [top_at, top_len, properties_at, properties_len] = self.handles;
        let top = handle(top_at, top_len, properties_at)?;
        Some((top, handle(properties_at, properties_len, footer_at)?))
    }
}

fn read(file: &dyn File, name: &str, from: u64, to: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; (to - from) as usize];
    file.read_exact_at(&mut bytes, from).map_err(|e| Error::io(IoOp::Read, name, e))?;
    Ok(bytes)
}

pub(super) fn put_properties(out: &mut Vec<u8>, meta: &TableMeta, raw_bytes: u64) {
    for count in [meta.entries, meta.values, raw_bytes, meta.max_version.time] {
        out.extend_from_slice(&count.to_le_bytes());
    }
    out.extend_from_slice(&meta.max_version.origin.to_le_bytes());
    for key in [&meta.smallest, &meta.largest] {
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(key);
    }
    out.extend_from_slice(&meta.min_write_time.to_le_bytes());
    out.extend_from_slice(&meta.max_write_time.to_le_bytes());
    for purgeable in [&meta.deleted, &meta.expiring] {
        for figure in [purgeable.records, purgeable.bytes, purgeable.latest] {
            out.extend_from_slice(&figure.to_le_bytes());
        }
    }
}

/// Returns true if the properties in a table agree with the manifest.
pub(super) fn are_properties_of(properties: &[u8], meta: &TableMeta) -> bool {
    let Some(mut raw_bytes) = properties.get(RAW_BYTES_AT..RAW_BYTES_AT + 8) else {
        return false;
    };
    let mut expected = Vec::with_capacity(properties.len());
    put_properties(&mut expected, meta, raw_bytes.get_u64_le());
    expected == properties
}
