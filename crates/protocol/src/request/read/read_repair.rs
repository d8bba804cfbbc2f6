//! Read repair: the newest record is written to replicas that lack it, before the answer to as many
//! as required, after it to the others.

use super::Reads;
use super::read_votes::{ReadStage, ReadState, ReadVote};
use super::tally::Tally;
use crate::event::{Effect, OpId, SlotId, StoreError};
use crate::message::{Class, NodeId, Reply, Request};
use crate::paxos::acceptor::ArrivedRecord;
use crate::paxos::recent::Via;
use crate::request::outstanding::{ReplicaError, VoteIndex};
use crate::request::slots::Work;
use crate::request::{RequestCx, Requests};

/// The largest number of concurrent repairs for which no client waits. They are optional: hints and
/// repair rounds update a replica that lacks many records.
const MAX_BACKGROUND: usize = 256;

impl Reads {
    /// Writes the newest record to a replica.
    pub(super) fn repair(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        VoteIndex(vote): VoteIndex,
    ) {
        let node = self.slots.work(id).votes[vote].node;
        let outstanding = cx.core.new_outstanding(cx.now, node);
        self.slots.work(id).votes[vote].state = ReadState::Repairing(outstanding);
        let slot = self.slots.get(id);
        let record = slot.work.newest().expect("a repair has a record").clone();
        let (key, demand) = (slot.key.clone(), slot.demand(Class::Repair));
        if node == cx.core.shared.own && !cx.core.shared.membership.known_disk.acknowledges() {
            let request = Request::Write { key, record };
            cx.replica.waiting.wait_until_known(&mut cx.cx, OpId::Slot(id), demand, request);
        } else if node == cx.core.shared.own && record.ballot() > 0 {
            let arrived = ArrivedRecord { key, record, continues_without_promise: false };
            cx.replica.acceptor.accept(&mut cx.cx, OpId::Slot(id), arrived, demand);
        } else if node == cx.core.shared.own {
            // If the store holds a newer record, the replica needs no repair, so the store need not
            // look for one.
            cx.core.note_and_check(&record);
            let (op, via, look, durable) = (OpId::Slot(id), Via::Replica, false, false);
            cx.out.push(Effect::Write { op, key, record, via, look, durable, demand });
        } else {
            let remaining = slot.deadline.saturating_sub(cx.now.mono);
            let request = Request::Write { key, record };
            cx.send(node, id, remaining, Class::Repair, request);
        }
    }

    /// After the answer, repairs replicas that reported an older record. No client waits.
    pub(super) fn repair_behind(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        let slot = self.slots.get(id);
        let read = &slot.work;
        if read.is_unanimous() {
            return;
        }
        let tally = Tally::of(cx, slot);
        if let Some(vote) = tally.to_fetch() {
            let is_fetching = read.count_states(ReadState::is_fetching) > 0;
            if !is_fetching && !tally.hides(&read.votes[vote.0]) {
                self.fetch(cx, id, vote);
            }
            return;
        }
        let newest = tally.newest().filter(|record| !cx.core.is_ahead(cx.now, record));
        let Some(newest) = newest.cloned() else { return };
        let (copies, rank) = (slot.copies_of(&newest), newest.rank());
        let read = self.slots.work(id);
        if read.newest().is_none_or(|record| record.rank() < rank) {
            read.stage = ReadStage::Answered(Some(newest));
        }
        let is_stale = |vote: &ReadVote| {
            matches!(vote.state, ReadState::Reported { .. })
                && !vote.place.within(copies).is_zero()
                && vote.reported.as_ref().is_none_or(|reported| reported.rank() < rank)
        };
        for vote in 0..read.votes.len() {
            if !is_stale(&self.slots.work(id).votes[vote]) {
                continue;
            }
            if self.background >= MAX_BACKGROUND {
                return;
            }
            self.background += 1;
            self.repair(cx, id, VoteIndex(vote));
        }
    }

    /// Handles the reply of a replica that was asked to store the newest record.
    pub(super) fn repair_replied(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        peer: NodeId,
        reply: &Reply,
    ) {
        let newest = self.slots.get(id).work.newest();
        let is_conditional = newest.is_some_and(|newest| newest.ballot() > 0);
        let error = match reply {
            Reply::Stored => return self.mark_repaired(cx, id, peer, None),
            // The newer record may come from another conditional write on the same base version,
            // and lack the effect of this record's write.
            Reply::Newer { .. } if is_conditional => ReplicaError::HigherBallot,
            Reply::Newer { time } => return self.mark_repaired(cx, id, peer, Some(*time)),
            refusal => ReplicaError::of_refusal(refusal),
        };
        self.on_failure(cx, id, peer, error);
    }

    /// Handles the result of a write of the newest record to this node's store.
    pub(crate) fn on_own_write(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        result: Result<Option<u64>, StoreError>,
    ) {
        let Some(slot) = self.slots.find_mut(id) else { return };
        let own = cx.core.shared.own;
        match result {
            Ok(newer) => self.mark_repaired(cx, id, own, newer),
            Err(error) => {
                let error = slot.note_store_error(error);
                self.on_failure(cx, id, own, error);
            }
        }
    }

    /// Notes that a replica was repaired: it holds the newest record, or a newer record with the
    /// version time `newer`.
    fn mark_repaired(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        node: NodeId,
        newer: Option<u64>,
    ) {
        if newer.is_some_and(|time| cx.core.is_beyond_clock(cx.now, time)) {
            return self.on_failure(cx, id, node, ReplicaError::Hidden);
        }
        let read = self.slots.work(id);
        let is_it = |vote: &&mut ReadVote| vote.node == node && vote.state.is_repairing();
        // Without such a vote, the reply comes from a faulty peer that was asked to store nothing.
        let Some(vote) = read.votes.iter_mut().find(is_it) else { return };
        vote.state = ReadState::Holds;
        if node != cx.core.shared.own {
            cx.core.shared.membership.logs.note_late_write(node);
        }
        let is_answered = self.slots.work(id).is_answered();
        self.end_background(usize::from(is_answered));
        self.advance_read(cx, id);
    }

    /// Counts the end of repairs that no client waits for.
    pub(super) fn end_background(&mut self, repairs: usize) {
        assert!(self.background >= repairs, "each repair behind an answer was counted");
        self.background -= repairs;
    }
}
