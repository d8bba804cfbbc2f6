//! A range read over the cluster, with retries: [`protocol::Scan`] decides which pages to fetch,
//! and a driver fetches them.
//!
//! ```text
//!  Range ─┬─ Ask ─▶ the driver calls the node ─▶ PageResult ─▶ Range::take (if Busy, later)
//!         └─ Item, End, OutOfReach ─▶ the reader
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lsm::Record;
use protocol::{
    AskedQuorum, FailureKind, NodeId, Page, PageRequest, Reply, Scan, ScanStep, Shared,
};

use crate::pages::{PageReservation, Pages};

/// Pause before a busy node is asked for its page again, in microseconds.
pub const RETRY_MICROS: u64 = 50_000;

/// Retries of a busy node without a page from it in between: 15 s in all. Within 15 s, every range
/// whose reader takes no items is aborted and releases its memory. A page of another node does not
/// reset the count, because the other nodes resend their pages while the busy node is retried.
const RETRIES: u32 = 300;

/// Retries after which the pages of all nodes are released and requested again. Otherwise two
/// ranges that each hold a page of a large item, and wait for the other's page, would deadlock.
const HOLDING_RETRIES: u32 = 4;

/// Next step of a range read.
#[derive(Debug)]
pub enum RangeStep {
    /// The next key and its value.
    Item(Bytes, Record),
    /// Ask this node for this page, and pass the result to [`Range::take`].
    Ask(NodeId, PageRequest),
    /// Wait for the result of a page.
    Wait,
    /// The range has no more keys.
    End,
    /// Too few replicas of some partition can still be read.
    OutOfReach,
}

/// Result of a page request to a node.
#[derive(Debug)]
pub enum PageResult {
    /// The requested page.
    Page(Page),
    /// The node is busy: pass this result to [`Range::take`] after [`RETRY_MICROS`].
    Busy,
    /// The node failed or sent no valid page.
    Failed,
}

/// A range read over the cluster; see the module.
#[derive(Debug)]
pub struct Range {
    shared: Arc<Shared>,
    scan: Scan,
    /// Retries of each busy node since its last page.
    retries: BTreeMap<NodeId, u32>,
    /// True if the last failed node is this node: its store failed.
    store_failed: bool,
    /// Memory reserved for a page of each node.
    _room: PageReservation,
    /// Memory reserved for one more page of items, which the reader collects.
    gathered: Option<PageReservation>,
}

impl Range {
    /// Returns a range read over `start ≤ key < end`; `None` = no memory is free for its pages.
    pub fn new(
        shared: Arc<Shared>,
        pages: &Pages,
        quorum: AskedQuorum,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Option<Self> {
        let room = pages.reserve_for_range(shared.nodes())?;
        let scan = Scan::new(&shared, quorum, start, end);
        Some(Self::of(shared, scan, room))
    }

    /// Returns a range read over all records of this node's store, wherever they are placed; `None`
    /// = no memory is free for its pages.
    pub fn local(
        shared: Arc<Shared>,
        pages: &Pages,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Option<Self> {
        let room = pages.reserve_for_range(1)?;
        let scan = Scan::local(&shared, start, end);
        Some(Self::of(shared, scan, room))
    }

    fn of(shared: Arc<Shared>, scan: Scan, room: PageReservation) -> Self {
        let (retries, store_failed) = (BTreeMap::new(), false);
        Self { shared, scan, retries, store_failed, _room: room, gathered: None }
    }

    /// Reserves memory for [`PAGE_BYTES`](protocol::PAGE_BYTES) of items that the reader collects
    /// before it sends the first item; `false` = no memory is free.
    #[must_use]
    pub fn reserve_gathering(&mut self, pages: &Pages) -> bool {
        self.gathered = pages.reserve_for_range(1);
        self.gathered.is_some()
    }

    /// Returns the least key that the range may still return: see [`Scan::position`].
    pub fn position(&self) -> Option<Bytes> {
        self.scan.position()
    }

    /// Ends the range and drops all pages. The reserved memory stays reserved.
    pub fn stop(&mut self) {
        self.scan.stop();
    }

    /// Returns the next step. Expired values are skipped.
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

    /// Converts the result of a call for a page of `node`.
    pub fn page_result(
        shared: &Shared,
        node: NodeId,
        result: Result<Reply, FailureKind>,
    ) -> PageResult {
        match result {
            Ok(Reply::Page(page)) => {
                // The engine verified this node's own records while reading.
                let own = node == shared.own;
                if own || page.items.iter().all(|(key, record)| record.is_intact(key)) {
                    PageResult::Page(page)
                } else {
                    PageResult::Failed
                }
            }
            Ok(Reply::Busy) | Err(FailureKind::Busy) => PageResult::Busy,
            Ok(_) | Err(_) => PageResult::Failed,
        }
    }

    /// Processes the result of a page request to `node`. `true` = all other outstanding requests
    /// are void, and their results must not be passed to this function.
    #[must_use]
    pub fn take(&mut self, node: NodeId, asked: PageResult) -> bool {
        match asked {
            PageResult::Page(page) => {
                self.retries.remove(&node);
                self.scan.page(node, page);
            }
            PageResult::Busy
                if self.retries.get(&node).is_none_or(|retries| *retries < RETRIES) =>
            {
                let retries = self.retries.entry(node).or_default();
                *retries += 1;
                if retries.is_multiple_of(HOLDING_RETRIES) {
                    self.scan.restart_without_pages();
                } else {
                    self.scan.retry(node);
                }
            }
            PageResult::Busy | PageResult::Failed => {
                self.retries.remove(&node);
                self.store_failed = node == self.shared.own;
                self.scan.exclude_node(node);
            }
        }
        self.scan.take_restarted()
    }

    /// True if a busy node is being retried.
    pub fn is_retrying(&self) -> bool {
        !self.retries.is_empty()
    }

    /// Resets the count of retries.
    pub fn reset_retries(&mut self) {
        self.retries.clear();
    }

    /// True if every node asked has sent a page: see [`Scan::is_served`].
    pub fn is_served(&self) -> bool {
        self.scan.is_served()
    }

    /// Returns true if this node's store has failed, and no other node can read the range instead:
    /// this node is alone, or the range is of its own records.
    pub fn has_store_failed(&self) -> bool {
        (self.shared.is_alone() || self.scan.is_local()) && self.store_failed
    }
}

#[cfg(test)]
mod tests;
