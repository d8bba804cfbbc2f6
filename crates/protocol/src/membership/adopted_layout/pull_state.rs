//! Rebalance progress: the data that this node has pulled of the partitions that move to it, in
//! memory and on disk.
//!
//! ```text
//!  `ReadOld` is in force ─▶ orphaned records dropped ─▶ repair fence raised
//!                        ─▶ records of each source pulled ─▶ everything pulled
//! ```
//!
//! Each step is noted on disk once its data is durable. Encoding, in the layout record after the
//! known layout, each field with its length in bytes: emptied 8 │ transition 8 │ step 1 │ count of
//! sources 2 │ their node ids, 2 each │ joined 8 │ received │ forgotten. The last two fields are
//! each a time 8 │ length 4 │ bitmap of partitions; a bitmap has 0 or 8,192 bytes.

use std::collections::BTreeSet;

use bytes::Buf;

use super::{Layouts, LayoutsState};
use crate::clock::Clock;
use crate::membership::layout::{Layout, Stage};
use crate::node_id::NodeId;
use crate::paxos::operation::IDEMPOTENCY_RETENTION_MICROS;
use crate::placement::topology::PARTITIONS;
use crate::placement::view::FIRST_EPOCH;

/// Length of a bitmap of partitions in bytes.
const PARTITIONS_LEN: usize = PARTITIONS / 8;

/// Progress of the pull. A later step includes all earlier steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PullStep {
    /// Nothing is done yet.
    #[default]
    NotStarted,
    /// Pulling: orphaned records are dropped, and the repair fence is set.
    Pulling,
    /// All records that move to this node are stored.
    AllPulled,
}

/// The rebalance progress of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PullState {
    /// The first epoch of the last placement for which this node dropped its orphaned records.
    /// While the active placement has the same first epoch, the node holds no orphaned record.
    pub(super) emptied: u64,
    /// The first epoch of the transition to which `step` and `sources` belong; 0 = none.
    pub(super) transition: u64,
    pub(super) step: PullStep,
    /// Nodes from which all records are pulled.
    pub(super) sources: BTreeSet<NodeId>,
    /// The version time at which this node joined. A source may have stored earlier attempts of
    /// conditional writes, in any partition, that this node does not know.
    pub(super) joined: u64,
    /// The counterpart of `joined` for the partitions that moved to this node after it had joined.
    pub(super) received: HistoryGap,
    /// Partitions whose idempotency records before a version time were not all received from their
    /// previous replicas.
    pub(super) forgotten: HistoryGap,
}

/// A version time, and the partitions whose history up to it is incomplete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HistoryGap {
    time: u64,
    /// Empty, or a bit for each partition.
    partitions: Vec<u8>,
}

impl HistoryGap {
    fn add(&mut self, time: u64, is_of: impl Fn(u16) -> bool) {
        self.time = self.time.max(time);
        self.partitions.resize(PARTITIONS_LEN, 0);
        for partition in (0..=u16::MAX).filter(|partition| is_of(*partition)) {
            self.partitions[usize::from(partition) / 8] |= 1 << (partition % 8);
        }
    }

    /// Returns the time for a partition of the set, or 0 for any other.
    fn of(&self, partition: u16) -> u64 {
        let byte = self.partitions.get(usize::from(partition) / 8);
        if byte.is_some_and(|byte| byte >> (partition % 8) & 1 == 1) { self.time } else { 0 }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.time.to_le_bytes());
        out.extend((self.partitions.len() as u32).to_le_bytes());
        out.extend(&self.partitions);
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, &'static str> {
        let short = |_| "it ends early: damaged";
        let time = bytes.try_get_u64_le().map_err(short)?;
        let length = bytes.try_get_u32_le().map_err(short)? as usize;
        if length != 0 && length != PARTITIONS_LEN {
            return Err("partitions that are not 65,536: damaged");
        }
        let (partitions, rest) = bytes.split_at_checked(length).ok_or("it ends early: damaged")?;
        *bytes = rest;
        Ok(Self { time, partitions: partitions.to_vec() })
    }
}

impl Default for PullState {
    fn default() -> Self {
        let (transition, step, sources) = (0, PullStep::NotStarted, BTreeSet::new());
        let (joined, received, forgotten) = (0, HistoryGap::default(), HistoryGap::default());
        Self { emptied: FIRST_EPOCH, transition, step, sources, joined, received, forgotten }
    }
}

impl PullState {
    /// Returns the progress of `transition`; resets the progress first if it belongs to another
    /// transition.
    pub(super) fn of(&mut self, transition: u64) -> &mut Self {
        if self.transition != transition {
            // `joined`, `received` and `forgotten` stay, because a new transition does not recover
            // the missing history.
            (self.transition, self.step) = (transition, PullStep::NotStarted);
            self.sources.clear();
        }
        self
    }

    /// Returns the pull that the node still needs under a layout.
    pub(super) fn need_under(&self, layout: &Layout, own: NodeId) -> PullNeed {
        let is_member = layout.nodes.iter().any(|node| node.id == own);
        let is_of = self.transition == layout.placement_epoch;
        let step = if is_of { self.step } else { PullStep::NotStarted };
        // In later stages reads use the new placement. A node that then lacks records has lost
        // them, and is rebuilt.
        if layout.stage != Stage::ReadOld || !is_member || step == PullStep::AllPulled {
            return PullNeed::Nothing;
        }
        match step == PullStep::NotStarted && self.emptied != layout.placement_epoch {
            true => PullNeed::DropOrphansAndPull,
            false => PullNeed::Pull,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.emptied.to_le_bytes());
        out.extend(self.transition.to_le_bytes());
        out.push(match self.step {
            PullStep::NotStarted => 0,
            PullStep::Pulling => 1,
            PullStep::AllPulled => 2,
        });
        out.extend((self.sources.len() as u16).to_le_bytes());
        self.sources.iter().for_each(|node| out.extend(node.0.to_le_bytes()));
        out.extend(self.joined.to_le_bytes());
        self.received.put(out);
        self.forgotten.put(out);
    }

    /// Decodes the progress.
    pub(super) fn read(bytes: &mut &[u8]) -> Result<Self, &'static str> {
        let short = |_| "it ends early: damaged";
        let emptied = bytes.try_get_u64_le().map_err(short)?;
        let transition = bytes.try_get_u64_le().map_err(short)?;
        let step = match bytes.try_get_u8().map_err(short)? {
            0 => PullStep::NotStarted,
            1 => PullStep::Pulling,
            2 => PullStep::AllPulled,
            _ => return Err("an unknown step of a transition: damaged"),
        };
        let count = bytes.try_get_u16_le().map_err(short)?;
        let mut sources = BTreeSet::new();
        for _ in 0..count {
            sources.insert(NodeId(bytes.try_get_u16_le().map_err(short)?));
        }
        let joined = bytes.try_get_u64_le().map_err(short)?;
        let (received, forgotten) = (HistoryGap::read(bytes)?, HistoryGap::read(bytes)?);
        Ok(Self { emptied, transition, step, sources, joined, received, forgotten })
    }
}

impl LayoutsState {
    /// Carries `emptied` over to the newly known layout. A node without orphaned records still has
    /// none when partitions begin to move. This fact is noted now, together with the layout,
    /// because it cannot be determined once records of the new placement arrive.
    pub(super) fn carry_over(&mut self, before: &Layout) {
        let known = self.council.known_layout();
        let is_next = known.stage == Stage::ReadOld && known.base == before.id();
        if is_next && self.taking.emptied == before.placement_epoch {
            self.taking.emptied = known.placement_epoch;
        }
    }

    /// Returns the progress in the transition of the active view.
    fn pull_state(&mut self) -> &mut PullState {
        let began = self.active.placement_epoch;
        self.taking.of(began)
    }
}

/// The part of the pull that a node has yet to do before its copy of the moving partitions is
/// complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullNeed {
    /// The copy is complete.
    Nothing,
    /// The node has not pulled all records.
    Pull,
    /// The node has not dropped its orphaned records either. Before it has dropped them, it stores
    /// no record that moves to it.
    DropOrphansAndPull,
}

impl Layouts {
    /// Returns the pull that this node still needs under the active layout, by its durable
    /// progress.
    pub(crate) fn pull_need(&self, own: NodeId) -> PullNeed {
        let state = self.state();
        state.taking_kept.need_under(&state.active, own)
    }

    /// True if this node may hold orphaned records, which are placed on other nodes only.
    pub fn has_orphans(&self) -> bool {
        let state = self.state();
        state.taking.emptied != state.active.placement_epoch
    }

    /// True if it is durable that this node has no orphaned records under the layout `active`.
    pub(crate) fn has_no_orphans(&self, active: &Layout) -> bool {
        self.state().taking_kept.emptied == active.placement_epoch
    }

    /// Notes that the orphaned records of the placement that began in this epoch are dropped.
    pub(crate) fn mark_orphans_dropped(&self, began: u64) {
        let mut state = self.state();
        if state.active.placement_epoch == began && state.taking.emptied != began {
            state.taking.emptied = began;
            state.changes += 1;
        }
    }

    /// Returns the step in the active transition, and the nodes from which all records are pulled.
    pub(crate) fn pull_progress(&self) -> (PullStep, BTreeSet<NodeId>) {
        let mut state = self.state();
        let taking = state.pull_state();
        (taking.step, taking.sources.clone())
    }

    /// Returns a version time. Other nodes may have stored earlier attempts of conditional writes
    /// on the partition's keys that this node does not know.
    pub(crate) fn forgets_before(&self, partition: u16) -> u64 {
        let state = self.state();
        state.taking.joined.max(state.taking.received.of(partition))
    }

    /// Returns a version time. Earlier writes with an idempotency key may have been done that this
    /// node does not know: in `partition` or, for `None`, in any partition.
    pub(crate) fn recallable_from(&self, partition: Option<u16>) -> u64 {
        let state = self.state();
        let forgotten = &state.taking.forgotten;
        partition.map_or(forgotten.time, |partition| forgotten.of(partition))
    }

    /// Returns the repair fence under which this node pulls the partitions that move to it.
    pub(crate) fn pull_fence(&self) -> u64 {
        let state = self.state();
        state.taking.joined.max(state.taking.received.time)
    }

    /// Notes that the repair fence is raised to the version time `since` and that the pull begins:
    /// of all partitions if the node joins, otherwise of those for which `comes` is true.
    pub(crate) fn begin_pull(&self, since: u64, joins: bool, comes: impl Fn(u16) -> bool) {
        let mut state = self.state();
        let taking = state.pull_state();
        taking.step = PullStep::Pulling;
        if joins {
            taking.joined = since;
        } else {
            taking.received.add(since, comes);
        }
        state.changes += 1;
    }

    /// Notes that all records of `source` are pulled and stored.
    pub(crate) fn mark_pulled(&self, source: NodeId) {
        let mut state = self.state();
        state.pull_state().sources.insert(source);
        state.changes += 1;
    }

    /// Notes that this node has not received all idempotency records up to the version time `time`
    /// from the previous replicas of these partitions.
    pub fn mark_forgotten(&self, time: u64, is_of: impl Fn(u16) -> bool) {
        let mut state = self.state();
        let forgotten = &mut state.taking.forgotten;
        if Clock::micros(forgotten.time) + IDEMPOTENCY_RETENTION_MICROS < Clock::micros(time) {
            // The idempotency records before the earlier gap's time have expired.
            *forgotten = HistoryGap::default();
        }
        forgotten.add(time, is_of);
        state.changes += 1;
    }

    /// Notes that the pull is complete.
    pub(crate) fn mark_all_pulled(&self) {
        let mut state = self.state();
        state.pull_state().step = PullStep::AllPulled;
        state.changes += 1;
    }
}
