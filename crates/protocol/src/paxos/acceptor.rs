//! The acceptor: the replica's side of conditional writes, with promises and the conditional
//! storing of records.
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
//! Source: D. Rystsov, *CASPaxos: Replicated State Machines without logs* (2018), section 2.2.
//! Unlike there, plain writes overwrite the register without promises.

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

/// The interval at which a replica polls for a record that another loop is storing, in
/// microseconds.
const POLL_MICROS: u64 = 500;

/// Requests under way on a replica. Their number is bounded, because each entry belongs to an
/// unanswered request of a coordinator.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// Promises that were given, and whose record is still being read.
    promised: BTreeMap<OpId, PendingPromise>,
    storing: BTreeMap<OpId, Storing>,
    /// Records that are queued behind others that are being stored, by partition. A coordinator
    /// continues as soon as a majority has stored a record, and this replica may be slower.
    waiting: BTreeMap<u16, VecDeque<(OpId, Demand, ArrivedRecord)>>,
    /// The time of the next poll for the queued records, by the monotonic clock, in microseconds.
    look_at: u64,
    /// Partitions in which a record was just stored while others are queued.
    freed: Vec<u16>,
    /// Records of conditional writes in pages from other nodes that are being stored.
    pages: BTreeMap<OpId, StoredPage>,
}

/// A promise that was given, and is answered once the record is read.
#[derive(Debug)]
struct PendingPromise {
    /// The deadline of the request, by the monotonic clock, in microseconds.
    until: u64,
    /// True if this node has the whole partition of the key, with nothing left to pull.
    is_whole: bool,
}

/// Records that came from another node in a page.
#[derive(Debug)]
struct StoredPage {
    items: Vec<(Bytes, Record)>,
    /// True if no promises are given until the records are stored.
    pauses: bool,
}

/// A record that has arrived to be stored.
#[derive(Debug)]
pub(crate) struct ArrivedRecord {
    pub(crate) key: Bytes,
    pub(crate) record: Record,
    /// True if the coordinator has requested no promises since its last record.
    pub(crate) goes_on: bool,
}

/// A record that holds its bucket while it is being stored.
#[derive(Debug)]
struct Storing {
    key: Bytes,
    record: Record,
    /// The conditional writes in the record that this one replaces.
    before: OpHistory,
    demand: Demand,
    held: BucketHold,
    /// The epoch of the view under which the request came.
    epoch: u64,
    /// True if the record was handed to the store. Before that, the current record is being read.
    writes: bool,
}

impl Acceptor {
    pub(crate) fn is_empty(&self) -> bool {
        self.promised.is_empty() && self.storing.is_empty() && self.waiting.is_empty()
    }

    /// Returns the time of the next poll for the queued records; `None` = no record is queued.
    pub(crate) fn next_poll(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.look_at)
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
        // The replica may have promised more than it knows, because it lost its disk or crashed.
        let membership = &cx.core.shared.membership.state;
        let knows = membership.is_authoritative_for_all() && ballot > membership.promised_before();
        if !knows || !may_promise(cx, op, ballot) {
            // From a replica that is only in the other set, `Absent` would count as a promise.
            let is_read = cx.core.view.topology.holds(cx.core.shared.own, partition_of(&key), 0);
            let refusal =
                if is_read { Reply::Absent { authoritative: false } } else { Reply::Busy };
            return cx.reply_as_replica(op, refusal);
        }
        if let Err(promise) = cx.core.shared.paxos.promises.promise(&key, ballot) {
            return cx.reply_as_replica(op, Reply::BallotRefused { promise });
        }
        // A receiver that must still pull the partition also promises, and reports the record that
        // it holds: a majority of the next replicas must suffice once the previous ones are gone.
        let is_whole = !must_pull(cx.core, || partition_of(&key));
        self.promised.insert(op, PendingPromise { until: demand.until, is_whole });
        cx.out.push(Effect::Read { op, key, most, demand });
    }

    /// Stores or queues the record of a conditional write, from the write's coordinator or from any
    /// node that found the record elsewhere.
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
                self.look_at = cx.now.mono + POLL_MICROS;
            }
            waiting.entry(partition).or_default().push_back((op, demand, waits));
        }
    }

    /// Tries to store a record. Returns the record if it has to wait: no higher ballot is promised,
    /// but another record or a page of records is being stored.
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

    /// Returns the refusal of a record that this node must not store, regardless of its promises.
    fn refusal(&self, cx: &mut Cx<'_>, op: OpId, arrived: &ArrivedRecord) -> Option<Reply> {
        let ballot = arrived.record.ballot();
        let membership = &cx.core.shared.membership.state;
        // A previous incarnation that lost its disk may have promised this ballot.
        let promise = membership.promised_before();
        if ballot <= promise {
            return Some(Reply::BallotRefused { promise });
        }
        // A replica that does not know yet what it lost may have promised more than it knows. It
        // also lacks the plain writes that it lost, and would accept a record that continues from
        // before them.
        if !membership.knows_what_it_lost()
            || arrived.goes_on && !holds_all_due(cx.core, &arrived.key)
        {
            return Some(Reply::Absent { authoritative: false });
        }
        // Only a faulty peer sends two requests under one id.
        let is_known = self.storing.contains_key(&op);
        (is_known || !may_promise(cx, op, ballot)).then_some(Reply::Busy)
    }

    /// Stores the queued records of one partition in which this loop just stored a record; returns
    /// `false` if no such partition is left.
    pub(crate) fn retry_freed(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(partition) = self.freed.pop() else { return false };
        self.retry_partition(cx, partition);
        true
    }

    /// Retries the queued records of all partitions, because other loops may have stored theirs by
    /// now.
    pub(crate) fn retry_all(&mut self, cx: &mut Cx<'_>) {
        self.look_at = cx.now.mono + POLL_MICROS;
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

    /// Handles a page of records that another node streams to this one. The records are stored
    /// regardless of promises for their keys. Records sent to a member are chosen, as hints are,
    /// and violate no promise. Records sent to a node that is being rebuilt need not be chosen: one
    /// that was made under a lower ballot must not appear after a coordinator was promised that
    /// there is none. So no promise is given until the page is stored, and the floor is raised,
    /// which voids earlier promises. Returns `false` if the page cannot be stored yet.
    pub(crate) fn on_page(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        class: Class,
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
            // The ballots come from this node's own clock, or are not too far ahead of it.
            if !cx.core.shared.promise_all(cx.now, all.max(greatest), u64::MAX) {
                cx.core.shared.paxos.promises.resume();
                return false;
            }
        }
        self.pages.insert(op, StoredPage { items, pauses });
        true
    }

    /// Handles the end of a page's write, successful or not.
    pub(crate) fn on_page_written(&mut self, core: &Core, op: OpId, is_stored: bool) {
        let Some(StoredPage { items, pauses }) = self.pages.remove(&op) else { return };
        for (key, record) in items.iter().filter(|_| is_stored) {
            let steps = record.op_history();
            let via = (Via::Replica, core.view.epoch);
            core.shared.paxos.recent.note(key, record, [&OpHistory::default(), &steps], via);
        }
        if pauses {
            core.shared.paxos.promises.resume();
        }
    }

    /// Handles the result of a write to the store; returns `false` if it was not the write of a
    /// conditional write's record.
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

    /// Ends promises and records whose read was skipped because their deadline had passed.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) {
        self.promised.retain(|_, promised| promised.until > cx.now.mono);
        let is_over = |storing: &Storing| !storing.writes && storing.demand.until <= cx.now.mono;
        let over = self.storing.iter().filter(|(_, storing)| is_over(storing));
        let over: Vec<OpId> = over.map(|(op, _)| *op).collect();
        over.into_iter().for_each(|op| self.give_up(cx.core, op));
    }

    /// Refuses all requests of the previous placement whose record is not in the store yet: no
    /// coordinator would count them, and other coordinators may have higher promises by now. A
    /// record that was handed to the store is written; until then no promise is given.
    pub(crate) fn reject_previous_placement(&mut self, cx: &mut Cx<'_>) {
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_values().flatten().map(|(op, _, _)| op);
        let reading = self.storing.iter().filter(|(_, storing)| !storing.writes);
        let reading: Vec<OpId> = reading.map(|(op, _)| *op).collect();
        reading.iter().for_each(|op| self.give_up(cx.core, *op));
        // The reply tells the coordinator that this node's view is later.
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

/// Returns what the acceptance of a record of this key will prove later. While the key moves, a
/// majority of its previous replicas and a majority of its next ones must accept the record, and
/// afterwards a replica that was only a previous one is not asked.
fn via_of_acceptance(core: &Core, key: &[u8]) -> Via {
    if core.view.is_moving(partition_of(key)) { Via::Replica } else { Via::Accept }
}

/// True if this node holds all records of a key that it should hold as one of the default replicas:
/// it has lost nothing, and has nothing of the key left to pull.
fn holds_all_due(core: &Core, key: &[u8]) -> bool {
    let membership = &core.shared.membership.state;
    membership.is_authoritative_for_all() && !must_pull(core, || partition_of(key))
}

/// True if this node must still pull a partition that moves to it.
pub(super) fn must_pull(core: &Core, partition: impl Fn() -> u16) -> bool {
    let (view, own) = (&core.view, core.shared.own);
    core.shared.membership.lacks.load(Ordering::SeqCst)
        && view.joint.as_ref().is_some_and(|other| other.holds(own, partition(), 0))
        && !view.topology.holds(own, partition(), 0)
}

/// True if a ballot may be promised: it is at most the durable bound, above which the next process
/// start begins.
fn may_promise(cx: &Cx<'_>, op: OpId, ballot: u64) -> bool {
    cx.core.shared.clock.merge_ballot(ballot, cx.now, skew_of(cx.core, op))
}

fn is_late(cx: &Cx<'_>, op: OpId, ballot: u64) -> bool {
    cx.core.shared.clock.is_ahead(ballot, cx.now, skew_of(cx.core, op))
}

/// Returns the largest lead of a ballot over the wall clock, in microseconds. This node's own
/// ballots, like its versions, may be as far ahead as its clock.
fn skew_of(core: &Core, op: OpId) -> u64 {
    match op {
        OpId::Slot(_) => u64::MAX,
        OpId::Peer { .. } => core.config.max_skew_micros,
    }
}
