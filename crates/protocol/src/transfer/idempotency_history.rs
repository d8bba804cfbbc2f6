//! The history of writes with an idempotency key, below just *history*: once this node has all
//! records, it pulls the history of the other replicas, so that it can answer "never" for writes
//! that no replica has done. A node to which partitions move asks their previous replicas; a node
//! that lost its disk asks the other replicas of its partitions. A *trace* is one replica's entry
//! for one write, and a *walk* is the pull of all traces.
//!
//! ```text
//!  own page ──▶ traces ─┐
//!  A's page ──▶ traces ─┼─▶ of each write, in name order: the traces of all sources are combined
//!  B's page ──▶ traces ─┘   (`idempotency_memory.rs`) ─▶ the result is stored
//!     ▲                          │
//!     └──────────────────────────┘ the next page of each source whose traces are used up
//! ```
//!
//! Each source has entered the transition when it answers, so a write that it accepts later is also
//! accepted by a majority of the next replicas. After a restart, a walk begins again; only the
//! stored results remain. If a source has forgotten some writes itself, or does not answer for
//! [`SOURCE_TIMEOUT_MICROS`], the history is incomplete. Then this node does not answer "never" for
//! writes from before its repair fence, or from before its disk was lost, as long as clients may
//! repeat these writes.
//!
//! A node that lost its disk may have had a trace of every write. The node therefore counts itself
//! as a holder of each trace: it stores a trace if the reporting sources and this node together
//! would be a majority. Before a source streamed its records, the source promised to accept nothing
//! that was under way when the disk was lost (`rebuild.rs`). So if a write is accepted first by
//! this node and later by that source, the source's report includes the write.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;

use super::pace::Pace;
use super::pages::retry;
use super::{PageFailure, RETRY_MICROS};
use crate::background::effect::BackgroundEffect;
use crate::background::task::{self, Context, TaskId, Tasks};
use crate::message::{Class, Filter, NodeId, Page, PageRequest, Reply, Request};
use crate::placement::view::View;
use crate::transfer::idempotency_memory::{OwnTraces, Recollections, Remembered};

/// Approximate limit on the bytes of all pages held at once.
const PAGES_BYTES: usize = 4 << 20;

/// Minimum and maximum bytes of one page.
const PAGE_BYTES: (usize, usize) = (4 << 10, 256 << 10);

/// Time for which a source may fail before the walk continues without the source, in microseconds:
/// long enough to restart a node.
pub(crate) const SOURCE_TIMEOUT_MICROS: u64 = 120_000_000;

/// The purpose of a walk over the other replicas' history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkPurpose {
    /// Partitions move to the node, or will have fewer replicas.
    Move,
    /// The node has lost its history up to this version time.
    Rebuild(u64),
}

/// The walk over the other replicas' history.
#[derive(Debug, Default)]
pub(crate) struct History {
    under_way: Option<HistoryUnderWay>,
    /// The purpose of a walk that has ended since this field was last read.
    ended: Rc<Cell<Option<WalkPurpose>>>,
}

#[derive(Debug)]
struct HistoryUnderWay {
    walk: TaskId,
    purpose: WalkPurpose,
    sources: Vec<NodeId>,
}

/// One walk, from the first name to the last, over the traces of all sources together.
struct HistoryWalk {
    context: Context,
    pace: Rc<Pace>,
    purpose: WalkPurpose,
    /// The queried sources, and this node itself.
    reporters: BTreeMap<NodeId, Reporter>,
    /// True if the reports of all sources are complete so far.
    is_all: bool,
}

/// The report of one source.
#[derive(Debug)]
struct Reporter {
    /// Traces of the source's last page that are not processed yet.
    traces: VecDeque<Remembered>,
    /// Start of the source's next page; `None` = the report is complete.
    start: Option<Bytes>,
}

impl History {
    /// Starts a walk, unless a walk with this purpose and these sources is under way.
    pub(crate) fn start(
        &mut self,
        tasks: &mut Tasks,
        purpose: WalkPurpose,
        sources: &[NodeId],
        pace: &Rc<Pace>,
    ) {
        let is_it = |under_way: &HistoryUnderWay| {
            under_way.purpose == purpose
                && under_way.sources == sources
                && tasks.is_under_way(under_way.walk)
        };
        if self.under_way.as_ref().is_some_and(is_it) {
            return;
        }
        self.stop(tasks);
        let walk = HistoryWalk::new(tasks.context(), pace, purpose, sources);
        let walk = tasks.spawn("history", walk.run(Rc::clone(&self.ended)));
        self.under_way = Some(HistoryUnderWay { walk, purpose, sources: sources.to_vec() });
    }

    /// Ends the walk under way because the placement has changed.
    pub(crate) fn stop(&mut self, tasks: &mut Tasks) {
        if let Some(under_way) = self.under_way.take() {
            tasks.stop(under_way.walk);
        }
    }

    /// Returns the purpose of a walk that has ended since the last call; `None` if there is none.
    pub(crate) fn take_ended(&mut self) -> Option<WalkPurpose> {
        let ended = self.ended.take()?;
        self.under_way = None;
        Some(ended)
    }
}

impl WalkPurpose {
    fn is_rebuild(self) -> bool {
        matches!(self, Self::Rebuild(_))
    }

    /// True if the node needs the history of a partition.
    fn wants(self, view: &View, partition: u16, own: NodeId) -> bool {
        match self {
            Self::Move => view.must_take_over(partition, own),
            Self::Rebuild(_) => view.topology.holds(own, partition, 0),
        }
    }
}

impl Reporter {
    fn new() -> Self {
        Self { traces: VecDeque::new(), start: Some(Bytes::new()) }
    }

    /// True if the source's next page is to be requested.
    fn is_due(&self) -> bool {
        self.start.is_some() && self.traces.is_empty()
    }

    /// True if the report is complete and processed.
    fn is_over(&self) -> bool {
        self.start.is_none() && self.traces.is_empty()
    }

    /// Accepts a page. Fails if the page's names are not in order, or not within the requested
    /// range.
    fn take(
        &mut self,
        traces: VecDeque<Remembered>,
        next: Option<Bytes>,
    ) -> Result<(), PageFailure> {
        let names = || traces.iter().map(Remembered::name);
        let is_after = |start: &Bytes| next.as_ref().is_none_or(|next| next > start);
        let is_right = self.start.as_ref().is_some_and(is_after)
            && names().zip(names().skip(1)).all(|(one, other)| one < other)
            && names().all(|name| {
                self.start.as_ref().is_none_or(|start| name[..] >= start[..])
                    && next.as_ref().is_none_or(|next| name[..] < next[..])
            });
        if !is_right {
            return Err(PageFailure);
        }
        (self.traces, self.start) = (traces, next);
        Ok(())
    }
}

impl HistoryWalk {
    fn new(context: &Context, pace: &Rc<Pace>, purpose: WalkPurpose, sources: &[NodeId]) -> Self {
        let nodes = sources.iter().copied().chain([context.shared().own]);
        Self {
            context: context.clone(),
            pace: Rc::clone(pace),
            purpose,
            reporters: nodes.map(|node| (node, Reporter::new())).collect(),
            is_all: true,
        }
    }

    async fn run(mut self, ended: Rc<Cell<Option<WalkPurpose>>>) {
        while !self.reporters.values().all(Reporter::is_over) {
            self.fetch_due().await;
            let remembered = self.combine_traces();
            if !remembered.is_empty() {
                self.keep(remembered).await;
            }
        }
        self.note_end();
        ended.set(Some(self.purpose));
    }

    /// Fetches the next page of each source whose traces are used up. The walk continues without a
    /// source that fails for long.
    async fn fetch_due(&mut self) {
        // This node itself is never given up, so the count is at least 1; `max` is only a
        // safeguard.
        let bytes = PAGES_BYTES / self.reporters.len().max(1);
        let max_bytes = bytes.clamp(PAGE_BYTES.0, PAGE_BYTES.1) as u32;
        let (context, pace, purpose) = (&self.context, &self.pace, self.purpose);
        let due = self.reporters.iter_mut().filter(|(_, reporter)| reporter.is_due());
        let fetched =
            due.map(|(node, reporter)| fetch(context, pace, purpose, (*node, reporter), max_bytes));
        for (node, fetched) in task::join_all(fetched).await {
            match fetched {
                Ok(is_all) => self.is_all &= is_all,
                Err(PageFailure) => {
                    self.reporters.remove(&node);
                    self.is_all = false;
                }
            }
        }
    }

    /// Returns the number of a partition's replicas that cannot report all that they ever accepted.
    fn count_unasked(&self, replicas: &[NodeId]) -> usize {
        let own = self.context.shared().own;
        let cannot_tell = |node: &&NodeId| match **node == own {
            true => self.purpose.is_rebuild(),
            false => !self.reporters.contains_key(*node),
        };
        replicas.iter().filter(cannot_tell).count()
    }

    /// Returns the traces of the next write; `None` if a source must first send its next page, or
    /// if no traces are left.
    fn next(&mut self) -> Option<Vec<(NodeId, Remembered)>> {
        let first = |reporter: &Reporter| reporter.traces.front().map(Remembered::name);
        let name = self.reporters.values().filter_map(first).min()?;
        let has_told =
            |reporter: &Reporter| reporter.start.as_ref().is_none_or(|start| name[..] < start[..]);
        if !self.reporters.values().all(has_told) {
            return None;
        }
        let take = |(node, reporter): (&NodeId, &mut Reporter)| {
            let trace = reporter.traces.pop_front_if(|trace| trace.name() == name)?;
            Some((*node, trace))
        };
        Some(self.reporters.iter_mut().filter_map(take).collect())
    }

    /// Combines the traces of each write up to which all sources have reported. Returns the traces
    /// to store.
    fn combine_traces(&mut self) -> Vec<Remembered> {
        let (context, view) = (self.context.clone(), self.context.view());
        let own = context.shared().own;
        let until = match self.purpose {
            WalkPurpose::Move => OwnTraces::Seal(context.shared().membership.layouts.pull_fence()),
            WalkPurpose::Rebuild(_) => OwnTraces::Lost,
        };
        let (mut remembered, mut before) = (Vec::new(), Vec::new());
        while let Some(traces) = self.next() {
            let partition = traces[0].1.partition();
            if !self.purpose.wants(&view, partition, own) {
                continue;
            }
            view.topology.replicas(partition, view.topology.copies_of(0), &mut before);
            let unasked = self.count_unasked(&before);
            remembered
                .extend(Recollections { own, until, before: &before, unasked }.remember(&traces));
        }
        remembered
    }

    /// Stores the history durably.
    async fn keep(&self, remembered: Vec<Remembered>) {
        loop {
            let stored = remembered.clone();
            let keep = |call| BackgroundEffect::StoreRemembered { call, remembered: stored };
            if self.context.effect_as_call(keep).await.is_ok() {
                return self.context.shared().paxos.recent.correct(&remembered);
            }
        }
    }

    /// Notes the end of the walk, whose results are durable, and the partitions whose history is
    /// incomplete on this node.
    fn note_end(&self) {
        let (shared, view) = (self.context.shared(), self.context.view());
        let mut before = Vec::new();
        let mut forgets = Vec::new();
        let is_wanted = |partition: &u16| self.purpose.wants(&view, *partition, shared.own);
        for partition in (0..=u16::MAX).filter(is_wanted) {
            view.topology.replicas(partition, view.topology.copies_of(0), &mut before);
            let (until, unasked) = (OwnTraces::Lost, self.count_unasked(&before));
            let recollections = Recollections { own: shared.own, until, before: &before, unasked };
            if !self.is_all || recollections.are_too_few() {
                forgets.push(partition);
            }
        }
        match self.purpose {
            WalkPurpose::Rebuild(lost) if forgets.is_empty() => {
                shared.membership.state.set_idempotency_recovered_until(lost)
            }
            WalkPurpose::Rebuild(_) => {}
            WalkPurpose::Move => {
                if !forgets.is_empty() {
                    let is_of = |partition| forgets.binary_search(&partition).is_ok();
                    shared
                        .membership
                        .layouts
                        .mark_forgotten(shared.membership.layouts.pull_fence(), is_of);
                }
                shared.membership.layouts.mark_all_pulled();
            }
        }
    }
}

/// Fetches the next page of a source. Returns the source, and `true` if the source has forgotten
/// nothing.
async fn fetch(
    context: &Context,
    pace: &Pace,
    purpose: WalkPurpose,
    (node, reporter): (NodeId, &mut Reporter),
    max_bytes: u32,
) -> (NodeId, Result<bool, PageFailure>) {
    let own = context.shared().own;
    let page = async || {
        context.wait_until(|now| pace.may_ask(now)).await;
        let filter = Filter::Remembered { node: own, lost: purpose.is_rebuild() };
        let start = reporter.start.clone().unwrap_or_default();
        let page = Request::Page(PageRequest { start, end: None, filter, max_bytes });
        match context.call(node, Class::Stream, page).await {
            Ok(Reply::Page(page)) => take_page(context, pace, (node, &mut *reporter), page),
            _ => Err(PageFailure),
        }
    };
    let mut fails_since = None;
    let pause = |_| {
        let now = context.now().mono;
        let is_given_up =
            *fails_since.get_or_insert(now) + SOURCE_TIMEOUT_MICROS <= now && node != own;
        if is_given_up { Err(PageFailure) } else { Ok(RETRY_MICROS) }
    };
    let is_all = retry(context, page, pause).await;
    // In a rebuild this node's own report is always incomplete, so that is not counted as a loss.
    (node, is_all.map(|is_all| is_all || node == own && purpose.is_rebuild()))
}

/// Accepts a source's page. Returns `true` if the source has forgotten nothing.
fn take_page(
    context: &Context,
    pace: &Pace,
    (node, reporter): (NodeId, &mut Reporter),
    Page { items, next, authoritative }: Page,
) -> Result<bool, PageFailure> {
    if node != context.shared().own {
        pace.note_page(context, &items);
    }
    let parse = context.config().remembered;
    let traces: Option<VecDeque<_>> =
        items.iter().map(|(name, entry)| parse(name, entry)).collect();
    reporter.take(traces.ok_or(PageFailure)?, next)?;
    Ok(authoritative)
}
