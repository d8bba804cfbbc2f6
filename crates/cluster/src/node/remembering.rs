//! What replicas of before remember of writes with an idempotency key is taken too, once all
//! records are: so that this node can say "never" of those that nobody has done.
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
//! what came before it was sealed, for as long as that may be sent again.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::taking::RETRY_MICROS;
use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::event::{CallId, FailureKind};
use crate::message::{Class, Filter, NodeId, Page, PageRequest, Reply, Request};
use crate::remembered::{Recollections, Remembered};

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
    /// The sources, and this node itself.
    reporters: BTreeMap<NodeId, Reporter>,
    /// Sources that are not asked any more.
    silent: Vec<NodeId>,
    /// Whether those that report have forgotten nothing.
    is_all: bool,
    /// What is being written.
    writing: Vec<Remembered>,
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
    fn new(number: u64, own: NodeId, sources: &[NodeId]) -> Self {
        let nodes = sources.iter().copied().chain([own]);
        let reporters = nodes.map(|node| (node, Reporter::new())).collect();
        Self { number, reporters, silent: Vec::new(), is_all: true, writing: Vec::new() }
    }

    /// Whether it is about these sources.
    fn is_of(&self, own: NodeId, sources: &[NodeId]) -> bool {
        let others = self.reporters.keys().chain(&self.silent).filter(|node| **node != own);
        others.clone().count() == sources.len() && others.clone().all(|node| sources.contains(node))
    }

    /// A source is not asked any more.
    fn goes_on_without(&mut self, node: NodeId) {
        self.reporters.remove(&node);
        self.silent.push(node);
        self.is_all = false;
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
    /// What the sources remember is taken, or goes on being taken.
    pub(super) fn remembering_due(
        &mut self,
        now: Now,
        sources: &[NodeId],
        out: &mut Vec<NodeEffect>,
    ) {
        let own = self.shared.own;
        let walk = self.taking.walk.take().filter(|walk| walk.is_of(own, sources));
        let mut walk = walk.unwrap_or_else(|| {
            self.taking.passes += 1;
            Walk::new(self.taking.passes, own, sources)
        });
        let has_failed = |reporter: &Reporter| {
            reporter.fails_since.is_some_and(|since| since + PATIENCE_MICROS <= now.mono)
        };
        let failed = walk.reporters.iter().filter(|(node, t)| **node != own && has_failed(t));
        let failed: Vec<NodeId> = failed.map(|(node, _)| *node).collect();
        failed.into_iter().for_each(|node| walk.goes_on_without(node));
        self.taking.walk = Some(walk);
        self.goes_on_remembering(now, out);
    }

    /// Does what can be done now.
    fn goes_on_remembering(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        loop {
            let may_ask = self.taking.may_ask(now);
            let Some(walk) = &mut self.taking.walk else { return };
            let bytes = PAGES_BYTES / walk.reporters.len();
            let max_bytes = bytes.clamp(PAGE_BYTES.0, PAGE_BYTES.1) as u32;
            let number = walk.number;
            let mut due = Vec::new();
            for (node, reporter) in &mut walk.reporters {
                if reporter.state == State::Due && may_ask && reporter.not_before <= now.mono {
                    reporter.state = State::Asked;
                    due.push((*node, reporter.start.clone().unwrap_or_default()));
                }
            }
            for (node, start) in due {
                let filter = Filter::Remembered { node: self.shared.own };
                let page = PageRequest { start, end: None, filter, max_bytes };
                let caller = Caller::Remembering(number, node);
                self.call(caller, node, Class::Stream, Request::Page(page), out);
            }
            let Some(walk) = &mut self.taking.walk else { return };
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
        let walk = self.taking.walk.as_mut()?;
        let (view, own, seal) = (&self.view, self.shared.own, self.shared.layouts.seal_to_take());
        let (mut remembered, mut before) = (Vec::new(), Vec::new());
        while let Some(traces) = walk.next() {
            let partition = traces[0].1.partition();
            if !view.hands_over(partition, own) {
                continue;
            }
            view.topology.replicas(partition, view.topology.copies_of(0), &mut before);
            let unasked = before.iter().filter(|node| !walk.reporters.contains_key(*node)).count();
            remembered
                .extend(Recollections { own, seal, before: &before, unasked }.remember(&traces));
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
        let Some(walk) = &mut self.taking.walk else { return };
        if remembered.is_empty() {
            return self.has_remembered(out);
        }
        walk.writing.clone_from(&remembered);
        let (call, number) = (CallId(self.next_call), walk.number);
        self.next_call += 1;
        self.calls.push((call, Caller::Remembered(number)));
        out.push(NodeEffect::KeepRemembered { call, remembered });
    }

    /// All was reported, and what is to be remembered of it is durable.
    fn has_remembered(&mut self, out: &mut Vec<NodeEffect>) {
        let Some(walk) = self.taking.walk.take() else { return };
        let (view, own) = (&self.view, self.shared.own);
        let layouts = &self.shared.layouts;
        let mut before = Vec::new();
        let mut forgets = Vec::new();
        for partition in (0..=u16::MAX).filter(|partition| view.hands_over(*partition, own)) {
            view.topology.replicas(partition, view.topology.copies_of(0), &mut before);
            let unasked = before.iter().filter(|node| !walk.reporters.contains_key(*node)).count();
            let recollections = Recollections { own, seal: 0, before: &before, unasked };
            if !walk.is_all || recollections.are_too_few() {
                forgets.push(partition);
            }
        }
        if !forgets.is_empty() {
            let is_of = |partition| forgets.binary_search(&partition).is_ok();
            layouts.forgets(layouts.seal_to_take(), is_of);
        }
        layouts.has_taken_all();
        self.keep_layouts(out);
    }

    fn reporter_of(&mut self, number: u64, node: NodeId) -> Option<&mut Reporter> {
        let walk = self.taking.walk.as_mut().filter(|walk| walk.number == number)?;
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
                if let Some(walk) = &mut self.taking.walk {
                    walk.goes_on_without(node);
                }
            }
            Ok(Reply::Page(Page { items, next, authoritative })) => {
                if node != self.shared.own {
                    self.pace(now, &items);
                }
                let traces = items.iter().map(|(name, entry)| parse(name, entry)).collect();
                let traces: Option<VecDeque<_>> = traces;
                let Some(reporter) = self.reporter_of(number, node) else { return };
                if !traces.is_some_and(|traces| reporter.takes(traces, next)) {
                    reporter.fails(now);
                } else if let Some(walk) = &mut self.taking.walk {
                    walk.is_all &= authoritative;
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
        let Some(walk) = self.taking.walk.as_mut().filter(|walk| walk.number == number) else {
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
