//! Machines and processes: starting, stopping, dying.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cluster::{
    Clock, Config, Coordinator, Logs, Node, NodeConfig, NodeId, Shared, Standing, Vouching,
    origin_of,
};
use lsm::{Error, MemDisk, SyncMode};

use super::machine::{Loop, Process};
use super::node::{BOUND_KEY, Beginning, Newborn, Recovered, State, number_batch};
use super::ranges::Walks;
use super::{Due, Machine, Place, World};
use crate::ledger::Told;
use crate::plan::Plan;
use crate::records::{BRIEF_BYTES, codec};
use crate::store::{Asker, Store};
use crate::wall::true_wall;

/// Most microseconds between two looks at the clock's bound and the background work.
const KEEP_MICROS: u64 = 80_000;

/// Microseconds between two attempts to start a process.
const AGAIN_MICROS: u64 = 500_000;

/// Longest wait for the wall clock at a start, in microseconds.
const LONGEST_WAIT: u64 = 2_500_000;

/// Microseconds by which a start can put a clock ahead: what the bound is ahead of it at most.
const START_AHEAD: u64 = 2_000_000;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGTERM: all is written, synced, said goodbye.
    Clean,
    /// SIGKILL: what was written stays written.
    Kill,
    /// The machine loses its power with it.
    PowerCut,
}

impl World {
    pub(super) fn start(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.process.is_some() || machine.opened.is_some() {
            return;
        }
        machine.dark = false;
        let opened = Self::open(machine, &self.plan).and_then(|store| {
            if self.starts_ahead(node, &store)? {
                return Ok(None);
            }
            let machine = &self.machines[node];
            let (sequence, newest) = (store.core().sequence(), store.core().greatest_time());
            let found = Recovered { sequence, newest };
            let clock = Self::start_clock(machine, &store, self.now)?;
            let born = (machine.wall.wall(self.now) + self.plan.max_skew_micros) << 12;
            let standing = if self.plan.founded { Standing::Member } else { Standing::New };
            let new = Newborn { incarnation: self.random.number(), standing, born };
            let time = clock.now(machine.wall.wall(self.now));
            let beginning = Beginning { found, time, copied: machine.copied };
            let state = State::load(&store, &self.topology, node, self.now, &new, beginning)?;
            self.machines[node].copied = false;
            Ok(Some((store, clock, state)))
        });
        let machine = &mut self.machines[node];
        match opened {
            Ok(None) => {}
            Ok(Some((store, clock, state))) => {
                machine.lives += 1;
                let life = machine.lives;
                self.journal.line(self.now, format_args!("n{node} starts life {life}: {state:?}"));
                // Its clock begins at its bound: others would refuse its stamps until then.
                let wall = machine.wall.wall(self.now);
                let ahead = (clock.now(wall) >> 12).saturating_sub(wall);
                let wait = ahead.saturating_sub(self.plan.max_skew_micros / 2).min(LONGEST_WAIT);
                machine.opened = Some(Box::new((store, clock, state)));
                self.agenda.put(self.now + wait, Due::Serve { node, life });
            }
            Err(error) => {
                let mended = !machine.disk_is_bad;
                self.journal.line(self.now, format_args!("n{node} does not start: {error}"));
                if mended && !error.is_no_space() {
                    let what = format!("node {node} does not start on a good disk: {error}");
                    self.ledger.accuse(self.now, what);
                }
                self.agenda.put(self.now + AGAIN_MICROS, Due::Start(node));
            }
        }
    }

    fn open(machine: &Machine, plan: &Plan) -> Result<Store, Error> {
        Store::open(&machine.disk, u64::from(origin_of(&machine.name)) + 1, plan)
    }

    /// A clock that begins above all that earlier lives have issued.
    fn start_clock(machine: &Machine, store: &Store, now: u64) -> Result<Clock, Error> {
        let origin = origin_of(&machine.name);
        let persisted = store.number(BOUND_KEY)?.unwrap_or(0);
        let wall = machine.wall.wall(now);
        let clock = Clock::start(origin, wall, persisted);
        if let Some(bound) = clock.bound_wanted(wall) {
            store.core().commit(std::iter::once(&number_batch(now, &[(BOUND_KEY, bound)])))?;
            clock.persisted(bound, 0);
        }
        Ok(clock)
    }

    /// A process that has recovered opens its port.
    pub(super) fn serve(&mut self, node: usize, life: u32) {
        let machine = &mut self.machines[node];
        let Some(opened) = machine.opened.take_if(|_| machine.lives == life) else { return };
        let (store, clock, state) = *opened;
        let newest = store.core().greatest_time();
        let started = (machine.wall.wall(self.now) + self.plan.max_skew_micros) << 12;
        let alone = self.plan.nodes == 1;
        let vouching = Vouching::new(state.standing, state.born.max(started), alone);
        let (own, clock) = (NodeId(node as u16), Arc::new(clock));
        let known = (0..).map(NodeId).zip(&state.known);
        let claims: Vec<_> = known.filter_map(|(node, claim)| Some((node, (*claim)?))).collect();
        let logs = Logs::new(state.incarnation, state.lineage.clone(), &claims);
        let topology = self.topology.clone();
        let shared = Shared::new(topology, own, clock, vouching, newest, Arc::new(logs));
        for (node, bytes) in state.missed.iter().enumerate() {
            if let Some(bytes) = bytes {
                let found = shared.missed.found(NodeId(node as u16), bytes);
                found.expect("what was kept is whole");
            }
        }
        self.run_process(node, life, store, Arc::new(shared), state);
    }

    fn run_process(
        &mut self,
        node: usize,
        life: u32,
        store: Store,
        shared: Arc<Shared>,
        state: State,
    ) {
        for (peer, hints, bytes) in &state.hints {
            shared.hints.found(*peer, *hints, *bytes);
        }
        let config = Config {
            deadline_micros: self.plan.deadline_micros,
            max_skew_micros: self.plan.max_skew_micros,
            brief_bytes: BRIEF_BYTES,
            codec: codec(),
        };
        let node_config = NodeConfig { max_skew_micros: config.max_skew_micros };
        let loops = (0..self.plan.loops).map(|_| Loop {
            coordinator: Coordinator::new(Arc::clone(&shared), config),
            inbox: VecDeque::new(),
            turn_is_due: false,
            wake_at: None,
            lanes: BTreeMap::new(),
        });
        let loops = loops.collect();
        self.machines[node].process = Some(Process {
            life,
            shared: Arc::clone(&shared),
            store,
            loops,
            taken: BTreeMap::new(),
            walks: Walks::default(),
            node: Node::new(Arc::clone(&shared), node_config),
            bound_asked_at: None,
            synced_at: self.now,
        });
        self.agenda.put(self.now + 1_000, Due::Keep { node, life });
        self.agenda.put(self.now + 1_000, Due::Tick { node, life });
        // Whoever still talks to an earlier life is told that it is over.
        for (connection, end, at) in self.network.reset(self.now, node) {
            self.agenda.put(at, Due::Deliver { connection, end });
        }
    }

    /// Ends a node's process, if there is one.
    pub(super) fn end_process(&mut self, node: usize, how: End) {
        let machine = &mut self.machines[node];
        machine.paused = false;
        machine.stopping = false;
        machine.held.clear();
        machine.dark |= how == End::PowerCut;
        let opened = machine.opened.take();
        let Some(process) = machine.process.take() else {
            if let Some((store, ..)) = opened.map(|opened| *opened) {
                self.lose_store(node, store, how);
            }
            return;
        };
        self.journal.line(self.now, format_args!("n{node} ends: {how:?}"));
        let taken = process.taken.keys().map(|client| client.0);
        for number in taken.chain(process.walks.numbers()) {
            let at = self.now + self.random.between(50, 500);
            self.agenda.put(at, Due::Told { number, told: Told::Nothing });
        }
        for (connection, end) in self.network.of_process(node, process.life) {
            let told = how != End::PowerCut;
            if let Some(at) = self.network.close(self.now, connection, end, told) {
                self.agenda.put(at, Due::Deliver { connection, end: 1 - end });
            }
        }
        if how == End::Clean {
            let batch = number_batch(self.now, &[(BOUND_KEY, process.shared.clock.stop())]);
            // If that fails, the old bound is as safe.
            let _ = process.store.core().commit(std::iter::once(&batch));
        }
        self.lose_store(node, process.store, how);
    }

    fn lose_store(&mut self, node: usize, store: Store, how: End) {
        let machine = &mut self.machines[node];
        let disk = machine.disk.clone();
        match how {
            End::Clean => store.close(),
            End::Kill | End::PowerCut => store.die(&disk, &mut self.random),
        }
        machine.disk = match how {
            End::Clean | End::Kill => disk.process_crash(),
            End::PowerCut => disk.crash(self.random.number()),
        };
    }

    /// A machine is replaced by one with an empty disk and a right clock while its node is down.
    pub(super) fn wipe(&mut self, node: usize) {
        self.machines[node].wall.set(self.now, 0);
        self.machines[node].most_ahead = 0;
        self.exchange_disk(node, MemDisk::new());
    }

    /// A machine gets another disk while its node is down.
    pub(super) fn exchange_disk(&mut self, node: usize, disk: MemDisk) {
        disk.clear_faults();
        disk.set_capacity(None);
        let machine = &mut self.machines[node];
        assert!(machine.process.is_none(), "a disk is replaced while nobody uses it");
        machine.disk = disk;
        machine.copied = false;
        (machine.disk_is_bad, machine.rotten) = (false, false);
        self.forget_hints(node);
        let machine = &self.machines[node];
        self.ledger.wiped((machine.wall.wall(self.now) + self.plan.max_skew_micros) << 12);
    }

    pub(super) fn pause(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.process.is_some() {
            machine.paused = true;
            machine.pauses += 1;
        }
    }

    pub(super) fn resume(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if std::mem::take(&mut machine.paused) {
            for due in std::mem::take(&mut machine.held) {
                self.agenda.put(self.now + 1, due);
            }
        }
    }

    /// What the embedder's background threads do, a step at a time.
    pub(super) fn keep(&mut self, node: usize, life: u32) {
        let place = Place { node, life, index: 0 };
        let wall = self.times(node).wall;
        let (now, sync) = (self.now, self.plan.sync);
        self.clock_is_its_own(node);
        let Some(process) = self.process(place) else { return };
        let worked = process.store.work();
        if let SyncMode::Interval(every) = sync
            && u128::from(now - process.synced_at) >= every.as_micros()
        {
            process.store.sync();
            process.synced_at = now;
        }
        let wanted = process.shared.clock.bound_wanted(wall);
        if let Some(bound) = wanted.filter(|_| process.bound_asked_at.is_none()) {
            process.bound_asked_at = Some(now);
            let batch = number_batch(now, &[(BOUND_KEY, bound)]);
            self.submit(node, life, Asker::Clock(bound), batch);
        }
        let pause = if worked { 20_000 } else { KEEP_MICROS };
        let at = self.now + self.random.between(pause / 10, pause);
        self.agenda.put(at, Due::Keep { node, life });
    }

    /// Others can't carry a node's clock further ahead of its own wall clock than the skew allowed;
    /// only its own past can, by its bound, at each start.
    fn clock_is_its_own(&mut self, node: usize) {
        let (now, skew) = (self.now, self.plan.max_skew_micros);
        let machine = &mut self.machines[node];
        machine.most_ahead = machine.most_ahead.max(machine.wall.offset(now));
        let starts = u64::from(machine.lives) * START_AHEAD;
        let most = true_wall(now) + skew + starts + KEEP_MICROS;
        let most = most.saturating_add_signed(machine.most_ahead);
        let Some(process) = &machine.process else { return };
        let clock = process.shared.clock.now(0) >> 12;
        if clock > most {
            let what =
                format!("carried away: the clock of node {node} is {} us ahead", clock - most);
            self.ledger.accuse(now, what);
        }
    }

    pub(super) fn bound_written(&mut self, place: Place, bound: u64, durable: bool) {
        let now = self.now;
        let Some(process) = self.process(place) else { return };
        let Some(asked) = process.bound_asked_at.take() else { return };
        if durable {
            process.shared.clock.persisted(bound, now - asked);
        }
    }
}
