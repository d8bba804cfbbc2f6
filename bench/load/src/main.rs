//! Accuracy, pacing and cost of the load generator.
//!
//! ```text
//!   CPU 0   the server: hyper, or one that records the times of its requests and answers
//!   CPU 1   the generator in this program, or wrk
//! ```
//!
//! Compared runs alternate. A ratio divides two figures of the same repeat.

#![forbid(unsafe_code)]

mod accuracy;
mod cost;
mod pacing;
mod place;
mod recorder;

use std::path::PathBuf;
use std::process::ExitCode;

use bench_table::Report;
use clap::{Parser, ValueEnum};

/// How true, how even and how cheap the load generator is. Needs two CPUs and wrk.
#[derive(Parser)]
struct Args {
    /// What to measure, in this order; all by default.
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// Repeats of each row, 1 or more.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Seconds of one repeat, 1 or more.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Markdown file to write; raw figures go beside it, as .csv.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Percentiles beside the truth, with known service times.
    Accuracy,
    /// How late and in what bursts requests leave.
    Pacing,
    /// Requests per core and CPU per request, beside wrk.
    Cost,
}

/// State shared by all sections.
struct Bench {
    repeats: usize,
    seconds: u64,
    report: Report,
}

fn main() -> ExitCode {
    bench_table::exit_code(run(&Args::parse()))
}

fn run(args: &Args) -> Result<(), String> {
    // Described before pinning, because a pinned program sees only one CPU.
    let machine = bench_table::describe(&std::env::temp_dir());
    place::pin_to(place::CLIENT_CPU)?;
    let (repeats, seconds) = (args.repeats.max(1), args.seconds.max(1));
    let mut bench = Bench { repeats, seconds, report: Report::new() };
    bench.report.say("# The load generator");
    bench.report.say(&machine);
    bench.report.say(&format!(
        "{repeats} repeats of {seconds} s a row; median (least–greatest). Server on CPU {}, client \
         on CPU {}.",
        place::SERVER_CPU,
        place::CLIENT_CPU
    ));
    let all = [Section::Accuracy, Section::Pacing, Section::Cost];
    let sections = if args.sections.is_empty() { &all[..] } else { &args.sections };
    for section in sections {
        match section {
            Section::Accuracy => accuracy::run(&mut bench)?,
            Section::Pacing => pacing::run(&mut bench)?,
            Section::Cost => cost::run(&mut bench)?,
        }
        if let Some(out) = &args.out {
            bench.report.save(out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
    }
    Ok(())
}
