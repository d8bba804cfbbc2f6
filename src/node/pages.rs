//! A page of a range out of this node's store, for one of its own range reads or another node's:
//! a fresh short scan, so that no snapshot is held while a client is slow.
//!
//! A page ends by what was looked at, not only by what was found: over tombstones, or keys that
//! other nodes send, it may be empty and says where the range goes on.

use bytes::{BufMut, Bytes, BytesMut};
use cluster::{Page, PageRequest, Shared, Sieve};
use lsm::{Db, Space};

use crate::node::budget::{Budget, Held};
use crate::node::records;

/// Records that are looked at for one page: some milliseconds of work.
const PAGE_RECORDS: usize = 16 * 1024;

/// Bytes of keys and records that are looked at for one page: few enough to be read from a slow
/// disk within the least `--deadline`. One record is always looked at.
const PAGE_WORK_BYTES: usize = 2 << 20;

/// Largest page that may be asked for, in bytes.
const MAX_PAGE_BYTES: usize = 256 * 1024;

/// The part of the memory for pages that is for items larger than a page, as a divisor.
const LARGE_SHARE: usize = 4;

/// Memory for pages: what range reads hold at once.
///
/// ```text
///  total ─┬─ 3/4  pages, of this node and of others, for a range as long as it lasts
///         └─ 1/4  single items that are larger than a page
/// ```
///
/// Apart, because a range that holds pages of other nodes must be able to wait for a large item of
/// this one. An item that is larger than its part takes all of it: see [`Budget`].
#[derive(Debug)]
pub(crate) struct PageMemory {
    pages: Budget,
    large: Budget,
}

impl PageMemory {
    /// So many bytes altogether.
    pub(crate) fn new(total: usize) -> Self {
        let large = total / LARGE_SHARE;
        Self { pages: Budget::new(total - large), large: Budget::new(large) }
    }

    /// Room for pages, if there is any.
    pub(crate) fn take(&self, bytes: usize) -> Option<Held> {
        self.pages.take(bytes)
    }

    /// Bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.pages.held() + self.large.held()
    }
}

/// A page's keys and records with the memory that is set aside for them, until the last one is
/// sent.
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
    /// Other range reads hold all the memory there is for pages; some will come back.
    NoRoom,
    /// The store could not.
    Store(lsm::Error),
}

/// Reads a page.
pub(crate) fn read(
    db: &Db,
    shared: &Shared,
    memory: &PageMemory,
    request: &PageRequest,
) -> Result<Page, PageError> {
    let max_bytes = (request.max_bytes as usize).min(MAX_PAGE_BYTES);
    let mut held = memory.take(max_bytes).ok_or(PageError::NoRoom)?;
    let view = shared.view();
    let mut sieve = Sieve::new(&view.topology, shared.own, &request.filter);
    // What is absent is vouched for as of a moment before the scan begins.
    let sure = shared.vouching.sure_of_all();
    let mut bytes = BytesMut::new();
    let mut lens: Vec<(usize, usize)> = Vec::new();
    let mut next = None;
    let mut looked_at = 0;
    let (start, end) = (&request.start, request.end.as_deref());
    let mut scan = db.scan_since(Space::Data, start, end, request.filter.since());
    for seen in 0.. {
        let Some((key, record)) = scan.next().map_err(PageError::Store)? else { break };
        let len = key.len() + record.raw().len();
        let worked = seen == PAGE_RECORDS || seen > 0 && looked_at + len > PAGE_WORK_BYTES;
        let (copies, time) = (record.copies(), record.version().time);
        let is_value = record.kind() == lsm::Kind::Value;
        let wanted = !worked && sieve.wants(key, copies, time, is_value);
        let item = if wanted { len } else { 0 };
        let over = bytes.len() + item > max_bytes;
        if worked || over && !lens.is_empty() {
            next = Some(Bytes::copy_from_slice(key));
            break;
        }
        looked_at += len;
        if over {
            // A single item that is larger makes a page of its own.
            held = memory.large.take(item).ok_or(PageError::NoRoom)?;
        }
        if wanted {
            bytes.reserve(item);
            bytes.put_slice(key);
            bytes.put_slice(record.raw());
            lens.push((key.len(), record.raw().len()));
        }
    }
    if lens.is_empty() {
        return Ok(Page { items: Vec::new(), next, sure });
    }
    let mut rest = Bytes::from_owner(Items { bytes, _held: held });
    let items = lens.into_iter().map(|(key_len, record_len)| {
        let key = rest.split_to(key_len);
        let record = rest.split_to(record_len);
        (key, (records::CODEC.parse)(record).expect("the store's records are well-formed"))
    });
    Ok(Page { items: items.collect(), next, sure })
}

#[cfg(test)]
pub(crate) mod tests;
