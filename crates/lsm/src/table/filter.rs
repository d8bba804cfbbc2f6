//! A blocked bloom filter over the user keys of one partition.
//!
//! ```text
//!  filter := line (512 bits) … │ probes u8
//! ```
//!
//! All bits of a key lie in one line of 64 bytes, so a lookup touches one cache line. `h` is the
//! key's hash (xxh3-64, seed 0) × 0x9e3779b97f4a7c15 mod 2^64. The line's number is (`h` >> 32) ×
//! lines >> 32. The number of each bit in the line is the top 9 bits of `g`: first `g` = `h` mod
//! 2^32, then `g` × 0x9e3779b9 mod 2^32, and so on, `probes` times. Bit `b` of a line is bit `b` %
//! 8 of its byte `b` / 8. (The scheme is RocksDB's FastLocalBloom with a different first step.)
//!
//! The first multiplication is necessary because the *top* bits of the hash select the tree: they
//! are equal within a tree and would select only a few of the lines.

const LINE_LEN: usize = 64;
const LINE_BITS: usize = LINE_LEN * 8;

/// Probes per 10 bits of filter for a key. The optimum of an unblocked filter is ln 2 × bits; lines
/// fill unevenly, which makes slightly fewer probes better.
const PROBES_PER_10_BITS: usize = 6;

/// Upper limit of probes in a valid filter: the options allow at most 20 bits per key.
const MAX_PROBES: u8 = 16;

/// Length in bytes of a filter for `keys` keys.
pub(super) fn len_for(keys: usize, bits_per_key: u8) -> usize {
    (keys * usize::from(bits_per_key)).div_ceil(LINE_BITS).max(1) * LINE_LEN + 1
}

/// Builds a filter of the keys with these hashes into `filter`.
pub(super) fn build(hashes: &[u64], bits_per_key: u8, filter: &mut Vec<u8>) {
    let probes = (usize::from(bits_per_key) * PROBES_PER_10_BITS / 10).clamp(1, MAX_PROBES.into());
    let len = len_for(hashes.len(), bits_per_key);
    filter.clear();
    filter.resize(len, 0);
    let lines = (len / LINE_LEN) as u64;
    for hash in hashes {
        let (line, mut bits) = line_and_bits(*hash, lines);
        let line = &mut filter[line..line + LINE_LEN];
        for _ in 0..probes {
            let bit = next_bit(&mut bits);
            line[bit / 8] |= 1 << (bit % 8);
        }
    }
    filter[len - 1] = probes as u8;
}

/// Returns true if the partition may hold a key with this hash; `None` if the filter is malformed.
#[inline]
pub(super) fn may_contain(filter: &[u8], hash: u64) -> Option<bool> {
    let (probes, lines) = filter.split_last()?;
    if lines.is_empty() || lines.len() % LINE_LEN != 0 || !(1..=MAX_PROBES).contains(probes) {
        return None;
    }
    let (line, mut bits) = line_and_bits(hash, (lines.len() / LINE_LEN) as u64);
    let line = &lines[line..line + LINE_LEN];
    Some((0..*probes).all(|_| {
        let bit = next_bit(&mut bits);
        line[bit / 8] & (1 << (bit % 8)) != 0
    }))
}

#[inline]
fn line_and_bits(hash: u64, lines: u64) -> (usize, u32) {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let line = ((mixed >> 32) * lines) >> 32;
    (line as usize * LINE_LEN, mixed as u32)
}

#[inline]
fn next_bit(bits: &mut u32) -> usize {
    let bit = *bits >> (32 - LINE_BITS.trailing_zeros());
    *bits = bits.wrapping_mul(0x9e37_79b9);
    bit as usize
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    /// Hashes of keys in one tree: the top byte is equal, as in one of 256 trees.
    fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
        range.map(|i| xxh3_64(&i.to_le_bytes()) & (u64::MAX >> 8) | 0x5a << 56).collect()
    }

    fn false_positives(keys: u64, bits_per_key: u8) -> f64 {
        let mut filter = Vec::new();
        let present = hashes(0..keys);
        build(&present, bits_per_key, &mut filter);
        assert!(present.iter().all(|hash| may_contain(&filter, *hash) == Some(true)));
        let absent = hashes(1 << 32..(1 << 32) + 100_000);
        let found = absent.iter().filter(|hash| may_contain(&filter, **hash) == Some(true));
        found.count() as f64 / absent.len() as f64
    }

    #[test]
    fn false_positives_stay_under_their_bound_and_there_are_no_false_negatives() {
        for (bits, bound) in [(1, 0.75), (5, 0.13), (10, 0.0125), (16, 0.0025), (20, 0.0015)] {
            for keys in [100, 3_000, 30_000] {
                let rate = false_positives(keys, bits);
                assert!(rate <= bound, "{keys} keys, {bits} bits each: {rate}");
            }
        }
    }

    #[test]
    fn a_malformed_filter_is_detected() {
        for bad in [&[][..], &[6], &[0; 64], &[0; 65], &[17; 65], &[6; 66]] {
            assert_eq!(may_contain(bad, 1), None);
        }
    }
}
