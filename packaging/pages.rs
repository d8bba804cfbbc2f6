//! Man pages and shell completions of a program, generated from its command line: the files in
//! `packaging/man` and `packaging/completions`. The tests of both programs include this module and
//! compare these files with generated files; `UPDATE_DOCS=1` writes them. So the build of a package
//! does not run the packaged program, which may be for another architecture, and no program
//! contains the generators.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use clap::Command;
use clap_complete::Shell;

/// Checks that the files of `command` agree with its command line.
pub(crate) fn hold(command: Command) {
    let name = command.get_name().to_owned();
    // If the version contained the commit, the files would change with each commit.
    let version = env!("CARGO_PKG_VERSION");
    let mut command = command.version(version).long_version(version);
    let generated = tempfile::tempdir().unwrap();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, &name, generated.path()).unwrap();
    }
    check_files(&name, "completions", &files(generated.path(), &name));
    let generated = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(command, generated.path()).unwrap();
    check_files(&name, "man", &files(generated.path(), &name));
}

/// Returns the texts of a program's files in a directory, by file name. Omits the pages of `help`
/// subcommands.
fn files(directory: &Path, program: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(directory).into_iter().flatten().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let own = named.filter(|(name, _)| is_file_of(name, program) && !name.contains("-help"));
    own.map(|(name, path)| (name, fs::read_to_string(path).unwrap())).collect()
}

/// True if a file belongs to the program: `kvorum-bench.1` belongs to `kvorum-bench`, not to
/// `kvorum`.
fn is_file_of(file: &str, program: &str) -> bool {
    let of_bench = file.trim_start_matches('_').starts_with("kvorum-bench");
    of_bench == (program == "kvorum-bench")
}

fn check_files(program: &str, kind: &str, generated: &BTreeMap<String, String>) {
    // The root of the workspace, whichever package includes this module.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.ancestors().find(|path| path.join("packaging").is_dir()).unwrap();
    let directory = root.join("packaging").join(kind).join(program);
    let committed = files(&directory, program);
    if committed == *generated {
        return;
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(&directory).unwrap();
        for name in committed.keys() {
            fs::remove_file(directory.join(name)).unwrap();
        }
        for (name, text) in generated {
            fs::write(directory.join(name), text).unwrap();
        }
        return;
    }
    let names = generated.keys().chain(committed.keys());
    let other: Vec<_> = names.filter(|name| generated.get(*name) != committed.get(*name)).collect();
    panic!("{} differ from the command line; UPDATE_DOCS=1 writes them: {other:?}", kind);
}
