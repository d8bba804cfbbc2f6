//! What is proven about all replicas: up to a *watermark* they held the same, so that tombstones up
//! to there are not needed any more, and nothing that is older is taken from anybody.
//!
//! ```text
//!  seal T ─────────▶ nothing new that was written up to T is taken, for good
//!    │  sums, exchange: all hold the same up to T
//!  ready ──────────▶ what was exchanged is durable
//!    │  all are
//!  watermark T ────▶ tombstones up to T go; promises given before end (`floor`)
//! ```
//!
//! One node drives this (`repair/round.rs`), for all nodes of the cluster at once. All of it is
//! kept on disk. Why each step is needed, and what a model found: `docs/repair-model.md`.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::membership::directory::LifeId;
use crate::node_id::NodeId;
use record::{Kind, Rank};

/// A round that is to prove something. A later one ends an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundId {
    /// What was written up to this time is compared; 0 = there was no round.
    pub time: u64,
    /// The node that drives it.
    pub node: NodeId,
}

/// What a node knows of proofs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proof {
    /// Up to its time nothing new is taken.
    pub seal: RoundId,
    /// The last round of which everything that was exchanged is durable here.
    pub ready: RoundId,
    /// The last one of which all nodes were ready: its time is the watermark.
    pub proven: RoundId,
    /// The last ballot under which anybody may go on by a promise that a node had given by then.
    pub floor: u64,
    /// Whether no record up to the watermark had another number of copies than there are by
    /// default: then nobody but its replicas holds anything of a key.
    pub is_uniform: bool,
    /// The directory was made at this time of a version, or before, and was empty then; 0 = that
    /// is not known.
    pub made: u64,
}

impl Proof {
    /// What is known when both are.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            seal: self.seal.max(other.seal),
            ready: self.ready.max(other.ready),
            proven: self.proven.max(other.proven),
            floor: self.floor.max(other.floor),
            is_uniform: if self.proven >= other.proven {
                self.is_uniform
            } else {
                other.is_uniform
            },
            made: self.made.max(other.made),
        }
    }

    /// The same, if the directory is the first one of its node's name: it need not be sealed from
    /// its beginning on, but up to what is proven.
    #[must_use]
    pub fn of_first(self) -> Self {
        let is_of_beginning = self.seal.time == self.made && self.ready.time == 0;
        Self { seal: if is_of_beginning { self.proven } else { self.seal }, ..self }
    }

    /// Of a directory that is made by this node, and has taken nothing up to that time: a round
    /// that began before can't have it hold anything older.
    pub fn of_new(node: NodeId, time: u64) -> Self {
        Self { seal: RoundId { time, node }, made: time, ..Self::default() }
    }
}

/// A node's steps in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundStep {
    /// Only to report what it knows.
    Ask,
    /// To take nothing new up to the round's time.
    Seal,
    /// To make durable what the round has brought.
    Ready,
    /// All nodes were ready, and what they had promised allows no ballot above this one.
    Commit {
        /// The greatest ballot that any node had promised.
        floor: u64,
        /// What is proven of the numbers of copies: see [`Proof::is_uniform`].
        is_uniform: bool,
    },
}

/// What a node reports of itself in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundState {
    /// The life of its directory, which begins with the process.
    pub life: LifeId,
    /// What it knows.
    pub proof: Proof,
    /// The greatest ballot that it has promised.
    pub promised: u64,
    /// Whether a round was at work here a moment ago.
    pub is_active: bool,
}

/// A write on its way into the store, counted so that a seal can wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passing(u8);

/// What this node knows of proofs, for all its threads.
#[derive(Debug)]
pub struct Proofs {
    /// The seal's time, the watermark and the floor, as of the state's `known`.
    seal: AtomicU64,
    watermark: AtomicU64,
    floor: AtomicU64,
    /// The greatest watermark that any node has reported, or this one's.
    reported_watermark: AtomicU64,
    /// Writes on their way, by the seal under which they passed: even or odd ones.
    passing: [AtomicU64; 2],
    seals: AtomicU64,
    state: Mutex<ProofState>,
}

#[derive(Debug, Default)]
struct ProofState {
    known: Proof,
    /// The last round that has sealed this process.
    sealed: RoundId,
    /// The greatest proof that another node reported, and this one does not know.
    reported: Option<Proof>,
    /// Nodes that were seen to lag behind this one's.
    lagging: Vec<NodeId>,
}

/// What a node may do about a proof that it missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissedRound {
    /// Nothing: it knows it.
    Known,
    /// It was ready, or its directory is younger: it takes it over.
    TakesOver,
    /// Its directory is an older copy, which may hold what was deleted and purged since.
    Outdated,
}

impl Proofs {
    /// As a start finds it.
    pub fn new(known: Proof) -> Self {
        assert!(known.seal >= known.proven, "what is proven is sealed: {known:?}");
        Self {
            seal: AtomicU64::new(known.seal.time),
            watermark: AtomicU64::new(known.proven.time),
            floor: AtomicU64::new(known.floor),
            reported_watermark: AtomicU64::new(known.proven.time),
            passing: Default::default(),
            seals: AtomicU64::new(0),
            state: Mutex::new(ProofState { known, ..ProofState::default() }),
        }
    }

    /// What this node knows.
    pub fn known(&self) -> Proof {
        self.state().known
    }

    /// Nothing new that was written up to this time is taken.
    pub fn seal(&self) -> u64 {
        self.seal.load(Ordering::SeqCst)
    }

    /// Up to this time all nodes held the same.
    pub fn watermark(&self) -> u64 {
        self.watermark.load(Ordering::SeqCst)
    }

    /// Up to this time some node knows that all held the same.
    pub(crate) fn reported_watermark(&self) -> u64 {
        self.reported_watermark.load(Ordering::SeqCst)
    }

    /// Whether a record of this rank is as good as none: it may be purged anywhere. Expiry is not
    /// asked for.
    pub(crate) fn is_gone(&self, rank: Rank) -> bool {
        rank.kind != Kind::Value && rank.version.time.max(rank.ballot) <= self.watermark()
    }

    /// Whether a record of this rank is refused, if it comes as a hint or from another node's
    /// store. One of a conditional write was chosen, but may go on from what was deleted and purged
    /// since.
    pub fn refuses(&self, rank: Rank) -> bool {
        let is_sealed = rank.when() <= self.seal();
        is_sealed || rank.ballot > 0 && rank.ballot <= self.floor.load(Ordering::SeqCst)
    }

    /// A plain write is about to be handed to the store. Refused is what was written up to the
    /// seal, which is returned then. What passes must be handed to [`Proofs::passed`] once it is
    /// visible,
    /// or will never be.
    pub fn pass(&self, when: u64) -> Result<Passing, u64> {
        let passing = self.pass_any();
        let seal = self.seal();
        if when > seal {
            return Ok(passing);
        }
        self.passed(passing);
        Err(seal)
    }

    /// The same, whatever is sealed: of what a round brings, and of a node that is being rebuilt.
    pub fn pass_any(&self) -> Passing {
        // Counted before the seal is looked at: a seal that is not seen yet waits for it.
        let turn = (self.seals.load(Ordering::SeqCst) & 1) as u8;
        self.passing[usize::from(turn)].fetch_add(1, Ordering::SeqCst);
        Passing(turn)
    }

    /// A write that [`Proofs::pass`] let through is visible, or has failed.
    pub fn passed(&self, Passing(turn): Passing) {
        let before = self.passing[usize::from(turn)].fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "each write passes once");
    }

    /// Seals, at once; a round that is not later changes nothing. Returns whether all is visible
    /// that passed under an earlier seal; if not, that must be asked once more.
    pub(crate) fn raise_seal(&self, round: RoundId) -> bool {
        let mut state = self.state();
        // The turn before the last one is over, or this one does not begin.
        let turn = self.seals.load(Ordering::SeqCst);
        let before = &self.passing[(turn as usize + 1) & 1];
        if before.load(Ordering::SeqCst) > 0 {
            return false;
        }
        if round >= state.known.seal {
            state.sealed = round;
        }
        if round > state.known.seal {
            state.known.seal = round;
            self.seal.fetch_max(round.time, Ordering::SeqCst);
            self.seals.fetch_add(1, Ordering::SeqCst);
            return self.passing[turn as usize & 1].load(Ordering::SeqCst) == 0;
        }
        true
    }

    /// This node's directory is the first one of its name: no round has counted another, and so
    /// nothing was proven before it was made.
    pub fn is_first(&self) {
        let mut state = self.state();
        state.known = state.known.of_first();
        self.seal.store(state.known.seal.time, Ordering::SeqCst);
    }

    /// This node's directory is still as empty as one that is made after that round.
    pub(crate) fn holds_nothing_of(&self, proven: RoundId) {
        let mut state = self.state();
        state.known.made = state.known.made.max(proven.time);
    }

    /// Keys are placed otherwise from now on: this node is not ready for a round that sealed it
    /// before. What that one has compared is of other replicas.
    pub(crate) fn forget_seal(&self) {
        self.state().sealed = RoundId::default();
    }

    /// What is to be stored so that this node is ready; `None` if a later round has begun, or if
    /// this process was not sealed by it: then what the round has brought may be lost.
    pub(crate) fn to_be_ready(&self, round: RoundId) -> Option<Proof> {
        let state = self.state();
        let is_of = state.known.seal == round && state.sealed == round;
        is_of.then_some(Proof { ready: round, ..state.known })
    }

    /// What is to be stored when all nodes were ready.
    pub(crate) fn to_be_proven(&self, round: RoundId, floor: u64, is_uniform: bool) -> Proof {
        let known = self.known();
        let seal = known.seal.max(round);
        let floor = known.floor.max(floor);
        Proof { seal, proven: known.proven.max(round), floor, is_uniform, ..known }
    }

    /// What this node can do about a proof. Whatever its directory holds, if it was made since the
    /// round, came from nodes that were sealed.
    pub(crate) fn missed(&self, proven: RoundId) -> MissedRound {
        let known = self.known();
        // Who was ready for a later round, and so was sealed by it, had been for this one before.
        if known.proven >= proven {
            MissedRound::Known
        } else if known.ready >= proven || known.made >= proven.time {
            MissedRound::TakesOver
        } else {
            MissedRound::Outdated
        }
    }

    /// Whether this node's directory is older than that, and may hold what was purged since.
    pub(crate) fn is_outdated_by(&self, proven: RoundId) -> bool {
        self.missed(proven) == MissedRound::Outdated
    }

    /// It is durable, and in force from now on.
    pub fn kept(&self, kept: Proof) {
        let mut state = self.state();
        state.known = state.known.and(kept);
        let (seal, proven) = (state.known.seal.time, state.known.proven.time);
        assert!(proven <= seal, "nothing is proven that may still change");
        self.seal.fetch_max(seal, Ordering::SeqCst);
        self.floor.fetch_max(kept.floor, Ordering::SeqCst);
        self.reported_watermark.fetch_max(proven, Ordering::SeqCst);
        self.watermark.fetch_max(proven, Ordering::SeqCst);
    }

    /// Another node has reported what it knows.
    pub(crate) fn received(&self, node: NodeId, theirs: Proof) {
        self.reported_watermark.fetch_max(theirs.proven.time, Ordering::SeqCst);
        let mut state = self.state();
        let known = state.known.proven;
        if theirs.proven > known {
            if state.reported.is_none_or(|reported| theirs.proven > reported.proven) {
                state.reported = Some(theirs);
            }
        } else if theirs.proven < known && !state.lagging.contains(&node) {
            state.lagging.push(node);
        }
    }

    /// The greatest proof that another node reported, if this node does not know it.
    pub(crate) fn reported(&self) -> Option<Proof> {
        let mut state = self.state();
        let known = state.known.proven;
        state.reported = state.reported.filter(|reported| reported.proven > known);
        state.reported
    }

    /// Nodes that were seen to lag behind since the last time.
    pub(crate) fn take_lagging(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.state().lagging)
    }

    fn state(&self) -> MutexGuard<'_, ProofState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_takes_over_what_was_proven_without_it() {
        let (node, proven) = (NodeId(1), RoundId { time: 9, node: NodeId(2) });
        let proofs = Proofs::new(Proof::of_new(node, 5));
        assert!(proofs.is_outdated_by(proven));
        proofs.holds_nothing_of(proven);
        assert_eq!(proofs.missed(proven), MissedRound::TakesOver);
        assert_eq!(proofs.to_be_proven(proven, 3, true).made, 9, "it is stored with the proof");
        assert!(proofs.is_outdated_by(RoundId { time: 10, ..proven }));
    }

    /// An empty directory took the proof over, and turns out to be the first one afterwards.
    #[test]
    fn what_is_proven_stays_sealed_in_a_first_directory() {
        let (node, proven) = (NodeId(1), RoundId { time: 9, node: NodeId(2) });
        let proofs = Proofs::new(Proof::of_new(node, 5));
        proofs.holds_nothing_of(proven);
        proofs.kept(proofs.to_be_proven(proven, 3, true));
        proofs.is_first();
        assert_eq!((proofs.seal(), proofs.watermark()), (9, 9));
        assert_eq!(proofs.pass(9), Err(9), "it may have been deleted and purged elsewhere");
        assert_eq!(proofs.known(), proofs.known().of_first(), "as it is stored");
        let first = Proofs::new(Proof::of_new(node, 5));
        first.is_first();
        assert_eq!(first.seal(), 0, "nothing was proven before it was made");
    }

    #[test]
    fn a_process_is_ready_for_a_round_that_has_sealed_it() {
        let round = RoundId { time: 5, node: NodeId(1) };
        let proofs = Proofs::new(Proof::default());
        assert!(proofs.raise_seal(round));
        let sealed = proofs.known();
        assert_eq!(proofs.to_be_ready(round), Some(Proof { ready: round, ..sealed }));
        // A start finds the seal, but perhaps not what was brought since.
        proofs.forget_seal();
        assert_eq!(proofs.to_be_ready(round), None, "keys are placed otherwise since");
        let started = Proofs::new(sealed);
        assert_eq!(started.to_be_ready(round), None);
        assert!(started.raise_seal(round));
        assert_eq!(started.to_be_ready(round), Some(Proof { ready: round, ..sealed }));
        assert!(started.raise_seal(RoundId { time: 6, ..round }));
        assert_eq!(started.to_be_ready(round), None);
    }
}
