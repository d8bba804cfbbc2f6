//! The memtable: the records that are in the WAL but not yet in a table, in key order.
//!
//! The commit leader fills the memtable through [`MemtableWriter`], one batch after the other,
//! while any thread reads it. A full memtable is *rotated*: a new memtable replaces it, and a flush
//! writes the old one to a table. In a memtable, every record carries the sequence of its WAL
//! group. A snapshot consists of a sequence number, and of the memtables and tables of that moment.
//! The number hides later records of the memtables. The tables of that moment have no later
//! records, so tables store no sequences.

use std::sync::Arc;

use record::{RecordRef, Version};

use crate::local_bytes::HiddenCopies;

mod skiplist;
#[cfg(test)]
mod tests;

pub(crate) use skiplist::InsertOutcome;
use skiplist::{Entry, Inserter, Node, SequenceRange, Skiplist};

/// A memtable, shared by its readers. A [`MemtableWriter`] fills it.
pub(crate) struct Memtable {
    list: Arc<Skiplist>,
    sequences: SequenceRange,
}

/// The only writer of a memtable.
pub(crate) struct MemtableWriter {
    inserter: Inserter,
    memtable: Arc<Memtable>,
    max_version: Version,
    max_write_time: u64,
}

impl Memtable {
    /// Creates an empty memtable of `capacity` bytes and its writer.
    pub(crate) fn new(capacity: usize) -> (Arc<Self>, MemtableWriter) {
        let (list, inserter) = Skiplist::new(capacity);
        let memtable = Arc::new(Self { list, sequences: SequenceRange::new() });
        let writer = MemtableWriter {
            inserter,
            memtable: Arc::clone(&memtable),
            max_version: Version::default(),
            max_write_time: 0,
        };
        (memtable, writer)
    }

    /// The newest record of `key`, whose hash is `hash`; `None` = the memtable has no record of it.
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Option<RecordRef<'_>> {
        self.list.find(key, hash).map(|node| node.newest().record())
    }

    /// Used bytes of the memtable.
    pub(crate) fn used_bytes(&self) -> usize {
        self.list.used_bytes()
    }

    /// Number of user keys whose newest record in this memtable is a value.
    pub(crate) fn live(&self) -> i64 {
        self.list.live()
    }

    /// First and last sequence in the memtable; `None` if it is empty.
    pub(crate) fn sequences(&self) -> Option<(u64, u64)> {
        self.sequences.get()
    }
}

impl MemtableWriter {
    pub(crate) fn memtable(&self) -> &Arc<Memtable> {
        &self.memtable
    }

    /// Highest version inserted so far.
    pub(crate) fn max_version(&self) -> Version {
        self.max_version
    }

    /// Latest write time ([`RecordRef::write_time`]) inserted so far.
    pub(crate) fn max_write_time(&self) -> u64 {
        self.max_write_time
    }

    /// Returns true if records of `bound` bytes in total (the sum of [`MemtableWriter::bound`])
    /// fit.
    pub(crate) fn fits(&self, bound: usize) -> bool {
        bound <= self.memtable.list.room()
    }

    /// Upper bound of the bytes that one record takes.
    pub(crate) fn bound(key_len: usize, record_len: usize) -> usize {
        Skiplist::node_bound(key_len, record_len)
    }

    /// Adds a record of the group `sequence`. `hash` must be the same in all calls for a key.
    pub(crate) fn insert(
        &mut self,
        key: &[u8],
        hash: u64,
        record: RecordRef<'_>,
        late: bool,
        sequence: u64,
    ) -> InsertOutcome {
        // The range grows before the record is visible, so that a reader of the record also sees
        // that the memtable needs a flush.
        self.memtable.sequences.extend(sequence);
        self.max_version = self.max_version.max(record.version());
        self.max_write_time = self.max_write_time.max(record.write_time());
        self.inserter.insert(key, hash, record, late, sequence)
    }
}

/// Iterates over a memtable: each key once, with its newest record up to a sequence.
pub(crate) struct MemtableIter {
    memtable: Arc<Memtable>,
    sequence: u64,
    /// Offsets of the current node and entry.
    at: Option<(u32, u32)>,
}

impl MemtableIter {
    pub(crate) fn new(memtable: Arc<Memtable>, sequence: u64) -> Self {
        Self { memtable, sequence, at: None }
    }

    pub(crate) fn seek_to_first(&mut self) {
        self.at = self.visible(self.memtable.list.first());
    }

    /// Moves to the first key at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        self.at = self.visible(self.memtable.list.seek(key));
    }

    pub(crate) fn valid(&self) -> bool {
        self.at.is_some()
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.node().key()
    }

    pub(crate) fn record(&self) -> RecordRef<'_> {
        let (_, entry) = self.at.expect("only asked while valid");
        self.memtable.list.entry(entry).expect("offsets of entries are not 0").record()
    }

    /// Summary of the copies of the records that the current record hides in this memtable.
    pub(crate) fn hidden_copies(&self) -> HiddenCopies {
        let (_, entry) = self.at.expect("only asked while valid");
        let newest = self.memtable.list.entry(entry).expect("offsets of entries are not 0");
        let hidden = std::iter::successors(newest.older(), Entry::older);
        let copies = hidden.map(|entry| HiddenCopies::of(entry.record().copies()));
        copies
            .fold(HiddenCopies::default(), HiddenCopies::union)
            .without_covered(newest.record().copies())
    }

    /// Moves to the next key.
    pub(crate) fn next(&mut self) {
        self.at = self.visible(self.node().next());
    }

    fn node(&self) -> Node<'_> {
        let (node, _) = self.at.expect("only asked while valid");
        self.memtable.list.node(node)
    }

    /// Offsets of the first node at or after `node` that has a record up to the iterator's
    /// sequence, and of the newest such record.
    fn visible(&self, mut node: Option<Node<'_>>) -> Option<(u32, u32)> {
        while let Some(candidate) = node {
            let mut entry = Some(candidate.newest());
            while let Some(hidden) = entry.filter(|entry| entry.sequence() > self.sequence) {
                entry = hidden.older();
            }
            if let Some(entry) = entry {
                return Some((candidate.offset(), entry.offset()));
            }
            node = candidate.next();
        }
        None
    }
}
