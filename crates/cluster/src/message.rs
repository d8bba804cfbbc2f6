//! What nodes say to each other. How it is laid out in bytes: `docs/peer-protocol.md`.

use bytes::Bytes;

use crate::membership::cluster_id::ClusterId;
use crate::membership::directory::Incarnation;
use crate::membership::layout::{VoteReply, VoteRequest};
pub use crate::node_id::NodeId;
use crate::paxos::operation::{Conditional, Done};
use crate::paxos::recent::Recalled;
use crate::repair::compare::{CompareRequest, Compared, Damage};
use crate::repair::watermark::{RoundId, RoundState, RoundStep};
use crate::request::acks::ReplicaSet;
use crate::transfer::missed::Mark;
use record::{Outline, Record};

mod page;

pub use page::{Filter, Page, PageRequest};

/// Why a request is made: who goes first where work waits ([`Demand`](crate::Demand)).
/// What a client waits for does; the others have their turn now and then, so that none waits for
/// ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A client waits for it.
    Client,
    /// A write that its replica missed.
    Hint,
    /// A replica is brought up to date.
    Repair,
    /// A range is read for a node that is rebuilt.
    Stream,
}

/// One message. Replies carry the id of what they answer; ids mean something to the asker only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Chosen by the asker.
    pub id: u64,
    /// The request or the reply.
    pub body: Body,
}

/// A message is one or the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Something to be done.
    Request {
        /// Milliseconds until nobody waits for the reply any more: what has not begun by then is
        /// skipped.
        remaining_ms: u32,
        /// Why it is made.
        class: Class,
        /// What is to be done.
        request: Request,
    },
    /// What became of it.
    Reply(Reply),
}

/// What one node asks of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The newest record of a key.
    Read {
        /// The key to read.
        key: Bytes,
        /// Bytes of a record that the asker has room for; of a longer one it is sent an outline.
        most: u32,
    },
    /// The newest record of a key, as a client reads it that wants a majority of its replicas to
    /// hold that. Is answered as a read, or `Busy` if there is no majority.
    ReadQuorum {
        /// The key to read.
        key: Bytes,
        /// Bytes of a record that the asker has room for; of a longer one it is sent an outline.
        /// At `u32::MAX` it is sent any.
        most: u32,
    },
    /// To store no record of this key that a conditional write made under a lower ballot, ever. Is
    /// answered as a read if that is promised, and `Outbid` if not.
    Prepare {
        /// The key to promise the ballot for.
        key: Bytes,
        /// The ballot to promise.
        ballot: u64,
        /// Bytes of a record that the asker has room for; of a longer one it is sent an outline.
        most: u32,
        /// The asker's watermark. A node with another one promises nothing, and answers `Round`:
        /// what is purged here and not there must not look like two different states of a key.
        watermark: u64,
    },
    /// Whether the node has stored a record with a conditional write in it. Is answered `Recalled`.
    Recall {
        /// The key that the write changed.
        key: Bytes,
        /// What the write is known by.
        id: u64,
        /// The ballot under which it was first tried.
        since: u64,
        /// The digest of the client's request, if it has an idempotency key; 0 = unknown.
        digest: u64,
    },
    /// To change a value if a condition is met, as its coordinator. Is answered `Done`, `Failed` if
    /// the outcome is not known, and otherwise by a refusal: then nothing was done.
    Change {
        /// The key to change.
        key: Bytes,
        /// What the write is known by, whoever coordinates it.
        id: u64,
        /// How many replicas must hold what comes of it; 0 = a majority, by the home's view.
        ack: u8,
        /// What is to be done.
        conditional: Conditional,
    },
    /// To hold a record. One that a conditional write made is stored only if no higher ballot was
    /// promised and nothing is held that outranks it.
    Write {
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
    },
    /// To hold a record that a conditional write made, of a coordinator that goes on from its last
    /// one of the key, under the next ballot, and asked for no promises. Is answered as a `Write`;
    /// a node that is not authoritative for the key says so, and stores nothing.
    AcceptNext {
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
    },
    /// To hold several records: hints. One reply for all of them.
    Writes {
        /// Keys and records.
        items: Vec<(Bytes, Record)>,
    },
    /// Part of a range.
    Page(PageRequest),
    /// To store marks: of the node that is asked, or of the one that asks, which can't store them
    /// itself.
    Missed {
        /// The node that may lack records.
        node: NodeId,
        /// The marks to store for that node.
        marks: Vec<Mark>,
    },
    /// To report what the node holds of a range of keys, read past caches and verified. Is answered
    /// `Compared`; a node that is being rebuilt says that it is not authoritative.
    Compare(CompareRequest),
    /// To give up blocks among these keys that can't be read: what all other replicas hold of them
    /// was written to the node before. Is answered `Stored`.
    Discard(Vec<Damage>),
    /// To do a step of a round that is to prove something. Is answered `Round`: what the node knows
    /// then says whether it did. A node that is being rebuilt says that it is not authoritative.
    Round {
        /// The round that the step belongs to.
        round: RoundId,
        /// What is to be done.
        step: RoundStep,
    },
    /// To hold a record that another node holds, whatever is sealed: what a round brings. Refused
    /// by `WrongEpoch` if it is not the round that the node is sealed by.
    Bring {
        /// The round that brings the record.
        round: RoundId,
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
    },
    /// To vote about the next layout, or to say which one is decided. Is answered `Council`.
    Council(VoteRequest),
    /// How far the node is in a transition. Is answered `Moves`.
    Moves,
    /// Which cluster the node belongs to. Is answered `ClusterId`, or `Busy` while the node stores
    /// an id. The founder is told that there is none by nodes of its own view only.
    ClusterId,
    /// Asks whether the node knows durably that another one has this disk. Is answered `Pong`, or
    /// `Busy` until that is so.
    KnowsDisk {
        /// The node that asks.
        node: NodeId,
        /// The disk of the node that asks.
        incarnation: Incarnation,
    },
    /// Asks whether the node is alive.
    Ping,
}

impl Request {
    /// Bytes of a record that the asker has room for, if the reply may bring one that is long.
    pub fn most(&self) -> Option<u32> {
        match self {
            Self::Read { most, .. } | Self::ReadQuorum { most, .. } => Some(*most),
            _ => None,
        }
    }

    /// The key that is to be read, if one is.
    pub(crate) fn read_key(&self) -> Option<&Bytes> {
        match self {
            Self::Read { key, .. } | Self::Prepare { key, .. } | Self::Recall { key, .. } => {
                Some(key)
            }
            _ => None,
        }
    }

    /// Whether it does not matter by which view a node goes that is asked this: it is about the
    /// node, or of a task that looks at views itself.
    pub(crate) fn is_of_any_view(&self) -> bool {
        match self {
            Self::Ping
            | Self::KnowsDisk { .. }
            | Self::Council(_)
            | Self::Moves
            | Self::Round { .. }
            | Self::Compare(_)
            | Self::Discard(_)
            | Self::Missed { .. }
            | Self::Page(PageRequest { filter: Filter::HeldBy { .. }, .. }) => true,
            Self::Read { .. }
            | Self::ReadQuorum { .. }
            | Self::Prepare { .. }
            | Self::Recall { .. }
            | Self::Change { .. }
            | Self::Write { .. }
            | Self::AcceptNext { .. }
            | Self::Writes { .. }
            | Self::Bring { .. }
            | Self::ClusterId
            | Self::Page(PageRequest {
                filter: Filter::Chosen { .. } | Filter::Moved { .. } | Filter::Remembered { .. },
                ..
            }) => false,
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To a read: the newest record that the node holds.
    Found {
        /// The record; a tombstone is one too.
        record: Record,
        /// Whether the node is certain that it never acknowledged a newer one: see
        /// [`MembershipState`](crate::MembershipState).
        authoritative: bool,
    },
    /// To a read: the newest record that the node holds is longer than the asker has room for.
    Long {
        /// The record without its content, which was verified.
        outline: Outline,
        /// As in [`Reply::Found`].
        authoritative: bool,
    },
    /// To a read: the node holds no record.
    Absent {
        /// Whether the node is certain that it never acknowledged one.
        authoritative: bool,
    },
    /// To a write: it is as durable as the node's sync mode says.
    Stored,
    /// To a write: the same, but the node holds a newer record of the key, or can't exclude it.
    Newer {
        /// The time of that record's version, or one that it is not above.
        time: u64,
    },
    /// To `Change`: the outcome.
    Done {
        /// Which of the key's replicas hold what the outcome is based on.
        by: ReplicaSet,
        /// What came of the change.
        done: Done,
    },
    /// To `Recall`: whether the write was stored.
    Recalled(Recalled),
    /// To `Prepare`, and to a write of a record that a conditional write made: refused, a higher
    /// ballot was promised, or such a record is being stored. Nothing was changed.
    Outbid {
        /// The ballot that was promised.
        promise: u64,
    },
    /// To a write, or several: refused, a version is too far ahead of this node's wall clock.
    /// Nothing was changed.
    Ahead,
    /// Refused: too much waits already. Nothing was changed.
    Busy,
    /// To a write: refused, the disk is full. Nothing was changed.
    NoSpace,
    /// The store failed. A write may have been done or not.
    Failed,
    /// Refused: the asker has another topology in mind.
    WrongEpoch,
    /// Refused: this node goes by a later view. A write may have been done before it did.
    Superseded {
        /// That one's epoch.
        epoch: u64,
    },
    /// To a page request.
    Page(Page),
    /// To a comparison.
    Compared(Compared),
    /// To a step of a round, and to `Prepare` by a node with another watermark.
    Round(RoundState),
    /// To `Council`: the vote, or the layout that is decided.
    Council(VoteReply),
    /// To `Moves`: how far the node is.
    Moves(MovesState),
    /// To `ClusterId`: the id, if the node has one.
    ClusterId(Option<ClusterId>),
    /// To a ping.
    Pong,
}

/// Why a node did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too much waits already.
    Busy,
    /// Its disk is full.
    NoSpace,
    /// The timestamp is too far ahead of its clock, or it works by another layout.
    Declined,
    /// It has promised a higher ballot, or just stores another record.
    Outbid,
}

impl Reply {
    /// Why the node refused, if it did.
    pub(crate) fn refusal(&self) -> Option<Refused> {
        match self {
            Self::Busy => Some(Refused::Busy),
            Self::NoSpace => Some(Refused::NoSpace),
            Self::Ahead | Self::WrongEpoch | Self::Superseded { .. } => Some(Refused::Declined),
            Self::Outbid { .. } => Some(Refused::Outbid),
            Self::Found { .. }
            | Self::Long { .. }
            | Self::Absent { .. }
            | Self::Stored
            | Self::Newer { .. }
            | Self::Done { .. }
            | Self::Recalled(_)
            | Self::Failed
            | Self::Page(_)
            | Self::Compared(_)
            | Self::Round(_)
            | Self::Council(_)
            | Self::Moves(_)
            | Self::ClusterId(_)
            | Self::Pong => None,
        }
    }
}

/// How far a node is in a transition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MovesState {
    /// The epoch of the layout that it goes by; it says so once that is durable.
    pub epoch: u64,
    /// Whether it has taken all that moves to it.
    pub has_all: bool,
    /// Nodes from which it has taken all, of so many.
    pub sources: (u16, u16),
    /// Records that it has taken in this change since its process began.
    pub records: u64,
    /// The bytes of those records.
    pub bytes: u64,
    /// What it waits for before it can take the rest.
    pub waits: Option<Waits>,
}

/// A node that takes what moves to it waits until the time of another node's future records has
/// come: that one does not keep them, and they hide what it may have acknowledged before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The node that holds them.
    pub source: NodeId,
    /// The greatest time of one of them, in microseconds since 1970.
    pub until: u64,
}
