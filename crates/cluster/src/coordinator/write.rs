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

use std::rc::Rc;

use bytes::Bytes;

use super::slots::{Errand, Slot, VoteAt, Way, Why, Work};
use super::{Coordinator, votes};
use crate::clock::Clock;
use crate::event::{
    Answer, ClientId, Denied, Effect, Now, OpId, Part, SlotId, StoreError, Trouble,
};
use crate::message::{Class, NodeId, Request};
use crate::quorum::Quorum;
use crate::record::Record;

/// Why a write is not stamped above a record that is there already.
pub(super) const BEHIND: &str = "this node's clock is behind the timestamp of an existing record \
    of this key by more than --max-clock-skew: correct the clock, or send the write to another \
    node; if the clock is correct, the record came from a wrong clock (see kvorum repair-clock)";

/// A write under way.
#[derive(Debug)]
pub(super) struct Write {
    client: ClientId,
    record: Record,
    stage: Stage,
    /// One for each replica.
    pub(super) votes: Vec<WriteVote>,
}

/// How far a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its replicas are asked to hold it under its first stamp.
    Asking {
        /// The time of a newer record's stamp, if one that holds it holds such a one too.
        overtaken: Option<u64>,
    },
    /// The same under a second stamp. Who held it under the first one holds that still.
    Anew,
    /// The client was answered; what the others say decides about hints.
    Answered {
        /// Whether it was stamped anew before.
        anew: bool,
    },
}

/// One replica's part in a write.
#[derive(Debug, Clone)]
pub(super) struct WriteVote {
    pub(super) node: NodeId,
    pub(super) state: WriteState,
}

/// What a replica made of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteState {
    /// It was asked to hold it.
    Asked(Errand),
    /// It holds it.
    Holds,
    /// It did not do its part.
    Failed {
        /// Why.
        why: Why,
        /// Whether it had been sent it before: one that refuses it the second time may have done it
        /// the first time.
        was_resent: bool,
    },
}

impl WriteState {
    pub(super) fn errand_mut(&mut self) -> Option<&mut Errand> {
        match self {
            Self::Asked(errand) => Some(errand),
            Self::Holds | Self::Failed { .. } => None,
        }
    }

    fn is_open(self) -> bool {
        matches!(self, Self::Asked(_))
    }

    /// Whether the replica holds the write, or may: it did it, or was sent it and did not refuse
    /// it. What waits for a connection goes out once it stands: [`Write::is_worth_waiting`] waits
    /// for that, but at the deadline it may still be so.
    fn may_hold(self) -> bool {
        match self {
            Self::Asked(_) | Self::Holds | Self::Failed { was_resent: true, .. } => true,
            Self::Failed { why, .. } => matches!(why, Why::Silent | Why::Failed | Why::Hidden),
        }
    }

    /// Whether the replica has got it, and may hold it.
    fn has_arrived(self) -> bool {
        match self {
            Self::Asked(errand) => errand.may_have_arrived(),
            _ => self.may_hold(),
        }
    }

    fn fail(&mut self, why: Why) {
        let Self::Asked(errand) = *self else { unreachable!("{self:?} can't fail any more") };
        *self = Self::Failed { why, was_resent: errand.way == Way::Resent };
    }
}

impl Write {
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Answered { .. })
    }

    fn is_anew(&self) -> bool {
        matches!(self.stage, Stage::Anew | Stage::Answered { anew: true })
    }

    fn answered(&mut self) {
        assert!(!self.is_answered(), "a write is answered once");
        self.stage = Stage::Answered { anew: self.is_anew() };
    }

    fn count(&self, wanted: impl Fn(WriteState) -> bool) -> usize {
        self.votes.iter().filter(|vote| wanted(vote.state)).count()
    }

    fn held(&self) -> usize {
        self.count(|state| state == WriteState::Holds)
    }

    /// The vote of a node that has not answered; `None` = what it says is stale.
    pub(super) fn awaited(&self, node: NodeId) -> Option<VoteAt> {
        let place = self.votes.iter().position(|vote| vote.node == node && vote.state.is_open());
        place.map(VoteAt)
    }

    /// The time is up for those that have not answered.
    pub(super) fn fall_silent(&mut self) {
        for vote in self.votes.iter_mut().filter(|vote| vote.state.is_open()) {
            vote.state.fail(Why::Silent);
        }
    }

    fn failures(&self) -> impl Iterator<Item = Why> + Clone {
        self.votes.iter().filter_map(|vote| match vote.state {
            WriteState::Failed { why, .. } => Some(why),
            WriteState::Asked(_) | WriteState::Holds => None,
        })
    }

    fn trouble(&self) -> Trouble {
        if self.held() > 0 { Trouble::TooFew } else { votes::trouble(self.failures()) }
    }

    /// Whether a write that can't succeed any more is to wait for its open votes nevertheless: they
    /// decide whether *all* were busy or full, and whether nobody was sent it, so that it may
    /// safely be tried anew.
    fn is_worth_waiting(&self) -> bool {
        let none = !self.is_anew() && self.count(WriteState::has_arrived) == 0;
        self.count(WriteState::is_open) > 0 && (none || self.trouble() != Trouble::TooFew)
    }

    /// What the client is told when too few replicas hold the write.
    fn denied(&self, slot: &Slot, deadline_micros: u64) -> Denied {
        let held = self.held();
        let is_hidden = |state| matches!(state, WriteState::Failed { why: Why::Hidden, .. });
        let hidden = self.count(is_hidden);
        let (trouble, detail) = if held + hidden >= slot.ack() {
            (Trouble::Busy, Some(BEHIND.to_owned()))
        } else {
            (self.trouble(), slot.detail.clone())
        };
        let part = |vote: &WriteVote| match vote.state {
            WriteState::Asked(_) => (vote.node, Part::Open),
            WriteState::Holds => (vote.node, Part::Done),
            WriteState::Failed { why, .. } => (vote.node, votes::part(why)),
        };
        Denied {
            trouble,
            acked: held as u8,
            parts: self.votes.iter().map(part).collect(),
            since: slot.deadline.saturating_sub(deadline_micros),
            quorum: slot.quorum,
            is_write: true,
            unknown: self.is_anew() || self.count(WriteState::may_hold) > 0,
            detail,
        }
    }
}

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
        self.look_up_replicas(&key, quorum.from);
        let asked = WriteState::Asked(Errand { since: now.mono, way: Way::Waits });
        let mut votes = self.slots.write_votes();
        votes.extend(self.replicas.iter().map(|node| WriteVote { node: *node, state: asked }));
        let write = Write { client, record, stage: Stage::Asking { overtaken: None }, votes };
        let id = self.slots.add(Slot {
            view: Rc::clone(&self.view),
            deadline: now.mono + self.config.deadline_micros,
            key,
            quorum,
            work: Work::Write(write),
            detail: None,
        });
        self.ask_all(now, id, out);
    }

    /// Asks all replicas of a write to hold it.
    fn ask_all(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        for vote in 0..self.slots.write(id).votes.len() {
            self.ask_to_hold(now, id, VoteAt(vote), out);
        }
    }

    /// Asks a replica to hold a write; the answer comes under the slot's id.
    pub(super) fn ask_to_hold(
        &mut self,
        now: Now,
        id: SlotId,
        VoteAt(vote): VoteAt,
        out: &mut Vec<Effect>,
    ) {
        let slot = self.slots.get_mut(id);
        let Work::Write(write) = &mut slot.work else { unreachable!("{id:?} is no write") };
        let (key, record) = (slot.key.clone(), write.record.clone());
        let node = write.votes[vote].node;
        let is_own = node == self.shared.own;
        let way = if is_own || self.peers.is_up(node) { Way::Sent } else { Way::Waits };
        write.votes[vote].state = WriteState::Asked(Errand { since: now.mono, way });
        if is_own {
            let demand = slot.demand(Class::Client);
            self.write_to_store(OpId::Slot(id), key, record, demand, out);
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
        if matches!(slot.work, Work::Call(_)) {
            let reply = super::replica::reply_to_write(&result);
            self.end_call(id, Ok(reply), out);
            return;
        }
        match result {
            Ok(newer) => self.stored(now, id, self.shared.own, newer, out),
            Err(error) => {
                let why = self.note_store_error(id, error);
                self.fail(now, id, self.shared.own, why, out);
            }
        }
    }

    /// A replica holds the record; perhaps a newer one too.
    pub(super) fn stored(
        &mut self,
        now: Now,
        id: SlotId,
        node: NodeId,
        newer: Option<u64>,
        out: &mut Vec<Effect>,
    ) {
        let skew = self.config.max_skew_micros;
        if newer.is_some_and(|time| Clock::is_ahead(time, now.wall, skew)) {
            self.fail(now, id, node, Why::Hidden, out);
            return;
        }
        let slot = self.slots.get_mut(id);
        let ack = slot.ack();
        let write = match &mut slot.work {
            Work::Write(write) => write,
            Work::Read(_) => return self.was_repaired(now, id, node, out),
            Work::Call(_) => unreachable!("a call is returned whatever it is answered"),
        };
        let Some(VoteAt(vote)) = write.awaited(node) else { return };
        write.votes[vote].state = WriteState::Holds;
        // All `ack` must have spoken: the first that holds a newer record need not be the one that
        // holds the newest, and it is that one's clock which counts.
        let held = write.held();
        if let Stage::Asking { overtaken } = &mut write.stage {
            *overtaken = (*overtaken).max(newer);
            if let Some(overtaken) = *overtaken
                && held >= ack
            {
                self.stamp_anew(now, id, overtaken, out);
                return;
            }
        }
        self.advance_write(id, out);
    }

    /// Sends the write once more, with a stamp above all that this node has seen by now.
    fn stamp_anew(&mut self, now: Now, id: SlotId, overtaken: u64, out: &mut Vec<Effect>) {
        let (clock, skew) = (&self.shared.clock, self.config.max_skew_micros);
        let in_reach = clock.merge(overtaken, now.wall, skew);
        let stamp = match clock.issue(now.wall) {
            Ok(stamp) if in_reach => stamp,
            // Without a stamp above that record the order can't be promised, and neither can the
            // write.
            issued => {
                let behind = || BEHIND.to_owned();
                let detail = Some(issued.map_or_else(|reached| reached.to_string(), |_| behind()));
                self.deny_write(
                    id,
                    |denied| Denied { trouble: Trouble::Busy, detail, ..denied },
                    out,
                );
                self.advance_write(id, out);
                return;
            }
        };
        let id = self.slots.renew(id);
        let restamp = self.config.codec.restamp;
        let slot = self.slots.get_mut(id);
        let Work::Write(write) = &mut slot.work else { unreachable!("{id:?} is no write") };
        assert_eq!(
            write.stage,
            Stage::Asking { overtaken: Some(overtaken) },
            "it is stamped anew once"
        );
        write.record = restamp(&slot.key, &write.record, stamp);
        write.stage = Stage::Anew;
        self.ask_all(now, id, out);
    }

    /// Tells the client of a write that too few replicas hold it.
    fn deny_write(
        &mut self,
        id: SlotId,
        change: impl FnOnce(Denied) -> Denied,
        out: &mut Vec<Effect>,
    ) {
        let slot = self.slots.get(id);
        let Work::Write(write) = &slot.work else { unreachable!("{id:?} is no write") };
        let denied = change(write.denied(slot, self.config.deadline_micros));
        out.push(Effect::Answer { client: write.client, answer: Answer::Denied(denied) });
        self.slots.write(id).answered();
    }

    /// Answers as soon as that is possible; ends when nothing is awaited any more.
    fn advance_write(&mut self, id: SlotId, out: &mut Vec<Effect>) {
        let ack = self.slots.get(id).ack();
        let write = self.slots.write(id);
        let (held, open) = (write.held(), write.count(WriteState::is_open));
        if !write.is_answered() && held >= ack {
            write.answered();
            let answer = Answer::Written(write.record.rank.stamp);
            out.push(Effect::Answer { client: write.client, answer });
        } else if !write.is_answered() && held + open < ack && !write.is_worth_waiting() {
            self.deny_write(id, |denied| denied, out);
        }
        if open == 0 {
            self.end_write(id, out);
        }
    }

    /// A replica did not hold a write.
    pub(super) fn write_failed(
        &mut self,
        id: SlotId,
        VoteAt(vote): VoteAt,
        why: Why,
        out: &mut Vec<Effect>,
    ) {
        self.slots.write(id).votes[vote].state.fail(why);
        self.advance_write(id, out);
    }

    /// Nothing is awaited any more, or the time is up: who missed the write is sent a hint, if
    /// anybody may hold it. This node itself, and whoever there is no room for hints for, is marked
    /// to lack it.
    pub(super) fn end_write(&mut self, id: SlotId, out: &mut Vec<Effect>) {
        if !self.slots.write(id).is_answered() {
            self.deny_write(id, |denied| denied, out);
        }
        let slot = self.slots.get(id);
        let Work::Write(write) = &slot.work else { unreachable!("{id:?} is no write") };
        if write.is_anew() || write.count(WriteState::may_hold) > 0 {
            let has_it = |state| {
                matches!(state, WriteState::Holds | WriteState::Failed { why: Why::Hidden, .. })
            };
            let missed = write.votes.iter().filter(|vote| !has_it(vote.state));
            let missed: Vec<NodeId> = missed.map(|vote| vote.node).collect();
            let (key, record) = (slot.key.clone(), write.record.clone());
            for peer in missed {
                self.missed_by(peer, key.clone(), record.clone(), out);
            }
        }
        self.slots.remove(id);
    }
}
