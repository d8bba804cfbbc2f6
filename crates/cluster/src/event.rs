//! What goes into a [`Coordinator`](crate::Coordinator) and what comes out of it.
//!
//! **What whoever embeds it owes to the effects.**
//!
//! *Order.* The effects of one event are begun in their order, and those of one event before those
//! of the next. Nothing follows about when they end, with two exceptions: what is sent to one node
//! over one connection arrives in the order of sending, and of two writes to this node's store the
//! later one is not visible before the earlier one.
//!
//! *Completion.* What an effect ends in comes back as an event of its own, never from within
//! [`Coordinator::handle`](crate::Coordinator::handle), at most once, and under the id that the
//! effect bears. An event under an id that is not under way any more is of no consequence.
//!
//! | effect | ends in | may be left out |
//! |---|---|---|
//! | `Read` | `Read`, `Outlined` | after its [`Demand::until`]: then nothing needs to be read |
//! | `Page` | `Paged` | the same |
//! | `Write`, `WriteAll` | `Written` | no; what has not begun by `until` ends in `Busy` |
//! | `KeepMissed` | `Written` | no |
//! | `Hint` | `Hinted` | no: a hint of which nothing is heard keeps its bytes in the ledger |
//! | `Send` | `Reply`, `Lost`, `Unreachable`, `Overflow` | once nobody waits for the reply |
//! | `Respond` | | if the connection is gone |
//! | `Answer`, `Returned` | | never: somebody waits |
//!
//! All of that ends with the process: what it has not kept is what a crash may lose.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use crate::clock::{Clock, Version};
use crate::hints::HintLedger;
use crate::logs::Logs;
use crate::membership::Membership;
use crate::message::{Class, Message, NodeId, Page, PageRequest, Reply, Request};
use crate::missed::{Mark, Missed};
use crate::quorum::Quorum;
use crate::record::{Codec, Outline, Record};
use crate::topology::{Topology, partition_of};
use crate::view::{View, Views};

/// What the loops of a node share.
#[derive(Debug)]
pub struct Shared {
    /// Who belongs to the cluster, and who of them holds what.
    pub views: Arc<Views>,
    /// This node.
    pub own: NodeId,
    /// Its name.
    pub own_name: String,
    /// The node's one clock.
    pub clock: Arc<Clock>,
    /// What its word is worth.
    pub membership: Membership,
    /// Greatest time of any version that was handed to the store: a write with a greater one can't
    /// meet a newer record there.
    pub newest: AtomicU64,
    /// Hints that wait for other nodes.
    pub hints: HintLedger,
    /// What nodes are known to lack.
    pub missed: Missed,
    /// How far the nodes' logs are known to reach.
    pub logs: Arc<Logs>,
}

impl Shared {
    /// `newest` is the greatest time of a version that the store may hold.
    pub fn new(
        topology: Topology,
        own: NodeId,
        clock: Arc<Clock>,
        membership: Membership,
        newest: u64,
        logs: Arc<Logs>,
    ) -> Self {
        let (hints, missed) = (HintLedger::default(), Missed::default());
        let own_name = topology.member(own).name.clone();
        let (views, newest) = (Views::fixed(topology), AtomicU64::new(newest));
        Self { views, own, own_name, clock, membership, newest, hints, missed, logs }
    }
}

impl Shared {
    /// The view in force. Whoever does more than one thing by it keeps it.
    pub fn view(&self) -> Arc<View> {
        self.views.current()
    }

    /// The name of one of the cluster's nodes.
    pub fn name_of(&self, node: NodeId) -> String {
        self.views.with(|view| view.topology.member(node).name.clone())
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.views.with(|view| view.topology.nodes())
    }

    /// The time of a version of this key that this node may have acknowledged and lost, if it is
    /// not below `time`: one up to which it began with less than it had, or of a record that is too
    /// far ahead of its clock to be taken back.
    pub(crate) fn may_have_lost(&self, key: &[u8], time: u64) -> Option<u64> {
        let lost_before = self.membership.lost_of(|| partition_of(key))?;
        let ahead = self.missed.since(self.own, partition_of(key));
        Some(lost_before.max(ahead)).filter(|lost| *lost >= time)
    }

    /// Marks that a node missed a write and that no hint will bring it. With nobody else there is
    /// nobody who holds it either.
    pub fn miss(&self, node: NodeId, key: &[u8], record: &Record) {
        if self.nodes() > 1 {
            self.missed.mark(node, self.mark_of(key, record));
        }
    }

    /// What a node lacks that misses a write.
    pub(crate) fn mark_of(&self, key: &[u8], record: &Record) -> Mark {
        let partition = Some(partition_of(key));
        Mark { partition, since: record.rank.version.time }
    }
}

/// What a coordinator is told once.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Microseconds that a request may take.
    pub deadline_micros: u64,
    /// Microseconds that a version may be ahead of the wall clock.
    pub max_skew_micros: u64,
    /// Bytes of the longest record that is sent without being asked for by its length: one that a
    /// node can always take. Of longer ones, reads compare outlines first.
    pub brief_bytes: u32,
    /// What the store's records need done.
    pub codec: Codec,
}

/// The time, as the embedder has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Microseconds since whenever; never steps back.
    pub mono: u64,
    /// Microseconds since 1970, as far as this machine knows.
    pub wall: u64,
}

/// Who asked, as the embedder counts its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A single request to a single node, as the embedder counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A connection on which another node asks, as the embedder counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A hint on its way into this node's store, as the coordinator counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HintId(pub u64);

/// For whom this node's store works, and how long that is of use: what must wait goes by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Why it was asked: what a client waits for goes first.
    pub class: Class,
    /// Until when somebody waits for it, by the monotonic clock, in microseconds.
    pub until: u64,
}

/// A request under way in a coordinator. The messages that are sent for it bear its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// What the store does something for; comes back with the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpId {
    /// This node's vote in a slot.
    Slot(SlotId),
    /// Another node's request.
    Peer {
        /// Where to answer.
        connection: ConnectionId,
        /// What it is the answer to.
        id: u64,
        /// Of which partition the key is that it is to read, if it is one.
        partition: Option<u16>,
    },
}

/// What this node's store could not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// Too much waits already. Nothing was changed.
    Busy(&'static str),
    /// The disk is full. Nothing was changed.
    NoSpace(String),
    /// Damaged data or a failed disk.
    Failed {
        /// Whether a write may have been done nevertheless.
        begun: bool,
        /// What happened, for people.
        detail: String,
    },
}

/// What happens to a coordinator.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client reads.
    Get {
        /// Whom to answer.
        client: ClientId,
        /// The key.
        key: Bytes,
        /// How many must answer.
        quorum: Quorum,
    },
    /// A client writes or deletes.
    Write {
        /// Whom to answer.
        client: ClientId,
        /// The key.
        key: Bytes,
        /// A new record with a version of this node's clock.
        record: Record,
        /// How many must hold it.
        quorum: Quorum,
    },
    /// One request to one node, which may be this one.
    Call {
        /// What the result is returned under.
        call: CallId,
        /// Whom to ask.
        node: NodeId,
        /// ReplicaError.
        class: Class,
        /// What.
        request: Request,
    },
    /// The store read.
    Read {
        /// For what.
        op: OpId,
        /// The newest record, verified.
        result: Result<Option<Record>, StoreError>,
    },
    /// The store read a record that is longer than was wanted.
    Outlined {
        /// For what.
        op: OpId,
        /// The newest record, verified, without its content.
        outline: Outline,
    },
    /// The store wrote.
    Written {
        /// For what.
        op: OpId,
        /// The time of a newer record's version, if one was there; if that can't be told, one that
        /// no record's is above.
        result: Result<Option<u64>, StoreError>,
    },
    /// The store read a page.
    Paged {
        /// For what.
        op: OpId,
        /// The page.
        result: Result<Page, StoreError>,
    },
    /// The connection to a node stands; all that was sent before is on its way.
    Up(NodeId),
    /// It stood and was lost, with all that was not answered yet.
    Lost(NodeId),
    /// There was none, and it could not be made; what was sent is gone.
    Unreachable(NodeId),
    /// What was sent under this id did not fit what may wait for the node.
    Overflow {
        /// The node.
        peer: NodeId,
        /// The message.
        id: u64,
    },
    /// A node answers.
    Reply {
        /// Who.
        peer: NodeId,
        /// What.
        id: u64,
        /// Its answer.
        reply: Reply,
    },
    /// Another node asks.
    Request {
        /// Where to answer.
        connection: ConnectionId,
        /// Under which id.
        id: u64,
        /// Why it asks.
        class: Class,
        /// Milliseconds for which it waits.
        remaining_ms: u32,
        /// What it asks.
        request: Request,
    },
    /// A hint is in the store, to be found there from now on, or could not be put there.
    Hinted {
        /// Which.
        hint: HintId,
        /// Whether it is.
        kept: bool,
    },
    /// Time has passed: see [`Coordinator::next_wake`](crate::Coordinator::next_wake).
    Tick,
}

/// What a coordinator wants done: see the contract at the head of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read from this node's store; ends in [`Event::Read`], or in [`Event::Outlined`] if the
    /// record has more than `most` bytes.
    Read {
        /// For what.
        op: OpId,
        /// The key.
        key: Bytes,
        /// Bytes of the longest record that is wanted.
        most: u32,
        /// For whom.
        demand: Demand,
    },
    /// Write to this node's store; ends in [`Event::Written`].
    Write {
        /// For what.
        op: OpId,
        /// The key.
        key: Bytes,
        /// Its record.
        record: Record,
        /// Whether to look if a newer record is held.
        look: bool,
        /// For whom.
        demand: Demand,
    },
    /// Write several records to this node's store, all or nothing; ends in [`Event::Written`].
    WriteAll {
        /// For what.
        op: OpId,
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
        /// For whom.
        demand: Demand,
    },
    /// Read a page from this node's store; ends in [`Event::Paged`].
    Page {
        /// For what.
        op: OpId,
        /// What to read.
        request: PageRequest,
        /// For whom.
        demand: Demand,
    },
    /// Send to another node, making a connection if there is none. Ends in a reply, or in `Lost`,
    /// `Unreachable` or `Overflow`.
    Send {
        /// To whom.
        peer: NodeId,
        /// What.
        message: Message,
    },
    /// Answer another node, if its connection still stands.
    Respond {
        /// Where.
        connection: ConnectionId,
        /// To what.
        id: u64,
        /// What.
        reply: Reply,
    },
    /// Answer a client. Happens exactly once for each `Get` and `Write`.
    Answer {
        /// Whom.
        client: ClientId,
        /// What.
        answer: Answer,
    },
    /// The result of a call. Happens exactly once for each `Call`.
    Returned {
        /// Of which.
        call: CallId,
        /// What the node answered, or why there is nothing.
        result: Result<Reply, FailureKind>,
    },
    /// A replica missed a write that others may hold: keep it for the replica; ends in
    /// [`Event::Hinted`].
    Hint {
        /// Under which id.
        hint: HintId,
        /// Who missed it.
        peer: NodeId,
        /// The key.
        key: Bytes,
        /// The record.
        record: Record,
    },
    /// Keep durably what a node is marked to lack ([`Missed::encode`](crate::Missed::encode)); ends
    /// in [`Event::Written`].
    KeepMissed {
        /// For what.
        op: OpId,
        /// The node.
        node: NodeId,
    },
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To a read: the newest record of those that had to answer.
    Found(Option<Record>),
    /// To a write: enough replicas hold it, under this version.
    Written(Version),
    /// Not enough replicas did their part.
    Failed(RequestFailed),
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailed {
    /// What stood in the way.
    pub failure: FailureKind,
    /// Replicas that did their part.
    pub acked: u8,
    /// What came of each replica.
    pub parts: Vec<(NodeId, Part)>,
    /// When the request began, by the monotonic clock, in microseconds.
    pub since: u64,
    /// What was asked.
    pub quorum: Quorum,
    /// Whether it was a write.
    pub is_write: bool,
    /// For a write: whether it may have been done somewhere, or be done later.
    pub unknown: bool,
    /// More about this node's own part, if that failed.
    pub detail: Option<String>,
}

/// What came of one replica's part in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It did it.
    Done,
    /// It answered, but is not authoritative for what it lacks: it is new, or being rebuilt.
    NotAuthoritative,
    /// It was asked, and the answer was decided before it had answered.
    Open,
    /// It was not asked: the others were enough, or known not to be.
    Unasked,
    /// It could not be reached.
    Unreached,
    /// It was asked, and did not answer in time or lost its connection.
    Silent,
    /// It has too much to do.
    Busy,
    /// Its disk is full.
    NoSpace,
    /// Its store failed.
    Failed,
    /// It refused: the write's version is too far ahead of its clock, or its topology is another.
    Declined,
    /// It wrote it, but holds a future record, which hides this one from every read.
    Hidden,
}

/// What stands in the way of a request.
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
