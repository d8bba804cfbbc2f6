//! What a node does once for all its loops: it delivers hints, finds out whether its directory is
//! the one that the others know, and has what it lacks streamed back.
//!
//! ```text
//!   PeerSeen ────▶ ┌────────┐ ─▶ Remember, Stand, KeepMissed (stored on disk)
//!   Tick ────────▶ │  Node  │ ─▶ ReadHints, DropHints (this node's store)
//!   Hints ───────▶ │        │ ─▶ Call ──▶ a coordinator ──▶ a node, which may be this one
//!   Returned ────▶ │        │                              │
//!   Stood, … ────▶ └────────┘                              │
//!        ▲                                                 │
//!        └─────────────────────────────────────────────────┘
//! ```

mod council;
mod founding;
mod identity;
mod leftovers;
mod moving;
mod proofs;
mod taking;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::announcement::Announcement;
use crate::clock::Now;
use crate::cluster_id::ClusterId;
use crate::directory::Incarnation;
use crate::event::{CallId, FailureKind, Shared};
use crate::layout::Layout;
use crate::logs::{Claim, Reported};
use crate::membership::MembershipState;
use crate::message::{Class, NodeId, Reply, Request};
use crate::node_effect::{NodeConfig, NodeEffect};
use crate::repair::Repair;
use crate::task::Tasks;
use crate::transfer::{Hints, History, Marks, Purpose, Rebalance, Rebuild};
use crate::view::View;
use council::Layouts;
use founding::Founding;
use identity::{Check, Checks};
use leftovers::Dropping;
use moving::Moving;

/// Ticks after which what the others reported of their logs is stored again, if it changed: a small
/// write for each of them.
const REMEMBER_TICKS: u64 = 4;

/// What a node is informed of.
#[derive(Debug, Clone)]
pub enum NodeEvent {
    /// A connection to a peer was made, by this node or by the peer.
    PeerSeen {
        /// The peer at the other end.
        peer: NodeId,
        /// Its incarnation: which disk it has.
        incarnation: Incarnation,
        /// What it knows of this node's disk, if anything.
        knows_us: Option<Claim>,
        /// Whether the disk that it knows is the only one of this node that it ever knew.
        never_another: bool,
        /// The cluster that it belongs to; `None` = none yet.
        cluster: Option<ClusterId>,
    },
    /// Hints that were delivered could not be removed: the store has them still, and will hand
    /// them out again.
    HintsStay {
        /// The node that they are for.
        peer: NodeId,
        /// How many hints.
        hints: u64,
        /// Bytes that they count for ([`hint_bytes`](crate::hint_bytes)).
        bytes: u64,
    },
    /// A call is over.
    Returned {
        /// The call that is over.
        call: CallId,
        /// The reply, or why there is none.
        result: Result<Reply, FailureKind>,
    },
    /// This node was fenced: see [`Membership::fence`](crate::Membership::fence).
    Fenced,
    /// A membership state was stored on disk, or could not be.
    Stood {
        /// The membership state.
        state: MembershipState,
        /// Whether it was stored.
        kept: bool,
    },
    /// The cluster's id was stored on disk, or could not be.
    ClusterIdKept {
        /// The id that was to be stored.
        id: ClusterId,
        /// Whether it was stored.
        kept: bool,
    },
    /// A node's marks were stored on disk, or could not be.
    MissedKept {
        /// The node whose marks they are.
        node: NodeId,
        /// Whether they were stored.
        kept: bool,
    },
    /// Somebody wants this layout to be the next one; what becomes of it is in
    /// [`Layouts::change`](crate::Layouts::change).
    Propose(Arc<Layout>),
    /// Another node goes by a later layout than this one.
    Behind,
    /// What this node knows of layouts was stored on disk, or could not be.
    LayoutsKept {
        /// Whether it was stored.
        kept: bool,
    },
    /// What is placed on other nodes was dropped from the store, or some of it may be there still.
    LeftoversDropped {
        /// Whether nothing of it is left.
        done: bool,
    },
    /// Time has passed.
    Tick,
}

/// What a call was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Check(NodeId),
    /// What a node knows of proofs, or is to know.
    Proof(NodeId),
    /// A councillor's vote on the proposal of this number, or that it is to know what was decided.
    Council(u64, NodeId),
    /// Which layout a node goes by.
    Pull(NodeId),
    /// Which cluster a node belongs to.
    ClusterId(NodeId),
    /// How far a node is in the transition of this epoch.
    Moves(u64, NodeId),
}

/// The protocol's part of a node that exists once for all loops.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    config: NodeConfig,
    /// When it was first handed anything, by the monotonic clock.
    begun: Option<u64>,
    ticks: u64,
    /// The view in force. Work that is under way keeps the one that it began with.
    view: Arc<View>,
    peers: PeerStates,
    /// What is known of all of them together; `None` = that is to be looked at.
    checks: Option<Checks>,
    /// Peers that this node reports its position to once its membership state is stored.
    unsettled: Vec<NodeId>,
    /// A membership state that is being stored.
    state_under_way: Option<MembershipState>,
    /// Whether it is to be stored once more: this node was marked to lack more meanwhile.
    stands_again: bool,
    hints: Hints,
    marks: Marks,
    announcement: Announcement,
    rebuild: Rebuild,
    tasks: Tasks,
    repair: Repair,
    /// Whether a proof that others reported is being taken over.
    takes_over: bool,
    layouts: Layouts,
    founding: Founding,
    moving: Moving,
    rebalance: Rebalance,
    history: History,
    dropping: Dropping,
    calls: Vec<(CallId, Caller)>,
}

impl Node {
    /// A node that has just started.
    pub fn new(shared: Arc<Shared>, config: NodeConfig) -> Self {
        let mut node = Self {
            config,
            begun: None,
            ticks: 0,
            view: shared.view(),
            peers: PeerStates::default(),
            checks: None,
            unsettled: Vec::new(),
            state_under_way: None,
            stands_again: false,
            hints: Hints::default(),
            marks: Marks::default(),
            announcement: Announcement::default(),
            rebuild: Rebuild::default(),
            tasks: Tasks::new(Arc::clone(&shared), config),
            repair: Repair::default(),
            takes_over: false,
            layouts: Layouts::default(),
            founding: Founding::default(),
            moving: Moving::default(),
            rebalance: Rebalance::default(),
            history: History::default(),
            dropping: Dropping::default(),
            calls: Vec::new(),
            shared,
        };
        node.begin();
        node
    }

    /// Handles one event; appends what is to be done to `out`.
    pub fn handle(&mut self, now: Now, event: NodeEvent, out: &mut Vec<NodeEffect>) {
        self.begun.get_or_insert(now.mono);
        self.tasks.handles_at(now);
        self.follow_view(out);
        self.repair.stop_if_void(&mut self.tasks);
        match event {
            NodeEvent::PeerSeen { peer, incarnation, knows_us, never_another, cluster } => {
                let knows = (knows_us, never_another);
                self.peer_seen(now, (peer, incarnation), knows, out);
                self.seen_of_cluster(peer, cluster, out);
                self.ask_for_proof(peer, out);
                self.announcement.tick(&mut self.tasks);
            }
            NodeEvent::HintsStay { peer, hints, bytes } => {
                self.hints.stay(self.tasks.context(), peer, hints, bytes);
            }
            NodeEvent::Returned { call, result } => {
                if let Err(result) = self.tasks.answered(call, result) {
                    self.returned(now, call, result, out);
                }
                self.announcement.tick(&mut self.tasks);
                self.look_at_transfers(out);
            }
            NodeEvent::Fenced => self.fenced(now, out),
            NodeEvent::Stood { state, kept } => self.stood(state, kept, out),
            NodeEvent::ClusterIdKept { id, kept } => self.cluster_kept(id, kept, out),
            NodeEvent::MissedKept { node, kept } => {
                self.peers.of(node).keeping = false;
                if node == self.shared.own {
                    self.marks.stored_here(kept);
                }
            }
            NodeEvent::Propose(layout) => self.propose(now, &layout, out),
            NodeEvent::Behind => self.pull_layout(out),
            NodeEvent::LayoutsKept { kept } => self.layouts_kept(kept, out),
            NodeEvent::LeftoversDropped { done } => self.leftovers_dropped(now, done, out),
            NodeEvent::Tick => self.tick(now, out),
        }
        self.settle();
        self.tasks.drain_effects(out);
    }

    /// A call is over that no task waits for.
    fn returned(
        &mut self,
        now: Now,
        call: CallId,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(at) = self.calls.iter().position(|(id, _)| *id == call) else { return };
        match self.calls.swap_remove(at).1 {
            Caller::Check(peer) => self.checked(peer, &result),
            Caller::Proof(node) => self.received_proof(node, &result),
            Caller::Council(number, node) => self.voted(now, (number, node), result, out),
            Caller::Pull(node) => self.pulled(node, result, out),
            Caller::ClusterId(node) => self.told_cluster(node, &result, out),
            Caller::Moves(epoch, node) => self.received_moves((epoch, node), &result),
        }
    }

    /// Another view may be in force.
    fn follow_view(&mut self, out: &mut Vec<NodeEffect>) {
        if self.view.epoch == self.shared.views.epoch() {
            return;
        }
        let before = std::mem::replace(&mut self.view, self.shared.view());
        self.tasks.follow(&self.view);
        self.checks = None;
        if !before.agrees_with(self.view.id()) {
            self.repair.placement_changes(&mut self.tasks);
            self.takes_anew(out);
            self.stand_if_confirmed(out);
        }
        // Nodes may have come or gone without any key being placed otherwise.
        self.founding.begin_anew();
        self.found_if_none_has_one(out);
    }

    fn tick(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        self.check_due(out);
        self.announcement.tick(&mut self.tasks);
        self.cluster_due(out);
        self.hints.tick(&mut self.tasks);
        self.keep_missed(out);
        self.marks.tick(&mut self.tasks);
        self.rebuild_due(now, out);
        self.take_over_history(out);
        self.proofs_due(out);
        self.tasks.tick();
        self.look_at_transfers(out);
        self.repair.tick(&mut self.tasks);
        self.layouts_due(now, out);
        self.moves_due(now, out);
        self.leftovers_due(now, out);
        self.taking_due(out);
        self.ticks += 1;
        if self.ticks.is_multiple_of(REMEMBER_TICKS) {
            self.remember(out);
        }
    }

    /// A transfer may have come further.
    fn look_at_transfers(&mut self, out: &mut Vec<NodeEffect>) {
        if self.rebuild.take_news() {
            self.rebuild.drop_done(self.tasks.context());
            self.stand_if_whole(out);
        }
        if self.rebalance.take_news() {
            self.keep_layouts(out);
            self.taking_due(out);
        }
        match self.history.take_ended() {
            None => {}
            Some(Purpose::Rebuild(_)) => self.stand(MembershipState::Member, out),
            Some(Purpose::Move) => self.keep_layouts(out),
        }
    }

    /// A node that has its records again is no member yet: what the other replicas remember comes
    /// last. Were it a member before, the disk of another node might be replaced too early.
    fn take_over_history(&mut self, out: &mut Vec<NodeEffect>) {
        let is_whole = self.rebuild.is_whole_again(self.tasks.context());
        if !is_whole || self.stands_soon(MembershipState::Member) {
            return;
        }
        let membership = &self.shared.membership;
        if membership.words_lost_before() == 0 {
            return self.stand(MembershipState::Member, out);
        }
        let (lost, own) = (membership.promised_before(), self.shared.own);
        let layout = self.shared.layouts.entered();
        let is_lost = |node: &NodeId| layout.node(*node).is_some_and(|node| node.is_lost);
        let others = self.view.topology.ids().filter(|node| *node != own && !is_lost(node));
        let sources: Vec<NodeId> = others.collect();
        let pace = &self.rebalance.pace;
        self.history.start(&mut self.tasks, Purpose::Rebuild(lost), &sources, pace);
    }

    /// Has what this node is marked to lack streamed back.
    fn rebuild_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        if self.may_still_count(now) {
            return;
        }
        // The last node that was waited for may be declared lost by now.
        self.rebuild.drop_done(self.tasks.context());
        self.stand_if_whole(out);
        self.rebuild.tick(&mut self.tasks, self.ticks);
    }

    /// Whether a coordinator may still count what this node stored and has lost since, for a write
    /// that another replica is yet to store: a walk that begins now may pass before that does, and
    /// the write would be acknowledged by two and held by one. It is over a deadline after the
    /// start.
    fn may_still_count(&self, now: Now) -> bool {
        let is_member = self.shared.membership.state() == MembershipState::Member;
        let begun = self.begun.expect("a tick was handed to it");
        !is_member && now.mono < begun + self.config.deadline_micros
    }

    /// A node that holds every record again is a member, unless it is to recollect first what it
    /// has lost of writes with an idempotency key: see `transfer/history.rs`.
    fn stand_if_whole(&mut self, out: &mut Vec<NodeEffect>) {
        let is_whole = self.rebuild.is_whole_again(self.tasks.context());
        if is_whole && self.shared.membership.words_lost_before() == 0 {
            self.stand(MembershipState::Member, out);
        }
    }

    /// How far the rebuild of this node is: nodes that have streamed all that this node is marked
    /// to lack, of all others.
    pub fn repaired(&self) -> (usize, usize) {
        self.rebuild.repaired(self.tasks.context())
    }

    fn keep_missed(&mut self, out: &mut Vec<NodeEffect>) {
        for node in self.view.ids().collect::<Vec<_>>() {
            let keeping = &mut self.peers.of(node).keeping;
            if !*keeping && self.shared.missed.is_unkept(node) {
                *keeping = true;
                out.push(NodeEffect::KeepMissed { node });
            }
        }
    }

    /// Has stored what other nodes reported since, and disks that could not be stored when they
    /// were seen.
    fn remember(&mut self, out: &mut Vec<NodeEffect>) {
        let logs = &self.shared.logs;
        for peer in self.others() {
            let seen = self.peers.get(peer).and_then(|peer| peer.seen);
            let unstored = seen.filter(|seen| logs.incarnation(peer) != Some(*seen));
            let unstored =
                unstored.map(|incarnation| Claim { incarnation, reported: Reported::default() });
            if let Some(claim) = unstored.or_else(|| logs.unkept(peer)) {
                out.push(NodeEffect::Remember { peer, claim });
            }
        }
    }

    fn call(
        &mut self,
        caller: Caller,
        node: NodeId,
        class: Class,
        request: Request,
        out: &mut Vec<NodeEffect>,
    ) {
        let call = self.tasks.context().next_call();
        self.calls.push((call, caller));
        out.push(NodeEffect::Call { call, node, class, request });
    }

    /// All other nodes of the view, of both sets while partitions move. Who is about to leave may
    /// be the only one that holds a write, a mark, or what is known of a former life of this node;
    /// who is about to join takes part in writes, and misses some like anybody else.
    fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let own = self.shared.own;
        self.view.ids().filter(|node| *node != own).collect::<Vec<_>>().into_iter()
    }
}

/// What is known of another node, and what is done with it.
#[derive(Debug, Default)]
struct Peer {
    /// Its incarnation, if it was seen since the start.
    seen: Option<Incarnation>,
    /// Whether a connection with it was made since the start.
    is_met: bool,
    /// The cluster that it said last that it belongs to; `None` = it said none.
    cluster: Option<ClusterId>,
    /// Whether it said that it never knew another disk of this node.
    confirmed: bool,
    check: Check,
    /// Whether its marks are being stored.
    keeping: bool,
}

/// What is known of the other nodes, by their ids.
#[derive(Debug, Default)]
struct PeerStates(BTreeMap<NodeId, Peer>);

impl PeerStates {
    fn of(&mut self, node: NodeId) -> &mut Peer {
        self.0.entry(node).or_default()
    }

    fn get(&self, node: NodeId) -> Option<&Peer> {
        self.0.get(&node)
    }
}
