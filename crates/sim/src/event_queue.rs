//! A queue of future events in the order of their times. Events of the same microsecond keep the
//! order in which they were added.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Entry<T> {
    at: u64,
    number: u64,
    /// Boxed, because the heap moves its entries.
    what: Box<T>,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A queue that returns the event with the earliest time first.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    entries: BinaryHeap<Reverse<Entry<T>>>,
    put: u64,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self { entries: BinaryHeap::new(), put: 0 }
    }

    pub(crate) fn put(&mut self, at: u64, what: T) {
        self.put += 1;
        self.entries.push(Reverse(Entry { at, number: self.put, what: Box::new(what) }));
    }

    /// Removes the next event. Returns its time and contents, or `None` if the queue is empty.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, *entry.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_insertion() {
        let mut agenda = EventQueue::new();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            agenda.put(at, what);
        }
        let order: String = std::iter::from_fn(|| agenda.next()).map(|(_, what)| what).collect();
        assert_eq!(order, "abcd");
    }
}
