//! When this node takes the partitions that move to it (`transfer/rebalance.rs`), and what has to
//! be done before and after.

use std::sync::atomic::Ordering;

use super::{Node, NodeEffect};
use crate::layouts::TakingStep;
use crate::membership::MembershipState;
use crate::missed::Mark;
use crate::transfer::{Purpose, sources, takes};

impl Node {
    /// Another placement is in force. What a node takes was written long ago: if it lost the end of
    /// its log, or is a copy, that is not made good by what was written since.
    pub(super) fn takes_anew(&mut self, out: &mut Vec<NodeEffect>) {
        self.rebalance.restart(&mut self.tasks);
        self.history.stop(&mut self.tasks);
        let state = self.shared.membership.state();
        if state != MembershipState::Member && self.lacks_since() != Some(0) {
            self.shared.missed.mark(self.shared.own, Mark { partition: None, since: 0 });
            self.stand(MembershipState::Rebuilding, out);
        }
    }

    pub(super) fn taking_due(&mut self, out: &mut Vec<NodeEffect>) {
        if !self.shared.lacks.load(Ordering::SeqCst) {
            return;
        }
        let layout = self.shared.layouts.entered();
        // Also of a node that is rebuilt: until they are gone it stores nothing of what moves to
        // it, and that is among what is streamed back. Once they are, that is to be durable first.
        let is_to_be_emptied = self.shared.is_to_be_emptied() && takes(&layout, self.shared.own);
        if is_to_be_emptied && self.shared.layouts.has_leftovers() {
            self.want_no_leftovers();
        }
        // What it has lost is streamed back first.
        if self.shared.membership.state() != MembershipState::Member {
            return;
        }
        let (step, done) = self.shared.layouts.taken();
        match step {
            TakingStep::Begins if !takes(&layout, self.shared.own) => {
                self.shared.layouts.has_taken_all();
                self.keep_layouts(out);
            }
            TakingStep::Begins if is_to_be_emptied => {}
            TakingStep::Begins => self.take(),
            TakingStep::Takes => {
                let sources = sources(&layout, self.shared.own);
                let left = sources.iter().filter(|node| !done.contains(node)).count();
                self.shared.moves.has_taken_from(sources.len() - left, sources.len());
                if left == 0 {
                    let pace = &self.rebalance.pace;
                    self.history.start(&mut self.tasks, Purpose::Move, &sources, pace);
                } else {
                    self.take();
                }
            }
            TakingStep::HasAll => {}
        }
    }

    fn take(&mut self) {
        self.rebalance.start(&mut self.tasks, &self.rebuild.left_ahead);
    }
}

#[cfg(test)]
mod tests;
