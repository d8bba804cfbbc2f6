//! Resource usage of a node, for `/metrics`, `/v0/status` and the dashboard: memory by part of the
//! memory plan (`settings/memory.rs`), CPU time, disk.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::node::Node;
use crate::settings::memory::MEMTABLES;

/// A part of the memory plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryPart {
    /// Name of the part, used as a label.
    pub(crate) name: &'static str,
    /// Bytes in use.
    pub(crate) used: u64,
    /// Limit in bytes.
    pub(crate) budget: u64,
}

/// Returns the parts of the memory plan whose use is counted. Messages to and from other nodes are
/// not counted, because each queue of them has its own limit.
pub(crate) fn memory_parts(node: &Node, stats: &lsm::Stats) -> [MemoryPart; 9] {
    let plan = &node.config.memory;
    let part = |name, used, budget| MemoryPart { name, used, budget };
    let waiting = node.counters.iter().map(|counters| counters.waiting_bytes.get()).sum();
    let memtables = stats.memtable_bytes + stats.immutable_bytes;
    let connections = (node.config.connections + node.config.reserve_slots) as u64;
    [
        part("memtables", memtables, MEMTABLES * plan.memtable_bytes),
        part("cache", stats.cache_bytes, plan.cache_bytes),
        part(
            "connections",
            open_connections(node) * plan.connection_bytes,
            connections * plan.connection_bytes,
        ),
        part("request-bodies", node.limits.bodies.reserved_bytes() as u64, plan.body_bytes),
        part("response-bodies", node.answers.reserved_bytes() as u64, plan.answer_bytes),
        part("peer-requests", node.facts.reserved_for_requests(), plan.received_bytes),
        part("peer-responses", node.lent.reserved_bytes() as u64, plan.lent_bytes),
        part("writes", waiting, plan.waiting_bytes),
        part("pages", node.pages.reserved_bytes() as u64, plan.page_bytes),
    ]
}

/// Returns the number of open client connections, on all loops.
pub(crate) fn open_connections(node: &Node) -> u64 {
    let all = node.counters.iter();
    all.map(|counters| counters.connections.load(Ordering::Relaxed) as u64).sum()
}

/// Returns the size of the files in the data directory, in bytes.
pub(crate) fn disk_bytes(node: &Node, stats: &lsm::Stats) -> u64 {
    let tables = stats.levels.iter().map(|level| level.bytes).sum::<u64>();
    tables + stats.wal_segments * node.config.memory.segment_bytes
}

/// Returns the resident memory in bytes; 0 where the kernel does not report it.
pub(crate) fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Returns the CPU time of all threads since the process began.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
