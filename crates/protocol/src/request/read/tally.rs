//! The tally of a read's votes: the newest record among the replicas' reports so far, and the next
//! step of the read.

use super::ASK_AGAIN_TIMES;
use super::read_votes::{Read, ReadStage, ReadState, ReadVote};
use crate::clock::Now;
use crate::dispatch::core::{Core, Cx};
use crate::event::FailureKind;
use crate::request::outstanding::{ReplicaError, VoteIndex};
use crate::request::quorum::Quorum;
use crate::request::reported::ReportedRecord;
use crate::request::sets::PerSet;
use crate::request::slots::Slot;
use record::Record;

/// The next step of a read.
pub(super) enum ReadStep {
    /// Write the newest record to this replica; a client waits.
    Repair(VoteIndex),
    /// Ask this replica for its record.
    Ask(VoteIndex),
    /// Ask this replica to send the newest record, of which this node has only the outline.
    Fetch(VoteIndex),
    Wait,
    /// Ask the replicas that were not authoritative again, a little later.
    AskAgain,
    /// Begin again, a little later: a conditional write made the newest record, and another record
    /// outranks it or is about to.
    BeginAnew,
    /// Answer with the newest record, if there is one.
    Answer(Option<Record>),
    Fail,
}

/// The numbers of a failed read.
pub(super) struct Shortfall {
    pub(super) acked: u8,
    pub(super) quorum: Quorum,
    /// True if the record that was found belongs to fewer replicas than the read asks. Then
    /// `quorum` counts only the replicas that the record belongs to.
    pub(super) is_limited: bool,
}

/// A snapshot of a read's votes, for one decision.
#[derive(Clone, Copy)]
pub(super) struct Tally<'a> {
    core: &'a Core,
    now: Now,
    slot: &'a Slot<Read>,
}

impl<'a> Tally<'a> {
    pub(super) fn of(cx: &'a Cx<'_>, slot: &'a Slot<Read>) -> Self {
        Self { core: cx.core, now: cx.now, slot }
    }

    pub(super) fn next_step(self) -> ReadStep {
        let read = &self.slot.work;
        if let ReadStage::Asking { asked_again, .. } = read.stage {
            if let Some(step) = self.step_of_asking(asked_again) {
                return step;
            }
            if let Some(vote) = self.to_fetch() {
                return match self.long_under_way() {
                    Some(_) => ReadStep::Wait,
                    None => ReadStep::Fetch(vote),
                };
            }
        }
        let newest = if read.is_decided() { read.newest() } else { self.newest() };
        match newest.filter(|_| must_be_held(self.slot)) {
            None => ReadStep::Answer(newest.cloned()),
            Some(newest) => self.step_of_repairing(newest),
        }
    }

    /// Returns the next step until enough replicas have reported their records; `None` = enough
    /// have.
    fn step_of_asking(self, asked_again: u32) -> Option<ReadStep> {
        let (read, ack) = (&self.slot.work, usize::from(self.slot.quorums.read.ack));
        let settled = self.count_settled();
        if settled >= ack {
            return None;
        }
        let asked = read.count_read(|vote| vote.state.is_asked());
        if settled + asked >= ack {
            return Some(ReadStep::Wait);
        }
        if let Some(vote) = read.first_idle() {
            return Some(ReadStep::Ask(vote));
        }
        let authoritative = read.count_read(|vote| vote.state.is_authoritative());
        if authoritative >= ack {
            return None;
        }
        // Replies that come later decide whether all replicas were busy, or had full disks.
        let is_worth_waiting = read.is_awaiting() && read.failure() != FailureKind::TooFew;
        Some(if authoritative + asked >= ack || is_worth_waiting {
            ReadStep::Wait
        } else if self.may_become_authoritative(asked_again) {
            ReadStep::AskAgain
        } else {
            ReadStep::Fail
        })
    }

    /// Returns the next step until, in each set, `ack` of the replicas that the newest record
    /// belongs to hold the record.
    fn step_of_repairing(self, newest: &Record) -> ReadStep {
        let read = &self.slot.work;
        let copies = self.slot.copies_of(newest);
        let belongs = |wanted: &dyn Fn(&ReadVote) -> bool| {
            let votes = read.votes.iter().filter(|vote| wanted(vote));
            votes.fold(PerSet::default(), |count, vote| count + vote.place.within(copies))
        };
        let wanted = self.slot.ack().min(belongs(&|_| true));
        let future = self.core.is_ahead(self.now, newest);
        let held = belongs(&|vote| vote.holds(newest) && (future || !self.hides(vote)));
        if held.suffices(wanted) {
            return ReadStep::Answer(Some(newest.clone()));
        }
        let outranks = |vote: &ReadVote| self.outranks(vote, newest);
        if newest.ballot() > 0 && read.votes.iter().any(outranks) {
            return ReadStep::BeginAnew;
        }
        let repairing = held + belongs(&|vote| vote.state.is_repairing());
        if repairing.suffices(wanted) {
            return ReadStep::Wait;
        }
        // A replica would refuse a future record, and this node must not store it either.
        if !future && let Some(vote) = to_repair(self.slot, newest, repairing.short_of(wanted)) {
            return ReadStep::Repair(vote);
        }
        // A replica that was asked for its record is repaired only after its reply: a reply to the
        // read would otherwise be mistaken for the reply to the repair, which has the same id.
        let asked = belongs(&|vote| vote.state.is_asked());
        let outbid = |state| state == ReadState::Failed(ReplicaError::HigherBallot);
        let is_unasked =
            |vote: &ReadVote| newest.ballot() == 0 && outbid(vote.state) && !vote.was_asked;
        if (repairing + asked).suffices(wanted) {
            ReadStep::Wait
        } else if let Some(vote) = read.first(is_unasked) {
            // The refusal may mean that the replica already holds the record: after a repair round,
            // a replica refuses a write of a record that it holds.
            ReadStep::Ask(vote)
        } else if read.count_states(outbid) > 0 {
            ReadStep::BeginAnew
        } else {
            ReadStep::Fail
        }
    }

    /// Returns the newest record once enough replicas have reported theirs, although too few
    /// replicas may hold it; `None` = too few have reported, or none reported a record.
    fn found(self) -> Option<&'a Record> {
        let is_found = self.count_settled() >= usize::from(self.slot.quorums.read.ack);
        self.slot.work.newest().or_else(|| self.newest().filter(|_| is_found))
    }

    /// Returns the numbers for a client whose read failed. If a record was found, the replicas that
    /// hold it are counted, among those that it belongs to.
    pub(super) fn shortfall(self) -> Shortfall {
        let Slot { quorums, work: read, .. } = self.slot;
        let Some(newest) = self.found() else {
            let (acked, quorum) = quorums.short_of(read.acked());
            return Shortfall { acked, quorum, is_limited: false };
        };
        let copies = self.slot.copies_of(newest);
        let limited = quorums.within(copies);
        let holds = read.votes.iter().filter(|vote| vote.holds(newest));
        let held = holds.fold(PerSet::default(), |sum, vote| sum + vote.place.within(copies));
        let (acked, quorum) = limited.short_of(held);
        Shortfall { acked, quorum, is_limited: limited != *quorums }
    }

    /// True if a replica reported a future record, which hides the replica's other records.
    pub(super) fn hides(self, vote: &ReadVote) -> bool {
        vote.reported
            .as_ref()
            .is_some_and(|reported| self.core.is_future(self.now, reported.write_time()))
    }

    /// True if a replica reported a newer record after `newest` was chosen.
    fn outranks(self, vote: &ReadVote, newest: &Record) -> bool {
        vote.reported.as_ref().is_some_and(|reported| reported.rank() > newest.rank())
            && !self.hides(vote)
    }

    /// Counts the replicas of the read set that are authoritative for their reports and reported no
    /// future record.
    fn count_settled(self) -> usize {
        let most = self.core.greatest_accepted_time(self.now);
        let is_future =
            |vote: &ReadVote| vote.reported.as_ref().is_some_and(|r| r.write_time() > most);
        self.slot.work.count_read(|vote| self.counts(vote) && !is_future(vote))
    }

    /// True if a replica is authoritative for its report. This node may have learned since then
    /// that its directory is an older copy.
    fn counts(self, vote: &ReadVote) -> bool {
        let is_own = vote.node == self.core.shared.own;
        vote.state.is_authoritative()
            && !(is_own && self.core.shared.membership.state.is_outdated())
    }

    /// Returns a replica's reported record, unless the record was purged since then.
    fn unpurged_report(self, vote: &'a ReadVote) -> Option<&'a ReportedRecord> {
        let greatest = self.core.shared.repair.proofs.reported_watermark();
        vote.reported.as_ref().filter(|r| r.write_time() > greatest || self.counts(vote))
    }

    /// Returns the reported records. Future records are left out if enough replicas reported none.
    fn unpurged_reports(self) -> impl Iterator<Item = &'a ReportedRecord> {
        let settled = self.count_settled() >= usize::from(self.slot.quorums.read.ack);
        let most = if settled { self.core.greatest_accepted_time(self.now) } else { u64::MAX };
        let reported =
            self.slot.work.votes.iter().filter_map(move |vote| self.unpurged_report(vote));
        reported.filter(move |reported| reported.write_time() <= most)
    }

    /// Returns the newest of the reported records that are whole.
    pub(super) fn newest(self) -> Option<&'a Record> {
        let whole = self.unpurged_reports().filter_map(ReportedRecord::whole);
        whole.max_by(|one, other| one.rank().cmp(&other.rank()))
    }

    /// Returns the replica to ask for its whole record, if the newest record is not among the whole
    /// ones. The replica reported the newest record and, preferably, was not asked to send it yet.
    pub(super) fn to_fetch(self) -> Option<VoteIndex> {
        let read = &self.slot.work;
        let is_long = |vote: &ReadVote| matches!(vote.reported, Some(ReportedRecord::Outline(_)));
        if !read.votes.iter().any(is_long) {
            return None;
        }
        let newest = self.unpurged_reports().map(ReportedRecord::rank).max()?;
        if self.newest().is_some_and(|record| record.rank() == newest) {
            return None;
        }
        let reports = |vote: &ReadVote| {
            vote.reported.as_ref().is_some_and(|reported| reported.rank() == newest)
        };
        let has_reported =
            |vote: &ReadVote| matches!(vote.state, ReadState::Reported { .. }) && reports(vote);
        let is_asked = |vote: &ReadVote| vote.state.is_fetching() && reports(vote);
        read.first(has_reported).or_else(|| read.first(is_asked))
    }

    /// Returns the time since which the read has waited for a long record: from a replica that was
    /// asked to send it, or from this node's store, which usually holds it too.
    pub(super) fn long_under_way(self) -> Option<u64> {
        let own = self.core.shared.own;
        let awaited = |vote: &ReadVote| match vote.state {
            ReadState::Fetching { outstanding, .. } => Some(outstanding.since),
            ReadState::Asked(outstanding) if vote.node == own => Some(outstanding.since),
            _ => None,
        };
        self.slot.work.votes.iter().filter_map(awaited).max()
    }

    /// True if replicas that are not authoritative may become authoritative soon: a node that has
    /// just started, for example, first learns what the other nodes know of it. Together with the
    /// replicas that have not replied, these replicas must be enough.
    fn may_become_authoritative(self, asked_again: u32) -> bool {
        let read = &self.slot.work;
        let counts = |vote: &ReadVote| {
            matches!(vote.state, ReadState::Reported { .. } | ReadState::Asked(_))
        };
        let reported = read.count_read(counts);
        let own_is_not = read.votes.iter().any(|vote| {
            vote.node == self.core.shared.own
                && vote.state == (ReadState::Reported { authoritative: false })
        });
        let settles = own_is_not && self.core.shared.membership.state.is_settling();
        reported >= usize::from(self.slot.quorums.read.ack)
            && (settles || asked_again < ASK_AGAIN_TIMES)
    }
}

/// True if `ack` replicas must hold the answer before it is given. With `ack` = 1 of several
/// replicas this is false. With `from` = 1 it is true while partitions move, because the only copy
/// may be in the set that is about to be dropped.
fn must_be_held(slot: &Slot<Read>) -> bool {
    let (ack, from) = (slot.ack(), slot.quorums.from());
    let is_alone = |ack, from| ack > 1 || from == 1;
    let is_moving = || slot.work.votes.iter().any(|vote| !vote.place.is_in_both());
    ack.read > 1
        || ack.other > 1
        || (is_alone(ack.read, from.read) || is_alone(ack.other, from.other)) && is_moving()
}

/// Returns the next replica to write the newest record to, in a set in which too few replicas hold
/// it: first one that is known to lack the record, then one that was not asked.
pub(super) fn to_repair(slot: &Slot<Read>, newest: &Record, short: PerSet) -> Option<VoteIndex> {
    let (read, copies) = (&slot.work, slot.copies_of(newest));
    let lacks =
        |vote: &ReadVote| !vote.place.within(copies).min(short).is_none() && !vote.holds(newest);
    let has_reported =
        |vote: &ReadVote| matches!(vote.state, ReadState::Reported { .. }) && lacks(vote);
    let is_idle = |vote: &ReadVote| vote.state == ReadState::Idle && lacks(vote);
    read.first(has_reported).or_else(|| read.first(is_idle))
}
