//! Values that threads share, one for each node, indexed by the node's id. A value is made at its
//! first use and lives as long as the process, because an id is never given to another node.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::node_id::NodeId;

/// One `T` for each node. Reading takes no lock; the first use of a node's value copies the list.
#[derive(Debug)]
pub struct ByNode<T>(ArcSwap<Vec<Option<Arc<T>>>>);

impl<T> Default for ByNode<T> {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(Vec::new()))
    }
}

impl<T: Default> ByNode<T> {
    /// Calls `what` with a node's value.
    pub fn with<R>(&self, node: NodeId, what: impl FnOnce(&T) -> R) -> R {
        self.with_shared(node, |value| what(value))
    }

    /// True if `what` returns true for any of the values that exist so far.
    pub fn any(&self, what: impl Fn(&T) -> bool) -> bool {
        self.0.load().iter().flatten().any(|value| what(value))
    }

    /// Returns a node's value, for callers that keep it.
    pub fn get(&self, node: NodeId) -> Arc<T> {
        self.with_shared(node, Arc::clone)
    }

    fn with_shared<R>(&self, node: NodeId, what: impl FnOnce(&Arc<T>) -> R) -> R {
        let place = usize::from(node.0);
        if let Some(Some(known)) = self.0.load().get(place) {
            return what(known);
        }
        self.0.rcu(|all| {
            let mut all = Vec::clone(all);
            all.resize(all.len().max(place + 1), None);
            all[place].get_or_insert_default();
            all
        });
        what(self.0.load()[place].as_ref().expect("it was made just now"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn all_threads_see_the_same_value_of_a_node() {
        let counts = ByNode::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for node in 0..100 {
                        counts
                            .with(NodeId(node * 7), |count| count.fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
        });
        for node in 0..100 {
            let count = counts.with(NodeId(node * 7), |count| count.load(Ordering::Relaxed));
            assert_eq!(count, 4);
        }
    }
}
