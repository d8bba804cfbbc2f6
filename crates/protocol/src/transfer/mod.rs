//! Transfers: a node pulls records that other nodes hold and stores them, page by page.
//!
//! ```text
//!   fetch    requests the source's next page
//!   choose   leaves future records at the source, and marks them; replaces the record of a
//!            conditional write by the record that a majority holds
//!   store    stores the chosen records on this node; then the next page follows
//! ```
//!
//! Each transfer is a task that determines its requests, its rate if it has one, and the meaning of
//! its end:
//! [`Rebuild`] restores what this node lost, and [`Rebalance`] pulls the partitions that move to
//! this node. [`Hints`] and [`Marks`] go the other way: this node sends other nodes the writes that
//! they missed, or marks of such writes.

pub(crate) mod cleanup;
pub(crate) mod filter;
pub(crate) mod hint_ledger;
mod hints;
pub(crate) mod idempotency_gaps;
mod idempotency_history;
pub(crate) mod idempotency_memory;
mod inbound;
mod marks;
pub(crate) mod missed;
mod pace;
mod pages;
mod rebalance;
mod rebuild;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;

use crate::background::task::{self, Context};
use crate::message::{Class, NodeId, Page, PageRequest, Reply, Request};
use crate::placement::topology::partition_of;
use crate::transfer::missed::Mark;
pub(crate) use hints::Hints;
#[cfg(test)]
pub(crate) use idempotency_history::SOURCE_TIMEOUT_MICROS;
use idempotency_history::{History, WalkPurpose};
pub(crate) use inbound::Inbound;
pub(crate) use marks::Marks;
#[cfg(test)]
pub(crate) use pace::{LONGEST_REST_MICROS, UNHINDERED_MICROS};
#[cfg(test)]
pub(crate) use rebalance::{MAX_FAILURES, MAX_FUTURE_PAUSE_MICROS};
use rebalance::{Rebalance, may_gain_records, sources};
use rebuild::Rebuild;
use record::Record;

/// Bytes of one page; one page is in flight from each source.
const PAGE_BYTES: u32 = 256 * 1024;

/// Pause before a source that failed is asked again, in microseconds.
pub(crate) const RETRY_MICROS: u64 = 500_000;

/// First pause in microseconds before hints or marks that a node did not store are sent again.
const FIRST_WAIT_MICROS: u64 = 250_000;

/// Maximum pause in microseconds before hints or marks are sent again; the pause doubles while the
/// node reports that it is busy.
const MAX_WAIT_MICROS: u64 = 4_000_000;

/// Maximum number of keys of a page that are queried at once, and so of the concurrent reads that a
/// source does for each node to which it streams.
const MAX_CONCURRENT_CHOICES: usize = 16;

/// Maximum number of queries for the record that a majority holds of one contended key. If all of
/// them fail, the whole page is requested again.
const MAX_QUERIES: u32 = 5;

/// The failure to store a page: the source is unreachable, busy, or unable to determine the record
/// that a majority holds, or this node's store refuses the page.
pub(crate) struct PageFailure;

/// Keys, each with its record.
pub(crate) type Items = Vec<(Bytes, Record)>;

/// The records of a page, divided into those to store and those to leave.
#[derive(Debug, Default)]
pub(crate) struct PageDivision {
    /// Records to be stored on this node.
    items: Items,
    /// Future records, which stay at their holders.
    left: Items,
}

/// Partitions with a future record that was left at its holder. This node is marked to lack records
/// of each of these partitions, so it requests the future records again later.
#[derive(Debug, Clone, Default)]
pub(crate) struct PartitionsAhead(Rc<RefCell<BTreeSet<u16>>>);

impl PartitionsAhead {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Drops the partitions that this node is no longer marked to lack.
    fn retain(&self, is_marked: impl Fn(u16) -> bool) {
        self.0.borrow_mut().retain(|partition| is_marked(*partition));
    }

    /// Removes and returns the future records of `items`, and marks their partitions.
    fn split_off_ahead(&self, context: &Context, items: &mut Items) -> Items {
        let shared = context.shared();
        let is_ahead = |(_, record): &mut (Bytes, Record)| context.is_ahead(record.write_time());
        let left: Items = items.extract_if(.., is_ahead).collect();
        for (key, record) in &left {
            let mark = Mark { partition: Some(partition_of(key)), since: record.write_time() };
            shared.transfer.missed.mark(shared.own, mark);
            self.0.borrow_mut().insert(partition_of(key));
        }
        left
    }
}

/// Requests one page from a source.
async fn fetch(context: &Context, source: NodeId, page: PageRequest) -> Result<Page, PageFailure> {
    match context.call(source, Class::Stream, Request::Page(page)).await {
        Ok(Reply::Page(page)) => Ok(page),
        _ => Err(PageFailure),
    }
}

/// Divides a page into records to store and records to leave. A record for which `is_settled` is
/// true is used as it arrived. Any other record is replaced by the record that a majority holds of
/// its key.
async fn choose(
    context: &Context,
    source: NodeId,
    mut items: Items,
    left_ahead: &PartitionsAhead,
    is_settled: impl Fn(&Bytes, &Record) -> bool,
) -> Result<PageDivision, PageFailure> {
    let mut left = left_ahead.split_off_ahead(context, &mut items);
    let (mut items, unsettled): (Items, Items) =
        items.into_iter().partition(|(key, record)| is_settled(key, record));
    let has_failed = Cell::new(false);
    let asked = unsettled
        .into_iter()
        .map(|(key, record)| (0, choose_one(context, source, (key, record), &has_failed)));
    let settled = task::join_bounded(asked, MAX_CONCURRENT_CHOICES, 0).await;
    if has_failed.get() {
        return Err(PageFailure);
    }
    let mut settled: Items = settled.into_iter().flatten().collect();
    left.append(&mut left_ahead.split_off_ahead(context, &mut settled));
    items.append(&mut settled);
    Ok(PageDivision { items, left })
}

/// Returns the record that a majority holds of a key; it replaces `record`, which a conditional
/// write made. `None` = the key is absent, a plain write has superseded `record`, or `has_failed`
/// is true. A plain record need not belong on this node; if it does, some node streams it.
///
/// The query omits the content, because the page usually has the record already.
async fn choose_one(
    context: &Context,
    source: NodeId,
    (key, record): (Bytes, Record),
    has_failed: &Cell<bool>,
) -> Option<(Bytes, Record)> {
    let mut most = 0;
    for _ in 0..MAX_QUERIES {
        if has_failed.get() {
            return None;
        }
        let request = Request::ReadQuorum { key: key.clone(), most };
        match context.call(source, Class::Stream, request).await {
            Ok(Reply::Absent { .. }) => return None,
            Ok(Reply::Found { record, .. }) if record.ballot() == 0 => return None,
            Ok(Reply::Long { outline, .. }) if outline.rank.ballot == 0 => return None,
            Ok(Reply::Found { record, .. }) => return Some((key, record)),
            Ok(Reply::Long { outline, .. }) if outline.rank == record.rank() => {
                return Some((key, record));
            }
            Ok(Reply::Long { outline, .. }) => most = outline.bytes,
            _ => {}
        }
    }
    has_failed.set(true);
    None
}

/// Stores records on this node.
async fn store(context: &Context, items: Items) -> Result<(), PageFailure> {
    if items.is_empty() {
        return Ok(());
    }
    let own = context.shared().own;
    match context.call(own, Class::Repair, Request::Writes { items }).await {
        Ok(Reply::Stored | Reply::Newer { .. }) => Ok(()),
        _ => Err(PageFailure),
    }
}

#[cfg(test)]
mod tests;
