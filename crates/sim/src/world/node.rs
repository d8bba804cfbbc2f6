//! What a process does once for all its loops: the protocol's [`cluster::Node`], and what it keeps
//! in the store.

use bytes::Bytes;
use cluster::{
    CallId, Claim, Event, HintId, Life, Lineage, NODE_TICK_MICROS, NodeEffect, NodeEvent, NodeId,
    OpId, Record, Reply, Standing, StoreError, Told, Topology, Trouble, hint_bytes,
};
use lsm::{Batch, Error, Space, Version};

use super::machine::Input;
use super::{Due, Place, World};
use crate::ledger::show;
use crate::store::{Asker, Hint, Store};

/// Where the clock's bound is kept, in [`Space::Node`].
pub(super) const BOUND_KEY: &[u8] = b"clock-bound";
const INCARNATION_KEY: &[u8] = b"incarnation";
pub(super) const STANDING_KEY: &[u8] = b"standing";
pub(super) const BORN_KEY: &[u8] = b"born";
const LIVES_KEY: &[u8] = b"lives";

/// How long after a failure hints are read again, in microseconds.
const AGAIN_MICROS: u64 = 100_000;

/// What a node keeps about itself and the others.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) incarnation: u64,
    pub(super) standing: Standing,
    pub(super) born: u64,
    pub(super) known: Vec<Option<Claim>>,
    pub(super) lineage: Lineage,
    /// What is kept of what each node misses.
    pub(super) missed: Vec<Option<Bytes>>,
    /// Hints that wait in the store: for whom, how many, and their bytes.
    pub(super) hints: Vec<(NodeId, u64, u64)>,
}

/// What is found before anything is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovered {
    pub(super) sequence: u64,
    pub(super) newest: u64,
}

/// How a life begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beginning {
    pub(super) found: Recovered,
    /// The clock's time.
    pub(super) time: u64,
    /// Whether its disk is a copy.
    pub(super) copied: bool,
}

/// What a node with an empty disk is.
#[derive(Debug)]
pub(super) struct Newborn {
    pub(super) incarnation: u64,
    pub(super) standing: Standing,
    pub(super) born: u64,
}

impl State {
    /// What is in the store; an empty one gets what is `new`.
    pub(super) fn load(
        store: &Store,
        topology: &Topology,
        own: usize,
        now: u64,
        new: &Newborn,
        beginning: Beginning,
    ) -> Result<Self, Error> {
        if store.number(INCARNATION_KEY)?.is_none() {
            let Newborn { incarnation, standing, born } = *new;
            let standing = standing as u64;
            let numbers =
                [(INCARNATION_KEY, incarnation), (STANDING_KEY, standing), (BORN_KEY, born)];
            store.core().commit(std::iter::once(&number_batch(now, &numbers)))?;
        }
        let number = |key| Ok::<_, Error>(store.number(key)?.expect("written together"));
        let mut standing = Standing::of_code(number(STANDING_KEY)? as u8).expect("written as one");
        let Beginning { found, time, copied } = beginning;
        if copied && standing == Standing::Member {
            standing = Standing::Copied;
            let batch = number_batch(now, &[(STANDING_KEY, standing as u64)]);
            store.core().commit(std::iter::once(&batch))?;
        }
        let nodes = 0..topology.nodes();
        let known = nodes.clone().map(|peer| store.bytes(&known_key(peer)));
        let known = known.map(|bytes| Ok(bytes?.map(|bytes| decode_claim(&bytes))));
        let missed = nodes.clone().map(|node| store.bytes(&missed_key(node)));
        let earlier = store
            .bytes(LIVES_KEY)?
            .map_or(Vec::new(), |bytes| Lineage::decode(&bytes).expect("written as lives"));
        let id = time.max(earlier.last().map_or(0, |last| last.id) + 1);
        let Recovered { sequence: begins, newest } = found;
        let lineage = Lineage::new(earlier, Life { id, begins, newest });
        let lives = bytes_batch(now, LIVES_KEY, &lineage.encode());
        store.core().commit(std::iter::once(&lives))?;
        let mut hints = Vec::new();
        for peer in nodes.filter(|peer| *peer != own).map(|peer| NodeId(peer as u16)) {
            let prefix = hint_prefix(topology, peer);
            let found = store.hints(&prefix, &prefix, usize::MAX)?;
            let bytes = found.iter().map(|(key, record)| hint_bytes(key, record)).sum();
            hints.push((peer, found.len() as u64, bytes));
        }
        Ok(Self {
            incarnation: number(INCARNATION_KEY)?,
            standing,
            born: number(BORN_KEY)?,
            known: known.collect::<Result<_, Error>>()?,
            lineage,
            missed: missed.collect::<Result<_, _>>()?,
            hints,
        })
    }
}

fn known_key(peer: usize) -> Vec<u8> {
    format!("known/{peer}").into_bytes()
}

fn hint_prefix(topology: &Topology, peer: NodeId) -> Vec<u8> {
    let name = topology.member(peer).name.as_bytes();
    [&[name.len() as u8], name].concat()
}

fn missed_key(node: usize) -> Vec<u8> {
    format!("missed/{node}").into_bytes()
}

fn encode_claim(claim: &Claim) -> Vec<u8> {
    let Claim { incarnation, told: Told { life, position, late } } = *claim;
    [incarnation, life, position, late].into_iter().flat_map(u64::to_le_bytes).collect()
}

fn decode_claim(bytes: &[u8]) -> Claim {
    let (numbers, _) = bytes.as_chunks::<8>();
    let number = |place: usize| u64::from_le_bytes(numbers[place]);
    let told = Told { life: number(1), position: number(2), late: number(3) };
    Claim { incarnation: number(0), told }
}

/// Something else that a node keeps for itself.
fn bytes_batch(now: u64, key: &[u8], bytes: &[u8]) -> Batch {
    let mut batch = Batch::new();
    let put = batch.put(Space::Node, key, Version { time: now, origin: 0 }, bytes);
    put.expect("it fits a record");
    batch
}

/// Numbers that a node keeps for itself; what is written later holds.
pub(super) fn number_batch(now: u64, numbers: &[(&[u8], u64)]) -> Batch {
    let mut batch = Batch::new();
    for (key, number) in numbers {
        let version = Version { time: now, origin: 0 };
        let put = batch.put(Space::Node, key, version, &number.to_le_bytes());
        put.expect("eight bytes fit a record");
    }
    batch
}

impl World {
    /// Two nodes have a new connection, and tell each other who they are.
    pub(super) fn meet(&mut self, one: usize, other: usize) {
        for (node, peer) in [(one, other), (other, one)] {
            let [own, theirs] = [node, peer].map(|node| self.machines[node].process.as_ref());
            let (Some(own), Some(theirs)) = (own, theirs) else { continue };
            let [id, peer] = [node, peer].map(|node| NodeId(node as u16));
            let incarnation = theirs.shared.logs.own_incarnation();
            let knows_us = theirs.shared.logs.claim(id);
            own.shared.logs.met(peer, incarnation, theirs.shared.logs.life());
            if own.shared.logs.lost(knows_us.as_ref()).is_some() {
                own.shared.vouching.doubt();
            }
            let event = NodeEvent::Met { peer, incarnation, knows_us };
            let life = own.life;
            self.agenda.put(self.now + 1, Due::Node { node, life, event });
        }
    }

    pub(super) fn tick(&mut self, node: usize, life: u32) {
        if self.process(Place { node, life, index: 0 }).is_some() {
            self.agenda.put(self.now + NODE_TICK_MICROS, Due::Tick { node, life });
            self.node_event(node, life, NodeEvent::Tick);
        }
    }

    pub(super) fn node_event(&mut self, node: usize, life: u32, event: NodeEvent) {
        let now = self.times(node);
        let place = Place { node, life, index: 0 };
        let mut effects = Vec::new();
        if !matches!(event, NodeEvent::Tick) {
            let line = node_line(&event);
            self.journal.line(self.now, format_args!("n{node} {line}"));
        }
        let Some(process) = self.process(place) else { return };
        process.node.handle(now, event, &mut effects);
        for effect in effects {
            self.node_effect(node, life, effect);
        }
    }

    fn node_effect(&mut self, node: usize, life: u32, effect: NodeEffect) {
        let place = Place { node, life, index: 0 };
        match effect {
            NodeEffect::ReadHints { peer, after, max_bytes } => {
                let at = self.now + self.disk_micros(node);
                self.agenda.put(at, Due::Hints { node, life, peer, after, max_bytes });
            }
            NodeEffect::DropHints { peer, items } => {
                let prefix = hint_prefix(&self.topology, peer);
                let mut batch = Batch::new();
                for (key, record) in items {
                    let stamp = record.rank.stamp;
                    let version = Version { time: stamp.time, origin: stamp.origin };
                    let hint = [&prefix[..], &key].concat();
                    batch.delete(Space::Hints, &hint, version).expect("it fitted as a hint");
                }
                self.submit(node, life, Asker::None, batch);
            }
            NodeEffect::Call { call, node: peer, class, request } => {
                let Some(process) = self.process(place) else { return };
                let index = call.0 as usize % process.loops.len();
                let event = Event::Call { call, node: peer, class, request };
                self.input(Place { node, life, index }, Input::Event(event));
            }
            NodeEffect::Remember { peer, claim } => {
                let key = known_key(usize::from(peer.0));
                let batch = bytes_batch(self.now, &key, &encode_claim(&claim));
                self.submit(node, life, Asker::Remember(peer, claim), batch);
            }
            NodeEffect::Stand(standing) => {
                let Some(process) = self.process(place) else { return };
                let own = process.shared.own;
                let (missed, changes) = process.shared.missed.encode(own);
                let mut batch = number_batch(self.now, &[(STANDING_KEY, standing as u64)]);
                let version = Version { time: self.now, origin: 0 };
                let put = batch.put(Space::Node, &missed_key(node), version, &missed);
                put.expect("it fits a record");
                self.submit(node, life, Asker::Stand(standing, changes), batch);
            }
            NodeEffect::KeepMissed { node: whose } => self.keep_missed(place, whose, None),
        }
    }

    /// Keeps what a node is marked to lack.
    pub(super) fn keep_missed(&mut self, place: Place, whose: NodeId, op: Option<OpId>) {
        let Some(process) = self.process(place) else { return };
        let (missed, changes) = process.shared.missed.encode(whose);
        let batch = bytes_batch(self.now, &missed_key(usize::from(whose.0)), &missed);
        let asker = Asker::Missed { whose, changes, index: place.index, op };
        self.submit(place.node, place.life, asker, batch);
    }

    /// Something that the node keeps for itself is kept, or could not be.
    pub(super) fn kept(&mut self, place: Place, asker: &Asker, result: &Result<(), StoreError>) {
        let Some(process) = self.process(place) else { return };
        let kept = result.is_ok();
        let Place { node, life, .. } = place;
        match asker {
            Asker::Remember(peer, claim) if kept => {
                process.shared.logs.know(*peer, claim.incarnation);
                process.shared.logs.kept(*peer, claim);
            }
            Asker::Stand(standing, changes) => {
                if kept {
                    process.shared.missed.kept(process.shared.own, *changes);
                }
                self.journal.line(self.now, format_args!("n{node} is {standing:?}: {kept}"));
                let event = NodeEvent::Stood { standing: *standing, kept };
                let again = if kept { 1 } else { AGAIN_MICROS };
                self.agenda.put(self.now + again, Due::Node { node, life, event });
            }
            Asker::Missed { whose, changes, index, op } => {
                if kept {
                    process.shared.missed.kept(*whose, *changes);
                }
                if let Some(op) = *op {
                    let result = result.clone().map(|()| None);
                    let place = Place { index: *index, ..place };
                    self.input(place, Input::Event(Event::Written { op, result }));
                } else {
                    let event = NodeEvent::MissedKept { node: *whose, kept };
                    self.agenda.put(self.now + 1, Due::Node { node, life, event });
                }
            }
            _ => {}
        }
    }

    pub(super) fn hints_read(
        &mut self,
        node: usize,
        life: u32,
        peer: NodeId,
        after: Option<Bytes>,
        max_bytes: usize,
    ) {
        let prefix = hint_prefix(&self.topology, peer);
        let Some(process) = self.process(Place { node, life, index: 0 }) else { return };
        let start = match &after {
            Some(key) => [&prefix[..], key, &[0]].concat(),
            None => prefix.clone(),
        };
        match process.store.hints(&prefix, &start, max_bytes) {
            Ok(items) => self.node_event(node, life, NodeEvent::Hints { peer, items }),
            // To say that there are none would be to forget them.
            Err(_) => {
                let at = self.now + AGAIN_MICROS;
                self.agenda.put(at, Due::Hints { node, life, peer, after, max_bytes });
            }
        }
    }

    /// A coordinator has the answer to a call.
    pub(super) fn returned(&mut self, place: Place, call: CallId, result: Result<Reply, Trouble>) {
        let Place { node, life, .. } = place;
        let event = NodeEvent::Returned { call, result };
        self.agenda.put(self.now + 1, Due::Node { node, life, event });
    }

    /// A turn's hints go into the store.
    pub(super) fn keep_hints(&mut self, place: Place, hints: Vec<(HintId, NodeId, Bytes, Record)>) {
        if hints.is_empty() {
            return;
        }
        let (mut batch, mut kept) = (Batch::new(), Vec::new());
        for (id, peer, key, record) in hints {
            let hint = [&hint_prefix(&self.topology, peer)[..], &key].concat();
            let stamp = record.rank.stamp;
            let version = Version { time: stamp.time, origin: stamp.origin };
            let put = batch.put(Space::Hints, &hint, version, &record.bytes);
            put.expect("a turn's hints fit a batch");
            kept.push(Hint { id, peer, key, stamp });
        }
        let Some(process) = self.process(place) else { return };
        if process.store.refusal().is_some() {
            self.hints_kept(place, &kept, false);
        } else {
            self.submit(place.node, place.life, Asker::Hints(place.index, kept), batch);
        }
    }

    pub(super) fn hints_kept(&mut self, place: Place, hints: &[Hint], stored: bool) {
        for Hint { id, peer, key, stamp } in hints {
            let event = Event::Hinted { hint: *id, kept: stored };
            self.input(place, Input::Event(event));
            if !stored {
                continue;
            }
            let owed = self.owed.entry((usize::from(peer.0), place.node, key.clone()));
            let owed = owed.or_insert(*stamp);
            *owed = (*owed).max(*stamp);
        }
    }

    /// A disk is gone, with the hints on it; those for it have nothing to add to.
    pub(super) fn forget_hints(&mut self, node: usize) {
        self.owed.retain(|(peer, holder, _), _| *peer != node && *holder != node);
    }

    /// What was kept for a node has reached it, once no hint waits any more.
    pub(super) fn hints_are_delivered(&mut self) {
        for ((peer, holder, key), stamp) in std::mem::take(&mut self.owed) {
            let process = self.machines[peer].process.as_ref().expect("all are settled");
            let held = process.store.get(Space::Data, &key).ok().flatten();
            if held.as_ref().is_none_or(|held| held.rank.stamp < stamp) {
                let what = format!(
                    "hint lost: node {holder} kept {:x} of {key:?} for node {peer}, which holds {}",
                    stamp.time,
                    show(held.as_ref())
                );
                self.ledger.accuse(self.now, what);
            }
        }
    }

    /// Whether a node runs, and its word counts.
    pub(super) fn is_member(&self, node: usize) -> bool {
        let process = self.machines[node].process.as_ref();
        process.is_some_and(|process| process.shared.vouching.standing() == Standing::Member)
    }
}

/// An event in a line of the journal.
fn node_line(event: &NodeEvent) -> String {
    match event {
        NodeEvent::Met { peer, incarnation, knows_us } => {
            format!("met n{} {incarnation:x}, who knows it as {knows_us:x?}", peer.0)
        }
        NodeEvent::Fenced => "is fenced".to_owned(),
        NodeEvent::Stood { standing, kept } => format!("stands as {standing:?}: {kept}"),
        NodeEvent::MissedKept { node, kept } => format!("keeps what n{} misses: {kept}", node.0),
        NodeEvent::Hints { peer, items } => format!("has {} hints for n{}", items.len(), peer.0),
        NodeEvent::Returned { call, result } => match result {
            Ok(Reply::Page(page)) => format!("call {}: page of {}", call.0, page.items.len()),
            other => format!("call {}: {other:?}", call.0),
        },
        NodeEvent::Tick => "tick".to_owned(),
    }
}
