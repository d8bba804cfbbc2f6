//! Rebuild: all other nodes stream the records that this node is marked to lack (`missed.rs`). A
//! node with a new disk under a known name lacks all records; a node that lost the end of its log
//! lacks the records written since. A node that lost records is authoritative again once every
//! other node, except those that a plan declares lost, has streamed its records and was asked for
//! its history of writes with an idempotency key (`idempotency_history.rs`).
//!
//! ```text
//!   for each source (another node): the marks of this node that the source has not streamed yet
//!     ─▶ walk: the source's pages of records since the least time of these marks ─▶ stored here
//!     ─▶ at the end of the walk, these marks are done for the source
//!   a mark that is done for all sources is dropped
//! ```
//!
//! For a key whose record a conditional write made, a member stores the record that a majority
//! holds, which the source determines. A minority's record on a node that promised a higher ballot
//! would look like a majority's record. But a node that is being rebuilt also stores a minority's
//! record: before its loss, this node may have been the second replica that held the record. This
//! is safe: a node that is being rebuilt gives no promises and its records do not count in reads,
//! and before the walk both nodes promise a ballot above all earlier ones (`paxos/promises.rs`).
//!
//! After a restart, each walk begins again. A future record is left at its holder, and its
//! partition is marked. The record is requested again periodically, and accepted once its time has
//! come. Until then, a node that lost records is not authoritative for the keys that it lacks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::pages::{move_pages, retry_forever};
use super::{PAGE_BYTES, PageFailure, PartitionsAhead, choose, fetch, store};
use crate::background::task::{Context, TaskId, Tasks};
use crate::membership::state::MembershipState;
use crate::message::{Filter, NodeId, PageRequest};
use crate::transfer::missed::NumberedMark;
use record::Record;

/// Interval in ticks at which future records are requested again: they may be gone by then.
const AHEAD_TICKS: u64 = 240;

/// The rebuild of this node, and each source's progress.
#[derive(Debug, Default)]
pub(crate) struct Rebuild {
    walks: BTreeMap<NodeId, TaskId>,
    done: Rc<StreamedMarks>,
    pub(crate) left_ahead: PartitionsAhead,
}

/// Marks that other nodes have streamed.
#[derive(Debug, Default)]
struct StreamedMarks {
    /// By source and partition (`None` = all partitions), the number (`NumberedMark::number`) of
    /// the mark whose walk ended last.
    by_node: RefCell<BTreeMap<NodeId, BTreeMap<Option<u16>, u64>>>,
    /// True if a walk has ended since this field was last read.
    is_new: Cell<bool>,
}

/// The scope of one walk over a source's records.
#[derive(Debug)]
struct RebuildWalk {
    source: NodeId,
    marks: Vec<NumberedMark>,
    since: u64,
    /// The ballot that this node and the source promise for all keys; 0 = none, because this node
    /// is a member.
    promise: u64,
    /// The streamed partitions; empty = all.
    partitions: Vec<u16>,
}

impl Rebuild {
    /// Returns the progress of the rebuild: the number of nodes that have streamed all that this
    /// node is marked to lack, and the number of all other nodes.
    pub(crate) fn progress(&self, context: &Context) -> (usize, usize) {
        let marks = marks(context);
        let has_all = |peer: &NodeId| marks.iter().all(|marked| self.done.has(*peer, marked));
        let others = context.others();
        (others.iter().filter(|peer| has_all(peer)).count(), others.len())
    }

    /// Starts the walks that are due.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        let context = tasks.context().clone();
        let others = context.others();
        // A walk over a node that has left the cluster ends.
        self.walks.retain(|source, walk| {
            let is_asked = others.contains(source);
            if !is_asked {
                tasks.stop(*walk);
            }
            is_asked && tasks.is_under_way(*walk)
        });
        let marks = marks(&context);
        if marks.is_empty() {
            return self.done.by_node.borrow_mut().clear();
        }
        for source in others {
            if self.walks.contains_key(&source) || !is_known_by(&context, source) {
                continue;
            }
            let asks_ahead = tasks.ticks().is_multiple_of(AHEAD_TICKS);
            let due = |marked: &&NumberedMark| {
                let is_ahead = context.is_ahead(marked.mark.since);
                (!is_ahead || asks_ahead) && !self.done.has(source, marked)
            };
            let due = marks.iter().filter(due).copied().collect();
            if let Some(walk) = RebuildWalk::of_marks(&context, source, due) {
                let (done, left_ahead) = (Rc::clone(&self.done), self.left_ahead.clone());
                let walk = walk.run(context.clone(), left_ahead, done);
                self.walks.insert(source, tasks.spawn("rebuild", walk));
            }
        }
    }

    /// Returns `true` if a walk has ended since the last call.
    pub(crate) fn take_progress_flag(&self) -> bool {
        self.done.is_new.take()
    }

    /// Drops the marks that all other nodes have streamed. Nodes that a plan declares lost need not
    /// have streamed them: their records are lost too, and the plan waits for this node.
    pub(crate) fn drop_done(&self, context: &Context) {
        let (shared, others) = (context.shared(), context.others());
        let layout = shared.membership.layouts.active_layout();
        let is_lost = |peer: &NodeId| layout.node(*peer).is_some_and(|node| node.is_lost);
        for marked in marks(context) {
            if others.iter().all(|peer| is_lost(peer) || self.done.has(*peer, &marked)) {
                shared.transfer.missed.drop_mark(shared.own, marked.mark.partition, marked.number);
            }
        }
        let marks = marks(context);
        self.left_ahead.retain(|partition| {
            marks.iter().any(|marked| marked.mark.partition == Some(partition))
        });
    }

    /// True if a node that was not authoritative holds every record again: the mark for all
    /// partitions is gone, and no future record was left at its holder.
    pub(crate) fn is_complete(&self, context: &Context) -> bool {
        context.shared().membership.state.state() != MembershipState::Member
            && self.left_ahead.is_empty()
            && marks(context).iter().all(|marked| marked.mark.partition.is_some())
    }
}

impl StreamedMarks {
    fn has(&self, peer: NodeId, marked: &NumberedMark) -> bool {
        let by_node = self.by_node.borrow();
        let done = by_node.get(&peer).and_then(|done| done.get(&marked.mark.partition));
        done.is_some_and(|done| *done >= marked.number)
    }
}

impl RebuildWalk {
    /// Makes the walk for these marks; `None` if there are no marks, or if this node cannot give
    /// the promise that the walk needs.
    fn of_marks(context: &Context, source: NodeId, marks: Vec<NumberedMark>) -> Option<Self> {
        let since = marks.iter().map(|marked| marked.mark.since).min()?;
        let partitions: Option<Vec<u16>> =
            marks.iter().map(|marked| marked.mark.partition).collect();
        let partitions = partitions.unwrap_or_default();
        let (shared, now) = (context.shared(), context.now());
        let mut promise = 0;
        if shared.membership.state.state() != MembershipState::Member {
            // Above every ballot promised so far.
            promise = shared.clock.now(now) + 1;
            if !shared.promise_all(now, promise, context.config().max_skew_micros) {
                return None;
            }
        }
        Some(Self { source, marks, since, promise, partitions })
    }

    /// Streams all pages of the source. A page that fails is requested again.
    async fn run(self, context: Context, left_ahead: PartitionsAhead, done: Rc<StreamedMarks>) {
        let page = async |start| self.page(&context, &left_ahead, start).await;
        let Ok(()) = move_pages(&context, Bytes::new(), page, retry_forever).await;
        let mut by_node = done.by_node.borrow_mut();
        let by_source = by_node.entry(self.source).or_default();
        for marked in &self.marks {
            by_source.insert(marked.mark.partition, marked.number);
        }
        done.is_new.set(true);
    }

    /// Stores the page that begins at `start`. Returns the start of the next page; `None` = there
    /// is none.
    async fn page(
        &self,
        context: &Context,
        left_ahead: &PartitionsAhead,
        start: Bytes,
    ) -> Result<Option<Bytes>, PageFailure> {
        let Self { source, since, promise, partitions, .. } = self;
        let (node, since, promise) = (context.shared().own, *since, *promise);
        let filter = Filter::HeldBy { node, since, promise, partitions: partitions.clone() };
        let request = PageRequest { start, end: None, filter, max_bytes: PAGE_BYTES };
        let page = fetch(context, *source, request).await?;
        // A node that is being rebuilt stores records as the source streams them, even a
        // minority's.
        let takes_unchosen = promise > 0 && !context.shared().membership.state.is_member();
        let is_settled = |_: &Bytes, record: &Record| record.ballot() == 0 || takes_unchosen;
        let chosen = choose(context, *source, page.items, left_ahead, is_settled).await?;
        store(context, chosen.items).await?;
        Ok(page.next)
    }
}

/// True if a source knows this node's disk, as all sources of a member do. Any other source may
/// later accept the previous disk of this node again, with the writes that the previous disk
/// acknowledged.
fn is_known_by(context: &Context, source: NodeId) -> bool {
    let shared = context.shared();
    shared.membership.state.is_undoubted_member()
        || shared.membership.known_disk.is_known_by(source)
}

/// Returns the marks of this node.
fn marks(context: &Context) -> Vec<NumberedMark> {
    context.shared().transfer.missed.of(context.shared().own)
}
