//! The former disks of this node: the greatest claim about each disk, and whether a rebuild has
//! settled the claim.
//!
//! A peer that remembers another disk of this node sends a *claim* about that disk when it connects
//! ([`Claim`](super::logs::Claim)): the other disk may have acknowledged writes that the present
//! disk lacks. This node is then rebuilt: it pulls the records of all other nodes. After the
//! rebuild, neither the same claim nor an earlier claim about that disk causes another rebuild: the
//! pulled records include all that the peer held when it made the earlier claim.
//!
//! A peer repeats an earlier claim if its directory was replaced by an older copy. Without the
//! settled entries, the claim would start a rebuild of a healthy node during the rebuild of the
//! peer. Of two nodes that are rebuilt at once, neither can restore its idempotency records.
//!
//! Invariant: an entry is *settled* only after a complete rebuild that began after the entry's
//! claim. If a former disk returns to service, its new boot has a greater boot id. A claim about
//! the new boot is therefore greater than the entry, and this node is rebuilt again.

use super::disk_ids::{BootId, Incarnation, LogPosition};
use super::logs::{Claim, Reported};

/// Maximum number of remembered former disks. Once the oldest is dropped, an old claim about it
/// causes one more rebuild.
const MAX_FORMER_DISKS: usize = 8;

/// Length of an encoded entry in bytes: 1 for the settled flag (1 or 0); 8 each for incarnation,
/// boot id and position.
const ENTRY_LEN: usize = 25;

/// The former disks of a node. The last entry of each list was added last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FormerDisks {
    /// Claims that a completed rebuild has settled.
    settled: Vec<FormerDisk>,
    /// Claims that the current rebuild settles at its end. The membership state *Rebuilding* is
    /// stored with them or before them.
    in_rebuild: Vec<FormerDisk>,
    /// Claims whose rebuild is about to begin.
    new: Vec<FormerDisk>,
}

/// The greatest claim about a former disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FormerDisk {
    incarnation: Incarnation,
    /// The claimed boot and its log position, compared in this order.
    reached: (Option<BootId>, LogPosition),
}

impl FormerDisk {
    fn of(claim: &Claim) -> Self {
        let Reported { life, position, .. } = claim.reported;
        Self { incarnation: claim.incarnation, reached: (life, position) }
    }
}

impl FormerDisks {
    /// Adds a claim about another disk. The claim causes a rebuild of this node.
    pub(crate) fn note(&mut self, claim: &Claim) {
        add(&mut self.new, FormerDisk::of(claim));
    }

    /// Assigns the new claims to the rebuild that begins or is under way.
    pub(crate) fn begin_rebuild(&mut self) {
        self.new.drain(..).for_each(|disk| add(&mut self.in_rebuild, disk));
    }

    /// Settles the claims of the current rebuild, which is complete.
    pub(crate) fn settle(&mut self) {
        *self = self.after_rebuild();
    }

    /// Returns the entries as they are once the current rebuild is complete.
    pub(crate) fn after_rebuild(&self) -> Self {
        let mut settled = self.settled.clone();
        self.in_rebuild.iter().for_each(|disk| add(&mut settled, *disk));
        Self { settled, in_rebuild: Vec::new(), new: self.new.clone() }
    }

    /// True if a completed rebuild has settled this claim, or a greater claim about the same disk.
    pub(crate) fn covers(&self, claim: &Claim) -> bool {
        let FormerDisk { incarnation, reached } = FormerDisk::of(claim);
        let is_of = |disk: &&FormerDisk| disk.incarnation == incarnation;
        self.settled.iter().find(is_of).is_some_and(|disk| reached <= disk.reached)
    }

    /// Encodes all claims except the new ones, in the format of `docs/formats/files.md`.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (is_settled, disks) in [(1, &self.settled), (0, &self.in_rebuild)] {
            for FormerDisk { incarnation, reached: (life, position) } in disks {
                bytes.push(is_settled);
                for number in [incarnation.0, life.map_or(0, |life| life.0), position.0] {
                    bytes.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Decodes claims encoded by [`FormerDisks::encode`]; `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (entries, []) = bytes.as_chunks::<ENTRY_LEN>() else { return None };
        let mut disks = Self::default();
        for entry in entries {
            let number = |at: usize| {
                entry[at..at + 8].iter().rfold(0, |number, byte| number << 8 | u64::from(*byte))
            };
            let reached = (BootId::of_number(number(9)), LogPosition(number(17)));
            let disk = FormerDisk { incarnation: Incarnation(number(1)), reached };
            match entry[0] {
                0 => disks.in_rebuild.push(disk),
                1 => disks.settled.push(disk),
                _ => return None,
            }
        }
        let is_bounded = disks.settled.len().max(disks.in_rebuild.len()) <= MAX_FORMER_DISKS;
        is_bounded.then_some(disks)
    }
}

/// Adds an entry, or raises the entry of the same disk. Drops the oldest entry if the list then has
/// more than `MAX_FORMER_DISKS`.
fn add(disks: &mut Vec<FormerDisk>, disk: FormerDisk) {
    let earlier = disks.iter().position(|other| other.incarnation == disk.incarnation);
    let reached = earlier.map(|at| disks.remove(at).reached);
    let reached = reached.map_or(disk.reached, |reached| reached.max(disk.reached));
    disks.push(FormerDisk { reached, ..disk });
    if disks.len() > MAX_FORMER_DISKS {
        disks.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(disk: u64, life: u64, position: u64) -> Claim {
        let (life, position) = (BootId::of_number(life), LogPosition(position));
        let reported = Reported { life, position, late: LogPosition::START };
        Claim { incarnation: Incarnation(disk), reported }
    }

    #[test]
    fn a_claim_is_covered_once_the_rebuild_is_complete_and_not_beyond_it() {
        let mut disks = FormerDisks::default();
        disks.note(&claim(7, 3, 50));
        disks.note(&claim(7, 3, 40));
        disks.settle();
        assert!(!disks.covers(&claim(7, 3, 40)), "an earlier rebuild settles nothing new");
        disks.begin_rebuild();
        assert!(!disks.covers(&claim(7, 3, 40)), "the rebuild is under way");
        disks.settle();
        for (boot, position, is_covered) in [
            (3, 50, true),
            (3, 1, true),
            (2, 900, true),
            (0, 0, true),
            (3, 51, false),
            (4, 0, false),
        ] {
            assert_eq!(disks.covers(&claim(7, boot, position)), is_covered, "{boot} {position}");
        }
        assert!(!disks.covers(&claim(8, 1, 1)), "of another disk");
        // Disk 7 returns to service and acknowledges more writes.
        disks.note(&claim(7, 4, 60));
        assert!(!disks.covers(&claim(7, 4, 60)) && disks.covers(&claim(7, 3, 50)));
        disks.begin_rebuild();
        disks.settle();
        assert!(disks.covers(&claim(7, 4, 60)));
    }

    #[test]
    fn the_latest_disks_are_remembered_and_decode_unchanged() {
        let mut disks = FormerDisks::default();
        let last = 3 + MAX_FORMER_DISKS as u64;
        for disk in 1..=last {
            disks.note(&claim(disk, 1, disk));
            disks.begin_rebuild();
            disks.settle();
        }
        assert!(!disks.covers(&claim(3, 1, 3)) && disks.covers(&claim(4, 1, 4)));
        let kept = FormerDisks::decode(&disks.encode()).unwrap();
        assert_eq!(kept, disks);
        assert!(kept.covers(&claim(last, 1, last)));
        assert_eq!(FormerDisks::decode(&[]), Some(FormerDisks::default()));
        for damaged in [vec![0; 24], vec![2; 25], vec![0; 25 * (MAX_FORMER_DISKS + 1)]] {
            assert_eq!(FormerDisks::decode(&damaged), None, "{damaged:?}");
        }
        // After a restart during a rebuild, the claims of the rebuild stay unsettled until its end.
        disks.note(&claim(99, 1, 1));
        disks.begin_rebuild();
        let mut kept = FormerDisks::decode(&disks.encode()).unwrap();
        assert!(!kept.covers(&claim(99, 1, 1)) && kept.covers(&claim(last, 1, last)));
        kept.settle();
        assert!(kept.covers(&claim(99, 1, 1)));
    }
}
