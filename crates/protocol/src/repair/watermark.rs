//! Proofs about all replicas. A proof says that all replicas held the same records up to a
//! *watermark*. Then tombstones up to the watermark are no longer needed, and no node accepts older
//! records.
//!
//! ```text
//!  seal T ─────────▶ the node never again accepts new records with times up to T
//!    │  sums, exchange: all nodes hold the same records up to T
//!  ready ──────────▶ the exchanged records are durable on the node
//!    │  all nodes are ready
//!  watermark T ────▶ tombstones up to T are purged; promises of ballots up to `floor` end
//! ```
//!
//! A *seal* is a repair fence. One node drives these steps for all nodes of the cluster at once
//! (`repair/fence.rs`), and each node stores its own state of the steps on disk.
//! `docs/design/repair.md` gives the reason for each step, and the flaws that a model found.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::membership::disk_ids::BootId;
use crate::node_id::NodeId;
use record::{Kind, Rank};

/// The id of a repair round. A later round ends an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundId {
    /// The version time up to which records are compared; 0 = there was no round.
    pub time: u64,
    /// The node that drives the round.
    pub node: NodeId,
}

/// A node's knowledge of proofs, persisted as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proof {
    /// The repair fence: the node accepts no new record up to the time of this round.
    pub seal: RoundId,
    /// The last round whose exchanged records are all durable on this node.
    pub ready: RoundId,
    /// The last round for which all nodes were ready: its time is the watermark.
    pub proven: RoundId,
    /// The greatest ballot that a promise given before the proof can cover, including the ballots
    /// that may follow the promised ballot.
    pub floor: u64,
    /// True if all records up to the watermark had the default number of copies: then only a key's
    /// replicas hold records of the key.
    pub is_uniform: bool,
    /// The version time up to which the directory has never accepted a record, because it was
    /// created with a fence at that time; 0 = unknown, or the fence was lowered.
    pub made: u64,
}

impl Proof {
    /// Merges two states of knowledge.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
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

    /// Returns the proof of a node's first directory. A fence from the directory's creation is
    /// lowered to the watermark: it is for rounds that relied on an earlier directory, and the node
    /// had none. Under the lowered fence the directory accepts records from before its creation, so
    /// [`Proof::made`] is lowered too. Otherwise an older copy of the directory, which may hold
    /// such records, would adopt a later proof (`Proofs::classify_proof`).
    #[must_use]
    pub fn of_first(self) -> Self {
        let is_of_beginning = self.seal.time == self.made && self.ready.time == 0;
        if is_of_beginning {
            Self { seal: self.proven, made: self.proven.time, ..self }
        } else {
            self
        }
    }

    /// Returns the proof of a new directory of `node`, with a fence at the version time `time`: the
    /// directory accepts no older record. A round that began before `time` must not rely on this
    /// directory for such a record.
    pub fn of_new(node: NodeId, time: u64) -> Self {
        Self { seal: RoundId { time, node }, made: time, ..Self::default() }
    }
}

/// A step of a round that a node is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundStep {
    /// Report the state only.
    Ask,
    /// Raise the repair fence to the round's time.
    Seal,
    /// Make the records durable that the round has brought.
    Ready,
    /// Advance the watermark: all nodes were ready, and had promised no ballot above `floor`.
    Commit {
        /// The greatest ballot that a promise of any node can cover, including the ballots that may
        /// follow the promised ballot.
        floor: u64,
        /// The value for [`Proof::is_uniform`].
        is_uniform: bool,
    },
}

/// A node's report of itself in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundState {
    /// The boot id of the node's process.
    pub life: BootId,
    /// The node's knowledge of proofs.
    pub proof: Proof,
    /// The greatest ballot that the node has promised.
    pub promised: u64,
    /// True if a round did work on this node within the last two seconds.
    pub is_active: bool,
}

/// The admission permit of a write that is not visible in the store yet. Permits are counted, so
/// that a repair fence can wait for the admitted writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FencePermit(u8);

/// This node's knowledge of proofs, shared by all its threads.
#[derive(Debug)]
pub struct Proofs {
    /// Copies of values in `state.known`, to be read without its lock: the fence's time, the
    /// watermark and the floor.
    seal: AtomicU64,
    watermark: AtomicU64,
    floor: AtomicU64,
    /// The greatest watermark that this node has or another node has reported.
    reported_watermark: AtomicU64,
    /// Permits in use, by the parity of the fence count (`seals`) at which they were issued.
    passing: [AtomicU64; 2],
    seals: AtomicU64,
    state: Mutex<ProofState>,
}

#[derive(Debug, Default)]
struct ProofState {
    known: Proof,
    /// The last round that raised the fence of this process.
    sealed: RoundId,
    /// The greatest proof reported by another node that this node lacks.
    reported: Option<Proof>,
    /// Nodes whose reported watermark was lower than this node's watermark.
    lagging: Vec<NodeId>,
}

/// The treatment of a proof that a node missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissedRound {
    /// The node knows the proof already.
    Known,
    /// The node adopts the proof: it was ready for the round, or its directory is younger than the
    /// round.
    TakesOver,
    /// The directory is an older copy, which may hold records that are deleted and purged on other
    /// nodes.
    Outdated,
}

impl Proofs {
    /// Makes the state from the proof found at the start of the process.
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

    /// Returns this node's knowledge.
    pub fn known_proof(&self) -> Proof {
        self.state().known
    }

    /// Returns the repair fence: the version time up to which no new record is accepted.
    pub fn seal(&self) -> u64 {
        self.seal.load(Ordering::SeqCst)
    }

    /// Returns the watermark: the version time up to which all nodes held the same records.
    pub fn watermark(&self) -> u64 {
        self.watermark.load(Ordering::SeqCst)
    }

    /// Returns the greatest watermark that this node has or another node has reported.
    pub(crate) fn reported_watermark(&self) -> u64 {
        self.reported_watermark.load(Ordering::SeqCst)
    }

    /// True if a record of this rank counts as absent, because any node may have purged it. The
    /// record's expiry is not considered.
    pub(crate) fn counts_as_purged(&self, rank: Rank) -> bool {
        rank.kind != Kind::Value && rank.version.time.max(rank.ballot) <= self.watermark()
    }

    /// True if a record of this rank is refused when it arrives as a hint or from another node's
    /// store. A conditional write's record is refused up to the floor even if it was chosen: the
    /// record that it continues may have been deleted and purged since.
    pub fn refuses(&self, rank: Rank) -> bool {
        let is_sealed = rank.write_time() <= self.seal();
        is_sealed || rank.ballot > 0 && rank.ballot <= self.floor.load(Ordering::SeqCst)
    }

    /// Admits a plain write that is about to be handed to the store. A record written up to the
    /// fence is refused; the error is the fence's time. The caller must hand the permit to
    /// [`Proofs::release`] once the write is visible or has failed.
    pub fn admit(&self, when: u64) -> Result<FencePermit, u64> {
        let passing = self.admit_any();
        let seal = self.seal();
        if when > seal {
            return Ok(passing);
        }
        self.release(passing);
        Err(seal)
    }

    /// Admits a write whatever the fence is: the write of a record that a round brings, or any
    /// write on a node that is being rebuilt.
    pub fn admit_any(&self) -> FencePermit {
        // The permit is counted before the caller reads the fence: a fence raised after that read
        // waits for the permit.
        let turn = (self.seals.load(Ordering::SeqCst) & 1) as u8;
        self.passing[usize::from(turn)].fetch_add(1, Ordering::SeqCst);
        FencePermit(turn)
    }

    /// Returns the permit of a write that is visible, or has failed.
    pub fn release(&self, FencePermit(turn): FencePermit) {
        let before = self.passing[usize::from(turn)].fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "each write passes once");
    }

    /// Raises the fence at once; a round that is not later than the fence changes nothing. Returns
    /// `true` once all writes admitted under an earlier fence are visible; until then, the caller
    /// must call again.
    pub(crate) fn raise_seal(&self, round: RoundId) -> bool {
        let mut state = self.state();
        // Permits of the fence before the last must all be returned first, because the next fence
        // reuses their counter.
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

    /// Notes that this node's directory is the first of its node. No round has relied on another
    /// directory of the node, so nothing was proven before this directory was created.
    pub fn mark_first(&self) {
        let mut state = self.state();
        state.known = state.known.of_first();
        self.seal.store(state.known.seal.time, Ordering::SeqCst);
    }

    /// Notes that this node's directory is empty, as if it were created after that round.
    pub(crate) fn mark_made_after(&self, proven: RoundId) {
        let mut state = self.state();
        state.known.made = state.known.made.max(proven.time);
    }

    /// Prevents this node from getting ready for a round that raised its fence before a change of
    /// placement, because such a round has compared other replicas.
    pub(crate) fn forget_seal(&self) {
        self.state().sealed = RoundId::default();
    }

    /// Returns the proof to be stored so that this node is ready; `None` if a later round has
    /// begun, or if the round did not raise the fence of this process. In the latter case, records
    /// that the round brought may be lost.
    pub(crate) fn proof_if_ready(&self, round: RoundId) -> Option<Proof> {
        let state = self.state();
        let is_of = state.known.seal == round && state.sealed == round;
        is_of.then_some(Proof { ready: round, ..state.known })
    }

    /// Returns the proof to be stored once all nodes were ready for the round.
    pub(crate) fn proof_if_proven(&self, round: RoundId, floor: u64, is_uniform: bool) -> Proof {
        let known = self.known_proof();
        let seal = known.seal.max(round);
        let floor = known.floor.max(floor);
        Proof { seal, proven: known.proven.max(round), floor, is_uniform, ..known }
    }

    /// Returns how this node treats a proof. A directory made since the round may adopt the proof,
    /// because it holds only records that came from fenced nodes.
    pub(crate) fn classify_proof(&self, proven: RoundId) -> MissedRound {
        let known = self.known_proof();
        // A node that was ready for a later round was fenced by that round, and before that by this
        // round.
        if known.proven >= proven {
            MissedRound::Known
        } else if known.ready >= proven || known.made >= proven.time {
            MissedRound::TakesOver
        } else {
            MissedRound::Outdated
        }
    }

    /// True if this node's directory predates the proof, and may hold records purged since.
    pub(crate) fn is_outdated_by(&self, proven: RoundId) -> bool {
        self.classify_proof(proven) == MissedRound::Outdated
    }

    /// Puts a proof in force. The caller has made it durable.
    pub fn put_in_force(&self, kept: Proof) {
        let mut state = self.state();
        state.known = state.known.merge(kept);
        let (seal, proven) = (state.known.seal.time, state.known.proven.time);
        assert!(proven <= seal, "nothing is proven that may still change");
        self.seal.fetch_max(seal, Ordering::SeqCst);
        self.floor.fetch_max(kept.floor, Ordering::SeqCst);
        self.reported_watermark.fetch_max(proven, Ordering::SeqCst);
        self.watermark.fetch_max(proven, Ordering::SeqCst);
    }

    /// Notes a proof that another node has reported.
    pub(crate) fn note_reported(&self, node: NodeId, theirs: Proof) {
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

    /// Returns the greatest proof reported by another node; `None` if this node has it or a later
    /// one.
    pub(crate) fn newer_reported(&self) -> Option<Proof> {
        let mut state = self.state();
        let known = state.known.proven;
        state.reported = state.reported.filter(|reported| reported.proven > known);
        state.reported
    }

    /// Returns the nodes that were found to lag behind since the last call, by their reports.
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
    fn an_empty_directory_adopts_a_proof_made_without_it() {
        let (node, proven) = (NodeId(1), RoundId { time: 9, node: NodeId(2) });
        let proofs = Proofs::new(Proof::of_new(node, 5));
        assert!(proofs.is_outdated_by(proven));
        proofs.mark_made_after(proven);
        assert_eq!(proofs.classify_proof(proven), MissedRound::TakesOver);
        assert_eq!(proofs.proof_if_proven(proven, 3, true).made, 9, "it is stored with the proof");
        assert!(proofs.is_outdated_by(RoundId { time: 10, ..proven }));
    }

    /// The clock at the directory's creation was ahead of the round's clock, by less than the
    /// maximum clock skew.
    #[test]
    fn a_copy_of_a_first_directory_is_outdated_by_a_round_soon_after_its_beginning() {
        let (node, proven) = (NodeId(1), RoundId { time: 4, node: NodeId(2) });
        let made = Proofs::new(Proof::of_new(node, 5));
        assert_eq!(
            made.classify_proof(proven),
            MissedRound::TakesOver,
            "the fence of its beginning holds"
        );
        made.mark_first();
        assert!(made.is_outdated_by(proven));
        let copy = Proofs::new(made.known_proof());
        copy.mark_first();
        assert!(copy.is_outdated_by(proven));
        assert!(Proofs::new(Proof::of_new(node, 5).of_first()).is_outdated_by(proven));
    }

    /// An empty directory adopts the proof, and later turns out to be the first directory of its
    /// node.
    #[test]
    fn a_first_directory_keeps_its_fence_at_an_adopted_proof() {
        let (node, proven) = (NodeId(1), RoundId { time: 9, node: NodeId(2) });
        let proofs = Proofs::new(Proof::of_new(node, 5));
        proofs.mark_made_after(proven);
        proofs.put_in_force(proofs.proof_if_proven(proven, 3, true));
        proofs.mark_first();
        assert_eq!((proofs.seal(), proofs.watermark()), (9, 9));
        assert_eq!(proofs.admit(9), Err(9), "it may have been deleted and purged elsewhere");
        assert_eq!(proofs.known_proof(), proofs.known_proof().of_first(), "as it is stored");
        let first = Proofs::new(Proof::of_new(node, 5));
        first.mark_first();
        assert_eq!(first.seal(), 0, "nothing was proven before it was made");
    }

    #[test]
    fn a_process_is_ready_for_the_round_that_raised_its_fence() {
        let round = RoundId { time: 5, node: NodeId(1) };
        let proofs = Proofs::new(Proof::default());
        assert!(proofs.raise_seal(round));
        let sealed = proofs.known_proof();
        assert_eq!(proofs.proof_if_ready(round), Some(Proof { ready: round, ..sealed }));
        // A new process finds the fence on disk, but perhaps not the records brought since.
        proofs.forget_seal();
        assert_eq!(proofs.proof_if_ready(round), None, "keys are placed otherwise since");
        let started = Proofs::new(sealed);
        assert_eq!(started.proof_if_ready(round), None);
        assert!(started.raise_seal(round));
        assert_eq!(started.proof_if_ready(round), Some(Proof { ready: round, ..sealed }));
        assert!(started.raise_seal(RoundId { time: 6, ..round }));
        assert_eq!(started.proof_if_ready(round), None);
    }
}
