//! Reads: the newest record that enough replicas report, which enough of them hold before the
//! client is answered.
//!
//! ```text
//!  ask `ack` ──▶ all replied ──▶ enough hold the newest ──────────────────▶ answer ──▶ the others
//!     │ ▲                    └─▶ they don't: write it to them (repair) ──▶ answer     are repaired
//!     ▼ │
//!  one failed, or is later than usual (hedge): ask the next
//! ```
//!
//! **A future record**, with a timestamp further ahead of this node's wall clock than clocks may
//! be, comes from a clock that was wrong, and the other replicas refuse it until its time comes. It
//! also hides whatever its replica held before. So a replica that reports one does not count at
//! first, and the next is asked. If `ack` others reply, that record can't have been acknowledged by
//! a quorum that this read must see, for the two have a replica in common: the newest of what the
//! others reported is the answer. If fewer are left, it may have been acknowledged: then it is the
//! answer if `ack` hold it, and otherwise the read fails, for the next read might not find it.
//!
//! Other nodes send records up to `brief_bytes` at once, and outlines of longer ones. A long record
//! is fetched only if it is the newest and this node does not have it, once there is room for it.

mod alone;
pub(super) mod state;
mod steps;

use std::rc::Rc;

use bytes::Bytes;

use super::acceptor::Arrived;
use super::part::{Errand, ReplicaError, VoteAt};
use super::sets::{PerSet, Quorums};
use super::slots::{Slot, Work};
use super::{Coordinator, MAX_BACKGROUND};
use crate::clock::Now;
use crate::event::{Answer, ClientId, Demand, Effect, OpId, RequestFailed, SlotId, StoreError};
use crate::message::{Class, NodeId, Reply, Request};
use crate::quorum::AskedQuorum;
use crate::recent::Via;
use record::{Outline, Record};
use state::{Read, ReadState, ReadVote, Reader, Reported, Stage};
use steps::{ReadStep, read_of, to_repair};

/// One read in so many asks all replicas, so that latencies are known and differences are found
/// that no quorum of the usual ones would show.
const ASK_ALL_EVERY: u64 = 64;

/// After this many microseconds replicas that were not authoritative are asked again, then after
/// twice that, and so on …
const ASK_AGAIN_MICROS: u64 = 5_000;

/// … so many times; or until the deadline, if it is this node that is about to become
/// authoritative. With another node that may take as long as it takes to stream a disk.
const ASK_AGAIN_TIMES: u32 = 5;

/// Why a replica's reply does not count.
const FUTURE: &str = "a record of this key with a timestamp ahead of this node's clock by more \
    than --max-clock-skew";

/// How long a long record may take, in microseconds, from this node's store, where it may have to
/// wait for memory, or from another node, before the next node is asked to send it.
pub(super) const LONG_LATE: u64 = 200_000;

impl Coordinator {
    pub(super) fn get(
        &mut self,
        now: Now,
        client: ClientId,
        key: Bytes,
        quorum: AskedQuorum,
        out: &mut Vec<Effect>,
    ) {
        let deadline = now.mono + self.config.deadline_micros;
        self.begin_read(now, Reader::Client(client), deadline, key, quorum, out);
    }

    /// Another node wants to know what a majority holds.
    pub(super) fn read_quorum_for(
        &mut self,
        now: Now,
        op: OpId,
        demand: Demand,
        (key, most): (Bytes, u32),
        out: &mut Vec<Effect>,
    ) {
        let usual = AskedQuorum::default();
        self.begin_read(now, Reader::Peer { op, most }, demand.until, key, usual, out);
    }

    fn begin_read(
        &mut self,
        now: Now,
        reader: Reader,
        deadline: u64,
        key: Bytes,
        asked: AskedQuorum,
        out: &mut Vec<Effect>,
    ) {
        let quorums = Quorums::of(asked, &self.view);
        let mut votes = self.slots.read_votes();
        self.fill_read_votes(&key, quorums.from(), &mut votes);
        let stage = Stage::Asking { asked_again: 0, asks_again: false };
        let id = self.slots.add(Slot {
            view: Rc::clone(&self.view),
            deadline,
            key,
            quorums,
            work: Work::Read(Read { reader, stage, outbid: 0, votes }),
            detail: None,
        });
        self.reads += 1;
        let all = self.reads.is_multiple_of(ASK_ALL_EVERY);
        self.ask_first(now, id, all, out);
    }

    /// A vote for each replica of both sets, in the order in which they are asked. One that is in
    /// both answers and confirms at once.
    pub(super) fn fill_read_votes(&mut self, key: &[u8], from: PerSet, votes: &mut Vec<ReadVote>) {
        self.look_up_replicas(key, from);
        votes.clear();
        self.replicas.fill(votes, ReadVote::new);
        let own = self.shared.own;
        votes.sort_by_key(|vote| {
            let (failed, mean) = self.peers.rank(vote.node);
            (failed, !vote.place.is_in_both(), vote.node != own, mean)
        });
    }

    /// Asks as many as must answer, and of the other set as many as must hold what is told.
    pub(super) fn ask_first(&mut self, now: Now, id: SlotId, all: bool, out: &mut Vec<Effect>) {
        let ack = self.slots.get(id).ack();
        let mut asked = PerSet::default();
        for vote in 0..self.slots.read(id).votes.len() {
            let sets = self.slots.read(id).votes[vote].place.sets();
            if all || !sets.min(asked.short_of(ack)).is_none() {
                self.ask(now, id, VoteAt(vote), out);
                asked = asked + sets;
            }
        }
        self.arm_hedge(now, id);
    }

    /// Asks a replica what it holds: of a long record another node reports the outline.
    fn ask(&mut self, now: Now, id: SlotId, VoteAt(vote): VoteAt, out: &mut Vec<Effect>) {
        let node = self.slots.read(id).votes[vote].node;
        let errand = self.errand_to(now, node);
        let voter = &mut self.slots.read(id).votes[vote];
        (voter.state, voter.was_asked) = (ReadState::Asked(errand), true);
        self.ask_for(now, id, node, self.config.brief_bytes, out);
    }

    /// Asks a node for its record, if that has at most `most` bytes; this node for one of any
    /// length.
    fn ask_for(&self, now: Now, id: SlotId, node: NodeId, most: u32, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let key = slot.key.clone();
        if node == self.shared.own {
            let (op, demand) = (OpId::Slot(id), slot.demand(Class::Client));
            out.push(Effect::Read { op, key, most: u32::MAX, demand });
        } else {
            let remaining = slot.deadline.saturating_sub(now.mono);
            self.send(node, id, remaining, Class::Client, Request::Read { key, most }, out);
        }
    }

    /// Arms the hedge: the next replica is asked when those that were asked are late.
    fn arm_hedge(&mut self, now: Now, id: SlotId) {
        let read = read_of(self.slots.get(id));
        if !read.is_decided() && read.first_idle().is_none() {
            return;
        }
        let others = read.votes.iter().filter(|vote| vote.node != self.shared.own);
        let late_after = |vote: &ReadVote| self.peers.late_after(vote.node);
        let asked = others.clone().filter(|vote| vote.state.errand().is_some());
        // A local read that waits for the disk is hedged like one of the quickest peer.
        let late = asked.map(late_after).max();
        let late = late.or_else(|| others.map(late_after).min()).unwrap_or(0);
        self.slots.hedge_at(now.mono + late, id);
    }

    /// The hedge is due: the replicas that were asked, or are being repaired, are late, and the
    /// next one is taken.
    pub(super) fn hedge_read(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let read = read_of(slot);
        match &read.stage {
            Stage::Answered(_) => unreachable!("an answered read is not hedged"),
            Stage::Decided(newest) => {
                let next = newest.as_ref().and_then(|newest| to_repair(slot, newest, PerSet::BOTH));
                let Some(vote) = next else { return };
                self.repair(now, id, vote, out);
            }
            Stage::Asking { asks_again: true, .. } => return self.ask_again(now, id, out),
            Stage::Asking { .. } => match (self.to_fetch(now, slot), read.first_idle()) {
                (Some(VoteAt(vote)), _) if !read.votes[vote].state.is_fetching() => {
                    let since = self.long_under_way(read).unwrap_or(0);
                    if now.mono < since + LONG_LATE {
                        self.slots.hedge_at(since + LONG_LATE, id);
                        return;
                    }
                    self.fetch(now, id, VoteAt(vote), out);
                }
                (_, Some(vote)) => self.ask(now, id, vote, out),
                (_, None) => return,
            },
        }
        self.arm_hedge(now, id);
    }

    fn ask_again_later(&mut self, now: Now, id: SlotId) {
        let Stage::Asking { asked_again, asks_again } = &mut self.slots.read(id).stage else {
            unreachable!("what is decided is not asked again");
        };
        if !std::mem::replace(asks_again, true) {
            let times = (*asked_again).min(ASK_AGAIN_TIMES);
            *asked_again += 1;
            self.slots.hedge_at(now.mono + (ASK_AGAIN_MICROS << times), id);
        }
    }

    /// The newest record can't be brought to enough replicas: one has promised a higher ballot.
    /// Most likely another one is about to come; if not, that promise stands in the way for ever.
    fn outbid(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let is_majority = slot.quorums.is_majority_of_defaults(&slot.view);
        // Who is about to hold the partition takes nothing from before, whoever tries again.
        let is_moving = slot.view.other.is_some();
        let read = self.slots.read(id);
        let reader = read.reader;
        read.outbid += 1;
        if (read.outbid > 1 || is_moving) && is_majority {
            self.complete(now, id, reader, out);
        } else {
            self.begin_anew_later(now, id);
        }
    }

    /// Forgets what was reported. What was asked before is stale.
    fn begin_anew_later(&mut self, now: Now, id: SlotId) {
        let id = self.slots.renew(id);
        let read = self.slots.read(id);
        for vote in &mut read.votes {
            (vote.state, vote.reported) = (ReadState::Idle, None);
        }
        read.stage = Stage::Asking { asked_again: 0, asks_again: false };
        self.ask_again_later(now, id);
    }

    fn ask_again(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let read = self.slots.read(id);
        if let Stage::Asking { asks_again, .. } = &mut read.stage {
            *asks_again = false;
        }
        if read.votes.iter().all(|vote| vote.state == ReadState::Idle) {
            return self.ask_first(now, id, false, out);
        }
        for vote in 0..read.votes.len() {
            let voter = &mut self.slots.read(id).votes[vote];
            if voter.state == (ReadState::Reported { authoritative: false }) {
                // It will report its record again.
                if let Some(reported) = &mut voter.reported {
                    reported.shed();
                }
                self.ask(now, id, VoteAt(vote), out);
            }
        }
    }

    /// A connection was lost: its node is asked once more for what it has not answered.
    pub(super) fn read_again(&mut self, now: Now, id: SlotId, node: NodeId, out: &mut Vec<Effect>) {
        let read = self.slots.read(id);
        let vote = read.awaited(node).expect("it was asked, and has not answered");
        match read.votes[vote.0].state {
            ReadState::Repairing(_) => self.repair(now, id, vote, out),
            ReadState::Fetching { .. } => self.fetch(now, id, vote, out),
            _ => self.ask(now, id, vote, out),
        }
    }

    /// Another node replied to what it was asked in a read.
    pub(super) fn read_replied(
        &mut self,
        now: Now,
        peer: NodeId,
        id: SlotId,
        errand: Errand,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        let (reported, authoritative) = match reply {
            Reply::Found { record, authoritative } => {
                if !record.is_of(&self.slots.get(id).key) {
                    return self.fail(now, id, peer, ReplicaError::Failed, out);
                }
                (Some(Reported::Whole(record)), authoritative)
            }
            Reply::Long { outline, authoritative } => {
                (Some(Reported::Outline(outline)), authoritative)
            }
            Reply::Absent { authoritative } => (None, authoritative),
            reply => return self.acknowledged(now, peer, id, &reply, out),
        };
        self.peers.took(peer, now.mono.saturating_sub(errand.since));
        self.reported(now, id, peer, reported, authoritative, out);
    }

    /// A replica reported what it holds.
    fn reported(
        &mut self,
        now: Now,
        id: SlotId,
        node: NodeId,
        reported: Option<Reported>,
        authoritative: bool,
        out: &mut Vec<Effect>,
    ) {
        let is_gone = reported.as_ref().is_some_and(|r| self.is_gone(now, r, authoritative));
        let reported = reported.filter(|_| !is_gone);
        let read = self.slots.read(id);
        let Some(VoteAt(vote)) = read.awaited(node) else { return };
        let voter = &mut read.votes[vote];
        if voter.state.is_repairing() {
            // A reply to what it was asked before; the one to the repair is yet to come.
            return;
        }
        voter.state = ReadState::Reported { authoritative };
        let is_long = matches!(reported, Some(Reported::Outline(_)));
        voter.reported = reported;
        if is_long {
            self.slots.hedge_at(now.mono + LONG_LATE, id);
        }
        let slot = self.slots.get(id);
        if self.hides(now, &read_of(slot).votes[vote]) {
            let name = self.shared.name_of(node);
            let detail = Some(format!("node {name} holds {FUTURE}"));
            self.slots.get_mut(id).detail = detail;
        }
        self.advance_read(now, id, out);
    }

    /// This node's store read for a slot.
    pub(super) fn read_here(
        &mut self,
        now: Now,
        id: SlotId,
        result: Result<Option<Record>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        // Its deadline may be over.
        let Some(slot) = self.slots.find(id) else { return };
        if matches!(slot.work, Work::Call(_)) {
            let reply = self.reply_to_read(result);
            self.end_call(id, Ok(reply), out);
            return;
        }
        // It was read to store what a conditional write made, which another view gave up since.
        if matches!(slot.work, Work::Change(_)) {
            return;
        }
        match result {
            Ok(record) => {
                let time = record.as_ref().map(|record| record.when());
                let authoritative = self.shared.membership.is_authoritative(time);
                self.reported(
                    now,
                    id,
                    self.shared.own,
                    record.map(Reported::Whole),
                    authoritative,
                    out,
                );
            }
            Err(error) => {
                let error = self.note_store_error(id, error);
                self.fail(now, id, self.shared.own, error, out);
            }
        }
    }

    fn advance_read(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        loop {
            let slot = self.slots.get(id);
            if slot.is_answered() {
                self.repair_behind(now, id, out);
                if !self.slots.read(id).is_awaiting() {
                    self.slots.remove(id);
                }
                return;
            }
            match self.next_step(now, slot) {
                ReadStep::Wait => return,
                ReadStep::AskAgain => return self.ask_again_later(now, id),
                ReadStep::BeginAnew => return self.outbid(now, id, out),
                ReadStep::Deny => return self.deny_read(id, out),
                ReadStep::Ask(vote) => self.ask(now, id, vote, out),
                ReadStep::Fetch(vote) => {
                    self.fetch(now, id, vote, out);
                    self.slots.hedge_at(now.mono + LONG_LATE, id);
                }
                ReadStep::Repair(vote) => {
                    self.decide(now, id);
                    self.repair(now, id, vote, out);
                    self.arm_hedge(now, id);
                }
                ReadStep::Answer(newest) => self.answer_read(id, newest, out),
            }
        }
    }

    /// From here on the newest of what was reported is the answer, whatever comes later.
    fn decide(&mut self, now: Now, id: SlotId) {
        let slot = self.slots.get(id);
        if !read_of(slot).is_decided() {
            let newest = self.newest_of(now, slot).cloned();
            self.slots.read(id).stage = Stage::Decided(newest);
        }
    }

    /// Asks a replica to send its record, whose length is known. Until it comes, the contents of
    /// all other records are dropped: a read that waits for memory must not hold memory.
    fn fetch(&mut self, now: Now, id: SlotId, VoteAt(vote): VoteAt, out: &mut Vec<Effect>) {
        let node = self.slots.read(id).votes[vote].node;
        let errand = self.errand_to(now, node);
        let read = self.slots.read(id);
        let fetched = read.votes[vote].reported.as_ref().map(Reported::rank);
        for reported in read.votes.iter_mut().filter_map(|vote| vote.reported.as_mut()) {
            if Some(reported.rank()) != fetched {
                reported.shed();
            }
        }
        let voter = &mut read.votes[vote];
        let most = match &voter.reported {
            Some(Reported::Outline(outline)) => outline.bytes,
            Some(Reported::Whole(_)) | None => u32::MAX,
        };
        voter.state = ReadState::Fetching { authoritative: voter.state.is_authoritative(), errand };
        self.ask_for(now, id, node, most, out);
    }

    /// Writes the newest record to a replica.
    fn repair(&mut self, now: Now, id: SlotId, VoteAt(vote): VoteAt, out: &mut Vec<Effect>) {
        let node = self.slots.read(id).votes[vote].node;
        let errand = self.errand_to(now, node);
        self.slots.read(id).votes[vote].state = ReadState::Repairing(errand);
        let slot = self.slots.get(id);
        let record = read_of(slot).newest().expect("a repair has a record").clone();
        let (key, demand) = (slot.key.clone(), slot.demand(Class::Repair));
        if node == self.shared.own && !self.shared.known_disk.acknowledges() {
            let request = Request::Write { key, record };
            self.wait_until_known(OpId::Slot(id), demand, request, out);
        } else if node == self.shared.own && record.ballot() > 0 {
            let arrived = Arrived { key, record, goes_on: false };
            self.accept(now, OpId::Slot(id), arrived, demand, out);
        } else if node == self.shared.own {
            // Whether a newer record is held already does not matter: the repair is done.
            self.must_look(&record);
            let (op, via, look, durable) = (OpId::Slot(id), Via::Replica, false, false);
            out.push(Effect::Write { op, key, record, via, look, durable, demand });
        } else {
            let remaining = slot.deadline.saturating_sub(now.mono);
            let request = Request::Write { key, record };
            self.send(node, id, remaining, Class::Repair, request, out);
        }
    }

    /// After the answer: repairs replicas that reported an older record, with nobody waiting for
    /// it.
    fn repair_behind(&mut self, now: Now, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let read = read_of(slot);
        if read.is_unanimous() {
            return;
        }
        if let Some(vote) = self.to_fetch(now, slot) {
            let is_fetching = read.count_states(ReadState::is_fetching) > 0;
            if !is_fetching && !self.hides(now, &read.votes[vote.0]) {
                self.fetch(now, id, vote, out);
            }
            return;
        }
        let newest = self.newest_of(now, slot).filter(|record| !self.is_ahead(now, record));
        let Some(newest) = newest.cloned() else { return };
        let (copies, rank) = (slot.copies_of(&newest), newest.rank());
        let read = self.slots.read(id);
        if read.newest().is_none_or(|record| record.rank() < rank) {
            read.stage = Stage::Answered(Some(newest));
        }
        let is_stale = |vote: &ReadVote| {
            matches!(vote.state, ReadState::Reported { .. })
                && !vote.place.within(copies).is_none()
                && vote.reported.as_ref().is_none_or(|reported| reported.rank() < rank)
        };
        for vote in 0..read.votes.len() {
            if !is_stale(&self.slots.read(id).votes[vote]) {
                continue;
            }
            if self.background >= MAX_BACKGROUND {
                return;
            }
            self.background += 1;
            self.repair(now, id, VoteAt(vote), out);
        }
    }

    fn answer_read(&mut self, id: SlotId, newest: Option<Record>, out: &mut Vec<Effect>) {
        let read = self.slots.read(id);
        let reader = read.reader;
        read.stage = Stage::Answered(newest.clone());
        // Repairs that turned out not to be needed: nobody waits for them any more.
        self.background += read.count_states(ReadState::is_repairing);
        self.answer_reader(reader, Answer::Found(newest), out);
    }

    /// Ends a read that can't be answered.
    fn deny_read(&mut self, id: SlotId, out: &mut Vec<Effect>) {
        let slot = self.slots.get(id);
        let read = read_of(slot);
        let (acked, quorum) = slot.quorums.short_of(read.acked());
        let failed = RequestFailed {
            failure: read.failure(),
            acked,
            parts: read.parts(),
            since: slot.deadline.saturating_sub(self.config.deadline_micros),
            quorum,
            is_write: false,
            unknown: false,
            detail: slot.detail.clone(),
        };
        let reader = read.reader;
        self.slots.remove(id);
        self.answer_reader(reader, Answer::Failed(failed), out);
    }

    /// A read's deadline is over.
    pub(super) fn end_read(&mut self, id: SlotId, out: &mut Vec<Effect>) {
        let read = self.slots.read(id);
        if read.is_answered() {
            let repairing = read.count_states(ReadState::is_repairing);
            self.end_background(repairing);
            self.slots.remove(id);
        } else {
            self.deny_read(id, out);
        }
    }

    /// So many repairs that nobody waits for have ended.
    fn end_background(&mut self, repairs: usize) {
        assert!(self.background >= repairs, "each repair behind an answer was counted");
        self.background -= repairs;
    }

    /// A replica was repaired: it holds the newest record, or an even newer one.
    pub(super) fn was_repaired(
        &mut self,
        now: Now,
        id: SlotId,
        node: NodeId,
        out: &mut Vec<Effect>,
    ) {
        let read = self.slots.read(id);
        let is_it = |vote: &&mut ReadVote| vote.node == node && vote.state.is_repairing();
        // Otherwise it was not asked to store anything: a faulty peer.
        let Some(vote) = read.votes.iter_mut().find(is_it) else { return };
        vote.state = ReadState::Holds;
        if node != self.shared.own {
            self.shared.logs.stored_late(node);
        }
        let is_answered = self.slots.read(id).is_answered();
        self.end_background(usize::from(is_answered));
        self.advance_read(now, id, out);
    }

    /// The reply to another node's read, by what this node's store returned.
    pub(super) fn reply_to_read(&self, result: Result<Option<Record>, StoreError>) -> Reply {
        match result {
            Ok(Some(record)) => {
                let authoritative = self.shared.membership.is_authoritative(Some(record.when()));
                Reply::Found { record, authoritative }
            }
            Ok(None) => {
                Reply::Absent { authoritative: self.shared.membership.is_authoritative(None) }
            }
            Err(error) => super::replica::reply_to_error(&error),
        }
    }

    /// A replica did not do its part in a read.
    pub(super) fn read_failed(
        &mut self,
        now: Now,
        id: SlotId,
        VoteAt(vote): VoteAt,
        error: ReplicaError,
        out: &mut Vec<Effect>,
    ) {
        let read = self.slots.read(id);
        if read.is_answered() && read.votes[vote].state.is_repairing() {
            self.end_background(1);
        }
        let voter = &mut self.slots.read(id).votes[vote];
        if voter.state.is_fetching() {
            // It does not send its record, so the newest of the others is looked for.
            voter.reported = None;
        }
        voter.state = ReadState::Failed(error);
        self.advance_read(now, id, out);
    }

    /// This node's store holds a record that is longer than was asked for.
    pub(super) fn outlined_here(
        &mut self,
        now: Now,
        id: SlotId,
        outline: Outline,
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.find(id) else { return };
        if matches!(slot.work, Work::Call(_)) {
            let authoritative = self.shared.membership.is_authoritative(Some(outline.rank.when()));
            self.end_call(id, Ok(Reply::Long { outline, authoritative }), out);
        } else if !matches!(slot.work, Work::Change(_)) {
            // A read's own vote takes a record of any length.
            self.fail(now, id, self.shared.own, ReplicaError::Failed, out);
        }
    }

    /// Answers whoever asked for a value.
    pub(super) fn answer_reader(&mut self, reader: Reader, answer: Answer, out: &mut Vec<Effect>) {
        let (op, most) = match reader {
            Reader::Client(client) => return out.push(Effect::Answer { client, answer }),
            Reader::Peer { op, most } => (op, most),
        };
        let authoritative = true;
        let reply = match answer {
            Answer::Found(Some(record)) if record.byte_len() > most as usize => {
                Reply::Long { outline: record.outline(), authoritative }
            }
            Answer::Found(Some(record)) => Reply::Found { record, authoritative },
            Answer::Found(None) => Reply::Absent { authoritative },
            _ => Reply::Busy,
        };
        self.respond_to_op(op, reply, out);
    }
}
