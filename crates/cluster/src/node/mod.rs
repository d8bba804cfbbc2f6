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
mod exchange;
mod hand_over;
mod identity;
mod leftovers;
mod moving;
mod proving;
mod remembering;
mod replay;
mod round;
mod settling;
mod streaming;
mod taking;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::{Now, Version};
use crate::directory::Incarnation;
use crate::event::{CallId, FailureKind, Shared};
use crate::layout::Layout;
use crate::logs::Claim;
use crate::membership::MembershipState;
use crate::message::{Class, NodeId, Reply, Request};
use crate::record::Record;
use crate::remembered::Remembered;
use crate::rounds::RoundReport;
use crate::view::View;
use council::Layouts;
use hand_over::{Deposit, HandOver};
use identity::{Check, Checks};
use leftovers::Dropping;
use moving::Moving;
use replay::Replay;
pub use round::RoundConfig;
use round::{Equal, Round};
use streaming::Source;
use taking::Taking;

/// How often [`NodeEvent::Tick`] is due, in microseconds. Hints go out at most this long after the
/// retry that finds their node back.
pub const NODE_TICK_MICROS: u64 = 250_000;

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
    },
    /// Hints for a node, as the store has them, in the order of their keys; empty = there is
    /// none at or after where it was asked to begin.
    Hints {
        /// The node that they are for.
        peer: NodeId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
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

/// What a node wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEffect {
    /// Read hints for a node from the store; ends in [`NodeEvent::Hints`].
    ReadHints {
        /// The node whose hints to read.
        peer: NodeId,
        /// The key after which to begin; `None` = with the first.
        after: Option<Bytes>,
        /// Bytes of keys and records after which to stop; one is always read.
        max_bytes: usize,
    },
    /// Hints were delivered, or need not be: remove them, unless the store has a newer one of the
    /// same key by now. If the store refuses, it ends in [`NodeEvent::HintsStay`].
    DropHints {
        /// The node that they were for.
        peer: NodeId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
    },
    /// Ask a node, through the coordinator of some loop; ends in [`NodeEvent::Returned`].
    Call {
        /// The call's number.
        call: CallId,
        /// The node to ask.
        node: NodeId,
        /// Why it is asked.
        class: Class,
        /// What to ask.
        request: Request,
    },
    /// Store durably which disk a node has, and what it reported of its log; then call
    /// [`Logs::know`](crate::Logs::know) and [`Logs::kept`](crate::Logs::kept).
    Remember {
        /// The node whose disk it is.
        peer: NodeId,
        /// What is known of it.
        claim: Claim,
    },
    /// Store durably this node's membership state and, in the same batch, what it is marked to
    /// lack; ends in [`NodeEvent::Stood`]. If the node is no longer authoritative, that is in force
    /// already; that it is authoritative again takes effect only once it is stored.
    Stand(MembershipState),
    /// Store durably what a node is marked to lack ([`Missed::encode`](crate::Missed::encode));
    /// ends in [`NodeEvent::MissedKept`].
    KeepMissed {
        /// The node whose marks to store.
        node: NodeId,
    },
    /// Store durably what this node knows of layouts, and its vote; then call
    /// [`Shared::enters`](crate::Shared::enters). Ends in [`NodeEvent::LayoutsKept`]. See
    /// [`Layouts::encode`](crate::Layouts::encode).
    KeepLayouts,
    /// Have the store drop every record that was in it by now and that this node does not hold
    /// ([`Shared::holds`](crate::Shared::holds)). Ends in [`NodeEvent::LeftoversDropped`].
    DropLeftovers,
    /// Store durably what is remembered of writes with an idempotency key; ends in
    /// [`NodeEvent::Returned`].
    KeepRemembered {
        /// The call's number.
        call: CallId,
        /// What is remembered, one entry per write.
        remembered: Vec<Remembered>,
    },
    /// A round of repair that this node drove is over.
    RoundEnded(RoundReport),
    /// This node's directory is an older copy: others have proven something since that it took no
    /// part in, and it may hold what was deleted and purged by that. It must not go on with it.
    Outdated {
        /// Up to which time of a version that is proven.
        proven: u64,
    },
}

/// What a call was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Replay(NodeId),
    Repair(NodeId),
    /// What a majority holds of a key that a page of this node's is about: the place among those
    /// that are asked about.
    Settle(NodeId, usize),
    HandOver(NodeId),
    Deposit(NodeId),
    Check(NodeId),
    /// What a node holds, for the round of this number.
    Compare(u64, NodeId),
    /// The record of a key that differs, for the round and the key of these numbers …
    Fetch(u64, u64),
    /// … and a replica that lacked it.
    Bring(u64, u64),
    /// A node gives up what it can't read.
    Discard(u64),
    /// A step of the round of this number.
    Step(u64, NodeId),
    /// What a node knows of proofs, or is to know.
    Proof(NodeId),
    /// A councillor's vote on the proposal of this number, or that it is to know what was decided.
    Council(u64, NodeId),
    /// Which layout a node goes by.
    Pull(NodeId),
    /// How far a node is in the transition of this epoch.
    Moves(u64, NodeId),
    /// This node seals itself up to this time, before it takes; others say first whether that is
    /// ahead of them.
    TakeSeal(u64, NodeId),
    /// What this node holds of a range, for the pass of this number …
    TakeLook(u64),
    /// … a source's page of it, which is stored here then …
    Take(u64, NodeId),
    /// … and what a majority holds of a key in it, by its place.
    TakeSettle(u64, NodeId, usize),
    /// What a node remembers of writes with an idempotency key, for the walk of this number …
    Remembering(u64, NodeId),
    /// … and what of that is stored here.
    Remembered(u64),
}

/// A node's settings.
#[derive(Debug, Clone, Copy)]
pub struct NodeConfig {
    /// Microseconds for which a coordinator may count what this node stored: a request's deadline.
    pub deadline_micros: u64,
    /// Whether nothing is acknowledged before it is durable.
    pub syncs_always: bool,
    /// Microseconds that a version may be ahead of the wall clock.
    pub max_skew_micros: u64,
    /// Rounds of repair.
    pub rounds: RoundConfig,
    /// Bytes a second at which it takes partitions that move to it; `None` = as fast as it goes.
    pub stream_rate: Option<u64>,
    /// A tombstone of a key with this version, as the store encodes it.
    pub tombstone: fn(&[u8], Version) -> Record,
    /// What the store has under a name, as a page of [`Filter::Remembered`] brings it; `None` = it
    /// is malformed or damaged.
    ///
    /// [`Filter::Remembered`]: crate::Filter::Remembered
    pub remembered: fn(&[u8], &Record) -> Option<Remembered>,
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
    deposit: Deposit,
    /// Partitions of which a record that is ahead of the clock was left at its holder.
    left_ahead: BTreeSet<u16>,
    round: Option<Round>,
    /// What the last round that this node drove, and that made all equal, has shown.
    equal: Equal,
    /// When the last one ended that compared everything, by the monotonic clock.
    last_full: Option<u64>,
    /// Whether a proof that others reported is being taken over.
    takes_over: bool,
    layouts: Layouts,
    moving: Moving,
    taking: Taking,
    dropping: Dropping,
    calls: Vec<(CallId, Caller)>,
    next_call: u64,
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
            deposit: Deposit::default(),
            left_ahead: BTreeSet::new(),
            round: None,
            equal: Equal::default(),
            last_full: None,
            takes_over: false,
            layouts: Layouts::default(),
            moving: Moving::default(),
            taking: Taking::default(),
            dropping: Dropping::default(),
            calls: Vec::new(),
            next_call: 0,
            shared,
        };
        node.begin();
        node
    }

    /// Handles one event; appends what is to be done to `out`.
    pub fn handle(&mut self, now: Now, event: NodeEvent, out: &mut Vec<NodeEffect>) {
        self.begun.get_or_insert(now.mono);
        if self.view.epoch != self.shared.views.epoch() {
            let before = std::mem::replace(&mut self.view, self.shared.view());
            self.checks = None;
            if !before.agrees_with(self.view.id()) {
                self.placement_changes(now, out);
                self.takes_anew(out);
                self.stand_if_confirmed(out);
            }
        }
        match event {
            NodeEvent::PeerSeen { peer, incarnation, knows_us } => {
                self.peer_seen(now, peer, incarnation, knows_us, out);
                self.ask_for_proof(peer, out);
            }
            NodeEvent::Hints { peer, items } => self.read_hints(now, peer, items, out),
            NodeEvent::HintsStay { peer, hints, bytes } => self.hints_stay(peer, hints, bytes),
            NodeEvent::Returned { call, result } => {
                let Some(at) = self.calls.iter().position(|(id, _)| *id == call) else { return };
                match self.calls.swap_remove(at).1 {
                    Caller::Replay(peer) => self.replayed(now, peer, result, out),
                    Caller::Repair(peer) => self.streamed(now, peer, result, out),
                    Caller::Settle(peer, at) => self.settled(now, peer, at, result, out),
                    Caller::HandOver(peer) => self.handed_over(now, peer, result),
                    Caller::Deposit(_) => self.deposited(now, &result),
                    Caller::Check(peer) => self.checked(peer, &result),
                    Caller::Compare(round, peer) => self.compared(now, (round, peer), result, out),
                    Caller::Fetch(round, job) => self.fetched(now, (round, job), result, out),
                    Caller::Bring(round, job) => self.brought(now, (round, job), &result, out),
                    Caller::Discard(round) => self.discarded(now, round, &result, out),
                    Caller::Step(round, node) => self.stepped(now, (round, node), &result, out),
                    Caller::Proof(node) => self.received_proof(node, &result),
                    Caller::Council(number, node) => self.voted(now, (number, node), result, out),
                    Caller::Pull(node) => self.pulled(node, result, out),
                    Caller::Moves(epoch, node) => self.received_moves((epoch, node), &result),
                    Caller::TakeSeal(time, node) => {
                        self.sealed_to_take(now, (time, node), &result, out);
                    }
                    Caller::TakeLook(pass) => self.looked_at_range(now, pass, result, out),
                    Caller::Take(pass, node) => self.took(now, (pass, node), result, out),
                    Caller::TakeSettle(pass, node, at) => {
                        self.settled_taken(now, (pass, node, at), result, out);
                    }
                    Caller::Remembering(walk, node) => {
                        self.received_remembered(now, (walk, node), result, out);
                    }
                    Caller::Remembered(walk) => self.kept_remembered(now, walk, &result, out),
                }
            }
            NodeEvent::Fenced => self.fenced(now, out),
            NodeEvent::Stood { state, kept } => self.stood(state, kept, out),
            NodeEvent::MissedKept { node, kept } => {
                self.peers.of(node).keeping = false;
                if node == self.shared.own {
                    self.deposit.wanted = !kept;
                }
            }
            NodeEvent::Propose(layout) => self.propose(now, &layout, out),
            NodeEvent::Behind => self.pull_layout(out),
            NodeEvent::LayoutsKept { kept } => self.layouts_kept(kept, out),
            NodeEvent::LeftoversDropped { done } => self.leftovers_dropped(now, done, out),
            NodeEvent::Tick => self.tick(now, out),
        }
        self.settle();
    }

    fn tick(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        self.check_due(out);
        self.replay_due(now, out);
        self.keep_missed(out);
        self.hand_over_due(now, out);
        self.deposit_due(now, out);
        self.repair_due(now, out);
        self.proofs_due(out);
        self.round_due(now, out);
        self.layouts_due(now, out);
        self.moves_due(now, out);
        self.leftovers_due(now, out);
        self.taking_due(now, out);
        self.ticks += 1;
        if self.ticks.is_multiple_of(REMEMBER_TICKS) {
            self.remember(out);
        }
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

    fn remember(&mut self, out: &mut Vec<NodeEffect>) {
        for peer in self.others() {
            if let Some(claim) = self.shared.logs.unkept(peer) {
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
        let call = CallId(self.next_call);
        self.next_call += 1;
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
    /// Whether it said that it never knew another disk of this node.
    confirmed: bool,
    check: Check,
    replay: Replay,
    hand_over: HandOver,
    source: Source,
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

    /// Those of whom something was asked ever, whether they belong to the view or not.
    fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.0.keys().copied()
    }

    fn get(&self, node: NodeId) -> Option<&Peer> {
        self.0.get(&node)
    }
}
