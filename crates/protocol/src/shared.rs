//! State of a node that its event loops and its background work share. Each field is a type that
//! synchronizes itself; a layout comes into force in one place, [`Shared::install_layout`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::{Clock, Now};
use crate::membership::adopted_layout::{EncodedLayouts, Layouts, PullNeed};
use crate::membership::cluster_id::{ClusterId, OwnCluster};
use crate::membership::known_disk::KnownDisk;
use crate::membership::layout::Stage;
use crate::membership::logs::Logs;
use crate::membership::state::Membership;
use crate::membership::transition_progress::TransitionProgress;
use crate::message::{MovesState, NodeId};
use crate::paxos::key_locks::KeyLocks;
use crate::paxos::promises::Promises;
use crate::paxos::recent::{OpLookup, RecentWrites, Via, WriteIdentity};
use crate::paxos::state_cache::StateCache;
use crate::placement::topology::{Topology, partition_of};
use crate::placement::view::{View, Views};
use crate::repair::status::Rounds;
use crate::repair::watermark::{Proof, Proofs, RoundId};
use crate::replica::lack_of_space::LackOfSpace;
use crate::replica::newest::NewestTime;
use crate::replica::orphans::OrphanDrops;
use crate::replica::write_checks::WriteChecks;
use crate::transfer::hint_ledger::HintLedger;
use crate::transfer::idempotency_memory::Remembered;
use crate::transfer::missed::{Mark, Missed};
use record::{Operation, Record};

/// State of a node that its event loops and its background work share, grouped by the folders of
/// its types.
#[derive(Debug)]
pub struct Shared {
    /// The id of this node.
    pub own: NodeId,
    /// The name of this node.
    pub own_name: String,
    /// The clock that all threads of the node share.
    pub clock: Arc<Clock>,
    /// The cluster's members, and this node's place among them.
    pub membership: SharedMembership,
    /// Repair rounds and their proofs.
    pub repair: SharedRepair,
    /// Hints, missed writes and orphaned records: the records that other nodes need.
    pub transfer: SharedTransfer,
    /// Conditional writes in progress and their promises.
    pub(crate) paxos: SharedPaxos,
    /// The records of this node's store.
    pub replica: SharedReplica,
}

/// The cluster's members, and this node's place among them.
#[derive(Debug)]
pub struct SharedMembership {
    /// The members and the placement of keys on them.
    pub views: Arc<Views>,
    /// The layouts that this node knows, and its vote on the next one.
    pub layouts: Arc<Layouts>,
    /// This node's membership state. It decides whether the node is authoritative.
    pub state: Membership,
    /// The cluster that this node belongs to. [`Shared::of`] sets a fixed id, which suffices for
    /// tests; a process replaces it.
    pub cluster: Arc<OwnCluster>,
    /// The log position that each node is known to have reached.
    pub logs: Arc<Logs>,
    /// The other nodes that know this node's disk.
    pub known_disk: KnownDisk,
    /// The progress of all nodes in a transition.
    pub moves: TransitionProgress,
    /// True while this node has not pulled all partitions that move to it.
    pub lacks: AtomicBool,
    /// The greatest time that the clock knew when the present placement of keys came into force.
    /// Each later write goes to all nodes that hold its key by that placement.
    placement_time: AtomicU64,
    /// Held while a layout comes into force, so that two layouts do not mix their state.
    entering: Mutex<()>,
}

/// Repair rounds and their proofs.
#[derive(Debug)]
pub struct SharedRepair {
    /// Repair rounds: their requests, progress and results.
    pub rounds: Rounds,
    /// Proofs by repair rounds that all replicas are equal up to a time.
    pub proofs: Arc<Proofs>,
}

impl SharedRepair {
    fn new() -> Self {
        Self { rounds: Rounds::default(), proofs: Arc::new(Proofs::new(Proof::default())) }
    }
}

/// Records that are due to other nodes.
#[derive(Debug, Default)]
pub struct SharedTransfer {
    /// Hints that are not delivered yet.
    pub hints: HintLedger,
    /// Writes that nodes are known to have missed.
    pub missed: Missed,
    /// Orphaned records: those that the present placement puts on other nodes.
    pub orphan_drops: OrphanDrops,
}

/// Conditional writes in progress and their promises.
#[derive(Debug)]
pub(crate) struct SharedPaxos {
    /// Ballots promised to coordinators of conditional writes.
    pub(crate) promises: Promises,
    /// Conditional writes that this node has stored recently.
    pub(crate) recent: RecentWrites,
    /// Locks of the keys whose conditional writes are in progress.
    pub(crate) key_locks: KeyLocks,
    /// The leader cache, from which the next conditional write of a key continues.
    pub(crate) leader_cache: StateCache,
}

impl SharedPaxos {
    /// Makes the state. `floor` is at least every ballot that an earlier process of this node has
    /// promised or sent.
    fn new(floor: u64) -> Self {
        Self {
            promises: Promises::new(floor),
            recent: RecentWrites::new(floor),
            key_locks: KeyLocks::default(),
            leader_cache: StateCache::default(),
        }
    }
}

/// The records of this node's store.
#[derive(Debug)]
pub struct SharedReplica {
    /// An upper bound on the times of the store's records.
    pub newest: NewestTime,
    /// Checks made before a record is stored. While the store may hold records of an earlier
    /// placement, the checks refuse records of partitions that move to this node.
    pub write_checks: WriteChecks,
    /// Times at which the store refused writes because the disk is full.
    pub(crate) lack_of_space: LackOfSpace,
}

impl Shared {
    /// Makes the state of a node in a cluster whose members are a fixed list. `newest` is an upper
    /// bound of the times of the store's versions.
    pub fn new(
        topology: Topology,
        own: NodeId,
        clock: Arc<Clock>,
        membership: Membership,
        newest: u64,
        logs: Arc<Logs>,
    ) -> Self {
        let named = (own, topology.member(own).name.clone());
        let layouts = Layouts::new_fixed(&topology, own);
        Self::of(named, (View::first(topology), layouts), clock, membership, newest, logs)
    }

    /// Makes the state of a node with this id and name, from the view and the layouts that its disk
    /// holds. The node may be a member of neither.
    pub fn of(
        (own, own_name): (NodeId, String),
        (view, layouts): (View, Layouts),
        clock: Arc<Clock>,
        membership: Membership,
        newest: u64,
        logs: Arc<Logs>,
    ) -> Self {
        let views = Arc::new(Views::new(view));
        views.note_name(own, &own_name);
        let floor = clock.last();
        let membership = SharedMembership {
            views,
            layouts: Arc::new(layouts),
            state: membership,
            cluster: Arc::new(OwnCluster::new(Some(ClusterId(1)))),
            logs,
            known_disk: KnownDisk::default(),
            moves: TransitionProgress::default(),
            lacks: AtomicBool::new(false),
            placement_time: AtomicU64::new(floor),
            entering: Mutex::new(()),
        };
        let (newest, write_checks) = (NewestTime::new(newest), WriteChecks::default());
        let this = Self {
            own,
            own_name,
            clock,
            membership,
            repair: SharedRepair::new(),
            transfer: SharedTransfer::default(),
            paxos: SharedPaxos::new(floor),
            replica: SharedReplica { newest, write_checks, lack_of_space: LackOfSpace::default() },
        };
        this.note_pull_need(this.membership.layouts.pull_need(own));
        this
    }
}

impl Shared {
    /// Sets whether this node must still pull partitions under a layout. The caller sets it before
    /// the node serves its first request under that layout.
    fn note_pull_need(&self, lacks: PullNeed) {
        self.replica.write_checks.set_refuses_moving(lacks == PullNeed::DropOrphansAndPull);
        self.membership.lacks.store(lacks != PullNeed::Nothing, Ordering::SeqCst);
    }

    /// True if this node must drop orphaned records before it stores records of partitions that
    /// move to it.
    pub(crate) fn must_drop_orphans(&self) -> bool {
        self.replica.write_checks.refuses_moving()
    }

    /// True if a key moves to this node, and the node must drop orphaned records before it stores
    /// records of the key.
    pub fn must_drop_orphan_of(&self, key: &[u8], copies: u8) -> bool {
        let partition = || partition_of(key);
        self.must_drop_orphans()
            && self.membership.views.with(|view| {
                let holds = |topology: &Topology| topology.holds(self.own, partition(), copies);
                !holds(&view.topology) && view.other.as_ref().is_some_and(holds)
            })
    }

    /// Returns this node's progress in a transition.
    pub(crate) fn moves_state(&self) -> MovesState {
        // The flag `lacks` is set before a layout comes into force, so the layout is loaded first.
        let layout = self.membership.layouts.active_layout();
        let has_all = match layout.stage {
            Stage::Prepare => self.membership.layouts.has_no_orphans(&layout),
            Stage::Settled | Stage::ReadOld | Stage::ReadNew => {
                !self.membership.lacks.load(Ordering::SeqCst)
            }
        };
        self.membership.moves.state(&layout, has_all)
    }

    /// Puts the layout of `kept` into force. The embedder calls this method once `kept` is durable.
    /// Returns true if the layout in force is later than before.
    pub fn install_layout(&self, kept: &EncodedLayouts) -> bool {
        let _alone = self.membership.entering.lock();
        let moves = self.membership.layouts.changes_placement(kept);
        // The repair fence is removed before and after the change, so that no repair round that
        // began under the earlier placement counts.
        if moves {
            self.repair.proofs.forget_seal();
            self.membership.placement_time.store(self.clock.last(), Ordering::Relaxed);
        }
        let lacks = kept.lacks(self.own);
        if lacks != PullNeed::Nothing {
            self.note_pull_need(lacks);
            if moves {
                self.membership.moves.begin();
            }
        }
        let is_later = self.membership.layouts.on_stored(kept, &self.membership.views);
        if moves {
            self.repair.proofs.forget_seal();
        }
        // A layout later than `kept` may be in force by now, and need other pulls.
        self.note_pull_need(self.membership.layouts.pull_need(self.own));
        is_later
    }

    /// Returns an upper bound on the times of the records that this node stored before the present
    /// placement came into force: the clock's greatest time at that moment.
    pub fn placement_time(&self) -> u64 {
        self.membership.placement_time.load(Ordering::Relaxed)
    }

    /// Returns the view in force. To make several decisions by the same view, keep the returned
    /// `Arc`.
    pub fn view(&self) -> Arc<View> {
        self.membership.views.current()
    }

    /// Notes the latest proof that another node reported in a handshake. If this node's directory
    /// is older than the proof, its records no longer count: other nodes may have purged some of
    /// them, and a read could bring purged records back.
    pub fn note_proof_seen(&self, node: NodeId, proven: RoundId) {
        self.note_joins_after(proven);
        if self.repair.proofs.is_outdated_by(proven) {
            self.note_proof(node, Proof { proven, ..Proof::default() });
        }
    }

    /// Notes another node's report of its proof state.
    pub(crate) fn note_proof(&self, node: NodeId, theirs: Proof) {
        self.note_joins_after(theirs.proven);
        if self.repair.proofs.is_outdated_by(theirs.proven) {
            self.membership.state.mark_outdated();
        }
        self.repair.proofs.note_reported(node, theirs);
    }

    /// If this node is about to join, notes that no proof up to `proven` makes its directory
    /// outdated, because that directory is empty.
    fn note_joins_after(&self, proven: RoundId) {
        if self.membership.views.with(|view| view.is_about_to_join(self.own)) {
            self.repair.proofs.mark_made_after(proven);
        }
    }

    /// Returns the name of a present or former member of the cluster: see [`Views::name_of`].
    pub fn name_of(&self, node: NodeId) -> String {
        self.membership.views.name_of(node)
    }

    /// True if this node is among the first `copies` replicas of a key (0 = the default number) and
    /// accepts records of the key. While partitions move, each old replica holds the key until the
    /// move is settled; a new replica holds the key once it has dropped its orphaned records.
    pub fn holds(&self, key: &[u8], copies: u8) -> bool {
        self.membership.views.with(|view| {
            let is_read = view.topology.holds(self.own, partition_of(key), copies);
            // The flag is set before a view with moving partitions comes into force, so the flag is
            // loaded after the view.
            is_read || !self.must_drop_orphans() && view.is_replica(self.own, key, copies)
        })
    }

    /// Returns the number of nodes, including nodes that are about to join or to leave.
    pub fn nodes(&self) -> usize {
        self.membership.views.with(View::nodes)
    }

    /// True if this node is the only member.
    pub fn is_alone(&self) -> bool {
        self.membership.views.with(View::is_alone)
    }

    /// True if this node no longer belongs to the cluster, so that its records do not count.
    pub fn is_removed(&self) -> bool {
        self.membership.views.with(|view| !view.has(self.own))
    }

    /// Returns an upper bound on the times of this key's versions that the node may have
    /// acknowledged and lost; `None` = nothing was lost, or the bound is below `time`. The bound is
    /// the later of `lost_before` and the time of a future record, which no other node may stream
    /// back yet.
    pub(crate) fn may_have_lost(&self, key: &[u8], time: u64) -> Option<u64> {
        let lost_before = self.membership.state.lost_write_bound()?;
        let ahead = self.transfer.missed.since(self.own, partition_of(key));
        Some(lost_before.max(ahead)).filter(|lost| *lost >= time)
    }

    /// Returns the traces of a record's conditional writes with an idempotency key that the node
    /// must store with the record, which arrived by `via`. Traces that this process remembers to
    /// have stored are left out.
    pub fn traces_of(&self, key: &[u8], record: &Record, via: Via) -> Vec<Remembered> {
        Remembered::of_record((key, record), via, |operation| self.has_stored(key, operation, via))
    }

    /// True if this process remembers that it stored a record with this conditional write, and if
    /// this proves as much as the arrival of a record by `via` does.
    fn has_stored(&self, key: &[u8], &Operation { id, digest, .. }: &Operation, via: Via) -> bool {
        match self.paxos.recent.recall(key, WriteIdentity { id, digest }, 0) {
            OpLookup::Stored { ballots, .. } => match via {
                Via::Replica => true,
                Via::Accept => !ballots.is_empty(),
                // The stored trace may not prove that the write was chosen.
                Via::Chosen => false,
            },
            _ => false,
        }
    }

    /// Promises a ballot for all keys. Returns `false` if that can't be done yet.
    pub(crate) fn promise_all(&self, now: Now, ballot: u64, max_skew_micros: u64) -> bool {
        self.clock.merge_ballot(ballot, now, max_skew_micros) && self.paxos.promises.raise(ballot)
    }

    /// Marks that a node missed a write for which there is no hint. A node alone in its cluster is
    /// not marked, because no other node could stream the write to it.
    pub fn mark_missed(&self, node: NodeId, key: &[u8], record: &Record) {
        if !self.is_alone() {
            self.transfer.missed.mark(node, self.mark_of(key, record));
        }
    }

    /// Returns the mark for a node that missed this write.
    pub(crate) fn mark_of(&self, key: &[u8], record: &Record) -> Mark {
        let partition = Some(partition_of(key));
        Mark { partition, since: record.write_time() }
    }
}
