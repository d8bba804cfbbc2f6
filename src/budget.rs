//! A bounded number of bytes that many threads draw from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that may be held at once.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    held: AtomicUsize,
}

impl Budget {
    /// A budget of `total` bytes.
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, held: AtomicUsize::new(0) })
    }

    /// Takes `bytes`, to be given back when the result is dropped; `None` if they are not there.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let mut held = Held { budget: Arc::clone(self), bytes: 0 };
        held.grow(bytes).then_some(held)
    }

    /// Bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// Bytes taken from a [`Budget`].
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Held {
    /// Takes `more` bytes; `false`, and none taken, if they are not there.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        // The count orders nothing: it only has to be right.
        let taken = self.budget.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(more).filter(|sum| *sum <= self.budget.total)
        });
        if taken.is_ok() {
            self.bytes += more;
        }
        taken.is_ok()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_gives_more_than_there_is_and_takes_all_back() {
        let budget = Budget::new(10);
        let mut first = budget.take(6).unwrap();
        assert!(budget.take(5).is_none());
        let second = budget.take(4).unwrap();
        assert!(!first.grow(1));
        drop(second);
        assert!(first.grow(4));
        assert_eq!(budget.held(), 10);
        drop(first);
        assert_eq!(budget.held(), 0);
        assert!(budget.take(usize::MAX).is_none());
    }
}
