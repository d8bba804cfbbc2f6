//! Removal of orphaned records, which are now placed on other nodes only.
//! One removal runs at a time, and is repeated if it failed or was requested again meanwhile. See
//! [`OrphanDrops`](crate::OrphanDrops).

use crate::background::effect::BackgroundEffect;
use crate::background::task::Context;
use crate::membership::layout::Stage;

/// Pause after a failure, in microseconds: a full disk is given some time.
const RETRY_MICROS: u64 = 5_000_000;

/// The state of the removal.
#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    /// The request count at the start of the removal under way, and the first epoch of the
    /// placement in force at that time.
    begun: Option<(u64, u64)>,
    not_before: u64,
}

impl Cleanup {
    pub(crate) fn tick(&mut self, cx: &Context) {
        let layout = cx.shared().membership.layouts.active_layout();
        // Orphaned records remain after a transition that took partitions away, and after an
        // aborted transition that had brought records. `Prepare` is included because this node may
        // have missed the settled stage.
        let is_due = matches!(layout.stage, Stage::Settled | Stage::Prepare);
        if is_due && cx.shared().membership.layouts.has_orphans() {
            self.request_drop(cx);
        }
        let is_idle = self.begun.is_none() && self.not_before <= cx.now().mono;
        if is_idle && cx.shared().transfer.orphan_drops.is_pending() {
            self.begun =
                Some((cx.shared().transfer.orphan_drops.request_count(), layout.placement_epoch));
            cx.effect(BackgroundEffect::DropOrphans);
        }
    }

    /// Requests a removal under the placement in force, unless such a removal is pending. A removal
    /// that began under another placement does not suffice.
    pub(crate) fn request_drop(&self, cx: &Context) {
        let began = cx.shared().membership.layouts.active_layout().placement_epoch;
        let is_of_another = self.begun.is_some_and(|(_, of)| of != began);
        let wanted = cx.shared().transfer.orphan_drops.request_count();
        let is_last = self.begun.is_none_or(|(times, _)| times == wanted);
        if !cx.shared().transfer.orphan_drops.is_pending() || is_of_another && is_last {
            cx.shared().transfer.orphan_drops.request();
        }
    }

    pub(crate) fn on_orphans_dropped(&mut self, cx: &Context, done: bool) {
        let Some((times, began)) = self.begun.take() else { return };
        if done {
            cx.shared().transfer.orphan_drops.mark_completed(times);
            cx.shared().membership.layouts.mark_orphans_dropped(began);
            if cx.shared().membership.layouts.is_unsaved() {
                cx.store_layouts();
            }
            self.tick(cx);
        } else {
            self.not_before = cx.now().mono + RETRY_MICROS;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::background::effect::BackgroundConfig;
    use crate::background::{Background, BackgroundEvent};
    use crate::clock::{Clock, Now};
    use crate::membership::disk_ids::Incarnation;
    use crate::membership::logs::Logs;
    use crate::membership::state::{Membership, MembershipState};
    use crate::message::NodeId;
    use crate::placement::topology::{Member, Topology};
    use crate::shared::Shared;

    /// A single node without other background work.
    fn node() -> (Arc<Shared>, Background) {
        let member = Member { name: "a".to_owned(), zone: String::new(), weight: 1 };
        let topology = Topology::new(vec![member], 1).unwrap();
        let membership = Membership::new(MembershipState::Member, 0, true);
        let (clock, logs) =
            (Arc::new(Clock::start(1, 0, 0)), Arc::new(Logs::first(Incarnation(1))));
        let shared = Arc::new(Shared::new(topology, NodeId(0), clock, membership, 0, logs));
        (Arc::clone(&shared), Background::new(shared, BackgroundConfig::IDLE))
    }

    /// Returns the number of removals that an event starts.
    fn drops(node: &mut Background, mono: u64, event: BackgroundEvent) -> usize {
        let mut out = Vec::new();
        node.handle(Now { mono, wall: mono }, event, &mut out);
        out.iter().filter(|effect| matches!(effect, BackgroundEffect::DropOrphans)).count()
    }

    const DONE: BackgroundEvent = BackgroundEvent::OrphansDropped { done: true };
    const FAILED: BackgroundEvent = BackgroundEvent::OrphansDropped { done: false };

    #[test]
    fn one_drop_serves_all_earlier_requests() {
        let (shared, mut node) = node();
        assert_eq!(drops(&mut node, 1, BackgroundEvent::Tick), 0);
        shared.transfer.orphan_drops.request();
        shared.transfer.orphan_drops.request();
        assert_eq!(drops(&mut node, 2, BackgroundEvent::Tick), 1);
        assert_eq!(drops(&mut node, 3, BackgroundEvent::Tick), 0, "it is under way");
        assert!(shared.transfer.orphan_drops.is_pending());
        assert_eq!(drops(&mut node, 4, DONE), 0);
        assert!(!shared.transfer.orphan_drops.is_pending());
        assert_eq!(drops(&mut node, 5, BackgroundEvent::Tick), 0);
    }

    #[test]
    fn a_request_during_a_drop_starts_another_one() {
        let (shared, mut node) = node();
        shared.transfer.orphan_drops.request();
        assert_eq!(drops(&mut node, 1, BackgroundEvent::Tick), 1);
        shared.transfer.orphan_drops.request();
        assert_eq!(drops(&mut node, 2, DONE), 1);
        assert!(shared.transfer.orphan_drops.is_pending());
        assert_eq!(drops(&mut node, 3, DONE), 0);
        assert!(!shared.transfer.orphan_drops.is_pending());
    }

    #[test]
    fn a_failure_is_tried_again_later() {
        let (shared, mut node) = node();
        shared.transfer.orphan_drops.request();
        assert_eq!(drops(&mut node, 1, BackgroundEvent::Tick), 1);
        assert_eq!(drops(&mut node, 2, FAILED), 0);
        assert!(shared.transfer.orphan_drops.is_pending());
        assert_eq!(drops(&mut node, 1 + RETRY_MICROS, BackgroundEvent::Tick), 0);
        assert_eq!(drops(&mut node, 2 + RETRY_MICROS, BackgroundEvent::Tick), 1);
        assert_eq!(drops(&mut node, 3 + RETRY_MICROS, DONE), 0);
        assert!(!shared.transfer.orphan_drops.is_pending());
    }
}
