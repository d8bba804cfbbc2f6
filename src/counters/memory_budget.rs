//! Memory budgets: a bounded number of bytes from which many threads reserve.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use server::link::MessageReservation;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limit on the bytes that are reserved at the same time. Waiting requests are served in order of
/// arrival, and have no reservation while they wait. A request larger than the budget is granted
/// once no other reservation exists. So a value that was stored under a larger setting can still be
/// served, alone.
#[derive(Debug)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    total: u32,
    /// Sum of the bytes for which requests wait.
    wanted: AtomicUsize,
}

/// A reservation from a [`Budget`], whose drop releases the bytes.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    permit: OwnedSemaphorePermit,
    bytes: usize,
}

/// A request that is counted as waiting until it is granted or dropped.
struct QueuedRequest<'a>(&'a AtomicUsize, usize);

impl<'a> QueuedRequest<'a> {
    fn new(wanted: &'a AtomicUsize, bytes: usize) -> Self {
        wanted.fetch_add(bytes, Ordering::Relaxed);
        Self(wanted, bytes)
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(self.1, Ordering::Relaxed);
        assert!(before >= self.1, "what is waited for was counted");
    }
}

impl Budget {
    /// Creates a budget of `total` bytes. A larger `total` than 4 GiB counts as 4 GiB.
    pub(crate) fn new(total: usize) -> Self {
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        Self { free: Arc::new(Semaphore::new(total as usize)), total, wanted: AtomicUsize::new(0) }
    }

    /// Returns the bytes that must be free to grant a request for `bytes`.
    fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }

    /// Reserves `bytes` if they are free; otherwise returns `None`.
    pub(crate) fn take(&self, bytes: usize) -> Option<MemoryReservation> {
        let permit = Arc::clone(&self.free).try_acquire_many_owned(self.share(bytes)).ok()?;
        Some(MemoryReservation { permit, bytes })
    }

    /// Waits until `bytes` are free, and reserves them.
    pub(crate) async fn get(&self, bytes: usize) -> MemoryReservation {
        let _wanted = QueuedRequest::new(&self.wanted, bytes);
        let permit = Arc::clone(&self.free).acquire_many_owned(self.share(bytes)).await;
        MemoryReservation { permit: permit.expect("a budget is never closed"), bytes }
    }

    /// Waits up to `max_wait` until `bytes` are free, and reserves them; `None` after that time.
    pub(crate) async fn wait(&self, bytes: usize, max_wait: Duration) -> Option<MemoryReservation> {
        match self.take(bytes) {
            Some(held) => Some(held),
            None => tokio::time::timeout(max_wait, self.get(bytes)).await.ok(),
        }
    }

    /// Returns the sum of the bytes for which requests wait.
    pub(crate) fn wanted_bytes(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that are reserved.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.total as usize - self.free.available_permits()
    }
}

impl MemoryReservation {
    /// Adds `more` to this reservation. Both are then released together.
    pub(crate) fn merge(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.permit.merge(more.permit);
    }

    /// Releases all bytes except `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let beyond = self.permit.num_permits().saturating_sub(bytes);
        drop(self.permit.split(beyond));
        self.bytes = self.bytes.min(bytes);
    }
}

impl MessageReservation for MemoryReservation {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn grants_stay_within_the_budget_and_are_all_returned() {
        let budget = Budget::new(10);
        let mut first = budget.take(6).unwrap();
        assert!(budget.take(5).is_none());
        let second = budget.take(4).unwrap();
        assert!(budget.take(1).is_none());
        drop(second);
        first.merge(budget.take(4).unwrap());
        assert_eq!((budget.reserved_bytes(), first.bytes()), (10, 10));
        first.shrink(3);
        assert_eq!((budget.reserved_bytes(), first.bytes()), (3, 3));
        let kept = first.keep(Bytes::from_static(b"abc"));
        let part = kept.slice(1..2);
        drop(kept);
        assert_eq!(budget.reserved_bytes(), 3);
        drop(part);
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn a_request_waits_until_others_release_their_bytes() {
        runtime().block_on(async {
            let budget = Budget::new(10);
            let first = budget.take(6).unwrap();
            assert!(budget.wait(5, Duration::from_millis(1)).await.is_none());
            let waiting = budget.wait(5, Duration::MAX);
            let giving = async {
                assert_eq!(budget.wanted_bytes(), 5);
                drop(first);
            };
            assert!(tokio::join!(waiting, giving).0.is_some());
            assert_eq!(budget.wanted_bytes(), 0);
        });
    }

    #[test]
    fn a_request_larger_than_the_budget_is_granted_alone() {
        runtime().block_on(async {
            let budget = Budget::new(10);
            let first = budget.take(1).unwrap();
            assert!(budget.take(usize::MAX).is_none());
            let waiting = budget.wait(11, Duration::MAX);
            let giving = async { drop(first) };
            let mut large = tokio::join!(waiting, giving).0.unwrap();
            assert!(budget.take(1).is_none());
            large.shrink(4);
            assert!(budget.take(6).is_some());
        });
    }
}
