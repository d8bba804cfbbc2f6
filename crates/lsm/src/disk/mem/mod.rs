//! A disk in memory that can crash, tear, fill up, fail and rot on command. Deterministic: the same
//! calls and seeds give the same bytes.
//!
//! A crash makes a *new* [`MemDisk`], as found when the power is back; the old one refuses
//! everything from then on, so that threads of the crashed store can't reach the new one.
//!
//! ```text
//!   names ──▶ inode ──▶ Content      now
//!   durable_names ──▶ inode          at the last sync_dir; a crash adds a prefix of `journal`
//! ```
//!
//! Where the real thing is lenient this one is strict: handles of a removed or replaced file fail,
//! and a new file's name is not durable before `sync_dir`, however often the file is synced.

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

/// Making it fail.
impl MemDisk {
    /// An empty disk of unbounded size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power: gives the disk as found afterwards. Kept is what was synced, and of the rest
    /// whatever `seed` says: sectors as of any moment since their sync, the last write perhaps torn
    /// within a sector, names as of any moment since `sync_dir`. Several seeds can be tried on
    /// one dead disk.
    pub fn crash(&self, seed: u64) -> Self {
        let mut state = self.lock();
        state.power_off();
        Self::of(state.after_power_cut(seed))
    }

    /// Kills the process: gives the disk as its successor finds it. Nothing written is lost, nor
    /// is anything synced by it.
    pub fn process_crash(&self) -> Self {
        let mut state = self.lock();
        state.power_off();
        Self::of(state.after_kill())
    }

    /// Lets `operations` more mutating calls through; the next one fails, if it is a write after a
    /// part of it, and all calls from then on do. Then [`Self::crash`] or [`Self::process_crash`].
    pub fn crash_after(&self, operations: u64) {
        self.lock().crash_after(operations);
    }

    /// How many mutating calls there have been, failed ones included.
    pub fn operations(&self) -> u64 {
        self.lock().operations()
    }

    /// How often each kind of mutating call has been made, by verb and kind of file (the name's
    /// ending, or the name without digits): "sync wal", "rename MANIFEST".
    pub fn sites(&self) -> BTreeMap<String, u64> {
        self.lock().sites().clone()
    }

    /// The site at which [`Self::crash_after`] cut the power, once it has.
    pub fn cut_site(&self) -> Option<String> {
        self.lock().cut_site().map(str::to_owned)
    }

    /// Makes calls fail. A failed write has written a part; after a failed sync the unsynced bytes
    /// still read back but never become durable; other failed calls have done nothing.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.add(fault);
    }

    /// How many of the faults are still to come; one that lasts for ever always is.
    pub fn pending_faults(&self) -> usize {
        self.lock().faults.pending()
    }

    /// Forgets the faults that were to come.
    pub fn clear_faults(&self) {
        self.lock().faults = fault::Faults::default();
    }

    /// Bounds the sum of all files' lengths; `None` lifts the bound. What is there stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// The sum of all files' lengths.
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// While cold, reads that must not wait find nothing in the cache.
    pub fn set_cold(&self, cold: bool) {
        self.lock().cold = cold;
    }
}

/// Looking at it and tampering with it, behind the store's back: never counted, never failing, and
/// what is changed is changed durably.
impl MemDisk {
    /// A copy of all there is, with what is unsynced, that lives its own life.
    pub fn deep_clone(&self) -> Self {
        Self::of(self.lock().clone())
    }

    /// A file's content.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.lock().content_mut(name)?.bytes().to_vec())
    }

    /// Puts a file there, in place of any of that name.
    pub fn put_file(&self, name: &str, bytes: Vec<u8>) {
        self.lock().put(name, bytes);
    }

    /// Takes a file away; whether it was there.
    pub fn delete(&self, name: &str) -> bool {
        self.lock().delete(name)
    }

    /// Flips one bit of a file (bit 0 is the lowest of byte 0); whether it has that bit.
    pub fn flip_bit(&self, name: &str, bit: u64) -> bool {
        let mut state = self.lock();
        let Some(content) = state.content_mut(name) else { return false };
        let exists = bit / 8 < content.bytes().len() as u64;
        if exists {
            content.flip(position(bit));
        }
        exists
    }

    /// Cuts a file to `len` bytes; whether it was there and longer.
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

/// A position in memory: a file of more than the address space does not fit here anyway.
fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("a file in memory fits the address space")
}
