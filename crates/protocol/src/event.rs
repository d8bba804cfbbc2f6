//! Events that go into a [`Protocol`](crate::Protocol), and effects that come out of it.
//!
//! **The embedder's obligations (the embedder is `crates/server`).**
//!
//! *Order.* The embedder starts the effects of an event in their order, and before any effect of
//! the next event. Effects may complete in any order, with two exceptions: messages to one node
//! over one connection arrive in the order of sending, and of two writes to this node's store, the
//! second is not visible before the first.
//!
//! *Completion.* The result of an effect comes back as an event of its own, never from within
//! [`Protocol::handle`](crate::Protocol::handle), at most once, and under the id of the effect. An
//! event whose id belongs to no unfinished operation changes nothing.
//!
//! | effect | ends with the event | may be skipped |
//! |---|---|---|
//! | `Read` | `Read`, `ReadTooLong` | after its [`Demand::until`]: the result is no longer needed |
//! | `Recall` | `Recalled` | after its `until` |
//! | `Page` | `PageRead` | after its `until` |
//! | `Compare` | `Compared` | after its `until` |
//! | `Discard` | `Written` | no |
//! | `Write`, `WriteAll` | `Written` | no; a write that has not begun by `until` ends in `Busy` |
//! | `StoreMissed`, `StoreProof`, `StoreLayouts` | `Written` | no |
//! | `Hint` | `HintStored` | no: the ledger reserves the hint's bytes until `HintStored` |
//! | `Send` | `Reply`, `LinkLost`, `Unreachable`, `MessageDropped` | once nobody awaits the reply |
//! | `Respond` | none | if the connection is gone |
//! | `Answer`, `ReturnCall` | none | no: a client or a caller waits |
//!
//! A crash ends all obligations, and may lose whatever is not durable yet.

use bytes::Bytes;

use crate::message::{Class, Message, NodeId, Page, PageRequest, Reply, Request};
use crate::paxos::operation::{Conditional, Done};
use crate::paxos::recent::{OpLookup, Via, WriteIdentity};
use crate::placement::view::ViewId;
use crate::repair::compare_messages::{CompareRequest, Compared, Damage};
use crate::repair::watermark::Proof;
use crate::request::quorum::{AskedQuorum, Quorum};
use crate::request::receipt::Acks;
use record::{Record, RecordOutline, Version};

/// A coordinator's settings.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The longest duration of a request, in microseconds.
    pub deadline_micros: u64,
    /// The largest lead of a version over the wall clock, in microseconds.
    pub max_skew_micros: u64,
    /// The greatest length, in bytes, of a record that a replica always sends whole: a node always
    /// has memory for one record of this length. A read of a longer record first compares outlines.
    pub brief_bytes: u32,
}

/// The number that the embedder gives a client that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The number that the embedder gives a single request to a single node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// The number that the embedder gives a connection on which another node sends requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The number that the coordinator gives a hint until this node's store has stored the hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HintId(pub u64);

/// The class and the deadline of an operation on this node's store. They order queued operations,
/// and decide which of them are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// The reason for the request: client requests go first.
    pub class: Class,
    /// The time until which the asker waits, by the monotonic clock, in microseconds.
    pub until: u64,
}

/// The id of a coordinator's unfinished request. Messages sent for the request carry this id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// The owner of an operation on the store. The event with the result carries the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpId {
    /// A request that this node coordinates, and in which its own replica takes part.
    Slot(SlotId),
    /// A request of another node.
    Peer {
        /// The connection to reply on.
        connection: ConnectionId,
        /// The request's id, which the reply repeats.
        id: u64,
        /// The partition of the key to read; `None` if no key is read.
        partition: Option<u16>,
        /// The placement ([`ViewId`]) under which the asker counts the answer; 0 = any placement.
        /// Under another placement the node replies [`Reply::Superseded`].
        placement: u64,
    },
}

/// The reason why this node's store did not carry out an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// Overloaded. Nothing was changed.
    Busy(&'static str),
    /// The disk is full. Nothing was changed.
    NoSpace(String),
    /// The repair fence refused the write: the record's write time is not later than the time of
    /// the fence, given here. Nothing was changed.
    Sealed(u64),
    /// Data is damaged, or the disk failed.
    Failed {
        /// True if the write may have taken effect in spite of the error.
        begun: bool,
        /// The error in words.
        detail: String,
    },
}

/// An input of a coordinator.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client reads.
    Get {
        /// The client to answer.
        client: ClientId,
        /// The key to read.
        key: Bytes,
        /// The quorum of replicas that must answer.
        quorum: AskedQuorum,
    },
    /// A client changes a value under a condition (a conditional write).
    Change {
        /// The client to answer.
        client: ClientId,
        /// The key to change.
        key: Bytes,
        /// The operation and its condition.
        conditional: Conditional,
        /// The quorum: at least a majority of the default number of copies.
        quorum: AskedQuorum,
        /// The id of the write, if it has an idempotency key.
        id: Option<u64>,
    },
    /// A client writes or deletes.
    Write {
        /// The client to answer.
        client: ClientId,
        /// The key to write or delete.
        key: Bytes,
        /// A new record with a version that this node's clock issued.
        record: Record,
        /// The quorum of replicas that must hold the record.
        quorum: AskedQuorum,
    },
    /// One request to one node, which may be this one.
    Call {
        /// The id under which the result is returned.
        call: CallId,
        /// The node to ask.
        node: NodeId,
        /// The reason for the request.
        class: Class,
        /// The request to the node.
        request: Request,
    },
    /// A read of the store ended.
    Read {
        /// The owner of the operation.
        op: OpId,
        /// The newest record, verified.
        result: Result<Option<Record>, StoreError>,
    },
    /// A lookup of a conditional write in the store ended.
    Recalled {
        /// The owner of the operation.
        op: OpId,
        /// The outcome of the lookup; `None` = the store holds no evidence of the write.
        result: Result<Option<OpLookup>, StoreError>,
    },
    /// A read of the store found a record longer than the `most` of its [`Effect::Read`].
    ReadTooLong {
        /// The owner of the operation.
        op: OpId,
        /// The newest record, verified, without its content.
        outline: RecordOutline,
    },
    /// A write to the store ended.
    Written {
        /// The owner of the operation.
        op: OpId,
        /// The time of a newer record's version; `None` = the store holds no newer record. If the
        /// store cannot tell, an upper bound on the times of its records' versions.
        result: Result<Option<u64>, StoreError>,
    },
    /// A read of a page from the store ended.
    PageRead {
        /// The owner of the operation.
        op: OpId,
        /// The page, or why the store could not read it.
        result: Result<Page, StoreError>,
    },
    /// A comparison of the store ended.
    Compared {
        /// The owner of the operation.
        op: OpId,
        /// The sums of the store's content.
        result: Result<Compared, StoreError>,
    },
    /// The link to a node is up, and transmits all messages that were sent before.
    LinkUp(NodeId),
    /// The link to a node was up and is lost, with all unanswered requests.
    LinkLost(NodeId),
    /// No link to a node could be established; all messages sent to the node are lost.
    Unreachable(NodeId),
    /// A message was dropped, because the queue of its destination is full.
    MessageDropped {
        /// The node that the message was for.
        peer: NodeId,
        /// The message's id.
        id: u64,
    },
    /// Another node replied.
    Reply {
        /// The node that replied.
        peer: NodeId,
        /// The id of the request.
        id: u64,
        /// The reply of the peer.
        reply: Reply,
    },
    /// Another node sent a request.
    Request {
        /// The connection that the reply goes to.
        connection: ConnectionId,
        /// The request's id, which the reply repeats.
        id: u64,
        /// The reason for the request.
        class: Class,
        /// Milliseconds until the sender stops waiting.
        remaining_ms: u32,
        /// The view under which the sender counts the reply, or a later view.
        under: ViewId,
        /// The request of the peer.
        request: Request,
    },
    /// A hint was stored, or storing it failed.
    HintStored {
        /// The hint's id.
        hint: HintId,
        /// True if the hint was stored.
        kept: bool,
    },
    /// Time has passed: see [`Protocol::next_wake`](crate::Protocol::next_wake).
    Tick,
}

/// An output of a coordinator: see the contract at the head of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read from this node's store; ends in [`Event::Read`], or in [`Event::ReadTooLong`] if the
    /// record has more than `most` bytes.
    Read {
        /// The owner of the operation.
        op: OpId,
        /// The key to read.
        key: Bytes,
        /// The longest record to return whole, in bytes.
        most: u32,
        /// The class and deadline of the work.
        demand: Demand,
    },
    /// Look up a conditional write with an idempotency key in this node's store; ends in
    /// [`Event::Recalled`].
    Recall {
        /// The owner of the operation.
        op: OpId,
        /// The key that the write changed.
        key: Bytes,
        /// The write to look up.
        asked: WriteIdentity,
        /// The class and deadline of the work.
        demand: Demand,
    },
    /// Write to this node's store; ends in [`Event::Written`].
    Write {
        /// The owner of the operation.
        op: OpId,
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
        /// The way in which the record arrived. Later lookups of the record's conditional writes
        /// use it as evidence.
        via: Via,
        /// True if the store must look for a newer record of the key first.
        look: bool,
        /// True if the record must be durable before the store reports it as stored, in any sync
        /// mode.
        durable: bool,
        /// The class and deadline of the work.
        demand: Demand,
    },
    /// Write several records to this node's store, all or nothing; ends in [`Event::Written`].
    WriteAll {
        /// The owner of the operation.
        op: OpId,
        /// The keys and their records.
        items: Vec<(Bytes, Record)>,
        /// The way in which the records reached this node, for the memory of their conditional
        /// writes.
        via: Via,
        /// True if the records are stored in spite of repair fences. If false, refused records
        /// ([`Proofs::refuses`](crate::Proofs::refuses)) are left out.
        ignores_fences: bool,
        /// The class and deadline of the work.
        demand: Demand,
    },
    /// Read a page from this node's store; ends in [`Event::PageRead`].
    Page {
        /// The owner of the operation.
        op: OpId,
        /// The page to read.
        request: PageRequest,
        /// The class and deadline of the work.
        demand: Demand,
    },
    /// Summarize the records in this node's store; ends in [`Event::Compared`].
    Compare {
        /// The owner of the operation.
        op: OpId,
        /// The ranges and the detail to report.
        request: CompareRequest,
        /// The class and deadline of the work.
        demand: Demand,
    },
    /// Make all earlier writes durable, then discard the store's unreadable blocks in these ranges
    /// of keys; ends in [`Event::Written`].
    Discard {
        /// The owner of the operation.
        op: OpId,
        /// The keys of the unreadable blocks.
        ranges: Vec<Damage>,
    },
    /// Send a message to another node, over a new link if none is up. Ends in `Reply`, `LinkLost`,
    /// `Unreachable` or `MessageDropped`.
    Send {
        /// The node to send to.
        peer: NodeId,
        /// The message to send.
        message: Message,
    },
    /// Answer another node, if the connection is still open.
    Respond {
        /// The connection that the request came on.
        connection: ConnectionId,
        /// The request's id.
        id: u64,
        /// The reply to the request.
        reply: Reply,
    },
    /// Answer a client. Happens exactly once for each `Get`, `Change` and `Write`.
    Answer {
        /// The client that asked.
        client: ClientId,
        /// The answer to the client.
        answer: Answer,
    },
    /// Return the result of a call. Happens exactly once for each `Call`.
    ReturnCall {
        /// The call that is over.
        call: CallId,
        /// The node's reply, or why there is none.
        result: Result<Reply, FailureKind>,
    },
    /// Store a hint for a replica that missed a write, which other replicas may hold. Ends in
    /// [`Event::HintStored`].
    Hint {
        /// The hint's id.
        hint: HintId,
        /// The replica that missed the write.
        peer: NodeId,
        /// The key that was written.
        key: Bytes,
        /// The record that the replica missed.
        record: Record,
    },
    /// Store durably the marks of a node's missed writes
    /// ([`Missed::encode`](crate::Missed::encode)); ends in [`Event::Written`].
    StoreMissed {
        /// The owner of the operation.
        op: OpId,
        /// The node whose marks are to be stored.
        node: NodeId,
    },
    /// Make this node's proof state and all earlier writes durable; then call
    /// [`Proofs::put_in_force`](crate::Proofs::put_in_force). Ends in [`Event::Written`].
    StoreProof {
        /// The owner of the operation.
        op: OpId,
        /// The proof state to store.
        proof: Proof,
    },
    /// Store durably this node's knowledge of layouts, and its vote
    /// ([`Layouts::encode`](crate::Layouts::encode)); then call
    /// [`Shared::install_layout`](crate::Shared::install_layout). Ends in [`Event::Written`].
    StoreLayouts {
        /// The owner of the operation.
        op: OpId,
    },
}

/// The answer to a client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To a read: the newest record that the quorum reported; `None` = it reported no record.
    Found(Option<Record>),
    /// To a write: a quorum holds the record, under this version.
    Written(Version, Acks),
    /// To a conditional write: the outcome. A quorum holds the record that decided the outcome.
    Done(Done, Acks),
    /// To any request: fewer replicas than required did their part.
    Failed(RequestFailure),
}

/// The failure of a request, with the outcome at each replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailure {
    /// The reason for the failure.
    pub failure: FailureKind,
    /// The number of replicas that did their part.
    pub acked: u8,
    /// The outcome at each replica.
    pub parts: Vec<(NodeId, ReplicaOutcome)>,
    /// The start of the request, by the monotonic clock, in microseconds.
    pub since: u64,
    /// The quorum that the request needed.
    pub quorum: Quorum,
    /// True if the request was a write.
    pub is_write: bool,
    /// For a write: true if some replica holds the record or may still store it.
    pub unknown: bool,
    /// Details in words, such as why this node's own part failed.
    pub detail: Option<String>,
}

/// The outcome of a request at one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaOutcome {
    /// The replica did its part.
    Done,
    /// The replica answered the coordinator of a conditional write, and was not asked to store the
    /// write or did not reply to that.
    Promised,
    /// The replica answered, but is not authoritative, so that its "not found" does not count: it
    /// is new, or being rebuilt.
    NotAuthoritative,
    /// The replica was asked, but had not replied when the client was answered.
    Pending,
    /// The replica was not asked: other replicas sufficed, or its answer would not have completed
    /// the quorum.
    Unasked,
    /// The replica could not be reached.
    Unreached,
    /// The replica did not reply in time, or the connection to it was lost.
    Silent,
    /// The replica is overloaded.
    Busy,
    /// The replica's disk is full.
    NoSpace,
    /// The replica's store refused the request or failed, or the reply does not match the request.
    Failed,
    /// The replica refused: the write's timestamp is too far ahead of its clock, or its topology
    /// differs.
    Declined,
    /// The replica stored the write, but also holds a future record, which hides the write from
    /// every read.
    Hidden,
}

/// The reason why a request failed, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Too few replicas answered in time.
    TooFew,
    /// All replicas that were asked are busy.
    Busy,
    /// All replicas that were asked have full disks.
    NoSpace,
    /// The stores of all replicas that were asked failed.
    Failed,
    /// This node is fenced: a later process runs as the same node. Nothing was done.
    Fenced,
}
