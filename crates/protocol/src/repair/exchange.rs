//! Record exchange within a repair round: differing records are brought to the replicas that lack
//! them.
//!
//! ```text
//!   lists of all nodes, in key order ─▶ the newest record of each key, and the nodes lacking it
//!      ─▶ the record is read from a replica that holds it ─▶ and written to the nodes lacking it
//!      ─▶ the next lists
//! ```
//!
//! The record of a conditional write is read from a majority, as for a client's read. A record held
//! by a minority may never have been chosen, and further copies would make it look chosen.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::round::{OTHER_NODE_DRIVES, Round, RoundEnd};
use crate::background::task;
use crate::message::{Class, NodeId, Reply, Request};
use crate::placement::topology::partition_of;
use crate::repair::compare_messages::{CompareRequest, Damage, Detail};
use crate::repair::status::Unrepaired;
use record::{Kind, Record, RecordOutline, Version};

/// Limit on one list in bytes; one list is requested from each node at a time.
const LIST_BYTES: u32 = 256 << 10;

/// Maximum number of differing keys collected from the lists before their records are brought.
const MAX_DIFFERING: usize = 1024;

/// Maximum number of keys whose records are in flight at once.
const MAX_UNDER_WAY: usize = 64;

/// Maximum bytes of the records in flight, unless a single record is longer.
const MAX_BYTES: u64 = 4 << 20;

/// Bytes by which a record may have grown since it was listed.
const GROWTH: u32 = 64 << 10;

/// The range of keys to be exchanged.
pub(super) struct ExchangeRange {
    pub(super) start: Bytes,
    /// The first key beyond the range; `None` = unbounded.
    pub(super) end: Option<Bytes>,
    /// Lower bound, exclusive, of the version times of the exchanged records.
    pub(super) since: u64,
    /// The buckets of the exchanged keys; empty = all.
    pub(super) buckets: Vec<u16>,
    /// The node whose damage is being healed; `None` = the exchange heals none.
    pub(super) damaged: Option<NodeId>,
}

/// Problems found by an exchange.
#[derive(Default)]
pub(super) struct ExchangeProblems {
    /// Number of keys that could not be made equal.
    pub(super) failed: u64,
    /// Key ranges that nodes cannot read.
    pub(super) damaged: Vec<(NodeId, Damage)>,
}

/// The listed keys of one node that are not processed yet.
struct List {
    queue: VecDeque<(Bytes, RecordOutline)>,
    /// The start of the next list; `None` = everything is listed.
    next: Option<Bytes>,
}

impl List {
    /// True if the node must list more before the next key can be determined.
    fn is_short(&self) -> bool {
        self.queue.is_empty() && self.next.is_some()
    }
}

/// A key whose newest record some nodes lack.
struct DifferingKey {
    key: Bytes,
    newest: RecordOutline,
    /// The nodes that hold the newest record.
    holders: Vec<NodeId>,
    lacking: Vec<NodeId>,
    /// The nodes in `lacking` that hold an older record. The older record must not resurface, so
    /// these nodes get the newest record even if they are not among its replicas.
    outdated: Vec<NodeId>,
    /// True if the nodes in `lacking` get a tombstone instead of the newest record.
    deletes: bool,
}

impl Round {
    /// Makes the nodes equal in a range of keys.
    pub(super) async fn exchange(
        &mut self,
        range: ExchangeRange,
    ) -> Result<ExchangeProblems, RoundEnd> {
        let list = |node: &NodeId| {
            (*node, List { queue: VecDeque::new(), next: Some(range.start.clone()) })
        };
        let mut lists: BTreeMap<NodeId, List> = self.nodes.iter().map(list).collect();
        let mut found = ExchangeProblems::default();
        loop {
            self.extend_lists(&mut lists, &range, &mut found).await?;
            let (differing, ahead) = self.differing_keys(&mut lists, range.damaged);
            let count = differing.len() as u64;
            if count == 0 && !lists.values().any(List::is_short) {
                self.count(0, 0, 0, ahead);
                found.failed += ahead;
                return Ok(found);
            }
            let jobs =
                differing.into_iter().map(|key| (u64::from(key.newest.bytes), self.bring(key)));
            let brought = task::join_bounded(jobs, MAX_UNDER_WAY, MAX_BYTES).await;
            let brought = brought.into_iter().collect::<Result<Vec<_>, _>>()?;
            let repaired = brought.iter().filter(|unrepaired| unrepaired.is_empty()).count() as u64;
            self.note_unrepaired(brought.into_iter().flatten());
            self.count(count, repaired, count - repaired, ahead);
            found.failed += count - repaired + ahead;
        }
    }

    /// Requests the next list from each node whose list is used up.
    async fn extend_lists(
        &mut self,
        lists: &mut BTreeMap<NodeId, List>,
        range: &ExchangeRange,
        found: &mut ExchangeProblems,
    ) -> Result<(), RoundEnd> {
        let (round, watermark) = (self.id, self.watermark);
        let request = |start: Bytes| CompareRequest {
            start,
            end: range.end.clone(),
            since: range.since,
            // A record newer than the round hides older records of the other nodes, and may be the
            // record that a node cannot read.
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

    /// Removes from the lists the keys up to which all nodes have listed. Returns the keys whose
    /// newest record some nodes lack, and the number of keys with a future record on some node.
    /// The exchange of such a key leaves out the node with the future record, because the record
    /// that the future record hides is unknown.
    fn differing_keys(
        &self,
        lists: &mut BTreeMap<NodeId, List>,
        damaged: Option<NodeId>,
    ) -> (Vec<DifferingKey>, u64) {
        let (mut differing, mut all_ahead) = (Vec::new(), 0);
        while differing.len() < MAX_DIFFERING && !lists.values().any(List::is_short) {
            let first = |list: &List| list.queue.front().map(|(key, _)| key.clone());
            let Some(key) = lists.values().filter_map(first).min() else { break };
            let mut held: BTreeMap<NodeId, RecordOutline> = BTreeMap::new();
            for (node, list) in lists.iter_mut() {
                if let Some((_, outline)) = list.queue.pop_front_if(|(listed, _)| *listed == key) {
                    held.insert(*node, outline);
                }
            }
            let is_ahead =
                |outline: &RecordOutline| self.context.is_ahead(outline.rank.write_time());
            let ahead: Vec<NodeId> =
                held.iter().filter(|(_, o)| is_ahead(o)).map(|(node, _)| *node).collect();
            all_ahead += u64::from(!ahead.is_empty());
            held.retain(|node, _| !ahead.contains(node));
            let others: Vec<NodeId> =
                lists.keys().copied().filter(|node| !ahead.contains(node)).collect();
            let is_healed = damaged.is_some() && lists.len() > 1;
            differing.extend(self.differing_key(
                key,
                &held,
                &others,
                damaged.filter(|_| is_healed),
            ));
        }
        (differing, all_ahead)
    }

    /// Returns the key with the nodes that lack the newest of its records; `None` = no node lacks
    /// it.
    fn differing_key(
        &self,
        key: Bytes,
        held: &BTreeMap<NodeId, RecordOutline>,
        nodes: &[NodeId],
        damaged: Option<NodeId>,
    ) -> Option<DifferingKey> {
        let newest = held.values().copied().max_by_key(|outline| outline.rank)?;
        // A record that only the damaged node holds was hidden there by a record that is unreadable
        // now. All nodes held the same records up to the watermark, and the other nodes have purged
        // both records.
        let is_proven = newest.rank.write_time() <= self.watermark;
        let deletes = is_proven && damaged.is_some_and(|node| held.keys().eq([&node]));
        let lacking: Vec<NodeId> = if deletes {
            held.keys().copied().collect()
        } else {
            let replicas = self.replicas(&key, newest.copies);
            let is_purgeable = is_purgeable(&newest, self.watermark);
            let lacks = |node: &NodeId| match held.get(node) {
                // The node may be no replica of the newest record, which has fewer copies. But the
                // node holds an older record, which the newest must hide.
                Some(outline) => outline.rank < newest.rank,
                None => !is_purgeable && replicas.contains(node),
            };
            nodes.iter().copied().filter(lacks).collect()
        };
        if lacking.is_empty() {
            return None;
        }
        let outdated = lacking.iter().copied().filter(|node| held.contains_key(node)).collect();
        let holders = held.iter().filter(|(_, outline)| outline.rank == newest.rank);
        let holders = holders.map(|(node, _)| *node).collect();
        Some(DifferingKey { key, newest, holders, lacking, outdated, deletes })
    }

    /// Brings a key's newest record to the nodes that lack it. Returns the nodes because of which
    /// the key stays different, each with the reason; none = all nodes have the record now.
    async fn bring(&self, differing: DifferingKey) -> Result<Vec<(NodeId, Unrepaired)>, RoundEnd> {
        let (record, to) = match self.newest_of(&differing).await {
            Ok(read) => read,
            Err(holder) => return Ok(vec![(holder, Unrepaired::Unread)]),
        };
        let brought = to.into_iter().map(async |node| {
            let (key, record) = (differing.key.clone(), record.clone());
            let request = Request::Bring { round: self.id, key, record };
            (node, self.context.call(node, Class::Repair, request).await)
        });
        let mut unrepaired = Vec::new();
        for (node, result) in task::join_all(brought).await {
            match result {
                Ok(Reply::Stored | Reply::Newer { .. }) => {}
                Ok(Reply::TopologyMismatch) => return Err(RoundEnd::Stopped(OTHER_NODE_DRIVES)),
                result => unrepaired.push((node, Unrepaired::of(&result))),
            }
        }
        Ok(unrepaired)
    }

    /// Returns the record to bring, and its recipients; `Err` = this holder could not be read, or
    /// the record that it returned is older than the listed one. An older record is read if the
    /// majority that answers has none of the holders of the newest record; the key then stays
    /// different.
    ///
    /// After the listing, a holder may have stored a newer record with fewer copies, which some of
    /// the nodes in `lacking` must not get. Then the next holder is asked, because holders that
    /// still have the listed record would differ from those nodes.
    async fn newest_of(&self, differing: &DifferingKey) -> Result<(Record, Vec<NodeId>), NodeId> {
        let DifferingKey { key, newest, lacking, outdated, .. } = differing;
        if differing.deletes {
            // This version is above all proven versions, and below all later versions.
            let version = Version { time: self.watermark, origin: u32::MAX };
            return Ok((Record::tombstone(key, version), lacking.clone()));
        }
        let most = newest.bytes.saturating_add(GROWTH);
        let mut read = Err(self.context.shared().own);
        for holder in differing.holders.iter().rev() {
            let key = key.clone();
            let request = match newest.rank.ballot {
                0 => Request::Read { key, most },
                _ => Request::ReadQuorum { key, most },
            };
            let result = self.context.call(*holder, Class::Stream, request).await;
            let record = match result {
                Ok(Reply::Found { record, .. }) if record.rank() >= newest.rank => record,
                _ => return Err(*holder),
            };
            let replicas = self.replicas(&differing.key, record.copies());
            let takes = |node: &NodeId| replicas.contains(node) || outdated.contains(node);
            let to: Vec<NodeId> = lacking.iter().copied().filter(takes).collect();
            let is_for_all = to.len() == lacking.len();
            read = Ok((record, to));
            if is_for_all {
                break;
            }
        }
        read
    }

    /// Returns the replicas of a record with this number of copies.
    fn replicas(&self, key: &[u8], copies: u8) -> Vec<NodeId> {
        let mut replicas = Vec::new();
        let topology = &self.view.topology;
        topology.replicas(partition_of(key), topology.copies_of(copies), &mut replicas);
        replicas
    }
}

/// True if a record may be purged at this watermark. Only nodes with an older record that it must
/// hide still need it.
fn is_purgeable(outline: &RecordOutline, watermark: u64) -> bool {
    let rank = outline.rank;
    rank.kind != Kind::Value && rank.version.time.max(rank.ballot) <= watermark
}
