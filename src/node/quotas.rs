//! How much is stored under the prefixes that have a quota, as this node estimates it, and which
//! writes it refuses for that.
//!
//! ```text
//!  the layout in force ─▶ quotas ◀── how much there is: the thread that counts (runtime/quotas.rs)
//!                          │  ▲
//!                          │  └───── what the loops store since: accept
//!                          └─▶ a write: is its key's prefix full?
//! ```
//!
//! A replica counts what it stores when it takes it, whoever coordinates the write. What it holds
//! of a prefix stands for what all nodes hold of it, so each node knows by itself, at once, how
//! much there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use cluster::layout::Quota;
use cluster::{Record, Shared, Topology};
use lsm::{Engine, Look, Space};
use node::{Accepted, Shares, Usage};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::counters::clocks::wall_micros;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    all: ArcSwap<Vec<Arc<Counted>>>,
    /// Whether there are any, for those who ask with each request.
    are_any: AtomicBool,
    /// Held while a record is counted, so that one of its key is counted after it.
    accepted: Mutex<Accepted>,
    /// For how much on all nodes a byte on this one stands.
    shares: ArcSwap<Shares>,
}

/// A quota, and how it stands.
#[derive(Debug)]
pub(crate) struct Counted {
    /// As it was set.
    pub(crate) quota: Quota,
    used: Arc<Used>,
}

/// How much of a quota is used, whatever its limits are.
#[derive(Debug, Default)]
struct Used {
    usage: Mutex<Usage>,
    /// What `usage` says, for those who ask with each request.
    stored: AtomicU64,
    is_counted: AtomicBool,
    refused: AtomicU64,
}

/// How a quota stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaState {
    /// It was not counted yet, and what was found so far does not reach the hard limit.
    Unknown,
    /// There is room.
    Below,
    /// More is stored than the soft limit.
    AboveSoft,
    /// As much is stored as the hard limit: writes are refused.
    Full,
}

impl Counted {
    /// Bytes that are stored, if they were counted; of a quota that is full before that, bytes that
    /// are known to be.
    pub(crate) fn stored(&self) -> Option<u64> {
        let stored = self.used.stored.load(Ordering::Relaxed);
        (self.state() != QuotaState::Unknown).then_some(stored)
    }

    /// Writes that this node has refused.
    pub(crate) fn refused(&self) -> u64 {
        self.used.refused.load(Ordering::Relaxed)
    }

    /// A write was refused for it.
    pub(crate) fn has_refused(&self) {
        self.used.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes what is known of its use: the thread that counts, and what is accepted.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Usage) -> T) -> T {
        let mut usage = self.used.usage.lock();
        let result = change(&mut usage);
        self.used.stored.store(usage.stored(), Ordering::Relaxed);
        self.used.is_counted.store(usage.is_counted(), Ordering::Relaxed);
        result
    }

    /// How it stands.
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
    /// All of them, in the order of their prefixes.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Counted>>> {
        self.all.load_full()
    }

    /// Those of the layout that the node goes by. What was counted of a prefix stays counted.
    pub(crate) fn renew(&self, shared: &Shared) {
        let layout = shared.membership.layouts.entered();
        let quotas = &layout.access.quotas;
        let before = self.all();
        if before.iter().map(|counted| &counted.quota).eq(quotas) {
            return;
        }
        if quotas.is_empty() {
            shared.replica.before_writes.set_count(false);
            self.accepted.lock().clear();
        }
        self.replace(&before, quotas);
        if !quotas.is_empty() {
            shared.replica.before_writes.set_count(true);
        }
    }

    fn replace(&self, before: &[Arc<Counted>], quotas: &[Quota]) {
        let renewed = |quota: &Quota| {
            let known = before.iter().find(|known| known.quota.prefix == quota.prefix);
            let used = known.map(|known| Arc::clone(&known.used)).unwrap_or_default();
            Arc::new(Counted { quota: quota.clone(), used })
        };
        self.all.store(Arc::new(quotas.iter().map(renewed).collect()));
        self.are_any.store(!quotas.is_empty(), Ordering::Release);
    }

    /// Who holds what has changed.
    pub(crate) fn place(&self, shares: Shares) {
        self.shares.store(Arc::new(shares));
    }

    /// For how much on all nodes a byte on this one stands.
    pub(crate) fn shares(&self) -> Arc<Shares> {
        self.shares.load_full()
    }

    /// Whether any write can be refused.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Acquire)
    }

    /// The quota for which nothing may be stored under this key, if there is one.
    pub(crate) fn full(&self, key: &[u8]) -> Option<Arc<Counted>> {
        let quotas = self.all.load();
        let is_full = |counted: &&Arc<Counted>| {
            key.starts_with(&counted.quota.prefix) && counted.state() == QuotaState::Full
        };
        quotas.iter().find(is_full).cloned()
    }

    /// Counts a record that this node is about to store, at once.
    ///
    /// It counts for what it is longer than the record before it. Where that would have to be read
    /// from the disk it counts in full, and the next count makes up for that.
    #[cold]
    pub(crate) fn accept(&self, shared: &Shared, engine: &Engine, key: &[u8], record: &Record) {
        let quotas = self.all.load();
        let mut within = quotas.iter().filter(|of| key.starts_with(&of.quota.prefix)).peekable();
        let copies = |topology: &Topology| {
            let copies = topology.copies_of(record.copies());
            let holds = topology.holds(shared.own, cluster::partition_of(key), copies);
            holds.then_some(copies)
        };
        // What moves here is counted once keys are placed like that.
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
        let before = || match engine.look(Space::Data, key) {
            Ok(Look::Held(held)) => {
                let is_live = held.kind.is_live(held.expiry_ms, wall_micros);
                let bytes = if is_live { key.len() + held.value_len } else { 0 };
                Some((held.version, bytes as u64))
            }
            Ok(Look::Absent | Look::WouldBlock) | Err(_) => None,
        };
        let version = record.version();
        let mut accepted = self.accepted.lock();
        let more = accepted.accept(xxh3_64(key), (version, bytes), before);
        let all = self.shares.load().all(copies, more.unsigned_abs());
        let all = i64::try_from(all).unwrap_or(i64::MAX) * more.signum();
        // Still one after the other: a removal must not be counted before what it removes.
        within.for_each(|counted| counted.update(|usage| usage.change(key, all)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(prefix: &str, soft: u64, hard: u64) -> Quota {
        Quota { prefix: prefix.into(), soft, hard }
    }

    fn count(counted: &Counted, stored: u64) {
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
            full.has_refused();
            Some(full.quota.prefix.clone())
        };
        assert_eq!(refused(b"a/b"), Some(b"a/".to_vec()));
        assert_eq!((refused(b"a"), refused(b"b/")), (None, None), "a soft limit refuses nothing");
        let state = |at: usize| quotas.all()[at].state();
        assert_eq!(
            [0, 1, 2].map(state),
            [QuotaState::AboveSoft, QuotaState::Full, QuotaState::Below]
        );
        // Another limit holds at once, by what was counted.
        renew(&[quota("a/", 5, 11), quota("a/b", 0, 2), quota("c", 1, 0)]);
        assert_eq!(refused(b"a/b"), Some(b"a/b".to_vec()));
        let state = |at: usize| quotas.all()[at].state();
        assert_eq!([state(0), state(2)], [QuotaState::AboveSoft, QuotaState::Unknown]);
        assert_eq!((quotas.all()[0].refused(), quotas.all()[1].refused()), (1, 1));
        count(&quotas.all()[1], 1);
        assert_eq!(refused(b"a/b"), None);
    }

    #[test]
    fn what_was_found_before_the_first_count_is_through_refuses_too() {
        let quotas = Quotas::default();
        quotas.replace(&[], &[quota("a", 0, 10)]);
        let counted = Arc::clone(&quotas.all()[0]);
        assert_eq!((counted.state(), counted.stored()), (QuotaState::Unknown, None));
        counted.update(|usage| usage.change(b"a", 9));
        assert_eq!((counted.state(), counted.stored()), (QuotaState::Unknown, None));
        counted.update(|usage| usage.change(b"a", 1));
        assert_eq!((counted.state(), counted.stored()), (QuotaState::Full, Some(10)));
    }
}
