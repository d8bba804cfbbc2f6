//! The transfers to this node together: when each begins, and what its end means for the node's
//! membership state and its part in a transition.
//!
//! ```text
//!  marked to lack something ─▶ rebuild ─▶ history ─▶ Member
//!  a partition moves here   ─▶ (a member) rebalance ─▶ history ─▶ has all
//! ```

use std::sync::atomic::Ordering;

use super::{History, Purpose, Rebalance, Rebuild, sources, takes};
use crate::background::task::{Context, Tasks};
use crate::membership::identity::{Identity, lacks_since};
use crate::membership::layouts::TakingStep;
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
    /// When the node handled its first event, by the monotonic clock.
    begun: Option<u64>,
}

impl Inbound {
    /// The node handles its first event: from then on it counts for what it has lost.
    pub(crate) fn begin(&mut self, cx: &Context) {
        self.begun.get_or_insert(cx.now().mono);
    }

    /// How far the rebuild of this node is: nodes that have streamed all that this node is marked
    /// to lack, of all others.
    pub(crate) fn repaired(&self, cx: &Context) -> (usize, usize) {
        self.rebuild.repaired(cx)
    }

    /// A transfer may have come further.
    pub(crate) fn look(&mut self, tasks: &mut Tasks, identity: &mut Identity, cleanup: &Cleanup) {
        let cx = tasks.context().clone();
        if self.rebuild.take_news() {
            self.rebuild.drop_done(&cx);
            self.stand_if_whole(&cx, identity);
        }
        if self.rebalance.take_news() {
            cx.keep_layouts();
            self.rebalance_due(tasks, cleanup);
        }
        match self.history.take_ended() {
            None => {}
            Some(Purpose::Rebuild(_)) => identity.stand(&cx, MembershipState::Member),
            Some(Purpose::Move) => cx.keep_layouts(),
        }
    }

    /// Begins the rebuild that is due, and takes over history once it is through.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks, identity: &mut Identity) {
        let cx = tasks.context().clone();
        if !self.may_still_count(&cx) {
            // The last node that was waited for may be declared lost by now.
            self.rebuild.drop_done(&cx);
            self.stand_if_whole(&cx, identity);
            self.rebuild.tick(tasks);
        }
        self.take_over_history(tasks, identity);
    }

    /// Whether a coordinator may still count what this node stored and has lost since, for a write
    /// that another replica is yet to store: a walk that begins now may pass before that does, and
    /// the write would be acknowledged by two and held by one. It is over a deadline after the
    /// start.
    fn may_still_count(&self, cx: &Context) -> bool {
        let is_member = cx.shared().membership.state.state() == MembershipState::Member;
        let begun = self.begun.expect("an event was handled before");
        !is_member && cx.now().mono < begun + cx.config().deadline_micros
    }

    /// A node that holds every record again is a member, unless it is to recollect first what it
    /// has lost of writes with an idempotency key: see `history.rs`.
    fn stand_if_whole(&self, cx: &Context, identity: &mut Identity) {
        let is_whole = self.rebuild.is_whole_again(cx);
        if is_whole && cx.shared().membership.state.words_lost_before() == 0 {
            identity.stand(cx, MembershipState::Member);
        }
    }

    /// A node that has its records again is no member yet: what the other replicas remember comes
    /// last. Were it a member before, the disk of another node might be replaced too early.
    fn take_over_history(&mut self, tasks: &mut Tasks, identity: &mut Identity) {
        let cx = tasks.context().clone();
        let is_whole = self.rebuild.is_whole_again(&cx);
        if !is_whole || identity.stands_soon(MembershipState::Member) {
            return;
        }
        let membership = &cx.shared().membership.state;
        if membership.words_lost_before() == 0 {
            return identity.stand(&cx, MembershipState::Member);
        }
        let (lost, own) = (membership.promised_before(), cx.shared().own);
        let layout = cx.shared().membership.layouts.entered();
        let is_lost = |node: &NodeId| layout.node(*node).is_some_and(|node| node.is_lost);
        let view = cx.view();
        let others = view.topology.ids().filter(|node| *node != own && !is_lost(node));
        let sources: Vec<NodeId> = others.collect();
        self.history.start(tasks, Purpose::Rebuild(lost), &sources, &self.rebalance.pace);
    }

    /// Another placement is in force. What a node takes was written long ago: if it lost the end of
    /// its log, or is a copy, that is not made good by what was written since.
    pub(crate) fn placement_changes(&mut self, tasks: &mut Tasks, identity: &mut Identity) {
        self.rebalance.restart(tasks);
        self.history.stop(tasks);
        let cx = tasks.context();
        let state = cx.shared().membership.state.state();
        if state != MembershipState::Member && lacks_since(cx) != Some(0) {
            cx.shared().transfer.missed.mark(cx.shared().own, Mark { partition: None, since: 0 });
            identity.stand(cx, MembershipState::Rebuilding);
        }
    }

    /// Takes the partitions that move to this node.
    pub(crate) fn rebalance_due(&mut self, tasks: &mut Tasks, cleanup: &Cleanup) {
        let cx = tasks.context().clone();
        let shared = cx.shared();
        if !shared.membership.lacks.load(Ordering::SeqCst) {
            return;
        }
        let layout = shared.membership.layouts.entered();
        // Also of a node that is rebuilt: until they are gone it stores nothing of what moves to
        // it, and that is among what is streamed back. Once they are, that is to be durable first.
        let is_to_be_emptied = shared.is_to_be_emptied() && takes(&layout, shared.own);
        if is_to_be_emptied && shared.membership.layouts.has_leftovers() {
            cleanup.want(&cx);
        }
        // What it has lost is streamed back first.
        if shared.membership.state.state() != MembershipState::Member {
            return;
        }
        let (step, done) = shared.membership.layouts.taken();
        match step {
            TakingStep::Begins if !takes(&layout, shared.own) => {
                shared.membership.layouts.has_taken_all();
                cx.keep_layouts();
            }
            TakingStep::Begins if is_to_be_emptied => {}
            TakingStep::Begins => self.rebalance.start(tasks, &self.rebuild.left_ahead),
            TakingStep::Takes => {
                let sources = sources(&layout, shared.own);
                let left = sources.iter().filter(|node| !done.contains(node)).count();
                shared.membership.moves.has_taken_from(sources.len() - left, sources.len());
                if left == 0 {
                    let pace = &self.rebalance.pace;
                    self.history.start(tasks, Purpose::Move, &sources, pace);
                } else {
                    self.rebalance.start(tasks, &self.rebuild.left_ahead);
                }
            }
            TakingStep::HasAll => {}
        }
    }
}

#[cfg(test)]
mod tests;
