//! The model's world: a key of a partition that moves, the key's clients, and all possible actions.

use std::collections::BTreeSet;

use stateright::semantics::ConsistencyTester;
use stateright::{Model, Property};

use crate::client::{By, Client, Phase, Step};
use crate::layout::{Layout, Stage, suffice};
use crate::register::{History, Op, history};
use crate::replica::{Record, Replica, Reply};
use crate::rules::Rules;
use crate::worlds::{Fault, World};

/// The sender number of repair rounds. Clients have the numbers from 0.
const ROUND: u8 = 8;

/// The sender number of hints.
const HINTS: u8 = 16;

/// A request to a replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Write(Record),
    Prepare(u8),
    Accept(Record),
    Read,
    Repair(Record),
    Hint(Record),
    /// A repair round has proven that all replicas hold the same records up to this time.
    Commit(u8),
}

/// Sender, recipient, epoch of the request's layout, and the message.
type Sent = (u8, u8, u8, Message);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The decided layouts, by epoch.
    layouts: Vec<Layout>,
    replicas: Vec<Replica>,
    clients: Vec<Client>,
    /// Messages in transit, delivered in any order; a message that is never delivered is lost.
    sent: BTreeSet<Sent>,
    history: History,
    /// Receivers that have reported the end of their pulls, each with its transition.
    reported: BTreeSet<(u8, u8)>,
    /// Number of transitions begun so far.
    changes: usize,
    aborts: u8,
    faults: Vec<Fault>,
    /// The highest time issued.
    clock: u8,
    /// The newest record that was acknowledged to a client or returned by a read.
    kept: Option<Record>,
    /// The time of the last tombstone that a replica has purged; 0 = none.
    purged: u8,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// A client begins or retries its operation under the layout of an epoch.
    Begin(usize, u8),
    /// A node enters the last layout.
    Enter(u8),
    /// The next transition is decided.
    Change,
    /// The decision to read the new set.
    Switch,
    /// The decision to end the transition, which drops the old set.
    End,
    /// The decision to abort the transition.
    Abort,
    Take {
        from: u8,
        to: u8,
    },
    Deliver {
        asker: u8,
        to: u8,
        epoch: u8,
        message: Message,
    },
    /// A repair round under the layout of an epoch proves that all replicas hold one tombstone.
    Prove(u8),
    /// A node outside the replica sets drops its record.
    Drop(u8),
    Fail(Fault),
    Stream {
        from: u8,
        to: u8,
    },
}

impl State {
    fn last(&self) -> &Layout {
        self.layouts.last().expect("there is one")
    }

    fn last_epoch(&self) -> u8 {
        self.layouts.len() as u8 - 1
    }

    fn replica(&self, node: u8) -> &Replica {
        &self.replicas[usize::from(node)]
    }

    fn enter(&mut self, node: u8, epoch: u8, rules: &Rules) {
        let layout = &self.layouts[usize::from(epoch)];
        self.replicas[usize::from(node)].enter(node, layout, epoch, self.clock, rules);
    }

    fn send(&mut self, client: u8, message: &Message) {
        let epoch = self.clients[usize::from(client)].epoch;
        let all = self.layouts[usize::from(epoch)].all();
        self.sent.extend(all.into_iter().map(|to| (client, to, epoch, message.clone())));
    }

    /// Removes a client's requests that are no longer needed and change nothing except promises.
    fn withdraw(&mut self, client: u8) {
        let is_idle = |message: &Message| matches!(message, Message::Prepare(_) | Message::Read);
        self.sent.retain(|(asker, _, _, message)| *asker != client || !is_idle(message));
    }

    fn begin(&mut self, number: usize, epoch: u8) {
        let (client, n) = (&mut self.clients[number], number as u8);
        // Clients may see a write twice if it is reissued with a new version, so the history has
        // two writes.
        let is_another = client.is_another();
        let message = client.begin(epoch, &mut self.clock);
        if is_another {
            client.thread = n * 8 + client.tries;
            self.history.on_invoke(client.thread, client.op.clone()).expect("each is one");
        }
        self.withdraw(n);
        self.send(n, &message);
    }

    fn ask(&mut self, to: u8, (asker, epoch): (u8, u8), message: &Message, rules: &Rules) -> Reply {
        let own = self.replica(to).epoch;
        if asker != HINTS {
            // A repair round's proof under an earlier layout is still valid.
            if epoch < own && asker != ROUND && rules.earlier_is_refused {
                return Reply::Entered(own);
            }
            if epoch > own && rules.later_is_entered {
                self.enter(to, epoch, rules);
            }
        }
        let replica = &mut self.replicas[usize::from(to)];
        match message {
            Message::Write(record) => replica.write(record),
            Message::Prepare(ballot) => replica.prepare(*ballot, rules),
            Message::Accept(record) => replica.accept(record),
            Message::Read => replica.read(),
            Message::Repair(record) => replica.repair(record),
            Message::Hint(record) => {
                // A node that no longer holds the partition stores the hint too.
                replica.store_hint(record);
                Reply::Nothing
            }
            Message::Commit(watermark) => {
                replica.commit(*watermark);
                self.purged = self.purged.max(*watermark);
                Reply::Nothing
            }
        }
    }

    fn deliver(&mut self, (asker, to, epoch, message): Sent, world: &World) {
        self.sent.remove(&(asker, to, epoch, message.clone()));
        let mut bears = epoch;
        if asker < ROUND && !world.rules.requests_bear_their_layout {
            bears = self.last_epoch();
        }
        let reply = self.ask(to, (asker, bears), &message, &world.rules);
        let is_asked = asker < ROUND && self.clients[usize::from(asker)].epoch == epoch;
        if !is_asked {
            return;
        }
        let layout = self.layouts[usize::from(epoch)].clone();
        let by = By { layout: &layout, acks: world.acks, rules: &world.rules };
        let last_epoch = self.last_epoch();
        let client = &mut self.clients[usize::from(asker)];
        if let Some(again) = client.sends_again(&message, &reply, &world.rules) {
            client.epoch = last_epoch;
            return self.send(asker, &again);
        }
        match client.receive(to, &message, reply, &by) {
            Step::Wait => {}
            Step::Send(message) => self.send(asker, &message),
            Step::Answer(value, record) => {
                self.history.on_return(client.thread, value).expect("it was asked once");
                self.withdraw(asker);
                let rank = self.kept.as_ref().map(Record::rank);
                self.kept = record.filter(|new| Some(new.rank()) > rank).or(self.kept.take());
            }
        }
    }

    fn take(&mut self, from: u8, to: u8, rules: &Rules) {
        let layout = self.layouts[usize::from(self.replica(to).epoch)].clone();
        let source = self.replica(from).clone();
        let taker = &mut self.replicas[usize::from(to)];
        if taker.take(from, &source, &layout, rules) {
            self.reported.insert((to, layout.began));
        }
    }

    fn stream(&mut self, from: u8, to: u8) {
        let promise = self.replica(to).promise;
        let source = &mut self.replicas[usize::from(from)];
        source.promise = source.promise.max(promise);
        let source = source.clone();
        let others = self.sources_of(to).collect();
        self.replicas[usize::from(to)].stream(from, &source, &others);
    }

    /// Returns the nodes that stream to a node whose disk was lost.
    fn sources_of(&self, node: u8) -> impl Iterator<Item = u8> {
        let layout = &self.layouts[usize::from(self.replica(node).epoch)];
        let lost = layout.lost;
        layout.old.iter().copied().filter(move |other| *other != node && Some(*other) != lost)
    }

    fn prove(&mut self, epoch: u8) {
        let replicas = self.layouts[usize::from(epoch)].read_set();
        for node in replicas {
            let replica = &mut self.replicas[usize::from(*node)];
            let time = replica.record.as_ref().expect("all hold it").time;
            replica.seal = replica.seal.max(time);
            self.sent.insert((ROUND, *node, epoch, Message::Commit(time)));
        }
    }

    fn fail(&mut self, fault: Fault, rules: &Rules) {
        self.faults.retain(|left| *left != fault);
        match fault {
            Fault::Restart(node) => self.replicas[usize::from(node)].restart(),
            Fault::Wipe(node) => {
                let (layout, epoch) = (self.last().clone(), self.last_epoch());
                let replica = &mut self.replicas[usize::from(node)];
                replica.wipe(node, &layout, epoch, self.clock, rules);
                self.clients.iter_mut().for_each(|client| client.drop_reply(node));
            }
        }
    }
}

impl World {
    fn is_there(&self, node: u8) -> bool {
        self.absent != Some(node)
    }

    /// Adds the decisions that are possible now.
    fn decisions(&self, state: &State, actions: &mut Vec<Action>) {
        let (layout, rules) = (state.last(), &self.rules);
        let names =
            |report: &(u8, u8)| report.1 == layout.began || !rules.progress_names_transition;
        let has_all = |node: u8| state.reported.iter().any(|r| r.0 == node && names(r));
        let has_entered = |node: &&u8| state.replica(**node).epoch == state.last_epoch();
        let entered: BTreeSet<u8> = layout.old.iter().filter(has_entered).copied().collect();
        match layout.stage {
            Stage::Settled if state.changes < self.plan.len() => actions.push(Action::Change),
            Stage::Settled => {}
            Stage::ReadOld => {
                if layout.takers(rules).all(has_all) || !rules.switch_waits {
                    actions.push(Action::Switch);
                }
            }
            Stage::ReadNew => {
                if suffice(&entered, layout.old, None) || !rules.end_waits {
                    actions.push(Action::End);
                }
            }
        }
        let may_abort = match layout.stage {
            Stage::Settled => false,
            Stage::ReadOld => true,
            Stage::ReadNew => !rules.abort_before_switch,
        };
        if may_abort && state.aborts > 0 {
            actions.push(Action::Abort);
        }
    }

    fn decide(&self, state: &mut State, action: &Action) {
        let (last, next) = (state.last().clone(), state.layouts.len() as u8);
        let layout = match action {
            Action::Change => {
                let (new, lost) = self.plan[state.changes];
                state.changes += 1;
                Layout { stage: Stage::ReadOld, old: last.new, new, began: next, lost }
            }
            Action::Switch => Layout { stage: Stage::ReadNew, ..last },
            Action::End => Layout::new_settled(last.new, last.began),
            _ => {
                state.aborts -= 1;
                Layout::new_settled(last.old, next)
            }
        };
        state.layouts.push(layout);
    }

    /// Adds the pulls that are possible now.
    fn takes(&self, state: &State, actions: &mut Vec<Action>) {
        for (to, taker) in (0..).zip(&state.replicas) {
            let layout = &state.layouts[usize::from(taker.epoch)];
            let takes = layout.takers(&self.rules).any(|node| node == to);
            let is_due = layout.stage == Stage::ReadOld && takes;
            if !is_due || taker.has_taken_all(layout, &self.rules) || !self.is_there(to) {
                continue;
            }
            let sources = layout.old.iter().copied();
            for from in sources.filter(|from| *from != to && self.is_there(*from)) {
                let source = state.replica(from);
                let has_entered = source.epoch >= layout.began || !self.rules.sources_have_entered;
                let holds = |node: &&u8| state.replica(**node).record == source.record;
                let is_chosen = layout.old.iter().filter(holds).count() > layout.old.len() / 2;
                let is_plain = source.record.as_ref().is_none_or(|record| record.ballot == 0);
                let counts = is_plain
                    || is_chosen
                    || taker.has(source.record.as_ref())
                    || !self.rules.only_chosen_is_pulled;
                let is_lost = layout.lost == Some(from);
                let is_new = !taker.taken.contains(&from);
                if is_new && has_entered && counts && source.is_full && !is_lost {
                    actions.push(Action::Take { from, to });
                }
            }
        }
    }

    fn proofs(&self, state: &State, actions: &mut Vec<Action>) {
        for (epoch, layout) in (0..).zip(&state.layouts) {
            let tombstone = |node: u8| {
                let replica = state.replica(node);
                let bears = replica.epoch == epoch || !self.rules.proofs_bear_a_layout;
                let counts = replica.is_full && self.is_there(node) && bears;
                let record = replica.record.clone().filter(|record| record.is_tombstone());
                record.filter(|record| counts && record.time > replica.watermark)
            };
            let nodes = layout.read_set();
            let first = tombstone(nodes[0]);
            let is_all = first.is_some() && nodes.iter().all(|node| tombstone(*node) == first);
            let may_be = layout.stage == Stage::Settled || !self.rules.no_proof_meanwhile;
            let is_sent = state.sent.iter().any(|(asker, _, _, _)| *asker == ROUND);
            if is_all && may_be && !is_sent {
                actions.push(Action::Prove(epoch));
            }
        }
    }

    /// True if every client was answered, or refused on its last try, and all transitions have
    /// ended.
    fn has_ended(&self, state: &State) -> bool {
        let is_over = |(client, (_, tries)): (&Client, &(Op, u8))| {
            let is_tired = client.refused && client.tries == *tries;
            client.phase == Phase::Done || is_tired && !self.answers_all
        };
        let is_settled = state.last().stage == Stage::Settled && state.changes == self.plan.len();
        state.clients.iter().zip(&self.ops).all(is_over) && (is_settled || !self.ends)
    }
}

impl crate::search::Searched for World {}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let history = history(&self.before.done, &self.before.begun);
        let replica = |node: u8| {
            let record = self.before.records[usize::from(node)].clone();
            let promise = record.as_ref().map_or(0, |record| record.ballot);
            let (durable, is_full) = (record.clone(), self.first.contains(&node));
            Replica { record, durable, is_full, promise, ..Replica::default() }
        };
        let mut clients: Vec<Client> =
            self.ops.iter().map(|(op, _)| Client::new(op.clone())).collect();
        if let Some(first) = clients.first_mut() {
            first.skewed = self.skewed;
        }
        let hint = |(to, record): &(u8, Record)| (HINTS, *to, 0, Message::Hint(record.clone()));
        let state = State {
            layouts: vec![Layout::new_settled(self.first, 0)],
            replicas: (0..self.before.records.len() as u8).map(replica).collect(),
            clients,
            sent: self.before.hints.iter().map(hint).collect(),
            history,
            reported: BTreeSet::new(),
            changes: 0,
            aborts: self.aborts,
            faults: self.faults.clone(),
            clock: self.before.clock,
            kept: self.before.kept.clone(),
            purged: self.before.purged,
        };
        let next = |state: State, action: &Action| {
            self.next_state(&state, action.clone()).expect("it can happen")
        };
        vec![self.prelude.iter().fold(state, next)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, client) in state.clients.iter().enumerate() {
            let waits = client.phase == Phase::Ready || client.refused;
            if waits && client.phase != Phase::Done && client.tries < self.ops[n].1 {
                actions.extend((client.least..=state.last_epoch()).map(|e| Action::Begin(n, e)));
            }
        }
        self.decisions(state, actions);
        self.takes(state, actions);
        for (node, replica) in (0..).zip(&state.replicas) {
            if replica.epoch < state.last_epoch() && self.is_there(node) {
                actions.push(Action::Enter(node));
            }
            let is_outside = !state.layouts[usize::from(replica.epoch)].holds(node);
            if is_outside && replica.record.is_some() && self.proves {
                actions.push(Action::Drop(node));
            }
            let Some(by) = &replica.rebuilt_by else { continue };
            let left = state.sources_of(node).filter(|from| !by.contains(from));
            let left = left.filter(|from| state.replica(*from).is_full && self.is_there(*from));
            actions.extend(left.map(|from| Action::Stream { from, to: node }));
        }
        for (asker, to, epoch, message) in state.sent.iter().cloned() {
            if self.is_there(to) {
                actions.push(Action::Deliver { asker, to, epoch, message });
            }
        }
        if self.proves {
            self.proofs(state, actions);
        }
        let puts = state.clients.iter().any(|client| matches!(client.phase, Phase::Writing { .. }));
        let is_due = |fault: &Fault| !matches!(fault, Fault::Wipe(_)) || !puts;
        actions.extend(state.faults.iter().copied().filter(is_due).map(Action::Fail));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(n, epoch) => state.begin(n, epoch),
            Action::Enter(node) => state.enter(node, state.last_epoch(), &self.rules),
            Action::Take { from, to } => state.take(from, to, &self.rules),
            Action::Deliver { asker, to, epoch, message } => {
                state.deliver((asker, to, epoch, message), self);
            }
            Action::Drop(node) => {
                let replica = &mut state.replicas[usize::from(node)];
                (replica.record, replica.durable) = (None, None);
            }
            Action::Prove(epoch) => state.prove(epoch),
            Action::Fail(fault) => state.fail(fault, &self.rules),
            Action::Stream { from, to } => state.stream(from, to),
            Action::Change | Action::Switch | Action::End | Action::Abort => {
                self.decide(&mut state, &action);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LINEARIZABLE, |world: &World, state: &State| {
                !world.is_register || state.history.is_consistent()
            }),
            Property::always(KEPT, |world: &World, state: &State| state.is_kept(world)),
            Property::always(MEET, |world: &World, state: &State| state.quorums_meet(world)),
            Property::always(PURGED, |_, state: &State| !state.is_risen()),
            Property::always(ENDED, |world: &World, state: &State| {
                let mut next = Vec::new();
                world.has_ended(state) || {
                    world.actions(state, &mut next);
                    !next.is_empty()
                }
            }),
            Property::sometimes(CHANGED, |world: &World, state: &State| {
                let is_done = |client: &Client| client.phase == Phase::Done;
                state.clients.iter().all(is_done)
                    && World { ends: true, ..world.clone() }.has_ended(state)
            }),
        ]
    }
}

impl State {
    /// True if a node handles requests under a layout.
    fn serves(&self, node: u8, epoch: u8, world: &World) -> bool {
        let has_passed = self.replica(node).epoch > epoch && world.rules.earlier_is_refused;
        world.is_there(node) && !has_passed
    }

    /// Returns the nodes of a layout's read set that answer, and whose answers count.
    fn readers(&self, epoch: u8, world: &World) -> Vec<u8> {
        let counts = |node: &u8| self.serves(*node, epoch, world) && self.replica(*node).is_full;
        self.layouts[usize::from(epoch)].read_set().iter().copied().filter(counts).collect()
    }

    /// True if every read quorum holds the newest record that a client knows, or a newer record.
    fn is_kept(&self, world: &World) -> bool {
        let Some(kept) = &self.kept else { return true };
        (0..=self.last_epoch()).all(|epoch| {
            let read = self.layouts[usize::from(epoch)].read_set();
            let lacks = |node: &u8| {
                let replica = self.replica(*node);
                let held = replica.record.as_ref().map_or((0, 0), Record::rank);
                held < kept.rank() && replica.watermark < kept.when()
            };
            let lacking = self.readers(epoch, world).into_iter().filter(lacks).collect();
            !suffice(&lacking, read, world.acks.read)
        })
    }

    /// True if every write quorum intersects every read quorum.
    fn quorums_meet(&self, world: &World) -> bool {
        let nodes = self.replicas.len() as u8;
        let set =
            |mask: u8| -> BTreeSet<u8> { (0..nodes).filter(|n| mask >> n & 1 == 1).collect() };
        (0..=self.last_epoch()).all(|written| {
            let live = (0..nodes).filter(|node| self.serves(*node, written, world));
            let live = live.fold(0_u8, |mask, node| mask | 1 << node);
            let layout = &self.layouts[usize::from(written)];
            let quorums = (1..1 << nodes).filter(|mask| mask & !live == 0).map(set);
            let mut quorums =
                quorums.filter(|by| layout.is_stored(by, world.acks.write, &world.rules));
            quorums.all(|by| {
                (0..=self.last_epoch()).all(|read| {
                    let others = self.readers(read, world).into_iter();
                    let others = others.filter(|node| !by.contains(node)).collect();
                    let set = self.layouts[usize::from(read)].read_set();
                    !suffice(&others, set, world.acks.read)
                })
            })
        })
    }

    /// True if a replica whose answers count holds a value that was deleted by a purged tombstone.
    fn is_risen(&self) -> bool {
        let is_older = |record: &Record| record.time < self.purged;
        let rises = |node: &u8| {
            let replica = self.replica(*node);
            replica.is_full && replica.record.as_ref().is_some_and(is_older)
        };
        self.last().read_set().iter().any(rises)
    }
}

/// Property: a single register could have given all answers.
pub(crate) const LINEARIZABLE: &str = "linearizable";

/// Property: every read quorum holds all acknowledged and all returned records.
pub(crate) const KEPT: &str = "kept";

/// Property: any two live quorums intersect.
pub(crate) const MEET: &str = "meeting";

/// Property: no deleted value returns after its tombstone was purged.
pub(crate) const PURGED: &str = "purged";

/// Property: in a state without further actions, all clients are answered and all transitions have
/// ended.
pub(crate) const ENDED: &str = "ended";

/// Property: some path answers all clients and ends the transitions.
pub(crate) const CHANGED: &str = "all is changed";
