//! `kvorum bench`: becomes `kvorum-bench`, the measuring kit, as `git foo` becomes `git-foo`. It is
//! a program of its own, so that a node carries neither Lua nor reports.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::operations::stderr;

/// The kit's file name.
const PROGRAM: &str = "kvorum-bench";

/// Its commands, which people may look for in this program.
const COMMANDS: [&str; 6] = ["load", "search", "coldhot", "compare", "import", "report"];

/// Exit code if there is no such program, as shells have it.
const MISSING: u8 = 127;
/// And if there is one that can't be run.
const NOT_RUN: u8 = 126;

/// Everything after `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A command of kvorum-bench and its arguments
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes the kit that lies beside this program, or one of `PATH`; returns only if it can't.
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

/// What to type instead of a command that only the kit has.
pub(crate) fn moved(word: &str) -> Option<String> {
    let there = COMMANDS.contains(&word);
    there.then(|| format!("{word} is a command of {PROGRAM}: run `kvorum bench {word}`"))
}
