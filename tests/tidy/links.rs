//! Links between documents. A relative link in a Markdown file must lead to a file of the
//! repository, and its anchor to a heading of that file. A path in `docs/` must exist if it occurs
//! in any file, and the path of a source file if it occurs in a Markdown file.

use crate::Finding;

const WHY: &str =
    "a reader who follows it finds nothing: write where the page or the section is now";

/// Prefix of the paths of documents.
const DOCS: &str = concat!("do", "cs/");

/// Suffixes of the documents' names.
const ENDINGS: [&str; 2] = [".md", ".yaml"];

/// Folders of source files. Documents name source files by their path from the root.
const SOURCES: [&str; 3] = ["crates/", "src/", "tests/"];

/// Finds links and paths in `files` (path, text) that lead nowhere; `exists` returns true for paths
/// of the repository.
pub(crate) fn check(files: &[(String, String)], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let mut find = |line: usize, what: String| {
            findings.push(Finding { place: format!("{path}:{line}"), what, why: WHY });
        };
        if path.ends_with(".md") {
            for (line, target) in links(text) {
                if let Some(what) = explain_dead_link(files, &exists, path, target) {
                    find(line, what);
                }
            }
        }
        let mut named = named_paths(text, DOCS, &ENDINGS);
        if path.ends_with(".md") {
            named.extend(SOURCES.iter().flat_map(|folder| named_paths(text, folder, &[".rs"])));
        }
        for (line, named) in named {
            if !exists(named) {
                find(line, format!("{named} does not exist"));
            }
        }
    }
    findings
}

/// Returns the reason why a link in the file `from` leads nowhere; `None` if its target exists or
/// is on another site.
fn explain_dead_link(
    files: &[(String, String)],
    exists: impl Fn(&str) -> bool,
    from: &str,
    target: &str,
) -> Option<String> {
    if target.contains(':') {
        return None; // another site
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() { from.to_owned() } else { resolve(from, path)? };
    if !exists(&to) {
        return Some(format!("a link leads to {to}, which does not exist"));
    }
    let text = files.iter().find(|(path, _)| *path == to).map(|(_, text)| text.as_str());
    let has = |text: &str| anchors(text).iter().any(|known| known == anchor);
    let found = anchor.is_empty() || !to.ends_with(".md") || text.is_some_and(has);
    (!found).then(|| format!("a link leads to #{anchor}, a heading that {to} does not have"))
}

/// Converts `path`, which is relative to the folder of the file `from`, to a path from the root;
/// `None` if the path leaves the repository.
fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the lines of a Markdown text outside of its code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((number, line))
    })
}

/// Returns the targets of all links and pictures, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for rest in line.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(target, _)| (number, target)));
        }
    }
    found
}

/// Returns the anchors of a text's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let same = |known: &&String| {
            known.strip_prefix(&anchor).is_some_and(|rest| {
                let number = rest.strip_prefix('-');
                rest.is_empty() || number.is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()))
            })
        };
        match found.iter().filter(same).count() {
            0 => found.push(anchor),
            before => found.push(format!("{anchor}-{before}")),
        }
    }
    found
}

/// Returns the paths that a text names, with their lines: those in `folder` with one of `endings`.
fn named_paths<'a>(text: &'a str, folder: &str, endings: &[&str]) -> Vec<(usize, &'a str)> {
    let of_path = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for (at, _) in line.match_indices(folder) {
            // Skips a part of a longer path, for example of a URL.
            if line[..at].ends_with(of_path) {
                continue;
            }
            let rest = &line[at..];
            let end = rest.find(|c| !of_path(c)).unwrap_or(rest.len());
            let path = rest[..end].trim_end_matches('.');
            if endings.iter().any(|ending| path.ends_with(ending)) {
                found.push((number, path));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings in the file `a/b.md` with this text, beside `a/c.md` and `d.svg`.
    fn check_text(text: &str) -> Vec<String> {
        let other = "# One\n## `Two`, or 2: *so*\n## Two\n## Two\n```sh\n# no heading\n```\n";
        let files = [("a/b.md", text), ("a/c.md", other)];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let known = ["a/b.md", "a/c.md", "d.svg", "a"];
        let findings = check(&files, |path| known.contains(&path));
        findings.into_iter().map(|f| format!("{} {}", f.place, f.what)).collect()
    }

    const CLEAN: [&str; 0] = [];

    #[test]
    fn a_link_to_a_missing_file_is_found() {
        assert_eq!(
            check_text("[c](c.md), ![d](../d.svg) and [a](../a/)\n[x](https://x/y.md)"),
            CLEAN
        );
        let said = [
            "a/b.md:2 a link leads to a/d.md, which does not exist",
            "a/b.md:2 a link leads to c.md, which does not exist",
        ];
        assert_eq!(check_text("# A\n[d](d.md) and [`c`](../c.md)"), said);
        assert_eq!(check_text("```\n[d](d.md)\n```\n"), CLEAN, "code is no link");
    }

    #[test]
    fn a_link_to_a_missing_heading_is_found() {
        let text = "# Here it is\n[1](#here-it-is) [2](c.md#two-or-2-so) [3](c.md#two-1)";
        assert_eq!(check_text(text), CLEAN);
        let said = ["a/b.md:1 a link leads to #three, a heading that a/c.md does not have"];
        assert_eq!(check_text("[3](c.md#three)"), said);
        let said = ["a/b.md:1 a link leads to #no-heading, a heading that a/c.md does not have"];
        assert_eq!(check_text("[a comment of a script](c.md#no-heading)"), said);
    }

    #[test]
    fn a_path_to_a_missing_file_is_found() {
        let gone = format!("see `{DOCS}gone.md`, or https://x/{DOCS}other.md.\n");
        let files = [("src/a.rs".to_owned(), gone)];
        let findings = check(&files, |_| false);
        let said: Vec<_> = findings.iter().map(|f| format!("{} {}", f.place, f.what)).collect();
        assert_eq!(said, [format!("src/a.rs:1 {DOCS}gone.md does not exist")]);
        assert_eq!(check(&files, |path| path.ends_with("gone.md")), []);
        let files = [("a.md".to_owned(), "`src/gone.rs` of x/src/other.rs".to_owned())];
        let findings = check(&files, |_| false);
        let said: Vec<_> = findings.iter().map(|f| format!("{} {}", f.place, f.what)).collect();
        assert_eq!(said, ["a.md:1 src/gone.rs does not exist"]);
    }
}
