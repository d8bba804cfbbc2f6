//! State of a node that its event loops and its background work share. Each field is a type that
//! synchronizes itself; a layout comes into force in one place, [`Shared::enters`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::{Clock, Now};
use crate::membership::cluster_id::{ClusterId, OwnCluster};
use crate::membership::known_disk::KnownDisk;
use crate::membership::layout::Stage;
use crate::membership::layouts::{Lacks, Layouts, LayoutsKept};
use crate::membership::logs::Logs;
use crate::membership::moves::Moves;
use crate::membership::state::Membership;
use crate::message::{MovesState, NodeId};
use crate::paxos::kept::Keeper;
use crate::paxos::promises::Promises;
use crate::paxos::recent::{Recalled, Recent, WriteName};
use crate::paxos::turns::Turns;
use crate::placement::topology::{Topology, partition_of};
use crate::placement::view::{View, Views};
use crate::repair::status::Rounds;
use crate::repair::watermark::{Proof, Proofs, RoundId};
use crate::replica::before_writes::BeforeWrites;
use crate::replica::leftovers::Leftovers;
use crate::replica::newest::Newest;
use crate::transfer::ledger::HintLedger;
use crate::transfer::missed::{Mark, Missed};
use record::{Operation, Record};

/// State of a node that its event loops and its background work share.
#[derive(Debug)]
pub struct Shared {
    /// Who belongs to the cluster, and who of them holds what.
    pub views: Arc<Views>,
    /// The id of this node.
    pub own: NodeId,
    /// The name of this node.
    pub own_name: String,
    /// The node's one clock.
    pub clock: Arc<Clock>,
    /// Its membership state: whether it is authoritative for what it does not hold.
    pub membership: Membership,
    /// The cluster that it belongs to. A machine of tests belongs to one from the start.
    pub cluster: Arc<OwnCluster>,
    /// How new the store's records are at most.
    pub newest: Newest,
    /// Hints that wait for other nodes.
    pub hints: HintLedger,
    /// What nodes are known to lack.
    pub missed: Missed,
    /// Whether records that are placed on other nodes by now are to go.
    pub leftovers: Leftovers,
    /// Which layout this node goes by, and its vote about the next one.
    pub layouts: Arc<Layouts>,
    /// While partitions move: whether this node has not taken yet all that moves to it.
    pub lacks: AtomicBool,
    /// What is done before a record is stored. A node that may hold something of another time of
    /// what moves to it stores nothing of that yet.
    pub before_writes: BeforeWrites,
    /// The clock when keys were placed as they are now. What was written since has gone to all who
    /// hold the key by that.
    placed_at: AtomicU64,
    /// Held while a layout comes into force: what it says must not mix with another's.
    entering: Mutex<()>,
    /// How far all nodes are in a transition.
    pub moves: Moves,
    /// Rounds of repair.
    pub rounds: Rounds,
    /// What is proven about all replicas.
    pub proofs: Arc<Proofs>,
    /// How far each node's log is known to reach.
    pub logs: Arc<Logs>,
    /// Which other nodes know this node's disk.
    pub known_disk: KnownDisk,
    /// What was promised to coordinators of conditional writes.
    pub(crate) promises: Promises,
    /// Which conditional writes this node has stored lately.
    pub(crate) recent: Recent,
    /// Which conditional writes are under way.
    pub(crate) turns: Turns,
    /// What the next ones go on from.
    pub(crate) keeper: Keeper,
}

impl Shared {
    /// Of a node of a list that never changed. `newest` is the greatest time of a version that the
    /// store may hold.
    pub fn new(
        topology: Topology,
        own: NodeId,
        clock: Arc<Clock>,
        membership: Membership,
        newest: u64,
        logs: Arc<Logs>,
    ) -> Self {
        let named = (own, topology.member(own).name.clone());
        let layouts = Layouts::fixed(&topology, own);
        Self::of(named, (View::first(topology), layouts), clock, membership, newest, logs)
    }

    /// Of a node with that id and name, which goes by the layout that its disk knows, and by the
    /// view of that. It may be in neither.
    pub fn of(
        (own, own_name): (NodeId, String),
        (view, layouts): (View, Layouts),
        clock: Arc<Clock>,
        membership: Membership,
        newest: u64,
        logs: Arc<Logs>,
    ) -> Self {
        let (hints, missed) = (HintLedger::default(), Missed::default());
        let (views, newest) = (Arc::new(Views::new(view)), Newest::new(newest));
        views.note(own, &own_name);
        let (floor, turns, keeper) = (clock.last(), Turns::default(), Keeper::default());
        let (promises, recent) = (Promises::new(floor), Recent::new(floor));
        let this = Self {
            views,
            own,
            own_name,
            clock,
            membership,
            cluster: Arc::new(OwnCluster::new(Some(ClusterId(1)))),
            newest,
            hints,
            missed,
            leftovers: Leftovers::default(),
            layouts: Arc::new(layouts),
            lacks: AtomicBool::new(false),
            before_writes: BeforeWrites::default(),
            placed_at: AtomicU64::new(floor),
            entering: Mutex::new(()),
            moves: Moves::default(),
            rounds: Rounds::default(),
            proofs: Arc::new(Proofs::new(Proof::default())),
            logs,
            known_disk: KnownDisk::default(),
            promises,
            recent,
            turns,
            keeper,
        };
        this.note_lacks(this.layouts.lacks(own));
        this
    }
}

impl Shared {
    /// Notes what this node lacks by a layout: before the first request under it is served.
    fn note_lacks(&self, lacks: Lacks) {
        self.before_writes.set_empty(lacks == Lacks::ToBeEmptied);
        self.lacks.store(lacks != Lacks::Nothing, Ordering::SeqCst);
    }

    /// Whether it stores nothing of what moves to it at present.
    pub(crate) fn is_to_be_emptied(&self) -> bool {
        self.before_writes.empty()
    }

    /// Whether it stores nothing of a key at present: what it may hold of it is of another time.
    pub fn is_to_be_emptied_of(&self, key: &[u8], copies: u8) -> bool {
        let partition = || partition_of(key);
        self.is_to_be_emptied()
            && self.views.with(|view| {
                let holds = |topology: &Topology| topology.holds(self.own, partition(), copies);
                !holds(&view.topology) && view.other.as_ref().is_some_and(holds)
            })
    }

    /// How far this node is in a transition.
    pub(crate) fn moves_state(&self) -> MovesState {
        // What it lacks by a layout is noted before that is entered, so it is looked at afterwards.
        let layout = self.layouts.entered();
        let has_all = match layout.stage {
            Stage::Prepare => self.layouts.is_empty_of_others(&layout),
            Stage::Settled | Stage::ReadOld | Stage::ReadNew => !self.lacks.load(Ordering::SeqCst),
        };
        self.moves.state(&layout, has_all)
    }

    /// What is known of layouts is durable: a later one is in force from now on. Returns whether
    /// one is that was not before.
    pub fn enters(&self, kept: &LayoutsKept) -> bool {
        let _alone = self.entering.lock();
        let moves = self.layouts.is_placed_otherwise(kept);
        // Before and after: nothing of a round that began before is to be counted.
        if moves {
            self.proofs.forget_seal();
            self.placed_at.store(self.clock.last(), Ordering::Relaxed);
        }
        let lacks = kept.lacks(self.own);
        if lacks != Lacks::Nothing {
            self.note_lacks(lacks);
            if moves {
                self.moves.begin();
            }
        }
        let is_later = self.layouts.kept(kept, &self.views);
        if moves {
            self.proofs.forget_seal();
        }
        // By whatever is in force by now.
        self.note_lacks(self.layouts.lacks(self.own));
        is_later
    }

    /// Everything that this node had stored when keys were placed as they are now was written up to
    /// that time.
    pub fn placed_at(&self) -> u64 {
        self.placed_at.load(Ordering::Relaxed)
    }

    /// The view in force. To make several decisions by the same view, keep what this returns.
    pub fn view(&self) -> Arc<View> {
        self.views.current()
    }

    /// A handshake reported what is proven to another node's knowledge. If this node's directory is
    /// older than that, it holds what was purged since, and nothing of it counts: at once, for what
    /// is asked next must not bring that back.
    pub fn seen_with_proof(&self, node: NodeId, proven: RoundId) {
        self.joins_after(proven);
        if self.proofs.is_outdated_by(proven) {
            self.received_proof(node, Proof { proven, ..Proof::default() });
        }
    }

    /// Another node has reported what it knows of proofs.
    pub(crate) fn received_proof(&self, node: NodeId, theirs: Proof) {
        self.joins_after(theirs.proven);
        if self.proofs.is_outdated_by(theirs.proven) {
            self.membership.outdated();
        }
        self.proofs.received(node, theirs);
    }

    /// As long as a node is about to join, its directory holds nothing, whatever is proven.
    fn joins_after(&self, proven: RoundId) {
        if self.views.with(|view| view.awaits(self.own)) {
            self.proofs.holds_nothing_of(proven);
        }
    }

    /// The name of a node that belongs to the cluster, or did: see [`Views::name_of`].
    pub fn name_of(&self, node: NodeId) -> String {
        self.views.name_of(node)
    }

    /// Whether this node is among the first `copies` replicas of a key, 0 being the default number,
    /// and stores what it is sent of it. While partitions move, that is so of those that leave it
    /// until they have left, and of those that come to it once it holds nothing of another time.
    pub fn holds(&self, key: &[u8], copies: u8) -> bool {
        self.views.with(|view| {
            let is_read = view.topology.holds(self.own, partition_of(key), copies);
            // Noted before such a view is in force, so it is looked at afterwards.
            is_read || !self.is_to_be_emptied() && view.places(self.own, key, copies)
        })
    }

    /// How many nodes there are, those included that are about to come or to go.
    pub fn nodes(&self) -> usize {
        self.views.with(View::nodes)
    }

    /// Whether this node is the only one.
    pub fn is_alone(&self) -> bool {
        self.views.with(View::is_alone)
    }

    /// Whether this node belongs to the cluster no more: nothing that it holds counts.
    pub fn is_removed(&self) -> bool {
        self.views.with(|view| !view.has(self.own))
    }

    /// The greatest time of a version of this key that this node may have acknowledged and lost, if
    /// that is not below `time`: `lost_before`, or the time of a record that is too far ahead of
    /// its clock to be streamed back.
    pub(crate) fn may_have_lost(&self, key: &[u8], time: u64) -> Option<u64> {
        let lost_before = self.membership.lost()?;
        let ahead = self.missed.since(self.own, partition_of(key));
        Some(lost_before.max(ahead)).filter(|lost| *lost >= time)
    }

    /// Whether this process knows that a conditional write is in a record that it has stored.
    pub fn has_stored(&self, key: &[u8], &Operation { id, digest, .. }: &Operation) -> bool {
        matches!(self.recent.recall(key, WriteName { id, digest }, 0), Recalled::Stored { .. })
    }

    /// Promises a ballot for all keys. Returns `false` if that can't be done yet.
    pub(crate) fn promise_all(&self, now: Now, ballot: u64, max_skew_micros: u64) -> bool {
        self.clock.admit(ballot, now, max_skew_micros) && self.promises.raise(ballot)
    }

    /// Marks that a node missed a write that no hint will bring it. A node alone is not marked:
    /// nobody else could stream the write to it.
    pub fn miss(&self, node: NodeId, key: &[u8], record: &Record) {
        if !self.is_alone() {
            self.missed.mark(node, self.mark_of(key, record));
        }
    }

    /// The mark of a node that missed this write.
    pub(crate) fn mark_of(&self, key: &[u8], record: &Record) -> Mark {
        let partition = Some(partition_of(key));
        Mark { partition, since: record.when() }
    }
}
