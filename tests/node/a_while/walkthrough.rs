//! The walk-through of `docs/guide/tour.md`: runs its commands exactly as printed on a `kvorum
//! dev`, and compares their output with the output on the page.

use std::path::Path;
use std::process::Command;

use crate::dev::{Dev, pid_of};
use crate::process::{kvorum, wait_until};

/// Timeout of a command, for `timeout`.
const LIMIT: &str = "120s";

/// Units that may differ from the units on the page, because the numbers differ.
const UNITS: [&str; 10] =
    ["B", "KiB", "MiB", "s", "ms", "second", "seconds", "minute", "minutes", "ago:"];

/// A command, and its output according to the manual.
struct Step {
    command: String,
    printed: Vec<String>,
}

/// Returns the steps in the code block that a comment in the manual marks.
fn steps() -> Vec<Step> {
    let manual = include_str!("../../../docs/guide/tour.md");
    let (_, marked) = manual.split_once("tests/node/a_while/walkthrough.rs runs it").unwrap();
    let (_, block) = marked.split_once("```console\n").unwrap();
    let mut steps: Vec<Step> = Vec::new();
    for line in block.split_once("```").unwrap().0.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push(Step { command: command.to_owned(), printed: Vec::new() }),
            None => steps.last_mut().unwrap().printed.push(line.to_owned()),
        }
    }
    steps
}

/// Returns the words of a line without numbers, names with numbers, and units. Of some lines,
/// returns only the first word: hints may have delivered keys before a repair round compares them,
/// and a compaction may have begun by itself.
fn words(line: &str) -> Vec<&str> {
    if line.starts_with("keys: ") {
        return vec!["keys:"];
    }
    if line.starts_with("compacted in ") || line.starts_with("nothing to compact ") {
        return vec!["compacted"];
    }
    let is_word = |word: &&str| {
        word.chars().all(|c| c.is_alphabetic() || "-,.:;".contains(c)) && !UNITS.contains(word)
    };
    line.split_whitespace().filter(is_word).filter(|word| *word != "-").collect()
}

/// Returns the `disk` column of each node in MiB, from the table that `kvorum status` printed.
fn disks(printed: &str) -> Vec<f64> {
    let is_node = |line: &&str| line.starts_with("node-") && line.contains(" MiB ");
    let of =
        |line: &str| line.split(" MiB ").next().unwrap().split(' ').next_back().unwrap().parse();
    printed.lines().filter(is_node).map(|line| of(line).unwrap()).collect()
}

#[test]
fn the_walk_through_works_as_the_manual_says() {
    if ["curl", "timeout"].iter().any(|tool| Command::new(tool).arg("--version").output().is_err())
    {
        eprintln!("skipped: there is no curl, or no timeout");
        return;
    }
    let dev = Dev::start(3, &[]);
    let urls: Vec<_> = (0..3).map(|node| format!("http://127.0.0.1:{}", dev.port + node)).collect();
    let program = Path::new(env!("CARGO_BIN_EXE_kvorum")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let run = |command: &str| {
        let mut bash = Command::new("timeout");
        bash.args([LIMIT, "bash", "-c", command]);
        bash.env("PATH", &path).env("KVORUM_URL", &urls[0]).env("NODES", urls.join(" "));
        bash.env("K", format!("{}/v0/entity", urls[0]));
        bash.env("NODE3", pid_of(&dev, "node-3").as_raw_nonzero().to_string());
        let output = bash.output().unwrap();
        assert_ne!(output.status.code(), Some(124), "{command}: not within {LIMIT}");
        String::from_utf8(output.stdout).unwrap()
    };
    // A reader's nodes have found each other before the reader types a command.
    wait_until("a cluster of members", || {
        let status = kvorum().args(["status", "--url", &urls[0]]).output().unwrap();
        status.status.success() && !String::from_utf8(status.stdout).unwrap().contains("joining")
    });
    let mut sizes = Vec::new();
    for Step { command, printed } in steps() {
        let told = run(&command);
        let expected: Vec<_> = printed.iter().map(|line| words(line)).collect();
        let found: Vec<_> = told.lines().map(words).collect();
        assert_eq!(found, expected, "$ {command}\n{told}");
        sizes.extend(disks(&told).iter().copied().reduce(f64::max));
    }
    let (empty, most) = (sizes[0], sizes.iter().copied().fold(0.0, f64::max));
    let last = *sizes.last().unwrap();
    assert!(most > empty + 30.0, "there was something to give back: {sizes:?}");
    assert!(last < empty + 5.0, "the disk is as it was: {sizes:?} MiB");
}
