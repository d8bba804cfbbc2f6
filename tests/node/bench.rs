//! `kvorum bench`: the program that it executes. A shell stands in for the kit, and prints its
//! arguments.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::process::run;

/// Creates a directory with `kvorum` and nothing else: a link, since a copy could still be open
/// elsewhere when it is run.
fn alone() -> TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_kvorum"), directory.path().join("kvorum")).unwrap();
    directory
}

/// Runs the directory's `kvorum` with these arguments and only `path` as `PATH`; returns its
/// process id too.
fn bench(directory: &Path, path: &Path, words: &[&str]) -> (u32, Output) {
    let mut command = Command::new(directory.join("kvorum"));
    command.arg("bench").args(words).env_clear().env("PATH", path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that ends at once reads nothing.
    let _ = child.stdin.take().unwrap().write_all(b"from stdin\n");
    (child.id(), child.wait_with_output().unwrap())
}

/// The script of the stand-in.
const TELL: [&str; 6] =
    ["-c", "read -r line; echo $$ $line $0 $*; echo no >&2; exit 3", "load", "--help", "--", "-x"];

fn is_the_stand_in((process, output): (u32, Output)) {
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told = format!("{process} from stdin load --help -- -x\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), told, "the same process, every word");
    assert_eq!(output.stderr, b"no\n");
}

#[test]
fn it_becomes_the_kit_beside_it_or_the_one_in_the_path() {
    let (directory, elsewhere) = (alone(), tempfile::tempdir().unwrap());
    symlink("/bin/sh", elsewhere.path().join("kvorum-bench")).unwrap();
    is_the_stand_in(bench(directory.path(), elsewhere.path(), &TELL));
    symlink("/bin/sh", directory.path().join("kvorum-bench")).unwrap();
    is_the_stand_in(bench(directory.path(), Path::new("/nowhere"), &TELL));
}

#[test]
fn where_there_is_none_it_says_how_to_get_one() {
    let directory = alone();
    let (_, output) = bench(directory.path(), directory.path(), &["load"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(127), "{said}");
    assert!(said.contains("`cargo build --release` builds both"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");

    fs::create_dir(directory.path().join("kvorum-bench")).unwrap();
    let (_, output) = bench(directory.path(), directory.path(), &["load"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(said.contains("cannot run kvorum-bench: "), "{said}");
}

#[test]
fn commands_of_the_kit_are_pointed_to() {
    for word in ["load", "search", "coldhot", "compare", "import", "report"] {
        let output = run(&[word, "-c64"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(&format!("run `kvorum bench {word}`")), "{said}");
    }
}
