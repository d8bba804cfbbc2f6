//! Man pages and completions of a program, generated from its command line: the files in
//! `packaging/man` and `packaging/completions`. The tests of both programs include this module and
//! compare the files; `UPDATE_DOCS=1` writes them. So no build of a package has to run the packed
//! program, which may be for another machine, and no program contains the generators.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use clap::Command;
use clap_complete::Shell;

/// Checks that the files of `command` agree with its command line.
pub(crate) fn hold(command: Command) {
    let name = command.get_name().to_owned();
    // The version without the commit: the files would change with each commit.
    let version = env!("CARGO_PKG_VERSION");
    let mut command = command.version(version).long_version(version);
    let made = tempfile::tempdir().unwrap();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, &name, made.path()).unwrap();
    }
    holds(&name, "completions", &files(made.path(), &name));
    let made = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(command, made.path()).unwrap();
    holds(&name, "man", &files(made.path(), &name));
}

/// Returns the program's files in a directory by name, without the pages of `help` subcommands.
fn files(directory: &Path, program: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(directory).into_iter().flatten().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let own = named.filter(|(name, _)| is_of(name, program) && !name.contains("-help"));
    own.map(|(name, path)| (name, fs::read_to_string(path).unwrap())).collect()
}

/// True if a file belongs to the program: `kvorum-bench.1` belongs to `kvorum-bench`, not to
/// `kvorum`.
fn is_of(file: &str, program: &str) -> bool {
    let of_bench = file.trim_start_matches('_').starts_with("kvorum-bench");
    of_bench == (program == "kvorum-bench")
}

fn holds(program: &str, kind: &str, made: &BTreeMap<String, String>) {
    // The root of the workspace, whichever package includes this module.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.ancestors().find(|path| path.join("packaging").is_dir()).unwrap();
    let directory = root.join("packaging").join(kind).join(program);
    let kept = files(&directory, program);
    if kept == *made {
        return;
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(&directory).unwrap();
        for name in kept.keys() {
            fs::remove_file(directory.join(name)).unwrap();
        }
        for (name, text) in made {
            fs::write(directory.join(name), text).unwrap();
        }
        return;
    }
    let names = made.keys().chain(kept.keys());
    let other: Vec<_> = names.filter(|name| made.get(*name) != kept.get(*name)).collect();
    panic!("{} differ from the command line; UPDATE_DOCS=1 writes them: {other:?}", kind);
}
