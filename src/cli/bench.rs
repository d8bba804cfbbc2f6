//! `kvorum bench`: executes the benchmark program `kvorum-bench`, as `git foo` executes `git-foo`.
//! The benchmarks are a separate program so that the node's program contains neither Lua nor the
//! generator of reports.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::operations::stderr;

/// File name of the benchmark program.
const PROGRAM: &str = "kvorum-bench";

/// Commands of `kvorum-bench` that users may type after `kvorum` by mistake.
const COMMANDS: [&str; 6] = ["load", "search", "coldhot", "compare", "import", "report"];

/// Exit code if the benchmark program does not exist; shells use the same code.
const MISSING: u8 = 127;
/// Exit code if the benchmark program exists but can't be executed; shells use the same code.
const NOT_RUN: u8 = 126;

/// Arguments of `kvorum bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A command of kvorum-bench and its arguments
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Replaces this process by the benchmark program beside this program, or else by the one in
/// `PATH`. Returns only on failure.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    let beside = env::current_exe().map(|program| program.with_file_name(PROGRAM));
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for program in [beside.ok(), Some(PROGRAM.into())].into_iter().flatten() {
        error = Command::new(program).arg0(PROGRAM).args(&args.words).exec();
        if error.kind() != io::ErrorKind::NotFound {
            break;
        }
    }
    if error.kind() == io::ErrorKind::NotFound {
        stderr::say(format_args!(
            "kvorum: {PROGRAM} is neither beside this program nor in PATH: `cargo build --release` \
             builds both, `cargo install --path crates/{PROGRAM}` installs it"
        ));
        return ExitCode::from(MISSING);
    }
    stderr::say(format_args!("kvorum: cannot run {PROGRAM}: {error}"));
    ExitCode::from(NOT_RUN)
}

/// Returns a hint for a command of the benchmark program; `None` for any other word.
pub(crate) fn bench_command_hint(word: &str) -> Option<String> {
    let there = COMMANDS.contains(&word);
    there.then(|| format!("{word} is a command of {PROGRAM}: run `kvorum bench {word}`"))
}
