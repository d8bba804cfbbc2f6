//! The interface between a node and its driver: the process, or the simulator.

use bytes::Bytes;
use lsm::{Batch, Engine, Lookup, PurgeRule, Space};
use protocol::{
    AloneId, Answer, CallId, Class, ClientId, CompareRequest, ConnectionId, Damage, Demand, Event,
    FailureKind, FencePermit, Message, NodeId, Now, OpId, PageRequest, Record, Reply, Request,
    WriteIdentity,
};

use crate::backlog::Write;
use crate::hints::Hint;
use crate::identity::OwnRecords;
use crate::task::TaskEvent;

/// Reason why a write is not known to be stored.
#[derive(Debug, Clone)]
pub enum WriteError {
    /// The write was not attempted: too many bytes wait for the log, or flushes and compactions are
    /// too far behind.
    Busy,
    /// The write's time is not above the repair fence (seal), up to which the node accepts no new
    /// writes. Contains a time that the write's version must exceed.
    Sealed(u64),
    /// The store refused the write, or failed: any error but `Busy`.
    Store(lsm::Error),
}

impl WriteError {
    /// Returns true if the store accepts no writes before the next start.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Store(lsm::Error::Failed { .. } | lsm::Error::Closing))
    }
}

impl From<lsm::Error> for WriteError {
    /// Converts the store's error. Distinguishes a busy store from a full or failed disk.
    fn from(refusal: lsm::Error) -> Self {
        match refusal {
            lsm::Error::Busy { .. } => Self::Busy,
            refusal => Self::Store(refusal),
        }
    }
}

/// The result of a write.
pub type Outcome = Result<(), WriteError>;

/// The purpose of a write to the store.
#[derive(Debug)]
pub enum WritePurpose {
    /// The coordinator waits for the write. Contains the version time of a newer record, if the
    /// node has such a record, and the write's permit from the repair fence. A new fence waits
    /// until the permit is returned.
    Op(OpId, Option<u64>, FencePermit),
    /// A client waits for the write, which this node's store decides alone. Contains the write's
    /// permit from the repair fence.
    Alone(AloneId, FencePermit),
    /// A hint for a replica that missed a write.
    Hint(Hint),
    /// The removal of delivered hints.
    Delivered(Delivered),
    /// The node task waits for the write, by the number of its call.
    Task(CallId),
}

/// A batch of delivered hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// The node that has received the hints.
    pub peer: NodeId,
    /// The number of hints.
    pub hints: u64,
    /// Their size in the hint accounting, in bytes.
    pub bytes: u64,
}

/// A read from the store.
#[derive(Debug, Clone)]
pub enum StoreRead {
    /// The newest record of a key, for a coordinator that wants no record longer than `most`.
    Record {
        /// The key to read.
        key: Bytes,
        /// Length of the longest record wanted, in bytes.
        most: u32,
    },
    /// The idempotency-key record of a conditional write.
    Operation {
        /// The record's key in the store.
        name: Bytes,
        /// The write that is looked up.
        asked: WriteIdentity,
    },
    /// The newest record of a write's key, needed before the write is stored.
    Before(Write),
}

impl StoreRead {
    /// Returns the space and key of the record.
    pub fn place(&self) -> (Space, &Bytes) {
        match self {
            Self::Record { key, .. } | Self::Before(Write { key, .. }) => (Space::Data, key),
            Self::Operation { name, .. } => (Space::Idempotency, name),
        }
    }
}

/// A turn of a loop: its time, and the writes that it collects.
pub trait WriteBatcher {
    /// Returns the time, read once for this turn from the node's clocks.
    fn now(&self) -> Now;

    /// Adds the records that `fill` puts, about `bytes` bytes, to the writes of this turn. The
    /// result goes to [`Loop::on_write_result`](crate::Loop::on_write_result) later; an error means
    /// that nothing was added.
    fn write(
        &mut self,
        bytes: usize,
        purpose: WritePurpose,
        fill: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome;
}

/// The services that a loop needs. None of them calls back into the loop before it returns.
pub trait Driver: WriteBatcher {
    /// Returns the engine, for nonblocking reads.
    fn engine(&self) -> &Engine;

    /// Reads the newest record of a key without blocking; [`Lookup::WouldBlock`] = the read must
    /// wait for the disk.
    fn try_get(&mut self, space: Space, key: &[u8]) -> Result<Lookup, lsm::Error>;

    /// Reads `wanted` on a thread that may block. The result goes to
    /// [`Loop::was_read`](crate::Loop::was_read), or is dropped if no request waits for the result
    /// any more.
    fn read(&mut self, op: OpId, wanted: StoreRead, demand: Demand);

    /// Reads a page. The result is an [`Event::PageRead`], or is dropped if no request waits for it
    /// any more. Pages for clients go first.
    fn page(&mut self, op: OpId, request: PageRequest, demand: Demand);

    /// Summarizes the store's records for a repair round ([`compare`](crate::compare())). The
    /// result is an [`Event::Compared`], or is dropped if no request waits for it any more.
    fn compare(&mut self, op: OpId, request: CompareRequest, demand: Demand);

    /// Discards blocks that can't be read ([`discard`](crate::discard())). The result is an
    /// [`Event::Written`].
    fn discard(&mut self, op: OpId, ranges: Vec<Damage>);

    /// Stores one of the node's own records, bypassing the store's backlog: these records are small
    /// and must not wait for compactions. The result goes to
    /// [`Loop::on_own_record_stored`](crate::Loop::on_own_record_stored).
    fn keep(&mut self, op: OpId, batch: Batch, keeps: OwnRecords);

    /// Sends a message to another node: see [`Effect::Send`](protocol::Effect::Send).
    fn send(&mut self, peer: NodeId, message: Message);

    /// Replies to another node, if its connection is still open.
    fn respond(&mut self, connection: ConnectionId, id: u64, reply: Reply);

    /// Answers a client.
    fn answer(&mut self, client: ClientId, answer: Answer);

    /// Receives the result of a call of the node task.
    fn return_call(&mut self, call: CallId, result: Result<Reply, FailureKind>);

    /// Sends an event to the node task.
    fn send_to_task(&mut self, event: TaskEvent);

    /// Receives each record before it is stored, on a node that counts records
    /// ([`protocol::WriteChecks::counts_bytes`]). A record that had to wait is passed again after
    /// the wait.
    fn accept(&mut self, _key: &Bytes, _record: &Record) {}

    /// Receives every event before the loop handles it.
    #[inline]
    fn note(&mut self, _event: &Event) {}
}

/// The services that the node task needs. Results come back later, as a [`TaskEvent`].
pub trait TaskDriver: WriteBatcher {
    /// Sends a request to a node. The result is a
    /// [`BackgroundEvent::CallReturned`](protocol::BackgroundEvent::CallReturned).
    fn call(&mut self, call: CallId, node: NodeId, class: Class, request: Request);

    /// Reads hints ([`hints::read`](crate::hints::read)). The result is a [`TaskEvent::HintsRead`].
    fn read_hints(&mut self, wanted: HintQuery);

    /// Stores one of the node's own records, bypassing the store's backlog. The result is a
    /// [`TaskEvent::Kept`].
    fn keep(&mut self, batch: Batch, keeps: OwnRecords);

    /// Reports that the node's directory is an outdated copy, which must not be used any more: see
    /// [`BackgroundEffect::Outdated`](protocol::BackgroundEffect::Outdated). The report repeats
    /// until the node ends.
    fn report_outdated(&mut self, proven: u64);

    /// Returns the store's rule for records that compactions may drop.
    fn purge_rule(&self) -> &PurgeRule;

    /// Queues a compaction of the whole store, which starts after this call returns, and returns
    /// the compaction's number, which is greater than all earlier numbers. Its steps alternate with
    /// the store's other work.
    fn compact(&mut self) -> u64;

    /// Returns whether compaction `number`, or a later compaction, succeeded; `None` = no such
    /// compaction has ended.
    fn compaction_succeeded(&self, number: u64) -> Option<bool>;

    /// Delivers an event to the task after `micros` microseconds.
    fn after(&mut self, micros: u64, event: TaskEvent);
}

/// A read of stored hints.
#[derive(Debug, Clone)]
pub struct HintQuery {
    /// The call that waits for the hints.
    pub call: CallId,
    /// The node that the hints are for.
    pub peer: NodeId,
    /// The key after which the read begins; `None` = the read begins with the first hint.
    pub after: Option<Bytes>,
    /// Bytes of keys and records after which the read stops; at least one hint is read.
    pub max_bytes: usize,
}
