//! Writes: to all replicas at once, answered when enough of them hold the record.
//!
//! ```text
//!  all `from` asked ──▶ `ack` hold it ───────────────────────▶ answer ──▶ those that missed it:
//!        ▲        └──▶ one of them holds a newer one: a new version, once   hints
//!        └──────────────────┘
//! ```
//!
//! A replica with a newer record means that this node's clock is behind that of the node which
//! issued an earlier write. Left at that, a write that was begun after the earlier one had been
//! acknowledged would be lost; so it is given a new version, above what was seen, before the client
//! is answered.
//!
//! A future record (see `read.rs`) can't be followed. Its replica does not count: no read
//! would find the write there. The others suffice, unless so many hold it that it may have been
//! acknowledged before this write began: then this one is refused.

use std::rc::Rc;

use bytes::Bytes;

use super::Coordinator;
use super::part::{Errand, ReplicaError, VoteAt, Way};
use super::sets::{PerSet, Quorums};
use super::slots::{Slot, Work};
use crate::acks::Acks;
use crate::clock::Now;
use crate::event::{
    Answer, ClientId, Effect, FailureKind, OpId, RequestFailed, SlotId, StoreError,
};
use crate::message::{Class, NodeId, Request};
use crate::quorum::AskedQuorum;
use record::Record;
use state::{Stage, Write, WriteState, WriteVote};

pub(super) mod state;

/// Why a write can't be given a version above a record that is there already.
pub(super) const BEHIND: &str = "this node's clock is behind the timestamp of an existing record \
    of this key by more than --max-clock-skew: correct the clock, or send the write to another \
    node; if the clock is correct, the record came from a wrong clock: a write with an \
    Idempotency-Key overwrites it, kvorum repair-clock removes all such records of a node";

impl Coordinator {
    pub(super) fn write(
        &mut self,
        now: Now,
        client: ClientId,
        key: Bytes,
        record: Record,
        asked: AskedQuorum,
        out: &mut Vec<Effect>,
    ) {
        let quorums = Quorums::of(asked, &self.view);
        let mut votes = self.slots.write_votes();
        self.fill_write_votes(&key, quorums.from(), &mut votes);
        let (stage, may_be_held) = (Stage::Asking { overtaken: None }, false);
        let write = Write { client, record, stage, may_be_held, votes };
        let id = self.slots.add(Slot {
            view: Rc::clone(&self.view),
            deadline: now.mono + self.config.deadline_micros,
            key,
            quorums,
            work: Work::Write(write),
            detail: None,
        });
        self.ask_all(now, id, out);
    }

    /// A vote for each replica of both sets.
    pub(super) fn fill_write_votes(
        &mut self,
        key: &[u8],
        from: PerSet,
        votes: &mut Vec<WriteVote>,
    ) {
        self.look_up_replicas(key, from);
        let state = WriteState::Asked(Errand { since: 0, way: Way::Waits });
        votes.clear();
        self.replicas.fill(votes, |node, place| WriteVote { node, place, state });
    }

    /// Sends a write to all its replicas.
    pub(super) fn ask_all(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        for vote in 0..self.slots.write(id).votes.len() {
            self.ask_to_hold(now, id, VoteAt(vote), out);
        }
    }

    /// Sends a write to one replica; the reply comes under the slot's id.
    pub(super) fn ask_to_hold(
        &mut self,
        now: Now,
        id: SlotId,
        VoteAt(vote): VoteAt,
        out: &mut Vec<Effect>,
    ) {
        let node = self.slots.write(id).votes[vote].node;
        let errand = self.errand_to(now, node);
        let slot = self.slots.get_mut(id);
        let Work::Write(write) = &mut slot.work else { unreachable!("{id:?} is no write") };
        let (key, record) = (slot.key.clone(), write.record.clone());
        write.votes[vote].state = WriteState::Asked(errand);
        if node == self.shared.own {
            let demand = slot.demand(Class::Client);
            self.hold_record(now, OpId::Slot(id), key, record, demand, out);
        } else {
            let remaining = slot.deadline.saturating_sub(now.mono);
            self.send(node, id, remaining, Class::Client, Request::Write { key, record }, out);
        }
    }

    /// This node's store wrote for a slot.
    pub(super) fn wrote_here(
        &mut self,
        now: Now,
        id: SlotId,
        result: Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.find(id) else { return };
        // Of a conditional write it is a plain record that is brought to a majority.
        if matches!(slot.work, Work::Call(_) | Work::Change(_)) {
            let reply = super::replica::reply_to_write(&result);
            return self.replied(now, self.shared.own, id, reply, out);
        }
        match result {
            Ok(newer) => self.stored(now, id, self.shared.own, newer, out),
            Err(StoreError::Sealed(seal)) if self.is_to_be_anew(id) => {
                self.stored(now, id, self.shared.own, Some(seal), out);
            }
            Err(error) => {
                let error = self.note_store_error(id, error);
                self.fail(now, id, self.shared.own, error, out);
            }
        }
    }

    /// Whether it is a write that can be given a new version yet.
    pub(super) fn is_to_be_anew(&self, id: SlotId) -> bool {
        match &self.slots.get(id).work {
            Work::Write(write) => matches!(write.stage, Stage::Asking { .. }),
            Work::Read(_) | Work::Change(_) | Work::Call(_) => false,
        }
    }

    /// A replica stored the record; `newer` is the time of a newer one that it holds too.
    pub(super) fn stored(
        &mut self,
        now: Now,
        id: SlotId,
        node: NodeId,
        newer: Option<u64>,
        out: &mut Vec<Effect>,
    ) {
        let skew = self.config.max_skew_micros;
        if newer.is_some_and(|time| self.shared.clock.is_ahead(time, now, skew)) {
            self.fail(now, id, node, ReplicaError::Hidden, out);
            return;
        }
        let slot = self.slots.get_mut(id);
        let ack = slot.ack();
        let write = match &mut slot.work {
            Work::Write(write) => write,
            Work::Read(_) => return self.was_repaired(now, id, node, out),
            Work::Change(_) => unreachable!("the replica's part in it is told otherwise"),
            Work::Call(_) => unreachable!("a call ends with any reply"),
        };
        let Some(VoteAt(vote)) = write.awaited(node) else { return };
        write.votes[vote].state = WriteState::Holds;
        // `ack` of them must have replied: the first that holds a newer record need not be the one
        // that holds the newest, and the new version must be above that.
        let held = write.held();
        if let Stage::Asking { overtaken } = &mut write.stage {
            *overtaken = (*overtaken).max(newer);
            if let Some(overtaken) = *overtaken
                && held.suffices(ack)
            {
                self.write_anew(now, id, overtaken, out);
                return;
            }
        }
        self.advance_write(id, out);
    }

    /// Sends the write once more, with a version above all that this node has seen by now.
    fn write_anew(&mut self, now: Now, id: SlotId, overtaken: u64, out: &mut Vec<Effect>) {
        let (clock, skew) = (&self.shared.clock, self.config.max_skew_micros);
        let in_reach = clock.merge(overtaken, now, skew);
        let version = match clock.issue(now) {
            Ok(version) if in_reach => version,
            // Without a version above that record the write could be lost to it.
            issued => {
                let behind = || BEHIND.to_owned();
                let detail = Some(issued.map_or_else(|why| why.to_string(), |_| behind()));
                self.deny_write(
                    id,
                    |failed| RequestFailed { failure: FailureKind::Busy, detail, ..failed },
                    out,
                );
                self.advance_write(id, out);
                return;
            }
        };
        let id = self.slots.renew(id);
        let slot = self.slots.get_mut(id);
        let Work::Write(write) = &mut slot.work else { unreachable!("{id:?} is no write") };
        assert_eq!(
            write.stage,
            Stage::Asking { overtaken: Some(overtaken) },
            "it is given a new version once"
        );
        assert!(version.time > overtaken, "it comes after what has overtaken it");
        write.record = write.record.with_version(&slot.key, version);
        write.stage = Stage::Anew;
        self.ask_all(now, id, out);
    }

    /// Answers the client of a write that too few replicas hold.
    fn deny_write(
        &mut self,
        id: SlotId,
        change: impl FnOnce(RequestFailed) -> RequestFailed,
        out: &mut Vec<Effect>,
    ) {
        let slot = self.slots.get(id);
        let Work::Write(write) = &slot.work else { unreachable!("{id:?} is no write") };
        let failed = change(failed(slot, write, self.config.deadline_micros));
        out.push(Effect::Answer { client: write.client, answer: Answer::Failed(failed) });
        self.slots.write(id).answered();
    }

    /// Answers the client as soon as that is possible; ends when no reply is awaited any more.
    fn advance_write(&mut self, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let (ack, epoch) = (slot.ack(), slot.view.epoch);
        let write = self.slots.write(id);
        let (held, open) = write.held_and_open();
        if !write.is_answered() && held.suffices(ack) {
            write.answered();
            let acks = Acks { epoch, by: write.held_by() };
            let answer = Answer::Written(write.record.version(), acks);
            out.push(Effect::Answer { client: write.client, answer });
        } else if !write.is_answered() && !(held + open).suffices(ack) && !write.is_worth_waiting()
        {
            self.deny_write(id, |failed| failed, out);
        }
        if open.is_none() {
            self.end_write(id, out);
        }
    }

    /// A replica did not store a write.
    pub(super) fn write_failed(
        &mut self,
        id: SlotId,
        VoteAt(vote): VoteAt,
        error: ReplicaError,
        out: &mut Vec<Effect>,
    ) {
        self.slots.write(id).votes[vote].state.fail(error);
        self.advance_write(id, out);
    }

    /// No reply is awaited any more, or the deadline is over: if any replica may hold the write,
    /// there will be a hint for each that missed it. This node itself, and any node that there is
    /// no room for hints for, is marked instead.
    pub(super) fn end_write(&mut self, id: SlotId, out: &mut Vec<Effect>) {
        if !self.slots.write(id).is_answered() {
            self.deny_write(id, |failed| failed, out);
        }
        let slot = self.slots.get(id);
        let Work::Write(write) = &slot.work else { unreachable!("{id:?} is no write") };
        let has_it = |vote: &&WriteVote| {
            matches!(
                vote.state,
                WriteState::Holds | WriteState::Failed { error: ReplicaError::Hidden, .. }
            )
        };
        let agrees = slot.view.agrees_with(self.view.id());
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
                self.lacking(&key, asked, &holders)
            };
            for peer in missed {
                self.missed_by(peer, key.clone(), record.clone(), out);
            }
        }
        self.slots.remove(id);
    }
}

/// The failure that the client is answered with when too few replicas hold the write.
fn failed(slot: &Slot, write: &Write, deadline_micros: u64) -> RequestFailed {
    let held = write.held();
    let is_hidden = |state| matches!(state, WriteState::Failed { error: ReplicaError::Hidden, .. });
    let (failure, detail) = if (held + write.count(is_hidden)).suffices(slot.ack()) {
        (FailureKind::Busy, Some(BEHIND.to_owned()))
    } else {
        (write.failure(), slot.detail.clone())
    };
    let (acked, quorum) = slot.quorums.short_of(held);
    RequestFailed {
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
