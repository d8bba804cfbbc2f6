//! A data directory that is an older copy is emptied: what is in it is set aside, for whoever wants
//! to look at it. The node goes on as one with a new disk.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// What the directory within is called, before the seconds since 1970.
const PREFIX: &str = "outdated-";

/// Moves all that the directory `data` holds into a new directory in it, whose path is returned.
/// What was set aside before stays where it is.
pub(crate) fn set_aside(data: &Path) -> io::Result<PathBuf> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let aside = data.join(format!("{PREFIX}{seconds}"));
    fs::create_dir(&aside)?;
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(PREFIX) {
            fs::rename(entry.path(), aside.join(name))?;
        }
    }
    fs::File::open(data)?.sync_all()?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_moved_but_what_was_set_aside_before() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("MANIFEST"), "1").unwrap();
        fs::create_dir(data.path().join("outdated-5")).unwrap();
        let aside = set_aside(data.path()).unwrap();
        assert_eq!(fs::read_to_string(aside.join("MANIFEST")).unwrap(), "1");
        let mut left: Vec<_> =
            fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        let mut expected = vec![data.path().join("outdated-5"), aside];
        expected.sort();
        assert_eq!(left, expected);
    }
}
