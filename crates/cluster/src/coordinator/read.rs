//! Reads: the newest of what enough replicas tell, made sure of before it is told.
//!
//! ```text
//!  ask `ack` ──▶ all told ──▶ the newest is held by enough ────────────────────▶ answer ──▶ the
//!     │ ▲                 └─▶ it is not: have it written until it is (repair) ─▶ answer     others
//!     ▼ │                                                                                   behind
//!  one failed, or is later than usual (hedge): ask the next
//! ```
//!
//! **A record of the future**, stamped further ahead of this node's wall clock than clocks may be,
//! comes from a clock that was wrong, and the other replicas refuse it until its time comes. It
//! also hides whatever its replica held before. So a replica that tells of one counts for nothing
//! at first, and the next is asked. If `ack` others answer, that record can't have been
//! acknowledged by a quorum that this read must see, for those have a replica in common: the newest
//! of what the others told is the answer. If fewer are left, it may have been: then it is told if
//! `ack` hold it, and otherwise the read fails, for what it told now the next one might not.
//!
//! Other nodes send records up to `brief_bytes` at once, and outlines of longer ones. A long record
//! is fetched only if it is the newest and this node does not have it, when there is room for it.

use bytes::Bytes;

use super::slots::{ReadWork, Slot, State, Told, Vote, Why, Work};
use super::{Coordinator, MAX_BACKGROUND, votes};
use crate::event::{Answer, ClientId, Effect, Now, OpId, StoreError};
use crate::message::{Class, Reply, Request};
use crate::quorum::Quorum;
use crate::record::{Outline, Record};

/// One read in so many asks all replicas, so that latencies are known and differences are found
/// that no quorum of the usual ones would show.
const ASK_ALL_EVERY: u64 = 64;

/// After this many microseconds those that could not vouch for what they told are asked again, then
/// after twice that, and so on …
const ASK_AGAIN_MICROS: u64 = 5_000;

/// … so many times, or to the deadline if it is this node which finds out what its own word is
/// worth. What another node's is worth may take as long as a disk that is streamed.
const ASK_AGAIN_TIMES: u32 = 5;
/// Why a replica's word does not count.
const FUTURE: &str = "a record of this key from a clock that was further ahead of this node's than \
                      clocks may be (--max-clock-skew)";
/// A long record may take so long, in microseconds, from this node's store, where it may have to
/// wait for memory, or from another node, before yet another one is asked to send it.
const LONG_LATE: u64 = 200_000;

/// What a read does next.
enum Step {
    /// Have the replica of this vote hold the newest record; a client waits.
    Repair(usize),
    /// Ask this one.
    Ask(usize),
    /// Have it send the newest record, of which only the outline is here.
    Fetch(usize),
    Wait,
    /// Ask those that could not vouch once more, a little later.
    AskAgain,
    Answer,
    Deny,
}

impl Coordinator {
    pub(super) fn get(
        &mut self,
        now: Now,
        client: ClientId,
        key: Bytes,
        quorum: Quorum,
        out: &mut Vec<Effect>,
    ) {
        let mut votes = self.votes_of(&key, quorum.from);
        let own = self.shared.own;
        votes.sort_by_key(|vote| (vote.node != own, self.peers.rank(vote.node)));
        self.reads += 1;
        let all = self.reads.is_multiple_of(ASK_ALL_EVERY);
        let first = usize::from(if all { quorum.from } else { quorum.ack });
        let work = Work::Read(ReadWork {
            newest: None,
            decided: false,
            asked_again: 0,
            asks_again: false,
        });
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
        for vote in 0..first {
            self.ask(now, id, vote, out);
        }
        self.arm_hedge(now, id);
    }

    /// Has the next replica asked when those that were asked are late.
    fn arm_hedge(&mut self, now: Now, id: u64) {
        let Some(slot) = self.slots.get(id) else { return };
        let Work::Read(work) = &slot.work else { return };
        if !work.decided && !slot.votes.iter().any(|vote| vote.state == State::Idle) {
            return;
        }
        let own = self.shared.own;
        let asked = slot.votes.iter().filter(|vote| vote.is_open());
        let late = asked.filter(|vote| vote.node != own).map(|v| self.peers.late_after(v.node));
        // A local read that waits for the disk is hedged like one of the quickest peer.
        let late = late.max().unwrap_or_else(|| {
            let others = slot.votes.iter().filter(|vote| vote.node != own);
            others.map(|vote| self.peers.late_after(vote.node)).min().unwrap_or(0)
        });
        self.slots.hedge_at(now.mono + late, id);
    }

    /// Those that were asked, or are to hold the newest record, are late: the next is to do it.
    pub(super) fn hedge(&mut self, now: Now, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id).filter(|slot| !slot.answered) else { return };
        let Work::Read(work) = &slot.work else { return };
        if work.decided {
            let next = work.newest.as_ref().and_then(|newest| self.to_repair(slot, newest));
            let Some(vote) = next else { return };
            self.repair(now, id, vote, out);
        } else if work.asks_again {
            self.ask_again(now, id, out);
            return;
        } else {
            let idle = slot.votes.iter().position(|vote| vote.state == State::Idle);
            match (self.to_fetch(now, slot), idle) {
                (Some(vote), _) if !is_fetching(&slot.votes[vote]) => {
                    let since = self.long_under_way(slot).unwrap_or(0);
                    if now.mono < since + LONG_LATE {
                        self.slots.hedge_at(since + LONG_LATE, id);
                        return;
                    }
                    self.fetch(now, id, vote, out);
                }
                (_, Some(vote)) => self.ask(now, id, vote, out),
                (_, None) => return,
            }
        }
        self.arm_hedge(now, id);
    }

    /// Whether those that could not vouch for what they told may do so soon: a node has just
    /// started, and finds out what the others know of it.
    fn may_settle(&self, slot: &Slot, work: &ReadWork) -> bool {
        let told = slot.count(|vote| matches!(vote.state, State::Told { .. }));
        let unsure = |vote: &Vote| vote.state == State::Told { sure: false };
        let own = self.shared.own;
        let own_is_unsure = slot.votes.iter().any(|vote| vote.node == own && unsure(vote));
        let settles = own_is_unsure && self.shared.vouching.is_settling();
        told >= usize::from(slot.quorum.ack) && (settles || work.asked_again < ASK_AGAIN_TIMES)
    }

    fn ask_again_later(&mut self, now: Now, id: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Read(work) = &mut slot.work else { return };
        if !std::mem::replace(&mut work.asks_again, true) {
            let times = work.asked_again.min(ASK_AGAIN_TIMES);
            work.asked_again += 1;
            self.slots.hedge_at(now.mono + (ASK_AGAIN_MICROS << times), id);
        }
    }

    fn ask_again(&mut self, now: Now, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Read(work) = &mut slot.work else { return };
        work.asks_again = false;
        let unsure = |vote: &usize| slot.votes[*vote].state == State::Told { sure: false };
        let unsure: Vec<usize> = (0..slot.votes.len()).filter(unsure).collect();
        for vote in unsure {
            if let Some(told) =
                self.slots.get_mut(id).and_then(|slot| slot.votes[vote].told.as_mut())
            {
                // It is told anew.
                told.shed();
            }
            self.ask(now, id, vote, out);
        }
    }

    /// A replica told what it holds.
    pub(super) fn told(
        &mut self,
        now: Now,
        id: u64,
        vote: usize,
        told: Option<Told>,
        sure: bool,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if !matches!(slot.votes[vote].state, State::Asked | State::Fetching { .. }) {
            return;
        }
        slot.votes[vote].state = State::Told { sure };
        if matches!(told, Some(Told::Outline(_))) {
            self.slots.hedge_at(now.mono + LONG_LATE, id);
        }
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.votes[vote].told = told;
        if let Some(slot) = self.slots.get(id).filter(|slot| self.hides(now, &slot.votes[vote])) {
            let name = &self.shared.topology.member(slot.votes[vote].node).name;
            let detail = Some(format!("node {name} holds {FUTURE}"));
            if let Some(slot) = self.slots.get_mut(id) {
                slot.detail = detail;
            }
        }
        self.advance_read(now, id, out);
    }

    /// This node's store read for a slot.
    pub(super) fn read_here(
        &mut self,
        now: Now,
        id: u64,
        result: Result<Option<Record>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get_mut(id) else { return };
        if matches!(slot.work, Work::Call(_)) {
            let reply = self.reply_to_read(result);
            self.end_call(id, Ok(reply), out);
            return;
        }
        let Some(vote) = slot.vote_of(own) else { return };
        match result {
            Ok(record) => {
                let sure = self.shared.vouching.sure(record.as_ref().map(|r| r.rank.stamp.time));
                self.told(now, id, vote, record.map(Told::Whole), sure, out);
            }
            Err(error) => {
                let why = self.note_store_error(id, error);
                self.fail(now, id, vote, why, out);
            }
        }
    }

    pub(super) fn advance_read(&mut self, now: Now, id: u64, out: &mut Vec<Effect>) {
        while let Some(slot) = self.slots.get(id) {
            if slot.answered {
                self.repair_behind(now, id, out);
                if self.slots.get(id).is_some_and(|s| !s.votes.iter().any(|v| v.is_open())) {
                    self.slots.remove(id);
                }
                return;
            }
            match self.next_step(now, slot) {
                Step::Wait => return,
                Step::AskAgain => {
                    self.ask_again_later(now, id);
                    return;
                }
                Step::Ask(vote) => self.ask(now, id, vote, out),
                Step::Fetch(vote) => {
                    self.fetch(now, id, vote, out);
                    self.slots.hedge_at(now.mono + LONG_LATE, id);
                }
                Step::Repair(vote) => {
                    self.decide(now, id);
                    self.repair(now, id, vote, out);
                    self.arm_hedge(now, id);
                }
                Step::Answer => {
                    self.decide(now, id);
                    self.answer_read(id, out);
                }
                Step::Deny => {
                    self.deny(id, out);
                    return;
                }
            }
        }
    }

    fn next_step(&self, now: Now, slot: &Slot) -> Step {
        let ack = usize::from(slot.quorum.ack);
        let Work::Read(work) = &slot.work else { return Step::Wait };
        if !work.decided && self.settled(now, slot) < ack {
            let asked = slot.count(|vote| vote.state == State::Asked);
            if self.settled(now, slot) + asked >= ack {
                return Step::Wait;
            }
            if let Some(vote) = slot.votes.iter().position(|vote| vote.state == State::Idle) {
                return Step::Ask(vote);
            }
            let sure = slot.count(votes::told);
            if sure < ack {
                return if sure + asked >= ack || votes::is_worth_waiting(slot) {
                    Step::Wait
                } else if self.may_settle(slot, work) {
                    Step::AskAgain
                } else {
                    Step::Deny
                };
            }
        }
        if !work.decided
            && let Some(vote) = self.to_fetch(now, slot)
        {
            return match self.long_under_way(slot) {
                Some(_) => Step::Wait,
                None => Step::Fetch(vote),
            };
        }
        let newest = if work.decided { work.newest.as_ref() } else { self.newest_of(now, slot) };
        let Some(newest) = newest.filter(|_| ack > 1) else { return Step::Answer };
        // It must be held by `ack` of those that are to hold it at all.
        let copies = self.copies_of(newest);
        let wanted = ack.min(slot.count(|vote| vote.place < copies));
        let future = self.is_ahead(now, newest);
        let held = slot.count(|vote| holds(vote, newest) && (future || !self.hides(now, vote)));
        if held >= wanted {
            return Step::Answer;
        }
        let repairing = slot.count(|vote| vote.state == State::Repairing);
        if held + repairing >= wanted {
            return Step::Wait;
        }
        // Of the future it is refused, and this node must not take it either.
        if !future && let Some(vote) = self.to_repair(slot, newest) {
            return Step::Repair(vote);
        }
        // One that was asked what it holds is told when it has answered: to a second request under
        // the same id the answer to the first would be taken for one.
        let asked = slot.count(|vote| vote.state == State::Asked && vote.place < copies);
        if held + repairing + asked >= wanted { Step::Wait } else { Step::Deny }
    }

    /// Whether a replica told of a record of the future, and thus nothing of what it holds below.
    fn hides(&self, now: Now, vote: &Vote) -> bool {
        vote.told.as_ref().is_some_and(|told| self.is_future(now, told.rank()))
    }

    /// How many replicas vouch for what they told, without a record of the future.
    fn settled(&self, now: Now, slot: &Slot) -> usize {
        slot.count(|vote| votes::told(vote) && !self.hides(now, vote))
    }

    /// What was told; of the future only if too few told of others.
    fn told_of<'a>(&'a self, now: Now, slot: &'a Slot) -> impl Iterator<Item = &'a Told> {
        let settled = self.settled(now, slot) >= usize::from(slot.quorum.ack);
        let told = slot.votes.iter().filter_map(|vote| vote.told.as_ref());
        told.filter(move |told| !settled || !self.is_future(now, told.rank()))
    }

    /// The newest record of those that are here whole.
    fn newest_of<'a>(&'a self, now: Now, slot: &'a Slot) -> Option<&'a Record> {
        self.told_of(now, slot).filter_map(Told::whole).max_by_key(|record| record.rank)
    }

    /// Whose record is to be sent: that of a replica that told the newest, if nobody's is here
    /// whole; of one that is not asked for it yet, if there is any.
    fn to_fetch(&self, now: Now, slot: &Slot) -> Option<usize> {
        let newest = self.told_of(now, slot).map(Told::rank).max()?;
        if self.newest_of(now, slot).is_some_and(|record| record.rank == newest) {
            return None;
        }
        let tells = |vote: &Vote| vote.told.as_ref().is_some_and(|told| told.rank() == newest);
        let asked = slot.votes.iter().position(|vote| is_fetching(vote) && tells(vote));
        let is_told = |vote: &Vote| matches!(vote.state, State::Told { .. }) && tells(vote);
        slot.votes.iter().position(is_told).or(asked)
    }

    /// Since when the newest record, which is long, is waited for: from whoever was asked to send
    /// it, or from this node's store, which mostly has it too.
    fn long_under_way(&self, slot: &Slot) -> Option<u64> {
        let own = self.shared.own;
        let awaited =
            |vote: &&Vote| is_fetching(vote) || vote.node == own && vote.state == State::Asked;
        slot.votes.iter().filter(awaited).map(|vote| vote.asked_at).max()
    }

    /// Which replica is to be told of the newest record next: one that is known not to hold it,
    /// then one that was not asked.
    fn to_repair(&self, slot: &Slot, newest: &Record) -> Option<usize> {
        let copies = self.copies_of(newest);
        let lacks = |vote: &Vote| vote.place < copies && !holds(vote, newest);
        let is_told = |vote: &Vote| matches!(vote.state, State::Told { .. }) && lacks(vote);
        let is_idle = |vote: &Vote| vote.state == State::Idle && lacks(vote);
        let told = slot.votes.iter().position(is_told);
        told.or_else(|| slot.votes.iter().position(is_idle))
    }

    /// From here on it is the newest of these that is told, and nothing that comes later.
    fn decide(&mut self, now: Now, id: u64) {
        let Some(slot) = self.slots.get(id) else { return };
        let newest = self.newest_of(now, slot).cloned();
        let Some(slot) = self.slots.get_mut(id) else { return };
        if let Work::Read(work) = &mut slot.work
            && !work.decided
        {
            work.decided = true;
            work.newest = newest;
        }
    }

    /// Has the replica of a vote send its record, whose length is known. Until it comes nothing
    /// else of any length is held: whoever waits for memory must not keep others from it.
    pub(super) fn fetch(&mut self, now: Now, id: u64, vote: usize, out: &mut Vec<Effect>) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let fetched = slot.votes[vote].told.as_ref().map(Told::rank);
        for told in slot.votes.iter_mut().filter_map(|vote| vote.told.as_mut()) {
            if Some(told.rank()) != fetched {
                told.shed();
            }
        }
        let remaining = slot.deadline.saturating_sub(now.mono);
        let (key, demand) = (slot.key.clone(), slot.demand(Class::Client));
        let voter = &mut slot.votes[vote];
        let sure = votes::told(voter);
        let most = match &voter.told {
            Some(Told::Outline(outline)) => outline.bytes,
            Some(Told::Whole(_)) | None => u32::MAX,
        };
        voter.state = State::Fetching { sure };
        voter.asked_at = now.mono;
        let node = voter.node;
        if node == own {
            out.push(Effect::Read { op: OpId::Slot(id), key, most: u32::MAX, demand });
        } else {
            self.send(node, id, remaining, Class::Client, Request::Read { key, most }, out);
        }
    }

    pub(super) fn repair(&mut self, now: Now, id: u64, vote: usize, out: &mut Vec<Effect>) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Read(ReadWork { newest: Some(record), .. }) = &slot.work else { return };
        let (key, record) = (slot.key.clone(), record.clone());
        let demand = slot.demand(Class::Repair);
        let remaining = slot.deadline.saturating_sub(now.mono);
        let voter = &mut slot.votes[vote];
        (voter.state, voter.asked_at, voter.resent) = (State::Repairing, now.mono, false);
        let node = voter.node;
        if node == own {
            // Whatever was held before, the repair is done.
            self.must_look(&record);
            let (op, look) = (OpId::Slot(id), false);
            out.push(Effect::Write { op, key, record, look, demand });
        } else {
            let request = Request::Write { key, record };
            self.send(node, id, remaining, Class::Repair, request, out);
        }
    }

    /// What other replicas told after the answer, or had told before and was not needed, is put
    /// right with nobody waiting.
    fn repair_behind(&mut self, now: Now, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id) else { return };
        if let Some(vote) = self.to_fetch(now, slot) {
            if !slot.votes.iter().any(is_fetching) && !self.hides(now, &slot.votes[vote]) {
                self.fetch(now, id, vote, out);
            }
            return;
        }
        let newest = self.newest_of(now, slot).filter(|record| !self.is_ahead(now, record));
        let Some(newest) = newest.cloned() else { return };
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Read(work) = &mut slot.work else { return };
        if work.newest.as_ref().is_none_or(|record| record.rank < newest.rank) {
            work.newest = Some(newest.clone());
        }
        let copies = self.copies_of(&newest);
        let Some(slot) = self.slots.get(id) else { return };
        let stale: Vec<usize> = (0..slot.votes.len())
            .filter(|vote| {
                let vote = &slot.votes[*vote];
                matches!(vote.state, State::Told { .. })
                    && vote.place < copies
                    && vote.told.as_ref().is_none_or(|told| told.rank() < newest.rank)
            })
            .collect();
        for vote in stale {
            if self.background >= MAX_BACKGROUND {
                return;
            }
            self.background += 1;
            self.repair(now, id, vote, out);
        }
    }

    fn answer_read(&mut self, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Work::Read(work) = &slot.work else { return };
        let answer = Answer::Found(work.newest.clone());
        slot.answered = true;
        // Those that turned out not to be needed: nobody waits for them any more.
        self.background += slot.count(|vote| vote.state == State::Repairing);
        out.push(Effect::Answer { client: slot.client, answer });
    }

    /// A read's time is up.
    pub(super) fn end_read(&mut self, id: u64, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(id) else { return };
        if slot.answered {
            self.background -= slot.count(|vote| vote.state == State::Repairing);
            self.slots.remove(id);
        } else {
            self.deny(id, out);
        }
    }

    /// A replica holds the newest record now, or has a newer one yet.
    pub(super) fn was_repaired(&mut self, now: Now, id: u64, vote: usize, out: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.votes[vote].state == State::Repairing {
            slot.votes[vote].state = State::Holds;
            let node = slot.votes[vote].node;
            if node != self.shared.own {
                self.shared.logs.stored_late(node);
            }
            self.background -= usize::from(slot.answered);
            self.advance_read(now, id, out);
        }
    }

    /// What a read of this node's store is to another node.
    pub(super) fn reply_to_read(&self, result: Result<Option<Record>, StoreError>) -> Reply {
        match result {
            Ok(Some(record)) => {
                let sure = self.shared.vouching.sure(Some(record.rank.stamp.time));
                Reply::Found { record, sure }
            }
            Ok(None) => Reply::Absent { sure: self.shared.vouching.sure(None) },
            Err(error) => super::replica::reply_to_error(&error),
        }
    }

    /// A read's vote failed.
    pub(super) fn read_vote_failed(&mut self, id: u64, vote: usize, why: Why) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.votes[vote].state == State::Repairing {
            self.background -= usize::from(slot.answered);
        }
        if is_fetching(&slot.votes[vote]) {
            // It does not send it, so another one is asked for the newest that can be had.
            slot.votes[vote].told = None;
        }
        slot.votes[vote].state = State::Failed(why);
    }

    /// This node's store holds a record that is longer than was wanted.
    pub(super) fn outlined_here(
        &mut self,
        now: Now,
        id: u64,
        outline: Outline,
        sure: bool,
        out: &mut Vec<Effect>,
    ) {
        let own = self.shared.own;
        let Some(slot) = self.slots.get(id) else { return };
        match (&slot.work, slot.vote_of(own)) {
            (Work::Call(_), _) => self.end_call(id, Ok(Reply::Long { outline, sure }), out),
            // A read's own vote takes a record of any length.
            (_, Some(vote)) => self.fail(now, id, vote, Why::Failed, out),
            (_, None) => {}
        }
    }
}

/// Whether a replica is known to hold a record, or a newer one.
fn holds(vote: &Vote, record: &Record) -> bool {
    let told = vote.told.as_ref();
    vote.state == State::Holds || told.is_some_and(|told| told.rank() >= record.rank)
}

/// How many replicas did their part in a read: told what they hold, or hold what is to be told.
pub(super) fn acked(slot: &Slot, work: &ReadWork) -> usize {
    match &work.newest {
        Some(newest) if work.decided => slot.count(|vote| holds(vote, newest)),
        _ => slot.count(votes::told),
    }
}

fn is_fetching(vote: &Vote) -> bool {
    matches!(vote.state, State::Fetching { .. })
}
