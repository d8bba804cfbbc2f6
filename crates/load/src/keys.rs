//! Generates the keys of requests: `k` and a zero-padded number, all of one length.

use std::collections::VecDeque;

use crate::error::Error;
use crate::zipf::Zipf;

/// Longest key in bytes: the store's limit.
const MAX_KEY_LEN: usize = 1024;

/// Maximum number of unanswered `PUT`s that a thread tracks: three for each of 20,000 connections.
/// Older `PUT`s count as answered.
const MAX_UNANSWERED: usize = 1 << 16;

/// The order of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// 0, 1, 2 … over all connections together, from 0 again after the last.
    Sequential,
    /// Each key once, far from the previous key; then all keys again. In this order, keys fill a
    /// store unsorted.
    Scattered,
    /// Every key is equally likely.
    Uniform,
    /// Zipf's law with a theta of 0.99; popular keys are scattered over the key space.
    Zipf,
    /// `PUT`s use the keys in sequence. Any other request uses one of the keys of the last N
    /// answered `PUT`s, where N is this number.
    Latest(u64),
}

/// The key space, and the order of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Order of the keys.
    pub order: KeyOrder,
    /// Number of different keys.
    pub count: u64,
    /// Length of a key in bytes.
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
        let wrong = if self.count == 0 {
            "there must be at least one key".to_owned()
        } else if self.len < digits + 1 || self.len > MAX_KEY_LEN {
            let (len, count, least) = (self.len, self.count, digits + 1);
            format!("keys of {len} bytes: {count} keys need {least}, and 1,024 is the most")
        } else if self.order == KeyOrder::Latest(0) {
            "the latest 0 keys: it must be at least one".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Plan(wrong))
    }

    /// Appends the key with this number to `out`. Leading digits that exceed `len` are dropped.
    pub fn write(&self, number: u64, out: &mut Vec<u8>) {
        out.push(b'k');
        let start = out.len();
        out.resize(start + self.len - 1, b'0');
        let mut rest = number;
        for digit in out[start..].iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// Mixes two numbers into one hash (the finalizer of SplitMix64 by Steele et al.).
pub(crate) fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Generates the key numbers of one thread. Except in `Latest` order, a key follows from the seed
/// and the request's number alone, for any number of threads.
#[derive(Debug)]
pub(crate) struct KeyNumbers {
    count: u64,
    step: u64,
    order: Order,
}

#[derive(Debug)]
enum Order {
    /// A fixed step from the previous request's key: 1 for sequential keys, a long step for
    /// scattered keys.
    Steps,
    Uniform,
    Zipf(Zipf),
    Latest(Latest),
}

/// The keys that one of several threads writes: `worker`, `worker + workers`, `worker + 2 ·
/// workers` …
#[derive(Debug)]
struct Latest {
    worker: u64,
    workers: u64,
    /// A read chooses among the keys of this many writes, the thread's last answered ones.
    window: u64,
    /// Number of writes begun. `done` counts the first of them, up to the first unanswered write.
    begun: u64,
    done: u64,
    /// Answered flags of the writes from `done` on.
    answered: VecDeque<bool>,
}

impl KeyNumbers {
    /// Creates the numbers of one of `workers` threads.
    pub(crate) fn new(keys: &Keys, worker: usize, workers: usize) -> Self {
        let count = keys.count;
        let (worker, workers) = (worker as u64, workers as u64);
        let (step, order) = match keys.order {
            KeyOrder::Sequential => (1, Order::Steps),
            KeyOrder::Scattered => (scattering_step(count), Order::Steps),
            KeyOrder::Uniform => (1, Order::Uniform),
            KeyOrder::Zipf => (scattering_step(count), Order::Zipf(Zipf::new(count))),
            KeyOrder::Latest(window) => {
                let window = window.min(count).div_ceil(workers);
                let answered = VecDeque::new();
                let latest = Latest { worker, workers, window, begun: 0, done: 0, answered };
                (1, Order::Latest(latest))
            }
        };
        Self { count, step, order }
    }

    /// Returns a request's key. In `Latest` order, the key of a `PUT` carries the number of the
    /// thread's earlier `PUT`s (`order`), for [`Self::mark_answered`].
    pub(crate) fn next(&mut self, put: bool, number: u64, random: &mut fastrand::Rng) -> Key {
        let place = |rank: u64| {
            let place = u128::from(rank) * u128::from(self.step) % u128::from(self.count);
            Key { number: place as u64, order: 0 }
        };
        match &mut self.order {
            Order::Steps => place(number),
            Order::Uniform => Key { number: random.u64(..self.count), order: 0 },
            Order::Zipf(zipf) => place(zipf.rank(random)),
            Order::Latest(latest) => latest.next(put, self.count, random),
        }
    }

    /// Marks the `PUT` with this `order` as answered, or as given up.
    pub(crate) fn mark_answered(&mut self, order: u64) {
        if let Order::Latest(latest) = &mut self.order {
            latest.mark_answered(order);
        }
    }
}

/// The key of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) number: u64,
    /// For a `PUT` in `Latest` order, the number of the thread's `PUT`s before it.
    pub(crate) order: u64,
}

impl Latest {
    fn next(&mut self, put: bool, count: u64, random: &mut fastrand::Rng) -> Key {
        let at = if put {
            self.begun += 1;
            i128::from(self.begun) - 1
        } else {
            // Before the first answer, a key of an earlier run is read.
            i128::from(self.done) - 1 - i128::from(random.u64(..self.window))
        };
        let number = i128::from(self.worker) + at * i128::from(self.workers);
        Key {
            number: number.rem_euclid(i128::from(count)) as u64,
            order: self.begun - u64::from(put),
        }
    }

    fn mark_answered(&mut self, order: u64) {
        let Some(at) = order.checked_sub(self.done).map(|at| at as usize) else { return };
        if at >= self.answered.len() {
            self.answered.resize(at + 1, false);
        }
        self.answered[at] = true;
        while self.answered.front() == Some(&true) || self.answered.len() > MAX_UNANSWERED {
            self.answered.pop_front();
            self.done += 1;
        }
    }
}

/// Returns a step that is coprime to `count`, so that its multiples visit all of `count` numbers.
/// The step is near the golden section of `count`, which spreads any sequence of visits evenly.
fn scattering_step(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_034) as u64;
    (golden..count).find(|&step| gcd(step, count) == 1).unwrap_or(1 % count)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{KeyNumbers, KeyOrder, Keys};

    fn numbers(order: KeyOrder, count: u64) -> (KeyNumbers, fastrand::Rng) {
        (KeyNumbers::new(&Keys { order, count, len: 16 }, 0, 1), fastrand::Rng::with_seed(1))
    }

    #[test]
    fn sequential_and_scattered_orders_visit_each_key_once() {
        for order in [KeyOrder::Sequential, KeyOrder::Scattered] {
            for count in [1, 2, 3, 10, 360, 1009] {
                let (mut numbers, mut random) = numbers(order, count);
                let mut seen: Vec<u64> =
                    (0..count).map(|n| numbers.next(true, n, &mut random).number).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<_>>(), "{order:?}");
            }
        }
    }

    #[test]
    fn popular_keys_are_scattered_over_the_key_space() {
        let (mut numbers, mut random) = numbers(KeyOrder::Zipf, 1000);
        let mut seen = [0; 1000];
        for n in 0..10_000 {
            seen[numbers.next(false, n, &mut random).number as usize] += 1;
        }
        let mut popular: Vec<usize> = (0..1000).collect();
        popular.sort_by_key(|&key| std::cmp::Reverse(seen[key]));
        assert!(popular[0].abs_diff(popular[1]) > 100, "{:?}", &popular[..2]);
    }

    #[test]
    fn latest_order_reads_only_answered_writes() {
        let (mut numbers, mut random) = numbers(KeyOrder::Latest(2), 100);
        let random = &mut random;
        let puts: Vec<_> = (0..5).map(|n| numbers.next(true, n, random)).collect();
        assert_eq!(puts.iter().map(|put| put.number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let mut read = |numbers: &mut KeyNumbers| {
            let mut seen: Vec<u64> =
                (0..100).map(|n| numbers.next(false, n, random).number).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(read(&mut numbers), [98, 99], "an earlier run's");
        numbers.mark_answered(puts[0].order);
        numbers.mark_answered(puts[2].order);
        numbers.mark_answered(puts[3].order);
        assert_eq!(read(&mut numbers), [0, 99], "1 has no answer yet");
        numbers.mark_answered(puts[1].order);
        assert_eq!(read(&mut numbers), [2, 3]);
    }

    #[test]
    fn threads_write_different_keys() {
        let keys = Keys { order: KeyOrder::Latest(10), count: 1000, len: 16 };
        let mut random = fastrand::Rng::with_seed(1);
        let mut seen = Vec::new();
        for worker in 0..3 {
            let mut numbers = KeyNumbers::new(&keys, worker, 3);
            seen.extend((0..50).map(|n| numbers.next(true, n, &mut random).number));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..150).collect::<Vec<_>>());
    }

    #[test]
    fn all_keys_have_the_planned_length() {
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
