//! A range read over the whole cluster, which merges the pages of several nodes in key order.
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
//! For every partition, the first `ack` of its `from` replicas in the order of preference send
//! their records, so that a range read returns the records that single reads would return. Nodes
//! keep no state between two pages. If a node fails, the scan removes the node and continues at its
//! current key with the next replicas. If a view of another placement comes into force, the scan
//! continues at its current key with the nodes of that view, because pages of two placements must
//! not be merged. While partitions move, the scan asks the read set, as single reads do: the other
//! set may lack records.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::message::{Filter, NodeId, Page, PageRequest};
use crate::placement::view::{View, Views};
use crate::request::quorum::{AskedQuorum, Quorum};
use crate::request::range_choice;
use crate::shared::Shared;
use record::{Kind, Record};

/// The size of a page, in bytes.
pub const PAGE_BYTES: u32 = 64 * 1024;

/// The next step of a range read, which the caller carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanStep {
    /// Pass on this key and its newest record, which is a value.
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
    /// The number of items in the last page when the page arrived.
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

/// An unfinished range read.
#[derive(Debug)]
pub struct Scan {
    views: Arc<Views>,
    own: NodeId,
    /// The view that the pages belong to.
    view: Arc<View>,
    asked: AskedQuorum,
    /// The quorum under the view.
    quorum: Quorum,
    /// The least key that the scan has not passed yet.
    start: Bytes,
    end: Option<Bytes>,
    /// The nodes that can be asked, best first.
    preference: Vec<NodeId>,
    sources: Vec<Source>,
    is_out_of_reach: bool,
    take_restarted: bool,
    /// True if only this node is asked, for all its records.
    local: bool,
}

impl Scan {
    /// Begins a scan over `start ≤ key < end`. This node is asked first, then the other nodes in
    /// the order of the topology.
    pub fn new(shared: &Shared, asked: AskedQuorum, start: Bytes, end: Option<Bytes>) -> Self {
        Self::of(shared, asked, start, end, false)
    }

    /// Begins a scan over this node's own records.
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
            is_out_of_reach: false,
            take_restarted: false,
            local,
        };
        scan.begin_with_all();
        scan
    }

    /// Restarts at the scan's position, with all nodes of the view as candidates.
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

    /// Restarts the scan at its position if a view of another placement has come into force;
    /// returns true in that case.
    fn restart_if_moved(&mut self) -> bool {
        if self.view.epoch == self.views.epoch() {
            return false;
        }
        let view = self.views.current();
        let is_of_earlier_view = !self.view.agrees_with(view.id());
        self.view = view;
        if is_of_earlier_view {
            self.take_restarted = true;
            self.begin_with_all();
        }
        is_of_earlier_view
    }

    /// Restarts at the scan's position, and chooses from the candidates the nodes to ask.
    fn begin(&mut self) {
        let Quorum { ack, from } = self.quorum;
        let topology = &self.view.topology;
        // Members may have left since the client asked for this quorum.
        let is_possible = ack <= from && usize::from(from) <= topology.nodes();
        let asked = if self.local {
            Some(&self.preference[..]).filter(|nodes| !nodes.is_empty())
        } else {
            let asked = || range_choice::candidates(topology, self.quorum, &self.preference);
            is_possible.then(asked).flatten()
        };
        self.is_out_of_reach = false;
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
            None => self.is_out_of_reach = true,
        }
    }

    /// Returns the next step.
    pub fn step(&mut self) -> ScanStep {
        if self.is_out_of_reach {
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

    /// Removes `key` from all pages, and returns its newest record.
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

    /// Adds a page. In a range over the cluster, a node that is not authoritative
    /// ([`MembershipState`](crate::MembershipState)) counts as failed.
    pub fn page(&mut self, node: NodeId, page: Page) {
        if self.restart_if_moved() {
            return;
        }
        if !page.authoritative && !self.local {
            self.exclude_node(node);
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

    /// Notes that a node can't be asked. The scan restarts with the other nodes. Pages requested
    /// before are void, and must not be passed in.
    pub fn exclude_node(&mut self, node: NodeId) {
        if self.restart_if_moved() {
            return;
        }
        self.preference.retain(|held| *held != node);
        self.take_restarted = true;
        self.begin();
    }

    /// Drops all pages, and requests them again from the scan's position: a range read that waits
    /// for memory must not hold memory for which other requests wait. Pages requested before are
    /// void.
    pub fn restart_without_pages(&mut self) {
        if !self.restart_if_moved() {
            self.take_restarted = true;
            self.begin();
        }
    }

    /// Returns true if the scan has restarted since the last call. Pages requested before are then
    /// void.
    pub fn take_restarted(&mut self) -> bool {
        std::mem::take(&mut self.take_restarted)
    }

    /// Returns the least key that the range may still return; `None` = no key is left. It has
    /// returned all items before this key.
    pub fn position(&self) -> Option<Bytes> {
        if self.is_out_of_reach {
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
        self.is_out_of_reach = false;
    }

    /// Returns true if only this node is asked, for all its records.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// True if every node that is asked has sent a page, even if the next item is still far away.
    pub fn is_served(&self) -> bool {
        !self.is_out_of_reach && self.sources.iter().all(|source| source.answered)
    }

    /// Asks a node for its page again, if the node was busy or refused.
    pub fn retry(&mut self, node: NodeId) {
        if self.restart_if_moved() {
            return;
        }
        if let Some(source) = self.sources.iter_mut().find(|source| source.node == node) {
            source.asked = false;
        }
    }
}
