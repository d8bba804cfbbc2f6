//! What a read does next, by what its replicas told so far.

use super::ASK_AGAIN_TIMES;
use super::state::{Read, ReadState, ReadVote, Reported, Stage};
use crate::coordinator::Coordinator;
use crate::coordinator::part::VoteAt;
use crate::coordinator::slots::{Slot, Work};
use crate::event::{FailureKind, Now};
use crate::record::Record;

/// What a read does next.
pub(super) enum Step {
    /// Have the replica of this vote hold the newest record; a client waits.
    Repair(VoteAt),
    /// Ask this one.
    Ask(VoteAt),
    /// Have it send the newest record, of which only the outline is here.
    Fetch(VoteAt),
    Wait,
    /// Ask those that were not authoritative once more, a little later.
    AskAgain,
    Answer,
    Deny,
}

/// What a slot that is known to be a read is about.
pub(super) fn read_of(slot: &Slot) -> &Read {
    match &slot.work {
        Work::Read(read) => read,
        other => unreachable!("no read: {other:?}"),
    }
}

impl Coordinator {
    pub(super) fn next_step(&self, now: Now, slot: &Slot) -> Step {
        let read = read_of(slot);
        if let Stage::Asking { asked_again, .. } = read.stage {
            if let Some(step) = self.step_of_asking(now, slot, asked_again) {
                return step;
            }
            if let Some(vote) = self.to_fetch(now, slot) {
                return match self.long_under_way(read) {
                    Some(_) => Step::Wait,
                    None => Step::Fetch(vote),
                };
            }
        }
        let newest = if read.is_decided() { read.newest() } else { self.newest_of(now, slot) };
        match newest.filter(|_| slot.ack() > 1) {
            None => Step::Answer,
            Some(newest) => self.step_of_making_authoritative(now, slot, newest),
        }
    }

    /// What is to be done until enough have told what they hold; `None` = they have.
    fn step_of_asking(&self, now: Now, slot: &Slot, asked_again: u32) -> Option<Step> {
        let (read, ack) = (read_of(slot), slot.ack());
        let settled = self.settled(now, slot);
        if settled >= ack {
            return None;
        }
        let asked = read.count_states(ReadState::is_asked);
        if settled + asked >= ack {
            return Some(Step::Wait);
        }
        if let Some(vote) = read.first_idle() {
            return Some(Step::Ask(vote));
        }
        let authoritative = read.count_states(ReadState::is_authoritative);
        if authoritative >= ack {
            return None;
        }
        // Those that are open decide whether all were busy, or full.
        let is_worth_waiting = read.is_awaiting() && read.failure() != FailureKind::TooFew;
        Some(if authoritative + asked >= ack || is_worth_waiting {
            Step::Wait
        } else if self.may_settle(slot, asked_again) {
            Step::AskAgain
        } else {
            Step::Deny
        })
    }

    /// What is to be done until the newest record is held by `ack` of those that are to hold it at
    /// all.
    fn step_of_making_authoritative(&self, now: Now, slot: &Slot, newest: &Record) -> Step {
        let read = read_of(slot);
        let copies = slot.copies_of(newest);
        let wanted = slot.ack().min(read.count(|vote| vote.place < copies));
        let future = self.is_ahead(now, newest);
        let held = read.count(|vote| {
            vote.place < copies && vote.holds(newest) && (future || !self.hides(now, vote))
        });
        if held >= wanted {
            return Step::Answer;
        }
        let repairing = read.count_states(ReadState::is_repairing);
        if held + repairing >= wanted {
            return Step::Wait;
        }
        // A future record is refused there, and this node must not take it either.
        if !future && let Some(vote) = to_repair(slot, newest) {
            return Step::Repair(vote);
        }
        // One that was asked what it holds is told when it has answered: to a second request under
        // the same id the answer to the first would be taken for one.
        let asked = read.count(|vote| vote.state.is_asked() && vote.place < copies);
        if held + repairing + asked >= wanted { Step::Wait } else { Step::Deny }
    }

    /// Whether a replica told of a future record, and thus nothing of what it holds below.
    pub(super) fn hides(&self, now: Now, vote: &ReadVote) -> bool {
        vote.reported.as_ref().is_some_and(|reported| self.is_future(now, reported.rank()))
    }

    /// How many replicas are authoritative for what they reported, without a future record.
    fn settled(&self, now: Now, slot: &Slot) -> usize {
        read_of(slot).count(|vote| vote.state.is_authoritative() && !self.hides(now, vote))
    }

    /// What was reported; future records only if too few reported others.
    fn reported_of<'a>(&'a self, now: Now, slot: &'a Slot) -> impl Iterator<Item = &'a Reported> {
        let settled = self.settled(now, slot) >= slot.ack();
        let reported = read_of(slot).votes.iter().filter_map(|vote| vote.reported.as_ref());
        reported.filter(move |reported| !settled || !self.is_future(now, reported.rank()))
    }

    /// The newest record of those that are here whole.
    pub(super) fn newest_of<'a>(&'a self, now: Now, slot: &'a Slot) -> Option<&'a Record> {
        self.reported_of(now, slot).filter_map(Reported::whole).max_by_key(|record| record.rank)
    }

    /// Whose record is to be sent: that of a replica that told the newest, if nobody's is here
    /// whole; of one that is not asked for it yet, if there is any.
    pub(super) fn to_fetch(&self, now: Now, slot: &Slot) -> Option<VoteAt> {
        let newest = self.reported_of(now, slot).map(Reported::rank).max()?;
        if self.newest_of(now, slot).is_some_and(|record| record.rank == newest) {
            return None;
        }
        let read = read_of(slot);
        let tells = |vote: &ReadVote| {
            vote.reported.as_ref().is_some_and(|reported| reported.rank() == newest)
        };
        let is_told =
            |vote: &ReadVote| matches!(vote.state, ReadState::Reported { .. }) && tells(vote);
        let is_asked = |vote: &ReadVote| vote.state.is_fetching() && tells(vote);
        read.first(is_told).or_else(|| read.first(is_asked))
    }

    /// Since when the newest record, which is long, is waited for: from whoever was asked to send
    /// it, or from this node's store, which mostly has it too.
    pub(super) fn long_under_way(&self, read: &Read) -> Option<u64> {
        let own = self.shared.own;
        let awaited = |vote: &ReadVote| match vote.state {
            ReadState::Fetching { errand, .. } => Some(errand.since),
            ReadState::Asked(errand) if vote.node == own => Some(errand.since),
            _ => None,
        };
        read.votes.iter().filter_map(awaited).max()
    }

    /// Whether those that were not authoritative may do so soon: a node has just
    /// started, and finds out what the others know of it. With those that have yet to tell
    /// anything there must be enough of them.
    fn may_settle(&self, slot: &Slot, asked_again: u32) -> bool {
        let read = read_of(slot);
        let counts = |state| matches!(state, ReadState::Reported { .. } | ReadState::Asked(_));
        let reported = read.count_states(counts);
        let own_is_not = read.votes.iter().any(|vote| {
            vote.node == self.shared.own
                && vote.state == (ReadState::Reported { authoritative: false })
        });
        let settles = own_is_not && self.shared.membership.is_settling();
        reported >= slot.ack() && (settles || asked_again < ASK_AGAIN_TIMES)
    }
}

/// Which replica is to be told of the newest record next: one that is known not to hold it, then
/// one that was not asked.
pub(super) fn to_repair(slot: &Slot, newest: &Record) -> Option<VoteAt> {
    let (read, copies) = (read_of(slot), slot.copies_of(newest));
    let lacks = |vote: &ReadVote| vote.place < copies && !vote.holds(newest);
    let is_told = |vote: &ReadVote| matches!(vote.state, ReadState::Reported { .. }) && lacks(vote);
    let is_idle = |vote: &ReadVote| vote.state == ReadState::Idle && lacks(vote);
    read.first(is_told).or_else(|| read.first(is_idle))
}
