//! The memory plan: the division of `--memory` into parts, and the owner of each byte.
//!
//! ```text
//!  budget ─┬─ 22/32 memtables (4 × memtable_bytes) and block cache (the rest)
//!          ├─  4/32 connections, CONNECTION_BYTES each, and TLS_BYTES more with TLS
//!          ├─  1/32 bodies: long values from clients, until no replica needs them any more (of
//!          │        conditional writes twice: the value, and the record that contains it)
//!          ├─  1/32 answers: long values for clients, until they are sent
//!          ├─  1/64 received: long requests of other nodes, until they are in a batch
//!          ├─  1/64 lent: long values read for other nodes, until they are sent
//!          ├─  1/64 writes that wait for the log
//!          ├─  1/64 messages on their way to other nodes, encoded
//!          ├─  1/32 pages of ranges
//!          └─  1/32 left for work: compaction and flush buffers, one WAL batch being written
//! ```
//!
//! The leader of a key's conditional writes may make a record from a value that another node
//! forwarded. These records are part of *left for work*, and take at most 1/64 of the budget.
//!
//! Each record over [`LONG_RECORD`] in memory that is not part of a memtable, a block or a batch
//! has exactly one owner: *bodies*, *answers*, *received* or *lent*. Queues to other nodes,
//! unfinished requests and responses share the record by counted references, and the last reference
//! returns the record's bytes to their owner. The sum of an owner's records never exceeds its
//! share, except for one case: a record longer than the whole share (a value stored under a larger
//! setting) is admitted while the owner has no other record.
//!
//! The owner grants a reservation *before* a record is read, fetched or received. A request that
//! waits for an owner has no reservation of this owner. To exclude circular waits, owners wait for
//! each other in one direction only:
//!
//! ```text
//!  bodies ──▶ another node's received ──▶ its writes ──▶ its log
//!  answers ─▶ another node's lent ──────▶ its disk
//! ```
//!
//! A record for *answers* has its reservation on this node before this node requests it from
//! another node. So a slow client of this node occupies no memory of another node.
//!
//! The memory outside of the budget is at most 64 MiB: the program itself, the stacks of its
//! threads, the unused memory of the allocator, the state of conditional writes (promises, 1 MiB;
//! recent writes, 6 MiB; a leader's latest records, 4 MiB), and the samples of the last 15 minutes
//! for dashboards (2 MiB, `sample_history/ring.rs`).

use std::time::Duration;

use crate::settings::machine::MemoryLimit;
use crate::settings::units::Size;

/// Number of reserve slots, for connections accepted while all client slots are taken. A client
/// can't keep a reserve slot. A peer or a probe needs it for some milliseconds. The number suffices
/// for the connections of all event loops of a few peers at the same time.
pub(crate) const RESERVE_SLOTS: usize = 64;

/// Default of `--memory`, if the process's limit is at least twice as much. The other half is for
/// the memory outside of the plan, and for the page cache.
const USUAL_BUDGET: Size = Size(512 << 20);

/// Minimum of `--memory`. With less, memtables would be so small that flushes never end.
pub(crate) const MIN_BUDGET: Size = Size(64 << 20);

/// Limit on the memory outside of `--memory`: the program, stacks, unused memory of the allocator,
/// the state of conditional writes, and the samples of the last 15 minutes.
pub(crate) const OUTSIDE_BYTES: u64 = 64 << 20;

/// Maximum number of memtables: one active memtable, and up to three that are being flushed or
/// still read.
pub(crate) const MEMTABLES: u64 = 4;

/// Length in bytes above which a record is accounted for individually. A shorter record is part of
/// its connection's share. The engine reads only shorter records on an event loop.
pub(crate) const LONG_RECORD: usize = 16 << 10;

/// Share of `--deadline` that remains for the answer. Before a request is sent to replicas, it
/// waits for memory or for its turn for at most `--deadline` less 1/`ANSWER_SHARE`. After a longer
/// wait the answer would reach the client too late, and the work would be wasted. A much shorter
/// wait would be worse, because a refused client sends the whole body again.
const ANSWER_SHARE: u32 = 4;

/// Returns the maximum wait of a request for memory or for its turn.
pub(crate) fn longest_wait(deadline: Duration) -> Duration {
    deadline - deadline / ANSWER_SHARE
}

/// Size of the largest memtable, 1 GiB. Offsets in a memtable are 32-bit numbers, and the flush of
/// a larger memtable would take minutes.
const MAX_MEMTABLE: u64 = 1 << 30;

/// Size of the smallest memtable, 1 MiB. Smaller memtables produce tables faster than compactions
/// can merge them.
const MIN_MEMTABLE: u64 = 1 << 20;

/// Size of the smallest block cache, 8 MiB. Indexes and filters must stay in the cache.
const MIN_CACHE: u64 = 8 << 20;

/// Memory of a connection in bytes: its read buffer (8 KiB, at most 16 KiB during a request's
/// head), write buffer (8 KiB) and task.
const CONNECTION_BYTES: u64 = 24 << 10;

/// Memory in bytes that TLS adds to a connection: keys, state, and records that are incomplete or
/// not sent yet (measured by `bench/tls.sh idle`: 7 KiB while idle, 12 KiB with values of 16 KiB).
/// Before the end of the handshake a connection has none of the buffers above. Its incomplete input
/// (20 KiB, `transport::bounded`) raises its resident memory to a total of 36 KiB, measured with
/// 840 connections. If a head of 15 KiB arrives on all of them at the same time, a connection takes
/// 57 KiB, or 39 KiB without TLS.
const TLS_BYTES: u64 = 12 << 10;

/// Range of the size of a WAL segment, in bytes. A segment is as large as a memtable, so a flush
/// frees about one segment. The range keeps the preparation of segments from becoming constant work
/// or a burst.
const SEGMENT_RANGE: (u64, u64) = (8 << 20, 32 << 20);

/// The parts of the memory budget, in bytes or pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The whole budget.
    pub(crate) budget_bytes: u64,
    /// Bytes of one memtable.
    pub(crate) memtable_bytes: u64,
    /// Bytes of the block cache.
    pub(crate) cache_bytes: u64,
    /// Bytes of one WAL segment, a file whose size follows that of a memtable.
    pub(crate) segment_bytes: u64,
    /// Bytes of one connection.
    pub(crate) connection_bytes: u64,
    /// Maximum number of client connections, without the `RESERVE_SLOTS` reserve slots.
    pub(crate) connections: u64,
    /// Bytes of long values from clients.
    pub(crate) body_bytes: u64,
    /// Bytes of long values for clients.
    pub(crate) answer_bytes: u64,
    /// Bytes of long requests of other nodes.
    pub(crate) received_bytes: u64,
    /// Bytes of long values read for other nodes.
    pub(crate) lent_bytes: u64,
    /// Bytes of writes that wait for the log.
    pub(crate) waiting_bytes: u64,
    /// Bytes of messages encoded for other nodes.
    pub(crate) peer_bytes: u64,
    /// Bytes of pages for range reads.
    pub(crate) page_bytes: u64,
}

/// Reason why a budget can't be divided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("--memory {0} is below the minimum, {MIN_BUDGET}")]
    Budget(Size),
    #[error(
        "--memtable {memtable} is out of range {}..{most} (with --memory {budget})",
        Size(MIN_MEMTABLE)
    )]
    Memtable { memtable: Size, most: Size, budget: Size },
}

impl MemoryPlan {
    /// Divides `budget`. `memtable` overrides the size of a memtable. With `tls` a connection takes
    /// more memory, so the plan has fewer connections.
    pub(crate) fn of(budget: Size, memtable: Option<Size>, tls: bool) -> Result<Self, MemoryError> {
        if budget < MIN_BUDGET {
            return Err(MemoryError::Budget(budget));
        }
        let Size(budget) = budget;
        let store = budget / 32 * 22;
        let usual = (budget / 4 / MEMTABLES).min(MAX_MEMTABLE);
        let memtable_bytes = memtable.map_or(usual, |Size(bytes)| bytes);
        let most = ((store - MIN_CACHE) / MEMTABLES).min(MAX_MEMTABLE);
        if !(MIN_MEMTABLE..=most).contains(&memtable_bytes) {
            let [memtable, most, budget] = [memtable_bytes, most, budget].map(Size);
            return Err(MemoryError::Memtable { memtable, most, budget });
        }
        let connection_bytes = CONNECTION_BYTES + if tls { TLS_BYTES } else { 0 };
        Ok(Self {
            budget_bytes: budget,
            memtable_bytes,
            cache_bytes: store - MEMTABLES * memtable_bytes,
            segment_bytes: memtable_bytes.clamp(SEGMENT_RANGE.0, SEGMENT_RANGE.1),
            connection_bytes,
            connections: budget / 8 / connection_bytes - RESERVE_SLOTS as u64,
            body_bytes: budget / 32,
            answer_bytes: budget / 32,
            received_bytes: budget / 64,
            lent_bytes: budget / 64,
            waiting_bytes: budget / 64,
            peer_bytes: budget / 64,
            page_bytes: budget / 32,
        })
    }
}

/// Returns the default of `--memory`: half of the process's memory limit, but at least `MIN_BUDGET`
/// and at most `USUAL_BUDGET`.
pub(crate) fn usual_budget(limit: Option<&MemoryLimit>) -> Size {
    // The size is in whole MiB, as users would write it.
    let half = limit.map_or(USUAL_BUDGET, |limit| Size(((limit.bytes / 2) >> 20) << 20));
    half.clamp(MIN_BUDGET, USUAL_BUDGET)
}

/// Returns a warning if the sum of the budget and the memory outside of it exceeds the process's
/// limit.
pub(crate) fn over_limit_warning(budget: Size, limit: Option<&MemoryLimit>) -> Option<String> {
    let limit = limit.filter(|limit| budget.0.saturating_add(OUTSIDE_BYTES) > limit.bytes)?;
    let outside = Size(OUTSIDE_BYTES);
    let fits = Size(limit.bytes.saturating_sub(OUTSIDE_BYTES) >> 20 << 20);
    let way_out = match fits >= MIN_BUDGET {
        true => format!("set --memory to at most {fits}, or raise the limit"),
        false => format!("raise the limit: a node needs {}", Size(MIN_BUDGET.0 + OUTSIDE_BYTES)),
    };
    Some(format!(
        "--memory {budget}, and the {outside} that the process may take besides, are more than the \
         {limit}: the node may be killed when it uses them; {way_out}"
    ))
}

impl MemoryPlan {
    /// Returns the limit on the bytes that wait on one connection to another node. No connection
    /// reaches the limit, because every waiting record has an owner, or comes from a connection
    /// that waits for its answer.
    pub(crate) fn queue_bytes(&self) -> u64 {
        self.budget_bytes / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::machine::LimitSource;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_parts_stay_within_the_budget() {
        let budgets = [64, 100, 128, 512, 4096, 65536];
        for (budget, tls) in budgets.iter().flat_map(|budget| [(budget, false), (budget, true)]) {
            let plan = MemoryPlan::of(Size(budget * MIB), None, tls).unwrap();
            let sum = MEMTABLES * plan.memtable_bytes
                + plan.cache_bytes
                + (plan.connections + RESERVE_SLOTS as u64) * plan.connection_bytes
                + plan.body_bytes
                + plan.answer_bytes
                + plan.received_bytes
                + plan.lent_bytes
                + plan.waiting_bytes
                + plan.peer_bytes
                + plan.page_bytes;
            assert!(sum <= budget * MIB, "{plan:?} is {sum} bytes of {budget} MiB");
            assert!(sum >= budget * MIB / 10 * 9, "{plan:?} wastes the budget");
        }
    }

    #[test]
    fn the_default_budget_is_divided_as_documented() {
        let plan = MemoryPlan::of(Size(512 * MIB), None, false).unwrap();
        assert_eq!(plan.memtable_bytes, 32 * MIB);
        assert_eq!(plan.cache_bytes, 224 * MIB);
        assert_eq!(plan.segment_bytes, 32 * MIB);
        assert_eq!(plan.body_bytes, 16 * MIB);
        assert_eq!(plan.connections, 2_666);
        let tls = MemoryPlan::of(Size(512 * MIB), None, true).unwrap();
        assert_eq!(tls.connections, 1_756);
        assert_eq!(tls.cache_bytes, plan.cache_bytes);
    }

    #[test]
    fn the_default_budget_is_half_of_the_memory_limit_within_bounds() {
        let machine = |bytes| MemoryLimit { bytes, set_by: LimitSource::Machine };
        for (limit, usual) in
            [(64, 64), (128, 64), (300, 150), (1024, 512), (1025, 512), (65_536, 512)]
        {
            assert_eq!(usual_budget(Some(&machine(limit * MIB))), Size(usual * MIB), "{limit}");
        }
        assert_eq!(usual_budget(None), Size(512 * MIB));
        assert_eq!(usual_budget(Some(&machine(300 * MIB + 7))).to_string(), "150MiB");
        assert_eq!(over_limit_warning(Size(512 * MIB), None), None);
        assert_eq!(over_limit_warning(Size(512 * MIB), Some(&machine(576 * MIB))), None);
        let said = over_limit_warning(Size(512 * MIB), Some(&machine(575 * MIB))).unwrap();
        let begins = "--memory 512MiB, and the 64MiB that the process may take besides, are more \
            than the 575MiB that this machine has: ";
        assert!(said.starts_with(begins) && said.contains("at most 511MiB"), "{said}");
        let said = over_limit_warning(Size(64 * MIB), Some(&machine(100 * MIB))).unwrap();
        assert!(said.contains("raise the limit: a node needs 128MiB"), "{said}");
        assert!(over_limit_warning(Size(u64::MAX), Some(&machine(100 * MIB))).is_some());
    }

    #[test]
    fn a_configured_memtable_takes_from_the_cache() {
        let plan = MemoryPlan::of(Size(128 * MIB), Some(Size(16 * MIB)), false).unwrap();
        assert_eq!((plan.memtable_bytes, plan.cache_bytes), (16 * MIB, 24 * MIB));
        assert!(MemoryPlan::of(Size(128 * MIB), Some(Size(32 * MIB)), false).is_err());
        assert!(MemoryPlan::of(Size(128 * MIB), Some(Size(1)), false).is_err());
        assert!(MemoryPlan::of(Size(63 * MIB), None, false).is_err());
    }

    #[test]
    fn a_memtable_is_never_larger_than_the_engine_takes() {
        let plan = MemoryPlan::of(Size(1 << 40), None, false).unwrap();
        assert_eq!(plan.memtable_bytes, MAX_MEMTABLE);
        assert!(MemoryPlan::of(Size(1 << 40), Some(Size(1 << 30)), false).is_ok());
        let refused = MemoryPlan::of(Size(1 << 40), Some(Size((1 << 30) + 1)), false);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("out of range 1MiB..1GiB"), "{refused}");
    }
}
