//! Which keys are asked for: `k` and a number with zeros before it, all of one length.

use crate::plan::Error;

/// Longest key in bytes, as the store takes it.
const MAX_KEY_LEN: usize = 1024;

/// In which order keys come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// 0, 1, 2 … over all connections together, from 0 again after the last.
    Sequential,
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
}

impl Numbers {
    pub(crate) fn new(keys: &Keys) -> Self {
        Self { order: keys.order, count: keys.count, next: 0 }
    }

    pub(crate) fn next(&mut self, random: &mut fastrand::Rng) -> u64 {
        match self.order {
            KeyOrder::Uniform => random.u64(..self.count),
            KeyOrder::Sequential => {
                let number = self.next;
                self.next = (number + 1) % self.count;
                number
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyOrder, Keys};

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
