//! `kvorum bench`, which executes `kvorum-bench`. In most tests a shell replaces `kvorum-bench` and
//! prints its arguments.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::process::{Node, run};

/// Creates a directory that has only `kvorum`, as a hard link. A new copy could still be open for
/// writing in a child process of another test, and the kernel would refuse to run it.
fn alone() -> TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_kvorum"), directory.path().join("kvorum")).unwrap();
    directory
}

/// Runs `kvorum bench` from a directory with the arguments `words` and with `PATH` set to `path`;
/// returns its process ID and its output.
fn bench(directory: &Path, path: &Path, words: &[&str]) -> (u32, Output) {
    let mut command = Command::new(directory.join("kvorum"));
    command.arg("bench").args(words).env_clear().env("PATH", path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Writing fails if the program has exited without reading its stdin.
    let _ = child.stdin.take().unwrap().write_all(b"from stdin\n");
    (child.id(), child.wait_with_output().unwrap())
}

/// The shell's arguments: a script that prints its process ID, a line of stdin, and its arguments.
const TELL: [&str; 6] =
    ["-c", "read -r line; echo $$ $line $0 $*; echo no >&2; exit 3", "load", "--help", "--", "-x"];

fn is_the_stand_in((process, output): (u32, Output)) {
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told = format!("{process} from stdin load --help -- -x\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), told, "the same process, every word");
    assert_eq!(output.stderr, b"no\n");
}

#[test]
fn the_bench_command_runs_the_kit_beside_it_or_in_the_path() {
    let (directory, elsewhere) = (alone(), tempfile::tempdir().unwrap());
    symlink("/bin/sh", elsewhere.path().join("kvorum-bench")).unwrap();
    is_the_stand_in(bench(directory.path(), elsewhere.path(), &TELL));
    symlink("/bin/sh", directory.path().join("kvorum-bench")).unwrap();
    is_the_stand_in(bench(directory.path(), Path::new("/nowhere"), &TELL));
}

#[test]
fn without_the_kit_the_bench_command_says_how_to_get_it() {
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

/// Runs the README's load tests, shorter and with fewer keys. The runs must only read keys that a
/// run has written, so that a run's results do not differ from those of the next run.
#[test]
fn the_load_tests_of_the_readme_find_every_key() {
    let beside = Path::new(env!("CARGO_BIN_EXE_kvorum")).with_file_name("kvorum-bench");
    if !beside.exists() {
        eprintln!("skipped: kvorum-bench is needed");
        return;
    }
    let readme = include_str!("../../README.md");
    let (_, block) = readme.split_once("### Load tests and profiles").unwrap();
    let keys = block.lines().find_map(|line| line.trim().strip_prefix("KEYS=")).unwrap();
    let loads = block.lines().filter(|line| line.trim().starts_with("kvorum bench load "));
    let loads: Vec<&str> = loads.map(|line| line.split('#').next().unwrap().trim()).collect();
    assert_eq!(loads.len(), 3, "{loads:?}");
    let node = Node::start(&[]);
    let url = format!("http://{}", node.address);
    let runs = tempfile::tempdir().unwrap();
    for load in loads {
        let mut load = load.replace("$KEYS", keys.trim_matches('\''));
        for (long, short) in [
            ("--key-count 100k", "--key-count 100"),
            ("-R20k", "-R200"),
            ("-c64", "-c4"),
            ("-d10s", "-d1s"),
            ("-d60s", "-d1s"),
            (" --profile cpu,lock", ""),
            ("--out runs/", &format!("--out {}/", runs.path().display())),
            ("$URL", &url),
        ] {
            load = load.replace(long, short);
        }
        let words: Vec<&str> = load.split_whitespace().skip(1).collect();
        let output = run(&words);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{load}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("Requests/sec") && !said.contains("Non-2xx"), "{load}: {said}");
    }
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
