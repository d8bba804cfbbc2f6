//! What a process does once for all its loops: the protocol's [`cluster::Node`], and what it keeps
//! in the store.

use bytes::Bytes;
use cluster::{
    CallId, Event, NODE_TICK_MICROS, NodeEffect, NodeEvent, NodeId, Record, Reply, Standing,
    Topology, Trouble, hint_bytes,
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

/// How long after a failure hints are read again, in microseconds.
const AGAIN_MICROS: u64 = 100_000;

/// What a node keeps about itself and the others.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) incarnation: u64,
    pub(super) standing: Standing,
    pub(super) born: u64,
    pub(super) known: Vec<Option<u64>>,
    /// Hints that wait in the store: for whom, how many, and their bytes.
    pub(super) hints: Vec<(NodeId, u64, u64)>,
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
    ) -> Result<Self, Error> {
        if store.number(INCARNATION_KEY)?.is_none() {
            let Newborn { incarnation, standing, born } = *new;
            let standing = standing as u64;
            let numbers =
                [(INCARNATION_KEY, incarnation), (STANDING_KEY, standing), (BORN_KEY, born)];
            store.core().commit(std::iter::once(&number_batch(now, &numbers)))?;
        }
        let number = |key| Ok::<_, Error>(store.number(key)?.expect("written together"));
        let standing = match number(STANDING_KEY)? {
            0 => Standing::New,
            1 => Standing::Member,
            _ => Standing::Amnesiac,
        };
        let nodes = 0..topology.nodes();
        let known = nodes.clone().map(|peer| store.number(&known_key(peer)));
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
            known: known.collect::<Result<_, _>>()?,
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
            let event = NodeEvent::Met {
                peer: NodeId(peer as u16),
                incarnation: theirs.incarnation,
                knows_us_as: theirs.known[node],
            };
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
            NodeEffect::Remember { peer, incarnation } => {
                let Some(process) = self.process(place) else { return };
                process.known[usize::from(peer.0)] = Some(incarnation);
                let key = known_key(usize::from(peer.0));
                let batch = number_batch(self.now, &[(&key, incarnation)]);
                self.submit(node, life, Asker::None, batch);
            }
            NodeEffect::Stand(standing) => {
                self.journal.line(self.now, format_args!("n{node} is {standing:?}"));
                let batch = number_batch(self.now, &[(STANDING_KEY, standing as u64)]);
                self.submit(node, life, Asker::None, batch);
            }
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
    pub(super) fn keep_hints(&mut self, place: Place, hints: Vec<(NodeId, Bytes, Record)>) {
        if hints.is_empty() {
            return;
        }
        let (mut batch, mut kept) = (Batch::new(), Vec::new());
        for (peer, key, record) in hints {
            let hint = [&hint_prefix(&self.topology, peer)[..], &key].concat();
            let stamp = record.rank.stamp;
            let version = Version { time: stamp.time, origin: stamp.origin };
            let put = batch.put(Space::Hints, &hint, version, &record.bytes);
            put.expect("a turn's hints fit a batch");
            let bytes = hint_bytes(&key, &record);
            kept.push(Hint { peer, key, stamp, bytes });
        }
        let Some(process) = self.process(place) else { return };
        if process.store.refusal().is_some() {
            self.hints_kept(place, &kept, false);
        } else {
            self.submit(place.node, place.life, Asker::Hints(kept), batch);
        }
    }

    pub(super) fn hints_kept(&mut self, place: Place, hints: &[Hint], stored: bool) {
        for Hint { peer, key, stamp, bytes } in hints {
            let Some(process) = self.process(place) else { return };
            if !stored {
                process.shared.hints.lost(*peer, *bytes);
                continue;
            }
            process.shared.hints.kept(*peer, *bytes);
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
        NodeEvent::Met { peer, incarnation, knows_us_as } => {
            format!("met n{} {incarnation:x}, who knows it as {knows_us_as:x?}", peer.0)
        }
        NodeEvent::Hints { peer, items } => format!("has {} hints for n{}", items.len(), peer.0),
        NodeEvent::Returned { call, result } => match result {
            Ok(Reply::Page(page)) => format!("call {}: page of {}", call.0, page.items.len()),
            other => format!("call {}: {other:?}", call.0),
        },
        NodeEvent::Tick => "tick".to_owned(),
    }
}
