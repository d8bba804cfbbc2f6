//! A node's membership state: whether it is authoritative for what it does not hold.
//!
//! ```text
//!   Joining ────▶ Member       no other node knows another disk of this name
//!   Verifying ──▶ Member       the others have streamed what may be missing from an older copy
//!   any ────────▶ Rebuilding   another disk is known, or this log has lost its end
//!   Rebuilding ─▶ Member       the others have streamed what may be lost
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

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

/// A node's membership state, and what follows from it.
#[derive(Debug)]
pub struct Membership {
    state: AtomicU8,
    /// Greatest time of a version that a former life of this node may have acknowledged.
    lost_before: AtomicU64,
    /// Greatest ballot that a former life of this node, with a disk that it lost, may have
    /// promised.
    promised_before: AtomicU64,
    /// Up to this time of a version the node has learned anew, from the other replicas, what a
    /// former life remembered of writes with an idempotency key.
    recovered_words: AtomicU64,
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
            lost_before: AtomicU64::new(lost_before),
            promised_before: AtomicU64::new(lost_before),
            recovered_words: AtomicU64::new(0),
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

    /// The disk of this node knows that the node has learned anew what was remembered up to this
    /// time of a version.
    pub fn recovered(self, until: u64) -> Self {
        self.recovers_words(until);
        self
    }

    /// The node's membership state.
    pub fn state(&self) -> MembershipState {
        let code = self.state.load(Ordering::Acquire);
        MembershipState::of_code(code).expect("only what is one is stored")
    }

    /// Whether it is a member, be it confirmed or not.
    pub(crate) fn is_member(&self) -> bool {
        self.state() == MembershipState::Member
    }

    /// Whether it is a member, and no other node has said anything that contradicts that.
    pub(crate) fn is_undoubted_member(&self) -> bool {
        self.is_member() && !self.doubted.load(Ordering::Acquire)
    }

    /// Changes it; what was doubted is settled by that.
    pub fn set(&self, state: MembershipState) {
        self.state.store(state as u8, Ordering::Release);
        self.doubted.store(false, Ordering::Release);
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
    pub fn is_authoritative(&self, time: Option<u64>) -> bool {
        self.is_authoritative_for_all() || time.is_some_and(|time| time > self.lost_before())
    }

    /// The greatest time of a version that the node may have acknowledged and lost; `None` = it
    /// holds all.
    pub(crate) fn lost(&self) -> Option<u64> {
        (!self.is_authoritative_for_all()).then(|| self.lost_before())
    }

    /// All others have said that they never knew another disk of this node.
    pub fn has_no_former_life(&self) {
        self.promised_before.store(0, Ordering::Relaxed);
    }

    /// The greatest ballot that a former life may have promised, and lost with its disk.
    pub fn promised_before(&self) -> u64 {
        self.promised_before.load(Ordering::Relaxed)
    }

    /// The other replicas have told what they remember of writes with an idempotency key, after the
    /// node lost what it remembered up to this time of a version.
    pub fn recovers_words(&self, until: u64) {
        self.recovered_words.fetch_max(until, Ordering::AcqRel);
    }

    /// Up to which time of a version it has learned that anew; 0 = it never did.
    pub fn recovered_words(&self) -> u64 {
        self.recovered_words.load(Ordering::Acquire)
    }

    /// Up to which time of a version the node may have lost what it remembered of writes with an
    /// idempotency key, and has not learned it anew; 0 = it has lost nothing of it.
    pub fn words_lost_before(&self) -> u64 {
        let lost = self.promised_before();
        if lost > self.recovered_words() { lost } else { 0 }
    }

    /// The greatest time of a version that a former life of this node may have acknowledged.
    fn lost_before(&self) -> u64 {
        self.lost_before.load(Ordering::Relaxed)
    }

    /// Whether the node holds all that it ever acknowledged, so that it is authoritative for any
    /// key that it does not hold.
    pub fn is_authoritative_for_all(&self) -> bool {
        self.knows_what_it_lost() && self.is_member()
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
            assert!(!membership.is_authoritative(None), "{state:?}");
            assert!(!membership.is_authoritative_for_all(), "{state:?}");
            assert!(!membership.is_authoritative(Some(5)), "{state:?}: it may have lost that");
            assert!(membership.is_authoritative(Some(6)), "{state:?}: nothing so young was lost");
        }
    }

    #[test]
    fn a_member_in_doubt_is_not_authoritative() {
        let membership = Membership::new(MembershipState::Member, 0, true);
        assert!(membership.is_authoritative(None) && membership.is_authoritative_for_all());
        membership.doubt();
        assert!(!membership.is_authoritative(None) && !membership.is_authoritative_for_all());
        assert!(membership.is_authoritative(Some(1)), "newer than all that may be lost");
        membership.set(MembershipState::Member);
        assert!(membership.is_authoritative(None) && membership.is_authoritative_for_all());
        membership.outdated();
        membership.set(MembershipState::Member);
        assert!(!membership.is_authoritative(None), "nothing that is streamed changes that");
    }
}
