//! Conditional writes, the coordinator's part (`acceptor.rs` has the replica's): a Paxos-like round
//! obtains promises from a majority, then stores the next record on a majority.
//!
//! ```text
//!  ballot ─▶ Prepare ─▶ a majority has promised: the newest record among its reports
//!    ▲                    ├─ condition true ──▶ the next record ─▶ stored by a majority ─▶ answer
//!    │                    └─ false ─┬─ a majority holds the newest record ───────────────▶ answer
//!    │                              └─ else store it on a majority ──────────────────────▶ answer
//!    └── retry a little later ◀── outbid, outranked, or too few replies
//! ```
//!
//! Every answer is about a *chosen* record: a record that a majority stored under one ballot. If
//! the record of a try may be stored somewhere, the coordinator continues until the deadline to
//! determine the outcome: either the newest record contains the write's id, or the write was not
//! done. No later try builds on a record older than the plain write on which an earlier try was
//! based. If a plain write came between two tries, replicas no longer report the first try's
//! record, and the outcome stays unknown.
//!
//! The protocol is checked by a model: `docs/design/conditional-writes.md`.

pub(crate) mod accepted_ballots;
pub(crate) mod acceptor;
mod batch;
pub(crate) mod change_work;
pub(crate) mod key_locks;
mod leader;
pub(crate) mod operation;
pub(crate) mod promises;
pub(crate) mod recall;
pub(crate) mod recent;
pub(crate) mod state_cache;

use std::rc::Rc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock::{NotIssued, is_following_ballot};
use crate::dispatch::core::Cx;
use crate::event::{Answer, ClientId, Demand, FailureKind, OpId, RequestFailure, SlotId};
use crate::message::{Class, NodeId, Reply, Request};
use crate::paxos::operation::{Change, Condition, Conditional, Done};
use crate::placement::topology::partition_of;
use crate::request::RequestCx;
use crate::request::Requests;
use crate::request::outstanding::{Delivery, Outstanding, ReplicaError, VoteIndex};
use crate::request::quorum::AskedQuorum;
use crate::request::read::{Completion, LONG_RECORD_DELAY_MICROS};
use crate::request::receipt::{Acks, ReplicaSet};
use crate::request::reported::ReportedRecord;
use crate::request::sets::{Quorums, Replicas};
use crate::request::slots::{Hedges, Slot, SlotKind, Slots, Work};
use crate::request::write::CLOCK_BEHIND_DETAIL;
use change_work::{ChangeRequester, ChangeStage, ChangeState, ChangeVote, ChangeWork};
use leader::Queues;
use record::Record;

/// The detail for the client when a conditional write can't get a ballot above the promised one. A
/// replica promises a ballot for all keys at its start, and later promises cover several keys.
const OUTBID_AHEAD: &str = "this node's clock is behind the time that a replica of this key has \
    promised to go on from, by more than --max-clock-skew: a replica does so at its start, for all \
    keys, and at each conditional write, so this key need not have a record. kvorum status shows \
    whose clock differs: correct the wrong one, or send the write to another node. If this node's \
    clock is correct, the replica followed one that was ahead, and goes on once this clock has \
    passed that time";

/// The unit of the backoff of a write that was outbid, in microseconds: the backoff doubles with
/// each try …
const PAUSE_MICROS: u64 = 1_000;

/// … up to this number of doublings.
const PAUSE_DOUBLINGS: u32 = 5;

/// The minimum time after which a write starts over without the missing replies, in microseconds.
/// It applies once a replica has outbid the write, or replicas were queried about an earlier try.
/// It doubles with each try, so that the replies of distant replicas and slow disks arrive in time.
const LATE_MICROS: u64 = 20_000;

/// The number of doublings of [`LATE_MICROS`] after which the time stays the same.
const LATE_DOUBLINGS: u32 = 5;

/// The time for the replies to a query, as a multiple of the time in which the promises of the same
/// try arrived: the replies to the query need as long.
const LATE_ROUND_TRIPS: u64 = 2;

/// The part of the remaining time, 1 / `LEADER_SHARE`, that a forwarded write withholds from the
/// key's leader. So the leader's reply that it has not begun the write arrives before the deadline.
const LEADER_SHARE: u64 = 8;

/// The conditional writes of one event loop.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    slots: Slots<ChangeWork>,
    hedges: Hedges,
    /// Writes that wait for other writes of the same key.
    queues: Queues,
}

impl Work for ChangeWork {
    const KIND: SlotKind = SlotKind::Change;

    fn is_answered(&self) -> bool {
        matches!(self.stage, ChangeStage::Answered(_))
    }

    fn outstanding_at(&mut self, node: NodeId) -> Option<&mut Outstanding> {
        self.outstanding_at(node)
    }
}

impl Changes {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of conditional writes whose client or node has not been answered.
    pub(crate) fn count_unanswered(&self) -> usize {
        self.slots.count_unanswered()
    }

    /// Returns the partition of a write's key; `None` = the id is stale.
    pub(crate) fn partition_of(&self, id: SlotId) -> Option<u16> {
        self.slots.find(id).map(|slot| partition_of(&slot.key))
    }

    /// Returns the time of the next hedge timer, by the monotonic clock, in microseconds.
    pub(crate) fn next_hedge(&mut self) -> Option<u64> {
        self.hedges.next(&self.slots)
    }

    /// Handles the hedge timers that have expired.
    pub(crate) fn hedge_due(&mut self, cx: &mut RequestCx<'_>) {
        while let Some(id) = self.hedges.pop(cx.now.mono) {
            if self.slots.find(id).is_some_and(|slot| !slot.work.is_answered()) {
                self.on_change_timer(cx, id);
            }
        }
    }

    pub(crate) fn change(
        &mut self,
        cx: &mut RequestCx<'_>,
        client: ClientId,
        (key, number): (Bytes, Option<u64>),
        conditional: Conditional,
        quorum: AskedQuorum,
    ) {
        let deadline = cx.now.mono + cx.core.config.deadline_micros;
        let id = self.add(cx, deadline, ChangeRequester::Client(client), key, conditional, quorum);
        let version = cx.core.shared.clock.issue(cx.now);
        let Some(version) = self.fail_unless_issued(cx, id, version) else { return };
        // The id is unique because no two versions are equal.
        let own = xxh3_64_with_seed(&version.time.to_le_bytes(), version.origin.into()) & !1;
        self.slots.work(id).id = number.unwrap_or(own);
        self.forward_to_leader(cx, id);
    }

    /// Coordinates a write that another node forwarded to this node as the key's leader.
    pub(crate) fn change_for(
        &mut self,
        cx: &mut RequestCx<'_>,
        op: OpId,
        demand: Demand,
        (key, number, ack): (Bytes, u64, u8),
        conditional: Conditional,
    ) {
        let quorum = AskedQuorum { ack: Some(ack).filter(|ack| *ack > 0), from: None };
        let id = self.add(cx, demand.until, ChangeRequester::Peer(op), key, conditional, quorum);
        self.slots.work(id).id = number;
        self.wait_for_lock(cx, id);
    }

    fn add(
        &mut self,
        cx: &mut RequestCx<'_>,
        deadline: u64,
        asker: ChangeRequester,
        key: Bytes,
        conditional: Conditional,
        quorum: AskedQuorum,
    ) -> SlotId {
        let quorums = Quorums::of_majorities(quorum, &cx.core.view);
        cx.core.look_up_replicas(&key, quorums.from());
        let work = ChangeWork {
            asker,
            conditional,
            id: 0,
            stage: ChangeStage::Queued,
            since: 0,
            tries: 0,
            held: None,
            followers: Vec::new(),
            elsewhere: false,
            was_tried_under_earlier_view: false,
            found: None,
            tried: None,
            votes: votes_of(&cx.core.replicas),
        };
        let view = Rc::clone(&cx.core.view);
        self.slots.add(Slot { view, deadline, key, quorums, work, detail: None })
    }

    /// Makes a vote for each replica of the slot's view, which is in force.
    fn make_votes(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get_mut(id);
        cx.core.look_up_replicas(&slot.key, slot.quorums.from());
        slot.work.votes = votes_of(&cx.core.replicas);
    }

    /// Completes a record that a read found on too few replicas, and that can't be stored on others
    /// under its own ballot because a higher ballot was promised. The record is stored under a new
    /// ballot, by a conditional write whose condition is always false.
    pub(crate) fn complete(&mut self, cx: &mut RequestCx<'_>, completion: Completion) {
        let Completion { deadline, key, asked, reader } = completion;
        let (condition, change) = (Condition::OneOf(Vec::new()), Change::Delete);
        let never = Conditional { condition, change, expiry_ms: 0, digest: 0 };
        let id = self.add(cx, deadline, ChangeRequester::Reader(reader), key, never, asked);
        self.try_change(cx, id);
    }

    /// Returns the value that the clock issued. If the clock issued none, fails the write and
    /// returns `None`.
    fn fail_unless_issued<T>(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        issued: Result<T, NotIssued>,
    ) -> Option<T> {
        match issued {
            Ok(issued) => Some(issued),
            Err(why) => {
                self.slots.get_mut(id).detail = Some(why.to_string());
                self.fail_change(cx, id, FailureKind::Busy);
                None
            }
        }
    }

    /// Starts or restarts the write under a ballot above all ballots that this node has seen, or
    /// continues under a ballot that replicas promised to the key's previous write.
    pub(crate) fn try_change(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        self.dissolve_batch(id);
        if self.continue_from_cache(cx, id) {
            return;
        }
        let ballot = cx.core.shared.clock.issue_ballot(cx.now, cx.core.shared.own);
        let Some(ballot) = self.fail_unless_issued(cx, id, ballot) else { return };
        let watermark = cx.core.shared.repair.proofs.watermark();
        let change = self.slots.work(id);
        change.tries += 1;
        change.since = cx.now.mono;
        change.stage = ChangeStage::Preparing { ballot, watermark };
        self.ask_all_of_change(cx, id);
    }

    /// Sends the request of the current stage to all replicas. Replies to earlier requests become
    /// stale.
    fn ask_all_of_change(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        for vote in &mut self.slots.work(id).votes {
            vote.state =
                ChangeState::Asked(Outstanding { since: cx.now.mono, delivery: Delivery::Waits });
            vote.recalled = None;
        }
        for vote in 0..self.slots.work(id).votes.len() {
            self.ask_of_change(cx, id, VoteIndex(vote));
        }
    }

    /// Sends the request of the current stage to one replica.
    pub(crate) fn ask_of_change(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        VoteIndex(vote): VoteIndex,
    ) {
        let node = self.slots.work(id).votes[vote].node;
        let is_own = node == cx.core.shared.own;
        let outstanding = cx.core.new_outstanding(cx.now, node);
        let most = if is_own { u32::MAX } else { cx.core.config.brief_bytes };
        let slot = self.slots.get_mut(id);
        let (key, demand) = (slot.key.clone(), slot.demand(Class::Client));
        let change = &mut slot.work;
        let vote = &mut change.votes[vote];
        vote.state = vote.state.anew(outstanding);
        let fetches = matches!(vote.state, ChangeState::Fetching(_));
        let request = match (&change.stage, &vote.reported) {
            (ChangeStage::Preparing { .. }, Some(ReportedRecord::Outline(outline))) if fetches => {
                Request::Read { key, most: outline.bytes }
            }
            (ChangeStage::Preparing { .. }, _)
                if matches!(vote.state, ChangeState::Recalling(_)) =>
            {
                // `since` is 0 if the key's leader made the try, and not this node.
                let since = change.tried.as_ref().map_or(0, |tried| tried.since);
                Request::Recall { key, id: change.id, since, digest: change.conditional.digest }
            }
            (ChangeStage::Forwarded, _) => {
                let (id, conditional) = (change.id, change.conditional.clone());
                // 0 = the client gave no `ack`: the leader's view supplies the default.
                let ack = slot.quorums.asked.ack.unwrap_or(0);
                Request::Change { key, id, ack, conditional }
            }
            (ChangeStage::Preparing { ballot, watermark }, _) => {
                Request::Prepare { key, ballot: *ballot, most, watermark: *watermark }
            }
            // Only replicas in the read set can show that no plain write came in between: the
            // others may lack a part of the partition.
            (ChangeStage::Storing { record, .. }, _)
                if is_following_ballot(record.ballot()) && vote.place.is_in_read() =>
            {
                Request::AcceptNext { key, record: record.clone() }
            }
            // After the answer, the record is sent again to a replica whose connection was lost.
            (ChangeStage::Storing { record, .. } | ChangeStage::Answered(Some(record)), _) => {
                Request::Write { key, record: record.clone() }
            }
            (stage, _) => unreachable!("nobody is asked anything in {stage:?}"),
        };
        if is_own {
            self.ask_here(cx, id, demand, request);
        } else {
            let mut remaining = demand.until.saturating_sub(cx.now.mono);
            if matches!(request, Request::Change { .. }) {
                remaining -= remaining / LEADER_SHARE;
            }
            cx.send(node, id, remaining, Class::Client, request);
        }
    }

    /// Performs a request on this node's own replica. The skew limit does not apply, because this
    /// node's ballots may be as far ahead as its own clock.
    fn ask_here(&mut self, cx: &mut RequestCx<'_>, id: SlotId, demand: Demand, request: Request) {
        let op = OpId::Slot(id);
        match request {
            Request::Write { key, record } => {
                cx.replica.hold_record(&mut cx.cx, op, key, record, demand)
            }
            request => cx.replica.perform(&mut cx.cx, op, demand, request),
        }
    }

    /// Handles the reply of a replica, which may be this node.
    pub(crate) fn change_replied(
        &mut self,
        cx: &mut RequestCx<'_>,
        peer: NodeId,
        id: SlotId,
        reply: Reply,
    ) {
        let Some(VoteIndex(vote)) = self.slots.work(id).awaited_vote(peer) else { return };
        if matches!(self.slots.work(id).stage, ChangeStage::Forwarded) {
            return self.on_leader_reply(cx, id, &reply);
        }
        let authoritative = is_authoritative(&reply);
        let change = self.slots.work(id);
        let prepares = matches!(change.stage, ChangeStage::Preparing { .. });
        let recalls = matches!(change.votes[vote].state, ChangeState::Recalling(_));
        let reported = match reply {
            Reply::Recalled(recalled) if recalls => {
                let vote = &mut change.votes[vote];
                (vote.state, vote.recalled) = (ChangeState::Promised, Some(recalled));
                return self.advance_change(cx, id);
            }
            reply if recalls => {
                let error = ReplicaError::of_refusal(&reply);
                return self.change_failed(cx, id, VoteIndex(vote), error);
            }
            Reply::Round(state) if prepares => {
                cx.core.note_other_watermark(peer, &state);
                return self.change_failed(cx, id, VoteIndex(vote), ReplicaError::HigherBallot);
            }
            Reply::BallotRefused { promise } => {
                self.advance_clock_past(cx, id, promise, OUTBID_AHEAD);
                return self.change_failed(cx, id, VoteIndex(vote), ReplicaError::HigherBallot);
            }
            Reply::Newer { time } if !prepares => {
                self.advance_clock_past(cx, id, time, CLOCK_BEHIND_DETAIL);
                return self.change_failed(cx, id, VoteIndex(vote), ReplicaError::HigherBallot);
            }
            Reply::Stored if !prepares => {
                self.slots.work(id).votes[vote].state = ChangeState::Stored;
                return self.advance_change(cx, id);
            }
            _ if !authoritative && (!prepares || change.votes[vote].place.is_in_read()) => {
                let error = ReplicaError::NotAuthoritative;
                return self.change_failed(cx, id, VoteIndex(vote), error);
            }
            Reply::Found { record, .. } if prepares => {
                if !record.is_intact(&self.slots.get(id).key) {
                    return self.change_failed(cx, id, VoteIndex(vote), ReplicaError::Failed);
                }
                Some(ReportedRecord::Whole(record))
            }
            Reply::Long { outline, .. } if prepares => Some(ReportedRecord::Outline(outline)),
            Reply::Absent { .. } if prepares => None,
            reply => {
                let error = ReplicaError::of_refusal(&reply);
                return self.change_failed(cx, id, VoteIndex(vote), error);
            }
        };
        let is_gone =
            reported.as_ref().is_some_and(|r| cx.core.counts_as_purged(cx.now, r, authoritative));
        let vote = &mut self.slots.work(id).votes[vote];
        if matches!(vote.state, ChangeState::Fetching(_))
            && vote.rank() != reported.as_ref().map(ReportedRecord::rank)
        {
            // The replica has stored another write since its promise.
            vote.state = ChangeState::Failed(ReplicaError::HigherBallot);
        } else {
            // A fetched record was checked when its outline was reported.
            let is_fetched = matches!(vote.state, ChangeState::Fetching(_));
            vote.reported = reported.filter(|_| is_fetched || !is_gone);
            let promises = authoritative || vote.place.is_in_read();
            vote.state =
                if promises { ChangeState::Promised } else { ChangeState::ReceiverPromised };
        }
        self.advance_change(cx, id);
    }

    /// Advances the clock past `ballot`, so that the next ballot is higher. If `ballot` is too far
    /// ahead for the clock, the client gets the detail `behind`.
    fn advance_clock_past(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        ballot: u64,
        behind: &str,
    ) {
        if !cx.core.shared.clock.merge(ballot, cx.now, cx.core.config.max_skew_micros) {
            self.slots.get_mut(id).detail = Some(behind.to_owned());
        }
    }

    /// Handles the failure of a replica to do its part.
    pub(crate) fn change_failed(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        VoteIndex(vote): VoteIndex,
        error: ReplicaError,
    ) {
        let change = self.slots.work(id);
        if matches!(change.stage, ChangeStage::Forwarded) {
            return self.on_leader_failure(cx, id, error);
        }
        change.votes[vote].state = ChangeState::Failed(error);
        if error == ReplicaError::HigherBallot && !change.is_answered() {
            // Replicas that have not replied may take long.
            self.start_over_if_late(cx, id, 0);
        }
        self.advance_change(cx, id);
    }

    /// Sets the time at which the write starts over if replies are still missing: at the earliest
    /// `least` microseconds from now.
    fn start_over_if_late(&mut self, cx: &RequestCx<'_>, id: SlotId, least: u64) {
        let doublings = self.slots.work(id).tries.saturating_sub(1).min(LATE_DOUBLINGS);
        let wait = (LATE_MICROS << doublings).max(least);
        self.hedges.at(cx.now.mono + wait, id);
    }

    /// Advances the write once a majority has done its part, or can no longer do it.
    fn advance_change(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let ack = self.slots.get(id).ack();
        let change = &self.slots.get(id).work;
        let open = change.count(ChangeState::is_asked);
        // `did`: the votes of replicas that did their part; `counts`: the votes among them that
        // suffice to continue while other replies are outstanding.
        let (did, counts, needed) = match &change.stage {
            ChangeStage::Preparing { .. } => {
                let promised = change.count_votes(ChangeVote::is_bound);
                let awaits = |vote: &ChangeVote| vote.state.is_asked() && cx.core.is_up(vote.node);
                let is_awaiting = change.votes.iter().any(awaits);
                let is_clear =
                    |vote: &ChangeVote| vote.is_bound() && !reports_future_record(cx, vote);
                let clear = if is_awaiting { change.count_votes(is_clear) } else { promised };
                (promised, clear, ack)
            }
            ChangeStage::Storing { .. } => {
                let stored = change.count(|state| state == ChangeState::Stored);
                (stored, stored, ack)
            }
            ChangeStage::Pausing
            | ChangeStage::Queued
            | ChangeStage::Batched(_)
            | ChangeStage::Forwarded
            | ChangeStage::Behind => return,
            ChangeStage::Answered(_) => {
                if open.is_zero() {
                    self.end_change(cx, id);
                }
                return;
            }
        };
        if counts.suffices(needed) {
            let change = self.slots.work(id);
            match std::mem::replace(&mut change.stage, ChangeStage::Pausing) {
                ChangeStage::Preparing { ballot, watermark } => {
                    self.on_promises(cx, id, (ballot, watermark));
                }
                ChangeStage::Storing { then: None, .. } => self.try_change(cx, id),
                ChangeStage::Storing { record, then: Some(then) } => {
                    let by = change.replicas(|vote| vote.state == ChangeState::Stored);
                    if record.ballot() > 0 {
                        self.keep(cx.core, id, record.clone(), record.ballot());
                    }
                    self.answer_change(cx, id, then, by, Some(record));
                }
                stage => unreachable!("nothing is done in {stage:?}"),
            }
        } else if (did + open).suffices(needed) {
            // The open replies may still complete the majority.
        } else if change.continues_earlier_promise() {
            // The replicas refused the next record because of a write in between. No other
            // coordinator has a higher ballot, so the write starts over at once.
            self.try_change(cx, id);
        } else {
            self.try_change_later(cx, id);
        }
    }

    fn fetch_for_change(&mut self, cx: &mut RequestCx<'_>, id: SlotId, VoteIndex(vote): VoteIndex) {
        let voter = &mut self.slots.work(id).votes[vote];
        if !matches!(voter.state, ChangeState::Fetching(_)) {
            voter.state = ChangeState::Fetching(Outstanding {
                since: cx.now.mono,
                delivery: Delivery::Waits,
            });
            self.ask_of_change(cx, id, VoteIndex(vote));
            self.hedges.at(cx.now.mono + LONG_RECORD_DELAY_MICROS, id);
        }
    }

    fn store_for_change(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        record: Record,
        then: Option<Done>,
    ) {
        self.slots.work(id).stage = ChangeStage::Storing { record, then };
        self.ask_all_of_change(cx, id);
    }

    /// Retries after a jittered pause, so that two writes do not outbid each other again. Fails the
    /// write if a retry could not succeed.
    fn try_change_later(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let change = self.slots.work(id);
        if !change.is_worth_another_try() {
            let failure = change.failure();
            return self.fail_change(cx, id, failure);
        }
        change.stage = ChangeStage::Pausing;
        // Replicas remember a stored record's operations only briefly.
        let doublings = if change.tried.is_some() { 0 } else { change.tries.min(PAUSE_DOUBLINGS) };
        let pause = PAUSE_MICROS << doublings;
        let jitter = xxh3_64_with_seed(&change.tries.to_le_bytes(), change.id) % pause;
        let id = self.slots.renew(id);
        self.hedges.at(cx.now.mono + pause / 2 + jitter, id);
    }

    /// Handles a write's timer: a pause is over, replies are late, or a queued write polls for its
    /// key lock.
    pub(crate) fn on_change_timer(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let change = self.slots.work(id);
        let is_fetching = |vote: &ChangeVote| matches!(vote.state, ChangeState::Fetching(_));
        if let Some(vote) = change.votes.iter().position(is_fetching) {
            // Another replica may have the record too.
            return self.change_failed(cx, id, VoteIndex(vote), ReplicaError::Silent);
        }
        match change.stage {
            ChangeStage::Queued => self.try_lock(cx, id),
            _ => self.try_change(cx, id),
        }
    }

    fn answer_change(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        done: Done,
        by: ReplicaSet,
        stored: Option<Record>,
    ) {
        self.unlock(cx, id);
        let acks = Acks { epoch: self.slots.get(id).view.epoch, by };
        let change = self.slots.work(id);
        let answer = match change.asker {
            // A reader gets the record as it is stored now: its number of copies may have changed.
            ChangeRequester::Reader(_) => {
                Answer::Found(stored.clone().or_else(|| change.found.take()))
            }
            ChangeRequester::Client(_) | ChangeRequester::Peer(_) => Answer::Done(done, acks),
        };
        let asker = change.asker;
        asker.answer(cx, answer);
        self.answer_followers(cx, id, acks);
        let change = self.slots.work(id);
        let open = stored.is_some() && !change.count(ChangeState::is_asked).is_zero();
        change.stage = ChangeStage::Answered(stored);
        if !open {
            self.end_change(cx, id);
        }
    }

    fn fail_change(&mut self, cx: &mut RequestCx<'_>, id: SlotId, failure: FailureKind) {
        self.leave_queue(id);
        self.dissolve_batch(id);
        self.unlock(cx, id);
        let slot = self.slots.get(id);
        let change = &slot.work;
        let did = |state| match state {
            ChangeState::Promised | ChangeState::ReceiverPromised => change.is_read(),
            state => state == ChangeState::Stored,
        };
        let (acked, quorum) = slot.quorums.shortfall(change.count(did));
        let failed = RequestFailure {
            failure,
            acked,
            parts: change.parts(cx.now.mono >= slot.deadline),
            since: slot.deadline.saturating_sub(cx.core.config.deadline_micros),
            quorum,
            is_write: !change.is_read(),
            unknown: change.is_begun(),
            detail: slot.detail.clone(),
        };
        let asker = change.asker;
        asker.answer(cx, Answer::Failed(failed));
        self.slots.remove(id);
    }

    /// Ends a write when no reply is outstanding or its deadline is over. If the client was
    /// answered, each replica that missed the stored record gets a hint.
    pub(crate) fn end_change(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let ChangeStage::Answered(stored) = &change.stage else {
            let failure = change.failure();
            return self.fail_change(cx, id, failure);
        };
        if let Some(record) = stored.clone() {
            let key = slot.key.clone();
            let asked = slot.quorums.asked;
            let has_it = |vote: &&ChangeVote| vote.state == ChangeState::Stored;
            let nodes = |votes: &mut dyn Iterator<Item = &ChangeVote>| -> Vec<NodeId> {
                votes.map(|vote| vote.node).collect()
            };
            let missed = if slot.view.agrees_with(cx.core.view.id()) {
                nodes(&mut change.votes.iter().filter(|vote| !has_it(vote)))
            } else {
                let holders = nodes(&mut change.votes.iter().filter(has_it));
                cx.cx.core.missing_replicas(&key, asked, &holders)
            };
            for peer in missed {
                cx.unstored_hints.on_missed_write(&mut cx.cx, peer, key.clone(), record.clone());
            }
        }
        self.slots.remove(id);
    }
}

impl Requests for Changes {
    type Work = ChangeWork;

    fn slots(&mut self) -> &mut Slots<ChangeWork> {
        &mut self.slots
    }

    fn on_reply(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        peer: NodeId,
        _: Outstanding,
        reply: Reply,
    ) {
        self.change_replied(cx, peer, id, reply);
    }

    fn on_failure(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        node: NodeId,
        error: ReplicaError,
    ) {
        // A node that has already replied is not awaited, so the failure is stale.
        if let Some(vote) = self.slots.work(id).awaited_vote(node) {
            self.change_failed(cx, id, vote, error);
        }
    }

    fn ask_again(&mut self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId) {
        let vote = self.slots.work(id).awaited_vote(node).expect("it is awaited");
        self.ask_of_change(cx, id, vote);
    }

    fn restart(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get_mut(id);
        slot.quorums = Quorums::of_majorities(slot.quorums.asked, &cx.core.view);
        let change = &mut slot.work;
        change.was_tried_under_earlier_view |= change.is_begun();
        match change.stage {
            // The leader counts votes by its own view, and restarts the write under a later view.
            ChangeStage::Forwarded => {}
            ChangeStage::Behind => self.forward_again(cx, id),
            // Promises may be requested again. As after any failed try, the new try looks for a
            // record that may be stored.
            ChangeStage::Preparing { .. } | ChangeStage::Storing { .. } => {
                self.make_votes(cx, id);
                self.try_change(cx, id);
            }
            // The ids of these writes must not change, because other writes refer to them. No
            // request of these writes is outstanding.
            ChangeStage::Queued | ChangeStage::Batched(_) | ChangeStage::Pausing => {
                self.make_votes(cx, id)
            }
            ChangeStage::Answered(_) => unreachable!("what is answered keeps its view"),
        }
    }

    fn expire(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        self.end_change(cx, id);
    }

    /// True if the request may be sent a second time. A forwarded write may not, because the leader
    /// may have begun it.
    fn may_ask_twice(&mut self, id: SlotId) -> bool {
        !self.slots.work(id).is_forwarded()
    }

    /// Handles a refusal because of differing views. A leader that refuses has not begun the write.
    fn on_superseded(&mut self, cx: &mut RequestCx<'_>, id: SlotId, is_later: bool) -> bool {
        let change = self.slots.work(id);
        let is_forwarded = change.is_forwarded();
        if is_forwarded && is_later {
            change.stage = ChangeStage::Behind;
        } else if is_forwarded {
            self.forward_again(cx, id);
        }
        is_forwarded
    }
}

/// Returns a vote for each of a key's replicas.
fn votes_of(replicas: &Replicas) -> Vec<ChangeVote> {
    let mut votes = Vec::new();
    replicas.fill(&mut votes, ChangeVote::new);
    votes
}

/// True if a replica reported a future record, which hides its other records of the key.
fn reports_future_record(cx: &Cx<'_>, vote: &ChangeVote) -> bool {
    vote.rank().is_some_and(|rank| cx.core.is_future(cx.now, rank.write_time()))
}

/// True unless the reply states that its node is not authoritative for its report.
fn is_authoritative(reply: &Reply) -> bool {
    !matches!(
        reply,
        Reply::Found { authoritative: false, .. }
            | Reply::Long { authoritative: false, .. }
            | Reply::Absent { authoritative: false }
    )
}
