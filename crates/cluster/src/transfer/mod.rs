//! Transfers: records that other nodes hold are stored on this node, page by page.
//!
//! ```text
//!   source ─▶ fetch: its next page
//!      ─▶ choose: records from a clock that is ahead stay where they are, and are named;
//!                 of conditional writes, what a majority holds
//!      ─▶ store: written here ─▶ the next page
//! ```
//!
//! Each transfer is a task, which says what it asks for, how fast, and what the end of the pages
//! means: [`Rebuild`] brings back what this node lost, and
//! [`Rebalance`] takes the partitions that move to this node. [`Hints`] and [`Marks`] go the other
//! way: this node sends what other nodes missed, or that they did.

pub(crate) mod cleanup;
pub(crate) mod filter;
pub(crate) mod forgotten;
mod hints;
mod history;
mod inbound;
pub(crate) mod ledger;
mod marks;
pub(crate) mod missed;
mod pace;
mod rebalance;
mod rebuild;
pub(crate) mod remembered;

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
pub(crate) use history::PATIENCE_MICROS;
use history::{History, Purpose};
pub(crate) use inbound::Inbound;
pub(crate) use marks::Marks;
#[cfg(test)]
pub(crate) use pace::{LONGEST_REST_MICROS, UNHINDERED_MICROS};
#[cfg(test)]
pub(crate) use rebalance::{FAILURES, LOOK_AGAIN_MICROS};
use rebalance::{Rebalance, sources, takes};
use rebuild::Rebuild;
use record::Record;

/// Bytes of one page; one is under way from each source.
const PAGE_BYTES: u32 = 256 * 1024;

/// Microseconds after which a source is asked again that failed.
pub(crate) const RETRY_MICROS: u64 = 500_000;

/// Microseconds after a failure until a node is sent hints or marks again, at first …
const FIRST_WAIT_MICROS: u64 = 250_000;

/// … and at most, while the node says that it is busy.
const MOST_WAIT_MICROS: u64 = 4_000_000;

/// Keys of a page that its source is asked about at once: so many reads the source does at the same
/// time for each node that it streams to.
const CHOOSING: usize = 16;

/// How often a source is asked about a key, if the key is so contended that the source can't tell.
/// The page is asked for again otherwise, with all its other keys.
const TRIES: u32 = 5;

/// A page was not stored: its source can't be reached, is busy, can't tell what a majority holds,
/// or this node's store refuses the page.
pub(crate) struct Failed;

/// Keys and their records.
pub(crate) type Items = Vec<(Bytes, Record)>;

/// What comes of a page.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// To be stored here.
    items: Items,
    /// From a clock that is ahead: left at their holders.
    left: Items,
}

/// The partitions of which a record from a clock that is ahead was left at its holder. The record
/// is asked for again later: this node is marked to lack it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeftAhead(Rc<RefCell<BTreeSet<u16>>>);

impl LeftAhead {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Forgets the partitions that this node is not marked to lack any more.
    fn retain(&self, is_marked: impl Fn(u16) -> bool) {
        self.0.borrow_mut().retain(|partition| is_marked(*partition));
    }

    /// Takes the records out that are from a clock which is ahead, and marks their partitions.
    fn leave(&self, context: &Context, items: &mut Items) -> Items {
        let shared = context.shared();
        let is_ahead = |(_, record): &mut (Bytes, Record)| context.is_ahead(record.when());
        let left: Items = items.extract_if(.., is_ahead).collect();
        for (key, record) in &left {
            let mark = Mark { partition: Some(partition_of(key)), since: record.when() };
            shared.transfer.missed.mark(shared.own, mark);
            self.0.borrow_mut().insert(partition_of(key));
        }
        left
    }
}

/// The page of a source that a request names.
async fn fetch(context: &Context, source: NodeId, page: PageRequest) -> Result<Page, Failed> {
    match context.call(source, Class::Stream, Request::Page(page)).await {
        Ok(Reply::Page(page)) => Ok(page),
        _ => Err(Failed),
    }
}

/// Those records of a page that are to be stored here: as they came, if `is_settled` says so, and
/// else what a majority holds of their keys. Those that are left are named too.
async fn choose(
    context: &Context,
    source: NodeId,
    mut items: Items,
    left_ahead: &LeftAhead,
    is_settled: impl Fn(&Bytes, &Record) -> bool,
) -> Result<Chosen, Failed> {
    let mut left = left_ahead.leave(context, &mut items);
    let (mut items, unsettled): (Items, Items) =
        items.into_iter().partition(|(key, record)| is_settled(key, record));
    let has_failed = Cell::new(false);
    let asked = unsettled
        .into_iter()
        .map(|(key, record)| (0, choose_one(context, source, (key, record), &has_failed)));
    let settled = task::bounded(asked, CHOOSING, 0).await;
    if has_failed.get() {
        return Err(Failed);
    }
    let mut settled: Items = settled.into_iter().flatten().collect();
    left.append(&mut left_ahead.leave(context, &mut settled));
    items.append(&mut settled);
    Ok(Chosen { items, left })
}

/// What a majority holds of a key whose record a conditional write made. `None` = a plain write has
/// come, or nothing is there: a plain record need not belong here, and some node streams it if it
/// does.
///
/// The record is asked for without its content, for mostly it is what the page has.
async fn choose_one(
    context: &Context,
    source: NodeId,
    (key, record): (Bytes, Record),
    has_failed: &Cell<bool>,
) -> Option<(Bytes, Record)> {
    let mut most = 0;
    for _ in 0..TRIES {
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
async fn store(context: &Context, items: Items) -> Result<(), Failed> {
    if items.is_empty() {
        return Ok(());
    }
    let own = context.shared().own;
    match context.call(own, Class::Repair, Request::Writes { items }).await {
        Ok(Reply::Stored | Reply::Newer { .. }) => Ok(()),
        _ => Err(Failed),
    }
}

#[cfg(test)]
mod tests;
