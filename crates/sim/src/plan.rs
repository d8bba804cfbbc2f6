//! What a run is like: drawn from its seed, so that every seed is another kind of bad day, as the
//! swarm testing of Groce et al. (2012) has it: most runs see a few kinds of faults, often.

use std::time::Duration;

use cluster::RoundConfig;
use lsm::SyncMode;

use crate::network::Speed;
use crate::random::Random;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process is killed, and started again.
    Kill,
    /// A machine loses its power: what was not synced is lost, the last write torn.
    PowerCut,
    /// Several machines at once.
    PowerCutAll,
    /// A disk is replaced by an empty one.
    Wipe,
    /// An older copy of a disk is put back some time later.
    Rollback,
    /// A bit of a table rots; the disk is replaced some time later.
    Rot,
    /// The disk fails a sync, a write or a read.
    DiskError,
    /// The disk is full for a while.
    DiskFull,
    /// The disk is slow for a while.
    SlowDisk,
    /// A process stands still for a while (SIGSTOP).
    Pause,
    /// Some nodes receive nothing from the others.
    Partition,
    /// A node is received but receives nothing, or the other way.
    OneWay,
    /// Two halves that only one node connects.
    Bridge,
    /// A partition that comes and goes.
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
    /// A wall clock is off by days for a while, from one moment to the next or from a start.
    ClockByDays,
    /// One node after the other is stopped cleanly and started.
    RollingRestart,
}

impl Fault {
    /// Whether no process ends by it and no clock goes wrong: then nothing is forgotten, and all
    /// replicas become equal by themselves.
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

/// Longest time between two changes where they are wanted, in microseconds.
const MOVES_MICROS: u64 = 3_000_000;

/// Nodes that join a cluster in the course of a run at most.
const MOST_JOINERS: usize = 24;

/// See the module. All times are simulated.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What decides everything else.
    pub seed: u64,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Event loops of each.
    pub loops: usize,
    /// Copies of a key unless a request says otherwise.
    pub replicas: u8,
    /// Clients that ask one thing after the other.
    pub clients: usize,
    /// Keys that all clients share.
    pub hot_keys: usize,
    /// Keys of each client's own.
    pub own_keys: usize,
    /// Clients that ask only for contended keys.
    pub contenders: usize,
    /// Keys that these share, and write with conditions.
    pub contended_keys: usize,
    /// Writes of a thousand of theirs that have no condition all the same.
    pub plain_writes: u64,
    /// Writes of a thousand whose value expires.
    pub expiring: u64,
    /// Longest pause of a client between two requests, in microseconds.
    pub think_micros: u64,
    /// Requests of a thousand that name `ack` and `from`.
    pub named_quorums: u64,
    /// Requests of a thousand that read a range: all keys there are.
    pub ranges: u64,
    /// Seconds in which faults happen.
    pub seconds: u64,
    /// Kinds of faults that happen; none = a sunny day.
    pub faults: Vec<Fault>,
    /// Longest time between two faults, in microseconds.
    pub fault_micros: u64,
    /// When a write is acknowledged.
    pub sync: SyncMode,
    /// Bytes of memory for pages of ranges, for each node.
    pub page_bytes: usize,
    /// Bytes of a memtable: small, so that much is flushed and compacted.
    pub memtable_bytes: usize,
    /// Least and most microseconds of a disk's sync.
    pub disk_micros: (u64, u64),
    /// Reads of a thousand that wait for the disk.
    pub cold_reads: u64,
    /// Microseconds that a request may take.
    pub deadline_micros: u64,
    /// Microseconds that a version may be ahead of a node's wall clock.
    pub max_skew_micros: u64,
    /// Most microseconds that wall clocks are wrong by when nothing happens to them.
    pub skew_micros: u64,
    /// Microseconds between two ticks of the wall clocks: with coarse ones versions meet.
    pub clock_micros: u64,
    /// Longest time between two changes of the layout, in microseconds; 0 = there are none.
    pub change_micros: u64,
    /// Changes of a thousand that move keys; the others are of the council alone.
    pub moves: u64,
    /// Of changes that move keys, how many of a thousand are of nodes that join, leave or are lost.
    pub members: u64,
    /// How many nodes may join in the course of the run.
    pub joiners: usize,
    /// Changes of a thousand that end in going back, of those that come while keys move and reads
    /// have not switched; the others come to nothing.
    pub aborts: u64,
    /// Changes of a thousand that make or revoke a token, whether keys move or not.
    pub tokens: u64,
    /// Ticks of a node of a thousand before which it drops one of its background tasks.
    pub task_drops: u64,
    /// Rounds of repair.
    pub rounds: RoundConfig,
    /// Whether nodes begin as members, so that none asks all others what it holds.
    pub founded: bool,
    /// Whether each node keeps a connection to each other one, as nodes do. Where thousands are
    /// simulated those would be all that there is.
    pub keeps_links: bool,
    pub(crate) speed: Speed,
    /// Whether every line of the journal is printed.
    pub log: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
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
            faults: Self::some_faults(&mut random),
            fault_micros: random.spread(200_000, 10_000_000),
            sync,
            memtable_bytes: 128 << 10,
            disk_micros: (50, random.spread(100, 10_000)),
            cold_reads: *random.pick(&[0, 20, 500]),
            deadline_micros: 1_000_000,
            max_skew_micros: 500_000,
            skew_micros: *random.pick(&[0, 1_000, 100_000, 240_000]),
            clock_micros: *random.pick(&[1, 1, 1_000, 16_000]),
            // Drawn apart, so that the rest of a seed's run stays what it was.
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
            rounds: Self::some_rounds(&mut random),
            log: false,
        }
    }

    /// Mostly they follow each other at once.
    fn some_rounds(random: &mut Random) -> RoundConfig {
        let full_interval_micros = *random.pick(&[0, 0, u64::MAX]);
        let settled_micros = *random.pick(&[0, 3_000_000]);
        let share = *random.pick(&[10, 100]);
        let interval_micros = *random.pick(&[100_000, 100_000, 3_000_000, 0]);
        RoundConfig { interval_micros, full_interval_micros, share, settled_micros }
    }

    /// If that is wanted, the layout changes every few seconds at least, and keys move.
    pub fn has_moves(&mut self, wanted: bool) {
        if wanted && self.change_micros == 0 {
            self.change_micros = MOVES_MICROS;
        }
        if wanted && self.moves == 0 {
            self.moves = 1000;
        }
    }

    /// Whether nodes join and leave.
    pub(crate) fn changes_members(&self) -> bool {
        self.change_micros > 0 && self.moves > 0 && self.members > 0
    }

    /// Ids that may be given to nodes: each once.
    pub(crate) fn ids(&self) -> usize {
        self.nodes + if self.changes_members() { self.joiners } else { 0 }
    }

    /// Nodes that there are at any time at least, so that a request may name as many.
    pub(crate) fn least_nodes(&self) -> usize {
        if self.changes_members() { self.nodes.min(3) } else { self.nodes }
    }

    /// Whether no process ends and no clock goes wrong.
    pub(crate) fn forgets_nothing(&self) -> bool {
        self.faults.iter().all(|fault| fault.forgets_nothing())
    }

    fn some_faults(random: &mut Random) -> Vec<Fault> {
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
