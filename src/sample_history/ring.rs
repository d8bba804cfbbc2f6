//! A ring of a node's samples, the oldest first: one per second, for the last 15 minutes.
//!
//! ```text
//!  push ─▶ varints ─▶ │ oldest │ … │ newest │ ─▶ from(number) ─▶ samples
//!                      └ dropped beyond SAMPLES samples or HISTORY_BYTES bytes
//! ```
//!
//! A sample has only its non-zero values, each with its index, because most values are 0 in most
//! seconds.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Maximum number of samples: 15 minutes at one sample a second, the dashboard's longest time
/// range.
pub(crate) const SAMPLES: usize = 900;

/// Maximum size of all encoded samples, in bytes: 2.3 KiB for each sample, several times the size
/// of a busy node's samples. Above the limit, samples are dropped before they are 15 minutes old.
pub(crate) const HISTORY_BYTES: usize = 2 << 20;

/// The changes of the counters in about a second, and the current gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Wall time at which the sample was taken, in seconds since 1970.
    pub(crate) second: u64,
    /// Duration of the sample, in milliseconds.
    pub(crate) took_ms: u64,
    /// Non-zero values: index and value, by ascending index.
    pub(crate) values: Vec<(u64, u64)>,
    /// Number of hints for each peer: node id and count, by ascending id.
    pub(crate) hints: Vec<(u64, u64)>,
}

/// A node's last samples. One thread writes them, others read them.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Box<[u8]>>,
    /// Number of the oldest sample. Numbers count from the node's start.
    first: u64,
    bytes: usize,
}

impl History {
    /// Appends a sample, and drops the oldest samples above the limits.
    pub(crate) fn push(&self, sample: &Sample) {
        let encoded = sample.encode();
        let mut ring = self.0.lock();
        ring.bytes += encoded.len();
        ring.samples.push_back(encoded);
        while ring.samples.len() > SAMPLES || ring.bytes > HISTORY_BYTES {
            let Some(oldest) = ring.samples.pop_front() else { break };
            ring.bytes -= oldest.len();
            ring.first += 1;
        }
    }

    /// Returns up to `most` samples from number `from` on, and the number of the sample after them.
    /// If sample `from` was dropped, begins at the oldest sample.
    pub(crate) fn from(&self, from: u64, most: usize) -> (Vec<Sample>, u64) {
        let ring = self.0.lock();
        let from = from.max(ring.first);
        let samples = ring.samples.iter().skip((from - ring.first) as usize).take(most);
        let samples: Vec<Sample> = samples.map(|encoded| Sample::decode(encoded)).collect();
        let next = from + samples.len() as u64;
        (samples, next)
    }
}

impl Sample {
    fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::new();
        put(&mut out, self.second);
        put(&mut out, self.took_ms);
        for pairs in [&self.values, &self.hints] {
            put(&mut out, pairs.len() as u64);
            let mut before = 0;
            for (place, value) in pairs {
                put(&mut out, place - before);
                put(&mut out, *value);
                before = *place;
            }
        }
        out.into()
    }

    fn decode(mut bytes: &[u8]) -> Self {
        let bytes = &mut bytes;
        let (second, took_ms) = (take(bytes), take(bytes));
        let [values, hints] = [(); 2].map(|()| {
            let mut place = 0;
            let pairs = (0..take(bytes)).map(|_| {
                place += take(bytes);
                (place, take(bytes))
            });
            pairs.collect()
        });
        Self { second, took_ms, values, hints }
    }
}

/// Appends a varint: seven bits per byte, the lowest bits first. The highest bit of a byte is set
/// if another byte follows.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Removes a varint that [`put`] wrote from the front of `bytes`.
fn take(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("this process encoded it whole");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64) -> Sample {
        Sample {
            second,
            took_ms: 1000,
            values: vec![(0, 1), (5, 127), (6, 128), (600, u64::MAX)],
            hints: vec![(2, 3)],
        }
    }

    #[test]
    fn samples_are_returned_in_order_and_in_pieces() {
        let history = History::default();
        for second in 0..5 {
            history.push(&sample(second));
        }
        assert_eq!(history.from(0, 2), (vec![sample(0), sample(1)], 2));
        assert_eq!(history.from(2, 9), (vec![sample(2), sample(3), sample(4)], 5));
        assert_eq!(history.from(5, 9), (vec![], 5));
        let empty = Sample { second: 7, ..Sample::default() };
        history.push(&empty);
        assert_eq!(history.from(5, 9), (vec![empty], 6));
    }

    #[test]
    fn the_oldest_samples_are_dropped_above_the_number_and_size_limits() {
        let history = History::default();
        for second in 0..SAMPLES as u64 + 10 {
            history.push(&sample(second));
        }
        assert_eq!(history.from(0, 1), (vec![sample(10)], 11));
        let large =
            Sample { values: (0..2000).map(|place| (place, 1 << 40)).collect(), ..sample(0) };
        for _ in 0..SAMPLES {
            history.push(&large);
        }
        let ring = history.0.lock();
        assert!(ring.bytes <= HISTORY_BYTES, "{} bytes", ring.bytes);
        assert!(ring.samples.len() > 100 && ring.samples.len() < SAMPLES);
        assert_eq!(ring.bytes, ring.samples.iter().map(|sample| sample.len()).sum::<usize>());
    }
}
