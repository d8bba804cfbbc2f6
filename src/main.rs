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
mod writes;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, ServeArgs};

/// Gives freed memory back to the system sooner than the default one, which the memory ledger
/// counts on, and does not slow down as threads free what others allocated. While a profile is
/// recorded it tells where memory is asked for.
#[global_allocator]
static ALLOCATOR: profile::Sampled<tikv_jemallocator::Jemalloc> =
    profile::Sampled(tikv_jemallocator::Jemalloc);

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
        Command::Profile(args) => answered(client::profile(&args)),
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

fn answered(outcome: Result<(), client::Unable>) -> ExitCode {
    outcome.map_or_else(ExitCode::from, |()| ExitCode::SUCCESS)
}
