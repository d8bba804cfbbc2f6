//! kvorum's replication protocol, without any I/O: no sockets, files, threads or clocks. The
//! embedder passes in the time and the bytes, so that a simulation runs the same code as a node.
//!
//! ```text
//!  dispatch     entry point of an event loop: hands its events to request, paxos and replica
//!  request      coordinates reads, writes and ranges: quorums and votes
//!  paxos        coordinates and accepts conditional writes
//!  replica      carries out requests on this node's store
//!  background   entry point of work done once per node: runs the tasks of
//!    repair     repair rounds
//!    transfer   hints, rebuild, rebalance
//!    membership layouts, and this node's membership state
//!  placement    computes the nodes that hold a key
//!  wire         encodes messages between nodes
//!  handshake    authenticates the nodes at both ends of a connection
//! ```

#![forbid(unsafe_code)]

mod background;
mod by_node;
mod clock;
mod dispatch;
mod event;
pub mod handshake;
mod invisible_chars;
mod membership;
mod message;
mod node_id;
mod paxos;
mod placement;
mod repair;
mod replica;
mod request;
mod shared;
mod transfer;
pub mod wire;

pub use background::effect::{BackgroundConfig, BackgroundEffect, NODE_TICK_MICROS};
pub use background::{Background, BackgroundEvent};
pub use by_node::ByNode;
pub use clock::{Clock, NotIssued, Now, origin_of};
pub use dispatch::Protocol;
pub use event::{
    Answer, CallId, ClientId, Config, ConnectionId, Demand, Effect, Event, FailureKind, HintId,
    OpId, ReplicaOutcome, RequestFailure, SlotId, StoreError,
};
pub use invisible_chars::{escape, is_invisible, visible};
pub use membership::adopted_layout::{
    ChangeReport, EncodedLayouts, Layouts, LayoutsRecord, Progress,
};
pub use membership::cluster_id::{ClusterId, OwnCluster};
pub use membership::disk_ids::{BootId, Incarnation, LogPosition};
pub use membership::former_disks::FormerDisks;
pub use membership::known_disk::KnownDisk;
pub use membership::layout;
pub use membership::logs::{Boot, BootHistory, Claim, Logs, MAX_BOOTS, Reported};
pub use membership::state::{Membership, MembershipState};
pub use membership::transition_progress::TransitionProgress;
pub use message::{
    Body, Class, Filter, Message, MovesState, NodeId, Page, PageRequest, Reply, Request, Waits,
};
pub use paxos::accepted_ballots::{AcceptedBallots, MOST_BALLOTS};
pub use paxos::operation::{
    Change, Condition, Conditional, Done, IDEMPOTENCY_RETENTION_MICROS, Impossible, Tag, decimal,
    digest_of_request, has_idempotency_key, id_of_idempotency_key,
};
pub use paxos::recent::{OpLookup, Via, WriteIdentity};
pub use placement::topology::{
    Buckets, HashWeight, Member, NodeFill, PARTITIONS, Topology, TopologyError, difference,
    partition_of,
};
pub use placement::view::{FIRST_EPOCH, View, ViewId, Views};
pub use record::{
    Kind, MAX_OPERATIONS, OpHistory, Operation, Rank, Record, RecordOutline, Version, has_expired,
};
pub use repair::compare_messages::{CompareRequest, Compared, Damage, Detail, MAX_DAMAGED, Sum};
pub use repair::status::{RoundConfig, RoundReport, RoundStatus, Rounds, Unhealed, Unrepaired};
pub use repair::sums::Sums;
pub use repair::watermark::{FencePermit, Proof, Proofs, RoundId, RoundState, RoundStep};
pub use replica::newest::NewestTime;
pub use replica::orphans::OrphanDrops;
pub use replica::unreadable::Unreadable;
pub use replica::write_checks::WriteChecks;
pub use request::quorum::{AskedQuorum, Quorum, QuorumError, quorum};
pub use request::receipt::{Acks, ReplicaSet};
pub use request::scan::{PAGE_BYTES, Scan, ScanStep};
pub use request::write::write_alone::AloneId;
pub use shared::{Shared, SharedMembership, SharedRepair, SharedReplica, SharedTransfer};
pub use transfer::filter::{MAX_KNOWN, PartitionFilter};
pub use transfer::hint_ledger::{HintLedger, hint_bytes};
pub use transfer::idempotency_gaps::{ForgettingReason, ForgottenIdempotency};
pub use transfer::idempotency_memory::{OwnTraces, Recollections, Remembered};
pub use transfer::missed::{MAX_LISTED, Mark, Missed, NumberedMark};
