//! Connections between nodes, without sockets, clocks and threads: bytes in, events out; messages
//! in, bytes out.
//!
//! ```text
//!  send(peer) ─▶ Link ─┬─ small ─▶ Connection ─▶ bytes    one Link for each peer and loop;
//!                      └─ bulk ──▶ Connection ─▶ bytes    it stands or falls as a whole
//!                                      ▲
//!                 bytes ── receive ────┘──▶ events        replies, or the peer's requests
//!
//!  PeerTable: what all links of a node know of the others, and have seen of them
//! ```
//!
//! A connection begins with [`Upgrade`], then [`cluster::handshake`], both driven by whoever has
//! the socket; [`PeerTable::saw`] takes in who was seen. From then on it is a [`Connection`].
//!
//! There are two drivers: the process, over tokio's sockets, and the simulator, over a network that
//! loses and splits what it likes. They bring the bytes, the times, and room for long messages
//! ([`Host`]).

mod connection;
mod incoming;
mod keeper;
mod outgoing;
mod table;
#[cfg(test)]
mod tests;
mod to_peer;
mod upgrade;

use bytes::Bytes;
use cluster::{ConnectionId, Event, NodeId, Now};

pub use connection::{Connection, Traffic};
pub use keeper::{Keeper, Pings, Round};
pub use table::{Bounds, PeerTable, Seen};
pub use to_peer::{Attempt, Fallen, Link, Stage};
pub use upgrade::{NotPeer, PEER_PATH, PEER_PROTOCOL, Upgrade};

/// Microseconds between two pings on every connection that was dialed. One that brought nothing
/// between three of them, so that two were missed, is closed.
pub const PING_MICROS: u64 = 500_000;

/// How long a handshake may take, on either side, in microseconds: three round trips, on a busy
/// machine.
pub const HANDSHAKE_MICROS: u64 = 1_000_000;

/// Connections that one loop accepts at most: two from each loop of each peer, with room for those
/// of a peer's former life that nobody closed.
pub const MAX_ACCEPTED: usize = 4096;

/// Who made a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// This node: its requests go out.
    Dialed,
    /// The other one: its requests come in, and are answered on this connection.
    Accepted(ConnectionId),
}

/// What came over a connection.
#[derive(Debug)]
pub enum Came {
    /// For the coordinator.
    Event(Event),
    /// The other node goes by a later layout than this one: the node task has to know.
    Later,
    /// The other node wants no more requests: see [`Link::leave`].
    Goodbye,
}

/// Memory that was set aside for a long message. Dropping it gives it back.
pub trait Room: Send + Sized + 'static {
    /// How much, in bytes.
    fn bytes(&self) -> usize;

    /// Gives it back when the last of `bytes` and what is sliced off them is dropped.
    fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept { bytes, _room: self })
    }
}

/// Bytes in memory with what was set aside for them.
struct Kept<R> {
    bytes: Bytes,
    _room: R,
}

impl<R> AsRef<[u8]> for Kept<R> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a connection asks of whoever drives it.
pub trait Host {
    /// Memory for long messages.
    type Room: Room;

    /// The time. Asked only where it is needed.
    fn now(&self) -> Now;

    /// Memory for a long request of the other node; `None` = not now: the connection gives no more
    /// credit, and asks again with the next call of [`Connection::receive`].
    fn room_for_request(&mut self, bytes: usize) -> Option<Self::Room>;

    /// Takes what was set aside for the reply to a request of this node, if it still is.
    fn room_for_reply(&mut self, peer: NodeId, id: u64) -> Option<Self::Room>;
}
