//! Reads. A read returns the newest record that enough replicas report, once enough replicas hold
//! it.
//!
//! ```text
//!  ask `ack` replicas ─▶ all replied ─┬─ enough hold the newest record ─────▶ answer
//!     │ ▲                             └─ too few: write it to more first ───▶ answer
//!     ▼ │                                                                     └▶ repair the others
//!  a replica failed, or is later than usual (hedge): ask the next replica
//! ```
//!
//! While keys move, a read has two sets of replicas: `request/sets.rs`.
//!
//! **A future record** is further ahead of this node's wall clock than `--max-clock-skew`. Its
//! version comes from a clock that was wrong, and other replicas refuse the record until its time
//! comes. A future record hides earlier records of its key on the replica that holds it. A replica
//! that reports a future record therefore does not count at first, and the read asks the next
//! replica. If `ack` other replicas reply, each quorum that this read must see shares a replica
//! with them. That replica did not report the future record, so no such quorum acknowledged it: the
//! answer is the newest record that the `ack` replicas reported. If fewer replicas are left, the
//! future record may have been acknowledged. The answer is then the future record if `ack` replicas
//! hold it. Otherwise the read fails, because the next read might miss the record.
//!
//! Other nodes send records of up to `brief_bytes` whole, and outlines of longer records. The
//! coordinator fetches a long record only if the record is the newest, its own store lacks the
//! record, and memory for the record is reserved.

mod alone;
mod read_repair;
pub(crate) mod read_votes;
mod tally;

use std::rc::Rc;

use bytes::Bytes;

use super::Requests;
use super::outstanding::{Outstanding, ReplicaError, VoteIndex};
use super::reported::ReportedRecord;
use super::sets::{PerSet, Quorums};
use super::slots::{Hedges, Slot, SlotKind, Slots, Work};
use crate::event::{Answer, ClientId, Demand, Effect, OpId, RequestFailure, SlotId, StoreError};
use crate::message::{Class, NodeId, Reply, Request};
use crate::request::RequestCx;
use crate::request::quorum::{AskedQuorum, Quorum};
use read_votes::{Read, ReadRequester, ReadStage, ReadState, ReadVote};
use record::Record;
use tally::{ReadStep, Shortfall, Tally, to_repair};

/// Interval at which a loop's reads ask all replicas, in reads. Such a read updates the latencies
/// of peers, and finds differences that a quorum of the usual replicas would not show.
const ASK_ALL_EVERY: u64 = 64;

/// The first pause before replicas that were not authoritative are asked again, in microseconds;
/// each further pause is twice as long.
const ASK_AGAIN_MICROS: u64 = 5_000;

/// The number of pauses before such a read fails. A limit is needed because another node may stay
/// not authoritative for as long as it streams a disk. If this node itself is about to become
/// authoritative, the read continues until its deadline.
const ASK_AGAIN_TIMES: u32 = 5;

/// The detail for the client when a future record keeps a replica from counting.
const FUTURE_RECORD_DETAIL: &str = "a record of this key with a timestamp ahead of this \
    node's clock by more than --max-clock-skew";

/// The time for which a read waits for a requested long record before it requests the record from
/// the next node, in microseconds. The asked node may be slow; if it is this node, its store may
/// wait for memory.
pub(crate) const LONG_RECORD_DELAY_MICROS: u64 = 200_000;

/// A read whose newest record can't be written to enough replicas under the record's own ballot. A
/// conditional write stores the record on a majority of the default replicas, under a new ballot.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) deadline: u64,
    pub(crate) key: Bytes,
    pub(crate) asked: AskedQuorum,
    /// The requester that the conditional write answers; `None` = the read begins anew, and finds
    /// the record under the new ballot.
    pub(crate) reader: Option<ReadRequester>,
}

/// All reads of one event loop.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    slots: Slots<Read>,
    hedges: Hedges,
    /// Emptied lists of votes, kept for reuse.
    spare: Vec<Vec<ReadVote>>,
    /// The number of reads so far, of which every 64th asks all replicas.
    begun: u64,
    /// The number of unfinished repairs for which no client waits.
    background: usize,
    /// Conditional writes that complete records; they begin after the present event.
    pub(crate) to_complete: Vec<Completion>,
}

impl Work for Read {
    const KIND: SlotKind = SlotKind::Read;

    fn is_answered(&self) -> bool {
        matches!(self.stage, ReadStage::Answered(_))
    }

    fn outstanding_at(&mut self, node: NodeId) -> Option<&mut Outstanding> {
        self.votes.iter_mut().find(|vote| vote.node == node)?.state.outstanding_mut()
    }
}

impl Reads {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(
        &mut self,
        cx: &mut RequestCx<'_>,
        client: ClientId,
        key: Bytes,
        quorum: AskedQuorum,
    ) {
        let deadline = cx.now.mono + cx.core.config.deadline_micros;
        self.begin_read(cx, ReadRequester::Client(client), deadline, key, quorum);
    }

    /// Begins a read for another node, which needs a record that a majority of the replicas holds.
    pub(crate) fn read_quorum_for(
        &mut self,
        cx: &mut RequestCx<'_>,
        op: OpId,
        demand: Demand,
        (key, most): (Bytes, u32),
    ) {
        let usual = AskedQuorum::default();
        self.begin_read(cx, ReadRequester::Peer { op, most }, demand.until, key, usual);
    }

    fn begin_read(
        &mut self,
        cx: &mut RequestCx<'_>,
        reader: ReadRequester,
        deadline: u64,
        key: Bytes,
        asked: AskedQuorum,
    ) {
        let quorums = Quorums::of(asked, &cx.core.view);
        let mut votes = self.spare.pop().unwrap_or_default();
        fill_votes(cx, &key, quorums.from(), &mut votes);
        let stage = ReadStage::Asking { retry_count: 0, is_retry_due: false };
        let id = self.slots.add(Slot {
            view: Rc::clone(&cx.core.view),
            deadline,
            key,
            quorums,
            work: Read { reader, stage, outbid: 0, votes },
            detail: None,
        });
        self.begun += 1;
        let all = self.begun.is_multiple_of(ASK_ALL_EVERY);
        self.ask_first(cx, id, all);
    }

    /// Asks the first replicas in the order of asking: in each set, as many as must answer or hold
    /// the answer.
    pub(crate) fn ask_first(&mut self, cx: &mut RequestCx<'_>, id: SlotId, all: bool) {
        let ack = self.slots.get(id).ack();
        let mut asked = PerSet::default();
        for vote in 0..self.slots.work(id).votes.len() {
            let sets = self.slots.work(id).votes[vote].place.sets();
            if all || !sets.min(asked.short_of(ack)).is_zero() {
                self.ask(cx, id, VoteIndex(vote));
                asked = asked + sets;
            }
        }
        self.arm_hedge(cx, id);
    }

    /// Asks a replica for its record. Another node reports only the outline of a long record.
    fn ask(&mut self, cx: &mut RequestCx<'_>, id: SlotId, VoteIndex(vote): VoteIndex) {
        let node = self.slots.work(id).votes[vote].node;
        let outstanding = cx.core.new_outstanding(cx.now, node);
        let voter = &mut self.slots.work(id).votes[vote];
        (voter.state, voter.was_asked) = (ReadState::Asked(outstanding), true);
        self.ask_for(cx, id, node, cx.core.config.brief_bytes);
    }

    /// Asks a node for its record, if the record has at most `most` bytes. This node itself is
    /// asked for a record of any length.
    fn ask_for(&self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId, most: u32) {
        let slot = self.slots.get(id);
        let key = slot.key.clone();
        if node == cx.core.shared.own {
            let (op, demand) = (OpId::Slot(id), slot.demand(Class::Client));
            cx.out.push(Effect::Read { op, key, most: u32::MAX, demand });
        } else {
            let remaining = slot.deadline.saturating_sub(cx.now.mono);
            cx.send(node, id, remaining, Class::Client, Request::Read { key, most });
        }
    }

    /// Arms the hedge timer. If the replicas asked so far are late, the next replica is asked.
    fn arm_hedge(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let read = &self.slots.get(id).work;
        if !read.is_decided() && read.first_idle().is_none() {
            return;
        }
        let others = read.votes.iter().filter(|vote| vote.node != cx.core.shared.own);
        let hedge_delay = |vote: &ReadVote| cx.core.peers.hedge_delay(vote.node);
        let asked = others.clone().filter(|vote| vote.state.outstanding().is_some());
        // A read of this node's store that waits for the disk is hedged like a read of the fastest
        // peer.
        let late = asked.map(hedge_delay).max();
        let late = late.or_else(|| others.map(hedge_delay).min()).unwrap_or(0);
        self.hedges.at(cx.now.mono + late, id);
    }

    /// Handles an expired hedge timer. The replicas that were asked or are being repaired are late,
    /// so the next replica is asked or repaired.
    pub(crate) fn hedge_read(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        let read = &slot.work;
        match &read.stage {
            ReadStage::Answered(_) => unreachable!("an answered read is not hedged"),
            ReadStage::Decided(newest) => {
                let next = newest.as_ref().and_then(|newest| to_repair(slot, newest, PerSet::BOTH));
                let Some(vote) = next else { return };
                self.repair(cx, id, vote);
            }
            ReadStage::Asking { is_retry_due: true, .. } => return self.retry_unsettled(cx, id),
            ReadStage::Asking { .. } => match (Tally::of(cx, slot).to_fetch(), read.first_idle()) {
                (Some(VoteIndex(vote)), _) if !read.votes[vote].state.is_fetching() => {
                    let since = Tally::of(cx, slot).long_under_way().unwrap_or(0);
                    if cx.now.mono < since + LONG_RECORD_DELAY_MICROS {
                        self.hedges.at(since + LONG_RECORD_DELAY_MICROS, id);
                        return;
                    }
                    self.fetch(cx, id, VoteIndex(vote));
                }
                (_, Some(vote)) => self.ask(cx, id, vote),
                (_, None) => return,
            },
        }
        self.arm_hedge(cx, id);
    }

    fn ask_again_later(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let ReadStage::Asking { retry_count, is_retry_due } = &mut self.slots.work(id).stage else {
            unreachable!("what is decided is not asked again");
        };
        if !std::mem::replace(is_retry_due, true) {
            let times = (*retry_count).min(ASK_AGAIN_TIMES);
            *retry_count += 1;
            self.hedges.at(cx.now.mono + (ASK_AGAIN_MICROS << times), id);
        }
    }

    /// Handles a read whose newest record can't be written to enough replicas, because a replica
    /// has promised a higher ballot. A record of the higher ballot usually follows soon. If none
    /// follows, the promise blocks the newest record for ever, and a conditional write completes
    /// it. That write also answers the read if the read's quorum is a majority of the default
    /// replicas. Any other read begins anew, because the write tells nothing about the replicas
    /// that only the read asks.
    fn handle_outbid(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        let is_majority = slot.quorums.is_majority_of_defaults(&slot.view);
        // A replica that is about to take over the partition never accepts an earlier record.
        let is_moving = slot.view.other.is_some();
        let read = self.slots.work(id);
        let reader = read.reader;
        read.outbid += 1;
        let is_blocked = read.outbid > 1 || is_moving;
        // The pauses between completions double, so that a completion does not outbid the previous
        // one.
        let is_due = is_blocked && read.outbid.is_power_of_two();
        if is_blocked && is_majority {
            let Slot { deadline, key, quorums, .. } = self.end(id);
            let reader = Some(reader);
            self.to_complete.push(Completion { deadline, key, asked: quorums.asked, reader });
            return;
        }
        let slot = self.slots.get(id);
        if is_due && Tally::of(cx, slot).newest().is_some_and(|newest| newest.ballot() > 0) {
            let (deadline, key) = (slot.deadline, slot.key.clone());
            let asked = AskedQuorum::default();
            self.to_complete.push(Completion { deadline, key, asked, reader: None });
        }
        self.begin_anew_later(cx, id);
    }

    /// Drops all reports and restarts the read later, under a new id that makes late replies stale.
    fn begin_anew_later(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        let read = self.slots.work(id);
        for vote in &mut read.votes {
            (vote.state, vote.reported) = (ReadState::Idle, None);
        }
        read.stage = ReadStage::Asking { retry_count: 0, is_retry_due: false };
        self.ask_again_later(cx, id);
    }

    fn retry_unsettled(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let read = self.slots.work(id);
        if let ReadStage::Asking { is_retry_due, .. } = &mut read.stage {
            *is_retry_due = false;
        }
        if read.votes.iter().all(|vote| vote.state == ReadState::Idle) {
            return self.ask_first(cx, id, false);
        }
        for vote in 0..read.votes.len() {
            let voter = &mut self.slots.work(id).votes[vote];
            if voter.state == (ReadState::Reported { authoritative: false }) {
                // The replica will report its record again.
                if let Some(reported) = &mut voter.reported {
                    reported.drop_content();
                }
                self.ask(cx, id, VoteIndex(vote));
            }
        }
    }

    /// Records a replica's report of its record; `None` = the replica has no record.
    fn record_report(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        node: NodeId,
        reported: Option<ReportedRecord>,
        authoritative: bool,
    ) {
        let is_gone =
            reported.as_ref().is_some_and(|r| cx.core.counts_as_purged(cx.now, r, authoritative));
        let reported = reported.filter(|_| !is_gone);
        let read = self.slots.work(id);
        let Some(VoteIndex(vote)) = read.awaited_vote(node) else { return };
        let voter = &mut read.votes[vote];
        if voter.state.is_repairing() {
            // This is a late reply to the read; the reply to the repair is still outstanding.
            return;
        }
        voter.state = ReadState::Reported { authoritative };
        let is_long = matches!(reported, Some(ReportedRecord::Outline(_)));
        voter.reported = reported;
        if is_long {
            self.hedges.at(cx.now.mono + LONG_RECORD_DELAY_MICROS, id);
        }
        let slot = self.slots.get(id);
        if Tally::of(cx, slot).hides(&slot.work.votes[vote]) {
            let name = cx.core.shared.name_of(node);
            let detail = Some(format!("node {name} holds {FUTURE_RECORD_DETAIL}"));
            self.slots.get_mut(id).detail = detail;
        }
        self.advance_read(cx, id);
    }

    /// Handles the result of a read of this node's store for a slot.
    pub(crate) fn on_own_read(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        result: Result<Option<Record>, StoreError>,
    ) {
        // The slot has ended if its deadline is over.
        let Some(slot) = self.slots.find_mut(id) else { return };
        let own = cx.core.shared.own;
        match result {
            Ok(record) => {
                let time = record.as_ref().map(|record| record.write_time());
                let authoritative = cx.core.shared.membership.state.is_authoritative(time);
                self.record_report(cx, id, own, record.map(ReportedRecord::Whole), authoritative);
            }
            Err(error) => {
                let error = slot.note_store_error(error);
                self.on_failure(cx, id, own, error);
            }
        }
    }

    fn advance_read(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        loop {
            let slot = self.slots.get(id);
            if slot.work.is_answered() {
                self.repair_behind(cx, id);
                if !self.slots.work(id).is_awaiting() {
                    self.end(id);
                }
                return;
            }
            match Tally::of(cx, slot).next_step() {
                ReadStep::Wait => return,
                ReadStep::AskAgain => return self.ask_again_later(cx, id),
                ReadStep::BeginAnew => return self.handle_outbid(cx, id),
                ReadStep::Fail => return self.fail_read(cx, id),
                ReadStep::Ask(vote) => self.ask(cx, id, vote),
                ReadStep::Fetch(vote) => {
                    self.fetch(cx, id, vote);
                    self.hedges.at(cx.now.mono + LONG_RECORD_DELAY_MICROS, id);
                }
                ReadStep::Repair(vote) => {
                    self.decide(cx, id);
                    self.repair(cx, id, vote);
                    self.arm_hedge(cx, id);
                }
                ReadStep::Answer(newest) => self.answer_read(cx, id, newest),
            }
        }
    }

    /// Fixes the newest reported record as the answer, regardless of later reports.
    fn decide(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        if !slot.work.is_decided() {
            let newest = Tally::of(cx, slot).newest().cloned();
            self.slots.work(id).stage = ReadStage::Decided(newest);
        }
    }

    /// Asks a replica to send its record, whose length is known. Until the record arrives, the
    /// contents of all other records are dropped, because a read must not hold memory while it
    /// waits for memory.
    fn fetch(&mut self, cx: &mut RequestCx<'_>, id: SlotId, VoteIndex(vote): VoteIndex) {
        let node = self.slots.work(id).votes[vote].node;
        let outstanding = cx.core.new_outstanding(cx.now, node);
        let read = self.slots.work(id);
        let fetched = read.votes[vote].reported.as_ref().map(ReportedRecord::rank);
        for reported in read.votes.iter_mut().filter_map(|vote| vote.reported.as_mut()) {
            if Some(reported.rank()) != fetched {
                reported.drop_content();
            }
        }
        let voter = &mut read.votes[vote];
        let most = match &voter.reported {
            Some(ReportedRecord::Outline(outline)) => outline.bytes,
            Some(ReportedRecord::Whole(_)) | None => u32::MAX,
        };
        voter.state =
            ReadState::Fetching { authoritative: voter.state.is_authoritative(), outstanding };
        self.ask_for(cx, id, node, most);
    }

    fn answer_read(&mut self, cx: &mut RequestCx<'_>, id: SlotId, newest: Option<Record>) {
        let read = self.slots.work(id);
        let reader = read.reader;
        read.stage = ReadStage::Answered(newest.clone());
        // The unfinished repairs were not needed for the answer, and no client waits for them any
        // longer.
        self.background += read.count_states(ReadState::is_repairing);
        reader.answer(cx, Answer::Found(newest));
    }

    /// Answers the client of a read that failed, and frees the slot.
    fn fail_read(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        let read = &slot.work;
        let Shortfall { acked, quorum, is_limited } = Tally::of(cx, slot).shortfall();
        let Quorum { ack, from } = quorum;
        let limit =
            || format!("the record found belongs to {from} replicas, of which {ack} must hold it");
        let failed = RequestFailure {
            failure: read.failure(),
            acked,
            parts: read.parts(),
            since: slot.deadline.saturating_sub(cx.core.config.deadline_micros),
            quorum,
            is_write: false,
            unknown: false,
            detail: slot.detail.clone().or_else(|| is_limited.then(limit)),
        };
        let reader = read.reader;
        self.end(id);
        reader.answer(cx, Answer::Failed(failed));
    }

    /// Frees a read's slot, and keeps its list of votes for reuse.
    fn end(&mut self, id: SlotId) -> Slot<Read> {
        let mut slot = self.slots.remove(id);
        let mut votes = std::mem::take(&mut slot.work.votes);
        votes.clear();
        self.spare.push(votes);
        slot
    }

    /// Handles a replica's failure to do its part.
    fn vote_failed(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        VoteIndex(vote): VoteIndex,
        error: ReplicaError,
    ) {
        let read = self.slots.work(id);
        if read.is_answered() && read.votes[vote].state.is_repairing() {
            self.end_background(1);
        }
        let voter = &mut self.slots.work(id).votes[vote];
        if voter.state.is_fetching() {
            // The replica does not send its record, so the read continues with the other replicas'
            // records.
            voter.reported = None;
        }
        voter.state = ReadState::Failed(error);
        self.advance_read(cx, id);
    }
}

impl Reads {
    /// Returns the time of the next hedge timer, by the monotonic clock in microseconds.
    pub(crate) fn next_hedge(&mut self) -> Option<u64> {
        self.hedges.next(&self.slots)
    }

    /// Handles the hedge timers that have expired.
    pub(crate) fn hedge_due(&mut self, cx: &mut RequestCx<'_>) {
        while let Some(id) = self.hedges.pop(cx.now.mono) {
            if self.slots.find(id).is_some_and(|slot| !slot.work.is_answered()) {
                self.hedge_read(cx, id);
            }
        }
    }
}

impl Reads {
    /// Handles the failure of this node's store to report its record.
    pub(crate) fn on_own_failure(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        if self.slots.find(id).is_some() {
            let own = cx.core.shared.own;
            self.on_failure(cx, id, own, ReplicaError::Failed);
        }
    }
}

impl Requests for Reads {
    type Work = Read;

    fn slots(&mut self) -> &mut Slots<Read> {
        &mut self.slots
    }

    fn on_reply(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        peer: NodeId,
        outstanding: Outstanding,
        reply: Reply,
    ) {
        let (reported, authoritative) = match reply {
            Reply::Found { record, authoritative } => {
                if !record.is_intact(&self.slots.get(id).key) {
                    return self.on_failure(cx, id, peer, ReplicaError::Failed);
                }
                (Some(ReportedRecord::Whole(record)), authoritative)
            }
            Reply::Long { outline, authoritative } => {
                (Some(ReportedRecord::Outline(outline)), authoritative)
            }
            Reply::Absent { authoritative } => (None, authoritative),
            reply => return self.repair_replied(cx, id, peer, &reply),
        };
        let took = cx.now.mono.saturating_sub(outstanding.since);
        cx.core.peers.record_latency(peer, took);
        self.record_report(cx, id, peer, reported, authoritative);
    }

    fn on_failure(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        node: NodeId,
        error: ReplicaError,
    ) {
        // A node that has replied already is not awaited, so the failure is stale.
        if let Some(vote) = self.slots.get(id).work.awaited_vote(node) {
            self.vote_failed(cx, id, vote, error);
        }
    }

    fn ask_again(&mut self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId) {
        let read = self.slots.work(id);
        let vote = read.awaited_vote(node).expect("it was asked, and has not answered");
        match read.votes[vote.0].state {
            ReadState::Repairing(_) => self.repair(cx, id, vote),
            ReadState::Fetching { .. } => self.fetch(cx, id, vote),
            _ => self.ask(cx, id, vote),
        }
    }

    /// Restarts the read. Reports made under the earlier view do not count.
    fn restart(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        let slot = self.slots.get_mut(id);
        slot.quorums = Quorums::of(slot.quorums.asked, &cx.core.view);
        fill_votes(cx, &slot.key, slot.quorums.from(), &mut slot.work.votes);
        slot.work.stage = ReadStage::Asking { retry_count: 0, is_retry_due: false };
        self.ask_first(cx, id, false);
    }

    fn expire(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let read = self.slots.work(id);
        if read.is_answered() {
            let repairing = read.count_states(ReadState::is_repairing);
            self.end_background(repairing);
            self.end(id);
        } else {
            read.mark_silent();
            self.fail_read(cx, id);
        }
    }
}

/// Fills a list with a vote for each replica of either set, in the order of asking. Replicas in
/// both sets come early, because their votes count twice.
fn fill_votes(cx: &mut RequestCx<'_>, key: &[u8], from: PerSet, votes: &mut Vec<ReadVote>) {
    let core = &mut *cx.cx.core;
    core.look_up_replicas(key, from);
    votes.clear();
    core.replicas.fill(votes, ReadVote::new);
    let own = core.shared.own;
    votes.sort_by_key(|vote| {
        let (failed, mean) = core.peers.rank(vote.node);
        (failed, !vote.place.is_in_both(), vote.node != own, mean)
    });
}
