//! What this node has taken of the partitions that move to it, as it and its disk know it.
//!
//! ```text
//!  enters read old ─▶ empty ─▶ sealed ─▶ takes from each source ─▶ has all
//!                       │         │                │                 │
//!                       └─────────┴── kept on disk ┴── after data ───┘
//! ```
//!
//! On disk, behind the vote: emptied as of 8 │ transition 8 │ step 1 │ sources: n 2, n × id 2 │
//! joined 8 │ received: since 8, 0 or 8,192 bytes with a bit for each partition, as length 4 and
//! bytes │ forgotten: the same.

use std::collections::BTreeSet;

use bytes::Buf;

use super::{Layouts, LayoutsState};
use crate::clock::Clock;
use crate::membership::layout::{Layout, Stage};
use crate::node_id::NodeId;
use crate::paxos::operation::REMEMBERED_MICROS;
use crate::placement::topology::PARTITIONS;
use crate::placement::view::FIRST_EPOCH;

/// Bytes with a bit for each partition.
const PARTITIONS_LEN: usize = PARTITIONS / 8;

/// How far it is. A later step includes those before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TakingStep {
    /// Nothing was done yet.
    #[default]
    Begins,
    /// It takes: there was nothing left of another time, and it is sealed.
    Takes,
    /// It holds all that moves to it.
    HasAll,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taking {
    /// The beginning of the last placement after which this node dropped what is placed elsewhere.
    /// As long as that is the one in force it holds nothing else.
    pub(super) emptied: u64,
    /// The first epoch of the transition that the rest is about; 0 = of none.
    pub(super) transition: u64,
    pub(super) step: TakingStep,
    /// Nodes from which it has taken all.
    pub(super) sources: BTreeSet<NodeId>,
    /// Of tries of conditional writes before this time of a version it does not know whether a
    /// source has stored them: in all partitions, for it joined then …
    pub(super) joined: u64,
    /// … or in those that moved to it later.
    pub(super) received: Since,
    /// Partitions of which not all was received that their replicas of before remembered of writes
    /// with an idempotency key, up to a time of a version.
    pub(super) forgotten: Since,
}

/// A time of a version, and partitions of which something is not known up to there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Since {
    time: u64,
    /// None, or a bit for each partition.
    partitions: Vec<u8>,
}

impl Since {
    fn add(&mut self, time: u64, is_of: impl Fn(u16) -> bool) {
        self.time = self.time.max(time);
        self.partitions.resize(PARTITIONS_LEN, 0);
        for partition in (0..=u16::MAX).filter(|partition| is_of(*partition)) {
            self.partitions[usize::from(partition) / 8] |= 1 << (partition % 8);
        }
    }

    /// 0 = nothing.
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

impl Default for Taking {
    fn default() -> Self {
        let (transition, step, sources) = (0, TakingStep::Begins, BTreeSet::new());
        let (joined, received, forgotten) = (0, Since::default(), Since::default());
        Self { emptied: FIRST_EPOCH, transition, step, sources, joined, received, forgotten }
    }
}

impl Taking {
    /// What is known of this transition: of another one nothing counts.
    pub(super) fn of(&mut self, transition: u64) -> &mut Self {
        if self.transition != transition {
            // What it does not know of tries stays so.
            (self.transition, self.step) = (transition, TakingStep::Begins);
            self.sources.clear();
        }
        self
    }

    /// What a node lacks by a layout.
    pub(super) fn lacks_by(&self, layout: &Layout, own: NodeId) -> Lacks {
        let is_member = layout.nodes.iter().any(|node| node.id == own);
        let is_of = self.transition == layout.began;
        let step = if is_of { self.step } else { TakingStep::Begins };
        // Once reads have switched, whoever lacks something has lost it, and is rebuilt.
        if layout.stage != Stage::ReadOld || !is_member || step == TakingStep::HasAll {
            return Lacks::Nothing;
        }
        match step == TakingStep::Begins && self.emptied != layout.began {
            true => Lacks::ToBeEmptied,
            false => Lacks::ToTake,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.emptied.to_le_bytes());
        out.extend(self.transition.to_le_bytes());
        out.push(match self.step {
            TakingStep::Begins => 0,
            TakingStep::Takes => 1,
            TakingStep::HasAll => 2,
        });
        out.extend((self.sources.len() as u16).to_le_bytes());
        self.sources.iter().for_each(|node| out.extend(node.0.to_le_bytes()));
        out.extend(self.joined.to_le_bytes());
        self.received.put(out);
        self.forgotten.put(out);
    }

    /// Of a form without what is forgotten: it was not told anything of what moved to it.
    pub(super) fn read(bytes: &mut &[u8]) -> Result<Self, &'static str> {
        let short = |_| "it ends early: damaged";
        let emptied = bytes.try_get_u64_le().map_err(short)?;
        let transition = bytes.try_get_u64_le().map_err(short)?;
        let step = match bytes.try_get_u8().map_err(short)? {
            0 => TakingStep::Begins,
            1 => TakingStep::Takes,
            2 => TakingStep::HasAll,
            _ => return Err("an unknown step of a transition: damaged"),
        };
        let count = bytes.try_get_u16_le().map_err(short)?;
        let mut sources = BTreeSet::new();
        for _ in 0..count {
            sources.insert(NodeId(bytes.try_get_u16_le().map_err(short)?));
        }
        let joined = bytes.try_get_u64_le().map_err(short)?;
        let (received, forgotten) = (Since::read(bytes)?, Since::read(bytes)?);
        Ok(Self { emptied, transition, step, sources, joined, received, forgotten })
    }
}

impl LayoutsState {
    /// Another layout is known than the one before. Whoever held nothing but what belongs to it
    /// then still does when partitions begin to move: noted with that layout, for it can't be found
    /// out once there are records of after.
    pub(super) fn learned(&mut self, before: &Layout) {
        let known = self.council.known();
        let is_next = known.stage == Stage::ReadOld && known.base == before.id();
        if is_next && self.taking.emptied == before.began {
            self.taking.emptied = known.began;
        }
    }

    /// What is known of the transition of the view in force.
    fn taking(&mut self) -> &mut Taking {
        let began = self.entered.began;
        self.taking.of(began)
    }
}

/// What a node has to do, by a layout, before what it holds of partitions that move to it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// It has all of that.
    Nothing,
    /// It has not taken all.
    ToTake,
    /// Nor has it dropped what may be there of another time: before that it stores nothing.
    ToBeEmptied,
}

impl Layouts {
    /// What this node lacks by the layout of the view in force, as far as its disk knows.
    pub(crate) fn lacks(&self, own: NodeId) -> Lacks {
        let state = self.state();
        state.taking_kept.lacks_by(&state.entered, own)
    }

    /// Whether this node may hold what is placed elsewhere.
    pub fn has_leftovers(&self) -> bool {
        let state = self.state();
        state.taking.emptied != state.entered.began
    }

    /// Whether it is known durably that it does not, by the layout of the view in force.
    pub(crate) fn is_empty_of_others(&self, entered: &Layout) -> bool {
        self.state().taking_kept.emptied == entered.began
    }

    /// It has dropped that, as of the placement that began then. Returns whether that is news.
    pub(crate) fn emptied(&self, began: u64) {
        let mut state = self.state();
        if state.entered.began == began && state.taking.emptied != began {
            state.taking.emptied = began;
            state.changes += 1;
        }
    }

    /// How far it is in the transition of the view in force, and from whom it has taken all.
    pub(crate) fn taken(&self) -> (TakingStep, BTreeSet<NodeId>) {
        let mut state = self.state();
        let taking = state.taking();
        (taking.step, taking.sources.clone())
    }

    /// Before this time of a version it does not know which tries of a partition's keys were
    /// stored.
    pub(crate) fn forgets_before(&self, partition: u16) -> u64 {
        let state = self.state();
        state.taking.joined.max(state.taking.received.of(partition))
    }

    /// Before this time of a version it does not know which writes with an idempotency key were
    /// done, of a partition or, without one, of any.
    pub(crate) fn has_forgotten(&self, partition: Option<u16>) -> u64 {
        let state = self.state();
        let forgotten = &state.taking.forgotten;
        partition.map_or(forgotten.time, |partition| forgotten.of(partition))
    }

    /// The seal under which it takes what moves to it.
    pub(crate) fn seal_to_take(&self) -> u64 {
        let state = self.state();
        state.taking.joined.max(state.taking.received.time)
    }

    /// It is sealed up to that time, and begins to take: of all partitions if it joins, or of those
    /// for which `comes` holds.
    pub(crate) fn begins_to_take(&self, since: u64, joins: bool, comes: impl Fn(u16) -> bool) {
        let mut state = self.state();
        let taking = state.taking();
        taking.step = TakingStep::Takes;
        if joins {
            taking.joined = since;
        } else {
            taking.received.add(since, comes);
        }
        state.changes += 1;
    }

    /// All that a node holds was taken, and is in the store.
    pub(crate) fn has_taken(&self, source: NodeId) {
        let mut state = self.state();
        state.taking().sources.insert(source);
        state.changes += 1;
    }

    /// Not all was told that those that had these partitions before remembered up to that time.
    pub fn forgets(&self, time: u64, is_of: impl Fn(u16) -> bool) {
        let mut state = self.state();
        let forgotten = &mut state.taking.forgotten;
        if Clock::micros(forgotten.time) + REMEMBERED_MICROS < Clock::micros(time) {
            // Nobody asks for what is older.
            *forgotten = Since::default();
        }
        forgotten.add(time, is_of);
        state.changes += 1;
    }

    /// There is nothing more to take.
    pub(crate) fn has_taken_all(&self) {
        let mut state = self.state();
        state.taking().step = TakingStep::HasAll;
        state.changes += 1;
    }
}
