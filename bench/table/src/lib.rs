//! Shared parts of the benchmarks: servers as processes, spreads of repeated measurements, ratios
//! within a repeat, Markdown tables, raw figures as CSV, and a description of the machine.

#![forbid(unsafe_code)]

mod machine;
mod report;
mod server;
mod spread;

use std::process::ExitCode;

pub use machine::describe;
pub use report::{Report, Table};
pub use server::{Server, argv, find, free_address};
pub use spread::{Spread, ratio};

/// Returns the exit code for the outcome of a benchmark. Prints an error on stderr.
pub fn exit_code(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
