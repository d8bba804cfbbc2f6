//! A whole cluster with its machines, network, clients and faults, in one thread.
//!
//! ```text
//!            agenda: the next event, in true time
//!               │
//!   clients ────┼──▶ machines ─ loops ─ Protocol ────┐      turn.rs   a loop's turn
//!   nemesis ────┤        └──── store ◀───────────────┤      links.rs, wire.rs   connections
//!   network ────┘◀───────────────────────────────────┘      power.rs  start, stop, crash
//!   ledger ◀── the clients' answers      clients.rs, nemesis.rs, final_checks.rs
//! ```

mod clients;
mod contenders;
mod endpoint;
mod expiry;
mod final_checks;
mod growth;
mod journal_lines;
mod layouts;
mod life;
mod links;
mod machine;
mod members;
mod nemesis;
mod node;
mod power;
mod proofs;
mod ranges;
mod repair_clock;
mod turn;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::layout::Layout;
use protocol::{CallId, CompareRequest, Damage, Demand, Member, OpId, PageRequest, Rank, Topology};
use server::link::Attempt;
use server::{HintQuery, StoreRead, TaskEvent};

use crate::Report;
use crate::event_queue::EventQueue;
use crate::journal::Journal;
use crate::ledger::{ClientOutcome, Ledger};
use crate::network::Network;
use crate::plan::Plan;
use crate::random::Random;
use clients::Client;
use machine::{Input, Machine, Process};
use nemesis::Remedy;

/// An event loop of a node, in one boot of the node's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopId {
    pub(crate) node: usize,
    pub(crate) life: u32,
    pub(crate) index: usize,
}

/// A scheduled event.
#[derive(Debug)]
pub(crate) enum DueEvent {
    /// A loop handles its inbox.
    Turn(LoopId),
    /// A loop's timer expires.
    Wake(LoopId),
    /// The store's group is synced.
    Commit {
        node: usize,
        life: u32,
    },
    /// The disk has finished a read that a loop waits for.
    Read {
        place: LoopId,
        op: OpId,
        wanted: StoreRead,
        demand: Demand,
    },
    /// A pool thread has read a page of a range.
    Page {
        place: LoopId,
        op: OpId,
        request: PageRequest,
        demand: Demand,
    },
    Compare {
        place: LoopId,
        op: OpId,
        request: CompareRequest,
        demand: Demand,
    },
    Discard {
        place: LoopId,
        op: OpId,
        ranges: Vec<Damage>,
    },
    /// A node's task receives an event.
    Node {
        node: usize,
        life: u32,
        event: TaskEvent,
    },
    /// A node's task receives a tick.
    Tick {
        node: usize,
        life: u32,
    },
    /// A layout change is requested.
    Change,
    /// Waiting nodes ask to join.
    JoinRequests,
    /// A removed node is switched off.
    SwitchOff(usize),
    /// A node has found out that its directory is an older copy.
    Outdated {
        node: usize,
        life: u32,
    },
    /// The disk has read hints.
    Hints {
        node: usize,
        life: u32,
        wanted: HintQuery,
    },
    /// A range read repeats its call to a busy node.
    Busy {
        place: LoopId,
        call: CallId,
    },
    /// The store's background work and the clock's bound are due for a check.
    BackgroundWork {
        node: usize,
        life: u32,
    },
    /// An attempt to connect ends.
    Dialed {
        place: LoopId,
        peer: usize,
        attempt: Attempt,
        reachable: bool,
    },
    /// Bytes arrive at an end of a connection, or the connection has space for more bytes.
    Deliver {
        connection: u64,
        end: usize,
    },
    /// A loop's pings are due.
    Ping(LoopId),
    /// A client sends its next request.
    Client(usize),
    /// A client's request arrives.
    RequestArrives {
        number: u64,
        place: LoopId,
    },
    /// A client receives its answer, or gives up.
    ClientOutcome {
        number: u64,
        outcome: ClientOutcome,
    },
    /// The next fault begins.
    Nemesis,
    /// A fault ends.
    Remedy(Remedy),
    /// A machine starts its process.
    Start(usize),
    /// A machine's process begins to serve.
    Serve {
        node: usize,
        life: u32,
    },
}

/// The simulated world: the machines of all nodes, the network between them, the clients, the
/// faults, and the ledger.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    agenda: EventQueue<DueEvent>,
    random: Random,
    pub(crate) journal: Journal,
    /// Machines by the id of the node.
    machines: Vec<Machine>,
    /// Nodes whose process may be started, sorted by id.
    nodes: Vec<usize>,
    /// Nodes that ask to join. `asked` counts all nodes that have asked so far.
    askers: Vec<members::AskingNode>,
    asked: usize,
    network: Network,
    clients: Vec<Client>,
    pub(crate) ledger: Ledger,
    /// Outcomes of the requests of the final checks.
    answers: BTreeMap<u64, ClientOutcome>,
    /// Topology in the nodes' initial settings.
    first: Topology,
    /// Topology by which nodes read under the latest layout in use on any node.
    topology: Topology,
    /// Identity of the placement in the latest layout in use on any node.
    placement: u64,
    /// Rank of the newest stored hint, by target, storing node and key. The key is a copy, because
    /// a slice of a long request would keep the memory of the request reserved.
    owed: BTreeMap<(usize, usize, Vec<u8>), Rank>,
    /// Faults in progress, and the node that last lost its disk.
    nemesis: nemesis::Nemesis,
    /// Time of the last comparison of all stored records with a repair proof.
    proof_checked_at: u64,
    /// The layout of each epoch in use on any node.
    layouts: BTreeMap<u64, Arc<Layout>>,
    /// Layouts proposed after the last of `layouts`. Any of these layouts may be decided already,
    /// although no node uses it yet.
    wanted: Vec<Arc<Layout>>,
    /// Generator for layout changes.
    changes: Random,
    /// Generator that draws which background tasks are dropped, and when.
    drops: Random,
    /// True times at which a wall clock was set, each with the time that the clock showed just
    /// before or just after. All are in microseconds.
    clock_changes: Vec<(u64, u64)>,
    /// True while clients send requests.
    clients_run: bool,
    pub(crate) faults: u64,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut random = Random::new(plan.seed ^ 0x5eed);
        let network = Network::new(plan.max_node_ids(), plan.speed, random.fork());
        let mut machines: Vec<_> =
            (0..plan.nodes).map(|n| Machine::new(n, &plan, &mut random)).collect();
        let members = machines.iter().map(|machine: &Machine| Member {
            name: machine.name.clone(),
            zone: String::new(),
            weight: 1,
        });
        let topology = Topology::new(members.collect(), plan.replicas);
        let topology = topology.expect("the names of the machines are in order");
        let mut apart = Random::new(plan.seed ^ 0x70_1ae5);
        let vacant = plan.nodes..plan.max_node_ids();
        machines.extend(vacant.map(|n| Machine::new_vacant(n, &plan, &mut apart)));
        let mut clients: Vec<_> =
            (0..plan.clients).map(|n| Client::new(n, random.fork())).collect();
        let nemesis = nemesis::Nemesis::new(random.fork());
        let contenders = plan.clients..plan.clients + plan.contenders;
        clients.extend(contenders.map(|n| Client::contender(n, random.fork())));
        let mut world = Self {
            now: 1_000_000,
            agenda: EventQueue::new(),
            journal: Journal::new(plan.log),
            machines,
            nodes: (0..plan.nodes).collect(),
            askers: Vec::new(),
            asked: 0,
            network,
            clients,
            ledger: Ledger::new(topology.default_copies()),
            answers: BTreeMap::new(),
            first: topology.clone(),
            placement: topology.digest(),
            topology,
            owed: BTreeMap::new(),
            nemesis,
            proof_checked_at: 0,
            layouts: BTreeMap::new(),
            wanted: Vec::new(),
            changes: Random::new(plan.seed ^ 0xc0_4c11),
            drops: Random::new(plan.seed ^ 0xd70_7a5c),
            clock_changes: Vec::new(),
            clients_run: true,
            faults: 0,
            random,
            plan,
        };
        world.ledger.histories.lag_ms = world.plan.max_skew_micros.div_ceil(1000);
        for node in 0..world.plan.nodes {
            let at = world.now + world.random.between(0, 100_000);
            world.agenda.put(at, DueEvent::Start(node));
        }
        for client in 0..world.clients.len() {
            let at = world.now + 100_000 + world.random.between(0, world.plan.think_micros);
            world.agenda.put(at, DueEvent::Client(client));
        }
        if world.plan.change_micros > 0 {
            world.agenda.put(world.now + world.plan.change_micros, DueEvent::Change);
        }
        if !world.plan.faults.is_empty() {
            world.agenda.put(world.now + 500_000, DueEvent::Nemesis);
        }
        world
    }

    /// Runs until true time `until`, or until the first error.
    pub(crate) fn run_until(&mut self, until: u64) {
        while self.ledger.wrong.is_empty() {
            let Some((at, due)) = self.agenda.next() else { break };
            if at > until {
                self.agenda.put(at, due);
                break;
            }
            assert!(at >= self.now, "time goes forward");
            self.now = at;
            self.dispatch(due);
        }
        self.now = self.now.max(until);
    }

    fn dispatch(&mut self, due: DueEvent) {
        let Some(due) = self.hold_while_paused(due) else { return };
        match due {
            DueEvent::Turn(place) => self.turn(place),
            DueEvent::Wake(place) => self.wake(place),
            DueEvent::Commit { node, life } => self.commit(node, life),
            DueEvent::Read { place, op, wanted, demand } => {
                self.was_read(place, op, wanted, demand);
            }
            DueEvent::Page { place, op, request, demand } => {
                self.finish_page_read(place, op, &request, demand);
            }
            DueEvent::Compare { place, op, request, demand } => {
                self.finish_comparison(place, op, &request, demand);
            }
            DueEvent::Discard { place, op, ranges } => self.finish_discard(place, op, &ranges),
            DueEvent::Node { node, life, event } => self.handle_task_event(node, life, event),
            DueEvent::Tick { node, life } => self.tick(node, life),
            DueEvent::Outdated { node, life } => self.replace_outdated_disk(node, life),
            DueEvent::Hints { node, life, wanted } => self.finish_hint_read(node, life, wanted),
            DueEvent::Busy { place, call } => self.retry_busy_call(place, call),
            DueEvent::BackgroundWork { node, life } => self.run_background_step(node, life),
            DueEvent::Dialed { place, peer, attempt, reachable } => {
                self.on_dial_result(place, peer, attempt, reachable);
            }
            DueEvent::Deliver { connection, end } => self.deliver(connection, end),
            DueEvent::Ping(place) => self.ping(place),
            DueEvent::Client(client) => self.send_next_request(client),
            DueEvent::RequestArrives { number, place } => self.on_client_request(number, place),
            DueEvent::ClientOutcome { number, outcome } => self.finish_request(number, &outcome),
            DueEvent::Change => self.change_layout(),
            DueEvent::JoinRequests => self.request_joins(),
            DueEvent::SwitchOff(node) => self.switch_off(node),
            DueEvent::Nemesis => self.next_fault(),
            DueEvent::Remedy(remedy) => self.remedy(remedy),
            DueEvent::Start(node) => self.start(node),
            DueEvent::Serve { node, life } => self.serve(node, life),
        }
    }

    pub(crate) fn report(&self) -> Report {
        Report {
            wrong: self.ledger.wrong.clone(),
            tally: self.ledger.tally,
            contended: self.ledger.histories.tally,
            faults: self.faults,
            changes: self.layouts.len().saturating_sub(1) as u64,
            moves: self.completed_moves(),
            joined: self.joined_count() as u64,
            left: self.left_count() as u64,
            micros: self.now,
            events: self.journal.lines(),
            hash: self.journal.hash(),
            messages: self.network.messages,
        }
    }

    /// Returns the event, or `None` if its process is paused: the event is then held back until the
    /// process continues.
    fn hold_while_paused(&mut self, due: DueEvent) -> Option<DueEvent> {
        let node = match &due {
            DueEvent::Turn(place) | DueEvent::Wake(place) | DueEvent::Ping(place) => place.node,
            DueEvent::Read { place, .. }
            | DueEvent::Page { place, .. }
            | DueEvent::Compare { place, .. }
            | DueEvent::Discard { place, .. }
            | DueEvent::Busy { place, .. }
            | DueEvent::Dialed { place, .. } => place.node,
            DueEvent::Commit { node, .. }
            | DueEvent::BackgroundWork { node, .. }
            | DueEvent::Node { node, .. }
            | DueEvent::Tick { node, .. }
            | DueEvent::Outdated { node, .. }
            | DueEvent::Hints { node, .. } => *node,
            _ => return Some(due),
        };
        let machine = &mut self.machines[node];
        if machine.paused {
            machine.held.push(due);
            return None;
        }
        Some(due)
    }

    /// Returns the process of a loop, or `None` if that boot of the process has ended.
    fn process(&mut self, place: LoopId) -> Option<&mut Process> {
        self.machines[place.node].process.as_mut().filter(|process| process.life == place.life)
    }

    /// Adds an input to a loop's inbox, and schedules the loop's turn. Has no effect if the loop's
    /// process has ended.
    fn input(&mut self, place: LoopId, input: Input) {
        let delay = self.random.between(1, 60);
        let at = self.now + delay;
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        own.inbox.push_back(input);
        if !own.turn_is_due {
            own.turn_is_due = true;
            self.agenda.put(at, DueEvent::Turn(place));
        }
    }
}
