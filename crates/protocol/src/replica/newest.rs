//! An upper bound on the versions in a node's store. It decides whether a write must look up a
//! newer record.

use std::sync::atomic::{AtomicU64, Ordering};

use record::Version;

/// The greatest time of any version that was passed to the store. A write with a greater time meets
/// no newer record there.
///
/// A node alone in its cluster need not look up newer records that it wrote itself. Its clock
/// issues versions in order, so a newer version in the store was issued while the older write was
/// unfinished: the two writes are concurrent. The node does look up records of other nodes,
/// including nodes that have left: such a node still answers its clients.
#[derive(Debug)]
pub struct NewestTime {
    of_all: AtomicU64,
    /// The greatest time of versions that other nodes issued.
    of_others: AtomicU64,
}

impl NewestTime {
    /// Makes the bound of a store in which no version has a time above `time`.
    pub(crate) fn new(time: u64) -> Self {
        Self { of_all: AtomicU64::new(time), of_others: AtomicU64::new(time) }
    }

    /// Returns the greatest time of any version.
    pub fn time(&self) -> u64 {
        self.of_all.load(Ordering::Relaxed)
    }

    /// Notes a version that is passed to the store. Returns true if the write must look up a newer
    /// version in the store. `own_origin` is the origin of this node's versions; `is_alone` is true
    /// if the node is alone in its cluster.
    pub fn note_and_check(&self, version: Version, own_origin: u32, is_alone: bool) -> bool {
        let Version { time, origin } = version;
        let may_be_newer = self.of_all.fetch_max(time, Ordering::Relaxed) >= time;
        if origin != own_origin {
            self.of_others.fetch_max(time, Ordering::Relaxed);
            return may_be_newer;
        }
        may_be_newer && (!is_alone || self.of_others.load(Ordering::Relaxed) >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 7;

    fn at(time: u64, origin: u32) -> Version {
        Version { time, origin }
    }

    #[test]
    fn with_other_nodes_only_a_greatest_version_skips_the_lookup() {
        let newest = NewestTime::new(10);
        assert!(newest.note_and_check(at(10, OWN), OWN, false));
        assert!(!newest.note_and_check(at(12, OWN), OWN, false));
        assert!(newest.note_and_check(at(11, 8), OWN, false));
        assert!(newest.note_and_check(at(12, 8), OWN, false), "two clocks may show the same");
        assert_eq!(newest.time(), 12);
    }

    #[test]
    fn a_single_node_looks_up_only_versions_of_other_origins() {
        let newest = NewestTime::new(10);
        assert!(
            newest.note_and_check(at(9, OWN), OWN, true),
            "who wrote what was there is not known"
        );
        assert!(!newest.note_and_check(at(20, OWN), OWN, true));
        assert!(!newest.note_and_check(at(19, OWN), OWN, true));
        assert!(
            newest.note_and_check(at(19, 8), OWN, true),
            "a node that has left does not know of 20"
        );
        assert!(newest.note_and_check(at(18, OWN), OWN, true), "this one does not know of that 19");
        assert!(!newest.note_and_check(at(20, OWN), OWN, true));
    }
}
