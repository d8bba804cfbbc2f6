//! A page of a range out of this node's store, for one of its own range reads or another node's:
//! a fresh short scan, so that no snapshot is held while a client is slow.

use bytes::{BufMut, Bytes, BytesMut};
use cluster::{Page, PageRequest, Shared, Sieve};
use lsm::{Db, Space};

use crate::budget::{Budget, Held};
use crate::records;

/// Records that are looked at for one page: over a desert of tombstones, or of keys that others
/// send, a page ends early.
const PAGE_RECORDS: usize = 16 * 1024;

/// Largest page that may be asked for, in bytes.
const MAX_PAGE_BYTES: usize = 256 * 1024;

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
    budget: &Budget,
    request: &PageRequest,
) -> Result<Page, PageError> {
    let max_bytes = (request.max_bytes as usize).min(MAX_PAGE_BYTES);
    let mut held = budget.take(max_bytes).ok_or(PageError::NoRoom)?;
    let mut sieve = Sieve::new(&shared.topology, shared.own, &request.filter);
    // What is absent is vouched for as of a moment before the scan begins.
    let sure = shared.vouching.sure(None);
    let mut bytes = BytesMut::new();
    let mut lens: Vec<(usize, usize)> = Vec::new();
    let mut next = None;
    let (start, end) = (&request.start, request.end.as_deref());
    let mut scan = db.scan_since(Space::Data, start, end, request.filter.since());
    for seen in 0.. {
        let Some((key, record)) = scan.next().map_err(PageError::Store)? else { break };
        let wanted = sieve.wants(key, record.copies(), record.version().time);
        let item = if wanted { key.len() + record.raw().len() } else { 0 };
        let over = bytes.len() + item > max_bytes;
        if seen == PAGE_RECORDS || over && !lens.is_empty() {
            next = Some(Bytes::copy_from_slice(key));
            break;
        }
        if over {
            // A single item that is larger makes a page of its own.
            held.merge(budget.take(item).ok_or(PageError::NoRoom)?);
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
