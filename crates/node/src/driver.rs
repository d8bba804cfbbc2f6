//! What a node needs of its driver: the process, or the simulator.

use bytes::Bytes;
use cluster::{
    Answer, CallId, Class, ClientId, CompareRequest, ConnectionId, Damage, Demand, Event,
    FailureKind, Message, NodeId, Now, OpId, PageRequest, Passing, Record, Reply, Request,
    WriteName,
};
use lsm::{Batch, Engine, Lookup, PurgeRule, Space};

use crate::backlog::Write;
use crate::hints::Hint;
use crate::identity::Keeps;
use crate::task::TaskEvent;

/// Why a write is not known to be stored.
#[derive(Debug, Clone)]
pub enum WriteError {
    /// Not tried: too many bytes wait for the log, or flushes and compactions are too far behind.
    Busy,
    /// It was written up to the seal, which this holds: nothing new up to there is taken.
    Sealed(u64),
    /// The store could not.
    Store(lsm::Error),
}

impl WriteError {
    /// Whether no write is taken any more before the next start.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Store(lsm::Error::Failed { .. } | lsm::Error::Closing))
    }
}

impl From<lsm::Error> for WriteError {
    /// Of a store that refuses: one that is busy is distinguished from a full or failed disk.
    fn from(refusal: lsm::Error) -> Self {
        match refusal {
            lsm::Error::Busy { .. } => Self::Busy,
            refusal => Self::Store(refusal),
        }
    }
}

/// What came of a write.
pub type Outcome = Result<(), WriteError>;

/// What a write to the store was for.
#[derive(Debug)]
pub enum Purpose {
    /// The coordinator waits for it. The time of a newer record that is held is known before; a
    /// seal may wait for it.
    Op(OpId, Option<u64>, Passing),
    /// A hint for a replica that missed a write.
    Hint(Hint),
    /// Hints that were delivered go.
    Delivered(Delivered),
    /// The node's task waits for it, by the number of its call.
    Task(CallId),
}

/// Hints that were delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// The node that they were delivered to.
    pub peer: NodeId,
    /// The number of hints.
    pub hints: u64,
    /// What they count for, in bytes.
    pub bytes: u64,
}

/// What is to be read.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// The newest record of a key, for a coordinator that wants none that is longer than `most`.
    Record {
        /// The key to read.
        key: Bytes,
        /// Bytes of the longest record that is wanted.
        most: u32,
    },
    /// What is kept of a conditional write with an idempotency key.
    Operation {
        /// Its key in the store.
        name: Bytes,
        /// The write that is asked for.
        asked: WriteName,
    },
    /// The newest record of a write's key, which is to be known before it is stored.
    Before(Write),
}

impl Wanted {
    /// Where it is.
    pub fn place(&self) -> (Space, &Bytes) {
        match self {
            Self::Record { key, .. } | Self::Before(Write { key, .. }) => (Space::Data, key),
            Self::Operation { name, .. } => (Space::Idempotency, name),
        }
    }
}

/// A turn of a loop: its time, and the writes that it collects.
pub trait Turn {
    /// The time as this turn reads it from the node's clocks.
    fn now(&self) -> Now;

    /// Adds what `fill` puts to the writes of this turn; `bytes` is about how much that is. Ends in
    /// [`Loop::written`](crate::Loop::written), later; refused, it comes to nothing.
    fn write(
        &mut self,
        bytes: usize,
        purpose: Purpose,
        fill: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome;
}

/// What a loop has done for it. Nothing of it calls back into the loop before it returns.
pub trait Driver: Turn {
    /// The engine, for reads that need no waiting.
    fn engine(&self) -> &Engine;

    /// Reads the newest record of a key, as far as that needs no waiting.
    fn try_get(&mut self, space: Space, key: &[u8]) -> Result<Lookup, lsm::Error>;

    /// Reads it where waiting is allowed; ends in [`Loop::was_read`](crate::Loop::was_read), or in
    /// nothing if nobody waits for it any more.
    fn read(&mut self, op: OpId, wanted: Wanted, demand: Demand);

    /// Reads a page; ends in [`Event::Paged`], or in nothing if nobody waits for it any more. Those
    /// that clients wait for go first.
    fn page(&mut self, op: OpId, request: PageRequest, demand: Demand);

    /// Tells what the store holds ([`compare`](crate::compare())); ends in [`Event::Compared`], or
    /// in nothing if nobody waits for it any more.
    fn compare(&mut self, op: OpId, request: CompareRequest, demand: Demand);

    /// Gives up blocks that can't be read ([`discard`](crate::discard())); ends in
    /// [`Event::Written`].
    fn discard(&mut self, op: OpId, ranges: Vec<Damage>);

    /// Stores something of the node's own, past the store's backlog: such small records must not
    /// wait for compactions. Ends in [`Loop::kept`](crate::Loop::kept).
    fn keep(&mut self, op: OpId, batch: Batch, keeps: Keeps);

    /// Sends to another node: see [`Effect::Send`](cluster::Effect::Send).
    fn send(&mut self, peer: NodeId, message: Message);

    /// Replies to another node, if its connection is still open.
    fn respond(&mut self, connection: ConnectionId, id: u64, reply: Reply);

    /// Answers a client.
    fn answer(&mut self, client: ClientId, answer: Answer);

    /// The result of a call.
    fn returned(&mut self, call: CallId, result: Result<Reply, FailureKind>);

    /// Hands the node's task an event.
    fn send_to_task(&mut self, event: TaskEvent);

    /// A record is about to be stored by a node that counts ([`cluster::BeforeWrites::count`]). It
    /// is called again for one that had to wait.
    fn accept(&mut self, _key: &Bytes, _record: &Record) {}

    /// Called with every event before it is handled.
    #[inline]
    fn note(&mut self, _event: &Event) {}
}

/// What the node task has done for it. Results come back later, as a [`TaskEvent`].
pub trait TaskDriver: Turn {
    /// Asks a node; ends in [`NodeEvent::Returned`](cluster::NodeEvent::Returned).
    fn call(&mut self, call: CallId, node: NodeId, class: Class, request: Request);

    /// Reads hints ([`hints::read`](crate::hints::read)); ends in [`TaskEvent::HintsRead`].
    fn read_hints(&mut self, wanted: HintsWanted);

    /// Stores something of the node's own, past the store's backlog; ends in [`TaskEvent::Kept`].
    fn keep(&mut self, batch: Batch, keeps: Keeps);

    /// The node's directory is an older copy, and must not be used any more: see
    /// [`NodeEffect::Outdated`](cluster::NodeEffect::Outdated). It comes again until the node ends.
    fn outdated(&mut self, proven: u64);

    /// The store's rule of what compactions may drop.
    fn purge_rule(&self) -> &PurgeRule;

    /// Has the whole store compacted, beginning after this; returns the number of that compaction,
    /// which is greater than those before. It takes its turns beside all else.
    fn compact(&mut self) -> u64;

    /// Whether that compaction, or one after it, has come to its end; `None` = neither has ended.
    fn compacted(&self, number: u64) -> Option<bool>;

    /// Hands the task an event after so many microseconds.
    fn after(&mut self, micros: u64, event: TaskEvent);
}

/// Which hints are to be read.
#[derive(Debug, Clone)]
pub struct HintsWanted {
    /// The call that the hints are read for.
    pub call: CallId,
    /// The node that they are for.
    pub peer: NodeId,
    /// The key after which to begin; `None` = with the first.
    pub after: Option<Bytes>,
    /// Bytes of keys and records after which to stop; one is always read.
    pub max_bytes: usize,
}
