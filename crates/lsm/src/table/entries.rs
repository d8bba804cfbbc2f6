//! The content of a data, index or top block: keys in ascending order, each with a value.
//!
//! ```text
//!  entries := value … │ key … │ restart … │ number of restarts u32
//!  key     := shared varint │ suffix length varint │ value length varint │ suffix
//!  restart := offset of key u32 │ offset of value u32
//! ```
//!
//! Values are stored one after the other in key order. A key consists of the first `shared` bytes
//! of the previous key and its suffix. Every [`RESTART_INTERVAL`] entries is a *restart point* with
//! `shared` = 0; the list of restart points at the end allows binary search. Varints are LEB128 of
//! a `u32`, integers are little-endian, and offsets count from the start of the block.
//!
//! Keys are stored apart from values so that a search between two restart points touches two or
//! three cache lines instead of one per entry.

use std::ops::Range;

use bytes::Bytes;

/// Entries per restart point. With 16 entries, a search takes about 8 steps of a few nanoseconds
/// after the binary search, and nearly all of the prefix compression is preserved.
const RESTART_INTERVAL: u32 = 16;

/// Bytes of one restart point.
const RESTART_LEN: usize = 8;

/// Bytes of the number of restart points.
const COUNT_LEN: usize = 4;

/// Longest encoding of a `u32` as a varint.
const MAX_VARINT_LEN: usize = 5;

/// A malformed block with a valid checksum: the result of a bug, or of faulty memory at its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Builds blocks one after the other.
#[derive(Default)]
pub(super) struct EntriesBuilder {
    values: Vec<u8>,
    keys: Vec<u8>,
    restarts: Vec<Restart>,
    since_restart: u32,
    last: Vec<u8>,
}

/// Offsets into `keys` and `values`.
struct Restart {
    key_at: usize,
    value_at: usize,
}

impl EntriesBuilder {
    /// Appends an entry; `key` must be greater than the last key of this block.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = if self.keys.is_empty() || self.since_restart == RESTART_INTERVAL {
            self.restarts.push(Restart { key_at: self.keys.len(), value_at: self.values.len() });
            self.since_restart = 0;
            0
        } else {
            shared_prefix(&self.last, key)
        };
        self.since_restart += 1;
        put_varint(&mut self.keys, shared as u32);
        put_varint(&mut self.keys, (key.len() - shared) as u32);
        put_varint(&mut self.keys, value.len() as u32);
        self.keys.extend_from_slice(&key[shared..]);
        self.values.extend_from_slice(value);
        self.last.truncate(shared);
        self.last.extend_from_slice(&key[shared..]);
    }

    /// The last key added, even if it belongs to the previous block.
    pub(super) fn last(&self) -> &[u8] {
        &self.last
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Length in bytes that the block would have if it ended here.
    pub(super) fn len(&self) -> usize {
        self.values.len() + self.keys.len() + self.restarts.len() * RESTART_LEN + COUNT_LEN
    }

    /// Upper bound of [`Self::len`] after the entry is added.
    pub(super) fn len_with(&self, key: &[u8], value: &[u8]) -> usize {
        self.len() + 3 * MAX_VARINT_LEN + RESTART_LEN + key.len() + value.len()
    }

    /// Completes the block; [`Self::clear`] starts the next one.
    pub(super) fn finish(&mut self) -> &[u8] {
        let keys_at = self.values.len();
        self.values.extend_from_slice(&self.keys);
        for restart in &self.restarts {
            let key_at = (keys_at + restart.key_at) as u32;
            self.values.extend_from_slice(&key_at.to_le_bytes());
            self.values.extend_from_slice(&(restart.value_at as u32).to_le_bytes());
        }
        self.values.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        &self.values
    }

    /// Starts the next block and frees buffer memory beyond `keep` bytes.
    pub(super) fn clear(&mut self, keep: usize) {
        self.values.clear();
        self.values.shrink_to(keep);
        self.keys.clear();
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

/// Decodes the varint at offset `at`; returns its value and the offset of its end. `None` = the
/// varint is truncated or exceeds a `u32`.
pub(super) fn decode_varint(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let mut value = 0u64;
    for (i, byte) in bytes.get(at..)?.iter().take(MAX_VARINT_LEN).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, at + i + 1));
        }
    }
    None
}

/// Length in bytes of the common prefix of two keys.
#[inline]
pub(super) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    while let (Some(x), Some(y)) = (word_at(a, at), word_at(b, at)) {
        if x != y {
            return at + (x ^ y).trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    // Comparing the last word, which overlaps bytes known to be equal, avoids a loop over the rest.
    if let Some(last) = len.checked_sub(8)
        && let (Some(x), Some(y)) = (word_at(a, last), word_at(b, last))
    {
        return if x == y { len } else { last + (x ^ y).trailing_zeros() as usize / 8 };
    }
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[inline]
fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns `a < b`. Inlined: keys are short, and a call of the C library's comparison costs more
/// than the comparison itself.
#[inline]
pub(super) fn is_less(a: &[u8], b: &[u8]) -> bool {
    let same = shared_prefix(a, b);
    a.get(same) < b.get(same)
}

/// The encoded key of an entry, as offsets into its block.
struct Key {
    shared: usize,
    suffix_at: usize,
    end: usize,
    value_len: usize,
}

impl Key {
    /// Decodes the key at `at` of `keys`, a block without its restart points.
    #[inline(always)]
    fn parse(keys: &[u8], at: usize) -> Option<Self> {
        let (shared, suffix_len, value_len, suffix_at) = match keys.get(at..at + 3)? {
            [a, b, c] if (a | b | c) & 0x80 == 0 => (*a as u32, *b as u32, *c as u32, at + 3),
            _ => Self::parse_long(keys, at)?,
        };
        let end = suffix_at + suffix_len as usize;
        let (shared, value_len) = (shared as usize, value_len as usize);
        (end <= keys.len()).then_some(Self { shared, suffix_at, end, value_len })
    }

    #[cold]
    fn parse_long(keys: &[u8], at: usize) -> Option<(u32, u32, u32, usize)> {
        let (shared, at) = decode_varint(keys, at)?;
        let (suffix_len, at) = decode_varint(keys, at)?;
        let (value_len, at) = decode_varint(keys, at)?;
        Some((shared, suffix_len, value_len, at))
    }

    #[inline]
    fn suffix<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.suffix_at..self.end]
    }
}

/// A block split into its parts.
struct BlockParts<'a> {
    /// The block without its restart points.
    keys: &'a [u8],
    /// End of the values and start of the keys.
    keys_at: usize,
    restarts: &'a [u8],
}

/// The first entry at or after the search target.
struct EntryMatch {
    key: Key,
    value: Range<usize>,
    exact: bool,
}

impl<'a> BlockParts<'a> {
    #[inline]
    fn of(block: &'a [u8]) -> Option<Self> {
        let (rest, count) = block.split_last_chunk::<COUNT_LEN>()?;
        let restarts_len = (u32::from_le_bytes(*count) as usize).checked_mul(RESTART_LEN)?;
        let (keys, restarts) = rest.split_at_checked(rest.len().checked_sub(restarts_len)?)?;
        let mut parts = Self { keys, keys_at: 0, restarts };
        parts.keys_at = parts.restart(0)?.key_at;
        (parts.keys_at < keys.len()).then_some(parts)
    }

    #[inline]
    fn restart(&self, i: usize) -> Option<Restart> {
        let (key_at, rest) = self.restarts.get(i * RESTART_LEN..)?.split_first_chunk()?;
        let value_at = rest.first_chunk()?;
        Some(Restart {
            key_at: u32::from_le_bytes(*key_at) as usize,
            value_at: u32::from_le_bytes(*value_at) as usize,
        })
    }

    /// The last restart point whose key is less than `key`, or the first restart point.
    fn bisect(&self, key: &[u8]) -> Option<Restart> {
        let (mut low, mut high) = (0, self.restarts.len() / RESTART_LEN);
        while low + 1 < high {
            let middle = (low + high) / 2;
            let head = Key::parse(self.keys, self.restart(middle)?.key_at)?;
            if is_less(head.suffix(self.keys), key) {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.restart(low)
    }

    /// Finds the first entry at or after `target`; `None` = the block is malformed, `Some(None)` =
    /// it has no such entry. Rebuilds no keys: the search only tracks how many bytes the previous
    /// key, which is less than `target`, shares with `target`.
    fn search(&self, target: &[u8]) -> Option<Option<EntryMatch>> {
        let Restart { key_at: mut at, mut value_at } = self.bisect(target)?;
        let mut matched = 0;
        while at < self.keys.len() {
            let key = Key::parse(self.keys, at)?;
            if key.shared == 0 {
                // The entry may be a restart point, where `shared` is 0 whatever prefix the key
                // has in common with the previous one.
                matched = 0;
            }
            let value = value_at..value_at + key.value_len;
            if key.shared < matched {
                // The key is greater than the previous key at a byte where the previous key still
                // matches `target`, so the key is greater than `target`.
                return self.hit(key, value, false);
            }
            if key.shared == matched {
                let (suffix, rest) = (key.suffix(self.keys), &target[matched..]);
                let same = shared_prefix(suffix, rest);
                if same == suffix.len() && same == rest.len() {
                    return self.hit(key, value, true);
                }
                if suffix.get(same) > rest.get(same) {
                    return self.hit(key, value, false);
                }
                matched += same;
            }
            (at, value_at) = (key.end, value.end);
        }
        Some(None)
    }

    fn hit(&self, key: Key, value: Range<usize>, exact: bool) -> Option<Option<EntryMatch>> {
        (value.end <= self.keys_at).then_some(Some(EntryMatch { key, value, exact }))
    }
}

/// Position in `block` of the value of `key`; `None` = the block lacks the key.
pub(super) fn find(block: &[u8], key: &[u8]) -> Result<Option<Range<usize>>, Malformed> {
    let hit = BlockParts::of(block).and_then(|parts| parts.search(key)).ok_or(Malformed)?;
    Ok(hit.filter(|hit| hit.exact).map(|hit| hit.value))
}

/// Position in `block` of the value of the first key at or after `key`; `None` = there is none.
pub(super) fn find_from(block: &[u8], key: &[u8]) -> Result<Option<Range<usize>>, Malformed> {
    let hit = BlockParts::of(block).and_then(|parts| parts.search(key)).ok_or(Malformed)?;
    Ok(hit.map(|hit| hit.value))
}

/// A position in a block. A cursor without a block is at the end.
#[derive(Default)]
pub(super) struct Cursor {
    block: Bytes,
    keys_at: usize,
    keys_end: usize,
    /// Offset of the key after the current one.
    next_at: usize,
    key: Vec<u8>,
    value: Range<usize>,
    valid: bool,
}

impl Cursor {
    /// Sets another block and keeps the key buffer. The cursor has no position until a seek.
    pub(super) fn set_block(&mut self, block: Bytes) -> Result<(), Malformed> {
        self.valid = false;
        let parts = BlockParts::of(&block).ok_or(Malformed)?;
        (self.keys_at, self.keys_end) = (parts.keys_at, parts.keys.len());
        self.block = block;
        Ok(())
    }

    /// Clears the position and the block, and keeps the key buffer.
    pub(super) fn drop_block(&mut self) {
        self.valid = false;
        self.block = Bytes::new();
    }

    pub(super) fn valid(&self) -> bool {
        self.valid
    }

    pub(super) fn key(&self) -> &[u8] {
        debug_assert!(self.valid);
        &self.key
    }

    /// The key of the last entry, after a step past the end.
    pub(super) fn last_key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn value(&self) -> &[u8] {
        debug_assert!(self.valid);
        &self.block[self.value.clone()]
    }

    pub(super) fn seek_to_first(&mut self) -> Result<(), Malformed> {
        self.next_at = self.keys_at;
        self.key.clear();
        self.value = 0..0;
        self.next()
    }

    /// Moves to the first entry at or after `target`.
    pub(super) fn seek(&mut self, target: &[u8]) -> Result<(), Malformed> {
        self.valid = false;
        let parts = BlockParts::of(&self.block).ok_or(Malformed)?;
        let Some(hit) = parts.search(target).ok_or(Malformed)? else { return Ok(()) };
        // The search stops at a key that shares no more bytes with the previous key than the
        // previous key shares with `target`, so the shared bytes are those of `target`.
        self.key.clear();
        self.key.extend_from_slice(&target[..hit.key.shared]);
        self.key.extend_from_slice(hit.key.suffix(parts.keys));
        self.value = hit.value;
        self.next_at = hit.key.end;
        self.valid = true;
        Ok(())
    }

    /// Moves to the next entry, whose key must be greater than the current one, or past the end.
    #[inline]
    pub(super) fn next(&mut self) -> Result<(), Malformed> {
        self.valid = false;
        if self.next_at == self.keys_end {
            return Ok(());
        }
        let keys = &self.block[..self.keys_end];
        let key = Key::parse(keys, self.next_at).ok_or(Malformed)?;
        let value = self.value.end..self.value.end + key.value_len;
        let suffix = key.suffix(keys);
        let ascends = self.key.get(key.shared..).is_some_and(|rest| is_less(rest, suffix));
        if !ascends || value.end > self.keys_at {
            return Err(Malformed);
        }
        self.key.truncate(key.shared);
        self.key.extend_from_slice(suffix);
        self.value = value;
        self.next_at = key.end;
        self.valid = true;
        Ok(())
    }
}
