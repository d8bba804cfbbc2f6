//! A loop's end of a connection, and the memory for its incoming messages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::handshake::Handshake;
use protocol::{NodeId, Now};
use server::link::{Attempt, Connection, Host, MessageReservation};

/// Memory of a process for long requests, in bytes. A longer request is accepted once all of this
/// memory is free.
const ROOM_BYTES: usize = 256 << 10;

/// A loop's end of a connection.
pub(crate) struct Endpoint {
    /// Index of the end: 0 = this loop dialed.
    pub(crate) end: usize,
    /// The peer and the attempt to connect, if this loop dialed.
    pub(crate) dialed: Option<(usize, Attempt)>,
    /// Time of creation in microseconds, by the node's monotonic clock.
    pub(crate) since: u64,
    /// Bytes of the handshake that are to be sent.
    pub(crate) handshake_output: Vec<u8>,
    pub(crate) stage: Stage,
}

/// Phase of the connection.
pub(crate) enum Stage {
    Opening(Option<Box<Handshake>>),
    Open(Box<Connection<Reservation>>),
}

/// The memory of a process for long messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

/// A reservation of [`Memory`].
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Memory,
    bytes: usize,
}

impl Memory {
    /// Returns the number of reserved bytes.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Option<Reservation> {
        let held = self.0.load(Ordering::Relaxed);
        let fits = held == 0 || held + bytes <= ROOM_BYTES;
        fits.then(|| {
            self.0.fetch_add(bytes, Ordering::Relaxed);
            Reservation { memory: self.clone(), bytes }
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl MessageReservation for Reservation {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The [`Host`] of a connection while the connection receives.
pub(crate) struct ReceiveHost<'a> {
    pub(crate) now: Now,
    pub(crate) memory: Memory,
    /// True if a message waits for memory.
    pub(crate) waits: bool,
    /// Peers that this loop asked for a long record, each with the number of the request.
    pub(crate) fetching: &'a mut BTreeSet<(NodeId, u64)>,
}

impl Host for ReceiveHost<'_> {
    type Reservation = Reservation;

    fn now(&self) -> Now {
        self.now
    }

    fn reserve_for_request(&mut self, bytes: usize) -> Option<Reservation> {
        let held = self.memory.take(bytes);
        self.waits = held.is_none();
        held
    }

    /// Reserves memory for a reply with a requested long record, whatever the reply's length.
    /// Returns `None` for any other reply.
    fn take_reply_reservation(&mut self, peer: NodeId, id: u64) -> Option<Reservation> {
        if !self.fetching.remove(&(peer, id)) {
            return None;
        }
        let memory = Memory::default();
        memory.0.store(u32::MAX as usize, Ordering::Relaxed);
        Some(Reservation { memory, bytes: u32::MAX as usize })
    }
}

impl Endpoint {
    pub(crate) fn new(
        end: usize,
        dialed: Option<(usize, Attempt)>,
        since: u64,
        handshake: Handshake,
    ) -> Self {
        let stage = Stage::Opening(Some(Box::new(handshake)));
        Self { end, dialed, since, handshake_output: Vec::new(), stage }
    }

    /// Returns the connection, or `None` until the handshake is complete.
    pub(crate) fn open(&mut self) -> Option<&mut Connection<Reservation>> {
        match &mut self.stage {
            Stage::Open(connection) => Some(connection),
            Stage::Opening(_) => None,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        matches!(&self.stage, Stage::Open(connection) if connection.is_paused())
    }
}
