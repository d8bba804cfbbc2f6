//! How far the nodes' logs are known to reach, so that a node that comes back with less is noticed:
//! an older copy of its directory, a snapshot of its file system, a tail that a power cut took.
//!
//! ```text
//!   N ── each envelope: "my log holds what I acknowledged up to 812" ──▶ P remembers (life 7, 812)
//!   N starts again, as life 8, with a log that ends at 640
//!   N ◀── handshake: "I know you by life 7, up to 812" ── P
//!   N: life 8 began at 640, so what life 7 wrote behind that is lost
//! ```
//!
//! A *life* is one process on one data directory; each has a greater number than those before it,
//! and all of a directory are in its [`Lineage`]. A *position* is a sequence number of the store's
//! log. What a node reports is true of the life that reported it; so two copies of a directory that
//! both went on are told apart too: neither knows the other's life. Of two processes that run at
//! once the one with the greater life is accepted, and the other is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::by_node::ByNode;
use crate::membership::directory::{Incarnation, LifeId, LogPosition};
use crate::membership::layout::VoterId;
use crate::message::NodeId;
use record::COUNTER_BITS;

/// Lives that a directory remembers. A peer that has seen only older ones is compared with the
/// oldest of these.
pub const MAX_LIVES: usize = 64;

/// Bytes of an encoded life.
const LIFE_LEN: usize = 24;

/// How much older than the newest record before a log's end a write may be that was acknowledged
/// behind it, in microseconds: a deadline and twice the greatest skew, with a wide margin. Few
/// records are that new, and a repair that streams some in vain costs little.
const TAIL_MICROS: u64 = 600_000_000;

/// A process on a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Greater than that of every life before it: the wall clock's time when it began, as a
    /// version's.
    pub id: LifeId,
    /// The last sequence that its log held when it began.
    pub begins: LogPosition,
    /// The greatest time of a version that the store held then.
    pub newest: u64,
}

impl Life {
    /// The least time of a version that may have been acknowledged behind the end that the log had
    /// when the life began.
    fn end(&self) -> u64 {
        self.newest.saturating_sub(TAIL_MICROS << COUNTER_BITS)
    }
}

/// The lives of a data directory, the oldest first; the last one is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage(Vec<Life>);

impl Lineage {
    /// `earlier` lives, and one that begins now.
    pub fn new(mut earlier: Vec<Life>, now: Life) -> Self {
        assert!(earlier.last().is_none_or(|last| last.id < now.id), "lives grow");
        earlier.push(now);
        let from = earlier.len().saturating_sub(MAX_LIVES);
        Self(earlier.split_off(from))
    }

    /// The present life.
    pub fn now(&self) -> Life {
        *self.0.last().expect("there is one")
    }

    /// All of it, as it is kept.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = self.0.iter().flat_map(|life| [life.id.0, life.begins.0, life.newest]);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    /// Lives as [`Lineage::encode`] gave them.
    pub fn decode(bytes: &[u8]) -> Option<Vec<Life>> {
        if !bytes.len().is_multiple_of(LIFE_LEN) {
            return None;
        }
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let life = |bytes: &[u8]| {
            let (id, rest) = bytes.split_at(8);
            let (begins, newest) = rest.split_at(8);
            let (id, begins) = (LifeId(number(id)), LogPosition(number(begins)));
            Life { id, begins, newest: number(newest) }
        };
        let lives: Vec<Life> = bytes.chunks_exact(LIFE_LEN).map(life).collect();
        lives.is_sorted_by(|a, b| a.id < b.id).then_some(lives)
    }

    /// Whether this node once reported more than its directory holds now: then the least time of a
    /// version that may be lost. 0 = that is not known, so any may be.
    pub fn lost(&self, reported: &Reported) -> Option<u64> {
        let by = reported.life.filter(|by| *by != self.now().id)?;
        let Some(next) = self.0.iter().find(|life| life.id > by) else {
            // A greater life than this one: of another copy, which is not an earlier state of it.
            return Some(0);
        };
        let known = self.0.iter().any(|life| life.id == by);
        let earlier = by < self.0[0].id;
        if reported.position > next.begins {
            // What comes late is older than the log's end: hints, what a read repaired.
            let is_tail = known && reported.late <= next.begins;
            return Some(if is_tail { next.end() } else { 0 });
        }
        (!known && !earlier).then_some(0)
    }
}

/// What a node reported of its log to another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// The life that reported it; `None` = none did.
    pub life: Option<LifeId>,
    /// The greatest position it reported: all that it acknowledged up to there was in its log.
    pub position: LogPosition,
    /// The position behind which its log holds nothing that came late from the other node: no hint,
    /// no repair.
    pub late: LogPosition,
}

/// What a node knows of another one's data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its incarnation: which disk it has.
    pub incarnation: Incarnation,
    /// What it reported of its log.
    pub reported: Reported,
}

#[derive(Debug, Default)]
struct PeerLog {
    known: Mutex<Known>,
    /// Whether this node reports its position to it: what the peer claims of this node was looked
    /// at.
    settled: AtomicBool,
    /// Whether it claims more of this node's log than there is, and what follows is not durable.
    doubts: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// Its disk, as it is kept here.
    incarnation: Option<Incarnation>,
    /// The disk that was seen since the start, and the greatest life of it.
    seen: Option<(Incarnation, LifeId)>,
    reported: Reported,
    kept: Reported,
    /// Whether another disk of it was seen before, or that is not known.
    had_another: bool,
    /// Connections to it and from it.
    connections: u32,
}

/// What is known of all nodes' logs. Shared by the loops of a node.
#[derive(Debug)]
pub struct Logs {
    /// This node's disk.
    incarnation: Incarnation,
    lineage: Lineage,
    /// How far this node's own log holds what it acknowledged.
    position: AtomicU64,
    peers: ByNode<PeerLog>,
}

impl Logs {
    /// `incarnation` is this node's, `claims` what was stored of the others.
    pub fn new(incarnation: Incarnation, lineage: Lineage, claims: &[(NodeId, Claim)]) -> Self {
        let position = AtomicU64::new(lineage.now().begins.0);
        let logs = Self { incarnation, lineage, position, peers: ByNode::default() };
        for (node, Claim { incarnation, reported }) in claims {
            let (incarnation, reported) = (Some(*incarnation), *reported);
            let had_another = true;
            let kept = reported;
            let known = Known { incarnation, reported, kept, had_another, ..Known::default() };
            logs.with(*node, |held| *held = known);
        }
        logs
    }

    /// The first life of a disk, which knows nobody.
    pub fn first(incarnation: Incarnation) -> Self {
        let life = Life { id: LifeId(1), begins: LogPosition::START, newest: 0 };
        let lineage = Lineage::new(Vec::new(), life);
        Self::new(incarnation, lineage, &[])
    }

    /// Does something with what is known of a node.
    fn with<T>(&self, node: NodeId, what: impl FnOnce(&mut Known) -> T) -> T {
        self.peers.with(node, |peer| what(&mut peer.known.lock()))
    }

    /// This process's life.
    pub fn life(&self) -> LifeId {
        self.lineage.now().id
    }

    /// The voter that this life makes of the node, if it may have lost votes: no other one's.
    pub fn voter(&self) -> VoterId {
        self.voter_of(self.life())
    }

    fn voter_of(&self, life: LifeId) -> VoterId {
        let of = [self.incarnation.0, life.0].map(u64::to_le_bytes);
        VoterId(xxh3_64(of.as_flattened()).max(1))
    }

    /// Whether a claim says nothing of what this voter voted: it is of a life before the one that
    /// made the voter.
    pub fn is_before_voter(&self, claim: &Claim, voter: Option<VoterId>) -> bool {
        let made_voter = |life: &&Life| voter == Some(self.voter_of(life.id));
        let maker = self.lineage.0.iter().find(made_voter).map(|life| life.id);
        claim.incarnation == self.incarnation
            && maker.is_some_and(|maker| claim.reported.life.is_some_and(|life| life < maker))
    }

    /// The least time of a version that may be missing if this log has lost its end, however much
    /// of it; 0 = any.
    pub fn end(&self) -> u64 {
        self.lineage.now().end()
    }

    /// This node's incarnation.
    pub fn own_incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether a node that claims this of this node knows of something that this node has lost:
    /// then the least time of a version that may be lost.
    pub fn lost(&self, claim: Option<&Claim>) -> Option<u64> {
        let claim = claim?;
        // Another disk under this name, before or after this one: nobody knows what was on it.
        // (Who has streamed all it holds to this disk has seen it.)
        let other = claim.incarnation != self.incarnation;
        if other { Some(0) } else { self.lineage.lost(&claim.reported) }
    }

    /// All that this node has acknowledged so far is in its log up to here.
    pub fn wrote(&self, LogPosition(position): LogPosition) {
        if self.position.load(Ordering::Relaxed) < position {
            self.position.fetch_max(position, Ordering::Relaxed);
        }
    }

    /// What a node claims of this one was looked at, and what followed from it is durable: from now
    /// on this node reports its position to it, which replaces that claim.
    pub fn settle(&self, node: NodeId) {
        self.peers.with(node, |peer| {
            peer.settled.store(true, Ordering::Release);
            peer.doubts.store(false, Ordering::Release);
        });
    }

    /// A node claims more of this node's log than there is: until that is settled this node does
    /// not vote, for nothing tells the other node of the vote (`docs/membership-model.md`).
    pub fn doubt(&self, node: NodeId) {
        self.peers.with(node, |peer| peer.doubts.store(true, Ordering::Release));
    }

    /// Whether a node's claim is to be settled before this node votes.
    pub fn is_in_doubt(&self) -> bool {
        self.peers.any(|peer| peer.doubts.load(Ordering::Acquire))
    }

    /// What an envelope to a node says of this node's log.
    pub fn position_for(&self, node: NodeId) -> LogPosition {
        let settled = self.peers.with(node, |peer| peer.settled.load(Ordering::Acquire));
        LogPosition(if settled { self.position.load(Ordering::Relaxed) } else { 0 })
    }

    /// Whether a life of a node's disk is older than one that was seen.
    pub fn is_outlived(&self, node: NodeId, incarnation: Incarnation, life: LifeId) -> bool {
        let outlives = |(disk, last)| disk == incarnation && last > life;
        self.with(node, |known| known.seen.is_some_and(outlives))
    }

    /// There is one more connection with a node, or one less. Returns whether there is one.
    pub fn note_connection(&self, node: NodeId, is_new: bool) -> bool {
        self.with(node, |known| {
            assert!(is_new || known.connections > 0, "a connection ends that was there");
            known.connections = known.connections + u32::from(is_new) - u32::from(!is_new);
            known.connections > 0
        })
    }

    /// Whether a node is connected with another disk than this one: of two processes that run as
    /// one node with two directories the one that is connected counts.
    pub fn is_taken(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let has_another = |(disk, _)| disk != incarnation;
        self.with(node, |known| known.connections > 0 && known.seen.is_some_and(has_another))
    }

    /// A node has proved who it is.
    pub fn saw(&self, node: NodeId, incarnation: Incarnation, life: LifeId) {
        self.with(node, |known| {
            let is_other = |disk: Incarnation| disk != incarnation;
            known.had_another |= known.seen.is_some_and(|(disk, _)| is_other(disk))
                || known.incarnation.is_some_and(is_other);
            if known.seen.is_none_or(|(disk, last)| disk != incarnation || last < life) {
                known.seen = Some((incarnation, life));
            }
        });
    }

    /// Whether a node was met with this disk.
    pub(crate) fn has_met(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.with(node, |known| {
            let seen = known.seen.map(|(disk, _)| disk);
            [known.incarnation, seen].contains(&Some(incarnation))
        })
    }

    /// The disk that is known of a node is the only one of it that this node ever knew.
    pub fn note_first(&self, node: NodeId) {
        self.with(node, |known| known.had_another = false);
    }

    /// Whether this node knew another disk of a node than the one that it knows, or may have.
    pub fn had_another(&self, node: NodeId) -> bool {
        self.with(node, |known| known.had_another)
    }

    /// An envelope of that life of a node's disk came. `false` = a later life was seen since, and
    /// nothing that this one says counts any more.
    pub fn received(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        life: LifeId,
        position: LogPosition,
    ) -> bool {
        self.with(node, |known| {
            let is_current = known.seen == Some((incarnation, life));
            if is_current && position > LogPosition::START {
                if known.reported.life != Some(life) {
                    let late = LogPosition::START;
                    known.reported = Reported { life: Some(life), position, late };
                }
                known.reported.position = known.reported.position.max(position);
            }
            is_current
        })
    }

    /// A node has stored something that came late: a hint or a repair, older than what it wrote
    /// around it.
    pub fn stored_late(&self, node: NodeId) {
        self.with(node, |known| known.reported.late = known.reported.position);
    }

    /// A node's incarnation, as it is stored here.
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.claim(node).map(|claim| claim.incarnation)
    }

    /// A node's incarnation is stored here from now on.
    pub fn know(&self, node: NodeId, incarnation: Incarnation) {
        self.with(node, |known| {
            if known.incarnation != Some(incarnation) {
                known.incarnation = Some(incarnation);
                // What was reported so far is of the new disk only if that was seen.
                let by = known.reported.life;
                let is_of = |(disk, life)| disk == incarnation && by == Some(life);
                if !known.seen.is_some_and(is_of) {
                    known.reported = Reported::default();
                }
            }
        });
    }

    /// What this node knows of another one's disk, and claims in the handshake.
    pub fn claim(&self, node: NodeId) -> Option<Claim> {
        let (incarnation, reported) = self.with(node, |known| (known.incarnation, known.reported));
        Some(Claim { incarnation: incarnation?, reported })
    }

    /// The same, if it is not stored yet.
    pub fn unkept(&self, node: NodeId) -> Option<Claim> {
        let is_kept = self.with(node, |known| known.reported == known.kept);
        self.claim(node).filter(|_| !is_kept)
    }

    /// This claim is durable.
    pub fn kept(&self, node: NodeId, claim: &Claim) {
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

    fn life(id: u64, begins: u64) -> Life {
        Life { id: LifeId(id), begins: LogPosition(begins), newest: id * HOUR }
    }

    fn reported(life: u64, position: u64) -> Reported {
        let (life, position) = (LifeId::of_number(life), LogPosition(position));
        Reported { life, position, late: LogPosition::START }
    }

    #[test]
    fn a_restart_that_keeps_all_has_lost_nothing() {
        let lineage = Lineage::new(vec![life(1, 0), life(3, 100)], life(5, 200));
        for (id, position) in [(1, 100), (1, 40), (3, 200), (3, 150), (5, 700), (0, 0)] {
            assert_eq!(lineage.lost(&reported(id, position)), None, "{id} {position}");
        }
    }

    #[test]
    fn a_log_that_ends_before_what_was_reported_lost_its_tail() {
        let lineage = Lineage::new(vec![life(1, 0), life(3, 100)], life(5, 200));
        let tail = lineage.lost(&reported(3, 201)).expect("one group is missing");
        assert!(tail < 5 * HOUR && tail > 4 * HOUR, "only what is as new as the end: {tail:x}");
        let late = Reported { late: LogPosition(201), ..reported(3, 250) };
        assert_eq!(lineage.lost(&late), Some(0), "what came late may be of any age");
        assert!(
            lineage
                .lost(&Reported { late: LogPosition(200), ..reported(3, 250) })
                .is_some_and(|since| since > 0)
        );
    }

    #[test]
    fn an_older_copy_of_the_directory_knows_nothing_of_later_lives() {
        // Lives 1, 3 and 5 were; the copy is of life 1, and begins as 7.
        let lineage = Lineage::new(vec![life(1, 0)], life(7, 80));
        assert!(lineage.lost(&reported(1, 100)).is_some());
        assert_eq!(lineage.lost(&reported(1, 80)), None);
        assert_eq!(lineage.lost(&reported(5, 300)), Some(0));
        assert_eq!(lineage.lost(&reported(5, 10)), Some(0), "a life of another branch");
    }

    #[test]
    fn the_original_notices_that_its_copy_went_on() {
        // The copy ran as life 4 beside life 3, and this is the original again.
        let lineage = Lineage::new(vec![life(1, 0), life(3, 100)], life(5, 500));
        assert_eq!(lineage.lost(&reported(4, 120)), Some(0));
        // The copy runs still.
        assert_eq!(lineage.lost(&reported(6, 120)), Some(0));
    }

    #[test]
    fn lives_are_bounded_and_come_back_as_they_were_kept() {
        let mut lineage = Lineage::new(Vec::new(), life(1, 0));
        for id in 2..=100 {
            let earlier = Lineage::decode(&lineage.encode()).unwrap();
            lineage = Lineage::new(earlier, life(id, id));
        }
        assert_eq!(lineage.0.len(), MAX_LIVES);
        assert_eq!(lineage.lost(&reported(1, 1)), None, "before all that is remembered");
        assert!(lineage.lost(&reported(1, 50)).is_some());
        assert_eq!(Lineage::decode(&[0; 23]), None);
        assert_eq!(Lineage::decode(&[1; 48]), None, "two of one number");
    }

    #[test]
    fn nothing_is_reported_before_what_is_claimed_was_looked_at() {
        let logs = Logs::new(DISK, Lineage::new(Vec::new(), life(1, 7)), &[]);
        let peer = NodeId(1);
        assert_eq!(logs.position_for(peer), LogPosition(0));
        logs.settle(peer);
        assert_eq!(logs.position_for(peer), LogPosition(7));
        logs.wrote(LogPosition(9));
        logs.wrote(LogPosition(8));
        let positions = [peer, NodeId(0)].map(|node| logs.position_for(node).0);
        assert_eq!(positions, [9, 0]);
    }

    #[test]
    fn of_two_lives_the_greater_holds() {
        let logs = Logs::new(DISK, Lineage::new(Vec::new(), life(1, 0)), &[]);
        let peer = NodeId(1);
        logs.saw(peer, THEIRS, LifeId(10));
        assert!(logs.received(peer, THEIRS, LifeId(10), LogPosition(5)));
        logs.know(peer, THEIRS);
        assert_eq!(logs.claim(peer).unwrap().reported, reported(10, 5));
        logs.saw(peer, THEIRS, LifeId(11));
        assert!(
            !logs.received(peer, THEIRS, LifeId(10), LogPosition(6)),
            "the older one is not heard any more"
        );
        assert!(
            logs.is_outlived(peer, THEIRS, LifeId(10))
                && !logs.is_outlived(peer, THEIRS, LifeId(11))
        );
        assert!(!logs.is_outlived(peer, Incarnation(78), LifeId(10)), "another disk");
        assert_eq!(
            logs.claim(peer).unwrap().reported,
            reported(10, 5),
            "it has reported nothing yet"
        );
        assert!(logs.received(peer, THEIRS, LifeId(11), LogPosition(3)));
        assert_eq!(logs.claim(peer).unwrap().reported, reported(11, 3));
    }

    #[test]
    fn while_a_disk_is_connected_no_other_one_takes_its_place() {
        let logs = Logs::new(DISK, Lineage::new(Vec::new(), life(1, 0)), &[]);
        let (peer, other) = (NodeId(1), Incarnation(78));
        logs.saw(peer, THEIRS, LifeId(10));
        assert!(!logs.is_taken(peer, other), "it may be gone");
        logs.note_connection(peer, true);
        logs.note_connection(peer, true);
        logs.note_connection(peer, false);
        assert!(logs.is_taken(peer, other) && !logs.is_taken(peer, THEIRS));
        logs.note_connection(peer, false);
        assert!(!logs.is_taken(peer, other));
        logs.saw(peer, other, LifeId(3));
        logs.note_connection(peer, true);
        assert!(logs.is_taken(peer, THEIRS) && !logs.is_taken(peer, other), "it was replaced");
    }

    #[test]
    fn a_claim_of_a_life_before_the_voter_was_made_says_nothing_of_its_votes() {
        let lives = vec![life(1, 0), life(5, 90)];
        let logs = Logs::new(DISK, Lineage::new(lives, life(7, 100)), &[]);
        let claim = |life| Claim { incarnation: DISK, reported: reported(life, 300) };
        let voter = Some(logs.voter_of(LifeId(5)));
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
        logs.doubt(NodeId(1));
        logs.doubt(NodeId(2));
        logs.settle(NodeId(1));
        assert!(logs.is_in_doubt());
        logs.settle(NodeId(2));
        assert!(!logs.is_in_doubt());
    }

    #[test]
    fn what_is_not_kept_yet_is_kept_once() {
        let logs = Logs::new(DISK, Lineage::new(Vec::new(), life(1, 0)), &[]);
        let peer = NodeId(1);
        logs.saw(peer, THEIRS, LifeId(10));
        assert!(logs.received(peer, THEIRS, LifeId(10), LogPosition(5)));
        assert_eq!(logs.unkept(peer), None, "its disk is not known yet");
        logs.know(peer, THEIRS);
        logs.stored_late(peer);
        let claim = logs.unkept(peer).unwrap();
        assert_eq!(claim.reported, Reported { late: LogPosition(5), ..reported(10, 5) });
        logs.kept(peer, &claim);
        assert_eq!(logs.unkept(peer), None);
        assert!(logs.received(peer, THEIRS, LifeId(10), LogPosition(6)));
        assert!(logs.unkept(peer).is_some());
    }
}
