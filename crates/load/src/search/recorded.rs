//! Shell commands, printed at the end of a search, that compare the profiles of two trials.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

/// Subdirectory of a trial's collapsed stacks.
const PROFILE: &str = "profile";

/// Returns a command for each recording that both trials have, by server and event: `diff` and the
/// two files. The commands run in the directory in which the search was started. Empty if `diff` is
/// empty.
pub(super) fn commands(diff: &str, dir: &Path, below: &str, above: &str) -> Vec<String> {
    let files = |trial: &str| -> BTreeSet<OsString> {
        let inside = std::fs::read_dir(dir.join(trial).join(PROFILE));
        inside.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
    };
    if diff.is_empty() {
        return Vec::new();
    }
    let both = files(below);
    let both = both.intersection(&files(above)).cloned().collect::<Vec<_>>();
    let command = |file: &OsString| {
        let path = |trial: &str| dir.join(trial).join(PROFILE).join(file).display().to_string();
        let graph = Path::new(file).with_extension("html").display().to_string();
        let words = [path(below), path(above), "-o".to_owned(), format!("diff-{graph}")];
        // Only a zero byte can't be quoted, and no file name contains one.
        let words = shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default();
        format!("{diff} {words}")
    };
    both.iter().map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::commands;

    #[test]
    fn commands_compare_the_recordings_that_both_trials_have() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("my search");
        for (trial, events) in [("1-a", &["cpu", "lock"][..]), ("2-b", &["lock", "wall"])] {
            std::fs::create_dir_all(dir.join(trial).join("profile")).unwrap();
            for event in events {
                let file = dir.join(trial).join(format!("profile/127.0.0.1-80-{event}.folded"));
                std::fs::write(file, "a;b 1\n").unwrap();
            }
        }
        let shown = commands("kvorum profile diff", &dir, "1-a", "2-b");
        let words = shlex::split(&shown[0]).unwrap();
        assert_eq!(
            (shown.len(), &words[..3]),
            (1, &["kvorum", "profile", "diff"].map(str::to_owned)[..])
        );
        for file in &words[3..5] {
            assert_eq!(std::fs::read_to_string(file).unwrap(), "a;b 1\n", "{file}");
        }
        assert_eq!(words[5..], ["-o", "diff-127.0.0.1-80-lock.html"]);
        assert!(commands("kvorum profile diff", &dir, "1-a", "3-c").is_empty());
        assert!(commands("", &dir, "1-a", "2-b").is_empty());
    }
}
