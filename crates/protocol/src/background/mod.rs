//! A node's background work, done once for all event loops: hints, rebuilds, repair rounds,
//! membership changes.
//!
//! ```text
//!   PeerSeen ───────▶ ┌────────────┐ ─▶ StoreClaim, StoreState, StoreMissed (stored on disk)
//!   Tick ───────────▶ │ Background │ ─▶ ReadHints, DropHints (this node's store)
//!   CallReturned ───▶ │  (tasks)   │ ─▶ Call ──▶ some loop's Protocol ──▶ a node, also this one
//!   StateStored, … ─▶ └────────────┘                                      │
//!        ▲                                                                │
//!        └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! [`Background`] hands each event to the type that owns the state. Work that waits for another
//! node is a task (`task/mod.rs`).

pub(crate) mod effect;
pub(crate) mod task;

use std::sync::Arc;

use crate::background::effect::{BackgroundConfig, BackgroundEffect};
use crate::background::task::Tasks;
use crate::clock::Now;
use crate::event::{CallId, FailureKind};
use crate::membership::announcement::Announcement;
use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_check::DiskCheck;
use crate::membership::disk_ids::Incarnation;
use crate::membership::founding::Founding;
use crate::membership::layout::Layout;
use crate::membership::logs::Claim;
use crate::membership::proposals::Proposals;
use crate::membership::stages::Stages;
use crate::membership::state::MembershipState;
use crate::message::{NodeId, Reply};
use crate::placement::view::View;
use crate::repair::Repair;
use crate::repair::missed_proofs::MissedProofs;
use crate::shared::Shared;
use crate::transfer::cleanup::Cleanup;
use crate::transfer::{Hints, Inbound, Marks};

/// The number of ticks between two writes of the other nodes' log reports: a small write for each
/// node whose report changed.
const CLAIM_STORE_TICKS: u64 = 4;

/// An input of a node's background work.
#[derive(Debug, Clone)]
pub enum BackgroundEvent {
    /// A connection to a peer was made, by this node or by the peer.
    PeerSeen {
        /// The peer at the other end.
        peer: NodeId,
        /// The peer's incarnation: the id of its disk.
        incarnation: Incarnation,
        /// The peer's knowledge of this node's disk, if any.
        knows_us: Option<Claim>,
        /// True if the disk that the peer knows is the only disk of this node that the peer ever
        /// knew.
        knew_only_this_disk: bool,
        /// The cluster that the peer belongs to; `None` = none yet.
        cluster: Option<ClusterId>,
    },
    /// Delivered hints could not be removed: the store still has them, and will return them again.
    HintRemovalFailed {
        /// The node that the hints are for.
        peer: NodeId,
        /// The number of hints.
        hints: u64,
        /// The bytes that the hints count for ([`hint_bytes`](crate::hint_bytes)).
        bytes: u64,
    },
    /// A call has returned.
    CallReturned {
        /// The call that is over.
        call: CallId,
        /// The reply, or why there is none.
        result: Result<Reply, FailureKind>,
    },
    /// This node was fenced: see [`Membership::fence`](crate::Membership::fence).
    Fenced,
    /// A membership state was stored on disk, or storing it failed.
    StateStored {
        /// The membership state.
        state: MembershipState,
        /// True if the state was stored.
        kept: bool,
    },
    /// The cluster's id was stored on disk, or storing it failed.
    ClusterIdStored {
        /// The id that was to be stored.
        id: ClusterId,
        /// True if the id was stored.
        kept: bool,
    },
    /// A node's marks were stored on disk, or storing them failed.
    MissedStored {
        /// The node that the marks belong to.
        node: NodeId,
        /// True if the marks were stored.
        kept: bool,
    },
    /// A caller proposes this layout as the next one; [`Layouts::change`](crate::Layouts::change)
    /// tells the outcome.
    Propose(Arc<Layout>),
    /// Another node's layout is later than this node's.
    Behind,
    /// This node's knowledge of layouts was stored on disk, or storing it failed.
    LayoutsStored {
        /// True if the knowledge was stored.
        kept: bool,
    },
    /// The store dropped orphaned records: records that are now placed only on other nodes.
    OrphansDropped {
        /// True if no orphaned record remains.
        done: bool,
    },
    /// Time has passed.
    Tick,
}

/// The part of the protocol that runs once for all event loops of a node.
#[derive(Debug)]
pub struct Background {
    shared: Arc<Shared>,
    /// The view in force.
    view: Arc<View>,
    tasks: Tasks,
    disk_check: DiskCheck,
    announcement: Announcement,
    founding: Founding,
    hints: Hints,
    marks: Marks,
    inbound: Inbound,
    repair: Repair,
    proofs: MissedProofs,
    proposals: Proposals,
    stages: Stages,
    cleanup: Cleanup,
}

impl Background {
    /// Makes the background work of a node that has just started.
    pub fn new(shared: Arc<Shared>, config: BackgroundConfig) -> Self {
        let tasks = Tasks::new(Arc::clone(&shared), config);
        let mut disk_check = DiskCheck::default();
        disk_check.begin(tasks.context());
        Self {
            view: shared.view(),
            shared,
            tasks,
            disk_check,
            announcement: Announcement::default(),
            founding: Founding::default(),
            hints: Hints::default(),
            marks: Marks::default(),
            inbound: Inbound::default(),
            repair: Repair::default(),
            proofs: MissedProofs::default(),
            proposals: Proposals::default(),
            stages: Stages::default(),
            cleanup: Cleanup::default(),
        }
    }

    /// Handles one event; appends the effects to carry out to `out`.
    pub fn handle(&mut self, now: Now, event: BackgroundEvent, out: &mut Vec<BackgroundEffect>) {
        self.tasks.set_now(now);
        let cx = self.tasks.context().clone();
        self.inbound.begin(&cx);
        self.follow_view();
        self.repair.stop_if_void(&mut self.tasks);
        match event {
            BackgroundEvent::PeerSeen {
                peer,
                incarnation,
                knows_us,
                knew_only_this_disk,
                cluster,
            } => {
                let knows = (knows_us, knew_only_this_disk);
                self.disk_check.peer_seen(&cx, (peer, incarnation), knows);
                self.founding.on_connect(&cx, peer, cluster);
                self.proofs.on_connect(&mut self.tasks, peer);
                self.announcement.tick(&mut self.tasks);
            }
            BackgroundEvent::HintRemovalFailed { peer, hints, bytes } => {
                self.hints.stay(&cx, peer, hints, bytes)
            }
            BackgroundEvent::CallReturned { call, result } => {
                self.tasks.complete_call(call, result);
                self.disk_check.apply_ping_results();
                self.announcement.tick(&mut self.tasks);
                self.inbound.follow_progress(&mut self.tasks, &mut self.disk_check, &self.cleanup);
            }
            BackgroundEvent::Fenced => self.disk_check.on_fenced(&cx),
            BackgroundEvent::StateStored { state, kept } => {
                self.disk_check.state_stored(&cx, state, kept)
            }
            BackgroundEvent::ClusterIdStored { id, kept } => {
                self.founding.on_id_stored(&cx, id, kept)
            }
            BackgroundEvent::MissedStored { node, kept } => {
                self.marks.on_marks_stored(&cx, node, kept)
            }
            BackgroundEvent::Propose(layout) => self.proposals.propose(&mut self.tasks, &layout),
            BackgroundEvent::Behind => self.proposals.pull(&mut self.tasks),
            BackgroundEvent::LayoutsStored { kept } => cx.on_layouts_stored(kept),
            BackgroundEvent::OrphansDropped { done } => self.cleanup.on_orphans_dropped(&cx, done),
            BackgroundEvent::Tick => self.tick(),
        }
        self.disk_check.update_confirmation(&cx);
        self.tasks.drain_effects(out);
    }

    /// Follows the view in force, if it has changed.
    fn follow_view(&mut self) {
        if self.view.epoch == self.shared.membership.views.epoch() {
            return;
        }
        let before = std::mem::replace(&mut self.view, self.shared.view());
        self.tasks.follow(&self.view);
        self.disk_check.follow_view();
        if !before.agrees_with(self.view.id()) {
            self.repair.placement_changes(&mut self.tasks);
            self.inbound.placement_changes(&mut self.tasks, &mut self.disk_check);
            self.disk_check.become_member_if_confirmed(self.tasks.context());
        }
        // Nodes may have joined or left without any change of placement.
        self.founding.follow_view(self.tasks.context());
    }

    fn tick(&mut self) {
        let Self { tasks, disk_check, .. } = self;
        let cx = tasks.context().clone();
        disk_check.tick(tasks);
        self.announcement.tick(tasks);
        self.founding.tick(tasks, disk_check);
        self.hints.tick(tasks);
        self.marks.keep(&cx);
        self.marks.tick(tasks);
        self.inbound.tick(tasks, disk_check);
        self.proofs.tick(tasks);
        tasks.tick();
        disk_check.apply_ping_results();
        self.inbound.follow_progress(tasks, disk_check, &self.cleanup);
        self.repair.tick(tasks);
        self.proposals.tick(tasks);
        self.stages.tick(tasks, &mut self.proposals);
        self.cleanup.tick(&cx);
        self.inbound.rebalance_due(tasks, &self.cleanup);
        if tasks.ticks().is_multiple_of(CLAIM_STORE_TICKS) {
            disk_check.store_claims(&cx);
        }
    }

    /// Drops one of the tasks under way at the point where it waits, chosen by `pick`, and returns
    /// its name. The simulator uses this to show that a dropped task leaves nothing behind, and
    /// that its owner starts another.
    pub fn drop_task(&mut self, pick: u64) -> Option<&'static str> {
        self.tasks.stop_any(pick)
    }

    /// Returns the progress of this node's rebuild: the number of nodes that have streamed all
    /// records that this node may lack, and the number of all other nodes.
    pub fn rebuild_progress(&self) -> (usize, usize) {
        self.inbound.rebuild_progress(self.tasks.context())
    }
}
