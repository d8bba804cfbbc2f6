//! What tells a data directory from a copy of it: a file that is made anew at every start, and
//! kept in the store by what no copy has, its inode and when that was made.
//!
//! ```text
//!  LIFE.next made ─▶ the store keeps inode, time, number ─▶ LIFE.next renamed to LIFE
//!                └ a crash here: the store knows LIFE    └ here: it knows LIFE.next
//! ```
//!
//! A file system that is put back as a whole (a snapshot of a disk or of a virtual machine) can't
//! be told by this; what the other nodes remember tells it (`cluster::Logs`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

const FILE: &str = "LIFE";
const NEXT: &str = "LIFE.next";
const UNNAMED: &str = "LIFE.tmp";

/// Bytes of an encoded marker.
pub(super) const LEN: usize = 24;

/// The file as the store keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker {
    inode: u64,
    /// Nanoseconds since 1970; 0 where the file system does not know.
    made: u64,
    /// What is in it: random.
    number: u64,
}

impl Marker {
    /// Makes one for the next life.
    pub(super) fn make(data: &Path, number: u64) -> io::Result<Self> {
        let (path, unnamed) = (data.join(NEXT), data.join(UNNAMED));
        let mut file = File::create(&unnamed)?;
        file.write_all(&number.to_le_bytes())?;
        file.sync_all()?;
        // What is left of an attempt goes only now: the store may know it.
        fs::rename(&unnamed, &path)?;
        File::open(data)?.sync_all()?;
        Self::of(&path)
    }

    /// The store knows the one that was made last.
    pub(super) fn settle(data: &Path) -> io::Result<()> {
        fs::rename(data.join(NEXT), data.join(FILE))?;
        File::open(data)?.sync_all()
    }

    /// Whether the directory has this very file.
    pub(super) fn is_in(&self, data: &Path) -> bool {
        [FILE, NEXT].iter().any(|name| Self::of(&data.join(name)).is_ok_and(|held| held == *self))
    }

    fn of(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        let since = meta.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        let made = since.map_or(0, |since| since.as_nanos() as u64);
        let mut number = [0; 8];
        file.read_exact(&mut number)?;
        Ok(Self { inode: meta.ino(), made, number: u64::from_le_bytes(number) })
    }

    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        for (place, number) in [self.inode, self.made, self.number].into_iter().enumerate() {
            bytes[8 * place..][..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: [u8; LEN]) -> Self {
        let number = |place: usize| {
            let bytes = bytes[8 * place..][..8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        Self { inode: number(0), made: number(1), number: number(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_told_from_the_directory_that_it_was_made_of() {
        let root = tempfile::tempdir().unwrap();
        let (data, copy) = (root.path().join("data"), root.path().join("copy"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&copy).unwrap();
        let first = Marker::make(&data, 7).unwrap();
        assert!(first.is_in(&data), "before it is settled");
        Marker::settle(&data).unwrap();
        assert!(first.is_in(&data), "and afterwards");
        fs::copy(data.join(FILE), copy.join(FILE)).unwrap();
        assert!(!first.is_in(&copy));

        let second = Marker::make(&data, 8).unwrap();
        assert!(first.is_in(&data) && second.is_in(&data), "which of them the store knows is open");
        Marker::settle(&data).unwrap();
        assert!(!first.is_in(&data) && second.is_in(&data));
        // The copy takes the place of the directory.
        fs::remove_dir_all(&data).unwrap();
        fs::rename(&copy, &data).unwrap();
        assert!(!first.is_in(&data) && !second.is_in(&data));
        assert_eq!(Marker::decode(second.encode()), second);
    }

    #[test]
    fn a_file_that_was_rewritten_in_place_has_another_number() {
        let data = tempfile::tempdir().unwrap();
        let marker = Marker::make(data.path(), 7).unwrap();
        Marker::settle(data.path()).unwrap();
        fs::write(data.path().join(FILE), 6u64.to_le_bytes()).unwrap();
        assert!(!marker.is_in(data.path()));
    }
}
