//! What goes into a [`Protocol`](crate::Protocol) and what comes out of it.
//!
//! **What the embedder (`crates/node`) owes to the effects.**
//!
//! *Order.* The effects of one event are begun in their order, and those of one event before those
//! of the next. Nothing follows about when they end, with two exceptions: what is sent to one node
//! over one connection arrives in the order of sending, and of two writes to this node's store the
//! later one is not visible before the earlier one.
//!
//! *Completion.* What an effect ends in comes back as an event of its own, never from within
//! [`Protocol::handle`](crate::Protocol::handle), at most once, and under the id that the
//! effect has. An event under an id that is no longer under way changes nothing.
//!
//! | effect | ends in | may be skipped |
//! |---|---|---|
//! | `Read` | `Read`, `Outlined` | after its [`Demand::until`]: then nothing needs to be read |
//! | `Recall` | `Recalled` | the same |
//! | `Page` | `Paged` | the same |
//! | `Compare` | `Compared` | the same |
//! | `Discard` | `Written` | no |
//! | `Write`, `WriteAll` | `Written` | no; what has not begun by `until` ends in `Busy` |
//! | `KeepMissed`, `KeepProof`, `KeepLayouts` | `Written` | no |
//! | `Hint` | `Hinted` | no: until then the hint's bytes are reserved in the ledger |
//! | `Send` | `Reply`, `Lost`, `Unreachable`, `Overflow` | once nobody waits for the reply |
//! | `Respond` | | if the connection is gone |
//! | `Answer`, `Returned` | | no: a client or a caller waits |
//!
//! All of that ends with the process: a crash may lose whatever is not durable by then.

use bytes::Bytes;

use crate::message::{Class, Message, NodeId, Page, PageRequest, Reply, Request};
use crate::paxos::operation::{Conditional, Done};
use crate::paxos::recent::{Recalled, Via, WriteName};
use crate::placement::view::ViewId;
use crate::repair::compare::{CompareRequest, Compared, Damage};
use crate::repair::watermark::Proof;
use crate::request::acks::Acks;
use crate::request::quorum::{AskedQuorum, Quorum};
use record::{Outline, Record, Version};

/// A coordinator's settings.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Microseconds that a request may take.
    pub deadline_micros: u64,
    /// Microseconds that a version may be ahead of the wall clock.
    pub max_skew_micros: u64,
    /// Bytes of the longest record that is sent without being asked for by its length: one that a
    /// node can always take. Of longer ones, reads compare outlines first.
    pub brief_bytes: u32,
}

/// A client that waits for an answer, as the embedder numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A single request to a single node, as the embedder numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A connection on which another node sends requests, as the embedder numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A hint on its way into this node's store, as the coordinator numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HintId(pub u64);

/// For whom this node's store works, and how long that is of use: work that must wait is ordered,
/// and given up, by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Why the request was made: what a client waits for goes first.
    pub class: Class,
    /// Until when somebody waits for it, by the monotonic clock, in microseconds.
    pub until: u64,
}

/// A request under way in a coordinator. The messages that are sent for it bear its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// On whose behalf the store works; comes back with the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpId {
    /// This node's vote in a slot.
    Slot(SlotId),
    /// Another node's request.
    Peer {
        /// The connection that the reply goes to.
        connection: ConnectionId,
        /// The request's id, which the reply repeats.
        id: u64,
        /// The partition of the key that is read; `None` if none is.
        partition: Option<u16>,
        /// The placement that the answer is counted by ([`ViewId`]): under another one it is not
        /// given. 0 = it does not matter.
        placement: u64,
    },
}

/// Why this node's store did not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// Overloaded. Nothing was changed.
    Busy(&'static str),
    /// The disk is full. Nothing was changed.
    NoSpace(String),
    /// The record was written up to the seal, and nothing new up to there is taken. Nothing was
    /// changed.
    Sealed(u64),
    /// Damaged data or a failed disk.
    Failed {
        /// Whether a write may have been done nevertheless.
        begun: bool,
        /// What happened, in words.
        detail: String,
    },
}

/// What a coordinator is informed of.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client reads.
    Get {
        /// Whom to answer.
        client: ClientId,
        /// The key that is read.
        key: Bytes,
        /// How many must answer.
        quorum: AskedQuorum,
    },
    /// A client changes a value, if a condition is met.
    Change {
        /// Whom to answer.
        client: ClientId,
        /// The key that is changed.
        key: Bytes,
        /// What it wants.
        conditional: Conditional,
        /// A majority at least of the default number of copies.
        quorum: AskedQuorum,
        /// What it is known by if it has an idempotency key.
        id: Option<u64>,
    },
    /// A client writes or deletes.
    Write {
        /// Whom to answer.
        client: ClientId,
        /// The key that is written or deleted.
        key: Bytes,
        /// A new record with a version of this node's clock.
        record: Record,
        /// How many must hold it.
        quorum: AskedQuorum,
    },
    /// One request to one node, which may be this one.
    Call {
        /// What the result is returned under.
        call: CallId,
        /// Whom to ask.
        node: NodeId,
        /// Why the request is made.
        class: Class,
        /// What to ask.
        request: Request,
    },
    /// The store read.
    Read {
        /// On whose behalf.
        op: OpId,
        /// The newest record, verified.
        result: Result<Option<Record>, StoreError>,
    },
    /// The store looked for a conditional write.
    Recalled {
        /// On whose behalf.
        op: OpId,
        /// What it kept of it.
        result: Result<Option<Recalled>, StoreError>,
    },
    /// The store read a record that is longer than was wanted.
    Outlined {
        /// On whose behalf.
        op: OpId,
        /// The newest record, verified, without its content.
        outline: Outline,
    },
    /// The store wrote.
    Written {
        /// On whose behalf.
        op: OpId,
        /// The time of a newer record's version, if the store holds one; if it can't tell, a time
        /// that no record's version exceeds.
        result: Result<Option<u64>, StoreError>,
    },
    /// The store read a page.
    Paged {
        /// On whose behalf.
        op: OpId,
        /// The page, or why the store could not read it.
        result: Result<Page, StoreError>,
    },
    /// The store was compared.
    Compared {
        /// On whose behalf.
        op: OpId,
        /// What it holds.
        result: Result<Compared, StoreError>,
    },
    /// The link to a node is up; all that was sent before is on its way.
    Up(NodeId),
    /// The link to a node was up and is lost, with all requests that were not answered.
    Lost(NodeId),
    /// There was no link to a node, and it could not be made; what was sent is gone.
    Unreachable(NodeId),
    /// What was sent under this id was dropped: too much waits for the node already.
    Overflow {
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
        /// What it replied.
        reply: Reply,
    },
    /// Another node sent a request.
    Request {
        /// The connection that the reply goes to.
        connection: ConnectionId,
        /// The request's id, which the reply repeats.
        id: u64,
        /// Why the request is made.
        class: Class,
        /// Milliseconds until the sender stops waiting.
        remaining_ms: u32,
        /// The view by which the sender counts the answer, or a later one.
        under: ViewId,
        /// What is asked.
        request: Request,
    },
    /// A hint was stored, or could not be.
    Hinted {
        /// The hint's id.
        hint: HintId,
        /// Whether it was stored.
        kept: bool,
    },
    /// Time has passed: see [`Protocol::next_wake`](crate::Protocol::next_wake).
    Tick,
}

/// What a coordinator wants done: see the contract at the head of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read from this node's store; ends in [`Event::Read`], or in [`Event::Outlined`] if the
    /// record has more than `most` bytes.
    Read {
        /// On whose behalf.
        op: OpId,
        /// The key to read.
        key: Bytes,
        /// Bytes of the longest record that is wanted.
        most: u32,
        /// For whom, and until when.
        demand: Demand,
    },
    /// Look in this node's store for a conditional write that has an idempotency key; ends in
    /// [`Event::Recalled`].
    Recall {
        /// On whose behalf.
        op: OpId,
        /// The key that the write changed.
        key: Bytes,
        /// The write that is asked for.
        asked: WriteName,
        /// For whom, and until when.
        demand: Demand,
    },
    /// Write to this node's store; ends in [`Event::Written`].
    Write {
        /// On whose behalf.
        op: OpId,
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
        /// What it shows of the conditional writes in it, if somebody asks later.
        via: Via,
        /// Whether to look for a newer record of the key first.
        look: bool,
        /// Whether it must be durable when it is said to be stored, whatever the sync mode is.
        durable: bool,
        /// For whom, and until when.
        demand: Demand,
    },
    /// Write several records to this node's store, all or nothing; ends in [`Event::Written`].
    WriteAll {
        /// On whose behalf.
        op: OpId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
        /// Whether they are stored whatever is sealed. If not, those that are refused
        /// ([`Proofs::refuses`](crate::Proofs::refuses)) are left out.
        is_brought: bool,
        /// For whom, and until when.
        demand: Demand,
    },
    /// Read a page from this node's store; ends in [`Event::Paged`].
    Page {
        /// On whose behalf.
        op: OpId,
        /// What to read.
        request: PageRequest,
        /// For whom, and until when.
        demand: Demand,
    },
    /// Tell what this node's store holds; ends in [`Event::Compared`].
    Compare {
        /// On whose behalf.
        op: OpId,
        /// What is to be reported.
        request: CompareRequest,
        /// For whom, and until when.
        demand: Demand,
    },
    /// Make what was written durable, then give up the store's blocks among these keys that can't
    /// be read; ends in [`Event::Written`].
    Discard {
        /// On whose behalf.
        op: OpId,
        /// The keys of the unreadable blocks.
        ranges: Vec<Damage>,
    },
    /// Send to another node, making a connection if there is none. Ends in a reply, or in `Lost`,
    /// `Unreachable` or `Overflow`.
    Send {
        /// The node to send to.
        peer: NodeId,
        /// What to send.
        message: Message,
    },
    /// Answer another node, if its connection still stands.
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
    /// The result of a call. Happens exactly once for each `Call`.
    Returned {
        /// The call that is over.
        call: CallId,
        /// What the node replied, or why there is no reply.
        result: Result<Reply, FailureKind>,
    },
    /// A replica missed a write that others may hold: keep it for the replica; ends in
    /// [`Event::Hinted`].
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
    /// Keep durably what a node is marked to lack ([`Missed::encode`](crate::Missed::encode)); ends
    /// in [`Event::Written`].
    KeepMissed {
        /// On whose behalf.
        op: OpId,
        /// The node whose marks are to be kept.
        node: NodeId,
    },
    /// Keep durably what this node knows of proofs, and everything that was written before with it;
    /// then call [`Proofs::kept`](crate::Proofs::kept). Ends in [`Event::Written`].
    KeepProof {
        /// On whose behalf.
        op: OpId,
        /// What it knows.
        proof: Proof,
    },
    /// Keep durably what this node knows of layouts, and its vote
    /// ([`Layouts::encode`](crate::Layouts::encode)); then call
    /// [`Shared::enters`](crate::Shared::enters). Ends in [`Event::Written`].
    KeepLayouts {
        /// On whose behalf.
        op: OpId,
    },
}

/// What a client is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To a read: the newest record of those that had to answer.
    Found(Option<Record>),
    /// To a write: enough replicas hold the record, with this version.
    Written(Version, Acks),
    /// To a conditional write: what came of it. Enough replicas hold what it is based on.
    Done(Done, Acks),
    /// Not enough replicas did their part.
    Failed(RequestFailed),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailed {
    /// What stood in the way.
    pub failure: FailureKind,
    /// Replicas that did their part.
    pub acked: u8,
    /// What each replica did.
    pub parts: Vec<(NodeId, Part)>,
    /// When the request began, by the monotonic clock, in microseconds.
    pub since: u64,
    /// How many replicas had to do their part.
    pub quorum: Quorum,
    /// Whether it was a write.
    pub is_write: bool,
    /// For a write: whether some replica may hold it, or may come to hold it later.
    pub unknown: bool,
    /// Details, such as why this node's own part failed.
    pub detail: Option<String>,
}

/// What one replica did in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It did it.
    Done,
    /// It answered, but is not authoritative for what it does not hold: it is new, or being
    /// rebuilt.
    NotAuthoritative,
    /// It was asked, and the client was answered before it had replied.
    Open,
    /// It was not asked: the others were enough, or it could not have made up for them.
    Unasked,
    /// It could not be reached.
    Unreached,
    /// It was asked, and did not reply in time, or the connection to it was lost.
    Silent,
    /// It is overloaded.
    Busy,
    /// Its disk is full.
    NoSpace,
    /// Its store failed.
    Failed,
    /// It refused: the write's timestamp is too far ahead of its clock, or its topology differs.
    Declined,
    /// It stored the write, but holds a future record, which hides the write from every read.
    Hidden,
}

/// Why a request can't be done, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Too few replicas answered in time.
    TooFew,
    /// All that were asked are busy.
    Busy,
    /// All that were asked have full disks.
    NoSpace,
    /// The stores of all that were asked failed.
    Failed,
    /// This node is fenced: a later life of its disk serves in its place. Nothing was done.
    Fenced,
}
