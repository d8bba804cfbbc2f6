//! The evaluation of a read's votes: the newest record that replicas have reported so far, and the
//! next step of the read.

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
    /// Write the newest record to this replica, before the client is answered.
    Repair(VoteIndex),
    /// Ask this replica for its record.
    Ask(VoteIndex),
    /// Ask this replica to send the newest record, of which this node has only the outline.
    Fetch(VoteIndex),
    Wait,
    /// After a pause, ask again the replicas that were not authoritative.
    AskAgain,
    /// Restart after a pause: the newest record comes from a conditional write, and another record
    /// outranks it or may soon.
    BeginAnew,
    /// Answer with the newest record, if there is one.
    Answer(Option<Record>),
    Fail,
}

/// The counts reported for a failed read.
pub(super) struct Shortfall {
    pub(super) acked: u8,
    pub(super) quorum: Quorum,
    /// True if the found record belongs to fewer replicas than the read asks. `quorum` then counts
    /// only the replicas to which the record belongs.
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
        if let ReadStage::Asking { retry_count, .. } = read.stage {
            if let Some(step) = self.next_ask_step(retry_count) {
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

    /// Returns the next step while too few replicas have reported their records; `None` = enough
    /// replicas have.
    fn next_ask_step(self, retry_count: u32) -> Option<ReadStep> {
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
        // Later replies decide whether all replicas were busy, or had full disks.
        let is_worth_waiting = read.is_awaiting() && read.failure() != FailureKind::TooFew;
        Some(if authoritative + asked >= ack || is_worth_waiting {
            ReadStep::Wait
        } else if self.may_become_authoritative(retry_count) {
            ReadStep::AskAgain
        } else {
            ReadStep::Fail
        })
    }

    /// Returns the next step after the reports: in each set, `ack` of the replicas to which the
    /// newest record belongs must hold it.
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
        // Other replicas refuse a future record, and this node must not store it either.
        if !future && let Some(vote) = to_repair(self.slot, newest, repairing.short_of(wanted)) {
            return ReadStep::Repair(vote);
        }
        // A replica that was asked for its record is repaired only after its reply: both replies
        // have the same id, and the reply to the read could be taken for the reply to the repair.
        let asked = belongs(&|vote| vote.state.is_asked());
        let outbid = |state| state == ReadState::Failed(ReplicaError::HigherBallot);
        let is_unasked =
            |vote: &ReadVote| newest.ballot() == 0 && outbid(vote.state) && !vote.was_asked;
        if (repairing + asked).suffices(wanted) {
            ReadStep::Wait
        } else if let Some(vote) = read.first(is_unasked) {
            // A refusal may mean that the replica already holds the record: after a repair round,
            // the repair fence also refuses records that the replica holds.
            ReadStep::Ask(vote)
        } else if read.count_states(outbid) > 0 {
            ReadStep::BeginAnew
        } else {
            ReadStep::Fail
        }
    }

    /// Returns the newest record once enough replicas have reported, even if too few hold it;
    /// `None` = too few replicas have reported, or none reported a record.
    fn newest_if_found(self) -> Option<&'a Record> {
        let is_found = self.count_settled() >= usize::from(self.slot.quorums.read.ack);
        self.slot.work.newest().or_else(|| self.newest().filter(|_| is_found))
    }

    /// Returns the counts for a client whose read failed. If a record was found, only the replicas
    /// to which it belongs count, and only if they hold it.
    pub(super) fn shortfall(self) -> Shortfall {
        let Slot { quorums, work: read, .. } = self.slot;
        let Some(newest) = self.newest_if_found() else {
            let (acked, quorum) = quorums.shortfall(read.count_acks());
            return Shortfall { acked, quorum, is_limited: false };
        };
        let copies = self.slot.copies_of(newest);
        let limited = quorums.within(copies);
        let holds = read.votes.iter().filter(|vote| vote.holds(newest));
        let held = holds.fold(PerSet::default(), |sum, vote| sum + vote.place.within(copies));
        let (acked, quorum) = limited.shortfall(held);
        Shortfall { acked, quorum, is_limited: limited != *quorums }
    }

    /// True if a replica reported a future record, which hides its other records of the key.
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

    /// True if a replica is authoritative for its report. For this node, the check is repeated: it
    /// may have learned since the report that its directory is an older copy.
    fn counts(self, vote: &ReadVote) -> bool {
        let is_own = vote.node == self.core.shared.own;
        vote.state.is_authoritative()
            && !(is_own && self.core.shared.membership.state.is_outdated())
    }

    /// Returns a replica's reported record; `None` = there is none, or the record may have been
    /// purged since.
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

    /// Returns the replica to fetch the newest record from; `None` = there is no such record, or it
    /// is here whole. A replica that was not asked to send the record yet is preferred.
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

    /// Returns the time since which the read has waited for a long record from a replica that was
    /// asked to send it, or from this node's store, which usually holds the record too; `None` = it
    /// waits for none.
    pub(super) fn long_under_way(self) -> Option<u64> {
        let own = self.core.shared.own;
        let awaited = |vote: &ReadVote| match vote.state {
            ReadState::Fetching { outstanding, .. } => Some(outstanding.since),
            ReadState::Asked(outstanding) if vote.node == own => Some(outstanding.since),
            _ => None,
        };
        self.slot.work.votes.iter().filter_map(awaited).max()
    }

    /// True if replicas that are not authoritative may soon be: a node that has just started, for
    /// example, first learns what other nodes know of its disk. These replicas, together with the
    /// replicas that have not replied, must be enough for a quorum.
    fn may_become_authoritative(self, retry_count: u32) -> bool {
        let read = &self.slot.work;
        let has_or_may_report = |vote: &ReadVote| {
            matches!(vote.state, ReadState::Reported { .. } | ReadState::Asked(_))
        };
        let reported = read.count_read(has_or_may_report);
        let own_is_not = read.votes.iter().any(|vote| {
            vote.node == self.core.shared.own
                && vote.state == (ReadState::Reported { authoritative: false })
        });
        let settles = own_is_not && self.core.shared.membership.state.is_settling();
        reported >= usize::from(self.slot.quorums.read.ack)
            && (settles || retry_count < ASK_AGAIN_TIMES)
    }
}

/// True if a quorum must hold the answer before the client gets it. With `ack` = 1 of several
/// replicas, this is false. With `from` = 1, it is true while partitions move, because the only
/// copy may be in the set that is about to be dropped.
fn must_be_held(slot: &Slot<Read>) -> bool {
    let (ack, from) = (slot.ack(), slot.quorums.from());
    let is_moving = || slot.work.votes.iter().any(|vote| !vote.place.is_in_both());
    let has_one_copy = from.read == 1 || from.other == 1;
    ack.read > 1 || ack.other > 1 || has_one_copy && is_moving()
}

/// Returns the next replica to write the newest record to, in a set in which too few replicas hold
/// it; `None` = there is none. Replicas that are known to lack the record come before replicas that
/// were not asked.
pub(super) fn to_repair(slot: &Slot<Read>, newest: &Record, short: PerSet) -> Option<VoteIndex> {
    let (read, copies) = (&slot.work, slot.copies_of(newest));
    let lacks =
        |vote: &ReadVote| !vote.place.within(copies).min(short).is_zero() && !vote.holds(newest);
    let has_reported =
        |vote: &ReadVote| matches!(vote.state, ReadState::Reported { .. }) && lacks(vote);
    let is_idle = |vote: &ReadVote| vote.state == ReadState::Idle && lacks(vote);
    read.first(has_reported).or_else(|| read.first(is_idle))
}
