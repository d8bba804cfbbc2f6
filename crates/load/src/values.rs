//! Values derived from a seed and a key, so that any reader can check them.
//!
//! ```text
//!  value = ┌ 8 bytes of hash(seed, key) ┬ the random pool from offset hash(seed, key) on ┐
//! ```
//!
//! The pool makes a value as cheap as a copy, and as incompressible as random bytes. The hash
//! distinguishes two keys with the same offset, and reveals a value that consists of parts of two
//! other values.

use crate::keys::mix;

/// Number of offsets in the pool, a power of two. The pool is longer by the length of a value.
const POOL: usize = 64 << 10;

/// Length in bytes of the hash at the front of a value.
const HASH_LEN: usize = 8;

/// All values of one seed and length.
#[derive(Debug)]
pub(crate) struct Values {
    seed: u64,
    len: usize,
    pool: Vec<u8>,
}

impl Values {
    pub(crate) fn new(seed: u64, len: usize) -> Self {
        let mut pool = vec![0; POOL + len];
        fastrand::Rng::with_seed(seed).fill(&mut pool);
        Self { seed, len, pool }
    }

    /// Returns the hash and the rest of a key's value.
    fn of(&self, key: u64) -> ([u8; HASH_LEN], &[u8]) {
        let hash = mix(self.seed, key);
        let offset = hash as usize % POOL;
        let rest = self.len.saturating_sub(HASH_LEN);
        (hash.to_le_bytes(), &self.pool[offset..offset + rest])
    }

    /// Appends the value of a key.
    pub(crate) fn write(&self, key: u64, out: &mut Vec<u8>) {
        let (front, rest) = self.of(key);
        out.extend_from_slice(&front[..self.len.min(HASH_LEN)]);
        out.extend_from_slice(rest);
    }

    /// Returns true if these bytes are the value of the key.
    pub(crate) fn is(&self, key: u64, bytes: &[u8]) -> bool {
        let (front, rest) = self.of(key);
        let split = self.len.min(HASH_LEN);
        bytes.len() == self.len && bytes[..split] == front[..split] && bytes[split..] == *rest
    }
}

#[cfg(test)]
mod tests {
    use super::Values;

    #[test]
    fn a_value_is_distinguished_from_any_other() {
        for len in [0, 1, 7, 8, 9, 100, 100_000] {
            let values = Values::new(1, len);
            let value = |key| {
                let mut out = Vec::new();
                values.write(key, &mut out);
                out
            };
            let right = value(5);
            assert_eq!(right.len(), len);
            assert!(values.is(5, &right));
            assert!(!values.is(5, &[&right[..], b"x"].concat()), "longer");
            if len > 0 {
                assert!(!values.is(5, &right[1..]), "shorter");
                let mut torn = right.clone();
                torn[len - 1] ^= 1;
                assert!(!values.is(5, &torn));
            }
            if len >= 7 {
                assert!(!values.is(5, &value(6)));
                assert!(!Values::new(2, len).is(5, &right), "another seed");
            }
        }
    }
}
