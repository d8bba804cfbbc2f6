//! Layouts, as a node drives them: it has its own proposal decided, completes what it accepted and
//! heard nothing of, and asks whoever goes by a later layout for that.
//!
//! ```text
//!   Propose ─▶ decide (a task): prepare, accept, decided ─▶ councillors ─▶ their replies
//!   accepted, and nothing heard of ─▶ decide
//!   a later epoch is heard of ─▶ pull (a task): which layout ─▶ learned ─▶ KeepLayouts ─▶ in force
//! ```

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::background::task::{Asked, Context, TaskId, Tasks};
use crate::event::FailureKind;
use crate::membership::layout::{Layout, Proposal, Proposed, VoteReply, VoteRequest};
use crate::membership::layouts::{ChangeReport, Progress};
use crate::message::{Class, NodeId, Reply, Request};

/// How long after it was outbid a proposal is tried again at the earliest, in microseconds; so many
/// times longer as its node has a greater place, and twice as long each time.
const OUTBID_WAIT: u64 = 50_000;

/// How often that is doubled at most. A proposal that waits lets others end only if they take less
/// time than that: two phases, each with a sync of a disk that may be slow.
const OUTBID_DOUBLED: u32 = 5;

/// How long a proposal looks for a majority, in microseconds: longer than a node takes to start.
const PROPOSAL_MICROS: u64 = 60_000_000;

/// How long a councillor waits for what became of a layout that it accepted, in microseconds,
/// before it asks the others itself; and longer, by its place.
const COMPLETE_AFTER: u64 = 2_000_000;

/// What this node has under way about layouts.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    /// The task that has a layout decided, and that layout.
    change: Option<(TaskId, Rc<RefCell<Decision>>)>,
    /// The task that asks for a later layout.
    pull: Option<TaskId>,
    /// Since when something is accepted of which nothing was received.
    accepted_since: Option<u64>,
}

/// A layout that this node has decided.
#[derive(Debug)]
struct Decision {
    proposal: Proposal,
    /// What was wanted: another one may turn out to be accepted before.
    wanted: Arc<Layout>,
    /// Whether somebody wants it here; otherwise it is what this councillor accepted.
    is_own: bool,
    /// Councillors that said last that they have no vote.
    without_vote: BTreeSet<NodeId>,
    decided: bool,
    /// Whether the task has reported the end.
    has_ended: bool,
}

/// What the task does after a councillor's reply.
enum Next {
    /// Waits for other replies.
    Wait,
    /// Asks for what the proposal's next phase needs.
    Ask,
    /// Begins anew a little later, above this ballot: another proposal is at it.
    Outbid(u64),
    End(Progress),
}

impl Decision {
    fn report(&self, cx: &Context, progress: Progress) {
        if self.is_own {
            let layout = Arc::clone(&self.wanted);
            let without_vote = self.without_vote.iter().copied().collect();
            cx.shared().membership.layouts.changes(ChangeReport { layout, progress, without_vote });
        }
    }

    /// Reports the end: nothing more becomes of this decision here.
    fn end(&mut self, cx: &Context, progress: Progress) {
        self.has_ended = true;
        self.report(cx, progress);
    }

    /// What becomes of a decision that ends without a majority's answer.
    fn given_up(&self) -> Progress {
        if self.decided { Progress::Decided } else { Progress::GivenUp }
    }

    /// A councillor answered, or could not be asked.
    fn voted(&mut self, cx: &Context, node: NodeId, result: Result<Reply, FailureKind>) -> Next {
        let Ok(Reply::Council(reply)) = result else { return Next::Wait };
        let is_without = reply == VoteReply::NoVote;
        if is_without {
            self.without_vote.insert(node);
        } else {
            self.without_vote.remove(&node);
        }
        match self.proposal.replied(node, reply) {
            None => {
                if is_without {
                    self.report(cx, Progress::Asking);
                }
                Next::Wait
            }
            Some(Proposed::GoesOn) => Next::Ask,
            Some(Proposed::Decided(layout)) => {
                self.decided = true;
                cx.shared().membership.layouts.learn(&layout);
                self.report(cx, Progress::Decided);
                cx.keep_layouts();
                Next::Ask
            }
            Some(Proposed::Done(layout)) => {
                let is_wanted = layout.id() == self.wanted.id();
                Next::End(if is_wanted { Progress::Done } else { Progress::Overtaken })
            }
            Some(Proposed::Overtaken(layout)) => {
                cx.shared().membership.layouts.learn(&layout);
                cx.keep_layouts();
                // It may have taken up another one, and its own be decided by others meanwhile.
                let is_wanted = layout.id() == self.wanted.id();
                Next::End(if is_wanted { Progress::Decided } else { Progress::Overtaken })
            }
            Some(Proposed::Outbid(ballot)) => Next::Outbid(ballot),
        }
    }
}

/// Has a layout decided: asks the councillors, phase by phase, until they know it.
async fn decide(cx: Context, change: Rc<RefCell<Decision>>) {
    let until = cx.now().mono + PROPOSAL_MICROS;
    let place = u64::from(cx.shared().own.0 % 16) + 1;
    let (mut asked, mut outbid) = (Asked::new(&cx), 0);
    let end = |progress| change.borrow_mut().end(&cx, progress);
    loop {
        if cx.now().mono > until {
            let given_up = change.borrow().given_up();
            return end(given_up);
        }
        for (node, request) in change.borrow().proposal.requests() {
            // A councillor may have left, and be no node of the view any more.
            if cx.view().has(node) {
                asked.ask(node, Class::Client, Request::Council(request));
            }
        }
        // A councillor that could not be asked is asked again with the next tick.
        let next = loop {
            let Some((node, result)) = asked.next_in_this_tick().await else { break Next::Wait };
            match change.borrow_mut().voted(&cx, node, result) {
                Next::Wait => {}
                next => break next,
            }
        };
        match next {
            Next::Wait => {}
            Next::Ask => asked.forget(),
            Next::End(progress) => return end(progress),
            Next::Outbid(ballot) => {
                asked.forget();
                let base = cx.shared().membership.layouts.known();
                let wanted = Arc::clone(&change.borrow().wanted);
                if wanted.base != base.id() {
                    return end(Progress::Overtaken);
                }
                change.borrow_mut().proposal = Proposal::new(base, wanted, ballot + 1);
                let not_before = cx.now().mono + place * (OUTBID_WAIT << outbid);
                cx.until(|now| now.mono >= not_before || now.mono > until).await;
                outbid = (outbid + 1).min(OUTBID_DOUBLED);
            }
        }
    }
}

/// Asks a node that goes by a later layout for that.
async fn pull(cx: Context, node: NodeId) {
    let request = Request::Council(VoteRequest::Ask);
    let layouts = &cx.shared().membership.layouts;
    if let Ok(Reply::Council(VoteReply::Known(layout))) =
        cx.call(node, Class::Client, request).await
        && layouts.learn(&layout)
    {
        cx.keep_layouts();
    }
    // It could not be asked, or has another disk by now and is behind itself: whoever says next
    // that it goes by a later layout is asked.
    if layouts.ahead() == Some(node) {
        layouts.is_not_reached(node);
    }
}

impl Proposals {
    /// Somebody wants this layout to follow on its base. What is under way here goes first, unless
    /// it is decided: whoever votes about the next one is told of that.
    pub(crate) fn propose(&mut self, tasks: &mut Tasks, wanted: &Arc<Layout>) {
        let cx = tasks.context().clone();
        let layouts = &cx.shared().membership.layouts;
        let (base, id) = (layouts.known(), wanted.id());
        if let Some(change) = self.under_way(tasks) {
            let change = change.borrow();
            if change.is_own && (!change.decided || change.wanted.id() == id) {
                return;
            }
        }
        let layout = Arc::clone(wanted);
        if id == base.id() {
            // It is decided; whether a majority of its council knows it is to be found out.
            self.begin(tasks, Proposal::of_decided(base), layout, Some(Progress::Decided));
        } else if wanted.base != base.id() {
            let (progress, without_vote) = (Progress::Overtaken, Vec::new());
            layouts.changes(ChangeReport { layout, progress, without_vote });
        } else {
            let proposal = Proposal::new(base, Arc::clone(wanted), layouts.promised() + 1);
            self.begin(tasks, proposal, layout, Some(Progress::Asking));
        }
    }

    /// Has a layout decided that nobody asked this node for: the next stage of a transition, or
    /// what this councillor accepted.
    pub(crate) fn decide(&mut self, tasks: &mut Tasks, proposal: Proposal, wanted: Arc<Layout>) {
        self.begin(tasks, proposal, wanted, None);
    }

    /// Begins to have a layout decided; `progress` = what is reported to whoever wants it here.
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

    /// Returns whether a proposal is under way here.
    pub(crate) fn decides_already(&self, tasks: &Tasks) -> bool {
        self.under_way(tasks).is_some()
    }

    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        self.pull(tasks);
        self.end_dropped(tasks);
        self.complete_accepted(tasks);
        if tasks.context().shared().membership.layouts.is_unkept() {
            tasks.context().keep_layouts();
        }
    }

    /// Reports the end of a decision whose task was dropped: somebody waits for that.
    fn end_dropped(&mut self, tasks: &Tasks) {
        let is_over = |(task, _): &mut (TaskId, _)| !tasks.is_under_way(*task);
        let Some((_, change)) = self.change.take_if(is_over) else { return };
        let mut change = change.borrow_mut();
        if !change.has_ended {
            let given_up = change.given_up();
            change.end(tasks.context(), given_up);
        }
    }

    /// Whoever proposed it may be gone, and nobody know that it is decided.
    fn complete_accepted(&mut self, tasks: &mut Tasks) {
        let (shared, now) = (tasks.context().shared(), tasks.context().now());
        let completed =
            shared.membership.layouts.completed().filter(|_| !self.decides_already(tasks));
        let Some(proposal) = completed else {
            self.accepted_since = None;
            return;
        };
        let since = *self.accepted_since.get_or_insert(now.mono);
        let place = u64::from(shared.own.0 % 16);
        if now.mono >= since + COMPLETE_AFTER + place * OUTBID_WAIT * 4 {
            let wanted = Arc::clone(proposal.layout());
            self.decide(tasks, proposal, wanted);
            self.accepted_since = None;
        }
    }

    /// Another node may go by a later layout: it is asked for that.
    pub(crate) fn pull(&mut self, tasks: &mut Tasks) {
        let cx = tasks.context().clone();
        let Some(node) = cx.shared().membership.layouts.ahead() else { return };
        let is_asked = self.pull.is_some_and(|task| tasks.is_under_way(task));
        if !is_asked && cx.view().has(node) {
            self.pull = Some(tasks.spawn("pull", pull(cx, node)));
        }
    }
}

#[cfg(test)]
mod tests;
