//! Random tests of one coordinator: events in any order, while members join and leave. Replies of
//! peers and of the store are late, repeated, missing, or belong to another request. The tests
//! check that nothing panics, that every requester is answered once and in time, and that no answer
//! claims more than the replicas reported.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::{
    AcceptedBallots, Acks, Answer, Body, CallId, Change, Class, ClientId, Clock, Config,
    ConnectionId, Done, Effect, Event, Incarnation, Kind, Logs, Mark, Membership, MembershipState,
    NodeId, Now, OpId, OpLookup, Page, Protocol, Quorum, Rank, Record, ReplicaSet, Reply, Request,
    RequestFailure, Shared, SlotId, StoreError, Topology, View, ViewId,
};

use crate::random_words::{
    brief, conditional, conditional_write, newer_time, outcome, record, reply,
};
use crate::records;
use crate::words::{BASE, BRIEF_BYTES};
use crate::world::{topology, without};

const DEADLINE: u64 = 1_000_000;

/// The time limit of calls without a waiting client.
const BACKGROUND: u64 = 10 * DEADLINE;

/// The permitted delay of an answer after its deadline, in microseconds: the sweep interval of
/// slots.
const SWEEP: u64 = 20_000;

const COPIES: u8 = 3;

/// A request to a peer or to the store. A peer may answer it any number of times.
#[derive(Debug, Clone)]
struct Asked {
    /// The recipient; `None` = this node's store.
    peer: Option<NodeId>,
    op: OpId,
    key: Bytes,
    /// The record of a write.
    record: Option<Record>,
    /// True if a connection was up at some time after the request was sent.
    arrived: bool,
    /// True if the requester wants only the outline of a long record.
    brief: bool,
    what: What,
    /// The answer that was given. A node that answers again repeats it.
    said: Option<u16>,
    /// The epoch at the time of the request. After a change of placement, the request no longer
    /// counts.
    epoch: u64,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A read or, with a record, a write.
    Usual,
    Prepare,
    /// A write that is forwarded to a leader; true for an addition.
    Change(bool),
    Recall,
}

/// Returns a replica's answer to a query about a conditional write.
fn op_lookup(b: u16) -> OpLookup {
    match b & 24 {
        0 => OpLookup::Forgotten,
        8 => OpLookup::Never,
        16 => OpLookup::Reused,
        _ => OpLookup::Stored {
            ballots: AcceptedBallots::one(u64::from(b >> 8 & 1)),
            done: outcome(b, b & 32 != 0),
        },
    }
}

/// The ids from this one on belong only to the conditional writes of the test.
const OWN_IDS: u64 = 100;

impl Asked {
    /// True if the request asks to store the record of a conditional write.
    fn is_conditional(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.ballot() > 0)
    }
}

/// The state of a client's request.
#[derive(Debug)]
struct Client {
    quorum: Quorum,
    /// The views in force since the request began, the oldest first.
    views: Vec<Arc<View>>,
    begun: u64,
    answers: usize,
    /// True if the request failed with the report that it was not done.
    done_nowhere: bool,
    is_change: bool,
    /// True if a leader reported the write as done.
    told: bool,
    /// True if a replica reported that it stored the write.
    recalled: bool,
    /// The operations in the records that nodes were asked to store, by rank.
    sent: HashMap<Rank, Vec<u64>>,
    /// Nodes that gave an authoritative answer to the read.
    authoritative: HashSet<NodeId>,
    /// Nodes that reported a record under the last view, with its rank.
    holds: Vec<(NodeId, Rank)>,
    /// True if a node reported such a record under an earlier view.
    was_held: bool,
    /// Nodes that reported the write as stored, each with the time of its newest other record.
    beside: Vec<(NodeId, u64)>,
    /// Nodes whose replies contradict the protocol. They may count for any outcome.
    confused: HashSet<NodeId>,
}

impl Client {
    fn view(&self) -> &View {
        self.views.last().expect("it began under one")
    }

    /// Returns a key's first replicas in each set: the read set, and the other set if partitions
    /// move.
    fn sets(&self, key: &[u8], copies: u8) -> Vec<Vec<NodeId>> {
        sets(self.view(), key, copies)
    }

    /// Checks a reported failure.
    fn check_failure(&mut self, failed: &RequestFailure) {
        // The quorum may be smaller if a read found a record that belongs to fewer replicas.
        let Quorum { ack, from } = failed.quorum;
        let (most_ack, most_from) = (ack.max(self.quorum.ack), from.max(self.quorum.from));
        assert_eq!(Quorum { ack: most_ack, from: most_from }, self.quorum);
        assert!(failed.quorum == self.quorum || !failed.is_write && ack <= from, "{failed:?}");
        assert!(failed.acked <= from, "{failed:?}");
        self.done_nowhere = failed.is_write && !failed.unknown;
        let mut ids = self.sent.values().flatten();
        let nobody = match self.is_change {
            true => !ids.any(|id| *id >= OWN_IDS) && !self.told,
            false => self.holds.is_empty() && !self.was_held,
        };
        let nobody = nobody || !self.confused.is_empty();
        assert!(!self.done_nowhere || nobody, "somebody holds it");
    }

    /// True if an answer names enough replicas, and each of them has reported such a record or has
    /// contradicted the protocol.
    fn is_held_by(&self, key: &[u8], acks: Acks, is: impl Fn(&Rank) -> bool) -> bool {
        assert_eq!(acks.epoch, self.view().epoch);
        let replicas = self.sets(key, self.quorum.from).remove(0);
        let said = |node| self.holds.iter().any(|(holder, rank)| holder == node && is(rank));
        let named = replicas.iter().enumerate().filter(|(place, _)| acks.by.has(*place));
        let holds = named.map(|(_, node)| said(node) || self.confused.contains(node));
        let holds: Vec<bool> = holds.collect();
        holds.len() >= usize::from(self.quorum.ack) && holds.iter().all(|holds| *holds)
    }
}

fn sets(view: &View, key: &[u8], copies: u8) -> Vec<Vec<NodeId>> {
    let replicas = |topology: &Topology| {
        let mut replicas = Vec::new();
        topology.replicas(topology.partition_of(key), copies, &mut replicas);
        replicas
    };
    [Some(&view.topology), view.other.as_ref()].into_iter().flatten().map(replicas).collect()
}

struct Random {
    /// The number of nodes that may be members.
    nodes: u16,
    protocol: Protocol,
    shared: Arc<Shared>,
    mono: u64,
    asked: Vec<Asked>,
    up: HashSet<NodeId>,
    clients: HashMap<Bytes, Client>,
    calls: HashMap<CallId, (u64, usize)>,
    /// Requests of peers to this node: whether the request is a conditional write, and the number
    /// of replies.
    requests: HashMap<u64, (bool, usize)>,
    next: u64,
}

impl Random {
    fn new(nodes: u16) -> Self {
        let topology = topology(nodes, COPIES);
        let clock = Arc::new(Clock::start(7, BASE, 0));
        clock.mark_durable(u64::MAX, 0);
        let membership = Membership::new(MembershipState::Member, 0, true);
        let logs = Arc::new(Logs::first(Incarnation(100)));
        let shared = Arc::new(Shared::new(topology, NodeId(0), clock, membership, 0, logs));
        let config = Config {
            deadline_micros: DEADLINE,
            max_skew_micros: 500_000,
            brief_bytes: BRIEF_BYTES,
        };
        let protocol = Protocol::new(shared.clone(), config);
        let (asked, up, clients, calls, requests) = Default::default();
        Self { nodes, protocol, shared, mono: 1, asked, up, clients, calls, requests, next: 0 }
    }

    fn step(&mut self, (what, a, b): (u8, u16, u16)) {
        let node = NodeId(a % self.nodes);
        let peer = (node.0 > 0).then_some(node);
        match (what % 16, peer) {
            (0 | 1, _) => self.begin(a, b, false),
            (2, _) => self.begin(a, b, true),
            (3, _) => self.begin_change(a, b),
            (4, Some(_)) if what >= 128 => self.send_peer_request(a, b),
            (4, _) => self.call(node, b),
            (5, Some(peer)) => self.connect(peer),
            (6, Some(peer)) => {
                if self.up.remove(&peer) {
                    self.handle(Event::LinkLost(peer));
                }
            }
            (7, Some(peer)) => {
                if !self.up.contains(&peer) {
                    self.asked.retain(|asked| asked.peer != Some(peer) || asked.arrived);
                    self.handle(Event::Unreachable(peer));
                }
            }
            (8, _) => self.overflow(b),
            (9, _) => self.tick(u64::from(b) * 4),
            (10, _) if what < 64 => self.change_members(a),
            (11, Some(peer)) if what < 64 => self.confuse(peer, a, b),
            _ => {
                if let Some(place) = self.pick(a) {
                    self.answer(place, b);
                }
            }
        }
    }

    /// Lets some nodes leave or return. The members are the nodes whose bit is not set, and always
    /// this node. The new view is settled, or moves partitions to the new members from the previous
    /// members, or from other ones.
    fn change_members(&mut self, bits: u16) {
        let topology = without(self.nodes, bits & !1, COPIES);
        let epoch = self.shared.view().epoch + 1;
        let other = || without(self.nodes, bits >> 6 & !1, COPIES);
        self.shared.membership.views.install(match bits >> 12 & 3 {
            0 => View::new_settled(epoch, epoch, topology),
            1 => View::new_moving(epoch, epoch, self.shared.view().topology.clone(), topology),
            _ => View::new_moving(epoch, epoch, topology, other()),
        });
        let view = self.shared.view();
        for client in self.clients.values_mut().filter(|client| client.answers == 0) {
            client.was_held |= !client.holds.is_empty();
            client.holds.clear();
            client.authoritative.clear();
            client.views.push(Arc::clone(&view));
        }
        self.handle(Event::Tick);
    }

    /// Lets a node send a reply that was not requested, or one to another request.
    fn confuse(&mut self, peer: NodeId, a: u16, b: u16) {
        let asked = self.pick(a).map(|place| self.asked[place].clone());
        let (id, key) = match asked {
            Some(Asked { op: OpId::Slot(SlotId(id)), key, .. }) => (id, key),
            _ => (u64::from(a), Bytes::from("k")),
        };
        let (id, authoritative) = (id ^ u64::from(b & 256), b & 16 == 0);
        let reply = match b % 12 {
            10 => Reply::Superseded { epoch: u64::from(b >> 8 & 7) },
            7 => Reply::BallotRefused { promise: newer_time(b) },
            8 => Reply::Done { by: ReplicaSet::default(), done: outcome(b, b & 32 != 0) },
            9 => Reply::Found { record: conditional(&key, b), authoritative },
            0 => Reply::Stored,
            1 => Reply::Newer { time: newer_time(b) },
            2 => Reply::Pong,
            3 => Reply::TopologyMismatch,
            4 => Reply::Page(Page { items: Vec::new(), next: None, authoritative }),
            5 => Reply::Absent { authoritative },
            6 => Reply::Long { outline: record(&key, 1, false).outline(), authoritative },
            _ => Reply::Found { record: record(&key, 1, false), authoritative },
        };
        if let Some(client) = self.clients.get_mut(&key) {
            client.confused.insert(peer);
            client.told |= matches!(reply, Reply::Done { .. });
        }
        self.connect(peer);
        self.handle(Event::Reply { peer, id, reply });
    }

    /// Picks one of the latest requests.
    fn pick(&self, n: u16) -> Option<usize> {
        let len = self.asked.len();
        len.checked_sub(1 + usize::from(n) % len.clamp(1, 24))
    }

    fn connect(&mut self, peer: NodeId) {
        if self.up.insert(peer) {
            let of_peer = self.asked.iter_mut().filter(|asked| asked.peer == Some(peer));
            of_peer.for_each(|asked| asked.arrived = true);
            self.handle(Event::LinkUp(peer));
        }
    }

    fn overflow(&mut self, n: u16) {
        let Some(place) = self.pick(n) else { return };
        if let Asked { peer: Some(peer), op: OpId::Slot(SlotId(id)), said: None, .. } =
            self.asked[place]
        {
            self.asked.remove(place);
            self.handle(Event::MessageDropped { peer, id });
        }
    }

    fn client(&mut self, quorum: Quorum, is_change: bool) -> (ClientId, Bytes) {
        self.next += 1;
        let key = Bytes::from(self.next.to_string());
        let (answers, done_nowhere, told, recalled) = (0, false, false, false);
        let (authoritative, holds, beside, confused, sent) = Default::default();
        let (begun, views, was_held) = (self.mono, vec![self.shared.view()], false);
        let asks = Client {
            quorum,
            views,
            begun,
            answers,
            done_nowhere,
            is_change,
            told,
            recalled,
            sent,
            authoritative,
            holds,
            was_held,
            beside,
            confused,
        };
        self.clients.insert(key.clone(), asks);
        (ClientId(self.next), key)
    }

    /// Begins a conditional write. Each of these writes has its own key; only writes forwarded by
    /// other nodes share a key and wait for each other.
    fn begin_change(&mut self, a: u16, b: u16) {
        let from = COPIES.min(self.nodes as u8);
        let ack = from / 2 + 1 + (a % u16::from(from.div_ceil(2))) as u8;
        let quorum = Quorum { ack, from };
        let (client, key) = self.client(quorum, true);
        let conditional = conditional_write(b);
        let id = (b & 256 != 0).then_some(OWN_IDS + 2 * self.next + 1);
        let quorum = quorum.into();
        self.handle(Event::Change { client, key, conditional, quorum, id });
    }

    /// Lets another node send a request that concerns conditional writes.
    fn send_peer_request(&mut self, a: u16, b: u16) {
        self.next += 1;
        let (connection, id, class) = (ConnectionId(1), self.next, Class::Client);
        let (key, ballot) = (Bytes::from("called"), newer_time(b));
        let own = self.shared.view().id();
        // The other node's view is sometimes later or earlier.
        let under = match b >> 12 & 3 {
            0 => ViewId { epoch: own.epoch + 1, placement: 7 },
            1 => ViewId { epoch: own.epoch - 1, placement: 7 },
            _ => own,
        };
        let is_change = a.is_multiple_of(4) && under == own;
        let request = match a % 4 {
            3 => Request::Recall { key, id, since: ballot, digest: u64::from(b & 2) },
            0 => Request::Change { key, id, ack: (b % 4) as u8, conditional: conditional_write(b) },
            1 => Request::Prepare { key, ballot, most: BRIEF_BYTES, watermark: 0 },
            _ => Request::Write { record: conditional(&key, b), key },
        };
        self.requests.insert(id, (is_change, 0));
        let remaining_ms = 1 + u32::from(b % 1000);
        self.handle(Event::Request { connection, id, class, remaining_ms, under, request });
    }

    fn begin(&mut self, a: u16, b: u16, write: bool) {
        let from = (a % self.nodes) as u8 + 1;
        let quorum = Quorum { ack: (b % u16::from(from)) as u8 + 1, from };
        let (client, key) = self.client(quorum, false);
        let quorum = quorum.into();
        self.handle(if write {
            let version = self
                .shared
                .clock
                .issue(Now { mono: self.mono, wall: BASE + self.mono })
                .expect("the bound is far");
            let record = records::record(&key, Kind::Value, "new", version, from);
            Event::Write { client, key, record, quorum }
        } else {
            Event::Get { client, key, quorum }
        });
    }

    fn call(&mut self, node: NodeId, b: u16) {
        self.next += 1;
        let call = CallId(self.next);
        let key = Bytes::from("called");
        let request = match b % 4 {
            0 => Request::Ping,
            1 => Request::Read { key, most: BRIEF_BYTES },
            2 if node.0 > 0 => {
                let marks = vec![Mark { partition: None, since: u64::from(b) }];
                Request::Missed { node: NodeId(b % 8), marks }
            }
            _ => Request::Write { record: record(&key, 1, false), key },
        };
        self.calls.insert(call, (self.mono, 0));
        self.handle(Event::Call { call, node, class: Class::Hint, request });
    }

    /// Advances the time, with a tick whenever one is due.
    fn tick(&mut self, by: u64) {
        let end = self.mono + by;
        while let Some(wake) = self.protocol.next_wake().filter(|wake| *wake <= end) {
            self.mono = self.mono.max(wake);
            self.handle(Event::Tick);
        }
        self.mono = end;
    }

    /// Records the meaning of an answer for the client that waits for it.
    fn note(&mut self, asked: &Asked, found: Option<&Record>, b: u16) {
        let (verb, authoritative) = (b % 8, b & 64 == 0);
        let node = asked.peer.unwrap_or(NodeId(0));
        let is_recall = asked.what == What::Recall;
        let client = self.clients.get(&asked.key);
        // An answer under an earlier view than the client's is stale.
        if client.is_some_and(|client| asked.epoch < client.view().epoch)
            && !matches!(asked.what, What::Change(_) | What::Recall)
        {
            if let Some(client) = self.clients.get_mut(&asked.key).filter(|_| verb < 4) {
                client.was_held |= asked.record.is_some();
            }
            return;
        }
        if let Some(client) = self.clients.get_mut(&asked.key).filter(|_| !is_recall) {
            let authoritative = asked.peer.is_none() || authoritative;
            match (&asked.record, found) {
                (None, Some(found)) if found.is_intact(&asked.key) => {
                    client.holds.push((node, found.rank()));
                    client.authoritative.extend(Some(node).filter(|_| authoritative));
                }
                (None, None) if verb == 3 && authoritative => client.authoritative.extend([node]),
                // A node that holds a newer record need not hold the conditional write's record.
                (Some(_), _) if asked.is_conditional() && verb == 3 && asked.peer.is_some() => {}
                (Some(record), _) if verb < 4 => {
                    client.holds.push((node, record.rank()));
                    client.beside.push((node, if verb == 3 { newer_time(b) } else { 0 }));
                }
                _ => {}
            }
        }
        let client = self.clients.get_mut(&asked.key);
        match (asked.what, client) {
            (What::Change(_), Some(client)) => client.told |= verb < 4,
            (What::Recall, Some(client)) => client.recalled |= verb < 4,
            _ => {}
        }
    }

    fn answer(&mut self, place: usize, b: u16) {
        if let Some(peer) = self.asked[place].peer {
            self.connect(peer);
        }
        let asked = &mut self.asked[place];
        if asked.peer.is_none() && asked.said.is_some() {
            // The store answers once.
            return;
        }
        let b = *asked.said.get_or_insert(b);
        let asked = asked.clone();
        let (key, op) = (&asked.key, asked.op);
        let (verb, authoritative) = (b % 8, b & 64 == 0);
        // The store verifies the records that it reads.
        let is_brief = asked.brief && b & 32 != 0;
        let damaged = asked.peer.is_some() && b & 128 != 0 && !is_brief;
        let found = (verb < 3).then(|| match b & 8 {
            0 => record(key, u64::from(b >> 8 & 7), damaged),
            _ => conditional(key, b),
        });
        let is_conditional = asked.is_conditional();
        self.note(&asked, found.as_ref(), b);
        let error = match verb {
            4 => StoreError::Busy("busy"),
            5 => StoreError::NoSpace("full".to_owned()),
            _ => StoreError::Failed { begun: b & 16 != 0, detail: "failed".to_owned() },
        };
        let is_write = asked.record.is_some();
        let id = if let OpId::Slot(SlotId(id)) = op { id } else { 0 };
        self.handle(match (asked.peer, is_write) {
            (None, false) if asked.brief && found.is_some() => {
                Event::ReadTooLong { op, outline: found.expect("it is some").outline() }
            }
            (None, false) if asked.what == What::Recall => {
                let kept = (verb == 3).then(|| op_lookup(b));
                Event::Recalled { op, result: if verb < 4 { Ok(kept) } else { Err(error) } }
            }
            (None, false) => {
                Event::Read { op, result: if verb < 4 { Ok(found) } else { Err(error) } }
            }
            (None, true) => Event::Written {
                op,
                result: if verb < 4 {
                    Ok((verb == 3 && !is_conditional).then_some(newer_time(b)))
                } else {
                    Err(error)
                },
            },
            (Some(peer), _) => {
                let reply = match asked.what {
                    What::Change(adds) if verb < 4 => {
                        Reply::Done { by: ReplicaSet::default(), done: outcome(b, adds) }
                    }
                    What::Recall if verb < 4 => Reply::Recalled(op_lookup(b)),
                    What::Prepare if verb == 5 => Reply::BallotRefused { promise: newer_time(b) },
                    What::Usual if is_conditional && verb == 5 => {
                        Reply::BallotRefused { promise: newer_time(b) }
                    }
                    _ => reply(b, is_write, found, authoritative),
                };
                let reply = if asked.brief && b & 32 != 0 { brief(reply) } else { reply };
                Event::Reply { peer, id, reply }
            }
        });
    }

    /// Lets the store complete all pending writes.
    fn end_writes(&mut self) {
        for asked in std::mem::take(&mut self.asked) {
            if asked.peer.is_none() && asked.record.is_some() && asked.said.is_none() {
                self.handle(Event::Written { op: asked.op, result: Ok(None) });
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = Now { mono: self.mono, wall: BASE + self.mono };
        let mut effects = Vec::new();
        self.protocol.handle(now, event, &mut effects);
        for effect in effects {
            self.check_effect(effect);
        }
    }

    fn ask(
        &mut self,
        peer: Option<NodeId>,
        op: OpId,
        key: Bytes,
        record: Option<Record>,
        brief: bool,
        what: What,
    ) {
        let arrived = peer.is_none_or(|peer| self.up.contains(&peer));
        let epoch = self.shared.view().epoch;
        self.asked.push(Asked { peer, op, key, record, arrived, brief, said: None, epoch, what });
    }

    fn check_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Read { op, key, most, .. } => {
                self.ask(None, op, key, None, most == 0, What::Usual);
            }
            Effect::Write { op, key, record, .. } => {
                self.may_hold(NodeId(0), &key, &record);
                self.ask(None, op, key, Some(record), false, What::Usual);
            }
            Effect::Recall { op, key, .. } => {
                self.ask(None, op, key, None, false, What::Recall);
            }
            Effect::Send { peer, message } => {
                assert_ne!(peer, NodeId(0), "a node does not write to itself");
                let Body::Request { remaining_ms, class, request } = message.body else { panic!() };
                let most = if class == Class::Hint { BACKGROUND } else { DEADLINE };
                assert!(u64::from(remaining_ms) * 1000 <= most);
                let brief = matches!(
                    request,
                    Request::Read { most: BRIEF_BYTES, .. } | Request::Prepare { .. }
                );
                let (key, record, what) = match request {
                    Request::Write { key, record } => {
                        self.may_hold(peer, &key, &record);
                        (key, Some(record), What::Usual)
                    }
                    Request::Read { key, .. } => (key, None, What::Usual),
                    Request::Prepare { key, .. } => (key, None, What::Prepare),
                    Request::Recall { key, .. } => (key, None, What::Recall),
                    Request::Change { key, conditional, .. } => {
                        (key, None, What::Change(matches!(conditional.change, Change::Add(_))))
                    }
                    _ => (Bytes::from("called"), None, What::Usual),
                };
                self.ask(Some(peer), OpId::Slot(SlotId(message.id)), key, record, brief, what);
            }
            Effect::Hint { hint, peer, key, record } => {
                assert_ne!(peer, NodeId(0));
                self.may_hold(peer, &key, &record);
                let nowhere = self.clients.get(&key).is_some_and(|client| client.done_nowhere);
                assert!(!nowhere, "a hint for what was done nowhere");
                let before = self.shared.transfer.missed.partitions(peer);
                let kept = hint.0.is_multiple_of(2);
                self.handle(Event::HintStored { hint, kept });
                let marked = self.shared.transfer.missed.partitions(peer) > 0;
                assert!(if kept { marked == (before > 0) } else { marked }, "lost, and not marked");
            }
            Effect::Answer { client, answer } => self.check_answer(client, &answer),
            Effect::Respond { id, .. } => {
                let (_, times) = self.requests.get_mut(&id).expect("a request that was made");
                *times += 1;
                assert_eq!(*times, 1);
            }
            Effect::ReturnCall { call, .. } => {
                let (begun, times) = self.calls.get_mut(&call).expect("a call that was made");
                *times += 1;
                assert_eq!(*times, 1);
                assert!(self.mono <= *begun + BACKGROUND + SWEEP);
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }

    /// Checks that a record is sent only to its replicas.
    fn may_hold(&mut self, node: NodeId, key: &Bytes, record: &Record) {
        let Some(client) = self.clients.get_mut(key) else { return assert_eq!(key, "called") };
        if record.ballot() > 0 {
            let steps = record.op_history();
            let ids = steps.operations.iter().map(|operation| operation.id).collect();
            client.sent.insert(record.rank(), ids);
        }
        let copies = if record.copies() == 0 { COPIES } else { record.copies() };
        let now = self.shared.view();
        let views = client.views.iter().chain([&now]);
        let mut replicas = views.flat_map(|view| sets(view, key, copies)).flatten();
        assert!(replicas.any(|replica| replica == node), "{node:?} is to hold no copy");
    }

    fn check_answer(&mut self, client: ClientId, answer: &Answer) {
        let key = Bytes::from(client.0.to_string());
        let client = self.clients.get_mut(&key).expect("one that asked");
        client.answers += 1;
        assert_eq!(client.answers, 1);
        assert!(self.mono <= client.begun + DEADLINE + SWEEP, "too late");
        let ack = usize::from(client.quorum.ack);
        let holding = |is: &dyn Fn(&Rank) -> bool, among: &[NodeId]| {
            let nodes = client.holds.iter().filter(|(_, rank)| is(rank)).map(|(node, _)| node);
            let nodes = nodes.chain(&client.confused).filter(|node| among.contains(node));
            nodes.collect::<HashSet<_>>().len()
        };
        let sets = client.sets(&key, client.quorum.from);
        match answer {
            Answer::Written(version, acks) => {
                let is_it = |rank: &Rank| rank.version == *version;
                assert!(client.is_held_by(&key, *acks, is_it), "not by all of {acks:?}");
                for set in &sets {
                    let held = holding(&is_it, set);
                    assert!(held >= ack, "{held} of {set:?} hold it, not {ack}");
                }
                let below = client.beside.iter().filter(|(_, time)| *time < version.time);
                let below = below.map(|(node, _)| node).chain(&client.confused);
                let below: HashSet<&NodeId> = below.collect();
                assert!(below.len() >= ack, "it does not come after what was there before");
            }
            Answer::Done(done, acks) => {
                assert!(client.is_change);
                let is_told = |rank: &Rank| match done {
                    Done::Changed { tag, .. } => {
                        let id = tag.last.map(|(_, id)| id).expect("it is a step");
                        client.sent.get(rank).is_some_and(|ids| ids.contains(&id))
                    }
                    _ => true,
                };
                let is_held =
                    |rank: &Rank| sets.iter().all(|set| holding(&|r| r == rank, set) >= ack);
                let mut ranks = client.holds.iter().map(|(_, rank)| rank);
                let chosen = ranks.any(|rank| is_told(rank) && is_held(rank));
                let absent = matches!(done, Done::Unmet { current: None } | Done::Impossible(_));
                // This node may know from its own store which writes were stored under an earlier
                // view.
                let is_said = client.told || client.recalled || client.was_held;
                assert!(chosen || is_said || absent, "what is told is not chosen: {done:?}");
                let is_recalled = client.recalled || client.was_held;
                let unsaid = absent || is_recalled || acks.by == ReplicaSet::default();
                assert!(unsaid || client.is_held_by(&key, *acks, is_told), "not by {acks:?}");
            }
            Answer::Found(found) => {
                let authoritative = client.authoritative.union(&client.confused);
                let authoritative = authoritative.filter(|node| sets[0].contains(node)).count();
                assert!(authoritative >= ack, "{authoritative} are authoritative, not {ack}");
                if let Some(found) = found {
                    let is_plain = found.ballot() == 0;
                    let is_it = |rank: &Rank| {
                        let later = is_plain || rank.version > found.version();
                        *rank == found.rank() || *rank > found.rank() && later
                    };
                    let copies = if found.copies() == 0 { COPIES } else { found.copies() };
                    for set in client.sets(&key, client.quorum.from.min(copies)) {
                        let held = holding(&is_it, &set);
                        let is_told = ack > 1 || client.quorum.from == 1;
                        let wanted = if is_told { ack.min(set.len()) } else { 0 };
                        assert!(held >= wanted, "{held} of {set:?} hold it, not {wanted}");
                    }
                }
            }
            Answer::Failed(failed) => client.check_failure(failed),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_requester_is_answered_once_in_time_and_correctly(
        nodes in 1u16..6,
        steps in vec(any::<(u8, u16, u16)>(), 1..150),
    ) {
        let mut random = Random::new(nodes);
        for step in steps {
            random.step(step);
        }
        random.tick(BACKGROUND + DEADLINE);
        random.end_writes();
        random.tick(SWEEP);
        prop_assert!(random.requests.values().all(|(is_change, n)| !is_change || *n == 1));
        prop_assert!(random.clients.values().all(|client| client.answers == 1));
        prop_assert!(random.calls.values().all(|(_, times)| *times == 1));
        prop_assert!(random.protocol.is_empty());
        prop_assert_eq!(random.protocol.next_wake(), None);
    }

    /// Each request of another node gets one reply, whatever this node's store returns.
    #[test]
    fn a_replica_answers_what_it_is_asked(asked in vec(any::<(u8, u8)>(), 1..50)) {
        let mut random = Random::new(3);
        let now = Now { mono: 1, wall: BASE };
        let key = Bytes::from("k");
        let mut effects = Vec::new();
        for ((what, result), id) in asked.iter().zip(0u64..) {
            let record = record(&key, u64::from(*result) % 8, what & 8 != 0);
            let request = match what % 4 {
                0 => Request::Read { key: key.clone(), most: BRIEF_BYTES },
                1 => Request::Write { key: key.clone(), record },
                2 => Request::Writes { items: vec![(key.clone(), record)] },
                _ => Request::Ping,
            };
            let (connection, class, remaining_ms) = (ConnectionId(1), Class::Client, 1);
            let under = random.shared.view().id();
            let event = Event::Request { connection, id, class, remaining_ms, under, request };
            random.protocol.handle(now, event, &mut effects);
            let op = match effects.last() {
                Some(
                    Effect::Read { op, .. }
                    | Effect::Write { op, .. }
                    | Effect::WriteAll { op, .. },
                ) => *op,
                _ => OpId::Slot(SlotId(0)),
            };
            let error = StoreError::Busy("busy");
            let result = match effects.pop() {
                Some(Effect::Read { .. }) if *result < 9 => Event::Read { op, result: Err(error) },
                Some(Effect::Read { .. }) => Event::Read { op, result: Ok(None) },
                Some(Effect::Write { .. } | Effect::WriteAll { .. }) => {
                    Event::Written { op, result: Ok((*result < 9).then_some(0)) }
                }
                Some(Effect::Respond { .. }) => continue,
                other => panic!("{other:?}"),
            };
            random.protocol.handle(now, result, &mut effects);
            let last = effects.pop();
            let answered = matches!(last, Some(Effect::Respond { id: to, .. }) if to == id);
            prop_assert!(answered && effects.is_empty());
        }
    }
}
