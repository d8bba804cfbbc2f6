//! Connections of loops to other nodes, as the embedder keeps them: made when something is to be
//! sent, one attempt at a time, watched by pings.

use cluster::{Event, Message, NodeId};

use super::machine::{Input, Lane, Outbox};
use super::{Due, Place, World};
use crate::network::{Arrival, End, Sender};

/// Microseconds after which an attempt to connect is given up.
const CONNECT_MICROS: u64 = 250_000;

/// Microseconds between two pings.
const PING_MICROS: u64 = 500_000;

/// Pings without an answer after which a connection is closed.
const MISSED_PINGS: u32 = 2;

/// Messages that may wait for a connection to be made.
const MAX_WAITING: usize = 4096;

impl World {
    /// What an envelope to a node says of its sender.
    pub(super) fn sender(&mut self, place: Place, peer: usize) -> Option<Sender> {
        let wall = self.times(place.node).wall;
        let shared = &self.process(place)?.shared;
        Some(Sender {
            clock: shared.clock.now(wall),
            position: shared.logs.position_for(NodeId(peer as u16)),
            disk: (shared.logs.own_incarnation(), shared.logs.life()),
        })
    }

    pub(super) fn send(&mut self, place: Place, peer: usize, messages: Vec<Message>) {
        let Some(sender) = self.sender(place, peer) else { return };
        let Some(process) = self.process(place) else { return };
        let lanes = &mut process.loops[place.index].lanes;
        let refused = match lanes.get_mut(&peer) {
            Some(Lane::Up(connection)) => {
                let connection = *connection;
                self.put_on_the_wire(connection, sender, messages)
            }
            Some(Lane::Dialing(waiting)) => {
                let room = MAX_WAITING.saturating_sub(waiting.len()).min(messages.len());
                let mut messages = messages;
                let refused = messages.split_off(room);
                waiting.extend(messages);
                refused
            }
            None => {
                lanes.insert(peer, Lane::Dialing(messages));
                self.dial(place, peer);
                Vec::new()
            }
        };
        for message in refused {
            let (peer, id) = (NodeId(peer as u16), message.id);
            self.input(place, Input::Event(Event::Overflow { peer, id }));
        }
    }

    fn put_on_the_wire(&mut self, id: u64, sender: Sender, messages: Vec<Message>) -> Vec<Message> {
        let (times, refused) = self.network.send(self.now, id, 0, sender, messages);
        for at in times {
            self.agenda.put(at, Due::Deliver { connection: id, end: 1 });
        }
        refused
    }

    fn dial(&mut self, place: Place, peer: usize) {
        let heard = self.network.connected(place.node, peer) && !self.machines[peer].dark;
        let there = self.machines[peer].process.is_some();
        let answers = there && !self.machines[peer].paused && !self.machines[peer].stopping;
        let mut took = 0;
        for _ in 0..if answers { 4 } else { 2 } {
            took += self.network.delay(place.node, peer);
        }
        // A machine without the process refuses at once; one that is silent is waited for.
        let in_time = heard && (answers || !there) && took < CONNECT_MICROS;
        let at = self.now + if in_time { took } else { CONNECT_MICROS };
        let reachable = in_time && answers;
        self.agenda.put(at, Due::Dialed { place, peer, reachable });
    }

    pub(super) fn dialed(&mut self, place: Place, peer: usize, reachable: bool) {
        self.input(place, Input::Dialed { peer, reachable });
    }

    /// A loop learns how its attempt ended.
    pub(super) fn take_dialed(
        &mut self,
        place: Place,
        peer: usize,
        reachable: bool,
        out: &mut Outbox,
    ) {
        let still = self.network.connected(place.node, peer);
        let answers = self.machines[peer].process.as_ref().filter(|_| still && reachable);
        let answerer = answers.map(|process| (process.life, process.loops.len()));
        let Some(process) = self.process(place) else { return };
        let Some(Lane::Dialing(waiting)) = process.loops[place.index].lanes.remove(&peer) else {
            return;
        };
        let id = NodeId(peer as u16);
        let Some((life, loops)) = answerer else {
            // What this turn has put down for the node is gone with all that waited.
            out.sends.remove(&peer);
            self.handle(place, Event::Unreachable(id), out);
            return;
        };
        let index = self.random.index(loops);
        let asker = End { node: place.node, life: place.life, index: place.index, open: true };
        let connection = self.network.connect(asker, End { node: peer, life, index, open: true });
        let at = self.now + self.random.between(0, PING_MICROS);
        self.agenda.put(at, Due::Ping { connection });
        let Some(process) = self.process(place) else { return };
        process.loops[place.index].lanes.insert(peer, Lane::Up(connection));
        let Some(sender) = self.sender(place, peer) else { return };
        for message in self.put_on_the_wire(connection, sender, waiting) {
            let id = message.id;
            let peer = NodeId(peer as u16);
            self.input(place, Input::Event(Event::Overflow { peer, id }));
        }
        self.meet(place.node, peer);
        self.handle(place, Event::Up(id), out);
    }

    pub(super) fn deliver(&mut self, connection: u64, end: usize) {
        let arrivals = self.network.take(self.now, connection, end);
        let Some(End { node, life, index, open }) =
            self.network.get(connection).map(|found| found.ends[end])
        else {
            return;
        };
        let place = Place { node, life, index };
        for arrival in arrivals {
            match arrival {
                Arrival::Envelope(envelope) if open => {
                    self.input(place, Input::Envelope { connection, end, envelope });
                }
                Arrival::Closed if end == 0 => self.input(place, Input::Lost(connection)),
                Arrival::Closed => {
                    self.network.close(self.now, connection, end, false);
                }
                Arrival::Envelope(_) => {}
            }
        }
    }

    /// The asker's ping is due, and the answers to the last ones are not there, or are.
    pub(super) fn ping(&mut self, connection: u64) {
        let Some(found) = self.network.get(connection) else { return };
        let [asker, answerer] = found.ends;
        let alive = self.machines[answerer.node].process.as_ref();
        let alive = alive.is_some_and(|process| process.life == answerer.life);
        let hears = alive
            && !self.machines[answerer.node].paused
            && self.network.connected(asker.node, answerer.node);
        let Some(found) = self.network.get_mut(connection).filter(|_| asker.open) else { return };
        found.missed = if hears { 0 } else { found.missed + 1 };
        if found.missed == MISSED_PINGS {
            let Place { node, life, index } =
                Place { node: asker.node, life: asker.life, index: asker.index };
            self.input(Place { node, life, index }, Input::Lost(connection));
        } else {
            self.agenda.put(self.now + PING_MICROS, Due::Ping { connection });
        }
    }

    /// A loop learns that a connection is gone, with all that was not answered.
    pub(super) fn take_lost(&mut self, place: Place, connection: u64, out: &mut Outbox) {
        let Some(found) = self.network.get(connection).filter(|found| found.ends[0].open) else {
            return;
        };
        let peer = found.ends[1].node;
        if let Some(at) = self.network.close(self.now, connection, 0, true) {
            self.agenda.put(at, Due::Deliver { connection, end: 1 });
        }
        let Some(process) = self.process(place) else { return };
        process.loops[place.index].lanes.remove(&peer);
        out.sends.remove(&peer);
        self.handle(place, Event::Lost(NodeId(peer as u16)), out);
    }

    /// A link that was blocked is not any more: what it swallowed is sent again.
    pub(super) fn resend_all(&mut self) {
        for connection in self.network.all() {
            for end in 0..2 {
                if let Some(at) = self.network.resend(self.now, connection, end) {
                    self.agenda.put(at, Due::Deliver { connection, end });
                }
            }
        }
    }
}
