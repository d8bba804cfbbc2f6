//! The `kvorum` binary.

mod accept;
mod budget;
mod caretaker;
mod cli;
mod client;
mod clock;
mod config;
mod connection;
mod coordinate;
mod counters;
mod dev;
mod etags;
mod event_loop;
mod hints;
mod http;
mod identity;
mod latency;
mod measure;
mod members;
mod memory;
mod metrics;
mod node;
mod pages;
mod peers;
mod reads;
mod records;
mod secret;
mod serve;
mod status;
mod store;
mod units;
mod usage;
mod writes;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, ServeArgs};

/// Gives freed memory back to the system sooner than the default one, which the memory ledger
/// counts on, and does not slow down as threads free what others allocated.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for a command line, variable or file that makes no sense, as clap's own.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => run_node(args),
        Command::Dev(args) => ended(dev::run(&args)),
        Command::Put(args) => answered(client::put(&args)),
        Command::Get(args) => answered(client::get(&args)),
        Command::Del(args) => answered(client::del(&args)),
        Command::Scan(args) => answered(client::scan(&args)),
        Command::Status(args) => answered(client::status(&args)),
        Command::Search(args) => ended(measure::search(&args)),
        Command::Coldhot(args) => ended(measure::coldhot(&args)),
        Command::Import(args) => told(load::import::import(&args)),
        Command::Compare(args) => told(load::compare::compare(&args)),
        Command::Report(args) => told(load::report::report(&args)),
    }
}

fn run_node(args: ServeArgs) -> ExitCode {
    match config::load(args) {
        Ok((config, logging)) => ended(serve::run(config, &logging)),
        Err(line) => {
            eprintln!("kvorum: {line}");
            ExitCode::from(USAGE)
        }
    }
}

fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("kvorum: {line}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what a command has to tell.
fn told(outcome: Result<String, String>) -> ExitCode {
    ended(outcome.and_then(|text| {
        let printed = io::stdout().write_all(text.as_bytes());
        printed.map_err(|error| format!("stdout: {error}"))
    }))
}

fn answered(outcome: Result<(), client::Unable>) -> ExitCode {
    outcome.map_or_else(ExitCode::from, |()| ExitCode::SUCCESS)
}
