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

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::background::effect::NodeEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::membership::directory::Incarnation;
use crate::membership::logs::{Claim, Reported};
use crate::membership::state::MembershipState;
use crate::message::{Class, NodeId, Request};
use crate::transfer::missed::Mark;
use record::COUNTER_BITS;

/// What is known of another node since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Check {
    #[default]
    Unknown,
    /// It was pinged, and has not replied.
    Asked(TaskId),
    /// It could not be reached.
    Away,
    /// It was seen, and what it knows of this node was looked at.
    Seen,
}

/// What is known of all others together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Some are still to be asked, or to reply.
    UnderWay,
    /// Each was seen or is away, and some are away.
    SomeAway,
    /// Each was seen.
    AllSeen,
}

/// A peer's incarnation and check.
#[derive(Debug, Default)]
struct PeerCheck {
    /// Its incarnation, if it was seen since the start.
    seen: Option<Incarnation>,
    /// Whether it said that it never knew another disk of this node.
    confirmed: bool,
    check: Check,
}

/// Whether peers that were pinged have replied, in the order in which that became known.
type Pinged = Rc<RefCell<Vec<(NodeId, bool)>>>;

/// This node's identity: what the peers know of it, and its membership state.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    peers: BTreeMap<NodeId, PeerCheck>,
    /// What is known of all peers together; `None` = that is to be looked at.
    checks: Option<Checks>,
    pinged: Pinged,
    /// Peers that this node reports its position to once its membership state is stored.
    unsettled: Vec<NodeId>,
    /// A membership state that is being stored.
    state_under_way: Option<MembershipState>,
    /// Whether it is to be stored once more: this node was marked to lack more meanwhile.
    stands_again: bool,
}

/// Pings a peer once.
async fn ping(cx: Context, peer: NodeId, pinged: Pinged) {
    let has_replied = cx.call(peer, Class::Client, Request::Ping).await.is_ok();
    pinged.borrow_mut().push((peer, has_replied));
}

/// The least time of this node's mark for all partitions, if there is one.
pub(crate) fn lacks_since(cx: &Context) -> Option<u64> {
    let marks = cx.shared().transfer.missed.of(cx.shared().own);
    let all = marks.iter().find(|marked| marked.mark.partition.is_none());
    all.map(|marked| marked.mark.since)
}

/// Hints that this node kept for the others since its log's end are gone with that: the others
/// are marked, so that they have it streamed. (On an empty disk there is no telling since when.)
fn mark_lost_hints(cx: &Context) {
    let since = cx.shared().membership.logs.end();
    for peer in cx.others().into_iter().filter(|_| since > 0) {
        cx.shared().transfer.missed.mark(peer, Mark { partition: None, since });
    }
}

/// The directory may be older than the last vote that was given from it: on another disk, or
/// put back to an earlier state. Unless every write is synced before it is acknowledged, a log
/// that lost its end in a power cut does not imply lost votes, because votes are always synced.
/// Returns whether this node is another voter now.
fn lose_votes(cx: &Context, all: bool) -> bool {
    let layouts = &cx.shared().membership.layouts;
    (all || cx.config().syncs_always) && layouts.loses_votes(cx.shared().membership.logs.voter())
}

impl Identity {
    /// A node that lacked something when it stopped still lacks it: everything, if there is no mark
    /// that says less. A copy lacks at least what came after it was made, whatever the others know.
    pub(crate) fn begin(&mut self, cx: &Context) {
        let since = match cx.shared().membership.state.state() {
            MembershipState::Joining | MembershipState::Rebuilding => Some(0),
            MembershipState::Verifying => Some(cx.shared().membership.logs.end()),
            MembershipState::Member => None,
        };
        if let Some(since) = since.filter(|_| lacks_since(cx).is_none()) {
            cx.shared().transfer.missed.mark(cx.shared().own, Mark { partition: None, since });
        }
        if since.is_some() {
            cx.shared().membership.known_disk.set_waiting(true);
        }
        if cx.shared().membership.state.state() == MembershipState::Verifying {
            mark_lost_hints(cx);
        }
        self.settle(cx);
    }

    /// A later process with this disk is known: what that acknowledges is not here. So it is for
    /// all later lives of this directory.
    pub(crate) fn fenced(&mut self, cx: &Context) {
        self.lose(cx, None, (0, false));
    }

    pub(crate) fn peer_seen(
        &mut self,
        cx: &Context,
        (peer, incarnation): (NodeId, Incarnation),
        (knows_us, never_another): (Option<Claim>, bool),
    ) {
        let kept = cx.shared().membership.logs.incarnation(peer);
        let seen = &mut self.peers.entry(peer).or_default().seen;
        if seen.or(kept) != Some(incarnation) {
            *seen = Some(incarnation);
            let claim = Claim { incarnation, reported: Reported::default() };
            cx.effect(NodeEffect::Remember { peer, claim });
        }
        self.note_check(peer, Check::Seen);
        match cx.shared().membership.logs.lost(knows_us.as_ref()) {
            Some(since) => {
                let voter = cx.shared().membership.layouts.voter().id;
                let is_before = |claim| cx.shared().membership.logs.is_before_voter(claim, voter);
                let keeps_votes = knows_us.as_ref().is_some_and(is_before);
                self.lose(cx, Some(peer), (since, keeps_votes));
            }
            None => {
                cx.shared().membership.logs.settle(peer);
                self.confirm(cx, peer, knows_us.is_none() || never_another);
            }
        }
    }

    /// A peer knows that what this node acknowledged since that time may be lost. `keeps_votes`:
    /// the loss is older than this node's voter id, so the votes under that id are intact.
    fn lose(&mut self, cx: &Context, peer: Option<NodeId>, (since, keeps_votes): (u64, bool)) {
        let known = cx.shared().membership.state.state() == MembershipState::Rebuilding
            && lacks_since(cx).is_some_and(|lacks| lacks <= since);
        if !known {
            cx.shared().transfer.missed.mark(cx.shared().own, Mark { partition: None, since });
            mark_lost_hints(cx);
            cx.shared()
                .membership
                .state
                .lose((cx.now().wall + cx.config().max_skew_micros) << COUNTER_BITS);
        }
        // It may have voted since it began to be rebuilt, if a layout has seated it meanwhile.
        let loses_votes = !keeps_votes && lose_votes(cx, peer.is_none() || since == 0);
        if loses_votes || !known {
            // What is under way may not have this mark, so it is stored once more after that.
            self.stands_again = self.state_under_way == Some(MembershipState::Rebuilding);
            self.stand(cx, MembershipState::Rebuilding);
        }
        match peer {
            Some(peer) if self.state_under_way.is_some() => self.unsettled.push(peer),
            Some(peer) => cx.shared().membership.logs.settle(peer),
            None => {}
        }
    }

    /// A peer knows nothing that contradicts this node's membership state; `denies` = the peer
    /// never knew another disk of this node.
    fn confirm(&mut self, cx: &Context, peer: NodeId, denies: bool) {
        if cx.shared().membership.state.state() != MembershipState::Joining || !denies {
            return;
        }
        self.peers.entry(peer).or_default().confirmed = true;
        self.stand_if_confirmed(cx);
    }

    /// A new node is a member once all others have confirmed it: one that is missing may be the
    /// only one that knows more.
    pub(crate) fn stand_if_confirmed(&mut self, cx: &Context) {
        if cx.shared().membership.state.state() != MembershipState::Joining {
            return;
        }
        let confirmed = |peer| self.peers.get(&peer).is_some_and(|peer| peer.confirmed);
        if cx.others().into_iter().all(confirmed) {
            self.stand(cx, MembershipState::Member);
        }
    }

    /// Whether this membership state is being stored.
    pub(crate) fn stands_soon(&self, state: MembershipState) -> bool {
        self.state_under_way == Some(state)
    }

    /// Has a membership state stored; see [`Identity::stood`].
    pub(crate) fn stand(&mut self, cx: &Context, state: MembershipState) {
        if self.state_under_way != Some(state) {
            self.state_under_way = Some(state);
            cx.effect(NodeEffect::Stand(state));
        }
    }

    /// A membership state was stored, or could not be: then it is tried again.
    pub(crate) fn stood(&mut self, cx: &Context, state: MembershipState, kept: bool) {
        if self.state_under_way != Some(state) {
            return;
        }
        self.state_under_way = None;
        if !kept || std::mem::take(&mut self.stands_again) {
            self.stand(cx, state);
            return;
        }
        if state == MembershipState::Member {
            for marked in cx.shared().transfer.missed.of(cx.shared().own) {
                if marked.mark.partition.is_none() {
                    cx.shared().transfer.missed.done(cx.shared().own, None, marked.number);
                }
            }
        }
        cx.shared().membership.state.set(state);
        for peer in std::mem::take(&mut self.unsettled) {
            cx.shared().membership.logs.settle(peer);
        }
    }

    /// Pings all others once after the start.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        for peer in tasks.context().others() {
            let is_due = match self.peers.entry(peer).or_default().check {
                Check::Unknown => true,
                Check::Asked(task) => !tasks.is_under_way(task),
                Check::Away | Check::Seen => false,
            };
            if is_due {
                let ping = ping(tasks.context().clone(), peer, Rc::clone(&self.pinged));
                self.note_check(peer, Check::Asked(tasks.spawn("ping", ping)));
            }
        }
    }

    /// Notes which of the peers that were pinged have replied.
    pub(crate) fn look_at_pinged(&mut self) {
        for (peer, has_replied) in self.pinged.take() {
            if matches!(self.peers.entry(peer).or_default().check, Check::Asked(_)) {
                // A peer that replies was seen, and what it knows of this node was looked at.
                self.note_check(peer, if has_replied { Check::Seen } else { Check::Away });
            }
        }
    }

    /// Returns whether a peer was seen since the start.
    pub(crate) fn has_seen(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.check == Check::Seen)
    }

    /// Another view is in force: it may have other nodes.
    pub(crate) fn follow_view(&mut self) {
        self.checks = None;
    }

    fn note_check(&mut self, peer: NodeId, check: Check) {
        let before = std::mem::replace(&mut self.peers.entry(peer).or_default().check, check);
        if before != check {
            self.checks = None;
        }
    }

    /// Looked at once for each change: there are many events, and in a large cluster many others.
    fn checks(&mut self, cx: &Context) -> Checks {
        if let Some(checks) = self.checks {
            return checks;
        }
        let check = |peer: NodeId| self.peers.get(&peer).map_or(Check::Unknown, |peer| peer.check);
        let others: Vec<Check> = cx.others().into_iter().map(check).collect();
        let checks = if !others.iter().all(|check| matches!(check, Check::Seen | Check::Away)) {
            Checks::UnderWay
        } else if others.contains(&Check::Away) {
            Checks::SomeAway
        } else {
            Checks::AllSeen
        };
        *self.checks.insert(checks)
    }

    /// Notes whether this node is confirmed, and whether its state will be settled soon.
    pub(crate) fn settle(&mut self, cx: &Context) {
        let checks = self.checks(cx);
        let membership = &cx.shared().membership.state;
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

    /// Has stored what other nodes reported since, and disks that could not be stored when they
    /// were seen.
    pub(crate) fn remember(&self, cx: &Context) {
        let logs = &cx.shared().membership.logs;
        for peer in cx.others() {
            let seen = self.peers.get(&peer).and_then(|peer| peer.seen);
            let unstored = seen.filter(|seen| logs.incarnation(peer) != Some(*seen));
            let unstored =
                unstored.map(|incarnation| Claim { incarnation, reported: Reported::default() });
            if let Some(claim) = unstored.or_else(|| logs.unkept(peer)) {
                cx.effect(NodeEffect::Remember { peer, claim });
            }
        }
    }
}
