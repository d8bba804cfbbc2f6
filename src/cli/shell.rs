//! Quoting of words in printed commands, for a shell.

use std::path::Path;

/// Returns a path as a word for a shell.
pub(crate) fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    match text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_words_for_a_shell() {
        for (path, expected) in [
            ("/tmp/a-b_1.pem", "/tmp/a-b_1.pem"),
            ("/tmp/my data", "'/tmp/my data'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(word(Path::new(path)), expected);
        }
    }
}
