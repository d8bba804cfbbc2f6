//! Layouts, as a node drives them: it has its own proposal decided, completes what it accepted and
//! heard nothing of, and asks whoever goes by a later layout for that.
//!
//! ```text
//!   Propose ─▶ proposal ─▶ Call: prepare, accept, decided ─▶ councillors
//!                 ▲                                              │
//!                 └──── Returned ◀───────────────────────────────┘
//!   a later epoch is heard of ─▶ Call: which layout ─▶ learned ─▶ KeepLayouts ─▶ in force
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::event::FailureKind;
use crate::layout::{Layout, Proposal, Proposed, VoteReply, VoteRequest};
use crate::layouts::{ChangeReport, Progress};
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
pub(super) struct Layouts {
    change: Option<Change>,
    /// Whether what changed is being stored.
    pub(super) keeping: bool,
    /// Who is asked for a later layout.
    pulling: Option<NodeId>,
    /// Since when something is accepted of which nothing was received.
    accepted_since: Option<u64>,
    /// Proposals so far: replies to earlier ones are stale.
    numbers: u64,
}

#[derive(Debug)]
struct Change {
    number: u64,
    proposal: Proposal,
    /// What was wanted: another one may turn out to be accepted before.
    wanted: Arc<Layout>,
    /// Whether somebody wants it here; otherwise it is what this councillor accepted.
    is_own: bool,
    until: u64,
    not_before: u64,
    /// Who was asked and has not answered.
    asked: BTreeSet<NodeId>,
    /// Who said last that it has no vote.
    without_vote: BTreeSet<NodeId>,
    /// How often it was outbid.
    outbid: u32,
    decided: bool,
}

impl Node {
    /// Somebody wants this layout to follow on its base. What is under way here goes first, unless
    /// it is decided: whoever votes about the next one is told of that.
    pub(super) fn propose(&mut self, now: Now, wanted: &Arc<Layout>, out: &mut Vec<NodeEffect>) {
        let shared = Arc::clone(&self.shared);
        let (base, id) = (shared.layouts.known(), wanted.id());
        let own = self.layouts.change.as_ref().filter(|change| change.is_own);
        if own.is_some_and(|change| !change.decided || change.wanted.id() == id) {
            return;
        }
        let layout = Arc::clone(wanted);
        if id == base.id() {
            // It is decided; whether a majority of its council knows it is to be found out.
            self.begin_change(now, Proposal::of_decided(base), layout, true);
            self.layouts.change.iter_mut().for_each(|change| change.decided = true);
            self.report_change(Progress::Decided);
        } else if wanted.base != base.id() {
            let (progress, without_vote) = (Progress::Overtaken, Vec::new());
            return shared.layouts.changes(ChangeReport { layout, progress, without_vote });
        } else {
            let ballot = shared.layouts.promised() + 1;
            let proposal = Proposal::new(base, Arc::clone(wanted), ballot);
            self.begin_change(now, proposal, layout, true);
            self.report_change(Progress::Asking);
        }
        self.ask_councillors(now, out);
    }

    pub(super) fn begin_change(
        &mut self,
        now: Now,
        proposal: Proposal,
        wanted: Arc<Layout>,
        is_own: bool,
    ) {
        self.layouts.numbers += 1;
        self.layouts.change = Some(Change {
            number: self.layouts.numbers,
            proposal,
            wanted,
            is_own,
            until: now.mono + PROPOSAL_MICROS,
            not_before: now.mono,
            asked: BTreeSet::new(),
            without_vote: BTreeSet::new(),
            outbid: 0,
            decided: false,
        });
    }

    /// Asks all that have not done what the proposal's phase asks, and are not being asked.
    pub(super) fn ask_councillors(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let Some(change) = &mut self.layouts.change else { return };
        if now.mono < change.not_before {
            return;
        }
        let number = change.number;
        let mut requests = change.proposal.requests();
        // A councillor may have left, and be no node of the view any more.
        requests.retain(|(node, _)| self.view.has(*node) && change.asked.insert(*node));
        for (node, request) in requests {
            let caller = Caller::Council(number, node);
            self.call(caller, node, Class::Client, Request::Council(request), out);
        }
    }

    /// A councillor answered, or could not be asked.
    pub(super) fn voted(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(change) = &mut self.layouts.change else { return };
        if change.number != number {
            return;
        }
        change.asked.remove(&node);
        let Ok(Reply::Council(reply)) = result else { return };
        let is_without = reply == VoteReply::NoVote;
        if is_without {
            change.without_vote.insert(node);
        } else {
            change.without_vote.remove(&node);
        }
        match change.proposal.replied(node, reply) {
            None if is_without => return self.report_change(Progress::Asking),
            None => return,
            Some(Proposed::GoesOn) => change.asked.clear(),
            Some(Proposed::Decided(layout)) => {
                change.asked.clear();
                change.decided = true;
                self.shared.layouts.learn(&layout);
                self.report_change(Progress::Decided);
                self.keep_layouts(out);
            }
            Some(Proposed::Done(layout)) => {
                let is_wanted = layout.id() == change.wanted.id();
                let progress = if is_wanted { Progress::Done } else { Progress::Overtaken };
                self.end_change(progress);
            }
            Some(Proposed::Overtaken(layout)) => {
                self.shared.layouts.learn(&layout);
                // It may have taken up another one, and its own be decided by others meanwhile.
                let is_wanted = layout.id() == change.wanted.id();
                let progress = if is_wanted { Progress::Decided } else { Progress::Overtaken };
                self.end_change(progress);
                self.keep_layouts(out);
            }
            Some(Proposed::Outbid(ballot)) => self.change_again(now, ballot),
        }
        self.ask_councillors(now, out);
    }

    /// Another proposal is at it: this one begins anew a little later.
    fn change_again(&mut self, now: Now, ballot: u64) {
        let place = u64::from(self.shared.own.0 % 16) + 1;
        let base = self.shared.layouts.known();
        let Some(change) = &mut self.layouts.change else { return };
        if change.wanted.base != base.id() {
            return self.end_change(Progress::Overtaken);
        }
        self.layouts.numbers += 1;
        change.number = self.layouts.numbers;
        change.proposal = Proposal::new(base, Arc::clone(&change.wanted), ballot + 1);
        change.asked.clear();
        change.not_before = now.mono + place * (OUTBID_WAIT << change.outbid);
        change.outbid = (change.outbid + 1).min(OUTBID_DOUBLED);
    }

    /// Whether a proposal is under way here.
    pub(super) fn decides_already(&self) -> bool {
        self.layouts.change.is_some()
    }

    fn end_change(&mut self, progress: Progress) {
        self.report_change(progress);
        self.layouts.change = None;
    }

    fn report_change(&self, progress: Progress) {
        if let Some(change) = self.layouts.change.as_ref().filter(|change| change.is_own) {
            let layout = Arc::clone(&change.wanted);
            let without_vote = change.without_vote.iter().copied().collect();
            self.shared.layouts.changes(ChangeReport { layout, progress, without_vote });
        }
    }

    pub(super) fn layouts_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        self.pull_layout(out);
        self.complete_accepted(now);
        if let Some(change) = &self.layouts.change
            && now.mono > change.until
        {
            let progress = if change.decided { Progress::Decided } else { Progress::GivenUp };
            self.end_change(progress);
        }
        self.ask_councillors(now, out);
        if self.shared.layouts.is_unkept() {
            self.keep_layouts(out);
        }
    }

    pub(super) fn keep_layouts(&mut self, out: &mut Vec<NodeEffect>) {
        if !std::mem::replace(&mut self.layouts.keeping, true) {
            out.push(NodeEffect::KeepLayouts);
        }
    }

    /// The record was stored, or could not be: then that is tried again with the next tick.
    pub(super) fn layouts_kept(&mut self, kept: bool, out: &mut Vec<NodeEffect>) {
        self.layouts.keeping = false;
        if kept && self.shared.layouts.is_unkept() {
            self.keep_layouts(out);
        }
    }

    /// Whoever proposed it may be gone, and nobody know that it is decided.
    fn complete_accepted(&mut self, now: Now) {
        let completed = self.shared.layouts.completed().filter(|_| self.layouts.change.is_none());
        let Some(proposal) = completed else {
            self.layouts.accepted_since = None;
            return;
        };
        let since = *self.layouts.accepted_since.get_or_insert(now.mono);
        let place = u64::from(self.shared.own.0 % 16);
        if now.mono >= since + COMPLETE_AFTER + place * OUTBID_WAIT * 4 {
            let wanted = Arc::clone(proposal.layout());
            self.begin_change(now, proposal, wanted, false);
            self.layouts.accepted_since = None;
        }
    }

    /// Another node goes by a later layout.
    pub(super) fn pull_layout(&mut self, out: &mut Vec<NodeEffect>) {
        let Some(node) = self.shared.layouts.ahead() else { return };
        if self.layouts.pulling.is_none() && self.view.has(node) {
            self.layouts.pulling = Some(node);
            let request = Request::Council(VoteRequest::Ask);
            self.call(Caller::Pull(node), node, Class::Client, request, out);
        }
    }

    pub(super) fn pulled(
        &mut self,
        node: NodeId,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        self.layouts.pulling = None;
        if let Ok(Reply::Council(VoteReply::Known(layout))) = result
            && self.shared.layouts.learn(&layout)
        {
            self.keep_layouts(out);
        }
        // It could not be asked, or has another disk by now and is behind itself: whoever says next
        // that it goes by a later layout is asked.
        if self.shared.layouts.ahead() == Some(node) {
            self.shared.layouts.is_not_reached(node);
        }
    }
}

#[cfg(test)]
mod tests;
