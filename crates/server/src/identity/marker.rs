//! Detection of a copied data directory: every start creates a new marker file, and the store
//! records the file's inode and creation time, which differ in a copy of the directory.
//!
//! ```text
//!  1 LIFE.next is created                after a crash here, the store knows the file LIFE
//!  2 the store keeps the inode, the
//!    creation time and the content       after a crash here, the store knows the file LIFE.next
//!  3 LIFE.next is renamed to LIFE
//! ```
//!
//! A file system restored as a whole (a snapshot of a disk or of a virtual machine) keeps the inode
//! and the creation time, so the marker does not reveal the restore. The other nodes' records of
//! this node reveal it (`protocol::Logs`).

use std::io;

/// Bytes of an encoded marker.
pub(super) const LEN: usize = 24;

/// The marker file's attributes, as the store keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The file's inode.
    pub inode: u64,
    /// Creation time of the inode, in nanoseconds since 1970; 0 where the file system does not
    /// record it.
    pub made: u64,
    /// Content of the file: a random number.
    pub number: u64,
}

/// The marker files of a data directory.
pub trait Directory {
    /// Returns true if the directory has the file of this marker, as `LIFE` or as `LIFE.next`. An
    /// error means that the file could not be read, and is no evidence of a copy.
    fn holds(&self, marker: &Marker) -> io::Result<bool>;

    /// Durably creates `LIFE.next` with `number` as its content.
    fn make_next(&self, number: u64) -> io::Result<Marker>;

    /// Durably renames `LIFE.next` to `LIFE`, once the store has recorded its marker.
    fn settle(&self) -> io::Result<()>;
}

impl Marker {
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
