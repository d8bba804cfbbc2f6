//! Conditional writes, as their coordinator does them: promises of a majority, then the next record
//! on a majority.
//!
//! ```text
//!  ballot ─▶ Prepare ─▶ a majority has promised: the newest record of those that it holds
//!    ▲                    ├─ condition true ──▶ the next record ─▶ stored by a majority ─▶ answer
//!    │                    └─ false ─┬─ a majority holds it ──────────────────────────────▶ answer
//!    │                              └─ bring it to a majority ─▶ stored by a majority ───▶ answer
//!    └── a little later ◀── outbid, outranked, or too few
//! ```
//!
//! Whatever is answered is about a record that is *chosen*: a majority stored it under one ballot.
//! A try whose record may be stored somewhere is followed up for as long as the deadline lasts: the
//! newest record has its id, or the write was not done. No later try goes back behind the plain
//! write that an earlier one was based on. If a plain write came between two tries the
//! first one's record is no longer told by the replicas, and the outcome stays unknown.
//!
//! The protocol is checked by a model: `docs/conditional-model.md`.

pub(super) mod home;
mod round;
pub(super) mod state;

use std::rc::Rc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Coordinator;
use super::part::{Errand, ReplicaError, VoteAt, Way};
use super::read::LONG_LATE;
use super::read::state::{Reader, Reported};
use super::sets::Quorums;
use super::slots::{Slot, Work};
use super::write::BEHIND;
use crate::acks::{Acks, ReplicaSet};
use crate::clock::{NotIssued, Now, follows_another};
use crate::conditional::{Change, Condition, Conditional, Done};
use crate::event::{Answer, ClientId, Demand, Effect, FailureKind, OpId, RequestFailed, SlotId};
use crate::message::{Class, NodeId, Reply, Request};
use crate::quorum::AskedQuorum;
use record::Record;
use state::{Asker, ChangeState, ChangeVote, ChangeWork, Stage};

/// A write that was outbid is tried again after about so many microseconds, then after twice that,
/// and so on …
const PAUSE_MICROS: u64 = 1_000;

/// … so many times.
const PAUSE_DOUBLINGS: u32 = 5;

/// A write that one replica has outbid is begun anew if the others do not reply for so long.
const LATE_MICROS: u64 = 20_000;

/// The home is left this part of the time less, so that it can say that it has not begun.
const HOME_SHARE: u64 = 8;

/// The conditional write of a slot that is known to be one.
fn change_of(slot: &Slot) -> &ChangeWork {
    match &slot.work {
        Work::Change(change) => change,
        other => unreachable!("no conditional write: {other:?}"),
    }
}

impl Coordinator {
    pub(super) fn change(
        &mut self,
        now: Now,
        client: ClientId,
        (key, number): (Bytes, Option<u64>),
        conditional: Conditional,
        quorum: AskedQuorum,
        out: &mut Vec<Effect>,
    ) {
        let deadline = now.mono + self.config.deadline_micros;
        let id = self.add_change(deadline, Asker::Client(client), key, conditional, quorum);
        let version = self.shared.clock.issue(now);
        let Some(version) = self.issued(now, id, version, out) else { return };
        // No two versions are equal.
        let own = xxh3_64_with_seed(&version.time.to_le_bytes(), version.origin.into()) & !1;
        self.slots.change(id).id = number.unwrap_or(own);
        self.bring_home(now, id, out);
    }

    /// Another node takes this one for the home of a key.
    pub(super) fn change_for(
        &mut self,
        now: Now,
        op: OpId,
        demand: Demand,
        (key, number, ack): (Bytes, u64, u8),
        conditional: Conditional,
        out: &mut Vec<Effect>,
    ) {
        let quorum = AskedQuorum { ack: Some(ack).filter(|ack| *ack > 0), from: None };
        let id = self.add_change(demand.until, Asker::Peer(op), key, conditional, quorum);
        self.slots.change(id).id = number;
        self.wait_for_turn(now, id, out);
    }

    fn add_change(
        &mut self,
        deadline: u64,
        asker: Asker,
        key: Bytes,
        conditional: Conditional,
        quorum: AskedQuorum,
    ) -> SlotId {
        let quorums = Quorums::of_majorities(quorum, &self.view);
        self.look_up_replicas(&key, quorums.from());
        let work = ChangeWork {
            asker,
            conditional,
            id: 0,
            stage: Stage::Queued,
            since: 0,
            tries: 0,
            turn: None,
            followers: Vec::new(),
            elsewhere: false,
            of_earlier_view: false,
            found: None,
            tried: None,
            votes: self.change_votes(),
        };
        let (view, work) = (Rc::clone(&self.view), Work::Change(Box::new(work)));
        self.slots.add(Slot { view, deadline, key, quorums, work, detail: None })
    }

    /// A vote for each of the replicas that were just looked up.
    fn change_votes(&self) -> Vec<ChangeVote> {
        let mut votes = Vec::new();
        self.replicas.fill(&mut votes, ChangeVote::new);
        votes
    }

    /// A vote for each replica by the view of the slot, which is in force.
    pub(super) fn make_change_votes(&mut self, id: SlotId) {
        let slot = self.slots.get(id);
        let (key, from) = (slot.key.clone(), slot.quorums.from());
        self.look_up_replicas(&key, from);
        let votes = self.change_votes();
        self.slots.change(id).votes = votes;
    }

    /// A quorum read has found a record that less than a majority holds, and that can't be brought
    /// to one under its own ballot, for a higher one was promised: it goes there under a new one,
    /// as a conditional write does that finds its condition not true.
    pub(super) fn complete(&mut self, now: Now, id: SlotId, reader: Reader, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let (deadline, key, quorum) = (slot.deadline, slot.key.clone(), slot.quorums.asked);
        self.slots.remove(id);
        let (condition, change) = (Condition::OneOf(Vec::new()), Change::Delete);
        let never = Conditional { condition, change, expiry_ms: 0, digest: 0 };
        let id = self.add_change(deadline, Asker::Reader(reader), key, never, quorum);
        self.try_change(now, id, out);
    }

    /// What this node's clock has issued; without it the write is refused.
    fn issued<T>(
        &mut self,
        now: Now,
        id: SlotId,
        issued: Result<T, NotIssued>,
        out: &mut Vec<Effect>,
    ) -> Option<T> {
        match issued {
            Ok(issued) => Some(issued),
            Err(why) => {
                self.slots.get_mut(id).detail = Some(why.to_string());
                self.deny_change(now, id, FailureKind::Busy, out);
                None
            }
        }
    }

    /// Begins, or begins anew, with a ballot above all that this node has seen; or goes on under
    /// one that was promised before.
    pub(super) fn try_change(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        self.dissolve(id);
        if self.goes_on(now, id, out) {
            return;
        }
        let ballot = self.shared.clock.issue_ballot(now, self.shared.own);
        let Some(ballot) = self.issued(now, id, ballot, out) else { return };
        let watermark = self.shared.proofs.watermark();
        let change = self.slots.change(id);
        change.tries += 1;
        change.since = now.mono;
        change.stage = Stage::Preparing { ballot, watermark };
        self.ask_all_of_change(now, id, out);
    }

    /// Asks all replicas for what the stage needs. Replies to what was asked before are stale.
    fn ask_all_of_change(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let id = self.slots.renew(id);
        for vote in &mut self.slots.change(id).votes {
            vote.state = ChangeState::Asked(Errand { since: now.mono, way: Way::Waits });
            vote.recalled = None;
        }
        for vote in 0..self.slots.change(id).votes.len() {
            self.ask_of_change(now, id, VoteAt(vote), out);
        }
    }

    /// Asks one replica for what it has to do next.
    pub(super) fn ask_of_change(
        &mut self,
        now: Now,
        id: SlotId,
        VoteAt(vote): VoteAt,
        out: &mut Vec<Effect>,
    ) {
        let node = self.slots.change(id).votes[vote].node;
        let is_own = node == self.shared.own;
        let errand = self.errand_to(now, node);
        let most = if is_own { u32::MAX } else { self.config.brief_bytes };
        let slot = self.slots.get_mut(id);
        let (key, demand) = (slot.key.clone(), slot.demand(Class::Client));
        let Work::Change(change) = &mut slot.work else { unreachable!("{id:?} is no change") };
        let vote = &mut change.votes[vote];
        vote.state = vote.state.anew(errand);
        let fetches = matches!(vote.state, ChangeState::Fetching(_));
        let request = match (&change.stage, &vote.reported) {
            (Stage::Preparing { .. }, Some(Reported::Outline(outline))) if fetches => {
                Request::Read { key, most: outline.bytes }
            }
            (Stage::Preparing { .. }, _) if matches!(vote.state, ChangeState::Recalling(_)) => {
                // Of one that another node has done or not, nothing is known.
                let since = change.tried.as_ref().map_or(0, |tried| tried.since);
                Request::Recall { key, id: change.id, since, digest: change.conditional.digest }
            }
            (Stage::Forwarded, _) => {
                let (id, conditional) = (change.id, change.conditional.clone());
                // What was not said is what it is by the home's view; 0 says that.
                let ack = slot.quorums.asked.ack.unwrap_or(0);
                Request::Change { key, id, ack, conditional }
            }
            (Stage::Preparing { ballot, watermark }, _) => {
                Request::Prepare { key, ballot: *ballot, most, watermark: *watermark }
            }
            // That no plain write came in between shows in the set that is read: the others may be
            // about to be filled.
            (Stage::Storing { record, .. }, _)
                if follows_another(record.ballot()) && vote.place.is_read() =>
            {
                Request::AcceptNext { key, record: record.clone() }
            }
            // After the answer too: to one whose connection was lost.
            (Stage::Storing { record, .. } | Stage::Answered(Some(record)), _) => {
                Request::Write { key, record: record.clone() }
            }
            (stage, _) => unreachable!("nobody is asked anything in {stage:?}"),
        };
        if is_own {
            self.ask_here(now, id, demand, request, out);
        } else {
            let mut remaining = demand.until.saturating_sub(now.mono);
            if matches!(request, Request::Change { .. }) {
                remaining -= remaining / HOME_SHARE;
            }
            self.send(node, id, remaining, Class::Client, request, out);
        }
    }

    /// This node is a replica itself. Its own ballots are as far ahead as its clock may be.
    fn ask_here(
        &mut self,
        now: Now,
        id: SlotId,
        demand: Demand,
        request: Request,
        out: &mut Vec<Effect>,
    ) {
        let op = OpId::Slot(id);
        match request {
            Request::Write { key, record } => self.hold_record(now, op, key, record, demand, out),
            request => self.perform(now, op, demand, request, out),
        }
    }

    /// A replica replied, this node's too.
    pub(super) fn change_replied(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        let Some(VoteAt(vote)) = self.slots.change(id).awaited(peer) else { return };
        if matches!(self.slots.change(id).stage, Stage::Forwarded) {
            return self.home_replied(now, id, &reply, out);
        }
        let authoritative = is_authoritative(&reply);
        let change = self.slots.change(id);
        let prepares = matches!(change.stage, Stage::Preparing { .. });
        let recalls = matches!(change.votes[vote].state, ChangeState::Recalling(_));
        let reported = match reply {
            Reply::Recalled(recalled) if recalls => {
                let vote = &mut change.votes[vote];
                (vote.state, vote.recalled) = (ChangeState::Promised, Some(recalled));
                return self.advance_change(now, id, out);
            }
            reply if recalls => {
                let error = ReplicaError::of_refusal(&reply);
                return self.change_failed(now, id, VoteAt(vote), error, out);
            }
            Reply::Round(state) if prepares => {
                self.has_other_watermark(peer, &state);
                return self.change_failed(now, id, VoteAt(vote), ReplicaError::Outbid, out);
            }
            Reply::Outbid { promise } => {
                self.follow(now, id, promise);
                return self.change_failed(now, id, VoteAt(vote), ReplicaError::Outbid, out);
            }
            Reply::Newer { time } if !prepares => {
                self.follow(now, id, time);
                return self.change_failed(now, id, VoteAt(vote), ReplicaError::Outbid, out);
            }
            Reply::Stored if !prepares => {
                self.slots.change(id).votes[vote].state = ChangeState::Stored;
                return self.advance_change(now, id, out);
            }
            _ if !authoritative && (!prepares || change.votes[vote].place.is_read()) => {
                let error = ReplicaError::NotAuthoritative;
                return self.change_failed(now, id, VoteAt(vote), error, out);
            }
            Reply::Found { record, .. } if prepares => {
                if !record.is_of(&self.slots.get(id).key) {
                    return self.change_failed(now, id, VoteAt(vote), ReplicaError::Failed, out);
                }
                Some(Reported::Whole(record))
            }
            Reply::Long { outline, .. } if prepares => Some(Reported::Outline(outline)),
            Reply::Absent { .. } if prepares => None,
            reply => {
                let error = ReplicaError::of_refusal(&reply);
                return self.change_failed(now, id, VoteAt(vote), error, out);
            }
        };
        let is_gone = reported.as_ref().is_some_and(|r| self.is_gone(now, r, authoritative));
        let vote = &mut self.slots.change(id).votes[vote];
        if matches!(vote.state, ChangeState::Fetching(_))
            && vote.rank() != reported.as_ref().map(Reported::rank)
        {
            // Another write has come since it promised.
            vote.state = ChangeState::Failed(ReplicaError::Outbid);
        } else {
            // What is fetched was counted already.
            let is_fetched = matches!(vote.state, ChangeState::Fetching(_));
            vote.reported = reported.filter(|_| is_fetched || !is_gone);
            let promises = authoritative || vote.place.is_read();
            vote.state = if promises { ChangeState::Promised } else { ChangeState::Reported };
        }
        self.advance_change(now, id, out);
    }

    /// The next ballot must be above this one. One that is too far ahead can't be followed.
    fn follow(&mut self, now: Now, id: SlotId, ballot: u64) {
        if !self.shared.clock.merge(ballot, now, self.config.max_skew_micros) {
            self.slots.get_mut(id).detail = Some(BEHIND.to_owned());
        }
    }

    /// A replica did not do its part.
    pub(super) fn change_failed(
        &mut self,
        now: Now,
        id: SlotId,
        VoteAt(vote): VoteAt,
        error: ReplicaError,
        out: &mut Vec<Effect>,
    ) {
        let change = self.slots.change(id);
        if matches!(change.stage, Stage::Forwarded) {
            return self.home_failed(now, id, error, out);
        }
        change.votes[vote].state = ChangeState::Failed(error);
        if error == ReplicaError::Outbid && !change.is_answered() {
            // Those that have not replied may take long.
            self.slots.hedge_at(now.mono + LATE_MICROS, id);
        }
        self.advance_change(now, id, out);
    }

    /// Goes on as soon as a majority has done its part, or can't any more.
    fn advance_change(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let ack = self.slots.get(id).ack();
        let change = change_of(self.slots.get(id));
        let open = change.count(ChangeState::is_asked);
        // What is done so far, and what of it counts as long as others are awaited.
        let (did, counts, needed) = match &change.stage {
            Stage::Preparing { .. } => {
                let promised = change.count_votes(ChangeVote::is_bound);
                let awaits = |vote: &ChangeVote| vote.state.is_asked() && self.is_up(vote.node);
                let is_awaiting = change.votes.iter().any(awaits);
                let is_clear = |vote: &ChangeVote| vote.is_bound() && !self.hides_from(now, vote);
                let clear = if is_awaiting { change.count_votes(is_clear) } else { promised };
                (promised, clear, ack)
            }
            Stage::Storing { .. } => {
                let stored = change.count(|state| state == ChangeState::Stored);
                (stored, stored, ack)
            }
            Stage::Pausing
            | Stage::Queued
            | Stage::Follows(_)
            | Stage::Forwarded
            | Stage::Behind => return,
            Stage::Answered(_) => {
                if open.is_none() {
                    self.end_change(now, id, out);
                }
                return;
            }
        };
        if counts.suffices(needed) {
            let change = self.slots.change(id);
            match std::mem::replace(&mut change.stage, Stage::Pausing) {
                Stage::Preparing { ballot, watermark } => {
                    self.promised(now, id, (ballot, watermark), out);
                }
                Stage::Storing { record, then } => {
                    let by = change.replicas(|vote| vote.state == ChangeState::Stored);
                    if record.ballot() > 0 {
                        self.keep(id, record.clone(), record.ballot());
                    }
                    self.answer_change(now, id, then, by, Some(record), out);
                }
                stage => unreachable!("nothing is done in {stage:?}"),
            }
        } else if (did + open).suffices(needed) {
            // The others may do their part yet.
        } else if change.is_going_on() {
            // The others refuse it because of a write that came in between: it is not outbid.
            self.try_change(now, id, out);
        } else {
            self.try_change_later(now, id, out);
        }
    }

    fn fetch_for_change(
        &mut self,
        now: Now,
        id: SlotId,
        VoteAt(vote): VoteAt,
        out: &mut Vec<Effect>,
    ) {
        let voter = &mut self.slots.change(id).votes[vote];
        if !matches!(voter.state, ChangeState::Fetching(_)) {
            voter.state = ChangeState::Fetching(Errand { since: now.mono, way: Way::Waits });
            self.ask_of_change(now, id, VoteAt(vote), out);
            self.slots.hedge_at(now.mono + LONG_LATE, id);
        }
    }

    fn store_for_change(
        &mut self,
        now: Now,
        id: SlotId,
        record: Record,
        then: Done,
        out: &mut Vec<Effect>,
    ) {
        self.slots.change(id).stage = Stage::Storing { record, then };
        self.ask_all_of_change(now, id, out);
    }

    /// Tries again after a pause, which differs from one to the next, so that two that outbid each
    /// other part; or gives up, if that would change nothing.
    fn try_change_later(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let change = self.slots.change(id);
        if !change.is_worth_another_try() {
            let failure = change.failure();
            return self.deny_change(now, id, failure, out);
        }
        change.stage = Stage::Pausing;
        // What became of a record is not told for long.
        let doublings = if change.tried.is_some() { 0 } else { change.tries.min(PAUSE_DOUBLINGS) };
        let pause = PAUSE_MICROS << doublings;
        let jitter = xxh3_64_with_seed(&change.tries.to_le_bytes(), change.id) % pause;
        let id = self.slots.renew(id);
        self.slots.hedge_at(now.mono + pause / 2 + jitter, id);
    }

    /// A pause is over; or it was outbid, and the others are late.
    pub(super) fn change_again(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let change = self.slots.change(id);
        let is_fetching = |vote: &ChangeVote| matches!(vote.state, ChangeState::Fetching(_));
        if let Some(vote) = change.votes.iter().position(is_fetching) {
            // Another one may have the record too.
            return self.change_failed(now, id, VoteAt(vote), ReplicaError::Silent, out);
        }
        match change.stage {
            Stage::Queued => self.look_for_turn(now, id, out),
            _ => self.try_change(now, id, out),
        }
    }

    fn answer_change(
        &mut self,
        now: Now,
        id: SlotId,
        done: Done,
        by: ReplicaSet,
        stored: Option<Record>,
        out: &mut Vec<Effect>,
    ) {
        self.end_turn(now, id);
        let acks = Acks { epoch: self.slots.get(id).view.epoch, by };
        let change = self.slots.change(id);
        let answer = match change.asker {
            // What is told is what replicas hold now: that may belong to more of them than before.
            Asker::Reader(_) => Answer::Found(stored.clone().or_else(|| change.found.take())),
            Asker::Client(_) | Asker::Peer(_) => Answer::Done(done, acks),
        };
        let asker = change.asker;
        self.answer_asker(asker, answer, out);
        self.answer_followers(id, acks, out);
        let change = self.slots.change(id);
        let open = stored.is_some() && !change.count(ChangeState::is_asked).is_none();
        change.stage = Stage::Answered(stored);
        if !open {
            self.end_change(now, id, out);
        }
    }

    fn deny_change(&mut self, now: Now, id: SlotId, failure: FailureKind, out: &mut Vec<Effect>) {
        self.leave_queue(id);
        self.dissolve(id);
        self.end_turn(now, id);
        let slot = self.slots.get(id);
        let change = change_of(slot);
        let did = |state| {
            matches!(state, ChangeState::Stored | ChangeState::Promised | ChangeState::Reported)
        };
        let (acked, quorum) = slot.quorums.short_of(change.count(did));
        let failed = RequestFailed {
            failure,
            acked,
            parts: change.parts(),
            since: slot.deadline.saturating_sub(self.config.deadline_micros),
            quorum,
            is_write: !matches!(change.asker, Asker::Reader(_)),
            unknown: change.is_begun(),
            detail: slot.detail.clone(),
        };
        let asker = change.asker;
        self.answer_asker(asker, Answer::Failed(failed), out);
        self.slots.remove(id);
    }

    /// No reply is awaited any more, or the deadline is over. A record that is known to be chosen
    /// becomes a hint for each replica that missed it.
    pub(super) fn end_change(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let change = change_of(slot);
        let Stage::Answered(stored) = &change.stage else {
            let failure = change.failure();
            return self.deny_change(now, id, failure, out);
        };
        if let Some(record) = stored.clone() {
            let key = slot.key.clone();
            let asked = slot.quorums.asked;
            let has_it = |vote: &&ChangeVote| vote.state == ChangeState::Stored;
            let nodes = |votes: &mut dyn Iterator<Item = &ChangeVote>| -> Vec<NodeId> {
                votes.map(|vote| vote.node).collect()
            };
            let missed = if slot.view.agrees_with(self.view.id()) {
                nodes(&mut change.votes.iter().filter(|vote| !has_it(vote)))
            } else {
                let holders = nodes(&mut change.votes.iter().filter(has_it));
                self.lacking(&key, asked, &holders)
            };
            for peer in missed {
                self.missed_by(peer, key.clone(), record.clone(), out);
            }
        }
        self.slots.remove(id);
    }
}

/// Whether a reply does not say that its node is not authoritative for what it reports.
fn is_authoritative(reply: &Reply) -> bool {
    !matches!(
        reply,
        Reply::Found { authoritative: false, .. }
            | Reply::Long { authoritative: false, .. }
            | Reply::Absent { authoritative: false }
    )
}
