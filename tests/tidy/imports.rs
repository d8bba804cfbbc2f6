//! Imports between files, by `crate::` and `super::` paths in code outside of tests.
//!
//! ```text
//!  src/cli/mod.rs     use crate::node::{Node, limits::Limits}; ─▶ src/node/mod.rs, limits.rs
//!  src/node/x.rs      use super::limits::Limits;               ─▶ src/node/limits.rs
//! ```
//!
//! An import of a re-exported item leads to the child that defines the item. A module that names
//! its own children does not import them: they are its parts.

use std::collections::{BTreeMap, BTreeSet};

use crate::text::code;

/// An import: its line, and the parts of its path after `crate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
}

/// Returns the source folder of a file's crate (`src/` at the end), and the file's module path.
/// Returns `None` for a path that is not a Rust file below `src/`.
pub(crate) fn module_of(path: &str) -> Option<(&str, Vec<&str>)> {
    let at = if path.starts_with("src/") { 0 } else { path.find("/src/")? + 1 };
    let (root, inside) = path.split_at(at + "src/".len());
    let inside = inside.strip_suffix(".rs")?;
    let mut parts: Vec<&str> = inside.split('/').collect();
    if matches!(parts.last(), Some(&"mod" | &"lib" | &"main")) {
        parts.pop();
    }
    Some((root, parts))
}

/// Returns the imports of a file from its own crate.
pub(crate) fn of(path: &str, text: &str) -> Vec<Import> {
    let Some((_, own)) = module_of(path) else { return Vec::new() };
    let mut imports = Vec::new();
    let code: Vec<(usize, &str)> = code(path, text).collect();
    let mut at = 0;
    while let Some((line, first)) = code.get(at) {
        at += 1;
        let mut statement = (*first).to_owned();
        if is_use(first) {
            while !statement.contains(';')
                && let Some((_, more)) = code.get(at)
            {
                statement.push_str(more);
                at += 1;
            }
        }
        for start in ["crate::", "super::"] {
            for place in starts(&statement, start) {
                let mut paths = Vec::new();
                expand(&statement[place..], &mut Vec::new(), &mut paths);
                imports.extend(
                    paths.iter().filter_map(|path| {
                        Some(Import { line: *line, path: absolute(&own, path)? })
                    }),
                );
            }
        }
    }
    imports
}

fn is_use(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ")
}

/// Returns the positions of `start` that are the beginning of a path, not a later part of a path.
fn starts<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(start).map(|(at, _)| at).filter(|at| {
        let before = text[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// Adds all paths of `a::b::{c, d::e}`, at the beginning of `text`, to `paths`. Returns the rest of
/// `text`.
fn expand<'a>(text: &'a str, parents: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut inner) = text.strip_prefix('{') {
        loop {
            inner = inner.trim_start();
            if let Some(rest) = inner.strip_prefix('}') {
                return rest;
            }
            let rest = expand(inner, &mut parents.clone(), paths).trim_start();
            let next = rest.find([',', '}']).unwrap_or(rest.len());
            let rest = rest[next..].strip_prefix(',').unwrap_or(&rest[next..]);
            if rest.is_empty() {
                return rest;
            }
            inner = rest;
        }
    }
    let length = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(length);
    if !word.is_empty() && word != "self" {
        parents.push(word.to_owned());
    }
    match rest.strip_prefix("::") {
        Some(rest) if !word.is_empty() => expand(rest, parents, paths),
        _ => {
            paths.push(parents.clone());
            rest
        }
    }
}

/// Resolves `crate` or `super` at the start of a path, as seen from the module `own`. Returns
/// `None` if the path leaves the crate.
fn absolute(own: &[&str], path: &[String]) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    if first == "crate" {
        return Some(rest.to_vec());
    }
    let supers = path.iter().take_while(|part| *part == "super").count();
    let base = own.len().checked_sub(supers)?;
    let base = own[..base].iter().map(|part| (*part).to_owned());
    Some(base.chain(path[supers..].iter().cloned()).collect())
}

/// Returns the names that a file re-exports from its children, each with its whole path.
pub(crate) fn re_exported(path: &str, text: &str) -> BTreeMap<String, Vec<String>> {
    let Some((_, own)) = module_of(path) else { return BTreeMap::new() };
    let code: String = code(path, text).flat_map(|(_, line)| [line, "\n"]).collect();
    let statements = || code.split(';').map(str::trim_start);
    let child = |statement: &str| {
        let mut words = statement.split_whitespace().rev();
        let name = words.next()?.to_owned();
        (words.next() == Some("mod")).then_some(name)
    };
    let children: BTreeSet<String> = statements().filter_map(child).collect();
    let mut names = BTreeMap::new();
    for statement in statements() {
        let Some((before, what)) = statement.rsplit_once("use ") else { continue };
        if !before.trim_start().rsplit('\n').next().unwrap_or("").starts_with("pub") {
            continue;
        }
        let mut paths = Vec::new();
        expand(what, &mut Vec::new(), &mut paths);
        let of_child = |path: &Vec<String>| path.first().is_some_and(|one| children.contains(one));
        for path in paths.into_iter().filter(of_child) {
            let Some(name) = path.last().cloned() else { continue };
            let parents = own.iter().map(|part| (*part).to_owned());
            names.insert(name, parents.chain(path).collect());
        }
    }
    names
}

/// Returns the file of the module that is the longest prefix of a path, and the prefix's length in
/// parts.
pub(crate) fn file_of(
    root: &str,
    path: &[String],
    files: &BTreeSet<&str>,
) -> Option<(String, usize)> {
    for length in (1..=path.len()).rev() {
        let module = path[..length].join("/");
        for file in [format!("{root}{module}.rs"), format!("{root}{module}/mod.rs")] {
            if files.contains(file.as_str()) {
                return Some((file, length));
            }
        }
    }
    let tops = ["lib.rs", "main.rs"].map(|top| format!("{root}{top}"));
    tops.into_iter().find(|top| files.contains(top.as_str())).map(|top| (top, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(path: &str, text: &str) -> Vec<String> {
        of(path, text).iter().map(|i| format!("{}: {}", i.line, i.path.join("::"))).collect()
    }

    #[test]
    fn imports_are_found_in_groups_over_lines_and_in_the_middle() {
        let text = "//! A.\nuse crate::{\n    a,\n    b::{self, c as d, e::F},\n};\n\
                    pub(crate) use super::g::*;\nfn f() { crate::h::i(super::super::j) }\n\
                    use other::crate_::x;\n// use crate::k;\n";
        let found = imports("src/x/y.rs", text);
        let expected = ["2: a", "2: b", "2: b::c", "2: b::e::F", "6: x::g", "7: h::i", "7: j"];
        assert_eq!(found, expected);
        assert_eq!(imports("src/x/mod.rs", "use super::z;\n"), ["1: z"]);
        assert_eq!(imports("crates/a/src/lib.rs", "use crate::b;\n"), ["1: b"]);
        assert!(imports("tests/node/main.rs", "use crate::b;\n").is_empty());
    }

    #[test]
    fn imports_of_tests_are_ignored() {
        let text = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
        assert_eq!(imports("src/x.rs", text), ["1: a"]);
        assert!(imports("src/x/tests/y.rs", "use crate::a;\n").is_empty());
    }

    #[test]
    fn a_re_export_has_the_path_in_the_child() {
        let text = "//! A.\nmod a;\npub(crate) mod b;\nuse a::Own;\npub(super) use a::One;\n\
                    pub use b::{\n    Two,\n    c::Three,\n};\npub use other::Four;\nfn f() {}\n";
        let found: Vec<String> = re_exported("src/x/mod.rs", text)
            .iter()
            .map(|(name, path)| format!("{name}: {}", path.join("::")))
            .collect();
        assert_eq!(found, ["One: x::a::One", "Three: x::b::c::Three", "Two: x::b::Two"]);
    }

    #[test]
    fn a_path_leads_into_the_file_of_its_longest_module() {
        let files: BTreeSet<&str> =
            ["src/main.rs", "src/a/mod.rs", "src/a/b.rs", "crates/c/src/lib.rs"].into();
        let file = |root, path: &str| {
            let path: Vec<String> = path.split("::").map(str::to_owned).collect();
            file_of(root, &path, &files).unwrap().0
        };
        assert_eq!(file("src/", "a::b::C"), "src/a/b.rs");
        assert_eq!(file("src/", "a::C"), "src/a/mod.rs");
        assert_eq!(file("src/", "Top"), "src/main.rs");
        assert_eq!(file("crates/c/src/", "d"), "crates/c/src/lib.rs");
    }
}
