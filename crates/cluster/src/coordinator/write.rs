//! Writes: to all replicas at once, answered when enough of them hold the record.
//!
//! ```text
//!  all `from` asked ──▶ `ack` hold it ───────────────────────▶ answer ──▶ those that missed it:
//!        ▲        └──▶ one of them holds a newer one: stamp anew, once   hints
//!        └──────────────────┘
//! ```
//!
//! A replica with a newer record means that this node's clock is behind one that stamped an earlier
//! write. Left at that, a write that was begun after that one had been acknowledged would be lost;
//! so it is stamped anew, above what was seen, before anybody is told that it is done.
//!
//! A record of the future (see `read.rs`) can't be followed. Its replica does not count: no read
//! would find the write there. The others suffice, unless so many hold it that it may have been
//! acknowledged before this write began: then this one is refused.

use bytes::Bytes;

use super::slots::{Slot, State, Vote, Why, Work, WriteWork};
use super::{Coordinator, votes};
use crate::clock::Clock;
use crate::event::{Answer, ClientId, Denied, Effect, Now, OpId, StoreError, Trouble};
use crate::message::{Class, NodeId, Request};
use crate::quorum::Quorum;
use crate::record::Record;

/// Why a write is not stamped above a record that is there already.
pub(super) const BEHIND: &str = "this node's clock is too far behind that of a record which the \
                                 write must follow (--max-clock-skew): set it, or ask another \
                                 node; if it is right, that record came from a clock that was \
                                 wrong (kvorum repair-clock)";

impl Coordinator {
    pub(super) fn write(
        &mut self,
        now: Now,
        client: ClientId,
        key: Bytes,
        record: Record,
        quorum: Quorum,
        out: &mut Vec<Effect>,
    ) {
        let votes = self.votes_of(&key, quorum.from);
        let work = Work::Write(WriteWork { record, overtaken: None, restamped: false });
        let deadline = now.mono + self.config.deadline_micros;
        let detail = None;
        let id = self.slots.add(Slot {
            client,
            answered: false,
            deadline,
            key,
            quorum,
            votes,
            work,
            detail,
        });
        for vote in 0..usize::from(quorum.from) {
            self.ask(now, id, vote, out);
        }
    }

    /// This node's store wrote for a slot.
    pub(super) fn wrote_here(
        &mut self,
        now: Now,
        id: u64,
        result: Result<Option<u64>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get(id) else { return };
        if matches!(slot.work, Work::Call(_)) {
            let reply = super::replica::reply_to_write(&result);
            self.end_call(id, Ok(reply), out);
            return;
        }
        let Some(vote) = slot.vote_of(own) else { return };
        match result {
            Ok(newer) => self.stored(now, id, vote, newer, out),
            Err(error) => {
                let why = self.note_store_error(id, error);
                self.fail(now, id, vote, why, out);
            }
        }
    }

    /// A replica holds the record; perhaps a newer one too.
    pub(super) fn stored(
        &mut self,
        now: Now,
        id: u64,
        vote: usize,
        newer: Option<u64>,
        out: &mut Vec<Effect>,
    ) {
        let skew = self.config.max_skew_micros;
        if newer.is_some_and(|time| Clock::is_ahead(time, now.wall, skew)) {
            self.fail(now, id, vote, Why::Hidden, out);
            return;
        }
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Write(work) = &mut slot.work else {
            self.was_repaired(now, id, vote, out);
            return;
        };
        if slot.votes[vote].state != State::Asked {
            return;
        }
        slot.votes[vote].state = State::Holds;
        work.overtaken = work.overtaken.max(newer);
        // All `ack` must have spoken: the first that holds a newer record need not be the one that
        // holds the newest, and it is that one's clock which counts.
        let anew = work.overtaken.is_some() && !work.restamped && !slot.answered;
        let held = slot.count(|vote| vote.state == State::Holds);
        if anew && held >= usize::from(slot.quorum.ack) {
            self.stamp_anew(now, id, out);
        } else {
            self.advance_write(id, out);
        }
    }

    /// Sends the write once more, with a stamp above all that this node has seen by now.
    fn stamp_anew(&mut self, now: Now, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id) else { return };
        let Work::Write(work) = &slot.work else { return };
        let (clock, skew) = (&self.shared.clock, self.config.max_skew_micros);
        let in_reach = clock.merge(work.overtaken.unwrap_or(0), now.wall, skew);
        let stamp = match clock.issue(now.wall) {
            Ok(stamp) if in_reach => stamp,
            // Without a stamp above that record the order can't be promised, and neither can the
            // write.
            issued => {
                let behind = || BEHIND.to_owned();
                let detail = Some(issued.map_or_else(|reached| reached.to_string(), |_| behind()));
                let denied = Denied { trouble: Trouble::Busy, detail, ..self.denied(id) };
                let Some(slot) = self.slots.get_mut(id) else { return };
                slot.answered = true;
                let (client, answer) = (slot.client, Answer::Denied(denied));
                out.push(Effect::Answer { client, answer });
                self.advance_write(id, out);
                return;
            }
        };
        let id = self.slots.renew(id);
        let restamp = self.config.codec.restamp;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Write(work) = &mut slot.work else { return };
        work.record = restamp(&slot.key, &work.record, stamp);
        work.restamped = true;
        let votes = slot.votes.len();
        for vote in &mut slot.votes {
            *vote = Vote::new(vote.node, vote.place);
        }
        for vote in 0..votes {
            self.ask(now, id, vote, out);
        }
    }

    /// Answers as soon as that is possible; ends when nothing is awaited any more.
    pub(super) fn advance_write(&mut self, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Write(work) = &slot.work else { return };
        let ack = usize::from(slot.quorum.ack);
        let held = slot.count(|vote| vote.state == State::Holds);
        let open = slot.count(Vote::is_open);
        if !slot.answered && held >= ack {
            slot.answered = true;
            let answer = Answer::Written(work.record.rank.stamp);
            out.push(Effect::Answer { client: slot.client, answer });
        } else if !slot.answered && held + open < ack && !votes::is_worth_waiting(slot) {
            slot.answered = true;
            let (client, denied) = (slot.client, self.denied(id));
            out.push(Effect::Answer { client, answer: Answer::Denied(denied) });
        }
        if open == 0 {
            self.end_write(id, out);
        }
    }

    /// Nothing is awaited any more, or the time is up: who missed the write is sent a hint, if
    /// anybody may hold it. This node itself, and whoever there is no room for hints for, is marked
    /// to lack it.
    pub(super) fn end_write(&mut self, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id) else { return };
        if !slot.answered {
            let (client, denied) = (slot.client, self.denied(id));
            out.push(Effect::Answer { client, answer: Answer::Denied(denied) });
        }
        let Some(slot) = self.slots.get(id) else { return };
        let Work::Write(work) = &slot.work else { return };
        if slot.votes.iter().any(votes::may_hold) || work.restamped {
            let has_it = [State::Holds, State::Failed(Why::Hidden)];
            let missed = slot.votes.iter().filter(|vote| !has_it.contains(&vote.state));
            let missed: Vec<NodeId> = missed.map(|vote| vote.node).collect();
            let (key, record) = (slot.key.clone(), work.record.clone());
            for peer in missed {
                self.missed_by(peer, key.clone(), record.clone(), out);
            }
        }
        self.slots.remove(id);
    }

    /// Asks this node's store to write for a slot.
    pub(super) fn write_here(&mut self, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id) else { return };
        let Work::Write(work) = &slot.work else { return };
        let look = self.must_look(&work.record);
        let (key, record) = (slot.key.clone(), work.record.clone());
        let demand = slot.demand(Class::Client);
        out.push(Effect::Write { op: OpId::Slot(id), key, record, look, demand });
    }

    /// The request that a replica of a write is sent.
    pub(super) fn write_request(slot: &Slot) -> Option<(Class, Request)> {
        let Work::Write(work) = &slot.work else { return None };
        let request = Request::Write { key: slot.key.clone(), record: work.record.clone() };
        Some((Class::Client, request))
    }
}
