//! A node's membership state: whether it is authoritative for what it does not hold, as a whole and
//! for each partition.
//!
//! ```text
//!   Joining ────▶ Member       no other node knows another disk of this name
//!   Verifying ──▶ Member       the others have streamed what may be missing from an older copy
//!   any ────────▶ Rebuilding   another disk is known, or this log has lost its end
//!   Rebuilding ─▶ Member       the others have streamed what may be lost
//! ```

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Stands for a partition that is in the same state as the node.
const AS_THE_NODE: u8 = u8::MAX;

/// Whether what a node says of records that it does *not* hold can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MembershipState {
    /// Its data directory was empty, and not all others have said yet that they never knew another
    /// disk of this name. Its absences don't count, as those of a node that is rebuilt don't.
    Joining = 0,
    /// It holds everything that it ever acknowledged.
    Member = 1,
    /// Its disk was wiped or replaced, or its log has lost its end: its absences don't count until
    /// the others have streamed back what it held.
    Rebuilding = 2,
    /// Its directory was copied or moved, and may be an older copy: its absences don't count until
    /// the others have streamed what is newer than it.
    Verifying = 3,
}

impl MembershipState {
    /// The state that is stored as this code.
    pub fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Joining,
            1 => Self::Member,
            2 => Self::Rebuilding,
            3 => Self::Verifying,
            _ => return None,
        })
    }

    /// As one word, for logs and reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Member => "member",
            Self::Rebuilding => "rebuilding",
            Self::Verifying => "verifying",
        }
    }
}

/// A node's membership state, for all partitions or for single ones, and what follows from it.
#[derive(Debug)]
pub struct Membership {
    state: AtomicU8,
    /// The membership state of each partition, or [`AS_THE_NODE`]. Not allocated as long as all
    /// partitions are in the node's state, which is the usual case.
    apart: OnceLock<Box<[AtomicU8]>>,
    /// Greatest time of a version that a former life of this node may have acknowledged.
    lost_before: AtomicU64,
    /// Greatest ballot that a former life of this node, with a disk that it lost, may have
    /// promised.
    promised_before: AtomicU64,
    /// Whether all others that can be reached were asked what they know of this node since the
    /// start.
    confirmed: AtomicBool,
    /// Whether one of them knows something of this node's log that contradicts the state.
    doubted: AtomicBool,
    /// Whether this directory is older than what was proven since.
    outdated: AtomicBool,
    /// Whether the state will be settled soon, so that it is worth asking this node again.
    settling: AtomicBool,
    /// Whether a later process with this node's disk serves in its place.
    fenced: AtomicBool,
}

impl Membership {
    /// With the state that was stored on disk. `lost_before` is a version's time: none that an
    /// earlier life of this node acknowledged is greater. The node is authoritative only once it is
    /// confirmed; one that is `alone` has nobody to ask.
    pub fn new(state: MembershipState, lost_before: u64, alone: bool) -> Self {
        Self {
            state: AtomicU8::new(state as u8),
            apart: OnceLock::new(),
            lost_before: AtomicU64::new(lost_before),
            promised_before: AtomicU64::new(lost_before),
            confirmed: AtomicBool::new(alone),
            doubted: AtomicBool::new(false),
            outdated: AtomicBool::new(false),
            settling: AtomicBool::new(!alone),
            fenced: AtomicBool::new(false),
        }
    }

    /// The disk of this node knows that no ballot above this one was promised by a life that lost
    /// its own; all that it promised itself is below the clock's bound.
    pub fn promised(self, before: u64) -> Self {
        self.promised_before.store(before, Ordering::Relaxed);
        self
    }

    /// The node's membership state, which is that of all partitions that have none of their own.
    pub fn state(&self) -> MembershipState {
        let code = self.state.load(Ordering::Acquire);
        MembershipState::of_code(code).expect("only what is one is stored")
    }

    /// The membership state for one partition.
    pub fn state_of(&self, partition: u16) -> MembershipState {
        let apart = self.apart.get().map(|apart| &apart[usize::from(partition)]);
        match apart.map_or(AS_THE_NODE, |code| code.load(Ordering::Acquire)) {
            AS_THE_NODE => self.state(),
            code => MembershipState::of_code(code).expect("only what is one is stored"),
        }
    }

    /// Whether it is a member of the partition, be it confirmed or not.
    pub(crate) fn is_member(&self, partition: u16) -> bool {
        self.state_of(partition) == MembershipState::Member
    }

    /// Changes it for all partitions, those with a state of their own included.
    pub fn set(&self, state: MembershipState) {
        self.state.store(state as u8, Ordering::Release);
        for code in self.apart.get().into_iter().flatten() {
            code.store(AS_THE_NODE, Ordering::Release);
        }
        self.doubted.store(false, Ordering::Release);
    }

    /// Changes it for one partition.
    #[cfg(test)]
    fn set_of(&self, partition: u16, state: MembershipState) {
        let all_as_the_node =
            || (0..crate::topology::PARTITIONS).map(|_| AtomicU8::new(AS_THE_NODE)).collect();
        let apart = self.apart.get_or_init(all_as_the_node);
        let is_as_the_node = state == self.state();
        let code = if is_as_the_node { AS_THE_NODE } else { state as u8 };
        apart[usize::from(partition)].store(code, Ordering::Release);
    }

    /// The node lost something: any version that it acknowledged up to this time may be gone.
    pub fn lose(&self, until: u64) {
        self.lost_before.fetch_max(until, Ordering::Relaxed);
        self.promised_before.fetch_max(until, Ordering::Relaxed);
        self.set(MembershipState::Rebuilding);
    }

    /// Another node knows more of this node's log than there is: this node is not authoritative
    /// for anything until its state is set anew.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// What was deleted is purged everywhere else, and may be in this directory yet: this node is
    /// not authoritative for anything any more.
    pub fn outdated(&self) {
        self.outdated.store(true, Ordering::Release);
    }

    /// Whether that is so.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    /// All others that can be reached were asked what they know of this node.
    pub fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }

    /// Whether they were.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Notes whether the state will be settled soon.
    pub fn settles(&self, soon: bool) {
        self.settling.store(soon, Ordering::Relaxed);
    }

    /// Whether it is worth asking this node again.
    pub fn is_settling(&self) -> bool {
        self.settling.load(Ordering::Relaxed)
    }

    /// A later process with this node's disk is known: this one serves nobody any more. Returns
    /// whether that is news.
    pub fn fence(&self) -> bool {
        !self.fenced.swap(true, Ordering::AcqRel)
    }

    /// Whether it is fenced.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Whether the node is certain that it never acknowledged a newer record of a key than the one
    /// that it holds; `time` is that one's, `None` = it holds none. A former life acknowledged
    /// nothing newer than `lost_before`, so a record that is newer than that hides nothing.
    pub fn is_authoritative(&self, partition: u16, time: Option<u64>) -> bool {
        self.is_whole(|| partition) || time.is_some_and(|time| time > self.lost_before())
    }

    /// Whether the node holds all of a partition that it ever acknowledged. The partition is
    /// computed only if partitions differ.
    pub(crate) fn is_whole(&self, partition: impl FnOnce() -> u16) -> bool {
        let state = match self.apart.get() {
            None => self.state(),
            Some(_) => self.state_of(partition()),
        };
        self.knows_what_it_lost() && state == MembershipState::Member
    }

    /// The greatest time of a version of a partition that the node may have acknowledged and lost;
    /// `None` = it holds all.
    pub(crate) fn lost_of(&self, partition: impl FnOnce() -> u16) -> Option<u64> {
        (!self.is_whole(partition)).then(|| self.lost_before())
    }

    /// All others have said that they never knew another disk of this node.
    pub fn has_no_former_life(&self) {
        self.promised_before.store(0, Ordering::Relaxed);
    }

    /// The greatest ballot that a former life may have promised, and lost with its disk.
    pub fn promised_before(&self) -> u64 {
        self.promised_before.load(Ordering::Relaxed)
    }

    /// The greatest time of a version that a former life of this node may have acknowledged.
    fn lost_before(&self) -> u64 {
        self.lost_before.load(Ordering::Relaxed)
    }

    /// Whether the node is authoritative for what it does not hold in any partition.
    pub fn is_authoritative_for_all(&self) -> bool {
        let is_member = |code: &AtomicU8| {
            let code = code.load(Ordering::Acquire);
            code == AS_THE_NODE || code == MembershipState::Member as u8
        };
        self.knows_what_it_lost()
            && self.state() == MembershipState::Member
            && self.apart.get().is_none_or(|apart| apart.iter().all(is_member))
    }

    /// Whether all who can be reached were asked, and none of them knew anything that contradicts
    /// the state.
    pub(crate) fn knows_what_it_lost(&self) -> bool {
        let is_in_doubt = self.doubted.load(Ordering::Acquire) || self.is_outdated();
        self.is_confirmed() && !is_in_doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_member_is_authoritative_for_what_it_lacks() {
        use MembershipState::{Joining, Rebuilding, Verifying};
        for state in [Joining, Rebuilding, Verifying] {
            let membership = Membership::new(state, 5, true);
            assert!(!membership.is_authoritative(7, None), "{state:?}");
            assert!(!membership.is_authoritative_for_all(), "{state:?}");
            assert!(!membership.is_authoritative(7, Some(5)), "{state:?}: it may have lost that");
            assert!(
                membership.is_authoritative(7, Some(6)),
                "{state:?}: nothing so young was lost"
            );
        }
    }

    #[test]
    fn a_partition_may_have_its_own_state_until_all_are_changed() {
        let membership = Membership::new(MembershipState::Member, 0, true);
        assert!(membership.is_authoritative(7, None) && membership.is_authoritative_for_all());
        membership.set_of(7, MembershipState::Joining);
        assert_eq!(membership.state_of(7), MembershipState::Joining);
        assert!(
            !membership.is_authoritative(7, None)
                && membership.is_authoritative(8, None)
                && !membership.is_authoritative_for_all()
        );
        assert!(membership.is_authoritative(7, Some(1)), "newer than all that may be lost");
        membership.set_of(7, MembershipState::Member);
        assert!(membership.is_authoritative(7, None) && membership.is_authoritative_for_all());
        membership.set_of(7, MembershipState::Joining);
        membership.set(MembershipState::Member);
        assert!(membership.is_authoritative(7, None) && membership.is_authoritative_for_all());
        membership.set(MembershipState::Rebuilding);
        membership.set_of(7, MembershipState::Member);
        assert!(
            membership.is_authoritative(7, None)
                && !membership.is_authoritative(8, None)
                && !membership.is_authoritative_for_all()
        );
        membership.doubt();
        assert!(!membership.is_authoritative(7, None), "a doubt is about all of them");
        membership.set(MembershipState::Member);
        assert!(membership.is_authoritative(7, None));
        membership.outdated();
        membership.set(MembershipState::Member);
        assert!(!membership.is_authoritative(7, None), "nothing that is streamed changes that");
    }

    #[test]
    fn as_long_as_all_partitions_are_alike_no_list_is_allocated() {
        let membership = Membership::new(MembershipState::Rebuilding, 0, true);
        membership.set(MembershipState::Member);
        assert!(membership.apart.get().is_none());
    }
}
