//! kvorum over HTTP beside hyper, nginx and Redis, all pinned alike, in one run.
//!
//! ```text
//!   CPU 0   one server at a time (the others are suspended): kvorum, hyper, nginx, Redis
//!   CPU 1   wrk, redis-benchmark or the open-loop client, and this program
//! ```
//!
//! Each repeat measures all rows, alternately in forward and in reverse order, so that a drift of
//! the machine affects all rows alike. A ratio divides two figures of the same repeat. The first
//! two rows measure the same server, so that their difference is noise.

#![forbid(unsafe_code)]

mod big;
mod client;
mod cost;
mod group_commit;
mod layers;
mod one;
mod process;
mod rivals;
mod tail;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use bench_table::Report;
use clap::{Parser, ValueEnum};
use client::Client;
use rivals::Launcher;

/// kvorum over HTTP beside hyper, nginx and Redis. Needs two CPUs.
#[derive(Parser)]
struct Args {
    /// What to measure, in this order; all but `big` by default.
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// Two to three minutes: fewer and shorter repeats. For a look, not for publishing.
    #[arg(long)]
    quick: bool,
    /// Repeats of each row [default: 7, quick: 2].
    #[arg(long)]
    repeats: Option<usize>,
    /// Seconds of one repeat [default: 5, quick: 2].
    #[arg(long)]
    seconds: Option<u64>,
    /// Where servers keep their data: a real disk, not tmpfs. Removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Markdown file to write; raw figures go beside it, as .csv.
    #[arg(long)]
    out: Option<PathBuf>,
    /// What drives the closed loops over HTTP.
    #[arg(long, value_enum, default_value = "wrk")]
    client: Client,
    /// Keys of `big`.
    #[arg(long, default_value_t = 10_000_000)]
    big_keys: u64,
    /// `--memory` of kvorum in `big`: a tenth of the data or less.
    #[arg(long, default_value = "128MiB")]
    big_memory: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Closed loop, 64 connections, 200,000 hot keys, all rivals.
    Throughput,
    /// System calls of a request, and nanoseconds by layer.
    Cost,
    /// Open loop at 60,000/s while flush and compaction run; `always` against bare `fdatasync`.
    Tail,
    /// One connection at 10,000/s.
    One,
    /// GET over ten million keys, the data ten times the memory budget.
    Big,
}

/// Size of the measurements.
#[derive(Debug, Clone, Copy)]
struct Scale {
    repeats: usize,
    seconds: u64,
    quick: bool,
}

/// State shared by all sections.
struct Bench {
    scale: Scale,
    client: Client,
    place: Launcher,
    report: Report,
}

fn main() -> ExitCode {
    bench_table::exit_code(run(&Args::parse()))
}

fn run(args: &Args) -> Result<(), String> {
    pin_self()?;
    let dir = tempfile::Builder::new()
        .prefix("kvorum-bench-")
        .tempdir_in(&args.dir)
        .map_err(|error| format!("can't make a directory in {}: {error}", args.dir.display()))?;
    let scale = Scale {
        repeats: args.repeats.unwrap_or(if args.quick { 2 } else { 7 }).max(1),
        seconds: args.seconds.unwrap_or(if args.quick { 2 } else { 5 }).max(1),
        quick: args.quick,
    };
    let place = Launcher::new(dir.path()).map_err(|error| error.to_string())?;
    let mut bench = Bench { scale, client: args.client, place, report: Report::new() };
    bench.report.say("# kvorum over HTTP");
    bench.report.say(&bench_table::describe(dir.path()));
    bench.report.say(&format!(
        "{} repeats of {} s a row, alternating; median (least–greatest). Server on CPU {}, client \
         on CPU {}.",
        scale.repeats,
        scale.seconds,
        process::SERVER_CPU,
        process::CLIENT_CPU
    ));
    let default = [Section::Throughput, Section::Cost, Section::Tail, Section::One];
    let sections = if args.sections.is_empty() { &default[..] } else { &args.sections };
    for section in sections {
        match section {
            Section::Throughput => throughput::run(&mut bench)?,
            Section::Cost => cost::run(&mut bench)?,
            Section::Tail => tail::run(&mut bench)?,
            Section::One => one::run(&mut bench)?,
            Section::Big => big::run(&mut bench, args.big_keys, &args.big_memory)?,
        }
        if let Some(out) = &args.out {
            bench.report.save(out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
    }
    Ok(())
}

/// Pins this program, and with it the open-loop client, to the client's CPU.
fn pin_self() -> Result<(), String> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(process::CLIENT_CPU);
    rustix::thread::sched_setaffinity(None, &cpus)
        .map_err(|error| format!("can't run on CPU {}: {error}", process::CLIENT_CPU))
}
