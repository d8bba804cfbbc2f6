//! Advance of a transition from one stage to the next: members of the metadata quorum poll all
//! nodes for their progress, and propose the next layout once the stage is complete.
//!
//! ```text
//!  a stage    is complete once
//!  ─────────────────────────────────────────────────────────────────────────────────────────
//!  prepare    all nodes of the new set are up, and have no orphaned records
//!  read old   all nodes of the new set have pulled all records of the partitions that move to them
//!  read new   most nodes of the old set have entered the stage; the next layout is settled
//! ```
//!
//! The first quorum member polls from the beginning of a stage. If the stage lasts, the second
//! member begins to poll 2 s later, the third 4 s later, and so on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::proposals::Proposals;
use crate::background::task::{self, Context, TaskId, Tasks};
use crate::membership::layout::{Layout, Proposal, Stage};
use crate::message::{Class, MovesState, NodeId, Reply, Request};

/// Interval in microseconds at which a node is polled.
const POLL_MICROS: u64 = 500_000;

/// Delay in microseconds between the first polls of consecutive quorum members.
const STAGGER_MICROS: u64 = 2_000_000;

/// This quorum member's part in the current stage.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    under_way: Option<StageUnderWay>,
}

#[derive(Debug)]
struct StageUnderWay {
    /// The stage's epoch.
    epoch: u64,
    /// The task that polls the nodes.
    poll_task: TaskId,
    reports: Rc<Reports>,
}

/// The progress that nodes reported last.
#[derive(Debug, Default)]
struct Reports {
    by_node: RefCell<BTreeMap<NodeId, MovesState>>,
}

impl Reports {
    /// True if the stage is complete. A node declared lost adopts no layout, so it counts as having
    /// entered the stage.
    fn are_complete(&self, layout: &Layout) -> bool {
        let reported = self.by_node.borrow();
        let before = layout.before.iter().flat_map(|before| &before.nodes);
        match layout.stage {
            Stage::Settled => false,
            Stage::Prepare | Stage::ReadOld => layout.nodes.iter().all(|node| {
                let state = reported.get(&node.id);
                state.is_some_and(|state| state.epoch == layout.epoch && state.has_all)
            }),
            Stage::ReadNew => {
                let all = before.clone().count();
                let entered = before.filter(|node| {
                    let state = reported.get(&node.id);
                    node.is_lost || state.is_some_and(|state| state.epoch >= layout.epoch)
                });
                entered.count() > all / 2
            }
        }
    }
}

/// Polls all nodes of a stage repeatedly, after this quorum member's delay. The nodes are taken
/// from the layout, because the tasks' view may still be that of the previous layout.
async fn poll_all(cx: Context, layout: Arc<Layout>, place: usize, reports: Rc<Reports>) {
    cx.pause(place as u64 * STAGGER_MICROS).await;
    let before = layout.before.iter().flat_map(|before| &before.nodes);
    let nodes: BTreeSet<NodeId> = layout.nodes.iter().chain(before).map(|node| node.id).collect();
    task::join_all(nodes.into_iter().map(|node| ask(cx.clone(), node, Rc::clone(&reports)))).await;
}

/// Polls a node for its progress repeatedly.
async fn ask(cx: Context, node: NodeId, reports: Rc<Reports>) {
    loop {
        let since = cx.now().mono;
        let result = cx.call(node, Class::Client, Request::Moves).await;
        match result {
            Ok(Reply::Moves(state)) => reports.by_node.borrow_mut().insert(node, state),
            _ => reports.by_node.borrow_mut().remove(&node),
        };
        cx.shared().membership.moves.publish(reports.by_node.borrow().clone());
        cx.wait_until(|now| now.mono >= since + POLL_MICROS).await;
    }
}

impl Stages {
    pub(crate) fn tick(&mut self, tasks: &mut Tasks, proposals: &mut Proposals) {
        let cx = tasks.context().clone();
        let layout = cx.shared().membership.layouts.active_layout();
        let place = layout.council.iter().position(|seat| seat.node == cx.shared().own);
        let place = place.filter(|_| layout.stage != Stage::Settled);
        let is_over = |under_way: &mut StageUnderWay| {
            place.is_none()
                || under_way.epoch != layout.epoch
                || !tasks.is_under_way(under_way.poll_task)
        };
        if let Some(over) = self.under_way.take_if(is_over) {
            tasks.stop(over.poll_task);
            if place.is_none() {
                cx.shared().membership.moves.publish(BTreeMap::new());
            }
        }
        let Some(place) = place else { return };
        let under_way = self.under_way.get_or_insert_with(|| {
            let reports = Rc::<Reports>::default();
            let poll_task = tasks.spawn(
                "stage",
                poll_all(cx.clone(), Arc::clone(&layout), place, Rc::clone(&reports)),
            );
            StageUnderWay { epoch: layout.epoch, poll_task, reports }
        });
        // The known layout may be later than the active one. The active stage is then over.
        let known = cx.shared().membership.layouts.known_layout();
        let is_next = known.epoch == layout.epoch && !proposals.is_deciding(tasks);
        let has_asked = !under_way.reports.by_node.borrow().is_empty();
        if has_asked
            && is_next
            && under_way.reports.are_complete(&layout)
            && let Some(next) = layout.next_stage().map(Arc::new)
        {
            let ballot = cx.shared().membership.layouts.promised_ballot() + 1;
            proposals.decide(tasks, Proposal::new(known, Arc::clone(&next), ballot), next);
        }
    }
}

#[cfg(test)]
mod tests;
