//! The `kvorum-bench` binary: the commands of the load crate (`crates/load`). `kvorum bench`
//! executes this binary.

#![forbid(unsafe_code)]

mod cli;
mod kvorum_profile;

use std::env;
use std::fmt::Display;
use std::io::{self, Write};
use std::panic;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use clap::error::ErrorKind;
use load::cli::{LoadEnd, LoadFailure};
use load::record::Series;
use load::search::Error;

use crate::cli::{Cli, Command};
use crate::kvorum_profile::KVORUM;

/// Exit code for an invalid command line, as in clap.
const USAGE: u8 = 2;

/// Exit code for a warning or a failed request under `--strict`.
const WARNED: u8 = 3;

/// Exit code after Ctrl-C, as in shells: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    abort_on_panic();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return report_usage_error(&error),
    };
    match command {
        Command::Load(args) => load_exit_code(load::cli::load(&args, &KVORUM)),
        Command::Search(args) => series(|stop| load::search::run(&args, &KVORUM, stop)),
        Command::Coldhot(args) => series(|stop| load::coldhot::run(&args, &KVORUM, stop)),
        Command::Compare(args) => print(load::compare::compare(&args)),
        Command::Import(args) => print(load::import::import(&args)),
        Command::Report(args) => print(load::report::report(&args, KVORUM.tool)),
    }
}

/// Aborts on any panic: a violated assertion is a bug of unknown extent, and later figures would be
/// worthless. Cargo's `panic = "abort"` is not possible, because Lua errors unwind through Rust's
/// frames.
fn abort_on_panic() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        hook(panic);
        process::abort();
    }));
}

/// Reports an invalid command line, with a suggestion if there is one.
fn report_usage_error(error: &clap::Error) -> ExitCode {
    let words: Vec<String> = env::args_os().skip(1).map(|w| w.to_string_lossy().into()).collect();
    let is_measuring =
        words.first().is_some_and(|word| ["load", "search", "coldhot"].contains(&&**word));
    let unknown = error.kind() == ErrorKind::UnknownArgument;
    match load::cli::suggest_correction(&words).filter(|_| is_measuring && unknown) {
        Some(line) => report_error(USAGE, line),
        None => error.exit(),
    }
}

fn load_exit_code(outcome: Result<LoadEnd, LoadFailure>) -> ExitCode {
    match outcome {
        Ok(LoadEnd::Fine) => ExitCode::SUCCESS,
        Ok(LoadEnd::Warned) => ExitCode::from(WARNED),
        Ok(LoadEnd::Interrupted) => ExitCode::from(INTERRUPTED),
        Ok(LoadEnd::Script(code)) => ExitCode::from(code),
        Err(LoadFailure::Usage(line)) => report_error(USAGE, line),
        Err(LoadFailure::Run(line)) => report_error(1, line),
    }
}

fn series(run: impl FnOnce(&Arc<AtomicBool>) -> Result<Series, Error>) -> ExitCode {
    let stop = load::interrupt_flag().map_err(|error| format!("signals: {error}"));
    match stop.and_then(|stop| run(&stop).map_err(|error| error.to_string())) {
        Ok(series) if series.interrupted => ExitCode::from(INTERRUPTED),
        Ok(_) => ExitCode::SUCCESS,
        Err(line) => report_error(1, line),
    }
}

/// Prints a command's output.
fn print(outcome: Result<String, impl Display>) -> ExitCode {
    let printed = outcome.map_err(|error| error.to_string()).and_then(|text| {
        let printed = io::stdout().write_all(text.as_bytes());
        printed.map_err(|error| format!("stdout: {error}"))
    });
    printed.map_or_else(|line| report_error(1, line), |()| ExitCode::SUCCESS)
}

/// Prints a one-line error. A closed stderr is ignored.
fn report_error(code: u8, line: impl Display) -> ExitCode {
    let _ = writeln!(io::stderr(), "kvorum-bench: {line}");
    ExitCode::from(code)
}
