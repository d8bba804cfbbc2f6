//! A round: what is done once a majority has promised, of one write or of several that wait for the
//! same key.
//!
//! ```text
//!  promises ─▶ the newest record ─▶ what became of an earlier try? ─┬─ can't be told ─▶ unknown
//!                                                                   ├─ it is brought once more
//!                                                                   └─ not done, or there is none
//!         the state that it says ◀───────────────────────────────────────────┘
//!          ├─ this write's operation, then those of its *followers*
//!          ├─ changed ──▶ the next record ─▶ stored by a majority ─▶ all are answered
//!          └─ unchanged ─▶ a majority holds it ─▶ all are answered; else it is brought to one
//! ```
//!
//! Whether a value has expired is judged by this node's wall clock, or by what most others show if
//! that is less. Another coordinator's may be behind it, so a round that finds a value expired and
//! changes nothing first stores that there is none: no later one finds the value alive.
//!
//! A round that fails is dissolved: each of its writes is tried alone, and looks whether it was
//! done.

use super::change::{Asker, ChangeStage, ChangeState, ChangeVote, ChangeWork, Tried};
use super::{Changes, LATE_MICROS, hides};
use crate::event::{Answer, FailureKind, SlotId};
use crate::paxos::kept::Kept;
use crate::paxos::operation::{Change, Done, KeyState, family_of_absent, has_idempotency_key};
use crate::paxos::recent::Recalled;
use crate::protocol::core::Core;
use crate::request::RequestCx;
use crate::request::acks::{Acks, ReplicaSet};
use crate::request::part::{Errand, VoteAt, Way};
use crate::request::reported::ReportedRecord;
use crate::request::sets::PerSet;
use crate::request::write::BEHIND;
use record::{Record, Steps, Version, comes_before};

/// Why the outcome of a write is not known although a majority answered.
const MANY_BETWEEN: &str = "so many other conditional writes came between two tries of this one \
    that the key does not tell any more whether the first try was done";

/// The outcome is not known because another home was asked and did not answer.
const ELSEWHERE: &str = "the node that coordinates the writes of this key was asked for this one \
    and did not answer, and no trace of the write is found";

/// The outcome is not known because a plain write has replaced the key's family.
const PLAIN_BETWEEN: &str = "a write without a condition came between two tries of this one, and \
    whether the first try was done can't be told any more";

/// The outcome is not known because the idempotency key was used before.
const SAID_AGAIN: &str = "an earlier write used this idempotency key, and whether it was done \
    can't be told any more";

/// What is known of an earlier try, now that a majority has promised.
enum Earlier {
    /// There was none, or the newest record shows what became of it.
    Known,
    /// It can't be told.
    Unknown(&'static str),
    /// What it was based on is not shown any more: done on something older, it would come to be
    /// done twice as soon as the first record is found. So that one is brought once more.
    Again(Record, Done),
}

/// What replicas recall of an earlier try.
enum Recollection {
    /// A majority has stored it, under one ballot.
    Done(Done, ReplicaSet),
    /// No majority has, nor ever will.
    Never,
    /// The same, and one of them has stored another request with the same idempotency key.
    Reused,
    /// Some have yet to say.
    Open,
    /// It can't be told.
    Unclear,
}

impl ChangeWork {
    /// What became of its earlier tries. `newest` is the family of the newest record, or of what is
    /// made of none.
    fn look_back(&self, newest: Version, steps: &Steps, watermark: u64) -> Earlier {
        if steps.has(self.id) {
            return Earlier::Known;
        }
        let family = self.tried.as_ref().map_or(newest, |tried| tried.record.version());
        match &self.tried {
            // Else a proof has ended that family: it must not come up again.
            Some(Tried { record, then, .. }) if newest < family && family.time > watermark => {
                Earlier::Again(record.clone(), *then)
            }
            _ if has_idempotency_key(self.id) => Earlier::Unknown(SAID_AGAIN),
            _ if self.elsewhere => Earlier::Unknown(ELSEWHERE),
            Some(_) if newest != family => Earlier::Unknown(PLAIN_BETWEEN),
            Some(tried) if !steps.know_of(self.id, tried.step) => Earlier::Unknown(MANY_BETWEEN),
            _ => Earlier::Known,
        }
    }

    /// Whether it was not begun by this request, but may have been by an earlier one with the same
    /// idempotency key.
    fn is_only_said_again(&self) -> bool {
        has_idempotency_key(self.id) && !self.is_begun()
    }

    /// Its operation is done in this record, if a majority comes to hold it.
    fn is_tried(&mut self, record: &Record, then: Done) {
        let Done::Changed { tag, .. } = then else { return };
        let Some((step, _)) = tag.last else { return };
        let (mut first, mut since) = (step, record.ballot());
        if let Some(tried) = &self.tried {
            first = if comes_before(tried.step, step) { tried.step } else { step };
            since = tried.since;
        }
        self.tried = Some(Tried { record: record.clone(), then, step: first, since });
    }
}

impl Changes {
    /// A majority has promised.
    pub(crate) fn promised(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
        (ballot, watermark): (u64, u64),
    ) {
        if cx.core.shared.repair.proofs.watermark() != watermark {
            // All those promises are void, or will be soon.
            return self.try_change(cx, id);
        }
        let newest = match self.newest_of_change(cx, id) {
            Ok(newest) => newest,
            // It is long, and its content is needed.
            Err(vote) => {
                self.slots.work(id).stage = ChangeStage::Preparing { ballot, watermark };
                return self.fetch_for_change(cx, id, vote);
            }
        };
        let key = self.slots.get(id).key.clone();
        let absent = family_of_absent(watermark);
        let wall = cx.core.time_of_expiries(cx.now);
        let mut state = KeyState::of(newest.as_ref(), absent, wall);
        let mut family = newest.as_ref().map_or(absent, |newest| newest.version());
        let has_ended = self.has_ended(id, family, watermark);
        if has_ended {
            family = absent;
            state.goes_on_in(absent);
        }
        match self.slots.work(id).look_back(family, state.steps(), watermark) {
            Earlier::Known => {}
            Earlier::Unknown(why) => match self.what_replicas_recall(id) {
                Recollection::Done(done, by) => {
                    return self.answer_change(cx, id, done, by, None);
                }
                Recollection::Never => {}
                Recollection::Reused if self.slots.work(id).is_only_said_again() => {
                    let by = ReplicaSet::default();
                    return self.answer_change(cx, id, Done::Reused, by, None);
                }
                Recollection::Open => {
                    self.slots.work(id).stage = ChangeStage::Preparing { ballot, watermark };
                    return self.recall(cx, id);
                }
                // Another one may tell, once it is not outbid any more.
                Recollection::Unclear if self.slots.work(id).is_outbid() => {
                    return self.try_change_later(cx, id);
                }
                Recollection::Unclear if self.slots.work(id).is_only_said_again() => {
                    let by = ReplicaSet::default();
                    return self.answer_change(cx, id, Done::Forgotten, by, None);
                }
                Recollection::Reused | Recollection::Unclear => {
                    self.slots.get_mut(id).detail = Some(why.to_owned());
                    return self.deny_change(cx, id, FailureKind::TooFew);
                }
            },
            Earlier::Again(record, then) => {
                let then = then.fenced(record.view().last_step().map(|(_, last)| last), ballot);
                let family = record.version();
                let record = record.with_ballot(&key, family, ballot);
                return self.store_for_change(cx, id, record, then);
            }
        }
        let change = self.slots.work(id);
        if matches!(change.asker, Asker::Reader(_)) {
            change.found = newest.clone();
        }
        let (then, is_changed) = self.do_round(id, &mut state, ballot);
        if is_changed {
            let record = state.record(&key, ballot);
            return self.store_round(cx, id, record, then);
        }
        // Who was handed it may yet find its condition true: nothing tells him of this answer.
        if self.slots.work(id).elsewhere && !matches!(then, Done::Changed { .. }) {
            self.slots.get_mut(id).detail = Some(ELSEWHERE.to_owned());
            return self.deny_change(cx, id, FailureKind::TooFew);
        }
        self.part_with_late(id);
        let newest = newest.map(|newest| (newest, has_ended));
        self.answer_unchanged(cx, id, ballot, (newest, state), then);
    }

    /// A round changes nothing: it is answered once what is newest will stay so.
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
        let is_settled = self.is_settled(id, newest.as_ref(), state.steps());
        match newest {
            newest if !state.found_expired() && is_settled => {
                let mut then = then;
                if let Some(newest) = newest {
                    // It stays under the ballot that a majority holds it under.
                    then = then.fenced(state.steps().last(), newest.ballot());
                    self.keep(cx.core, id, newest, ballot);
                }
                let by = self.slots.work(id).replicas(|vote| vote.holds(rank));
                self.answer_change(cx, id, then, by, None);
            }
            Some(newest) if cx.core.is_ahead(cx.now, &newest) => {
                // No replica takes it, and this one must not.
                self.slots.get_mut(id).detail = Some(BEHIND.to_owned());
                self.deny_change(cx, id, FailureKind::Busy);
            }
            newest => {
                let change = self.slots.work(id);
                // One that was refused before may be sealed against by others than this node.
                let has_tried = change.tried.is_some()
                    || change.tries > 1
                    || matches!(change.asker, Asker::Reader(_));
                let slot = self.slots.get(id);
                let is_usual =
                    |newest: &Record| slot.copies_of(newest).suffices(slot.quorums.from());
                let record = match newest {
                    Some(_) if state.found_expired() => state.record(&key, ballot),
                    // It is brought to a majority as a read does it, unless it belongs to fewer, or
                    // replicas take nothing of its time any more.
                    Some(newest)
                        if newest.ballot() == 0
                            && !has_tried
                            && !has_ended
                            && newest.when() > seal
                            && is_usual(&newest) =>
                    {
                        newest
                    }
                    Some(newest) => newest.with_ballot(&key, state.family(), ballot),
                    None => state.record(&key, ballot),
                };
                let then = then.fenced(state.steps().last(), record.ballot());
                self.store_for_change(cx, id, record, then);
            }
        }
    }

    /// A majority holds the record and has promised the ballot, or stored the record under it: the
    /// next write of the key that this node coordinates goes on from there.
    pub(crate) fn keep(&self, core: &Core, id: SlotId, record: Record, ballot: u64) {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let kept = Kept::after(record, ballot, change.since, slot.view.id().placement);
        // Without a turn another one may go on at the same time.
        if let Some(kept) = kept.filter(|_| change.turn.is_some()) {
            core.shared.paxos.keeper.put(&slot.key, kept);
        }
    }

    /// Goes on from what was kept of the last write of the key, if that changes something: that it
    /// is stored by a majority shows that no plain write came in between, and nothing else does.
    pub(crate) fn goes_on(&mut self, cx: &mut RequestCx<'_>, id: SlotId) -> bool {
        let slot = self.slots.get(id);
        let change = &slot.work;
        if change.turn.is_none() || change.tries > 0 || !change.is_fresh() {
            return false;
        }
        // Else it would be begun here and could not be done, where asking for promises shows that
        // and begins nothing.
        if !change.count_votes(|vote| cx.core.is_up(vote.node)).suffices(slot.ack()) {
            return false;
        }
        let (key, placement) = (slot.key.clone(), slot.view.id().placement);
        let Some(kept) = cx.core.shared.paxos.keeper.take(&key, cx.now.mono, placement) else {
            return false;
        };
        let absent = kept.record.version();
        let wall = cx.core.time_of_expiries(cx.now);
        let mut state = KeyState::of(Some(&kept.record), absent, wall);
        let (then, is_changed) = self.do_round(id, &mut state, kept.ballot);
        if !is_changed {
            self.dissolve(id);
            return false;
        }
        let change = self.slots.work(id);
        (change.tries, change.since) = (1, kept.since);
        let record = state.record(&key, kept.ballot);
        self.store_round(cx, id, record, then);
        true
    }

    /// What replicas recall of an earlier try, which the key does not show.
    fn what_replicas_recall(&self, id: SlotId) -> Recollection {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let adds = matches!(change.conditional.change, Change::Add(_));
        let recalled = change.promised().filter_map(|vote| vote.recalled);
        let is_done = |outcome: Recalled| match outcome {
            Recalled::Stored { ballot, done: done @ Done::Changed { .. } } => {
                let says_so =
                    |vote: &ChangeVote| vote.state.has_promised() && vote.recalled == Some(outcome);
                let same = change.count_votes(says_so);
                let is_it = ballot > 0 && same.suffices(slot.ack()) && done.fits(adds);
                let by = || change.replicas(|vote| vote.recalled == Some(outcome));
                is_it.then(|| Recollection::Done(done, by()))
            }
            _ => None,
        };
        if let Some(done) = recalled.clone().find_map(is_done) {
            return done;
        }
        // So many that those which may have stored it are no majority: of the replicas that the try
        // asked. What others never stored shows nothing.
        let read = change.votes.iter().filter(|vote| vote.place.is_read());
        let enough = read.clone().count() - usize::from(slot.quorums.read.from / 2);
        let promised = read.filter(|vote| vote.state.has_promised());
        let says = |told| promised.clone().filter(|vote| vote.recalled == Some(told)).count();
        let (never, reused) = (says(Recalled::Never), says(Recalled::Reused));
        if never + reused >= enough && !change.of_earlier_view {
            return if reused > 0 { Recollection::Reused } else { Recollection::Never };
        }
        let open = !change.count(ChangeState::is_asked).is_none();
        if open || recalled.count() < change.promised().count() {
            Recollection::Open
        } else {
            Recollection::Unclear
        }
    }

    /// Asks those that have promised, and were not asked yet.
    fn recall(&mut self, cx: &mut RequestCx<'_>, id: SlotId) {
        for vote in 0..self.slots.work(id).votes.len() {
            let voter = &mut self.slots.work(id).votes[vote];
            if voter.state == ChangeState::Promised && voter.recalled.is_none() {
                voter.state =
                    ChangeState::Recalling(Errand { since: cx.now.mono, way: Way::Waits });
                self.ask_of_change(cx, id, VoteAt(vote));
            }
        }
        self.hedges.at(cx.now.mono + LATE_MICROS, id);
    }

    /// Does a write's operation, and those of its followers, to be stored under a ballot. Returns
    /// what comes of its own, and whether any of them changes something.
    fn do_round(&mut self, id: SlotId, state: &mut KeyState, ballot: u64) -> (Done, bool) {
        let before = state.steps().step;
        let change = self.slots.work(id);
        let then = state.apply(change.id, &change.conditional);
        let followers = self.take_followers(id);
        for follower in &followers {
            let change = self.slots.work(*follower);
            change.stage = ChangeStage::Follows(state.apply(change.id, &change.conditional));
        }
        let last = state.steps().last();
        for follower in &followers {
            if let ChangeStage::Follows(done) = &mut self.slots.work(*follower).stage {
                *done = done.fenced(last, ballot);
            }
        }
        self.slots.work(id).followers = followers;
        (then.fenced(last, ballot), state.steps().step != before)
    }

    /// What a round changes is on its way.
    fn store_round(&mut self, cx: &mut RequestCx<'_>, id: SlotId, record: Record, then: Done) {
        let change = self.slots.work(id);
        change.is_tried(&record, then);
        let followers = change.followers.clone();
        for follower in followers {
            let change = self.slots.work(follower);
            if let ChangeStage::Follows(then) = change.stage {
                change.is_tried(&record, then);
            }
        }
        self.store_for_change(cx, id, record, then);
    }

    /// A round is done: its followers are answered too.
    pub(crate) fn answer_followers(&mut self, cx: &mut RequestCx<'_>, id: SlotId, acks: Acks) {
        for follower in std::mem::take(&mut self.slots.work(id).followers) {
            // Its deadline may be over.
            let Some(slot) = self.slots.find(follower) else { continue };
            let change = &slot.work;
            let ChangeStage::Follows(done) = change.stage else { continue };
            change.asker.answer(cx, Answer::Done(done, acks));
            self.slots.remove(follower);
        }
    }

    /// Whether a proof has ended the family of what is newest: one of those that promised does not
    /// hold it, although all held the same up to the watermark. Then what is deleted and purged
    /// there hides it; and what goes on from it must be above that.
    fn has_ended(&mut self, id: SlotId, family: Version, watermark: u64) -> bool {
        let lacks = |vote: &ChangeVote| vote.rank().is_none_or(|rank| rank.version < family);
        let mut promised = self.slots.work(id).promised();
        family.time <= watermark && family != family_of_absent(watermark) && promised.any(lacks)
    }

    /// Whether what is newest will stay so if nothing is done: a majority holds it, and no record
    /// of an earlier try may still come up, which is not in it, and outrank it.
    ///
    /// A replica past the number of copies of a record may hold it, because a round brought it
    /// there. A read of as many copies does not ask that replica, so it is none of the majority.
    fn is_settled(&mut self, id: SlotId, newest: Option<&Record>, steps: &Steps) -> bool {
        let slot = self.slots.get(id);
        let (ack, rank) = (slot.ack(), newest.map(Record::rank));
        let copies = newest.map_or(slot.quorums.from(), |newest| slot.copies_of(newest));
        let change = self.slots.work(id);
        let holders = change.votes.iter().filter(|vote| vote.holds(rank));
        let holds =
            holders.fold(PerSet::default(), |count, vote| count + vote.place.within(copies));
        // What no replica of the set that is read holds need not be held in the other.
        let is_held = holds.suffices(ack) || newest.is_none() && holds.read >= ack.read;
        is_held && (change.tried.is_none() || steps.has(change.id))
    }

    /// The newest record that was reported; or whose vote it is, if its content is not here.
    ///
    /// A future record is passed over if enough replicas reported none, as in reads.
    fn newest_of_change(
        &self,
        cx: &mut RequestCx<'_>,
        id: SlotId,
    ) -> Result<Option<Record>, VoteAt> {
        let slot = self.slots.get(id);
        let change = &slot.work;
        let clear = |vote: &ChangeVote| vote.state.has_promised() && !hides(cx, vote);
        let is_clear = change.count_votes(clear).read >= slot.quorums.read.ack;
        let counts = |vote: &ChangeVote| !is_clear || !hides(cx, vote);
        let reports = change.votes.iter().enumerate();
        let reports = reports.filter(|(_, vote)| vote.is_bound() && counts(vote));
        let reports = reports.filter_map(|(at, vote)| Some((VoteAt(at), vote.reported.as_ref()?)));
        // Of equal ones, one that is here whole.
        let newest =
            reports.max_by_key(|(_, reported)| (reported.rank(), reported.whole().is_some()));
        match newest {
            None => Ok(None),
            Some((_, ReportedRecord::Whole(record))) => Ok(Some(record.clone())),
            Some((vote, ReportedRecord::Outline(_))) => Err(vote),
        }
    }
}
