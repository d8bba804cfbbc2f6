//! The file that tells a data directory from a copy of it, on a simulated machine.

use std::cell::Cell;
use std::io;

use node::identity::{Directory, Marker};

/// The marker file of a data directory: see [`Directory`].
#[derive(Debug, Clone, Default)]
pub(crate) struct LifeFile {
    settled: Cell<Option<Marker>>,
    next: Cell<Option<Marker>>,
    inodes: Cell<u64>,
}

impl LifeFile {
    /// The directory was copied: what is in its files is the same, the files are others.
    pub(crate) fn copy(&self) {
        for file in [&self.settled, &self.next] {
            let copy = |marker: Marker| Marker { inode: self.new_inode(), ..marker };
            file.set(file.get().map(copy));
        }
    }

    fn new_inode(&self) -> u64 {
        self.inodes.set(self.inodes.get() + 1);
        self.inodes.get()
    }
}

impl Directory for LifeFile {
    fn holds(&self, marker: &Marker) -> io::Result<bool> {
        Ok([&self.settled, &self.next].iter().any(|file| file.get() == Some(*marker)))
    }

    fn make_next(&self, number: u64) -> io::Result<Marker> {
        let marker = Marker { inode: self.new_inode(), made: 0, number };
        self.next.set(Some(marker));
        Ok(marker)
    }

    fn settle(&self) -> io::Result<()> {
        self.settled.set(self.next.take());
        Ok(())
    }
}
