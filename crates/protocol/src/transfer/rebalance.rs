//! Rebalance: this node pulls the partitions that move to it, from each node that had them before.
//!
//! ```text
//!  `ReadOld` is in force
//!   1 Orphaned records from an earlier transition are dropped (`cleanup.rs`).
//!   2 The sources confirm that this node's clock is not ahead; this node raises its repair fence
//!     (`seal`) to the present time.
//!   3 First pass: each source sends the keys whose first replica it is, as far as they were
//!     written before the source entered the transition. This node stores them.
//!   4 Second pass, range by range: this node sends digests of its own records to each source; the
//!     source sends the records that are not among them. This node stores them.
//!   5 The sources that answered are noted on disk as done. The second pass is repeated until all
//!     sources are done.
//!   6 The sources' history of idempotent writes is pulled (`idempotency_history.rs`).
//! ```
//!
//! A source reads a page under this node's view, so it has entered the transition, and everything
//! that it stored before is in its page of the second pass. The second pass alone makes the
//! rebalance safe (docs/design/membership.md); the first pass only avoids sending a record more
//! than once. A source that does not answer is left out of the pass and takes part in a later pass.
//! For a key whose record a conditional write made, this node stores the record that a majority
//! holds.
//!
//! **A future record** comes from a clock that is ahead. No node accepts a future record from
//! another node, so it stays on the node that stored it, its *holder*. There it hides the record
//! that the holder acknowledged before, which may be the last copy. A holder that keeps the key
//! hands the future record over once its time has come. In two cases this node must wait for that
//! time, however far off, before it finishes with the source:
//!
//! * The holder leaves, or the key moves away from it: the transition would drop both records.
//! * The key gets more replicas: a majority of them may lack a record that a majority of the fewer
//!   replicas acknowledged.
//!
//! The future record is not pulled earlier, because it would hide the key on this node too. The
//! hidden record cannot be pulled instead, because the holder's store may have dropped it. This
//! node reports the wait, and the two ways to end it earlier: `kvorum repair-clock` on the holder,
//! or an abort of the membership change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::pace::{Pace, bytes_of};
use super::pages::{move_pages, retry, retry_forever};
use super::{
    Items, PAGE_BYTES, PageDivision, PageFailure, PartitionsAhead, RETRY_MICROS, choose, fetch,
    store,
};
use crate::background::effect::BackgroundEffect;
use crate::background::task::{self, Context, TaskId, Tasks};
use crate::clock::Clock;
use crate::membership::adopted_layout::PullStep;
use crate::membership::layout::{Layout, Stage};
use crate::message::{Class, Filter, NodeId, PageRequest, Reply, Request, Waits};
use crate::placement::topology::{Topology, partition_of};
use crate::repair::watermark::{RoundId, RoundStep};
use crate::transfer::filter::{MAX_KNOWN, moved_digest};
use record::Record;

/// Consecutive failures after which the pass continues without a source. The source must then take
/// part in a later pass from its beginning.
pub(crate) const MAX_FAILURES: u32 = 6;

/// Maximum pause before a source with future records is asked again, in microseconds: the records
/// may be gone before their time has come.
pub(crate) const MAX_FUTURE_PAUSE_MICROS: u64 = 60_000_000;

/// The rebalance of this node while partitions move.
#[derive(Debug, Default)]
pub(crate) struct Rebalance {
    task: Option<TaskId>,
    progress: Rc<RebalanceProgress>,
    /// The rate limiter.
    pub(crate) pace: Rc<Pace>,
}

/// The progress of this node in one transition.
#[derive(Debug, Default)]
struct RebalanceProgress {
    /// True if the first pass is done; see [`PassRange::first`].
    first_is_done: Cell<bool>,
    /// Time when a source that failed, or is waited for, is asked again, in microseconds of the
    /// monotonic clock.
    not_before: RefCell<BTreeMap<NodeId, u64>>,
    /// By source, the greatest version time among the future records for which this node waits.
    ahead: RefCell<BTreeMap<NodeId, u64>>,
    /// True if progress was made since this field was last read.
    is_new: Cell<bool>,
}

impl Rebalance {
    /// Starts the pull of the remaining records, unless a pull is under way.
    pub(crate) fn start(&mut self, tasks: &mut Tasks, left_ahead: &PartitionsAhead) {
        if self.task.is_some_and(|task| tasks.is_under_way(task)) {
            return;
        }
        let transfer = Transfer {
            context: tasks.context().clone(),
            progress: Rc::clone(&self.progress),
            pace: Rc::clone(&self.pace),
            left_ahead: left_ahead.clone(),
        };
        self.task = Some(tasks.spawn("rebalance", transfer.run()));
    }

    /// Resets the rebalance after a change of placement.
    pub(crate) fn restart(&mut self, tasks: &mut Tasks) {
        if let Some(task) = self.task {
            tasks.stop(task);
        }
        *self = Self::default();
    }

    /// Returns `true` if progress was, or may have been, made since the last call.
    pub(crate) fn take_progress_flag(&self) -> bool {
        self.progress.is_new.take()
    }
}

/// The body of the rebalance task.
struct Transfer {
    context: Context,
    progress: Rc<RebalanceProgress>,
    pace: Rc<Pace>,
    left_ahead: PartitionsAhead,
}

/// A range of keys within a pass over all keys.
struct PassRange {
    /// True in the first pass, in which each source sends the keys whose first replica it is; false
    /// in the second pass, in which each source sends the records that this node lacks.
    first: bool,
    seed: u64,
    start: Bytes,
    end: Option<Bytes>,
    /// Digests of this node's records in the range.
    known: Vec<u64>,
}

impl Transfer {
    async fn run(self) {
        if self.context.shared().membership.layouts.pull_progress().0 == PullStep::NotStarted {
            self.seal().await;
        }
        if !self.progress.first_is_done.get() {
            self.first_pass().await;
        }
        while !self.unfinished_sources().is_empty() {
            self.second_pass().await;
        }
    }

    /// Raises this node's repair fence to the current time. From then on the node accepts older
    /// records only from sources, because other nodes' older records may have been deleted and the
    /// deletions purged. The sources are asked first whether this node's clock is ahead: if so, the
    /// node would refuse other nodes' writes until their clocks reach the fence.
    async fn seal(&self) {
        loop {
            let (own, time) = (self.context.shared().own, self.now());
            let step = |node, step| {
                let round = RoundId { time, node: own };
                self.context.call(node, Class::Repair, Request::Round { round, step })
            };
            let sources = sources(&self.context.shared().membership.layouts.active_layout(), own);
            let asked = sources.iter().map(|node| step(*node, RoundStep::Ask));
            let answers = task::join_all(asked).await;
            let is_answered = answers.iter().any(|answer| matches!(answer, Ok(Reply::Round(_))));
            let is_ahead = answers.iter().any(|answer| matches!(answer, Ok(Reply::Ahead)));
            if is_ahead || !is_answered && !sources.is_empty() {
                self.context.pause(RETRY_MICROS).await;
                continue;
            }
            if let Ok(Reply::Round(state)) = step(own, RoundStep::Seal).await
                && state.proof.seal.time >= time
            {
                return self.begin(state.proof.seal.time);
            }
            // A repair round is under way, or the clock is ahead: retried with the next tick.
            self.context.pause(1).await;
        }
    }

    /// Notes that the fence is raised to `sealed`, and that pulling begins.
    fn begin(&self, sealed: u64) {
        let (view, own) = (self.context.view(), self.context.shared().own);
        let comes = |partition| {
            let after = view.other.as_ref();
            after.is_some_and(|after| after.holds(own, partition, 0))
                && !view.topology.holds(own, partition, 0)
        };
        let joins = !view.topology.contains(own);
        self.context.shared().membership.layouts.begin_pull(sealed, joins, comes);
        self.progress.is_new.set(true);
    }

    /// Returns the current version time.
    fn now(&self) -> u64 {
        self.context.shared().clock.now(self.context.now())
    }

    /// Returns a seed for digests that no other node can know before it is used.
    fn seed(&self) -> u64 {
        self.now() ^ self.context.shared().membership.logs.life().0.rotate_left(32)
    }

    /// Returns the sources that are not finished.
    fn unfinished_sources(&self) -> Vec<NodeId> {
        let (_, done) = self.context.shared().membership.layouts.pull_progress();
        let layout = self.context.shared().membership.layouts.active_layout();
        let sources = sources(&layout, self.context.shared().own);
        sources.into_iter().filter(|node| !done.contains(node)).collect()
    }

    /// Returns the unfinished sources except recently failed ones; waits until there are any.
    async fn sources_due(&self) -> Vec<NodeId> {
        let left = self.unfinished_sources();
        let not_before = &self.progress.not_before;
        let is_due =
            |node: &NodeId, now| not_before.borrow().get(node).is_none_or(|due| *due <= now);
        self.context.wait_until(|now| left.iter().any(|node| is_due(node, now.mono))).await;
        let now = self.context.now().mono;
        left.into_iter().filter(|node| is_due(node, now)).collect()
    }

    /// Pulls from each source the keys whose first replica it is.
    async fn first_pass(&self) {
        let (seed, start) = (self.seed(), Bytes::new());
        let range = PassRange { first: true, seed, start, end: None, known: Vec::new() };
        let sources = self.sources_due().await;
        task::join_all(sources.into_iter().map(|source| self.take(source, &range))).await;
        self.progress.first_is_done.set(true);
    }

    /// Pulls from each source, range by range, the records that this node lacks.
    async fn second_pass(&self) {
        let mut sources = self.sources_due().await;
        self.progress.ahead.borrow_mut().retain(|source, _| !sources.contains(source));
        let (seed, mut start) = (self.seed(), Bytes::new());
        loop {
            let range = self.read_own_range(seed, start).await;
            let taken = sources.iter().map(|source| self.take(*source, &range));
            let mut is_taken = task::join_all(taken).await.into_iter();
            sources.retain(|_| is_taken.next().unwrap_or_default());
            match range.end {
                Some(end) if !sources.is_empty() => start = end,
                _ => break,
            }
        }
        for source in sources {
            let ahead = self.progress.ahead.borrow().get(&source).copied();
            match ahead {
                Some(time) => self.delay_next_pass(source, time),
                None => self.context.shared().membership.layouts.mark_pulled(source),
            }
        }
        self.report_waiting();
        self.progress.is_new.set(true);
    }

    /// Delays a source's next pass until this version time is no longer ahead, or for
    /// `MAX_FUTURE_PAUSE_MICROS` if that is sooner.
    fn delay_next_pass(&self, source: NodeId, time: u64) {
        let ahead = Clock::micros(time)
            .saturating_sub(Clock::micros(self.context.greatest_accepted_time()));
        let wait = ahead.clamp(RETRY_MICROS, MAX_FUTURE_PAUSE_MICROS);
        let until = self.context.now().mono + wait;
        self.progress.not_before.borrow_mut().insert(source, until);
    }

    /// Publishes the source that this node waits for, and until when.
    fn report_waiting(&self) {
        let ahead = self.progress.ahead.borrow();
        let last = ahead.iter().max_by_key(|(_, time)| **time);
        let waits =
            last.map(|(source, time)| Waits { source: *source, until: Clock::micros(*time) });
        if self.context.shared().membership.moves.waits(waits)
            && let Some(waits) = waits
        {
            self.context.effect(BackgroundEffect::Waits(waits));
        }
    }

    /// Reads this node's own records of the range that begins at `start`.
    async fn read_own_range(&self, seed: u64, start: Bytes) -> PassRange {
        let own = self.context.shared().own;
        let read = async || {
            let filter = Filter::Moved { node: own, first: false, seed, known: Vec::new() };
            let start = start.clone();
            let request = PageRequest { start, end: None, filter, max_bytes: PAGE_BYTES };
            fetch(&self.context, own, request).await
        };
        let Ok(page) = retry(&self.context, read, retry_forever).await;
        let digest = |(key, record): &(Bytes, Record)| moved_digest(seed, key, record.rank());
        let known = page.items.iter().map(digest).take(MAX_KNOWN).collect();
        PassRange { first: false, seed, start, end: page.next, known }
    }

    /// Pulls a source's pages of a range. If the source does not answer, is on another view, or
    /// cannot determine the record that a majority holds, the same page is requested again. Returns
    /// `false` if the source has failed too often.
    async fn take(&self, source: NodeId, range: &PassRange) -> bool {
        let page = async |start| {
            self.context.wait_until(|now| self.pace.may_ask(now)).await;
            self.page(source, range, start).await
        };
        let pause =
            |failures| if failures < MAX_FAILURES { Ok(RETRY_MICROS) } else { Err(PageFailure) };
        let taken = move_pages(&self.context, range.start.clone(), page, pause).await;
        if taken.is_err() {
            let until = self.context.now().mono + RETRY_MICROS;
            self.progress.not_before.borrow_mut().insert(source, until);
        }
        taken.is_ok()
    }

    /// Stores the page that begins at `start`. Returns the start of the next page; `None` = there
    /// is none.
    async fn page(
        &self,
        source: NodeId,
        range: &PassRange,
        start: Bytes,
    ) -> Result<Option<Bytes>, PageFailure> {
        let context = &self.context;
        let PassRange { first, seed, end, known, .. } = range;
        let (node, first, seed, known) = (context.shared().own, *first, *seed, known.clone());
        let filter = Filter::Moved { node, first, seed, known };
        let request = PageRequest { start, end: end.clone(), filter, max_bytes: PAGE_BYTES };
        let page = fetch(context, source, request).await?;
        self.pace.note_page(context, &page.items);
        let layout = context.shared().membership.layouts.active_layout();
        let is_settled = |key: &Bytes, record: &Record| {
            record.ballot() == 0 || self.has_no_majority(&layout, key, record)
        };
        let chosen = choose(context, source, page.items, &self.left_ahead, is_settled).await?;
        let PageDivision { items, left } = chosen;
        self.store(items).await?;
        self.note_ahead(source, &left);
        Ok(page.next)
    }

    /// Notes the future records left at a source that does not keep their keys, or whose keys get
    /// more replicas.
    fn note_ahead(&self, source: NodeId, left: &Items) {
        let view = self.context.view();
        let replicas =
            |topology: &Topology, said| usize::from(topology.copies_of(said)).min(topology.nodes());
        let keeps = |key: &Bytes, record: &Record| {
            view.other.as_ref().is_none_or(|after| {
                let said = record.copies();
                after.holds(source, partition_of(key), said)
                    && replicas(after, said) <= replicas(&view.topology, said)
            })
        };
        let not_kept = left.iter().filter(|(key, record)| !keeps(key, record));
        if let Some(time) = not_kept.map(|(_, record)| record.write_time()).max() {
            let mut ahead = self.progress.ahead.borrow_mut();
            let greatest = ahead.entry(source).or_default();
            *greatest = time.max(*greatest);
        }
    }

    async fn store(&self, items: Items) -> Result<(), PageFailure> {
        if items.is_empty() {
            return Ok(());
        }
        self.context.shared().membership.moves.count_pulled(items.len(), bytes_of(&items));
        let since = self.context.now().mono;
        store(&self.context, items).await?;
        self.pace.note_written(&self.context, since);
        Ok(())
    }

    /// True if no majority of the key's previous replicas is left, because the others are declared
    /// lost. Without a majority no further record is chosen, and no node can determine the chosen
    /// record, so the remaining records are pulled as they are.
    fn has_no_majority(&self, layout: &Layout, key: &Bytes, record: &Record) -> bool {
        let (view, mut order) = (self.context.view(), Vec::new());
        let before = &view.topology;
        before.replicas(partition_of(key), before.copies_of(record.copies()), &mut order);
        let of_before = |id: &NodeId| {
            let mut before = layout.before.iter().flat_map(|before| &before.nodes);
            before.any(|node| node.id == *id && !node.is_lost)
        };
        order.iter().filter(|id| of_before(id)).count() <= order.len() / 2
    }
}

/// Returns the nodes that hand over their records: all previous nodes, except those declared lost.
pub(crate) fn sources(layout: &Layout, own: NodeId) -> Vec<NodeId> {
    let before = layout.before.iter().flat_map(|before| &before.nodes);
    before.filter(|node| node.id != own && !node.is_lost).map(|node| node.id).collect()
}

/// True if a node may gain records in a transition. If nodes without zones are added and nothing
/// else changes, no remaining node moves nearer to the front of a partition's replicas. If the
/// number of copies falls, the remaining replicas may lack records that a majority of the previous
/// replicas held.
pub(crate) fn may_gain_records(layout: &Layout, own: NodeId) -> bool {
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
