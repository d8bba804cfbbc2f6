//! Random tests of small worlds in which a key moves from an old set of nodes to a new set, in the
//! stages of `docs/design/membership.md`. Each of several coordinators has a store. Messages arrive
//! late, in any order, or not at all; each node enters a view at its own time. Clients' answers
//! must be linearizable, and every later majority read must return the acknowledged writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use proptest::prelude::*;
use protocol::{
    Answer, AskedQuorum, Body, Change, Class, ClientId, Clock, Condition, Conditional, Config,
    ConnectionId, Done, Effect, Event, Incarnation, Kind, Logs, Membership, MembershipState,
    NodeId, Now, Protocol, Record, Reply, Request, Shared, StoreError, Topology, Via, View, ViewId,
};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::records;
use crate::traces::{Traces, id_of};
use crate::words::{BASE, BRIEF_BYTES};
use crate::world::without;

const KEY: &[u8] = b"k";

const DEADLINE: u64 = 150_000;

/// The number of nodes in each world.
const NODES: u16 = 6;

/// Maximum number of client operations. The check is exponential in the number of unanswered
/// operations.
const MOST_OPS: usize = 7;

/// Maximum number of client requests, with repetitions.
const MOST_CLIENTS: usize = 12;

/// Maximum number of messages, or of store operations, while time stands still.
const MOST_MAIL: usize = 2_000;

/// The old nodes, the new nodes, and the default number of copies.
const MOVES: [(&[u16], &[u16], u8); 8] = [
    (&[0], &[0, 1, 2], 3),
    (&[0], &[1, 2, 3], 3),
    (&[0, 1, 2], &[0, 1, 3], 3),
    (&[0, 1, 2], &[3, 4, 5], 3),
    (&[0, 1, 2], &[0, 1, 2, 3, 4], 5),
    (&[0, 1, 2, 3, 4], &[0, 1, 2], 5),
    (&[0, 1, 2], &[0], 3),
    (&[0, 1], &[1, 2], 3),
];

/// A number that clients write, add to and read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Number(Option<i64>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Get,
    Put(i64),
    Add(i64),
}

impl SequentialSpec for Number {
    type Op = Op;
    type Ret = Option<i64>;

    fn invoke(&mut self, op: &Op) -> Self::Ret {
        match op {
            Op::Get => return self.0,
            Op::Put(number) => {
                self.0 = Some(*number);
                return None;
            }
            Op::Add(number) => self.0 = Some(self.0.unwrap_or(0) + number),
        }
        self.0
    }
}

/// The state of a client's operation.
#[derive(Debug)]
struct Asked {
    op: Op,
    /// True if the client may repeat the operation.
    has_idempotency_key: bool,
    /// The number of the client's unanswered requests.
    open: u32,
    /// True if the operation may have been done without an answer that says so.
    may_be_done: bool,
    told: Option<Option<i64>>,
    /// The versions under which a plain write was sent. A read may return the write under each of
    /// them.
    versions: BTreeSet<u64>,
}

#[derive(Debug)]
enum Mail {
    Request { from: u16, to: u16, under: ViewId, id: u64, class: Class, ms: u32, request: Request },
    Reply { from: u16, to: u16, id: u64, reply: Reply },
}

impl Mail {
    fn ends(&self) -> [u16; 2] {
        match self {
            Self::Request { from, to, .. } | Self::Reply { from, to, .. } => [*from, *to],
        }
    }
}

struct Member {
    shared: Arc<Shared>,
    protocol: Protocol,
    held: Option<Record>,
    seal: u64,
    /// The requests that the node's store has not executed yet.
    pending: VecDeque<Effect>,
    taken: BTreeSet<u16>,
    has_all: bool,
    /// The node's durable memory of writes with an idempotency key.
    traces: Traces,
}

struct Moves {
    random: u64,
    mono: u64,
    old: Vec<u16>,
    new: Vec<u16>,
    views: Vec<View>,
    /// The number of decided views.
    decided: usize,
    members: BTreeMap<u16, Member>,
    mail: Vec<Mail>,
    /// The node that is down, and the number of steps until it is up again.
    away: Option<(u16, u32)>,
    asked: Vec<Asked>,
    /// The operation of each request. Several requests for one operation are repetitions.
    clients: Vec<usize>,
    /// Calls and answers in order of time: the operation, and its answer (`None` = a call).
    history: Vec<(usize, Option<Option<i64>>)>,
}

fn topology(nodes: &[u16], copies: u8) -> Topology {
    let away = (0..NODES).filter(|node| !nodes.contains(node)).fold(0, |away, n| away | 1 << n);
    without(NODES, away, copies)
}

impl Moves {
    fn new(seed: u64, which: usize) -> Self {
        let (old, new, copies) = MOVES[which];
        let (o, n) = (topology(old, copies), topology(new, copies));
        let views = vec![
            View::first(o.clone()),
            View::new_moving(2, 2, o.clone(), n.clone()),
            View::new_moving(3, 2, n.clone(), o),
            View::new_settled(4, 4, n),
        ];
        let mut moves = Self {
            random: seed | 1,
            mono: 1000,
            old: old.to_vec(),
            new: new.to_vec(),
            views,
            decided: 1,
            members: BTreeMap::new(),
            mail: Vec::new(),
            away: None,
            asked: Vec::new(),
            clients: Vec::new(),
            history: Vec::new(),
        };
        for node in old {
            moves.starts(*node, 0);
        }
        moves
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end
    }

    fn now(&self) -> Now {
        Now { mono: self.mono, wall: BASE + self.mono }
    }

    /// Starts a node under this view. A node that is only in the new set starts with a repair fence
    /// and without records.
    fn starts(&mut self, node: u16, view: usize) {
        let copies = self.views[0].topology.default_copies().max(3);
        let clock = Arc::new(Clock::start(u32::from(node) + 7, BASE, 0));
        clock.mark_durable(u64::MAX, 0);
        let is_receiver = !self.old.contains(&node);
        let membership = Membership::new(MembershipState::Member, 0, true);
        let (all, own) = (without(NODES, 0, copies), NodeId(node));
        let logs = Arc::new(Logs::first(Incarnation(100 + u64::from(node))));
        let mut shared = Shared::new(all, own, clock, membership, 0, logs);
        let seal = if is_receiver { shared.clock.now(self.now()) } else { 0 };
        let views = self.views[view].clone();
        shared.membership.views = Arc::new(protocol::Views::new(views));
        shared.membership.lacks.store(is_receiver, Ordering::SeqCst);
        let shared = Arc::new(shared);
        let config = Config {
            deadline_micros: DEADLINE,
            max_skew_micros: 500_000,
            brief_bytes: BRIEF_BYTES,
        };
        let protocol = Protocol::new(Arc::clone(&shared), config);
        let (held, pending, taken, has_all) = (None, VecDeque::new(), BTreeSet::new(), false);
        let traces = Traces::default();
        let member = Member { shared, protocol, held, seal, pending, taken, has_all, traces };
        self.members.insert(node, member);
        for peer in (0..NODES).filter(|peer| *peer != node) {
            self.handle(node, Event::LinkUp(NodeId(peer)));
        }
    }

    fn handle(&mut self, node: u16, event: Event) {
        let now = self.now();
        let Some(member) = self.members.get_mut(&node) else { return };
        let mut effects = Vec::new();
        member.protocol.handle(now, event, &mut effects);
        let under = member.protocol.counting_view();
        for effect in effects {
            self.carry_out(node, under, effect);
        }
    }

    fn carry_out(&mut self, node: u16, under: ViewId, effect: Effect) {
        match effect {
            Effect::Read { .. } | Effect::Write { .. } | Effect::Recall { .. } => {
                if let Effect::Write { record, .. } = &effect {
                    self.is_sent(record);
                }
                let member = self.members.get_mut(&node).expect("it has just handled an event");
                member.pending.push_back(effect);
            }
            Effect::Send { peer, message } => {
                let Body::Request { remaining_ms: ms, class, request } = message.body else {
                    panic!("a reply is a response");
                };
                if let Request::Write { record, .. } = &request {
                    self.is_sent(record);
                }
                let (from, to, id) = (node, peer.0, message.id);
                self.mail.push(Mail::Request { from, to, under, id, class, ms, request });
            }
            Effect::Respond { connection, id, reply } => {
                self.mail.push(Mail::Reply { from: node, to: connection.0 as u16, id, reply });
            }
            Effect::Answer { client, answer } => self.record_answer(client, &answer),
            Effect::Hint { hint, .. } => self.handle(node, Event::HintStored { hint, kept: false }),
            other => panic!("nobody asked for {other:?}"),
        }
    }

    /// Records the version under which a plain write is sent.
    fn is_sent(&mut self, record: &Record) {
        let value = number(record);
        let is_it = |asked: &&mut Asked| value.is_some_and(|value| asked.op == Op::Put(value));
        if record.ballot() == 0
            && let Some(asked) = self.asked.iter_mut().find(is_it)
        {
            asked.versions.insert(record.version().time);
        }
    }

    fn record_answer(&mut self, client: ClientId, answer: &Answer) {
        let place = self.clients[client.0 as usize];
        let asked = &mut self.asked[place];
        let told = match answer {
            Answer::Found(found) => Some(found.as_ref().and_then(number)),
            Answer::Written(..) => Some(None),
            Answer::Done(Done::Changed { result, .. }, _) => Some(*result),
            // The write was refused; its call is in the history already.
            Answer::Done(..) => None,
            Answer::Failed(failed) => {
                asked.may_be_done |= asked.op != Op::Get && failed.unknown;
                None
            }
        };
        assert!(asked.open > 0, "answered twice");
        asked.open -= 1;
        match asked.told {
            None if told.is_some() => {
                asked.told = told;
                self.history.push((place, told));
            }
            Some(before) => assert!(told.is_none_or(|told| told == before), "{before:?}, {told:?}"),
            None => {}
        }
    }

    fn asks(&mut self, node: u16, op: Op, has_idempotency_key: bool) {
        let (open, may_be_done, told, versions) = (0, false, None, BTreeSet::new());
        let place = self.asked.len();
        self.asked.push(Asked { op, has_idempotency_key, open, may_be_done, told, versions });
        self.history.push((place, None));
        self.sends(node, place);
    }

    /// Sends a client's operation to a node; later calls repeat it.
    fn sends(&mut self, node: u16, place: usize) {
        let (client, key) = (ClientId(self.clients.len() as u64), Bytes::from(KEY));
        self.clients.push(place);
        let Asked { op, has_idempotency_key, open, .. } = &mut self.asked[place];
        *open += 1;
        let (op, id) = (*op, has_idempotency_key.then(|| id_of(place)));
        let quorum = AskedQuorum::default();
        let event = match op {
            Op::Get => Event::Get { client, key, quorum },
            Op::Put(number) => {
                let clock = &self.members[&node].shared.clock;
                let version = clock.issue(self.now()).expect("the bound is far");
                let record = records::record(&key, Kind::Value, &number.to_string(), version, 0);
                Event::Write { client, key, record, quorum }
            }
            Op::Add(number) => {
                let (condition, change) = (Condition::Any, Change::Add(number));
                let digest = id.unwrap_or_default();
                let conditional = Conditional { condition, change, expiry_ms: 0, digest };
                Event::Change { client, key, conditional, quorum, id }
            }
        };
        self.handle(node, event);
    }

    /// Executes the first pending operation of a node's store.
    fn stores(&mut self, node: u16) {
        let Some(member) = self.members.get_mut(&node) else { return };
        let Some(effect) = member.pending.pop_front() else { return };
        let event = match effect {
            Effect::Read { op, .. } => Event::Read { op, result: Ok(member.held.clone()) },
            Effect::Recall { op, asked, .. } => {
                Event::Recalled { op, result: Ok(member.traces.look_up(asked)) }
            }
            Effect::Write { op, record, via, look, .. } => {
                let held = member.held.as_ref().map(|held| held.rank());
                let result = if held.is_some_and(|held| held >= record.rank()) {
                    // The store keeps the record below the newer one, and notes its operations.
                    member.traces.note(&member.shared, &record, via);
                    let is_newer = |held: &protocol::Rank| look && *held > record.rank();
                    Ok(held.filter(is_newer).map(|held| held.version.time))
                } else if record.write_time() <= member.seal {
                    Err(StoreError::Sealed(member.seal))
                } else {
                    member.traces.note(&member.shared, &record, via);
                    member.held = Some(record);
                    Ok(None)
                };
                Event::Written { op, result }
            }
            other => unreachable!("{other:?} is not for the store"),
        };
        self.handle(node, event);
    }

    fn epoch(&self, node: u16) -> u64 {
        self.members.get(&node).map_or(0, |member| member.shared.membership.views.current().epoch)
    }

    /// Lets a node enter a later decided view, chosen at random.
    fn enters(&mut self, node: u16) {
        let next = self.epoch(node) as usize;
        if next >= self.decided {
            return;
        }
        let view = next + self.below(self.decided - next);
        if self.members.contains_key(&node) {
            let view = self.views[view].clone();
            self.members[&node].shared.membership.views.install(view);
            self.handle(node, Event::Tick);
        } else if self.new.contains(&node) {
            self.starts(node, view.max(1));
        }
    }

    fn takers(&self) -> Vec<u16> {
        let all = self.new.len() < self.old.len();
        let takes = |node: &u16| all || !self.old.contains(node);
        self.new.iter().copied().filter(takes).collect()
    }

    fn has_taken_all(&self, node: u16) -> bool {
        self.members.get(&node).is_some_and(|member| member.has_all)
    }

    /// Decides the next view, if the rules permit it.
    fn decides(&mut self) {
        let may = match self.decided {
            1 => true,
            2 => self.takers().iter().all(|node| self.has_taken_all(*node)),
            3 => {
                let entered = self.old.iter().filter(|node| self.epoch(**node) >= 3).count();
                entered > self.old.len() / 2
            }
            _ => false,
        };
        self.decided += usize::from(may);
    }

    /// Lets a node pull the record of a source that has entered the view.
    fn takes(&mut self) {
        let takers = self.takers();
        if takers.is_empty() || self.decided < 2 {
            return;
        }
        let node = self.below(takers.len());
        let node = takers[node];
        let source = self.below(self.old.len());
        let source = self.old[source];
        if self.epoch(node) < 2 || self.epoch(source) < 2 || self.members[&node].has_all {
            return;
        }
        // All writes that the source admitted under the earlier view must be visible.
        while !self.members[&source].pending.is_empty() {
            self.stores(source);
        }
        let held = self.members[&source].held.clone();
        if let Some(record) = held.filter(|record| record.ballot() > 0 && node != source) {
            let holds = |node: &&u16| {
                self.members[node].held.as_ref().is_some_and(|held| held.rank() == record.rank())
            };
            if self.old.iter().filter(holds).count() <= self.old.len() / 2 {
                // A read first stores the record on a majority.
                return self.asks_if_few(source, Op::Get, false);
            }
        }
        let held = self.members[&source].held.clone();
        let old = self.old.clone();
        let new = self.new.clone();
        let member = self.members.get_mut(&node).expect("it has entered");
        let rank = |record: &Option<Record>| record.as_ref().map(|record| record.rank());
        if let Some(record) = held.filter(|held| Some(held.rank()) > rank(&member.held)) {
            // As for every stored record, the writer of an older record must learn of this record.
            member.shared.replica.newest.note_and_check(
                record.version(),
                u32::from(node) + 7,
                false,
            );
            member.traces.note(&member.shared, &record, Via::Replica);
            member.held = Some(record);
        }
        if old.contains(&node) {
            member.taken.insert(node);
        }
        member.taken.insert(source);
        let taken = |node: &u16| member.taken.contains(node);
        let is_majority = old.iter().filter(|node| taken(node)).count() > old.len() / 2;
        let leavers = old.iter().filter(|node| !new.contains(node));
        if is_majority && leavers.into_iter().all(taken) {
            self.remembers(node);
        }
    }

    /// If all sources have entered the view, gives a node that has pulled all records their memory
    /// of writes with an idempotency key.
    fn remembers(&mut self, node: u16) {
        let before = self.old.clone();
        if before.iter().any(|source| self.epoch(*source) < 2) {
            return;
        }
        for source in &before {
            while !self.members[source].pending.is_empty() {
                self.stores(*source);
            }
        }
        let reporters =
            before.iter().chain([&node].into_iter().filter(|own| !before.contains(own)));
        let told: Vec<_> = reporters.map(|n| (NodeId(*n), &self.members[n].traces)).collect();
        let before: Vec<NodeId> = before.iter().copied().map(NodeId).collect();
        let seal = self.members[&node].seal;
        let remembered = Traces::recollections(NodeId(node), seal, &before, &told);
        let member = self.members.get_mut(&node).expect("it takes");
        remembered.into_iter().for_each(|trace| member.traces.keep(trace));
        member.has_all = true;
        member.shared.membership.lacks.store(false, Ordering::SeqCst);
    }

    fn asks_if_few(&mut self, node: u16, op: Op, has_idempotency_key: bool) {
        if self.asked.len() < MOST_OPS {
            self.asks(node, op, has_idempotency_key);
        }
    }

    /// Lets a client with an idempotency key repeat its write.
    fn says_again(&mut self) {
        let may = |asked: &Asked| asked.has_idempotency_key && asked.open < 2;
        let places: Vec<usize> =
            (0..self.asked.len()).filter(|place| may(&self.asked[*place])).collect();
        if !places.is_empty() && self.clients.len() < MOST_CLIENTS {
            let place = places[self.below(places.len())];
            let node = self.any_member();
            self.sends(node, place);
        }
    }

    fn delivers(&mut self, loses: bool) {
        if self.mail.is_empty() {
            return;
        }
        let place = self.below(self.mail.len());
        let ends = self.mail[place].ends();
        if self.away.is_some_and(|(node, _)| ends.contains(&node)) {
            return;
        }
        let mail = self.mail.swap_remove(place);
        if loses && self.below(40) == 0 {
            return;
        }
        match mail {
            Mail::Request { from, to, under, id, class, ms: remaining_ms, request } => {
                let connection = ConnectionId(from.into());
                let event = Event::Request { connection, id, class, remaining_ms, under, request };
                self.handle(to, event);
            }
            Mail::Reply { from, to, id, reply } => {
                self.handle(to, Event::Reply { peer: NodeId(from), id, reply });
            }
        }
    }

    fn ticks(&mut self, by: u64) {
        self.mono += by;
        let nodes: Vec<u16> = self.members.keys().copied().collect();
        for node in nodes {
            let wake = self.members.get_mut(&node).expect("it is one").protocol.next_wake();
            if wake.is_some_and(|wake| wake <= self.mono) {
                self.handle(node, Event::Tick);
            }
        }
    }

    fn any_member(&mut self) -> u16 {
        let nodes: Vec<u16> = self.members.keys().copied().collect();
        nodes[self.below(nodes.len())]
    }

    fn step(&mut self) {
        if let Some((node, steps)) = self.away {
            self.away = Some((node, steps - 1)).filter(|_| steps > 1);
        }
        match self.below(100) {
            0..4 if self.asked.len() < MOST_OPS => {
                let number = self.asked.len() as i64;
                let op = match self.below(10) {
                    0..3 => Op::Get,
                    3..7 => Op::Put(100_000 * (number + 1)),
                    _ => Op::Add(1 << number),
                };
                let may_be_sent_again = matches!(op, Op::Add(_)) && self.below(2) == 0;
                let node = self.any_member();
                self.asks(node, op, may_be_sent_again);
            }
            4..6 => self.says_again(),
            6..45 => self.delivers(true),
            45..75 => {
                let node = self.any_member();
                self.stores(node);
            }
            75..77 => self.decides(),
            77..82 => {
                let node = self.below(usize::from(NODES)) as u16;
                self.enters(node);
            }
            82..90 => self.takes(),
            90..92 if self.away.is_none() => {
                let node = self.below(usize::from(NODES)) as u16;
                self.away = Some((node, 20 + self.below(200) as u32));
            }
            _ => {
                let by = self.below(1500) as u64;
                self.ticks(by);
            }
        }
    }

    /// Delivers all messages, executes all store operations, completes the move, and lets a client
    /// read.
    fn ends(&mut self) {
        self.away = None;
        for _ in 0..60 {
            for node in 0..NODES {
                self.enters(node);
            }
            for _ in 0..20 {
                self.takes();
            }
            self.decides();
            self.settles();
        }
        self.says_again();
        self.settles();
        let node = self.any_member();
        self.asks(node, Op::Get, false);
        self.settles();
        self.ticks(DEADLINE + 20_000);
        self.ticks(20_000);
        assert!(self.asked.iter().all(|asked| asked.open == 0), "all were answered");
    }

    fn settles(&mut self) {
        for _ in 0..40 {
            // While time stands still, nodes must stop sending messages.
            for n in 0.. {
                if self.mail.is_empty() {
                    break;
                }
                assert!(n < MOST_MAIL, "{:?}", self.mail);
                self.delivers(false);
            }
            let nodes: Vec<u16> = self.members.keys().copied().collect();
            for node in nodes {
                for n in 0.. {
                    if self.members[&node].pending.is_empty() {
                        break;
                    }
                    assert!(n < MOST_MAIL, "{:?}", self.members[&node].pending);
                    self.stores(node);
                }
            }
            self.ticks(1_000);
        }
    }

    fn is_linearizable(&self) -> bool {
        let mut tester = LinearizabilityTester::new(Number(None));
        for (place, told) in &self.history {
            let asked = &self.asked[*place];
            if asked.told.is_none() && !asked.may_be_done {
                continue;
            }
            match told {
                None => {
                    tester.on_invoke(*place, asked.op).expect("one each");
                    if asked.versions.len() > 1 {
                        // A read may return the write under its first version before the second
                        // version exists.
                        tester.on_invoke(1000 + *place, asked.op).expect("one each");
                    }
                }
                Some(told) => {
                    tester.on_return(*place, *told).expect("it was invoked");
                }
            }
        }
        tester.is_consistent()
    }
}

fn number(record: &Record) -> Option<i64> {
    let value = record.value();
    std::str::from_utf8(&value).ok()?.parse().ok()
}

fn run(seed: u64, which: usize, steps: u32) -> Moves {
    let mut moves = Moves::new(seed, which);
    for _ in 0..steps {
        moves.step();
    }
    moves.ends();
    moves
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_key_that_moves_is_one_register(
        seed in any::<u64>(),
        which in 0..MOVES.len(),
        steps in 100u32..1500,
    ) {
        let moves = run(seed, which, steps);
        let tell = || {
            let Moves { old, new, asked, history, .. } = &moves;
            format!("{old:?} → {new:?}: {asked:?} {history:?}")
        };
        prop_assert!(moves.is_linearizable(), "{}", tell());
    }
}

/// A view change cancels a conditional write's accept while this node reads its store, and the
/// write is answered meanwhile. The store's result then belongs to no request.
#[test]
fn a_store_reply_after_a_view_change_is_ignored() {
    assert!(run(14_774_542_465_345_383_200, 5, 147).is_linearizable());
}

/// A pulled record has a greater version, from another clock, than the next write. The writer must
/// learn of the record.
#[test]
fn a_writer_learns_of_a_newer_pulled_record() {
    assert!(run(15_352_397_974_940_723_940, 1, 115).is_linearizable());
}

/// A node that is alone notes the versions of its writes. The note makes it look up newer records
/// once other nodes have joined.
#[test]
fn a_writer_learns_of_newer_records_from_before_others_joined() {
    assert!(run(5_253_317_634_787_021_014, 0, 107).is_linearizable());
}

/// A node that has left still answers its clients, and does not know another node's newer write.
/// The remaining node, now alone, must look up such newer records.
#[test]
fn a_node_that_is_alone_looks_up_records_of_former_members() {
    assert!(run(9_250_833_366_283_705_318, 6, 178).is_linearizable());
}

/// The random worlds must be mild enough: most moves end, and most clients are answered.
#[test]
fn most_moves_end_and_most_clients_are_served() {
    let (mut ended, mut served, mut all) = (0, 0, 0);
    for seed in 1..=200 {
        let moves = run(seed * 7919, seed as usize % MOVES.len(), 800);
        ended += usize::from(moves.decided == 4);
        served += moves.history.iter().filter(|(_, told)| told.is_some()).count();
        all += moves.asked.len();
    }
    assert!(ended > 180, "{ended} of 200 moves ended");
    assert!(served * 10 > all * 7, "{served} of {all} were served");
}
