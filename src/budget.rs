//! A bounded number of bytes that many threads draw from.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may be held at once. Who has to wait for some is served in order of arrival.
///
/// Whoever asks for more than there is gets all of it, alone: a value that was stored when the
/// budget was larger can still be read, one at a time. What it takes beyond is at most one value.
#[derive(Debug)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    total: usize,
}

/// Bytes taken from a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(crate) struct Held(OwnedSemaphorePermit);

impl Budget {
    /// A budget of `total` bytes.
    pub(crate) fn new(total: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(total)), total }
    }

    /// Takes `bytes` if they are there.
    pub(crate) fn take(&self, bytes: usize) -> Option<Held> {
        Arc::clone(&self.free).try_acquire_many_owned(self.share(bytes)).ok().map(Held)
    }

    /// Takes `bytes`, waiting for them if need be, but not longer than `patience`.
    pub(crate) async fn wait(&self, bytes: usize, patience: Duration) -> Option<Held> {
        if let Some(held) = self.take(bytes) {
            return Some(held);
        }
        let free = Arc::clone(&self.free).acquire_many_owned(self.share(bytes));
        tokio::time::timeout(patience, free).await.ok()?.ok().map(Held)
    }

    /// What is taken for so many bytes.
    fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.total)).unwrap_or(u32::MAX)
    }

    /// Bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.total - self.free.available_permits()
    }
}

impl Held {
    /// Puts `more` with these, to be given back together.
    pub(crate) fn merge(&mut self, more: Self) {
        self.0.merge(more.0);
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
        assert!(budget.take(1).is_none());
        drop(second);
        first.merge(budget.take(4).unwrap());
        assert_eq!(budget.held(), 10);
        drop(first);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn more_than_there_is_goes_to_one_alone() {
        let budget = Budget::new(10);
        let one = budget.take(1).unwrap();
        assert!(budget.take(usize::MAX).is_none(), "not beside another");
        drop(one);
        let all = budget.take(usize::MAX).unwrap();
        assert!(budget.take(1).is_none() && budget.take(11).is_none());
        assert_eq!(budget.held(), 10);
        drop(all);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn waits_for_what_others_give_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let budget = Budget::new(10);
            let first = budget.take(6).unwrap();
            assert!(budget.wait(5, Duration::from_millis(1)).await.is_none());
            assert!(budget.wait(11, Duration::from_millis(1)).await.is_none());
            let waiting = budget.wait(5, Duration::MAX);
            let giving = async { drop(first) };
            assert!(tokio::join!(waiting, giving).0.is_some());
        });
    }
}
