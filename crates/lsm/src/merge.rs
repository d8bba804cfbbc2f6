//! Merges memtables and tables into one sorted iteration in which each key occurs once, with its
//! greatest record ([`RecordRef::order`]) of all sources.
//!
//! The sources form a binary heap ordered by their current key. The sources positioned on the
//! current key advance only on a call of [`Merge::next`], so items are borrowed, not copied.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::Error;
use crate::local_bytes::{self, HiddenCopies};
use crate::memtable::MemtableIter;
use crate::table::{Access, Table, TableIter, VerifiedIter};
use record::RecordRef;

/// A sorted input of a merge, each key once.
pub(crate) enum Source {
    /// The records of a memtable.
    Memtable(MemtableIter),
    /// The records of one table.
    Table(TableIter),
    /// The records of all tables of a level (1 or deeper).
    Level(LevelIter),
    /// The records of several tables, bypassing the cache and continuing after unreadable blocks.
    Verified(VerifiedIter),
}

impl Source {
    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        match self {
            Self::Memtable(iter) => {
                iter.seek(key);
                Ok(())
            }
            Self::Table(iter) => iter.seek(key),
            Self::Level(iter) => iter.seek(key),
            Self::Verified(iter) => {
                iter.seek(key);
                Ok(())
            }
        }
    }

    fn valid(&self) -> bool {
        match self {
            Self::Memtable(iter) => iter.valid(),
            Self::Table(iter) => iter.valid(),
            Self::Level(iter) => iter.current.as_ref().is_some_and(TableIter::valid),
            Self::Verified(iter) => iter.valid(),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Memtable(iter) => iter.key(),
            Self::Table(iter) => iter.key(),
            Self::Level(iter) => iter.table().key(),
            Self::Verified(iter) => iter.key(),
        }
    }

    fn record(&self) -> RecordRef<'_> {
        match self {
            Self::Memtable(iter) => iter.record(),
            Self::Table(iter) => RecordRef::from_trusted(iter.record()),
            Self::Level(iter) => RecordRef::from_trusted(iter.table().record()),
            Self::Verified(iter) => RecordRef::from_trusted(iter.record()),
        }
    }

    /// Hidden copies of the current record within this source.
    fn hidden_copies(&self) -> HiddenCopies {
        match self {
            Self::Memtable(iter) => iter.hidden_copies(),
            _ => local_bytes::hidden_copies(&self.record()),
        }
    }

    fn next(&mut self) -> Result<(), Error> {
        match self {
            Self::Memtable(iter) => {
                iter.next();
                Ok(())
            }
            Self::Table(iter) => iter.next(),
            Self::Level(iter) => iter.next(),
            Self::Verified(iter) => {
                iter.next();
                Ok(())
            }
        }
    }
}

/// Iterates over the tables of one level, which are sorted and do not overlap.
pub(crate) struct LevelIter {
    tables: Vec<Arc<Table>>,
    access: Access,
    at: usize,
    current: Option<TableIter>,
}

impl LevelIter {
    pub(crate) fn new(tables: Vec<Arc<Table>>, access: Access) -> Self {
        Self { tables, access, at: 0, current: None }
    }

    fn table(&self) -> &TableIter {
        self.current.as_ref().expect("only asked while valid")
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.at = self.tables.partition_point(|table| &table.meta().largest[..] < key);
        self.current = None;
        if let Some(table) = self.tables.get(self.at) {
            let mut iter = TableIter::new(Arc::clone(table), self.access);
            iter.seek(key)?;
            self.current = Some(iter);
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(), Error> {
        let Some(iter) = &mut self.current else { return Ok(()) };
        iter.next()?;
        if !iter.valid() {
            self.at += 1;
            self.current = None;
            if let Some(table) = self.tables.get(self.at) {
                let mut iter = TableIter::new(Arc::clone(table), self.access);
                iter.seek_to_first()?;
                self.current = Some(iter);
            }
        }
        Ok(())
    }
}

/// The merged iteration.
pub(crate) struct Merge {
    sources: Vec<Source>,
    /// Indices of the valid sources that are not positioned on the current key.
    heap: Vec<usize>,
    /// Indices of the sources positioned on the current key; the first one has the greatest record.
    current: Vec<usize>,
}

impl Merge {
    /// Creates a merge of sources in any order. [`Merge::seek`] must be called first.
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let capacity = sources.len();
        Self { sources, heap: Vec::with_capacity(capacity), current: Vec::with_capacity(capacity) }
    }

    /// Moves to the first key at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.heap.clear();
        self.current.clear();
        for (i, source) in self.sources.iter_mut().enumerate() {
            source.seek(key)?;
            if source.valid() {
                self.heap.push(i);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
        self.take_first_key();
        Ok(())
    }

    /// Returns true if there is a current key.
    pub(crate) fn valid(&self) -> bool {
        !self.current.is_empty()
    }

    /// The current key.
    pub(crate) fn key(&self) -> &[u8] {
        self.sources[self.current[0]].key()
    }

    /// The newest record of the current key.
    pub(crate) fn record(&self) -> RecordRef<'_> {
        self.sources[self.current[0]].record()
    }

    /// Hidden copies of the current record: those of all records that the current record hides in
    /// these sources or has hidden before.
    pub(crate) fn hidden_copies(&self) -> HiddenCopies {
        let newest = self.sources[self.current[0]].hidden_copies();
        let hidden = self.current[1..].iter().map(|source| &self.sources[*source]);
        let copies_of = |hidden: &Source| {
            hidden.hidden_copies().union(HiddenCopies::of(hidden.record().copies()))
        };
        hidden
            .map(copies_of)
            .fold(newest, HiddenCopies::union)
            .without_covered(self.record().copies())
    }

    /// Moves to the next key.
    pub(crate) fn next(&mut self) -> Result<(), Error> {
        if let [only] = self.current[..] {
            return self.next_of(only);
        }
        while let Some(source) = self.current.pop() {
            self.sources[source].next()?;
            if self.sources[source].valid() {
                self.heap.push(source);
                self.sift_up(self.heap.len() - 1);
            }
        }
        self.take_first_key();
        Ok(())
    }

    /// Fast path of [`Merge::next`]: only `source` had the current key. If its next key is still
    /// the least of all sources, `source` stays out of the heap.
    fn next_of(&mut self, source: usize) -> Result<(), Error> {
        self.sources[source].next()?;
        if !self.sources[source].valid() {
            self.current.clear();
            self.take_first_key();
            return Ok(());
        }
        if let Some(&top) = self.heap.first()
            && self.sources[source].key() >= self.sources[top].key()
        {
            self.current.clear();
            let first = std::mem::replace(&mut self.heap[0], source);
            self.sift_down(0);
            self.current.push(first);
            self.collect_equal_keys();
        }
        Ok(())
    }

    /// Makes the heap's first key the current key.
    fn take_first_key(&mut self) {
        if let Some(first) = self.pop() {
            self.current.push(first);
            self.collect_equal_keys();
        }
    }

    /// Moves all other sources positioned on the current key from the heap to `current`. The source
    /// with the greatest record becomes the first.
    fn collect_equal_keys(&mut self) {
        while let Some(&top) = self.heap.first() {
            if self.sources[top].key() != self.sources[self.current[0]].key() {
                break;
            }
            self.pop();
            self.current.push(top);
            let newest = self.sources[self.current[0]].record();
            if self.sources[top].record().order(&newest) == Ordering::Greater {
                let last = self.current.len() - 1;
                self.current.swap(0, last);
            }
        }
    }

    fn pop(&mut self) -> Option<usize> {
        if self.heap.is_empty() {
            return None;
        }
        let first = self.heap.swap_remove(0);
        self.sift_down(0);
        Some(first)
    }

    fn less(&self, a: usize, b: usize) -> bool {
        self.sources[self.heap[a]].key() < self.sources[self.heap[b]].key()
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            if left < self.heap.len() && self.less(left, least) {
                least = left;
            }
            if right < self.heap.len() && self.less(right, least) {
                least = right;
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.less(at, parent) {
                return;
            }
            self.heap.swap(at, parent);
            at = parent;
        }
    }
}
