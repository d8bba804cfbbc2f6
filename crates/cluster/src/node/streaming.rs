//! Repair of this node: what it is marked to lack (`missed.rs`) is streamed from all others. A node
//! with a new disk under a known name lacks everything; one that lost the end of its log lacks what
//! was written since. It is authoritative again only when each of the others has come to the end of
//! its walk, but for those that a plan declares lost.
//!
//! ```text
//!   marks of this node ─▶ for each other node: those that it has not streamed yet
//!                           ─▶ walk: pages of its records since the least of their times
//!                                ─▶ written here ─▶ at the end: these marks are done by this one
//!   done by all others ─▶ the mark is dropped
//! ```
//!
//! Of a key whose record a conditional write made, a member stores what a majority holds, which the
//! node that streams finds out: a record of a minority that is stored where a higher ballot was
//! promised would look like one of a majority. A node that is being rebuilt needs that record all
//! the same, for it may have been the second one to hold it. It promises nothing, its record does
//! not count in reads, and both nodes have promised first that nothing older is under way
//! (`promises.rs`). After a restart each walk begins again. A
//! future record is left where it is, and its partition marked: it is asked for again now and then,
//! and taken once its time has come. Until then a node that lost something is not authoritative for
//! what it lacks.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::settling::Settling;
use super::{Caller, Node, NodeEffect};
use crate::clock::Now;
use crate::event::FailureKind;
use crate::membership::MembershipState;
use crate::message::{Class, Filter, NodeId, Page, PageRequest, Reply, Request};
use crate::missed::{Mark, Numbered};
use crate::record::Record;
use crate::topology::partition_of;

/// Bytes of one page; one is under way from each node.
const PAGE_BYTES: u32 = 256 * 1024;

/// How long after a failure a node is asked again, in microseconds.
const RETRY_MICROS: u64 = 500_000;

/// Ticks after which future records are asked for again: they may be gone.
const AHEAD_TICKS: u64 = 240;

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// A page is under way.
    Asked,
    /// It is found out what of it a majority holds.
    Settling(Settling),
    /// A page is being written here; the next one begins there.
    Writing(Option<Bytes>),
}

/// What one walk over a node's records is to bring.
#[derive(Debug)]
struct Walk {
    marks: Vec<Numbered>,
    since: u64,
    /// The ballot that this node and the one that streams promise for all keys; 0 = none, for this
    /// node is a member.
    promise: u64,
    /// The partitions that are streamed; empty = all.
    partitions: Vec<u16>,
    /// Where its next page begins.
    start: Bytes,
}

/// A node that streams to this one.
#[derive(Debug, Default)]
pub(super) struct Source {
    state: State,
    walk: Option<Walk>,
    /// The number of each mark as it was when this node came to the end of a walk for it.
    done: BTreeMap<Option<u16>, u64>,
    not_before: u64,
}

impl Source {
    fn has_done(&self, marked: &Numbered) -> bool {
        self.done.get(&marked.mark.partition).is_some_and(|done| *done >= marked.number)
    }
}

impl Node {
    /// How far repair is: nodes that have streamed all that this node is marked to lack, of all
    /// others.
    pub fn repaired(&self) -> (usize, usize) {
        let marks = self.shared.missed.of(self.shared.own);
        let has_all = |peer: &NodeId| marks.iter().all(|marked| self.has_done(*peer, marked));
        (self.others().filter(has_all).count(), self.others().count())
    }

    /// Whether a node has streamed what a mark is about.
    fn has_done(&self, peer: NodeId, marked: &Numbered) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.source.has_done(marked))
    }

    pub(super) fn repair_due(&mut self, now: Now, out: &mut Vec<NodeEffect>) {
        let marks = self.shared.missed.of(self.shared.own);
        if marks.is_empty() {
            self.peers.0.values_mut().for_each(|peer| peer.source.done.clear());
            return;
        }
        if self.may_still_count(now) {
            return;
        }
        // The last one that was waited for may be declared lost by now.
        let done = self.done_by_all(&marks);
        if !done.is_empty() {
            self.drop_done(&done);
            self.stand_if_whole(out);
        }
        for peer in self.others() {
            let source = &mut self.peers.of(peer).source;
            if !matches!(source.state, State::Idle) || source.not_before > now.mono {
                continue;
            }
            if source.walk.is_none() {
                let skew = self.config.max_skew_micros;
                let asks_ahead = self.ticks.is_multiple_of(AHEAD_TICKS);
                let due = |marked: &&Numbered| {
                    let ahead = self.shared.clock.is_ahead(marked.mark.since, now, skew);
                    (!ahead || asks_ahead) && !source.has_done(marked)
                };
                let due: Vec<Numbered> = marks.iter().filter(due).copied().collect();
                let is_member = self.shared.membership.state() == MembershipState::Member;
                // Above all that was promised.
                let above = || self.shared.clock.now(now) + 1;
                let promise = if is_member { 0 } else { above() };
                source.walk = Walk::over(due, promise);
                let promises = promise > 0 && source.walk.is_some();
                if promises && !self.shared.promise_all(now, promise, skew) {
                    source.walk = None;
                }
            }
            if source.walk.is_some() {
                self.ask_for_page(peer, out);
            }
        }
    }

    /// Whether a coordinator may still count what this node stored and has lost since, for a write
    /// that another replica is yet to store: a walk that begins now may pass before that does, and
    /// the write would be acknowledged by two and held by one. It is over a deadline after the
    /// start.
    fn may_still_count(&self, now: Now) -> bool {
        let is_member = self.shared.membership.state() == MembershipState::Member;
        let begun = self.begun.expect("a tick was handed to it");
        !is_member && now.mono < begun + self.config.deadline_micros
    }

    fn ask_for_page(&mut self, peer: NodeId, out: &mut Vec<NodeEffect>) {
        let node = self.shared.own;
        let source = &mut self.peers.of(peer).source;
        let walk = source.walk.as_ref().expect("pages are asked for on a walk only");
        let (since, promise, partitions) = (walk.since, walk.promise, walk.partitions.clone());
        let filter = Filter::HeldBy { node, since, promise, partitions };
        let start = walk.start.clone();
        source.state = State::Asked;
        let page = PageRequest { start, end: None, filter, max_bytes: PAGE_BYTES };
        self.call(Caller::Repair(peer), peer, Class::Stream, Request::Page(page), out);
    }

    pub(super) fn streamed(
        &mut self,
        now: Now,
        peer: NodeId,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let source = &mut self.peers.of(peer).source;
        match (std::mem::take(&mut source.state), result) {
            (State::Asked, Ok(Reply::Page(Page { mut items, next, .. }))) => {
                self.leave_what_is_ahead(now, &mut items);
                let takes_unchosen = self.takes_unchosen(peer);
                let takes_all =
                    |(_, record): &(Bytes, Record)| record.rank.ballot == 0 || takes_unchosen;
                let (items, unsettled): (Vec<_>, Vec<_>) = items.into_iter().partition(takes_all);
                let page = Settling::new(items, unsettled, next);
                self.settle_page(now, peer, page, out);
            }
            (State::Writing(next), Ok(Reply::Stored | Reply::Newer { .. })) => {
                self.go_on(peer, next, out);
            }
            // Not reachable, busy, or the write failed: the same page again.
            _ => source.not_before = now.mono + RETRY_MICROS,
        }
    }

    /// Whether records are stored as the node streams them, whoever else holds them.
    fn takes_unchosen(&self, peer: NodeId) -> bool {
        let walk = self.peers.get(peer).and_then(|peer| peer.source.walk.as_ref());
        let is_member = self.shared.membership.is_member();
        walk.is_some_and(|walk| walk.promise > 0) && !is_member
    }

    /// Asks about the next keys of a page; once all is known, the page is written.
    fn settle_page(
        &mut self,
        now: Now,
        peer: NodeId,
        mut page: Settling,
        out: &mut Vec<NodeEffect>,
    ) {
        while let Some((at, request)) = page.next_request() {
            self.call(Caller::Settle(peer, at), peer, Class::Stream, request, out);
        }
        if page.is_open() {
            self.peers.of(peer).source.state = State::Settling(page);
        } else if page.has_failed() {
            self.peers.of(peer).source.not_before = now.mono + RETRY_MICROS;
        } else if page.items.is_empty() {
            self.go_on(peer, page.next, out);
        } else {
            self.peers.of(peer).source.state = State::Writing(page.next);
            let (own, request) = (self.shared.own, Request::Writes { items: page.items });
            self.call(Caller::Repair(peer), own, Class::Repair, request, out);
        }
    }

    /// What a majority holds of a key is known, or not.
    pub(super) fn settled(
        &mut self,
        now: Now,
        peer: NodeId,
        at: usize,
        result: Result<Reply, FailureKind>,
        out: &mut Vec<NodeEffect>,
    ) {
        let state = std::mem::take(&mut self.peers.of(peer).source.state);
        let State::Settling(mut page) = state else {
            unreachable!("{state:?} awaits no such reply");
        };
        let mut item: Vec<_> = page.settled(at, result).into_iter().collect();
        self.leave_what_is_ahead(now, &mut item);
        page.items.append(&mut item);
        self.settle_page(now, peer, page, out);
    }

    pub(super) fn leave_what_is_ahead(&mut self, now: Now, items: &mut Vec<(Bytes, Record)>) {
        let (shared, left) = (&self.shared, &mut self.left_ahead);
        items.retain(|(key, record)| {
            let since = record.rank.when();
            let ahead = self.shared.clock.is_ahead(since, now, self.config.max_skew_micros);
            if ahead {
                let partition = partition_of(key);
                shared.missed.mark(shared.own, Mark { partition: Some(partition), since });
                left.insert(partition);
            }
            !ahead
        });
    }

    fn go_on(&mut self, peer: NodeId, next: Option<Bytes>, out: &mut Vec<NodeEffect>) {
        let source = &mut self.peers.of(peer).source;
        if let Some(next) = next {
            source.walk.as_mut().expect("it goes on").start = next;
            self.ask_for_page(peer, out);
            return;
        }
        let walk = source.walk.take().expect("it ends");
        for marked in &walk.marks {
            source.done.insert(marked.mark.partition, marked.number);
        }
        self.drop_done(&self.done_by_all(&walk.marks));
        self.stand_if_whole(out);
    }

    /// Those of its marks that all others have worked off, but those that a plan declares lost:
    /// what they held is, and the plan waits for this node.
    fn done_by_all(&self, marks: &[Numbered]) -> Vec<Numbered> {
        let layout = self.shared.layouts.entered();
        let is_lost = |peer| layout.node(peer).is_some_and(|node| node.is_lost);
        let is_done = |marked: &&Numbered| {
            self.others().all(|peer| is_lost(peer) || self.has_done(peer, marked))
        };
        marks.iter().filter(is_done).copied().collect()
    }

    fn drop_done(&mut self, done: &[Numbered]) {
        for marked in done {
            self.shared.missed.done(self.shared.own, marked.mark.partition, marked.number);
        }
        let marks = self.shared.missed.of(self.shared.own);
        self.left_ahead.retain(|partition| {
            marks.iter().any(|marked| marked.mark.partition == Some(*partition))
        });
    }

    /// A node that was not authoritative holds everything again once the mark for all partitions is
    /// worked off, and no future record was left at its holder.
    fn stand_if_whole(&mut self, out: &mut Vec<NodeEffect>) {
        let lacks = self.shared.membership.state() != MembershipState::Member;
        let marks = self.shared.missed.of(self.shared.own);
        let all = marks.iter().any(|marked| marked.mark.partition.is_none());
        if lacks && !all && self.left_ahead.is_empty() {
            self.stand(MembershipState::Member, out);
        }
    }
}

impl Walk {
    fn over(marks: Vec<Numbered>, promise: u64) -> Option<Self> {
        let since = marks.iter().map(|marked| marked.mark.since).min()?;
        let partitions: Option<Vec<u16>> =
            marks.iter().map(|marked| marked.mark.partition).collect();
        let partitions = partitions.unwrap_or_default();
        Some(Self { marks, since, promise, partitions, start: Bytes::new() })
    }
}
