//! Shared parts of the benchmarks: servers as processes, repeats and their spread, ratios taken
//! repeat by repeat, Markdown tables, the raw figures as CSV, and a description of the machine.

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

/// Returns the exit code of a benchmark. Prints an error on stderr.
pub fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
