//! kvorum's replication protocol, without any I/O: no sockets, files, threads or clocks. Whoever
//! embeds it brings the time and the bytes, so that a simulation can run the very same code.

#![forbid(unsafe_code)]

mod acks;
mod by_node;
mod choice;
mod clock;
mod cluster_id;
mod compare;
mod conditional;
mod coordinator;
mod directory;
mod event;
mod filter;
pub mod handshake;
mod hints;
mod kept;
pub mod layout;
mod layouts;
mod leftovers;
mod logs;
mod membership;
mod message;
mod missed;
mod moves;
mod node;
mod node_id;
mod promises;
mod proof;
mod quorum;
mod recent;
mod record;
mod remembered;
mod rounds;
mod scan;
mod sums;
mod topology;
mod turns;
mod unreadable;
mod view;
pub mod wire;

pub use acks::{Acks, ReplicaSet};
pub use by_node::ByNode;
pub use clock::{Clock, NotIssued, Now, Version, origin_of};
pub use cluster_id::ClusterId;
pub use compare::{CompareRequest, Compared, Damage, Detail, MAX_DAMAGED, Sum};
pub use conditional::{
    Change, Condition, Conditional, Done, Impossible, REMEMBERED_MICROS, Tag, has_idempotency_key,
    id_of_idempotency_key,
};
pub use coordinator::Coordinator;
pub use directory::{Incarnation, LifeId, LogPosition};
pub use event::{
    Answer, CallId, ClientId, Config, ConnectionId, Demand, Effect, Event, FailureKind, HintId,
    OpId, Part, RequestFailed, Shared, SlotId, StoreError,
};
pub use filter::{MAX_KNOWN, PartitionFilter};
pub use hints::{HintLedger, hint_bytes};
pub use layouts::{ChangeReport, Layouts, LayoutsKept, LayoutsRecord, Progress};
pub use leftovers::Leftovers;
pub use logs::{Claim, Life, Lineage, Logs, MAX_LIVES, Reported};
pub use membership::{Membership, MembershipState};
pub use message::{
    ACCESS_SINCE, Body, Class, Filter, MOVES_SINCE, Message, MovesState, NodeId, Page, PageRequest,
    Reply, Request,
};
pub use missed::{MAX_LISTED, Mark, Missed, Numbered};
pub use moves::Moves;
pub use node::{NODE_TICK_MICROS, Node, NodeConfig, NodeEffect, NodeEvent, RoundConfig};
pub use proof::{Passing, Proof, Proofs, RoundId, RoundState, RoundStep};
pub use quorum::{AskedQuorum, Quorum, Refusal, quorum};
pub use recent::{Recalled, Via};
pub use record::{
    Codec, Kind, MAX_OPERATIONS, Next, Operation, Outline, Rank, Record, Steps, StepsCodec,
    has_expired,
};
pub use remembered::{Recollections, Remembered};
pub use rounds::{RoundReport, RoundStatus, Rounds, Unhealed};
pub use scan::{PAGE_BYTES, Scan, ScanStep};
pub use sums::Sums;
pub use topology::{
    Buckets, Fill, HashWeight, Member, PARTITIONS, Topology, TopologyError, difference,
    partition_of,
};
pub use unreadable::Unreadable;
pub use view::{FIRST_EPOCH, View, ViewId, Views};
