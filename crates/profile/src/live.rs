//! The set of live sampled allocations: a hash table of their addresses, with eight addresses per
//! cache line.
//!
//! A deallocation examines a single line. A full line drops new addresses, so the table is bounded:
//! its 65,536 slots, at 64 KiB between samples, represent 4 GiB.

use std::sync::atomic::{AtomicUsize, Ordering};

const LINES: usize = 8192;
const SLOTS_PER_LINE: usize = 8;

#[repr(align(64))]
struct Line([AtomicUsize; SLOTS_PER_LINE]);

static TABLE: [Line; LINES] =
    [const { Line([const { AtomicUsize::new(0) }; SLOTS_PER_LINE]) }; LINES];

fn line(address: usize) -> &'static Line {
    let mixed = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(mixed >> 51) as usize % LINES]
}

/// Adds an allocation. Returns false if its line is full.
pub(crate) fn insert(address: usize) -> bool {
    let place = line(address).0.iter().find(|place| {
        place.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    place.is_some()
}

/// Removes an allocation, if it is in the set.
#[inline]
pub(crate) fn remove(address: usize) {
    for place in &line(address).0 {
        if place.load(Ordering::Relaxed) == address {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns true if the allocation is in the set.
#[cfg(feature = "record")]
pub(crate) fn contains(address: usize) -> bool {
    line(address).0.iter().any(|place| place.load(Ordering::Relaxed) == address)
}

/// Removes all allocations.
#[cfg(feature = "record")]
pub(crate) fn clear() {
    for place in TABLE.iter().flat_map(|line| &line.0) {
        place.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "record"))]
mod tests {
    use super::*;

    #[test]
    fn an_inserted_address_stays_until_it_is_removed() {
        let addresses: Vec<usize> = (1..20_000).map(|number| number * 48).collect();
        let kept: Vec<_> = addresses.iter().filter(|address| insert(**address)).collect();
        assert!(kept.len() > 19_000, "{}", kept.len());
        assert!(kept.iter().all(|address| contains(**address)));
        addresses.iter().for_each(|address| remove(*address));
        assert!(!addresses.iter().any(|address| contains(*address)));
        assert!(insert(16));
        clear();
        assert!(!contains(16));
    }
}
