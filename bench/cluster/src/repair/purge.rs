//! Disk space of deleted keys. The benchmark deletes all keys, runs a repair round, which proves
//! that all nodes have the tombstones, and compacts the store of each node.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bench_table::{Spread, Table};
use load::Requests;

use super::{
    KEY_FACTOR, NO_ROUNDS, POLL_INTERVAL, ROUND_LIMIT, SETTLED, each_once, fill, get, mib, round,
    stored_bytes,
};
use crate::Bench;
use crate::fleet::{self, Fleet, Kind, SyncSetting};
use crate::requests;

const SECTION: &str = "purge";

/// Time limit for deleting all keys.
const DELETE_LIMIT: Duration = Duration::from_secs(600);

/// The results of one repeat. Bytes are the sum over the disks of all nodes.
#[derive(Debug, Clone, Copy)]
struct DiskUsage {
    /// Bytes before the deletion.
    before: f64,
    /// Bytes after the deletion.
    deleted: f64,
    /// Bytes after the round and the compaction.
    after: f64,
    /// Bytes of tables after the compaction. The rest of `after` is the log, which is preallocated.
    tables: f64,
    /// Time from the request for a round to the end of the last compaction, in seconds.
    seconds: f64,
}

/// Runs the section, and reports its figures.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let keys = bench.scale.keys * KEY_FACTOR;
    let fleet = bench.place.start_with(Kind::Three(SyncSetting::Interval), &NO_ROUNDS)?;
    let mut all = Vec::new();
    for repeat in 0..bench.scale.repeats {
        let left = delete_all(&fleet, keys)?;
        bench.report.figure(SECTION, "all deleted", repeat, "before_bytes", left.before);
        bench.report.figure(SECTION, "all deleted", repeat, "deleted_bytes", left.deleted);
        bench.report.figure(SECTION, "all deleted", repeat, "after_bytes", left.after);
        bench.report.figure(SECTION, "all deleted", repeat, "table_bytes", left.tables);
        bench.report.figure(SECTION, "all deleted", repeat, "seconds", left.seconds);
        all.push(left);
    }
    let spread = |of: &dyn Fn(&DiskUsage) -> f64| {
        let column: Vec<f64> = all.iter().map(of).collect();
        Spread::of(&column).map(|spread| spread.to_string())
    };
    let row = |name: &str, of: fn(&DiskUsage) -> f64| {
        let percent = spread(&|left| of(left) / left.before * 100.0);
        vec![
            Some(name.to_owned()),
            percent.map(|percent| format!("{percent} %")),
            spread(&|left| mib(of(left))),
        ]
    };
    let mut table = Table::new(&["on all disks", "of before", "MiB"]);
    table.row(row("all keys, compacted", |left| left.before));
    table.row(row("all deleted", |left| left.deleted));
    table.row(row("after one round and a compaction of each node", |left| left.after));
    table.row(row("tables among that", |left| left.tables));
    bench.report.say(&format!(
        "## Everything deleted\n\n{keys} keys with values of {} bytes on three nodes, `--sync \
         interval`, compacted; all deleted, then one incremental round, and a compaction of each \
         node. {} seconds from asking for the round, which waits {:.0} until the last deletes have \
         settled, to the end of the last compaction.",
        requests::LONG_LEN,
        spread(&|left| left.seconds).unwrap_or_default(),
        SETTLED.as_secs_f64()
    ));
    bench.report.say(&table.to_string());
    Ok(())
}

fn delete_all(fleet: &Fleet, keys: u64) -> Result<DiskUsage, String> {
    fill(fleet, keys)?;
    compact(fleet)?;
    let before = stored_bytes(fleet)?;
    each_once(fleet, keys, Requests::Custom(requests::DELETE), DELETE_LIMIT, "deleted")?;
    let deleted = stored_bytes(fleet)?;
    let begun = Instant::now();
    let last = round(fleet, false)?;
    if !last.is_proven {
        return Err("a round ended equal and proved nothing".to_owned());
    }
    let tables = compact(fleet)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(DiskUsage { before, deleted, after: stored_bytes(fleet)?, tables, seconds })
}

/// Compacts the stores of all nodes, one after another. Returns the size of all tables in bytes.
fn compact(fleet: &Fleet) -> Result<f64, String> {
    fleet.addresses().into_iter().map(compact_node).sum()
}

fn compact_node(node: SocketAddr) -> Result<f64, String> {
    let request = "POST /admin/compact HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let answer =
        fleet::send_request(node, request.as_bytes()).map_err(|error| error.to_string())?;
    let reply: serde_json::Value = serde_json::from_slice(&answer.body()).unwrap_or_default();
    let number = reply["number"].as_u64().ok_or(format!("no compaction: {answer:?}"))?;
    let begun = Instant::now();
    loop {
        let last = &get(node, "/admin/compact")?["last"];
        if last["number"].as_u64().is_some_and(|last| last >= number) {
            return match last["failed"].as_str() {
                Some(why) => Err(format!("a compaction failed: {why}")),
                None => Ok(last["bytes"].as_f64().unwrap_or(0.0)),
            };
        }
        if begun.elapsed() > ROUND_LIMIT {
            return Err("a compaction does not end".to_owned());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
