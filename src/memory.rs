//! The memory ledger: what `--memory` is spent on.
//!
//! ```text
//!  budget ─┬─ 3/4  memtables (4 × memtable_bytes) and block cache (what they leave)
//!          ├─ 1/8  connections, CONNECTION_BYTES each
//!          ├─ 1/16 bodies: values on their way in and out, batches that wait for the log or
//!          │       for other nodes
//!          └─ 1/16 work: pages of scans, compaction and flush buffers, one WAL batch being written
//! ```
//!
//! The program itself, its threads' stacks and the allocator's slack are outside: 64 MiB at most.

use crate::places::GUESTS;
use crate::units::Size;

/// The least `--memory`: below it a memtable is so small that flushes never end.
pub(crate) const MIN_BUDGET: Size = Size(64 << 20);

/// What the process may take besides `--memory`: program, stacks, the allocator's slack.
pub(crate) const OUTSIDE_BYTES: u64 = 64 << 20;

/// Memtables that exist at once: one active, and up to three that are flushed or still being read.
pub(crate) const MEMTABLES: u64 = 4;

/// The least memtable: smaller ones make tables faster than compactions can merge them.
const MIN_MEMTABLE: u64 = 1 << 20;

/// The least block cache: indexes and filters must stay in it.
const MIN_CACHE: u64 = 8 << 20;

/// A connection's read buffer (8 KiB, at most 16 KiB while it holds a request's head), write buffer
/// (8 KiB) and task.
pub(crate) const CONNECTION_BYTES: u64 = 24 << 10;

/// WAL segments: as large as a memtable, so that a flush frees about one; within this range so that
/// preparing one ahead is neither constant work nor a burst.
const SEGMENT_RANGE: (u64, u64) = (8 << 20, 32 << 20);

/// What each part of the process may take, in bytes or pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// All of it.
    pub(crate) budget_bytes: u64,
    /// One memtable.
    pub(crate) memtable_bytes: u64,
    /// The block cache.
    pub(crate) cache_bytes: u64,
    /// One WAL segment (a file, not memory; it follows the memtable).
    pub(crate) segment_bytes: u64,
    /// Connections of clients at once; those of others come on top.
    pub(crate) connections: u64,
    /// Values being received or sent that are too large for their connection's buffers.
    pub(crate) body_bytes: u64,
    /// Writes waiting for the log.
    pub(crate) waiting_bytes: u64,
    /// Messages that wait for other nodes, or come from them.
    pub(crate) peer_bytes: u64,
    /// Pages that range reads hold.
    pub(crate) page_bytes: u64,
}

impl MemoryPlan {
    /// Divides `budget`. `memtable` overrides the share of one memtable.
    pub(crate) fn of(budget: Size, memtable: Option<Size>) -> Result<Self, String> {
        if budget < MIN_BUDGET {
            return Err(format!("--memory {budget} is less than {MIN_BUDGET}"));
        }
        let Size(budget) = budget;
        let store = budget / 4 * 3;
        let memtable_bytes = memtable.map_or(budget / 4 / MEMTABLES, |Size(bytes)| bytes);
        let most = (store - MIN_CACHE) / MEMTABLES;
        if !(MIN_MEMTABLE..=most).contains(&memtable_bytes) {
            return Err(format!(
                "--memtable {} is not within {}..{}, which --memory {} allows",
                Size(memtable_bytes),
                Size(MIN_MEMTABLE),
                Size(most),
                Size(budget),
            ));
        }
        let bodies = budget / 16;
        Ok(Self {
            budget_bytes: budget,
            memtable_bytes,
            cache_bytes: store - MEMTABLES * memtable_bytes,
            segment_bytes: memtable_bytes.clamp(SEGMENT_RANGE.0, SEGMENT_RANGE.1),
            connections: budget / 8 / CONNECTION_BYTES - GUESTS as u64,
            body_bytes: bodies / 2,
            waiting_bytes: bodies / 4,
            peer_bytes: bodies / 4,
            page_bytes: budget / 32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_parts_stay_within_the_budget() {
        for budget in [64, 100, 128, 512, 4096, 65536] {
            let plan = MemoryPlan::of(Size(budget * MIB), None).unwrap();
            let sum = MEMTABLES * plan.memtable_bytes
                + plan.cache_bytes
                + (plan.connections + GUESTS as u64) * CONNECTION_BYTES
                + plan.body_bytes
                + plan.waiting_bytes
                + plan.peer_bytes
                + plan.page_bytes;
            assert!(sum <= budget * MIB, "{plan:?} is {sum} bytes of {budget} MiB");
            assert!(sum >= budget * MIB / 10 * 9, "{plan:?} wastes the budget");
        }
    }

    #[test]
    fn the_default_budget_is_divided_as_documented() {
        let plan = MemoryPlan::of(Size(512 * MIB), None).unwrap();
        assert_eq!(plan.memtable_bytes, 32 * MIB);
        assert_eq!(plan.cache_bytes, 256 * MIB);
        assert_eq!(plan.segment_bytes, 32 * MIB);
        assert_eq!(plan.body_bytes, 16 * MIB);
        assert!(plan.connections > 2_000);
    }

    #[test]
    fn a_memtable_of_ones_own_takes_from_the_cache() {
        let plan = MemoryPlan::of(Size(128 * MIB), Some(Size(16 * MIB))).unwrap();
        assert_eq!((plan.memtable_bytes, plan.cache_bytes), (16 * MIB, 32 * MIB));
        assert!(MemoryPlan::of(Size(128 * MIB), Some(Size(32 * MIB))).is_err());
        assert!(MemoryPlan::of(Size(128 * MIB), Some(Size(1))).is_err());
        assert!(MemoryPlan::of(Size(63 * MIB), None).is_err());
    }
}
