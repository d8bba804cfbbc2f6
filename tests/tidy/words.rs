//! One word for one thing: words that the glossary in `CONTRIBUTING.md` has replaced stay out of
//! names, comments, messages and documents. Only what a pattern can tell is refused here; the rest
//! is the reviewer's.

use crate::{Finding, text};

/// A word, or several in a row, and what is said instead. Capitals do not matter.
const OLD: [(&str, &str); 32] = [
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

const WHY: &str =
    "two words for one thing look like two things: see the glossary in CONTRIBUTING.md";

/// Recorded pages and the changelog tell what was; everything else what is.
fn is_history(path: &str) -> bool {
    path == "CHANGELOG.md" || path.starts_with("docs/reports/")
}

/// This file says them, and so do recorded histories.
fn allowed(path: &str) -> bool {
    path == "tests/tidy/words.rs" || is_history(path)
}

/// Parts of a name with underscores count as words.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric()
}

/// Every old word in `files` (path, text).
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.to_lowercase();
            for (old, new) in OLD {
                if text::holds(&line, old, is_of_word) && !allowed(path) {
                    let what = format!("\"{old}\" is said: {new}");
                    findings.push(Finding { place: format!("{path}:{number}"), what, why: WHY });
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[(path.to_owned(), text.to_owned())]);
        findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
    }

    #[test]
    fn old_words_are_refused_wherever_they_are_said() {
        let vouch = ["a.md:2: \"vouches\" is said: is authoritative"];
        assert_eq!(found("a.md", "A node\nvouches for it.\n"), vouch);
        let lane = ["src/a.rs:1: \"lane\" is said: connection"];
        assert_eq!(found("src/a.rs", "let small_lane = Lane::small();\n"), lane);
        assert_eq!(found("src/a.rs", "\"Too much at once\"").len(), 1);
        assert_eq!(found("src/cli/a.rs", "let vouching = 1;").len(), 1);
    }

    #[test]
    fn words_that_only_contain_one_are_not_meant() {
        for text in
            ["a plane, a timestamp", "outstanding, notwithstanding", "breathing, understanding"]
        {
            assert_eq!(found("src/a.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn history_is_left_alone() {
        for path in ["CHANGELOG.md", "docs/reports/000.html"] {
            assert_eq!(found(path, "amnesiac"), [""; 0], "{path}");
        }
    }
}
