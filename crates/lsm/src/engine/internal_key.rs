//! Internal keys, and the hash that places a key in a tree.

use xxhash_rust::xxh3::xxh3_64;

use crate::batch::Space;

/// Hash of a user key: its top bits select the partition, and the bloom filters use all of it.
pub(super) fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Index of a key's tree among `trees` trees: the top bits of the key's partition.
pub(super) fn tree_of(trees: usize, hash: u64) -> usize {
    match trees.trailing_zeros() {
        0 => 0,
        bits => (hash >> (64 - bits)) as usize,
    }
}

/// An internal key: the space, then the user key. Short keys need no allocation.
pub(super) struct InternalKey {
    short: [u8; InternalKey::SHORT],
    long: Vec<u8>,
    len: usize,
}

impl InternalKey {
    const SHORT: usize = 128;

    pub(super) fn new(space: Space, key: &[u8]) -> Self {
        let len = key.len() + 1;
        let mut internal_key = Self { short: [0; Self::SHORT], long: Vec::new(), len };
        if len <= Self::SHORT {
            internal_key.short[0] = space as u8;
            internal_key.short[1..len].copy_from_slice(key);
        } else {
            internal_key.long.reserve_exact(len);
            internal_key.long.push(space as u8);
            internal_key.long.extend_from_slice(key);
        }
        internal_key
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.len <= Self::SHORT { &self.short[..self.len] } else { &self.long }
    }

    /// The internal key of `start`, the first user key of a range.
    pub(super) fn start_of(space: Space, start: &[u8]) -> Vec<u8> {
        Self::new(space, start).bytes().to_vec()
    }
}
