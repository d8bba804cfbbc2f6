//! An arena skiplist with one writer and any number of readers that never wait.
//!
//! ```text
//!  node (8-aligned offset in the arena)
//!  ├ sequence u64 │ record length u32 │ key length u16 │ height u8 │ - ┤ next[height] u32 ┤ key ┤ record ┤
//! ```
//!
//! Order: key ascending, then newest record first, so that the first node of a key answers a read
//! and a snapshot skips at most the nodes written after it. Nothing is ever removed or moved; the
//! arena goes as a whole.
//!
//! Beside the list lies a hash index from keys to their newest node: a point read costs two cache
//! misses instead of one for each of some twenty hops, and most keys that are absent cost one. The
//! list stays what walks and seeks use, and what answers once the index is full.
//!
//! Algorithm: W. Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees", CACM 33(6),
//! 1990, with branching 4. Why our own and `unsafe`: one allocation a memtable instead of one a
//! record, exact byte accounting for the memory ledger, and no epoch pinning on reads;
//! `docs/benchmarks.md` has the figures against crossbeam-skiplist.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cmp::Ordering;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering as Atomic};

use crate::record::{RecordRef, set_late};

/// Levels of the list: 4^12 = 16 M nodes before searches grow longer.
const MAX_HEIGHT: usize = 12;
/// Bytes of a node before its tower.
const NODE_HEAD: usize = 16;
const ALIGN: usize = 8;
/// Offset of the head node, which has no key. Offset 0 stands for "no node".
const HEAD: u32 = ALIGN as u32;
const HEAD_NODE_LEN: usize = NODE_HEAD + MAX_HEIGHT * 4;
/// Offset of the index.
const INDEX: usize = HEAD as usize + HEAD_NODE_LEN;

/// What an insertion met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// A new node.
    New,
    /// The very same record was there already; nothing was added.
    Duplicate,
    /// A new node, beside one with the same version and different content.
    Conflict,
}

/// The list itself; shared with readers.
pub(super) struct Skiplist {
    arena: NonNull<u8>,
    capacity: usize,
    used: AtomicUsize,
    height: AtomicUsize,
    /// Slots of the index, a power of two. They lie in the arena after the head node, each the
    /// offset of the newest node of a key, by open addressing; 0 = free.
    slots: usize,
    /// Keys are missing from the index: it had no more room.
    index_overflowed: AtomicBool,
}

/// Bytes of arena for each slot of the index: with nodes of 100 bytes and more it fills to two
/// thirds at most, and it takes a sixteenth of the memtable.
const ARENA_PER_SLOT: usize = 64;

// SAFETY: readers only follow offsets that the single writer (the one `Inserter`) published with a
// release store after it had written the node, and a published node's bytes never change.
unsafe impl Send for Skiplist {}
// SAFETY: as above.
unsafe impl Sync for Skiplist {}

impl Drop for Skiplist {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and no reader outlives the list.
        unsafe { dealloc(self.arena.as_ptr(), layout(self.capacity)) }
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGN).expect("capacity is bounded by Options")
}

/// A place in the index.
enum Slot<'a> {
    /// The key's own, with its newest node.
    Taken(&'a AtomicU32, Node<'a>),
    /// The key is not in the index.
    Free(&'a AtomicU32),
}

/// The one writer of a list.
pub(super) struct Inserter {
    list: Arc<Skiplist>,
    random: u64,
    /// Keys in the index, and how many it takes before probing gets long.
    indexed: usize,
    indexed_bound: usize,
}

impl Skiplist {
    /// A list with room for `capacity` bytes of nodes. The memory is touched as it fills.
    pub(super) fn new(capacity: usize) -> (Arc<Self>, Inserter) {
        let capacity = capacity.max(4096);
        let slots = 1 << (capacity / ARENA_PER_SLOT).ilog2();
        let start = (INDEX + slots * 4).next_multiple_of(ALIGN);
        let capacity = start + capacity;
        assert!(capacity < u32::MAX as usize, "offsets are 32 bits");
        // SAFETY: the layout's size is not zero.
        let arena = unsafe { alloc_zeroed(layout(capacity)) };
        let Some(arena) = NonNull::new(arena) else { handle_alloc_error(layout(capacity)) };
        let list = Arc::new(Self {
            arena,
            capacity,
            used: AtomicUsize::new(start),
            height: AtomicUsize::new(1),
            slots,
            index_overflowed: AtomicBool::new(false),
        });
        let indexed_bound = slots / 4 * 3;
        (
            Arc::clone(&list),
            Inserter { list, random: 0x9e37_79b9_7f4a_7c15, indexed: 0, indexed_bound },
        )
    }

    /// Bytes taken so far, the index included.
    pub(super) fn used(&self) -> usize {
        self.used.load(Atomic::Relaxed)
    }

    /// Bytes left.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.used()
    }

    /// The most that one node with such a key and record can take.
    pub(super) fn node_bound(key_len: usize, record_len: usize) -> usize {
        NODE_HEAD + MAX_HEIGHT * 4 + key_len + record_len + ALIGN
    }

    /// The newest node of `key`, whose hash is `hash`.
    pub(super) fn newest(&self, key: &[u8], hash: u64) -> Option<Node<'_>> {
        match self.slot(key, hash) {
            Slot::Taken(_, node) => Some(node),
            Slot::Free(_) if !self.index_overflowed.load(Atomic::Acquire) => None,
            Slot::Free(_) => self.seek(key).filter(|node| node.key() == key),
        }
    }

    /// The slot that `key` has, or would get. There is always a free one: the index never fills.
    fn slot(&self, key: &[u8], hash: u64) -> Slot<'_> {
        let mask = self.slots - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.index(at);
            match slot.load(Atomic::Acquire) {
                0 => return Slot::Free(slot),
                offset if self.node(offset).key() == key => {
                    return Slot::Taken(slot, self.node(offset));
                }
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The first node at or after `key` (of several with that key, the newest).
    pub(super) fn seek(&self, key: &[u8]) -> Option<Node<'_>> {
        let mut node = HEAD;
        let mut level = self.height.load(Atomic::Acquire) - 1;
        loop {
            let next = self.next_at(node, level);
            if next != 0 && self.node(next).key() < key {
                node = next;
            } else if level == 0 {
                return (next != 0).then(|| self.node(next));
            } else {
                level -= 1;
            }
        }
    }

    /// The first node of all.
    pub(super) fn first(&self) -> Option<Node<'_>> {
        let next = self.next_at(HEAD, 0);
        (next != 0).then(|| self.node(next))
    }

    /// A node by the offset that [`Node::offset`] gave for this very list.
    pub(super) fn node(&self, offset: u32) -> Node<'_> {
        debug_assert!((offset as usize) < self.used());
        Node { list: self, offset }
    }

    fn at(&self, offset: u32) -> *mut u8 {
        // SAFETY: offsets come from the writer's bump allocation and stay below `capacity`.
        unsafe { self.arena.as_ptr().add(offset as usize) }
    }

    fn index(&self, slot: usize) -> &AtomicU32 {
        debug_assert!(slot < self.slots);
        // SAFETY: the index lies in the arena between the head node and the first node, 4-aligned,
        // zeroed at first and only ever accessed as atomics.
        unsafe { &*self.arena.as_ptr().add(INDEX + slot * 4).cast::<AtomicU32>() }
    }

    fn link(&self, node: u32, level: usize) -> &AtomicU32 {
        // SAFETY: nodes are 8-aligned and their tower, `level` < height, lies within the arena;
        // links are only ever accessed as atomics once the node is reachable.
        unsafe { &*self.at(node).add(NODE_HEAD + level * 4).cast::<AtomicU32>() }
    }

    fn next_at(&self, node: u32, level: usize) -> u32 {
        self.link(node, level).load(Atomic::Acquire)
    }
}

impl Inserter {
    /// Adds a record under `key`. The caller has made sure of room (see [`Skiplist::node_bound`]).
    pub(super) fn insert(
        &mut self,
        key: &[u8],
        hash: u64,
        record: RecordRef<'_>,
        late: bool,
        sequence: u64,
    ) -> Inserted {
        let mut before = [HEAD; MAX_HEIGHT];
        let outcome = self.find(key, record, &mut before);
        if outcome == Inserted::Duplicate {
            return outcome;
        }
        let height = self.random_height();
        let node = self.write_node(key, record, late, sequence, height);
        let list = &*self.list;
        if height > list.height.load(Atomic::Relaxed) {
            list.height.store(height, Atomic::Release);
        }
        for (level, &previous) in before.iter().enumerate().take(height) {
            let next = list.link(previous, level).load(Atomic::Relaxed);
            list.link(node, level).store(next, Atomic::Relaxed);
            list.link(previous, level).store(node, Atomic::Release);
        }
        match list.slot(key, hash) {
            Slot::Taken(slot, newest) if newest.record().order(&record).is_lt() => {
                slot.store(node, Atomic::Release);
            }
            Slot::Taken(..) => {}
            Slot::Free(slot) if self.indexed < self.indexed_bound => {
                self.indexed += 1;
                slot.store(node, Atomic::Release);
            }
            Slot::Free(_) => list.index_overflowed.store(true, Atomic::Release),
        }
        outcome
    }

    /// Fills in the last node before the new one on every level.
    fn find(&self, key: &[u8], record: RecordRef<'_>, before: &mut [u32; MAX_HEIGHT]) -> Inserted {
        let list = &*self.list;
        let mut outcome = Inserted::New;
        let mut node = HEAD;
        let mut last_seen = 0;
        for level in (0..list.height.load(Atomic::Relaxed)).rev() {
            loop {
                let next = list.link(node, level).load(Atomic::Relaxed);
                // A node already found to come after need not be compared again lower down.
                if next == 0 || next == last_seen {
                    break;
                }
                let there = list.node(next);
                let order = there.key().cmp(key).then_with(|| {
                    let there = there.record();
                    if there.version() == record.version() && there.order(&record).is_ne() {
                        outcome = Inserted::Conflict;
                    }
                    there.order(&record).reverse()
                });
                match order {
                    Ordering::Less => node = next,
                    Ordering::Equal => return Inserted::Duplicate,
                    Ordering::Greater => {
                        last_seen = next;
                        break;
                    }
                }
            }
            before[level] = node;
        }
        outcome
    }

    fn write_node(
        &mut self,
        key: &[u8],
        record: RecordRef<'_>,
        late: bool,
        sequence: u64,
        height: usize,
    ) -> u32 {
        let list = &*self.list;
        let raw = record.raw();
        let start = list.used.load(Atomic::Relaxed);
        let key_at = NODE_HEAD + height * 4;
        let len = (key_at + key.len() + raw.len()).next_multiple_of(ALIGN);
        assert!(start + len <= list.capacity, "the caller makes sure of room");
        let offset = start as u32;
        let at = list.at(offset);
        // SAFETY: `start..start + len` lies within the arena (asserted), belongs to no published
        // node, and this is the only writer; readers see it only after a release store of a link.
        unsafe {
            at.cast::<u64>().write(sequence);
            at.add(8).cast::<u32>().write(raw.len() as u32);
            at.add(12).cast::<u16>().write(key.len() as u16);
            at.add(14).write(height as u8);
            at.add(key_at).copy_from_nonoverlapping(key.as_ptr(), key.len());
            let record_at = at.add(key_at + key.len());
            record_at.copy_from_nonoverlapping(raw.as_ptr(), raw.len());
            set_late(std::slice::from_raw_parts_mut(record_at, raw.len()), late);
        }
        list.used.store(start + len, Atomic::Relaxed);
        offset
    }

    /// 1 with probability 3/4, 2 with 3/16, … (branching 4).
    fn random_height(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (1 + (self.random.trailing_ones() / 2) as usize).min(MAX_HEIGHT)
    }
}

/// One record in the list.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    list: &'a Skiplist,
    offset: u32,
}

impl<'a> Node<'a> {
    pub(super) fn offset(&self) -> u32 {
        self.offset
    }

    /// Sequence of the WAL batch that brought it.
    pub(super) fn sequence(&self) -> u64 {
        // SAFETY: a published node's head is initialised and never changes.
        unsafe { self.list.at(self.offset).cast::<u64>().read() }
    }

    pub(super) fn key(&self) -> &'a [u8] {
        // SAFETY: as written by `write_node`; immutable as long as the list lives.
        unsafe {
            let at = self.list.at(self.offset);
            let len = usize::from(at.add(12).cast::<u16>().read());
            let height = usize::from(at.add(14).read());
            std::slice::from_raw_parts(at.add(NODE_HEAD + height * 4), len)
        }
    }

    pub(super) fn record(&self) -> RecordRef<'a> {
        // SAFETY: as written by `write_node`; immutable as long as the list lives.
        let raw = unsafe {
            let at = self.list.at(self.offset);
            let len = at.add(8).cast::<u32>().read() as usize;
            let key_len = usize::from(at.add(12).cast::<u16>().read());
            let height = usize::from(at.add(14).read());
            std::slice::from_raw_parts(at.add(NODE_HEAD + height * 4 + key_len), len)
        };
        RecordRef::trusted(raw)
    }

    pub(super) fn next(&self) -> Option<Node<'a>> {
        let next = self.list.next_at(self.offset, 0);
        (next != 0).then(|| self.list.node(next))
    }
}

/// Sequences are written by one thread and read by others.
pub(super) struct SequenceRange {
    first: AtomicU64,
    last: AtomicU64,
}

impl SequenceRange {
    pub(super) fn new() -> Self {
        Self { first: AtomicU64::new(0), last: AtomicU64::new(0) }
    }

    pub(super) fn extend(&self, sequence: u64) {
        if self.first.load(Atomic::Relaxed) == 0 {
            self.first.store(sequence, Atomic::Release);
        }
        self.last.store(sequence, Atomic::Release);
    }

    /// First and last sequence, `None` if nothing was added.
    pub(super) fn get(&self) -> Option<(u64, u64)> {
        let first = self.first.load(Atomic::Acquire);
        (first != 0).then(|| (first, self.last.load(Atomic::Acquire)))
    }
}
