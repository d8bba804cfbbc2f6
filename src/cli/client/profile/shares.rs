//! Breakdown of a recording by parts of a node.
//!
//! A stack belongs to the part of its innermost known function, so the parts do not overlap, and
//! their shares add up to 1. Functions that several parts call (allocation, copying, files) belong
//! to the part of their callers. Waits, flushes and compactions include everything that they call.

use std::collections::BTreeMap;
use std::fmt::Write;

use profile::Folded;

use super::args::SharesArgs;
use super::{CommandFailure, print, read};

/// A part of a node: its name, and substrings of the names of its functions.
type ShareGroup = (&'static str, &'static [&'static str]);

/// Parts that include everything called below their functions: waits, and work that calls functions
/// of other parts. The first match decides, so a flush that waits for a file belongs to the waits.
const WHOLE: [ShareGroup; 5] = [
    ("waiting in queues", &["queue: ", "idle: "]),
    ("waiting for locks", &["lock: "]),
    ("waiting for files", &["file: "]),
    ("flush", &["lsm::engine::flush::", "flush_one"]),
    ("compaction", &["lsm::compaction::", "lsm::engine::compactor::"]),
];

/// Parts that include only the time of their own functions. The first match decides.
const INNERMOST: [ShareGroup; 13] = [
    (
        "this recording",
        &[
            "profile::record::",
            "profile::signals::",
            "profile::ring::",
            "profile::stack::",
            "profile::random::",
            "profile::live::",
            "profile::alloc::sample",
            "profile::alloc::count",
            "Place::record",
        ],
    ),
    (
        "between nodes",
        &["kvorum::peers::", "server::link::", "protocol::wire::", "protocol::handshake::"],
    ),
    (
        "quorums, coordination",
        &[
            "protocol::",
            "kvorum::node::coordinate",
            "kvorum::node::task",
            "server::event_loop",
            "server::task",
            "server::store",
        ],
    ),
    (
        "log",
        &["lsm::wal::", "lsm::db::commit", "lsm::engine::write_path", "lsm::engine::commit_state"],
    ),
    ("memtable", &["lsm::memtable::"]),
    (
        "search in tables",
        &[
            "lsm::table::",
            "lsm::merge::",
            "lsm::cache::",
            "lsm::engine::trees",
            "lsm::engine::lookup",
            "lsm::engine::snapshot",
        ],
    ),
    ("rest of the engine", &["lsm::"]),
    ("request parsing", &["httparse::", "kvorum::http::params", "h1::parse", "h1::role"]),
    ("writing to sockets", &["poll_write", "poll_flush", "writev", "sendto", "send"]),
    ("reading from sockets", &["poll_read", "recvfrom", "recv"]),
    ("HTTP", &["hyper::", "kvorum::http::", "http::", "kvorum::connection"]),
    ("waiting for events", &["epoll_wait", "epoll_pwait", "mio::"]),
    ("event loop, tasks", &["tokio::", "kvorum::"]),
];

/// Functions that several parts of the engine call: they belong to the part of their callers.
const SHARED: &str = "lsm::disk::";

const REST: &str = "other";

/// Returns the names of all parts, in the order of the table.
fn names() -> impl Iterator<Item = &'static str> {
    WHOLE.iter().chain(&INNERMOST).map(|(name, _)| *name).chain([REST])
}

/// Returns each part's share of a recording, as a fraction of 1.
fn of(folded: &Folded) -> BTreeMap<&'static str, f64> {
    let mut shares = BTreeMap::new();
    let total = folded.total().max(1) as f64;
    for (stack, weight) in folded.stacks() {
        *shares.entry(part_of(stack)).or_default() += weight as f64 / total;
    }
    shares
}

fn part_of(stack: &str) -> &'static str {
    // The first frame is the thread's name.
    let (_, frames) = stack.split_once(';').unwrap_or_default();
    let frames = || frames.split(';').filter(|frame| !frame.contains(SHARED));
    let fits = |frame: &str, (_, names): &ShareGroup| names.iter().any(|name| frame.contains(name));
    let whole = WHOLE.iter().find(|part| frames().any(|frame| fits(frame, part)));
    let innermost =
        || frames().rev().find_map(|frame| INNERMOST.iter().find(|part| fits(frame, part)));
    whole.or_else(innermost).map_or(REST, |(name, _)| *name)
}

/// Prints the table.
pub(super) fn shares(args: &SharesArgs) -> Result<(), CommandFailure> {
    let mut columns = Vec::new();
    for path in &args.files {
        columns.push(of(&read(path)?));
    }
    let mut table = String::from("| part |");
    for path in &args.files {
        let _ = write!(table, " {} |", path.display());
    }
    let _ = write!(table, "\n|---|{}\n", "---:|".repeat(columns.len()));
    for name in names().filter(|name| columns.iter().any(|shares| shares.contains_key(name))) {
        let _ = write!(table, "| {name} |");
        for shares in &columns {
            let _ = write!(table, " {:.1} % |", 100.0 * shares.get(name).unwrap_or(&0.0));
        }
        table.push('\n');
    }
    print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_belongs_to_its_innermost_known_function() {
        for (stack, part) in [
            ("loop-0;tokio::a;hyper::b;<lsm::memtable::X as Y>::z;memcpy", "memtable"),
            ("loop-0;tokio::a;hyper::b;alloc::vec::Vec<T>::push", "HTTP"),
            ("loop-0;tokio::a;kvorum::connection::Socket::poll_write;writev", "writing to sockets"),
            ("kv-commit;lsm::db::commit::lead;lsm::disk::sync;file: sync", "waiting for files"),
            ("loop-0;lsm::wal::add;<X as lsm::disk::File>::write;profile::place::during", "log"),
            ("kv-flush;lsm::engine::flush::flush_one;lsm::table::write::add", "flush"),
            (
                "kv-flush;lsm::engine::flush::flush_one;lsm::disk::sync;file: sync",
                "waiting for files",
            ),
            ("profiler;profile::record::look", "this recording"),
            ("loop-0;hyper::a;profile::alloc::sample;profile::stack::capture", "this recording"),
            ("loop-0;hyper::a;<profile::alloc::Sampled<A> as X>::alloc;[libc.so.6]", "HTTP"),
            ("send;what", REST),
            ("alone", REST),
        ] {
            assert_eq!(part_of(stack), part, "{stack}");
        }
        let folded = Folded::parse("a;lsm::x 30\na;lsm::y 20\na;z 50\n").unwrap();
        let shares = of(&folded);
        assert_eq!((shares.values().sum::<f64>(), shares[REST]), (1.0, 0.5));
    }
}
