//! Tests the ring with loom: every interleaving of its threads up to a number of preemptions, and
//! every value that the memory orderings allow a load to return.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p profile --lib --target-dir target/loom turns
//! ```
//!
//! The contents of slots are not atomic: loom reports two threads that may access a slot at once,
//! and contents that were not handed over by a release and an acquire.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::SlotStates;

/// Maximum number of preemptions per execution: enough for loom to reject every weakened memory
/// ordering of the ring within seconds.
const PREEMPTIONS: usize = 3;

struct Ring<const N: usize> {
    turns: SlotStates<N>,
    slots: [UnsafeCell<[u8; 2]>; N],
}

impl<const N: usize> Ring<N> {
    fn new() -> Arc<Self> {
        let slots = std::array::from_fn(|_| UnsafeCell::new([0; 2]));
        Arc::new(Self { turns: SlotStates::new(), slots })
    }

    /// Pushes a sample; returns false if the ring is full.
    fn push(&self, producer: u8, number: u8) -> bool {
        let Some(ticket) = self.turns.claim() else { return false };
        let slot = &self.slots[self.turns.slot(&ticket)];
        // SAFETY: the ticket guarantees that no other thread owns the slot; loom verifies this.
        slot.with_mut(|slot| unsafe { *slot = [producer, number] });
        self.turns.pass_to_consumer(ticket);
        true
    }

    fn pop(&self, tail: usize) -> Option<[u8; 2]> {
        let ticket = self.turns.next(tail)?;
        // SAFETY: as above.
        let taken = self.slots[self.turns.slot(&ticket)].with(|slot| unsafe { *slot });
        self.turns.free_slot(ticket);
        Some(taken)
    }
}

/// Pops a sample from the ring `attempts` times, beginning with sample number `tail`.
fn take<const N: usize>(ring: &Ring<N>, tail: usize, attempts: usize) -> Vec<[u8; 2]> {
    let mut taken = Vec::new();
    for _ in 0..attempts {
        taken.extend(ring.pop(tail + taken.len()));
    }
    taken
}

/// Pushes `count` samples of a producer. Returns the numbers of the samples that found a free slot.
fn push_all<const N: usize>(ring: &Ring<N>, producer: u8, count: u8) -> Vec<u8> {
    (1..=count).filter(|number| ring.push(producer, *number)).collect()
}

/// Checks that samples come out once, complete, and in the order of each producer. Every role has a
/// thread of its own, because loom does not explore steps before the first step of the spawning
/// thread.
fn check<const N: usize>(counts: &'static [u8], attempts: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let ring = Ring::<N>::new();
        let producers: Vec<_> = (1..)
            .zip(counts)
            .map(|(producer, &count)| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || push_all(&ring, producer, count))
            })
            .collect();
        let consumer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || take(&ring, 0, attempts))
        };
        let pushed: Vec<_> = producers.into_iter().map(|one| one.join().unwrap()).collect();
        let mut taken = consumer.join().unwrap();
        taken.extend(take(&ring, taken.len(), N));
        assert_eq!(taken.len(), pushed.concat().len(), "{taken:?} of {pushed:?}");
        assert!(taken.len() >= N.min(counts.iter().map(|count| usize::from(*count)).sum()));
        for (producer, numbers) in (1..).zip(&pushed) {
            let of_it = taken.iter().filter(|[by, _]| *by == producer);
            assert!(of_it.map(|[_, number]| number).eq(numbers), "{taken:?} of {pushed:?}");
        }
    });
}

#[test]
fn two_producers_never_own_a_slot_at_once() {
    check::<2>(&[2, 1], 2);
}

#[test]
fn two_producers_share_one_slot() {
    check::<1>(&[1, 1], 2);
}
