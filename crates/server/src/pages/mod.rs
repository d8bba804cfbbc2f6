//! Pages of a key range from this node's store, for range reads of this node and of other nodes.
//! Each page is read by a new, short scan, so that a slow client pins no snapshot.
//!
//! A page ends after a bounded amount of work, not only when it is full. A page over many
//! tombstones, or over many keys that other nodes send, may therefore have no items, and only
//! return the key at which the range continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::store::store_error;
use bytes::{BufMut, Bytes, BytesMut};
use lsm::{Engine, Record, Space};
use protocol::{Filter, OpId, PAGE_BYTES, Page, PageRequest, PartitionFilter, Shared, StoreError};

/// Largest page that may be requested, in bytes.
const MAX_PAGE_BYTES: usize = 256 * 1024;

/// Error if other range reads have reserved all memory for pages. A retry succeeds once enough of
/// it is released.
const NO_ROOM: StoreError = StoreError::Busy("too many concurrent range reads");

/// Limit on the work for one page; one record is always visited.
#[derive(Debug, Clone, Copy)]
pub struct PageWork {
    /// The number of records.
    pub records: usize,
    /// Bytes of keys and records.
    pub bytes: usize,
}

impl PageWork {
    /// The limit of running nodes: some milliseconds of work, and few enough bytes to be read from
    /// a slow disk within the least `--deadline`.
    pub const SERVING: Self = Self { records: 16 * 1024, bytes: 2 << 20 };
}

/// Reads pages into bounded memory, shared by all range reads.
///
/// ```text
///  total ─┬─ 1/2  ranges of this node: a page of each node, for as long as the range lasts
///         ├─ 1/4  pages for other nodes, until they are sent
///         └─ 1/4  single items that are larger than a page
/// ```
///
/// The parts are separate because a range keeps its reservation while it waits for pages of other
/// nodes: in a common pool, the ranges of two nodes could take all memory on both and wait for each
/// other forever. An item larger than its part takes all of it.
#[derive(Debug)]
pub struct Pages {
    work: PageWork,
    ranges: Arc<Part>,
    /// Number of ranges of this node that were refused.
    refused_ranges: AtomicU64,
    for_other_nodes: Arc<Part>,
    large: Arc<Part>,
}

/// A part of the memory, in bytes. A reservation larger than the part gets the whole part, once the
/// part has no other reservation.
#[derive(Debug)]
struct Part {
    free: AtomicUsize,
    total: usize,
}

impl Part {
    fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { free: AtomicUsize::new(total), total })
    }

    fn take(self: &Arc<Self>, bytes: usize) -> Option<PageReservation> {
        let bytes = bytes.min(self.total);
        let rest = |free: usize| free.checked_sub(bytes);
        // Relaxed: the counter guards no other memory.
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok()?;
        Some(PageReservation { part: Arc::clone(self), bytes })
    }

    fn reserved_bytes(&self) -> usize {
        self.total - self.free.load(Ordering::Relaxed)
    }
}

/// A reservation of memory for pages, released on drop.
#[derive(Debug)]
pub(crate) struct PageReservation {
    part: Arc<Part>,
    bytes: usize,
}

impl Drop for PageReservation {
    fn drop(&mut self) {
        let free = self.part.free.fetch_add(self.bytes, Ordering::Relaxed);
        assert!(free + self.bytes <= self.part.total, "no more is given back than was taken");
    }
}

/// The bytes of a page with their reservation, which is released when the last item is dropped.
struct Items {
    bytes: BytesMut,
    _room: Option<PageReservation>,
}

impl AsRef<[u8]> for Items {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Pages {
    /// Divides `total` bytes of memory into the parts.
    pub fn new(total: usize, work: PageWork) -> Self {
        let part = total / 4;
        let [ranges, for_other_nodes, large] = [total - 2 * part, part, part].map(Part::new);
        Self { work, ranges, refused_ranges: AtomicU64::new(0), for_other_nodes, large }
    }

    /// Reserves memory for a range that reads from `nodes` nodes; `None` = too little is free.
    pub(crate) fn reserve_for_range(&self, nodes: usize) -> Option<PageReservation> {
        let reserved = self.ranges.take(nodes * PAGE_BYTES as usize);
        if reserved.is_none() {
            self.refused_ranges.fetch_add(1, Ordering::Relaxed);
        }
        reserved
    }

    /// Returns how often a range of this node was refused, because too little memory was free.
    pub fn refused_ranges(&self) -> u64 {
        self.refused_ranges.load(Ordering::Relaxed)
    }

    /// Returns the bytes reserved now.
    pub fn reserved_bytes(&self) -> usize {
        self.ranges.reserved_bytes()
            + self.for_other_nodes.reserved_bytes()
            + self.large.reserved_bytes()
    }

    /// Reads a page for `op`. May wait for the disk.
    pub fn read(
        &self,
        engine: &Engine,
        shared: &Shared,
        op: OpId,
        request: &PageRequest,
    ) -> Result<Page, StoreError> {
        let max_bytes = (request.max_bytes as usize).min(MAX_PAGE_BYTES);
        let mut room = match op {
            // A range of this node already has a reservation.
            OpId::Slot(_) if request.max_bytes <= PAGE_BYTES => None,
            _ => Some(self.for_other_nodes.take(max_bytes).ok_or(NO_ROOM)?),
        };
        let (placement_time, view) = (shared.placement_time(), shared.view());
        let mut filter = PartitionFilter::new(&view, shared.own, placement_time, &request.filter);
        // An absence is authoritative as of a moment before the scan begins.
        let (space, authoritative) = match request.filter {
            Filter::Remembered { .. } => (Space::Idempotency, shared.remembers_all()),
            _ => (Space::Data, shared.membership.state.is_authoritative_for_all()),
        };
        let mut bytes = BytesMut::new();
        let mut lens: Vec<(usize, usize)> = Vec::new();
        let mut next = None;
        let mut processed_bytes = 0;
        let (start, end) = (&request.start, request.end.as_deref());
        let mut scan = engine.snapshot().scan_since(space, start, end, request.filter.since());
        for seen in 0.. {
            let read = scan.next().map_err(|error| store_error(&error))?;
            let Some((key, record)) = read else { break };
            let len = key.len() + record.raw().len();
            let PageWork { records: most, bytes: most_bytes } = self.work;
            let worked = seen == most || seen > 0 && processed_bytes + len > most_bytes;
            let (rank, copies) = (record.rank(), record.copies());
            let wanted = !worked && filter.wants(key, copies, rank);
            let item = if wanted { len } else { 0 };
            let over = bytes.len() + item > max_bytes;
            if worked || over && !lens.is_empty() {
                next = Some(Bytes::copy_from_slice(key));
                break;
            }
            processed_bytes += len;
            if over {
                // A single item that is too large makes a page of its own.
                room = Some(self.large.take(item).ok_or(NO_ROOM)?);
            }
            if wanted {
                bytes.reserve(item);
                bytes.put_slice(key);
                bytes.put_slice(record.raw());
                lens.push((key.len(), record.raw().len()));
            }
        }
        let items = if lens.is_empty() { Vec::new() } else { items(bytes, room, &lens) };
        Ok(Page { items, next, authoritative })
    }
}

/// Splits a page into its keys and records; dropping the last of them releases the reservation.
fn items(
    bytes: BytesMut,
    room: Option<PageReservation>,
    lens: &[(usize, usize)],
) -> Vec<(Bytes, protocol::Record)> {
    let mut rest = Bytes::from_owner(Items { bytes, _room: room });
    let cut = |(key_len, record_len): &(usize, usize)| {
        let key = rest.split_to(*key_len);
        let record = rest.split_to(*record_len);
        (key, Record::parse(record).expect("the store's records are well-formed"))
    };
    lens.iter().map(cut).collect()
}

#[cfg(test)]
mod tests;
