//! Warning about a data directory that other users can read. A node creates its directory with
//! access for its own user only, but does not change the mode of an existing directory.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Mode bits by which the group, or all other users, may read a file or enter a directory.
const READ: u32 = 0o044;
const ENTER: u32 = 0o011;

/// Warns if other users can read files of the directory.
pub(super) fn warn_of_readers(data: &Path) {
    // If the directory can't be listed, the start itself fails later.
    if others_read(data).unwrap_or(false) {
        tracing::warn!(
            "other users of this machine can read files of the data directory: run chmod -R go= {}",
            data.display()
        );
    }
}

fn others_read(data: &Path) -> io::Result<bool> {
    let mode = |path: &Path| Ok::<_, io::Error>(fs::symlink_metadata(path)?.permissions().mode());
    // Each of the two bits permits entering. The same bit shifted left by two permits reading a
    // file.
    let who_enters = fs::metadata(data)?.permissions().mode() & ENTER;
    if who_enters == 0 {
        return Ok(false);
    }
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        if mode(&path)? & READ & (who_enters << 2) != 0 && !path.is_symlink() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_read_files_if_both_modes_permit_it() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("STORE");
        fs::write(&file, "").unwrap();
        for (directory, store, read) in [
            (0o700, 0o644, false),
            (0o755, 0o600, false),
            (0o755, 0o644, true),
            (0o750, 0o604, false),
            (0o750, 0o640, true),
            (0o705, 0o604, true),
        ] {
            let set = |path: &Path, mode| {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            };
            set(&file, store);
            set(root.path(), directory);
            assert_eq!(others_read(root.path()).unwrap(), read, "{directory:o} {store:o}");
        }
        assert!(others_read(&root.path().join("none")).is_err());
    }
}
