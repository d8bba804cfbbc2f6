//! Nodes that join, leave, and are lost. A joining node acts like `kvorum serve --join`: it repeats
//! its request to join, with identity numbers stored on its disk, until a layout includes it. Then
//! the node starts. A removed node keeps running until it is switched off, and never returns. A
//! node whose disk is lost for good is removed as dead.
//!
//! ```text
//!   asks ── a layout includes it ─▶ joined ── removed ─▶ leaves ── the new quorum knows ─▶ gone
//!                                     └── its disk is lost ─▶ lost ── removed as dead ──────┘
//! ```

use lsm::{Engine, MemDisk};
use protocol::layout::{Joiner, Layout, Node, PlanChange, Seat, Stage, VoterId};
use protocol::{Incarnation, Member, NodeId, Topology};
use server::StartError;
use server::identity::{Candidate, GrantedMembership, NodeSettings};

use super::machine::{Machine, Role};
use super::power::ProcessEnd;
use super::{DueEvent, World};
use crate::store::Store;

/// Interval between requests to join, in microseconds.
const ASK_MICROS: u64 = 1_000_000;

/// Longest time that a removed node keeps running, in microseconds.
const LEAVES_MICROS: u64 = 5_000_000;

/// Number of nodes at which no more nodes join.
const MOST_NODES: usize = 9;

/// Maximum number of nodes that join or leave at once.
const AT_ONCE: usize = 3;

/// Membership changes per thousand: those that also change the metadata quorum, those that also
/// change weights or copies, and those that follow the loss of a node.
const COUNCIL_PERMILLE: u64 = 300;
const MORE_PERMILLE: u64 = 400;
const AFTER_LOSS_PERMILLE: u64 = 250;

/// Joining nodes per thousand that are in a zone.
const IN_ZONES: u64 = 200;

/// Starts of joining nodes, per thousand, that a crash ends just after a layout includes the node.
const BREAK_OFF: u64 = 200;

/// A node that asks to join.
pub(super) struct AskingNode {
    pub(super) member: Member,
    pub(super) numbers: Candidate,
    disk: MemDisk,
}

/// Answer to a request to join.
enum JoinReply {
    Placed(NodeId, Layout),
    Waits,
    /// The joining node's clock is ahead, or a node of its name with another disk seems to be up.
    Refused,
}

/// Initial settings of a node.
pub(super) struct Settings {
    topology: Topology,
    own: NodeId,
    named: bool,
}

impl Settings {
    pub(super) fn node_settings(&self) -> NodeSettings<'_> {
        NodeSettings { topology: &self.topology, own: self.own, named: self.named, urls: &[] }
    }
}

impl World {
    /// Returns a node's settings. A joining node knows only itself.
    pub(super) fn settings(&self, node: usize) -> Settings {
        let Machine { role, name, .. } = &self.machines[node];
        if *role != Role::Joined {
            return Settings {
                topology: self.first.clone(),
                own: NodeId(node as u16),
                named: true,
            };
        }
        let member = Member { name: name.clone(), zone: String::new(), weight: 1 };
        let topology = Topology::new(vec![member], self.plan.replicas);
        let topology = topology.expect("it was named as nodes are");
        Settings { topology, own: NodeId(0), named: false }
    }

    /// Returns the members of the last layout in use on any node.
    pub(super) fn members(&self) -> Vec<usize> {
        let last = self.layouts.values().next_back();
        self.ids(last.map(|layout| layout.nodes.iter()))
    }

    /// Returns the members of the last layout in use on any node, and the nodes that the layout
    /// removes.
    pub(super) fn all_nodes(&self) -> Vec<usize> {
        let last = self.layouts.values().next_back();
        self.ids(last.map(|layout| layout.all()))
    }

    /// Returns the sorted ids of nodes of a layout. Returns the ids of all nodes if there is no
    /// layout yet (`None`).
    fn ids<'a>(&self, nodes: Option<impl Iterator<Item = &'a Node>>) -> Vec<usize> {
        let Some(nodes) = nodes else { return self.nodes.clone() };
        let mut ids: Vec<usize> = nodes.map(|node| usize::from(node.id.0)).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the numbers of nodes that joined and that left, from each settled layout to the next
    /// settled layout.
    fn joined_and_left_counts(&self) -> (usize, usize) {
        let settled: Vec<&Layout> = (self.layouts.values().map(AsRef::as_ref))
            .filter(|layout| layout.stage == Stage::Settled)
            .collect();
        let lacks = |one: &Layout, other: &Layout| {
            other.nodes.iter().filter(|node| one.member(node.id).is_none()).count()
        };
        let arrivals = settled.windows(2).map(|pair| lacks(pair[0], pair[1])).sum();
        let departures = settled.windows(2).map(|pair| lacks(pair[1], pair[0])).sum();
        (arrivals, departures)
    }

    pub(super) fn joined_count(&self) -> usize {
        self.joined_and_left_counts().0
    }

    pub(super) fn left_count(&self) -> usize {
        self.joined_and_left_counts().1
    }

    /// Returns true if a node of a layout does not run and will never run.
    pub(super) fn is_lost(&self, node: &Node) -> bool {
        let machine = &self.machines[usize::from(node.id.0)];
        let asks = || self.askers.iter().any(|asker| asker.member.name == node.member.name);
        match machine.role {
            Role::Listed | Role::Joined => false,
            Role::Lost | Role::Gone => true,
            Role::Vacant => !asks(),
        }
    }

    /// Returns true if a change waits for a node that will never answer.
    pub(super) fn waits_for_lost_node(&self, layout: &Layout) -> bool {
        let before = layout.before.iter().flat_map(|before| &before.nodes);
        let mut waited_for = layout.nodes.iter().chain(before.filter(|node| !node.is_lost));
        let waits = matches!(layout.stage, Stage::Prepare | Stage::ReadOld);
        waits && waited_for.any(|node| self.is_lost(node))
    }

    /// Returns true if a node is gone or leaving, so that other nodes hold the contents of its
    /// disk.
    pub(super) fn has_data_elsewhere(&self, node: usize) -> bool {
        let machine = &self.machines[node];
        machine.role == Role::Gone || machine.leaves
    }

    /// Returns true if a node may lose its disk for good, and be removed as dead: the metadata
    /// quorum of every layout that may follow can decide without the node, and other nodes can take
    /// the node's place.
    pub(super) fn may_be_destroyed(&self, node: usize) -> bool {
        let Some(last) = self.layouts.values().next_back() else { return false };
        let machine = |seat: &Seat| &self.machines[usize::from(seat.node.0)];
        let others = last.council.iter().filter(|seat| usize::from(seat.node.0) != node);
        let knowing = others.filter(|seat| machine(seat).epoch >= last.epoch).count();
        knowing > last.council.len() / 2
            && self.may_follow().all(|layout| self.has_majority_without(layout, node))
            && self.has_ids_for(last, Some(node))
    }

    fn ids_left(&self, layout: &Layout) -> usize {
        self.machines.len() - layout.next_id as usize
    }

    /// Returns true if enough ids are left to replace all missing nodes, where `without` counts as
    /// missing. The ids must suffice for this layout and for the one before, which a revert would
    /// restore.
    pub(super) fn has_ids_for(&self, layout: &Layout, without: Option<usize>) -> bool {
        let lack = |nodes: &[Node], replicas: u8| {
            let stay = nodes.iter().filter(|node| Some(usize::from(node.id.0)) != without);
            let stay = stay.filter(|node| !self.is_lost(node)).count();
            self.least_members(replicas).saturating_sub(stay)
        };
        let before =
            layout.before.as_ref().map_or(0, |before| lack(&before.nodes, before.replicas));
        lack(&layout.nodes, layout.replicas).max(before) <= self.ids_left(layout)
    }

    /// Returns the least number of nodes that the cluster must have with this number of replicas.
    fn least_members(&self, replicas: u8) -> usize {
        self.plan.least_nodes().max(usize::from(replicas))
    }

    /// Draws a change in which nodes join and leave, and lost nodes are removed. The change may
    /// also set other weights, another number of copies, or another metadata quorum.
    pub(super) fn draw_members_change(&mut self, known: &Layout) -> PlanChange {
        let more = self.changes.permille(MORE_PERMILLE);
        let mut change = if more { self.draw_moving_change(known) } else { PlanChange::default() };
        if !self.plan.forgets_nothing() && self.changes.permille(AFTER_LOSS_PERMILLE) {
            let node = usize::from(self.changes.pick(&known.nodes).id.0);
            if self.machines[node].may_start() && self.may_lose_disk(node) {
                self.destroy_machine(node);
            }
        }
        let leave = self.changes.index(AT_ONCE);
        let add = self.changes.index(AT_ONCE + 1);
        self.exchange_nodes(known, &mut change, leave, add);
        if self.changes.permille(COUNCIL_PERMILLE) {
            let gone = |name: &String| change.remove.contains(name);
            let lost = |name: &String| change.remove_lost.contains(name);
            let stay = known.nodes.iter().map(|node| node.member.name.clone());
            let stay = stay.filter(|name| !gone(name) && !lost(name));
            let come = change.add.iter().map(|joiner| joiner.member.name.clone());
            change.council = Some(self.draw_councillors(stay.chain(come).collect()));
        }
        change
    }

    /// Removes the lost nodes as dead, removes `leave` other nodes, and adds `add` nodes. `leave`
    /// and `add` are adjusted if too few or too many nodes would remain.
    fn exchange_nodes(
        &mut self,
        known: &Layout,
        change: &mut PlanChange,
        mut leave: usize,
        mut add: usize,
    ) {
        let (lost, stay): (Vec<_>, Vec<_>) =
            known.nodes.iter().partition(|node| self.is_lost(node));
        let name = |node: &&Node| node.member.name.clone();
        change.remove_lost = lost.iter().map(name).collect();
        let mut stay: Vec<String> = stay.iter().map(name).collect();
        let replicas = change.replicas.unwrap_or(known.replicas);
        let least = self.least_members(replicas);
        // Keeps the ids that a revert would need.
        let (ids, lack) = (self.ids_left(known), least.saturating_sub(stay.len()));
        let ids = ids.min(lack.max(ids.saturating_sub(lack)));
        let room = MOST_NODES.saturating_sub(stay.len()).min(ids);
        (leave, add) = (leave.min(stay.len()), add.min(room));
        while stay.len() + add < least + leave && (leave > 0 || add < room) {
            if leave > 0 {
                leave -= 1;
            } else {
                add += 1;
            }
        }
        if leave + add + lost.len() == 0 && room > 0 {
            add = 1;
        }
        for _ in 0..leave {
            let gone = self.changes.index(stay.len());
            change.remove.push(stay.swap_remove(gone));
        }
        let left = stay.len() + add;
        if left < usize::from(replicas) && left < known.nodes.len() {
            change.replicas = Some(left as u8);
        }
        change.add = self.joiners(add);
    }

    /// Returns `count` nodes that ask to join and were in no layout yet. If there are fewer such
    /// nodes, more nodes begin to ask. A node that was in a layout is left out, even if the layout
    /// was reverted, because the node may still be told that it has joined.
    pub(super) fn joiners(&mut self, count: usize) -> Vec<Joiner> {
        let layouts = &self.layouts;
        let is_new = |asker: &&AskingNode| {
            let mut all = layouts.values().flat_map(|layout| layout.all());
            all.all(|node| node.member != asker.member)
        };
        let joiner = |asker: &AskingNode| Joiner {
            member: asker.member.clone(),
            url: format!("http://{}", asker.member.name),
            disk: Some(asker.numbers.incarnation),
        };
        let mut joiners: Vec<Joiner> =
            self.askers.iter().filter(is_new).take(count).map(joiner).collect();
        while joiners.len() < count {
            if self.askers.is_empty() {
                self.agenda.put(self.now + ASK_MICROS, DueEvent::JoinRequests);
            }
            let asker = self.new_asker();
            joiners.push(joiner(&asker));
            self.askers.push(asker);
        }
        joiners
    }

    /// Creates a node with an empty disk that asks to join.
    fn new_asker(&mut self) -> AskingNode {
        self.asked += 1;
        let random = &mut self.changes;
        // The names sort before, between and after those of other nodes, independently of the ids.
        let name = format!("{}-{:04}", random.pick(&["a", "node", "z"]), 1000 + self.asked);
        let zone = if random.permille(IN_ZONES) { *random.pick(&["x", "y"]) } else { "" };
        let member = Member { name, zone: zone.to_owned(), weight: random.between(1, 4) as u32 };
        let (incarnation, voter) = (Incarnation(random.number()), VoterId(random.number()));
        let new = Candidate { incarnation, voter };
        let disk = MemDisk::new();
        let store = Store::open(&disk, self.asked as u64, &self.plan);
        let store = store.expect("nothing is wrong with an empty disk");
        let numbers = Candidate::of(store.engine(), new);
        let numbers = numbers.expect("nothing is wrong with it").expect("it is empty");
        drop(store);
        let disk = disk.crash(self.changes.number());
        AskingNode { member, numbers, disk }
    }

    /// Sends the requests of all nodes that wait to join, each to a random node.
    pub(super) fn request_joins(&mut self) {
        for asker in std::mem::take(&mut self.askers) {
            match self.request_join(&asker.member.name, asker.numbers, 0) {
                JoinReply::Placed(own, _) => self.start_joined_node(usize::from(own.0), asker),
                JoinReply::Waits | JoinReply::Refused => self.askers.push(asker),
            }
        }
        if !self.askers.is_empty() {
            self.agenda.put(self.now + ASK_MICROS, DueEvent::JoinRequests);
        }
    }

    /// Returns the answer of a random node to a request to join. `wall` is the time of the joining
    /// node's wall clock, in microseconds.
    fn request_join(&mut self, name: &str, numbers: Candidate, wall: u64) -> JoinReply {
        let node = *self.changes.pick(&self.nodes);
        let machine = &self.machines[node];
        let Some(process) = machine.process.as_ref().filter(|_| !machine.paused) else {
            return JoinReply::Waits;
        };
        if wall > machine.wall.wall(self.now) + self.plan.max_skew_micros {
            return JoinReply::Refused;
        }
        let layout = process.shared.membership.layouts.active_layout();
        let placed = layout.all().find(|node| node.member.name == name);
        let Some(id) = placed.map(|node| node.id) else { return JoinReply::Waits };
        let seen = process.table.incarnation(id);
        if seen.is_some_and(|seen| seen != numbers.incarnation) && process.table.is_up(id) {
            return JoinReply::Refused;
        }
        JoinReply::Placed(id, Layout::clone(&layout))
    }

    /// Turns a vacant machine into a node that a layout includes, and starts the node.
    fn start_joined_node(&mut self, node: usize, asker: AskingNode) {
        let machine = &mut self.machines[node];
        if machine.role != Role::Vacant {
            let what = format!("{} is given the id of {}: {node}", asker.member.name, machine.name);
            return self.ledger.report_error(self.now, what);
        }
        (machine.role, machine.name, machine.disk) = (Role::Joined, asker.member.name, asker.disk);
        self.journal.line(self.now, format_args!("n{node} is {}", machine.name));
        self.nodes.push(node);
        self.nodes.sort_unstable();
        self.agenda.put(self.now + 1_000, DueEvent::Start(node));
        if let Some(last) = self.layouts.values().next_back().cloned() {
            self.schedule_switch_offs(&last);
        }
    }

    /// Runs the start of a node that has joined or is about to join. Returns false if the node must
    /// start again later: it is not a member yet, or crashes at this point.
    pub(super) fn join_at_start(
        &mut self,
        node: usize,
        engine: &Engine,
    ) -> Result<bool, StartError> {
        let incarnation = Incarnation(self.changes.number());
        let voter = VoterId(self.changes.number());
        let Some(numbers) = Candidate::of(engine, Candidate { incarnation, voter })? else {
            return Ok(true);
        };
        let name = self.machines[node].name.clone();
        let (wall, skew) = (self.times(node).wall, self.plan.max_skew_micros);
        match self.request_join(&name, numbers, wall) {
            JoinReply::Placed(own, layout) => {
                let processes = self.nodes.iter().map(|node| self.machines[*node].process.as_ref());
                let cluster =
                    processes.flatten().find_map(|process| process.shared.membership.cluster.id());
                let placed = GrantedMembership { cluster, own, layout };
                numbers.become_member(engine, placed, wall, skew)?;
                if self.plan.faults.is_empty() || !self.changes.permille(BREAK_OFF) {
                    return Ok(true);
                }
            }
            // An operator sets the clock, or waits for the old connections to end, and then
            // restarts the node.
            JoinReply::Refused | JoinReply::Waits => {}
        }
        self.agenda.put(self.now + ASK_MICROS, DueEvent::Start(node));
        Ok(false)
    }

    /// Destroys a machine with its disk.
    fn destroy_machine(&mut self, node: usize) {
        self.faults += 1;
        self.record_lost_disk(node);
        self.end_process(node, ProcessEnd::Kill);
        self.exchange_disk(node, MemDisk::new());
        self.journal.line(self.now, format_args!("n{node} will not come back"));
        self.machines[node].role = Role::Lost;
        self.nodes.retain(|other| *other != node);
        if let Some(last) = self.layouts.values().next_back().cloned() {
            self.schedule_switch_offs(&last);
        }
    }

    /// Schedules the switch-off of the nodes that a layout, in force on some node, has removed.
    pub(super) fn schedule_switch_offs(&mut self, layout: &Layout) {
        for node in 0..self.machines.len() {
            let machine = &mut self.machines[node];
            if machine.leaves || !layout.is_retired(NodeId(node as u16)) {
                continue;
            }
            match machine.role {
                Role::Listed | Role::Joined => {
                    machine.leaves = true;
                    let at = self.now + self.changes.between(0, LEAVES_MICROS);
                    self.agenda.put(at, DueEvent::SwitchOff(node));
                }
                Role::Lost => machine.role = Role::Gone,
                Role::Vacant | Role::Gone => {}
            }
        }
    }

    /// Switches off a removed node once a majority of the new metadata quorum knows of the removal.
    /// Otherwise tries again later.
    pub(super) fn switch_off(&mut self, node: usize) {
        let Some(last) = self.layouts.values().next_back().cloned() else { return };
        let knows = |seat: &&Seat| {
            let machine = &self.machines[usize::from(seat.node.0)];
            machine.epoch >= last.epoch
        };
        if last.council.iter().filter(knows).count() <= last.council.len() / 2 {
            self.agenda.put(self.now + LEAVES_MICROS / 10, DueEvent::SwitchOff(node));
            return;
        }
        self.end_process(node, ProcessEnd::Kill);
        self.record_lost_future_writes(node);
        self.machines[node].role = Role::Gone;
        self.nodes.retain(|other| *other != node);
        self.forget_hints(node);
    }

    /// Proposes a layout where only an operator can end a change: reverts a change that waits for a
    /// lost node, or removes lost nodes as dead.
    pub(super) fn resolve_lost_nodes(&mut self) {
        let Some(last) = self.layouts.values().next_back().cloned() else { return };
        let has_lost = last.nodes.iter().any(|node| self.is_lost(node));
        if !has_lost && !self.waits_for_lost_node(&last) {
            return;
        }
        let node = *self.changes.pick(&self.nodes);
        let Some(process) = &self.machines[node].process else { return };
        let life = process.life;
        if process.shared.membership.layouts.known_layout().epoch != last.epoch {
            return;
        }
        let planned = if last.stage == Stage::Settled {
            let mut change = PlanChange::default();
            self.exchange_nodes(&last, &mut change, 0, 0);
            self.plan_change(node, &last, &change)
        } else {
            let back = self.voters_of(node).and_then(|voter_of| last.plan_abort(voter_of));
            back.filter(|_| self.waits_for_lost_node(&last))
        };
        if let Some(planned) = planned {
            self.propose(node, life, planned);
        }
    }

    /// Returns true if a node knows that it no longer belongs to the cluster, and therefore answers
    /// no request.
    pub(super) fn knows_that_it_was_removed(&self, node: usize) -> bool {
        let process = self.machines[node].process.as_ref();
        process.is_some_and(|process| {
            let layout = process.shared.membership.layouts.active_layout();
            layout.is_retired(process.shared.own)
        })
    }
}
