//! The engine's only door to storage: one flat directory of files, through a dozen calls.
//!
//! There are two implementations: [`RealDisk`] (a directory) and [`MemDisk`] (memory that can
//! crash, tear, fill up, fail and rot on command). Semantics both keep, and the engine relies on:
//!
//! * A file's *content* is durable after [`File::sync_data`]; what was written since may be lost in
//!   any part and any order by a crash.
//! * A file's *name* (create, rename, remove) is durable after [`Disk::sync_dir`]; rename replaces
//!   its target atomically.
//! * After a failed `sync_data` the written bytes may be gone although a later sync succeeds: the
//!   caller must treat the file as lost.

use std::io;
use std::sync::Arc;

mod mem;
mod real;
#[cfg(test)]
mod tests;

pub use mem::{Fault, MemDisk, Op, Random};
pub use real::RealDisk;

/// One flat directory.
pub trait Disk: Send + Sync {
    /// Makes a new, empty file for reading and writing; fails if the name exists.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Renames, replacing `to` if it exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. A large one is given back in steps, so that the file system's journal is not
    /// held up by one big transaction. Its content goes with its name: no handle to it may be used
    /// again.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Fails unless this name is in the directory and the directory still is where it was opened.
    fn find(&self, name: &str) -> io::Result<()>;
}

/// One file. Positions are explicit, so that any number of threads can use it at once.
#[allow(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait File: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`, waiting for the disk; `UnexpectedEof` if the file is too short.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// The same without waiting: `WouldBlock` unless all of it is in the page cache.
    fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf` at `offset`, growing the file (with zeros in a gap) if need be.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Allocates bytes `0..len`, so that later writes in there can't run out of space; they read as
    /// zeros. `zeroed`: by writing zeros, so that a later sync of a write in there need not wait
    /// for the file system's journal; otherwise by reserving. Never shortens; if it fails, the
    /// length is as before.
    fn allocate(&self, len: u64, zeroed: bool) -> io::Result<()>;
    /// Makes the content (and the length) durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Asks the kernel to begin writing this range back, so that a later sync has little to do.
    fn start_writeback(&self, offset: u64, len: u64);
}
