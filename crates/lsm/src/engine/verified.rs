//! A scan for repair rounds: the newest record of each key that was written after a time, by blocks
//! that are read from the disk and verified, with what can't be read reported in its place.
//!
//! Tables and blocks in which nothing is younger than that time are not read. What lies there may
//! outrank what is found. *Younger* means: by version or by ballot ([`RecordRef::latest`]). So, if
//! `s` was skipped and `c` is the newest of what was read, written after `since`:
//!
//! * `s` has a version of a time ≤ `since`, and a ballot ≤ `since`.
//! * If `c` is a plain record, it was written at its version's time, which is > `since`: its
//!   version is the greater one. So it is, whatever the ballot, if `c` has a version of a time >
//!   `since`.
//! * If a conditional write made `c` of an older version, its ballot is > `since`. `s` can't have
//!   the same version, for the ballot would decide for `c`. But it may have a greater one.
//!
//! So records of the last kind are looked up in the tables over their key that hold any greater
//! version. If the newest of a key is one that was skipped, it was not written after `since`, and
//! there is nothing to give out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::background::YIELD_BYTES;
use super::read::Snapshot;
use super::tree::{TreeState, tables_over};
use super::{InternalKey, hash_of, tree_of};
use crate::batch::Space;
use crate::error::Error;
use crate::memtable::MemtableIter;
use crate::merge::{Merge, Source};
use crate::table::{Table, TableGet, Unread, VerifiedIter, Wait, Walked};
use record::RecordRef;

/// What a [`VerifiedScan`] gives.
#[derive(Debug)]
pub enum Verified<'a> {
    /// A key with its newest record, both as they were written.
    Record(&'a [u8], RecordRef<'a>),
    /// Keys of which nothing certain can be said; it comes before the records among them.
    Damaged(Damaged),
    /// So much was read as was asked for ([`VerifiedScan::pause_after`]).
    Pause {
        /// The first key that was not looked at: to go on from there later, with a new snapshot.
        next: Vec<u8>,
    },
}

/// A block that can't be read, or is not what was written. What other places have of its keys is
/// given nevertheless, and may be older than what the block held. If the block is a filter, which
/// holds no records, all is given that there is.
#[derive(Debug, Clone)]
pub struct Damaged {
    /// The table's id; `None` if a record came damaged, wherever it lies.
    pub table: Option<u64>,
    /// The least key that the block may hold, be it before the scan's start.
    pub first: Vec<u8>,
    /// The greatest one; `None` = the last of the space.
    pub last: Option<Vec<u8>>,
    /// What is wrong.
    pub error: Error,
}

/// What a scan has cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tables that were read past the cache.
    pub bytes_read: u64,
    /// Data blocks among them.
    pub blocks_read: u64,
    /// Data blocks that were not read because nothing in them is new.
    pub blocks_skipped: u64,
    /// Tables for the same reason.
    pub tables_skipped: u64,
    /// Records that were looked up, because what was skipped might outrank them.
    pub lookups: u64,
}

/// An iterator that lends its items. It pins the memtables and tables of its snapshot. For each
/// table of level 0, and each level below, it holds an index and 64 KiB of blocks, or one longer
/// block.
pub struct VerifiedScan {
    trees: Vec<Arc<TreeState>>,
    space: Space,
    since: u64,
    merge: Merge,
    at: At,
    /// The first internal key that is out of range.
    end: Vec<u8>,
    walked: Arc<Walked>,
    tables_skipped: u64,
    lookups: u64,
    pause_at: u64,
    /// Bytes of records since the CPU was last offered.
    unyielded: usize,
}

/// What there is to do with the merge's current key.
enum At {
    /// There is none yet: begin at this internal key.
    Start(Vec<u8>),
    /// Look at it.
    Due,
    /// It is not outranked by what was skipped: give it out.
    LookedUp,
    /// It is done with.
    Past,
    End,
}

/// What is to be given out.
enum Step {
    Record,
    Damaged(Damaged),
    Pause,
    End,
}

impl Snapshot {
    /// Keys of `space` in `start..end` (`None` = to the last) in order, each with its newest
    /// record, tombstones included, if that was written after `since` ([`RecordRef::when`]); 0 =
    /// all. Every block is read from the disk, not from the cache, and verified; with `since` = 0
    /// filters are, too. One that is damaged does not end the scan.
    pub fn verified_scan(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        since: u64,
    ) -> VerifiedScan {
        let start = InternalKey::start_of(space, start);
        let end = match end {
            Some(end) => InternalKey::start_of(space, end),
            None => vec![space as u8 + 1],
        };
        let (walked, mut sources, mut tables_skipped) = (Arc::default(), Vec::new(), 0);
        for state in &self.trees {
            for memtable in state.memtables().filter(|memtable| memtable.sequences().is_some()) {
                let iter = MemtableIter::new(Arc::clone(memtable), self.sequence);
                sources.push(Source::Memtable(iter));
            }
            let mut wanted = |table: &&Arc<Table>| {
                let meta = table.meta();
                let is_in_range = meta.largest[..] >= start[..] && meta.smallest[..] < end[..];
                let is_new = since == 0 || meta.latest() > since;
                tables_skipped += u64::from(is_in_range && !is_new);
                is_in_range && is_new
            };
            let mut push = |tables: Vec<Arc<Table>>| {
                let walked = Arc::clone(&walked);
                let iter = VerifiedIter::new(tables, since, end.clone(), walked);
                sources.push(Source::Verified(iter));
            };
            let (level0, below) = state.levels.split_first().expect("level 0 is always there");
            level0.iter().filter(&mut wanted).for_each(|table| push(vec![Arc::clone(table)]));
            for level in below {
                push(level.iter().filter(&mut wanted).cloned().collect());
            }
        }
        VerifiedScan {
            trees: self.trees.clone(),
            space,
            since,
            merge: Merge::new(sources),
            at: At::Start(start),
            end,
            walked,
            tables_skipped,
            lookups: 0,
            pause_at: u64::MAX,
            unyielded: 0,
        }
    }
}

impl VerifiedScan {
    /// The next item; `None` at the end. Waits for the disk.
    #[allow(clippy::should_implement_trait, reason = "an item borrows from the scan")]
    pub fn next(&mut self) -> Option<Verified<'_>> {
        match self.step() {
            Step::Record => Some(Verified::Record(&self.merge.key()[1..], self.merge.record())),
            Step::Damaged(damaged) => Some(Verified::Damaged(damaged)),
            Step::Pause => {
                self.pause_at = u64::MAX;
                Some(Verified::Pause { next: [&self.merge.key()[1..], &[0]].concat() })
            }
            Step::End => None,
        }
    }

    /// Has the scan pause, once, when it has read so many bytes more, and has come at least one key
    /// further. It may exceed that by what is read at once, and by a block for each source.
    pub fn pause_after(&mut self, bytes: u64) {
        self.pause_at = self.progress().bytes_read.saturating_add(bytes);
    }

    /// What it has cost so far.
    pub fn progress(&self) -> Progress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            bytes_read: read(&self.walked.bytes_read),
            blocks_read: read(&self.walked.blocks_read),
            blocks_skipped: read(&self.walked.blocks_skipped),
            tables_skipped: self.tables_skipped,
            lookups: self.lookups,
        }
    }

    fn step(&mut self) -> Step {
        loop {
            match &self.at {
                At::Start(start) => {
                    self.merge.seek(start).expect("its sources tell damage, and go on");
                    self.at = At::Due;
                }
                At::Past if self.walked.bytes_read.load(Ordering::Relaxed) >= self.pause_at => {
                    return Step::Pause;
                }
                At::Past => {
                    self.merge.next().expect("its sources tell damage, and go on");
                    self.at = At::Due;
                }
                At::Due | At::LookedUp => {}
                At::End => return Step::End,
            }
            if let Some(unread) = self.walked.take_unread() {
                return Step::Damaged(self.damaged(unread));
            }
            if !self.merge.valid() || self.merge.key() >= &self.end[..] {
                self.at = At::End;
                continue;
            }
            let (key, record) = (self.merge.key(), self.merge.record());
            if let At::LookedUp = self.at {
                self.at = At::Past;
                return Step::Record;
            }
            self.at = At::Past;
            self.unyielded += key.len() + record.raw().len();
            if self.unyielded >= YIELD_BYTES {
                self.unyielded = 0;
                std::thread::yield_now();
            }
            if self.since > 0 && record.when() <= self.since {
                continue;
            }
            if let Err(bad) = record.verify(&key[1..]) {
                let key = key[1..].to_vec();
                let what = format!("a record of a {}-byte key: {}", key.len(), bad.0);
                let error = Error::corrupt("scan", 0, what);
                let last = Some(key.clone());
                return Step::Damaged(Damaged { table: None, first: key, last, error });
            }
            if record.version().time > self.since || self.since == 0 {
                return Step::Record;
            }
            self.lookups += 1;
            if !self.is_outranked(key, record) {
                self.at = At::LookedUp;
            }
        }
    }

    /// Whether what was skipped has a newer record than the newest that was read.
    fn is_outranked(&self, key: &[u8], record: RecordRef<'_>) -> bool {
        let hash = hash_of(&key[1..]);
        let state = &self.trees[tree_of(self.trees.len(), hash)];
        let outranks =
            |raw: &[u8]| RecordRef::parse(raw).is_ok_and(|found| found.order(&record).is_gt());
        tables_over(&state.levels, key)
            .filter(|table| table.meta().max_version > record.version())
            .any(|table| match table.get(key, hash, Wait::Yes) {
                Ok(TableGet::Found(raw)) => outranks(&raw),
                Ok(_) => false,
                Err(_) => {
                    // Where the damage is, and which keys it takes, a walk knows.
                    let (table, walked) = (vec![Arc::clone(table)], Arc::clone(&self.walked));
                    let mut iter = VerifiedIter::new(table, 0, self.end.clone(), walked);
                    iter.seek(key);
                    iter.valid() && iter.key() == key && outranks(iter.record())
                }
            })
    }

    /// Internal keys that can't be read, as keys of the space.
    fn damaged(&self, unread: Unread) -> Damaged {
        let space = self.space as u8;
        let first = match unread.first.split_first() {
            Some((first, key)) if *first == space => key.to_vec(),
            _ => Vec::new(),
        };
        let last = match unread.last.split_first() {
            Some((last, key)) if *last == space => Some(key.to_vec()),
            _ => None,
        };
        Damaged { table: Some(unread.table), first, last, error: unread.error }
    }
}
