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
    /// The members of the cluster, and the placement of keys on them.
    pub views: Arc<Views>,
    /// The id of this node.
    pub own: NodeId,
    /// The name of this node.
    pub own_name: String,
    /// The node's clock.
    pub clock: Arc<Clock>,
    /// The node's membership state: whether its absences are authoritative.
    pub membership: Membership,
    /// The cluster that the node belongs to. A node of tests belongs to one from the start.
    pub cluster: Arc<OwnCluster>,
    /// An upper bound on the versions in the store.
    pub newest: Newest,
    /// Hints that wait for other nodes.
    pub hints: HintLedger,
    /// The marks of what nodes are known to lack.
    pub missed: Missed,
    /// Requests to drop orphaned records, which are placed on other nodes by now.
    pub leftovers: Leftovers,
    /// The layout that this node goes by, and its vote about the next one.
    pub layouts: Arc<Layouts>,
    /// While partitions move: true if this node has not yet pulled everything that moves to it.
    pub lacks: AtomicBool,
    /// The checks before a record is stored. A node that may hold records of an earlier placement,
    /// of partitions that move to it, stores no records of those partitions yet.
    pub before_writes: BeforeWrites,
    /// The clock when the present placement of keys began. Later writes have gone to all nodes that
    /// hold the key by this placement.
    placed_at: AtomicU64,
    /// Held while a layout comes into force: two layouts' effects must not mix.
    entering: Mutex<()>,
    /// The progress of all nodes in a transition.
    pub moves: Moves,
    /// The state of repair rounds.
    pub rounds: Rounds,
    /// The proof state: what is proven about all replicas.
    pub proofs: Arc<Proofs>,
    /// The known reach of each node's log.
    pub logs: Arc<Logs>,
    /// The set of other nodes that know this node's disk.
    pub known_disk: KnownDisk,
    /// The ballots promised to coordinators of conditional writes.
    pub(crate) promises: Promises,
    /// The conditional writes that this node has stored lately.
    pub(crate) recent: Recent,
    /// The key locks of conditional writes under way.
    pub(crate) turns: Turns,
    /// The records from which the next conditional writes of their keys continue.
    pub(crate) keeper: Keeper,
}

impl Shared {
    /// Makes the state of a node of a fixed list. `newest` is the greatest time of a version that
    /// the store may hold.
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

    /// Makes the state of a node with this id and name, which goes by the layout on its disk and by
    /// that layout's view. The node may be a member of neither.
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
    /// Notes what this node lacks by a layout, before the first request under it is served.
    fn note_lacks(&self, lacks: Lacks) {
        self.before_writes.set_empty(lacks == Lacks::ToBeEmptied);
        self.lacks.store(lacks != Lacks::Nothing, Ordering::SeqCst);
    }

    /// True if the node stores nothing of partitions that move to it at present.
    pub(crate) fn is_to_be_emptied(&self) -> bool {
        self.before_writes.empty()
    }

    /// True if the node stores nothing of a key at present: records of it here may stem from an
    /// earlier placement.
    pub fn is_to_be_emptied_of(&self, key: &[u8], copies: u8) -> bool {
        let partition = || partition_of(key);
        self.is_to_be_emptied()
            && self.views.with(|view| {
                let holds = |topology: &Topology| topology.holds(self.own, partition(), copies);
                !holds(&view.topology) && view.other.as_ref().is_some_and(holds)
            })
    }

    /// Returns this node's progress in a transition.
    pub(crate) fn moves_state(&self) -> MovesState {
        // The lack under a layout is noted before the layout is entered, so it is loaded
        // afterwards.
        let layout = self.layouts.entered();
        let has_all = match layout.stage {
            Stage::Prepare => self.layouts.is_empty_of_others(&layout),
            Stage::Settled | Stage::ReadOld | Stage::ReadNew => !self.lacks.load(Ordering::SeqCst),
        };
        self.moves.state(&layout, has_all)
    }

    /// Puts a later layout into force, now that this node's knowledge of layouts is durable.
    /// Returns true if a later layout than before is in force.
    pub fn enters(&self, kept: &LayoutsKept) -> bool {
        let _alone = self.entering.lock();
        let moves = self.layouts.is_placed_otherwise(kept);
        // The fence is forgotten before and after the change: nothing of a round that began before
        // may count.
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
        // Another layout may be in force by now.
        self.note_lacks(self.layouts.lacks(self.own));
        is_later
    }

    /// Returns the clock when the present placement of keys began: this node's records from before
    /// have times up to it.
    pub fn placed_at(&self) -> u64 {
        self.placed_at.load(Ordering::Relaxed)
    }

    /// Returns the view in force. To make several decisions by the same view, keep the returned
    /// `Arc`.
    pub fn view(&self) -> Arc<View> {
        self.views.current()
    }

    /// Notes that a handshake reported what is proven, by another node's knowledge. If this node's
    /// directory is older than that proof, it still holds records that were purged since, and none
    /// of its records count: from now on, as the next requests must not bring them back.
    pub fn seen_with_proof(&self, node: NodeId, proven: RoundId) {
        self.joins_after(proven);
        if self.proofs.is_outdated_by(proven) {
            self.received_proof(node, Proof { proven, ..Proof::default() });
        }
    }

    /// Notes another node's report of its proof state.
    pub(crate) fn received_proof(&self, node: NodeId, theirs: Proof) {
        self.joins_after(theirs.proven);
        if self.proofs.is_outdated_by(theirs.proven) {
            self.membership.outdated();
        }
        self.proofs.received(node, theirs);
    }

    /// A node that is about to join has an empty directory, whatever is proven.
    fn joins_after(&self, proven: RoundId) {
        if self.views.with(|view| view.awaits(self.own)) {
            self.proofs.holds_nothing_of(proven);
        }
    }

    /// Returns the name of a node that belongs to the cluster, or did: see [`Views::name_of`].
    pub fn name_of(&self, node: NodeId) -> String {
        self.views.name_of(node)
    }

    /// True if this node is among the first `copies` replicas of a key, 0 being the default number,
    /// and stores records of the key that it is sent. While partitions move, nodes that lose the
    /// key hold it until they have left, and nodes that gain it hold it once they are free of
    /// records of an earlier placement.
    pub fn holds(&self, key: &[u8], copies: u8) -> bool {
        self.views.with(|view| {
            let is_read = view.topology.holds(self.own, partition_of(key), copies);
            // Noted before such a view is in force, so it is loaded afterwards.
            is_read || !self.is_to_be_emptied() && view.places(self.own, key, copies)
        })
    }

    /// Returns the number of nodes, including nodes that are about to join or to leave.
    pub fn nodes(&self) -> usize {
        self.views.with(View::nodes)
    }

    /// True if this node is the only one.
    pub fn is_alone(&self) -> bool {
        self.views.with(View::is_alone)
    }

    /// True if this node no longer belongs to the cluster: nothing that it holds counts.
    pub fn is_removed(&self) -> bool {
        self.views.with(|view| !view.has(self.own))
    }

    /// Returns the greatest time of a version of this key that this node may have acknowledged and
    /// lost, if it is not below `time`: `lost_before`, or the time of a record that is too far
    /// ahead of this node's clock to be streamed back.
    pub(crate) fn may_have_lost(&self, key: &[u8], time: u64) -> Option<u64> {
        let lost_before = self.membership.lost()?;
        let ahead = self.missed.since(self.own, partition_of(key));
        Some(lost_before.max(ahead)).filter(|lost| *lost >= time)
    }

    /// True if this process knows that it has stored a record with this conditional write in it.
    pub fn has_stored(&self, key: &[u8], &Operation { id, digest, .. }: &Operation) -> bool {
        matches!(self.recent.recall(key, WriteName { id, digest }, 0), Recalled::Stored { .. })
    }

    /// Promises a ballot for all keys. Returns `false` if that can't be done yet.
    pub(crate) fn promise_all(&self, now: Now, ballot: u64, max_skew_micros: u64) -> bool {
        self.clock.admit(ballot, now, max_skew_micros) && self.promises.raise(ballot)
    }

    /// Marks that a node missed a write that no hint will bring it. A node alone in its cluster is
    /// not marked: no other node could stream the write to it.
    pub fn miss(&self, node: NodeId, key: &[u8], record: &Record) {
        if !self.is_alone() {
            self.missed.mark(node, self.mark_of(key, record));
        }
    }

    /// Returns the mark of a node that missed this write.
    pub(crate) fn mark_of(&self, key: &[u8], record: &Record) -> Mark {
        let partition = Some(partition_of(key));
        Mark { partition, since: record.when() }
    }
}
