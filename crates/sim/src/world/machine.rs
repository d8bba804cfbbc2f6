//! A machine with a disk, clocks, and perhaps a process of kvorum's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cluster::layout::Voter;
use cluster::{CallId, ClientId, ClusterId, Event, NodeId, OpId, Record, Shared, StoreError};
use lsm::MemDisk;
use node::identity::Keeps;
use node::link::{Attempt, Keeper, Link, PeerTable, Pings};
use node::{BoundedClock, Outcome, Pages, Purpose, Starting, Task, Wanted};

use super::Due;
use super::endpoint::{Endpoint, Memory};
use super::life::LifeFile;
use super::ranges::Walks;
use crate::plan::Plan;
use crate::random::Random;
use crate::store::Store;
use crate::wall::Wall;

/// What a loop takes in.
#[derive(Debug)]
pub(crate) enum Input {
    /// An event of the store or the network.
    Event(Event),
    /// Something has arrived at this loop's end of a connection, or there is room at it.
    Ready { connection: u64, end: usize },
    /// A read that had to wait is done, of which so many bytes are wanted at most.
    Read(OpId, Wanted, Result<Option<Record>, StoreError>),
    /// A write is done, or known not to be.
    Written(Purpose, Outcome),
    /// Something of the node's own was stored, or could not be.
    Kept(OpId, Keeps, Result<(), lsm::Error>),
    /// A node that was busy is to be asked again for a page.
    Busy(CallId),
    /// Time has passed.
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

/// A loop of a node, with its input that is not handled yet.
pub(crate) struct Loop {
    /// Gone while it is at something.
    pub(crate) own: Option<Box<node::Loop>>,
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) turn_is_due: bool,
    /// True time of the next wake-up.
    pub(crate) wake_at: Option<u64>,
    /// By node, each from when it is first used.
    pub(crate) links: BTreeMap<usize, Link<(), u64>>,
    /// Its ends of connections.
    pub(crate) endpoints: BTreeMap<u64, Endpoint>,
    /// Who was asked for a long record, and with which message.
    pub(crate) fetching: BTreeSet<(NodeId, u64)>,
    /// Those that may have something to send.
    pub(crate) dirty: BTreeSet<u64>,
    pub(crate) pings: Pings,
    pub(crate) keeper: Keeper,
}

/// A client's request that a process has taken and not answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// When, by the node's own counting clock.
    pub(crate) mono: u64,
    /// Pauses of the machine so far: a process that stood still may be late.
    pub(crate) pauses: u32,
    /// Whether the node knew that it belongs to the cluster no more.
    pub(crate) was_removed: bool,
}

/// One life of a node.
pub(crate) struct Process {
    pub(crate) life: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) table: Arc<PeerTable>,
    pub(crate) memory: Memory,
    pub(crate) store: Store,
    pub(crate) loops: Vec<Loop>,
    pub(crate) taken: BTreeMap<ClientId, Taken>,
    pub(crate) walks: Walks,
    pub(crate) pages: Pages,
    /// Gone while it is at something.
    pub(crate) task: Option<Box<Task>>,
    pub(crate) clock: BoundedClock,
    pub(crate) bound_asked_at: Option<u64>,
    /// When the log was synced last, where it is not with each group.
    pub(crate) synced_at: u64,
}

/// What a machine is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A node of the list that the cluster began with.
    Listed,
    /// One that asked for a place.
    Joined,
    /// A node that will not start again, and has to be removed as dead.
    Lost,
    /// A former node that was switched off.
    Gone,
    /// Of an id that nobody has yet.
    Vacant,
}

/// See the module.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// It was removed, and is to be switched off.
    pub(crate) leaves: bool,
    pub(crate) wall: Wall,
    /// The most that it was ahead of true time, in microseconds.
    pub(crate) most_ahead: i64,
    pub(crate) disk: MemDisk,
    /// Processes so far.
    pub(crate) lives: u32,
    pub(crate) process: Option<Process>,
    /// What a process has recovered that does not serve yet.
    pub(crate) opened: Option<Box<(Store, Starting)>>,
    /// The machine itself is without power: nobody answers for a process that is gone.
    pub(crate) dark: bool,
    /// Its disk was given faults and not been replaced.
    pub(crate) disk_is_bad: bool,
    /// What is on it is not what was written.
    pub(crate) rotten: bool,
    /// The last epoch that a process of this disk went by.
    pub(crate) epoch: u64,
    /// The cluster that its disk belongs to, as far as a process of it said.
    pub(crate) cluster: Option<ClusterId>,
    /// Who that one was as a voter.
    pub(crate) voter: Option<Voter>,
    /// What tells its directory from a copy.
    pub(crate) life_file: LifeFile,
    /// It takes no requests any more and ends what it has taken.
    pub(crate) stopping: bool,
    pub(crate) paused: bool,
    pub(crate) pauses: u32,
    /// What was due while it was paused.
    pub(crate) held: Vec<Due>,
    /// Microseconds that each sync takes longer than usual.
    pub(crate) slow_disk: u64,
}

impl Machine {
    pub(crate) fn new(number: usize, plan: &Plan, random: &mut Random) -> Self {
        let offset = random.between(0, 2 * plan.skew_micros) as i64 - plan.skew_micros as i64;
        let drift = random.between(0, 200) as i64 - 100;
        Self {
            name: format!("node-{number:04}"),
            role: Role::Listed,
            leaves: false,
            wall: Wall::new(offset, drift, plan.clock_micros),
            most_ahead: 0,
            disk: MemDisk::new(),
            lives: 0,
            process: None,
            opened: None,
            dark: false,
            disk_is_bad: false,
            rotten: false,
            epoch: 0,
            cluster: None,
            voter: None,
            life_file: LifeFile::default(),
            stopping: false,
            paused: false,
            pauses: 0,
            held: Vec::new(),
            slow_disk: 0,
        }
    }

    /// Of an id that nobody has yet.
    pub(crate) fn vacant(number: usize, plan: &Plan, random: &mut Random) -> Self {
        let machine = Self::new(number, plan, random);
        Self { name: String::new(), role: Role::Vacant, ..machine }
    }

    /// Whether its process may be started.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self.role, Role::Listed | Role::Joined)
    }
}

/// What a turn of a loop has to write in the end.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) batch: lsm::Batch,
    /// What the batch is for.
    pub(crate) writes: Vec<Purpose>,
    /// What ranges ask their loop for.
    pub(crate) events: VecDeque<Event>,
}
