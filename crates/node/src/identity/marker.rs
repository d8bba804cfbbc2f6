//! What tells a data directory from a copy of it: a file that is made anew at every start, and
//! kept in the store by what no copy has, its inode and when that was made.
//!
//! ```text
//!  LIFE.next made ─▶ the store keeps inode, time, number ─▶ LIFE.next renamed to LIFE
//!                └ a crash here: the store knows LIFE    └ here: it knows LIFE.next
//! ```
//!
//! A file system that is put back as a whole (a snapshot of a disk or of a virtual machine) can't
//! be noticed by this; what the other nodes remember shows it (`cluster::Logs`).

use std::io;

/// Bytes of an encoded marker.
pub(super) const LEN: usize = 24;

/// The file as the store keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The file's inode.
    pub inode: u64,
    /// When that was made, in nanoseconds since 1970; 0 where the file system does not know.
    pub made: u64,
    /// What is in the file: random.
    pub number: u64,
}

/// The data directory, as far as it has markers.
pub trait Directory {
    /// Whether it has this very file, be it as `LIFE` or as `LIFE.next`. An error tells nothing of
    /// that: a file that can't be read does not make the directory a copy.
    fn holds(&self, marker: &Marker) -> io::Result<bool>;

    /// Makes `LIFE.next` with this number in it, durably.
    fn make_next(&self, number: u64) -> io::Result<Marker>;

    /// Renames `LIFE.next` to `LIFE`, durably: the store knows the one that was made last.
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
