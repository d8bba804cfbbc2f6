//! Scripted tests of the protocol, message by message. A script has the events of one node's
//! coordinator, and the expected effects. The format follows etcd-io/raft (`testdata/*.txt`).
//!
//! ```text
//! # A comment.
//! > nodes 3                      a new coordinator, on n0 of three nodes
//! > put c1 a=x 2/3               an event
//! store: w0 write a=x@1n0*3      its effects, one a line
//! n1: w0 client write …          (a message to n1)
//! ```
//!
//! The replicas of a key are n0, n1, n2, … in this order, unless the command `key` sets others. A
//! record is `value@version`. A version is the milliseconds since the start of the script, and the
//! node: `x@5n1`. After the version, `*2` means two copies, and `!` a damaged record. `w0` is a
//! slot and the id of its messages; `w0.1` is the next slot at the same index; `s` is the slot used
//! last.
//!
//! To rewrite all scripts with their current effects, for a review of the difference:
//!
//!     UPDATE_SCRIPTS=1 cargo test -p protocol --test scripts

mod effects;
mod moves;
mod node;
mod random;
mod random_node;
mod random_words;
mod range;
mod records;
mod rounds;
mod traces;
mod views;
mod words;
mod world;

use std::fmt::Write as _;
use std::path::Path;

use world::World;

/// Returns the script with the current effects of its commands. An error means that the script
/// itself is wrong.
fn rewrite(script: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut world: Option<World> = None;
    for line in script.lines() {
        let Some(command) = line.strip_prefix("> ") else {
            if line.is_empty() || line.starts_with('#') {
                let _ = writeln!(text, "{line}");
            }
            continue;
        };
        let _ = writeln!(text, "{line}");
        let done = if command.starts_with("nodes ") {
            World::new(command).map(|new| {
                world = Some(new);
                Vec::new()
            })
        } else {
            let world = world.as_mut().ok_or("a script begins with `nodes`".to_owned());
            world.and_then(|world| world.command(command))
        };
        for line in done.map_err(|error| format!("{line}: {error}"))? {
            let _ = writeln!(text, "{line}");
        }
    }
    Ok(text)
}

/// Returns the first difference of two texts, with some lines of context.
fn difference(expected: &str, now: &str) -> String {
    let (expected, now): (Vec<_>, Vec<_>) = (expected.lines().collect(), now.lines().collect());
    let same = expected.iter().zip(&now).take_while(|(a, b)| a == b).count();
    let excerpt = |lines: &[&str], sign: char| {
        let lines = lines.iter().skip(same).take(6).map(|line| format!("{sign} {line}\n"));
        lines.collect::<String>()
    };
    let before: String =
        now[same.saturating_sub(6)..same].iter().map(|line| format!("  {line}\n")).collect();
    format!("line {}:\n{before}{}{}", same + 1, excerpt(&expected, '-'), excerpt(&now, '+'))
}

#[test]
fn effects_match_the_scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut scripts: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    let mut wrong = String::new();
    for path in scripts {
        let script = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().display();
        let now = rewrite(&script).unwrap_or_else(|error| panic!("{name}: {error}"));
        if now == script {
            continue;
        }
        if std::env::var_os("UPDATE_SCRIPTS").is_some() {
            std::fs::write(&path, now).unwrap();
        } else {
            let _ = writeln!(wrong, "{name}, {}", difference(&script, &now));
        }
    }
    assert!(wrong.is_empty(), "{wrong}UPDATE_SCRIPTS=1 rewrites them; read the difference then");
}

/// The test detects a changed line, a missing line, an additional line, and an invalid command.
#[test]
fn a_changed_script_fails() {
    let script = "> nodes 1\n> get c1 a\nstore: r0 read a\n> store s absent\nc1: absent\n";
    assert_eq!(rewrite(script).as_deref(), Ok(script));
    let last = "c1: absent\n";
    for (from, to) in [(last, ""), ("r0", "r1"), (last, "c1: absent\nn1: x\n")] {
        let other = script.replace(from, to);
        assert_ne!(rewrite(&other), Ok(other));
    }
    let error = rewrite("> nodes 1\n> got c1 a\n");
    assert_eq!(error, Err("> got c1 a: \"got\" is no command".to_owned()));
}
