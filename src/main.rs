//! The `kvorum` binary: parses the command line, runs the command and turns its outcome into an
//! exit code.

mod cli;
mod compact;
mod counters;
mod finalize;
mod http;
mod joining;
mod layout;
mod node;
mod operations;
mod peers;
mod quotas;
mod repair;
mod runtime;
mod sample_history;
mod settings;
mod tokens;
mod transport;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::panic;
use std::process::{self, ExitCode};

use clap::error::ErrorKind;

use crate::cli::{Cli, Command, bench, cert, check, client, dev, repair_clock, variables};
use crate::operations::stderr;
use crate::runtime::allocator::{self, ALLOCATES, Allocator};
use crate::runtime::error::ServeError;
use crate::runtime::{limits, serve};
use crate::settings::config;
use crate::settings::list::ServeArgs;
use crate::settings::log_format;
use crate::settings::values::LogFormat;

/// The allocator. Its wrapper samples allocations while a profile is recorded.
#[global_allocator]
static ALLOCATOR: profile::SampledAllocator<Allocator> = profile::SampledAllocator(ALLOCATES);

/// Exit code for an invalid command line, environment variable or settings file. clap uses the
/// same.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    abort_on_panic();
    allocator::set_up();
    limits::file_size_is_an_error();
    let words: Vec<OsString> = env::args_os().collect();
    stderr::begin(log_format::requested_format(&words));
    let command = match Cli::read(words) {
        Ok(cli) => cli.command,
        Err(error) => return report_usage_error(&error),
    };
    // `serve` and `dev` log the warning themselves.
    if !matches!(command, Command::Serve(_) | Command::Dev(_))
        && let Some(warning) = variables::unknown_variables_warning()
    {
        stderr::say(format_args!("kvorum: {warning}"));
    }
    match command {
        Command::Serve(args) => run_node(*args),
        Command::Dev(args) => match args.command {
            Some(command) => exit_code(client::dev(command)),
            None => report_end(dev::run(&args)),
        },
        Command::RepairClock(args) => {
            print_result(repair_clock::run(&args), repair_clock::outcome(&args))
        }
        Command::Put(args) => exit_code(client::put(&args)),
        Command::Get(args) => exit_code(client::get(&args)),
        Command::Del(args) => exit_code(client::del(&args)),
        Command::Add(args) => exit_code(client::add(&args)),
        Command::Scan(args) => exit_code(client::scan(&args)),
        Command::Status(args) => exit_code(client::status(&args)),
        Command::Repair(args) => exit_code(client::repair(&args)),
        Command::Cluster(args) => exit_code(client::cluster(&args)),
        Command::Token(args) => exit_code(client::token(&args)),
        Command::Quota(args) => exit_code(client::quota(&args)),
        Command::Cert(command) => print_result(cert::run(&command), "; the files were made"),
        Command::Compact(args) => exit_code(client::compact(&args)),
        Command::Profile(args) => exit_code(client::profile(&args)),
        Command::Bench(args) => bench::run(&args),
    }
}

/// Aborts on any panic: a failed assertion is a bug of unknown extent, so the process stops and
/// recovers from the log. Cargo's `panic = "abort"` would also apply to the benchmarks, where
/// errors of Lua scripts unwind through Rust's frames.
fn abort_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        stderr::print_panic(panic, &tell);
        process::abort();
    }));
}

/// Reports an invalid command line, with a hint if the command has moved to `kvorum-bench`. An
/// error of `kvorum serve` takes one line, like every entry of a node's log.
fn report_usage_error(error: &clap::Error) -> ExitCode {
    let first = env::args_os().nth(1);
    let is_serve = first.as_deref().is_some_and(|first| first == "serve");
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(what) = variables::non_utf8_input()
    {
        stderr::say(format_args!("kvorum: {what} is not UTF-8"));
        return ExitCode::from(USAGE);
    }
    match first.as_deref().and_then(OsStr::to_str).and_then(bench::bench_command_hint) {
        Some(line) => {
            stderr::say(format_args!("kvorum: {line}"));
            ExitCode::from(USAGE)
        }
        None if error.use_stderr() && (is_serve || stderr::format() == LogFormat::Json) => {
            stderr::say(format_args!("kvorum: {}", in_one_line(error)));
            ExitCode::from(USAGE)
        }
        None => error.exit(),
    }
}

/// Joins the lines of the error into one, and leaves out the usage.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(|line| line.trim().trim_start_matches("error: "));
    let is_usage = |line: &&str| line.starts_with("Usage: ") || line.starts_with("For more info");
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !is_usage(line)).collect();
    lines.join(" ")
}

fn run_node(args: ServeArgs) -> ExitCode {
    let check = args.check;
    match config::load(args) {
        Ok((mut config, _)) if check => {
            config.warnings.extend(variables::unknown_variables_warning());
            let outcome = check::run(&config);
            let is_refused = outcome.is_err();
            let code = print_result(outcome, "");
            if is_refused { ExitCode::from(USAGE) } else { code }
        }
        Ok((mut config, logging)) => {
            config.warnings.extend(variables::unknown_variables_warning());
            let outcome = serve::run(config, &logging);
            let is_settings_error = outcome.as_ref().is_err_and(ServeError::is_settings_error);
            let code = report_end(outcome);
            stderr::flush();
            if is_settings_error { ExitCode::from(USAGE) } else { code }
        }
        Err(error) => {
            stderr::say(format_args!("kvorum: {error}"));
            ExitCode::from(USAGE)
        }
    }
}

fn report_end(outcome: Result<(), impl Display>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print_failure(format_args!("{error}")),
    }
}

/// Prints the result of a command. If printing fails, the error message ends with `done`, which
/// describes the change that the command has made.
fn print_result(outcome: Result<String, impl Display>, done: &str) -> ExitCode {
    let print =
        |text: String| io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    match outcome.map(print) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // A closed pipe is a success if the command changed nothing: a reader such as `head` closes
        // the pipe once it has read enough.
        Ok(Err(error)) if done.is_empty() && error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => print_failure(format_args!("stdout: {error}{done}")),
        Err(error) => print_failure(format_args!("{error}")),
    }
}

fn print_failure(why: fmt::Arguments<'_>) -> ExitCode {
    stderr::say(format_args!("kvorum: {why}"));
    ExitCode::FAILURE
}

fn exit_code(outcome: Result<(), client::CommandFailure>) -> ExitCode {
    outcome.map_or_else(ExitCode::from, |()| ExitCode::SUCCESS)
}
