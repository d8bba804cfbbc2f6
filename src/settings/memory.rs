//! The memory ledger: the division of `--memory` into parts, and the owner of each byte.
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
//! On the leader of a key's conditional writes, a record that is made from a value that another
//! node forwarded belongs to *left for work*: 1/64 of the budget at most.
//!
//! Every record over [`LONG_RECORD`] in memory that is not part of a memtable, a block or a batch
//! has exactly one owner among *bodies*, *answers*, *received* and *lent*. Queues to other nodes,
//! requests under way and responses share the record by counted references, and the last reference
//! returns the record's bytes to their owner. The sum of an owner's records never exceeds its
//! share, with one exception: a record longer than the whole share (a value stored under a larger
//! setting) is admitted while the owner holds nothing else.
//!
//! The owner grants a reservation *before* a record is read, fetched or received, and a request
//! that waits for an owner holds nothing of that owner. To exclude circular waits, owners wait for
//! each other in one direction only:
//!
//! ```text
//!  bodies ──▶ another node's received ──▶ its writes ──▶ its log
//!  answers ─▶ another node's lent ──────▶ its disk
//! ```
//!
//! A record for *answers* has its reservation on this node before another node is asked for the
//! record, so a slow client of this node ties up no memory of another node.
//!
//! Memory outside the budget is 64 MiB at most: the program itself, its threads' stacks, the
//! allocator's slack, the state of conditional writes (promises, 1 MiB; recent writes, 6 MiB; a
//! leader's latest records, 4 MiB), and the last 15 minutes for dashboards (2 MiB,
//! `history/ring.rs`).

use std::time::Duration;

use crate::settings::machine::MemoryLimit;
use crate::settings::units::Size;

/// Number of reserve connection slots, for connections accepted while all client slots are taken. A
/// client can't keep such a slot. A peer or a probe needs it for some milliseconds; the connections
/// of all event loops of a few peers may arrive at once.
pub(crate) const RESERVE_SLOTS: usize = 64;

/// Default `--memory`, if the process may use at least twice as much: the other half is for memory
/// outside the ledger and for the page cache.
const USUAL_BUDGET: Size = Size(512 << 20);

/// Minimum of `--memory`: with less, a memtable is so small that flushes never end.
pub(crate) const MIN_BUDGET: Size = Size(64 << 20);

/// Limit on memory outside `--memory`: program, stacks, the allocator's slack, the state of
/// conditional writes, and the last 15 minutes for dashboards.
pub(crate) const OUTSIDE_BYTES: u64 = 64 << 20;

/// Memtables that exist at once: one active, and up to three being flushed or still read.
pub(crate) const MEMTABLES: u64 = 4;

/// Length in bytes above which a record is accounted for individually. Shorter records are part of
/// a connection's share, and only they are read by the engine on an event loop.
pub(crate) const LONG_RECORD: usize = 16 << 10;

/// Share of `--deadline` left for the answer. Before anything is sent, a request waits for memory
/// or for its turn for at most `--deadline` less 1/`ANSWER_SHARE`: after a longer wait the answer
/// would be too late for the client, and the work wasted. A much shorter wait is not better,
/// because a refused client retries with the whole body.
const ANSWER_SHARE: u32 = 4;

/// Returns the longest wait of a request for memory or for its turn.
pub(crate) fn longest_wait(deadline: Duration) -> Duration {
    deadline - deadline / ANSWER_SHARE
}

/// Largest memtable, 1 GiB: offsets in a memtable are 32-bit numbers, and a larger memtable makes
/// flushes that last for minutes.
const MAX_MEMTABLE: u64 = 1 << 30;

/// Smallest memtable, 1 MiB: smaller ones make tables faster than compactions can merge them.
const MIN_MEMTABLE: u64 = 1 << 20;

/// Smallest block cache, 8 MiB: indexes and filters must stay in the cache.
const MIN_CACHE: u64 = 8 << 20;

/// Memory of a connection: its read buffer (8 KiB, at most 16 KiB while it holds a request's head),
/// write buffer (8 KiB) and task.
const CONNECTION_BYTES: u64 = 24 << 10;

/// Memory that TLS adds to a connection: keys, state, and records that are incomplete or not yet
/// sent (measured by `bench/tls.sh idle`: 7 KiB while idle, 12 KiB with values of 16 KiB). Before
/// the end of the handshake a connection has none of the buffers above; its incomplete input (20
/// KiB, `transport::bounded`) brings its resident memory to 36 KiB in all, measured on 840
/// connections. While a head of 15 KiB arrives on each of them at once, a connection takes 57 KiB,
/// or 39 KiB in clear text.
const TLS_BYTES: u64 = 12 << 10;

/// Range of the size of a WAL segment. A segment has the size of a memtable, so that a flush frees
/// about one segment, but stays in this range so that preparing a segment ahead is neither constant
/// work nor a burst.
const SEGMENT_RANGE: (u64, u64) = (8 << 20, 32 << 20);

/// Shares of the memory budget, in bytes or pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The whole budget.
    pub(crate) budget_bytes: u64,
    /// Bytes of one memtable.
    pub(crate) memtable_bytes: u64,
    /// Bytes of the block cache.
    pub(crate) cache_bytes: u64,
    /// Bytes of one WAL segment (a file, not memory; it follows the memtable).
    pub(crate) segment_bytes: u64,
    /// Bytes of one connection.
    pub(crate) connection_bytes: u64,
    /// Limit on client connections; the `RESERVE_SLOTS` slots come on top of it.
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
    /// Bytes of pages that range reads hold.
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
    /// Divides `budget`. `memtable` overrides the share of one memtable. With `tls` each connection
    /// takes more memory, so there are fewer.
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

/// Returns the default of `--memory`: half of the process's memory limit, from `MIN_BUDGET` to
/// `USUAL_BUDGET`.
pub(crate) fn usual_budget(limit: Option<&MemoryLimit>) -> Size {
    // In whole MiB, as users would write it.
    let half = limit.map_or(USUAL_BUDGET, |limit| Size(((limit.bytes / 2) >> 20) << 20));
    half.clamp(MIN_BUDGET, USUAL_BUDGET)
}

/// Returns a warning if the budget, with the memory outside it, exceeds the process's limit.
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
    /// Returns the limit on the bytes that wait on one connection to another node. The limit can't
    /// be reached: every waiting record has an owner, or comes from a connection that waits for its
    /// answer.
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
    fn the_budget_follows_what_the_system_lets_the_process_have() {
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
