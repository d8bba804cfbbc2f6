//! Tables in `docs/reference/` and files of packages that are generated from the code. A test
//! compares each of them with the code; with `UPDATE_DOCS=1` the test writes the file instead.

use std::{env, fs};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference");

/// Checks that a file of the repository has the content `text`.
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

/// Checks that the page `name` of the reference has `table` between the lines `<!-- NAME: ... -->`
/// and `<!-- /NAME -->`.
pub(crate) fn holds(name: &str, table: &str) {
    let path = format!("{REFERENCE}/{name}.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- /{name} -->"));
    let begin = text.find(&begin).unwrap_or_else(|| panic!("{begin} is missing in {path}"));
    let from = begin + text[begin..].find('\n').unwrap() + 1;
    let to = from + text[from..].find(&end).unwrap_or_else(|| panic!("{end} is missing in {path}"));
    if &text[from..to] == table {
        return;
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        let updated = [&text[..from], table, &text[to..]].concat();
        return fs::write(path, updated).unwrap();
    }
    let differs = table.lines().zip(text[from..to].lines()).find(|(here, there)| here != there);
    panic!("the {name} in {path} differ from the code; UPDATE_DOCS=1 writes them: {differs:?}");
}
