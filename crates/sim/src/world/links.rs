//! A loop's links to the other nodes. A loop dials a link when it has a message to send, or to keep
//! the link open. Pings detect the loss of a link, which is reported to the requests in progress.
//! [`server::link`] is the production code.

use protocol::handshake::ConnectionKind;
use protocol::{Message, NodeId, Reply};
use server::link::{Attempt, HANDSHAKE_MICROS, PING_MICROS, PeerTable};

use super::machine::{Input, Loop, Outbox};
use super::{DueEvent, LoopId, World};
use crate::network::LoopEnd;

/// Time limit of an attempt to connect, in microseconds.
const CONNECT_MICROS: u64 = 250_000;

impl World {
    /// Sends a request. Dials a new connection if none is open.
    pub(super) fn send(&mut self, place: LoopId, peer: usize, message: Message) {
        let now = self.times(place.node);
        let Some(process) = self.process(place) else { return };
        let queue_bytes = process.table.bounds.queue_bytes;
        if !process.table.has(NodeId(peer as u16)) {
            // The peer has left the cluster, so the message fails as if the queue were full.
            let (peer, id) = (NodeId(peer as u16), message.id);
            return self.input(place, Input::Event(protocol::Event::MessageDropped { peer, id }));
        }
        let Loop { links, endpoints, dirty, .. } = &mut process.loops[place.index];
        let (id, mut attempts) = (message.id, Vec::new());
        let push = |connection: &u64, message| {
            dirty.insert(*connection);
            let open = endpoints.get_mut(connection).and_then(|endpoint| endpoint.open());
            open.is_some_and(|connection| connection.push(message, || now))
        };
        let dial = |attempt| attempts.push(attempt);
        let sent =
            links.entry(peer).or_default().send(message, queue_bytes, || now.mono, push, dial);
        for attempt in attempts {
            self.dial(place, peer, attempt);
        }
        if !sent {
            let peer = NodeId(peer as u16);
            self.input(place, Input::Event(protocol::Event::MessageDropped { peer, id }));
        }
    }

    /// Replies to a request, if its connection is still open.
    pub(super) fn respond(&mut self, place: LoopId, connection: u64, id: u64, reply: Reply) {
        let now = self.times(place.node);
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        let open = own.endpoints.get_mut(&connection).and_then(|endpoint| endpoint.open());
        if let Some(open) = open {
            open.respond(id, reply, || now);
            own.dirty.insert(connection);
        }
    }

    fn dial(&mut self, place: LoopId, peer: usize, attempt: Attempt) {
        let linked =
            self.network.is_connected(place.node, peer) && !self.machines[peer].has_no_power;
        let there = self.machines[peer].process.is_some();
        let answers = there && !self.machines[peer].stopping;
        let mut took = 0;
        for _ in 0..2 {
            took += self.network.delay(place.node, peer);
        }
        // A machine without a kvorum process refuses at once. A silent machine lets the attempt
        // time out.
        let in_time = linked && (answers || !there) && took < CONNECT_MICROS;
        let wall = self.machines[place.node].wall;
        let begins =
            attempt.not_before.map_or(self.now, |mono| wall.true_time_of(mono).max(self.now));
        let at = begins + if in_time { took } else { CONNECT_MICROS };
        let reachable = in_time && answers;
        self.agenda.put(at, DueEvent::Dialed { place, peer, attempt, reachable });
    }

    pub(super) fn on_dial_result(
        &mut self,
        place: LoopId,
        peer: usize,
        attempt: Attempt,
        reachable: bool,
    ) {
        self.input(place, Input::Dialed { peer, attempt, reachable });
    }

    /// Handles the end of a loop's attempt to connect.
    pub(super) fn handle_dialed(
        &mut self,
        place: LoopId,
        peer: usize,
        attempt: Attempt,
        reachable: bool,
        out: &mut Outbox,
    ) {
        let still = self.network.is_connected(place.node, peer);
        let answers = self.machines[peer].process.as_ref().filter(|_| still && reachable);
        let answerer = answers.map(|process| (process.life, process.loops.len()));
        let Some(process) = self.process(place) else { return };
        let link = process.loops[place.index].links.get(&peer);
        if link.is_none_or(|link| link.generation() != attempt.generation) {
            return;
        }
        let Some((life, loops)) = answerer else {
            return self.end_link(place, peer, attempt.generation, false, out);
        };
        let index = self.random.index(loops);
        let dialer = LoopEnd { node: place.node, life: place.life, index: place.index, open: true };
        let acceptor = LoopEnd { node: peer, life, index, open: true };
        let connection = self.network.connect(dialer, acceptor);
        self.begin_handshake(place, peer, attempt, connection);
    }

    /// Sends pings on all connections of a loop, and schedules the next pings.
    pub(super) fn ping(&mut self, place: LoopId) {
        self.input(place, Input::Ping);
        self.agenda.put(self.now + PING_MICROS, DueEvent::Ping(place));
    }

    /// Sends pings, closes connections without a pong, and dials peers that no loop is connected
    /// to.
    pub(super) fn send_pings(&mut self, place: LoopId, out: &mut Outbox) {
        let (now, keeps) = (self.times(place.node), place.index == 0 && self.plan.keeps_links);
        let Some(process) = self.process(place) else { return };
        let table = std::sync::Arc::clone(&process.table);
        let Loop { links, endpoints, dirty, pings, redialer, .. } = &mut process.loops[place.index];
        table.share_bytes();
        let round = pings.next_round(table.nodes());
        let mut silent = Vec::new();
        for (id, endpoint) in endpoints {
            let late = now.mono > endpoint.since + HANDSHAKE_MICROS;
            let over = match endpoint.open() {
                Some(connection) => {
                    let turn = round.is_turn_of(connection.peer());
                    connection.ping(now, turn, round.skips);
                    connection.close_reason().is_some() || !table.has(connection.peer())
                }
                None => late,
            };
            dirty.insert(*id);
            if over {
                silent.push(*id);
            }
        }
        let mut attempts = Vec::new();
        if keeps {
            for peer in redialer.due(&table, now.mono) {
                let peer = usize::from(peer.0);
                links
                    .entry(peer)
                    .or_default()
                    .dial(ConnectionKind::Small, |attempt| attempts.push((peer, attempt)));
            }
        }
        for (peer, attempt) in attempts {
            self.dial(place, peer, attempt);
        }
        for id in silent {
            self.close_endpoint(place, id, false, out);
        }
        self.end_links_to_leavers(place, &table, out);
    }

    /// Ends the links to nodes that have left the cluster, or belong to another cluster.
    fn end_links_to_leavers(&mut self, place: LoopId, table: &PeerTable, out: &mut Outbox) {
        let Some(process) = self.process(place) else { return };
        let links = process.loops[place.index].links.iter();
        let all: Vec<(usize, u64)> = links.map(|(peer, link)| (*peer, link.generation())).collect();
        let foreign = all.iter().filter(|(peer, _)| table.is_foreign(NodeId(*peer as u16)));
        for (peer, generation) in foreign.copied() {
            self.end_link(place, peer, generation, true, out);
        }
        let left = all.into_iter().filter(|(peer, _)| !table.has(NodeId(*peer as u16)));
        for (peer, generation) in left {
            self.end_link(place, peer, generation, false, out);
            if let Some(process) = self.process(place) {
                process.loops[place.index].links.remove(&peer);
            }
        }
    }

    /// Closes a loop's end of a connection. If the loop dialed the connection, its link ends too.
    pub(super) fn close_endpoint(
        &mut self,
        place: LoopId,
        id: u64,
        refused: bool,
        out: &mut Outbox,
    ) {
        let Some(process) = self.process(place) else { return };
        let Some(endpoint) = process.loops[place.index].endpoints.remove(&id) else { return };
        self.close_connection(id, endpoint.end);
        if let Some((peer, attempt)) = endpoint.dialed {
            self.end_link(place, peer, attempt.generation, refused, out);
        }
    }

    fn close_connection(&mut self, connection: u64, end: usize) {
        if let Some(at) = self.network.close(self.now, connection, end, true) {
            self.agenda.put(at, DueEvent::Deliver { connection, end: 1 - end });
        }
    }

    /// Ends a link, or an attempt to establish one, with all its connections. Only the first call
    /// for an attempt has an effect.
    fn end_link(
        &mut self,
        place: LoopId,
        peer: usize,
        generation: u64,
        refused: bool,
        out: &mut Outbox,
    ) {
        let (now, node) = (self.times(place.node), NodeId(peer as u16));
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        let link = own.links.get_mut(&peer);
        let down = link.and_then(|link| link.take_down(node, generation, refused, now.mono));
        let Some(down) = down else { return };
        if down.was_up() {
            process.table.link_down(node);
        }
        let of_link = |dialed: Option<(usize, Attempt)>| {
            dialed.is_some_and(|(to, attempt)| to == peer && attempt.generation == generation)
        };
        let ended = own.endpoints.iter().filter(|(_, endpoint)| of_link(endpoint.dialed));
        let ended: Vec<u64> = ended.map(|(id, _)| *id).collect();
        own.endpoints.retain(|_, endpoint| !of_link(endpoint.dialed));
        for id in ended {
            self.close_connection(id, 0);
        }
        self.handle(place, down.event, out);
    }

    /// Lets a stopping process tell its peers to send no more requests.
    pub(super) fn say_goodbye(&mut self, node: usize) {
        let Some(process) = &mut self.machines[node].process else { return };
        let life = process.life;
        for index in 0..process.loops.len() {
            self.input(LoopId { node, life, index }, Input::Goodbye);
        }
    }

    pub(super) fn send_goodbyes(&mut self, place: LoopId) {
        let Some(process) = self.process(place) else { return };
        let Loop { endpoints, dirty, .. } = &mut process.loops[place.index];
        for (id, endpoint) in endpoints.iter_mut().filter(|(_, endpoint)| endpoint.end == 1) {
            if let Some(connection) = endpoint.open() {
                connection.goodbye();
                dirty.insert(*id);
            }
        }
    }
}
