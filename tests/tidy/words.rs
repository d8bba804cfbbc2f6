//! Consistent vocabulary: finds words that the glossary in `docs/glossary.md` has replaced, in
//! names, comments, messages and documents. The check knows only the words listed here; a reviewer
//! must find other inconsistencies.

use crate::{Finding, text};

/// Old words and phrases, each with its replacement. Case does not matter.
const OLD: [(&str, &str); 33] = [
    ("amnesia", "lost disk"),
    ("amnesiac", "rebuilding"),
    ("vouch", "be authoritative"),
    ("vouches", "is authoritative"),
    ("vouched", "was authoritative"),
    ("vouching", "authoritative"),
    ("unsure", "not authoritative"),
    ("standing", "membership state"),
    ("amnesiacs", "rebuilding"),
    ("standings", "membership states"),
    ("restamp", "reissue"),
    ("restamped", "reissued"),
    ("unstamped", "without a version"),
    ("denied", "failed"),
    ("stamp", "version, or timestamp"),
    ("stamps", "versions, or timestamps"),
    ("stamped", "versioned, or written"),
    ("stamping", "issuing versions"),
    ("lane", "connection"),
    ("lanes", "connections"),
    ("sieve", "partition filter"),
    ("caretaker", "node task"),
    ("breath", "yield budget"),
    ("graveyard", "obsolete tables"),
    ("bury", "delete obsolete tables"),
    ("of the future", "future record, or ahead of the clock"),
    ("tells itself", "self-reported"),
    ("too much at once", "overloaded"),
    ("is no size", "is not a valid size"),
    ("goes on by itself", "resumes automatically"),
    ("takes no writes", "accepts no writes"),
    ("so many replicas can't", "ack must not exceed from"),
    ("it is to hold", "its replicas"),
];

const WHY: &str = "two words for one thing look like two things: see docs/glossary.md";

/// A phrase that messages must not contain.
const IS_NO: &str = " is no ";

/// Exceptions: the phrase is permitted after the first of these words, and before each of the
/// others.
const PERMITTED_BEFORE: &str = "there";
const PERMITTED_AFTER: [&str; 4] = ["longer", "more", "slower", "news"];

const WHY_IS_NO: &str = "messages are read at night: \"is not a valid X\" or \"is not an X\" is \
                         plain English";

/// Returns true for recorded pages and the changelog: they describe the past and may contain old
/// words.
fn is_history(path: &str) -> bool {
    path == "CHANGELOG.md" || path.starts_with("docs/results/reports/")
}

/// True if a file may contain old words: this file, which lists them, and recorded histories.
fn is_allowed(path: &str) -> bool {
    path == "tests/tidy/words.rs" || is_history(path)
}

/// True for the characters of a word. An underscore ends a word, so the parts of a name are words.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric()
}

/// Returns a description of each old word in a line or a path, with the replacement.
fn old_words(line: &str) -> impl Iterator<Item = String> {
    let line = line.to_lowercase();
    OLD.into_iter()
        .filter(move |(old, _)| text::holds(&line, old, is_of_word))
        .map(|(old, new)| format!("\"{old}\" is said: {new}"))
}

/// True if users read the messages of a file. Only developers read the messages of tests.
fn has_messages(path: &str) -> bool {
    let is_code = path.ends_with(".rs") || path.ends_with(".js");
    let is_of_program = ["src/", "crates/", "testing/"].iter().any(|room| path.starts_with(room));
    is_code && is_of_program && !path.contains("tests")
}

/// True if a string in this line says that something "is no" something. A line without quotes is
/// part of a string if it ends in a backslash.
fn says_is_no(line: &str) -> bool {
    let code = line.split(" //").next().unwrap_or_default().trim();
    let is_comment = ["//", "/*", "*"].iter().any(|start| code.starts_with(start));
    let is_string = code.contains(['"', '`']) || code.ends_with('\\');
    let is_bug = ["unreachable!", "panic!"].iter().any(|end| code.contains(end));
    if is_comment || !is_string || is_bug {
        return false;
    }
    code.match_indices(IS_NO).any(|(at, _)| {
        let after = &code[at + IS_NO.len()..];
        let next = after.split(|c| !is_of_word(c)).next().unwrap_or_default();
        !code[..at].to_lowercase().ends_with(PERMITTED_BEFORE) && !PERMITTED_AFTER.contains(&next)
    })
}

/// Finds every old word in the paths and texts of `files` (path, text), and every message with the
/// phrase "is no".
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        if is_allowed(path) {
            continue;
        }
        let in_path = old_words(path);
        findings.extend(in_path.map(|what| Finding { place: path.clone(), what, why: WHY }));
        for (number, line) in (1..).zip(text.lines()) {
            let place = format!("{path}:{number}");
            let in_line = old_words(line);
            findings.extend(in_line.map(|what| Finding { place: place.clone(), what, why: WHY }));
            if has_messages(path) && says_is_no(line) {
                let what = "\"is no …\" is said: is not a valid …".to_owned();
                findings.push(Finding { place, what, why: WHY_IS_NO });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[(path.to_owned(), text.to_owned())]);
        findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
    }

    #[test]
    fn old_words_in_documents_and_code_are_found() {
        let vouch = ["a.md:2: \"vouches\" is said: is authoritative"];
        assert_eq!(check_text("a.md", "A node\nvouches for it.\n"), vouch);
        let lane = ["src/a.rs:1: \"lane\" is said: connection"];
        assert_eq!(check_text("src/a.rs", "let small_lane = Lane::small();\n"), lane);
        assert_eq!(check_text("src/a.rs", "\"Too much at once\"").len(), 1);
        assert_eq!(check_text("src/cli/a.rs", "let vouching = 1;").len(), 1);
    }

    #[test]
    fn old_words_in_paths_are_found() {
        let path = "planted/protocol/03-stamp-not-renewed.patch";
        let said = [format!("{path}: \"stamp\" is said: version, or timestamp")];
        assert_eq!(check_text(path, "What it does.\n"), said);
        assert_eq!(check_text("src/sieve.rs", "").len(), 1);
        assert_eq!(check_text("src/timestamp.rs", ""), [""; 0]);
    }

    #[test]
    fn messages_with_is_no_are_found() {
        let said = ["src/a.rs:2: \"is no …\" is said: is not a valid …"];
        assert_eq!(
            check_text("src/a.rs", "// it is no message\nf(\"{x:?} is no rate: write\")"),
            said
        );
        assert_eq!(check_text("src/a.rs", "    {x} is no rate: write it as \\\n").len(), 1);
        assert_eq!(check_text("src/a.js", "throw new Error(`${x} is no member`);").len(), 1);
        for text in [
            "/// A value that is no number.",
            "f(\"ok\"); // what is no number",
            "let is_no = x; // of \"x\"",
            "f(\"there is no value\")",
            "f(\"{x} is no longer a member, and {y} is no more than 3\")",
            "unreachable!(\"{id:?} is no read\")",
        ] {
            assert_eq!(check_text("src/a.rs", text), [""; 0], "{text}");
        }
        assert_eq!(
            check_text("crates/a/src/tests.rs", "f(\"it is no news\", \"is no x\")"),
            [""; 0]
        );
    }

    #[test]
    fn longer_words_that_contain_an_old_word_pass() {
        for text in
            ["a plane, a timestamp", "outstanding, notwithstanding", "breathing, understanding"]
        {
            assert_eq!(check_text("src/a.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn old_words_in_the_changelog_and_recorded_pages_pass() {
        for path in ["CHANGELOG.md", "docs/results/reports/000.html"] {
            assert_eq!(check_text(path, "amnesiac"), [""; 0], "{path}");
        }
    }
}
