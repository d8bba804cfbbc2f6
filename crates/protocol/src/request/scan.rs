//! A range read over the whole cluster, which merges pages of several nodes into one walk over the
//! keys.
//!
//! ```text
//!  nodes asked, in the order of preference      pages, each sorted
//!   own    a c d │ f …   ─┐
//!   peer 2 a b d │ e …   ─┼─▶ least key of all, newest record ─▶ item, unless a tombstone
//!   peer 5 b c   │ (end) ─┘
//!
//!   │ = end of the node's page; the next page follows
//! ```
//!
//! For every partition, the first `ack` nodes of its first `from` replicas, in the order of
//! preference, send their records, so that a range read sees the records that single reads would
//! see. Nodes keep no state between two pages. When a node fails, the walk drops the node from the
//! list and continues at the present key, with the next replicas in the node's place. When a view
//! of another placement comes into force, the walk continues at the present key with the nodes of
//! that view, because pages of two placements do not fit together. While partitions move, the walk
//! asks the read set, as reads do; the other set need not hold the records that the range returns.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::message::{Filter, NodeId, Page, PageRequest};
use crate::placement::view::{View, Views};
use crate::request::choice;
use crate::request::quorum::{AskedQuorum, Quorum};
use crate::shared::Shared;
use record::{Kind, Record};

/// The size of a page, in bytes.
pub const PAGE_BYTES: u32 = 64 * 1024;

/// The next step of a range read, for the caller to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanStep {
    /// The next key and its newest record, which is a value.
    Item(Bytes, Record),
    /// Ask this node for this page, and pass the page to [`Scan::page`].
    Ask(NodeId, PageRequest),
    /// Wait for a page.
    Wait,
    /// End the range: it has no more keys.
    End,
    /// Fail: for some partition, fewer than `ack` of its replicas can be asked.
    OutOfReach,
}

#[derive(Debug)]
struct Source {
    node: NodeId,
    items: VecDeque<(Bytes, Record)>,
    /// The number of items of the page when the page came.
    page_len: usize,
    /// The key at which the next page begins; `None` = this is the last page.
    next: Option<Bytes>,
    asked: bool,
    /// True if the node has sent a page.
    answered: bool,
}

impl Source {
    /// True if most of a page was taken and another page follows.
    fn is_low(&self) -> bool {
        !self.asked && self.next.is_some() && self.items.len() <= self.page_len / 4
    }
}

/// A range read under way.
#[derive(Debug)]
pub struct Scan {
    views: Arc<Views>,
    own: NodeId,
    /// The view that the pages belong to.
    view: Arc<View>,
    asked: AskedQuorum,
    /// The quorum by that view.
    quorum: Quorum,
    /// The least key that the walk has not passed yet.
    start: Bytes,
    end: Option<Bytes>,
    /// The nodes that can be asked, best first.
    preference: Vec<NodeId>,
    sources: Vec<Source>,
    out_of_reach: bool,
    take_restarted: bool,
    /// True if only this node is asked, for all its records.
    local: bool,
}

impl Scan {
    /// Begins a walk over `start ≤ key < end`. This node is asked first, then the other nodes in
    /// the order of the topology.
    pub fn new(shared: &Shared, asked: AskedQuorum, start: Bytes, end: Option<Bytes>) -> Self {
        Self::of(shared, asked, start, end, false)
    }

    /// Begins a walk over this node's own records.
    pub fn local(shared: &Shared, start: Bytes, end: Option<Bytes>) -> Self {
        Self::of(shared, AskedQuorum::default(), start, end, true)
    }

    fn of(
        shared: &Shared,
        asked: AskedQuorum,
        start: Bytes,
        end: Option<Bytes>,
        local: bool,
    ) -> Self {
        let view = shared.view();
        let mut scan = Self {
            views: Arc::clone(&shared.membership.views),
            own: shared.own,
            quorum: asked.resolve(&view.topology),
            view,
            asked,
            start,
            end,
            preference: Vec::new(),
            sources: Vec::new(),
            out_of_reach: false,
            take_restarted: false,
            local,
        };
        scan.begin_with_all();
        scan
    }

    /// Restarts at the walk's position, with all nodes of the view as candidates.
    fn begin_with_all(&mut self) {
        let topology = &self.view.topology;
        if self.local {
            let all = topology.nodes().min(255) as u8;
            self.quorum = Quorum { ack: all, from: all };
            self.preference = vec![self.own];
        } else {
            self.quorum = self.asked.resolve(topology);
            self.preference = topology.ids().collect();
            // A node that is about to join is not in the read set yet.
            self.preference.rotate_left(topology.position_of(self.own).unwrap_or(0));
        }
        self.begin();
    }

    /// Restarts the walk at its position if a view of another placement has come into force;
    /// returns true in that case.
    fn restart_if_moved(&mut self) -> bool {
        if self.view.epoch == self.views.epoch() {
            return false;
        }
        let view = self.views.current();
        let is_of_before = !self.view.agrees_with(view.id());
        self.view = view;
        if is_of_before {
            self.take_restarted = true;
            self.begin_with_all();
        }
        is_of_before
    }

    /// Restarts at the walk's position, and chooses the nodes to ask from the candidates.
    fn begin(&mut self) {
        let Quorum { ack, from } = self.quorum;
        let topology = &self.view.topology;
        // Members may have left since the client asked for this quorum.
        let is_possible = ack <= from && usize::from(from) <= topology.nodes();
        let asked = if self.local {
            Some(&self.preference[..]).filter(|nodes| !nodes.is_empty())
        } else {
            let asked = || choice::candidates(topology, self.quorum, &self.preference);
            is_possible.then(asked).flatten()
        };
        self.out_of_reach = false;
        let start = &self.start;
        let source = |node| Source {
            node,
            items: VecDeque::new(),
            page_len: 0,
            next: Some(start.clone()),
            asked: false,
            answered: false,
        };
        match asked {
            Some(nodes) => self.sources = nodes.iter().copied().map(source).collect(),
            None => self.out_of_reach = true,
        }
    }

    /// Returns the next step.
    pub fn step(&mut self) -> ScanStep {
        if self.out_of_reach {
            return ScanStep::OutOfReach;
        }
        loop {
            if let Some(source) = self.sources.iter_mut().find(|source| source.is_low()) {
                source.asked = true;
                let start = source.next.clone().expect("one that is low goes on somewhere");
                let filter = Filter::Chosen {
                    ack: self.quorum.ack,
                    from: self.quorum.from,
                    preference: self.preference.clone(),
                };
                let (end, max_bytes) = (self.end.clone(), PAGE_BYTES);
                return ScanStep::Ask(source.node, PageRequest { start, end, filter, max_bytes });
            }
            if self.sources.iter().any(|source| source.items.is_empty() && source.asked) {
                return ScanStep::Wait;
            }
            let heads = self.sources.iter().filter_map(|source| source.items.front());
            let Some(key) = heads.map(|(key, _)| key).min().cloned() else { return ScanStep::End };
            let record = self.take(&key);
            let mut passed = key.to_vec();
            passed.push(0);
            self.start = passed.into();
            if record.kind() == Kind::Value {
                return ScanStep::Item(key, record);
            }
        }
    }

    /// Takes the newest record of `key` from all pages, and removes the others.
    fn take(&mut self, key: &Bytes) -> Record {
        let mut newest: Option<Record> = None;
        for source in &mut self.sources {
            if source.items.front().is_none_or(|(at, _)| at != key) {
                continue;
            }
            let (_, record) = source.items.pop_front().expect("it was there just now");
            if newest.as_ref().is_none_or(|held| held.rank() < record.rank()) {
                newest = Some(record);
            }
        }
        newest.expect("some page has the key")
    }

    /// Adds a page. A page of a node that is not authoritative does not count
    /// ([`MembershipState`](crate::MembershipState)).
    pub fn page(&mut self, node: NodeId, page: Page) {
        if self.restart_if_moved() {
            return;
        }
        if !page.authoritative && !self.local {
            self.failed(node);
            return;
        }
        let Some(source) = self.sources.iter_mut().find(|source| source.node == node) else {
            return;
        };
        source.asked = false;
        source.answered = true;
        source.next = page.next;
        source.items.extend(page.items);
        source.page_len = source.items.len();
    }

    /// Notes that a node can't be asked. The walk restarts with the other nodes; pages that were
    /// asked for before are void, and must not be passed in.
    pub fn failed(&mut self, node: NodeId) {
        if self.restart_if_moved() {
            return;
        }
        self.preference.retain(|held| *held != node);
        self.take_restarted = true;
        self.begin();
    }

    /// Drops all pages and asks for them again, from the walk's position, because a range read that
    /// waits for memory must not hold memory that others wait for. Pages that were asked for before
    /// are void.
    pub fn restart_without_pages(&mut self) {
        if !self.restart_if_moved() {
            self.take_restarted = true;
            self.begin();
        }
    }

    /// Returns true if the walk restarted since the last call, so that pages that were asked for
    /// before are void.
    pub fn take_restarted(&mut self) -> bool {
        std::mem::take(&mut self.take_restarted)
    }

    /// Returns the least key that the range may still return; `None` = no key is left. The range
    /// has returned all items before this key.
    pub fn position(&self) -> Option<Bytes> {
        if self.out_of_reach {
            return Some(self.start.clone());
        }
        let next = |source: &Source| {
            let first = source.items.front().map(|(key, _)| key);
            first.or(source.next.as_ref()).cloned()
        };
        self.sources.iter().filter_map(next).min()
    }

    /// Drops all pages, and ends the range at its position.
    pub fn stop(&mut self) {
        self.sources.clear();
        self.out_of_reach = false;
    }

    /// Returns true if only this node is asked, for all its records.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// True if every node that is asked has sent a page: enough nodes answer, however far away the
    /// next item is.
    pub fn is_served(&self) -> bool {
        !self.out_of_reach && self.sources.iter().all(|source| source.answered)
    }

    /// Asks a node for its page again, after the node was busy or refused.
    pub fn retry(&mut self, node: NodeId) {
        if self.restart_if_moved() {
            return;
        }
        if let Some(source) = self.sources.iter_mut().find(|source| source.node == node) {
            source.asked = false;
        }
    }
}
