//! The engine's interface to storage: a flat directory of files.
//!
//! There are two implementations: [`RealDisk`] (a directory) and [`MemDisk`] (memory that can
//! crash, tear writes, fill up, fail and corrupt data on command). The engine relies on these
//! semantics of both:
//!
//! * The *content* of a file is durable after [`File::sync_data`]. A crash may lose any part of the
//!   later writes, in any order.
//! * The *name* of a file (create, rename, remove) is durable after [`Disk::sync_dir`]. A rename
//!   replaces its target atomically.
//! * After a failed `sync_data`, the unsynced bytes may be lost even if a later sync succeeds. The
//!   caller must not use the file any more.

use std::io;
use std::sync::Arc;

mod mem;
mod real;
#[cfg(test)]
mod tests;

pub use mem::{Fault, MemDisk, Op, Random};
pub use real::RealDisk;

/// A flat directory of files.
pub trait Disk: Send + Sync {
    /// Creates an empty file for reading and writing; `AlreadyExists` if the name exists.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing; `NotFound` if the name does not exist.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Renames a file, replacing `to` if it exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. A large file is freed in steps, so that one large transaction does not block
    /// the file system's journal. Open handles to the file must not be used afterwards.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Checks that the directory is still at its path and contains `name`; fails otherwise.
    fn find(&self, name: &str) -> io::Result<()>;
}

/// A file. All positions are explicit, so any number of threads can use it at once.
#[allow(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait File: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`, waiting for the disk; `UnexpectedEof` if the file is too short.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Like [`File::read_exact_at`], but fails with `WouldBlock` unless all bytes are in the page
    /// cache.
    fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf` at `offset`, growing the file if necessary; a gap is filled with zeros.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Allocates bytes `0..len`, so that later writes there cannot run out of space; new bytes read
    /// as zeros. With `zeroed` the zeros are written, so that a later sync in this range need not
    /// wait for the file system's journal; otherwise the space is only reserved. Never shortens the
    /// file; on failure the length is unchanged.
    fn allocate(&self, len: u64, zeroed: bool) -> io::Result<()>;
    /// Makes the content and the length durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Starts writeback of `len` bytes at `offset`, so that a later sync has less to write.
    fn start_writeback(&self, offset: u64, len: u64);
}
