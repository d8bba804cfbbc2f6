//! Storage quotas: estimates the bytes stored under each prefix that has a quota, and decides which
//! writes are refused.
//!
//! ```text
//!   layout in force ─▶ quotas ◀── bytes counted by the counting thread (recount.rs)
//!                      │  ▲
//!                      │  └────── growth by each record that the event loops store (accept)
//!                      └────────▶ for each write: is a prefix of its key full?
//! ```
//!
//! A replica counts each record that it stores, whichever node coordinates the write. A node
//! extrapolates its own bytes of a prefix to all nodes, so it needs no queries to other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use lsm::{Engine, HeadLookup, Space};
use parking_lot::Mutex;
use protocol::layout::Quota;
use protocol::{Record, Shared, Topology};
use server::{RecentRecords, Shares, Usage};
use xxhash_rust::xxh3::xxh3_64;

use crate::counters::clocks::wall_micros;

/// All quotas of the layout in force, with their usage.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    all: ArcSwap<Vec<Arc<CountedQuota>>>,
    /// True if any quota exists; an atomic, because every write reads the flag.
    are_any: AtomicBool,
    /// Locked while a record is counted, so the records of a key are counted in their order.
    accepted: Mutex<RecentRecords>,
    /// Factors that extrapolate the bytes on this node to all nodes.
    shares: ArcSwap<Shares>,
}

/// A quota and its usage.
#[derive(Debug)]
pub(crate) struct CountedQuota {
    /// The configured quota.
    pub(crate) quota: Quota,
    used: Arc<PrefixUsage>,
}

/// Usage under a quota's prefix, independent of the quota's limits.
#[derive(Debug, Default)]
struct PrefixUsage {
    usage: Mutex<Usage>,
    /// Copy of the stored bytes in `usage`. Writes read it without the lock.
    stored: AtomicU64,
    /// Copy of [`Usage::is_counted`]. Writes read it without the lock.
    is_counted: AtomicBool,
    /// Number of refused writes since the start of the node, or since the quota was new.
    refused: AtomicU64,
}

/// The state of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaState {
    /// The first count is not complete, and the bytes counted so far are below the hard limit.
    Unknown,
    /// Usage is within the limits.
    Below,
    /// Usage is above the soft limit.
    AboveSoft,
    /// Usage has reached the hard limit: writes are refused.
    Full,
}

impl CountedQuota {
    /// Returns the stored bytes; `None` before the first count is complete. If the quota is full
    /// before that, returns the bytes counted so far.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        let stored = self.used.stored.load(Ordering::Relaxed);
        (self.state() != QuotaState::Unknown).then_some(stored)
    }

    /// Returns the number of writes that this node has refused because of this quota.
    pub(crate) fn refused_writes(&self) -> u64 {
        self.used.refused.load(Ordering::Relaxed)
    }

    /// Counts a write refused because of this quota.
    pub(crate) fn count_refusal(&self) {
        self.used.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes the usage. Callers are the counting thread, and [`Quotas::accept`] for each record.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Usage) -> T) -> T {
        let mut usage = self.used.usage.lock();
        let result = change(&mut usage);
        self.used.stored.store(usage.stored_bytes(), Ordering::Relaxed);
        self.used.is_counted.store(usage.is_counted(), Ordering::Relaxed);
        result
    }

    /// Returns the quota's state.
    pub(crate) fn state(&self) -> QuotaState {
        let Quota { soft, hard, .. } = self.quota;
        let stored = self.used.stored.load(Ordering::Relaxed);
        if hard > 0 && stored >= hard {
            QuotaState::Full
        } else if !self.used.is_counted.load(Ordering::Relaxed) {
            QuotaState::Unknown
        } else if soft > 0 && stored > soft {
            QuotaState::AboveSoft
        } else {
            QuotaState::Below
        }
    }
}

impl Quotas {
    /// Returns all quotas, ordered by prefix.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<CountedQuota>>> {
        self.all.load_full()
    }

    /// Adopts the quotas of the layout in force. A prefix that already had a quota keeps its usage.
    pub(crate) fn adopt_layout(&self, shared: &Shared) {
        let layout = shared.membership.layouts.active_layout();
        let quotas = &layout.access.quotas;
        let before = self.all();
        if before.iter().map(|counted| &counted.quota).eq(quotas) {
            return;
        }
        if quotas.is_empty() {
            shared.replica.write_checks.set_counts_bytes(false);
            self.accepted.lock().clear();
        }
        self.replace(&before, quotas);
        if !quotas.is_empty() {
            shared.replica.write_checks.set_counts_bytes(true);
        }
    }

    fn replace(&self, before: &[Arc<CountedQuota>], quotas: &[Quota]) {
        let renewed = |quota: &Quota| {
            let known = before.iter().find(|known| known.quota.prefix == quota.prefix);
            let used = known.map(|known| Arc::clone(&known.used)).unwrap_or_default();
            Arc::new(CountedQuota { quota: quota.clone(), used })
        };
        self.all.store(Arc::new(quotas.iter().map(renewed).collect()));
        self.are_any.store(!quotas.is_empty(), Ordering::Release);
    }

    /// Sets the extrapolation factors. Called after a change of placement.
    pub(crate) fn place(&self, shares: Shares) {
        self.shares.store(Arc::new(shares));
    }

    /// Returns the factors that extrapolate the bytes on this node to all nodes.
    pub(crate) fn shares(&self) -> Arc<Shares> {
        self.shares.load_full()
    }

    /// True if any quota exists.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Acquire)
    }

    /// Returns a full quota whose prefix covers `key`; `None` if there is none.
    pub(crate) fn full(&self, key: &[u8]) -> Option<Arc<CountedQuota>> {
        let quotas = self.all.load();
        let is_full = |counted: &&Arc<CountedQuota>| {
            key.starts_with(&counted.quota.prefix) && counted.state() == QuotaState::Full
        };
        quotas.iter().find(is_full).cloned()
    }

    /// Counts a record that this node is about to store.
    ///
    /// Only the growth over the previous record is counted. If the previous record is not in
    /// memory, it is ignored, and the new record is counted in full. The next count corrects the
    /// difference.
    #[cold]
    pub(crate) fn accept(&self, shared: &Shared, engine: &Engine, key: &[u8], record: &Record) {
        let quotas = self.all.load();
        let mut within = quotas.iter().filter(|of| key.starts_with(&of.quota.prefix)).peekable();
        let copies = |topology: &Topology| {
            let copies = topology.copies_of(record.copies());
            let holds = topology.holds(shared.own, protocol::partition_of(key), copies);
            holds.then_some(copies)
        };
        // Records of a partition that moves to this node are counted after the new placement is in
        // force.
        let Some(copies) =
            within.peek().and_then(|_| shared.membership.views.with(|view| copies(&view.topology)))
        else {
            return;
        };
        let view = record.view();
        let bytes = match view.is_live(wall_micros) {
            true => (key.len() + view.value().len()) as u64,
            false => 0,
        };
        let before = || match engine.lookup_head(Space::Data, key) {
            Ok(HeadLookup::Found(held)) => {
                let is_live = held.kind.is_live(held.expiry_ms, wall_micros);
                let bytes = if is_live { key.len() + held.value_len } else { 0 };
                Some((held.version, bytes as u64))
            }
            Ok(HeadLookup::Absent | HeadLookup::WouldBlock) | Err(_) => None,
        };
        let version = record.version();
        let mut accepted = self.accepted.lock();
        let more = accepted.accept(xxh3_64(key), (version, bytes), before);
        let all = self.shares.load().all(copies, more.unsigned_abs());
        let all = i64::try_from(all).unwrap_or(i64::MAX) * more.signum();
        // `accepted` is still locked, which keeps the updates in order. A removal must not be
        // counted before the removed record.
        within.for_each(|counted| counted.update(|usage| usage.change(key, all)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(prefix: &str, soft: u64, hard: u64) -> Quota {
        Quota { prefix: prefix.into(), soft, hard }
    }

    fn count(counted: &CountedQuota, stored: u64) {
        counted.update(|usage| {
            usage.begin_lap();
            usage.end_lap(stored);
        });
    }

    #[test]
    fn a_write_is_refused_where_any_prefix_of_its_key_is_full() {
        let quotas = Quotas::default();
        let renew = |new: &[Quota]| quotas.replace(&quotas.all(), new);
        assert!(!quotas.are_any() && quotas.full(b"a").is_none());
        renew(&[quota("", 1, 0), quota("a/", 5, 10), quota("a/b", 0, 3)]);
        assert!(quotas.are_any() && quotas.full(b"a/b").is_none(), "not counted yet");
        let stored = [1 << 40, 10, 2];
        quotas.all().iter().zip(stored).for_each(|(counted, stored)| count(counted, stored));
        let refused = |key: &[u8]| {
            let full = quotas.full(key)?;
            full.count_refusal();
            Some(full.quota.prefix.clone())
        };
        assert_eq!(refused(b"a/b"), Some(b"a/".to_vec()));
        assert_eq!((refused(b"a"), refused(b"b/")), (None, None), "a soft limit refuses nothing");
        let state = |at: usize| quotas.all()[at].state();
        assert_eq!(
            [0, 1, 2].map(state),
            [QuotaState::AboveSoft, QuotaState::Full, QuotaState::Below]
        );
        // New limits take effect at once, for the usage counted so far.
        renew(&[quota("a/", 5, 11), quota("a/b", 0, 2), quota("c", 1, 0)]);
        assert_eq!(refused(b"a/b"), Some(b"a/b".to_vec()));
        let state = |at: usize| quotas.all()[at].state();
        assert_eq!([state(0), state(2)], [QuotaState::AboveSoft, QuotaState::Unknown]);
        assert_eq!((quotas.all()[0].refused_writes(), quotas.all()[1].refused_writes()), (1, 1));
        count(&quotas.all()[1], 1);
        assert_eq!(refused(b"a/b"), None);
    }

    #[test]
    fn a_quota_full_before_its_first_count_ends_refuses_writes() {
        let quotas = Quotas::default();
        quotas.replace(&[], &[quota("a", 0, 10)]);
        let counted = Arc::clone(&quotas.all()[0]);
        assert_eq!((counted.state(), counted.stored_bytes()), (QuotaState::Unknown, None));
        counted.update(|usage| usage.change(b"a", 9));
        assert_eq!((counted.state(), counted.stored_bytes()), (QuotaState::Unknown, None));
        counted.update(|usage| usage.change(b"a", 1));
        assert_eq!((counted.state(), counted.stored_bytes()), (QuotaState::Full, Some(10)));
    }
}
