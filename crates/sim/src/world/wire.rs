//! Transfer of bytes between event loops. Arriving bytes go to the handshake, after it to the
//! connection. The output of handshakes and connections is sent at the end of a turn.

use std::sync::Arc;

use protocol::handshake::{ConnectionKind, Handshake, HandshakeRefused, PeerSeen};
use protocol::{BackgroundEvent, ConnectionId, Event, NodeId};
use server::link::{Attempt, Connection, ConnectionInput, Direction};

use super::endpoint::{Endpoint, ReceiveHost, Stage};
use super::machine::{Input, Outbox};
use super::{DueEvent, LoopId, World};
use crate::network::LoopEnd;

/// Delay, in microseconds, after which a connection tries again to reserve memory for a message.
const RETRY_DELAY_MICROS: u64 = 1_000;

impl World {
    fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        for word in nonce.chunks_exact_mut(8) {
            word.copy_from_slice(&self.random.number().to_le_bytes());
        }
        nonce
    }

    /// Starts the handshake of a loop with the peer that the loop dialed.
    pub(super) fn begin_handshake(
        &mut self,
        place: LoopId,
        peer: usize,
        attempt: Attempt,
        id: u64,
    ) {
        let (nonce, now) = (self.nonce(), self.times(place.node));
        let Some(process) = self.process(place) else { return };
        let identity = Arc::clone(&process.table.identity);
        let (to, mut handshake_output) = (NodeId(peer as u16), Vec::new());
        let handshake = Handshake::dial(identity, to, attempt.kind, nonce, &mut handshake_output);
        let mut endpoint = Endpoint::new(0, Some((peer, attempt)), now.mono, handshake);
        endpoint.handshake_output = handshake_output;
        let own = &mut process.loops[place.index];
        own.endpoints.insert(id, endpoint);
        own.dirty.insert(id);
    }

    /// Handles an event at an end of a connection: bytes arrive, or the connection has space for
    /// more.
    pub(super) fn deliver(&mut self, connection: u64, end: usize) {
        if let Some(LoopEnd { node, life, index, .. }) =
            self.network.arrive(self.now, connection, end)
        {
            self.input(LoopId { node, life, index }, Input::Ready { connection, end });
        }
    }

    /// Handles the bytes that have arrived, unless the connection is paused, and marks the
    /// connection for sending.
    pub(super) fn handle_ready(&mut self, place: LoopId, id: u64, end: usize, out: &mut Outbox) {
        let open = self.network.get(id).is_some_and(|found| found.ends[end].open);
        let known = |world: &mut Self| {
            let process = world.process(place)?;
            let endpoint = process.loops[place.index].endpoints.get(&id)?;
            Some(endpoint.is_paused())
        };
        let paused = match known(self) {
            Some(paused) => paused,
            None if open && end == 1 => {
                let (nonce, now) = (self.nonce(), self.times(place.node));
                let Some(process) = self.process(place) else { return };
                let handshake = Handshake::accept(Arc::clone(&process.table.identity), nonce);
                let endpoint = Endpoint::new(1, None, now.mono, handshake);
                process.loops[place.index].endpoints.insert(id, endpoint);
                false
            }
            None => return,
        };
        if !paused {
            let (bytes, ended) = self.network.read(id, end);
            if !bytes.is_empty() {
                // The read has freed buffer space, so the other end may send more.
                let at = self.now + self.random.between(20, 2_000);
                self.agenda.put(at, DueEvent::Deliver { connection: id, end: 1 - end });
            }
            self.receive_bytes(place, id, &bytes, out);
            if ended {
                return self.close_endpoint(place, id, false, out);
            }
        }
        if let Some(process) = self.process(place) {
            process.loops[place.index].dirty.insert(id);
        }
    }

    fn receive_bytes(&mut self, place: LoopId, id: u64, bytes: &[u8], out: &mut Outbox) {
        let Some(process) = self.process(place) else { return };
        let own = &mut process.loops[place.index];
        let Some(endpoint) = own.endpoints.get_mut(&id) else { return };
        let Stage::Opening(opening) = &mut endpoint.stage else {
            return self.receive_messages(place, id, bytes, out);
        };
        let Some(handshake) = opening else { return };
        match handshake.receive(bytes, &mut endpoint.handshake_output) {
            Ok(None) => {}
            Ok(Some(seen)) => {
                let rest =
                    opening.take().map_or(Vec::new(), |handshake| handshake.remaining_bytes());
                if self.establish_link(place, id, &seen, out) {
                    self.receive_messages(place, id, &rest, out);
                }
            }
            Err(refused) => {
                own.dirty.insert(id);
                self.on_refusal(place, id, &refused, out);
            }
        }
    }

    /// Establishes a link after both ends have authenticated. Returns false if the link ended
    /// meanwhile.
    fn establish_link(
        &mut self,
        place: LoopId,
        id: u64,
        seen: &PeerSeen,
        out: &mut Outbox,
    ) -> bool {
        let now = self.times(place.node);
        let LoopId { node, life, index } = place;
        let Some(process) = self.process(place) else { return false };
        let table = Arc::clone(&process.table);
        let own = &mut process.loops[index];
        let Some(endpoint) = own.endpoints.get_mut(&id) else { return false };
        let dialed = endpoint.dialed;
        let direction = if dialed.is_some() {
            Direction::Dialed
        } else {
            Direction::Accepted(ConnectionId(id))
        };
        let mut connection = Connection::new(&table, seen, direction, now);
        let mut dropped_messages = Vec::new();
        if let Some((peer, attempt)) = dialed {
            let link = own.links.entry(peer).or_default();
            let Some(queued_messages) = link.up(seen.connection, attempt.generation, id, now.mono)
            else {
                self.close_endpoint(place, id, false, out);
                return false;
            };
            for message in queued_messages {
                let id = message.id;
                if !connection.push(message, || now) {
                    dropped_messages.push(Event::MessageDropped { peer: seen.node, id });
                }
            }
            if seen.connection == ConnectionKind::Small {
                table.link_up(seen.node);
            }
        } else {
            table.observations(seen.node).note_dialed();
        }
        endpoint.stage = Stage::Open(Box::new(connection));
        table.record_handshake(seen);
        for event in dropped_messages {
            self.input(place, Input::Event(event));
        }
        let PeerSeen { node: peer, incarnation, knows_us, knew_only_this_disk, cluster, .. } =
            *seen;
        let event =
            BackgroundEvent::PeerSeen { peer, incarnation, knows_us, knew_only_this_disk, cluster };
        let event = event.into();
        self.agenda.put(self.now + 1, DueEvent::Node { node, life, event });
        if dialed.is_some() && seen.connection == ConnectionKind::Small {
            self.handle(place, Event::LinkUp(peer), out);
        }
        true
    }

    fn on_refusal(&mut self, place: LoopId, id: u64, refused: &HandshakeRefused, out: &mut Outbox) {
        let LoopId { node, life, .. } = place;
        let line = format_args!("n{node} refuses {id}: {}", refused.reason.label());
        self.journal.line(self.now, line);
        let Some(process) = self.process(place) else { return };
        let endpoint = process.loops[place.index].endpoints.get(&id);
        let dialed = endpoint.and_then(|endpoint| Some(NodeId(endpoint.dialed.as_ref()?.0 as u16)));
        if process.table.is_fenced_by(dialed, refused) {
            let event = BackgroundEvent::Fenced.into();
            self.agenda.put(self.now + 1, DueEvent::Node { node, life, event });
        }
        // The refused peer must receive the explanation before the connection closes.
        self.flush(place, id);
        self.close_endpoint(place, id, true, out);
    }

    /// Handles the bytes after the handshake.
    fn receive_messages(&mut self, place: LoopId, id: u64, mut input: &[u8], out: &mut Outbox) {
        loop {
            let now = self.times(place.node);
            let Some(process) = self.process(place) else { return };
            let memory = process.memory.clone();
            let own = &mut process.loops[place.index];
            let mut host = ReceiveHost { now, memory, waits: false, fetching: &mut own.fetching };
            let Some(endpoint) = own.endpoints.get_mut(&id) else { return };
            let (dialed, end) = (endpoint.dialed, endpoint.end);
            let Some(connection) = endpoint.open() else { return };
            match connection.receive(&mut input, &mut host) {
                Ok(Some(ConnectionInput::Event(event))) => self.handle(place, event, out),
                Ok(Some(ConnectionInput::Later)) => {
                    let (node, life) = (place.node, process.life);
                    let event = BackgroundEvent::Behind.into();
                    self.agenda.put(self.now + 1, DueEvent::Node { node, life, event });
                }
                Ok(Some(ConnectionInput::Goodbye)) => {
                    if let Some((peer, _)) = dialed {
                        own.links.entry(peer).or_default().note_peer_leaving();
                    }
                }
                Ok(None) => {
                    let closed = connection.close_reason().is_some();
                    if host.waits {
                        let due = DueEvent::Deliver { connection: id, end };
                        self.agenda.put(self.now + RETRY_DELAY_MICROS, due);
                    }
                    if closed {
                        self.close_endpoint(place, id, false, out);
                    }
                    return;
                }
                Err(malformed) => {
                    let what = format!("garbled: node {} was sent what is {malformed}", place.node);
                    self.ledger.report_error(self.now, what);
                    return self.close_endpoint(place, id, false, out);
                }
            }
        }
    }

    /// Sends the output of all connections that a loop has marked for sending.
    pub(super) fn flush_all(&mut self, place: LoopId) {
        let Some(process) = self.process(place) else { return };
        for id in std::mem::take(&mut process.loops[place.index].dirty) {
            self.flush(place, id);
        }
    }

    fn flush(&mut self, place: LoopId, id: u64) {
        let now = self.times(place.node);
        let machine = &mut self.machines[place.node];
        let process = machine.process.as_mut().filter(|process| process.life == place.life);
        let Some(process) = process else { return };
        let Some(endpoint) = process.loops[place.index].endpoints.get_mut(&id) else { return };
        let (end, mut times) = (endpoint.end, Vec::new());
        let was_paused = endpoint.is_paused();
        while !endpoint.handshake_output.is_empty() {
            let (taken, at) = self.network.write(self.now, id, end, &endpoint.handshake_output);
            endpoint.handshake_output.drain(..taken);
            times.extend(at);
            if taken == 0 {
                break;
            }
        }
        if let Stage::Open(connection) = &mut endpoint.stage
            && endpoint.handshake_output.is_empty()
        {
            loop {
                let bytes = connection.to_send(|| now);
                let (taken, at) = self.network.write(self.now, id, end, bytes);
                connection.drop_sent(taken);
                times.extend(at);
                if taken == 0 {
                    break;
                }
            }
            self.network.messages += connection.take_traffic().messages_sent;
        }
        let resumes = was_paused && !endpoint.is_paused() && self.network.is_readable(id, end);
        for at in times {
            self.agenda.put(at, DueEvent::Deliver { connection: id, end: 1 - end });
        }
        if resumes {
            self.input(place, Input::Ready { connection: id, end });
        }
    }

    /// Schedules another arrival for the bytes that blocked paths have held back.
    pub(super) fn resend_all(&mut self) {
        for connection in self.network.connection_ids() {
            for end in 0..2 {
                if let Some(at) = self.network.resend(self.now, connection, end) {
                    self.agenda.put(at, DueEvent::Deliver { connection, end });
                }
            }
        }
    }
}
