//! Records of keys that differ are brought to the replicas that lack them.
//!
//! ```text
//!   lists of all nodes, in the order of keys ─▶ the newest of each key, and who lacks it
//!      ─▶ read at a replica that holds it ─▶ written to those that lack it ─▶ the next lists
//! ```
//!
//! A record that a conditional write made is read as a client reads it who wants a majority: one of
//! a minority may never have been chosen, and must not look as if it were.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::round::{End, Round};
use crate::background::task;
use crate::message::{Class, NodeId, Reply, Request};
use crate::placement::topology::partition_of;
use crate::repair::compare::{CompareRequest, Damage, Detail};
use record::{Kind, Outline, Record, Version};

/// Bytes of one list; one is asked for from each node at once.
const LIST_BYTES: u32 = 256 << 10;

/// Keys that are looked for in the lists before they are brought.
const MAX_DIFFERING: usize = 1024;

/// Keys whose records are on their way at once …
const MAX_UNDER_WAY: usize = 64;

/// … and bytes of them, unless a single one has more.
const MAX_BYTES: u64 = 4 << 20;

/// Bytes by which a record may have grown since it was listed.
const GROWTH: u32 = 64 << 10;

/// The keys that are listed.
pub(super) struct ExchangeRange {
    pub(super) start: Bytes,
    /// The first key beyond; `None` = there is no such key.
    pub(super) end: Option<Bytes>,
    /// Records that were written after this time …
    pub(super) since: u64,
    /// … of keys in these buckets; none = all.
    pub(super) buckets: Vec<u16>,
    /// The node whose damage is healed, if that is what the exchange is for.
    pub(super) damaged: Option<NodeId>,
}

/// What an exchange has come upon.
#[derive(Default)]
pub(super) struct Found {
    /// Keys that could not be made equal.
    pub(super) failed: u64,
    /// Keys that nodes can't read.
    pub(super) damaged: Vec<(NodeId, Damage)>,
}

/// What a node has listed of its keys and is not looked at yet.
struct List {
    queue: VecDeque<(Bytes, Outline)>,
    /// Where the next list begins; `None` = all is listed.
    next: Option<Bytes>,
}

impl List {
    /// Whether the node has to list more before the next key can be told.
    fn is_short(&self) -> bool {
        self.queue.is_empty() && self.next.is_some()
    }
}

/// A key of which some nodes lack the newest record.
struct Differing {
    key: Bytes,
    newest: Outline,
    /// Those that hold it.
    holders: Vec<NodeId>,
    lacking: Vec<NodeId>,
    /// Those of them that hold an older one, replicas or not: it must not come up again.
    outdated: Vec<NodeId>,
    /// They are brought a tombstone instead.
    deletes: bool,
}

impl Round {
    /// Makes the nodes equal in a range of keys.
    pub(super) async fn exchange(&mut self, range: ExchangeRange) -> Result<Found, End> {
        let list = |node: &NodeId| {
            (*node, List { queue: VecDeque::new(), next: Some(range.start.clone()) })
        };
        let mut lists: BTreeMap<NodeId, List> = self.nodes.iter().map(list).collect();
        let mut found = Found::default();
        loop {
            self.lengthen(&mut lists, &range, &mut found).await?;
            let (differing, ahead) = self.differing_keys(&mut lists, range.damaged);
            let count = differing.len() as u64;
            if count == 0 && !lists.values().any(List::is_short) {
                self.count(0, 0, 0, ahead);
                found.failed += ahead;
                return Ok(found);
            }
            let jobs =
                differing.into_iter().map(|key| (u64::from(key.newest.bytes), self.bring(key)));
            let brought = task::bounded(jobs, MAX_UNDER_WAY, MAX_BYTES).await;
            let repaired = brought.into_iter().filter(|is_brought| *is_brought).count() as u64;
            self.count(count, repaired, count - repaired, ahead);
            found.failed += count - repaired + ahead;
        }
    }

    /// Has each node list more whose list is at its end.
    async fn lengthen(
        &mut self,
        lists: &mut BTreeMap<NodeId, List>,
        range: &ExchangeRange,
        found: &mut Found,
    ) -> Result<(), End> {
        let (round, watermark) = (self.id, self.watermark);
        let request = |start: Bytes| CompareRequest {
            start,
            end: range.end.clone(),
            since: range.since,
            // What is newer than the round hides what others have of it, and may be what one can't
            // read.
            until: u64::MAX,
            round,
            watermark,
            detail: Detail::Outlines { buckets: range.buckets.clone(), max_bytes: LIST_BYTES },
        };
        let short = lists.iter().filter(|(_, list)| list.queue.is_empty());
        let short = short.filter_map(|(node, list)| Some((*node, request(list.next.clone()?))));
        for (node, compared) in self.compare_all(short.collect()).await? {
            found.damaged.extend(compared.damaged.into_iter().map(|damage| (node, damage)));
            if let Some(list) = lists.get_mut(&node) {
                list.queue.extend(compared.outlines);
                list.next = compared.next;
            }
        }
        lists.retain(|node, _| self.nodes.contains(node));
        Ok(())
    }

    /// Takes from the lists, as far as all nodes have listed, the keys that some nodes lack the
    /// newest record of; and counts those of which a node holds a record from a clock that is
    /// ahead: what that hides is not known.
    fn differing_keys(
        &self,
        lists: &mut BTreeMap<NodeId, List>,
        damaged: Option<NodeId>,
    ) -> (Vec<Differing>, u64) {
        let (mut differing, mut all_ahead) = (Vec::new(), 0);
        while differing.len() < MAX_DIFFERING && !lists.values().any(List::is_short) {
            let first = |list: &List| list.queue.front().map(|(key, _)| key.clone());
            let Some(key) = lists.values().filter_map(first).min() else { break };
            let mut held: BTreeMap<NodeId, Outline> = BTreeMap::new();
            for (node, list) in lists.iter_mut() {
                if let Some((_, outline)) = list.queue.pop_front_if(|(listed, _)| *listed == key) {
                    held.insert(*node, outline);
                }
            }
            let is_ahead = |outline: &Outline| self.context.is_ahead(outline.rank.when());
            let ahead: Vec<NodeId> =
                held.iter().filter(|(_, o)| is_ahead(o)).map(|(node, _)| *node).collect();
            all_ahead += u64::from(!ahead.is_empty());
            held.retain(|node, _| !ahead.contains(node));
            let others: Vec<NodeId> =
                lists.keys().copied().filter(|node| !ahead.contains(node)).collect();
            let is_healed = damaged.is_some() && lists.len() > 1;
            differing.extend(self.differs(key, &held, &others, damaged.filter(|_| is_healed)));
        }
        (differing, all_ahead)
    }

    /// Who lacks the newest of these records of a key, if anybody does.
    fn differs(
        &self,
        key: Bytes,
        held: &BTreeMap<NodeId, Outline>,
        nodes: &[NodeId],
        damaged: Option<NodeId>,
    ) -> Option<Differing> {
        let newest = held.values().copied().max_by_key(|outline| outline.rank)?;
        // What only the damaged node holds was hidden there by what can't be read: all others have
        // purged that, and this with it, for they held the same up to the watermark.
        let is_proven = newest.rank.when() <= self.watermark;
        let deletes = is_proven && damaged.is_some_and(|node| held.keys().eq([&node]));
        let lacking: Vec<NodeId> = if deletes {
            held.keys().copied().collect()
        } else {
            let replicas = self.replicas(&key, newest.copies);
            let is_gone = is_gone(&newest, self.watermark);
            let lacks = |node: &NodeId| match held.get(node) {
                // It may be beyond the newest one's copies, and holds what that hides.
                Some(outline) => outline.rank < newest.rank,
                None => !is_gone && replicas.contains(node),
            };
            nodes.iter().copied().filter(lacks).collect()
        };
        if lacking.is_empty() {
            return None;
        }
        let outdated = lacking.iter().copied().filter(|node| held.contains_key(node)).collect();
        let holders = held.iter().filter(|(_, outline)| outline.rank == newest.rank);
        let holders = holders.map(|(node, _)| *node).collect();
        Some(Differing { key, newest, holders, lacking, outdated, deletes })
    }

    /// Brings a key's newest record to whoever lacks it. Returns whether all of them have it now.
    async fn bring(&self, differing: Differing) -> bool {
        let Some((record, to)) = self.newest_of(&differing).await else { return false };
        let brought = to.into_iter().map(|node| {
            let (key, record) = (differing.key.clone(), record.clone());
            let request = Request::Bring { round: self.id, key, record };
            self.context.call(node, Class::Repair, request)
        });
        let is_stored = |result| matches!(result, Ok(Reply::Stored | Reply::Newer { .. }));
        task::all(brought).await.into_iter().all(is_stored)
    }

    /// The record that is brought, and to whom; `None` = no holder can be read, or what was read is
    /// older than what was listed. A majority may hold something older, and need not be of those
    /// that hold the newest: then that differs still.
    ///
    /// A holder may have stored a newer record since, of fewer copies, which is none of some that
    /// lack the listed one. So the next holder is asked: those that hold the listed one still would
    /// differ from those that lack it.
    async fn newest_of(&self, differing: &Differing) -> Option<(Record, Vec<NodeId>)> {
        let Differing { key, newest, lacking, outdated, .. } = differing;
        if differing.deletes {
            // By a version that is above all that was proven, and below all that came since.
            let version = Version { time: self.watermark, origin: u32::MAX };
            return Some((Record::tombstone(key, version), lacking.clone()));
        }
        let most = newest.bytes.saturating_add(GROWTH);
        let mut read = None;
        for holder in differing.holders.iter().rev() {
            let key = key.clone();
            let request = match newest.rank.ballot {
                0 => Request::Read { key, most },
                _ => Request::ReadQuorum { key, most },
            };
            let result = self.context.call(*holder, Class::Stream, request).await;
            let record = match result {
                Ok(Reply::Found { record, .. }) if record.rank() >= newest.rank => record,
                _ => return None,
            };
            let replicas = self.replicas(&differing.key, record.copies());
            let takes = |node: &NodeId| replicas.contains(node) || outdated.contains(node);
            let to: Vec<NodeId> = lacking.iter().copied().filter(takes).collect();
            let is_for_all = to.len() == lacking.len();
            read = Some((record, to));
            if is_for_all {
                break;
            }
        }
        read
    }

    /// The replicas of a record of so many copies.
    fn replicas(&self, key: &[u8], copies: u8) -> Vec<NodeId> {
        let mut replicas = Vec::new();
        let topology = &self.view.topology;
        topology.replicas(partition_of(key), topology.copies_of(copies), &mut replicas);
        replicas
    }
}

/// Whether a record may be purged by this watermark: nobody needs to be brought it but who holds
/// what it hides.
fn is_gone(outline: &Outline, watermark: u64) -> bool {
    let rank = outline.rank;
    rank.kind != Kind::Value && rank.version.time.max(rank.ballot) <= watermark
}
