//! Finds large import cycles. Files that import each other in a cycle can only be read, tested and
//! changed together.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::imports;

/// Maximum number of files in a cycle: three files can still be the parts of one unit.
const MAX_CYCLE_FILES: usize = 3;

const WHY: &str = "files that import each other in a cycle are one file: let the lower one be \
                   given what it needs";

/// For each file, the names that it re-exports from its children, with their paths.
type Names = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Finds every import cycle of more than `MAX_CYCLE_FILES` files.
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let edges = edges(files);
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|file| (file.as_str(), reach(file, &edges))).collect();
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for (file, reaches) in &reached {
        if seen.contains(file) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|from| from.contains(file));
        let cycle: Vec<&str> = reaches.iter().filter(back).copied().collect();
        seen.extend(cycle.iter().copied());
        if cycle.len() > MAX_CYCLE_FILES {
            let what = format!("a cycle of {} files: {}", cycle.len(), steps(&cycle, &edges));
            findings.push(Finding { place: (*file).to_owned(), what, why: WHY });
        }
    }
    findings
}

/// Returns, for each file, the files that it imports.
fn edges(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let all: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let names = files.iter().map(|(path, text)| (path.clone(), imports::re_exported(path, text)));
    let names: Names = names.collect();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in files {
        let Some((root, _)) = imports::module_of(path) else { continue };
        let imports = imports::of(path, text);
        let to = imports.iter().filter_map(|i| file_of(root, i.path.clone(), (&all, &names)));
        edges.insert(path.clone(), to.filter(|to| to != path).collect());
    }
    edges
}

/// Returns the file that defines the item at a path, through any re-exports.
fn file_of(
    root: &str,
    mut path: Vec<String>,
    (files, names): (&BTreeSet<&str>, &Names),
) -> Option<String> {
    loop {
        let (file, length) = imports::file_of(root, &path, files)?;
        let Some(whole) = path.get(length).and_then(|name| names.get(&file)?.get(name)) else {
            return Some(file);
        };
        path = whole.iter().chain(&path[length + 1..]).cloned().collect();
    }
}

/// Returns all files that a file imports, directly or indirectly.
fn reach<'a>(file: &str, edges: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![file]);
    while let Some(next) = left.pop() {
        for to in edges.get(next).into_iter().flatten() {
            if reached.insert(to.as_str()) {
                left.push(to);
            }
        }
    }
    reached
}

/// Formats the imports within a cycle.
fn steps(cycle: &[&str], edges: &BTreeMap<String, BTreeSet<String>>) -> String {
    let inside = |file: &&str| {
        let to = edges[*file].iter().map(String::as_str).filter(|to| cycle.contains(to));
        format!("{file} -> {}", to.collect::<Vec<_>>().join(", "))
    };
    cycle.iter().map(inside).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(imports: &[(&str, &str)]) -> Vec<(String, String)> {
        let text = |to: &str| to.split(' ').map(|to| format!("use crate::{to};\n")).collect();
        imports.iter().map(|(file, to)| (format!("src/{file}.rs"), text(to))).collect()
    }

    #[test]
    fn a_cycle_of_three_files_passes_and_a_cycle_of_four_is_found() {
        let three = files(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("main", "d")]);
        assert_eq!(check(&three), []);
        let four = files(&[("a", "b"), ("b", "c"), ("c", "d::X"), ("d", "a"), ("e", "a")]);
        let findings = check(&four);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.starts_with("a cycle of 4 files: src/a.rs -> src/b.rs; "));
    }

    #[test]
    fn a_re_export_does_not_hide_a_cycle() {
        let file = |path: &str, text: &str| (format!("src/{path}.rs"), text.to_owned());
        let mut files = vec![
            file("x/mod", "mod a;\nmod b;\nmod c;\nmod d;\npub(crate) use a::A;\n"),
            file("x/a", "use super::b::B;\n"),
            file("x/b", "use super::c::C;\n"),
            file("x/c", "use crate::x::d::D;\n"),
            file("x/d", "use super::A;\n"),
        ];
        assert_eq!(check(&files).len(), 1);
        files[4].1.clear();
        assert_eq!(check(&files), []);
    }

    #[test]
    fn two_cycles_that_share_a_file_are_one() {
        let shared = files(&[("a", "b c"), ("b", "a"), ("c", "d"), ("d", "a")]);
        assert_eq!(check(&shared).len(), 1);
        let apart = files(&[("a", "b"), ("b", "a c"), ("c", "d"), ("d", "c")]);
        assert_eq!(check(&apart), []);
    }
}
