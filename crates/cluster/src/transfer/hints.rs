//! Delivery of hints: pass after pass over the hints of each node, in batches, in the order of
//! their keys. No hint is forgotten before its node says that it has stored the record.
//!
//! ```text
//!   a pass: read a batch ─▶ drop what is placed elsewhere ─▶ leave what is from the future
//!               ▲             ─▶ send the rest ─▶ stored: drop these hints ─┐
//!               └───────────────────────────────────────────────────────────┘
//! ```
//!
//! A hint for a node that is no replica of its record any more, in neither topology of the view in
//! force, is dropped instead, and so are all of a node that has left. Nobody counts on a hint: its
//! write was acknowledged by other replicas or not at all. Whoever holds the partition now has
//! taken what those held that are in force, or is one of them; and the node begins with nothing if
//! it ever gets the partition back.
//!
//! A *future hint*, with a timestamp further ahead of this node's wall clock or of the
//! receiver's than clocks may be, stays where it is while the others go out. A later pass looks at
//! it again. A hint that was delivered and that the store, overloaded or full, could not remove is
//! delivered again, and counts as waiting until it is gone. Were it not counted, it would be taken
//! for another one that came later, and that one would wait for ever.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::{FIRST_WAIT_MICROS, Failed, Items, MOST_WAIT_MICROS};
use crate::background::effect::NodeEffect;
use crate::background::task::{Context, TaskId, Tasks};
use crate::clock::Clock;
use crate::message::{Class, NodeId, Page, Reply, Request};
use crate::transfer::ledger::hint_bytes;
use record::Record;

/// Bytes of one batch of hints. One is under way for each node, which bounds the rate to what it
/// stores and syncs in the time of a round trip.
const BATCH_BYTES: usize = 256 * 1024;

/// Microseconds after a pass that left future hints until the next one begins at the latest: a
/// clock that was behind may be right by then.
const LOOK_AGAIN_MICROS: u64 = 60_000_000;

/// The rest after such a pass, as a multiple of the time that it was reading: reading over what has
/// to stay is not to take more than a tenth of a disk's time.
const REST: u64 = 9;

/// Passes in a row that left what they had delivered, after which there is as much rest for all
/// that such a pass did: its node is written to in vain. Before it, the store was just busy for a
/// moment.
const VAIN_PASSES: u32 = 3;

/// The delivery of hints to other nodes.
#[derive(Debug, Default)]
pub(crate) struct Hints(BTreeMap<NodeId, Delivery>);

/// The delivery of one node's hints.
#[derive(Debug, Default)]
struct Delivery {
    pass: Option<TaskId>,
    passes: Rc<Passes>,
}

/// What the passes over a node's hints came to.
#[derive(Debug, Default)]
struct Passes {
    /// When the next one may begin, by the monotonic clock.
    not_before: Cell<u64>,
    /// Hints that the last one left.
    stays: Cell<u64>,
    /// Until then, nothing is due if no more hints wait than stayed.
    stays_until: Cell<u64>,
    /// Whether some of what this one delivered is in the store still.
    undropped: Cell<bool>,
    /// Passes in a row, up to the last one, that left what they had delivered.
    vain: Cell<u32>,
    /// Microseconds to wait after the last failure.
    wait: Cell<u64>,
}

/// Future hints that stay in the store.
#[derive(Debug, Default, Clone, Copy)]
struct Stays {
    hints: u64,
    bytes: u64,
    /// Microseconds after which the first of them can go out.
    wait: u64,
}

/// One pass over a node's hints.
struct Pass {
    context: Context,
    node: NodeId,
    passes: Rc<Passes>,
    /// When it began, by the monotonic clock, and what was counted then: hints, and their bytes.
    began: u64,
    counted: (u64, u64),
    /// Microseconds for which it has waited for the store to read.
    reading: u64,
    /// Whether it delivered anything, or dropped what need not be delivered.
    has_delivered: bool,
    /// The greatest time of a version that the node takes, if it refused some hint for its clock.
    refused: Option<u64>,
    stays: Stays,
}

impl Hints {
    /// Begins the passes that are due.
    pub(crate) fn tick(&mut self, tasks: &mut Tasks) {
        let context = tasks.context().clone();
        for node in context.others() {
            self.0.entry(node).or_default();
        }
        for (node, delivery) in &mut self.0 {
            delivery.pass.take_if(|pass| !tasks.is_under_way(*pass));
            if delivery.pass.is_none() && delivery.passes.is_due(&context, *node) {
                let pass = Pass::new(&context, *node, &delivery.passes);
                delivery.pass = Some(tasks.spawn("hints", pass.run()));
            }
        }
    }

    /// Hints that were delivered are in the store still, for the next pass to deliver again.
    pub(crate) fn stay(&mut self, context: &Context, node: NodeId, hints: u64, bytes: u64) {
        context.shared().transfer.hints.found(node, hints, bytes);
        self.0.entry(node).or_default().passes.undropped.set(true);
    }
}

impl Passes {
    fn is_due(&self, context: &Context, node: NodeId) -> bool {
        let (now, waiting) = (context.now().mono, context.shared().transfer.hints.waiting(node).0);
        let only_stays = waiting <= self.stays.get() && now < self.stays_until.get();
        waiting > 0 && !only_stays && self.not_before.get() <= now
    }
}

impl Stays {
    fn add(self, other: Self) -> Self {
        let wait = match (self.hints, other.hints) {
            (0, _) => other.wait,
            (_, 0) => self.wait,
            _ => self.wait.min(other.wait),
        };
        Self { hints: self.hints + other.hints, bytes: self.bytes + other.bytes, wait }
    }

    fn of(key: &[u8], record: &Record, limit: u64) -> Self {
        let wait = Clock::micros(record.when()).saturating_sub(Clock::micros(limit));
        Self { hints: 1, bytes: hint_bytes(key, record), wait }
    }
}

impl Pass {
    fn new(context: &Context, node: NodeId, passes: &Rc<Passes>) -> Self {
        passes.undropped.set(false);
        Self {
            context: context.clone(),
            node,
            passes: Rc::clone(passes),
            began: context.now().mono,
            counted: context.shared().transfer.hints.waiting(node),
            reading: 0,
            has_delivered: false,
            refused: None,
            stays: Stays::default(),
        }
    }

    /// Goes through all hints of the node. A batch that fails is read again: newer hints may have
    /// come.
    async fn run(mut self) {
        let mut after = None;
        loop {
            match self.pass_batch(after.clone()).await {
                Ok(None) => break,
                Ok(last) => after = last,
                Err(Failed) => {
                    self.context.pause(self.passes.wait.get()).await;
                    if after.is_none() {
                        self = Self::new(&self.context, self.node, &self.passes);
                    }
                }
            }
        }
        self.end();
    }

    /// Delivers the hints behind a key, as many as a batch takes. Returns the last key; `None` =
    /// there are none.
    async fn pass_batch(&mut self, after: Option<Bytes>) -> Result<Option<Bytes>, Failed> {
        let items = self.read(after).await?;
        let Some(last) = items.last().map(|(key, _)| key.clone()) else { return Ok(None) };
        self.deliver(items).await?;
        Ok(Some(last))
    }

    /// Reads the hints behind a key, as many as a batch takes.
    async fn read(&mut self, after: Option<Bytes>) -> Result<Items, Failed> {
        let (asked, peer) = (self.context.now().mono, self.node);
        let hints = move |call| NodeEffect::ReadHints { call, peer, after, max_bytes: BATCH_BYTES };
        let read = self.context.call_for(hints).await;
        self.reading += self.context.now().mono - asked;
        match read {
            Ok(Reply::Page(Page { items, .. })) => Ok(items),
            _ => {
                self.passes.wait.set(FIRST_WAIT_MICROS);
                Err(Failed)
            }
        }
    }

    /// Sends those hints of a batch that are not from the future, until the node has stored them. A
    /// pass may last long, so what the future is goes by the time of each batch.
    async fn deliver(&mut self, mut items: Items) -> Result<(), Failed> {
        let (context, node, wait) = (self.context.clone(), self.node, &self.passes.wait);
        let mut stays = Stays::default();
        loop {
            self.has_delivered |= drop_needless(&context, node, &mut items);
            let limit = context.takes_up_to();
            let limit = self.refused.map_or(limit, |refused| refused.min(limit));
            for (key, record) in items.extract_if(.., |(_, record)| record.when() > limit) {
                stays = stays.add(Stays::of(&key, &record, limit));
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
                // The node's clock is behind this one. Which hints it would take is found by
                // halving.
                Ok(Reply::Ahead) => {
                    let mut times: Vec<_> = items.iter().map(|(_, record)| record.when()).collect();
                    times.sort_unstable();
                    self.refused = Some(times[times.len() / 2].saturating_sub(1));
                }
                Ok(_) => {
                    wait.set((wait.get() * 2).clamp(FIRST_WAIT_MICROS, MOST_WAIT_MICROS));
                    return Err(Failed);
                }
                // A node that can't be reached is to have its hints within a second after it is
                // back.
                Err(_) => {
                    wait.set(FIRST_WAIT_MICROS);
                    return Err(Failed);
                }
            }
        }
        self.stays = self.stays.add(stays);
        Ok(())
    }

    /// Hints that came meanwhile may lie before where the pass ended, so there is another pass
    /// unless this one delivered nothing at all.
    fn end(&self) {
        let (now, stays, passes) = (self.context.now().mono, self.stays, &self.passes);
        let ledger = &self.context.shared().transfer.hints;
        if !self.has_delivered {
            let (hints, bytes) = self.counted;
            let gone = (hints.saturating_sub(stays.hints), bytes.saturating_sub(stays.bytes));
            ledger.none_left(self.node, gone);
        }
        let undropped = passes.undropped.get();
        passes.vain.set(if undropped { passes.vain.get() + 1 } else { 0 });
        passes.stays.set(stays.hints);
        passes.not_before.set(now);
        if stays.hints > 0 || undropped {
            passes.not_before.set(now + self.rest(now));
            passes.stays_until.set(now + stays.wait.min(LOOK_AGAIN_MICROS));
        }
        ledger.stay(self.node, stays.hints);
    }

    /// Microseconds without a pass after one that left something.
    fn rest(&self, now: u64) -> u64 {
        let vain = self.passes.vain.get();
        let least = match self.refused {
            Some(_) => MOST_WAIT_MICROS,
            None => (FIRST_WAIT_MICROS << vain.min(VAIN_PASSES + 1)).min(MOST_WAIT_MICROS),
        };
        let took = match self.stays.hints {
            _ if vain > VAIN_PASSES => now.saturating_sub(self.began),
            0 => 0,
            _ => self.reading,
        };
        took.saturating_mul(REST).clamp(least, LOOK_AGAIN_MICROS)
    }
}

/// Drops the hints of a batch whose records are not placed on the node. Returns whether there were
/// any.
fn drop_needless(context: &Context, node: NodeId, items: &mut Items) -> bool {
    let view = context.view();
    let needless: Items =
        items.extract_if(.., |(key, record)| !view.places(node, key, record.copies())).collect();
    let is_any = !needless.is_empty();
    if is_any {
        context.shared().transfer.hints.needless(node, needless.len() as u64, bytes_of(&needless));
        context.effect(NodeEffect::DropHints { peer: node, items: needless });
    }
    is_any
}

/// Drops hints whose records the node has stored.
fn drop_delivered(context: &Context, node: NodeId, items: Items) {
    let shared = context.shared();
    shared.transfer.hints.delivered(node, items.len() as u64, bytes_of(&items));
    shared.membership.logs.stored_late(node);
    context.effect(NodeEffect::DropHints { peer: node, items });
}

fn bytes_of(items: &Items) -> u64 {
    items.iter().map(|(key, record)| hint_bytes(key, record)).sum()
}
