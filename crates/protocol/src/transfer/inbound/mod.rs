//! All transfers to this node: when each starts, and what its end means for the node's membership
//! state and its part in a transition.
//!
//! ```text
//!  another node knows another disk of this one ─▶ this node has a mark of missing records
//!    (membership/disk_check.rs)
//!  this node has a mark of missing records ─▶ rebuild (transfer/rebuild.rs) from each node that
//!    knows the new disk (membership/known_disk.rs) ─▶ history (idempotency_history.rs)
//!    ─▶ it becomes a Member
//!  a partition moves to this node, a Member ─▶ rebalance ─▶ history ─▶ it has pulled everything
//! ```

use std::sync::atomic::Ordering;

use super::{History, Rebalance, Rebuild, WalkPurpose, may_gain_records, sources};
use crate::background::task::{Context, Tasks};
use crate::membership::adopted_layout::PullStep;
use crate::membership::disk_check::{DiskCheck, lacks_since};
use crate::membership::state::MembershipState;
use crate::message::NodeId;
use crate::transfer::cleanup::Cleanup;
use crate::transfer::missed::Mark;

/// The transfers to this node.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    rebuild: Rebuild,
    rebalance: Rebalance,
    history: History,
    /// Time when the node handled its first event, in microseconds of the monotonic clock.
    begun: Option<u64>,
}

impl Inbound {
    /// Notes the time of the node's first event: the wait of `may_still_count` begins then.
    pub(crate) fn begin(&mut self, cx: &Context) {
        self.begun.get_or_insert(cx.now().mono);
    }

    /// Returns the progress of this node's rebuild: the number of nodes that have streamed all that
    /// this node is marked to lack, and the number of all other nodes.
    pub(crate) fn rebuild_progress(&self, cx: &Context) -> (usize, usize) {
        self.rebuild.progress(cx)
    }

    /// Handles the ends of walks and passes: drops processed marks, stores the progress, and starts
    /// the transfers that are now due.
    pub(crate) fn follow_progress(
        &mut self,
        tasks: &mut Tasks,
        disk_check: &mut DiskCheck,
        cleanup: &Cleanup,
    ) {
        let cx = tasks.context().clone();
        if self.rebuild.take_progress_flag() {
            self.rebuild.drop_done(&cx);
            self.become_member_if_complete(&cx, disk_check);
        }
        if self.rebalance.take_progress_flag() {
            cx.store_layouts();
            self.rebalance_due(tasks, cleanup);
        }
        match self.history.take_ended() {
            None => {}
            Some(WalkPurpose::Rebuild(_)) => disk_check.store_state(&cx, MembershipState::Member),
            Some(WalkPurpose::Move) => cx.store_layouts(),
        }
    }

    /// Starts the walks of the rebuild that are due. Once all records are rebuilt, pulls the
    /// history of writes with an idempotency key.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks, disk_check: &mut DiskCheck) {
        let cx = tasks.context().clone();
        if !self.may_still_count(&cx) {
            // The last missing source may have been declared lost by now.
            self.rebuild.drop_done(&cx);
            self.become_member_if_complete(&cx, disk_check);
            self.rebuild.tick(tasks);
        }
        self.take_over_history(tasks, disk_check);
    }

    /// True if a coordinator may still count this node's acknowledgement of a write that the node
    /// has lost since and that another replica is yet to store. A walk that starts now may pass the
    /// key before the other replica stores the write. The write would then be acknowledged by two
    /// replicas and held by one. The wait ends one deadline after the node's start.
    fn may_still_count(&self, cx: &Context) -> bool {
        let is_member = cx.shared().membership.state.state() == MembershipState::Member;
        let begun = self.begun.expect("an event was handled before");
        !is_member && cx.now().mono < begun + cx.config().deadline_micros
    }

    /// Makes a node that holds every record again a member, unless it must first recover its
    /// history of writes with an idempotency key: see `idempotency_history.rs`.
    fn become_member_if_complete(&self, cx: &Context, disk_check: &mut DiskCheck) {
        let is_whole = self.rebuild.is_complete(cx);
        if is_whole && cx.shared().membership.state.idempotency_lost_before() == 0 {
            disk_check.store_state(cx, MembershipState::Member);
        }
    }

    /// Pulls the other replicas' history of writes with an idempotency key: the last step before a
    /// node that has its records again becomes a member. If the node became a member earlier,
    /// another node might lose its disk, and with it the history that this node still lacks.
    fn take_over_history(&mut self, tasks: &mut Tasks, disk_check: &mut DiskCheck) {
        let cx = tasks.context().clone();
        let is_whole = self.rebuild.is_complete(&cx);
        if !is_whole || disk_check.is_storing(MembershipState::Member) {
            return;
        }
        let membership = &cx.shared().membership.state;
        if membership.idempotency_lost_before() == 0 {
            return disk_check.store_state(&cx, MembershipState::Member);
        }
        let (lost, own) = (membership.promised_before(), cx.shared().own);
        let layout = cx.shared().membership.layouts.active_layout();
        let is_lost = |node: &NodeId| layout.node(*node).is_some_and(|node| node.is_lost);
        let view = cx.view();
        let others = view.topology.ids().filter(|node| *node != own && !is_lost(node));
        let sources: Vec<NodeId> = others.collect();
        self.history.start(tasks, WalkPurpose::Rebuild(lost), &sources, &self.rebalance.pace);
    }

    /// Handles a change of placement. The partitions that move to this node have records of any
    /// age. A node that is not a member is therefore marked to lack all records, even if its
    /// earlier mark named only recent ones.
    pub(crate) fn placement_changes(&mut self, tasks: &mut Tasks, disk_check: &mut DiskCheck) {
        self.rebalance.restart(tasks);
        self.history.stop(tasks);
        let cx = tasks.context();
        let state = cx.shared().membership.state.state();
        if state != MembershipState::Member && lacks_since(cx) != Some(0) {
            cx.shared().transfer.missed.mark(cx.shared().own, Mark { partition: None, since: 0 });
            disk_check.store_state(cx, MembershipState::Rebuilding);
        }
    }

    /// Pulls the partitions that move to this node.
    pub(crate) fn rebalance_due(&mut self, tasks: &mut Tasks, cleanup: &Cleanup) {
        let cx = tasks.context().clone();
        let shared = cx.shared();
        if !shared.membership.lacks.load(Ordering::SeqCst) {
            return;
        }
        let layout = shared.membership.layouts.active_layout();
        // A node that is being rebuilt drops its orphaned records too. It stores no streamed record
        // that moves to it before the removal of its orphaned records is durable.
        let must_drop_orphans = shared.must_drop_orphans() && may_gain_records(&layout, shared.own);
        if must_drop_orphans && shared.membership.layouts.has_orphans() {
            cleanup.request_drop(&cx);
        }
        // Lost records are streamed back first.
        if shared.membership.state.state() != MembershipState::Member {
            return;
        }
        let (step, done) = shared.membership.layouts.pull_progress();
        match step {
            PullStep::NotStarted if !may_gain_records(&layout, shared.own) => {
                shared.membership.layouts.mark_all_pulled();
                cx.store_layouts();
            }
            PullStep::NotStarted if must_drop_orphans => {}
            PullStep::NotStarted => self.rebalance.start(tasks, &self.rebuild.left_ahead),
            PullStep::Pulling => {
                let sources = sources(&layout, shared.own);
                let left = sources.iter().filter(|node| !done.contains(node)).count();
                shared.membership.moves.set_sources_pulled(sources.len() - left, sources.len());
                if left == 0 {
                    let pace = &self.rebalance.pace;
                    self.history.start(tasks, WalkPurpose::Move, &sources, pace);
                } else {
                    self.rebalance.start(tasks, &self.rebuild.left_ahead);
                }
            }
            PullStep::AllPulled => {}
        }
    }
}

#[cfg(test)]
mod tests;
