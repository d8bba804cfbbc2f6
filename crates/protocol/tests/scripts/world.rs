//! A coordinator under test and its environment, which a script drives.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::{
    Background, BackgroundConfig, Boot, BootHistory, BootId, CallId, Change, Clock, Condition,
    Conditional, Config, ConnectionId, Effect, Event, HintId, Incarnation, LogPosition, Logs,
    Member, Membership, NodeId, Now, OpId, Proof, Protocol, Quorum, RoundConfig, Scan, Shared,
    SlotId, StoreError, Tag, Topology, origin_of, quorum,
};

use crate::records;
use crate::words::{self, BASE, Words, micros, newer, next, node, parse_numbered};

pub(crate) type Split<'a> = std::str::SplitWhitespace<'a>;

/// The incarnation of this node's disk.
const OWN_DISK: Incarnation = Incarnation(100);

/// A request to the store.
#[derive(Debug, Clone)]
enum Asked {
    Read(Vec<u8>),
    Recall,
    Write,
    Keep(NodeId),
    Proof(Proof),
    Page,
}

#[derive(Debug)]
pub(crate) struct World {
    protocol: Protocol,
    pub(crate) node: Background,
    /// The node's calls and their keys, in the order of their numbers in scripts; and the last ping
    /// to each node.
    pub(crate) calls: Vec<(CallId, bytes::Bytes)>,
    pub(crate) pings: BTreeMap<NodeId, CallId>,
    /// The calls that read nodes' hints.
    pub(crate) hint_reads: BTreeMap<NodeId, CallId>,
    pub(crate) range: Option<Scan>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) words: Words,
    pub(crate) mono: u64,
    /// The offset of the wall clock, in microseconds.
    off: i64,
    /// True if the clock's bound can no longer be persisted.
    stuck: bool,
    asked: HashMap<String, (OpId, Asked)>,
    /// The keys of the slots that sent messages.
    keys: HashMap<u64, Vec<u8>>,
    /// The slot that `s` stands for: the slot used last.
    latest: Option<u64>,
}

/// Returns the value of the word `name=value` of a command; without the word, the default.
fn option<'a>(words: &[&'a str], name: &str, default: &'a str) -> &'a str {
    let value = |word: &&'a str| word.strip_prefix(name)?.strip_prefix('=');
    words.iter().find_map(value).unwrap_or(default)
}

/// Parses `ID:BEGINS,…`, the oldest boot first. Each boot begins with records up to its own time.
fn boot_history(text: &str) -> Result<BootHistory, String> {
    let mut lives = text.split(',').map(|life| {
        let (id, begins) = life.split_once(':').ok_or_else(|| format!("{life:?} is no life"))?;
        let parse = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
        let id: u64 = parse(id)?;
        let (begins, newest) = (LogPosition(parse(begins)?), (BASE + id) << 12);
        Ok::<_, String>(Boot { id: BootId(id), begins, newest })
    });
    let mut lives = lives.by_ref().collect::<Result<Vec<_>, _>>()?;
    let now = lives.pop().ok_or("no life")?;
    Ok(BootHistory::new(lives, now))
}

/// Returns the topology of nodes n0, n1, …, which is made once for all tests.
pub(crate) fn topology(nodes: u16, replicas: u8) -> Topology {
    static MADE: Mutex<BTreeMap<(u16, u8), Topology>> = Mutex::new(BTreeMap::new());
    assert!(nodes <= 10, "the names' order is the ids', but n10 comes before n2");
    let member = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
    let members = || (0..nodes).map(member).collect();
    let make = || Topology::new(members(), replicas).expect("there is nothing to refuse");
    let mut made = MADE.lock();
    made.entry((nodes, replicas)).or_insert_with(make).clone()
}

/// Returns the topology of `nodes` nodes, without the nodes whose bit is set in `away`. The other
/// nodes keep their ids.
pub(crate) fn without(nodes: u16, away: u16, replicas: u8) -> Topology {
    static MADE: Mutex<BTreeMap<(u16, u16, u8), Topology>> = Mutex::new(BTreeMap::new());
    let all = topology(nodes, replicas);
    let away = away & ((1 << nodes) - 1);
    let stays = |id: &NodeId| away >> id.0 & 1 == 0;
    let members = || all.ids().filter(stays).map(|id| (id, all.member(id).clone())).collect();
    let make = || Topology::of(members(), replicas).expect("there is nothing to refuse");
    let mut made = MADE.lock();
    made.entry((nodes, away, replicas)).or_insert_with(make).clone()
}

impl World {
    /// Parses `nodes 3 [replicas=3] [own=n0] [deadline=1s] [skew=500ms] [membership=member]
    /// [lost_before=0ms] [confirmed=yes] [lives=1:0] [counted=0ms]`. `counted` is the time for
    /// which other nodes count records that this node stored before its start.
    pub(crate) fn new(words: &str) -> Result<Self, String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let parse = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
        let nodes: u16 = parse(words.get(1).copied().unwrap_or("-"))?;
        let replicas = parse(option(&words, "replicas", "3"))?;
        let own = node(option(&words, "own", "n0"))?;
        let state = words::state(option(&words, "membership", "member"))?;
        let lost_before = (BASE + micros(option(&words, "lost_before", "0ms"))?) << 12;
        let topology = topology(nodes, replicas as u8);
        let origin = origin_of(&topology.member(own).name);
        let clock = Arc::new(Clock::start(origin, BASE, 0));
        let lost_a_disk = option(&words, "disk", "lost") == "lost";
        let confirmed = option(&words, "confirmed", "yes") == "yes";
        let membership = Membership::new(state, lost_before, confirmed);
        let membership = membership.with_promised_before(if lost_a_disk { lost_before } else { 0 });
        let boot_history = boot_history(option(&words, "lives", "1:0"))?;
        let logs = Arc::new(Logs::new(OWN_DISK, boot_history, &[]));
        let shared = Shared::new(topology.clone(), own, clock, membership, 0, logs);
        let shared = Arc::new(shared);
        let max_skew_micros = micros(option(&words, "skew", "500ms"))?;
        let config = Config {
            deadline_micros: micros(option(&words, "deadline", "1s"))?,
            max_skew_micros,
            brief_bytes: words::BRIEF_BYTES,
        };
        let node = Background::new(
            shared.clone(),
            BackgroundConfig {
                deadline_micros: micros(option(&words, "counted", "0ms"))?,
                syncs_always: true,
                max_skew_micros: config.max_skew_micros,
                rounds: RoundConfig::NONE,
                stream_rate: None,
                remembered: |_, _| None,
            },
        );
        // All other nodes know this node's disk.
        topology.ids().for_each(|node| shared.membership.known_disk.mark_known(node, 0));
        shared.membership.known_disk.set_waiting(false);
        Ok(Self {
            protocol: Protocol::new(shared.clone(), config),
            node,
            calls: Vec::new(),
            pings: BTreeMap::new(),
            hint_reads: BTreeMap::new(),
            range: None,
            shared,
            words: Words::new(topology),
            // With a start above 0, the first version is that of a whole microsecond, without a
            // counter.
            mono: 1000,
            off: 0,
            stuck: false,
            asked: HashMap::new(),
            keys: HashMap::new(),
            latest: None,
        })
    }

    /// Executes a command, and returns a line for each effect.
    pub(crate) fn command(&mut self, line: &str) -> Result<Vec<String>, String> {
        if let Some((times, commands)) =
            line.strip_prefix("repeat ").and_then(|l| l.split_once(':'))
        {
            let times = times.parse().map_err(|_| format!("{times:?} is no number"))?;
            return self.repeat(times, commands);
        }
        self.keep_bound();
        let mut words = line.split_whitespace();
        let name = next(&mut words, "a command")?;
        match name {
            "key" => {
                let (name, _) = (next(&mut words, "a name")?, next(&mut words, "on")?);
                let nodes = words.map(node).collect::<Result<Vec<_>, _>>()?;
                self.words.place(name, &nodes)?;
                Ok(Vec::new())
            }
            "clock" => self.clock(&mut words),
            "membership" => {
                let state = words::state(next(&mut words, "a membership state")?)?;
                self.shared.membership.state.set(state);
                Ok(Vec::new())
            }
            "disk" => {
                let is_known = next(&mut words, "known or unknown")? == "known";
                self.shared.membership.known_disk.set_waiting(!is_known);
                Ok(Vec::new())
            }
            "wait" => {
                self.mono += micros(next(&mut words, "a time")?)?;
                Ok(Vec::new())
            }
            "tick" => Ok(self.tick(micros(next(&mut words, "a time")?)?)),
            "state" => Ok(vec![self.state()]),
            "node" => self.of_node(&mut words),
            "range" => self.of_range(&mut words),
            "filter" => self.filter(&mut words),
            _ => {
                let event = self.event(name, &mut words)?;
                Ok(self.texts(&event))
            }
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now { mono: self.mono, wall: (BASE + self.mono).saturating_add_signed(self.off) }
    }

    /// Handles an event. Remembers requests to the store, so that scripts can answer them.
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.protocol.handle(self.now(), event, &mut effects);
        for effect in &effects {
            let (op, asked) = match effect {
                Effect::Read { op, key, .. } => (*op, Asked::Read(key.to_vec())),
                Effect::Recall { op, .. } => (*op, Asked::Recall),
                Effect::Write { op, .. } | Effect::WriteAll { op, .. } => (*op, Asked::Write),
                Effect::StoreMissed { op, node } => (*op, Asked::Keep(*node)),
                Effect::StoreProof { op, proof } => (*op, Asked::Proof(*proof)),
                Effect::Page { op, .. } => (*op, Asked::Page),
                Effect::Send { message, .. } => {
                    self.latest = Some(message.id);
                    continue;
                }
                _ => continue,
            };
            self.asked.insert(words::op(op), (op, asked));
            if let OpId::Slot(SlotId(id)) = op {
                self.latest = Some(id);
            }
        }
        self.note_keys(&effects);
        effects
    }

    fn note_keys(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Send { message, .. } = effect
                && let protocol::Body::Request { request, .. } = &message.body
                && let protocol::Request::Read { key, .. }
                | protocol::Request::Prepare { key, .. }
                | protocol::Request::Write { key, .. }
                | protocol::Request::AcceptNext { key, .. } = request
            {
                self.keys.insert(message.id, key.to_vec());
            }
        }
    }

    /// Returns a line for each effect. For store operations of other nodes, the line has the time
    /// until the requester's deadline, unless that is one second.
    fn texts(&self, effects: &[Effect]) -> Vec<String> {
        let text = |effect: &Effect| {
            let (Effect::Read { op, demand, .. }
            | Effect::Write { op, demand, .. }
            | Effect::WriteAll { op, demand, .. }
            | Effect::Page { op, demand, .. }) = effect
            else {
                return self.words.effect(effect);
            };
            let left = demand.until - self.mono;
            let is_usual = left == 1_000_000 || matches!(op, OpId::Slot(_));
            let left = if is_usual { String::new() } else { format!(" ({} ms)", left / 1000) };
            self.words.effect(effect) + &left
        };
        effects.iter().map(text).collect()
    }

    /// Advances the time, with a tick whenever one is due.
    fn tick(&mut self, by: u64) -> Vec<String> {
        let (end, mut lines) = (self.mono + by, Vec::new());
        while let Some(wake) = self.protocol.next_wake().filter(|wake| *wake <= end) {
            self.mono = self.mono.max(wake);
            let effects = self.handle(Event::Tick);
            let at = words::time(self.mono as i64);
            lines.extend(self.texts(&effects).iter().map(|text| format!("at {at} ms {text}")));
        }
        self.mono = end;
        lines
    }

    fn state(&mut self) -> String {
        let wake = self.protocol.next_wake().map(|at| words::time(at as i64));
        let wake = wake.map_or("never".to_owned(), |at| format!("at {at} ms"));
        format!("{} under way, to be woken {wake}", self.protocol.len())
    }

    fn clock(&mut self, words: &mut Split<'_>) -> Result<Vec<String>, String> {
        match next(words, "what")? {
            "stuck" => {
                self.stuck = true;
                self.shared.clock.stop();
                Ok(Vec::new())
            }
            "steps" => {
                let by = next(words, "a time")?;
                let back = by.strip_prefix('-');
                let by = micros(back.unwrap_or(by))? as i64;
                self.off += if back.is_some() { -by } else { by };
                Ok(Vec::new())
            }
            "saw" => {
                let time = (BASE + micros(next(words, "a time")?)?) << 12;
                let taken = self.shared.clock.merge(time, self.now(), 500_000);
                Ok(vec![(if taken { "taken in" } else { "too far ahead" }).to_owned()])
            }
            other => Err(format!("{other:?} is nothing that a clock does")),
        }
    }

    /// Executes commands many times, and returns the counts of their effects.
    fn repeat(&mut self, times: u32, commands: &str) -> Result<Vec<String>, String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..times {
            for command in commands.split(';') {
                for line in self.command(command.trim())? {
                    let verb = |word: &&str| word.chars().all(|c| c.is_alphabetic() || c == ',');
                    let words: Vec<_> = line.split_whitespace().filter(verb).take(2).collect();
                    *counts.entry(words.join(" ")).or_default() += 1;
                }
            }
        }
        Ok(counts.into_iter().map(|(what, count)| format!("{count} times: {what}")).collect())
    }

    /// Handles the event of a command.
    fn event(&mut self, name: &str, words: &mut Split<'_>) -> Result<Vec<Effect>, String> {
        let event = match name {
            "get" => self.get(words)?,
            "put" => self.put(words)?,
            "change" => self.change(words)?,
            "store" => self.store(words)?,
            "call" => {
                let call = CallId(parse_numbered(next(words, "a call")?, 'k')?);
                let node = node(next(words, "a node")?)?;
                let class = words::class(next(words, "a class")?)?;
                Event::Call { call, node, class, request: self.words.request(words)? }
            }
            "hint" => {
                let hint = HintId(parse_numbered(next(words, "a hint")?, 'h')?);
                let kept = match next(words, "kept or lost")? {
                    "kept" => true,
                    "lost" => false,
                    other => return Err(format!("{other:?} is neither kept nor lost")),
                };
                Event::HintStored { hint, kept }
            }
            "up" => Event::LinkUp(node(next(words, "a node")?)?),
            "lost" => Event::LinkLost(node(next(words, "a node")?)?),
            "unreachable" => Event::Unreachable(node(next(words, "a node")?)?),
            "overflow" => {
                let peer = node(next(words, "a node")?)?;
                Event::MessageDropped { peer, id: self.slot(next(words, "a slot")?)? }
            }
            connection if connection.starts_with('l') => {
                let OpId::Peer { connection, id, .. } = words::parse_op(connection)? else {
                    unreachable!()
                };
                self.request(connection, id, words)?
            }
            peer if peer.starts_with('n') => self.reply(node(peer)?, words)?,
            other => return Err(format!("{other:?} is no command")),
        };
        Ok(self.handle(event))
    }

    fn slot(&self, text: &str) -> Result<u64, String> {
        match (text, self.latest) {
            ("s", Some(latest)) => Ok(latest),
            _ => match words::parse_op(text)? {
                OpId::Slot(SlotId(id)) => Ok(id),
                OpId::Peer { .. } => Err(format!("{text} is no slot")),
            },
        }
    }

    /// Returns the requested quorum, or the default; and the number of copies of records that are
    /// written with it (0 = the default).
    pub(crate) fn quorum(&self, asked: Option<&str>) -> Result<(Quorum, u8), String> {
        let asked = asked.map(words::quorum).transpose()?;
        let (ack, from) = (asked.map(|(ack, _)| ack), asked.map(|(_, from)| from));
        let view = self.shared.view();
        let topology = &view.topology;
        let replicas = topology.default_copies().into();
        let quorum = quorum(ack, from, topology.nodes() as u32, replicas);
        let copies = from.unwrap_or(0) as u8;
        quorum.map(|quorum| (quorum, copies)).map_err(|refusal| refusal.to_string())
    }

    /// Parses `get c1 a [2/3]`.
    fn get(&mut self, words: &mut Split<'_>) -> Result<Event, String> {
        let client = protocol::ClientId(parse_numbered(next(words, "a client")?, 'c')?);
        let key = self.words.key(next(words, "a key")?)?;
        let (quorum, _) = self.quorum(words.next())?;
        Ok(Event::Get { client, key, quorum: quorum.into() })
    }

    /// Parses `change c1 a put x`, `del`, `add 5`; then `until 30ms`; then `if exists`, `if
    /// absent`, `if @5n1` (a plain tag).
    fn change(&mut self, words: &mut Split<'_>) -> Result<Event, String> {
        let client = protocol::ClientId(parse_numbered(next(words, "a client")?, 'c')?);
        let key = self.words.key(next(words, "a key")?)?;
        let change = match next(words, "what is changed")? {
            "put" => Change::Put(next(words, "a value")?.to_owned().into()),
            "del" => Change::Delete,
            "add" => {
                let number = next(words, "a number")?;
                Change::Add(number.parse().map_err(|_| format!("{number:?} is no number"))?)
            }
            other => return Err(format!("{other:?} is no change")),
        };
        let mut words = words.peekable();
        let expiry = words.next_if_eq(&"until").and_then(|_| words.next());
        let expiry_ms = expiry.map_or(Ok(0), |at| micros(at).map(|at| (BASE + at) / 1000))?;
        let id = words.next_if_eq(&"known").and_then(|_| words.next());
        let (id, digest) = id.map_or((None, None), |id| {
            id.split_once('/').map_or((Some(id), None), |(id, digest)| (Some(id), Some(digest)))
        });
        let id = id.map(|id| words::number(id, "id")).transpose()?;
        let digest = digest.map_or(Ok(0), |digest| words::number(digest, "digest"))?;
        let asked = words.next_if_eq(&"quorum").and_then(|_| words.next());
        let (quorum, _) = self.quorum(asked)?;
        let condition = match (words.next(), words.next()) {
            (Some("if"), Some("exists")) => Condition::Exists,
            (Some("if"), Some("absent")) => Condition::Absent,
            (Some("if"), Some(tag)) => {
                let record = self.words.record(b"", tag)?;
                Condition::OneOf(vec![Tag { version: record.version(), last: None }])
            }
            _ => Condition::Any,
        };
        let conditional = Conditional { condition, change, expiry_ms, digest };
        Ok(Event::Change { client, key, conditional, quorum: quorum.into(), id })
    }

    /// Persists the clock's bound, if the clock requests it.
    fn keep_bound(&self) {
        if !self.stuck
            && let Some(bound) = self.shared.clock.bound_to_persist(self.now())
        {
            self.shared.clock.mark_durable(bound, 0);
        }
    }

    /// Parses `put c1 a=x [2/3]`, `put c1 a=del [2/3]`.
    fn put(&mut self, words: &mut Split<'_>) -> Result<Event, String> {
        let client = protocol::ClientId(parse_numbered(next(words, "a client")?, 'c')?);
        let item = next(words, "key=value")?;
        let (key, value) = item.split_once('=').ok_or("key=value is missing")?;
        let key = self.words.key(key)?;
        let (kind, value) = words::content(value);
        let (quorum, copies) = self.quorum(words.next())?;
        let version = self.shared.clock.issue(self.now()).map_err(|error| error.to_string())?;
        let record = records::record(&key, kind, value, version, copies);
        Ok(Event::Write { client, key, record, quorum: quorum.into() })
    }

    /// Parses `store r0 found x@5n1`, `absent`, `wrote`, `wrote newer`, `sealed 5ms` (the repair
    /// fence that refused a write), `busy`, `nospace`, `failed` (the write may have been done),
    /// `refused` (the write was not done), `page ITEM…`.
    fn store(&mut self, words: &mut Split<'_>) -> Result<Event, String> {
        let name = next(words, "a slot or a connection's request")?;
        let op = match name {
            "s" => OpId::Slot(SlotId(self.slot(name)?)),
            name => words::parse_op(name)?,
        };
        let asked = self.asked.get(&words::op(op)).cloned();
        let (op, asked) = asked.ok_or_else(|| format!("{name} asked nothing of the store"))?;
        let error = match next(words, "a result")? {
            "never" => return Ok(Event::Recalled { op, result: Ok(None) }),
            "reused" => {
                return Ok(Event::Recalled { op, result: Ok(Some(protocol::OpLookup::Reused)) });
            }
            "kept" => {
                let kept = self.words.op_lookup(words)?;
                return Ok(Event::Recalled { op, result: Ok(Some(kept)) });
            }
            "found" => {
                let Asked::Read(key) = asked else { return Err("nothing was read".to_owned()) };
                let record = self.words.record(&key, next(words, "a record")?)?;
                return Ok(Event::Read { op, result: Ok(Some(record)) });
            }
            "long" => {
                let Asked::Read(key) = asked else { return Err("nothing was read".to_owned()) };
                let outline = self.words.record(&key, next(words, "a record")?)?.outline();
                return Ok(Event::ReadTooLong { op, outline });
            }
            "absent" => return Ok(Event::Read { op, result: Ok(None) }),
            "wrote" => {
                let newer = match words.next() {
                    Some("newer") => Some(newer(words.next())?),
                    _ => None,
                };
                match asked {
                    Asked::Keep(node) => {
                        let (_, changes) = self.shared.transfer.missed.encode(node);
                        self.shared.transfer.missed.mark_durable(node, changes);
                    }
                    Asked::Proof(proof) => self.shared.repair.proofs.put_in_force(proof),
                    Asked::Read(_) | Asked::Recall | Asked::Write | Asked::Page => {}
                }
                return Ok(Event::Written { op, result: Ok(newer) });
            }
            "page" => {
                return Ok(Event::PageRead { op, result: Ok(self.words.page(words)?) });
            }
            "sealed" => StoreError::Sealed(newer(words.next())?),
            "busy" => StoreError::Busy("the queue is full"),
            "nospace" => StoreError::NoSpace("the disk is full".to_owned()),
            "failed" => StoreError::Failed { begun: true, detail: "the disk failed".to_owned() },
            "refused" => StoreError::Failed { begun: false, detail: "the disk failed".to_owned() },
            other => return Err(format!("{other:?} is no result")),
        };
        Ok(match asked {
            Asked::Read(_) => Event::Read { op, result: Err(error) },
            Asked::Recall => Event::Recalled { op, result: Err(error) },
            Asked::Write | Asked::Keep(_) | Asked::Proof(_) => {
                Event::Written { op, result: Err(error) }
            }
            Asked::Page => Event::PageRead { op, result: Err(error) },
        })
    }

    /// Parses `l7.1 client write a=x@5n1`. The requester waits for one second, or with `l7.1 200ms
    /// client …` for the given time.
    fn request(
        &mut self,
        connection: ConnectionId,
        id: u64,
        words: &mut Split<'_>,
    ) -> Result<Event, String> {
        let first = next(words, "a class")?;
        let (remaining, class) = match micros(first) {
            Ok(remaining) => (remaining, next(words, "a class")?),
            Err(_) => (1_000_000, first),
        };
        let (class, remaining_ms) = (words::class(class)?, (remaining / 1000) as u32);
        Ok(Event::Request {
            connection,
            id,
            class,
            remaining_ms,
            under: self.shared.view().id(),
            request: self.words.request(words)?,
        })
    }

    /// Parses `n1 w0 stored`.
    fn reply(&mut self, peer: NodeId, words: &mut Split<'_>) -> Result<Event, String> {
        let id = self.slot(next(words, "a slot")?)?;
        let key = self.keys.get(&id).cloned().unwrap_or_default();
        Ok(Event::Reply { peer, id, reply: self.words.reply(&key, words)? })
    }
}
