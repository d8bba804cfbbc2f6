//! A transition from one stage to the next: councillors ask all nodes how far they are, and have
//! the next layout decided once it may be.
//!
//! ```text
//!  prepare ─▶ all nodes of after are up, and hold nothing of another time
//!  read old ─▶ all nodes of after have taken all
//!  read new ─▶ most of before have entered ─▶ settled
//! ```
//!
//! The first councillor does that; each of the others begins a little after the one before it, if
//! the stage lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::event::FailureKind;
use crate::layout::{Layout, Proposal, Stage};
use crate::message::{Class, MovesState, NodeId, Reply, Request};

/// How often nodes are asked, in microseconds.
const ASK_MICROS: u64 = 500_000;

/// How much later than the one before it a councillor begins, in microseconds.
const LATER_MICROS: u64 = 2_000_000;

/// What a councillor has under way about that.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// The stage's epoch, and since when it is in force here.
    began: Option<(u64, u64)>,
    not_before: u64,
    asked: BTreeSet<NodeId>,
    reported: BTreeMap<NodeId, MovesState>,
}

impl Node {
    pub(super) fn moves_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let layout = self.shared.layouts.entered();
        let place = layout.council.iter().position(|seat| seat.node == self.shared.own);
        let Some(place) = place.filter(|_| layout.stage != Stage::Settled) else {
            if self.moving.began.is_some() {
                self.moving = Moving::default();
                self.shared.moves.publish(BTreeMap::new());
            }
            return;
        };
        let began = self.moving.began.filter(|(epoch, _)| *epoch == layout.epoch);
        let since = match began {
            Some((_, since)) => since,
            None => {
                let began = Some((layout.epoch, now.mono));
                self.moving = Moving { began, ..Moving::default() };
                now.mono
            }
        };
        if now.mono < self.moving.not_before.max(since + place as u64 * LATER_MICROS) {
            return;
        }
        self.moving.not_before = now.mono + ASK_MICROS;
        let view = Arc::clone(&self.view);
        for node in view.ids() {
            if self.moving.asked.insert(node) {
                let caller = Caller::Moves(layout.epoch, node);
                self.call(caller, node, Class::Client, Request::Moves, out);
            }
        }
        self.next_stage(now, &layout, out);
    }

    /// A node has reported how far it is, or did not answer.
    pub(super) fn received_moves(
        &mut self,
        (epoch, node): (u64, NodeId),
        result: &Result<Reply, FailureKind>,
    ) {
        if self.moving.began.is_none_or(|(began, _)| began != epoch) {
            return;
        }
        self.moving.asked.remove(&node);
        match result {
            Ok(Reply::Moves(state)) => self.moving.reported.insert(node, *state),
            _ => self.moving.reported.remove(&node),
        };
        self.shared.moves.publish(self.moving.reported.clone());
    }

    /// Has the next layout decided, if it may be.
    fn next_stage(&mut self, now: Now, layout: &Layout, out: &mut Vec<NodeEffect>) {
        let known = self.shared.layouts.known();
        if known.epoch != layout.epoch || !self.is_through(layout) || self.decides_already() {
            return;
        }
        let Some(next) = layout.next_stage().map(Arc::new) else { return };
        let ballot = self.shared.layouts.promised() + 1;
        let proposal = Proposal::new(known, Arc::clone(&next), ballot);
        self.begin_change(now, proposal, next, false);
        self.ask_councillors(now, out);
    }

    /// Whether the stage is at its end. A node that is declared lost goes by nothing any more.
    fn is_through(&self, layout: &Layout) -> bool {
        let state_of = |id: NodeId| self.moving.reported.get(&id);
        let before = layout.before.iter().flat_map(|before| &before.nodes);
        match layout.stage {
            Stage::Settled => false,
            Stage::Prepare | Stage::ReadOld => layout.nodes.iter().all(|node| {
                state_of(node.id).is_some_and(|state| state.epoch == layout.epoch && state.has_all)
            }),
            Stage::ReadNew => {
                let all = before.clone().count();
                let entered = before.filter(|node| {
                    node.is_lost
                        || state_of(node.id).is_some_and(|state| state.epoch >= layout.epoch)
                });
                entered.count() > all / 2
            }
        }
    }
}

#[cfg(test)]
mod tests;
