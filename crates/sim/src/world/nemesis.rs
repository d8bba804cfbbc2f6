//! Fault injection: begins faults, and ends them.

use lsm::disk::{Fault as DiskFault, Op};
use lsm::{Disk, MemDisk, SyncMode};

use super::life::LifeFile;
use super::power::ProcessEnd;
use super::{DueEvent, LoopId, World};
use crate::plan::Fault;
use crate::random::Random;

/// Maximum jump of a wall clock, in microseconds.
const JUMP_MICROS: u64 = 300_000_000;

/// A day, in microseconds.
pub(super) const DAY_MICROS: i64 = 86_400_000_000;

/// The end of a fault, or the next step of a fault.
#[derive(Debug)]
pub(crate) enum Remedy {
    /// A paused process continues.
    Resume(usize),
    /// The blocked paths are open again.
    Unblock(Vec<(usize, usize)>),
    /// A flapping partition begins or ends again. `left` is the number of remaining steps.
    Flap { paths: Vec<(usize, usize)>, left: u32, blocked: bool, period: u64 },
    /// Packet loss and packet delay end.
    Undisturb(usize),
    /// The disk has space again.
    DiskFree(usize),
    /// The disk is as fast as before.
    DiskFast(usize),
    /// The operator replaces the controller of the failing disk and restarts the process.
    DiskMended(usize),
    /// A stopping process ends, because the time for its last requests is over.
    Stop { node: usize, roll: bool },
    /// A corrupt disk is replaced.
    Replace(usize),
    /// An earlier copy of a disk is restored.
    RollBack(usize, MemDisk, LifeFile),
    /// The next node of a rolling restart stops.
    Roll(usize),
    /// A clock that was off by days is set right, and its node restarted.
    ClockRight(usize),
}

/// State of the fault injection.
pub(super) struct Nemesis {
    random: Random,
    /// True time after which no fault begins.
    pub(super) until: u64,
    /// True during a rolling restart.
    rolling: bool,
    /// The node that lost its disk last.
    last_lost_disk: Option<usize>,
    /// The node whose clock is off by days.
    off: Option<usize>,
}

impl Nemesis {
    pub(super) fn new(random: Random) -> Self {
        Self { random, until: u64::MAX, rolling: false, last_lost_disk: None, off: None }
    }
}

impl World {
    pub(super) fn next_fault(&mut self) {
        if self.now >= self.nemesis.until {
            return;
        }
        let fault = *self.nemesis.random.pick(&self.plan.faults);
        let node = *self.nemesis.random.pick(&self.nodes);
        self.journal.line(self.now, format_args!("fault {fault:?} n{node}"));
        self.faults += 1;
        self.begin_fault(fault, node);
        let pause = self.nemesis.random.between(10_000, self.plan.fault_micros);
        self.agenda.put(self.now + pause, DueEvent::Nemesis);
    }

    /// Draws the duration of a fault, in microseconds.
    fn fault_duration(&mut self) -> u64 {
        self.nemesis.random.spread(10_000, 20_000_000)
    }

    fn schedule_remedy(&mut self, delay: u64, remedy: Remedy) {
        self.agenda.put(self.now + delay, DueEvent::Remedy(remedy));
    }

    fn begin_fault(&mut self, fault: Fault, node: usize) {
        match fault {
            Fault::Kill => self.crash(node, ProcessEnd::Kill),
            Fault::PowerCut => self.crash(node, self.power_cut_or_kill()),
            Fault::PowerCutAll => {
                let all = self.nemesis.random.permille(500);
                for node in self.nodes.clone() {
                    if all || self.nemesis.random.permille(500) {
                        self.crash(node, self.power_cut_or_kill());
                    }
                }
            }
            Fault::Wipe => {
                if self.may_lose_disk(node) {
                    self.replace_disk(node);
                }
            }
            Fault::Rollback => {
                let machine = &self.machines[node];
                let copy = (machine.disk.deep_clone(), machine.life_file.clone());
                let duration = self.fault_duration();
                self.schedule_remedy(duration, Remedy::RollBack(node, copy.0, copy.1));
            }
            Fault::Rot => self.corrupt_disk(node),
            Fault::DiskError => self.break_disk(node),
            Fault::DiskFull => {
                let room = self.nemesis.random.spread(1, 200_000);
                let machine = &mut self.machines[node];
                machine.disk_is_bad = true;
                machine.disk.set_capacity(Some(machine.disk.used_bytes() + room));
                let duration = self.fault_duration();
                self.schedule_remedy(duration, Remedy::DiskFree(node));
            }
            Fault::SlowDisk => {
                self.machines[node].disk_delay_micros = self.nemesis.random.spread(10_000, 500_000);
                let duration = self.fault_duration();
                self.schedule_remedy(duration, Remedy::DiskFast(node));
            }
            Fault::Pause => {
                self.pause(node);
                let duration = self.nemesis.random.spread(10_000, 60_000_000);
                self.schedule_remedy(duration, Remedy::Resume(node));
            }
            Fault::Partition | Fault::OneWay | Fault::Bridge | Fault::Flapping => {
                self.partition(fault, node);
            }
            Fault::Loss | Fault::SlowLink => {
                let loss = if fault == Fault::Loss { 300 } else { 0 };
                let slow = self.nemesis.random.spread(1_000, 400_000);
                self.network.disturb(node, loss, if loss == 0 { slow } else { 0 });
                let duration = self.fault_duration();
                self.schedule_remedy(duration, Remedy::Undisturb(node));
            }
            Fault::Break => self.break_connections(node),
            Fault::ClockJump => self.set_clock(node),
            Fault::ClockOverRestart => {
                self.crash(node, ProcessEnd::Kill);
                self.set_clock(node);
            }
            Fault::ClockByDays => self.set_clock_off_by_days(node),
            Fault::RollingRestart => {
                if !std::mem::replace(&mut self.nemesis.rolling, true) {
                    self.stop_cleanly(self.nodes[0], true);
                }
            }
        }
    }

    /// Returns a power cut if every write is synced before it is acknowledged, otherwise a kill.
    fn power_cut_or_kill(&self) -> ProcessEnd {
        if self.plan.sync == SyncMode::Always { ProcessEnd::PowerCut } else { ProcessEnd::Kill }
    }

    fn crash(&mut self, node: usize, how: ProcessEnd) {
        self.end_process(node, how);
        let downtime = self.nemesis.random.spread(50_000, 20_000_000);
        self.agenda.put(self.now + downtime, DueEvent::Start(node));
    }

    /// Returns true if a node may lose its disk: the disk lost last, if any, belonged to another
    /// node and is rebuilt or no longer needed, and the cluster can decide without the node.
    pub(super) fn may_lose_disk(&self, node: usize) -> bool {
        if self.nemesis.off.is_some() || self.needs_vote_of(node) {
            return false;
        }
        if self.plan.changes_members() && !self.may_be_destroyed(node) {
            return false;
        }
        let other = self.nemesis.last_lost_disk;
        if self.machines.len() > 1 && !self.is_founded_without(node) {
            return false;
        }
        let well = |other: usize| {
            let is_whole = !self.machines[other].disk_is_corrupt && self.is_member(other);
            is_whole || self.has_data_elsewhere(other)
        };
        other.is_none_or(|other| other != node && well(other))
    }

    /// Returns true if another running node knows the cluster's id. Without the id, a node with a
    /// new disk and a peer of the old disk may take each other for members of different clusters,
    /// once both have received data from a third node. An operator must then resolve the conflict:
    /// docs/operate/cluster.md, *Two clusters stay apart*.
    fn is_founded_without(&self, node: usize) -> bool {
        let others = self.machines.iter().enumerate().filter(|(other, _)| *other != node);
        let mut up = others.filter_map(|(_, machine)| machine.process.as_ref());
        up.any(|process| process.shared.membership.cluster.id().is_some())
    }

    fn replace_disk(&mut self, node: usize) {
        self.nemesis.last_lost_disk = Some(node);
        self.crash(node, ProcessEnd::Kill);
        self.wipe(node);
    }

    /// Replaces the disk of a node whose directory turned out to be an older copy, as an operator
    /// would.
    pub(super) fn replace_outdated_disk(&mut self, node: usize, life: u32) {
        if self.process(LoopId { node, life, index: 0 }).is_some() {
            self.replace_disk(node);
        }
    }

    /// Flips one bit of one table. The disk counts as lost from then on.
    fn corrupt_disk(&mut self, node: usize) {
        let disk = self.machines[node].disk.clone();
        let mut tables = disk.list().unwrap_or_default();
        tables.retain(|name| name.ends_with(".sst"));
        tables.sort();
        if tables.is_empty() || !self.may_lose_disk(node) {
            return;
        }
        let table = self.nemesis.random.pick(&tables).clone();
        let bits = disk.file(&table).map_or(0, |bytes| bytes.len() as u64 * 8);
        disk.flip_bit(&table, self.nemesis.random.below(bits.max(1)));
        self.nemesis.last_lost_disk = Some(node);
        self.machines[node].disk_is_bad = true;
        self.machines[node].disk_is_corrupt = true;
        let duration = self.fault_duration();
        self.schedule_remedy(duration, Remedy::Replace(node));
    }

    fn break_disk(&mut self, node: usize) {
        let random = &mut self.nemesis.random;
        const EIO: i32 = 5;
        let (op, suffix) = *random.pick(&[
            (Op::Sync, ".wal"),
            (Op::Write, ".wal"),
            (Op::Sync, ".sst"),
            (Op::Write, ".sst"),
            (Op::Read, ".sst"),
            (Op::Create, ""),
            (Op::SyncDir, ""),
        ]);
        let fault = DiskFault::once(op, EIO).suffix(suffix).after(random.below(20));
        self.machines[node].disk.fail(fault);
        self.machines[node].disk_is_bad = true;
        let duration = self.fault_duration().max(1_000_000);
        self.schedule_remedy(duration, Remedy::DiskMended(node));
    }

    /// Returns the paths that a partition blocks.
    fn paths_to_block(&mut self, fault: Fault, node: usize) -> Vec<(usize, usize)> {
        let nodes = self.machines.len();
        let random = &mut self.nemesis.random;
        let others: Vec<usize> = (0..nodes).filter(|other| *other != node).collect();
        if fault == Fault::OneWay {
            let deaf = random.permille(500);
            let one = |other: usize| if deaf { (other, node) } else { (node, other) };
            let some = random.permille(500);
            return others.into_iter().filter(|o| !some || o % 2 == 0).map(one).collect();
        }
        // Every node is on one of two sides. A bridge node, if any, reaches both sides.
        let sides: Vec<bool> = (0..nodes).map(|_| random.permille(500)).collect();
        let bridge = (fault == Fault::Bridge).then_some(node);
        let alone = fault == Fault::Partition && random.permille(500);
        let apart = |a: usize, b: usize| {
            if alone { (a == node) != (b == node) } else { sides[a] != sides[b] }
        };
        let pairs = (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b)));
        let on_bridge = |end: usize| Some(end) == bridge;
        pairs.filter(|(a, b)| a != b && apart(*a, *b) && !on_bridge(*a) && !on_bridge(*b)).collect()
    }

    fn partition(&mut self, fault: Fault, node: usize) {
        let paths = self.paths_to_block(fault, node);
        self.journal.line(self.now, format_args!("blocked: {paths:?}"));
        self.set_blocked(&paths, true);
        if fault == Fault::Flapping {
            let period = self.nemesis.random.spread(20_000, 3_000_000);
            let left = self.nemesis.random.between(2, 20) as u32;
            self.schedule_remedy(period, Remedy::Flap { paths, left, blocked: true, period });
        } else {
            let duration = self.fault_duration();
            self.schedule_remedy(duration, Remedy::Unblock(paths));
        }
    }

    fn set_blocked(&mut self, paths: &[(usize, usize)], begins: bool) {
        for (from, to) in paths {
            self.network.set_blocked(*from, *to, begins);
        }
        if !begins {
            self.resend_all();
        }
    }

    fn break_connections(&mut self, node: usize) {
        let Some(life) = self.machines[node].process.as_ref().map(|process| process.life) else {
            return;
        };
        for (connection, end) in self.network.connections_of_process(node, life) {
            if end == 0 && self.nemesis.random.permille(500) {
                let place = self.network.get(connection).expect("just listed").ends[0];
                let (life, index) = (place.life, place.index);
                let place = super::LoopId { node, life, index };
                self.input(place, super::Input::Lost(connection));
            }
        }
    }

    fn set_clock(&mut self, node: usize) {
        let random = &mut self.nemesis.random;
        let far = *random.pick(&[100_000, 400_000, 2_000_000, JUMP_MICROS]);
        let offset = random.between(0, 2 * far) as i64 - far as i64;
        self.journal.line(self.now, format_args!("n{node} is {offset} us off"));
        let machine = &mut self.machines[node];
        machine.max_lead_micros = machine.max_lead_micros.max(offset);
        self.set_wall(node, offset);
    }

    /// Sets a clock off by days. Later the node's writes with the wrong clock are removed from its
    /// store. The removal counts as a lost disk.
    fn set_clock_off_by_days(&mut self, node: usize) {
        if !self.may_lose_disk(node) {
            return;
        }
        (self.nemesis.last_lost_disk, self.nemesis.off) = (Some(node), Some(node));
        let random = &mut self.nemesis.random;
        let days = random.between(1, 3) as i64 * if random.permille(700) { 1 } else { -1 };
        let from_its_start = random.permille(500);
        let duration = random.spread(500_000, 10_000_000);
        if from_its_start {
            self.crash(node, ProcessEnd::Kill);
        }
        self.journal.line(self.now, format_args!("n{node} is {days} days off"));
        let machine = &mut self.machines[node];
        machine.max_lead_micros = machine.max_lead_micros.max(days * DAY_MICROS);
        self.set_wall(node, days * DAY_MICROS);
        self.schedule_remedy(duration, Remedy::ClockRight(node));
    }

    pub(super) fn is_off_by_days(&self, node: usize) -> bool {
        self.nemesis.off == Some(node)
    }

    fn set_clock_right(&mut self, node: usize) {
        self.nemesis.off = None;
        self.end_process(node, ProcessEnd::Kill);
        self.set_wall(node, 0);
        self.agenda.put(self.now + 100_000, DueEvent::Start(node));
    }

    /// Returns true if other nodes hold the records that a node may lose when its clock is
    /// repaired.
    pub(super) fn may_be_repaired(&self, node: usize) -> bool {
        self.nemesis.last_lost_disk == Some(node) || self.may_lose_disk(node)
    }

    pub(super) fn record_lost_disk(&mut self, node: usize) {
        self.nemesis.last_lost_disk = Some(node);
    }

    /// Asks a process to stop. The process has a second to finish its requests, and is restarted
    /// later.
    fn stop_cleanly(&mut self, node: usize, roll: bool) {
        self.machines[node].stopping = true;
        self.say_goodbye(node);
        self.schedule_remedy(1_200_000, Remedy::Stop { node, roll });
    }

    pub(super) fn remedy(&mut self, remedy: Remedy) {
        if self.now >= self.nemesis.until {
            return;
        }
        self.journal.line(self.now, format_args!("remedy {remedy:?}"));
        match remedy {
            Remedy::Resume(node) => self.resume(node),
            Remedy::Unblock(paths) => self.set_blocked(&paths, false),
            Remedy::Flap { paths, left, blocked, period } => {
                self.set_blocked(&paths, !blocked);
                if left > 0 || !blocked {
                    let (left, blocked) = (left.saturating_sub(1), !blocked);
                    self.schedule_remedy(period, Remedy::Flap { paths, left, blocked, period });
                }
            }
            Remedy::Undisturb(node) => self.network.disturb(node, 0, 0),
            Remedy::DiskFree(node) => {
                self.machines[node].disk.set_capacity(None);
                let machine = &mut self.machines[node];
                machine.disk_is_bad = machine.disk_is_corrupt || machine.disk.pending_faults() > 0;
            }
            Remedy::DiskFast(node) => self.machines[node].disk_delay_micros = 0,
            Remedy::DiskMended(node) => {
                self.mend_disk(node);
                let how = if self.nemesis.random.permille(500) {
                    ProcessEnd::Kill
                } else {
                    ProcessEnd::Clean
                };
                self.end_process(node, how);
                self.agenda.put(self.now + 100_000, DueEvent::Start(node));
            }
            Remedy::Stop { node, roll } => {
                self.end_process(node, ProcessEnd::Clean);
                let downtime = self.nemesis.random.spread(100_000, 3_000_000);
                self.agenda.put(self.now + downtime, DueEvent::Start(node));
                let next = self.nodes.iter().copied().find(|next| *next > node);
                if let Some(next) = next.filter(|_| roll) {
                    let wait = downtime + self.nemesis.random.spread(500_000, 5_000_000);
                    self.schedule_remedy(wait, Remedy::Roll(next));
                } else if roll {
                    self.nemesis.rolling = false;
                }
            }
            Remedy::Replace(node) => {
                // The disk may have been replaced already, while another lost disk was being
                // rebuilt.
                if self.machines[node].may_start() && self.machines[node].disk_is_corrupt {
                    self.replace_disk(node);
                }
            }
            Remedy::RollBack(node, copy, life_file) => {
                let machine = &self.machines[node];
                let is_whole = machine.may_start() && !machine.disk_is_bad;
                if self.may_lose_disk(node) && is_whole {
                    self.nemesis.last_lost_disk = Some(node);
                    self.crash(node, ProcessEnd::Kill);
                    self.exchange_disk(node, copy);
                    life_file.copy();
                    self.machines[node].life_file = life_file;
                }
            }
            Remedy::Roll(node) => self.stop_cleanly(node, true),
            Remedy::ClockRight(node) => self.set_clock_right(node),
        }
    }

    fn mend_disk(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        machine.disk.clear_faults();
        machine.disk.set_capacity(None);
        machine.disk_is_bad = machine.disk_is_corrupt;
        machine.disk_delay_micros = 0;
    }

    /// Ends all faults and repairs their effects.
    pub(super) fn end_faults(&mut self) {
        self.nemesis.until = self.now;
        self.network.heal();
        self.resend_all();
        if let Some(node) = self.nemesis.off {
            self.set_clock_right(node);
        }
        for node in self.nodes.clone() {
            self.mend_disk(node);
            self.resume(node);
            if self.machines[node].disk_is_corrupt {
                self.end_process(node, ProcessEnd::Kill);
                self.wipe(node);
            }
            if self.machines[node].stopping {
                // Peers send no requests to a process that has said goodbye, so the process must
                // restart.
                self.end_process(node, ProcessEnd::Clean);
            }
            let skew = self.plan.skew_micros.min(MOST_HEALED_SKEW) as i64;
            let offset = self.machines[node].wall.offset(self.now).clamp(-skew, skew);
            self.set_wall(node, offset);
            let failed = |process: &super::Process| process.store.engine().check_health().is_err();
            if self.machines[node].process.as_ref().is_some_and(failed) {
                self.end_process(node, ProcessEnd::Kill);
            }
            self.agenda.put(self.now + 1_000, DueEvent::Start(node));
        }
    }
}

/// Maximum error of wall clocks after all faults have ended, in microseconds.
const MOST_HEALED_SKEW: u64 = 200_000;
