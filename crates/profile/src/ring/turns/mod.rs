//! Ownership of the ring's slots. Producers claim slots in any order, and may be interrupted by a
//! signal whose handler also claims a slot. A single consumer takes the slots in order.
//!
//! Algorithm: D. Vyukov, "Bounded MPMC queue" (1024cores.net), with one consumer, and with a
//! failure instead of a wait when the ring is full. `turns/model.rs` tests every order of the
//! algorithm's loads and stores.

#[cfg(all(loom, test))]
use loom::sync::atomic::AtomicUsize;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

/// The states of `N` slots, and the next ticket.
pub(super) struct SlotStates<const N: usize> {
    head: AtomicUsize,
    /// State of each slot: 2 × lap = free in that lap, 2 × lap + 1 = filled.
    turns: [AtomicUsize; N],
}

/// Exclusive ownership of a slot, until the ticket is passed on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ticket(usize);

impl<const N: usize> SlotStates<N> {
    #[cfg(not(all(loom, test)))]
    pub(super) const fn new() -> Self {
        Self { head: AtomicUsize::new(0), turns: [const { AtomicUsize::new(0) }; N] }
    }

    /// Loom requires that atomics are created within a model.
    #[cfg(all(loom, test))]
    pub(super) fn new() -> Self {
        Self { head: AtomicUsize::new(0), turns: std::array::from_fn(|_| AtomicUsize::new(0)) }
    }

    /// Claims a free slot, to be filled and passed to [`SlotStates::pass_to_consumer`]; `None` =
    /// the ring is full.
    pub(super) fn claim(&self) -> Option<Ticket> {
        let mut ticket = self.head.load(Ordering::Relaxed);
        loop {
            let free = 2 * (ticket / N);
            let turn = self.turns[ticket % N].load(Ordering::Acquire);
            if turn < free {
                return None;
            }
            if turn > free {
                ticket = self.head.load(Ordering::Relaxed);
                continue;
            }
            let next = ticket.wrapping_add(1);
            match self.head.compare_exchange_weak(
                ticket,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Ticket(ticket)),
                Err(now) => ticket = now,
            }
        }
    }

    /// Returns the index of a ticket's slot.
    pub(super) fn slot(&self, Ticket(ticket): &Ticket) -> usize {
        ticket % N
    }

    /// Passes a filled slot on to the consumer.
    pub(super) fn pass_to_consumer(&self, Ticket(ticket): Ticket) {
        self.turns[ticket % N].store(2 * (ticket / N) + 1, Ordering::Release);
    }

    /// Takes the filled slot of sample number `tail`, to be read and passed to
    /// [`SlotStates::free_slot`]; `None` if the slot is not filled.
    #[cfg(feature = "record")]
    pub(super) fn next(&self, tail: usize) -> Option<Ticket> {
        let filled = 2 * (tail / N) + 1;
        (self.turns[tail % N].load(Ordering::Acquire) == filled).then_some(Ticket(tail))
    }

    /// Frees a slot for the next lap, after the sample was read.
    #[cfg(feature = "record")]
    pub(super) fn free_slot(&self, Ticket(tail): Ticket) {
        self.turns[tail % N].store(2 * (tail / N) + 2, Ordering::Release);
    }
}

#[cfg(all(loom, test))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::UnsafeCell;
    use std::thread;

    use super::*;

    /// Non-atomic contents, so that Miri detects two threads in one slot.
    struct Slots<const N: usize>([UnsafeCell<[u64; 2]>; N]);

    // SAFETY: `SlotStates` gives each slot to one thread at a time. The test verifies this.
    unsafe impl<const N: usize> Sync for Slots<N> {}

    const PRODUCERS: u64 = 3;
    const SAMPLES_PER_PRODUCER: u64 = if cfg!(miri) { 40 } else { 20_000 };

    #[test]
    fn samples_come_out_once_complete_and_in_each_producers_order() {
        let (turns, slots) = (SlotStates::<4>::new(), Slots::<4>(Default::default()));
        let (turns, slots) = (&turns, &slots);
        thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                scope.spawn(move || {
                    for number in 0..SAMPLES_PER_PRODUCER {
                        let ticket = loop {
                            match turns.claim() {
                                Some(ticket) => break ticket,
                                None => thread::yield_now(),
                            }
                        };
                        // SAFETY: the ticket guarantees that no other thread owns the slot.
                        unsafe { *slots.0[turns.slot(&ticket)].get() = [producer, number] };
                        turns.pass_to_consumer(ticket);
                    }
                });
            }
            let mut next = [0; PRODUCERS as usize];
            for tail in 0..(PRODUCERS * SAMPLES_PER_PRODUCER) as usize {
                let ticket = loop {
                    match turns.next(tail) {
                        Some(ticket) => break ticket,
                        None => thread::yield_now(),
                    }
                };
                // SAFETY: as above.
                let [producer, number] = unsafe { *slots.0[turns.slot(&ticket)].get() };
                turns.free_slot(ticket);
                assert_eq!(number, next[producer as usize], "of producer {producer}");
                next[producer as usize] += 1;
            }
            assert_eq!(next, [SAMPLES_PER_PRODUCER; PRODUCERS as usize]);
        });
        assert!(
            turns.next((PRODUCERS * SAMPLES_PER_PRODUCER) as usize).is_none(),
            "nothing more came out"
        );
    }

    #[test]
    fn a_full_ring_refuses_samples_until_a_slot_is_free() {
        let turns = SlotStates::<2>::new();
        let [first, second] = [turns.claim().unwrap(), turns.claim().unwrap()];
        assert_eq!(turns.claim(), None);
        turns.pass_to_consumer(second);
        assert_eq!(turns.next(0), None, "the first is being filled");
        turns.pass_to_consumer(first);
        assert_eq!(turns.claim(), None, "nothing was taken");
        turns.free_slot(turns.next(0).unwrap());
        assert_eq!(turns.claim(), Some(Ticket(2)));
        assert_eq!(turns.claim(), None);
    }
}
