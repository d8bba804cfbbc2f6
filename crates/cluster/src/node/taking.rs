//! This node takes the partitions that move to it, from each node that had them before.
//!
//! ```text
//!  read old is in force ─▶ what is of another time is dropped
//!     ─▶ no source is behind this node's clock ─▶ sealed
//!     ─▶ first pass: each source's pages of what it is the first replica of, and was
//!        written before ──────────────────────────────────────────────────────────────▶ written
//!     ─▶ second pass, range by range: own page ─▶ digests ─▶ each source: what is not
//!        among them ─────────────────────────────────────────────────────────────────▶ written
//!     ─▶ these sources are done: noted on disk ─▶ all are: what they remember of writes with an
//!        idempotency key (remembering.rs) ─▶ nothing is lacking any more
//! ```
//!
//! A page is read by its source under this node's view: so that has entered the transition, and all
//! that it stored before is in its page of the second pass. That alone makes it safe
//! (docs/membership-model.md); the first pass only has each record sent once. A source that does
//! not answer is left out of the pass, and takes part in a later one. Of a key whose record a
//! conditional write made this node stores what a majority holds. `--stream-rate` bounds how many
//! bytes a second it takes: what a page is over that puts off the next ones.
//!
//! It makes room for clients by what it sees of their load, as LEDBAT does (RFC 6817, section 2):
//! how much longer a page takes to be written than the quickest did. Then the disk, or the loop, is
//! busy with something else, and the next pages are put off by a multiple of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::remembering::Walk;
use super::settling::Settling;
use super::{Caller, NODE_TICK_MICROS, Node, NodeEffect};
use crate::clock::Now;
use crate::event::FailureKind;
use crate::filter::{MAX_KNOWN, moved_digest};
use crate::layout::{Layout, Stage};
use crate::layouts::TakingStep;
use crate::membership::MembershipState;
use crate::message::{Class, Filter, NodeId, Page, PageRequest, Reply, Request};
use crate::missed::Mark;
use crate::proof::{RoundId, RoundStep};
use crate::record::Record;
use crate::topology::partition_of;

/// Bytes of one page; one is under way from each node.
const PAGE_BYTES: u32 = 256 * 1024;

/// How long after a failure a node is asked again, in microseconds.
pub(super) const RETRY_MICROS: u64 = 500_000;

/// A page that takes so many times as long to be written as the quickest of the transition did
/// met others at the disk: pages differ in length, and syncs by themselves …
const UNHINDERED: u64 = 4;

/// … unless it takes less than this, in microseconds: no client is kept waiting by that.
const UNHINDERED_MICROS: u64 = 5_000;

/// So many times as long as a page took beyond that nothing more is asked for …
const REST: u64 = 16;

/// … and so long at most after one page, in microseconds: it is to come to its end.
const LONGEST_REST_MICROS: u64 = 2_000_000;

/// How often in a row a source may fail before the pass goes on without it: it has to take part in
/// one from the beginning then.
const FAILURES: u32 = 6;

/// What this node has under way about that.
#[derive(Debug, Default)]
pub(super) struct Taking {
    /// How far it is with being sealed, and when that is tried again.
    sealing: Option<Sealing>,
    seals_not_before: u64,
    pass: Option<Pass>,
    /// Whether all has been taken once from whoever is the first replica.
    first_is_done: bool,
    /// Until when a source that failed is left alone.
    not_before: BTreeMap<NodeId, u64>,
    /// Passes so far: replies to earlier ones are stale.
    pub(super) passes: u64,
    /// When what was taken so far would have come at the rate that is allowed, or that leaves room
    /// for clients.
    paced: u64,
    /// The least time in which a page was written, in microseconds.
    quickest: Option<u64>,
    /// Once all else is taken: what the sources remember of writes with an idempotency key.
    pub(super) walk: Option<Walk>,
}

impl Taking {
    /// Whatever is asked for next waits so many microseconds more.
    fn put_off(&mut self, now: Now, micros: u64) {
        self.paced = self.paced.max(now.mono) + micros;
    }

    /// Whether more may be asked for: so much ahead that it need not wait for a tick after each
    /// page.
    pub(super) fn may_ask(&self, now: Now) -> bool {
        self.paced <= now.mono + NODE_TICK_MICROS
    }
}

/// Sources say whether this node's clock is right, then it is sealed.
#[derive(Debug)]
struct Sealing {
    /// Up to this time.
    time: u64,
    /// Sources that have not said anything.
    open: BTreeSet<NodeId>,
    /// Whether one has answered …
    is_answered: bool,
    /// … and whether this node's clock is ahead of any.
    is_ahead: bool,
}

/// All keys, once.
#[derive(Debug)]
struct Pass {
    number: u64,
    first: bool,
    seed: u64,
    /// The range of the second pass under way: where it ends, and what this node holds of it.
    end: Option<Bytes>,
    known: Vec<u64>,
    /// Whether that is being found out, and when it is to be at the earliest.
    looks: bool,
    not_before: u64,
    sources: BTreeMap<NodeId, Source>,
}

#[derive(Debug)]
struct Source {
    state: State,
    /// Where its next page begins.
    start: Bytes,
    /// How often in a row it has failed, and when it is asked again.
    failures: u32,
    not_before: u64,
}

impl Source {
    /// It is to be asked for what begins there.
    fn at(start: Bytes) -> Self {
        Self { state: State::Due, start, failures: 0, not_before: 0 }
    }
}

#[derive(Debug)]
enum State {
    /// It is to be asked.
    Due,
    Asked,
    /// It is found out what of its page a majority holds.
    Settling(Settling),
    /// Its page is being written here, since then; the next one begins there.
    Writing(u64, Option<Bytes>),
    /// It is at the range's end.
    Ended,
}

impl Node {
    /// Another placement is in force. What a node takes was written long ago: if it lost the end of
    /// its log, or is a copy, that is not made good by what was written since.
    pub(super) fn takes_anew(&mut self, out: &mut Vec<NodeEffect>) {
        self.taking = Taking { passes: self.taking.passes, ..Taking::default() };
        let state = self.shared.membership.state();
        if state != MembershipState::Member && self.lacks_since() != Some(0) {
            self.shared.missed.mark(self.shared.own, Mark { partition: None, since: 0 });
            self.stand(MembershipState::Rebuilding, out);
        }
    }

    pub(super) fn taking_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
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
            TakingStep::Begins => self.seal_to_take(now, &layout, out),
            TakingStep::Takes => {
                let sources = sources(&layout, self.shared.own);
                let left = sources.iter().filter(|node| !done.contains(node)).copied();
                let left: Vec<NodeId> = left.collect();
                self.shared.moves.has_taken_from(sources.len() - left.len(), sources.len());
                if left.is_empty() {
                    self.remembering_due(now, &sources, out);
                } else {
                    self.go_on_taking(now, &left, out);
                }
            }
            TakingStep::HasAll => {}
        }
    }

    /// Nothing that is older than now is taken from anybody but sources: it may have been deleted,
    /// and the deletion purged. A node whose clock is ahead would refuse for as long what others
    /// write; so sources are asked first.
    fn seal_to_take(&mut self, now: Now, layout: &Layout, out: &mut Vec<NodeEffect>) {
        if self.taking.sealing.is_some() || now.mono < self.taking.seals_not_before {
            return;
        }
        let (own, time) = (self.shared.own, self.shared.clock.now(now));
        let open: BTreeSet<NodeId> = sources(layout, own).into_iter().collect();
        let is_answered = open.is_empty();
        for node in &open {
            self.step_to_take(time, *node, RoundStep::Ask, out);
        }
        if is_answered {
            self.step_to_take(time, own, RoundStep::Seal, out);
        }
        self.taking.sealing = Some(Sealing { time, open, is_answered, is_ahead: false });
    }

    fn step_to_take(
        &mut self,
        time: u64,
        node: NodeId,
        step: RoundStep,
        out: &mut Vec<NodeEffect>,
    ) {
        let request = Request::Round { round: RoundId { time, node: self.shared.own }, step };
        self.call(Caller::TakeSeal(time, node), node, Class::Repair, request, out);
    }

    pub(super) fn sealed_to_take(
        &mut self,
        now: Now,
        (time, node): (u64, NodeId),
        result: &Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let own = self.shared.own;
        let sealing = self.taking.sealing.as_mut().filter(|sealing| sealing.time == time);
        let Some(sealing) = sealing else { return };
        if sealing.open.remove(&node) {
            sealing.is_answered |= matches!(result, Ok(Reply::Round(_)));
            sealing.is_ahead |= matches!(result, Ok(Reply::Ahead));
            let Sealing { is_answered, is_ahead, .. } = *sealing;
            if !sealing.open.is_empty() {
                return;
            }
            if is_answered && !is_ahead {
                return self.step_to_take(time, own, RoundStep::Seal, out);
            }
            self.taking.seals_not_before = now.mono + RETRY_MICROS;
        }
        self.taking.sealing = None;
        // Else a round is under way, or its clock is ahead: with the next tick.
        if node == own
            && let Ok(Reply::Round(state)) = result
            && state.proof.seal.time >= time
        {
            let view = Arc::clone(&self.view);
            let joins = !view.topology.contains(own);
            let comes = |partition| {
                let after = view.other.as_ref();
                after.is_some_and(|after| after.holds(own, partition, 0))
                    && !view.topology.holds(own, partition, 0)
            };
            self.shared.layouts.begins_to_take(state.proof.seal.time, joins, comes);
            self.keep_layouts(out);
            self.taking_due(now, out);
        }
    }

    fn go_on_taking(&mut self, now: Now, left: &[NodeId], out: &mut Vec<NodeEffect>) {
        if self.taking.pass.is_none() {
            let not_before = &self.taking.not_before;
            let is_due = |node: &&NodeId| not_before.get(node).is_none_or(|due| *due <= now.mono);
            let new = |node: &NodeId| (*node, Source::at(Bytes::new()));
            let sources: BTreeMap<_, _> = left.iter().filter(is_due).map(new).collect();
            if sources.is_empty() {
                return;
            }
            self.taking.passes += 1;
            self.taking.pass = Some(Pass {
                number: self.taking.passes,
                first: !self.taking.first_is_done,
                // Nobody else knows it before it is used.
                seed: self.shared.clock.now(now) ^ self.shared.logs.life().0.rotate_left(32),
                end: None,
                known: Vec::new(),
                looks: !self.taking.first_is_done,
                not_before: now.mono,
                sources,
            });
            if self.taking.first_is_done {
                return self.look_at_range(now, Bytes::new(), out);
            }
        }
        self.go_on_pass(now, out);
    }

    /// What this node holds of the range that begins there is to be known.
    fn look_at_range(&mut self, now: Now, start: Bytes, out: &mut Vec<NodeEffect>) {
        let Some(pass) = &mut self.taking.pass else { return };
        for source in pass.sources.values_mut() {
            *source = Source::at(start.clone());
        }
        (pass.looks, pass.not_before) = (true, now.mono + RETRY_MICROS);
        let (number, seed, own) = (pass.number, pass.seed, self.shared.own);
        let filter = Filter::Moved { node: own, first: false, seed, known: Vec::new() };
        let page = PageRequest { start, end: None, filter, max_bytes: PAGE_BYTES };
        self.call(Caller::TakeLook(number), own, Class::Stream, Request::Page(page), out);
    }

    pub(super) fn looked_at_range(
        &mut self,
        now: Now,
        number: u64,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(pass) = self.taking.pass.as_mut().filter(|pass| pass.number == number) else {
            return;
        };
        // Otherwise it is tried again a little later.
        pass.looks = false;
        if let Ok(Reply::Page(Page { items, next, .. })) = result {
            let digest =
                |(key, record): &(Bytes, Record)| moved_digest(pass.seed, key, record.rank);
            pass.known = items.iter().map(digest).take(MAX_KNOWN).collect();
            pass.end = next;
            pass.not_before = 0;
        }
        self.go_on_pass(now, out);
    }

    /// Does what can be done now.
    fn go_on_pass(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let may_ask = self.taking.may_ask(now);
        let Some(pass) = &mut self.taking.pass else { return };
        if !pass.first && pass.not_before > 0 {
            // What this node holds of the range is not known.
            if !pass.looks && pass.not_before <= now.mono {
                let start = pass.sources.values().next().map(|source| source.start.clone());
                self.look_at_range(now, start.unwrap_or_default(), out);
            }
            return;
        }
        let is_due = |source: &Source| {
            may_ask && matches!(source.state, State::Due) && source.not_before <= now.mono
        };
        let due = pass.sources.iter().filter(|(_, source)| is_due(source));
        let due: Vec<NodeId> = due.map(|(node, _)| *node).collect();
        due.into_iter().for_each(|node| self.ask_source(node, out));
        let Some(pass) = &mut self.taking.pass else { return };
        if pass.sources.values().any(|source| !matches!(source.state, State::Ended)) {
            return;
        }
        match pass.end.take() {
            Some(start) if !pass.sources.is_empty() => self.look_at_range(now, start, out),
            _ => self.end_pass(now, out),
        }
    }

    fn end_pass(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let Some(pass) = self.taking.pass.take() else { return };
        if pass.first {
            self.taking.first_is_done = true;
        } else {
            pass.sources.keys().for_each(|node| self.shared.layouts.has_taken(*node));
            self.keep_layouts(out);
        }
        self.taking_due(now, out);
    }

    fn ask_source(&mut self, node: NodeId, out: &mut Vec<NodeEffect>) {
        let own = self.shared.own;
        let Some(pass) = &mut self.taking.pass else { return };
        let (number, first, seed) = (pass.number, pass.first, pass.seed);
        let source = pass.sources.get_mut(&node).expect("it takes part");
        source.state = State::Asked;
        let filter = Filter::Moved { node: own, first, seed, known: pass.known.clone() };
        let (start, end) = (source.start.clone(), pass.end.clone());
        let page = PageRequest { start, end, filter, max_bytes: PAGE_BYTES };
        self.call(Caller::Take(number, node), node, Class::Stream, Request::Page(page), out);
    }

    /// The source of a pass, unless that is over, or goes on without it.
    fn source_of(&mut self, number: u64, node: NodeId) -> Option<&mut Source> {
        let pass = self.taking.pass.as_mut().filter(|pass| pass.number == number)?;
        pass.sources.get_mut(&node)
    }

    /// A page came, or was written, or neither.
    pub(super) fn took(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(source) = self.source_of(number, node) else { return };
        match (std::mem::replace(&mut source.state, State::Asked), result) {
            (State::Asked, Ok(Reply::Page(Page { mut items, next, .. }))) => {
                self.pace(now, &items);
                self.leave_what_is_ahead(now, &mut items);
                let layout = self.shared.layouts.entered();
                let is_plain = |(key, record): &(Bytes, Record)| {
                    record.rank.ballot == 0 || self.has_no_majority(&layout, key, record)
                };
                let (items, unsettled): (Vec<_>, Vec<_>) = items.into_iter().partition(is_plain);
                self.settle_taken(now, (number, node), Settling::new(items, unsettled, next), out);
            }
            (State::Writing(since, next), Ok(Reply::Stored | Reply::Newer { .. })) => {
                self.makes_room(now, now.mono.saturating_sub(since));
                self.goes_on_from(now, (number, node), next, out);
            }
            _ => self.source_failed(now, node, out),
        }
    }

    /// A page came: the next ones wait for as long as it should have taken.
    pub(super) fn pace(&mut self, now: Now, items: &[(Bytes, Record)]) {
        let Some(rate) = self.config.stream_rate else { return };
        self.taking.put_off(now, (bytes_of(items) as u64).saturating_mul(1_000_000) / rate);
    }

    /// A page was written in so many microseconds: the next ones wait if that was long.
    fn makes_room(&mut self, now: Now, took: u64) {
        let quickest = self.taking.quickest.map_or(took, |quickest| quickest.min(took));
        self.taking.quickest = Some(quickest);
        let hindered = took.saturating_sub((UNHINDERED * quickest).max(UNHINDERED_MICROS));
        self.taking.put_off(now, (REST * hindered).min(LONGEST_REST_MICROS));
    }

    /// Whether so many replicas of before are declared lost that the others are no majority.
    /// Nothing is chosen by them any more, and nobody can tell what was: what is left is taken.
    fn has_no_majority(&self, layout: &Layout, key: &Bytes, record: &Record) -> bool {
        let (before, mut order) = (&self.view.topology, Vec::new());
        before.replicas(partition_of(key), before.copies_of(record.copies), &mut order);
        let of_before = |id: &NodeId| {
            let mut before = layout.before.iter().flat_map(|before| &before.nodes);
            before.any(|node| node.id == *id && !node.is_lost)
        };
        order.iter().filter(|id| of_before(id)).count() <= order.len() / 2
    }

    fn settle_taken(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        mut page: Settling,
        out: &mut Vec<NodeEffect>,
    ) {
        while let Some((at, request)) = page.next_request() {
            let caller = Caller::TakeSettle(number, node, at);
            self.call(caller, node, Class::Stream, request, out);
        }
        let Some(source) = self.source_of(number, node) else { return };
        if page.is_open() {
            source.state = State::Settling(page);
        } else if page.has_failed() {
            self.source_failed(now, node, out);
        } else if page.items.is_empty() {
            self.goes_on_from(now, (number, node), page.next, out);
        } else {
            source.state = State::Writing(now.mono, page.next);
            self.shared.moves.took(page.items.len(), bytes_of(&page.items));
            let (own, request) = (self.shared.own, Request::Writes { items: page.items });
            self.call(Caller::Take(number, node), own, Class::Repair, request, out);
        }
    }

    /// What a majority holds of a key is known, or not.
    pub(super) fn settled_taken(
        &mut self,
        now: Now,
        (number, node, at): (u64, NodeId, usize),
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(source) = self.source_of(number, node) else { return };
        let State::Settling(mut page) = std::mem::replace(&mut source.state, State::Asked) else {
            unreachable!("it awaits no such reply");
        };
        let mut item: Vec<_> = page.settled(at, result).into_iter().collect();
        self.leave_what_is_ahead(now, &mut item);
        page.items.append(&mut item);
        self.settle_taken(now, (number, node), page, out);
    }

    fn goes_on_from(
        &mut self,
        now: Now,
        (number, node): (u64, NodeId),
        next: Option<Bytes>,
        out: &mut Vec<NodeEffect>,
    ) {
        let Some(source) = self.source_of(number, node) else { return };
        source.failures = 0;
        source.state = match next {
            Some(next) => {
                source.start = next;
                State::Due
            }
            None => State::Ended,
        };
        self.go_on_pass(now, out);
    }

    /// A source does not answer, goes by another view, or can't tell what a majority holds: it is
    /// asked for the same page again, and takes part in a later pass if that fails too often.
    fn source_failed(&mut self, now: Now, node: NodeId, out: &mut Vec<NodeEffect>) {
        let Some(pass) = &mut self.taking.pass else { return };
        let Some(source) = pass.sources.get_mut(&node) else { return };
        source.state = State::Due;
        source.failures += 1;
        source.not_before = now.mono + RETRY_MICROS;
        if source.failures >= FAILURES {
            self.taking.not_before.insert(node, now.mono + RETRY_MICROS);
            pass.sources.remove(&node);
        }
        self.go_on_pass(now, out);
    }
}

fn bytes_of(items: &[(Bytes, Record)]) -> usize {
    items.iter().map(|(key, record)| key.len() + record.bytes.len()).sum()
}

/// Who hands over what it holds: all nodes of before, but those that are declared lost.
fn sources(layout: &Layout, own: NodeId) -> Vec<NodeId> {
    let before = layout.before.iter().flat_map(|before| &before.nodes);
    before.filter(|node| node.id != own && !node.is_lost).map(|node| node.id).collect()
}

/// Whether a node may get anything in a transition. Where nodes without zones are added, and
/// nothing else changes, nobody who stays comes nearer to the front of a partition's replicas.
/// Where there are fewer copies, those that stay must hold what a majority of more held.
fn takes(layout: &Layout, own: NodeId) -> bool {
    let Some(before) = layout.before.as_ref().filter(|_| layout.stage == Stage::ReadOld) else {
        return false;
    };
    let was = |id: NodeId| before.nodes.iter().find(|node| node.id == id);
    let stays = before.nodes.iter().all(|node| {
        layout.nodes.iter().any(|after| {
            let is_same = after.member == node.member && after.hash_weight == node.hash_weight;
            after.id == node.id && is_same
        })
    });
    let in_zones = layout.nodes.iter().any(|node| !node.member.zone.is_empty());
    was(own).is_none() || !stays || in_zones || layout.replicas != before.replicas
}

#[cfg(test)]
mod tests;
