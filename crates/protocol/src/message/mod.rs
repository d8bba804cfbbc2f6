//! The messages between nodes. `docs/formats/peer-protocol.md` describes their layout in bytes.

use bytes::Bytes;

use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_ids::Incarnation;
use crate::membership::layout::{VoteReply, VoteRequest};
pub use crate::node_id::NodeId;
use crate::paxos::operation::{Conditional, Done};
use crate::paxos::recent::OpLookup;
use crate::repair::compare_messages::{CompareRequest, Compared, Damage};
use crate::repair::watermark::{RoundId, RoundState, RoundStep};
use crate::request::receipt::ReplicaSet;
use crate::transfer::missed::Mark;
use record::{Record, RecordOutline};

mod page;

pub use page::{Filter, Page, PageRequest};

/// The reason for a request, by which waiting work is ordered ([`Demand`](crate::Demand)). Client
/// requests go first; each other class is served from time to time, so that none starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A client waits for the reply.
    Client,
    /// A replica gets a write that it missed.
    Hint,
    /// A replica is being repaired.
    Repair,
    /// A node that is being rebuilt pulls a range.
    Stream,
}

/// A message between two nodes. A reply carries the id of its request; only the asker interprets an
/// id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The id of the request, chosen by the asker.
    pub id: u64,
    /// The request or the reply.
    pub body: Body,
}

/// The body of a message: a request or a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A request to the receiver.
    Request {
        /// Milliseconds until the asker stops waiting for the reply. The receiver skips work that
        /// has not begun by that time.
        remaining_ms: u32,
        /// The reason for the request.
        class: Class,
        /// The request itself.
        request: Request,
    },
    /// The reply to an earlier request.
    Reply(Reply),
}

/// A request from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Returns the newest record of a key.
    Read {
        /// The key to read.
        key: Bytes,
        /// The longest record, in bytes, that the asker has memory for. If the record is longer,
        /// the reply is an outline.
        most: u32,
    },
    /// Returns the newest record of a key, for a client that reads with a majority. The receiver
    /// coordinates the read, and a majority of the key's replicas holds the returned record. The
    /// reply is that of a read, or `Busy` if no majority answers.
    ReadQuorum {
        /// The key to read.
        key: Bytes,
        /// The longest record, in bytes, that the asker has memory for. If the record is longer,
        /// the reply is an outline. `u32::MAX` = no limit.
        most: u32,
    },
    /// Promises a ballot (Paxos phase 1): from now on, the node stores no record of this key that a
    /// conditional write made under a lower ballot. The reply is that of a read if the node
    /// promises the ballot, otherwise `BallotRefused`.
    Prepare {
        /// The key to promise the ballot for.
        key: Bytes,
        /// The ballot to promise.
        ballot: u64,
        /// The longest record, in bytes, that the asker has memory for. If the record is longer,
        /// the reply is an outline.
        most: u32,
        /// The asker's watermark. A node with another watermark promises nothing and replies
        /// `Round`: if only one of two nodes has purged a tombstone, they must not seem to hold
        /// different states of the key.
        watermark: u64,
    },
    /// Looks up whether the node has stored a record that contains a conditional write. The reply
    /// is `Recalled`.
    Recall {
        /// The key that the write changed.
        key: Bytes,
        /// The id of the write.
        id: u64,
        /// The ballot under which the write was first tried.
        since: u64,
        /// The digest of the client's request, if it has an idempotency key; 0 = unknown.
        digest: u64,
    },
    /// Makes a conditional write, with the receiver as coordinator. The reply is `Done`; `Failed`
    /// if the outcome is unknown; or a refusal, and then nothing was changed.
    Change {
        /// The key to change.
        key: Bytes,
        /// The id of the write, which is the same under every coordinator.
        id: u64,
        /// The number of replicas that must hold the result; 0 = a majority, under the view of the
        /// key's leader.
        ack: u8,
        /// The operation and its condition.
        conditional: Conditional,
    },
    /// Stores a record. A record that a conditional write made is stored only if the node has
    /// promised no higher ballot and holds no record that outranks it.
    Write {
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
    },
    /// Stores a record that a conditional write made, without new promises: the coordinator
    /// continues from its last record of the key, under the next ballot. The reply is that of a
    /// `Write`. A node that is not authoritative for the key stores nothing and replies `Absent`.
    AcceptNext {
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
    },
    /// Stores several records: hints, or records that a node pulls or receives as a stream. One
    /// reply covers them all.
    Writes {
        /// The keys and their records.
        items: Vec<(Bytes, Record)>,
    },
    /// Reads part of a range.
    Page(PageRequest),
    /// Stores marks of the receiver, or marks of the asker, which can't store its own.
    Missed {
        /// The node that may lack records.
        node: NodeId,
        /// The marks to store for that node.
        marks: Vec<Mark>,
    },
    /// Summarizes the node's records in a range of keys, which are read without caches and
    /// verified. The reply is `Compared`; a node that is being rebuilt answers that it is not
    /// authoritative.
    Compare(CompareRequest),
    /// Discards unreadable blocks in these ranges of keys. Before, other replicas have written
    /// their records of the ranges to the node. The reply is `Stored`.
    Discard(Vec<Damage>),
    /// Carries out a step of a repair round that advances the watermark. The reply is `Round`; its
    /// proof state shows whether the step was carried out. A node that is being rebuilt replies
    /// that it is not authoritative.
    Round {
        /// The round that the step belongs to.
        round: RoundId,
        /// The step to carry out.
        step: RoundStep,
    },
    /// Stores a record that another node holds. Repair fences do not refuse it, because a repair
    /// round brings it. The reply is `TopologyMismatch` unless the node is fenced by this round.
    Bring {
        /// The round that brings the record.
        round: RoundId,
        /// The key to write.
        key: Bytes,
        /// The record to store under the key.
        record: Record,
    },
    /// Votes on the next layout, or reports which layout is decided. The reply is `Council`.
    Council(VoteRequest),
    /// Returns the node's progress in a transition. The reply is `Moves`.
    Moves,
    /// Returns the id of the node's cluster. The reply is `ClusterId`, or `Busy` while the node
    /// stores an id. The request is bound to the asker's view, so the founder is told "no id" only
    /// by nodes of its own view.
    ClusterId,
    /// Asks whether the node has stored durably that the asker has this disk. The reply is `Pong`,
    /// or `Busy` until it has.
    KnowsDisk {
        /// The id of the asking node.
        node: NodeId,
        /// The disk of the asker.
        incarnation: Incarnation,
    },
    /// Asks whether the node is alive.
    Ping,
}

impl Request {
    /// Returns the longest record, in bytes, that the asker has memory for; `None` = the reply to
    /// this request is never long.
    pub fn most(&self) -> Option<u32> {
        match self {
            Self::Read { most, .. } | Self::ReadQuorum { most, .. } => Some(*most),
            _ => None,
        }
    }

    /// Returns the key that the request reads; `None` = it reads no single key.
    pub(crate) fn read_key(&self) -> Option<&Bytes> {
        match self {
            Self::Read { key, .. } | Self::Prepare { key, .. } | Self::Recall { key, .. } => {
                Some(key)
            }
            _ => None,
        }
    }

    /// True if the request needs no check of the answering node's view, because it concerns the
    /// node itself or comes from a task that checks the view.
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

/// A reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To a read: the newest record that the node holds.
    Found {
        /// The record, which may be a tombstone.
        record: Record,
        /// True if the node is certain that it never acknowledged a newer record: see
        /// [`MembershipState`](crate::MembershipState).
        authoritative: bool,
    },
    /// To a read: the node's newest record is longer than the asker has memory for.
    Long {
        /// The record without its content, which the node verified.
        outline: RecordOutline,
        /// As in [`Reply::Found`].
        authoritative: bool,
    },
    /// To a read: the node holds no record.
    Absent {
        /// True if the node is certain that it never acknowledged a record of the key.
        authoritative: bool,
    },
    /// To a write: the record is stored, as durably as the node's sync mode requires.
    Stored,
    /// To a write: the record is stored, but the node holds a newer record of the key, or may hold
    /// one.
    Newer {
        /// The time of the newer record's version, or an upper bound on it.
        time: u64,
    },
    /// To `Change`: the outcome.
    Done {
        /// The replicas of the key that hold the record on which the outcome is based.
        by: ReplicaSet,
        /// The outcome of the change.
        done: Done,
    },
    /// To `Recall`: whether the write was stored.
    Recalled(OpLookup),
    /// To `Prepare`, and to a write of a record that a conditional write made: refused, because a
    /// higher ballot was promised, or another such record is being stored. Nothing was changed.
    BallotRefused {
        /// The promised ballot.
        promise: u64,
    },
    /// To one write or several: refused, because a version is too far ahead of this node's wall
    /// clock. Nothing was changed.
    Ahead,
    /// Refused: the node is overloaded. Nothing was changed.
    Busy,
    /// To a write: refused, because the disk is full. Nothing was changed.
    NoSpace,
    /// The store failed on this request. A write may have taken effect.
    Failed,
    /// Refused: the asker's topology differs from this node's.
    TopologyMismatch,
    /// Refused: this node's view is later than the asker's. A write may have taken effect before
    /// the view changed.
    Superseded {
        /// The epoch of the later view.
        epoch: u64,
    },
    /// To a page request.
    Page(Page),
    /// To a comparison.
    Compared(Compared),
    /// To a step of a repair round, and to `Prepare` from a node with another watermark.
    Round(RoundState),
    /// To `Council`: the vote, or the layout that was decided.
    Council(VoteReply),
    /// To `Moves`: the node's progress.
    Moves(MovesState),
    /// To `ClusterId`: the id, if the node has one.
    ClusterId(Option<ClusterId>),
    /// To a ping.
    Pong,
}

/// The reason why a node refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// The node is overloaded.
    Busy,
    /// The node's disk is full.
    NoSpace,
    /// The timestamp is too far ahead of the node's clock, or the node's layout differs.
    Declined,
    /// The node has promised a higher ballot, or is storing another record at this moment.
    HigherBallot,
}

impl Reply {
    /// Returns the reason for a refusal; `None` if the reply is not a refusal.
    pub(crate) fn refusal(&self) -> Option<RefusalReason> {
        match self {
            Self::Busy => Some(RefusalReason::Busy),
            Self::NoSpace => Some(RefusalReason::NoSpace),
            Self::Ahead | Self::TopologyMismatch | Self::Superseded { .. } => {
                Some(RefusalReason::Declined)
            }
            Self::BallotRefused { .. } => Some(RefusalReason::HigherBallot),
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

/// A node's progress in a transition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MovesState {
    /// The epoch of the node's layout, once the layout is durable.
    pub epoch: u64,
    /// True if the node has pulled all records that move to it.
    pub has_all: bool,
    /// The number of source nodes from which all records were pulled, and the number of all source
    /// nodes.
    pub sources: (u16, u16),
    /// The number of records pulled for this change since the start of the node's process.
    pub records: u64,
    /// The length of these records, in bytes.
    pub bytes: u64,
    /// The future records for whose time the node waits, before it can pull the remaining records.
    pub waits: Option<Waits>,
}

/// A pulling node's wait until the time of another node's future records has come. The other node
/// drops those records after the move, and they hide older records that it may have acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The node that holds the future records.
    pub source: NodeId,
    /// The greatest time among the future records, in microseconds since 1970.
    pub until: u64,
}
