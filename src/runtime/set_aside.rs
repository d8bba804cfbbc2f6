//! Moves the content of an outdated copy aside within its data directory. The operator can inspect
//! it there, and the node continues like a node with a new disk.
//!
//! ```text
//!  outdated-SECONDS.part made ─▶ everything moved into it ─▶ renamed to outdated-SECONDS
//!        ▲ a start that finds outdated-SECONDS.part resumes here: half a directory is no store
//! ```

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// Name of the inner directory, before the seconds since 1970.
const PREFIX: &str = "outdated-";

/// Suffix of the inner directory's name while the move is incomplete.
const PART: &str = ".part";

/// Reason why a directory's content was not moved, or only in part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetAsideError {
    /// The directory can't be listed, so an incomplete move can't be detected.
    #[error("cannot list it: {0}")]
    List(#[source] io::Error),
    /// The directory is an outdated copy whose move is incomplete.
    #[error(
        "it is an older copy, of which a part was moved to {}, and the rest can't be: {source}",
        part.display()
    )]
    Move { part: PathBuf, source: io::Error },
}

/// Moves the content of the directory `data` into a new directory within `data`. Returns the new
/// directory's path. Content moved by earlier calls stays in place.
pub(crate) fn set_aside(data: &Path) -> io::Result<PathBuf> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let part = data.join(format!("{PREFIX}{seconds}{PART}"));
    fs::create_dir(&part)?;
    // After the first file has moved, a start must find the new directory, even after a power cut.
    sync(data)?;
    move_into(&part, data)
}

/// Completes a move in `data` that an earlier process left incomplete. Returns the final path;
/// `None` if there was no such move.
pub(crate) fn resume_move(data: &Path) -> Result<Option<PathBuf>, SetAsideError> {
    let names = match names(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        names => names.map_err(SetAsideError::List)?,
    };
    let part = names.iter().find(|name| is_aside(name) && name.to_string_lossy().ends_with(PART));
    let Some(part) = part.map(|part| data.join(part)) else { return Ok(None) };
    let moved = move_into(&part, data);
    moved.map(Some).map_err(|source| SetAsideError::Move { part, source })
}

fn move_into(part: &Path, data: &Path) -> io::Result<PathBuf> {
    for name in names(data)?.iter().filter(|name| !is_aside(name)) {
        fs::rename(data.join(name), part.join(name))?;
    }
    sync(part)?;
    sync(data)?;
    let aside = part.with_extension("");
    fs::rename(part, &aside)?;
    sync(data)?;
    Ok(aside)
}

fn names(data: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(data)?.map(|entry| Ok(entry?.file_name())).collect()
}

fn is_aside(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with(PREFIX)
}

fn sync(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(data: &Path) -> Vec<OsString> {
        let mut names = names(data).unwrap();
        names.sort();
        names
    }

    #[test]
    fn everything_but_earlier_copies_is_moved() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("MANIFEST"), "1").unwrap();
        fs::create_dir(data.path().join("outdated-5")).unwrap();
        let aside = set_aside(data.path()).unwrap();
        assert_eq!(fs::read_to_string(aside.join("MANIFEST")).unwrap(), "1");
        assert_eq!(sorted(data.path()), [aside.file_name().unwrap(), "outdated-5".as_ref()]);
        assert_eq!(resume_move(data.path()).unwrap(), None, "it is over");
    }

    #[test]
    fn an_interrupted_move_is_completed() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        for name in ["MANIFEST", "STORE", "1.wal"] {
            fs::write(data.join(name), name).unwrap();
        }
        assert_eq!(resume_move(data).unwrap(), None, "nothing was begun");
        let part = data.join("outdated-7.part");
        fs::create_dir(&part).unwrap();
        fs::rename(data.join("STORE"), part.join("STORE")).unwrap();
        fs::create_dir(data.join("outdated-5")).unwrap();
        let aside = data.join("outdated-7");
        assert_eq!(resume_move(data).unwrap(), Some(aside.clone()));
        assert_eq!(sorted(data), ["outdated-5", "outdated-7"]);
        assert_eq!(sorted(&aside), ["1.wal", "MANIFEST", "STORE"]);
        assert_eq!(resume_move(&data.join("not yet made")).unwrap(), None);
    }
}
