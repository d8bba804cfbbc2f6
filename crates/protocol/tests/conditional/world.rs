//! The state of the model: one key on three replicas, a few clients, and all possible events.

use std::collections::BTreeSet;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use stateright::{Model, Property};

use crate::client::{Client, MAJORITY, Message, Op, Phase, REPLICAS, Step};
use crate::replica::{Replica, Reply};
use crate::rules::Rules;

/// The key as a register.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Register {
    value: Vec<u8>,
    /// True if a client was told that the value has expired. Later, no client may be told that it
    /// is alive.
    is_over: bool,
}

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Option<Vec<u8>>;

    fn invoke(&mut self, op: &Op) -> Self::Ret {
        match op {
            Op::Append(id) | Op::Extend { id, .. } => self.value.push(*id),
            Op::Put(value) => {
                (self.value, self.is_over) = (vec![*value], false);
                return None;
            }
            Op::Get => {}
        }
        Some(self.value.clone())
    }

    fn is_valid_step(&mut self, op: &Op, told: &Self::Ret) -> bool {
        let extends = matches!(op, Op::Extend { .. });
        if extends && told.as_ref().is_some_and(Vec::is_empty) {
            self.is_over = true;
            return true;
        }
        if extends && (self.is_over || self.value.is_empty()) {
            return false;
        }
        let value = self.invoke(op);
        matches!((op, told), (Op::Append(_) | Op::Extend { .. }, None)) || value == *told
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    replicas: [Replica; REPLICAS],
    clients: Vec<Client>,
    /// Messages in transit: client, replica, message. They are delivered in any order; a message
    /// that is never delivered is lost.
    sent: BTreeSet<(u8, u8, Message)>,
    history: LinearizabilityTester<u8, Register>,
    /// Number of faults that may still happen.
    faults: u8,
    /// The number of plain writes begun so far. It is the base version of the last plain write.
    plain: u8,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// A client starts or restarts its operation.
    Begin(usize),
    /// A replica handles a message. `received`: the replica's reply arrives.
    Deliver { client: u8, to: u8, message: Message, received: bool },
    /// A replica restarts with the contents of its disk.
    Restart(usize),
    /// A replica starts with an empty disk, …
    Wipe(usize),
    /// … learns from other replicas that it held records before, …
    Learn(usize),
    /// … and receives the record of each other replica, once.
    Stream { from: usize, to: usize },
}

/// An event of a world's prelude, after which the search starts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum First {
    /// A client starts.
    Begins(usize),
    /// A client's message arrives at a replica, and the reply arrives at the client.
    Reaches(u8, u8),
    /// A replica loses its disk, and learns which ballots it may have promised.
    Wiped(usize),
    /// A replica receives another replica's record.
    Sent { from: usize, to: usize },
}

/// The fault of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    Restart,
    Wipe,
    /// An authoritative replica is marked to lack records, and receives the records of the other
    /// replicas.
    Mark,
}

/// A world: the rules, operations and faults that a search explores.
pub(crate) struct World {
    pub(crate) rules: Rules,
    /// The operation of each client, and the number of times that it may start.
    pub(crate) ops: Vec<(Op, u8)>,
    /// The fault that happens once.
    pub(crate) fault: Fault,
    /// True if replies to writes may be lost.
    pub(crate) lost_replies: bool,
    /// True if one coordinator runs the first and the last operation, and continues from the first
    /// one's record.
    pub(crate) goes_on: bool,
    /// The prelude. After it, a search finds long violations sooner.
    pub(crate) first: Vec<First>,
}

impl State {
    fn send(&mut self, client: u8, message: &Message) {
        let to_all = (0..REPLICAS as u8).map(|to| (client, to, message.clone()));
        self.sent.extend(to_all);
    }

    /// Drops a client's messages that are no longer needed and change nothing except promises.
    fn withdraw(&mut self, client: u8) {
        let is_idle = |message: &Message| matches!(message, Message::Prepare(_) | Message::Read);
        self.sent.retain(|(from, _, message)| *from != client || !is_idle(message));
    }

    /// Passes the first client's cached record to the coordinator of the last client.
    fn hand_on(&mut self, client: usize) {
        let kept = self.clients[client].kept.take();
        let heir = self.clients.last_mut().expect("there are clients");
        if kept.is_some() && heir.phase == Phase::Ready {
            heir.kept = kept;
        }
    }

    fn begin(&mut self, number: usize, rules: &Rules) {
        let (client, n) = (&mut self.clients[number], number as u8);
        if client.tries == 0 {
            self.history.on_invoke(n, client.op.clone()).expect("each has one operation");
        }
        self.plain += u8::from(matches!(client.op, Op::Put(_)));
        let message = client.begin(self.plain, rules);
        self.withdraw(n);
        self.send(n, &message);
    }

    fn ask(&mut self, to: usize, message: &Message, rules: &Rules) -> Reply {
        let replica = &mut self.replicas[to];
        match message {
            Message::Prepare(ballot) => replica.prepare(*ballot, rules),
            Message::Accept { record, ask } => replica.accept(record, *ask, rules),
            Message::Put(record) => replica.put(record, rules),
            Message::Read => Reply::Holds(replica.record.clone(), replica.authoritative),
        }
    }

    fn wipe(&mut self, number: usize, rules: &Rules) {
        // The floor is above all ballots that the replica has promised or stored.
        let promised = self.replicas[number].promise;
        let floor = if rules.promise_outlives_disk { promised + 1 } else { 0 };
        let replica = Replica { floor: Some(floor), authoritative: false, ..Replica::new() };
        self.replicas[number] = replica;
    }

    fn learn(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        replica.promise = replica.promise.max(replica.floor.take().expect("it is yet to learn"));
    }

    /// Streams a replica's record to another replica that is being rebuilt or may lack records.
    fn stream(&mut self, from: usize, to: usize, rules: &Rules) {
        let is_rebuilt = !self.replicas[to].authoritative;
        if is_rebuilt && rules.sources_promise {
            let floor = self.replicas[to].promise;
            let promise = &mut self.replicas[from].promise;
            *promise = floor.max(*promise);
        }
        let (record, below) =
            (self.replicas[from].record.clone(), self.replicas[from].below.clone());
        let holds = |replica: &&Replica| replica.authoritative && replica.record == record;
        let is_chosen = self.replicas.iter().filter(holds).count() >= MAJORITY;
        let takes =
            record.ballot == 0 || is_chosen || is_rebuilt || !rules.members_accept_only_chosen;
        let replica = &mut self.replicas[to];
        if takes && replica.record.rank() < record.rank() {
            replica.store(&record, rules);
        }
        replica.below = replica.below.take().max(below);
        replica.sent_by.insert(from as u8);
        replica.authoritative |= replica.sent_by.len() == REPLICAS - 1;
    }
}

impl World {
    fn after(&self, state: &State, first: First) -> State {
        let next = |state: &State, action| self.next_state(state, action).expect("it can happen");
        match first {
            First::Begins(client) => next(state, Action::Begin(client)),
            First::Reaches(client, to) => {
                let is_it = |(from, at, _): &&(u8, u8, Message)| (*from, *at) == (client, to);
                let (_, _, message) = state.sent.iter().find(is_it).expect("it was sent").clone();
                next(state, Action::Deliver { client, to, message, received: true })
            }
            First::Wiped(n) => next(&next(state, Action::Wipe(n)), Action::Learn(n)),
            First::Sent { from, to } => next(state, Action::Stream { from, to }),
        }
    }

    /// Adds the possible streams to a replica. At most one replica is marked.
    fn streams(&self, state: &State, to: usize, actions: &mut Vec<Action>) {
        let sent_by = &state.replicas[to].sent_by;
        if self.fault == Fault::Mark && state.faults == 0 && sent_by.is_empty() {
            return;
        }
        let has_not = |from: &usize| *from != to && !sent_by.contains(&(*from as u8));
        actions.extend((0..REPLICAS).filter(has_not).map(|from| Action::Stream { from, to }));
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |(n, (op, _)): (usize, &(Op, u8))| Client::new(n as u8, op.clone());
        let mut clients: Vec<Client> = self.ops.iter().enumerate().map(client).collect();
        clients[0].keeps_record = self.goes_on;
        let state = State {
            replicas: std::array::from_fn(|_| Replica::new()),
            clients,
            sent: BTreeSet::new(),
            history: LinearizabilityTester::new(Register { value: Vec::new(), is_over: false }),
            faults: u8::from(self.fault != Fault::Nothing),
            plain: 0,
        };
        vec![self.first.iter().fold(state, |state, first| self.after(&state, *first))]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, client) in state.clients.iter().enumerate() {
            let waits = client.phase == Phase::Ready || client.refused;
            if waits && client.phase != Phase::Done && client.tries < self.ops[n].1 {
                actions.push(Action::Begin(n));
            }
        }
        for (client, to, message) in &state.sent {
            let (client, to, message) = (*client, *to, message.clone());
            if self.lost_replies && !matches!(message, Message::Prepare(_) | Message::Read) {
                actions.push(Action::Deliver {
                    client,
                    to,
                    message: message.clone(),
                    received: false,
                });
            }
            actions.push(Action::Deliver { client, to, message, received: true });
        }
        for n in 0..REPLICAS {
            // The model excludes the loss of a disk that has acknowledged a plain write before
            // another replica holds the write: that loss does not concern conditional writes.
            let puts = state.clients.iter().any(|c| matches!(c.phase, Phase::Putting { .. }));
            let whole = !puts && state.replicas.iter().all(|replica| replica.authoritative);
            match self.fault {
                Fault::Restart if state.faults > 0 => actions.push(Action::Restart(n)),
                Fault::Wipe if state.faults > 0 && whole => actions.push(Action::Wipe(n)),
                _ if state.replicas[n].floor.is_some() => actions.push(Action::Learn(n)),
                Fault::Mark => self.streams(state, n, actions),
                _ if !state.replicas[n].authoritative => self.streams(state, n, actions),
                _ => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(n) => state.begin(n, &self.rules),
            Action::Deliver { client, to, message, received } => {
                state.sent.remove(&(client, to, message.clone()));
                let reply = state.ask(usize::from(to), &message, &self.rules);
                let asker = &mut state.clients[usize::from(client)];
                let step = if received {
                    asker.receive(to, &message, reply, &self.rules)
                } else {
                    Step::Wait
                };
                match step {
                    Step::Wait => {}
                    Step::Send(message) => state.send(client, &message),
                    Step::Answer(value) => {
                        state.history.on_return(client, value).expect("it was asked once");
                        state.withdraw(client);
                        state.hand_on(usize::from(client));
                    }
                }
            }
            Action::Restart(n) => {
                state.faults -= 1;
                if !self.rules.promise_outlives_restart {
                    state.replicas[n].promise = 0;
                }
            }
            Action::Wipe(n) => {
                state.faults -= 1;
                state.wipe(n, &self.rules);
            }
            Action::Learn(n) => state.learn(n),
            Action::Stream { from, to } => {
                state.faults = 0;
                state.stream(from, to, &self.rules);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LINEARIZABLE, |_, state: &State| state.history.is_consistent()),
            Property::sometimes(ANSWERED, |_, state: &State| {
                state.clients.iter().all(|client| client.phase == Phase::Done)
            }),
        ]
    }
}

/// Property: a single register could have given all answers.
pub(crate) const LINEARIZABLE: &str = "linearizable";

/// Property: some path answers all clients.
pub(crate) const ANSWERED: &str = "all are answered";
