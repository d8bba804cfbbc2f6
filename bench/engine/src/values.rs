//! Keys and values in `db_bench`'s format, so that every engine stores the same bytes.

/// Length of a key in bytes: a big-endian number of 8 bytes, then the digit `0` eight times.
pub(crate) const KEY_LEN: usize = 16;

/// Length of a value in bytes.
pub(crate) const VALUE_LEN: usize = 100;

/// Compressed size of a value, as a share of its length.
pub(crate) const COMPRESSION_RATIO: f64 = 0.5;

/// Length in bytes of the pool of values. Consecutive values are consecutive slices of the pool,
/// from the start again after its end.
const POOL_LEN: usize = 1 << 20;

/// Returns the key with this number.
pub(crate) fn key(number: u64) -> [u8; KEY_LEN] {
    let mut key = [b'0'; KEY_LEN];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns a key that resembles the one with this number, but is one byte longer and was never
/// written.
pub(crate) fn missing_key(number: u64) -> [u8; KEY_LEN + 1] {
    let mut missing = [b'0'; KEY_LEN + 1];
    missing[..KEY_LEN].copy_from_slice(&key(number));
    missing
}

/// A generator of values. A value consists of random printable characters, and then of the same
/// characters again.
pub(crate) struct Values {
    pool: Vec<u8>,
    at: usize,
}

impl Values {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let noise = (VALUE_LEN as f64 * COMPRESSION_RATIO) as usize;
        let mut pool = Vec::with_capacity(POOL_LEN + VALUE_LEN);
        while pool.len() < POOL_LEN {
            let start = pool.len();
            pool.extend(std::iter::repeat_with(|| random.u8(b' '..b' ' + 95)).take(noise));
            while pool.len() < start + VALUE_LEN {
                let again = noise.min(start + VALUE_LEN - pool.len());
                pool.extend_from_within(start..start + again);
            }
        }
        Self { pool, at: 0 }
    }

    pub(crate) fn next(&mut self) -> &[u8] {
        if self.at + VALUE_LEN > self.pool.len() {
            self.at = 0;
        }
        self.at += VALUE_LEN;
        &self.pool[self.at - VALUE_LEN..self.at]
    }
}

#[cfg(test)]
mod tests {
    use super::{VALUE_LEN, Values, key, missing_key};

    #[test]
    fn keys_sort_as_their_numbers_do() {
        assert!(key(255) < key(256));
        assert!(key(7)[..] < missing_key(7)[..] && missing_key(7)[..] < key(8)[..]);
        assert_eq!(&missing_key(7)[..16], key(7));
    }

    #[test]
    fn both_halves_of_a_value_are_equal() {
        let mut values = Values::new(1);
        for _ in 0..20_000 {
            let value = values.next();
            assert_eq!(value.len(), VALUE_LEN);
            assert_eq!(value[..50], value[50..]);
        }
    }
}
