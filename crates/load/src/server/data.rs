//! The data directory that replaces `{data}` in a server's command. The directory is fresh for each
//! server, and is removed when its last user drops it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use super::Error;
use crate::interrupt::{CleanupGuard, CleanupTarget};

/// `f_type` of tmpfs, a file system in memory.
const TMPFS: i64 = 0x0102_1994;

/// A data directory. Removed when dropped.
#[derive(Debug)]
pub struct Data {
    parent: TempDir,
    _cleanup: CleanupGuard,
}

/// Number and size of the files that were dropped from the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DroppedFiles {
    /// Number of files.
    pub files: u64,
    /// Bytes of all those files.
    pub bytes: u64,
}

impl Data {
    /// Creates a fresh directory in `parent`, or in the system's temporary directory.
    pub fn fresh(parent: Option<&Path>) -> Result<Self, Error> {
        let place = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let failed = |cause| Error::Data { parent: place.display().to_string(), cause };
        let made = tempfile::Builder::new().prefix("under-test-").tempdir_in(&place);
        let parent = made.map_err(failed)?;
        let _cleanup = CleanupGuard::of(CleanupTarget::Directory(parent.path().to_owned()));
        Ok(Self { parent, _cleanup })
    }

    /// Returns the path of the data directory. The directory does not exist yet, because many
    /// servers create it themselves.
    pub fn path(&self) -> PathBuf {
        self.parent.path().join("data")
    }

    /// Returns true if the directory is on a file system in memory, where no access waits for a
    /// disk.
    pub fn in_memory(&self) -> bool {
        rustix::fs::statfs(self.parent.path()).is_ok_and(|stat| stat.f_type == TMPFS)
    }

    /// Syncs all files, and drops them from the page cache. No root privileges are needed. No
    /// server may use the files during the call.
    pub fn drop_from_page_cache(&self) -> io::Result<DroppedFiles> {
        let mut dropped = DroppedFiles::default();
        let mut folders = vec![self.parent.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    let file = File::open(entry.path())?;
                    // Dirty pages would stay in the cache in spite of the advice.
                    file.sync_all()?;
                    fadvise(&file, 0, None, Advice::DontNeed)?;
                    dropped.files += 1;
                    dropped.bytes += file.metadata()?.len();
                }
            }
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::{Data, DroppedFiles};

    #[test]
    fn a_data_directory_is_fresh_and_removed_when_dropped() {
        let (one, two) = (Data::fresh(None).unwrap(), Data::fresh(None).unwrap());
        assert_ne!(one.path(), two.path());
        std::fs::create_dir_all(one.path().join("deep")).unwrap();
        std::fs::write(one.path().join("deep/file"), [7; 5000]).unwrap();
        assert_eq!(one.drop_from_page_cache().unwrap(), DroppedFiles { files: 1, bytes: 5000 });
        assert_eq!(std::fs::read(one.path().join("deep/file")).unwrap(), [7; 5000]);
        let path = one.path();
        drop(one);
        assert!(!path.parent().unwrap().exists());
    }

    #[test]
    fn a_missing_parent_directory_is_reported() {
        let error = Data::fresh(Some("/nowhere/at/all".as_ref())).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
