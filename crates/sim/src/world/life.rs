//! The marker file that distinguishes a data directory from its copies, on a simulated machine.

use std::cell::Cell;
use std::io;

use server::identity::{Directory, Marker};

/// The marker file of a data directory: see [`Directory`].
#[derive(Debug, Clone, Default)]
pub(crate) struct LifeFile {
    settled: Cell<Option<Marker>>,
    next: Cell<Option<Marker>>,
    inodes: Cell<u64>,
}

impl LifeFile {
    /// Simulates a copy of the directory: the files have the same contents but other inodes.
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
