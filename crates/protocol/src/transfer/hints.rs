//! Hint delivery: repeated passes over the hints of each node, in batches, in key order. A hint is
//! dropped only once its node reports that it has stored the record.
//!
//! ```text
//!   a pass: read a batch ─▶ drop records placed elsewhere ─▶ leave future ones
//!               ▲             ─▶ send the rest ─▶ stored: drop these hints ─┐
//!               └───────────────────────────────────────────────────────────┘
//! ```
//!
//! A hint is dropped undelivered if its node has left, or is no longer a replica of the record in
//! either topology of the view in force. That is safe: enough other replicas have acknowledged the
//! write, or the write was not acknowledged. The current replicas of the partition hold all records
//! of the previous replicas. If the hint's node ever becomes a replica of the partition again, it
//! drops its old records of the partition, and pulls all records from the other replicas.
//!
//! A *future hint* has a timestamp that is further ahead of this node's or the receiver's wall
//! clock than `--max-clock-skew`. A pass leaves future hints in the store, and a later pass retries
//! them. A hint that was delivered but could not be removed, because the store is overloaded or
//! full, is delivered again, and counts as waiting until it is removed. If it did not count, its
//! second delivery would be counted as that of another hint, which would then wait forever.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;

use super::pages::move_pages;
use super::{FIRST_WAIT_MICROS, Items, MAX_WAIT_MICROS, PageFailure};
use crate::background::effect::BackgroundEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::clock::Clock;
use crate::message::{Class, NodeId, Page, Reply, Request};
use crate::transfer::hint_ledger::hint_bytes;
use record::Record;

/// Bytes of one batch. One batch per node is in flight, which limits the rate to one batch per
/// round trip and sync.
const BATCH_BYTES: usize = 256 * 1024;

/// Maximum pause, in microseconds, after a pass that had to keep future hints in the store: a clock
/// that was behind may be right by then.
const MAX_FUTURE_PAUSE_MICROS: u64 = 60_000_000;

/// The pause after a pass that left future hints, as a multiple of the pass's reading time:
/// rereading hints that must stay may take up to a tenth of a disk's time.
const PAUSE_FACTOR: u64 = 9;

/// Number of consecutive passes without removal of delivered hints. After more such passes, the
/// pause is a multiple of the whole pass's duration, because the node receives the same hints again
/// and again. Up to this number, the store may have been busy only briefly.
const VAIN_PASSES: u32 = 3;

/// The delivery of hints to other nodes.
#[derive(Debug, Default)]
pub(crate) struct Hints(BTreeMap<NodeId, HintDelivery>);

/// The delivery of one node's hints.
#[derive(Debug, Default)]
struct HintDelivery {
    pass: Option<TaskId>,
    passes: Rc<Passes>,
}

/// The state shared by the passes over a node's hints.
#[derive(Debug, Default)]
struct Passes {
    /// Time when the next pass may begin, in microseconds of the monotonic clock.
    not_before: Cell<u64>,
    /// Number of hints left by the last pass.
    stays: Cell<u64>,
    /// Time in microseconds of the monotonic clock. Until then a pass is due only if more hints
    /// wait than the last pass left.
    stays_until: Cell<u64>,
    /// True if hints delivered by the current pass are still in the store.
    has_undropped: Cell<bool>,
    /// Number of consecutive passes, up to the last, that could not remove delivered hints.
    vain: Cell<u32>,
    /// Pause after the last failure, in microseconds.
    wait: Cell<u64>,
}

/// Future hints that stay in the store.
#[derive(Debug, Default, Clone, Copy)]
struct FutureHints {
    hints: u64,
    bytes: u64,
    /// Microseconds until the first of these hints can be sent.
    wait: u64,
}

/// One pass over a node's hints.
struct DeliveryPass {
    context: Context,
    node: NodeId,
    passes: Rc<Passes>,
    /// Start of the pass by the monotonic clock, and the ledger's count at that time: hints, and
    /// their bytes.
    began: u64,
    counted: (u64, u64),
    /// Microseconds spent waiting for reads of the store.
    reading: u64,
    /// True if the pass delivered any hint, or dropped one that need not be delivered.
    has_delivered: bool,
    /// Estimate of the greatest version time that the node accepts, after it refused hints as too
    /// far ahead of its clock; `None` = it refused none.
    refused: Option<u64>,
    stays: FutureHints,
}

impl Hints {
    /// Starts the passes that are due.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        let context = tasks.context().clone();
        for node in context.others() {
            self.0.entry(node).or_default();
        }
        for (node, delivery) in &mut self.0 {
            delivery.pass.take_if(|pass| !tasks.is_under_way(*pass));
            if delivery.pass.is_none() && delivery.passes.is_due(&context, *node) {
                let pass = DeliveryPass::new(&context, *node, &delivery.passes);
                delivery.pass = Some(tasks.spawn("hints", pass.run()));
            }
        }
    }

    /// Notes that delivered hints are still in the store, so that the next pass delivers them
    /// again.
    pub(crate) fn stay(&mut self, context: &Context, node: NodeId, hints: u64, bytes: u64) {
        context.shared().transfer.hints.count_found(node, hints, bytes);
        self.0.entry(node).or_default().passes.has_undropped.set(true);
    }
}

impl Passes {
    fn is_due(&self, context: &Context, node: NodeId) -> bool {
        let (now, waiting) =
            (context.now().mono, context.shared().transfer.hints.waiting_hints(node).0);
        let only_stays = waiting <= self.stays.get() && now < self.stays_until.get();
        waiting > 0 && !only_stays && self.not_before.get() <= now
    }
}

impl FutureHints {
    fn add(self, other: Self) -> Self {
        let wait = match (self.hints, other.hints) {
            (0, _) => other.wait,
            (_, 0) => self.wait,
            _ => self.wait.min(other.wait),
        };
        Self { hints: self.hints + other.hints, bytes: self.bytes + other.bytes, wait }
    }

    fn of(key: &[u8], record: &Record, limit: u64) -> Self {
        let wait = Clock::micros(record.write_time()).saturating_sub(Clock::micros(limit));
        Self { hints: 1, bytes: hint_bytes(key, record), wait }
    }
}

impl DeliveryPass {
    fn new(context: &Context, node: NodeId, passes: &Rc<Passes>) -> Self {
        passes.has_undropped.set(false);
        Self {
            context: context.clone(),
            node,
            passes: Rc::clone(passes),
            began: context.now().mono,
            counted: context.shared().transfer.hints.waiting_hints(node),
            reading: 0,
            has_delivered: false,
            refused: None,
            stays: FutureHints::default(),
        }
    }

    /// Delivers all hints of the node, batch by batch. A batch that fails is read again before it
    /// is retried, because newer hints may have been stored.
    async fn run(mut self) {
        let (context, passes) = (self.context.clone(), Rc::clone(&self.passes));
        let batch = async |after| Ok(self.deliver_batch(after).await?.map(Some));
        let Ok(()) =
            move_pages(&context, None, batch, |_| Ok::<_, Infallible>(passes.wait.get())).await;
        self.end();
    }

    /// Delivers the next batch of hints, with keys greater than `after`. Returns the batch's last
    /// key; `None` = no hints are left.
    async fn deliver_batch(&mut self, after: Option<Bytes>) -> Result<Option<Bytes>, PageFailure> {
        if after.is_none() {
            // A failed first batch is repeated. The counts of the pass then begin again.
            *self = Self::new(&self.context, self.node, &self.passes);
        }
        let items = self.read(after).await?;
        let Some(last) = items.last().map(|(key, _)| key.clone()) else { return Ok(None) };
        self.deliver(items).await?;
        Ok(Some(last))
    }

    /// Reads the next batch of hints, with keys greater than `after`.
    async fn read(&mut self, after: Option<Bytes>) -> Result<Items, PageFailure> {
        let (asked, peer) = (self.context.now().mono, self.node);
        let hints =
            move |call| BackgroundEffect::ReadHints { call, peer, after, max_bytes: BATCH_BYTES };
        let read = self.context.effect_as_call(hints).await;
        self.reading += self.context.now().mono - asked;
        match read {
            Ok(Reply::Page(Page { items, .. })) => Ok(items),
            _ => {
                self.passes.wait.set(FIRST_WAIT_MICROS);
                Err(PageFailure)
            }
        }
    }

    /// Sends the hints of a batch, except future hints, until the node has stored them. The limit
    /// on timestamps is determined for each batch, because a pass may last long.
    async fn deliver(&mut self, mut items: Items) -> Result<(), PageFailure> {
        let (context, node, wait) = (self.context.clone(), self.node, &self.passes.wait);
        let mut stays = FutureHints::default();
        loop {
            self.has_delivered |= drop_needless_hints(&context, node, &mut items);
            let limit = context.greatest_accepted_time();
            let limit = self.refused.map_or(limit, |refused| refused.min(limit));
            for (key, record) in items.extract_if(.., |(_, record)| record.write_time() > limit) {
                stays = stays.add(FutureHints::of(&key, &record, limit));
            }
            if items.is_empty() {
                break;
            }
            let request = Request::Writes { items: items.clone() };
            match context.call(node, Class::Hint, request).await {
                Ok(Reply::Stored | Reply::Newer { .. }) => {
                    wait.set(FIRST_WAIT_MICROS);
                    self.has_delivered = true;
                    drop_delivered(&context, node, items);
                    break;
                }
                // The node's clock is behind this node's clock. The batch is halved until the node
                // accepts the hints.
                Ok(Reply::Ahead) => {
                    let mut times: Vec<_> =
                        items.iter().map(|(_, record)| record.write_time()).collect();
                    times.sort_unstable();
                    self.refused = Some(times[times.len() / 2].saturating_sub(1));
                }
                Ok(_) => {
                    wait.set((wait.get() * 2).clamp(FIRST_WAIT_MICROS, MAX_WAIT_MICROS));
                    return Err(PageFailure);
                }
                // An unreachable node should get its hints within a second after its return.
                Err(_) => {
                    wait.set(FIRST_WAIT_MICROS);
                    return Err(PageFailure);
                }
            }
        }
        self.stays = self.stays.add(stays);
        Ok(())
    }

    /// Ends the pass. During the pass, new hints may have been stored under keys that it had read
    /// already, so another pass follows unless this pass delivered nothing.
    fn end(&self) {
        let (now, stays, passes) = (self.context.now().mono, self.stays, &self.passes);
        let ledger = &self.context.shared().transfer.hints;
        if !self.has_delivered {
            let (hints, bytes) = self.counted;
            let gone = (hints.saturating_sub(stays.hints), bytes.saturating_sub(stays.bytes));
            ledger.clear(self.node, gone);
        }
        let has_undropped = passes.has_undropped.get();
        passes.vain.set(if has_undropped { passes.vain.get() + 1 } else { 0 });
        passes.stays.set(stays.hints);
        passes.not_before.set(now);
        if stays.hints > 0 || has_undropped {
            passes.not_before.set(now + self.pause_after_pass(now));
            passes.stays_until.set(now + stays.wait.min(MAX_FUTURE_PAUSE_MICROS));
        }
        ledger.stay(self.node, stays.hints);
    }

    /// Returns the pause after a pass that left hints, in microseconds.
    fn pause_after_pass(&self, now: u64) -> u64 {
        let vain = self.passes.vain.get();
        let least = match self.refused {
            Some(_) => MAX_WAIT_MICROS,
            None => (FIRST_WAIT_MICROS << vain.min(VAIN_PASSES + 1)).min(MAX_WAIT_MICROS),
        };
        let took = match self.stays.hints {
            _ if vain > VAIN_PASSES => now.saturating_sub(self.began),
            0 => 0,
            _ => self.reading,
        };
        took.saturating_mul(PAUSE_FACTOR).clamp(least, MAX_FUTURE_PAUSE_MICROS)
    }
}

/// Drops the hints of a batch whose records are not placed on the node. Returns `true` if there
/// were any.
fn drop_needless_hints(context: &Context, node: NodeId, items: &mut Items) -> bool {
    let view = context.view();
    let needless: Items = items
        .extract_if(.., |(key, record)| !view.is_replica(node, key, record.copies()))
        .collect();
    let is_any = !needless.is_empty();
    if is_any {
        context.shared().transfer.hints.count_needless(
            node,
            needless.len() as u64,
            bytes_of(&needless),
        );
        context.effect(BackgroundEffect::DropHints { peer: node, items: needless });
    }
    is_any
}

/// Drops hints whose records the node has stored.
fn drop_delivered(context: &Context, node: NodeId, items: Items) {
    let shared = context.shared();
    shared.transfer.hints.note_delivered(node, items.len() as u64, bytes_of(&items));
    shared.membership.logs.note_late_write(node);
    context.effect(BackgroundEffect::DropHints { peer: node, items });
}

fn bytes_of(items: &Items) -> u64 {
    items.iter().map(|(key, record)| hint_bytes(key, record)).sum()
}
