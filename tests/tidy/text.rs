//! Rules about the text of single files.

use std::io::{self, Write};

use crate::Finding;

/// Maximum length of a source file, in lines.
const MAX_LINES: usize = 800;

/// Length in lines above which each run prints a source file's name, as a reminder to split the
/// file.
const LONG_LINES: usize = 400;

/// Maximum length of a line, in characters. rustfmt does not wrap comments, strings and attributes.
const MAX_COLUMNS: usize = 100;

/// Names that say nothing about the contents.
const EMPTY_NAMES: [&str; 8] =
    ["util", "utils", "common", "helper", "helpers", "misc", "types", "stuff"];

/// Marks of unfinished work, which belongs into an issue. They are split so that this file does not
/// contain them.
const LEFTOVERS: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK"),
    concat!("db", "g!"),
    concat!("to", "do!"),
];

/// Prefixes of paths that exist on the writer's machine only.
const PRIVATE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Calls by which the engine and the protocol would depend on more than their input.
const CHANCE: [&str; 6] =
    ["Instant::now", "SystemTime", "std::thread", "thread::", "RandomState", "rand::"];

/// Number of words up to which a doc comment can only repeat the item's name.
const DOC_WORDS: usize = 2;

/// A call that is permitted although `CHANCE` covers it: the call changes the time of an event, but
/// not the event itself.
const HARMLESS: &str = "thread::yield_now()";

/// Beginnings of two attributes: one skips a test, the other leaves it to the nightly run.
const IGNORED: &str = concat!("#[ig", "nore");
const NIGHTLY: &str = concat!("#[ig", "nore = \"nightly: ");

/// The call by which a test sleeps.
const SLEEP: &str = concat!("sl", "eep(");

/// Tests that sleep, each with the reason. All other tests wait for conditions.
const SLEEPERS: [(&str, &str); 4] = [
    (
        "crates/load/tests/kit/engine/server.rs",
        "the server's delay is what the client has to measure",
    ),
    ("tests/node/process.rs", "between two looks at a condition, up to a deadline"),
    ("tests/node/a_while/slow.rs", "a slow client is one that does nothing for a while"),
    ("testing/kit/src/oracle/ledger/tests.rs", "the ledger tells events apart by their times"),
];

/// A file, and the facts that follow from its path.
#[derive(Clone, Copy)]
struct File<'a> {
    path: &'a str,
    text: &'a str,
}

/// A rule: its reason, and a function that returns its violations as (line, description).
struct Rule {
    why: &'static str,
    find: fn(File<'_>) -> Vec<(usize, String)>,
}

const RULES: [Rule; 11] = [
    Rule { why: "what does not fit a screen side by side is not reviewed", find: wide },
    Rule { why: "a file is about one thing; 150 to 400 lines hold it", find: long },
    Rule { why: "the first thing a reader needs is what this file is", find: without_header },
    Rule { why: "such a name collects whatever had no place: say what it is", find: empty_name },
    Rule { why: "nobody comes back to it: do it, file it, or leave it out", find: leftover },
    Rule {
        why: "nobody comes back to a test that never runs: `.ci/nightly` runs those that take too \
              long for every day, which say so by #[ignore = \"nightly: ...\"]",
        find: ignored_test,
    },
    Rule { why: "it does not exist where others build this", find: private_path },
    Rule {
        why: "so few words say no more than the name does: say in a sentence what it is, with its \
              unit, or nothing",
        find: short_doc,
    },
    Rule {
        why: "engine, protocol and simulation must replay from one seed: take time, threads and \
              chance from the caller",
        find: chance,
    },
    Rule {
        why: "nobody can match on a text, nor add to it but words: an enum has a variant for each \
              failure",
        find: text_error,
    },
    Rule {
        why: "a test that sleeps is slow or fails on a busy machine: wait for the condition with a \
              deadline, or add it to SLEEPERS in tests/tidy/text.rs with the reason",
        find: sleeping_test,
    },
];

/// Finds every violation of a rule in `files` (path, text).
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let file = File { path, text };
        for rule in RULES {
            findings.extend((rule.find)(file).into_iter().map(|(line, what)| {
                let place = format!("{path}:{line}");
                Finding { place, what, why: rule.why }
            }));
        }
    }
    findings
}

/// Prints the Rust files with more than `LONG_LINES` lines. Writes to stderr directly, because the
/// test harness hides the output of the print macros.
pub(crate) fn print_long_files(files: &[(String, String)]) {
    for (path, text) in files {
        let lines = text.lines().count();
        if path.ends_with(".rs") && lines > LONG_LINES {
            let line = format!("tidy: {path} has {lines} lines, more than {LONG_LINES}\n");
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}

impl<'a> File<'a> {
    fn is_rust(self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True if the whole file is a test.
    fn is_test(self) -> bool {
        let mut folders = self.path.split('/').rev();
        folders.next() == Some("tests.rs") || folders.any(|folder| folder == "tests")
    }

    /// Returns the number and text of each line, and true if the line is part of a test. By
    /// convention a file's own tests are a module at its end.
    fn lines(self) -> impl Iterator<Item = (usize, &'a str, bool)> {
        let (mut test, mut announced) = (self.is_test(), false);
        self.text.lines().zip(1..).map(move |(line, number)| {
            test |= announced && line.starts_with("mod ") && line.ends_with('{');
            announced = line == "#[cfg(test)]";
            (number, line, test)
        })
    }

    /// Returns, for each code line that contains one of `patterns` as a word, the line's number and
    /// the pattern.
    fn code_with<'p>(
        self,
        patterns: &'p [&'p str],
        in_tests: bool,
    ) -> impl Iterator<Item = (usize, &'p str)> + use<'a, 'p> {
        self.lines()
            .filter(|(_, line, _)| !line.contains(HARMLESS))
            .filter(move |(_, line, test)| {
                *test == in_tests && !line.trim_start().starts_with("//")
            })
            .filter_map(|(number, line, _)| {
                let found = patterns.iter().find(|pattern| holds_word(line, pattern))?;
                Some((number, *found))
            })
    }
}

/// Returns a file's code lines, without those of its tests, with their numbers.
pub(crate) fn code<'a>(path: &'a str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let lines = File { path, text }.lines();
    let code = lines.filter(|(_, line, test)| !test && !line.trim_start().starts_with("//"));
    code.map(|(number, line, _)| (number, line))
}

/// True if `line` contains `word`, not as a part of a longer name.
pub(crate) fn holds_word(line: &str, word: &str) -> bool {
    holds(line, word, |c| c.is_alphanumeric() || c == '_')
}

/// True if `line` contains `word` and not only as a part of a longer word. `of_word` returns true
/// for the characters of a word.
pub(crate) fn holds(line: &str, word: &str, of_word: fn(char) -> bool) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open_end = !word.ends_with(of_word);
        !before.is_some_and(of_word) && (open_end || !after.is_some_and(of_word))
    })
}

fn wide(file: File<'_>) -> Vec<(usize, String)> {
    let code =
        [".rs", ".sh", ".lua", ".ci/run", ".ci/nightly"].iter().any(|end| file.path.ends_with(end));
    let columns = |line: &str| line.chars().count();
    let wide = file.lines().filter(|(_, line, _)| code && columns(line) > MAX_COLUMNS);
    wide.map(|(number, line, _)| {
        (number, format!("{} columns, at most {MAX_COLUMNS}", columns(line)))
    })
    .collect()
}

fn long(file: File<'_>) -> Vec<(usize, String)> {
    let lines = file.text.lines().count();
    let long = file.is_rust() && lines > MAX_LINES;
    long.then(|| (lines, format!("{lines} lines, at most {MAX_LINES}"))).into_iter().collect()
}

fn without_header(file: File<'_>) -> Vec<(usize, String)> {
    // A file of tests needs no header: the names of its tests describe it.
    let wants = file.is_rust() && !file.path.ends_with("/tests.rs");
    let missing = wants && !file.text.starts_with("//!");
    missing.then(|| (1, "does not begin with a //! header".to_owned())).into_iter().collect()
}

fn empty_name(file: File<'_>) -> Vec<(usize, String)> {
    let stem = |part: &str| part.split('.').next().unwrap_or_default().to_owned();
    let path = file.path.split('/').map(stem).map(|name| (1, name));
    let module = file.lines().filter_map(|(number, line, _)| {
        let (before, name) = line.trim_start().split_once("mod ")?;
        if !before.is_empty() && !before.starts_with("pub") {
            return None;
        }
        let name = name.split([' ', ';']).next()?;
        Some((number, name.to_owned()))
    });
    let names = path.chain(module.filter(|_| file.is_rust()));
    names
        .filter(|(_, name)| EMPTY_NAMES.contains(&name.as_str()))
        .map(|(number, name)| (number, format!("something is named {name}")))
        .collect()
}

fn leftover(file: File<'_>) -> Vec<(usize, String)> {
    file.lines()
        .filter_map(|(number, line, _)| {
            let word = LEFTOVERS.iter().find(|word| holds_word(line, word))?;
            Some((number, format!("{word} was left here")))
        })
        .collect()
}

fn ignored_test(file: File<'_>) -> Vec<(usize, String)> {
    let ignored = |line: &str| line.starts_with(IGNORED) && !line.starts_with(NIGHTLY);
    let found = file.lines().filter(|(_, line, _)| file.is_rust() && ignored(line.trim_start()));
    found.map(|(number, ..)| (number, "a test is ignored".to_owned())).collect()
}

fn private_path(file: File<'_>) -> Vec<(usize, String)> {
    let begins = |line: &str, path: &str| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || "._-*}".contains(c))
        })
    };
    file.lines()
        .filter_map(|(number, line, _)| {
            let path = PRIVATE_PATHS.iter().find(|path| begins(line, path))?;
            Some((number, format!("a path of somebody's machine: {path}...")))
        })
        .collect()
}

fn short_doc(file: File<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = file.lines().filter(|_| file.is_rust()).peekable();
    while let Some((number, line, test)) = lines.next() {
        let Some(first) = doc(line) else { continue };
        let mut words = first.split_whitespace().count();
        while let Some(more) = lines.peek().and_then(|(_, line, _)| doc(line)) {
            words += more.split_whitespace().count();
            lines.next();
        }
        if words <= DOC_WORDS && !test {
            found.push((number, format!("a doc comment of {words} word(s): {}", line.trim())));
        }
    }
    found
}

/// Returns the text of a line of a doc comment, and `None` for any other line.
fn doc(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("///").filter(|rest| !rest.starts_with('/'))
}

fn chance(file: File<'_>) -> Vec<(usize, String)> {
    let path = file.path;
    let pure = path.starts_with("crates/protocol/src/")
        || path.starts_with("crates/server/src/")
        || path.starts_with("crates/record/src/")
        || path.starts_with("crates/sim/src/") && path != "crates/sim/src/main.rs"
        || path.starts_with("crates/lsm/src/")
            && !path.starts_with("crates/lsm/src/db/")
            && path != "crates/lsm/src/disk/real.rs";
    let found = file.code_with(&CHANCE, false).filter(|_| pure);
    found.map(|(number, pattern)| (number, format!("{pattern} is used"))).collect()
}

/// Finds functions that fail with a string, in the server, in its crates, and in the crates that
/// measure it.
fn text_error(file: File<'_>) -> Vec<(usize, String)> {
    let parts = ["load", "lsm", "profile", "protocol", "record", "server"]
        .map(|name| format!("crates/{name}/src/"));
    let is_of = file.path.starts_with("src/") || parts.iter().any(|p| file.path.starts_with(p));
    let fails = |line: &str| {
        let ends = [", String> {", ", String>> {"].iter().any(|end| line.contains(end));
        ends && ["-> Result<", "-> Option<Result<"].iter().any(|begins| line.contains(begins))
    };
    let found = file.lines().filter(|(_, line, test)| is_of && !test && fails(line));
    found.map(|(number, ..)| (number, "a function fails with a String".to_owned())).collect()
}

fn sleeping_test(file: File<'_>) -> Vec<(usize, String)> {
    let allowed = !file.is_rust() || SLEEPERS.iter().any(|(path, _)| *path == file.path);
    let found = file.code_with(&[SLEEP], true).filter(|_| !allowed);
    found.map(|(number, _)| (number, "a test sleeps".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the violations in `text`, each as "line: description".
    fn check_text(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[(path.to_owned(), text.to_owned())]);
        let place = |place: &str| place.strip_prefix(path).unwrap()[1..].to_owned();
        findings.into_iter().map(|f| format!("{}: {}", place(&f.place), f.what)).collect()
    }

    const CLEAN: [&str; 0] = [];

    #[test]
    fn length() {
        let wide = format!("//! Ä\n{}\n", "ä".repeat(101));
        assert_eq!(check_text("src/a.rs", &wide), ["2: 101 columns, at most 100"]);
        assert_eq!(check_text("a.sh", &wide), ["2: 101 columns, at most 100"]);
        assert_eq!(check_text("a.md", &wide), CLEAN, "tables and links need their line");
        assert_eq!(check_text("src/a.rs", &format!("//! Ä\n{}\n", "ä".repeat(100))), CLEAN);
        let long = format!("//! Long.\n{}", "\n".repeat(800));
        assert_eq!(check_text("src/a.rs", &long), ["801: 801 lines, at most 800"]);
        assert_eq!(check_text("src/a.rs", &long[..long.len() - 1]), CLEAN);
    }

    #[test]
    fn missing_headers_and_empty_names_are_found() {
        let missing = "1: does not begin with a //! header";
        assert_eq!(check_text("src/a.rs", "use std::fs;\n"), [missing]);
        assert_eq!(check_text("src/a.rs", ""), [missing]);
        assert_eq!(check_text("src/a/tests.rs", "use std::fs;\n"), CLEAN);
        assert_eq!(check_text("src/util.rs", "//! A.\n"), ["1: something is named util"]);
        assert_eq!(check_text("src/common/a.rs", "//! A.\n"), ["1: something is named common"]);
        assert_eq!(check_text("bench/helpers.sh", ""), ["1: something is named helpers"]);
        assert_eq!(
            check_text("src/a.rs", "//! A.\npub mod misc;\n"),
            ["2: something is named misc"]
        );
        assert_eq!(
            check_text("src/a.rs", "//! A.\nmod types {\n"),
            ["2: something is named types"]
        );
        assert_eq!(check_text("src/a.rs", "//! Common utilities.\nmod common_prefix;\n"), CLEAN);
    }

    #[test]
    fn leftovers_and_private_paths_are_found() {
        for word in LEFTOVERS {
            let said = [format!("2: {word} was left here")];
            assert_eq!(check_text("src/a.rs", &format!("//! A.\n// {word}: later\n")), said);
            assert_eq!(check_text("notes/a.md", &format!("# A\n{word} later\n")), said);
        }
        let part = format!("//! A.\nconst {}_LIST: u8 = 0;\n", LEFTOVERS[0]);
        assert_eq!(check_text("src/a.rs", &part), CLEAN, "part of a longer word");
        for path in PRIVATE_PATHS {
            let said = [format!("2: a path of somebody's machine: {path}...")];
            assert_eq!(check_text("notes/a.md", &format!("# A\nsee {path}x\n")), said);
            assert_eq!(check_text("notes/a.md", &format!("# A\nsee elsewhere{path}x\n")), CLEAN);
        }
    }

    #[test]
    fn tests_that_are_ignored_are_nightly() {
        let ignored = format!("//! A.\n#[test]\n{IGNORED}]\nfn a() {{}}\n");
        assert_eq!(check_text("tests/node/a.rs", &ignored), ["3: a test is ignored"]);
        let without_reason = ignored.replace(']', " = \"it is slow\"]");
        let said = check_text("crates/a/src/tests.rs", &without_reason);
        assert_eq!(said, ["3: a test is ignored"]);
        let nightly = format!("//! A.\n#[test]\n    {NIGHTLY}a long seed\"]\nfn a() {{}}\n");
        assert_eq!(check_text("tests/node/a.rs", &nightly), CLEAN);
    }

    #[test]
    fn docs_are_longer_than_two_words() {
        let said = ["2: a doc comment of 1 word(s): /// Where."];
        assert_eq!(check_text("src/a.rs", "//! A.\n/// Where.\nconst A: u8 = 0;\n"), said);
        let said = ["3: a doc comment of 2 word(s): /// As what."];
        assert_eq!(
            check_text("crates/b/src/a.rs", "//! A.\nenum A {\n    /// As what.\n    B,\n}\n"),
            said
        );
        assert_eq!(check_text("src/a.rs", "//! A.\n/// Bytes of one.\nconst A: u8 = 0;\n"), CLEAN);
        let several = "//! A.\n/// Where.\n///\n/// On disk.\nconst A: u8 = 0;\n";
        assert_eq!(check_text("src/a.rs", several), CLEAN, "all lines of it count");
        assert_eq!(check_text("src/a.rs", "//! A.\n//// Not one.\n// Nor this.\n"), CLEAN);
        assert_eq!(check_text("notes/a.md", "/// Where.\n"), CLEAN);
        let test = "//! A.\n#[cfg(test)]\nmod tests {\n    /// Where.\n    const A: u8 = 0;\n}\n";
        assert_eq!(check_text("src/a.rs", test), CLEAN);
        assert_eq!(check_text("tests/node/a.rs", "//! A.\n/// Where.\nconst A: u8 = 0;\n"), CLEAN);
    }

    #[test]
    fn the_engine_and_the_protocol_take_time_threads_and_chance_from_outside() {
        let clock = "//! A.\nlet now = Instant::now();\n";
        let said = ["2: Instant::now is used"];
        assert_eq!(check_text("crates/protocol/src/node.rs", clock), said);
        assert_eq!(check_text("crates/lsm/src/engine/read.rs", clock), said);
        assert_eq!(check_text("crates/server/src/link/mod.rs", clock), said);
        assert_eq!(check_text("crates/sim/src/world/turn.rs", clock), said);
        assert_eq!(check_text("crates/sim/src/main.rs", clock), CLEAN);
        assert_eq!(check_text("crates/lsm/src/disk/mem/state.rs", clock), said);
        assert_eq!(check_text("crates/lsm/src/db/threads.rs", clock), CLEAN);
        assert_eq!(check_text("crates/lsm/src/disk/real.rs", clock), CLEAN);
        assert_eq!(check_text("src/clock.rs", clock), CLEAN);
        let harmless = format!("//! A.\nstd::{HARMLESS};\n");
        assert_eq!(check_text("crates/lsm/src/engine/read.rs", &harmless), CLEAN);
        let comment = "//! A.\n/// Does not ask Instant::now\n";
        assert_eq!(check_text("crates/protocol/src/node.rs", comment), CLEAN);
        let test = "//! A.\n#[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
        assert_eq!(check_text("crates/protocol/src/node.rs", test), CLEAN);
        let before = "//! A.\nuse std::thread;\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(check_text("crates/protocol/src/node.rs", before), ["2: std::thread is used"]);
        let elsewhere = "//! A.\n#[cfg(test)]\nmod tests;\nuse std::thread;\n";
        assert_eq!(check_text("crates/lsm/src/merge.rs", elsewhere), ["4: std::thread is used"]);
    }

    #[test]
    fn functions_that_fail_with_a_string_are_found() {
        let fails = "//! A.\nfn read() -> Result<Vec<u8>, String> {\n";
        for path in ["src/a.rs", "crates/server/src/link/mod.rs", "crates/load/src/a.rs"] {
            assert_eq!(check_text(path, fails), ["2: a function fails with a String"]);
        }
        let ends = "//! A.\nfn end() -> Option<Result<u64, String>> {\n";
        assert_eq!(check_text("src/a.rs", ends), ["2: a function fails with a String"]);
        assert_eq!(check_text("tests/node/a.rs", fails), CLEAN);
        assert_eq!(
            check_text("src/a.rs", "//! A.\nfn a() -> Result<Map<u8, String>, E> {\n"),
            CLEAN
        );
    }

    #[test]
    fn tests_do_not_sleep() {
        let sleeps = format!("//! A.\nfn wait() {{\n    thread::{SLEEP}TICK);\n}}\n");
        let sleeps = sleeps.as_str();
        assert_eq!(check_text("tests/node/contract.rs", sleeps), ["3: a test sleeps"]);
        assert_eq!(check_text("crates/lsm/src/db/tests.rs", sleeps), ["3: a test sleeps"]);
        assert_eq!(check_text("src/accept.rs", sleeps), CLEAN, "a program may");
        assert_eq!(check_text(SLEEPERS[0].0, sleeps), CLEAN);
        let own = format!("//! A.\n#[cfg(test)]\nmod tests {{\n    thread::{SLEEP}TICK);\n}}\n");
        assert_eq!(check_text("src/accept.rs", &own), ["4: a test sleeps"]);
    }
}
