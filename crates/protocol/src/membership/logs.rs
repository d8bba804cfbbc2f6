//! Log positions that nodes report to each other. The reports reveal that a node came back with
//! less data than it had reported: its directory is an older copy or a file system snapshot, or a
//! power cut took the end of its log.
//!
//! ```text
//!   N ── each envelope: "my log holds what I acknowledged up to 812" ──▶ P remembers (boot 7, 812)
//!   N starts again, as boot 8, with a log that ends at 640
//!   N ◀── handshake: "I know you by boot 7, up to 812" ── P
//!   N: boot 8 began at 640, so the writes of boot 7 after position 640 are lost
//! ```
//!
//! A [`Boot`] is one process on one data directory. Its id (`BootId`) is greater than those of
//! earlier boots, and all boots of a directory form its [`BootHistory`]. A *position* is a sequence
//! number of the store's log.
//!
//! A report belongs to the boot that made it. If two copies of a directory have both run since the
//! copy, the peers can therefore tell them apart: neither copy knows the other's boot. Of two
//! processes running at once, peers accept the one with the greater boot id and refuse the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::by_node::ByNode;
use crate::membership::disk_ids::{BootId, Incarnation, LogPosition};
use crate::membership::former_disks::FormerDisks;
use crate::membership::layout::VoterId;
use crate::message::NodeId;
use record::COUNTER_BITS;

/// Maximum number of boots that a directory remembers. A report by an older boot is compared with
/// the oldest remembered boot.
pub const MAX_BOOTS: usize = 64;

/// Length of an encoded boot in bytes.
const BOOT_LEN: usize = 24;

/// Maximum age difference, in microseconds, between the newest record before a log's end and a
/// write acknowledged after that end: a deadline plus twice the maximum clock skew, with a wide
/// margin. Few records are that recent, so streaming some of them needlessly costs little.
const TAIL_MICROS: u64 = 600_000_000;

/// A boot: one run of a process on a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// The boot id, greater than those of all earlier boots: the wall clock's time at the start,
    /// encoded as a version time.
    pub id: BootId,
    /// The log's last sequence number when the process started.
    pub begins: LogPosition,
    /// The highest version time in the store when the process started.
    pub newest: u64,
}

impl Boot {
    /// Returns the lowest version time of a write that may have been acknowledged after the end
    /// that the log had at the start of this boot.
    fn end(&self) -> u64 {
        self.newest.saturating_sub(TAIL_MICROS << COUNTER_BITS)
    }
}

/// The boots of a data directory, oldest first; the last one is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootHistory(Vec<Boot>);

impl BootHistory {
    /// Appends the running boot to the `earlier` ones.
    pub fn new(mut earlier: Vec<Boot>, now: Boot) -> Self {
        assert!(earlier.last().is_none_or(|last| last.id < now.id), "lives grow");
        earlier.push(now);
        let from = earlier.len().saturating_sub(MAX_BOOTS);
        Self(earlier.split_off(from))
    }

    /// Returns the running boot.
    pub fn current(&self) -> Boot {
        *self.0.last().expect("there is one")
    }

    /// Encodes the boots as they are stored.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = self.0.iter().flat_map(|life| [life.id.0, life.begins.0, life.newest]);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes boots encoded by [`BootHistory::encode`]; `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Vec<Boot>> {
        if !bytes.len().is_multiple_of(BOOT_LEN) {
            return None;
        }
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let life = |bytes: &[u8]| {
            let (id, rest) = bytes.split_at(8);
            let (begins, newest) = rest.split_at(8);
            let (id, begins) = (BootId(number(id)), LogPosition(number(begins)));
            Boot { id, begins, newest: number(newest) }
        };
        let lives: Vec<Boot> = bytes.chunks_exact(BOOT_LEN).map(life).collect();
        lives.is_sorted_by(|a, b| a.id < b.id).then_some(lives)
    }

    /// Compares a position that this node once reported with the directory's log. Returns the
    /// lowest version time of a record that may be lost, 0 if records of any time may be lost, or
    /// `None` if no record is lost.
    pub fn find_loss(&self, reported: &Reported) -> Option<u64> {
        let by = reported.life.filter(|by| *by != self.current().id)?;
        let Some(next) = self.0.iter().find(|life| life.id > by) else {
            // The reporting boot is later than all boots of this directory, so it ran on another
            // copy. That copy is not an earlier state of this directory.
            return Some(0);
        };
        let known = self.0.iter().any(|life| life.id == by);
        let earlier = by < self.0[0].id;
        if reported.position > next.begins {
            // Hints and read repairs are late writes: their versions can be older than the log's
            // end.
            let is_tail = known && reported.late <= next.begins;
            return Some(if is_tail { next.end() } else { 0 });
        }
        (!known && !earlier).then_some(0)
    }
}

/// Log position that a node reported to another node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// The boot that reported the position; `None` = no boot has reported one.
    pub life: Option<BootId>,
    /// The highest reported position: the node's log held every write acknowledged up to there.
    pub position: LogPosition,
    /// The position after which the node's log holds no late write (hint or repair) from the node
    /// that received the report.
    pub late: LogPosition,
}

/// A node's memory of another node's data directory. The node sends the claim to the other node
/// when the two connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The directory's incarnation, which identifies the disk.
    pub incarnation: Incarnation,
    /// The log position that the node reported.
    pub reported: Reported,
}

#[derive(Debug, Default)]
struct PeerLog {
    known: Mutex<KnownNode>,
    /// True if this node reports its position to the peer: the peer's claim about this node was
    /// checked.
    settled: AtomicBool,
    /// True if the peer claims more of this node's log than exists, and this node has not stored
    /// durably yet that its log lost its end.
    doubts: AtomicBool,
}

#[derive(Debug, Default)]
struct KnownNode {
    /// The incarnation of the peer's disk, as stored on this node's disk.
    incarnation: Option<Incarnation>,
    /// The disk seen since the start, and the highest boot id seen of it.
    seen: Option<(Incarnation, BootId)>,
    /// The last report of the stored disk, or of a disk seen later.
    reported: Reported,
    /// The last report of the stored disk, if `reported` is another disk's.
    of_stored_disk: Option<Reported>,
    kept: Reported,
    /// True if this node has seen, or may have seen, another disk of the peer.
    had_another_disk: bool,
    /// Number of connections to and from the peer.
    connections: u32,
}

impl KnownNode {
    /// Returns the last report of the stored disk.
    fn report_of_stored_disk(&self) -> Reported {
        self.of_stored_disk.unwrap_or(self.reported)
    }
}

/// The log positions known of all nodes, shared by the event loops of a node.
#[derive(Debug)]
pub struct Logs {
    /// The incarnation of this node's disk.
    incarnation: Incarnation,
    boot_history: BootHistory,
    /// The former disks of this node.
    former: Mutex<FormerDisks>,
    /// The position up to which this node's log holds every acknowledged write.
    position: AtomicU64,
    peers: ByNode<PeerLog>,
}

impl Logs {
    /// Creates the state from this node's `incarnation` and the stored `claims` about the others.
    pub fn new(
        incarnation: Incarnation,
        boot_history: BootHistory,
        claims: &[(NodeId, Claim)],
    ) -> Self {
        let position = AtomicU64::new(boot_history.current().begins.0);
        let former = Mutex::default();
        let logs = Self { incarnation, boot_history, former, position, peers: ByNode::default() };
        for (node, Claim { incarnation, reported }) in claims {
            let (incarnation, reported) = (Some(*incarnation), *reported);
            let had_another_disk = true;
            let kept = reported;
            let known =
                KnownNode { incarnation, reported, kept, had_another_disk, ..KnownNode::default() };
            logs.with(*node, |held| *held = known);
        }
        logs
    }

    /// Sets the former disks of this node, as stored.
    pub fn with_former_disks(mut self, former: FormerDisks) -> Self {
        self.former = Mutex::new(former);
        self
    }

    /// Returns the state of a disk's first boot, which knows no peer.
    pub fn first(incarnation: Incarnation) -> Self {
        let life = Boot { id: BootId(1), begins: LogPosition::START, newest: 0 };
        let boot_history = BootHistory::new(Vec::new(), life);
        Self::new(incarnation, boot_history, &[])
    }

    /// Calls `what` with the entry of a node.
    fn with<T>(&self, node: NodeId, what: impl FnOnce(&mut KnownNode) -> T) -> T {
        self.peers.with(node, |peer| what(&mut peer.known.lock()))
    }

    /// Returns the boot id of this process.
    pub fn life(&self) -> BootId {
        self.boot_history.current().id
    }

    /// Returns the voter id derived from this boot. The node uses it if votes under its earlier
    /// voter id may be lost; no other boot has the same voter id.
    pub fn voter(&self) -> VoterId {
        self.voter_of(self.life())
    }

    fn voter_of(&self, life: BootId) -> VoterId {
        let of = [self.incarnation.0, life.0].map(u64::to_le_bytes);
        VoterId(xxh3_64(of.as_flattened()).max(1))
    }

    /// True if the claim is about an earlier boot than the boot from which `voter` was derived. The
    /// claim then says nothing about the votes of that voter.
    pub fn is_before_voter(&self, claim: &Claim, voter: Option<VoterId>) -> bool {
        let made_voter = |life: &&Boot| voter == Some(self.voter_of(life.id));
        let maker = self.boot_history.0.iter().find(made_voter).map(|life| life.id);
        claim.incarnation == self.incarnation
            && maker.is_some_and(|maker| claim.reported.life.is_some_and(|life| life < maker))
    }

    /// Returns the lowest version time of a write that may be missing if any part of the log's end
    /// is lost; 0 = records of any time may be missing.
    pub fn end(&self) -> u64 {
        self.boot_history.current().end()
    }

    /// Returns this node's incarnation.
    pub fn own_incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Checks a peer's claim about this node for data that this node has lost. Returns the lowest
    /// version time of a record that may be lost, 0 for records of any time, or `None` if no record
    /// is lost.
    pub fn find_loss(&self, claim: Option<&Claim>) -> Option<u64> {
        let claim = claim?;
        if claim.incarnation == self.incarnation {
            return self.boot_history.find_loss(&claim.reported);
        }
        // The claim names another disk of this node, and the contents of that disk are unknown. A
        // completed rebuild may have settled the claim. (If a peer has streamed all its records to
        // this disk, its claim names this disk.)
        if self.former.lock().covers(claim) { None } else { Some(0) }
    }

    /// Notes a claim that causes a rebuild of this node, if the claim is about another disk.
    pub(crate) fn add_former_claim(&self, claim: &Claim) {
        if claim.incarnation != self.incarnation {
            self.former.lock().note(claim);
        }
    }

    /// Settles the claims about former disks. The end of the rebuild must be durable.
    pub(crate) fn settle_former_claims(&self) {
        self.former.lock().settle();
    }

    /// Assigns the noted claims to the rebuild that is under way or about to be stored.
    pub fn begin_former_rebuild(&self) {
        self.former.lock().begin_rebuild();
    }

    /// Returns the former disks to store together with a membership state. `is_member` is true for
    /// the state *Member*, with which the rebuild is complete.
    pub fn former_disks(&self, is_member: bool) -> FormerDisks {
        let former = self.former.lock();
        if is_member { former.after_rebuild() } else { former.clone() }
    }

    /// Notes that the log up to `position` holds every write acknowledged so far.
    pub fn raise_position(&self, LogPosition(position): LogPosition) {
        if self.position.load(Ordering::Relaxed) < position {
            self.position.fetch_max(position, Ordering::Relaxed);
        }
    }

    /// Notes that a node's claim about this node was checked and the consequences are durable. From
    /// now on this node reports its position to that node, where the report replaces the claim.
    pub fn settle(&self, node: NodeId) {
        self.peers.with(node, |peer| {
            peer.settled.store(true, Ordering::Release);
            peer.doubts.store(false, Ordering::Release);
        });
    }

    /// Notes that a node claims more of this node's log than exists. Until the claim is settled
    /// this node does not vote, because no position report would tell the other node of the vote
    /// (`docs/design/membership.md`).
    pub fn mark_doubted(&self, node: NodeId) {
        self.peers.with(node, |peer| peer.doubts.store(true, Ordering::Release));
    }

    /// True if some node's claim must be settled before this node votes.
    pub fn is_in_doubt(&self) -> bool {
        self.peers.any(|peer| peer.doubts.load(Ordering::Acquire))
    }

    /// Returns the log position that envelopes to a node carry: [`LogPosition::START`] until the
    /// node's claim is settled.
    pub fn position_for(&self, node: NodeId) -> LogPosition {
        let settled = self.peers.with(node, |peer| peer.settled.load(Ordering::Acquire));
        LogPosition(if settled { self.position.load(Ordering::Relaxed) } else { 0 })
    }

    /// True if a later boot of the node's disk was seen.
    pub fn has_later_boot(&self, node: NodeId, incarnation: Incarnation, life: BootId) -> bool {
        let outlives = |(disk, last)| disk == incarnation && last > life;
        self.with(node, |known| known.seen.is_some_and(outlives))
    }

    /// Counts a new (`is_new`) or lost connection with a node. Returns true if a connection
    /// remains.
    pub fn note_connection(&self, node: NodeId, is_new: bool) -> bool {
        self.with(node, |known| {
            assert!(is_new || known.connections > 0, "a connection ends that was there");
            known.connections = known.connections + u32::from(is_new) - u32::from(!is_new);
            known.connections > 0
        })
    }

    /// True if the node is connected with another disk. If two processes run as one node with two
    /// directories, the connected process counts.
    pub fn is_connected_elsewhere(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let has_another = |(disk, _)| disk != incarnation;
        self.with(node, |known| known.connections > 0 && known.seen.is_some_and(has_another))
    }

    /// Notes the authenticated disk and boot of a node.
    pub fn note_boot(&self, node: NodeId, incarnation: Incarnation, life: BootId) {
        self.with(node, |known| {
            let is_other = |disk: Incarnation| disk != incarnation;
            known.had_another_disk |= known.seen.is_some_and(|(disk, _)| is_other(disk))
                || known.incarnation.is_some_and(is_other);
            if known.seen.is_none_or(|(disk, last)| disk != incarnation || last < life) {
                known.seen = Some((incarnation, life));
            }
        });
    }

    /// True if the node was seen with this disk.
    pub(crate) fn has_seen_disk(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.with(node, |known| {
            let seen = known.seen.map(|(disk, _)| disk);
            [known.incarnation, seen].contains(&Some(incarnation))
        })
    }

    /// Notes that this node never knew another disk of a node than the known one.
    pub fn mark_only_disk(&self, node: NodeId) {
        self.with(node, |known| known.had_another_disk = false);
    }

    /// True if this node knew, or may have known, another disk of the node before.
    pub fn had_another_disk(&self, node: NodeId) -> bool {
        self.with(node, |known| known.had_another_disk)
    }

    /// Notes the log position of an envelope from this boot of a node's disk. Returns false if a
    /// later boot or another disk was seen since; the caller then ignores all messages of this
    /// boot.
    pub fn note_envelope(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        life: BootId,
        position: LogPosition,
    ) -> bool {
        self.with(node, |known| {
            let is_current = known.seen == Some((incarnation, life));
            if is_current && position > LogPosition::START {
                let is_stored = known.incarnation.is_none_or(|disk| disk == incarnation);
                known.of_stored_disk = match is_stored {
                    true => None,
                    false => Some(known.report_of_stored_disk()),
                };
                if known.reported.life != Some(life) {
                    let late = LogPosition::START;
                    known.reported = Reported { life: Some(life), position, late };
                }
                known.reported.position = known.reported.position.max(position);
            }
            is_current
        })
    }

    /// Notes that a node has stored a late write (hint or repair), whose version may be older than
    /// those of the log records before it.
    pub fn note_late_write(&self, node: NodeId) {
        self.with(node, |known| known.reported.late = known.reported.position);
    }

    /// Returns a node's stored incarnation.
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.claim(node).map(|claim| claim.incarnation)
    }

    /// Notes that a node's incarnation is stored.
    pub fn know(&self, node: NodeId, incarnation: Incarnation) {
        self.with(node, |known| {
            if known.incarnation != Some(incarnation) {
                (known.incarnation, known.of_stored_disk) = (Some(incarnation), None);
                // The last report belongs to the new disk only if the reporting boot was seen on
                // that disk.
                let by = known.reported.life;
                let is_of = |(disk, life)| disk == incarnation && by == Some(life);
                if !known.seen.is_some_and(is_of) {
                    known.reported = Reported::default();
                }
            }
        });
    }

    /// Returns this node's knowledge of another node's disk, sent as a claim in the handshake;
    /// `None` if no disk of the node is stored. The claim has the last report of the stored disk,
    /// even if another disk has reported since.
    pub fn claim(&self, node: NodeId) -> Option<Claim> {
        let (incarnation, reported) =
            self.with(node, |known| (known.incarnation, known.report_of_stored_disk()));
        Some(Claim { incarnation: incarnation?, reported })
    }

    /// Returns the claim about a node if it is not stored yet.
    pub fn unsaved_claim(&self, node: NodeId) -> Option<Claim> {
        let is_kept = self.with(node, |known| known.report_of_stored_disk() == known.kept);
        self.claim(node).filter(|_| !is_kept)
    }

    /// Notes that the claim is durable.
    pub fn mark_claim_stored(&self, node: NodeId, claim: &Claim) {
        self.with(node, |known| {
            if known.incarnation == Some(claim.incarnation) {
                known.kept = claim.reported;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Incarnation = Incarnation(5);
    const THEIRS: Incarnation = Incarnation(77);

    const HOUR: u64 = 3_600_000_000 << 12;

    fn life(id: u64, begins: u64) -> Boot {
        Boot { id: BootId(id), begins: LogPosition(begins), newest: id * HOUR }
    }

    fn report_at(life: u64, position: u64) -> Reported {
        let (life, position) = (BootId::of_number(life), LogPosition(position));
        Reported { life, position, late: LogPosition::START }
    }

    #[test]
    fn a_restart_that_keeps_all_has_lost_nothing() {
        let boot_history = BootHistory::new(vec![life(1, 0), life(3, 100)], life(5, 200));
        for (id, position) in [(1, 100), (1, 40), (3, 200), (3, 150), (5, 700), (0, 0)] {
            assert_eq!(boot_history.find_loss(&report_at(id, position)), None, "{id} {position}");
        }
    }

    #[test]
    fn a_log_shorter_than_its_report_has_lost_its_tail() {
        let boot_history = BootHistory::new(vec![life(1, 0), life(3, 100)], life(5, 200));
        let tail = boot_history.find_loss(&report_at(3, 201)).expect("one group is missing");
        assert!(tail < 5 * HOUR && tail > 4 * HOUR, "only what is as new as the end: {tail:x}");
        let late = Reported { late: LogPosition(201), ..report_at(3, 250) };
        assert_eq!(boot_history.find_loss(&late), Some(0), "what came late may be of any age");
        assert!(
            boot_history
                .find_loss(&Reported { late: LogPosition(200), ..report_at(3, 250) })
                .is_some_and(|since| since > 0)
        );
    }

    #[test]
    fn an_older_copy_of_the_directory_lacks_later_boots() {
        // The original ran boots 1, 3 and 5; the copy has boot 1, and starts as 7.
        let boot_history = BootHistory::new(vec![life(1, 0)], life(7, 80));
        assert!(boot_history.find_loss(&report_at(1, 100)).is_some());
        assert_eq!(boot_history.find_loss(&report_at(1, 80)), None);
        assert_eq!(boot_history.find_loss(&report_at(5, 300)), Some(0));
        assert_eq!(boot_history.find_loss(&report_at(5, 10)), Some(0), "a life of another branch");
    }

    #[test]
    fn the_original_directory_detects_that_its_copy_ran() {
        // The copy ran as boot 4 beside boot 3; the original now runs again.
        let boot_history = BootHistory::new(vec![life(1, 0), life(3, 100)], life(5, 500));
        assert_eq!(boot_history.find_loss(&report_at(4, 120)), Some(0));
        // The copy is still running.
        assert_eq!(boot_history.find_loss(&report_at(6, 120)), Some(0));
    }

    #[test]
    fn the_number_of_boots_is_limited_and_they_decode_unchanged() {
        let mut boot_history = BootHistory::new(Vec::new(), life(1, 0));
        for id in 2..=100 {
            let earlier = BootHistory::decode(&boot_history.encode()).unwrap();
            boot_history = BootHistory::new(earlier, life(id, id));
        }
        assert_eq!(boot_history.0.len(), MAX_BOOTS);
        assert_eq!(boot_history.find_loss(&report_at(1, 1)), None, "before all that is remembered");
        assert!(boot_history.find_loss(&report_at(1, 50)).is_some());
        assert_eq!(BootHistory::decode(&[0; 23]), None);
        assert_eq!(BootHistory::decode(&[1; 48]), None, "two of one number");
    }

    #[test]
    fn a_claim_about_a_disk_never_has_the_report_of_another_disk() {
        let (peer, other) = (NodeId(1), Incarnation(78));
        let claim = |boot, position| {
            Some(Claim { incarnation: THEIRS, reported: report_at(boot, position) })
        };
        let stored = claim(3, 40).map(|claim| (peer, claim));
        let boot_history = BootHistory::new(Vec::new(), life(1, 0));
        let logs = Logs::new(DISK, boot_history, stored.as_slice());
        logs.note_boot(peer, other, BootId(9));
        for position in [7, 8] {
            assert!(logs.note_envelope(peer, other, BootId(9), LogPosition(position)));
            assert_eq!((logs.claim(peer), logs.unsaved_claim(peer)), (claim(3, 40), None));
        }
        logs.know(peer, other);
        let of_other = Claim { incarnation: other, reported: report_at(9, 8) };
        assert_eq!(logs.claim(peer), Some(of_other));
        // The first disk is put back.
        logs.note_boot(peer, THEIRS, BootId(10));
        assert!(logs.note_envelope(peer, THEIRS, BootId(10), LogPosition(50)));
        assert_eq!(logs.claim(peer), Some(of_other));
        logs.know(peer, THEIRS);
        assert_eq!(logs.claim(peer), claim(10, 50));
    }

    #[test]
    fn no_position_is_reported_before_the_peers_claim_is_checked() {
        let logs = Logs::new(DISK, BootHistory::new(Vec::new(), life(1, 7)), &[]);
        let peer = NodeId(1);
        assert_eq!(logs.position_for(peer), LogPosition(0));
        logs.settle(peer);
        assert_eq!(logs.position_for(peer), LogPosition(7));
        logs.raise_position(LogPosition(9));
        logs.raise_position(LogPosition(8));
        let positions = [peer, NodeId(0)].map(|node| logs.position_for(node).0);
        assert_eq!(positions, [9, 0]);
    }

    #[test]
    fn the_later_of_two_boots_counts() {
        let logs = Logs::new(DISK, BootHistory::new(Vec::new(), life(1, 0)), &[]);
        let peer = NodeId(1);
        logs.note_boot(peer, THEIRS, BootId(10));
        assert!(logs.note_envelope(peer, THEIRS, BootId(10), LogPosition(5)));
        logs.know(peer, THEIRS);
        assert_eq!(logs.claim(peer).unwrap().reported, report_at(10, 5));
        logs.note_boot(peer, THEIRS, BootId(11));
        assert!(
            !logs.note_envelope(peer, THEIRS, BootId(10), LogPosition(6)),
            "the older one is not heard any more"
        );
        assert!(
            logs.has_later_boot(peer, THEIRS, BootId(10))
                && !logs.has_later_boot(peer, THEIRS, BootId(11))
        );
        assert!(!logs.has_later_boot(peer, Incarnation(78), BootId(10)), "another disk");
        assert_eq!(
            logs.claim(peer).unwrap().reported,
            report_at(10, 5),
            "it has reported nothing yet"
        );
        assert!(logs.note_envelope(peer, THEIRS, BootId(11), LogPosition(3)));
        assert_eq!(logs.claim(peer).unwrap().reported, report_at(11, 3));
    }

    #[test]
    fn a_connected_disk_is_not_replaced_by_another_one() {
        let logs = Logs::new(DISK, BootHistory::new(Vec::new(), life(1, 0)), &[]);
        let (peer, other) = (NodeId(1), Incarnation(78));
        logs.note_boot(peer, THEIRS, BootId(10));
        assert!(!logs.is_connected_elsewhere(peer, other), "it may be gone");
        logs.note_connection(peer, true);
        logs.note_connection(peer, true);
        logs.note_connection(peer, false);
        assert!(
            logs.is_connected_elsewhere(peer, other) && !logs.is_connected_elsewhere(peer, THEIRS)
        );
        logs.note_connection(peer, false);
        assert!(!logs.is_connected_elsewhere(peer, other));
        logs.note_boot(peer, other, BootId(3));
        logs.note_connection(peer, true);
        assert!(
            logs.is_connected_elsewhere(peer, THEIRS) && !logs.is_connected_elsewhere(peer, other),
            "it was replaced"
        );
    }

    #[test]
    fn a_claim_of_a_boot_before_the_voter_does_not_concern_its_votes() {
        let lives = vec![life(1, 0), life(5, 90)];
        let logs = Logs::new(DISK, BootHistory::new(lives, life(7, 100)), &[]);
        let claim = |life| Claim { incarnation: DISK, reported: report_at(life, 300) };
        let voter = Some(logs.voter_of(BootId(5)));
        assert!(logs.is_before_voter(&claim(3), voter), "of a branch that was put back");
        for (claim, voter) in [
            (claim(5), voter),
            (claim(6), voter),
            (claim(3), Some(VoterId(1))),
            (claim(3), None),
            (Claim { incarnation: THEIRS, ..claim(3) }, voter),
        ] {
            assert!(!logs.is_before_voter(&claim, voter), "{claim:?} {voter:?}");
        }
    }

    #[test]
    fn a_node_is_in_doubt_until_all_claims_are_settled() {
        let logs = Logs::first(DISK);
        logs.mark_doubted(NodeId(1));
        logs.mark_doubted(NodeId(2));
        logs.settle(NodeId(1));
        assert!(logs.is_in_doubt());
        logs.settle(NodeId(2));
        assert!(!logs.is_in_doubt());
    }

    #[test]
    fn an_unsaved_claim_is_returned_until_it_is_stored() {
        let logs = Logs::new(DISK, BootHistory::new(Vec::new(), life(1, 0)), &[]);
        let peer = NodeId(1);
        logs.note_boot(peer, THEIRS, BootId(10));
        assert!(logs.note_envelope(peer, THEIRS, BootId(10), LogPosition(5)));
        assert_eq!(logs.unsaved_claim(peer), None, "its disk is not known yet");
        logs.know(peer, THEIRS);
        logs.note_late_write(peer);
        let claim = logs.unsaved_claim(peer).unwrap();
        assert_eq!(claim.reported, Reported { late: LogPosition(5), ..report_at(10, 5) });
        logs.mark_claim_stored(peer, &claim);
        assert_eq!(logs.unsaved_claim(peer), None);
        assert!(logs.note_envelope(peer, THEIRS, BootId(10), LogPosition(6)));
        assert!(logs.unsaved_claim(peer).is_some());
    }
}
