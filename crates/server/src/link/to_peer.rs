//! The link to one peer: its connections, and the messages that wait for them to be dialed.
//!
//! ```text
//!   down ─▶ dialing    at the first message, or when the redialer dials
//!   dialing ─▶ up      after the handshake; event `LinkUp`
//!   up ─▶ down         when a connection is lost, or the peer is silent; event `LinkLost`
//!   dialing ─▶ down    when the dial or the handshake fails; event `Unreachable`
//! ```
//!
//! A link has a small connection for short requests, and a bulk connection for long requests, hints
//! and page requests, which is dialed with the first of these. The link is up or down as a whole:
//! when either connection is lost, both are closed, and there is one [`Event::LinkLost`] for all
//! unanswered requests.

use std::collections::VecDeque;

use protocol::handshake::ConnectionKind;
use protocol::wire::{WHOLE_MAX, message_len};
use protocol::{Body, Event, Message, NodeId, Request};

use super::outgoing::deduct_queueing_time;

/// Minimum time between a failed dial and the next, in microseconds. Messages sent in between wait
/// for the next dial, so that a peer that refuses connections does not cost a dial per request.
const DIAL_SPACING_MICROS: u64 = 2_000;

/// Minimum time between a refused handshake and the next dial, in microseconds. A refusal usually
/// lasts, because it follows from settings, and a handshake costs both nodes more than a refused
/// connection.
const REFUSED_SPACING_MICROS: u64 = 50_000;

/// The link to one peer; see the module. `D` is the driver's dial attempt, `C` its connection.
#[derive(Debug)]
pub struct Link<D, C> {
    small: LinkConnection<D, C>,
    bulk: LinkConnection<D, C>,
    /// Generation of the link: the number of times that it went down. The number identifies dials
    /// that began before the link last went down.
    generation: u64,
    /// Earliest time of the next dial, after a failed dial or a lost connection.
    not_before: Option<u64>,
    /// True if the peer wants no more requests.
    leaving: bool,
}

#[derive(Debug)]
struct LinkConnection<D, C> {
    stage: DialStage<D, C>,
    /// Messages that wait for a connection, each with its queueing time.
    waiting: VecDeque<(Message, u64)>,
    bytes: usize,
}

/// State of one of a link's connections.
#[derive(Debug)]
pub enum DialStage<D, C> {
    /// No dial is under way.
    Down,
    /// The connection is being dialed.
    Dialing(D),
    /// The connection is open.
    Up(C),
}

/// A dial to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The connection's kind.
    pub kind: ConnectionKind,
    /// The link's generation when the dial begins.
    pub generation: u64,
    /// Earliest time to dial, by the monotonic clock.
    pub not_before: Option<u64>,
}

/// A link that has just gone down.
#[derive(Debug)]
pub struct DownLink<D, C> {
    /// States of the connections, small and bulk. The driver must close them.
    pub stages: [DialStage<D, C>; 2],
    /// True if the peer had announced that it wants no more requests.
    pub left: bool,
    /// Event for the coordinator.
    pub event: Event,
}

impl<D, C> Default for Link<D, C> {
    fn default() -> Self {
        Self::new(0, None)
    }
}

impl<D, C> Default for LinkConnection<D, C> {
    fn default() -> Self {
        Self { stage: DialStage::Down, waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<D, C> DownLink<D, C> {
    /// True if the link counted as up.
    pub fn was_up(&self) -> bool {
        matches!(self.stages[0], DialStage::Up(_))
    }
}

impl<D, C> Link<D, C> {
    fn new(generation: u64, not_before: Option<u64>) -> Self {
        Self {
            small: LinkConnection::default(),
            bulk: LinkConnection::default(),
            generation,
            not_before,
            leaving: false,
        }
    }

    fn slot(&mut self, kind: ConnectionKind) -> &mut LinkConnection<D, C> {
        match kind {
            ConnectionKind::Small => &mut self.small,
            ConnectionKind::Bulk => &mut self.bulk,
        }
    }

    /// Returns the link's generation: the number of times that the link went down.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the open connections.
    pub fn connections(&self) -> impl Iterator<Item = &C> {
        [&self.small, &self.bulk].into_iter().filter_map(|slot| match &slot.stage {
            DialStage::Up(connection) => Some(connection),
            DialStage::Down | DialStage::Dialing(_) => None,
        })
    }

    /// Begins to dial a connection, unless it is open or being dialed.
    pub fn dial(&mut self, kind: ConnectionKind, begin: impl FnOnce(Attempt) -> D) {
        let attempt = Attempt { kind, generation: self.generation, not_before: self.not_before };
        let slot = self.slot(kind);
        if matches!(slot.stage, DialStage::Down) {
            slot.stage = DialStage::Dialing(begin(attempt));
        }
    }

    /// Sends a message with `push`, or queues it until the connection is open, after `dial` has
    /// begun to open it. Returns false if the queue is full or the peer is leaving.
    pub fn send(
        &mut self,
        message: Message,
        queue_bytes: usize,
        mono: impl FnOnce() -> u64,
        push: impl FnOnce(&C, Message) -> bool,
        mut dial: impl FnMut(Attempt) -> D,
    ) -> bool {
        if self.leaving {
            return false;
        }
        let length = message_len(&message);
        let kind = kind_of(&message, length);
        let slot = self.slot(kind);
        if let DialStage::Up(connection) = &slot.stage {
            return push(connection, message);
        }
        if slot.bytes > 0 && slot.bytes + length > queue_bytes {
            return false;
        }
        slot.bytes += length;
        slot.waiting.push_back((message, mono()));
        // The small connection is always dialed, because it must be open for the link to count as
        // up.
        for kind in [ConnectionKind::Small, kind] {
            self.dial(kind, &mut dial);
        }
        true
    }

    /// Records that a connection dialed in `generation` is open. Returns the waiting messages that
    /// have not expired; `None` = the link has gone down since the dial began.
    pub fn up(
        &mut self,
        kind: ConnectionKind,
        generation: u64,
        connection: C,
        mono: u64,
    ) -> Option<Vec<Message>> {
        if self.generation != generation {
            return None;
        }
        self.not_before = None;
        let slot = self.slot(kind);
        slot.bytes = 0;
        slot.stage = DialStage::Up(connection);
        let waiting = slot.waiting.drain(..).filter_map(|(mut message, since)| {
            deduct_queueing_time(&mut message, since, mono).then_some(message)
        });
        Some(waiting.collect())
    }

    /// Records that the peer is leaving and wants no more requests.
    pub fn note_peer_leaving(&mut self) {
        self.leaving = true;
    }

    /// Takes the whole link down because a connection dialed in `generation` has ended or could not
    /// be opened; `None` = the link has already gone down since.
    pub fn take_down(
        &mut self,
        peer: NodeId,
        generation: u64,
        refused: bool,
        mono: u64,
    ) -> Option<DownLink<D, C>> {
        if self.generation != generation {
            return None;
        }
        let spacing = if refused { REFUSED_SPACING_MICROS } else { DIAL_SPACING_MICROS };
        let next = Self::new(generation + 1, Some(mono + spacing));
        let Self { small, bulk, leaving: left, .. } = std::mem::replace(self, next);
        let stages = [small.stage, bulk.stage];
        // The node may have carried out requests sent over a bulk connection, with or without a
        // small one.
        let sent = stages.iter().any(|stage| matches!(stage, DialStage::Up(_)));
        let event = if sent { Event::LinkLost(peer) } else { Event::Unreachable(peer) };
        Some(DownLink { stages, left, event })
    }
}

/// Returns the kind of connection for a message. Long requests, page requests and hints use the
/// bulk connection, so that neither they nor their replies delay messages for which a client waits.
fn kind_of(message: &Message, length: usize) -> ConnectionKind {
    let bulk = match &message.body {
        Body::Request { request, .. } => {
            matches!(request, Request::Writes { .. } | Request::Page(_))
        }
        Body::Reply(_) => false,
    };
    if bulk || length > WHOLE_MAX { ConnectionKind::Bulk } else { ConnectionKind::Small }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::Class;

    use super::*;

    const PEER: NodeId = NodeId(1);
    const QUEUE: usize = 300;

    type Tested = Link<(), &'static str>;

    fn message(id: u64, request: Request) -> Message {
        Message { id, body: Body::Request { remaining_ms: 100, class: Class::Client, request } }
    }

    fn ping(id: u64) -> Message {
        message(id, Request::Ping)
    }

    fn hints(id: u64) -> Message {
        message(id, Request::Writes { items: Vec::new() })
    }

    /// Returns the connections dialed, the connection pushed to, and whether the message was taken.
    fn send(link: &mut Tested, sent: Message) -> (Vec<ConnectionKind>, Option<&'static str>, bool) {
        let (mut dialed, mut pushed) = (Vec::new(), None);
        let push = |connection: &&'static str, _| {
            pushed = Some(*connection);
            true
        };
        let dial = |attempt: Attempt| dialed.push(attempt.kind);
        let taken = link.send(sent, QUEUE, || 0, push, dial);
        (dialed, pushed, taken)
    }

    #[test]
    fn queued_messages_are_sent_on_the_open_connection_unless_expired() {
        let (mut link, small, bulk) =
            (Tested::default(), ConnectionKind::Small, ConnectionKind::Bulk);
        assert_eq!(send(&mut link, hints(1)), (vec![small, bulk], None, true));
        assert_eq!(send(&mut link, ping(2)), (vec![], None, true), "both are being made");
        let waited = link.up(small, 0, "small", 40_000).unwrap();
        assert_eq!(waited.len(), 1);
        let Body::Request { remaining_ms: 60, .. } = waited[0].body else { panic!("{waited:?}") };
        assert_eq!(send(&mut link, ping(3)), (vec![], Some("small"), true));
        assert_eq!(link.up(bulk, 0, "bulk", 100_000), Some(vec![]), "nobody waits any more");
        let long = Bytes::from(vec![0; WHOLE_MAX]);
        let long = message(4, Request::Read { key: long, most: 0 });
        assert_eq!(send(&mut link, long).1, Some("bulk"));
        assert_eq!(link.connections().copied().collect::<Vec<_>>(), ["small", "bulk"]);
    }

    #[test]
    fn the_queue_of_a_link_is_bounded() {
        let mut link = Tested::default();
        let taken = (0..100).take_while(|id| send(&mut link, ping(*id)).2).count();
        assert_eq!(taken, QUEUE / message_len(&ping(0)));
        assert!(send(&mut link, hints(100)).2, "the other queue has room");
    }

    #[test]
    fn a_link_goes_down_once_with_all_its_connections() {
        let mut link = Tested::default();
        send(&mut link, hints(1));
        let down = link.take_down(PEER, 0, false, 5_000).unwrap();
        assert!(matches!(down.event, Event::Unreachable(PEER)) && !down.was_up());
        assert!(
            link.take_down(PEER, 0, false, 5_000).is_none(),
            "the other attempt's end is no news"
        );
        assert!(link.up(ConnectionKind::Small, 0, "late", 0).is_none(), "it came too late");
        let mut attempts = Vec::new();
        link.dial(ConnectionKind::Small, |attempt| attempts.push(attempt));
        let not_before = Some(7_000);
        assert_eq!(attempts, [Attempt { kind: ConnectionKind::Small, generation: 1, not_before }]);

        assert!(link.up(ConnectionKind::Bulk, 1, "bulk", 0).is_some());
        let down = link.take_down(PEER, 1, true, 5_000).unwrap();
        assert!(matches!(down.event, Event::LinkLost(PEER)), "it may have been done");
        assert!(!down.was_up(), "it never counted as up");
        link.dial(ConnectionKind::Small, |attempt| attempts.push(attempt));
        assert_eq!((attempts[1].generation, attempts[1].not_before), (2, Some(55_000)), "refused");
    }

    #[test]
    fn a_leaving_peer_gets_no_requests_until_its_link_has_gone_down() {
        let mut link = Tested::default();
        link.up(ConnectionKind::Small, 0, "small", 0).unwrap();
        link.note_peer_leaving();
        assert_eq!(send(&mut link, ping(1)), (vec![], None, false));
        assert!(link.take_down(PEER, 0, false, 0).unwrap().left);
        assert!(send(&mut link, ping(2)).2, "its goodbye is forgotten once the link is down");
    }
}
