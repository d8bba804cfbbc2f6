//! The acceptor, the replica side of conditional writes: it gives promises, and stores records
//! unless a higher ballot is promised.
//!
//! ```text
//!  Prepare ─▶ promise the ballot ─▶ read the key ─▶ reply: the newest record
//!  Write of a record with a ballot ─▶ hold the bucket of the key's promise, which may be
//!    ├─ held for another record ─▶ retry a little later
//!    ├─ promised to a higher ballot ─▶ reply BallotRefused
//!    └─ free ─▶ read the key ─┬─ the stored record is newer ─▶ reply Newer
//!                             └─ otherwise ─▶ write durably ─▶ reply Stored
//! ```
//!
//! Source: D. Rystsov, *CASPaxos: Replicated State Machines without logs* (2018), section 2.2. In
//! contrast to CASPaxos, plain writes overwrite the register without promises.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::dispatch::core::{Core, Cx};
use crate::event::{Demand, Effect, OpId, StoreError};
use crate::message::{Class, Reply};
use crate::paxos::promises::BucketHold;
use crate::paxos::recent::Via;
use crate::placement::topology::partition_of;
use crate::replica::reply::{reply_to_error, reply_to_write};
use record::{OpHistory, Record};

/// The interval at which a loop polls for buckets that another loop holds, in microseconds.
const POLL_MICROS: u64 = 500;

/// The unfinished requests of a replica. They are bounded: each belongs to an unanswered request of
/// a coordinator.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// Promises that are given, but not answered yet: the key's record is still being read.
    promised: BTreeMap<OpId, PendingPromise>,
    storing: BTreeMap<OpId, Storing>,
    /// Records, by partition, that wait until another record is stored. A coordinator continues
    /// once a majority has stored a record, so its next record may reach a slower replica early.
    waiting: BTreeMap<u16, VecDeque<(OpId, Demand, ArrivedRecord)>>,
    /// The time of the next poll for the queued records, by the monotonic clock, in microseconds.
    next_poll_at: u64,
    /// Partitions in which a record was stored while others were queued.
    freed: Vec<u16>,
    /// Pages from other nodes that contain records of conditional writes and are being stored.
    pages: BTreeMap<OpId, StoredPage>,
}

/// A promise that was given, and is answered once the record is read.
#[derive(Debug)]
struct PendingPromise {
    /// The deadline of the request, by the monotonic clock, in microseconds.
    until: u64,
    /// True if this node has pulled the whole partition of the key.
    is_whole: bool,
}

/// The records of a page from another node.
#[derive(Debug)]
struct StoredPage {
    items: Vec<(Bytes, Record)>,
    /// The way in which the records arrived, and the epoch of the view at that time.
    via: (Via, u64),
    /// True if no promise is given until the records are stored.
    pauses: bool,
}

/// A record that has arrived and is to be stored.
#[derive(Debug)]
pub(crate) struct ArrivedRecord {
    pub(crate) key: Bytes,
    pub(crate) record: Record,
    /// True if the coordinator has requested no new promises for this record.
    pub(crate) continues_without_promise: bool,
}

/// A record that holds its bucket while it is being stored.
#[derive(Debug)]
struct Storing {
    key: Bytes,
    record: Record,
    /// The operations of the record that this record replaces.
    before: OpHistory,
    demand: Demand,
    held: BucketHold,
    /// The epoch of the view under which the request arrived.
    epoch: u64,
    /// True if the record was passed to the store. Until then, the current record is being read.
    writes: bool,
}

impl Acceptor {
    pub(crate) fn is_empty(&self) -> bool {
        self.promised.is_empty() && self.storing.is_empty() && self.waiting.is_empty()
    }

    /// Returns the time of the next poll for the queued records; `None` = no record is queued.
    pub(crate) fn next_poll(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.next_poll_at)
    }

    /// True if the store was asked to read for this request.
    pub(crate) fn reads(&self, op: OpId) -> bool {
        !self.is_empty()
            && (self.promised.contains_key(&op)
                || self.storing.get(&op).is_some_and(|storing| !storing.writes))
    }
}

impl Acceptor {
    /// Handles a coordinator's request for a promise.
    pub(crate) fn prepare(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        (key, ballot, most): (Bytes, u64, u32),
        demand: Demand,
    ) {
        if is_late(cx, op, ballot) {
            return cx.reply_as_replica(op, Reply::Ahead);
        }
        // The replica may have given promises that it has lost with its disk or in a crash.
        let membership = &cx.core.shared.membership.state;
        let knows = membership.is_authoritative_for_all() && ballot > membership.promised_before();
        if !knows || !may_promise(cx, op, ballot) {
            // The coordinator would count `Absent` from a replica of the other set as a promise.
            let is_read = cx.core.view.topology.holds(cx.core.shared.own, partition_of(&key), 0);
            let refusal =
                if is_read { Reply::Absent { authoritative: false } } else { Reply::Busy };
            return cx.reply_as_replica(op, refusal);
        }
        if let Err(promise) = cx.core.shared.paxos.promises.promise(&key, ballot) {
            return cx.reply_as_replica(op, Reply::BallotRefused { promise });
        }
        // A receiver that must still pull the partition promises too, and reports the record that
        // it holds: once the previous replicas are gone, a majority of the new ones must suffice.
        let is_whole = !must_pull(cx.core, || partition_of(&key));
        self.promised.insert(op, PendingPromise { until: demand.until, is_whole });
        cx.out.push(Effect::Read { op, key, most, demand });
    }

    /// Stores or queues the record of a conditional write. The record comes from the write's
    /// coordinator, or from a node that found it elsewhere.
    pub(crate) fn accept(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        arrived: ArrivedRecord,
        demand: Demand,
    ) {
        if let Some(waits) = self.try_accept(cx, op, arrived, demand) {
            let partition = partition_of(&waits.key);
            let waiting = &mut self.waiting;
            if waiting.is_empty() {
                self.next_poll_at = cx.now.mono + POLL_MICROS;
            }
            waiting.entry(partition).or_default().push_back((op, demand, waits));
        }
    }

    /// Tries to store a record. Returns the record if it must wait because another record or a page
    /// is being stored; `None` = the record is being stored, or was refused.
    fn try_accept(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        arrived: ArrivedRecord,
        demand: Demand,
    ) -> Option<ArrivedRecord> {
        let ballot = arrived.record.ballot();
        let refusal = match self.refusal(cx, op, &arrived) {
            Some(refusal) => refusal,
            None => match cx.core.shared.paxos.promises.hold(&arrived.key, ballot) {
                Ok(held) => {
                    let ArrivedRecord { key, record, .. } = arrived;
                    let most = cx.core.config.brief_bytes;
                    cx.out.push(Effect::Read { op, key: key.clone(), most, demand });
                    let before = OpHistory::default();
                    let (epoch, writes) = (cx.core.view.epoch, false);
                    let storing = Storing { key, record, before, demand, held, epoch, writes };
                    self.storing.insert(op, storing);
                    return None;
                }
                Err(promise) if promise <= ballot => return Some(arrived),
                Err(promise) => Reply::BallotRefused { promise },
            },
        };
        cx.reply_as_replica(op, refusal);
        None
    }

    /// Returns the refusal of a record that this node must not store, whatever it has promised;
    /// `None` = there is none.
    fn refusal(&self, cx: &mut Cx<'_>, op: OpId, arrived: &ArrivedRecord) -> Option<Reply> {
        let ballot = arrived.record.ballot();
        let membership = &cx.core.shared.membership.state;
        // A previous incarnation that lost its disk may have promised this ballot.
        let promise = membership.promised_before();
        if ballot <= promise {
            return Some(Reply::BallotRefused { promise });
        }
        // A replica that does not know yet what it lost may have lost a promise. It may also lack
        // plain writes, and would accept a record that does not follow them.
        if !membership.knows_what_it_lost()
            || arrived.continues_without_promise && !holds_all_due(cx.core, &arrived.key)
        {
            return Some(Reply::Absent { authoritative: false });
        }
        // Only a faulty peer sends two requests under one id.
        let is_known = self.storing.contains_key(&op);
        (is_known || !may_promise(cx, op, ballot)).then_some(Reply::Busy)
    }

    /// Stores the records that are queued for one freed partition; returns `false` if no freed
    /// partition is left.
    pub(crate) fn retry_freed(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(partition) = self.freed.pop() else { return false };
        self.retry_partition(cx, partition);
        true
    }

    /// Retries the queued records of all partitions: other loops may have freed the buckets by now.
    pub(crate) fn retry_all(&mut self, cx: &mut Cx<'_>) {
        self.next_poll_at = cx.now.mono + POLL_MICROS;
        let partitions: Vec<u16> = self.waiting.keys().copied().collect();
        for partition in partitions {
            self.retry_partition(cx, partition);
        }
    }

    fn retry_partition(&mut self, cx: &mut Cx<'_>, partition: u16) {
        let Some(mut waiting) = self.waiting.remove(&partition) else { return };
        while let Some((op, demand, arrived)) = waiting.pop_front() {
            // After the deadline, no coordinator waits for the reply.
            if demand.until > cx.now.mono
                && let Some(waits) = self.try_accept(cx, op, arrived, demand)
            {
                waiting.push_front((op, demand, waits));
                break;
            }
        }
        if !waiting.is_empty() {
            self.waiting.insert(partition, waiting);
        }
    }

    /// Handles the result of a read of the store, for a promise or before a record is stored.
    pub(crate) fn on_read(&mut self, cx: &mut Cx<'_>, op: OpId, read: Result<Reply, StoreError>) {
        if let Some(PendingPromise { is_whole: authoritative, .. }) = self.promised.remove(&op) {
            let reply = match read {
                Ok(Reply::Found { record, .. }) => Reply::Found { record, authoritative },
                Ok(Reply::Long { outline, .. }) => Reply::Long { outline, authoritative },
                Ok(_) => Reply::Absent { authoritative },
                Err(error) => reply_to_error(&error),
            };
            return cx.reply_as_replica(op, reply);
        }
        let storing = self.storing.get_mut(&op).expect("it was just found");
        let rank = match read {
            Ok(Reply::Found { record, .. }) => {
                storing.before = record.op_history();
                Some(record.rank())
            }
            Ok(Reply::Long { outline, .. }) => Some(outline.rank),
            Ok(_) => None,
            Err(error) => {
                self.give_up(cx.core, op);
                return cx.reply_as_replica(op, reply_to_error(&error));
            }
        };
        if let Some(rank) = rank.filter(|rank| *rank > storing.record.rank()) {
            self.give_up(cx.core, op);
            return cx.reply_as_replica(op, Reply::Newer { time: rank.write_time() });
        }
        storing.writes = true;
        let (key, record, demand) = (storing.key.clone(), storing.record.clone(), storing.demand);
        let via = via_of_acceptance(cx.core, &key);
        cx.core.note_and_check(&record);
        cx.out.push(Effect::Write { op, key, record, via, look: false, durable: true, demand });
    }

    /// Handles a page of records that another node streams to this node. The records are stored
    /// whatever is promised for their keys. Records streamed to a member are chosen, like records
    /// of hints, and violate no promise. Records streamed to a node that is being rebuilt need not
    /// be chosen: a record of a lower ballot must not appear after a coordinator was told that
    /// there is none. So no promise is given until the page is stored, and the raised floor voids
    /// earlier promises. Returns `false` if the page cannot be stored yet.
    pub(crate) fn on_page(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        (class, via): (Class, Via),
        items: &[(Bytes, Record)],
    ) -> bool {
        let items: Vec<_> = items.iter().filter(|(_, r)| r.ballot() > 0).cloned().collect();
        let Some(greatest) = items.iter().map(|(_, record)| record.ballot()).max() else {
            return true;
        };
        // Only a faulty peer sends two requests under one id.
        if self.pages.contains_key(&op) {
            return false;
        }
        let pauses = class == Class::Repair && !cx.core.shared.membership.state.is_member();
        if pauses {
            cx.core.shared.paxos.promises.pause();
            let all = cx.core.shared.clock.now(cx.now) + 1;
            // `u64::MAX`: the ballots come from this node's clock, or were checked to be near it.
            if !cx.core.shared.promise_all(cx.now, all.max(greatest), u64::MAX) {
                cx.core.shared.paxos.promises.resume();
                return false;
            }
        }
        let via = (via, cx.core.view.epoch);
        self.pages.insert(op, StoredPage { items, via, pauses });
        true
    }

    /// Handles the end of a page's write, successful or not.
    pub(crate) fn on_page_written(&mut self, core: &Core, op: OpId, is_stored: bool) {
        let Some(StoredPage { items, via, pauses }) = self.pages.remove(&op) else { return };
        for (key, record) in items.iter().filter(|_| is_stored) {
            let steps = record.op_history();
            core.shared.paxos.recent.note(key, record, [&OpHistory::default(), &steps], via);
        }
        if pauses {
            core.shared.paxos.promises.resume();
        }
    }

    /// Handles the result of a write to the store; returns `false` if the write stored no record of
    /// a conditional write.
    pub(crate) fn on_written(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        result: &Result<Option<u64>, StoreError>,
    ) -> bool {
        let storing = self.storing.get(&op).filter(|storing| storing.writes);
        let Some(Storing { key, record, before, epoch, .. }) = storing else { return false };
        if result.is_ok() {
            let steps = record.op_history();
            let via = (Via::Accept, *epoch);
            cx.core.shared.paxos.recent.note(key, record, [before, &steps], via);
        }
        self.give_up(cx.core, op);
        cx.reply_as_replica(op, reply_to_write(result));
        true
    }

    /// Drops promises and records whose read of the store was skipped, because their deadline has
    /// passed.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) {
        self.promised.retain(|_, promised| promised.until > cx.now.mono);
        let is_over = |storing: &Storing| !storing.writes && storing.demand.until <= cx.now.mono;
        let over = self.storing.iter().filter(|(_, storing)| is_over(storing));
        let over: Vec<OpId> = over.map(|(op, _)| *op).collect();
        over.into_iter().for_each(|op| self.give_up(cx.core, op));
    }

    /// Refuses the requests of the previous placement whose records were not passed to the store:
    /// no coordinator counts the replies, and another coordinator may have a higher promise by now.
    /// Records that were passed to the store are written; until then, their buckets give no
    /// promise.
    pub(crate) fn reject_previous_placement(&mut self, cx: &mut Cx<'_>) {
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_values().flatten().map(|(op, _, _)| op);
        let reading = self.storing.iter().filter(|(_, storing)| !storing.writes);
        let reading: Vec<OpId> = reading.map(|(op, _)| *op).collect();
        reading.iter().for_each(|op| self.give_up(cx.core, *op));
        // `reply_as_replica` sends peers `Superseded` with this node's epoch instead of `Busy`,
        // because their requests are of the previous placement.
        for op in reading.into_iter().chain(waiting) {
            cx.reply_as_replica(op, Reply::Busy);
        }
    }

    fn give_up(&mut self, core: &Core, op: OpId) {
        let storing = self.storing.remove(&op).expect("it is being stored");
        let partition = storing.held.partition();
        core.shared.paxos.promises.free(storing.held);
        if self.waiting.contains_key(&partition) {
            self.freed.push(partition);
        }
    }
}

/// Returns the evidence that the acceptance of a record of this key gives to later lookups. While
/// the key moves, acceptance by the new replicas alone proves nothing: the previous replicas, which
/// are not asked afterwards, had to accept the record too.
fn via_of_acceptance(core: &Core, key: &[u8]) -> Via {
    if core.view.is_moving(partition_of(key)) { Via::Replica } else { Via::Accept }
}

/// Returns the evidence that a batch of records from another node gives to later lookups. Hints
/// prove what their records name, because a coordinator stores hints only of chosen records.
pub(crate) fn via_of_batch(core: &Core, class: Class, items: &[(Bytes, Record)]) -> Via {
    let is_moving = |(key, _): &(Bytes, Record)| core.view.is_moving(partition_of(key));
    match class {
        Class::Hint if !items.iter().any(is_moving) => Via::Chosen,
        _ => Via::Replica,
    }
}

/// True if this node holds all records of a key that a default replica of the key should hold: the
/// node has lost none, and has pulled the key's partition.
fn holds_all_due(core: &Core, key: &[u8]) -> bool {
    let membership = &core.shared.membership.state;
    membership.is_authoritative_for_all() && !must_pull(core, || partition_of(key))
}

/// True if a partition moves to this node, and the node has not pulled it yet.
pub(super) fn must_pull(core: &Core, partition: impl Fn() -> u16) -> bool {
    let (view, own) = (&core.view, core.shared.own);
    core.shared.membership.lacks.load(Ordering::SeqCst)
        && view.other.as_ref().is_some_and(|other| other.holds(own, partition(), 0))
        && !view.topology.holds(own, partition(), 0)
}

/// True if a ballot may be promised: it is not above the durable bound, from which the clock starts
/// after a restart.
fn may_promise(cx: &Cx<'_>, op: OpId, ballot: u64) -> bool {
    cx.core.shared.clock.merge_ballot(ballot, cx.now, skew_of(cx.core, op))
}

fn is_late(cx: &Cx<'_>, op: OpId, ballot: u64) -> bool {
    cx.core.shared.clock.is_ahead(ballot, cx.now, skew_of(cx.core, op))
}

/// Returns the largest allowed lead of a ballot over the wall clock, in microseconds. This node's
/// own ballots may be as far ahead as its clock.
fn skew_of(core: &Core, op: OpId) -> u64 {
    match op {
        OpId::Slot(_) => u64::MAX,
        OpId::Peer { .. } => core.config.max_skew_micros,
    }
}
