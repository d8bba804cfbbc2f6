//! The possible actions, and the properties that must hold.

use stateright::semantics::ConsistencyTester;
use stateright::{Model, Property};

use crate::client::{Client, Phase};
use crate::register::history;
use crate::replica::{Directory, Missed, Replica};
use crate::round::{self, Round};
use crate::state::{Action, HINTS, Message, REPLICAS, ROUNDS, State, THIRD, round_of};
use crate::worlds::{Does, Drive, Fault, World};

impl World {
    fn may_be(&self, state: &State, action: &Action) -> bool {
        let rules = &self.rules;
        let node = |node: &u8| &state.nodes[usize::from(*node)];
        match action {
            Action::Deliver { asker, to, message } => {
                let Some(number) = round_of(*asker) else { return true };
                if message.is_for_members()
                    && rules.rebuilt_does_not_count
                    && !node(to).is_authoritative()
                {
                    return false;
                }
                if !matches!(message, Message::Seal(_)) || !self.takes_turns {
                    return true;
                }
                let driver = state.rounds[number].id.1;
                let held_by = state.round_fencing(*to, number);
                held_by.is_none_or(|held_by| rules.greater_id_backs_off && held_by.id.1 < driver)
            }
            Action::Round(n) => {
                let round = &state.rounds[*n];
                let drive = &self.rounds[*n];
                let others = || state.rounds.iter().filter(|round| round.is_active());
                match round.phase {
                    round::Phase::Idle => {
                        let is_next = state.rounds[..*n].iter().all(|round| round.id.0 > 0);
                        let is_free = others().all(|other| other.id.1 != drive.node);
                        let may = node(&drive.node).is_authoritative();
                        is_next && is_free && may && state.clock > drive.behind
                    }
                    round::Phase::Waiting => others().count() == 0,
                    _ => false,
                }
            }
            Action::Inform { from, to } => {
                let proven = node(from).held.proof.proven;
                match node(to).classify_proof(proven, rules) {
                    Missed::Known => false,
                    Missed::TakesOver => true,
                    Missed::Outdated => rules.outdated_is_set_aside,
                }
            }
            Action::Fail(fault) => match fault {
                Fault::PowerCut | Fault::Wipe | Fault::Restart => true,
                Fault::Driver => state.rounds[0].id.0 > 0,
                Fault::Rollback => state.nodes[THIRD].copy.is_some(),
                // No round would find damage from after the start of the last round.
                Fault::Rot => {
                    let is_left = state.rounds.iter().any(|round| round.id.0 == 0);
                    is_left && state.nodes[THIRD].held.record.is_some()
                }
            },
            Action::Copy => {
                state.faults.contains(&Fault::Rollback) && state.nodes[THIRD].copy.is_none()
            }
            _ => true,
        }
    }

    fn begin_round(&self, state: &mut State, n: usize) {
        let Drive { node, behind, is_full } = self.rounds[n];
        let (seal, nodes) = (state.nodes[usize::from(node)].held.proof.seal, state.nodes.len());
        let is_idle = state.rounds[n].phase == round::Phase::Idle;
        let time = (state.clock - behind).max(seal.0 + 1);
        state.rounds[n].id.1 = node;
        state.continue_round(n, &self.rules, |round, seen| {
            let sent = if is_idle {
                round.begin((time, node), is_full, nodes as u8)
            } else {
                round.continue_round(seal.0)
            };
            *seen.clock = round.id.0.max(*seen.clock);
            sent
        });
    }
}

impl crate::search::Searched for World {}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let before = &self.before;
        let node = |n: usize| {
            let (held, copy) = (before.nodes[n].clone(), before.copy.clone());
            let copy = copy.filter(|_| n == THIRD);
            let promise = before.promise;
            let mut node = Replica { held, copy, promise, ..Replica::default() };
            node.sync(&self.rules);
            node
        };
        let history = history(&before.done, &before.begun);
        let late = before.late.iter().map(|(to, message)| (HINTS, *to, message.clone()));
        let client = |does: &Does| Client::new(does.op.clone(), does.at, does.first.clone());
        vec![State {
            nodes: (0..before.nodes.len()).map(node).collect(),
            clients: self.ops.iter().map(client).collect(),
            rounds: self.rounds.iter().map(|_| Round::default()).collect(),
            sent: late.collect(),
            history,
            faults: self.faults.clone(),
            clock: before.clock,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, client) in state.clients.iter().enumerate() {
            let waits = client.phase == Phase::Ready || client.refused;
            if waits && client.phase != Phase::Done && client.tries < self.ops[n].tries {
                actions.push(Action::Begin(n));
            }
        }
        actions.extend((0..state.rounds.len()).map(Action::Round));
        for (asker, to, message) in state.sent.iter().cloned() {
            actions.push(Action::Deliver { asker, to, message });
        }
        for (n, round) in state.rounds.iter().enumerate().filter(|_| self.leaves) {
            actions.extend(round.awaits().map(|node| Action::Leave(n, node)));
        }
        let due = |n: &usize| self.purges_late && state.nodes[*n].may_purge(&self.rules);
        actions.extend((0..REPLICAS).filter(due).map(Action::Purge));
        actions.extend(state.faults.iter().copied().map(Action::Fail));
        actions.push(Action::Copy);
        let all = 0..state.nodes.len() as u8;
        for to in all.clone() {
            let others = all.clone().filter(|from| *from != to);
            actions.extend(others.clone().map(|from| Action::Inform { from, to }));
            if let Some(streamed) = &state.nodes[usize::from(to)].rebuilt_by {
                let left = others.filter(|n| !streamed.contains(n) && !state.streams(*n, to));
                actions.extend(left.map(|from| Action::Stream { from, to }));
            }
        }
        actions.retain(|action| self.may_be(state, action));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (mut state, rules) = (last.clone(), &self.rules);
        match action {
            Action::Begin(n) => state.begin(n, rules),
            Action::Round(n) => self.begin_round(&mut state, n),
            Action::Leave(n, node) => {
                let asker = ROUNDS + n as u8;
                state.sent.retain(|(by, to, _)| *by != asker || *to != node);
                state.rounds[n].is_void = true;
                state.continue_round(n, rules, |round, seen| {
                    round.continue_without_node(node, seen)
                });
            }
            Action::Deliver { asker, to, message } => {
                state.sent.remove(&(asker, to, message.clone()));
                let is_seal = matches!(message, Message::Seal(_)) && self.takes_turns;
                match round_of(asker).filter(|n| is_seal && state.round_fencing(to, *n).is_some()) {
                    Some(n) => state.continue_round(n, rules, |round, _| round.lets_go()),
                    None => {
                        let reply = state.ask(to, &message, rules);
                        state.on_reply(asker, to, &message, reply, rules);
                    }
                }
            }
            Action::Inform { from, to } => state.inform(from, to, rules),
            Action::Purge(n) => state.nodes[n].purge(rules),
            Action::Fail(fault) => state.fail(fault, rules),
            Action::Copy => {
                // A message in transit may be older than the copy, but not than the world's initial
                // clock.
                let end = self.before.clock;
                let third = &mut state.nodes[THIRD];
                third.copy = Some(Directory { end, ..third.durable.clone() });
            }
            Action::Stream { from, to } => state.stream(from, to),
        }
        for node in &mut state.nodes {
            if !self.purges_late && node.may_purge(rules) {
                node.purge(rules);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LINEARIZABLE, |_, state: &State| state.history.is_consistent()),
            Property::always(AGREED, |world: &World, state: &State| state.is_agreed(&world.rules)),
            Property::always(PROVEN, |world: &World, state: &State| {
                let ended =
                    state.is_proven(&world.rules) && (state.is_answered() || !world.answers_all);
                ended || !world.next_steps(state).is_empty()
            }),
            Property::always(PURGED, |_, state: &State| {
                !state.nodes.iter().any(|node| node.is_brought_back)
            }),
            Property::always(SETTLED, |_, state: &State| {
                state.nodes.iter().all(|node| node.set_aside <= 1)
            }),
            Property::sometimes(ANSWERED, |world: &World, state: &State| {
                state.is_answered() && state.is_proven(&world.rules)
            }),
        ]
    }
}
/// Property: a single register could have given all answers.
pub(crate) const LINEARIZABLE: &str = "linearizable";

/// Property: all replicas hold the same records up to a watermark.
pub(crate) const AGREED: &str = "agreed";

/// Property: no replica is given a record that it may have purged.
pub(crate) const PURGED: &str = "purged";

/// Property: in a state without further actions, the last round has ended, and all clients are
/// answered if the world requires it.
pub(crate) const PROVEN: &str = "proven";

/// Property: a node sets aside at most one directory.
pub(crate) const SETTLED: &str = "settled";

/// Property: some path answers all clients and proves the last round.
pub(crate) const ANSWERED: &str = "all are answered";
