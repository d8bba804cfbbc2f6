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
//!        idempotency key (history.rs) ─▶ nothing is lacking any more
//! ```
//!
//! A page is read by its source under this node's view: so that has entered the transition, and all
//! that it stored before is in its page of the second pass. That alone makes it safe
//! (docs/membership-model.md); the first pass only has each record sent once. A source that does
//! not answer is left out of the pass, and takes part in a later one. Of a key whose record a
//! conditional write made this node stores what a majority holds.
//!
//! **A future record** is stored by nobody, but it hides what its holder acknowledged before, and
//! that may be the last copy. If the holder keeps the key, it gives the record away once its time
//! has come. If it doesn't, for it leaves or the key moves away from it, the change would drop
//! both: so this node is not done with that source before the time has come, however far off that
//! is. The record is not taken along, for it would hide the key here too; nor is what it hides,
//! for the holder's store may have dropped that. Whoever waits is told so, and by what it ends
//! earlier: `kvorum repair-clock` on the holder, or that the change is given up.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::pace::{Pace, bytes_of};
use super::{Chosen, Failed, Items, LeftAhead, PAGE_BYTES, RETRY_MICROS, choose, fetch, store};
use crate::background::effect::NodeEffect;
use crate::background::task::{self, Context, TaskId, Tasks};
use crate::clock::Clock;
use crate::membership::layout::{Layout, Stage};
use crate::membership::layouts::TakingStep;
use crate::message::{Class, Filter, NodeId, PageRequest, Reply, Request, Waits};
use crate::placement::topology::partition_of;
use crate::repair::watermark::{RoundId, RoundStep};
use crate::transfer::filter::{MAX_KNOWN, moved_digest};
use record::Record;

/// How often in a row a source may fail before the pass goes on without it: it has to take part in
/// one from the beginning then.
pub(crate) const FAILURES: u32 = 6;

/// Microseconds after which a source with future records is asked again at the latest: they may be
/// gone before their time has come.
pub(crate) const LOOK_AGAIN_MICROS: u64 = 60_000_000;

/// What this node takes while partitions move.
#[derive(Debug, Default)]
pub(crate) struct Rebalance {
    task: Option<TaskId>,
    progress: Rc<RebalanceProgress>,
    /// How fast it takes.
    pub(crate) pace: Rc<Pace>,
}

/// How far this node has come in one transition.
#[derive(Debug, Default)]
struct RebalanceProgress {
    /// Whether all was taken once from the first replicas.
    first_is_done: Cell<bool>,
    /// Until when a source that failed, or is waited for, is left alone, in microseconds of the
    /// monotonic clock.
    not_before: RefCell<BTreeMap<NodeId, u64>>,
    /// The greatest time of a future record at a source that does not keep its key.
    ahead: RefCell<BTreeMap<NodeId, u64>>,
    /// Whether this node knows more of the transition since this was looked at.
    is_new: Cell<bool>,
}

impl Rebalance {
    /// Takes what is left to be taken, unless that is under way.
    pub(crate) fn start(&mut self, tasks: &mut Tasks, left_ahead: &LeftAhead) {
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

    /// Another placement is in force.
    pub(crate) fn restart(&mut self, tasks: &mut Tasks) {
        if let Some(task) = self.task {
            tasks.stop(task);
        }
        *self = Self::default();
    }

    /// Whether more was taken, or may be, since this was asked last.
    pub(crate) fn take_news(&self) -> bool {
        self.progress.is_new.take()
    }
}

/// A rebalance under way: the body of the task.
struct Transfer {
    context: Context,
    progress: Rc<RebalanceProgress>,
    pace: Rc<Pace>,
    left_ahead: LeftAhead,
}

/// A range of keys in a pass over all of them.
struct PassRange {
    /// Whether each source sends what it is the first replica of, or what this node does not know.
    first: bool,
    seed: u64,
    start: Bytes,
    end: Option<Bytes>,
    /// Digests of what this node holds of the range.
    known: Vec<u64>,
}

impl Transfer {
    async fn run(self) {
        if self.context.shared().membership.layouts.taken().0 == TakingStep::Begins {
            self.seal().await;
        }
        if !self.progress.first_is_done.get() {
            self.first_pass().await;
        }
        while !self.left().is_empty() {
            self.second_pass().await;
        }
    }

    /// Nothing that is older than now is taken from anybody but sources: it may have been deleted,
    /// and the deletion purged. A node whose clock is ahead would refuse for as long what others
    /// write; so sources are asked first.
    async fn seal(&self) {
        loop {
            let (own, time) = (self.context.shared().own, self.now());
            let step = |node, step| {
                let round = RoundId { time, node: own };
                self.context.call(node, Class::Repair, Request::Round { round, step })
            };
            let sources = sources(&self.context.shared().membership.layouts.entered(), own);
            let asked = sources.iter().map(|node| step(*node, RoundStep::Ask));
            let answers = task::all(asked).await;
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
            // A round is under way, or the clock is ahead: with the next tick.
            self.context.pause(1).await;
        }
    }

    /// This node is sealed up to a time, and takes.
    fn begin(&self, sealed: u64) {
        let (view, own) = (self.context.view(), self.context.shared().own);
        let comes = |partition| {
            let after = view.other.as_ref();
            after.is_some_and(|after| after.holds(own, partition, 0))
                && !view.topology.holds(own, partition, 0)
        };
        let joins = !view.topology.contains(own);
        self.context.shared().membership.layouts.begins_to_take(sealed, joins, comes);
        self.progress.is_new.set(true);
    }

    /// The time of a version now.
    fn now(&self) -> u64 {
        self.context.shared().clock.now(self.context.now())
    }

    /// A seed of digests that nobody else knows before it is used.
    fn seed(&self) -> u64 {
        self.now() ^ self.context.shared().membership.logs.life().0.rotate_left(32)
    }

    /// The sources from which not all is taken.
    fn left(&self) -> Vec<NodeId> {
        let (_, done) = self.context.shared().membership.layouts.taken();
        let layout = self.context.shared().membership.layouts.entered();
        let sources = sources(&layout, self.context.shared().own);
        sources.into_iter().filter(|node| !done.contains(node)).collect()
    }

    /// The same without those that failed a moment ago, once there are any.
    async fn sources_due(&self) -> Vec<NodeId> {
        let left = self.left();
        let not_before = &self.progress.not_before;
        let is_due =
            |node: &NodeId, now| not_before.borrow().get(node).is_none_or(|due| *due <= now);
        self.context.until(|now| left.iter().any(|node| is_due(node, now.mono))).await;
        let now = self.context.now().mono;
        left.into_iter().filter(|node| is_due(node, now)).collect()
    }

    /// Takes from each source what it is the first replica of.
    async fn first_pass(&self) {
        let (seed, start) = (self.seed(), Bytes::new());
        let range = PassRange { first: true, seed, start, end: None, known: Vec::new() };
        let sources = self.sources_due().await;
        task::all(sources.into_iter().map(|source| self.take(source, &range))).await;
        self.progress.first_is_done.set(true);
    }

    /// Takes from each source, range by range, what this node does not hold.
    async fn second_pass(&self) {
        let mut sources = self.sources_due().await;
        self.progress.ahead.borrow_mut().retain(|source, _| !sources.contains(source));
        let (seed, mut start) = (self.seed(), Bytes::new());
        loop {
            let range = self.look(seed, start).await;
            let taken = sources.iter().map(|source| self.take(*source, &range));
            let mut is_taken = task::all(taken).await.into_iter();
            sources.retain(|_| is_taken.next().unwrap_or_default());
            match range.end {
                Some(end) if !sources.is_empty() => start = end,
                _ => break,
            }
        }
        for source in sources {
            let ahead = self.progress.ahead.borrow().get(&source).copied();
            match ahead {
                Some(time) => self.look_again(source, time),
                None => self.context.shared().membership.layouts.has_taken(source),
            }
        }
        self.report_waiting();
        self.progress.is_new.set(true);
    }

    /// A source takes part in another pass once that time of a version is not ahead any more.
    fn look_again(&self, source: NodeId, time: u64) {
        let ahead = Clock::micros(time).saturating_sub(Clock::micros(self.context.takes_up_to()));
        let wait = ahead.clamp(RETRY_MICROS, LOOK_AGAIN_MICROS);
        let until = self.context.now().mono + wait;
        self.progress.not_before.borrow_mut().insert(source, until);
    }

    /// People see what this node waits for, and for how long.
    fn report_waiting(&self) {
        let ahead = self.progress.ahead.borrow();
        let last = ahead.iter().max_by_key(|(_, time)| **time);
        let waits =
            last.map(|(source, time)| Waits { source: *source, until: Clock::micros(*time) });
        if self.context.shared().membership.moves.waits(waits)
            && let Some(waits) = waits
        {
            self.context.effect(NodeEffect::Waits(waits));
        }
    }

    /// What this node holds of the range that begins there.
    async fn look(&self, seed: u64, start: Bytes) -> PassRange {
        let own = self.context.shared().own;
        loop {
            let filter = Filter::Moved { node: own, first: false, seed, known: Vec::new() };
            let begins = start.clone();
            let request = PageRequest { start: begins, end: None, filter, max_bytes: PAGE_BYTES };
            if let Ok(page) = fetch(&self.context, own, request).await {
                let digest =
                    |(key, record): &(Bytes, Record)| moved_digest(seed, key, record.rank());
                let known = page.items.iter().map(digest).take(MAX_KNOWN).collect();
                return PassRange { first: false, seed, start, end: page.next, known };
            }
            self.context.pause(RETRY_MICROS).await;
        }
    }

    /// Takes a source's pages of a range. A source that does not answer, goes by another view, or
    /// can't tell what a majority holds, is asked for the same page again. Returns whether all is
    /// taken: the source has not failed too often.
    async fn take(&self, source: NodeId, range: &PassRange) -> bool {
        let (mut start, mut failures) = (range.start.clone(), 0);
        loop {
            self.context.until(|now| self.pace.may_ask(now)).await;
            match self.page(source, range, start.clone()).await {
                Ok(Some(next)) => (start, failures) = (next, 0),
                Ok(None) => return true,
                Err(Failed) => {
                    failures += 1;
                    if failures >= FAILURES {
                        let until = self.context.now().mono + RETRY_MICROS;
                        self.progress.not_before.borrow_mut().insert(source, until);
                        return false;
                    }
                    self.context.pause(RETRY_MICROS).await;
                }
            }
        }
    }

    /// Stores the page that begins there; returns where the next one begins.
    async fn page(
        &self,
        source: NodeId,
        range: &PassRange,
        start: Bytes,
    ) -> Result<Option<Bytes>, Failed> {
        let context = &self.context;
        let PassRange { first, seed, end, known, .. } = range;
        let (node, first, seed, known) = (context.shared().own, *first, *seed, known.clone());
        let filter = Filter::Moved { node, first, seed, known };
        let request = PageRequest { start, end: end.clone(), filter, max_bytes: PAGE_BYTES };
        let page = fetch(context, source, request).await?;
        self.pace.came(context, &page.items);
        let layout = context.shared().membership.layouts.entered();
        let is_settled = |key: &Bytes, record: &Record| {
            record.ballot() == 0 || self.has_no_majority(&layout, key, record)
        };
        let chosen = choose(context, source, page.items, &self.left_ahead, is_settled).await?;
        let Chosen { items, left } = chosen;
        self.store(items).await?;
        self.note_ahead(source, &left);
        Ok(page.next)
    }

    /// Future records were left at a source: those count whose keys it does not keep.
    fn note_ahead(&self, source: NodeId, left: &Items) {
        let view = self.context.view();
        let keeps = |key: &Bytes, record: &Record| {
            let after = view.other.as_ref();
            after.is_none_or(|after| after.holds(source, partition_of(key), record.copies()))
        };
        let not_kept = left.iter().filter(|(key, record)| !keeps(key, record));
        if let Some(time) = not_kept.map(|(_, record)| record.when()).max() {
            let mut ahead = self.progress.ahead.borrow_mut();
            let greatest = ahead.entry(source).or_default();
            *greatest = time.max(*greatest);
        }
    }

    async fn store(&self, items: Items) -> Result<(), Failed> {
        if items.is_empty() {
            return Ok(());
        }
        self.context.shared().membership.moves.took(items.len(), bytes_of(&items));
        let since = self.context.now().mono;
        store(&self.context, items).await?;
        self.pace.written(&self.context, since);
        Ok(())
    }

    /// Whether so many replicas of before are declared lost that the others are no majority.
    /// Nothing is chosen by them any more, and nobody can tell what was: what is left is taken.
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

/// The nodes that hand over what they hold: all nodes of before, but those that are declared lost.
pub(crate) fn sources(layout: &Layout, own: NodeId) -> Vec<NodeId> {
    let before = layout.before.iter().flat_map(|before| &before.nodes);
    before.filter(|node| node.id != own && !node.is_lost).map(|node| node.id).collect()
}

/// Whether a node may get anything in a transition. Where nodes without zones are added, and
/// nothing else changes, nobody who stays comes nearer to the front of a partition's replicas.
/// Where there are fewer copies, those that stay must hold what a majority of more held.
pub(crate) fn takes(layout: &Layout, own: NodeId) -> bool {
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
