//! Tables of `docs/operation.md`, and files of packages, that are generated from the code, so that
//! they cannot differ. A test compares each; with `UPDATE_DOCS=1` it writes the file.

use std::{env, fs};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operation.md");

/// Checks that a file of the repository is `text`.
pub(crate) fn is_file(path: &str, text: &str) {
    let at = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    if fs::read_to_string(&at).is_ok_and(|kept| kept == text) {
        return;
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(at, text).unwrap();
    }
    panic!("{path} differs from what the code declares; UPDATE_DOCS=1 writes it");
}

/// Checks that the part of the manual between `<!-- NAME: ... -->` and `<!-- /NAME -->` is `table`.
pub(crate) fn holds(name: &str, table: &str) {
    let text = fs::read_to_string(PATH).unwrap();
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- /{name} -->"));
    let begin = text.find(&begin).unwrap_or_else(|| panic!("{begin} is missing in {PATH}"));
    let from = begin + text[begin..].find('\n').unwrap() + 1;
    let to = from + text[from..].find(&end).unwrap_or_else(|| panic!("{end} is missing in {PATH}"));
    if &text[from..to] == table {
        return;
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        let updated = [&text[..from], table, &text[to..]].concat();
        return fs::write(PATH, updated).unwrap();
    }
    let differs = table.lines().zip(text[from..to].lines()).find(|(here, there)| here != there);
    panic!("the {name} in {PATH} differ from the code; UPDATE_DOCS=1 writes them: {differs:?}");
}
