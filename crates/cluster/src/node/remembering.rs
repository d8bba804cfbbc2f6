//! Replicas tell this node what they remember of writes with an idempotency key, once it has taken
//! all records: so that this node can say "never" of those that nobody has done. A node to which
//! partitions move asks the replicas of before; a node that lost its disk asks the other replicas
//! of the partitions that it holds.
//!
//! ```text
//!  own page ──▶ traces ─┐ in the order of their names, up to where
//!  A's page ──▶ traces ─┤ all have sent: those of one write together ─▶ what is remembered of
//!  B's page ──▶ traces ─┘ (remembered.rs)                               it from now on ─▶ written
//!     ▲                                                                                      │
//!     └───── the next page of whoever has sent least ◀───────────────────────────────────────┘
//! ```
//!
//! Each source has entered the transition when it reports: what is accepted later is accepted by a
//! majority of the nodes of after too. Nothing of it is kept over a restart but what was written:
//! it begins again. Of a source that speaks an older protocol, has forgotten some itself, or does
//! not answer for [`PATIENCE_MICROS`], not all is known: then this node does not say "never" of
//! what came before it was sealed, or before its disk was lost, for as long as that may be sent
//! again.
//!
//! A node that lost its disk counts as one that may have had a trace of every write: it keeps each
//! trace that would be one of a majority with its own. Each source has promised, before it streamed
//! its records, to accept nothing that was under way when the disk was lost
//! (`transfer/rebuild.rs`): so what was accepted here, and there later, is in what the source
//! tells.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::event::FailureKind;
use crate::membership::MembershipState;
use crate::message::{Class, Filter, NodeId, Page, PageRequest, Reply, Request};
use crate::remembered::{Recollections, Remembered, Until};
use crate::transfer::RETRY_MICROS;
use crate::view::View;

/// Bytes of all pages that are held at once, about …
const PAGES_BYTES: usize = 4 << 20;

/// … and of one, at least and at most.
const PAGE_BYTES: (usize, usize) = (4 << 10, 256 << 10);

/// For how long a source may fail before this goes on without it, in microseconds: long enough for
/// a node to be started again.
pub(super) const PATIENCE_MICROS: u64 = 120_000_000;

/// All of it, once.
#[derive(Debug)]
pub(super) struct Walk {
    number: u64,
    /// Why it is made.
    purpose: Purpose,
    /// The sources, and this node itself.
    reporters: BTreeMap<NodeId, Reporter>,
    /// Sources that are not asked any more.
    silent: Vec<NodeId>,
    /// Whether those that report have forgotten nothing.
    is_all: bool,
    /// What is being written.
    writing: Vec<Remembered>,
}

/// Why a node asks what others remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Partitions move to it, or have fewer replicas from now on.
    Move,
    /// It has lost what it remembered up to this time of a version.
    Rebuild(u64),
}

impl Purpose {
    fn is_rebuild(self) -> bool {
        matches!(self, Self::Rebuild(_))
    }

    /// Whether the node has to know of a partition.
    fn wants(self, view: &View, partition: u16, own: NodeId) -> bool {
        match self {
            Self::Move => view.hands_over(partition, own),
            Self::Rebuild(_) => view.topology.holds(own, partition, 0),
        }
    }
}

#[derive(Debug)]
struct Reporter {
    state: State,
    /// What it has reported and that was not looked at yet.
    traces: VecDeque<Remembered>,
    /// Where its next page begins; `None` = it has reported all.
    start: Option<Bytes>,
    /// When it is asked again, and since when it fails.
    not_before: u64,
    fails_since: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Due,
    Asked,
    Reported,
}

impl Reporter {
    fn new() -> Self {
        let (traces, start) = (VecDeque::new(), Some(Bytes::new()));
        Self { state: State::Due, traces, start, not_before: 0, fails_since: None }
    }

    /// Takes a page; `false` if it is none of those that were asked for.
    fn takes(&mut self, traces: VecDeque<Remembered>, next: Option<Bytes>) -> bool {
        let names = || traces.iter().map(Remembered::name);
        let is_after = |start: &Bytes| next.as_ref().is_none_or(|next| next > start);
        let is_right = self.start.as_ref().is_some_and(is_after)
            && names().zip(names().skip(1)).all(|(one, other)| one < other)
            && names().all(|name| {
                self.start.as_ref().is_none_or(|start| name[..] >= start[..])
                    && next.as_ref().is_none_or(|next| name[..] < next[..])
            });
        if is_right {
            (self.state, self.traces, self.start) = (State::Reported, traces, next);
            self.fails_since = None;
        }
        is_right
    }
}

impl Walk {
    fn new((number, purpose): (u64, Purpose), own: NodeId, sources: &[NodeId]) -> Self {
        let nodes = sources.iter().copied().chain([own]);
        let reporters = nodes.map(|node| (node, Reporter::new())).collect();
        let (silent, writing) = (Vec::new(), Vec::new());
        Self { number, purpose, reporters, silent, is_all: true, writing }
    }

    /// Whether it is about these sources, for this purpose.
    fn is_of(&self, purpose: Purpose, own: NodeId, sources: &[NodeId]) -> bool {
        let others = self.reporters.keys().chain(&self.silent).filter(|node| **node != own);
        self.purpose == purpose
            && others.clone().count() == sources.len()
            && others.clone().all(|node| sources.contains(node))
    }

    /// A source is not asked any more.
    fn goes_on_without(&mut self, node: NodeId) {
        self.reporters.remove(&node);
        self.silent.push(node);
        self.is_all = false;
    }

    /// How many of a partition's replicas can't tell all that they ever accepted.
    fn unasked(&self, own: NodeId, replicas: &[NodeId]) -> usize {
        let cannot_tell = |node: &&NodeId| match **node == own {
            true => self.purpose.is_rebuild(),
            false => !self.reporters.contains_key(*node),
        };
        replicas.iter().filter(cannot_tell).count()
    }

    /// The traces of the write that comes next, if all have reported that far.
    fn next(&mut self) -> Option<Vec<(NodeId, Remembered)>> {
        let first = |reporter: &Reporter| reporter.traces.front().map(Remembered::name);
        let name = self.reporters.values().filter_map(first).min()?;
        let has_reported =
            |reporter: &Reporter| reporter.start.as_ref().is_none_or(|start| name[..] < start[..]);
        if !self.reporters.values().all(has_reported) {
            return None;
        }
        let take = |(node, reporter): (&NodeId, &mut Reporter)| {
            let trace = reporter.traces.pop_front_if(|trace| trace.name() == name)?;
            Some((*node, trace))
        };
        Some(self.reporters.iter_mut().filter_map(take).collect())
    }
}

impl Node {
    /// This node has its records again, and is no member yet: what the other replicas remember
    /// comes last. Were it a member before, the disk of another node might be replaced too early.
    pub(super) fn recollecting_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let is_whole = self.rebuild.is_whole_again(self.tasks.context());
        if !is_whole || self.stands_soon(MembershipState::Member) {
            return;
        }
        let membership = &self.shared.membership;
        if membership.words_lost_before() == 0 {
            return self.stand(MembershipState::Member, out);
        }
        let (lost, own) = (membership.promised_before(), self.shared.own);
        let layout = self.shared.layouts.entered();
        let is_lost = |node: &NodeId| layout.node(*node).is_some_and(|node| node.is_lost);
        let others = self.view.topology.ids().filter(|node| *node != own && !is_lost(node));
        let sources: Vec<NodeId> = others.collect();
        self.remembering_due(now, Purpose::Rebuild(lost), &sources, out);
    }

    /// What the sources remember is taken, or goes on being taken.
    pub(super) fn remembering_due(
        &mut self,
        now: Now,
        purpose: Purpose,
        sources: &[NodeId],
        out: &mut Vec<NodeEffect>,
    ) {
        let own = self.shared.own;
        let walk = self.walk.take().filter(|walk| walk.is_of(purpose, own, sources));
        let mut walk = walk.unwrap_or_else(|| {
            self.walks += 1;
            Walk::new((self.walks, purpose), own, sources)
        });
        let has_failed = |reporter: &Reporter| {
            reporter.fails_since.is_some_and(|since| since + PATIENCE_MICROS <= now.mono)
        };
        let failed = walk.reporters.iter().filter(|(node, t)| **node != own && has_failed(t));
        let failed: Vec<NodeId> = failed.map(|(node, _)| *node).collect();
        failed.into_iter().for_each(|node| walk.goes_on_without(node));
        self.walk = Some(walk);
        self.goes_on_remembering(now, out);
    }

    /// Does what can be done now.
    fn goes_on_remembering(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        loop {
            let may_ask = self.rebalance.pace.may_ask(now);
            let Some(walk) = &mut self.walk else { return };
            // Nobody is left to report anything once all other replicas were given up.
            let bytes = PAGES_BYTES / walk.reporters.len().max(1);
            let max_bytes = bytes.clamp(PAGE_BYTES.0, PAGE_BYTES.1) as u32;
            let (number, lost) = (walk.number, walk.purpose.is_rebuild());
            let mut due = Vec::new();
            for (node, reporter) in &mut walk.reporters {
                if reporter.state == State::Due && may_ask && reporter.not_before <= now.mono {
                    reporter.state = State::Asked;
                    due.push((*node, reporter.start.clone().unwrap_or_default()));
                }
            }
            for (node, start) in due {
                let filter = Filter::Remembered { node: self.shared.own, lost };
                let page = PageRequest { start, end: None, filter, max_bytes };
                let caller = Caller::Remembering(number, node);
                self.call(caller, node, Class::Stream, Request::Page(page), out);
            }
            let Some(walk) = &mut self.walk else { return };
            let waits = walk.reporters.values().any(|reporter| reporter.state != State::Reported);
            if waits || !walk.writing.is_empty() {
                return;
            }
            if let Some(remembered) = self.looks_at_traces() {
                return self.keep_remembered(remembered, out);
            }
        }
    }

    /// Looks at all that everybody has reported; what is to be written is returned. Who has to tell
    /// more is due then; if nobody has, it is over.
    fn looks_at_traces(&mut self) -> Option<Vec<Remembered>> {
        let walk = self.walk.as_mut()?;
        let (view, own) = (&self.view, self.shared.own);
        let until = match walk.purpose {
            Purpose::Move => Until::Seal(self.shared.layouts.seal_to_take()),
            Purpose::Rebuild(_) => Until::Lost,
        };
        let (mut remembered, mut before) = (Vec::new(), Vec::new());
        while let Some(traces) = walk.next() {
            let partition = traces[0].1.partition();
            if !walk.purpose.wants(view, partition, own) {
                continue;
            }
            view.topology.replicas(partition, view.topology.copies_of(0), &mut before);
            let unasked = walk.unasked(own, &before);
            remembered
                .extend(Recollections { own, until, before: &before, unasked }.remember(&traces));
        }
        for reporter in walk.reporters.values_mut() {
            if reporter.start.is_some() && reporter.traces.is_empty() {
                reporter.state = State::Due;
            }
        }
        let is_over = walk.reporters.values().all(|reporter| reporter.state == State::Reported);
        // What was written last is noted with the end, for it comes after it.
        (!remembered.is_empty() || is_over).then_some(remembered)
    }

    fn keep_remembered(&mut self, remembered: Vec<Remembered>, out: &mut Vec<NodeEffect>) {
        let Some(walk) = &mut self.walk else { return };
        if remembered.is_empty() {
            return self.has_remembered(out);
        }
        walk.writing.clone_from(&remembered);
        let (call, number) = (self.tasks.context().next_call(), walk.number);
        self.calls.push((call, Caller::Remembered(number)));
        out.push(NodeEffect::KeepRemembered { call, remembered });
    }

    /// All was reported, and what is to be remembered of it is durable.
    fn has_remembered(&mut self, out: &mut Vec<NodeEffect>) {
        let Some(walk) = self.walk.take() else { return };
        let (view, own) = (&self.view, self.shared.own);
        let layouts = &self.shared.layouts;
        let mut before = Vec::new();
        let mut forgets = Vec::new();
        let is_wanted = |partition: &u16| walk.purpose.wants(view, *partition, own);
        for partition in (0..=u16::MAX).filter(is_wanted) {
            view.topology.replicas(partition, view.topology.copies_of(0), &mut before);
            let (until, unasked) = (Until::Lost, walk.unasked(own, &before));
            let recollections = Recollections { own, until, before: &before, unasked };
            if !walk.is_all || recollections.are_too_few() {
                forgets.push(partition);
            }
        }
        if let Purpose::Rebuild(lost) = walk.purpose {
            if forgets.is_empty() {
                self.shared.membership.recovers_words(lost);
            }
            return self.stand(MembershipState::Member, out);
        }
        if !forgets.is_empty() {
            let is_of = |partition| forgets.binary_search(&partition).is_ok();
            layouts.forgets(layouts.seal_to_take(), is_of);
        }
        layouts.has_taken_all();
        self.keep_layouts(out);
    }

    fn reporter_of(&mut self, number: u64, node: NodeId) -> Option<&mut Reporter> {
        let walk = self.walk.as_mut().filter(|walk| walk.number == number)?;
        walk.reporters.get_mut(&node)
    }

    /// A page of what a node remembers came, or not.
    pub(super) fn received_remembered(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let parse = self.config.remembered;
        if self.reporter_of(number, node).is_none() {
            return;
        }
        match result {
            // It does not know what it is asked: see `Message::suit`.
            Ok(Reply::Pong) => {
                if let Some(walk) = &mut self.walk {
                    walk.goes_on_without(node);
                }
            }
            Ok(Reply::Page(Page { items, next, authoritative })) => {
                if node != self.shared.own {
                    self.rebalance.pace.came(self.tasks.context(), &items);
                }
                let traces = items.iter().map(|(name, entry)| parse(name, entry)).collect();
                let traces: Option<VecDeque<_>> = traces;
                let Some(reporter) = self.reporter_of(number, node) else { return };
                if !traces.is_some_and(|traces| reporter.takes(traces, next)) {
                    reporter.fails(now);
                } else if let Some(walk) = &mut self.walk {
                    // That this node has forgotten some is why it asks.
                    let asks = node == self.shared.own && walk.purpose.is_rebuild();
                    walk.is_all &= authoritative || asks;
                }
            }
            _ => {
                if let Some(reporter) = self.reporter_of(number, node) {
                    reporter.fails(now);
                }
            }
        }
        self.goes_on_remembering(now, out);
    }

    /// What is to be remembered is durable, or is not and is written again.
    pub(super) fn kept_remembered(
        &mut self,
        now: Now,
        number: u64,
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(walk) = self.walk.as_mut().filter(|walk| walk.number == number) else {
            return;
        };
        let remembered = std::mem::take(&mut walk.writing);
        if result.is_err() {
            return self.keep_remembered(remembered, out);
        }
        self.shared.recent.correct(&remembered);
        let is_over = |reporter: &Reporter| reporter.start.is_none() && reporter.traces.is_empty();
        if walk.reporters.values().all(is_over) {
            return self.has_remembered(out);
        }
        self.goes_on_remembering(now, out);
    }
}

impl Reporter {
    fn fails(&mut self, now: Now) {
        (self.state, self.not_before) = (State::Due, now.mono + RETRY_MICROS);
        self.fails_since.get_or_insert(now.mono);
    }
}
