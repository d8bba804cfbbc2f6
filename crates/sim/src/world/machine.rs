//! A machine with a disk, clocks, and perhaps a kvorum process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use lsm::MemDisk;
use protocol::layout::Voter;
use protocol::{
    BootId, CallId, ClientId, ClusterId, Event, NodeId, OpId, Record, Shared, StoreError,
};
use server::identity::OwnRecords;
use server::link::{Attempt, Link, PeerTable, Pings, Redialer};
use server::{BoundedClock, Outcome, Pages, StartingNode, StoreRead, Task, WritePurpose};

use super::DueEvent;
use super::endpoint::{Endpoint, Memory};
use super::life::LifeFile;
use super::ranges::RangeReads;
use crate::machine_clock::MachineClock;
use crate::plan::Plan;
use crate::random::Random;
use crate::store::Store;

/// Inbound event of a loop.
#[derive(Debug)]
pub(crate) enum Input {
    /// An event of the store or the network.
    Event(Event),
    /// Bytes have arrived at this loop's end of a connection, or the connection has space for more
    /// bytes.
    Ready { connection: u64, end: usize },
    /// A read that waited for the disk is done. `StoreRead` limits how many bytes of the record are
    /// used.
    Read(OpId, StoreRead, Result<Option<Record>, StoreError>),
    /// A write is done, or certainly has no effect and will have none.
    Written(WritePurpose, Outcome),
    /// Records of the node itself were stored, or could not be stored.
    Kept(OpId, OwnRecords, Result<(), lsm::Error>),
    /// It is time to repeat a page request to a busy node.
    Busy(CallId),
    /// A timer has expired.
    Wake,
    /// A client's request.
    Client(u64),
    /// An attempt to connect has ended.
    Dialed { peer: usize, attempt: Attempt, reachable: bool },
    /// A connection breaks for no reason.
    Lost(u64),
    /// Pings are due.
    Ping,
    /// The process is about to stop.
    Goodbye,
}

/// An event loop of a node, with its unhandled inputs.
pub(crate) struct Loop {
    /// `None` while the loop handles its inputs.
    pub(crate) own: Option<Box<server::Loop>>,
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) turn_is_due: bool,
    /// True time of the next wake-up.
    pub(crate) wake_at: Option<u64>,
    /// Links by peer, each since its first use.
    pub(crate) links: BTreeMap<usize, Link<(), u64>>,
    /// The loop's ends of connections.
    pub(crate) endpoints: BTreeMap<u64, Endpoint>,
    /// Peers that this loop asked for a long record, each with the number of the request.
    pub(crate) fetching: BTreeSet<(NodeId, u64)>,
    /// Connections that may have bytes to send.
    pub(crate) dirty: BTreeSet<u64>,
    pub(crate) pings: Pings,
    pub(crate) redialer: Redialer,
}

/// A client's request that a process has accepted but not answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptedRequest {
    /// Time of acceptance, by the node's monotonic clock.
    pub(crate) mono: u64,
    /// Number of pauses of the machine before acceptance. A process that was paused since may
    /// answer late.
    pub(crate) pauses: u32,
    /// True if the node knew at acceptance that it was no longer a member of the cluster.
    pub(crate) was_removed: bool,
}

/// One boot of a node: a run of its process.
pub(crate) struct Process {
    pub(crate) life: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) table: Arc<PeerTable>,
    pub(crate) memory: Memory,
    pub(crate) store: Store,
    pub(crate) loops: Vec<Loop>,
    pub(crate) accepted: BTreeMap<ClientId, AcceptedRequest>,
    pub(crate) range_reads: RangeReads,
    pub(crate) pages: Pages,
    /// `None` while the task handles an event.
    pub(crate) task: Option<Box<Task>>,
    pub(crate) clock: BoundedClock,
    pub(crate) bound_submitted_at: Option<u64>,
    /// Time of the last sync of the log, in a sync mode that does not sync every group.
    pub(crate) synced_at: u64,
}

/// A machine's relation to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A node of the cluster's initial list.
    Listed,
    /// A node that asked to join.
    Joined,
    /// A node that has lost its disk and will not start again. It must be removed as dead.
    Lost,
    /// A former node that was switched off.
    Gone,
    /// A machine for an id that is not in use yet.
    Vacant,
}

/// A simulated machine with a disk, clocks, and perhaps a kvorum process.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// True for a removed node that is to be switched off.
    pub(crate) leaves: bool,
    pub(crate) wall: MachineClock,
    /// Greatest lead of the wall clock over true time so far, in microseconds.
    pub(crate) max_lead_micros: i64,
    pub(crate) disk: MemDisk,
    /// Number of processes on this machine so far.
    pub(crate) lives: u32,
    pub(crate) process: Option<Process>,
    /// State recovered by a process that does not serve requests yet.
    pub(crate) opened: Option<Box<(Store, StartingNode)>>,
    /// True while the machine has no power. An attempt to connect then times out instead of being
    /// refused.
    pub(crate) has_no_power: bool,
    /// True if the disk has faults and was not replaced.
    pub(crate) disk_is_bad: bool,
    /// True if the disk's contents are corrupt.
    pub(crate) disk_is_corrupt: bool,
    /// The epoch of the last layout that a process on this disk used.
    pub(crate) epoch: u64,
    /// The cluster of this disk, as a process on it last reported.
    pub(crate) cluster: Option<ClusterId>,
    /// The greatest boot id of any process since the disk was last exchanged.
    pub(crate) greatest_boot: Option<BootId>,
    /// Voter identity of the last process on this disk.
    pub(crate) voter: Option<Voter>,
    /// The marker file that distinguishes the directory from a copy.
    pub(crate) life_file: LifeFile,
    /// True if the process accepts no more requests and finishes those accepted.
    pub(crate) stopping: bool,
    pub(crate) paused: bool,
    pub(crate) pauses: u32,
    /// Events that were due while the machine was paused.
    pub(crate) held: Vec<DueEvent>,
    /// Additional duration of each sync in microseconds.
    pub(crate) disk_delay_micros: u64,
}

impl Machine {
    pub(crate) fn new(number: usize, plan: &Plan, random: &mut Random) -> Self {
        let offset = random.between(0, 2 * plan.skew_micros) as i64 - plan.skew_micros as i64;
        let drift = random.between(0, 200) as i64 - 100;
        Self {
            name: format!("node-{number:04}"),
            role: Role::Listed,
            leaves: false,
            wall: MachineClock::new(offset, drift, plan.clock_micros),
            max_lead_micros: 0,
            disk: MemDisk::new(),
            lives: 0,
            process: None,
            opened: None,
            has_no_power: false,
            disk_is_bad: false,
            disk_is_corrupt: false,
            epoch: 0,
            cluster: None,
            greatest_boot: None,
            voter: None,
            life_file: LifeFile::default(),
            stopping: false,
            paused: false,
            pauses: 0,
            held: Vec::new(),
            disk_delay_micros: 0,
        }
    }

    /// Creates a machine for an id that is not in use yet.
    pub(crate) fn new_vacant(number: usize, plan: &Plan, random: &mut Random) -> Self {
        let machine = Self::new(number, plan, random);
        Self { name: String::new(), role: Role::Vacant, ..machine }
    }

    /// Returns true if the machine's process may be started.
    pub(crate) fn may_start(&self) -> bool {
        matches!(self.role, Role::Listed | Role::Joined)
    }
}

/// Effects that a loop collects during a turn.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) batch: lsm::Batch,
    /// The purpose of each write in the batch.
    pub(crate) writes: Vec<WritePurpose>,
    /// Events from ranges to their loop.
    pub(crate) events: VecDeque<Event>,
}
