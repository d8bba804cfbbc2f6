//! Membership state of a node: whether the node is authoritative for the absence of a record.
//!
//! ```text
//!   Joining ────▶ Member       no peer knows another disk of this node
//!   Verifying ──▶ Member       the peers have streamed the records that an older copy may lack
//!   any ────────▶ Rebuilding   a peer knows another disk, or this node's log has lost its end
//!   Rebuilding ─▶ Member       the peers have streamed the records that may be lost
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// A node's membership state. It decides whether the node's "not found" counts as an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MembershipState {
    /// Joining: the data directory was empty, and some peers have not yet confirmed that they never
    /// knew another disk of this node. The node's "not found" does not count.
    Joining = 0,
    /// The node holds everything that it ever acknowledged.
    Member = 1,
    /// Rebuilding: the disk was wiped or replaced, or the log has lost its end. The node's "not
    /// found" does not count until the peers have streamed back the lost data.
    Rebuilding = 2,
    /// Verifying: the directory was copied or moved and may be an older copy. The node's "not
    /// found" does not count until the peers have streamed the newer records.
    Verifying = 3,
}

impl MembershipState {
    /// Decodes a stored state; `None` if the code is unknown.
    pub fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Joining,
            1 => Self::Member,
            2 => Self::Rebuilding,
            3 => Self::Verifying,
            _ => return None,
        })
    }

    /// Returns the state's name for logs and reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Member => "member",
            Self::Rebuilding => "rebuilding",
            Self::Verifying => "verifying",
        }
    }
}

/// A node's membership state, and the doubts about it.
#[derive(Debug)]
pub struct Membership {
    state: AtomicU8,
    /// Highest version time that an earlier boot of this node may have acknowledged.
    lost_before: AtomicU64,
    /// Highest ballot that a boot on a lost disk of this node may have promised.
    promised_before: AtomicU64,
    /// Version time up to which the node has recovered, from the other replicas, the idempotency
    /// records that an earlier boot had.
    idempotency_recovered_until: AtomicU64,
    /// True if all reachable peers were asked since the start about their knowledge of this node.
    confirmed: AtomicBool,
    /// True if a peer's claim about this node's log contradicts the state.
    doubted: AtomicBool,
    /// True if this directory is older than the last proven repair round.
    outdated: AtomicBool,
    /// True if the state will be settled soon, so that asking this node again is worthwhile.
    settling: AtomicBool,
    /// True if a later process runs with this node's disk and replaces this process.
    fenced: AtomicBool,
}

impl Membership {
    /// Creates the state from its stored form. `lost_before` is at least the highest version time
    /// that an earlier boot of this node acknowledged. The node becomes authoritative only once it
    /// is confirmed. `alone` means that the node has no peer to ask; such a node is confirmed at
    /// once.
    pub fn new(state: MembershipState, lost_before: u64, alone: bool) -> Self {
        Self {
            state: AtomicU8::new(state as u8),
            lost_before: AtomicU64::new(lost_before),
            promised_before: AtomicU64::new(lost_before),
            idempotency_recovered_until: AtomicU64::new(0),
            confirmed: AtomicBool::new(alone),
            doubted: AtomicBool::new(false),
            outdated: AtomicBool::new(false),
            settling: AtomicBool::new(!alone),
            fenced: AtomicBool::new(false),
        }
    }

    /// Sets the stored upper bound of all ballots that boots on lost disks promised. The clock's
    /// bound covers the ballots that were promised on the current disk.
    pub fn with_promised_before(self, before: u64) -> Self {
        self.promised_before.store(before, Ordering::Relaxed);
        self
    }

    /// Sets the stored version time up to which the idempotency records were recovered.
    pub fn with_idempotency_recovered_until(self, until: u64) -> Self {
        self.set_idempotency_recovered_until(until);
        self
    }

    /// Returns the membership state.
    pub fn state(&self) -> MembershipState {
        let code = self.state.load(Ordering::Acquire);
        MembershipState::of_code(code).expect("only what is one is stored")
    }

    /// True if the node is a member, confirmed or not.
    pub(crate) fn is_member(&self) -> bool {
        self.state() == MembershipState::Member
    }

    /// True if the node is a member and no peer's claim contradicts the membership.
    pub(crate) fn is_undoubted_member(&self) -> bool {
        self.is_member() && !self.doubted.load(Ordering::Acquire)
    }

    /// Changes the state and clears the doubt.
    pub fn set(&self, state: MembershipState) {
        self.state.store(state as u8, Ordering::Release);
        self.doubted.store(false, Ordering::Release);
    }

    /// Notes a loss: any acknowledged write with a version time up to `until` may be gone.
    pub fn mark_lost(&self, until: u64) {
        self.lost_before.fetch_max(until, Ordering::Relaxed);
        self.promised_before.fetch_max(until, Ordering::Relaxed);
        self.set(MembershipState::Rebuilding);
    }

    /// Notes that a peer claims more of this node's log than exists. Until the next `set`, the node
    /// is authoritative only for records newer than `lost_before`.
    pub fn mark_doubted(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// Notes that this directory may hold deleted records whose tombstones are purged on all other
    /// nodes. From then on the replica refuses all requests of other nodes except those of repair
    /// rounds, and this node's own copy counts in none of its reads.
    pub fn mark_outdated(&self) {
        self.outdated.store(true, Ordering::Release);
    }

    /// True if the directory is outdated.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    /// Notes that all reachable peers were asked about their knowledge of this node.
    pub fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }

    /// True if all reachable peers were asked since the start about their knowledge of this node.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Notes whether the state will be settled soon.
    pub fn set_settling(&self, soon: bool) {
        self.settling.store(soon, Ordering::Relaxed);
    }

    /// True if the state will be settled soon, so that asking this node again is worthwhile.
    pub fn is_settling(&self) -> bool {
        self.settling.load(Ordering::Relaxed)
    }

    /// Fences this process, because a later process with this node's disk is known: this process
    /// serves no more requests. Returns true on the first call.
    pub fn fence(&self) -> bool {
        !self.fenced.swap(true, Ordering::AcqRel)
    }

    /// True if the process is fenced.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// True if this node certainly acknowledged no newer record of a key than the record that it
    /// holds. `time` is the version time of the held record; `None` = the node holds no record of
    /// the key. Earlier boots acknowledged nothing newer than `lost_before`, so a held record above
    /// that time hides no loss.
    pub fn is_authoritative(&self, time: Option<u64>) -> bool {
        self.is_authoritative_for_all() || time.is_some_and(|time| time > self.lost_before())
    }

    /// Returns the highest version time of a write that the node may have acknowledged and lost;
    /// `None` = no write is lost.
    pub(crate) fn lost_write_bound(&self) -> Option<u64> {
        (!self.is_authoritative_for_all()).then(|| self.lost_before())
    }

    /// Notes that no peer ever knew another disk of this node: no promise is lost.
    pub fn mark_no_former_boot(&self) {
        self.promised_before.store(0, Ordering::Relaxed);
    }

    /// Returns the highest ballot that an earlier boot may have promised and lost with its disk.
    pub fn promised_before(&self) -> u64 {
        self.promised_before.load(Ordering::Relaxed)
    }

    /// Notes that the other replicas have sent their idempotency records, which replace the ones
    /// that this node lost up to the version time `until`.
    pub fn set_idempotency_recovered_until(&self, until: u64) {
        self.idempotency_recovered_until.fetch_max(until, Ordering::AcqRel);
    }

    /// Returns the version time up to which idempotency records were recovered; 0 = never.
    pub fn idempotency_recovered_until(&self) -> u64 {
        self.idempotency_recovered_until.load(Ordering::Acquire)
    }

    /// Returns the version time up to which the node may have lost idempotency records that it has
    /// not recovered; 0 = none are lost.
    pub fn idempotency_lost_before(&self) -> u64 {
        let lost = self.promised_before();
        if lost > self.idempotency_recovered_until() { lost } else { 0 }
    }

    /// Returns the highest version time that an earlier boot of this node may have acknowledged.
    fn lost_before(&self) -> u64 {
        self.lost_before.load(Ordering::Relaxed)
    }

    /// True if the node certainly holds every write that it acknowledged, and so is authoritative
    /// for every absent key.
    pub fn is_authoritative_for_all(&self) -> bool {
        self.knows_what_it_lost() && self.is_member()
    }

    /// True if all reachable peers were asked, none of them contradicted the state, and the
    /// directory is not outdated.
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
        membership.mark_doubted();
        assert!(!membership.is_authoritative(None) && !membership.is_authoritative_for_all());
        assert!(membership.is_authoritative(Some(1)), "newer than all that may be lost");
        membership.set(MembershipState::Member);
        assert!(membership.is_authoritative(None) && membership.is_authoritative_for_all());
        membership.mark_outdated();
        membership.set(MembershipState::Member);
        assert!(!membership.is_authoritative(None), "nothing that is streamed changes that");
    }
}
