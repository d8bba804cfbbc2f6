//! Marks of missing records: writes that a replica missed and no hint delivers.
//!
//! ```text
//!   a write's slot ends ─▶ mark (node, partition, time of the write), stored on this node
//!     if it is another node ─▶ the mark is sent to that node (`Missed`) ─▶ dropped here
//!     if it is this node ─▶ all other nodes stream the records (`rebuild.rs`) ─▶ dropped
//! ```
//!
//! A mark states that a node may lack records of a partition written at `since` or later. Marks of
//! one node and partition are merged into one mark with the least time. When a node has too many
//! marks to list, they are merged into one mark for all partitions. A mark made again while the
//! first mark is being processed counts as another mark, distinguished by its number.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use crate::node_id::NodeId;
use crate::placement::topology::PARTITIONS;
use crate::replica::unreadable::Unreadable;

/// Maximum number of partitions of one node marked individually; beyond it, all partitions are
/// marked. A page request lists its partitions, and 4,096 of them take 8 KiB.
pub const MAX_LISTED: usize = 4096;

/// Format version, the first byte of encoded marks.
const FORMAT: u8 = 1;

/// Bytes of an encoded mark.
const MARK_LEN: usize = 12;

/// The partition number that stands for all partitions in an encoded mark.
const ALL: u32 = u32::MAX;

/// A note that a node may lack records of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The partition; `None` = all.
    pub partition: Option<u16>,
    /// The least version time of a record that the node may lack.
    pub since: u64,
}

/// A mark with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberedMark {
    /// The partition and time of the missing records.
    pub mark: Mark,
    /// The number of the mark, greater than that of every earlier mark.
    pub number: u64,
}

/// The marks of one node.
#[derive(Debug, Default)]
struct NodeMarks {
    /// Time and number of each mark, by partition.
    marks: BTreeMap<Option<u16>, (u64, u64)>,
    /// Number of changes so far, and the number of them known to be durable.
    changes: u64,
    kept: u64,
}

impl NodeMarks {
    fn put(&mut self, mark: Mark, number: u64) {
        let entry = self.marks.entry(mark.partition).or_insert((mark.since, number));
        *entry = (entry.0.min(mark.since), number);
        self.changes += 1;
        if self.marks.len() > MAX_LISTED {
            let since = self.marks.values().map(|(since, _)| *since).min();
            self.marks.clear();
            self.marks.insert(None, (since.expect("there are marks"), number));
        }
    }
}

#[derive(Debug, Default)]
struct MissedMarks {
    nodes: BTreeMap<NodeId, NodeMarks>,
    numbers: u64,
}

/// All marks that a node keeps, of itself and of others, shared by its event loops. The marks are
/// used only after failures, so one lock suffices.
#[derive(Debug, Default)]
pub struct Missed(Mutex<MissedMarks>);

impl MissedMarks {
    fn of(&mut self, node: NodeId) -> &mut NodeMarks {
        self.nodes.entry(node).or_default()
    }
}

impl Missed {
    fn lock(&self) -> MutexGuard<'_, MissedMarks> {
        self.0.lock()
    }

    /// Adds a mark.
    pub fn mark(&self, node: NodeId, mark: Mark) {
        let mut inner = self.lock();
        inner.numbers += 1;
        let number = inner.numbers;
        inner.of(node).put(mark, number);
    }

    /// Returns the marks of a node.
    pub fn of(&self, node: NodeId) -> Vec<NumberedMark> {
        let mut inner = self.lock();
        let marks = inner.of(node).marks.iter();
        let numbered = |(partition, (since, number)): (&Option<u16>, &(u64, u64))| NumberedMark {
            mark: Mark { partition: *partition, since: *since },
            number: *number,
        };
        marks.map(numbered).collect()
    }

    /// Returns the least version time of a record that a node may lack in this partition, by the
    /// partition's own mark; 0 = the partition has none.
    pub(crate) fn since(&self, node: NodeId, partition: u16) -> u64 {
        let mut inner = self.lock();
        let marks = &inner.of(node).marks;
        marks.get(&Some(partition)).map_or(0, |(since, _)| *since)
    }

    /// Drops a processed mark, unless it was made again meanwhile.
    pub fn drop_mark(&self, node: NodeId, partition: Option<u16>, number: u64) {
        let mut inner = self.lock();
        let marks = inner.of(node);
        if marks.marks.get(&partition).is_some_and(|(_, held)| *held <= number) {
            marks.marks.remove(&partition);
            marks.changes += 1;
        }
    }

    /// Returns the number of partitions of which a node may lack records.
    pub fn partitions(&self, node: NodeId) -> u32 {
        let mut inner = self.lock();
        let marks = &inner.of(node).marks;
        if marks.contains_key(&None) { PARTITIONS as u32 } else { marks.len() as u32 }
    }

    /// True if the marks of a node have changed since they were stored.
    pub fn is_unsaved(&self, node: NodeId) -> bool {
        let mut inner = self.lock();
        let marks = inner.of(node);
        marks.changes != marks.kept
    }

    /// Returns the encoded marks of a node, and the number to be handed to [`Missed::mark_durable`]
    /// once they are stored.
    pub fn encode(&self, node: NodeId) -> (Vec<u8>, u64) {
        let mut inner = self.lock();
        let marks = inner.of(node);
        let mut bytes = Vec::with_capacity(1 + MARK_LEN * marks.marks.len());
        bytes.push(FORMAT);
        for (partition, (since, _)) in &marks.marks {
            bytes.extend_from_slice(&partition.map_or(ALL, u32::from).to_le_bytes());
            bytes.extend_from_slice(&since.to_le_bytes());
        }
        (bytes, marks.changes)
    }

    /// Notes that the marks which [`Missed::encode`] returned with this number are durable.
    pub fn mark_durable(&self, node: NodeId, changes: u64) {
        let mut inner = self.lock();
        let marks = inner.of(node);
        marks.kept = marks.kept.max(changes);
    }

    /// Adds marks that an earlier process of this node stored. Errors: the bytes are damaged or of
    /// a later format.
    pub fn load(&self, node: NodeId, bytes: &[u8]) -> Result<(), Unreadable> {
        let marks = match bytes.split_first() {
            Some((&FORMAT, marks)) if marks.len().is_multiple_of(MARK_LEN) => marks,
            Some((&FORMAT, _)) | None => {
                return Err(Unreadable::Damaged(format!("{} bytes: damaged", bytes.len())));
            }
            Some((format, _)) => return Err(Unreadable::LaterFormat(*format)),
        };
        for mark in marks.chunks_exact(MARK_LEN) {
            let (partition, since) = mark.split_at(4);
            let partition = u32::from_le_bytes(partition.try_into().expect("four bytes"));
            let since = u64::from_le_bytes(since.try_into().expect("eight bytes"));
            let partition = match partition {
                ALL => None,
                partition => match u16::try_from(partition) {
                    Ok(partition) => Some(partition),
                    Err(_) => {
                        let why = format!("partition {partition}: damaged");
                        return Err(Unreadable::Damaged(why));
                    }
                },
            };
            self.mark(node, Mark { partition, since });
        }
        let mut inner = self.lock();
        let marks = inner.of(node);
        marks.kept = marks.changes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn mark(partition: u16, since: u64) -> Mark {
        Mark { partition: Some(partition), since }
    }

    #[test]
    fn marks_of_one_partition_become_one_with_the_least_time() {
        let missed = Missed::default();
        missed.mark(B, mark(7, 30));
        missed.mark(B, mark(7, 10));
        missed.mark(B, mark(7, 20));
        let marks: Vec<Mark> = missed.of(B).iter().map(|numbered| numbered.mark).collect();
        assert_eq!(marks, [mark(7, 10)]);
        assert_eq!((missed.partitions(A), missed.partitions(B)), (0, 1));
    }

    #[test]
    fn a_renewed_mark_survives_the_end_of_earlier_work() {
        let missed = Missed::default();
        missed.mark(A, mark(7, 10));
        let before = missed.of(A)[0].number;
        missed.mark(A, mark(7, 20));
        missed.drop_mark(A, Some(7), before);
        assert_eq!(missed.partitions(A), 1);
        missed.drop_mark(A, Some(7), missed.of(A)[0].number);
        assert_eq!(missed.partitions(A), 0);
    }

    #[test]
    fn too_many_partitions_become_all_of_them() {
        let missed = Missed::default();
        for partition in 0..=MAX_LISTED as u16 {
            missed.mark(A, mark(partition, 100 + u64::from(partition)));
        }
        let marks = missed.of(A);
        assert_eq!(marks.len(), 1);
        assert_eq!(marks[0].mark, Mark { partition: None, since: 100 });
        assert_eq!(missed.partitions(A), 65_536);
    }

    #[test]
    fn stored_marks_are_loaded_and_damage_is_reported() {
        let missed = Missed::default();
        missed.mark(B, mark(0, 5));
        missed.mark(B, mark(65_535, 6));
        missed.mark(B, Mark { partition: None, since: 7 });
        assert!(missed.is_unsaved(B) && !missed.is_unsaved(A));
        let (bytes, changes) = missed.encode(B);
        missed.mark(B, mark(1, 8));
        missed.mark_durable(B, changes);
        assert!(missed.is_unsaved(B), "one came after it");

        let next = Missed::default();
        next.load(B, &bytes).unwrap();
        assert!(!next.is_unsaved(B));
        let all: Vec<Mark> = next.of(B).iter().map(|numbered| numbered.mark).collect();
        assert_eq!(all, [Mark { partition: None, since: 7 }, mark(0, 5), mark(65_535, 6)]);
        for length in [0, 2, bytes.len() - 1] {
            assert!(Missed::default().load(B, &bytes[..length]).is_err(), "{length}");
        }
        assert_eq!(Missed::default().load(B, &[9]), Err(Unreadable::LaterFormat(9)));
    }
}
