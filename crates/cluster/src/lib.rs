//! kvorum's replication protocol, without any I/O: no sockets, files, threads or clocks. Whoever
//! embeds it brings the time and the bytes, so that a simulation can run the very same code.

#![forbid(unsafe_code)]

mod acks;
mod announcement;
mod before_writes;
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
mod forgotten;
pub mod handshake;
mod hints;
mod kept;
mod known_disk;
pub mod layout;
mod layouts;
mod leftovers;
mod logs;
mod membership;
mod message;
mod missed;
mod moves;
mod newest;
mod node;
mod node_effect;
mod node_id;
mod promises;
mod proof;
mod quorum;
mod recent;
mod remembered;
mod repair;
mod rounds;
mod scan;
mod sums;
mod task;
mod topology;
mod transfer;
mod turns;
mod unreadable;
mod view;
mod visible;
pub mod wire;

pub use acks::{Acks, ReplicaSet};
pub use before_writes::BeforeWrites;
pub use by_node::ByNode;
pub use clock::{Clock, NotIssued, Now, origin_of};
pub use cluster_id::{ClusterId, OwnCluster};
pub use compare::{CompareRequest, Compared, Damage, Detail, MAX_DAMAGED, Sum};
pub use conditional::{
    Change, Condition, Conditional, Done, Impossible, REMEMBERED_MICROS, Tag, decimal,
    digest_of_request, has_idempotency_key, id_of_idempotency_key,
};
pub use coordinator::Coordinator;
pub use directory::{Incarnation, LifeId, LogPosition};
pub use event::{
    Answer, CallId, ClientId, Config, ConnectionId, Demand, Effect, Event, FailureKind, HintId,
    OpId, Part, RequestFailed, Shared, SlotId, StoreError,
};
pub use filter::{MAX_KNOWN, PartitionFilter};
pub use forgotten::{ForgottenWhy, ForgottenWords};
pub use hints::{HintLedger, hint_bytes};
pub use known_disk::KnownDisk;
pub use layouts::{ChangeReport, Layouts, LayoutsKept, LayoutsRecord, Progress};
pub use leftovers::Leftovers;
pub use logs::{Claim, Life, Lineage, Logs, MAX_LIVES, Reported};
pub use membership::{Membership, MembershipState};
pub use message::{
    Body, Class, Filter, Message, MovesState, NodeId, Page, PageRequest, Reply, Request, Waits,
};
pub use missed::{MAX_LISTED, Mark, Missed, Numbered};
pub use moves::Moves;
pub use newest::Newest;
pub use node::{Node, NodeEvent};
pub use node_effect::{NODE_TICK_MICROS, NodeConfig, NodeEffect};
pub use proof::{Passing, Proof, Proofs, RoundId, RoundState, RoundStep};
pub use quorum::{AskedQuorum, Quorum, Refusal, quorum};
pub use recent::{Recalled, Via, WriteName};
pub use record::{
    Kind, MAX_OPERATIONS, Operation, Outline, Rank, Record, Steps, Version, has_expired,
};
pub use remembered::{Recollections, Remembered, Until};
pub use rounds::{RoundConfig, RoundReport, RoundStatus, Rounds, Unhealed};
pub use scan::{PAGE_BYTES, Scan, ScanStep};
pub use sums::Sums;
pub use topology::{
    Buckets, Fill, HashWeight, Member, PARTITIONS, Topology, TopologyError, difference,
    partition_of,
};
pub use unreadable::Unreadable;
pub use view::{FIRST_EPOCH, View, ViewId, Views};
pub use visible::{escaped, is_invisible, visible};
