//! Parameters of a run, drawn from its seed. Every seed gives another mix of faults, as in the
//! swarm testing of Groce et al. (2012): most runs have few kinds of faults, which happen often.

use std::time::Duration;

use lsm::SyncMode;
use protocol::RoundConfig;

use crate::network::Speed;
use crate::random::Random;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process is killed, and restarted.
    Kill,
    /// A machine loses power: unsynced writes are lost, the last write is torn.
    PowerCut,
    /// Several machines lose power at once.
    PowerCutAll,
    /// A disk is replaced by an empty one.
    Wipe,
    /// An older copy of a disk is restored some time later.
    Rollback,
    /// A bit of a table flips; the disk is replaced some time later.
    Rot,
    /// The disk fails a sync, a write or a read.
    DiskError,
    /// The disk is full for a while.
    DiskFull,
    /// The disk is slow for a while.
    SlowDisk,
    /// A process is suspended for a while (SIGSTOP).
    Pause,
    /// Two groups of nodes cannot reach each other.
    Partition,
    /// Messages between a node and other nodes pass in one direction only.
    OneWay,
    /// Two groups of nodes cannot reach each other, but one node reaches both groups.
    Bridge,
    /// A partition begins and ends repeatedly.
    Flapping,
    /// Packets are lost.
    Loss,
    /// Packets are slow.
    SlowLink,
    /// Connections break for no reason.
    Break,
    /// A wall clock jumps.
    ClockJump,
    /// A wall clock is set while its node is down.
    ClockOverRestart,
    /// A wall clock is off by days for a while, from a moment of a process's run or from its start
    /// on.
    ClockByDays,
    /// One node after the other is stopped cleanly and started.
    RollingRestart,
}

impl Fault {
    /// Returns true if the fault ends no process and disturbs no clock. After such faults no node
    /// has forgotten anything, and all replicas become equal without a repair round.
    pub(crate) fn forgets_nothing(self) -> bool {
        matches!(
            self,
            Self::DiskFull
                | Self::SlowDisk
                | Self::Pause
                | Self::Partition
                | Self::OneWay
                | Self::Bridge
                | Self::Flapping
                | Self::Loss
                | Self::SlowLink
                | Self::Break
        )
    }

    /// All kinds of faults.
    pub const ALL: [Self; 21] = [
        Self::Kill,
        Self::PowerCut,
        Self::PowerCutAll,
        Self::Wipe,
        Self::Rollback,
        Self::Rot,
        Self::DiskError,
        Self::DiskFull,
        Self::SlowDisk,
        Self::Pause,
        Self::Partition,
        Self::OneWay,
        Self::Bridge,
        Self::Flapping,
        Self::Loss,
        Self::SlowLink,
        Self::Break,
        Self::ClockJump,
        Self::ClockOverRestart,
        Self::ClockByDays,
        Self::RollingRestart,
    ];
}

/// Longest time between two layout changes, in microseconds, that [`Plan::set_frequent_moves`]
/// sets.
const MOVES_MICROS: u64 = 3_000_000;

/// Maximum number of nodes that join a cluster during a run.
const MOST_JOINERS: usize = 24;

/// Parameters of a run: see the module. All times are simulated.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed, which determines everything else.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Event loops per node.
    pub loops: usize,
    /// Default number of copies of a key.
    pub replicas: u8,
    /// Number of clients; each sends one request at a time.
    pub clients: usize,
    /// Number of keys shared by all clients.
    pub hot_keys: usize,
    /// Number of keys that only one client uses, per client.
    pub own_keys: usize,
    /// Number of clients that use only contended keys.
    pub contenders: usize,
    /// Number of contended keys, most of whose writes have conditions.
    pub contended_keys: usize,
    /// Writes of the clients of contended keys, per thousand, that have no condition.
    pub plain_writes: u64,
    /// Writes per thousand whose value expires.
    pub expiring: u64,
    /// Longest pause of a client between two requests, in microseconds.
    pub think_micros: u64,
    /// Requests per thousand that name `ack` and `from`.
    pub named_quorums: u64,
    /// Requests per thousand that read a range: all existing keys.
    pub ranges: u64,
    /// Seconds in which faults happen.
    pub seconds: u64,
    /// Kinds of faults that happen; may be empty.
    pub faults: Vec<Fault>,
    /// Longest time between two faults, in microseconds.
    pub fault_micros: u64,
    /// Durability of acknowledged writes.
    pub sync: SyncMode,
    /// Memory budget in bytes for range pages, per node.
    pub page_bytes: usize,
    /// Size of a memtable in bytes: small, so that there are many flushes and compactions.
    pub memtable_bytes: usize,
    /// Shortest and longest sync of a disk, in microseconds.
    pub disk_micros: (u64, u64),
    /// Reads per thousand that wait for the disk.
    pub cold_reads: u64,
    /// Deadline of a request in microseconds.
    pub deadline_micros: u64,
    /// Maximum number of microseconds that a version may be ahead of a node's wall clock.
    pub max_skew_micros: u64,
    /// Maximum error of undisturbed wall clocks, in microseconds.
    pub skew_micros: u64,
    /// Microseconds between two ticks of the wall clocks: coarse ticks produce equal version times.
    pub clock_micros: u64,
    /// Longest time between two layout changes, in microseconds; 0 = there are no changes.
    pub change_micros: u64,
    /// Changes per thousand that move keys; the others affect only the metadata quorum.
    pub moves: u64,
    /// Changes that move keys, per thousand, in which nodes join, leave or are lost.
    pub members: u64,
    /// Maximum number of nodes that may join during the run.
    pub joiners: usize,
    /// Changes per thousand, of those drawn during a move before its reads switch, that revert the
    /// move. The others have no effect.
    pub aborts: u64,
    /// Changes per thousand that create or revoke a token, whether keys move or not.
    pub tokens: u64,
    /// Ticks of a node, per thousand, before which the node drops one of its background tasks.
    pub task_drops: u64,
    /// Parameters of repair rounds.
    pub rounds: RoundConfig,
    /// True if nodes begin as members. Otherwise each node first asks all others for its records.
    pub founded: bool,
    /// True if each node keeps a connection to each other node, as in production. In simulations of
    /// thousands of nodes, these connections would take nearly all of the time.
    pub keeps_links: bool,
    pub(crate) speed: Speed,
    /// True if every line of the journal is printed.
    pub log: bool,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = *random.pick(&[3, 3, 3, 4, 5, 5, 2]);
        let sync = if random.permille(850) {
            SyncMode::Always
        } else {
            SyncMode::Interval(Duration::from_millis(100))
        };
        let least_micros = random.between(20, 200);
        Self {
            seed,
            nodes,
            loops: random.between(2, 3) as usize,
            replicas: *random.pick(&[3, 3, 3, 2, 5]),
            clients: random.between(3, 12) as usize,
            hot_keys: random.between(1, 12) as usize,
            own_keys: random.between(1, 20) as usize,
            think_micros: random.spread(5_000, 300_000),
            named_quorums: *random.pick(&[0, 100, 300, 1000]),
            ranges: 10,
            seconds: random.between(5, 40),
            faults: Self::draw_faults(&mut random),
            fault_micros: random.spread(200_000, 10_000_000),
            sync,
            memtable_bytes: 128 << 10,
            disk_micros: (50, random.spread(100, 10_000)),
            cold_reads: *random.pick(&[0, 20, 500]),
            deadline_micros: 1_000_000,
            max_skew_micros: 500_000,
            skew_micros: *random.pick(&[0, 1_000, 100_000, 240_000]),
            clock_micros: *random.pick(&[1, 1, 1_000, 16_000]),
            // Each of these fields has its own generator, because it was added later: old seeds
            // keep the rest of their runs.
            change_micros: *Random::new(seed ^ 0x1a70).pick(&[0, 0, 300_000, 3_000_000]),
            moves: *Random::new(seed ^ 0x30fe5).pick(&[0, 100, 300, 1000]),
            members: *Random::new(seed ^ 0x3e3b).pick(&[0, 0, 300, 1000]),
            joiners: MOST_JOINERS,
            aborts: *Random::new(seed ^ 0xab027).pick(&[0, 0, 0, 30, 300]),
            tokens: *Random::new(seed ^ 0x70c3).pick(&[0, 0, 300]),
            task_drops: *Random::new(seed ^ 0xd70b5).pick(&[0, 0, 100]),
            founded: false,
            keeps_links: true,
            speed: Speed {
                least_micros,
                most_micros: random.spread(least_micros, 20_000),
                buffer: random.spread(64 << 10, 4 << 20) as usize,
            },
            page_bytes: *random.pick(&[64 << 20, 64 << 20, 1 << 20]),
            contenders: random.between(2, 8) as usize,
            contended_keys: random.between(1, 3) as usize,
            plain_writes: *random.pick(&[0, 50, 300]),
            expiring: [0, 200, 600][seed as usize % 3],
            rounds: Self::draw_round_config(&mut random),
            log: false,
        }
    }

    /// Draws the parameters of repair rounds. In half of the plans 0.1 s lies between rounds, in a
    /// quarter 3 s. In the last quarter no node starts a round by itself.
    fn draw_round_config(random: &mut Random) -> RoundConfig {
        let full_interval_micros = *random.pick(&[0, 0, u64::MAX]);
        let settled_micros = *random.pick(&[0, 3_000_000]);
        let share = *random.pick(&[10, 100]);
        let interval_micros = *random.pick(&[100_000, 100_000, 3_000_000, 0]);
        RoundConfig { interval_micros, full_interval_micros, share, settled_micros }
    }

    /// Makes layout changes that move keys frequent, if `wanted`.
    pub fn set_frequent_moves(&mut self, wanted: bool) {
        if wanted && self.change_micros == 0 {
            self.change_micros = MOVES_MICROS;
        }
        if wanted && self.moves == 0 {
            self.moves = 1000;
        }
    }

    /// Returns true if nodes join and leave.
    pub(crate) fn changes_members(&self) -> bool {
        self.change_micros > 0 && self.moves > 0 && self.members > 0
    }

    /// Returns the number of ids that may be given to nodes. Each id is given only once.
    pub(crate) fn max_node_ids(&self) -> usize {
        self.nodes + if self.changes_members() { self.joiners } else { 0 }
    }

    /// Returns the least number of nodes at any time. A request may name this many replicas.
    pub(crate) fn least_nodes(&self) -> usize {
        if self.changes_members() { self.nodes.min(3) } else { self.nodes }
    }

    /// Returns true if no fault of the plan ends a process or disturbs a clock.
    pub(crate) fn forgets_nothing(&self) -> bool {
        self.faults.iter().all(|fault| fault.forgets_nothing())
    }

    fn draw_faults(random: &mut Random) -> Vec<Fault> {
        let mut faults = Fault::ALL.to_vec();
        let wanted = match random.below(8) {
            0 => 0,
            1..=5 => random.between(1, 4) as usize,
            _ => random.between(5, Fault::ALL.len() as u64) as usize,
        };
        while faults.len() > wanted {
            faults.remove(random.index(faults.len()));
        }
        faults
    }
}
