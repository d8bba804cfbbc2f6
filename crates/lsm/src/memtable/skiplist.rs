//! An arena skiplist with one writer and any number of readers that never wait.
//!
//! ```text
//!  node   ├ newest u32 │ key length u16 │ height u8 │ - ┤ next[height] u32 ┤ key ┤
//!  entry  ├ sequence u64 │ record length u32 │ older u32 ┤ record ┤
//! ```
//!
//! One node for each key, in the order of keys; from it hang the key's records, newest first, so
//! that the first answers a read and a snapshot skips at most those written after it. Offsets are
//! 8-aligned; 0 stands for "none". Nothing is ever removed or moved; the arena goes as a whole.
//!
//! Beside the list lies a hash index from keys to their nodes: a point read, or a write to a key
//! that is there, costs two or three cache misses instead of one for each of some twenty hops, and
//! most keys that are absent cost one. The list stays what walks, seeks and new keys use, and what
//! answers once the index is full.
//!
//! Algorithm: W. Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees", CACM 33(6),
//! 1990, with branching 4. Why our own and `unsafe`: one allocation a memtable instead of two a
//! record, exact byte accounting for the memory ledger, no epoch pinning; CPU time for 220,000
//! records of 200,000 keys beside crossbeam-skiplist: insert 1.05 and 1.33 µs, get 0.16 and 2.0 µs.
//!
//! Its tests run under Miri, not under loom: an atomic of loom is an object with a history, not
//! four bytes that zeroed memory can be, and its `UnsafeCell` lends no slices of bytes. Links, keys
//! and records lie side by side in one arena, at offsets that the data decide: a model would have
//! to keep them elsewhere, and would be one of another list.
#![allow(unsafe_code, reason = "one arena, any number of readers beside a writer")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cmp::Ordering;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering as Atomic,
};

use crate::batch::Space;
use crate::local::{Reach, set_late, set_reach};
use record::{Kind, RecordRef};

/// Levels of the list: 4^12 = 16 M nodes before searches grow longer.
const MAX_HEIGHT: usize = 12;
/// Bytes of a node before its tower.
const NODE_HEAD: usize = 8;
/// Bytes of an entry before its record.
const ENTRY_HEAD: usize = 16;
const ALIGN: usize = 8;
/// Offset of the head node, which has no key. Offset 0 stands for "no node".
const HEAD: u32 = ALIGN as u32;
const HEAD_NODE_LEN: usize = NODE_HEAD + MAX_HEIGHT * 4;
/// Offset of the index.
const INDEX: usize = HEAD as usize + HEAD_NODE_LEN;

/// What an insertion found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// A record of its own.
    New,
    /// The very same record was there already; nothing was added.
    Duplicate,
    /// A record beside one with the same version and ballot and different content.
    Conflict,
}

/// The list itself; shared with readers.
pub(super) struct Skiplist {
    arena: NonNull<u8>,
    capacity: usize,
    used: AtomicUsize,
    height: AtomicUsize,
    /// Slots of the index, a power of two. They lie in the arena after the head node, each the
    /// offset of a key's node, by open addressing; 0 = free.
    slots: usize,
    /// Keys are missing from the index: it had no more room.
    index_overflowed: AtomicBool,
    /// Users' keys whose newest record in here is a value.
    live: AtomicI64,
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

fn lives(kind: Kind) -> bool {
    kind == Kind::Value
}

/// Whether nothing but their content tells two records apart.
fn is_of_one_write(a: &RecordRef<'_>, b: &RecordRef<'_>) -> bool {
    a.version() == b.version() && a.ballot() == b.ballot()
}

/// A place in the index.
enum Slot<'a> {
    /// The key's own, with its node.
    Taken(Node<'a>),
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
            live: AtomicI64::new(0),
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

    /// Users' keys whose newest record in here is a value.
    pub(super) fn live(&self) -> i64 {
        self.live.load(Atomic::Relaxed)
    }

    /// Bytes that are still free.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.used()
    }

    /// The most that a new key with such a record can take.
    pub(super) fn node_bound(key_len: usize, record_len: usize) -> usize {
        NODE_HEAD + MAX_HEIGHT * 4 + key_len + ALIGN + ENTRY_HEAD + record_len + ALIGN
    }

    /// The node of `key`, whose hash is `hash`.
    pub(super) fn find(&self, key: &[u8], hash: u64) -> Option<Node<'_>> {
        match self.slot(key, hash) {
            Slot::Taken(node) => Some(node),
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
                    return Slot::Taken(self.node(offset));
                }
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The first node at or after `key`.
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

    /// A record by the offset that [`Entry::offset`] gave for this very list; 0 = none.
    pub(super) fn entry(&self, offset: u32) -> Option<Entry<'_>> {
        debug_assert!((offset as usize) < self.used());
        (offset != 0).then_some(Entry { list: self, offset })
    }

    /// For the writer: the node of `key`, or else the last node before it on every level.
    fn search(&self, key: &[u8], before: &mut [u32; MAX_HEIGHT]) -> Option<Node<'_>> {
        let mut node = HEAD;
        let mut last_seen = 0;
        for level in (0..self.height.load(Atomic::Relaxed)).rev() {
            loop {
                let next = self.link(node, level).load(Atomic::Relaxed);
                // A node already found to come after need not be compared again lower down.
                if next == 0 || next == last_seen {
                    break;
                }
                match self.node(next).key().cmp(key) {
                    Ordering::Less => node = next,
                    Ordering::Equal => return Some(self.node(next)),
                    Ordering::Greater => {
                        last_seen = next;
                        break;
                    }
                }
            }
            before[level] = node;
        }
        None
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
        let list = Arc::clone(&self.list);
        match list.slot(key, hash) {
            Slot::Taken(node) => self.insert_beside(node, record, late, sequence),
            Slot::Free(slot) => {
                let mut before = [HEAD; MAX_HEIGHT];
                if let Some(node) = list.search(key, &mut before) {
                    return self.insert_beside(node, record, late, sequence);
                }
                let node = self.insert_key(key, &before, record, late, sequence);
                if self.indexed < self.indexed_bound {
                    self.indexed += 1;
                    slot.store(node, Atomic::Release);
                } else {
                    list.index_overflowed.store(true, Atomic::Release);
                }
                Inserted::New
            }
        }
    }

    /// Adds a record to a key that has some, in its place among them.
    fn insert_beside(
        &mut self,
        node: Node<'_>,
        record: RecordRef<'_>,
        late: bool,
        sequence: u64,
    ) -> Inserted {
        let mut outcome = Inserted::New;
        let newest = node.newest_link();
        let mut link = newest;
        loop {
            let next = link.load(Atomic::Relaxed);
            let Some(entry) = node.list.entry(next) else { break };
            let there = entry.record();
            match there.order(&record) {
                Ordering::Equal => return Inserted::Duplicate,
                order if is_of_one_write(&there, &record) => {
                    outcome = Inserted::Conflict;
                    if order == Ordering::Less {
                        break;
                    }
                }
                Ordering::Less => break,
                Ordering::Greater => {}
            }
            link = entry.older_link();
        }
        if std::ptr::eq(link, newest) {
            let was = node.newest().record().kind();
            self.count(node.key(), i64::from(lives(record.kind())) - i64::from(lives(was)));
        }
        let entry = self.write_entry(record, late, sequence, link.load(Atomic::Relaxed));
        link.store(entry, Atomic::Release);
        outcome
    }

    /// Counts a key, if it is a user's.
    fn count(&self, key: &[u8], more: i64) {
        if more != 0 && key.first() == Some(&(Space::Data as u8)) {
            self.list.live.store(self.list.live() + more, Atomic::Relaxed);
        }
    }

    /// Adds a key with its first record after the nodes in `before`.
    fn insert_key(
        &mut self,
        key: &[u8],
        before: &[u32; MAX_HEIGHT],
        record: RecordRef<'_>,
        late: bool,
        sequence: u64,
    ) -> u32 {
        self.count(key, i64::from(lives(record.kind())));
        let height = self.random_height();
        let node = self.write_node(key, height);
        let entry = self.write_entry(record, late, sequence, 0);
        let list = &*self.list;
        list.node(node).newest_link().store(entry, Atomic::Release);
        if height > list.height.load(Atomic::Relaxed) {
            list.height.store(height, Atomic::Release);
        }
        for (level, &previous) in before.iter().enumerate().take(height) {
            let next = list.link(previous, level).load(Atomic::Relaxed);
            list.link(node, level).store(next, Atomic::Relaxed);
            list.link(previous, level).store(node, Atomic::Release);
        }
        node
    }

    fn write_node(&mut self, key: &[u8], height: usize) -> u32 {
        let key_at = NODE_HEAD + height * 4;
        let offset = self.take(key_at + key.len());
        let at = self.list.at(offset);
        // SAFETY: the bytes were just taken, so they belong to no published node, and this is the
        // only writer; readers see them only after a release store of a link.
        unsafe {
            at.add(4).cast::<u16>().write(key.len() as u16);
            at.add(6).write(height as u8);
            at.add(key_at).copy_from_nonoverlapping(key.as_ptr(), key.len());
        }
        offset
    }

    fn write_entry(&mut self, record: RecordRef<'_>, late: bool, sequence: u64, older: u32) -> u32 {
        let raw = record.raw();
        let offset = self.take(ENTRY_HEAD + raw.len());
        let at = self.list.at(offset);
        // SAFETY: as in `write_node`.
        unsafe {
            at.cast::<u64>().write(sequence);
            at.add(8).cast::<u32>().write(raw.len() as u32);
            at.add(12).cast::<u32>().write(older);
            let record_at = at.add(ENTRY_HEAD);
            record_at.copy_from_nonoverlapping(raw.as_ptr(), raw.len());
            let raw = std::slice::from_raw_parts_mut(record_at, raw.len());
            set_late(raw, late);
            // What it has hidden on the node that it comes from is not in this store.
            set_reach(raw, Reach::default());
        }
        offset
    }

    /// Takes `len` bytes of the arena.
    fn take(&mut self, len: usize) -> u32 {
        let list = &*self.list;
        let start = list.used.load(Atomic::Relaxed);
        let len = len.next_multiple_of(ALIGN);
        assert!(start + len <= list.capacity, "the caller makes sure of room");
        list.used.store(start + len, Atomic::Relaxed);
        start as u32
    }

    /// 1 with probability 3/4, 2 with 3/16, … (branching 4).
    fn random_height(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (1 + (self.random.trailing_ones() / 2) as usize).min(MAX_HEIGHT)
    }
}

/// One key in the list.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    list: &'a Skiplist,
    offset: u32,
}

impl<'a> Node<'a> {
    pub(super) fn offset(&self) -> u32 {
        self.offset
    }

    pub(super) fn key(&self) -> &'a [u8] {
        // SAFETY: as written by `write_node`; immutable as long as the list lives.
        unsafe {
            let at = self.list.at(self.offset);
            let len = usize::from(at.add(4).cast::<u16>().read());
            let height = usize::from(at.add(6).read());
            std::slice::from_raw_parts(at.add(NODE_HEAD + height * 4), len)
        }
    }

    /// Its newest record.
    pub(super) fn newest(&self) -> Entry<'a> {
        let newest = self.newest_link().load(Atomic::Acquire);
        self.list.entry(newest).expect("a node has a record before it is reachable")
    }

    fn newest_link(&self) -> &'a AtomicU32 {
        // SAFETY: the first 4 bytes of an 8-aligned node, only ever accessed as an atomic.
        unsafe { &*self.list.at(self.offset).cast::<AtomicU32>() }
    }

    pub(super) fn next(&self) -> Option<Node<'a>> {
        let next = self.list.next_at(self.offset, 0);
        (next != 0).then(|| self.list.node(next))
    }
}

/// One record of a key.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    list: &'a Skiplist,
    offset: u32,
}

impl<'a> Entry<'a> {
    pub(super) fn offset(&self) -> u32 {
        self.offset
    }

    /// Sequence of the WAL group that brought it.
    pub(super) fn sequence(&self) -> u64 {
        // SAFETY: as written by `write_entry`; never changes.
        unsafe { self.list.at(self.offset).cast::<u64>().read() }
    }

    pub(super) fn record(&self) -> RecordRef<'a> {
        // SAFETY: as written by `write_entry`; never changes as long as the list lives.
        let raw = unsafe {
            let at = self.list.at(self.offset);
            let len = at.add(8).cast::<u32>().read() as usize;
            std::slice::from_raw_parts(at.add(ENTRY_HEAD), len)
        };
        RecordRef::trusted(raw)
    }

    /// The record of the same key that is next older.
    pub(super) fn older(&self) -> Option<Entry<'a>> {
        self.list.entry(self.older_link().load(Atomic::Acquire))
    }

    fn older_link(&self) -> &'a AtomicU32 {
        // SAFETY: 4-aligned bytes of an entry that, once it is reachable, are only ever accessed as
        // an atomic.
        unsafe { &*self.list.at(self.offset).add(12).cast::<AtomicU32>() }
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
