//! Driver of layout decisions on a node: drives proposals to a decision, completes layouts that
//! this node accepted without learning the outcome, and pulls later layouts from nodes that have
//! them.
//!
//! ```text
//!   a requested layout (Propose) ────────────────┐
//!   an accepted layout whose outcome is unknown ─┴▶ task `decide`: prepare, accept, decided
//!   a peer reports a later epoch ─▶ task `pull`: asks the peer for the layout ─▶ layout learned
//!                                 ─▶ layout stored (StoreLayouts) ─▶ layout active
//! ```

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::background::task::{CallSet, Context, TaskId, Tasks};
use crate::event::FailureKind;
use crate::membership::adopted_layout::{ChangeReport, Progress};
use crate::membership::layout::{Layout, Proposal, ProposalStep, VoteReply, VoteRequest};
use crate::message::{Class, NodeId, Reply, Request};

/// Base backoff of an outbid proposal in microseconds: multiplied by 1 to 16, depending on the
/// node's id, and doubled with each retry.
const OUTBID_WAIT_MICROS: u64 = 50_000;

/// Maximum number of doublings of the backoff. The longest backoff exceeds the two phases of a
/// competing proposal, each with a sync of a disk that may be slow.
const OUTBID_DOUBLED: u32 = 5;

/// Deadline of a proposal without a majority, in microseconds: longer than a node takes to start.
const PROPOSAL_MICROS: u64 = 60_000_000;

/// Delay in microseconds before a quorum member looks for the outcome of a layout that it accepted;
/// staggered by node id.
const COMPLETE_AFTER_MICROS: u64 = 2_000_000;

/// The tasks of this node that drive decisions on layouts, or fetch layouts.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    /// The `decide` task and its decision.
    change: Option<(TaskId, Rc<RefCell<Decision>>)>,
    /// The task that fetches a later layout.
    pull: Option<TaskId>,
    /// Time since which an accepted layout has no known outcome, in microseconds of the monotonic
    /// clock.
    accepted_since: Option<u64>,
}

/// A layout whose decision this node drives.
#[derive(Debug)]
struct Decision {
    proposal: Proposal,
    /// The requested layout. The proposal may carry another layout instead, which quorum members
    /// accepted earlier.
    wanted: Arc<Layout>,
    /// True if the layout was requested at this node; false if it is the next stage of a transition
    /// or a layout that this quorum member accepted.
    is_own: bool,
    /// Quorum members whose last reply was that they have no vote.
    without_vote: BTreeSet<NodeId>,
    decided: bool,
    /// True if the final progress is reported.
    has_ended: bool,
}

/// The task's next step after a reply.
enum DecisionStep {
    /// Waits for other replies.
    Wait,
    /// Sends the requests of the proposal's next phase.
    Ask,
    /// A competing proposal has this ballot. The task restarts its own proposal after a backoff,
    /// with a higher ballot.
    Outbid(u64),
    End(Progress),
}

impl Decision {
    fn report(&self, cx: &Context, progress: Progress) {
        if self.is_own {
            let layout = Arc::clone(&self.wanted);
            let without_vote = self.without_vote.iter().copied().collect();
            cx.shared().membership.layouts.set_change_report(ChangeReport {
                layout,
                progress,
                without_vote,
            });
        }
    }

    /// Reports the final progress of this decision.
    fn end(&mut self, cx: &Context, progress: Progress) {
        self.has_ended = true;
        self.report(cx, progress);
    }

    /// Returns the progress of a decision that ends without a majority's answer.
    fn progress_without_majority(&self) -> Progress {
        if self.decided { Progress::Decided } else { Progress::GivenUp }
    }

    /// Handles a quorum member's reply, or the failure to ask it.
    fn handle_vote(
        &mut self,
        cx: &Context,
        node: NodeId,
        result: Result<Reply, FailureKind>,
    ) -> DecisionStep {
        let Ok(Reply::Council(reply)) = result else { return DecisionStep::Wait };
        let is_without = reply == VoteReply::NoVote;
        if is_without {
            self.without_vote.insert(node);
        } else {
            self.without_vote.remove(&node);
        }
        match self.proposal.handle_reply(node, reply) {
            None => {
                if is_without {
                    self.report(cx, Progress::Asking);
                }
                DecisionStep::Wait
            }
            Some(ProposalStep::NextPhase) => DecisionStep::Ask,
            Some(ProposalStep::Decided(layout)) => {
                self.decided = true;
                cx.shared().membership.layouts.learn(&layout);
                self.report(cx, Progress::Decided);
                cx.store_layouts();
                DecisionStep::Ask
            }
            Some(ProposalStep::Done(layout)) => {
                let is_wanted = layout.id() == self.wanted.id();
                DecisionStep::End(if is_wanted { Progress::Done } else { Progress::Overtaken })
            }
            Some(ProposalStep::Overtaken(layout)) => {
                cx.shared().membership.layouts.learn(&layout);
                cx.store_layouts();
                // The proposal may have carried another layout, while other nodes decided the
                // wanted layout.
                let is_wanted = layout.id() == self.wanted.id();
                DecisionStep::End(if is_wanted { Progress::Decided } else { Progress::Overtaken })
            }
            Some(ProposalStep::Outbid(ballot)) => DecisionStep::Outbid(ballot),
        }
    }
}

/// Drives a decision: asks the quorum members, phase by phase, until a majority knows the layout.
async fn decide(cx: Context, change: Rc<RefCell<Decision>>) {
    let until = cx.now().mono + PROPOSAL_MICROS;
    let place = u64::from(cx.shared().own.0 % 16) + 1;
    let (mut asked, mut outbid) = (CallSet::new(&cx), 0);
    let end = |progress| change.borrow_mut().end(&cx, progress);
    loop {
        if cx.now().mono > until {
            let given_up = change.borrow().progress_without_majority();
            return end(given_up);
        }
        for (node, request) in change.borrow().proposal.requests() {
            // A quorum member may have left the cluster and its view.
            if cx.view().has(node) {
                asked.ask(node, Class::Client, Request::Council(request));
            }
        }
        // A quorum member that could not be asked is asked again with the next tick.
        let next = loop {
            let Some((node, result)) = asked.next_in_this_tick().await else {
                break DecisionStep::Wait;
            };
            match change.borrow_mut().handle_vote(&cx, node, result) {
                DecisionStep::Wait => {}
                next => break next,
            }
        };
        match next {
            DecisionStep::Wait => {}
            DecisionStep::Ask => asked.forget(),
            DecisionStep::End(progress) => return end(progress),
            DecisionStep::Outbid(ballot) => {
                asked.forget();
                let base = cx.shared().membership.layouts.known_layout();
                let wanted = Arc::clone(&change.borrow().wanted);
                if wanted.base != base.id() {
                    return end(Progress::Overtaken);
                }
                change.borrow_mut().proposal = Proposal::new(base, wanted, ballot + 1);
                let not_before = cx.now().mono + place * (OUTBID_WAIT_MICROS << outbid);
                cx.wait_until(|now| now.mono >= not_before || now.mono > until).await;
                outbid = (outbid + 1).min(OUTBID_DOUBLED);
            }
        }
    }
}

/// Fetches the layout of a node that has a later layout.
async fn pull(cx: Context, node: NodeId) {
    let request = Request::Council(VoteRequest::Ask);
    let layouts = &cx.shared().membership.layouts;
    if let Ok(Reply::Council(VoteReply::Known(layout))) =
        cx.call(node, Class::Client, request).await
        && layouts.learn(&layout)
    {
        cx.store_layouts();
    }
    // If the call failed, or the node has a new disk and is itself behind, the next node that
    // reports a later epoch is asked.
    if layouts.node_ahead() == Some(node) {
        layouts.mark_unreached(node);
    }
}

impl Proposals {
    /// Proposes a layout as the successor of its base. An undecided change that was requested at
    /// this node earlier takes precedence: the new request is then ignored. A request that repeats
    /// the change under way is ignored too.
    pub(crate) fn propose(&mut self, tasks: &mut Tasks, wanted: &Arc<Layout>) {
        let cx = tasks.context().clone();
        let layouts = &cx.shared().membership.layouts;
        let (base, id) = (layouts.known_layout(), wanted.id());
        if let Some(change) = self.under_way(tasks) {
            let change = change.borrow();
            if change.is_own && (!change.decided || change.wanted.id() == id) {
                return;
            }
        }
        let layout = Arc::clone(wanted);
        if id == base.id() {
            // The layout is decided; a majority of its metadata quorum may not know it yet.
            self.begin(tasks, Proposal::of_decided(base), layout, Some(Progress::Decided));
        } else if wanted.base != base.id() {
            let (progress, without_vote) = (Progress::Overtaken, Vec::new());
            layouts.set_change_report(ChangeReport { layout, progress, without_vote });
        } else {
            let proposal = Proposal::new(base, Arc::clone(wanted), layouts.promised_ballot() + 1);
            self.begin(tasks, proposal, layout, Some(Progress::Asking));
        }
    }

    /// Drives the decision on a layout that was not requested at this node: the next stage of a
    /// transition, or a layout that this quorum member accepted.
    pub(crate) fn decide(&mut self, tasks: &mut Tasks, proposal: Proposal, wanted: Arc<Layout>) {
        self.begin(tasks, proposal, wanted, None);
    }

    /// Starts the `decide` task. `progress` is the first report; `None` if the layout was not
    /// requested at this node.
    fn begin(
        &mut self,
        tasks: &mut Tasks,
        proposal: Proposal,
        wanted: Arc<Layout>,
        progress: Option<Progress>,
    ) {
        if let Some((task, _)) = self.change.take() {
            tasks.stop(task);
        }
        let cx = tasks.context().clone();
        let decided = matches!(progress, Some(Progress::Decided));
        let (is_own, without_vote) = (progress.is_some(), BTreeSet::new());
        let change = Decision { proposal, wanted, is_own, without_vote, decided, has_ended: false };
        if let Some(progress) = progress {
            change.report(&cx, progress);
        }
        let change = Rc::new(RefCell::new(change));
        let task = tasks.spawn("decide", decide(cx, Rc::clone(&change)));
        self.change = Some((task, change));
    }

    fn under_way(&self, tasks: &Tasks) -> Option<&RefCell<Decision>> {
        let (task, change) = self.change.as_ref()?;
        tasks.is_under_way(*task).then_some(change)
    }

    /// True if this node drives a proposal.
    pub(crate) fn is_deciding(&self, tasks: &Tasks) -> bool {
        self.under_way(tasks).is_some()
    }

    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        self.pull(tasks);
        self.end_dropped(tasks);
        self.complete_accepted(tasks);
        if tasks.context().shared().membership.layouts.is_unsaved() {
            tasks.context().store_layouts();
        }
    }

    /// Reports the end of a decision whose task was dropped, because a caller may wait for the
    /// report.
    fn end_dropped(&mut self, tasks: &Tasks) {
        let is_over = |(task, _): &mut (TaskId, _)| !tasks.is_under_way(*task);
        let Some((_, change)) = self.change.take_if(is_over) else { return };
        let mut change = change.borrow_mut();
        if !change.has_ended {
            let given_up = change.progress_without_majority();
            change.end(tasks.context(), given_up);
        }
    }

    /// Drives an accepted layout of unknown outcome to a decision: its proposer may be gone, and
    /// perhaps no node knows that the layout is decided.
    fn complete_accepted(&mut self, tasks: &mut Tasks) {
        let (shared, now) = (tasks.context().shared(), tasks.context().now());
        let completed =
            shared.membership.layouts.undecided_proposal().filter(|_| !self.is_deciding(tasks));
        let Some(proposal) = completed else {
            self.accepted_since = None;
            return;
        };
        let since = *self.accepted_since.get_or_insert(now.mono);
        let place = u64::from(shared.own.0 % 16);
        if now.mono >= since + COMPLETE_AFTER_MICROS + place * OUTBID_WAIT_MICROS * 4 {
            let wanted = Arc::clone(proposal.layout());
            self.decide(tasks, proposal, wanted);
            self.accepted_since = None;
        }
    }

    /// Fetches the layout of a node that reported a later epoch.
    pub(crate) fn pull(&mut self, tasks: &mut Tasks) {
        let cx = tasks.context().clone();
        let Some(node) = cx.shared().membership.layouts.node_ahead() else { return };
        let is_asked = self.pull.is_some_and(|task| tasks.is_under_way(task));
        if !is_asked && cx.view().has(node) {
            self.pull = Some(tasks.spawn("pull", pull(cx, node)));
        }
    }
}

#[cfg(test)]
mod tests;
