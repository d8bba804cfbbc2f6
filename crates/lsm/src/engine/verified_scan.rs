//! The scan of repair rounds: the newest record of each key written after a given time. Blocks are
//! read from the disk and verified; an unreadable block is reported before the records of its keys.
//!
//! Let `since` be the given time. The scan skips tables and blocks in which no record has a version
//! or ballot later than `since` ([`RecordRef::latest`]). Let `c` be the newest record that the scan
//! has read of a key, and let its write time be > `since`. Can a skipped record `s` of the same key
//! outrank `c`?
//!
//! * The version time and the ballot of `s` are ≤ `since`.
//! * If the version time of `c` is > `since`, `c` has the greater version and outranks `s`. This
//!   holds for every plain record, whose write time is its version time.
//! * Otherwise a conditional write made `c`: the version time of `c` is ≤ `since`, and its ballot
//!   is > `since`. If `s` has the same version, `c` has the greater ballot and outranks `s`. If `s`
//!   has a greater version, `s` outranks `c`.
//!
//! If the version time of `c` is ≤ `since`, the scan therefore looks the key up in all tables that
//! cover the key and hold a greater version. If a skipped record turns out to be the newest, the
//! key's current record was not written after `since`, and the scan returns nothing for the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::internal_key::{InternalKey, hash_of, tree_of};
use super::snapshot::Snapshot;
use super::tree::{TreeState, tables_covering};
use super::yield_budget::YIELD_BYTES;
use crate::batch::Space;
use crate::error::Error;
use crate::memtable::MemtableIter;
use crate::merge::{Merge, Source};
use crate::table::{ReadMode, ScanStats, Table, TableGet, UnreadableRange, VerifiedIter};
use record::RecordRef;

/// An item of a [`VerifiedScan`].
#[derive(Debug)]
pub enum ScanItem<'a> {
    /// A key with its newest record, both verified.
    Record(&'a [u8], RecordRef<'a>),
    /// Keys whose newest record is uncertain. The item precedes the records of these keys.
    Damaged(Damaged),
    /// The scan has read the requested number of bytes ([`VerifiedScan::pause_after`]).
    Pause {
        /// The first key not yet scanned, where a scan of a later snapshot can continue.
        next: Vec<u8>,
    },
}

/// A damaged block or record. For the affected keys, the scan still returns records from other
/// tables and memtables, which may be older than the damaged ones. A damaged filter contains no
/// records, so the scan misses none.
#[derive(Debug, Clone)]
pub struct Damaged {
    /// Id of the table with the damaged block; `None` = a single record is damaged, in a table or
    /// memtable that is not known.
    pub table: Option<u64>,
    /// Lower bound of the block's keys; it may precede the scan's start.
    pub first: Vec<u8>,
    /// Upper bound of the block's keys, inclusive; `None` = the end of the space.
    pub last: Option<Vec<u8>>,
    /// Description of the damage.
    pub error: Error,
}

/// Cost of a scan so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanCost {
    /// Bytes of tables read, bypassing the cache.
    pub bytes_read: u64,
    /// Data blocks read.
    pub blocks_read: u64,
    /// Data blocks skipped because all their records are too old.
    pub blocks_skipped: u64,
    /// Tables skipped because all their records are too old.
    pub tables_skipped: u64,
    /// Lookups of records that a skipped record might outrank.
    pub lookups: u64,
}

/// A scan of repair rounds: [`Snapshot::verified_scan`]. Each item borrows from the scan. The scan
/// pins the memtables and tables of its snapshot. For each table of level 0, and each deeper level,
/// its memory includes an index and 64 KiB of blocks, or one longer block.
pub struct VerifiedScan {
    trees: Vec<Arc<TreeState>>,
    space: Space,
    since: u64,
    merge: Merge,
    at: KeyState,
    /// End of the range as an internal key, exclusive.
    end: Vec<u8>,
    stats: Arc<ScanStats>,
    tables_skipped: u64,
    lookups: u64,
    pause_at: u64,
    /// Bytes of records since the last yield of the CPU.
    unyielded: usize,
}

/// State of the merge's current key.
enum KeyState {
    /// The scan has not started: seek to this internal key.
    Start(Vec<u8>),
    /// The key has not been examined yet.
    Due,
    /// No skipped record outranks the current one: return it.
    LookedUp,
    /// The key is done.
    Past,
    End,
}

/// Result of a step.
enum Step {
    Record,
    Damaged(Damaged),
    Pause,
    End,
}

impl Snapshot {
    /// Scans the keys of `space` in `start..end` (`None` = to the last) in order. Returns each key
    /// whose newest record, tombstones included, was written after `since`
    /// ([`RecordRef::write_time`]; 0 = all keys). Every block is read from the disk, not from the
    /// cache, and verified; with `since` = 0, filters are read and verified too. Damage does not
    /// end the scan.
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
        let (stats, mut sources, mut tables_skipped) = (Arc::default(), Vec::new(), 0);
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
                let stats = Arc::clone(&stats);
                let iter = VerifiedIter::new(tables, since, end.clone(), stats);
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
            at: KeyState::Start(start),
            end,
            stats,
            tables_skipped,
            lookups: 0,
            pause_at: u64::MAX,
            unyielded: 0,
        }
    }
}

impl VerifiedScan {
    /// Returns the next item; `None` at the end. Waits for the disk.
    #[allow(clippy::should_implement_trait, reason = "an item borrows from the scan")]
    pub fn next(&mut self) -> Option<ScanItem<'_>> {
        match self.step() {
            Step::Record => Some(ScanItem::Record(&self.merge.key()[1..], self.merge.record())),
            Step::Damaged(damaged) => Some(ScanItem::Damaged(damaged)),
            Step::Pause => {
                self.pause_at = u64::MAX;
                Some(ScanItem::Pause { next: [&self.merge.key()[1..], &[0]].concat() })
            }
            Step::End => None,
        }
    }

    /// Makes the scan pause, once, after the scan has read `bytes` more bytes and has advanced by
    /// at least one key. The scan may exceed `bytes` by one read, and by one block per source.
    pub fn pause_after(&mut self, bytes: u64) {
        self.pause_at = self.progress().bytes_read.saturating_add(bytes);
    }

    /// Cost of the scan so far.
    pub fn progress(&self) -> ScanCost {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScanCost {
            bytes_read: read(&self.stats.bytes_read),
            blocks_read: read(&self.stats.blocks_read),
            blocks_skipped: read(&self.stats.blocks_skipped),
            tables_skipped: self.tables_skipped,
            lookups: self.lookups,
        }
    }

    fn step(&mut self) -> Step {
        loop {
            match &self.at {
                KeyState::Start(start) => {
                    self.merge.seek(start).expect("its sources tell damage, and go on");
                    self.at = KeyState::Due;
                }
                KeyState::Past
                    if self.stats.bytes_read.load(Ordering::Relaxed) >= self.pause_at =>
                {
                    return Step::Pause;
                }
                KeyState::Past => {
                    self.merge.next().expect("its sources tell damage, and go on");
                    self.at = KeyState::Due;
                }
                KeyState::Due | KeyState::LookedUp => {}
                KeyState::End => return Step::End,
            }
            if let Some(range) = self.stats.take_unreadable() {
                return Step::Damaged(self.convert_range(range));
            }
            if !self.merge.valid() || self.merge.key() >= &self.end[..] {
                self.at = KeyState::End;
                continue;
            }
            let (key, record) = (self.merge.key(), self.merge.record());
            if let KeyState::LookedUp = self.at {
                self.at = KeyState::Past;
                return Step::Record;
            }
            self.at = KeyState::Past;
            self.unyielded += key.len() + record.raw().len();
            if self.unyielded >= YIELD_BYTES {
                self.unyielded = 0;
                std::thread::yield_now();
            }
            if self.since > 0 && record.write_time() <= self.since {
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
                self.at = KeyState::LookedUp;
            }
        }
    }

    /// Returns true if a skipped record outranks the newest record that was read.
    fn is_outranked(&self, key: &[u8], record: RecordRef<'_>) -> bool {
        let hash = hash_of(&key[1..]);
        let state = &self.trees[tree_of(self.trees.len(), hash)];
        let outranks =
            |raw: &[u8]| RecordRef::parse(raw).is_ok_and(|found| found.order(&record).is_gt());
        tables_covering(&state.levels, key)
            .filter(|table| table.meta().max_version > record.version())
            .any(|table| match table.get(key, hash, ReadMode::Blocking) {
                Ok(TableGet::Found(raw)) => outranks(&raw),
                Ok(_) => false,
                Err(_) => {
                    // The iterator reports the exact range of the damage in `stats`.
                    let (table, stats) = (vec![Arc::clone(table)], Arc::clone(&self.stats));
                    let mut iter = VerifiedIter::new(table, 0, self.end.clone(), stats);
                    iter.seek(key);
                    iter.valid() && iter.key() == key && outranks(iter.record())
                }
            })
    }

    /// Converts unreadable internal keys to keys of the space.
    fn convert_range(&self, range: UnreadableRange) -> Damaged {
        let space = self.space as u8;
        let first = match range.first.split_first() {
            Some((first, key)) if *first == space => key.to_vec(),
            _ => Vec::new(),
        };
        let last = match range.last.split_first() {
            Some((last, key)) if *last == space => Some(key.to_vec()),
            _ => None,
        };
        Damaged { table: Some(range.table), first, last, error: range.error }
    }
}
