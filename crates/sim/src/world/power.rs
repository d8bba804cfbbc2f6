//! Starts, stops and crashes of machines and processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use lsm::{Error, MemDisk, SyncMode};
use protocol::handshake::Secrets;
use protocol::{
    BackgroundConfig, ClusterId, Config, Incarnation, MembershipState, Shared, handshake, origin_of,
};
use server::link::{LinkBounds, PING_MICROS, PeerTable, Pings, Redialer};
use server::{PageWork, Pages, StartError, StartedNode, StartingNode, Task};

use super::endpoint::Memory;
use super::life::LifeFile;
use super::machine::{Loop, Process, Role};
use super::ranges::RangeReads;
use super::{DueEvent, LoopId, World};
use crate::ledger::ClientOutcome;
use crate::machine_clock::true_wall_time;
use crate::records::BRIEF_BYTES;
use crate::store::{BatchOwner, Store};

/// Maximum number of microseconds between two checks of the clock's bound and of the background
/// work.
const BACKGROUND_MICROS: u64 = 80_000;

/// Microseconds between two attempts to start a process.
const RETRY_DELAY_MICROS: u64 = 500_000;

/// Work per page: little, so that a few keys take several pages.
const PAGE_WORK: PageWork = PageWork { records: 128, bytes: 16 << 10 };

/// Bytes of writes, per loop, that may wait for space in the store.
const WAITING_BYTES: usize = 1 << 20;

/// Maximum number of microseconds by which each start can put a clock ahead: the greatest lead of
/// the clock's durable bound.
const START_AHEAD: u64 = 2_000_000;

/// The way in which a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// SIGTERM: all writes are written and synced, and peers receive a goodbye.
    Clean,
    /// SIGKILL: writes that have reached the operating system survive.
    Kill,
    /// The machine loses power too: unsynced writes are lost.
    PowerCut,
}

impl World {
    pub(super) fn start(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.process.is_some() || machine.opened.is_some() || !machine.may_start() {
            return;
        }
        machine.has_no_power = false;
        match self.open(node) {
            Ok(None) => {}
            Ok(Some((store, starting))) => {
                let machine = &mut self.machines[node];
                machine.lives += 1;
                let life = machine.lives;
                let line = format_args!("n{node} starts life {life}: {:?}", starting.identity());
                self.journal.line(self.now, line);
                // The node's hybrid clock begins at its durable bound. Until the wall clock reaches
                // the bound, other nodes would refuse the node's versions.
                let wait = starting.wait_for_wall(machine.wall.wall(self.now));
                machine.opened = Some(Box::new((store, starting)));
                self.agenda.put(self.now + wait, DueEvent::Serve { node, life });
            }
            Err(error) => self.retry_start(node, &error),
        }
    }

    /// Recovers the store and the node's state. Returns `None` if the process must not start yet,
    /// because its clock is ahead or it has not joined.
    fn open(&mut self, node: usize) -> Result<Option<(Store, StartingNode)>, StartError> {
        let machine = &self.machines[node];
        let store_id = u64::from(origin_of(&machine.name)) + 1;
        let store = Store::open(&machine.disk, store_id, &self.plan);
        let store = store.map_err(|source| StartError::Store { what: "the store", source })?;
        if machine.role == Role::Joined && !self.join_at_start(node, store.engine())? {
            self.end_store(node, store, ProcessEnd::PowerCut);
            return Ok(None);
        }
        let settings = self.settings(node);
        let named = settings.node_settings();
        let machine = &self.machines[node];
        let state =
            if self.plan.founded { MembershipState::Member } else { MembershipState::Joining };
        let (incarnation, wall) = (Incarnation(self.random.number()), machine.wall.wall(self.now));
        let skew = self.plan.max_skew_micros;
        match StartingNode::open(store.engine(), named, incarnation, state, wall, skew) {
            Ok(starting) => Ok(Some((store, starting))),
            Err(StartError::Ahead { .. }) => self.handle_refused_start(node, &store).map(|()| None),
            Err(error) => Err(error),
        }
    }

    fn retry_start(&mut self, node: usize, error: &StartError) {
        let mended = !self.machines[node].disk_is_bad;
        self.journal.line(self.now, format_args!("n{node} does not start: {error}"));
        if mended && !error.is_no_space() {
            let what = format!("node {node} does not start on a good disk: {error}");
            self.ledger.report_error(self.now, what);
        }
        self.agenda.put(self.now + RETRY_DELAY_MICROS, DueEvent::Start(node));
    }

    /// Lets a recovered process serve requests.
    pub(super) fn serve(&mut self, node: usize, life: u32) {
        let machine = &mut self.machines[node];
        let Some(opened) = machine.opened.take_if(|_| machine.lives == life) else { return };
        let (store, starting) = *opened;
        let (wall, number) = (machine.wall.wall(self.now), self.random.number());
        let (settings, life_file) = (self.settings(node), &self.machines[node].life_file);
        let named = settings.node_settings();
        let begun = starting.begin(store.engine(), life_file, named, wall, number);
        match begun {
            Ok(started) => self.run_process(node, life, store, started),
            Err(error) => self.retry_start(node, &error),
        }
    }

    fn run_process(&mut self, node: usize, life: u32, store: Store, started: StartedNode) {
        let StartedNode { shared, identity, clock } = started;
        self.check_cluster_id(node, shared.membership.cluster.id());
        let greatest_boot = &mut self.machines[node].greatest_boot;
        *greatest_boot = (*greatest_boot).max(Some(shared.membership.logs.life()));
        let config = Config {
            deadline_micros: self.plan.deadline_micros,
            max_skew_micros: self.plan.max_skew_micros,
            brief_bytes: BRIEF_BYTES,
        };
        let node_config = BackgroundConfig {
            deadline_micros: config.deadline_micros,
            syncs_always: self.plan.sync == SyncMode::Always,
            max_skew_micros: config.max_skew_micros,
            rounds: self.plan.rounds,
            stream_rate: None,
            remembered: server::decode_entry,
        };
        let mut redialer = Redialer::default();
        redialer.begin();
        let own = || {
            let (shared, identity) = (Arc::clone(&shared), Arc::clone(&identity));
            server::Loop::new(shared, identity, config, WAITING_BYTES)
        };
        let loops = (0..self.plan.loops).map(|_| Loop {
            own: Some(Box::new(own())),
            inbox: VecDeque::new(),
            fetching: BTreeSet::new(),
            turn_is_due: false,
            wake_at: None,
            links: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            dirty: BTreeSet::new(),
            pings: Pings::default(),
            redialer: std::mem::take(&mut redialer),
        });
        let loops: Vec<_> = loops.collect();
        for index in 0..loops.len() {
            let at = self.now + self.random.between(1, PING_MICROS);
            self.agenda.put(at, DueEvent::Ping(LoopId { node, life, index }));
        }
        let table = Arc::new(self.peer_table(&shared));
        let task = Task::new(Arc::clone(&shared), identity, node_config);
        self.machines[node].process = Some(Process {
            life,
            shared,
            table,
            memory: Memory::default(),
            store,
            loops,
            accepted: BTreeMap::new(),
            range_reads: RangeReads::default(),
            pages: Pages::new(self.plan.page_bytes, PAGE_WORK),
            task: Some(Box::new(task)),
            clock,
            bound_submitted_at: None,
            synced_at: self.now,
        });
        self.check_layout(node);
        self.agenda.put(self.now + 1_000, DueEvent::BackgroundWork { node, life });
        self.agenda.put(self.now + 1_000, DueEvent::Tick { node, life });
        // Connections to an earlier boot get a reset.
        for (connection, end, at) in self.network.reset(self.now, node) {
            self.agenda.put(at, DueEvent::Deliver { connection, end });
        }
    }

    /// Checks that a node's disk belongs to the same cluster as before, and as all other disks.
    pub(super) fn check_cluster_id(&mut self, node: usize, id: Option<ClusterId>) {
        let before = std::mem::replace(&mut self.machines[node].cluster, id);
        let all = self.nodes.iter().map(|other| self.machines[*other].cluster);
        let differs = before.into_iter().chain(all.flatten()).find(|other| Some(*other) != id);
        if let Some(other) = differs.filter(|_| id.is_some() || before.is_some()) {
            let what = format!("two clusters: node {node} belongs to {id:?}, another to {other}");
            self.ledger.report_error(self.now, what);
        }
    }

    /// Creates the peer table of a process, with its identity.
    fn peer_table(&self, shared: &Arc<Shared>) -> PeerTable {
        let layouts = Arc::clone(&shared.membership.layouts);
        let known =
            (Arc::clone(&shared.membership.logs), Arc::clone(&shared.repair.proofs), layouts);
        let views = Arc::clone(&shared.membership.views);
        let identity = handshake::HandshakeIdentity::new(
            views,
            shared.own,
            Arc::clone(&shared.membership.cluster),
            Arc::new(Secrets::default()),
            known,
        );
        let queue_bytes = self.plan.speed.buffer;
        // Allows a quarter of a full buffer for each connection of the plan.
        let (loops, others) = (self.plan.loops, (self.plan.nodes - 1).max(1));
        let bounds = LinkBounds { encoded_bytes: queue_bytes * loops * others, loops, queue_bytes };
        let skew = self.plan.max_skew_micros;
        PeerTable::new(Arc::clone(shared), Arc::new(identity), skew, bounds)
    }

    /// Ends a node's process, if there is one.
    pub(super) fn end_process(&mut self, node: usize, how: ProcessEnd) {
        let machine = &mut self.machines[node];
        machine.paused = false;
        machine.stopping = false;
        machine.held.clear();
        machine.has_no_power |= how == ProcessEnd::PowerCut;
        let opened = machine.opened.take();
        let Some(process) = machine.process.take() else {
            if let Some((store, ..)) = opened.map(|opened| *opened) {
                self.end_store(node, store, how);
            }
            return;
        };
        self.journal.line(self.now, format_args!("n{node} ends: {how:?}"));
        let accepted = process.accepted.keys().map(|client| client.0);
        for number in accepted.chain(process.range_reads.numbers()) {
            let at = self.now + self.random.between(50, 500);
            self.agenda
                .put(at, DueEvent::ClientOutcome { number, outcome: ClientOutcome::Nothing });
        }
        for (connection, end) in self.network.connections_of_process(node, process.life) {
            let is_noticed = how != ProcessEnd::PowerCut;
            if let Some(at) = self.network.close(self.now, connection, end, is_noticed) {
                self.agenda.put(at, DueEvent::Deliver { connection, end: 1 - end });
            }
        }
        if how == ProcessEnd::Clean {
            let batch = process.clock.stop();
            // If the commit fails, the old bound stays in force. It is safe too.
            let _ = process.store.engine().commit(std::iter::once(&batch));
        }
        self.end_store(node, process.store, how);
    }

    fn end_store(&mut self, node: usize, store: Store, how: ProcessEnd) {
        let machine = &mut self.machines[node];
        let disk = machine.disk.clone();
        match how {
            ProcessEnd::Clean => store.close(),
            ProcessEnd::Kill | ProcessEnd::PowerCut => store.crash(&disk, &mut self.random),
        }
        machine.disk = match how {
            ProcessEnd::Clean | ProcessEnd::Kill => disk.process_crash(),
            ProcessEnd::PowerCut => disk.crash(self.random.number()),
        };
    }

    /// Gives a machine an empty disk and a correct clock. Its process must be down.
    pub(super) fn wipe(&mut self, node: usize) {
        self.set_wall(node, 0);
        self.machines[node].max_lead_micros = 0;
        self.exchange_disk(node, MemDisk::new());
    }

    /// Replaces the disk of a machine. Its process must be down.
    pub(super) fn exchange_disk(&mut self, node: usize, disk: MemDisk) {
        disk.clear_faults();
        disk.set_capacity(None);
        let machine = &mut self.machines[node];
        assert!(machine.process.is_none(), "a disk is replaced while nobody uses it");
        machine.disk = disk;
        machine.life_file = LifeFile::default();
        (machine.disk_is_bad, machine.disk_is_corrupt) = (false, false);
        (machine.epoch, machine.voter, machine.cluster) = (0, None, None);
        machine.greatest_boot = None;
        self.forget_hints(node);
        let machine = &self.machines[node];
        let lost_before = (machine.wall.wall(self.now) + self.plan.max_skew_micros) << 12;
        self.ledger.record_disk_loss(self.now, origin_of(&machine.name), lost_before);
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

    /// Does one step of the work that background threads do in production.
    pub(super) fn run_background_step(&mut self, node: usize, life: u32) {
        let place = LoopId { node, life, index: 0 };
        let times = self.times(node);
        let (now, sync) = (self.now, self.plan.sync);
        self.check_clock_lead(node);
        let Some(process) = self.process(place) else { return };
        let worked = process.store.work();
        if let SyncMode::Interval(every) = sync
            && u128::from(now - process.synced_at) >= every.as_micros()
        {
            process.store.sync();
            process.synced_at = now;
        }
        if process.bound_submitted_at.is_none()
            && let Some((bound, batch)) = process.clock.next_bound(times)
        {
            process.bound_submitted_at = Some(now);
            self.submit(place, BatchOwner::Clock(bound), batch);
        }
        let pause = if worked { 20_000 } else { BACKGROUND_MICROS };
        let at = self.now + self.random.between(pause / 10, pause);
        self.agenda.put(at, DueEvent::BackgroundWork { node, life });
    }

    /// Checks that versions of other nodes have not put a node's hybrid clock ahead of its wall
    /// clock by more than the allowed skew. Only the node's durable bound may put the hybrid clock
    /// further ahead, once at each start.
    fn check_clock_lead(&mut self, node: usize) {
        let (now, skew) = (self.now, self.plan.max_skew_micros);
        let machine = &mut self.machines[node];
        machine.max_lead_micros = machine.max_lead_micros.max(machine.wall.offset(now));
        let starts = u64::from(machine.lives) * START_AHEAD;
        let most = true_wall_time(now) + skew + starts + BACKGROUND_MICROS;
        let most = most.saturating_add_signed(machine.max_lead_micros);
        let Some(process) = &machine.process else { return };
        let clock = process.shared.clock.last() >> 12;
        if clock > most {
            let what =
                format!("carried away: the clock of node {node} is {} us ahead", clock - most);
            self.ledger.report_error(now, what);
        }
    }

    pub(super) fn on_bound_written(
        &mut self,
        place: LoopId,
        bound: u64,
        result: Result<(), Error>,
    ) {
        let now = self.now;
        let Some(process) = self.process(place) else { return };
        let Some(asked) = process.bound_submitted_at.take() else { return };
        process.clock.on_bound_stored(bound, now - asked, result);
    }
}
