//! The inside of a data, index or top block: ascending keys, each with a value.
//!
//! ```text
//!  entry   := shared varint │ suffix length varint │ value length varint │ suffix │ value
//!  entries := entry … │ restart u32 … │ number of restarts u32
//! ```
//!
//! An entry's key is the first `shared` bytes of the key before it, then its suffix. Every
//! [`RESTART_INTERVAL`] entries `shared` is 0 whatever the keys have in common: a *restart point*,
//! whose offset is listed at the end, so that a search can bisect. Varints are LEB128 of a `u32`,
//! integers are little-endian.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::Bytes;

/// Entries from one restart point to the next: 16 cost a search about 8 steps of a few nanoseconds
/// and keep nearly all of the prefix compression.
const RESTART_INTERVAL: u32 = 16;

/// Bytes of one restart point, and of their number.
const RESTART_LEN: usize = 4;

/// Longest encoding of a `u32` as a varint.
const MAX_VARINT_LEN: usize = 5;

/// Bytes that are no well-formed block, although their checksum matches: a bug wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Builds one block after another.
#[derive(Default)]
pub(super) struct EntriesBuilder {
    buf: Vec<u8>,
    restarts: Vec<u32>,
    since_restart: u32,
    last: Vec<u8>,
}

impl EntriesBuilder {
    /// Appends an entry; `key` must be greater than the last of this block.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = if self.buf.is_empty() || self.since_restart == RESTART_INTERVAL {
            self.restarts.push(self.buf.len() as u32);
            self.since_restart = 0;
            0
        } else {
            shared_prefix(&self.last, key)
        };
        self.since_restart += 1;
        put_varint(&mut self.buf, shared as u32);
        put_varint(&mut self.buf, (key.len() - shared) as u32);
        put_varint(&mut self.buf, value.len() as u32);
        self.buf.extend_from_slice(&key[shared..]);
        self.buf.extend_from_slice(value);
        self.last.clear();
        self.last.extend_from_slice(key);
    }

    /// The key added last, also when that was to the block before this.
    pub(super) fn last(&self) -> &[u8] {
        &self.last
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Length of the block if it ended here.
    pub(super) fn len(&self) -> usize {
        self.buf.len() + (self.restarts.len() + 1) * RESTART_LEN
    }

    /// At most what [`Self::len`] would be after this entry.
    pub(super) fn len_with(&self, key: &[u8], value: &[u8]) -> usize {
        self.len() + 3 * MAX_VARINT_LEN + RESTART_LEN + key.len() + value.len()
    }

    /// The finished block; [`Self::clear`] begins the next.
    pub(super) fn finish(&mut self) -> &[u8] {
        for restart in &self.restarts {
            self.buf.extend_from_slice(&restart.to_le_bytes());
        }
        self.buf.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        &self.buf
    }

    /// Begins the next block, giving back memory over `keep` bytes.
    pub(super) fn clear(&mut self, keep: usize) {
        self.buf.clear();
        self.buf.shrink_to(keep);
        self.restarts.clear();
        self.since_restart = 0;
    }
}

/// Appends `value` as a varint.
pub(super) fn put_varint(buf: &mut Vec<u8>, value: u32) {
    let mut rest = value;
    while rest >= 0x80 {
        buf.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    buf.push(rest as u8);
}

/// A varint at `at`, and where it ends.
pub(super) fn varint(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let mut value = 0u64;
    for (i, byte) in bytes.get(at..)?.iter().take(MAX_VARINT_LEN).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, at + i + 1));
        }
    }
    None
}

/// How many bytes two keys begin with in common.
pub(super) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let differ = word(x) ^ word(y);
        if differ != 0 {
            return at + differ.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// One entry of a block, as offsets into it.
struct Entry {
    shared: usize,
    suffix_at: usize,
    value_at: usize,
    end: usize,
}

impl Entry {
    #[inline]
    fn parse(entries: &[u8], at: usize) -> Option<Self> {
        let (shared, suffix_len, value_len, suffix_at) = match entries.get(at..at + 3)? {
            [a, b, c] if (a | b | c) & 0x80 == 0 => (*a as u32, *b as u32, *c as u32, at + 3),
            _ => {
                let (shared, at) = varint(entries, at)?;
                let (suffix_len, at) = varint(entries, at)?;
                let (value_len, at) = varint(entries, at)?;
                (shared, suffix_len, value_len, at)
            }
        };
        let value_at = suffix_at + suffix_len as usize;
        let end = value_at + value_len as usize;
        (end <= entries.len()).then_some(Self { shared: shared as usize, suffix_at, value_at, end })
    }

    fn suffix<'a>(&self, entries: &'a [u8]) -> &'a [u8] {
        &entries[self.suffix_at..self.value_at]
    }
}

/// A block with its parts told apart.
struct Entries<'a> {
    entries: &'a [u8],
    restarts: &'a [u8],
}

/// The first entry at or after what was searched.
struct Hit {
    entry: Entry,
    exact: bool,
}

impl<'a> Entries<'a> {
    #[inline]
    fn parse(block: &'a [u8]) -> Option<Self> {
        let (rest, count) = block.split_last_chunk::<RESTART_LEN>()?;
        let restarts_len = (u32::from_le_bytes(*count) as usize).checked_mul(RESTART_LEN)?;
        let (entries, restarts) = rest.split_at_checked(rest.len().checked_sub(restarts_len)?)?;
        Some(Self { entries, restarts })
    }

    fn restart(&self, i: usize) -> Option<usize> {
        let at = i * RESTART_LEN;
        let bytes = self.restarts.get(at..at + RESTART_LEN)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    }

    /// The last restart point whose key is less than `key`, or the first of all.
    fn bisect(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.restarts.len() / RESTART_LEN);
        while low + 1 < high {
            let middle = (low + high) / 2;
            let entry = Entry::parse(self.entries, self.restart(middle)?)?;
            if entry.suffix(self.entries) < key {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.restart(low)
    }

    /// Finds the first entry at or after `key` without rebuilding any key on the way: of the entry
    /// before, which is less than `key`, it is enough to know how many bytes it shares with `key`.
    fn search(&self, key: &[u8]) -> Result<Option<Hit>, Malformed> {
        if self.restarts.is_empty() {
            return if self.entries.is_empty() { Ok(None) } else { Err(Malformed) };
        }
        let mut at = self.bisect(key).ok_or(Malformed)?;
        let mut matched = 0;
        while at < self.entries.len() {
            let entry = Entry::parse(self.entries, at).ok_or(Malformed)?;
            if entry.shared == 0 {
                // Perhaps a restart point, which says nothing about what the keys share.
                matched = 0;
            }
            if entry.shared < matched {
                // It leaves the key before at a byte where that one still equalled `key`.
                return Ok(Some(Hit { entry, exact: false }));
            }
            if entry.shared == matched {
                let suffix = entry.suffix(self.entries);
                let rest = &key[matched..];
                match suffix.cmp(rest) {
                    Ordering::Less => matched += shared_prefix(suffix, rest),
                    Ordering::Equal => return Ok(Some(Hit { entry, exact: true })),
                    Ordering::Greater => return Ok(Some(Hit { entry, exact: false })),
                }
            }
            at = entry.end;
        }
        Ok(None)
    }
}

/// Where in `block` the value of exactly `key` is.
pub(super) fn find(block: &[u8], key: &[u8]) -> Result<Option<Range<usize>>, Malformed> {
    let hit = Entries::parse(block).ok_or(Malformed)?.search(key)?;
    Ok(hit.filter(|hit| hit.exact).map(|hit| hit.entry.value_at..hit.entry.end))
}

/// Where in `block` the value of the first key at or after `key` is.
pub(super) fn find_from(block: &[u8], key: &[u8]) -> Result<Option<Range<usize>>, Malformed> {
    let hit = Entries::parse(block).ok_or(Malformed)?.search(key)?;
    Ok(hit.map(|hit| hit.entry.value_at..hit.entry.end))
}

/// A position in a block. Without a block it is at the end.
#[derive(Default)]
pub(super) struct Cursor {
    block: Bytes,
    entries_len: usize,
    /// Where the entry after the current one begins.
    next_at: usize,
    key: Vec<u8>,
    value: Range<usize>,
    valid: bool,
}

impl Cursor {
    /// Takes another block, keeping the key's memory. The position is undefined until a seek.
    pub(super) fn set_block(&mut self, block: Bytes) -> Result<(), Malformed> {
        self.valid = false;
        self.entries_len = Entries::parse(&block).ok_or(Malformed)?.entries.len();
        self.block = block;
        Ok(())
    }

    /// Leaves the position, keeping block and memory.
    pub(super) fn clear(&mut self) {
        self.valid = false;
    }

    pub(super) fn valid(&self) -> bool {
        self.valid
    }

    pub(super) fn key(&self) -> &[u8] {
        debug_assert!(self.valid);
        &self.key
    }

    pub(super) fn value(&self) -> &[u8] {
        debug_assert!(self.valid);
        &self.block[self.value.clone()]
    }

    pub(super) fn seek_to_first(&mut self) -> Result<(), Malformed> {
        self.next_at = 0;
        self.key.clear();
        self.next()
    }

    /// Goes to the first entry at or after `key`.
    pub(super) fn seek(&mut self, key: &[u8]) -> Result<(), Malformed> {
        self.valid = false;
        let parts = Entries::parse(&self.block).ok_or(Malformed)?;
        let Some(Hit { entry, .. }) = parts.search(key)? else { return Ok(()) };
        // The search stopped at an entry that shares no more with its predecessor than that
        // one shares with `key`.
        self.key.clear();
        self.key.extend_from_slice(&key[..entry.shared]);
        self.key.extend_from_slice(entry.suffix(parts.entries));
        self.value = entry.value_at..entry.end;
        self.next_at = entry.end;
        self.valid = true;
        Ok(())
    }

    /// Goes to the next entry, or past the last.
    #[inline]
    pub(super) fn next(&mut self) -> Result<(), Malformed> {
        self.valid = false;
        if self.next_at == self.entries_len {
            return Ok(());
        }
        let entries = &self.block[..self.entries_len];
        let entry = Entry::parse(entries, self.next_at).ok_or(Malformed)?;
        if entry.shared > self.key.len() {
            return Err(Malformed);
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(entry.suffix(entries));
        self.value = entry.value_at..entry.end;
        self.next_at = entry.end;
        self.valid = true;
        Ok(())
    }
}
