//! A node's replica, which carries out requests of this node and of others on its store.
//!
//! ```text
//!  a request ─▶ Replica ─┬─▶ store: read, write, page, compare ──▶ the reply
//!                        ├─▶ Acceptor: promises, records of conditional writes
//!                        ├─▶ PendingProofs: fences and watermarks of repair rounds
//!                        ├─▶ PendingVotes: votes on layouts
//!                        └─▶ WaitingRequests: requests under a later view, and requests that wait
//!                                             until other nodes know this node's disk
//! ```

pub(crate) mod lack_of_space;
pub(crate) mod layout_votes;
pub(crate) mod newest;
pub(crate) mod orphans;
pub(crate) mod proving;
pub(crate) mod reply;
pub(crate) mod unreadable;
pub(crate) mod waiting;
pub(crate) mod write_checks;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::dispatch::core::{Core, Cx};
use crate::event::{ConnectionId, Demand, Effect, OpId, SlotId, StoreError};
use crate::message::{Class, Filter, PageRequest, Reply, Request};
use crate::paxos::acceptor::{Acceptor, ArrivedRecord, via_of_batch};
use crate::paxos::recall;
use crate::paxos::recent::{Via, WriteIdentity};
use crate::placement::topology::partition_of;
use crate::placement::view::ViewId;
use crate::repair::compare_messages::CompareRequest;
use layout_votes::PendingVotes;
use proving::PendingProofs;
use record::{Record, RecordOutline};
use reply::{long, reply_to_read, reply_to_write};
use waiting::WaitingRequests;

/// The result of a store operation that a slot of this loop started.
pub(crate) type OwnResult<T> = Option<(SlotId, T)>;

/// One event loop's part of the node's replica.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    pub(crate) acceptor: Acceptor,
    pub(crate) waiting: WaitingRequests,
    proving: PendingProofs,
    votes: PendingVotes,
    /// Unfinished writes to this node's store that a lost record may outrank, each with the
    /// greatest time that such a record may have. Empty unless the node may have lost records.
    overtaken: BTreeMap<OpId, u64>,
}

impl Replica {
    /// Checks a request of another node. Returns the request and its id if it is to be carried out
    /// now; `None` = it was refused, waits, or has expired.
    pub(crate) fn check_request(
        &mut self,
        cx: &mut Cx<'_>,
        connection: ConnectionId,
        id: u64,
        demand: Demand,
        (under, request): (ViewId, Request),
    ) -> Option<(OpId, Request)> {
        // The other node has stopped waiting.
        if demand.until <= cx.now.mono {
            return None;
        }
        let partition = request.read_key().map(|key| partition_of(key));
        let is_of_any = request.is_of_any_view();
        let placement = if is_of_any { 0 } else { under.placement };
        let op = OpId::Peer { connection, id, partition, placement };
        let is_of_proof = matches!(request, Request::Round { .. });
        let membership = &cx.core.shared.membership.state;
        if membership.is_fenced() || membership.is_outdated() && !is_of_proof {
            // The refusal changes nothing, and reveals nothing about the store.
            cx.reply_unchecked(op, Reply::TopologyMismatch);
            return None;
        }
        if !is_of_any && !cx.core.view.agrees_with(under) {
            self.waiting.of_another_view(cx, op, demand, under, request);
            return None;
        }
        Some((op, request))
    }

    /// Carries out a request that needs no other node, from another node or from this one.
    pub(crate) fn perform(&mut self, cx: &mut Cx<'_>, op: OpId, demand: Demand, request: Request) {
        if !cx.core.shared.membership.known_disk.acknowledges() && acknowledges_write(op, &request)
        {
            return self.waiting.wait_until_known(cx, op, demand, request);
        }
        match request {
            Request::Read { key, most } => cx.out.push(Effect::Read { op, key, most, demand }),
            Request::Recall { key, id, since, digest } => {
                recall::recall(cx, op, (key, WriteIdentity { id, digest }, since), demand);
            }
            Request::Prepare { watermark, .. }
                if watermark != cx.core.shared.repair.proofs.watermark() =>
            {
                let state = cx.core.round_state(cx.now);
                cx.reply_as_replica(op, Reply::Round(state));
            }
            Request::Prepare { key, ballot, most, watermark: _ } => {
                self.acceptor.prepare(cx, op, (key, ballot, most), demand);
            }
            // A future record is refused in any class. If stored, it would hide every write of the
            // key until its time comes, and read repair would spread it.
            Request::Write { record, .. } | Request::AcceptNext { record, .. }
                if cx.core.is_ahead(cx.now, &record) =>
            {
                cx.reply_as_replica(op, Reply::Ahead);
            }
            Request::Writes { items } if items.iter().any(|(_, r)| cx.core.is_ahead(cx.now, r)) => {
                cx.reply_as_replica(op, Reply::Ahead);
            }
            Request::Write { key, record }
                if is_of_others(cx.core, demand.class, &key, &record) =>
            {
                cx.reply_as_replica(op, Reply::Stored);
            }
            Request::Write { key, record } => {
                if record.is_intact(&key) {
                    self.hold_record(cx, op, key, record, demand);
                } else {
                    cx.reply_as_replica(op, Reply::Failed);
                }
            }
            Request::AcceptNext { key, record } => {
                if record.ballot() > 0 && record.is_intact(&key) {
                    let arrived = ArrivedRecord { key, record, continues_without_promise: true };
                    self.acceptor.accept(cx, op, arrived, demand);
                } else {
                    cx.reply_as_replica(op, Reply::Failed);
                }
            }
            Request::Writes { items } => self.hold_all(cx, op, items, demand),
            // The asker retries. By then, the present writes of records below that ballot are
            // stored.
            Request::Page(request) if !promises_for(cx, &request) => {
                cx.reply_as_replica(op, Reply::Busy);
            }
            Request::Page(request) => cx.out.push(Effect::Page { op, request, demand }),
            Request::Ping => cx.reply_as_replica(op, Reply::Pong),
            request => self.perform_for_node(cx, op, demand, request),
        }
    }

    /// Stores the records of one batch, all or nothing: hints, or records that this node pulls or
    /// receives as a stream.
    fn hold_all(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        mut items: Vec<(Bytes, Record)>,
        demand: Demand,
    ) {
        items.retain(|(key, record)| !is_of_others(cx.core, demand.class, key, record));
        let via = via_of_batch(cx.core, demand.class, &items);
        if items.is_empty() {
            cx.reply_as_replica(op, Reply::Stored);
        } else if !items.iter().all(|(key, record)| record.is_intact(key)) {
            cx.reply_as_replica(op, Reply::Failed);
        } else if !self.acceptor.on_page(cx, op, (demand.class, via), &items) {
            cx.reply_as_replica(op, Reply::Busy);
        } else {
            for (_, record) in &items {
                cx.core.note_and_check(record);
            }
            // Pulled and streamed records may be older than the repair fence.
            let lacks = cx.core.shared.membership.lacks.load(Ordering::SeqCst);
            let ignores_fences = demand.class == Class::Repair
                && (lacks || !cx.core.shared.membership.state.is_member());
            cx.out.push(Effect::WriteAll { op, items, via, ignores_fences, demand });
        }
    }

    /// Carries out a request that concerns the node as a whole. It comes from a task of this node
    /// or of another one.
    fn perform_for_node(&mut self, cx: &mut Cx<'_>, op: OpId, demand: Demand, request: Request) {
        match request {
            // While records are being streamed to this node, they must not seem to be missing.
            Request::Compare(_) if !cx.core.shared.membership.state.is_authoritative_for_all() => {
                cx.reply_as_replica(op, Reply::Absent { authoritative: false });
            }
            Request::Compare(CompareRequest { round, watermark, .. })
                if cx.core.shared.repair.proofs.known_proof().seal != round
                    || cx.core.shared.repair.proofs.watermark() != watermark =>
            {
                cx.reply_as_replica(op, Reply::TopologyMismatch);
            }
            Request::Compare(request) => {
                cx.core.shared.repair.rounds.note_work(cx.now);
                cx.out.push(Effect::Compare { op, request, demand });
            }
            Request::Discard(ranges) => cx.out.push(Effect::Discard { op, ranges }),
            Request::Round { round, step } => self.proving.step_of_round(cx, op, (round, step)),
            Request::Bring { round, key, record } => {
                self.proving.bring(cx, &mut self.acceptor, op, (round, key, record), demand);
            }
            Request::Missed { node, marks } if cx.core.view.has(node) => {
                marks.iter().for_each(|mark| cx.core.shared.transfer.missed.mark(node, *mark));
                cx.out.push(Effect::StoreMissed { op, node });
            }
            Request::Missed { .. } => cx.reply_as_replica(op, Reply::Failed),
            Request::Council(asked) => self.votes.on_vote_request(cx, op, &asked),
            Request::Moves => cx.reply_as_replica(op, Reply::Moves(cx.core.shared.moves_state())),
            Request::KnowsDisk { node, incarnation } => {
                let is_known =
                    cx.core.shared.membership.logs.incarnation(node) == Some(incarnation);
                cx.reply_as_replica(op, if is_known { Reply::Pong } else { Reply::Busy });
            }
            Request::ClusterId => {
                let answer = cx.core.shared.membership.cluster.answer();
                cx.reply_as_replica(op, answer.map_or(Reply::Busy, Reply::ClusterId));
            }
            request => unreachable!("it is about a key: {request:?}"),
        }
    }

    /// Stores a record as soon as other nodes know this node's disk. A record of a conditional
    /// write is refused if this node has promised a higher ballot.
    pub(crate) fn hold_record(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        key: Bytes,
        record: Record,
        demand: Demand,
    ) {
        if !cx.core.shared.membership.known_disk.acknowledges() {
            let request = Request::Write { key, record };
            return self.waiting.wait_until_known(cx, op, demand, request);
        }
        if record.ballot() > 0 {
            let arrived = ArrivedRecord { key, record, continues_without_promise: false };
            self.acceptor.accept(cx, op, arrived, demand);
        } else {
            self.write_to_store(cx, op, key, record, demand);
        }
    }

    /// Writes a record to the store. The result has the time of a newer record that the node holds
    /// or may have lost.
    fn write_to_store(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        key: Bytes,
        record: Record,
        demand: Demand,
    ) {
        let look = cx.core.note_and_check(&record);
        if let Some(lost) = cx.core.shared.may_have_lost(&key, record.version().time) {
            self.overtaken.insert(op, lost);
        }
        // `durable` false: the store applies the node's sync mode.
        let (via, durable) = (Via::Replica, false);
        cx.out.push(Effect::Write { op, key, record, via, look, durable, demand });
    }

    /// Handles the result of a read of the store, for a client or for another node.
    pub(crate) fn on_read(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        result: Result<Option<Record>, StoreError>,
    ) -> OwnResult<Result<Option<Record>, StoreError>> {
        if self.acceptor.reads(op) {
            let found = |record| Reply::Found { record, authoritative: true };
            let absent = Reply::Absent { authoritative: true };
            let read = result.map(|record| record.map_or(absent, found));
            self.acceptor.on_read(cx, op, read);
            return None;
        }
        match op {
            OpId::Slot(id) => return Some((id, result)),
            // The read belonged to a conditional write's record that expired.
            OpId::Peer { partition: None, .. } => {}
            OpId::Peer { partition: Some(_), .. } => {
                let reply = reply_to_read(&cx.core.shared, result);
                cx.reply_as_replica(op, reply);
            }
        }
        None
    }

    /// Handles a read of the store that found a record longer than the asker accepts.
    pub(crate) fn on_read_too_long(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        outline: RecordOutline,
    ) -> OwnResult<RecordOutline> {
        if self.acceptor.reads(op) {
            self.acceptor.on_read(cx, op, Ok(Reply::Long { outline, authoritative: true }));
            return None;
        }
        match op {
            OpId::Slot(id) => return Some((id, outline)),
            OpId::Peer { partition: None, .. } => {}
            OpId::Peer { partition: Some(_), .. } => {
                let reply = long(&cx.core.shared, outline);
                cx.reply_as_replica(op, reply);
            }
        }
        None
    }

    /// Handles the result of a write to the store, for a client or for another node.
    pub(crate) fn on_written(
        &mut self,
        cx: &mut Cx<'_>,
        op: OpId,
        result: Result<Option<u64>, StoreError>,
    ) -> OwnResult<Result<Option<u64>, StoreError>> {
        if self.proving.on_stored(cx, op, &result)
            || self.votes.on_stored(cx, op, &result)
            || self.acceptor.on_written(cx, op, &result)
        {
            return None;
        }
        self.acceptor.on_page_written(cx.core, op, result.is_ok());
        let lost = self.overtaken.remove(&op);
        let result = result.map(|newer| newer.max(lost));
        match op {
            OpId::Slot(id) => return Some((id, result)),
            OpId::Peer { .. } => cx.reply_as_replica(op, reply_to_write(&result)),
        }
        None
    }
}

/// True for a plain write without a waiting client, if each topology of the view in force places
/// the record on other nodes. Here the record would be orphaned. No reader relies on this copy,
/// because readers place records in the same way.
fn is_of_others(core: &Core, class: Class, key: &[u8], record: &Record) -> bool {
    let is_plain = class != Class::Client && record.ballot() == 0;
    is_plain && !core.view.is_replica(core.shared.own, key, record.copies())
}

/// Promises the ballot that the asker of a page has promised. Returns `false` if the node can't
/// promise it yet; `true` also for pages that need no promise.
fn promises_for(cx: &Cx<'_>, page: &PageRequest) -> bool {
    match page.filter {
        Filter::HeldBy { promise, .. } if promise > 0 => {
            cx.core.shared.promise_all(cx.now, promise, cx.core.config.max_skew_micros)
        }
        _ => true,
    }
}

/// True if the reply to the request acknowledges this node's part of a write. `Write` is not
/// listed, because `hold_record` does the same check. `Writes` from this node itself acknowledge
/// nothing.
fn acknowledges_write(op: OpId, request: &Request) -> bool {
    match request {
        Request::AcceptNext { .. } | Request::Prepare { .. } => true,
        Request::Writes { .. } => matches!(op, OpId::Peer { .. }),
        _ => false,
    }
}
