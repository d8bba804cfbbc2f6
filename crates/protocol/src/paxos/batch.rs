//! Rounds: the second phase of conditional writes, after a majority has promised. One round carries
//! out one write, or several writes of the same key.
//!
//! ```text
//!  promises ─▶ the newest record ─▶ outcome of this write's earlier try:
//!    ├─ cannot be determined ─▶ answer "unknown"
//!    ├─ its record is no longer reported ─▶ a majority stores that record again ─▶ answer
//!    └─ shown by the newest record, or there was no earlier try
//!         ─▶ apply this write's operation, then those of its *followers*, to the record's state
//!              ├─ state changed ───▶ a majority stores the next record ─▶ answer all writes
//!              └─ state unchanged ─▶ a majority holds the record, or else stores it ─▶ answer all
//! ```
//!
//! Expiry is judged by this node's wall clock, or by the clocks of most other nodes if these show
//! an earlier time. The clock of another coordinator may be earlier still. So a round that finds a
//! value expired and changes nothing else first stores the absence of the value: no later round
//! then finds the value alive.
//!
//! If a round fails, its writes are retried. A write whose record may already be stored is retried
//! alone, and the retry first determines whether the write was done.

use super::change_work::{
    ChangeRequester, ChangeStage, ChangeState, ChangeVote, ChangeWork, EarlierTry,
};
use super::{Changes, LATE_ROUND_TRIPS, reports_future_record};
use crate::dispatch::core::Core;
use crate::event::{Answer, FailureKind, SlotId};
use crate::paxos::operation::{Change, Done, KeyState, family_of_absent, has_idempotency_key};
use crate::paxos::recent::OpLookup;
use crate::paxos::state_cache::CachedState;
use crate::request::RequestCx;
use crate::request::outstanding::{Delivery, Outstanding, VoteIndex};
use crate::request::receipt::{Acks, ReplicaSet};
use crate::request::reported::ReportedRecord;
use crate::request::sets::PerSet;
use crate::request::slots::Slot;
use crate::request::write::CLOCK_BEHIND_DETAIL;
use record::{MAX_OPERATIONS, OpHistory, Operation, Record, Version, is_earlier_step};

/// The detail if a majority answered, but too many later writes hide the outcome.
const MANY_BETWEEN: &str = "so many other conditional writes came between two tries of this one \
    that the key does not tell any more whether the first try was done";

/// The detail if the outcome is unknown because another leader, to which the write was sent, did
/// not answer.
const OTHER_LEADER_SILENT: &str = "the node that coordinates the writes of this key was \
    asked for this one and did not answer, and no trace of the write is found";

/// The detail if the outcome is unknown because a plain write has replaced the base version.
const PLAIN_BETWEEN: &str = "a write without a condition came between two tries of this one, and \
    whether the first try was done can't be told any more";

/// The detail if the outcome is unknown and the idempotency key was used before.
const IDEMPOTENCY_KEY_REUSED: &str = "an earlier write used this idempotency key, and whether \
    it was done can't be told any more";

/// The knowledge about an earlier try once a majority has promised.
enum EarlierTryOutcome {
    /// There was no earlier try, or the newest record shows its outcome.
    Known,
    /// The outcome cannot be determined from the newest record.
    Unknown(&'static str),
    /// The replicas no longer report the record on which the earlier try was based. The record of
    /// that try is stored again. A new write based on an older record would be done twice once the
    /// try's record is found.
    Again(Record, Done),
}

/// The combined replies of replicas to the query about an earlier try.
enum Recollection {
    /// As many replicas as the client requires have accepted the write under one ballot.
    Done(Done, ReplicaSet),
    /// A majority has accepted the write under one ballot, but the client requires more replicas.
    DoneByMajority(Done, ReplicaSet),
    /// No majority has stored the write, and none ever will.
    Never,
    /// Like `Never`; and a replica has stored another request with the same idempotency key.
    Reused,
    /// Some replicas have not replied yet.
    Open,
    /// The outcome cannot be determined.
    Unclear,
}

impl Recollection {
    /// Returns the recollection of a chosen write with the outcome `done`. `has_it` tells the votes
    /// of the replicas that have stored the write.
    fn of_done(slot: &Slot<ChangeWork>, done: Done, has_it: impl Fn(&ChangeVote) -> bool) -> Self {
        let by = slot.work.replicas(&has_it);
        match slot.work.count_votes(has_it).suffices(slot.ack()) {
            true => Self::Done(done, by),
            false => Self::DoneByMajority(done, by),
        }
    }
}

impl ChangeWork {
    /// Determines the outcome of the write's earlier tries. `newest` is the base version of the
    /// newest record, or of a record made from an absent key.
    fn earlier_try_outcome(
        &self,
        newest: Version,
        steps: &OpHistory,
        watermark: u64,
    ) -> EarlierTryOutcome {
        if steps.has(self.id) {
            return EarlierTryOutcome::Known;
        }
        let family = self.tried.as_ref().map_or(newest, |tried| tried.record.version());
        match &self.tried {
            // If the base version is not above the watermark, a proof has ended it, and its record
            // must not be stored again.
            Some(EarlierTry { record, then, .. }) if newest < family && family.time > watermark => {
                EarlierTryOutcome::Again(record.clone(), *then)
            }
            _ if has_idempotency_key(self.id) => EarlierTryOutcome::Unknown(IDEMPOTENCY_KEY_REUSED),
            _ if self.elsewhere => EarlierTryOutcome::Unknown(OTHER_LEADER_SILENT),
            Some(_) if newest != family => EarlierTryOutcome::Unknown(PLAIN_BETWEEN),
            Some(tried) if !steps.can_tell_outcome(self.id, tried.step) => {
                EarlierTryOutcome::Unknown(MANY_BETWEEN)
            }
            _ => EarlierTryOutcome::Known,
        }
    }

    /// True if no node has begun the write for this request, but one may have for an earlier
    /// request with the same idempotency key.
    fn is_only_repeated(&self) -> bool {
        has_idempotency_key(self.id) && !self.is_begun()
    }

    /// True if the write has an idempotency key, and follows another such write of the history. A
    /// replica notes a record's last such write under each ballot, and an earlier one no more. So a
    /// majority must have noted the other write under one ballot before.
    fn follows_other_key(&self, steps: &OpHistory) -> bool {
        let has_key = |other: &Operation| has_idempotency_key(other.id);
        has_idempotency_key(self.id) && !steps.has(self.id) && steps.operations.iter().any(has_key)
    }

    /// Remembers that the write's operation is in `record`; it is done if a majority stores the
    /// record.
    fn note_try(&mut self, record: &Record, then: Done) {
        let Done::Changed { tag, .. } = then else { return };
        let Some((step, _)) = tag.last else { return };
        let (mut first, mut since) = (step, record.ballot());
        if let Some(tried) = &self.tried {
            first = if is_earlier_step(tried.step, step) { tried.step } else { step };
            since = tried.since;
        }
        self.tried = Some(EarlierTry { record: record.clone(), then, step: first, since });
    }
}

impl Changes {
    /// Handles the promises of a majority.
    pub(crate) fn on_promises(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        (ballot, watermark): (u64, u64),
    ) {
        if cx.core.shared.repair.proofs.watermark() != watermark {
            // The watermark has risen since, so the promises are or will soon be void.
            return self.try_change(cx, id);
        }
        let newest = match self.newest_of_change(cx, id) {
            Ok(newest) => newest,
            // The newest record is long, and its content is needed.
            Err(vote) => {
                self.slots.work(id).stage = ChangeStage::Preparing { ballot, watermark };
                return self.fetch_for_change(cx, id, vote);
            }
        };
        let key = self.slots.get(id).key.clone();
        let absent = family_of_absent(watermark);
        let wall = cx.core.expiry_check_time(cx.now);
        let mut state = KeyState::of(newest.as_ref(), absent, wall);
        let mut family = newest.as_ref().map_or(absent, |newest| newest.version());
        let has_ended = self.has_ended(id, family, watermark);
        if has_ended {
            family = absent;
            state.continue_under(absent);
        }
        let current = newest.as_ref().filter(|_| !has_ended);
        if !self.settles_earlier_try(cx, id, (ballot, watermark), (family, state.steps()), current)
        {
            return;
        }
        let change = self.slots.work(id);
        let is_reader = matches!(change.asker, ChangeRequester::Reader(_));
        if is_reader {
            change.found = newest.clone();
        }
        let is_noted = has_ended || self.is_held(id, newest.as_ref());
        let room = MAX_OPERATIONS - if is_noted { 0 } else { state.steps().operations.len() };
        let must_store =
            room == 0 || !is_noted && self.slots.work(id).follows_other_key(state.steps());
        if let Some(newest) = newest.as_ref().filter(|_| must_store && !is_reader) {
            return self.store_newest_first(cx, id, newest.with_ballot(&key, family, ballot));
        }
        let (then, is_changed) = self.apply_round(id, &mut state, ballot, room);
        if is_changed {
            let record = state.record(&key, ballot);
            return self.store_round(cx, id, record, then);
        }
        // The write was forwarded to another leader before. That leader does not learn of this
        // outcome, and may still find the condition true.
        if self.slots.work(id).elsewhere && !matches!(then, Done::Changed { .. }) {
            self.slots.get_mut(id).detail = Some(OTHER_LEADER_SILENT.to_owned());
            return self.fail_change(cx, id, FailureKind::TooFew);
        }
        self.split_off_late(id);
        let newest = newest.map(|newest| (newest, has_ended));
        self.answer_unchanged(cx, id, ballot, (newest, state), then);
    }

    /// Determines the outcome of the write's earlier tries. Returns true if the write may go on: it
    /// was not done, or the newest record shows that it was. Otherwise the write is answered,
    /// fails, or takes another step first. `family` is the base version of the newest record,
    /// `steps` its operations; `newest` is that record, unless its base version has ended.
    fn settles_earlier_try(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        (ballot, watermark): (u64, u64),
        (family, steps): (Version, &OpHistory),
        newest: Option<&Record>,
    ) -> bool {
        match self.slots.work(id).earlier_try_outcome(family, steps, watermark) {
            EarlierTryOutcome::Known => return true,
            EarlierTryOutcome::Unknown(why) => match self.combine_recollections(id) {
                Recollection::Done(done, by) => self.answer_change(cx, id, done, by, None),
                // The replicas that lack the write get the newest record, which follows the write.
                // Then every quorum of the client's size sees the write.
                Recollection::DoneByMajority(done, by) => match newest {
                    Some(newest) if !self.is_held(id, Some(newest)) => {
                        let key = self.slots.get(id).key.clone();
                        let newest = newest.with_ballot(&key, family, ballot);
                        self.store_newest_first(cx, id, newest);
                    }
                    Some(newest) => {
                        let rank = Some(newest.rank());
                        let by = self.slots.work(id).replicas(|vote| vote.holds(rank));
                        self.answer_change(cx, id, done, by, None);
                    }
                    None => self.answer_change(cx, id, done, by, None),
                },
                Recollection::Never => return true,
                Recollection::Reused if self.slots.work(id).is_only_repeated() => {
                    self.answer_change(cx, id, Done::Reused, ReplicaSet::default(), None);
                }
                Recollection::Open => {
                    self.slots.work(id).stage = ChangeStage::Preparing { ballot, watermark };
                    self.recall(cx, id);
                }
                // A replica whose promise was outbid may know the outcome on a later try.
                Recollection::Unclear if self.slots.work(id).is_outbid() => {
                    self.try_change_later(cx, id);
                }
                Recollection::Unclear if self.slots.work(id).is_only_repeated() => {
                    self.answer_change(cx, id, Done::Forgotten, ReplicaSet::default(), None);
                }
                Recollection::Reused | Recollection::Unclear => {
                    self.slots.get_mut(id).detail = Some(why.to_owned());
                    self.fail_change(cx, id, FailureKind::TooFew);
                }
            },
            EarlierTryOutcome::Again(record, then) => {
                let then = then.with_fence(record.view().last_step().map(|(_, last)| last), ballot);
                let family = record.version();
                let record = record.with_ballot(&self.slots.get(id).key, family, ballot);
                self.store_for_change(cx, id, record, Some(then));
            }
        }
        false
    }

    /// Before the write goes on, stores the newest record under this write's ballot on as many
    /// replicas as the client requires, because too few hold it. If the record's history is full,
    /// the write would push out an operation that a majority has not noted. The lack of that note
    /// on a majority would then prove that the operation was never done
    /// ([`Changes::combine_recollections`]), and a retry would do the operation twice. If the write
    /// follows another one with an idempotency key, a retry of that one could find no majority that
    /// noted it under one ballot, and would be answered that the outcome is unknown.
    fn store_newest_first(&mut self, cx: &mut RequestCx<'_>, id: SlotId, newest: Record) {
        if cx.core.is_ahead(cx.now, &newest) {
            self.slots.get_mut(id).detail = Some(CLOCK_BEHIND_DETAIL.to_owned());
            return self.fail_change(cx, id, FailureKind::Busy);
        }
        self.store_for_change(cx, id, newest, None);
    }

    /// Answers a round that changes nothing, once the newest record is certain to stay the newest.
    fn answer_unchanged(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        ballot: u64,
        (newest, state): (Option<(Record, bool)>, KeyState),
        then: Done,
    ) {
        let key = self.slots.get(id).key.clone();
        let has_ended = newest.as_ref().is_some_and(|(_, has_ended)| *has_ended);
        let newest = newest.map(|(newest, _)| newest);
        let rank = newest.as_ref().map(|newest| newest.rank());
        let seal = cx.core.shared.repair.proofs.seal();
        // A read that begins anew needs more replicas than a majority. A replica that has promised
        // the new ballot stores the record only under this ballot, so the record is stored again
        // even if a majority holds it.
        let reader_begins_anew = matches!(self.slots.work(id).asker, ChangeRequester::Reader(None));
        let is_settled = !(reader_begins_anew && newest.is_some())
            && self.is_settled(id, newest.as_ref(), state.steps());
        match newest {
            newest if !state.has_found_expired() && is_settled => {
                let mut then = then;
                if let Some(newest) = newest {
                    // The record stays under the ballot under which a majority holds it.
                    then = then.with_fence(state.steps().last(), newest.ballot());
                    self.keep(cx.core, id, newest, ballot);
                }
                let by = self.slots.work(id).replicas(|vote| vote.holds(rank));
                self.answer_change(cx, id, then, by, None);
            }
            Some(newest) if cx.core.is_ahead(cx.now, &newest) => {
                // Other replicas refuse a record so far ahead, and this node must not store it
                // either.
                self.slots.get_mut(id).detail = Some(CLOCK_BEHIND_DETAIL.to_owned());
                self.fail_change(cx, id, FailureKind::Busy);
            }
            newest => {
                let change = self.slots.work(id);
                // After a refusal, the repair fence of another replica may be above the record.
                let has_tried = change.tried.is_some()
                    || change.tries > 1
                    || matches!(change.asker, ChangeRequester::Reader(_));
                let slot = self.slots.get(id);
                let is_usual =
                    |newest: &Record| slot.copies_of(newest).suffices(slot.quorums.from());
                let record = match newest {
                    Some(_) if state.has_found_expired() => state.record(&key, ballot),
                    // The record is stored unchanged, as by read repair, unless it has fewer copies
                    // than usual or the repair fence refuses records of its time.
                    Some(newest)
                        if newest.ballot() == 0
                            && !has_tried
                            && !has_ended
                            && newest.write_time() > seal
                            && is_usual(&newest) =>
                    {
                        newest
                    }
                    Some(newest) => newest.with_ballot(&key, state.family(), ballot),
                    None => state.record(&key, ballot),
                };
                let then = then.with_fence(state.steps().last(), record.ballot());
                self.store_for_change(cx, id, record, Some(then));
            }
        }
    }

    /// Caches the record for the next write of the key that this node coordinates. A majority holds
    /// the record and has promised `ballot`, or has stored the record under `ballot`.
    pub(crate) fn keep(&self, core: &Core, id: SlotId, record: Record, ballot: u64) {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let kept = CachedState::after(record, ballot, change.since, slot.view.id().placement);
        // Without the key lock, another write may continue from the same record concurrently.
        if let Some(kept) = kept.filter(|_| change.held.is_some()) {
            core.shared.paxos.leader_cache.put(&slot.key, kept);
        }
    }

    /// Continues from the cached state of the key's previous write; returns `false` if there is
    /// none, or if this write would not change the state. Only a majority that stores the next
    /// record proves that no plain write came in between.
    pub(crate) fn continue_from_cache(&mut self, cx: &mut RequestCx<'_>, id: SlotId) -> bool {
        let slot = self.slots.get(id);
        let change = &slot.work;
        if change.held.is_none() || change.tries > 0 || !change.is_fresh() {
            return false;
        }
        // With fewer replicas up, the write would begin and could not complete. A request for
        // promises begins nothing.
        if !change.count_votes(|vote| cx.core.is_up(vote.node)).suffices(slot.ack()) {
            return false;
        }
        let (key, placement) = (slot.key.clone(), slot.view.id().placement);
        let Some(kept) = cx.core.shared.paxos.leader_cache.take(&key, cx.now.mono, placement)
        else {
            return false;
        };
        // Another node has coordinated writes of the key since, perhaps many. A try from the
        // outdated record would fail, and the key's history might be too short to show that.
        if cx.core.shared.paxos.promises.is_promised_above(&key, kept.ballot) {
            return false;
        }
        let absent = kept.record.version();
        let wall = cx.core.expiry_check_time(cx.now);
        let mut state = KeyState::of(Some(&kept.record), absent, wall);
        let (then, is_changed) = self.apply_round(id, &mut state, kept.ballot, MAX_OPERATIONS);
        if !is_changed {
            self.dissolve_batch(id);
            return false;
        }
        let change = self.slots.work(id);
        (change.tries, change.since) = (1, kept.since);
        let record = state.record(&key, kept.ballot);
        self.store_round(cx, id, record, then);
        true
    }

    /// Returns the outcome of an earlier try if some replica knows that it was chosen; `None` = the
    /// replies so far show no such replica.
    fn chosen_outcome(&self, id: SlotId) -> Option<Recollection> {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let adds = matches!(change.conditional.change, Change::Add(_));
        let done = change.promising_votes().find_map(|vote| match vote.recalled {
            Some(OpLookup::Chosen { done }) if done.is_possible_for(adds) => Some(done),
            _ => None,
        })?;
        Some(Recollection::of_done(slot, done, |vote| vote.remembers(done)))
    }

    /// Returns the outcome of an earlier try if a majority has accepted it under one ballot; `None`
    /// = the replies so far show no such majority.
    fn outcome_accepted_by_majority(&self, id: SlotId) -> Option<Recollection> {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let adds = matches!(change.conditional.change, Change::Add(_));
        let accepted = change.promising_votes().filter_map(|vote| match vote.recalled {
            Some(OpLookup::Stored { ballots, done }) => Some((ballots, done)),
            _ => None,
        });
        let mut accepted = accepted
            .filter(|(_, done)| matches!(done, Done::Changed { .. }) && done.is_possible_for(adds))
            .flat_map(|(ballots, done)| ballots.iter().map(move |ballot| (ballot, done)));
        accepted.find_map(|(ballot, done)| {
            let accepts = |vote: &ChangeVote| vote.has_accepted(ballot, done);
            let is_chosen = change.count_votes(accepts).suffices(slot.quorums.majority());
            is_chosen.then(|| Recollection::of_done(slot, done, accepts))
        })
    }

    /// Combines the replies of replicas about an earlier try whose outcome the key no longer shows.
    fn combine_recollections(&self, id: SlotId) -> Recollection {
        let outcome = self.chosen_outcome(id).or_else(|| self.outcome_accepted_by_majority(id));
        if let Some(outcome) = outcome {
            return outcome;
        }
        let slot = self.slots.get(id);
        let change = &slot.work;
        let recalled = change.promising_votes().filter(|vote| vote.recalled.is_some());
        // `Never` suffices once the remaining replicas cannot form a majority of the replicas that
        // the try asked. Replicas that the try did not ask prove nothing.
        let read = change.votes.iter().filter(|vote| vote.place.is_in_read());
        let enough = read.clone().count() - usize::from(slot.quorums.read.from / 2);
        let promised = read.filter(|vote| vote.state.has_promised());
        let says = |told| promised.clone().filter(|vote| vote.recalled == Some(told)).count();
        let (never, reused) = (says(OpLookup::Never), says(OpLookup::Reused));
        if never + reused >= enough && !change.was_tried_under_earlier_view {
            return if reused > 0 { Recollection::Reused } else { Recollection::Never };
        }
        let open = !change.count(ChangeState::is_asked).is_zero();
        if open || recalled.count() < change.promising_votes().count() {
            Recollection::Open
        } else {
            Recollection::Unclear
        }
    }

    /// Queries the replicas that have promised and were not queried yet.
    fn recall(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        for vote in 0..self.slots.work(id).votes.len() {
            let voter = &mut self.slots.work(id).votes[vote];
            if voter.state == ChangeState::Promised && voter.recalled.is_none() {
                voter.state = ChangeState::Recalling(Outstanding {
                    since: cx.now.mono,
                    delivery: Delivery::Waits,
                });
                self.ask_of_change(cx, id, VoteIndex(vote));
            }
        }
        let took = cx.now.mono.saturating_sub(self.slots.work(id).since);
        self.start_over_if_late(cx, id, LATE_ROUND_TRIPS * took);
    }

    /// Applies the operations of a write and its followers, at most `room` in all, to a state that
    /// is to be stored under `ballot`. Returns the outcome of the write's own operation, and
    /// whether any operation changes the state.
    fn apply_round(
        &mut self,
        id: SlotId,
        state: &mut KeyState,
        ballot: u64,
        room: usize,
    ) -> (Done, bool) {
        let before = state.steps().step;
        let change = self.slots.work(id);
        let then = state.apply(change.id, &change.conditional);
        let followers = self.take_followers(id, room.saturating_sub(1));
        for follower in &followers {
            let change = self.slots.work(*follower);
            change.stage = ChangeStage::Batched(state.apply(change.id, &change.conditional));
        }
        let last = state.steps().last();
        for follower in &followers {
            if let ChangeStage::Batched(done) = &mut self.slots.work(*follower).stage {
                *done = done.with_fence(last, ballot);
            }
        }
        self.slots.work(id).followers = followers;
        (then.with_fence(last, ballot), state.steps().step != before)
    }

    /// Stores the record of a round that changes the key's state.
    fn store_round(&mut self, cx: &mut RequestCx<'_>, id: SlotId, record: Record, then: Done) {
        let change = self.slots.work(id);
        change.note_try(&record, then);
        let followers = change.followers.clone();
        for follower in followers {
            let change = self.slots.work(follower);
            if let ChangeStage::Batched(then) = change.stage {
                change.note_try(&record, then);
            }
        }
        self.store_for_change(cx, id, record, Some(then));
    }

    /// Answers the followers of a completed round.
    pub(crate) fn answer_followers(&mut self, cx: &mut RequestCx<'_>, id: SlotId, acks: Acks) {
        for follower in std::mem::take(&mut self.slots.work(id).followers) {
            // The follower's deadline may have passed.
            let Some(slot) = self.slots.find(follower) else { continue };
            let change = &slot.work;
            let ChangeStage::Batched(done) = change.stage else { continue };
            change.asker.answer(cx, Answer::Done(done, acks));
            self.slots.remove(follower);
        }
    }

    /// True if a proof has ended the newest record's base version. All replicas held the same
    /// records up to the watermark, so if a replica that promised lacks the record, that replica
    /// has purged a tombstone that outranks it. The next record must then be above the tombstone.
    fn has_ended(&mut self, id: SlotId, family: Version, watermark: u64) -> bool {
        let lacks = |vote: &ChangeVote| vote.rank().is_none_or(|rank| rank.version < family);
        let mut promised = self.slots.work(id).promising_votes();
        family.time <= watermark && family != family_of_absent(watermark) && promised.any(lacks)
    }

    /// True if the newest record is certain to stay the newest even if the round stores nothing. A
    /// majority must hold the record. If the write was tried before, the record must also contain
    /// the write: otherwise the record of the earlier try could still appear and outrank the newest
    /// record.
    ///
    /// A replica beyond the record's number of copies may hold the record because a repair round
    /// brought it there. It does not count, because a read with that number of copies does not ask
    /// it.
    fn is_settled(&mut self, id: SlotId, newest: Option<&Record>, steps: &OpHistory) -> bool {
        let is_held = self.is_held(id, newest);
        let change = self.slots.work(id);
        is_held && (change.tried.is_none() || steps.has(change.id))
    }

    /// True if a quorum of the replicas to which the newest record belongs holds it.
    fn is_held(&self, id: SlotId, newest: Option<&Record>) -> bool {
        let slot = self.slots.get(id);
        let (ack, rank) = (slot.ack(), newest.map(Record::rank));
        let copies = newest.map_or(slot.quorums.from(), |newest| slot.copies_of(newest));
        let holders = slot.work.votes.iter().filter(|vote| vote.holds(rank));
        let holds =
            holders.fold(PerSet::default(), |count, vote| count + vote.place.within(copies));
        // If no replica of the read set holds a record, the other set need not hold one.
        holds.suffices(ack) || newest.is_none() && holds.read >= ack.read
    }

    /// Returns the newest reported record; `Err` = this node has only its outline, which the
    /// replica of the given vote reported.
    ///
    /// A future record is ignored if enough replicas reported none, as in reads.
    fn newest_of_change(
        &self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
    ) -> Result<Option<Record>, VoteIndex> {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let clear =
            |vote: &ChangeVote| vote.state.has_promised() && !reports_future_record(cx, vote);
        let is_clear = change.count_votes(clear).read >= slot.quorums.read.ack;
        let counts = |vote: &ChangeVote| !is_clear || !reports_future_record(cx, vote);
        let reports = change.votes.iter().enumerate();
        let reports = reports.filter(|(_, vote)| vote.is_bound() && counts(vote));
        let reports =
            reports.filter_map(|(at, vote)| Some((VoteIndex(at), vote.reported.as_ref()?)));
        // Of equal records, one with content is preferred.
        let newest =
            reports.max_by_key(|(_, reported)| (reported.rank(), reported.whole().is_some()));
        match newest {
            None => Ok(None),
            Some((_, ReportedRecord::Whole(record))) => Ok(Some(record.clone())),
            Some((vote, ReportedRecord::Outline(_))) => Err(vote),
        }
    }
}
