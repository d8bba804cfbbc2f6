//! A range over the cluster, with what is tried again: [`cluster::Scan`] says which pages it wants,
//! a driver fetches them.
//!
//! ```text
//!            ┌─ Ask ──▶ driver: a call ──▶ PageAsked ─┬─ busy: after a pause ─┐
//!  Range ────┤                                        └───────────────────────┴─▶ Range::take
//!            └─ Item, End, OutOfReach ──▶ whoever reads it
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cluster::{AskedQuorum, FailureKind, NodeId, Page, PageRequest, Reply, Scan, ScanStep, Shared};
use lsm::Record;

use crate::pages::{PageRoom, Pages};

/// A node that is busy is asked for its page again after this long, in microseconds …
pub const RETRY_MICROS: u64 = 50_000;

/// … this many times without any page of its own in between, 15 s in all: by then any reader that
/// takes nothing has been given up, and its memory is back. Pages of others do not count: they are
/// sent again and again while this one is busy.
const RETRIES: u32 = 300;

/// … and every so many times the pages of all nodes are given back before, and asked for again: two
/// ranges that hold each a page of a large item, and wait for the other's, would wait for ever.
const HOLDING_RETRIES: u32 = 4;

/// What a range does next.
#[derive(Debug)]
pub enum RangeStep {
    /// The next key and its value.
    Item(Bytes, Record),
    /// Ask this node for this page; hand what comes of it to [`Range::take`].
    Ask(NodeId, PageRequest),
    /// Nothing can be done before something is handed in.
    Wait,
    /// There are no more keys.
    End,
    /// Too few replicas are left to read some partition from.
    OutOfReach,
}

/// What came of asking a node for a page.
#[derive(Debug)]
pub enum PageAsked {
    /// The page that it sent.
    Page(Page),
    /// It is busy: to be handed in after [`RETRY_MICROS`].
    Busy,
    /// It has none.
    Failed,
}

/// One range read.
#[derive(Debug)]
pub struct Range {
    shared: Arc<Shared>,
    scan: Scan,
    /// How often each node was busy since its last page.
    retries: BTreeMap<NodeId, u32>,
    /// Whether the last node that failed was this one: its store failed.
    store_failed: bool,
    /// Memory for a page of each node.
    _room: PageRoom,
    /// Memory for one page more, of items that the reader gathers.
    gathered: Option<PageRoom>,
}

impl Range {
    /// A walk over `start ≤ key < end`. `None` = there is no room for its pages.
    pub fn new(
        shared: Arc<Shared>,
        pages: &Pages,
        quorum: AskedQuorum,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Option<Self> {
        let room = pages.for_range(shared.nodes())?;
        let scan = Scan::new(&shared, quorum, start, end);
        Some(Self::of(shared, scan, room))
    }

    /// The same over what this node holds, whoever else does.
    pub fn local(
        shared: Arc<Shared>,
        pages: &Pages,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Option<Self> {
        let room = pages.for_range(1)?;
        let scan = Scan::local(&shared, start, end);
        Some(Self::of(shared, scan, room))
    }

    fn of(shared: Arc<Shared>, scan: Scan, room: PageRoom) -> Self {
        let (retries, store_failed) = (BTreeMap::new(), false);
        Self { shared, scan, retries, store_failed, _room: room, gathered: None }
    }

    /// Reserves memory for [`PAGE_BYTES`](cluster::PAGE_BYTES) of items that the reader gathers
    /// before it sends the first; `false` = there is none.
    #[must_use]
    pub fn reserve_gathering(&mut self, pages: &Pages) -> bool {
        self.gathered = pages.for_range(1);
        self.gathered.is_some()
    }

    /// The least key that the range may still return: see [`Scan::position`].
    pub fn position(&self) -> Option<Bytes> {
        self.scan.position()
    }

    /// Drops all pages: the range ends where it is. The reserved memory stays reserved.
    pub fn stop(&mut self) {
        self.scan.stop();
    }

    /// What to do next. Values that have expired are passed over.
    pub fn step(&mut self, wall_micros: impl Fn() -> u64) -> RangeStep {
        loop {
            match self.scan.step() {
                ScanStep::Item(key, record) => {
                    if record.view().is_live(&wall_micros) {
                        return RangeStep::Item(key, record);
                    }
                }
                ScanStep::Ask(node, request) => return RangeStep::Ask(node, request),
                ScanStep::Wait => return RangeStep::Wait,
                ScanStep::End => return RangeStep::End,
                ScanStep::OutOfReach => return RangeStep::OutOfReach,
            }
        }
    }

    /// What a call for a page of `node` came to.
    pub fn asked(shared: &Shared, node: NodeId, result: Result<Reply, FailureKind>) -> PageAsked {
        match result {
            Ok(Reply::Page(page)) => {
                // This node's own were verified by the engine just now.
                let own = node == shared.own;
                if own || page.items.iter().all(|(key, record)| record.is_of(key)) {
                    PageAsked::Page(page)
                } else {
                    PageAsked::Failed
                }
            }
            Ok(Reply::Busy) | Err(FailureKind::Busy) => PageAsked::Busy,
            Ok(_) | Err(_) => PageAsked::Failed,
        }
    }

    /// Takes in what came of asking a node. If it is `true`, whatever else was asked for is void:
    /// nothing of it is to be handed in any more.
    #[must_use]
    pub fn take(&mut self, node: NodeId, asked: PageAsked) -> bool {
        match asked {
            PageAsked::Page(page) => {
                self.retries.remove(&node);
                self.scan.page(node, page);
            }
            PageAsked::Busy if self.retries.get(&node).is_none_or(|retries| *retries < RETRIES) => {
                let retries = self.retries.entry(node).or_default();
                *retries += 1;
                if retries.is_multiple_of(HOLDING_RETRIES) {
                    self.scan.anew();
                } else {
                    self.scan.retry(node);
                }
            }
            PageAsked::Busy | PageAsked::Failed => {
                self.retries.remove(&node);
                self.store_failed = node == self.shared.own;
                self.scan.failed(node);
            }
        }
        self.scan.begins_anew()
    }

    /// Whether a node that is busy is being asked again.
    pub fn is_retrying(&self) -> bool {
        !self.retries.is_empty()
    }

    /// The count of retries begins again.
    pub fn forgive(&mut self) {
        self.retries.clear();
    }

    /// Whether every node that is asked now has sent a page: see [`Scan::is_served`].
    pub fn is_served(&self) -> bool {
        self.scan.is_served()
    }

    /// Whether this node is alone and its store has failed.
    pub fn is_stores_fault(&self) -> bool {
        self.shared.is_alone() && self.store_failed
    }
}

#[cfg(test)]
mod tests;
