//! Checks every file of the repository against house rules that neither rustfmt nor clippy knows.
//! `CONTRIBUTING.md` gives the reasons. Each rule is a function, whose own tests show that it can
//! fail.
//!
//! ```text
//!  files (walked)  ─▶ text           lines, lengths, leftovers, banned calls        ┐
//!                  ─▶ words          words that the glossary has replaced           │
//!                  ─▶ source_layers  permitted imports between the layers of src/   │
//!                  ─▶ import_cycles  files that import each other                   │
//!                  ─▶ names          two things with one name                       │
//!                  ─▶ links          links and paths of documents to nowhere        │
//!  cargo metadata  ─▶ crate_layers   permitted dependencies between crates          ├─▶ findings
//!  + deny.toml     ─▶ crates         licenses, banned crates, sources               ┘
//! ```
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

mod crate_layers;
mod crates;
mod import_cycles;
mod imports;
mod links;
mod metadata;
mod names;
mod source_layers;
mod spdx;
mod text;
mod words;

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A violation of a rule: its place, its description, and the rule's reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// `file:line`, or another place.
    place: String,
    what: String,
    why: &'static str,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path and text of all text files of the repository, sorted by path. Leaves out files
/// and folders whose names begin with a dot, except `.ci`, and the products of builds and runs.
fn files() -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let skipped = name.starts_with('.') && name != ".ci";
            let left = ["target", "kvorum-data", "node_modules", "corpus", "artifacts", "coverage"];
            if skipped || left.contains(&name.as_str()) {
                continue;
            }
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                walk(&path, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(root()).unwrap();
                found.push((path.to_str().unwrap().to_owned(), text));
            }
        }
    }
    let mut found = Vec::new();
    walk(root(), &mut found);
    found.sort();
    found
}

fn assert_no_findings(findings: &[Finding]) {
    let mut list = String::new();
    for Finding { place, what, why } in findings {
        writeln!(list, "  {place}: {what}\n      why: {why}").unwrap();
    }
    assert!(findings.is_empty(), "{} finding(s):\n{list}", findings.len());
}

#[test]
fn every_file_is_tidy() {
    let files = files();
    assert!(files.iter().any(|(path, _)| path == "src/main.rs"), "the walk finds the sources");
    text::print_long_files(&files);
    assert_no_findings(&text::check(&files));
    assert_no_findings(&words::check(&files));
}

#[test]
fn layers_of_src_import_only_those_below() {
    assert_no_findings(&source_layers::check(&files()));
}

#[test]
fn import_cycles_are_small() {
    assert_no_findings(&import_cycles::check(&files()));
}

#[test]
fn no_two_files_or_types_of_a_crate_share_a_name() {
    assert_no_findings(&names::check(&files()));
}

#[test]
fn links_lead_somewhere() {
    assert_no_findings(&links::check(&files(), |path| root().join(path).exists()));
}

#[test]
fn crates_depend_only_on_permitted_ones() {
    assert_no_findings(&crate_layers::check(&metadata::read()));
}

#[test]
fn only_permitted_crates_are_used() {
    let policy = fs::read_to_string(root().join("deny.toml")).unwrap();
    assert_no_findings(&crates::check(&metadata::read(), &crates::Policy::parse(&policy)));
}
