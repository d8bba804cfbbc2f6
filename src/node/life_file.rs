//! The marker file `LIFE` of a data directory, which distinguishes a copied directory from the
//! original: see [`server::identity::Marker`].

use std::fs::{self, File};
use std::io::ErrorKind::{NotFound, UnexpectedEof};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use server::identity::{Directory, Marker};

const FILE: &str = "LIFE";
const NEXT: &str = "LIFE.next";
const UNNAMED: &str = "LIFE.tmp";

/// A data directory on a file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataDirectory<'a>(pub(crate) &'a Path);

impl Directory for DataDirectory<'_> {
    fn holds(&self, marker: &Marker) -> io::Result<bool> {
        for name in [FILE, NEXT] {
            match marker_of(&self.0.join(name)) {
                Ok(held) if held == *marker => return Ok(true),
                Ok(_) => {}
                // A missing or incomplete file is not the marker.
                Err(error) if matches!(error.kind(), NotFound | UnexpectedEof) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn make_next(&self, number: u64) -> io::Result<Marker> {
        let (path, unnamed) = (self.0.join(NEXT), self.0.join(UNNAMED));
        let mut file = File::create(&unnamed)?;
        file.write_all(&number.to_le_bytes())?;
        file.sync_all()?;
        // The rename replaces the file of a previous attempt only now, because the store may refer
        // to it.
        fs::rename(&unnamed, &path)?;
        File::open(self.0)?.sync_all()?;
        marker_of(&path)
    }

    fn settle(&self) -> io::Result<()> {
        fs::rename(self.0.join(NEXT), self.0.join(FILE))?;
        File::open(self.0)?.sync_all()
    }
}

fn marker_of(path: &Path) -> io::Result<Marker> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    let since = meta.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let made = since.map_or(0, |since| since.as_nanos() as u64);
    let mut number = [0; 8];
    file.read_exact(&mut number)?;
    Ok(Marker { inode: meta.ino(), made, number: u64::from_le_bytes(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_directory_is_distinguished_from_its_original() {
        let root = tempfile::tempdir().unwrap();
        let (original, copied) = (root.path().join("data"), root.path().join("copy"));
        fs::create_dir(&original).unwrap();
        fs::create_dir(&copied).unwrap();
        let (data, copy) = (DataDirectory(&original), DataDirectory(&copied));
        let first = data.make_next(7).unwrap();
        assert!(data.holds(&first).unwrap(), "before it is settled");
        data.settle().unwrap();
        assert!(data.holds(&first).unwrap(), "and afterwards");
        fs::copy(original.join(FILE), copied.join(FILE)).unwrap();
        assert!(!copy.holds(&first).unwrap());

        let second = data.make_next(8).unwrap();
        let both = data.holds(&first).unwrap() && data.holds(&second).unwrap();
        assert!(both, "which of them the store knows is open");
        data.settle().unwrap();
        assert!(!data.holds(&first).unwrap() && data.holds(&second).unwrap());
        // The copy replaces the original directory.
        fs::remove_dir_all(&original).unwrap();
        fs::rename(&copied, &original).unwrap();
        assert!(!data.holds(&first).unwrap() && !data.holds(&second).unwrap());
    }

    #[test]
    fn a_file_that_was_rewritten_in_place_has_another_number() {
        let root = tempfile::tempdir().unwrap();
        let data = DataDirectory(root.path());
        let marker = data.make_next(7).unwrap();
        data.settle().unwrap();
        fs::write(root.path().join(FILE), 6u64.to_le_bytes()).unwrap();
        assert!(!data.holds(&marker).unwrap());
    }
}
