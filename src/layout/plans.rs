//! The layout plans of this node. `apply` passes a plan to the metadata quorum. The plans are only
//! in memory, so a restart loses them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use protocol::layout::Layout;

/// Maximum number of stored plans. Operators compare a few plans before they apply one of them.
const MAX_PLANS: usize = 16;

/// The latest plans, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Plans(Mutex<VecDeque<Arc<Layout>>>);

impl Plans {
    /// Stores a plan. Drops the oldest plan above `MAX_PLANS`.
    pub(crate) fn keep(&self, plan: Arc<Layout>) {
        let mut plans = self.lock();
        plans.retain(|other| other.id() != plan.id());
        plans.push_back(plan);
        if plans.len() > MAX_PLANS {
            plans.pop_front();
        }
    }

    /// Returns the plan with this id; `None` if this node does not have it.
    pub(crate) fn find(&self, id: u128) -> Option<Arc<Layout>> {
        self.lock().iter().find(|plan| plan.id() == id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Layout>>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Member, Topology};

    use super::*;

    #[test]
    fn the_last_plans_are_kept() {
        let member = Member { name: "a".to_owned(), zone: String::new(), weight: 1 };
        let first = Layout::first(&Topology::new(vec![member], 1).unwrap(), |_| String::new());
        let plan = |epoch: u64| Arc::new(Layout { epoch, ..first.clone() });
        let plans = Plans::default();
        (0..=MAX_PLANS as u64).for_each(|epoch| plans.keep(plan(epoch)));
        plans.keep(plan(MAX_PLANS as u64));
        assert_eq!(plans.find(plan(0).id()), None);
        for epoch in 1..=MAX_PLANS as u64 {
            assert_eq!(plans.find(plan(epoch).id()), Some(plan(epoch)));
        }
    }
}
