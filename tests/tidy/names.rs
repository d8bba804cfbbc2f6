//! Unique names: no two files and no two types of a crate share a name.

use std::collections::BTreeMap;

use crate::Finding;

const WHY: &str = "a reader who searches for a name finds one thing";

/// Source folders of the crates that the rule covers so far.
const UNIQUE: [&str; 3] = ["crates/lsm/src/", "crates/protocol/src/", "crates/record/src/"];

/// File names that a crate may repeat, for the modules of folders and for tests.
const FILES: [&str; 2] = ["mod.rs", "tests.rs"];

/// Finds every name that two files or two types of a crate share.
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    UNIQUE.iter().flat_map(|root| of_crate(root, files)).collect()
}

fn of_crate(root: &str, files: &[(String, String)]) -> Vec<Finding> {
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let product = |path: &str| path.starts_with(root) && !path.contains("/tests");
    for (path, text) in files.iter().filter(|(path, _)| product(path)) {
        let file = path.rsplit('/').next().unwrap_or(path);
        if file.ends_with(".rs") && !FILES.contains(&file) {
            places.entry(format!("file {file}")).or_default().push(path);
        }
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
        for name in product.lines().filter_map(type_of).filter(|name| *name != "Error") {
            places.entry(format!("type {name}")).or_default().push(path);
        }
    }
    let shared = places.into_iter().filter(|(_, places)| places.len() > 1);
    let finding = |(name, places): (String, Vec<&str>)| Finding {
        place: places[0].to_owned(),
        what: format!("{name} is also in {}", places[1..].join(", ")),
        why: WHY,
    };
    shared.map(finding).collect()
}

/// Returns the name of the type that a line declares; an indented line is inside a block.
fn type_of(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        let rest =
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |r| r.1);
        rest.trim_start()
    });
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|word| line.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_files(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn two_types_of_a_crate_have_two_names() {
        let one = ("crates/record/src/a.rs", "pub(crate) struct Walk<'a> {}\nenum Way {}\n");
        let other = ("crates/record/src/b.rs", "struct Walk;\nstruct Error;\nfn walk() {}\n");
        assert_eq!(check_files(&[one, other]), ["type Walk is also in crates/record/src/b.rs"]);
        let of_another = ("crates/protocol/src/b.rs", "struct Walk;\n");
        assert!(check_files(&[one, of_another]).is_empty(), "crates have names of their own");
    }

    #[test]
    fn two_files_of_a_crate_have_two_names() {
        let files = [("crates/record/src/a/walk.rs", ""), ("crates/record/src/b/walk.rs", "")];
        assert_eq!(check_files(&files), ["file walk.rs is also in crates/record/src/b/walk.rs"]);
        let usual = [("crates/record/src/a/mod.rs", ""), ("crates/record/src/b/mod.rs", "")];
        assert!(check_files(&usual).is_empty());
    }

    #[test]
    fn types_of_tests_may_share_a_name() {
        let test = "#[cfg(test)]\nmod tests {\n}\nstruct Walk;\n";
        let files =
            [("crates/record/src/a.rs", "struct Walk;\n"), ("crates/record/src/b.rs", test)];
        assert!(check_files(&files).is_empty());
    }
}
