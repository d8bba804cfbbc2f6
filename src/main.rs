//! The `kvorum` binary.

mod accept;
mod budget;
mod cli;
mod clock;
mod config;
mod connection;
mod counters;
mod etags;
mod event_loop;
mod http;
mod identity;
mod members;
mod memory;
mod metrics;
mod node;
mod pages;
mod reads;
mod secret;
mod serve;
mod store;
mod units;
mod writes;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

/// Gives freed memory back to the system sooner than the default one, which the memory ledger
/// counts on, and does not slow down as threads free what others allocated.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for a command line, variable or file that makes no sense, as clap's own.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let Command::Serve(args) = Cli::parse().command;
    let (config, logging) = match config::load(args) {
        Ok(loaded) => loaded,
        Err(line) => {
            eprintln!("kvorum: {line}");
            return ExitCode::from(USAGE);
        }
    };
    match serve::run(config, &logging) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("kvorum: {line}");
            ExitCode::FAILURE
        }
    }
}
