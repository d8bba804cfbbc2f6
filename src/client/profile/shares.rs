//! Which share of a recording goes to which part of a node.
//!
//! A stack belongs to the part that its innermost known function is of: parts don't overlap, and
//! add up to all. What is called by several parts (allocation, copying, files) so counts for its
//! caller. A flush and a compaction have all that is done below them.

use std::fmt::Write;

use profile::Folded;

use super::args::SharesArgs;
use super::{Unable, print, read};

/// A part of a node: its functions have one of these in their names. Where a name fits two parts,
/// the earlier has it.
const PARTS: [(&str, &[&str]); 18] = [
    ("waiting in queues", &["queue: ", "idle: "]),
    ("waiting for locks", &["lock: "]),
    ("waiting for files", &["file: "]),
    ("between nodes", &["kvorum::peers::", "cluster::wire::", "cluster::handshake::"]),
    ("quorums, coordination", &["cluster::", "kvorum::coordinate", "kvorum::caretaker"]),
    ("flush", &["lsm::core::background::flush", "flush_one"]),
    ("compaction", &["lsm::compaction::", "compact_one"]),
    ("log", &["lsm::wal::", "lsm::db::commit", "lsm::core::write"]),
    ("memtable", &["lsm::memtable::"]),
    ("search in tables", &["lsm::table::", "lsm::merge::", "lsm::cache::", "lsm::core::read"]),
    ("rest of the engine", &["lsm::"]),
    ("request parsing", &["httparse::", "kvorum::http::params", "h1::parse", "h1::role"]),
    ("writing to sockets", &["poll_write", "poll_flush", "writev", "sendto", "send"]),
    ("reading from sockets", &["poll_read", "recvfrom", "recv"]),
    ("HTTP", &["hyper::", "kvorum::http::", "http::", "kvorum::connection"]),
    ("waiting for events", &["epoll_wait", "epoll_pwait", "mio::"]),
    ("event loop, tasks", &["tokio::", "kvorum::"]),
    ("this recording", &["profile::record::"]),
];

/// So many of them, the first, are waits: a flush that waits for a file waits.
const WAITS: usize = 3;

/// Parts whose functions call those of others: all of it is theirs.
const WHOLE: [&str; 2] = ["flush", "compaction"];

/// Called by several parts of the engine: counts for its caller.
const SHARED: &str = "lsm::disk::";

const REST: &str = "other";

/// Shares of one recording, for each part and the rest.
fn of(folded: &Folded) -> Vec<f64> {
    let mut sums = vec![0; PARTS.len() + 1];
    for (stack, weight) in folded.stacks() {
        sums[part_of(stack)] += weight;
    }
    let total = folded.total().max(1) as f64;
    sums.into_iter().map(|sum: u64| sum as f64 / total).collect()
}

fn part_of(stack: &str) -> usize {
    // The first frame is the thread's name.
    let (_, frames) = stack.split_once(';').unwrap_or_default();
    let fits = |frame: &str, (_, names): &(&str, &[&str])| {
        !frame.contains(SHARED) && names.iter().any(|name| frame.contains(name))
    };
    let whole = PARTS.iter().position(|part| {
        WHOLE.contains(&part.0) && frames.split(';').any(|frame| fits(frame, part))
    });
    let innermost =
        frames.rsplit(';').find_map(|frame| PARTS.iter().position(|part| fits(frame, part)));
    let found = innermost.filter(|part| *part < WAITS).or(whole).or(innermost);
    found.unwrap_or(PARTS.len())
}

/// Prints the table.
pub(super) fn shares(args: &SharesArgs) -> Result<(), Unable> {
    let mut columns = Vec::new();
    for path in &args.files {
        columns.push(of(&read(path)?));
    }
    let mut table = String::from("| part |");
    for path in &args.files {
        let _ = write!(table, " {} |", path.display());
    }
    let _ = write!(table, "\n|---|{}\n", "---:|".repeat(columns.len()));
    let names = PARTS.iter().map(|(name, _)| *name).chain([REST]);
    for (place, name) in names.enumerate() {
        if columns.iter().all(|shares| shares[place] == 0.0) {
            continue;
        }
        let _ = write!(table, "| {name} |");
        for shares in &columns {
            let _ = write!(table, " {:.1} % |", 100.0 * shares[place]);
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
        let name = |stack: &str| PARTS.get(part_of(stack)).map_or(REST, |(name, _)| name);
        for (stack, part) in [
            ("loop-0;tokio::a;hyper::b;<lsm::memtable::X as Y>::z;memcpy", "memtable"),
            ("loop-0;tokio::a;hyper::b;alloc::vec::Vec<T>::push", "HTTP"),
            ("loop-0;tokio::a;kvorum::connection::Socket::poll_write;writev", "writing to sockets"),
            ("kv-commit;lsm::db::commit::lead;lsm::disk::sync;file: sync", "waiting for files"),
            ("loop-0;lsm::wal::add;<X as lsm::disk::File>::write;profile::place::during", "log"),
            ("kv-flush;lsm::core::background::flush_one;lsm::table::write::add", "flush"),
            (
                "kv-flush;lsm::core::background::flush_one;lsm::disk::sync;file: sync",
                "waiting for files",
            ),
            ("profiler;profile::record::look", "this recording"),
            ("send;what", REST),
            ("alone", REST),
        ] {
            assert_eq!(name(stack), part, "{stack}");
        }
        let folded = Folded::parse("a;lsm::x 30\na;lsm::y 20\na;z 50\n").unwrap();
        let shares = of(&folded);
        assert_eq!((shares.iter().sum::<f64>(), shares[PARTS.len()]), (1.0, 0.5));
    }
}
