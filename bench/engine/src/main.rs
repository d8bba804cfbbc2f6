//! Compares the engine with RocksDB (through its `db_bench`) and fjall in one run, with the same
//! keys, values, cache, bloom bits, block size and compression.
//!
//! ```text
//!  this program ─┬▶ worker, kvorum ─▶ phase  ┐  Each phase is a process of its own: its caches
//!                ├▶ worker, fjall  ─▶ phase  ├─ start empty, and the kernel counts the bytes that
//!                └▶ db_bench       ─▶ phase  ┘  it writes, in the same way for all engines.
//! ```
//!
//! No process is pinned: the kernel schedules the measured thread and the engine's flushes and
//! compactions, for all engines alike. Files stay in the page cache.

#![forbid(unsafe_code)]

mod config;
mod phases;
mod rocksdb;
mod store;
mod table;
mod values;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use bench_table::Report;
use clap::{Parser, Subcommand};
use config::{Config, Engine, Phase};

/// The engine beside RocksDB and fjall.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Work>,
    /// One to two minutes: 300,000 keys. For a look, not for publishing.
    #[arg(long)]
    quick: bool,
    /// Keys [default: 3,000,000, quick: 300,000].
    #[arg(long)]
    keys: Option<u64>,
    /// Repeats [default: 3, quick: 1].
    #[arg(long)]
    repeats: Option<usize>,
    /// Seconds of each row that reads [default: 8, quick: 1].
    #[arg(long)]
    seconds: Option<u64>,
    /// Engines, in the order of the table.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kvorum,rocksdb,fjall")]
    engines: Vec<Engine>,
    /// Where engines keep their data: a real disk, not tmpfs. Removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Markdown file to write; raw figures go beside it, as .csv.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Work {
    /// One phase of one engine: what this program starts itself for each.
    #[command(hide = true)]
    Worker {
        #[arg(long, value_enum)]
        engine: Engine,
        #[arg(long, value_enum)]
        phase: Phase,
        #[command(flatten)]
        config: Config,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench_table::exit_code(match &args.command {
        Some(Work::Worker { engine, phase, config }) => worker::run(*engine, *phase, config),
        None => compare(&args),
    })
}

fn compare(args: &Args) -> Result<(), String> {
    let dir = tempfile::Builder::new()
        .prefix("kvorum-bench-")
        .tempdir_in(&args.dir)
        .map_err(|error| format!("can't make a directory in {}: {error}", args.dir.display()))?;
    let keys = args.keys.unwrap_or(if args.quick { 300_000 } else { 3_000_000 }).max(1000);
    let data = keys * (values::KEY_LEN + values::VALUE_LEN) as u64;
    let mut config = Config {
        keys,
        cache: 0,
        memtable: if args.quick { 4 << 20 } else { 32 << 20 },
        seconds: args.seconds.unwrap_or(if args.quick { 1 } else { 8 }).max(1),
        synced: keys / 150,
        seed: 0,
        dir: dir.path().join("store"),
    };
    let repeats = args.repeats.unwrap_or(if args.quick { 1 } else { 3 }).max(1);
    let mut report = Report::new();
    report.say("# The engine beside RocksDB and fjall");
    report.say(&bench_table::describe(dir.path()));
    report.say(&format!(
        "{keys} keys of {} bytes, values of {} that compress to {} %; memtable {}, tables {}, \
         level 1 {} MiB, LZ4, {} bloom bits, blocks of {} bytes, WAL on, unsynced but in the row \
         that says so; {repeats} repeats, alternating; median (least–greatest). Unpinned.",
        values::KEY_LEN,
        values::VALUE_LEN,
        values::COMPRESSION_RATIO * 100.0,
        config.memtable >> 20,
        config.table() >> 20,
        config.level1() >> 20,
        config::BLOOM_BITS,
        config::BLOCK_LEN,
    ));
    let mut engines = args.engines.clone();
    if engines.contains(&Engine::Rocksdb) {
        let found = rocksdb::find().and_then(|program| {
            let version = rocksdb::version(&program, &dir.path().join("version"))?;
            Ok(format!("RocksDB {version} in a release build: `{}`", program.display()))
        });
        report.say(&found.unwrap_or_else(|why| {
            engines.retain(|engine| *engine != Engine::Rocksdb);
            format!("Skipped RocksDB: {why}")
        }));
    }
    // The first cache has room for all data, the second for less than a tenth of them.
    for (title, cache) in [("cache ≥ data", 2 * data), ("data ≥ 10 × cache", data / 11)] {
        config.cache = cache;
        report.say(&format!("## {title}: {:.1} MiB of cache", cache as f64 / f64::from(1 << 20)));
        let results = phases::run(&engines, &mut config, repeats, &mut report)?;
        table::say(&mut report, &engines, &results);
        if let Some(out) = &args.out {
            report.save(out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
    }
    Ok(())
}
