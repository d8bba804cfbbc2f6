//! How much is stored under the prefixes that have a quota, as this node estimates it, and which
//! writes it refuses for that.
//!
//! ```text
//!  the layout in force ─▶ quotas ◀── how much there is: the thread that counts
//!                           └─▶ a write: is its key's prefix full?
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use cluster::layout::Quota;

/// What stands for what was not counted yet.
const UNKNOWN: u64 = u64::MAX;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Quotas(ArcSwap<Vec<Arc<Counted>>>);

/// A quota, and how it stands.
#[derive(Debug)]
pub(crate) struct Counted {
    /// As it was set.
    pub(crate) quota: Quota,
    stored: AtomicU64,
    refused: AtomicU64,
}

/// How a quota stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaState {
    /// It was not counted yet.
    Unknown,
    /// There is room.
    Below,
    /// More is stored than the soft limit.
    AboveSoft,
    /// As much is stored as the hard limit: writes are refused.
    Full,
}

impl Counted {
    fn new(quota: Quota) -> Self {
        Self { quota, stored: AtomicU64::new(UNKNOWN), refused: AtomicU64::new(0) }
    }

    /// Bytes that are stored, if they were counted.
    pub(crate) fn stored(&self) -> Option<u64> {
        Some(self.stored.load(Ordering::Relaxed)).filter(|stored| *stored != UNKNOWN)
    }

    /// Writes that this node has refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A write was refused for it.
    pub(crate) fn has_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// So much is stored.
    pub(crate) fn count(&self, stored: u64) {
        self.stored.store(stored.min(UNKNOWN - 1), Ordering::Relaxed);
    }

    /// How it stands.
    pub(crate) fn state(&self) -> QuotaState {
        let Quota { soft, hard, .. } = self.quota;
        match self.stored() {
            None => QuotaState::Unknown,
            Some(stored) if hard > 0 && stored >= hard => QuotaState::Full,
            Some(stored) if soft > 0 && stored > soft => QuotaState::AboveSoft,
            Some(_) => QuotaState::Below,
        }
    }
}

impl Quotas {
    /// All of them, in the order of their prefixes.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Counted>>> {
        self.0.load_full()
    }

    /// Those of a layout. What was counted of a prefix stays counted.
    pub(crate) fn renew(&self, quotas: &[Quota]) {
        let before = self.all();
        if before.iter().map(|counted| &counted.quota).eq(quotas) {
            return;
        }
        let renewed = |quota: &Quota| {
            let renewed = Counted::new(quota.clone());
            if let Some(known) = before.iter().find(|known| known.quota.prefix == quota.prefix) {
                renewed.stored.store(known.stored.load(Ordering::Relaxed), Ordering::Relaxed);
                renewed.refused.store(known.refused(), Ordering::Relaxed);
            }
            Arc::new(renewed)
        };
        self.0.store(Arc::new(quotas.iter().map(renewed).collect()));
    }

    /// Whether any write can be refused.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        !self.0.load().is_empty()
    }

    /// The quota for which nothing may be stored under this key, if there is one.
    pub(crate) fn full(&self, key: &[u8]) -> Option<Arc<Counted>> {
        let quotas = self.0.load();
        let is_full = |counted: &&Arc<Counted>| {
            key.starts_with(&counted.quota.prefix) && counted.state() == QuotaState::Full
        };
        quotas.iter().find(is_full).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(prefix: &str, soft: u64, hard: u64) -> Quota {
        Quota { prefix: prefix.into(), soft, hard }
    }

    #[test]
    fn a_write_is_refused_where_any_prefix_of_its_key_is_full() {
        let quotas = Quotas::default();
        assert!(!quotas.are_any() && quotas.full(b"a").is_none());
        quotas.renew(&[quota("", 1, 0), quota("a/", 5, 10), quota("a/b", 0, 3)]);
        assert!(quotas.are_any() && quotas.full(b"a/b").is_none(), "not counted yet");
        let stored = [1 << 40, 10, 2];
        quotas.all().iter().zip(stored).for_each(|(counted, stored)| counted.count(stored));
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
        quotas.renew(&[quota("a/", 5, 11), quota("a/b", 0, 2), quota("c", 1, 0)]);
        assert_eq!(refused(b"a/b"), Some(b"a/b".to_vec()));
        let state = |at: usize| quotas.all()[at].state();
        assert_eq!([state(0), state(2)], [QuotaState::AboveSoft, QuotaState::Unknown]);
        assert_eq!((quotas.all()[0].refused(), quotas.all()[1].refused()), (1, 1));
        quotas.all()[1].count(1);
        assert_eq!(refused(b"a/b"), None);
    }
}
