//! Which keys are asked for: `k` and a number with zeros before it, all of one length.

use crate::plan::Error;

/// Longest key in bytes, as the store takes it.
const MAX_KEY_LEN: usize = 1024;

/// In which order keys come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// 0, 1, 2 … over all connections together, from 0 again after the last.
    Sequential,
    /// Each once, far from the one before it, then all again: fills a store without sorting it.
    Scattered,
    /// Each as likely as any other.
    Uniform,
}

/// Which keys are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// In which order.
    pub order: KeyOrder,
    /// How many different ones.
    pub count: u64,
    /// Bytes of one.
    pub len: usize,
}

impl Default for Keys {
    fn default() -> Self {
        Self { order: KeyOrder::Uniform, count: 200_000, len: 16 }
    }
}

impl Keys {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let digits = self.count.saturating_sub(1).max(1).ilog10() as usize + 1;
        if self.count == 0 {
            Err(Error::Plan("there must be at least one key"))
        } else if self.len < digits + 1 || self.len > MAX_KEY_LEN {
            Err(Error::Plan("keys must be long enough for `k` and their number, up to 1 KiB"))
        } else {
            Ok(())
        }
    }

    /// Appends the key with this number.
    pub fn write(&self, number: u64, out: &mut Vec<u8>) {
        out.push(b'k');
        let start = out.len();
        out.resize(start + self.len - 1, b'0');
        let mut rest = number;
        for digit in out[start..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// Hands out numbers of keys.
pub(crate) struct Numbers {
    order: KeyOrder,
    count: u64,
    next: u64,
    step: u64,
}

impl Numbers {
    pub(crate) fn new(keys: &Keys) -> Self {
        let step = match keys.order {
            KeyOrder::Scattered => scattering_step(keys.count),
            KeyOrder::Sequential | KeyOrder::Uniform => 1 % keys.count,
        };
        Self { order: keys.order, count: keys.count, next: 0, step }
    }

    pub(crate) fn next(&mut self, random: &mut fastrand::Rng) -> u64 {
        match self.order {
            KeyOrder::Uniform => random.u64(..self.count),
            KeyOrder::Sequential | KeyOrder::Scattered => {
                let number = self.next;
                self.next = (number + self.step) % self.count;
                number
            }
        }
    }
}

/// A step that visits all of `count` numbers: near the golden section, which spreads any run of
/// visits evenly, and without a common divisor.
fn scattering_step(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_034) as u64;
    (golden..count).find(|&step| gcd(step, count) == 1).unwrap_or(1 % count)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{KeyOrder, Keys, Numbers};

    #[test]
    fn in_order_or_scattered_each_key_comes_once() {
        for order in [KeyOrder::Sequential, KeyOrder::Scattered] {
            for count in [1, 2, 3, 10, 360, 1009] {
                let mut numbers = Numbers::new(&Keys { order, count, len: 16 });
                let mut random = fastrand::Rng::with_seed(1);
                let mut seen: Vec<u64> = (0..count).map(|_| numbers.next(&mut random)).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<_>>(), "{order:?}");
            }
        }
    }

    #[test]
    fn keys_have_one_length() {
        let keys = Keys { order: KeyOrder::Sequential, count: 1000, len: 16 };
        for number in [0, 7, 999] {
            let mut out = Vec::new();
            keys.write(number, &mut out);
            assert_eq!(out, format!("k{number:015}").into_bytes());
        }
    }

    #[test]
    fn keys_too_short_for_their_number_are_refused() {
        let keys = |count, len| Keys { order: KeyOrder::Uniform, count, len };
        assert!(keys(1000, 4).check().is_ok());
        assert!(keys(1001, 4).check().is_err());
        assert!(keys(0, 16).check().is_err());
        assert!(keys(10, 1025).check().is_err());
    }
}
