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
use crate::record::Outline;
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

/// The listing of a range, and what is brought because of it.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) end: Option<Bytes>,
    since: u64,
    buckets: Vec<u16>,
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
}

/// What a node has told of its keys and is not looked at yet.
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
    /// Writes that are under way; 0 while it is read.
    open: usize,
    failed: bool,
}

impl Exchange {
    /// Of the keys of `buckets` (none = all) from `start` to `end` that were written after `since`.
    pub(super) fn new(
        nodes: impl Iterator<Item = NodeId>,
        (start, end): (&Bytes, Option<Bytes>),
        since: u64,
        buckets: Vec<u16>,
    ) -> Self {
        let list = |node| {
            let cursor = Cursor::At(start.clone());
            (node, List { queue: VecDeque::new(), cursor })
        };
        Self {
            end,
            since,
            buckets,
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
        let mut asked = Vec::new();
        for (node, list) in &mut self.lists {
            let Cursor::At(start) = &list.cursor else { continue };
            if !list.queue.is_empty() {
                continue;
            }
            let detail = Detail::Outlines { buckets: self.buckets.clone(), max_bytes: LIST_BYTES };
            let (start, end) = (start.clone(), self.end.clone());
            // What is newer than that hides what others have of it.
            let (since, until) = (self.since, u64::MAX);
            let request = CompareRequest { start, end, since, until, detail };
            list.cursor = Cursor::Asked;
            asked.push((*node, Request::Compare(request)));
        }
        asked
    }

    /// A node has told its list.
    pub(super) fn told(&mut self, node: NodeId, told: Compared) {
        let Some(list) = self.lists.get_mut(&node) else { return };
        list.queue.extend(told.outlines);
        list.cursor = told.next.map_or(Cursor::End, Cursor::At);
    }

    /// It has not, and is asked again from `start` of what was asked before.
    pub(super) fn untold(&mut self, node: NodeId, start: Bytes) {
        if let Some(list) = self.lists.get_mut(&node) {
            list.cursor = Cursor::At(start);
        }
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.lists.remove(&node);
    }

    /// Looks through what is listed by all nodes; `is_meant` says which records may be brought.
    pub(super) fn merge(&mut self, topology: &Topology, is_meant: impl Fn(&Outline) -> bool) {
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
            let newest = held.iter().max_by_key(|(_, outline)| outline.rank);
            let (holder, newest) = newest.map(|(node, o)| (*node, *o)).expect("one has it");
            let copies = copies_of(topology, newest.copies);
            topology.replicas(partition_of(&key), copies, &mut replicas);
            let lacks = |node: &NodeId| {
                let holds = held.get(node).is_some_and(|outline| outline.rank == newest.rank);
                !holds && self.lists.contains_key(node)
            };
            let lacking: Vec<NodeId> = replicas.iter().copied().filter(lacks).collect();
            if !lacking.is_empty() && is_meant(&newest) {
                self.counts.differing += 1;
                let job = Job { key, newest, holder, lacking, open: 0, failed: false };
                self.waiting.push_back(job);
            }
        }
    }

    /// The next key whose record is to be read, if one may be: its number, and what is asked of
    /// whom.
    pub(super) fn next_read(&mut self) -> Option<(u64, NodeId, Request)> {
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
        let request = if job.newest.rank.ballot > 0 {
            Request::ReadQuorum { key }
        } else {
            Request::Read { key, most: job.newest.bytes.saturating_add(GROWTH) }
        };
        self.under_way.insert(number, job);
        Some((number, holder, request))
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
        topology.replicas(partition_of(&job.key), copies_of(topology, copies), &mut replicas);
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
        job.open -= 1;
        if job.open == 0 {
            self.end(number);
        }
    }

    fn end(&mut self, number: u64) {
        let job = self.under_way.remove(&number).expect("it was just there");
        self.bytes -= u64::from(job.newest.bytes);
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

/// How many replicas a record with this number of copies has.
fn copies_of(topology: &Topology, copies: u8) -> u8 {
    if copies == 0 { topology.default_copies() } else { copies }
}
