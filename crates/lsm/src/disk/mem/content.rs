//! The content of one file, and the states that a power cut can leave.
//!
//! ```text
//!   cache   bytes that reads return; equal to `medium` unless a sync has failed
//!   medium  bytes that may be durable
//!   undo    one entry per unsynced change, oldest first: the bytes that the change replaced
//! ```
//!
//! The entries of `undo`, applied from the last to the first, turn `medium` into the bytes that are
//! certainly durable. `undo` contains only overwritten bytes: a sync copies nothing, and the
//! allocation of a log segment stores its zeros only once, in `medium`. A crash resets each sector
//! to its state at some moment since the last sync, because a page cache may write a sector back at
//! any time.

use super::random::Random;

/// Length of a sector in bytes. A disk writes a sector completely or not at all, except that a
/// crash may tear the last write within a sector ([`Content::crash`]).
const SECTOR: usize = 512;

#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    cache: Option<Vec<u8>>,
    medium: Vec<u8>,
    undo: Vec<Change>,
}

/// An unsynced change: new bytes at `start..end` replaced `old`. If the file, of length `old_len`,
/// ended before `end`, `old` is shorter than the range.
#[derive(Debug, Clone)]
struct Change {
    start: usize,
    end: usize,
    old: Vec<u8>,
    old_len: usize,
}

impl Change {
    /// Restores the replaced bytes within `from..to`; bytes past the old end become zeros.
    fn undo(&self, bytes: &mut [u8], from: usize, to: usize) {
        let (from, to) = (from.max(self.start), to.min(self.end));
        let old = &self.old[(from - self.start).min(self.old.len())..];
        let old = &old[..old.len().min(to - from)];
        let (overwritten, appended) = bytes[from..to].split_at_mut(old.len());
        overwritten.copy_from_slice(old);
        appended.fill(0);
    }
}

impl Content {
    /// Content that is durable from the start.
    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        Self { medium: bytes, ..Self::default() }
    }

    /// The bytes that reads return.
    pub(super) fn bytes(&self) -> &[u8] {
        self.cache.as_deref().unwrap_or(&self.medium)
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        let len = self.medium.len();
        let old = self.medium[offset.min(len)..end.min(len)].to_vec();
        self.undo.push(Change { start: offset, end, old, old_len: len });
        overwrite(&mut self.medium, bytes, offset);
        if let Some(cache) = &mut self.cache {
            overwrite(cache, bytes, offset);
        }
    }

    /// Extends the content to `len` bytes with zeros; does not shorten a longer content.
    pub(super) fn allocate(&mut self, len: usize) {
        let old_len = self.medium.len();
        if len > old_len {
            self.undo.push(Change { start: old_len, end: len, old: Vec::new(), old_len });
            self.medium.resize(len, 0);
        }
        if let Some(cache) = &mut self.cache
            && len > cache.len()
        {
            cache.resize(len, 0);
        }
    }

    pub(super) fn sync(&mut self) {
        self.undo.clear();
    }

    /// Simulates a failed sync: the kernel marks the pages clean, so they can be read until the
    /// power is cut, but no later sync writes them.
    pub(super) fn fail_sync(&mut self) {
        let cache = self.cache.take().unwrap_or_else(|| self.medium.clone());
        let durable_len = self.durable_len();
        while let Some(change) = self.undo.pop() {
            change.undo(&mut self.medium, change.start, change.end);
        }
        self.medium.truncate(durable_len);
        self.cache = Some(cache);
    }

    /// Truncates the content to `len` bytes. The change is durable at once.
    pub(super) fn truncate(&mut self, len: usize) {
        self.medium.truncate(len);
        if let Some(cache) = &mut self.cache {
            cache.truncate(len);
        }
        self.undo.retain_mut(|change| {
            change.end = change.end.min(len);
            change.old_len = change.old_len.min(len);
            change.start < change.end
        });
    }

    /// Flips a bit. The change is durable at once.
    pub(super) fn flip(&mut self, bit: usize) {
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        if let Some(cache) = &mut self.cache {
            cache[byte] ^= mask;
        }
        if let Some(byte) = self.medium.get_mut(byte) {
            *byte ^= mask;
        }
        for change in &mut self.undo {
            if let Some(old) = byte.checked_sub(change.start).and_then(|at| change.old.get_mut(at))
            {
                *old ^= mask;
            }
        }
    }

    fn durable_len(&self) -> usize {
        self.undo.first().map_or(self.medium.len(), |change| change.old_len)
    }

    /// The content after a power cut: every sector as of some moment since the last sync, the last
    /// change possibly torn within a sector, and a length between the durable length and the
    /// newest.
    pub(super) fn crash(&self, random: &mut Random) -> Self {
        let mut medium = self.medium.clone();
        let survival = Survival::choose(random, self.undo.len());
        for (index, change) in self.undo.iter().enumerate().rev() {
            let mut from = change.start;
            while from < change.end {
                let to = (from / SECTOR + 1) * SECTOR;
                if index >= survival.changes_in(from / SECTOR) {
                    change.undo(&mut medium, from, to);
                }
                from = to;
            }
        }
        if let Some(last) = self.undo.last()
            && random.chance(2)
        {
            let torn = random.between(last.start, last.end - 1);
            last.undo(&mut medium, torn, (torn / SECTOR + 1) * SECTOR);
        }
        let (shortest, longest) = (self.durable_len(), medium.len());
        medium.truncate(match random.below(4) {
            0 => shortest,
            1 | 2 => longest,
            _ => random.between(shortest, longest),
        });
        Self::durable(medium)
    }
}

/// The number of a file's unsynced changes, oldest first, that each sector contains after a crash.
enum Survival {
    All(usize),
    /// Each sector has all changes or none.
    Some {
        salt: u64,
        changes: usize,
    },
    /// Each sector has the changes up to some moment.
    Prefix {
        salt: u64,
        changes: usize,
    },
}

impl Survival {
    fn choose(random: &mut Random, changes: usize) -> Self {
        match random.below(6) {
            0 => Self::All(0),
            1 => Self::All(changes),
            2 | 3 => Self::Some { salt: random.number(), changes },
            _ => Self::Prefix { salt: random.number(), changes },
        }
    }

    fn changes_in(&self, sector: usize) -> usize {
        match *self {
            Self::All(changes) => changes,
            Self::Some { salt, changes } => {
                Random::new(salt ^ sector as u64).below(2) as usize * changes
            }
            Self::Prefix { salt, changes } => Random::new(salt ^ sector as u64).between(0, changes),
        }
    }
}

fn overwrite(to: &mut Vec<u8>, bytes: &[u8], offset: usize) {
    let end = offset + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    to[offset..end].copy_from_slice(bytes);
}
