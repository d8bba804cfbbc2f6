//! Whether this node's directory is the one that the others know: its membership state follows from
//! that.
//!
//! ```text
//!   start ─▶ all others are pinged ─▶ each was seen or is away ─▶ a Member is authoritative
//!   a peer knows another disk of this name, or this one is fenced ─▶ Rebuilding: all is streamed
//!   a peer knows more of this log than there is ─▶ Rebuilding: what may be lost is streamed
//!   Verifying: all others stream what is newer than this log's end ─▶ Member
//!   Joining: all others say that they never knew another disk ─▶ Member
//! ```
//!
//! What makes this node authoritative is stored first; what ends that takes effect at once. A peer
//! may forget what it knows of an earlier life only when what follows from that is durable here:
//! until then nothing of the present one is reported to it (`logs.rs`).

use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::directory::Incarnation;
use crate::event::FailureKind;
use crate::logs::{Claim, Reported};
use crate::membership::MembershipState;
use crate::message::{Class, NodeId, Reply, Request};
use crate::missed::Mark;
use record::COUNTER_BITS;

/// What is known of another node since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    #[default]
    Unknown,
    /// It was pinged, and has not replied.
    Asked,
    /// It could not be reached.
    Away,
    /// It was seen, and what it knows of this node was looked at.
    Seen,
}

/// What is known of all others together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    /// Some are still to be asked, or to reply.
    UnderWay,
    /// Each was seen or is away, and some are away.
    SomeAway,
    /// Each was seen.
    AllSeen,
}

impl Node {
    /// A node that lacked something when it stopped still lacks it: everything, if there is no mark
    /// that says less. A copy lacks at least what came after it was made, whatever the others know.
    pub(super) fn begin(&mut self) {
        let since = match self.shared.membership.state() {
            MembershipState::Joining | MembershipState::Rebuilding => Some(0),
            MembershipState::Verifying => Some(self.shared.logs.end()),
            MembershipState::Member => None,
        };
        if let Some(since) = since.filter(|_| self.lacks_since().is_none()) {
            self.shared.missed.mark(self.shared.own, Mark { partition: None, since });
        }
        if since.is_some() {
            self.shared.known_disk.set_waiting(true);
        }
        if self.shared.membership.state() == MembershipState::Verifying {
            self.mark_lost_hints();
        }
        self.settle();
    }

    /// Hints that this node kept for the others since its log's end are gone with that: the others
    /// are marked, so that they have it streamed. (On an empty disk there is no telling since
    /// when.)
    fn mark_lost_hints(&self) {
        let since = self.shared.logs.end();
        for peer in self.others().filter(|_| since > 0) {
            self.shared.missed.mark(peer, Mark { partition: None, since });
        }
    }

    /// A later process with this disk is known: what that acknowledges is not here. So it is for
    /// all later lives of this directory.
    pub(super) fn fenced(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        self.lose(now, None, (0, false), out);
    }

    /// The directory may be older than the last vote that was given from it: on another disk, or
    /// put back to an earlier state. A log that lost its end in a power cut does not say that as
    /// long as it is not synced before anything is acknowledged: votes always are. Returns whether
    /// it is another voter now.
    fn lose_votes(&self, all: bool) -> bool {
        let layouts = &self.shared.layouts;
        (all || self.config.syncs_always) && layouts.loses_votes(self.shared.logs.voter())
    }

    /// The least time of the mark for all partitions, if there is one.
    pub(super) fn lacks_since(&self) -> Option<u64> {
        let marks = self.shared.missed.of(self.shared.own);
        let all = marks.iter().find(|marked| marked.mark.partition.is_none());
        all.map(|marked| marked.mark.since)
    }

    pub(super) fn peer_seen(
        &mut self,
        now: Now,
        (peer, incarnation): (NodeId, Incarnation),
        (knows_us, never_another): (Option<Claim>, bool),
        out: &mut Vec<NodeEffect>,
    ) {
        let kept = self.shared.logs.incarnation(peer);
        let seen = &mut self.peers.of(peer).seen;
        if seen.or(kept) != Some(incarnation) {
            *seen = Some(incarnation);
            let claim = Claim { incarnation, reported: Reported::default() };
            out.push(NodeEffect::Remember { peer, claim });
        }
        self.note_check(peer, Check::Seen);
        match self.shared.logs.lost(knows_us.as_ref()) {
            Some(since) => {
                let voter = self.shared.layouts.voter().id;
                let is_before = |claim| self.shared.logs.is_before_voter(claim, voter);
                let keeps_votes = knows_us.as_ref().is_some_and(is_before);
                self.lose(now, Some(peer), (since, keeps_votes), out);
            }
            None => {
                self.shared.logs.settle(peer);
                self.confirm(peer, knows_us.is_none() || never_another, out);
            }
        }
    }

    /// A peer knows that what this node acknowledged since that time may be lost; `keeps_votes` =
    /// but nothing that it voted as the voter that it is.
    fn lose(
        &mut self,
        now: Now,
        peer: Option<NodeId>,
        (since, keeps_votes): (u64, bool),
        out: &mut Vec<NodeEffect>,
    ) {
        let known = self.shared.membership.state() == MembershipState::Rebuilding
            && self.lacks_since().is_some_and(|lacks| lacks <= since);
        if !known {
            self.shared.missed.mark(self.shared.own, Mark { partition: None, since });
            self.mark_lost_hints();
            self.shared.membership.lose((now.wall + self.config.max_skew_micros) << COUNTER_BITS);
        }
        // It may have voted since it began to be rebuilt, if a layout has seated it meanwhile.
        let loses_votes = !keeps_votes && self.lose_votes(peer.is_none() || since == 0);
        if loses_votes || !known {
            // What is under way may not have this mark, so it is stored once more after that.
            self.stands_again = self.state_under_way == Some(MembershipState::Rebuilding);
            self.stand(MembershipState::Rebuilding, out);
        }
        match peer {
            Some(peer) if self.state_under_way.is_some() => self.unsettled.push(peer),
            Some(peer) => self.shared.logs.settle(peer),
            None => {}
        }
    }

    /// A peer knows nothing that contradicts this node's membership state; `denies` = the peer
    /// never knew another disk of this node.
    fn confirm(&mut self, peer: NodeId, denies: bool, out: &mut Vec<NodeEffect>) {
        if self.shared.membership.state() != MembershipState::Joining || !denies {
            return;
        }
        self.peers.of(peer).confirmed = true;
        self.stand_if_confirmed(out);
    }

    /// A new node is a member once all others have confirmed it: one that is missing may be the
    /// only one that knows more.
    pub(super) fn stand_if_confirmed(&mut self, out: &mut Vec<NodeEffect>) {
        if self.shared.membership.state() != MembershipState::Joining {
            return;
        }
        let confirmed = |peer| self.peers.get(peer).is_some_and(|peer| peer.confirmed);
        if self.others().all(confirmed) {
            self.stand(MembershipState::Member, out);
        }
    }

    /// Whether this membership state is being stored.
    pub(super) fn stands_soon(&self, state: MembershipState) -> bool {
        self.state_under_way == Some(state)
    }

    /// Has a membership state stored; see [`Node::stood`].
    pub(super) fn stand(&mut self, state: MembershipState, out: &mut Vec<NodeEffect>) {
        if self.state_under_way != Some(state) {
            self.state_under_way = Some(state);
            out.push(NodeEffect::Stand(state));
        }
    }

    /// A membership state was stored, or could not be: then it is tried again.
    pub(super) fn stood(&mut self, state: MembershipState, kept: bool, out: &mut Vec<NodeEffect>) {
        if self.state_under_way != Some(state) {
            return;
        }
        self.state_under_way = None;
        if !kept || std::mem::take(&mut self.stands_again) {
            self.stand(state, out);
            return;
        }
        if state == MembershipState::Member {
            for marked in self.shared.missed.of(self.shared.own) {
                if marked.mark.partition.is_none() {
                    self.shared.missed.done(self.shared.own, None, marked.number);
                }
            }
        }
        self.shared.membership.set(state);
        for peer in std::mem::take(&mut self.unsettled) {
            self.shared.logs.settle(peer);
        }
    }

    /// Pings all others once after the start.
    pub(super) fn check_due(&mut self, out: &mut Vec<NodeEffect>) {
        for peer in self.others() {
            if self.peers.of(peer).check == Check::Unknown {
                self.note_check(peer, Check::Asked);
                self.call(Caller::Check(peer), peer, Class::Client, Request::Ping, out);
            }
        }
    }

    pub(super) fn checked(&mut self, peer: NodeId, result: &Result<Reply, FailureKind>) {
        if self.peers.of(peer).check == Check::Asked {
            // A peer that replies was seen, and what it knows of this node was looked at.
            self.note_check(peer, if result.is_ok() { Check::Seen } else { Check::Away });
        }
    }

    fn note_check(&mut self, peer: NodeId, check: Check) {
        let before = std::mem::replace(&mut self.peers.of(peer).check, check);
        if before != check {
            self.checks = None;
        }
    }

    /// Looked at once for each change: there are many events, and in a large cluster many others.
    fn checks(&mut self) -> Checks {
        if let Some(checks) = self.checks {
            return checks;
        }
        let check = |peer| self.peers.get(peer).map_or(Check::Unknown, |peer| peer.check);
        let others = || self.others().map(check);
        let checks = if !others().all(|check| matches!(check, Check::Seen | Check::Away)) {
            Checks::UnderWay
        } else if others().any(|check| check == Check::Away) {
            Checks::SomeAway
        } else {
            Checks::AllSeen
        };
        *self.checks.insert(checks)
    }

    /// Notes whether this node is confirmed, and whether its state will be settled soon.
    pub(super) fn settle(&mut self) {
        let checks = self.checks();
        let membership = &self.shared.membership;
        if checks != Checks::UnderWay && !membership.is_confirmed() {
            membership.confirm();
        }
        let undecided =
            matches!(membership.state(), MembershipState::Joining | MembershipState::Verifying);
        let is_open = match checks {
            Checks::UnderWay => true,
            Checks::SomeAway => false,
            Checks::AllSeen => undecided,
        };
        membership.settles(is_open || self.state_under_way.is_some());
    }
}
