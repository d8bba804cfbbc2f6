//! Connections between nodes, without sockets, clocks and threads: received bytes become events,
//! and messages become bytes to send.
//!
//! ```text
//!  requests to a peer ─▶ Link ─┬─ short requests ──────────────▶ small Connection ─▶ bytes to send
//!                              └─ long requests, hints, pages ─▶ bulk Connection ──▶ bytes to send
//!
//!  received bytes ─▶ Connection ─▶ events: replies, or the peer's requests
//! ```
//!
//! Each event loop has a link for each peer, and both connections of a link fail together.
//! [`PeerTable`] is the state of all other nodes, shared by all links of a node.
//!
//! A connection begins with [`Upgrade`], then [`protocol::handshake`]; the owner of the socket
//! drives both. [`PeerTable::record_handshake`] records the peer seen. From then on the connection
//! is a [`Connection`].
//!
//! There are two drivers: the process, over tokio's sockets, and the simulator, over a network that
//! loses and splits bytes. A driver supplies bytes, time, and memory for long messages ([`Host`]).

mod connection;
mod incoming;
mod outgoing;
mod redialer;
mod table;
#[cfg(test)]
mod tests;
mod to_peer;
mod upgrade;

use bytes::Bytes;
use protocol::{ConnectionId, Event, NodeId, Now};

pub use connection::{Connection, Traffic};
pub use redialer::{Pings, Redialer, Round};
pub use table::{LinkBounds, PeerTable, Seen};
pub use to_peer::{Attempt, DialStage, DownLink, Link};
pub use upgrade::{NotPeer, PEER_PATH, PEER_PROTOCOL, Upgrade};

/// Microseconds between two ping rounds of dialed connections. A connection that receives nothing
/// in two rounds in which it pings is closed.
pub const PING_MICROS: u64 = 500_000;

/// Longest duration of a handshake, on either side, in microseconds: three round trips, on a busy
/// machine.
pub const HANDSHAKE_MICROS: u64 = 1_000_000;

/// Limit on the connections that one loop accepts: two from each loop of each peer, plus unclosed
/// connections of the peers' previous processes.
pub const MAX_ACCEPTED: usize = 4096;

/// The side that opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This node: its requests go out.
    Dialed,
    /// The peer: its requests come in, and are answered on this connection.
    Accepted(ConnectionId),
}

/// An item from a connection, for its driver.
#[derive(Debug)]
pub enum ConnectionInput {
    /// An event for the coordinator.
    Event(Event),
    /// The peer uses a later layout than this node; the node task must request this layout.
    Later,
    /// The peer wants no more requests: see [`Link::note_peer_leaving`].
    Goodbye,
}

/// A memory reservation for a long message, released on drop.
pub trait MessageReservation: Send + Sized + 'static {
    /// Returns the size of the reservation, in bytes.
    fn bytes(&self) -> usize;

    /// Attaches the reservation to `bytes`: dropping the last slice of them releases the
    /// reservation.
    fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ReservedBytes { bytes, _room: self })
    }
}

/// Bytes with the reservation that covers them.
struct ReservedBytes<R> {
    bytes: Bytes,
    _room: R,
}

impl<R> AsRef<[u8]> for ReservedBytes<R> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The services that a connection needs from its driver.
pub trait Host {
    /// Reservation for a long message.
    type Reservation: MessageReservation;

    /// Returns the current time; called only where it is needed.
    fn now(&self) -> Now;

    /// Reserves memory for a long request of the peer. `None` = no memory is free now: the
    /// connection gives no more credit, and asks again with the next call of
    /// [`Connection::receive`].
    fn reserve_for_request(&mut self, bytes: usize) -> Option<Self::Reservation>;

    /// Takes the reservation for the reply to a request of this node, if the reservation still
    /// exists.
    fn take_reply_reservation(&mut self, peer: NodeId, id: u64) -> Option<Self::Reservation>;
}
