//! Check of this node's data directory against the peers' records of it; the result determines the
//! membership state.
//!
//! ```text
//!   start ─▶ ping all peers ─▶ each peer replied or is down ─▶ a Member becomes authoritative
//!   a peer knows another disk of this node ─────────────▶ Rebuilding: peers stream all records
//!   a later process with this disk runs (fenced) ───────▶ Rebuilding: peers stream all records
//!   a peer knows a log position beyond this log's end ──▶ Rebuilding: peers stream possible losses
//!   Verifying: the peers have streamed all records newer than this log's end ─▶ Member
//!   Joining: each peer has confirmed that it never knew another disk of this node ─▶ Member
//! ```
//!
//! A state that makes this node authoritative is stored before it takes effect; a loss of authority
//! takes effect at once. A peer that receives a log position of this node's current boot forgets
//! its record of earlier boots, which may show a loss. So this node reports no position to a peer
//! until the state that follows from that peer's record is durable (`logs.rs`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::background::effect::BackgroundEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::membership::disk_ids::Incarnation;
use crate::membership::logs::{Claim, Reported};
use crate::membership::state::MembershipState;
use crate::message::{Class, NodeId, Request};
use crate::transfer::missed::Mark;
use record::COUNTER_BITS;

/// Progress of the check with one peer since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Check {
    #[default]
    Unknown,
    /// The peer was pinged and has not replied.
    Asked(TaskId),
    /// The peer could not be reached.
    Away,
    /// The peer has connected, and its claim about this node was checked.
    Seen,
}

/// Progress of the check with all peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Some peers have not been asked or have not replied.
    UnderWay,
    /// Each peer was seen or is away, and some are away.
    SomeUnreachable,
    /// Each peer was seen.
    AllSeen,
}

/// A peer's incarnation and the progress of its check.
#[derive(Debug, Default)]
struct PeerCheck {
    /// The peer's incarnation, if it was seen since the start.
    seen: Option<Incarnation>,
    /// True if the peer confirmed that it never knew another disk of this node.
    confirmed: bool,
    check: Check,
}

/// Ping results that are not applied yet, in order of arrival. The flag is true if the peer
/// replied.
type PingResults = Rc<RefCell<Vec<(NodeId, bool)>>>;

/// The check of this node's disk with all peers, and the resulting changes of the membership state.
#[derive(Debug, Default)]
pub(crate) struct DiskCheck {
    peers: BTreeMap<NodeId, PeerCheck>,
    /// Progress of the check with all peers; `None` = to be computed again.
    checks: Option<Checks>,
    pinged: PingResults,
    /// Peers to which this node reports its log position once its membership state is stored.
    unsettled: Vec<NodeId>,
    /// The membership state that is being stored.
    state_under_way: Option<MembershipState>,
    /// True if the state must be stored again, because the store operation under way may lack a
    /// mark made after its start.
    stores_again: bool,
}

/// Pings a peer once.
async fn ping(cx: Context, peer: NodeId, pinged: PingResults) {
    let has_replied = cx.call(peer, Class::Client, Request::Ping).await.is_ok();
    pinged.borrow_mut().push((peer, has_replied));
}

/// Returns the version time of this node's own missed-writes mark for all partitions; `None` if it
/// has no such mark.
pub(crate) fn lacks_since(cx: &Context) -> Option<u64> {
    let marks = cx.shared().transfer.missed.of(cx.shared().own);
    let all = marks.iter().find(|marked| marked.mark.partition.is_none());
    all.map(|marked| marked.mark.since)
}

/// Marks each peer as lacking the writes since the end of this node's log, so that other nodes
/// stream these writes: the hints that this node kept for the peers are lost with the end of the
/// log. For an empty disk the time is unknown, and no peer is marked.
fn mark_lost_hints(cx: &Context) {
    let since = cx.shared().membership.logs.end();
    for peer in cx.others().into_iter().filter(|_| since > 0) {
        cx.shared().transfer.missed.mark(peer, Mark { partition: None, since });
    }
}

/// Gives this node a new voter id if its directory may be older than its last vote: on another
/// disk, or after a restore of an earlier state. Returns true if the voter id is new. `all` is true
/// if records of any time may be lost.
///
/// Unless every write is synced before it is acknowledged, a power cut may explain a log that lost
/// its end. The voter id then stays, because votes are always synced.
fn renew_lost_votes(cx: &Context, all: bool) -> bool {
    let layouts = &cx.shared().membership.layouts;
    (all || cx.config().syncs_always) && layouts.renew_voter(cx.shared().membership.logs.voter())
}

impl DiskCheck {
    /// Initializes the check after a start. A node that was not a member when it stopped lacks
    /// records of any time, unless its mark gives a later time. A copied directory lacks at least
    /// the records written after the copy, whatever the peers know.
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
        self.update_confirmation(cx);
    }

    /// Handles the discovery of a later process with this disk. This directory, also in later
    /// boots, lacks the writes that the later process acknowledges.
    pub(crate) fn on_fenced(&mut self, cx: &Context) {
        self.handle_loss(cx, None, (0, false));
    }

    pub(crate) fn peer_seen(
        &mut self,
        cx: &Context,
        (peer, incarnation): (NodeId, Incarnation),
        (knows_us, knew_only_this_disk): (Option<Claim>, bool),
    ) {
        let kept = cx.shared().membership.logs.incarnation(peer);
        let seen = &mut self.peers.entry(peer).or_default().seen;
        if seen.or(kept) != Some(incarnation) {
            *seen = Some(incarnation);
            let claim = Claim { incarnation, reported: Reported::default() };
            cx.effect(BackgroundEffect::StoreClaim { peer, claim });
        }
        self.set_check(peer, Check::Seen);
        match cx.shared().membership.logs.find_loss(knows_us.as_ref()) {
            Some(since) => {
                if let Some(claim) = &knows_us {
                    cx.shared().membership.logs.add_former_claim(claim);
                }
                let voter = cx.shared().membership.layouts.voter().id;
                let is_before = |claim| cx.shared().membership.logs.is_before_voter(claim, voter);
                let keeps_votes = knows_us.as_ref().is_some_and(is_before);
                self.handle_loss(cx, Some(peer), (since, keeps_votes));
            }
            None => {
                cx.shared().membership.logs.settle(peer);
                self.confirm(cx, peer, knows_us.is_none() || knew_only_this_disk);
            }
        }
    }

    /// Handles a possible loss of writes that this node acknowledged, from the version time `since`
    /// on. `peer` is the peer whose claim shows the loss; `None` = a later process with this node's
    /// disk shows it. `keeps_votes` is true if the loss was before the boot that made this node's
    /// voter id, so that all votes under that id are intact.
    fn handle_loss(
        &mut self,
        cx: &Context,
        peer: Option<NodeId>,
        (since, keeps_votes): (u64, bool),
    ) {
        let known = cx.shared().membership.state.state() == MembershipState::Rebuilding
            && lacks_since(cx).is_some_and(|lacks| lacks <= since);
        if !known {
            cx.shared().transfer.missed.mark(cx.shared().own, Mark { partition: None, since });
            mark_lost_hints(cx);
            cx.shared()
                .membership
                .state
                .mark_lost((cx.now().wall + cx.config().max_skew_micros) << COUNTER_BITS);
        }
        // A node may vote during its rebuild, if a layout gave it a seat in the metadata quorum.
        let loses_votes = !keeps_votes && renew_lost_votes(cx, peer.is_none() || since == 0);
        if loses_votes || !known {
            // The store operation under way may lack this mark, so a second one follows.
            self.stores_again = self.state_under_way == Some(MembershipState::Rebuilding);
            self.store_state(cx, MembershipState::Rebuilding);
        } else {
            cx.shared().membership.logs.begin_former_rebuild();
        }
        match peer {
            Some(peer) if self.state_under_way.is_some() => self.unsettled.push(peer),
            Some(peer) => cx.shared().membership.logs.settle(peer),
            None => {}
        }
    }

    /// Handles a peer whose knowledge does not contradict this node's membership state. `denies` is
    /// true if the peer never knew another disk of this node.
    fn confirm(&mut self, cx: &Context, peer: NodeId, denies: bool) {
        if cx.shared().membership.state.state() != MembershipState::Joining || !denies {
            return;
        }
        self.peers.entry(peer).or_default().confirmed = true;
        self.become_member_if_confirmed(cx);
    }

    /// Makes a joining node a member once all peers have confirmed it. No peer is skipped, because
    /// it may be the only peer that knows another disk of this node.
    pub(crate) fn become_member_if_confirmed(&mut self, cx: &Context) {
        if cx.shared().membership.state.state() != MembershipState::Joining {
            return;
        }
        let confirmed = |peer| self.peers.get(&peer).is_some_and(|peer| peer.confirmed);
        if cx.others().into_iter().all(confirmed) {
            self.store_state(cx, MembershipState::Member);
        }
    }

    /// True if this membership state is being stored.
    pub(crate) fn is_storing(&self, state: MembershipState) -> bool {
        self.state_under_way == Some(state)
    }

    /// Stores a membership state; see [`DiskCheck::state_stored`].
    pub(crate) fn store_state(&mut self, cx: &Context, state: MembershipState) {
        if self.state_under_way != Some(state) {
            self.state_under_way = Some(state);
            cx.effect(BackgroundEffect::StoreState(state));
        }
    }

    /// Handles the result of a store operation. `kept` is true if the membership state is durable;
    /// otherwise the state is stored again.
    pub(crate) fn state_stored(&mut self, cx: &Context, state: MembershipState, kept: bool) {
        if self.state_under_way != Some(state) {
            return;
        }
        self.state_under_way = None;
        if !kept || std::mem::take(&mut self.stores_again) {
            self.store_state(cx, state);
            return;
        }
        if state == MembershipState::Member {
            cx.shared().membership.logs.settle_former_claims();
            for marked in cx.shared().transfer.missed.of(cx.shared().own) {
                if marked.mark.partition.is_none() {
                    cx.shared().transfer.missed.drop_mark(cx.shared().own, None, marked.number);
                }
            }
        }
        cx.shared().membership.state.set(state);
        for peer in std::mem::take(&mut self.unsettled) {
            cx.shared().membership.logs.settle(peer);
        }
    }

    /// Pings each peer once after the start.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        for peer in tasks.context().others() {
            let is_due = match self.peers.entry(peer).or_default().check {
                Check::Unknown => true,
                Check::Asked(task) => !tasks.is_under_way(task),
                Check::Away | Check::Seen => false,
            };
            if is_due {
                let ping = ping(tasks.context().clone(), peer, Rc::clone(&self.pinged));
                self.set_check(peer, Check::Asked(tasks.spawn("ping", ping)));
            }
        }
    }

    /// Applies the arrived ping results to the checks of the peers.
    pub(crate) fn apply_ping_results(&mut self) {
        for (peer, has_replied) in self.pinged.take() {
            if matches!(self.peers.entry(peer).or_default().check, Check::Asked(_)) {
                // A peer that replied has connected, and its claim about this node was checked.
                self.set_check(peer, if has_replied { Check::Seen } else { Check::Away });
            }
        }
    }

    /// Returns whether a peer was seen since the start.
    pub(crate) fn has_seen(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.check == Check::Seen)
    }

    /// Clears the cached progress, because a new view may have other peers.
    pub(crate) fn follow_view(&mut self) {
        self.checks = None;
    }

    fn set_check(&mut self, peer: NodeId, check: Check) {
        let before = std::mem::replace(&mut self.peers.entry(peer).or_default().check, check);
        if before != check {
            self.checks = None;
        }
    }

    /// Returns the progress with all peers. The result is cached until it changes, because events
    /// are frequent, and a large cluster has many peers.
    fn checks(&mut self, cx: &Context) -> Checks {
        if let Some(checks) = self.checks {
            return checks;
        }
        let check = |peer: NodeId| self.peers.get(&peer).map_or(Check::Unknown, |peer| peer.check);
        let others: Vec<Check> = cx.others().into_iter().map(check).collect();
        let checks = if !others.iter().all(|check| matches!(check, Check::Seen | Check::Away)) {
            Checks::UnderWay
        } else if others.contains(&Check::Away) {
            Checks::SomeUnreachable
        } else {
            Checks::AllSeen
        };
        *self.checks.insert(checks)
    }

    /// Notes whether this node is confirmed, and whether its state will be settled soon.
    pub(crate) fn update_confirmation(&mut self, cx: &Context) {
        let checks = self.checks(cx);
        let membership = &cx.shared().membership.state;
        if checks != Checks::UnderWay && !membership.is_confirmed() {
            membership.confirm();
        }
        let undecided =
            matches!(membership.state(), MembershipState::Joining | MembershipState::Verifying);
        let is_open = match checks {
            Checks::UnderWay => true,
            Checks::SomeUnreachable => false,
            Checks::AllSeen => undecided,
        };
        membership.set_settling(is_open || self.state_under_way.is_some());
    }

    /// Stores the incarnations and log positions of peers that are not stored yet.
    pub(crate) fn store_claims(&self, cx: &Context) {
        let logs = &cx.shared().membership.logs;
        for peer in cx.others() {
            let seen = self.peers.get(&peer).and_then(|peer| peer.seen);
            let unstored = seen.filter(|seen| logs.incarnation(peer) != Some(*seen));
            let unstored =
                unstored.map(|incarnation| Claim { incarnation, reported: Reported::default() });
            if let Some(claim) = unstored.or_else(|| logs.unsaved_claim(peer)) {
                cx.effect(BackgroundEffect::StoreClaim { peer, claim });
            }
        }
    }
}
