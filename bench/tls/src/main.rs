//! Cost of TLS for kvorum, in one run: on persistent connections, compared with plaintext; in
//! handshakes, compared with nginx; between three nodes; and in memory.
//!
//! ```text
//!   CPU 0   the servers; all except the measured ones are suspended
//!   CPU 1   the client, in this program
//! ```
//!
//! Compared runs alternate. A ratio divides two figures of the same repeat.

#![forbid(unsafe_code)]

mod handshakes;
mod idle;
mod place;
mod requests;

use std::path::PathBuf;
use std::process::ExitCode;

use bench_table::Report;
use clap::{Parser, ValueEnum};

use crate::place::Launcher;

/// What TLS costs kvorum. Needs two CPUs and nginx.
#[derive(Parser)]
struct Args {
    /// What to measure, in this order; all by default.
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// Repeats of each row, 1 or more.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Seconds of one repeat, 1 or more.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Where servers keep their data: a real disk, not tmpfs. Removed afterwards.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Markdown file to write; raw figures go beside it, as .csv.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// GET and PUT on kept connections, of one node and of three.
    Requests,
    /// Full and resumed handshakes, beside nginx.
    Handshakes,
    /// Memory of connections that are kept and do nothing.
    Idle,
}

/// State shared by all sections.
struct Bench {
    repeats: usize,
    seconds: u64,
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
    // Described before pinning, because a pinned program sees only one CPU.
    let machine = bench_table::describe(dir.path());
    place::pin_to(place::CLIENT_CPU)?;
    let (repeats, seconds) = (args.repeats.max(1), args.seconds.max(1));
    let place = Launcher::new(dir.path())?;
    let mut bench = Bench { repeats, seconds, place, report: Report::new() };
    bench.report.say("# TLS");
    bench.report.say(&machine);
    bench.report.say(&format!(
        "{repeats} repeats of {seconds} s a row, alternating; median (least–greatest). Servers on \
         CPU {}, client on CPU {}. One ECDSA P-256 certificate for all.",
        place::SERVER_CPU,
        place::CLIENT_CPU
    ));
    let all = [Section::Requests, Section::Handshakes, Section::Idle];
    let sections = if args.sections.is_empty() { &all[..] } else { &args.sections };
    for section in sections {
        match section {
            Section::Requests => requests::run(&mut bench)?,
            Section::Handshakes => handshakes::run(&mut bench)?,
            Section::Idle => idle::run(&mut bench)?,
        }
        if let Some(out) = &args.out {
            bench.report.save(out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
    }
    Ok(())
}

/// Returns the order of a repeat's rows: forward in even repeats and reverse in odd ones, so that a
/// drift of the machine affects all rows alike.
fn order(rows: usize, repeat: usize) -> Vec<usize> {
    let forwards = 0..rows;
    if repeat.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() }
}
