//! Three kvorum nodes compared with one, with a three-node etcd, and with a three-node Cassandra,
//! in one run.
//!
//! ```text
//!   CPU 0 and 1   the nodes of one cluster at a time (the others are suspended), and this program,
//!                 whose one thread is the client
//! ```
//!
//! No process is pinned: the kernel schedules three nodes and a client on two CPUs. Each repeat
//! measures all rows, alternately in forward and in reverse order. A ratio divides two figures of
//! the same repeat.

#![forbid(unsafe_code)]

mod cassandra;
mod conditional;
mod cost;
mod cql;
mod etcd;
mod fleet;
mod kill;
mod metrics;
mod quorum;
mod repair;
mod requests;
mod retrying;
mod roll;
mod seeds;

use std::path::PathBuf;
use std::process::ExitCode;

use bench_table::Report;
use clap::{Parser, ValueEnum};
use fleet::Launcher;

/// Three kvorum nodes beside one and beside a three-node etcd. Needs two CPUs.
#[derive(Parser)]
struct Args {
    /// What to measure, in this order; all by default.
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// Some five minutes: fewer and shorter repeats. For a look, not for publishing.
    #[arg(long)]
    quick: bool,
    /// Repeats of each row [default: 5, quick: 2].
    #[arg(long)]
    repeats: Option<usize>,
    /// Seconds of one repeat; four times as many at a fixed rate [default: 5, quick: 2].
    #[arg(long)]
    seconds: Option<u64>,
    /// Where servers keep their data: a real disk, not tmpfs. Removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Markdown file to write; raw figures go beside it, as .csv.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Event loops of each kvorum node.
    #[arg(long, default_value_t = 1)]
    loops: usize,
    /// Leaves etcd out.
    #[arg(long)]
    no_etcd: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Closed loop, 64 connections, 2 of 3: three nodes, one node, etcd.
    Quorum,
    /// Open loop, 10,000/s on each of three nodes at once, 128 connections each.
    Seed002,
    /// One copy: PUT 40,000/s, GET 2,500/s at one of three nodes, 64 connections.
    Seed000,
    /// One of three nodes killed and back under load.
    Kill,
    /// Three nodes restarted one after the other under load, beside etcd.
    Roll,
    /// Closed loop, always synced: PUT, PUT with a condition, etcd's transaction that compares and
    /// puts, Cassandra's lightweight transaction (if CASSANDRA says where it is); additions to one
    /// key; 412.
    Conditional,
    /// Rounds of repair: what one takes, and what it costs the clients meanwhile.
    Repair,
    /// The same repair by Cassandra (if CASSANDRA says where it is).
    RepairRival,
    /// What deleted keys leave on the disks.
    Purge,
}

/// Size of the measurements.
#[derive(Debug, Clone, Copy)]
struct Scale {
    repeats: usize,
    seconds: u64,
    /// Number of keys in a store before its measurement.
    keys: u64,
}

/// State shared by all sections.
struct Bench {
    scale: Scale,
    etcd: bool,
    place: Launcher,
    report: Report,
}

fn main() -> ExitCode {
    bench_table::exit_code(run(&Args::parse()))
}

fn run(args: &Args) -> Result<(), String> {
    let dir = tempfile::Builder::new()
        .prefix("kvorum-bench-")
        .tempdir_in(&args.dir)
        .map_err(|error| format!("can't make a directory in {}: {error}", args.dir.display()))?;
    let scale = Scale {
        repeats: args.repeats.unwrap_or(if args.quick { 2 } else { 5 }).max(1),
        seconds: args.seconds.unwrap_or(if args.quick { 2 } else { 5 }).max(1),
        keys: if args.quick { 10_000 } else { 50_000 },
    };
    let place = Launcher::new(dir.path(), args.loops).map_err(|error| error.to_string())?;
    let mut bench = Bench { scale, etcd: !args.no_etcd, place, report: Report::new() };
    bench.report.say("# A kvorum cluster");
    bench.report.say(&bench_table::describe(dir.path()));
    bench.report.say(&format!(
        "{} repeats of {} s a row, alternating; median (least–greatest). Nodes and client share \
         all CPUs; kvorum with `--loops {}`.",
        scale.repeats, scale.seconds, args.loops
    ));
    if bench.etcd {
        match etcd::version() {
            Ok(version) => bench.report.say(&format!("The rival is etcd {version}.")),
            Err(why) => bench.report.say(&format!("There is no rival: {why}")),
        }
    }
    let all = [
        Section::Quorum,
        Section::Seed002,
        Section::Seed000,
        Section::Kill,
        Section::Roll,
        Section::Conditional,
        Section::Repair,
        Section::RepairRival,
        Section::Purge,
    ];
    let sections = if args.sections.is_empty() { &all[..] } else { &args.sections };
    for section in sections {
        match section {
            Section::Quorum => quorum::run(&mut bench)?,
            Section::Seed002 => seeds::seed002(&mut bench)?,
            Section::Seed000 => seeds::seed000(&mut bench)?,
            Section::Kill => kill::run(&mut bench)?,
            Section::Roll => roll::run(&mut bench)?,
            Section::Conditional => conditional::run(&mut bench)?,
            Section::Repair => repair::run(&mut bench)?,
            Section::RepairRival => repair::rival::run(&mut bench)?,
            Section::Purge => repair::purge::run(&mut bench)?,
        }
        if let Some(out) = &args.out {
            bench.report.save(out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
    }
    Ok(())
}
