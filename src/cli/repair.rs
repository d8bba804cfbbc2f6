//! `kvorum repair-clock`: removes records that a wrong clock wrote from a stopped node's directory.
//!
//! ```text
//!  what is ahead is counted ── no --yes ─▶ told, and nothing changed
//!     └─ --yes ─▶ to be streamed back: noted ─▶ records removed ─▶ the clock's bound lowered
//! ```
//!
//! The other nodes refused those records, so nobody misses them. But each hid an older one of its
//! key, which a compaction may have dropped since, and which this node may have acknowledged. So
//! from its next start on the node's word counts for nothing that it lacks, until the others have
//! streamed back what it should hold; and for each hint that is removed its partition is marked.
//! The bound goes last: until then a start is refused, and the command can be repeated.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use cluster::Clock;
use lsm::{Above, Batch, Disk, Engine, Options, RealDisk, Space, Version};

use crate::cli::RepairClockArgs;
use crate::node::clock::{self, wall_micros};
use crate::node::{hints, identity};

/// Where records with versions are kept.
const VERSIONED: &[Space] = &[Space::Data, Space::Hints];

/// What is ahead of the wall clock.
#[derive(Debug, Default)]
struct Found {
    records: u64,
    hints: u64,
    /// The greatest of their timestamps.
    furthest: u64,
    /// Marks for the partitions of the hints.
    marks: BTreeSet<Vec<u8>>,
}

/// What came of it, for people. An error is one line.
pub(crate) fn run(args: &RepairClockArgs) -> Result<String, String> {
    let shown = args.data.display();
    let in_data = |error: String| format!("data directory {shown}: {error}");
    let engine = open(&args.data).map_err(in_data)?;
    if identity::is_alone(&engine).map_err(in_data)? {
        return Err(in_data(
            "this is a single-node store: no other node refuses its timestamps, so there is \
             nothing to repair, and no other node could restore what a repair removes"
                .to_owned(),
        ));
    }
    let wall = wall_micros();
    let skew = args.max_clock_skew.0;
    let above = Above { time: Clock::limit(wall, skew.as_micros() as u64), spaces: VERSIONED };
    let failed = |error: lsm::Error| in_data(error.to_string());
    let found = look(&engine, above).map_err(failed)?;
    let bound = clock::kept_bound(&engine).map_err(in_data)?;
    let ahead = |time: u64| Clock::micros(time).saturating_sub(wall) / 1_000_000;
    let told = format!(
        "{shown}: {} records and {} hints have timestamps ahead of this machine's clock by more \
         than the allowed skew ({skew:?}), at most by {} s; the node's clock would start {} s \
         ahead.\n",
        found.records,
        found.hints,
        ahead(found.furthest),
        ahead(bound)
    );
    if found.furthest == 0 && bound <= above.time {
        return Ok(told + "There is nothing to repair.\n");
    }
    if !args.yes {
        return Ok(told
            + "Nothing was changed. Check that the clock is correct now (date -u); then run again \
                with --yes to remove those records and hints,\nincluding writes that only this \
                node acknowledged while its clock was wrong.\n");
    }
    repair(&engine, above, &found).map_err(in_data)?;
    // What is left of this node's own versions is not above that.
    clock::lower_bound(&engine, bound.min(above.time)).map_err(in_data)?;
    engine.close().map_err(failed)?;
    Ok(told
        + "They were removed. After the start, the other nodes stream back what this node should \
            hold; until then the node is not authoritative for missing keys.\n")
}

fn open(data: &Path) -> Result<Engine, String> {
    if !data.join("STORE").exists() {
        return Err("it holds no node's data".to_owned());
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(data).map_err(|error| error.to_string())?);
    Engine::open(disk, Options::default()).map_err(|error| error.to_string())
}

fn look(engine: &Engine, above: Above<'_>) -> Result<Found, lsm::Error> {
    let mut found = Found::default();
    engine.records_above(above, |space, key, version| {
        found.furthest = found.furthest.max(version.time);
        if space == Space::Hints {
            found.hints += 1;
            found.marks.extend(hints::mark_of(key));
        } else {
            found.records += 1;
        }
    })?;
    Ok(found)
}

fn repair(engine: &Engine, above: Above<'_>, found: &Found) -> Result<(), String> {
    let failed = |error: lsm::Error| error.to_string();
    if found.records > 0 {
        identity::lose(engine, above.time)?;
    }
    let mut batch = Batch::new();
    for mark in &found.marks {
        let version = Version { time: above.time, origin: 0 };
        batch.put(Space::Node, mark, version, &[]).map_err(failed)?;
    }
    engine.commit(std::iter::once(&batch)).map_err(failed)?;
    engine.remove_above(above).map_err(failed).map(drop)
}
