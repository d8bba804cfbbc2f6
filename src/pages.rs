//! A range, read page by page: each page is a fresh short scan after the last key of the one
//! before, so that no snapshot is held while a client is slow.

use bytes::{BufMut, Bytes, BytesMut};
use lsm::{Db, Space};

use crate::budget::{Budget, Held};
use crate::clock::wall_micros;
use crate::store::is_live;

/// Bytes of one page. A single item that is larger makes a page of its own.
const PAGE_BYTES: usize = 64 * 1024;

/// Records that are looked at for one page: over a desert of tombstones, a page ends empty.
const PAGE_RECORDS: usize = 16 * 1024;

/// `start ≤ key < end`; no `end` = to the last key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    /// The first key, if it exists.
    pub(crate) start: Vec<u8>,
    /// The first key that is out.
    pub(crate) end: Option<Vec<u8>>,
}

impl Range {
    /// A range without keys.
    pub(crate) fn empty() -> Self {
        Self { start: Vec::new(), end: Some(Vec::new()) }
    }
}

/// Part of a range: its items as they are sent, and where it goes on.
#[derive(Debug)]
pub(crate) struct Page {
    /// `<key>\n<value>` after `<key>\n<value>`.
    bytes: Bytes,
    /// The length of each, in reverse.
    lens: Vec<u32>,
    /// What is left of the range.
    pub(crate) rest: Option<Range>,
}

/// A page's items with the memory that is set aside for them, until the last one is sent. A stream
/// that waits for memory must hold none, or enough of them would wait for each other.
struct Items {
    bytes: BytesMut,
    _held: Held,
}

impl AsRef<[u8]> for Items {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why there is no page.
#[derive(Debug)]
pub(crate) enum PageError {
    /// Other range reads hold all the memory there is for pages; some will come back. The range
    /// is handed back, to be asked for again.
    NoRoom(Range),
    /// The store could not.
    Store(lsm::Error),
}

impl Page {
    /// Takes the next item.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let len = self.lens.pop()?;
        Some(self.bytes.split_to(len as usize))
    }

    /// Whether most of it was taken.
    pub(crate) fn is_low(&self) -> bool {
        self.bytes.len() <= PAGE_BYTES / 4
    }
}

/// Reads the first page of `range`.
pub(crate) fn read(db: &Db, budget: &Budget, range: Range) -> Result<Page, PageError> {
    let Some(mut held) = budget.take(PAGE_BYTES) else { return Err(PageError::NoRoom(range)) };
    let mut bytes = BytesMut::new();
    let mut lens = Vec::new();
    let mut rest = None;
    let now_ms = wall_micros() / 1000;
    let mut scan = db.scan(Space::Data, &range.start, range.end.as_deref());
    for seen in 0.. {
        let Some((key, record)) = scan.next().map_err(PageError::Store)? else { break };
        let item = if is_live(&record, now_ms) { key.len() + 1 + record.value().len() } else { 0 };
        let over = bytes.len() + item > PAGE_BYTES;
        if seen == PAGE_RECORDS || over && !lens.is_empty() {
            rest = Some(Range { start: key.to_vec(), end: range.end });
            break;
        }
        if over {
            let Some(more) = budget.take(item) else { return Err(PageError::NoRoom(range)) };
            held.merge(more);
        }
        if item > 0 {
            bytes.reserve(item);
            bytes.put_slice(key);
            bytes.put_u8(b'\n');
            bytes.put_slice(record.value());
            lens.push(item as u32);
        }
    }
    lens.reverse();
    let items = Items { bytes, _held: held };
    let bytes = if lens.is_empty() { Bytes::new() } else { Bytes::from_owner(items) };
    Ok(Page { bytes, lens, rest })
}

#[cfg(test)]
mod tests;
