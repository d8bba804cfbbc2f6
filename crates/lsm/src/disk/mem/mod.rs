//! A [`Disk`] in memory that can crash, tear writes, fill up, fail and corrupt data on command. The
//! disk is deterministic: the same calls and seeds give the same bytes.
//!
//! A crash creates a *new* [`MemDisk`] in the state after the power returned. The old disk refuses
//! all calls after the crash, so threads of the crashed store cannot reach the new disk.
//!
//! ```text
//!   names ────▶ inode ──▶ Content    current names
//!   durable ──▶ inode                names at the last sync_dir
//!   journal                          changes of names since then; a crash applies a prefix of them
//! ```
//!
//! A [`MemDisk`] is stricter than a real disk: handles of a removed or replaced file fail, and the
//! name of a new file is not durable before `sync_dir`, however often the file is synced.

mod content;
mod directory;
mod fault;
mod random;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

pub use fault::{Fault, Op};
pub use random::Random;

use super::{Disk, File};
use state::DiskState;

/// A disk in memory. Clones are handles to the same disk.
#[derive(Debug, Clone, Default)]
pub struct MemDisk {
    state: Arc<Mutex<DiskState>>,
}

/// Fault injection and capacity.
impl MemDisk {
    /// Creates an empty disk of unlimited size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power and returns the disk in its state after the cut. Synced data is kept. `seed`
    /// decides the state of unsynced data: sectors as of any moment since their sync, the last
    /// write possibly torn within a sector, names as of any moment since `sync_dir`. Further calls
    /// on the same disk, with other seeds, return other possible states after the same cut.
    pub fn crash(&self, seed: u64) -> Self {
        let mut state = self.lock();
        state.power_off();
        Self::of(state.after_power_cut(seed))
    }

    /// Kills the process and returns the disk as the next process finds it. All written data is
    /// kept, but unsynced data is still not durable.
    pub fn process_crash(&self) -> Self {
        let mut state = self.lock();
        state.power_off();
        Self::of(state.after_kill())
    }

    /// Cuts the power at the mutating call after `operations` further ones. This call and all later
    /// calls fail; if this call is a write, a part of its bytes is written. The test then calls
    /// [`Self::crash`] or [`Self::process_crash`].
    pub fn crash_after(&self, operations: u64) {
        self.lock().crash_after(operations);
    }

    /// Number of mutating calls so far, including failed ones.
    pub fn operations(&self) -> u64 {
        self.lock().operations()
    }

    /// Number of mutating calls by verb and kind of file (the extension of its name, or the name
    /// without digits): "sync wal", "rename MANIFEST".
    pub fn sites(&self) -> BTreeMap<String, u64> {
        self.lock().sites().clone()
    }

    /// The kind of call, as in [`Self::sites`], at which [`Self::crash_after`] has cut the power;
    /// `None` = it has not.
    pub fn cut_site(&self) -> Option<String> {
        self.lock().cut_site().map(str::to_owned)
    }

    /// Adds a fault. A failed write has written a part; after a failed sync the unsynced bytes can
    /// still be read but never become durable; other failed calls have no effect.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.add(fault);
    }

    /// Number of pending faults; a permanent fault is always pending.
    pub fn pending_faults(&self) -> usize {
        self.lock().faults.pending_count()
    }

    /// Removes all pending faults.
    pub fn clear_faults(&self) {
        self.lock().faults = fault::Faults::default();
    }

    /// Limits the total length of all files; `None` removes the limit. Existing files stay.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Total length of all files in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Makes the disk cold or warm. While the disk is cold, nonblocking reads fail with
    /// `WouldBlock`.
    pub fn set_cold(&self, cold: bool) {
        self.lock().cold = cold;
    }
}

/// Inspection and tampering without the store's knowledge. The calls are not counted and never
/// fail, and changes are durable at once.
impl MemDisk {
    /// An independent copy of the disk, including its unsynced state.
    pub fn deep_clone(&self) -> Self {
        Self::of(self.lock().clone())
    }

    /// Returns a file's content, unsynced bytes included; `None` = there is no such file.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.lock().content_mut(name)?.bytes().to_vec())
    }

    /// Creates or replaces a file.
    pub fn put_file(&self, name: &str, bytes: Vec<u8>) {
        self.lock().put(name, bytes);
    }

    /// Deletes a file; returns true if it existed.
    pub fn delete(&self, name: &str) -> bool {
        self.lock().delete(name)
    }

    /// Flips one bit of a file (bit 0 is the lowest of byte 0); returns true if the file has that
    /// bit.
    pub fn flip_bit(&self, name: &str, bit: u64) -> bool {
        let mut state = self.lock();
        let Some(content) = state.content_mut(name) else { return false };
        let exists = bit / 8 < content.bytes().len() as u64;
        if exists {
            content.flip(position(bit));
        }
        exists
    }

    /// Truncates a file to `len` bytes; returns true if it existed and was longer.
    pub fn truncate(&self, name: &str, len: u64) -> bool {
        let mut state = self.lock();
        let Some(content) = state.content_mut(name) else { return false };
        let longer = content.bytes().len() as u64 > len;
        if longer {
            content.truncate(position(len));
        }
        longer
    }

    fn of(state: DiskState) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock()
    }

    fn handle(&self, inode: u64) -> Arc<dyn File> {
        Arc::new(MemFile { disk: self.clone(), inode })
    }
}

impl Disk for MemDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.handle(self.lock().create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.handle(self.lock().open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.lock().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.lock().remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.lock().list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.lock().sync_dir()
    }

    fn find(&self, name: &str) -> io::Result<()> {
        self.lock().find(name)
    }
}

#[derive(Debug)]
struct MemFile {
    disk: MemDisk,
    inode: u64,
}

impl File for MemFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.lock().len(self.inode)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.lock().read(self.inode, buf, offset)
    }

    fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.cold {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.read(self.inode, buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.disk.lock().write(self.inode, buf, offset)
    }

    fn allocate(&self, len: u64, _zeroed: bool) -> io::Result<()> {
        self.disk.lock().allocate(self.inode, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.lock().sync(self.inode)
    }

    fn start_writeback(&self, _offset: u64, _len: u64) {}
}

/// Converts a file offset to an index of bytes in memory.
fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("a file in memory fits the address space")
}
