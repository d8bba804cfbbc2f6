//! Writes. A write is sent to all replicas at once, and answered when enough replicas hold its
//! record.
//!
//! ```text
//!  ask all `from` replicas ─┬─ `ack` replicas store the write ─▶ answer
//!        ▲                  │                                      └▶ hints for the other replicas
//!        │                  └─ a replica holds a newer record ─┐
//!        └── once, with a new version ◀────────────────────────┘
//! ```
//!
//! A newer record on a replica shows that this node's clock is behind the clock that issued the
//! record's version. If the record was acknowledged before the write began, the write must replace
//! it, but its own version is too low. So before the client is answered, the write is sent again
//! under a new version, above all versions that replicas reported.
//!
//! No write outranks a future record (`read/mod.rs`). A replica that holds one does not count,
//! because no read would find the write there. The other replicas suffice, with one exception: the
//! write is refused if enough replicas hold the future record for it to have been acknowledged
//! before the write began.

use std::rc::Rc;

use super::Requests;
use super::outstanding::{Delivery, Outstanding, ReplicaError, VoteIndex};
use super::sets::{PerSet, Quorums};
use super::slots::{Slot, SlotKind, Slots, Work};
use crate::event::{Answer, Effect, FailureKind, OpId, RequestFailure, SlotId, StoreError};
use crate::message::{Class, NodeId, Reply, Request};
use crate::request::RequestCx;
use crate::request::receipt::Acks;
use write_alone::{AloneWrites, ClientWrite};
use write_votes::{Write, WriteStage, WriteState, WriteVote};

pub(crate) mod write_alone;
pub(crate) mod write_votes;

/// The detail for the client when a write can't get a version above that of an existing record.
pub(crate) const CLOCK_BEHIND_DETAIL: &str = "this node's clock is behind the timestamp of an \
    existing record of this key by more than --max-clock-skew: correct the clock, or send the \
    write to another node; if the clock is correct, the record came from a wrong clock: kvorum \
    repair-clock removes all such records of a node";

/// All writes of one event loop.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    slots: Slots<Write>,
    pub(crate) alone: AloneWrites,
    /// Emptied lists of votes, kept for reuse.
    spare: Vec<Vec<WriteVote>>,
}

impl Work for Write {
    const KIND: SlotKind = SlotKind::Write;

    fn is_answered(&self) -> bool {
        matches!(self.stage, WriteStage::Answered { .. })
    }

    fn outstanding_at(&mut self, node: NodeId) -> Option<&mut Outstanding> {
        self.votes.iter_mut().find(|vote| vote.node == node)?.state.outstanding_mut()
    }
}

impl Writes {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.alone.len()
    }

    /// Begins a write. `may_be_held`: some node may hold the record from an earlier try.
    pub(crate) fn write(&mut self, cx: &mut RequestCx<'_>, write: ClientWrite, may_be_held: bool) {
        let ClientWrite { client, key, record, asked, deadline } = write;
        let quorums = Quorums::of(asked, &cx.core.view);
        let mut votes = self.spare.pop().unwrap_or_default();
        fill_votes(cx, &key, quorums.from(), &mut votes);
        let stage = WriteStage::Asking { overtaken: None };
        let work = Write { client, record, stage, may_be_held, votes };
        let view = Rc::clone(&cx.core.view);
        let id = self.slots.add(Slot { view, deadline, key, quorums, work, detail: None });
        self.ask_all(cx, id);
    }

    /// Gives slots to the writes that the store was to decide alone, because another view is in
    /// force. The store may have stored them already.
    pub(crate) fn resume_alone(&mut self, cx: &mut RequestCx<'_>) {
        self.resume_late(cx, u64::MAX);
    }

    /// Gives slots to the writes whose deadline is at or before `mono`, so that they fail like
    /// other writes.
    pub(crate) fn resume_late(&mut self, cx: &mut RequestCx<'_>, mono: u64) {
        while let Some(write) = self.alone.take_late(mono) {
            self.write(cx, write, true);
        }
    }

    /// Sends a write to all its replicas.
    pub(crate) fn ask_all(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        for vote in 0..self.slots.work(id).votes.len() {
            self.ask_to_hold(cx, id, VoteIndex(vote));
        }
    }

    /// Sends a write to one replica. The reply carries the slot's id.
    pub(crate) fn ask_to_hold(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        VoteIndex(vote): VoteIndex,
    ) {
        let node = self.slots.work(id).votes[vote].node;
        let outstanding = cx.core.new_outstanding(cx.now, node);
        let slot = self.slots.get_mut(id);
        let write = &mut slot.work;
        let (key, record) = (slot.key.clone(), write.record.clone());
        write.votes[vote].state = WriteState::Asked(outstanding);
        if node == cx.core.shared.own {
            let demand = slot.demand(Class::Client);
            cx.replica.hold_record(&mut cx.cx, OpId::Slot(id), key, record, demand);
        } else {
            let remaining = slot.deadline.saturating_sub(cx.now.mono);
            cx.send(node, id, remaining, Class::Client, Request::Write { key, record });
        }
    }

    /// Handles the result of a write to this node's store for a slot.
    pub(crate) fn on_own_write(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        result: Result<Option<u64>, StoreError>,
    ) {
        let Some(slot) = self.slots.find_mut(id) else { return };
        let own = cx.core.shared.own;
        match result {
            Ok(newer) => self.mark_stored(cx, id, own, newer),
            Err(StoreError::Sealed(seal)) if slot.work.may_reissue() => {
                self.on_fence_refusal(cx, id, own, seal);
            }
            Err(error) => {
                let error = slot.note_store_error(error);
                self.on_failure(cx, id, own, error);
            }
        }
    }

    /// Notes that a replica stored the record. `newer` is the time of a newer record that the
    /// replica also holds.
    fn mark_stored(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        node: NodeId,
        newer: Option<u64>,
    ) {
        if newer.is_some_and(|time| cx.core.is_beyond_clock(cx.now, time)) {
            return self.on_failure(cx, id, node, ReplicaError::Hidden);
        }
        let write = self.slots.work(id);
        let Some(VoteIndex(vote)) = write.awaited_vote(node) else { return };
        write.votes[vote].state = WriteState::Holds;
        self.reissue_or_advance(cx, id, newer);
    }

    /// Handles the refusal of a replica whose repair fence is above the write's version: the
    /// replica has stored nothing, and admits only versions above `fence`.
    fn on_fence_refusal(&mut self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId, fence: u64) {
        if cx.core.is_beyond_clock(cx.now, fence) {
            return self.on_failure(cx, id, node, ReplicaError::HigherBallot);
        }
        let write = self.slots.work(id);
        let Some(VoteIndex(vote)) = write.awaited_vote(node) else { return };
        write.votes[vote].state.fail(ReplicaError::HigherBallot);
        self.reissue_or_advance(cx, id, Some(fence));
    }

    /// Sends the write under a new version once `ack` replicas have replied, if one of them reports
    /// a version that the write must exceed. `overtaken` is that version's time.
    fn reissue_or_advance(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        newly_overtaken: Option<u64>,
    ) {
        let slot = self.slots.get_mut(id);
        let (ack, write) = (slot.ack(), &mut slot.work);
        // The write waits for `ack` replies: a record that a later reply reports may be newer
        // still, and the new version must exceed the newest.
        if let WriteStage::Asking { overtaken } = &mut write.stage {
            *overtaken = (*overtaken).max(newly_overtaken);
            if let Some(overtaken) = *overtaken
                && (write.count_holders() + write.count_fenced()).suffices(ack)
            {
                self.reissue(cx, id, overtaken);
                return;
            }
        }
        self.advance_write(cx, id);
    }

    /// Sends the write once more, with a version above all versions that this node has seen.
    fn reissue(&mut self, cx: &mut RequestCx<'_>, id: SlotId, overtaken: u64) {
        let (clock, skew) = (&cx.core.shared.clock, cx.core.config.max_skew_micros);
        let in_reach = clock.merge(overtaken, cx.now, skew);
        let version = match clock.issue(cx.now) {
            Ok(version) if in_reach => version,
            // Without a version above that of the newer record, reads would not return the write.
            issued => {
                let behind = || CLOCK_BEHIND_DETAIL.to_owned();
                let detail = Some(issued.map_or_else(|why| why.to_string(), |_| behind()));
                self.fail_write(cx, id, |failed| RequestFailure {
                    failure: FailureKind::Busy,
                    detail,
                    ..failed
                });
                self.advance_write(cx, id);
                return;
            }
        };
        let id = self.slots.renew(id);
        let slot = self.slots.get_mut(id);
        let write = &mut slot.work;
        assert_eq!(
            write.stage,
            WriteStage::Asking { overtaken: Some(overtaken) },
            "it is given a new version once"
        );
        assert!(version.time > overtaken, "it comes after what has overtaken it");
        write.record = write.record.with_version(&slot.key, version);
        write.stage = WriteStage::Reissued;
        self.ask_all(cx, id);
    }

    /// Answers the client of a write that too few replicas hold.
    fn fail_write(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        change: impl FnOnce(RequestFailure) -> RequestFailure,
    ) {
        let slot = self.slots.get(id);
        let write = &slot.work;
        let failed = change(failure_of(slot, cx.core.config.deadline_micros));
        cx.out.push(Effect::Answer { client: write.client, answer: Answer::Failed(failed) });
        self.slots.work(id).mark_answered();
    }

    /// Answers the client as soon as possible, and ends the write when no reply is outstanding.
    fn advance_write(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        let (ack, epoch) = (slot.ack(), slot.view.epoch);
        let write = self.slots.work(id);
        let (held, open) = write.count_holders_and_open();
        if !write.is_answered() && held.suffices(ack) {
            write.mark_answered();
            let acks = Acks { epoch, by: write.holders() };
            let answer = Answer::Written(write.record.version(), acks);
            cx.out.push(Effect::Answer { client: write.client, answer });
        } else if !write.is_answered()
            && !(held + open + write.count_fenced()).suffices(ack)
            && !write.is_worth_waiting()
        {
            self.fail_write(cx, id, |failed| failed);
        }
        if open.is_zero() {
            self.end_write(cx, id);
        }
    }

    /// Ends a write when no reply is outstanding or its deadline is over. If any replica may hold
    /// the record, each replica that missed the record gets a hint; this node, and each node for
    /// which the ledger admits no hint, gets a mark.
    pub(crate) fn end_write(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        if !self.slots.work(id).is_answered() {
            self.fail_write(cx, id, |failed| failed);
        }
        let slot = self.slots.get(id);
        let write = &slot.work;
        let has_it = |vote: &&WriteVote| {
            matches!(
                vote.state,
                WriteState::Holds | WriteState::Failed { error: ReplicaError::Hidden, .. }
            )
        };
        let agrees = slot.view.agrees_with(cx.core.view.id());
        let all_have_it = agrees && write.votes.iter().all(|vote| has_it(&vote));
        if write.may_hold() && !all_have_it {
            let (key, record) = (slot.key.clone(), write.record.clone());
            let asked = slot.quorums.asked;
            let nodes = |votes: &mut dyn Iterator<Item = &WriteVote>| -> Vec<NodeId> {
                votes.map(|vote| vote.node).collect()
            };
            let missed = if agrees {
                nodes(&mut write.votes.iter().filter(|vote| !has_it(vote)))
            } else {
                let holders = nodes(&mut write.votes.iter().filter(has_it));
                cx.cx.core.missing_replicas(&key, asked, &holders)
            };
            for peer in missed {
                cx.unstored_hints.on_missed_write(&mut cx.cx, peer, key.clone(), record.clone());
            }
        }
        let mut votes = self.slots.remove(id).work.votes;
        votes.clear();
        self.spare.push(votes);
    }
}

impl Requests for Writes {
    type Work = Write;

    fn slots(&mut self) -> &mut Slots<Write> {
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
        match reply {
            Reply::Stored => self.mark_stored(cx, id, peer, None),
            Reply::Newer { time } => self.mark_stored(cx, id, peer, Some(time)),
            Reply::BallotRefused { promise } if self.slots.work(id).may_reissue() => {
                self.on_fence_refusal(cx, id, peer, promise);
            }
            refusal => self.on_failure(cx, id, peer, ReplicaError::of_refusal(&refusal)),
        }
    }

    fn on_failure(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        node: NodeId,
        error: ReplicaError,
    ) {
        let write = self.slots.work(id);
        // A node that has replied already is not awaited, so the failure is stale.
        let Some(VoteIndex(vote)) = write.awaited_vote(node) else { return };
        write.votes[vote].state.fail(error);
        self.advance_write(cx, id);
    }

    fn ask_again(&mut self, cx: &mut RequestCx<'_>, id: SlotId, node: NodeId) {
        let vote = self.slots.work(id).awaited_vote(node).expect("it is awaited");
        self.ask_to_hold(cx, id, vote);
    }

    /// Sends the same record again, under the same version. A replica that holds the record reports
    /// it as stored.
    fn restart(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let id = self.slots.renew(id);
        let slot = self.slots.get_mut(id);
        slot.quorums = Quorums::of(slot.quorums.asked, &cx.core.view);
        let write = &mut slot.work;
        write.may_be_held = write.may_hold();
        fill_votes(cx, &slot.key, slot.quorums.from(), &mut write.votes);
        self.ask_all(cx, id);
    }

    fn expire(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let write = self.slots.work(id);
        if !write.is_answered() {
            write.mark_silent();
        }
        self.end_write(cx, id);
    }
}

/// Fills a list with a vote for each replica of both sets.
fn fill_votes(cx: &mut RequestCx<'_>, key: &[u8], from: PerSet, votes: &mut Vec<WriteVote>) {
    cx.core.look_up_replicas(key, from);
    let state = WriteState::Asked(Outstanding { since: 0, delivery: Delivery::Waits });
    votes.clear();
    cx.core.replicas.fill(votes, |node, place| WriteVote { node, place, state });
}

/// Returns the failure for the client of a write that too few replicas hold.
fn failure_of(slot: &Slot<Write>, deadline_micros: u64) -> RequestFailure {
    let write = &slot.work;
    let held = write.count_holders();
    let is_hidden = |state| matches!(state, WriteState::Failed { error: ReplicaError::Hidden, .. });
    let (failure, detail) = if (held + write.count(is_hidden)).suffices(slot.ack()) {
        (FailureKind::Busy, Some(CLOCK_BEHIND_DETAIL.to_owned()))
    } else {
        (write.failure(), slot.detail.clone())
    };
    let (acked, quorum) = slot.quorums.shortfall(held);
    RequestFailure {
        failure,
        acked,
        parts: write.parts(),
        since: slot.deadline.saturating_sub(deadline_micros),
        quorum,
        is_write: true,
        unknown: write.may_hold(),
        detail,
    }
}
