//! This node drops what is placed elsewhere.

use super::{Node, NodeEffect};
use crate::event::Now;
use crate::layout::Stage;

impl Node {
    pub(super) fn leftovers_due(&mut self, _now: Now, _out: &mut Vec<NodeEffect>) {
        let layouts = &self.shared.layouts;
        // By the end of a transition partitions have left this node, or were about to come to it.
        if layouts.entered().stage == Stage::Settled && layouts.has_leftovers() {
            self.shared.leftovers.want();
        }
    }
}
