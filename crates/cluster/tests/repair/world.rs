//! One key on three replicas, clients, rounds, and everything that may happen next.

use std::collections::BTreeSet;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use stateright::{Model, Property};

use crate::client::{Client, First, Op, Phase, Step};
use crate::replica::{Directory, Proof, Record, Replica, Reply};
use crate::round::Round;
use crate::rules::Rules;
use crate::worlds::{Fault, World};

/// How many hold the key.
pub(crate) const REPLICAS: usize = 3;

/// Who asks a replica, beside clients 0, 1, …: rounds, …
const ROUNDS: u8 = 8;

/// … and who brings what a replica missed.
const HINTS: u8 = 16;

/// What a replica is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Write(Record),
    Prepare(u8),
    Accept(Record),
    Read,
    Repair(Record),
    Hint(Record),
    Begin(u8),
    Exchange(Option<Record>),
    TakeOver { watermark: u8, floor: u8, record: Option<Record> },
    Commit(Proof),
}

/// What a key is to its clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Register(Vec<u8>);

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Option<Vec<u8>>;

    fn invoke(&mut self, op: &Op) -> Self::Ret {
        match op {
            Op::Put(value) => self.0 = vec![*value],
            Op::Delete => self.0.clear(),
            Op::Append(id) => self.0.push(*id),
            Op::Get => {}
        }
        matches!(op, Op::Append(_) | Op::Get).then(|| self.0.clone())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    replicas: [Replica; REPLICAS],
    clients: Vec<Client>,
    rounds: Vec<Round>,
    /// Who asks whom what, in any order; what stays is lost.
    sent: BTreeSet<(u8, u8, Message)>,
    history: LinearizabilityTester<u8, Register>,
    /// The faults that there may be yet.
    faults: Vec<Fault>,
    /// The greatest time that was issued.
    clock: u8,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// A client begins, or begins anew.
    Begin(usize),
    Round(usize),
    Deliver {
        asker: u8,
        to: u8,
        message: Message,
    },
    Purge(usize),
    Fail(Fault),
    /// The third replica's directory is copied.
    Copy,
    /// Another one streams to it what it holds.
    Stream(usize),
}

/// The replica that faults happen to.
pub(crate) const THIRD: usize = REPLICAS - 1;

impl State {
    fn send(&mut self, asker: u8, message: &Message) {
        self.sent.extend((0..REPLICAS as u8).map(|to| (asker, to, message.clone())));
    }

    /// What a client asked that changes nothing but promises, and that it needs no more; what a
    /// replica missed of a write that was acknowledged becomes a hint.
    fn withdraw(&mut self, client: u8) {
        let is_done = self.clients[usize::from(client)].phase == Phase::Done;
        for asked in std::mem::take(&mut self.sent) {
            let (asker, to, message) = asked;
            match message {
                Message::Prepare(_) | Message::Read if asker == client => {}
                Message::Accept(record) if asker == client && is_done => {
                    self.sent.insert((HINTS, to, Message::Hint(record)));
                }
                message => {
                    self.sent.insert((asker, to, message));
                }
            }
        }
    }

    fn begin(&mut self, number: usize) {
        let (client, n) = (&mut self.clients[number], number as u8);
        // A write that is given a new version may be seen twice: as if there were two of them.
        let is_another = client.tries == 0 || matches!(client.op, Op::Put(_) | Op::Delete);
        let message = client.begin(&mut self.clock);
        if is_another {
            let thread = thread(n, &self.clients[number]);
            let op = self.clients[number].op.clone();
            self.history.on_invoke(thread, op).expect("each try is one");
        }
        self.withdraw(n);
        self.send(n, &message);
    }

    fn ask(&mut self, asker: u8, to: u8, message: &Message, rules: &Rules) -> Reply {
        let replica = &mut self.replicas[usize::from(to)];
        if (ROUNDS..HINTS).contains(&asker) && !replica.takes_part(asker - ROUNDS, rules) {
            return Reply::Nothing;
        }
        match message {
            Message::Write(record) => replica.write(record, rules),
            Message::Prepare(ballot) => replica.prepare(*ballot, rules),
            Message::Accept(record) => replica.accept(record, rules),
            Message::Read => replica.read(),
            Message::Repair(record) => replica.repair(record, rules),
            Message::Hint(record) => {
                replica.take_hint(record, rules);
                Reply::Nothing
            }
            Message::Begin(time) => replica.seal(*time, rules),
            Message::Exchange(record) => replica.exchange(record.as_ref(), rules),
            Message::TakeOver { watermark, floor, record } => {
                replica.take_over((*watermark, *floor), record.as_ref(), rules)
            }
            Message::Commit(proof) => {
                replica.commit(proof, rules);
                Reply::Nothing
            }
        }
    }

    fn heard(&mut self, asker: u8, from: u8, asked: &Message, reply: Reply, rules: &Rules) {
        if (ROUNDS..HINTS).contains(&asker) {
            let round = &mut self.rounds[usize::from(asker - ROUNDS)];
            let sent = round.receive(from, asked, reply, &mut self.clock, rules);
            self.sent.extend(sent.into_iter().map(|(to, message)| (asker, to, message)));
            return;
        }
        if asker >= ROUNDS {
            return;
        }
        let client = &mut self.clients[usize::from(asker)];
        match client.receive(from, asked, reply, rules) {
            Step::Wait => {}
            Step::Send(message) => self.send(asker, &message),
            Step::Answer(value) => {
                let thread = thread(asker, client);
                self.history.on_return(thread, value).expect("it was asked once");
                self.withdraw(asker);
            }
        }
    }

    fn fail(&mut self, fault: Fault, rules: &Rules) {
        let clock = self.clock;
        let third = &mut self.replicas[THIRD];
        match fault {
            Fault::PowerCut => self.replicas.iter_mut().for_each(Replica::restart),
            Fault::Wipe => third.replace(Directory::default(), clock, rules),
            Fault::Rollback => {
                let copy = third.copy.take().expect("it was made");
                third.replace(copy, clock, rules);
                if !rules.rollback_is_noticed {
                    (third.held.lost_before, third.rebuilt_by) = (0, None);
                    third.sync(rules);
                }
            }
            Fault::Rot => {
                third.held.is_rotten = true;
                third.sync(rules);
            }
        }
        self.faults.retain(|left| *left != fault);
        if matches!(fault, Fault::Wipe | Fault::Rollback) {
            let clients = self.clients.iter_mut().filter(|_| rules.lost_votes_are_dropped);
            clients.for_each(|client| client.lost(THIRD as u8));
            self.rounds.iter_mut().for_each(|round| round.is_void = round.time > 0);
        }
    }

    fn stream(&mut self, from: usize, rules: &Rules) {
        let Replica { promise, life, .. } = self.replicas[THIRD];
        let source = &mut self.replicas[from];
        source.life = life;
        source.promise = source.promise.max(promise);
        let held = source.held.clone();
        let third = &mut self.replicas[THIRD];
        third.stream(from, &held, rules);
        third.rebuilt_by = third.rebuilt_by.take().filter(|by| by.len() < REPLICAS - 1);
    }

    /// Whether two replicas hold the same up to a watermark of one of them, as far as it may not be
    /// purged and nothing newer is held.
    fn agree(one: &Replica, other: &Replica) -> bool {
        let watermark = one.held.watermark;
        let has = |record: &Record, other: &Replica| {
            let newer = |held: &Record| held.when() > watermark && held.rank() > record.rank();
            let held = other.held.record.as_ref();
            held.is_some_and(|held| held == record || newer(held))
        };
        let is_proven = |record: &&Record| record.when() <= watermark && !record.is_tombstone();
        let value = |replica: &Replica| replica.held.record.clone().filter(|r| is_proven(&r));
        value(one).is_none_or(|value| has(&value, other))
            && value(other).is_none_or(|value| has(&value, one))
    }

    fn is_agreed(&self) -> bool {
        let counts = |replica: &&Replica| replica.is_authoritative() && !replica.held.is_rotten;
        let replicas = || self.replicas.iter().filter(counts);
        replicas().all(|one| replicas().all(|other| Self::agree(one, other)))
    }

    fn is_answered(&self) -> bool {
        self.clients.iter().all(|client| client.phase == Phase::Done)
    }

    /// All replicas hold what the last round was to prove something about.
    fn is_proven(&self, rules: &Rules) -> bool {
        let Some(last) = self.rounds.last() else { return true };
        let knows = |replica: &Replica| {
            replica.held.watermark >= last.time
                && !replica.held.is_rotten
                && !replica.may_purge(rules)
        };
        last.is_void || last.time > 0 && self.replicas.iter().all(knows)
    }
}

/// What the history calls a try of a client.
fn thread(number: u8, client: &Client) -> u8 {
    let is_plain = matches!(client.op, Op::Put(_) | Op::Delete);
    number * 8 + if is_plain { client.tries } else { 1 }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let before = &self.before;
        let replica = |n: usize| {
            let (held, copy) = (before.replicas[n].clone(), before.copy.clone());
            let copy = copy.filter(|_| n == THIRD);
            let promise = before.promise;
            let mut replica = Replica { held, copy, promise, ..Replica::default() };
            replica.sync(&self.rules);
            replica
        };
        let mut register = Register(Vec::new());
        let mut history = LinearizabilityTester::new(register.clone());
        for (n, op) in (100..).zip(&before.done) {
            history.on_invoke(n, op.clone()).expect("one each");
            history.on_return(n, register.invoke(op)).expect("one each");
        }
        for (n, op) in (200..).zip(&before.begun) {
            history.on_invoke(n, op.clone()).expect("one each");
        }
        let late = before.late.iter().map(|(to, message)| (HINTS, *to, message.clone()));
        let client = |(op, first, _): &(Op, First, u8)| Client::new(op.clone(), first.clone());
        vec![State {
            replicas: std::array::from_fn(replica),
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
            if waits && client.phase != Phase::Done && client.tries < self.ops[n].2 {
                actions.push(Action::Begin(n));
            }
        }
        let next = state.rounds.iter().position(|round| round.time == 0);
        actions.extend(next.filter(|n| state.clock > self.rounds[*n]).map(Action::Round));
        for (asker, to, message) in state.sent.iter().cloned() {
            let is_round = (ROUNDS..HINTS).contains(&asker);
            if !is_round || state.replicas[usize::from(to)].counts(&self.rules) {
                actions.push(Action::Deliver { asker, to, message });
            }
        }
        let due = |n: &usize| self.purges_late && state.replicas[*n].may_purge(&self.rules);
        actions.extend((0..REPLICAS).filter(due).map(Action::Purge));
        let third = &state.replicas[THIRD];
        for fault in &state.faults {
            let may_be = match fault {
                Fault::PowerCut | Fault::Wipe => true,
                Fault::Rollback => third.copy.is_some(),
                // Later, no round would find it.
                Fault::Rot => next.is_some() && third.held.record.is_some(),
            };
            if may_be {
                actions.push(Action::Fail(*fault));
            } else if *fault == Fault::Rollback {
                actions.push(Action::Copy);
            }
        }
        if let Some(streamed) = &third.rebuilt_by {
            let left = (0..THIRD).filter(|n| !streamed.contains(n));
            actions.extend(left.map(Action::Stream));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (mut state, rules) = (last.clone(), &self.rules);
        match action {
            Action::Begin(n) => state.begin(n),
            Action::Round(n) => {
                let time = state.clock - self.rounds[n];
                let message = state.rounds[n].begin(time);
                state.send(ROUNDS + n as u8, &message);
            }
            Action::Deliver { asker, to, message } => {
                state.sent.remove(&(asker, to, message.clone()));
                let reply = state.ask(asker, to, &message, rules);
                state.heard(asker, to, &message, reply, rules);
            }
            Action::Purge(n) => state.replicas[n].purge(rules),
            Action::Fail(fault) => state.fail(fault, rules),
            Action::Copy => {
                let third = &mut state.replicas[THIRD];
                third.copy = Some(third.durable.clone());
            }
            Action::Stream(from) => state.stream(from, rules),
        }
        for replica in &mut state.replicas {
            if !self.purges_late && replica.may_purge(rules) {
                replica.purge(rules);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LINEARIZABLE, |_, state: &State| state.history.is_consistent()),
            Property::always(AGREED, |_, state: &State| state.is_agreed()),
            Property::always(PROVEN, |world: &World, state: &State| {
                let ended =
                    state.is_proven(&world.rules) && (state.is_answered() || !world.answers_all);
                ended || !world.next_steps(state).is_empty()
            }),
            Property::always(PURGED, |_, state: &State| {
                !state.replicas.iter().any(|replica| replica.is_brought_back)
            }),
            Property::sometimes(ANSWERED, |world: &World, state: &State| {
                state.is_answered() && state.is_proven(&world.rules)
            }),
        ]
    }
}

/// Each answer is one that a single register could have given.
pub(crate) const LINEARIZABLE: &str = "linearizable";

/// Up to a watermark, all replicas hold the same.
pub(crate) const AGREED: &str = "agreed";

/// No replica is brought what it may have purged.
pub(crate) const PURGED: &str = "purged";

/// When nothing more can happen, the last round has come to its end, and where that is asked for
/// all clients are answered.
pub(crate) const PROVEN: &str = "proven";

/// There is a way to the end.
pub(crate) const ANSWERED: &str = "all are answered";

/// What must hold always.
pub(crate) const ALWAYS: [&str; 4] = [LINEARIZABLE, AGREED, PURGED, PROVEN];
