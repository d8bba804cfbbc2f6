//! The threads of the process: start and stop, the acceptor, the event loops.
//!
//! ```text
//!  kvorum (main)   accepts connections, waits for signals
//!  loop-N          connections, HTTP, reads that never wait, batches of writes (`--loops`)
//!  read-N          reads that may wait for the disk, long values, pages (`--read-threads`)
//!  stream-N        reads at a low priority: pages and comparisons for other nodes
//!  credentials     looks every second whether certificates and secrets have changed
//!  quotas          counts the bytes stored under prefixes with a quota
//!  history         takes a sample each second, for dashboards that connect later
//!  clock           keeps the clock's bound durable ahead of the time
//!  kv-commit       writes and syncs the log for the loops (`--sync always`)
//!  kv-log          prepares the next log segment, syncs in intervals, watches the directory
//!  kv-flush        writes memtables as tables
//!  kv-compact      merges tables, one compaction at a time
//!  stderr          writes the log, so that no other thread waits for stderr
//!  greeting        at the start: prints the address
//!  profiler        while a profile is recorded
//!  tokio-rt-worker work that would block a loop (`off_the_loop` in `node/task.rs`)
//! ```
//!
//! `kv-log`, `kv-flush` and `kv-compact` yield their core after each 16 KiB or so of work, unless
//! the backlog is large.

pub(crate) mod accept;
pub(crate) mod allocator;
pub(crate) mod credentials;
mod directory_access;
pub(crate) mod error;
pub(crate) mod event_loop;
pub(crate) mod limits;
pub(crate) mod notify;
pub(crate) mod serve;
mod set_aside;
mod unusable;
