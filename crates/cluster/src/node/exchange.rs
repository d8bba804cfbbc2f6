//! Records of keys that differ are brought to the replicas that lack them.
//!
//! ```text
//!   lists of all replicas, in the order of keys ─▶ the newest of each key, and who lacks it
//!      ─▶ read at a replica that holds it ─▶ written to those that lack it
//! ```
//!
//! A record that a conditional write made is read as a client reads it who wants a majority: one of
//! a minority may never have been chosen, and must not look as if it were.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::compare::{CompareRequest, Compared, Detail};
use crate::message::{NodeId, Request};
use crate::proof::RoundId;
use crate::record::{Kind, Outline, Record};
use crate::topology::{Topology, partition_of};

/// Bytes of one list; one is under way from each node.
const LIST_BYTES: u32 = 256 << 10;

/// Keys that wait to be brought, and are no longer listed beyond.
const MAX_WAITING: usize = 1024;

/// Keys whose records are on their way at once …
const MAX_UNDER_WAY: usize = 64;

/// … and bytes of them, unless a single one has more.
const MAX_BYTES: u64 = 4 << 20;

/// Bytes by which a record may have grown since it was listed.
const GROWTH: u32 = 64 << 10;

/// What is compared.
#[derive(Debug, Clone)]
pub(super) struct Meant {
    pub(super) round: RoundId,
    /// The watermark that all nodes have.
    pub(super) watermark: u64,
    /// Records that were written after this time.
    pub(super) since: u64,
    /// Of keys in these buckets; none = all.
    pub(super) buckets: Vec<u16>,
}

/// What is to be done about a key.
#[derive(Debug)]
pub(super) enum Next {
    /// Its record is read at this node.
    Read(NodeId, Request),
    /// A tombstone of it is brought.
    Delete(Bytes),
}

/// The listing of a range, and what is brought because of it.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) end: Option<Bytes>,
    meant: Meant,
    /// The node whose damage is healed, if that is what it is for.
    damaged: Option<NodeId>,
    lists: BTreeMap<NodeId, List>,
    waiting: VecDeque<Job>,
    under_way: BTreeMap<u64, Job>,
    bytes: u64,
    next_job: u64,
    /// Keys that differed, were made equal, and could not be, since [`Exchange::take_counts`].
    counts: Counts,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) differing: u64,
    pub(super) repaired: u64,
    pub(super) failed: u64,
    /// Keys of which a node holds a record from a clock that is ahead: what that hides there is not
    /// known.
    pub(super) ahead: u64,
}

/// What a node has reported of its keys and is not looked at yet.
#[derive(Debug)]
struct List {
    queue: VecDeque<(Bytes, Outline)>,
    cursor: Cursor,
}

#[derive(Debug)]
enum Cursor {
    At(Bytes),
    Asked,
    End,
}

/// A key that some replicas lack the newest record of.
#[derive(Debug)]
struct Job {
    key: Bytes,
    newest: Outline,
    /// A replica that holds it.
    holder: NodeId,
    lacking: Vec<NodeId>,
    /// Those of them that hold an older one, replicas or not: it must not come up again.
    outdated: Vec<NodeId>,
    /// They are brought a tombstone instead.
    deletes: bool,
    /// Writes that are under way; 0 while it is read.
    open: usize,
    failed: bool,
}

impl Exchange {
    /// Of what is meant of the keys from `start` to `end`.
    pub(super) fn new(
        nodes: impl Iterator<Item = NodeId>,
        (start, end): (&Bytes, Option<Bytes>),
        meant: Meant,
        damaged: Option<NodeId>,
    ) -> Self {
        let list = |node| {
            let cursor = Cursor::At(start.clone());
            (node, List { queue: VecDeque::new(), cursor })
        };
        Self {
            end,
            meant,
            damaged,
            lists: nodes.map(list).collect(),
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            bytes: 0,
            next_job: 0,
            counts: Counts::default(),
        }
    }

    /// The lists that are to be asked for now.
    pub(super) fn next_lists(&mut self) -> Vec<(NodeId, Request)> {
        if self.waiting.len() >= MAX_WAITING {
            return Vec::new();
        }
        let Meant { round, watermark, since, buckets } = &self.meant;
        let (round, watermark) = (*round, *watermark);
        let mut asked = Vec::new();
        for (node, list) in &mut self.lists {
            let Cursor::At(start) = &list.cursor else { continue };
            if !list.queue.is_empty() {
                continue;
            }
            let detail = Detail::Outlines { buckets: buckets.clone(), max_bytes: LIST_BYTES };
            let (start, end) = (start.clone(), self.end.clone());
            // What is newer than the round hides what others have of it, and may be what one
            // can't read.
            let (since, until) = (*since, u64::MAX);
            let request = CompareRequest { start, end, since, until, round, watermark, detail };
            list.cursor = Cursor::Asked;
            asked.push((*node, Request::Compare(request)));
        }
        asked
    }

    /// A node has sent a part of its list.
    pub(super) fn received(&mut self, node: NodeId, compared: Compared) {
        let Some(list) = self.lists.get_mut(&node) else { return };
        list.queue.extend(compared.outlines);
        list.cursor = compared.next.map_or(Cursor::End, Cursor::At);
    }

    /// It has not, and is asked again from `start` of what was asked before.
    pub(super) fn not_received(&mut self, node: NodeId, start: Bytes) {
        if let Some(list) = self.lists.get_mut(&node) {
            list.cursor = Cursor::At(start);
        }
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.lists.remove(&node);
    }

    /// Looks through what is listed by all nodes; `is_ahead` says which records are from a clock
    /// that is ahead, and must not be brought to anybody.
    pub(super) fn merge(&mut self, topology: &Topology, is_ahead: impl Fn(&Outline) -> bool) {
        let mut replicas = Vec::new();
        loop {
            let is_known =
                |list: &List| !list.queue.is_empty() || matches!(list.cursor, Cursor::End);
            if self.waiting.len() >= MAX_WAITING || !self.lists.values().all(is_known) {
                return;
            }
            let first = |list: &List| list.queue.front().map(|(key, _)| key.clone());
            let Some(key) = self.lists.values().filter_map(first).min() else { return };
            let mut held: BTreeMap<NodeId, Outline> = BTreeMap::new();
            for (node, list) in &mut self.lists {
                if list.queue.front().is_some_and(|(listed, _)| *listed == key) {
                    let (_, outline) = list.queue.pop_front().expect("it was just there");
                    held.insert(*node, outline);
                }
            }
            let ahead: Vec<NodeId> =
                held.iter().filter(|(_, o)| is_ahead(o)).map(|(node, _)| *node).collect();
            self.counts.ahead += u64::from(!ahead.is_empty());
            held.retain(|node, _| !ahead.contains(node));
            let newest = held.iter().max_by_key(|(_, outline)| outline.rank);
            let Some((holder, newest)) = newest.map(|(node, o)| (*node, *o)) else { continue };
            let copies = topology.copies_of(newest.copies);
            topology.replicas(partition_of(&key), copies, &mut replicas);
            let (lacking, deletes) = if self.is_risen(&newest, &held) {
                (held.keys().copied().collect(), true)
            } else {
                let is_gone = is_gone(&newest, self.meant.watermark);
                let lacks = |node: &NodeId| match held.get(node) {
                    // It may be beyond the newest one's copies, and holds what that hides.
                    Some(outline) => outline.rank < newest.rank,
                    None => !is_gone && replicas.contains(node),
                };
                let others = self.lists.keys().copied().filter(|node| !ahead.contains(node));
                (others.filter(lacks).collect::<Vec<_>>(), false)
            };
            if !lacking.is_empty() {
                self.counts.differing += 1;
                let outdated = lacking.iter().copied().filter(|node| held.contains_key(node));
                let (outdated, open, failed) = (outdated.collect(), 0, false);
                let job = Job { key, newest, holder, lacking, outdated, deletes, open, failed };
                self.waiting.push_back(job);
            }
        }
    }

    /// Whether what only the damaged node holds was hidden there by what can't be read: all others
    /// have purged that, and this with it, for they held the same up to the watermark.
    fn is_risen(&self, newest: &Outline, held: &BTreeMap<NodeId, Outline>) -> bool {
        let Some(damaged) = self.damaged else { return false };
        let is_proven = newest.rank.when() <= self.meant.watermark;
        is_proven && self.lists.len() > 1 && held.keys().eq([&damaged])
    }

    /// The next key whose record is to be read, if one may be: its number, and what is asked of
    /// whom.
    pub(super) fn next_read(&mut self) -> Option<(u64, Next)> {
        let job = self.waiting.front()?;
        let bytes = u64::from(job.newest.bytes);
        let is_full = self.under_way.len() >= MAX_UNDER_WAY || self.bytes + bytes > MAX_BYTES;
        if is_full && !self.under_way.is_empty() {
            return None;
        }
        let job = self.waiting.pop_front().expect("it was just there");
        let number = self.next_job;
        self.next_job += 1;
        self.bytes += bytes;
        let (key, holder) = (job.key.clone(), job.holder);
        if job.deletes {
            self.under_way.insert(number, job);
            return Some((number, Next::Delete(key)));
        }
        let most = job.newest.bytes.saturating_add(GROWTH);
        let request = match job.newest.rank.ballot {
            0 => Request::Read { key, most },
            _ => Request::ReadQuorum { key, most },
        };
        self.under_way.insert(number, job);
        Some((number, Next::Read(holder, request)))
    }

    /// Whether what was read of a key is what was listed, or newer. A majority may hold something
    /// older, and need not be of those that hold the newest: then that differs still.
    pub(super) fn is_what_differs(&self, number: u64, record: &Record) -> bool {
        let job = self.under_way.get(&number).expect("it is being read");
        record.rank >= job.newest.rank
    }

    /// A key's record was read: to whom it is to be written. It may be a newer one than was listed,
    /// with fewer copies.
    pub(super) fn was_read(
        &mut self,
        topology: &Topology,
        number: u64,
        copies: u8,
    ) -> (Bytes, Vec<NodeId>) {
        let job = self.under_way.get_mut(&number).expect("it is being read");
        let mut replicas = Vec::new();
        topology.replicas(partition_of(&job.key), topology.copies_of(copies), &mut replicas);
        replicas.extend(&job.outdated);
        job.lacking.retain(|node| replicas.contains(node));
        job.open = job.lacking.len();
        let to = (job.key.clone(), job.lacking.clone());
        if job.open == 0 {
            self.end(number);
        }
        to
    }

    /// It was not.
    pub(super) fn unread(&mut self, number: u64) {
        self.under_way.get_mut(&number).expect("it is being read").failed = true;
        self.end(number);
    }

    /// A replica that lacked it has stored it, or not.
    pub(super) fn was_written(&mut self, number: u64, is_stored: bool) {
        let job = self.under_way.get_mut(&number).expect("it is being written");
        job.failed |= !is_stored;
        assert!(job.open > 0, "each replica that lacks it is asked once");
        job.open -= 1;
        if job.open == 0 {
            self.end(number);
        }
    }

    fn end(&mut self, number: u64) {
        let job = self.under_way.remove(&number).expect("it was just there");
        let bytes = u64::from(job.newest.bytes);
        assert!(self.bytes >= bytes, "what is under way was counted");
        self.bytes -= bytes;
        if job.failed {
            self.counts.failed += 1;
        } else {
            self.counts.repaired += 1;
        }
    }

    /// Whether nothing is left to be listed or brought.
    pub(super) fn is_over(&self) -> bool {
        let is_over = |list: &List| list.queue.is_empty() && matches!(list.cursor, Cursor::End);
        self.lists.values().all(is_over) && self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// What was counted since the last time.
    pub(super) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}

/// Whether a record may be purged by this watermark: nobody needs to be brought it but who holds
/// what it hides.
fn is_gone(outline: &Outline, watermark: u64) -> bool {
    let rank = outline.rank;
    rank.kind != Kind::Value && rank.version.time.max(rank.ballot) <= watermark
}
