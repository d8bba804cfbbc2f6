//! A connection to or from another node, after the handshake.
//!
//! A long message is assembled only in reserved memory. A long request waits for its reservation,
//! and the connection gives the peer no credit until then. For a long record in a reply, the
//! coordinator has reserved memory before it requested the record; a record without a reservation
//! is discarded.
//!
//! The driver calls [`Connection::receive`] with received bytes until the call returns `None`, then
//! writes the bytes of [`Connection::to_send`], as far as the socket accepts them.

use std::sync::Arc;

use bytes::Bytes;
use protocol::handshake::PeerSeen;
use protocol::wire::{
    Item, LongKind, Malformed, PieceHeader, WHOLE_MAX, WINDOW, message_len, message_of,
};
use protocol::{Body, BootId, Event, Incarnation, Message, NodeId, Now, Reply, ViewId};

use super::incoming::{Incoming, KEPT_BYTES, LongMessage, reply_state};
use super::outgoing::Outgoing;
use super::{ConnectionInput, Direction, Host, MessageReservation, PeerTable};

/// Unanswered pings in a row after which a dialed connection is closed.
const MISSED_PINGS: u32 = 2;

/// Ping intervals without input after which an accepted connection is closed. The dialer closes the
/// connection long before, unless the network between both is down.
const SILENT_PINGS: u32 = 8;

/// While the encoded bytes that the requester has not taken exceed 1/`PAUSE_SHARE` of a
/// connection's share, no more of its requests are read. Bytes that wait for credit do not count,
/// because reading is the only way to get credit.
const PAUSE_SHARE: usize = 4;

/// Traffic of a connection since the last call of [`Connection::take_traffic`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Envelopes sealed for sending.
    pub envelopes_sent: u64,
    /// Envelopes received whole.
    pub envelopes_received: u64,
    /// Messages queued for sending.
    pub messages_sent: u64,
    /// Messages received from the peer.
    pub messages_received: u64,
}

/// A connection after the handshake; see the module.
pub struct Connection<R> {
    table: Arc<PeerTable>,
    peer: NodeId,
    /// The peer's incarnation and process start id.
    disk: (Incarnation, BootId),
    way: Direction,
    outgoing: Outgoing,
    incoming: Incoming<R>,
    traffic: Traffic,
    closed: Option<&'static str>,
    finishing: bool,
    /// True if bytes were received since the last ping.
    received_any: bool,
    /// True if a message was pushed since the last ping.
    pushed: bool,
    silent_pings: u32,
    /// True if the peer has asked this node to send no further requests.
    leaving: bool,
}

impl<R> Drop for Connection<R> {
    fn drop(&mut self) {
        let shared = &self.table.shared;
        if !shared.membership.logs.note_connection(self.peer, false) {
            shared.membership.known_disk.on_disconnect(self.peer);
        }
    }
}

impl<R: MessageReservation> Connection<R> {
    /// Creates the connection after both nodes have proved their identity. A dialed connection
    /// begins with a ping, so that clocks are compared before anything is answered: see
    /// [`Clock::note_comparison`](protocol::Clock::note_comparison).
    pub fn new(table: &Arc<PeerTable>, seen: &PeerSeen, way: Direction, now: Now) -> Self {
        let mut this = Self {
            table: Arc::clone(table),
            peer: seen.node,
            disk: (seen.incarnation, seen.life),
            way,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            traffic: Traffic::default(),
            closed: None,
            finishing: false,
            received_any: true,
            pushed: false,
            silent_pings: 0,
            leaving: false,
        };
        table.shared.membership.logs.note_connection(seen.node, true);
        if way == Direction::Dialed {
            this.ping(now, true, 1);
        }
        this
    }

    /// Returns the node at the other end.
    pub fn peer(&self) -> NodeId {
        self.peer
    }

    /// Returns the side that opened the connection.
    pub fn direction(&self) -> Direction {
        self.way
    }

    /// True if the peer has asked this node to send no further requests.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns the reason why the connection must be closed and its unwritten bytes dropped; `None`
    /// = the connection is open.
    pub fn close_reason(&self) -> Option<&'static str> {
        self.closed
    }

    /// Returns the number of bytes yet to be written.
    pub fn unsent_bytes(&self) -> usize {
        if self.closed.is_some() { 0 } else { self.outgoing.unsent_bytes() }
    }

    /// Takes the traffic since the last call.
    pub fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    /// True if the driver must not read more requests for now, because too many replies wait.
    pub fn is_paused(&self) -> bool {
        let most = self.table.encoded_bytes() / PAUSE_SHARE;
        self.way != Direction::Dialed && self.outgoing.writer.len() > most
    }

    /// Queues a message; returns false if the queue is full.
    pub fn push(&mut self, message: Message, now: impl Fn() -> Now) -> bool {
        let length = message_len(&message);
        let (bounds, out) = (self.table.bounds, &mut self.outgoing);
        let waiting = out.unsent_bytes();
        if waiting > 0 && waiting + length > bounds.queue_bytes {
            return false;
        }
        self.traffic.messages_sent += 1;
        self.pushed = true;
        let encoded = out.writer.len();
        if length > WHOLE_MAX {
            let mono = now().mono;
            out.long.drop_expired(mono);
            out.long.push(message, mono);
        } else if encoded > 0 && encoded + length > self.table.encoded_bytes()
            || !out.short.is_empty()
        {
            let mono = now().mono;
            out.short.drop_expired(mono);
            out.short.push(message, mono);
        } else {
            out.writer.message(&message);
            if out.writer.is_full() {
                self.seal(&now);
            }
        }
        true
    }

    /// Answers a request received on this connection.
    pub fn respond(&mut self, id: u64, reply: Reply, now: impl Fn() -> Now) {
        let fits = self.push(Message { id, body: Body::Reply(reply) }, &now);
        // Busy does not mean that this node is overloaded, but that the requester takes no replies
        // now.
        let fits = fits || self.push(Message { id, body: Body::Reply(Reply::Busy) }, &now);
        if !fits {
            self.close("it takes no replies");
        }
    }

    fn seal(&mut self, now: &impl Fn() -> Now) {
        let writer = &mut self.outgoing.writer;
        if writer.has_open() && writer.seal(self.table.sender(self.peer, now())) {
            self.traffic.envelopes_sent += 1;
        }
    }

    /// Returns the bytes to write next: whole envelopes, or the rest of a partly written envelope.
    pub fn to_send(&mut self, now: impl Fn() -> Now) -> &[u8] {
        if self.outgoing.writer.closed_envelopes().is_empty() && self.outgoing.unsent_bytes() > 0 {
            self.outgoing.encode_short(self.table.encoded_bytes(), &now);
            self.outgoing.add_pieces(&now);
            self.seal(&now);
        }
        self.outgoing.writer.closed_envelopes()
    }

    /// Removes `bytes` bytes that were written.
    pub fn drop_sent(&mut self, bytes: usize) {
        let writer = &mut self.outgoing.writer;
        writer.drop_sent(bytes);
        if writer.is_empty() {
            writer.shrink(KEPT_BYTES);
        }
    }

    /// Queues a notice that this node wants no more requests, or will send none.
    pub fn goodbye(&mut self) {
        self.outgoing.writer.goodbye();
    }

    /// Pings on a dialed connection, and closes a connection after too many ping intervals without
    /// input. An idle connection pings only if `turn` is true, in one of `skips` rounds: see
    /// [`Pings`](super::Pings).
    pub fn ping(&mut self, now: Now, turn: bool, skips: u32) {
        let in_use = std::mem::take(&mut self.pushed) || !self.received_any;
        let dialed = self.way == Direction::Dialed;
        if dialed && !turn && !in_use {
            return;
        }
        let received_any = std::mem::take(&mut self.received_any);
        self.silent_pings = if received_any { 0 } else { self.silent_pings + 1 };
        let most = if dialed { MISSED_PINGS } else { SILENT_PINGS * skips };
        if self.silent_pings >= most {
            self.close("no ping answered");
        } else if dialed {
            self.outgoing.short.drop_expired(now.mono);
            self.outgoing.long.drop_expired(now.mono);
            self.outgoing.writer.ping(now.mono);
        }
    }

    /// Closes the connection once all bytes are written and the peer has closed it too. Closing
    /// first, with unread bytes, would discard data that the peer has not read yet.
    pub fn finish(&mut self) {
        self.finishing = true;
    }

    /// True if the connection is finishing and all bytes are written.
    pub fn is_finished(&self) -> bool {
        self.finishing && self.outgoing.unsent_bytes() == 0
    }

    /// Closes the connection and drops its unwritten bytes.
    pub fn close(&mut self, why: &'static str) {
        self.closed = Some(why);
    }

    /// Processes `input` up to the next item that is not for the connection itself. Must be called
    /// until it returns `None`, and without input while a long message waits for a reservation.
    pub fn receive(
        &mut self,
        input: &mut &[u8],
        host: &mut impl Host<Reservation = R>,
    ) -> Result<Option<ConnectionInput>, Malformed> {
        self.received_any |= !input.is_empty();
        while self.closed.is_none() {
            if let Some(item) = self.incoming.item()? {
                if let Some(connection_input) = self.item(item, host)? {
                    return Ok(Some(connection_input));
                }
            } else if let Some(sender) = self.incoming.open(input)? {
                self.traffic.envelopes_received += 1;
                if !self.table.process_header(self.peer, self.disk, sender, host.now()) {
                    self.close("a later process with that node's data directory is known");
                } else if self.table.notices_later_epoch(self.peer, sender.view.epoch) {
                    return Ok(Some(ConnectionInput::Later));
                }
            } else {
                return self.process_pieces(host);
            }
        }
        Ok(None)
    }

    fn item(
        &mut self,
        item: Item,
        host: &mut impl Host<Reservation = R>,
    ) -> Result<Option<ConnectionInput>, Malformed> {
        match item {
            Item::Message(message) => return self.message(message, self.incoming.under, host),
            Item::Piece { last, bytes } => self.incoming.piece(bytes, last)?,
            Item::Credit(bytes) => {
                self.outgoing.credit += bytes as usize;
                if self.outgoing.credit > WINDOW {
                    return Err(Malformed("more credit returned than was used"));
                }
            }
            Item::Ping { token } => self.outgoing.writer.pong(token, host.now().wall),
            Item::Pong { token, wall } => {
                let mono = host.now().mono;
                self.table.note_pong(self.peer, mono.saturating_sub(token), wall, mono);
            }
            Item::Goodbye => {
                self.leaving = true;
                return Ok(Some(ConnectionInput::Goodbye));
            }
        }
        Ok(None)
    }

    /// Processes pieces as long as their message has a reservation or is discarded. Then gives the
    /// peer credit for these pieces.
    fn process_pieces(
        &mut self,
        host: &mut impl Host<Reservation = R>,
    ) -> Result<Option<ConnectionInput>, Malformed> {
        while let Some((piece, _)) = self.incoming.pieces.front() {
            if matches!(self.incoming.long, LongMessage::No) {
                self.incoming.long = self.initial_state(PieceHeader::parse(piece)?, host);
            }
            if let LongMessage::Waits(what) = self.incoming.long {
                let Some(room) = host.reserve_for_request(what.bytes) else { break };
                self.incoming.long = LongMessage::Assembling(Some(room));
            }
            if let Some((long, whole)) = self.incoming.take_piece()?
                && let Some(connection_input) = self.finish_long_message(long, whole, host)?
            {
                return Ok(Some(connection_input));
            }
        }
        let credit = self.incoming.take_credit();
        if credit > 0 {
            self.outgoing.writer.credit(credit);
        }
        Ok(None)
    }

    /// Returns the initial state of a long message.
    fn initial_state(
        &self,
        what: PieceHeader,
        host: &mut impl Host<Reservation = R>,
    ) -> LongMessage<R> {
        match what.kind {
            LongKind::Request => LongMessage::Waits(what),
            LongKind::Found => reply_state(what, host.take_reply_reservation(self.peer, what.id)),
            // The reader of a range has a reservation for its pages.
            LongKind::Page => LongMessage::Assembling(None),
        }
    }

    /// Handles a long message after its last piece.
    fn finish_long_message(
        &mut self,
        long: LongMessage<R>,
        whole: Option<Bytes>,
        host: &mut impl Host<Reservation = R>,
    ) -> Result<Option<ConnectionInput>, Malformed> {
        match (long, whole) {
            (LongMessage::Assembling(room), Some(bytes)) => {
                let bytes = match room {
                    Some(room) => room.keep(bytes),
                    None => bytes,
                };
                let message = message_of(bytes)?;
                self.message(message, self.incoming.long_under, host)
            }
            // The message had no reservation.
            (LongMessage::Skipped(what), _) if self.way == Direction::Dialed => {
                let (peer, id, reply) = (self.peer, what.id, Reply::Busy);
                Ok(Some(ConnectionInput::Event(Event::Reply { peer, id, reply })))
            }
            _ => Ok(None),
        }
    }

    fn message(
        &mut self,
        message: Message,
        under: ViewId,
        host: &mut impl Host<Reservation = R>,
    ) -> Result<Option<ConnectionInput>, Malformed> {
        let Message { id, body } = message;
        let peer = self.peer;
        self.traffic.messages_received += 1;
        let event = match (self.way, body) {
            (Direction::Dialed, Body::Reply(mut reply)) => {
                // A long message received its reservation with its first piece. A record that is
                // just long enough for a reservation, in a short message, receives it here.
                if let Reply::Found { record, .. } = &mut reply
                    && let Some(room) = host.take_reply_reservation(peer, id)
                {
                    *record = record.view().to_record().relocate(|bytes| room.keep(bytes));
                }
                Event::Reply { peer, id, reply }
            }
            (Direction::Accepted(_), Body::Request { .. }) if !self.table.may_serve(under) => {
                self.respond(id, Reply::TopologyMismatch, || host.now());
                return Ok(None);
            }
            (Direction::Accepted(connection), Body::Request { remaining_ms, class, request }) => {
                Event::Request { connection, id, class, remaining_ms, under, request }
            }
            (Direction::Dialed, Body::Request { .. }) => {
                return Err(Malformed("a request on a connection for replies"));
            }
            (Direction::Accepted(_), Body::Reply(_)) => {
                return Err(Malformed("a reply on a connection for requests"));
            }
        };
        Ok(Some(ConnectionInput::Event(event)))
    }
}
